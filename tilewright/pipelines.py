"""The compiler on one screen."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xdsl.dialects.builtin import ModuleOp

    from tilewright.machines.machine import Model
    from tilewright.passes.base import Pass, Unit
    from tilewright.schedules import Request
    from tilewright.targets.base import Executable, Tensor


def array_to_tile(model: Model) -> Sequence[Pass]:
    """Fuse array operations into kernels over tiles."""
    from tilewright.machines.machine import Model
    from tilewright.passes.array.array_align_rows import ArrayAlignRowsPass
    from tilewright.passes.array.array_bubble_up_slices import ArrayBubbleUpSlicesPass
    from tilewright.passes.array.array_collapse_dims import ArrayCollapseDimsPass
    from tilewright.passes.array.array_convolve_by_positions import ArrayConvolveByPositionsPass
    from tilewright.passes.array.array_convolve_by_products import ArrayConvolveByProductsPass
    from tilewright.passes.array.array_convolve_channels_last import ArrayConvolveChannelsLastPass
    from tilewright.passes.array.array_copy_reshapes import ArrayCopyReshapesPass
    from tilewright.passes.array.array_drop_collectives import ArrayDropCollectivesPass
    from tilewright.passes.array.array_duplicate_views import ArrayDuplicateViewsPass
    from tilewright.passes.array.array_fuse_attention import ArrayFuseAttentionPass
    from tilewright.passes.array.array_fuse_contract import ArrayFuseContractPass
    from tilewright.passes.array.array_fuse_loops import ArrayFuseLoopsPass
    from tilewright.passes.array.array_group_reshapes import ArrayGroupReshapesPass
    from tilewright.passes.array.array_hoist_invariants import ArrayHoistInvariantsPass
    from tilewright.passes.array.array_join_contractions import ArrayJoinContractionsPass
    from tilewright.passes.array.array_merge_pads import ArrayMergePadsPass
    from tilewright.passes.array.array_move_reshapes import ArrayMoveReshapesPass
    from tilewright.passes.array.array_narrow_contractions import ArrayNarrowContractionsPass
    from tilewright.passes.array.array_order_operands import ArrayOrderOperandsPass
    from tilewright.passes.array.array_order_weights import ArrayOrderWeightsPass
    from tilewright.passes.array.array_pad_contractions import ArrayPadContractionsPass
    from tilewright.passes.array.array_reduce_repeated import ArrayReduceRepeatedPass
    from tilewright.passes.array.array_simplify import ArraySimplifyPass
    from tilewright.passes.array.array_sink_broadcasts import ArraySinkBroadcastsPass
    from tilewright.passes.array.array_sink_transposes import ArraySinkTransposesPass
    from tilewright.passes.array.array_split_contractions import ArraySplitContractionsPass
    from tilewright.passes.array.array_split_joins import MOST_CUT_OPERANDS, ArraySplitJoinsPass
    from tilewright.passes.array.array_split_k import ArraySplitKPass
    from tilewright.passes.array.array_split_reductions import ArraySplitReductionsPass
    from tilewright.passes.array.array_split_sorts import ArraySplitSortsPass
    from tilewright.passes.array.array_store_joins import ArrayStoreJoinsPass
    from tilewright.passes.array.array_sum_operands import ArraySumOperandsPass
    from tilewright.passes.array.array_update_in_place import ArrayUpdateInPlacePass
    from tilewright.passes.kernels.array_lower_to_tile import ArrayLowerToTilePass
    from tilewright.passes.warps.tile_turn_copies import TileTurnCopiesPass

    vectors, warps, cores = (model == each for each in (Model.VECTORS, Model.WARPS, Model.CORES))
    passes = [
        (True, ArrayDropCollectivesPass()),  # remove collectives, which are the identity on one device
        (not cores, ArrayBubbleUpSlicesPass()),  # compute only what is taken, before anything is shared or grouped
        (True, ArrayConvolveByPositionsPass(leaves_images=vectors)),  # gradients of weights: a matmul for each position
        (not cores, ArraySinkBroadcastsPass()),  # compute what broadcasts repeat once, before reductions of it
        (
            not cores,
            ArrayReduceRepeatedPass(),
        ),  # reduce what broadcasts repeat once, before dead broadcasts are dropped
        (True, ArrayMergePadsPass()),  # one padding around what is computed of padded arrays, before fusion
        (True, ArraySimplifyPass()),  # fold constants, merge equal and drop dead operations before any grouping
        (True, ArrayHoistInvariantsPass()),  # compute before a loop what is the same in all trips, before it is grouped
        (vectors, ArraySinkTransposesPass()),  # reduce what is computed of transposed arrays in the order of memory
        (not cores, ArraySumOperandsPass()),  # sum the operands of contractions whose rows or columns are summed
        (vectors, ArrayJoinContractionsPass()),  # one contraction for sums of shallow ones, before views are copied
        (vectors, ArrayConvolveChannelsLastPass()),  # choose NHWC or NCHW convolutions before dims are matched by order
        (cores, ArrayCopyReshapesPass()),  # group reshapes that move pages with adjacent transposes
        (True, ArrayDuplicateViewsPass(in_loops=vectors)),  # give each user its own view, so that views tie no groups
        (True, ArrayFuseAttentionPass()),  # match two contractions around a softmax before either is fused alone
        (warps, ArrayConvolveByProductsPass()),  # rewrite convolutions as matmuls whose operands it lays out
        (warps, ArrayOrderWeightsPass()),  # lay out weights in a kernel of its own, before fusion takes the transpose
        (warps, ArrayOrderOperandsPass()),  # lay out matmul operands likewise
        (vectors, ArrayNarrowContractionsPass()),  # swap operands with few columns, reduce to few results
        (vectors, ArrayPadContractionsPass()),  # whole steps of matrix instructions, once rows and columns are final
        (not cores, ArrayMoveReshapesPass()),  # elementwise operations before reshapes, once contractions are final
        (vectors, ArraySplitReductionsPass()),  # split long reductions with few results; cores share their loops
        (warps, ArraySplitReductionsPass(fills_cores=True)),  # likewise, and those of too few blocks for all cores
        (vectors, ArraySplitContractionsPass()),  # split long contractions with few results, their operands as stored
        (warps, ArraySplitKPass()),  # split K of matmuls with few tiles where that is predicted to be faster
        (vectors, ArraySplitSortsPass()),  # sort halves of one long line on two threads
        (not vectors, ArraySplitJoinsPass()),  # split concatenations of many arrays, so that each part fuses
        (vectors, ArraySplitJoinsPass(MOST_CUT_OPERANDS)),  # likewise, of very many: loops are cut where operands end
        (vectors, ArrayStoreJoinsPass()),  # store concatenated short rows that expensive functions read, before fusion
        (vectors, ArrayAlignRowsPass()),  # store what loops along rows would read across them
        (True, ArrayFuseContractPass()),  # fuse epilogues into contractions before loops take them
        (
            True,
            ArrayUpdateInPlacePass(copies_scattered=vectors),
        ),  # write only the window of an update whose array has no later use
        (True, ArrayFuseLoopsPass()),  # fuse the remaining elementwise operations and reductions
        (
            not cores,
            ArrayCollapseDimsPass(merges_rows=vectors),
        ),  # merge dims once fusion, which compares shapes, is done
        (cores, ArrayGroupReshapesPass()),  # group the reshapes that move pages and were not fused
        (True, ArrayLowerToTilePass()),  # choose tile sizes from the machine, one kernel for equal groups
        (warps, TileTurnCopiesPass()),  # let tiles that are only transposed be loaded in one layout, stored in another
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
        TileEraseZonesPass(),  # loop nests cannot record zones
        TileLowerToVectorsPass(),  # assign a layout (vectors, packing, register blocks) and a buffer to every value
        ScheduledStoreProductsPass(),  # matmuls in parts store block by block to their destination, without a copy
        ScheduledSplitOperandsPass(),  # split operands into parts of a narrower type: f32 for bf16 instructions
        ScheduledPackOperandsPass(),  # pack right operands in panels: captured arrays now, others at kernel start
        ScheduledBlockEpiloguesPass(),  # run the epilogue of a matmul on each register block while it is in cache
    ]


def tile_to_warps() -> Sequence[Pass]:
    """Schedule for warps: layouts of all tiles, relayouts between them, and copies pipelined ahead of matmuls."""
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
        TileEraseZonesPass(unless_traced=True),  # remove zone markers when tracing is off
        TileExpandArgReducePass(),  # argmin and argmax are two reductions each
        TileFlattenLoopsPass(),  # a producer warp fills stages of one loop: flatten nests around the matmuls it feeds
        TileMultiplyInTensorMemoryPass(),  # choose the matmuls in tensor memory before layout inference
        TileLowerToWarpsPass(),  # infer layouts; exchange data within warps or through shared memory
        ScheduledOrderAccessesPass(),  # barriers between global accesses, now that the threads of each access are known
        ScheduledMultiplyInTensorMemoryPass(),  # a producer warp issues TMA copies, another one issues MMAs
        ScheduledSpecializeChainsPass(),  # likewise for chains of matmuls (attention): stages for each array
        ScheduledSumInTensorMemoryPass(),  # accumulate the matmuls of those chains in tensor memory
        ScheduledSpecializeWarpsPass(),  # a producer warp issues TMA copies for loops of asynchronous MMAs
        ScheduledShareRegistersPass(),  # setmaxnreg: reallocate registers from the producer to the MMA warpgroups
        ScheduledPipelineCopiesPass(),  # other matmul loops: multi-stage cp.async copies, bypassing registers
        ScheduledStoreTensorsPass(),  # TMA stores for results that are staged in shared memory anyway
        ScheduledOrderTilesPass(),  # reorder tiles for L2 reuse, once all copies are known
        ScheduledLoopOverTilesPass(),  # persistent CTAs that iterate over tiles in that order, once stores are decided
        ScheduledMulticastCopiesPass(),  # pair CTAs that read the same panel: each loads half and multicasts it
        ScheduledPlanBlockMemoryPass(),  # assign shared memory offsets, once all buffers exist
        ScheduledDropBarriersPass(),  # remove redundant barriers: aliasing of buffers decides which are needed
        ScheduledRecordZonesPass(),  # last: the extents of zones are final
    ]


def tile_to_cores(buffers: int | None = None, movers: int = 2, keeps_arrays: bool = True) -> Sequence[Pass]:
    """Schedule for a grid of cores: reader, compute and writer threads, queues between them, and unit configurations.

    A queue holds `buffers` blocks of pages; by default two, and more where the cost model predicts a gain."""
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
    from tilewright.passes.cores.tile_share_pages import TileSharePagesPass
    from tilewright.passes.cores.tile_split_positions import TileSplitPositionsPass
    from tilewright.passes.cores.tile_store_arrays import TileStoreArraysPass
    from tilewright.passes.cores.tile_store_choices import TileStoreChoicesPass
    from tilewright.passes.tile_erase_zones import TileEraseZonesPass
    from tilewright.passes.tile_expand_arg_reduce import TileExpandArgReducePass

    return [
        TileSharePagesPass(),  # first: leave out kernels that copy arrays to other pages, before storage is applied
        TileStoreArraysPass(),  # apply the requested storage formats to array types
        TileEraseZonesPass(unless_traced=True),  # remove zone markers when tracing is off
        TileExpandArgReducePass(),  # argmin and argmax are two reductions each
        TileExpandIntegerProductsPass(),  # the matrix unit multiplies floats only: expand integer matmuls into digits
        TileExpandParitiesPass(),  # bools are stored as floats: exclusive or becomes the parity of a count
        TileExpandTopKPass(),  # top-k is a prefix of a sort
        TileShareLoadsPass(),  # each load needs a queue: merge equal loads
        TileStoreChoicesPass(),  # both branches of a select execute: mask their memory accesses
        TileSplitPositionsPass(),  # positions are stored element by element: split them into rows and columns
        TileLowerToCoresPass(buffers or 2, movers),  # map grid points to cores and tiles to queue pages
        ScheduledFinishProductsPass(buffers is None),  # apply epilogues to accumulators in registers
        ScheduledMulticastFetchesPass(),  # multicast pages that several cores read, now that reads per core are known
        ScheduledShareQueuesPass(),  # merge queues with disjoint lifetimes, once all last readers are known
        ScheduledConfigureUnitsPass(),  # insert unit reconfigurations, once the order of operations is final
        ScheduledPlaceArraysPass(keeps_arrays),  # keep arrays in L1 between kernels where L1 has room next to queues
        ScheduledPlanCoreMemoryPass(),  # assign L1 addresses, once all queues exist and arrays are placed
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
    schedule: Request | None = None,
) -> Executable:
    """Compile a module of the `array` phase for a target such as `cpu`, `cpu:x86-64-v3` or `interp`, with requested
    schedules in place of those that the cost model chooses.

    Raises:
        ScheduleError: a kernel or the machine does not admit its schedule.
        TargetError: the string names no target or machine.
        UnsupportedOnTargetError: the program calls a library, which the target does not support.
    """
    from tilewright.options import current
    from tilewright.passes.base import Unit
    from tilewright.passes.library_calls import refuse_library_calls
    from tilewright.passes.requested import RequestedSchedules, unscheduled
    from tilewright.runtime.cpu.features import default_threads
    from tilewright.targets.base import target_named

    manifest, machine_name = target_named(target)
    threads = current().threads or default_threads()
    machine = manifest.machine_named(machine_name)
    unit = Unit(module, dict(constants), machine, threads, dict(donate), name, dict(storage or {}))
    unit.requested = RequestedSchedules.of(schedule)
    if not manifest.calls_libraries:
        refuse_library_calls(unit, manifest.name)
    if unit.requested and not manifest.lowered:
        raise unscheduled(manifest.name)
    stages = run_passes(unit, keep_stages, manifest.scheduled) if manifest.lowered else {}
    return manifest.executable(unit, stages)


def run_passes(unit: Unit, keep_stages: bool = True, scheduled: bool = True) -> dict[str, str]:
    """Run the pipelines, the last one only if kernels are to be `scheduled`; returns the IR text at each phase border
    if it is kept. A kernel that does not fit the machine is lowered again with a smaller plan.

    Raises:
        DoesNotFit: a kernel does not fit in its smallest plan.
        ScheduleError: a kernel or the machine does not admit its requested schedule.
    """
    from tilewright.errors import ResourceExhausted

    try:
        stages = _run_with_fallbacks(unit, keep_stages, scheduled)
    except ResourceExhausted as error:
        unit.requested.check_room(error)
        raise
    unit.requested.check()
    return stages


def _run_with_fallbacks(unit: Unit, keep_stages: bool, scheduled: bool) -> dict[str, str]:
    from tilewright.machines.machine import Model
    from tilewright.passes.fallbacks import DoesNotFit

    if unit.machine.model != Model.WARPS:
        return _run_passes(unit, keep_stages, scheduled)
    original, constants, remarks = unit.module.clone(), dict(unit.constants), list(unit.remarks)
    while True:
        try:
            return _run_passes(unit, keep_stages, scheduled)
        except DoesNotFit as misfit:
            unit.requested.check_fits(
                {each.kernel: unit.fallbacks.key_of(each.kernel) for each in misfit.excesses}, misfit
            )
            if not unit.fallbacks.lower(misfit):
                raise
            unit.module = original.clone()
            unit.constants, unit.remarks = dict(constants), list(remarks)
            unit.schedules.clear()
            unit.requested.restart()


def _phases(model: Model, scheduled: bool) -> Sequence[tuple[str, Sequence[Pass]]]:
    to_tile = ("tile", array_to_tile(model))
    return (to_tile, ("scheduled", SCHEDULING[model]())) if scheduled else (to_tile,)


def _lower(passes: Sequence[Pass], unit: Unit, runs: int = 2) -> None:
    """Lower a program; of its longest runs of equal layers a few layers each, which stand for all."""
    from tilewright.passes.few_layers import lower_few_layers

    if not runs or not lower_few_layers(unit, partial(_lower, passes, runs=runs - 1)):
        _apply(passes, unit)


def _apply(passes: Sequence[Pass], unit: Unit) -> None:
    from tilewright import events
    from tilewright.options import current
    from tilewright.passes.legality import verify_module

    for each in passes:
        start = time.perf_counter()
        each.apply(unit)
        seconds = time.perf_counter() - start
        if current().verify > 1:
            verify_module(unit, f"the pass `{each.name}`")
        if events.listening(6):
            events.emit("compile.pass", level=6, name=each.name, seconds=seconds, text=str(unit.module))


def _run_passes(unit: Unit, keep_stages: bool, scheduled: bool) -> dict[str, str]:
    from tilewright import events
    from tilewright.options import current
    from tilewright.passes.legality import check_phase, verify_module
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
    for phase, passes in _phases(unit.machine.model, scheduled):
        if phase == "tile":
            _lower(passes, unit)
        else:
            _apply(passes, unit)
        if verify:
            verify_module(unit, f"the {phase} phase")
            check_phase(unit, phase)
        border(phase)
    for remark in unit.remarks if events.listening(3) else ():
        events.emit("compile.remark", level=3, text=str(remark))
    return stages
