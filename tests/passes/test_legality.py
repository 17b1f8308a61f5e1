"""Programs hold only operations of their phase at its end; what breaks the IR is reported as a bug of the compiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation

import tilewright as tw
from tilewright import pipelines
from tilewright.dialects import array, cores, scheduled, tile
from tilewright.errors import VerificationError
from tilewright.frontend.build import build_module
from tilewright.machines.machine import Model, load
from tilewright.options import options
from tilewright.passes.base import Unit
from tilewright.passes.kernels.array_lower_to_tile import ArrayLowerToTilePass
from tilewright.passes.legality import check_phase

MACHINES = {Model.VECTORS: "x86-64-v3", Model.WARPS: "sm_90a", Model.CORES: "wormhole"}


def unit_on(machine: str) -> Unit:
    x = tw.ShapeDtype((64, 64), tw.f32)
    graph = tw.jit(lambda x: tw.nn.softmax(x @ x, axis=-1)).lower(x).graph
    return Unit(build_module(graph), {}, load(machine), 1, name="f")


@pytest.mark.parametrize("model", MACHINES)
def test_an_array_operation_that_is_left_is_reported(model: Model) -> None:
    unit = unit_on(MACHINES[model])
    with pytest.raises(VerificationError, match=r"`array\.contract` of `f` is illegal after the tile phase"):
        check_phase(unit, "tile")
    illegal = r"`array\.fused` of `f` is illegal after the tile phase"
    with patch.object(ArrayLowerToTilePass, "apply"), pytest.raises(VerificationError, match=illegal):
        pipelines.run_passes(unit)


@pytest.mark.parametrize("model", MACHINES)
def test_a_kernel_that_is_not_scheduled_is_reported(model: Model) -> None:
    unit = unit_on(MACHINES[model])
    with patch.dict(pipelines.SCHEDULING, {model: list}), pytest.raises(VerificationError, match="scheduled phase"):
        pipelines.run_passes(unit)


@pytest.mark.parametrize("model", MACHINES)
def test_all_programs_of_a_model_are_legal(model: Model) -> None:
    unit = unit_on(MACHINES[model])
    pipelines.run_passes(unit)
    check_phase(unit, "scheduled")
    dialect = cores if model == Model.CORES else scheduled
    assert any(isinstance(op, array.CallOp) for op in unit.main.walk())
    assert any(type(op).__module__.startswith(dialect.__name__) for kernel in unit.kernels() for op in kernel.walk())


def breaking(change: Callable[[Unit], None]) -> Any:
    @dataclass(frozen=True)
    class Break:
        name: ClassVar[str] = "break"

        def apply(self, unit: Unit) -> None:
            change(unit)

    return Break()


def first(unit: Unit, kind: type[Operation]) -> Any:
    return next(op for kernel in unit.kernels() for op in kernel.walk() if isinstance(op, kind))


def change_type(unit: Unit) -> None:
    load = first(unit, tile.LoadOp)
    load.properties["map"] = StringAttr("no map")


def swap(unit: Unit) -> None:
    calls = [op for op in unit.main.body.block.ops if isinstance(op, array.CallOp)]
    block = unit.main.body.block
    calls[0].detach()
    block.insert_op_after(calls[0], calls[-1])


@pytest.mark.parametrize("change", [change_type, swap])
@pytest.mark.parametrize("verify", [1, 2])
def test_a_pass_that_breaks_the_ir_is_named(change: Callable[[Unit], None], verify: int) -> None:
    unit = unit_on("x86-64-v3")
    with (
        options(verify=verify),
        patch.object(pipelines, "_phases", lambda model, scheduled: phases(model, change)),
        pytest.raises(VerificationError) as raised,
    ):
        pipelines.run_passes(unit)
    assert ("the pass `break`" if verify == 2 else "the tile phase") in raised.value.message
    assert raised.value.help == "report the program: this is a bug of the compiler"


def phases(model: Model, change: Callable[[Unit], None]) -> Any:
    return [("tile", [*pipelines.array_to_tile(model), breaking(change)])]
