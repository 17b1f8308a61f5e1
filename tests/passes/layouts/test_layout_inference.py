"""Layout inference on kernels: every operation has a rule, the examples are solved on both kinds of machine, the answer
is the cheapest of all assignments, and contradictions name the user's lines."""

from __future__ import annotations

import importlib.util
from itertools import product
from math import inf
from pathlib import Path

import pytest
from xdsl.ir import SSAValue

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.errors import LayoutConflictError, TargetError
from tilewright.layout import Iter, Layout
from tilewright.layout.catalogue import wgmma_accumulator
from tilewright.layout.solver import Choice, Relation
from tilewright.machines import machine as machines
from tilewright.passes.layouts.layout_inference import Inference, infer_layouts
from tilewright.passes.layouts.layout_rules import ANCHORS, FREE, IGNORED, RULES
from tilewright.passes.layouts.layout_spaces import Space, dealt
from tilewright.passes.spaces import space_of
from tilewright.primitives import ArrayType

EXAMPLES = Path(__file__).parents[3] / "examples" / "kernels"
KERNELS = [
    ("softmax", "softmax"),
    ("layer_norm", "layer_norm"),
    ("matmul", "matmul"),
    ("matmul", "matmul_bias_gelu"),
    ("flash_attention", "flash_attention"),
]
MACHINES = ("sm_90a", "x86-64-v4")


def kernel_of(file: str, name: str) -> tile.KernelOp:
    spec = importlib.util.spec_from_file_location(f"layouts_{file}", EXAMPLES / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name).lower(*module.EXAMPLE_ARGUMENTS[name]).specialisation.build()


def space(name: str) -> Space:
    return space_of(machines.load(name))


def test_every_tile_operation_has_a_rule() -> None:
    covered = {*RULES, *ANCHORS, *FREE, *IGNORED}
    assert set(tile.Tile.operations) - covered == {tile.KernelOp}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("file", "name"), KERNELS)
def test_examples_have_layouts_and_the_same_ones_each_time(file: str, name: str, machine: str) -> None:
    kernel = kernel_of(file, name)
    first, second = (infer_layouts(kernel, space(machine)) for _ in range(2))
    assert first.solution == second.solution
    assert 0 < first.solution.cost < inf
    for value in first.variables:
        layout = first.layout(value)
        assert layout is not None
        assert layout.shape == tuple(value.type.get_shape())  # type: ignore[attr-defined]


def test_products_take_an_atom_and_the_machine_decides_which() -> None:
    kernel = kernel_of("flash_attention", "flash_attention")
    on_gpu, on_cpu = (infer_layouts(kernel, space(machine)) for machine in MACHINES)
    assert {atom.name.split(",")[0] for atom in map(on_gpu.atom, on_gpu.products)} <= {"mma.sync", "wgmma"}
    assert {atom.name.split(",")[0] for atom in map(on_cpu.atom, on_cpu.products)} == {"micro-kernel"}


def cost_of(inference: Inference, values: tuple[object, ...]) -> float:
    total = 0.0
    for constraint in inference.problem.constraints:
        if isinstance(constraint, Choice):
            cost = constraint.cost(values[constraint.variable])
        else:
            assert isinstance(constraint, Relation)
            pair = values[constraint.first], values[constraint.second]
            cost = constraint.cost(*pair) if constraint.cost is not None else (0.0 if pair[0] == pair[1] else None)
        if cost is None:
            return inf
        total += cost
    return total


@pytest.mark.parametrize("machine", MACHINES)
def test_the_answer_is_the_cheapest_of_all_assignments(machine: str) -> None:
    inference = infer_layouts(kernel_of("matmul", "matmul"), space(machine))
    best = min(cost_of(inference, values) for values in product(*inference.problem.domains))
    assert inference.solution.cost == pytest.approx(best, rel=1e-12)
    assert cost_of(inference, inference.solution.values) == pytest.approx(best, rel=1e-12)


def _loads_and_maps(kernel: tile.KernelOp) -> tuple[SSAValue, SSAValue]:
    load = next(op for op in kernel.walk() if isinstance(op, tile.LoadOp))
    user = next(iter(load.result.uses)).operation
    return load.result, user.results[0]


def test_a_pin_is_kept_and_what_it_costs_is_paid() -> None:
    kernel = kernel_of("flash_attention", "flash_attention")
    loaded, _ = _loads_and_maps(kernel)
    free = infer_layouts(kernel, space("sm_90a"))
    other = wgmma_accumulator((64, 64))
    pinned = infer_layouts(kernel, space("sm_90a"), {loaded: other})
    assert pinned.layout(loaded) == other
    assert pinned.solution.cost >= free.solution.cost


def test_a_pin_of_the_wrong_shape_names_the_lines() -> None:
    kernel = kernel_of("flash_attention", "flash_attention")
    loaded, _ = _loads_and_maps(kernel)
    wrong = Layout((8, 8), ((Iter(8, 1, "lane"),), (Iter(8, 1, "reg"),)))
    with pytest.raises(LayoutConflictError, match="pinned") as caught:
        infer_layouts(kernel, space("sm_90a"), {loaded: wrong})
    assert "flash_attention.py" in str(caught.value)


@pytest.mark.parametrize("shape", [(64, 64), (5, 300), (1, 7), (128,), (3, 4, 5)])
def test_dealt_tiles_have_every_element_once(shape: tuple[int, ...]) -> None:
    for order in (list(range(len(shape))), list(reversed(range(len(shape))))):
        layout = dealt(shape, order, (("lane", 32), ("warp", 4)), 4)
        places = [layout.places(index) for index in layout.indices()]
        assert len(frozenset().union(*places)) == len(places)
        assert layout.axis_extents().get("lane", 1) <= 32  # type: ignore[operator]
        assert layout.axis_extents().get("warp", 1) <= 4  # type: ignore[operator]


def test_distributions_read_memory_in_wide_accesses() -> None:
    type = ArrayType((64, 64), dtypes.f16)
    first = next(iter(space("sm_90a").distributions(type, 1)))
    assert first.coordinates((0, 7)) == first.coordinates((0, 0)) | {"reg": 7}


def test_a_machine_without_lanes_and_vectors_is_refused() -> None:
    with pytest.raises(TargetError, match=r"not inferred for wormhole.*core\.y") as caught:
        space("wormhole")
    assert "sm_90a" in str(caught.value)
