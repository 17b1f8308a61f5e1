"""Results that the machine stores: on an emulator and by the definitions of the operations, and what they ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.cuda.test_machine_code import check_clean
from tests.cuda.test_pipeline import executed, operands, product
from tests.passes.warps.test_scheduled_specialize_warps import Make, defined, ops_of, remarks
from tilewright.dialects import scheduled, tile
from tilewright.dialects.scheduled import asynchronous
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
