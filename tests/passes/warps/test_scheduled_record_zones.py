"""Which roles `scheduled-record-zones` lets record which zones, and that what records computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.test_zones import ROWS, compiled, operands, product, remarks_of
from tilewright.dialects.base import tensor
from tilewright.dialects.scheduled import MmaWaitOp, RecordOp, RoleOp
from tilewright.dialects.tile import ZoneOp, ref_type
from tilewright.passes.warps import scheduled_record_zones
from tilewright.primitives import ArrayType
from tilewright.semantics.scheduled import Interpreter


def records_in(program: Any) -> list[tuple[str, str]]:
    """Beginnings of zones and who records them, in the order of the text."""
    found: list[tuple[str, str]] = []
    for kernel in program.executable.unit.kernels():
        for op in kernel.walk():
            if isinstance(op, RecordOp) and op.what == "begin":
                around = op.parent_op()
                while around is not None and not isinstance(around, RoleOp):
                    around = around.parent_op()
                found.append((op.label, "computes" if around is None else around.role))
    return found


def test_copies_ahead_by_all_threads_take_loads_out_of_their_zone(tmp_path: Path) -> None:
    a, b = operands()
    with tw.options(trace_file=tmp_path / "trace.json", verify=2):
        program = compiled(product, a, b, np.empty((ROWS, ROWS), np.float16), target="cuda:sm_80")
    assert records_in(program) == [(label, "computes") for label in ("steps", "multiply", "store")]
    first, second = remarks_of(program)
    assert first == "zone `load` of `computes` is empty (the copies are pipelined ahead)"
    assert second == "`computes` records `steps`, `multiply`, `store` (room for 8 edges of zones a block)"


def test_roles_of_tensor_memory_record_what_is_theirs(tmp_path: Path) -> None:
    a, b = operands()
    with tw.options(trace_file=tmp_path / "trace.json", verify=2):
        program = compiled(product, a, b, np.empty((ROWS, ROWS), np.float16), target="cuda:sm_100a", bm=128)
    assert records_in(program) == [
        *(("steps", "copies"), ("load", "copies")),
        *(("steps", "multiplies"), ("multiply", "multiplies")),
        *(("steps", "computes"), ("store", "computes")),
    ]


def test_zones_do_not_keep_products_from_being_under_way(tmp_path: Path) -> None:
    """One product is waited for while the next one is under way, with a trace as without; all of them are done when the
    zone around the loop ends."""
    a, b = operands()
    arrays = (a, b, np.empty((ROWS, ROWS), np.float16))
    plain = compiled(product, *arrays)
    with tw.options(trace_file=tmp_path / "trace.json", verify=2):
        traced = compiled(product, *arrays)
    waits = [
        [op.pending for op in program.executable.unit.module.walk() if isinstance(op, MmaWaitOp)]
        for program in (plain, traced)
    ]
    assert waits == [[1, 0], [1, 0]]
    text = traced.ir("scheduled")
    _, _, behind = text.partition("tile.for(%")
    assert behind.index("pending = 0") < behind.index('label = "steps"')


def test_the_executor_runs_what_records(tmp_path: Path) -> None:
    a, b = operands()
    with tw.options(trace_file=tmp_path / "trace.json"):
        unit = compiled(product, a, b, np.empty((ROWS, ROWS), np.float16)).executable.unit
    (kernel,) = unit.kernels()
    c = np.zeros((ROWS, ROWS), np.float16)
    records = np.zeros(ref_type(kernel.refs[-1]).shape, np.int64)
    Interpreter(seed=3).run_scheduled(kernel, [a, b, c, records])
    np.testing.assert_array_equal(c, (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16))


def test_blocks_that_leave_no_room_record_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduled_record_zones, "MOST_BYTES", 100)
    a, b = operands()
    with tw.options(trace_file=tmp_path / "trace.json"):
        program = compiled(product, a, b, np.empty((ROWS, ROWS), np.float16))
    assert remarks_of(program)[-1] == "zones are not recorded (4 blocks leave no room in 100 bytes)"
    assert records_in(program) == []
    assert not any(isinstance(op, ZoneOp | RecordOp) for op in program.executable.unit.module.walk())
    assert program.executable.unit.main.body.block.first_op.results[0].type == tensor(ArrayType((ROWS, ROWS), tw.f16))
