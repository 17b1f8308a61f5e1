"""The compiler on one screen."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xdsl.dialects.builtin import ModuleOp

    from tilewright.machines.machine import Model
    from tilewright.passes.base import Pass, Unit
    from tilewright.targets.base import Executable, Tensor


def array_to_tile(model: Model) -> Sequence[Pass]:
    """Fuse: after these, every array operation that computes is part of a kernel."""
    from tilewright.machines.machine import Model
    from tilewright.passes.array.array_collapse_dims import ArrayCollapseDimsPass
    from tilewright.passes.array.array_convolve_by_products import ArrayConvolveByProductsPass
    from tilewright.passes.array.array_convolve_channels_last import ArrayConvolveChannelsLastPass
    from tilewright.passes.array.array_copy_reshapes import ArrayCopyReshapesPass
    from tilewright.passes.array.array_drop_collectives import ArrayDropCollectivesPass
    from tilewright.passes.array.array_duplicate_views import ArrayDuplicateViewsPass
    from tilewright.passes.array.array_fuse_attention import ArrayFuseAttentionPass
    from tilewright.passes.array.array_fuse_contract import ArrayFuseContractPass
    from tilewright.passes.array.array_fuse_loops import ArrayFuseLoopsPass
    from tilewright.passes.array.array_group_reshapes import ArrayGroupReshapesPass
    from tilewright.passes.array.array_order_operands import ArrayOrderOperandsPass
    from tilewright.passes.array.array_order_weights import ArrayOrderWeightsPass
    from tilewright.passes.array.array_simplify import ArraySimplifyPass
    from tilewright.passes.array.array_split_contractions import ArraySplitContractionsPass
    from tilewright.passes.array.array_split_joins import ArraySplitJoinsPass
    from tilewright.passes.array.array_split_k import ArraySplitKPass
    from tilewright.passes.array.array_split_reductions import ArraySplitReductionsPass
    from tilewright.passes.array.array_update_in_place import ArrayUpdateInPlacePass
    from tilewright.passes.kernels.array_lower_to_tile import ArrayLowerToTilePass

    vectors, warps, cores = (model == each for each in (Model.VECTORS, Model.WARPS, Model.CORES))
    passes = [
        (True, ArrayDropCollectivesPass()),  # remove collectives, which are the identity on one device
        (True, ArraySimplifyPass()),  # fold constants, merge equal and drop dead operations before any grouping
        (vectors, ArrayConvolveChannelsLastPass()),  # choose NHWC convolutions before dims are matched by their order
        (
            cores,
            ArrayCopyReshapesPass(),
        ),  # group reshapes that move pages with the transposes around them
        (True, ArrayDuplicateViewsPass()),  # give each user its own view, so that views tie no groups together
        (True, ArrayFuseAttentionPass()),  # match two contractions around a softmax before either is fused alone
        (warps, ArrayConvolveByProductsPass()),  # rewrite convolutions as matmuls whose operands it lays out
        (warps, ArrayOrderWeightsPass()),  # lay out weights in a kernel of its own, before fusion takes the transpose
        (warps, ArrayOrderOperandsPass()),  # lay out matmul operands likewise
        (not cores, ArraySplitReductionsPass()),  # split long reductions with few results; cores share their loops
        (vectors, ArraySplitContractionsPass()),  # split long contractions with few results, their operands as stored
        (warps, ArraySplitKPass()),  # split K of matmuls with few tiles where that is predicted to be faster
        (True, ArraySplitJoinsPass()),  # split concatenations of many arrays, so that each part fuses with producers
        (True, ArrayFuseContractPass()),  # fuse epilogues into contractions before loops take them
        (True, ArrayUpdateInPlacePass()),  # write only the window of an update whose array has no later use
        (True, ArrayFuseLoopsPass()),  # fuse the remaining elementwise operations and reductions
        (
            not cores,
            ArrayCollapseDimsPass(),
        ),  # merge dims after fusion, which needs shapes; pages keep their two
        (cores, ArrayGroupReshapesPass()),  # group the reshapes that move pages and were not fused
        (True, ArrayLowerToTilePass()),  # choose tile sizes from the machine, one kernel for equal groups
    ]
    return [each for applies, each in passes if applies]


def tile_to_vectors() -> Sequence[Pass]:
    """Schedule for vectors: layouts, buffers, loop nests, packed operands, parallel regions."""
    from tilewright.passes.tile_erase_zones import TileEraseZonesPass
    from tilewright.passes.vectors.scheduled_block_epilogues import ScheduledBlockEpiloguesPass
    from tilewright.passes.vectors.scheduled_pack_operands import ScheduledPackOperandsPass
    from tilewright.passes.vectors.scheduled_split_operands import ScheduledSplitOperandsPass
    from tilewright.passes.vectors.scheduled_store_products import ScheduledStoreProductsPass
    from tilewright.passes.vectors.tile_lower_to_vectors import TileLowerToVectorsPass

    return [
        TileEraseZonesPass(),  # nests have no place for them
        TileLowerToVectorsPass(),  # a layout (vectors, packing, register blocks) and a place for every value
        ScheduledStoreProductsPass(),  # results of products in parts go where they belong, block by block
        ScheduledSplitOperandsPass(),  # operands of products that narrower instructions do, in parts
        ScheduledPackOperandsPass(),  # panels for right operands: captured arrays now, others at the kernel's start
        ScheduledBlockEpiloguesPass(),  # what follows a product, while a block of it is near
    ]


def tile_to_warps() -> Sequence[Pass]:
    """Schedule for warps: layouts of all tiles, every movement of data between them, and copies ahead of products."""
    from tilewright.passes.tile_erase_zones import TileEraseZonesPass
    from tilewright.passes.tile_expand_arg_reduce import TileExpandArgReducePass
    from tilewright.passes.warps.scheduled_drop_barriers import ScheduledDropBarriersPass
    from tilewright.passes.warps.scheduled_loop_over_tiles import ScheduledLoopOverTilesPass
    from tilewright.passes.warps.scheduled_multicast_copies import ScheduledMulticastCopiesPass
    from tilewright.passes.warps.scheduled_multiply_in_tensor_memory import ScheduledMultiplyInTensorMemoryPass
    from tilewright.passes.warps.scheduled_order_accesses import ScheduledOrderAccessesPass
    from tilewright.passes.warps.scheduled_order_tiles import ScheduledOrderTilesPass
    from tilewright.passes.warps.scheduled_pipeline_copies import ScheduledPipelineCopiesPass
    from tilewright.passes.warps.scheduled_plan_block_memory import ScheduledPlanBlockMemoryPass
    from tilewright.passes.warps.scheduled_record_zones import ScheduledRecordZonesPass
    from tilewright.passes.warps.scheduled_share_registers import ScheduledShareRegistersPass
    from tilewright.passes.warps.scheduled_specialize_chains import ScheduledSpecializeChainsPass
    from tilewright.passes.warps.scheduled_specialize_warps import ScheduledSpecializeWarpsPass
    from tilewright.passes.warps.scheduled_store_tensors import ScheduledStoreTensorsPass
    from tilewright.passes.warps.scheduled_sum_in_tensor_memory import ScheduledSumInTensorMemoryPass
    from tilewright.passes.warps.tile_flatten_loops import TileFlattenLoopsPass
    from tilewright.passes.warps.tile_lower_to_warps import TileLowerToWarpsPass
    from tilewright.passes.warps.tile_multiply_in_tensor_memory import TileMultiplyInTensorMemoryPass

    return [
        TileEraseZonesPass(unless_traced=True),  # they are no code without a trace
        TileExpandArgReducePass(),  # an index of the best is two reductions
        TileFlattenLoopsPass(),  # around products whose operands a warp of its own has copied, in a loop
        TileMultiplyInTensorMemoryPass(),  # before layouts: which products may
        TileLowerToWarpsPass(),  # a layout for every tile; data moves within warps, or through buffers of the block
        ScheduledOrderAccessesPass(),  # when it is known which thread stores what
        ScheduledMultiplyInTensorMemoryPass(),  # those products: a warp has the machine copy, another one multiply
        ScheduledSpecializeChainsPass(),  # the same for chains of products, each array in stages of its own
        ScheduledSumInTensorMemoryPass(),  # of those chains, where products add up there
        ScheduledSpecializeWarpsPass(),  # windows that warpgroups multiply: a warp has the machine copy them
        ScheduledShareRegistersPass(),  # where products need what the threads that copy do not
        ScheduledPipelineCopiesPass(),  # windows that other loops multiply, in stages, around registers
        ScheduledStoreTensorsPass(),  # results that go through a buffer anyway, where the machine copies
        ScheduledOrderTilesPass(),  # when what blocks copy is known, and before anything is planned by its place
        ScheduledLoopOverTilesPass(),  # in that order; when it is known how results are stored
        ScheduledMulticastCopiesPass(),  # when it is known which blocks are neighbours, in all their tiles
        ScheduledPlanBlockMemoryPass(),  # when all buffers are there
        ScheduledDropBarriersPass(),  # what buffers share decides which barriers are needed
        ScheduledRecordZonesPass(),  # last: what zones hold when everything is where it stays
    ]


def tile_to_cores(buffers: int | None = None, movers: int = 2, keeps_arrays: bool = True) -> Sequence[Pass]:
    """Schedule for a grid of cores: threads that read, compute and write, queues, and what each core's units do. Queues
    between threads have room for so many tiles as are said, or for two, and as many more as are predicted to help."""
    from tilewright.passes.cores.scheduled_configure_units import ScheduledConfigureUnitsPass
    from tilewright.passes.cores.scheduled_finish_products import ScheduledFinishProductsPass
    from tilewright.passes.cores.scheduled_multicast_fetches import ScheduledMulticastFetchesPass
    from tilewright.passes.cores.scheduled_place_arrays import ScheduledPlaceArraysPass
    from tilewright.passes.cores.scheduled_plan_core_memory import ScheduledPlanCoreMemoryPass
    from tilewright.passes.cores.scheduled_share_queues import ScheduledShareQueuesPass
    from tilewright.passes.cores.tile_expand_integer_products import TileExpandIntegerProductsPass
    from tilewright.passes.cores.tile_expand_parities import TileExpandParitiesPass
    from tilewright.passes.cores.tile_expand_top_k import TileExpandTopKPass
    from tilewright.passes.cores.tile_lower_to_cores import TileLowerToCoresPass
    from tilewright.passes.cores.tile_share_loads import TileShareLoadsPass
    from tilewright.passes.cores.tile_store_arrays import TileStoreArraysPass
    from tilewright.passes.cores.tile_store_choices import TileStoreChoicesPass
    from tilewright.passes.tile_erase_zones import TileEraseZonesPass
    from tilewright.passes.tile_expand_arg_reduce import TileExpandArgReducePass

    return [
        TileStoreArraysPass(),  # first: formats that the user asked for are in the types of arrays from now on
        TileEraseZonesPass(unless_traced=True),  # they are no code without a trace
        TileExpandArgReducePass(),  # an index of the best is two reductions
        TileExpandIntegerProductsPass(),  # the matrix unit multiplies floats: integers digit by digit
        TileExpandParitiesPass(),  # bools are stored as numbers: whether an odd number of them holds is a count
        TileExpandTopKPass(),  # the largest elements are the first ones of a sort
        TileShareLoadsPass(),  # a queue for each load: equal ones are one
        TileStoreChoicesPass(),  # both branches of a choice are computed
        TileLowerToCoresPass(buffers or 2, movers),  # points to cores, tiles to pages in queues, sections of registers
        ScheduledFinishProductsPass(buffers is None),  # when it is known what follows products
        ScheduledMulticastFetchesPass(),  # when it is known which pages each core fetches, and how often
        ScheduledShareQueuesPass(),  # when all queues are there, and it is known who reads what last
        ScheduledConfigureUnitsPass(),  # when it is known what each unit does, in which order
        ScheduledPlaceArraysPass(keeps_arrays),  # when it is known which cores move which pages, and what queues take
        ScheduledPlanCoreMemoryPass(),  # when all queues are there, and where arrays are
    ]


# From tiles to the schedule of a machine, by its execution model.
SCHEDULING = {"vectors": tile_to_vectors, "warps": tile_to_warps, "cores": tile_to_cores}


def compile_module(
    module: ModuleOp,
    constants: Mapping[str, Tensor],
    target: str,
    donate: Sequence[tuple[int, int]] = (),
    name: str = "main",
    keep_stages: bool = True,
    storage: Mapping[int, str] | None = None,
) -> Executable:
    """Compile a module of the `array` phase for a target such as `cpu`, `cpu:x86-64-v3`, `cuda:sm_90a` or `interp`.

    Raises:
        TargetError: the string names no target or machine.
        UnsupportedOnTargetError: the program calls a library, and the target does not.
    """
    from tilewright.options import current
    from tilewright.passes.base import Unit
    from tilewright.passes.library_calls import refuse_library_calls
    from tilewright.runtime.cpu.features import default_threads
    from tilewright.targets.base import target_named

    manifest, machine_name = target_named(target)
    threads = current().threads or default_threads()
    machine = manifest.machine_named(machine_name)
    unit = Unit(module, dict(constants), machine, threads, dict(donate), name, dict(storage or {}))
    if not manifest.calls_libraries:
        refuse_library_calls(unit, manifest.name)
    stages = run_passes(unit, keep_stages) if manifest.lowered else {}
    return manifest.executable(unit, stages)


def run_passes(unit: Unit, keep_stages: bool = True) -> dict[str, str]:
    """Run the lists of passes; gives the program's text at each phase border if it is to be kept. Where kernels do not
    fit the machine, again, with smaller plans for them.

    Raises:
        DoesNotFit: a kernel does not fit in its smallest plan.
    """
    from tilewright.machines.machine import Model
    from tilewright.passes.fallbacks import DoesNotFit

    if unit.machine.model != Model.WARPS:
        return _run_passes(unit, keep_stages)
    original, constants, remarks = unit.module.clone(), dict(unit.constants), list(unit.remarks)
    while True:
        try:
            return _run_passes(unit, keep_stages)
        except DoesNotFit as misfit:
            if not unit.fallbacks.lower(misfit):
                raise
            unit.module = original.clone()
            unit.constants, unit.remarks = dict(constants), list(remarks)


def _phases(model: Model) -> Sequence[tuple[str, Sequence[Pass]]]:
    return ("tile", array_to_tile(model)), ("scheduled", SCHEDULING[model]())


def _run_passes(unit: Unit, keep_stages: bool) -> dict[str, str]:
    from tilewright import events
    from tilewright.options import current
    from tilewright.passes.base import check_order
    from tilewright.runtime.files import dump

    verify, dump_dir = current().verify, current().dump_dir
    stages: dict[str, str] = {}

    def border(phase: str) -> None:
        if keep_stages or dump_dir is not None or events.listening(5):
            stages[phase] = str(unit.module)
            events.emit("compile.phase", level=5, phase=phase, text=stages[phase])
        if dump_dir is not None:
            dump(dump_dir / unit.name, f"{len(stages)}.{phase}.mlir", stages[phase])

    border("array")
    for phase, passes in _phases(unit.machine.model):
        for each in passes:
            start = time.perf_counter()
            each.apply(unit)
            seconds = time.perf_counter() - start
            if verify > 1:
                unit.module.verify()
            if events.listening(6):
                events.emit("compile.pass", level=6, name=each.name, seconds=seconds, text=str(unit.module))
        if verify:
            unit.module.verify()
            check_order(unit.main)
        border(phase)
    for remark in unit.remarks if events.listening(3) else ():
        events.emit("compile.remark", level=3, text=str(remark))
    return stages
