"""Results that the machine stores: on an emulator and by the definitions of the operations, and what they ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.cuda.test_machine_code import check_clean
from tests.cuda.test_pipeline import executed, operands, product
from tests.passes.pass_support import applied, check_meaning, check_unchanged
from tests.passes.test_docstrings import example
from tests.passes.warps.test_scheduled_specialize_warps import Make, defined, ops_of, remarks
from tilewright.dialects import scheduled, tile
from tilewright.dialects.scheduled import asynchronous
from tilewright.passes.warps import scheduled_store_tensors
from tilewright.passes.warps.scheduled_store_tensors import ScheduledStoreTensorsPass
from tilewright.semantics.hazards import RaceError
from tilewright.semantics.scheduled import run_call

SMALL, TWO_GROUPS = (64, 32, 64, 1, 2), (128, 64, 64, 2, 2)


@pytest.mark.parametrize("shape", [SMALL, TWO_GROUPS], ids=str)
def test_what_is_beyond_the_array_is_left_out(by_warpgroups: Make, shape: tuple[int, ...]) -> None:
    a, b, exact = operands("nt", "bf16", 136, 72, 136)
    program = by_warpgroups(shape, product("nt", "bf16"), a, b)
    assert remarks(program, ScheduledStoreTensorsPass)[0].startswith("stored by TMA")
    assert len(ops_of(program, asynchronous.TensorStoreOp)) == 1
    assert not any("st.global" in text for text in program.ptx.values())
    got, counts = executed(program, (a, b))
    np.testing.assert_array_equal(got, exact.astype(got.dtype))
    np.testing.assert_array_equal(defined(program, (a, b)), got)
    assert counts.shared_conflicts == 0


def test_rows_that_are_not_aligned_are_stored_by_threads(by_warpgroups: Make) -> None:
    a, b, exact = operands("nt", "bf16", 72, 36, 136)
    program = by_warpgroups(SMALL, product("nt", "bf16"), a, b)
    (said,) = remarks(program, ScheduledStoreTensorsPass)
    assert said.startswith("stored by threads: rows of 36 elements of 2 bytes do not begin at multiples of 16 bytes")
    assert ops_of(program, asynchronous.TensorStoreOp) == []
    np.testing.assert_array_equal(executed(program, (a, b))[0], exact.astype(a.dtype))


def without(kind: type) -> Callable[[list[Any]], None]:
    def edit(ops: list[Any]) -> None:
        (store,) = (op for op in ops if isinstance(op, asynchronous.TensorStoreOp))
        (near,) = (op for op in (store.prev_op, store.prev_op.prev_op, store.next_op) if isinstance(op, kind))
        near.detach()
        near.erase()

    return edit


def written_again(ops: list[Any]) -> None:
    """Before the machine has read it."""
    (store,) = (op for op in ops if isinstance(op, asynchronous.TensorStoreOp))
    (written,) = (use.operation for use in store.source.uses if isinstance(use.operation, tile.StoreOp))
    store.parent_block().insert_op_after(written.clone(), store)


WRONG = {
    "no fence": (without(asynchronous.FenceOp), "no fence before a barrier"),
    "no barrier": (without(scheduled.BarrierOp), "since the last barrier"),
    "no wait": (without(asynchronous.StoreWaitOp), "nothing waits for"),
    "written again": (written_again, "still reads"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_out_of_order_is_found(by_warpgroups: Make, name: str) -> None:
    edit, message = WRONG[name]
    a, b, _ = operands("nt", "bf16", 64, 32, 136)
    (kernel,) = by_warpgroups(SMALL, product("nt", "bf16"), a, b).unit.kernels()
    run_call(kernel, [a, b])
    edit(list(kernel.walk()))
    kernel.verify()
    with pytest.raises(RaceError, match=message):
        run_call(kernel, [a, b])


def test_machine_code(by_warpgroups: Make) -> None:
    a, b, _ = operands("nt", "bf16", 256, 256, 512)
    counts = check_clean(by_warpgroups((128, 128, 64, 2, 4), product("nt", "bf16"), a, b))
    assert counts["UTMASTG"] >= 1
    assert "STG" not in counts


# ---- which stores ---------------------------------------------------------------------------------------------------

PASS = ScheduledStoreTensorsPass()
# A tile of 64 x 64 that passes through a buffer and is stored.
BEFORE = example(scheduled_store_tensors).before
STORE = "tile.store(%5, %1, %2) {map = affine_map<(d0, d1)[s0] -> ((d0 + (s0 * 64)), d1)>}"
READ = '%5 = tile.load(%4) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<64x64xf16,\n        "(64, 64) : [4@reg*8'
LEFT = {
    "no producer": [('scheduled.role() {role = "copies", warps = 1 : index} do {\n      scheduled.end()\n    }', "")],
    "the tile is stored twice": [(STORE, f"{STORE}\n    {STORE}")],
    "the tile is stored as it is": [(STORE, STORE.replace("%5", "%3"))],
    "a part of the buffer is read": [(READ, READ.replace("(d0, d1) -> (d0, d1)", "(d0, d1) -> (d0, -d1 + 63)"))],
    "a part of the buffer is written": [
        ("tile.store(%3, %4) {map = affine_map<(d0, d1) -> (d0, d1)>}",
         "tile.store(%3, %4) {map = affine_map<(d0, d1) -> (-d0 + 63, d1)>}"),
    ],
    "the buffer is read twice": [
        (
            "%5 = tile.load(%4)",
            '%6 = tile.load(%4) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<64x64xf16,\n'
            '        "(64, 64) : [4@reg*8 4@warp 4@lane*8 | 8@lane 8@reg]">\n    %5 = tile.load(%4)',
        ),
    ],
    "the buffer is written twice": [
        ("tile.store(%3, %4) {map = affine_map<(d0, d1) -> (d0, d1)>}",
         "tile.store(%3, %4) {map = affine_map<(d0, d1) -> (d0, d1)>}\n"
         "    tile.store(%3, %4) {map = affine_map<(d0, d1) -> (d0, d1)>}"),
    ],
}  # fmt: skip


def changed(changes: list[tuple[str, str]]) -> str:
    text = BEFORE
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("name", LEFT)
def test_other_stores_are_left(name: str) -> None:
    assert check_unchanged(PASS, changed(LEFT[name]), "sm_90a").remarks == []


LANES = '"(64, 64) : [4@warp 2@reg*2 8@lane*4 | 8@reg*4 4@lane 2@reg]"'
REFUSED = {
    "rows that are not aligned": (
        [
            ("%1: !tile.ref<tensor<64x64xf16>>", "%1: !tile.ref<tensor<64x60xf16>>"),
            ("-> tensor<64x64xf16> {", "-> tensor<64x60xf16> {"),
            ('"copied"} : tensor<64x64xf16>', '"copied"} : tensor<64x60xf16>'),
            ("func.return %y : tensor<64x64xf16>", "func.return %y : tensor<64x60xf16>"),
        ],
        "rows of 60 elements of 2 bytes do not begin at multiples of 16 bytes",
    ),
    "every second column": (
        [(STORE, STORE.replace("d1)>", "d1 * 2)>"))],
        "neighbours in the tile are not neighbours in the array",
    ),
    "an element of each row": (
        [(STORE, STORE.replace("(d0 + (s0 * 64)), d1)", "(d0 + d1 + s0 * 64), 0)"))],
        "neighbours in the array are not neighbours in the tile",
    ),
    "lanes that would meet in banks": (
        [(LANES, '"(64, 64) : [32@lane 2@reg | 4@warp 16@reg*2]"')],
        "lanes would have bank conflicts",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_stores_by_threads_say_why(name: str) -> None:
    changes, reason = REFUSED[name]
    unit = check_unchanged(PASS, changed(changes), "sm_90a")
    assert [(each.decision, each.reason) for each in unit.remarks] == [("stored by threads", reason)]


def test_transposed_results_are_stored_from_transposed_lines() -> None:
    """The lines of the buffer are along the array's rows."""
    transposed = STORE.replace("(d0 + (s0 * 64)), d1)", "(d1 + s0 * 64), d0)")
    unit = check_meaning(PASS, changed([(STORE, transposed)]), "sm_90a")
    assert any(isinstance(op, asynchronous.TensorStoreOp) for op in unit.module.walk())


def test_other_types_have_lines_of_their_own() -> None:
    """Of f32 two elements of a lane are two banks: the layout that suits f16 meets there."""
    unit = check_meaning(PASS, BEFORE.replace("f16", "bf16"), "sm_90a")
    assert any(isinstance(op, asynchronous.TensorStoreOp) for op in unit.module.walk())
    unit = applied(PASS, BEFORE.replace("f16", "f32"), "sm_90a")
    assert [each.reason for each in unit.remarks] == ["lanes would have bank conflicts"]
