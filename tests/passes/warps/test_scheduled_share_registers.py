"""Registers that `scheduled-share-registers` reallocates from the producer to the MMA warpgroups, and when not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xdsl.dialects.builtin import IndexType, IntegerAttr
from xdsl.utils.exceptions import VerifyException

import tilewright as tw
from tests.cuda.chips import Tensor, emulated
from tests.cuda.test_attention import attention, causal, expected
from tests.cuda.test_attention_warpgroups import Make, check, random
from tests.cuda.test_machine_code import check_clean
from tests.emulators.ptx.errors import Deadlock
from tests.passes.pass_support import applied, check_unchanged
from tests.passes.test_docstrings import example
from tests.passes.warps.test_scheduled_specialize_warps import ops_of, remarks
from tilewright.dialects import scheduled
from tilewright.passes.kernels import attention_warpgroups
from tilewright.passes.warps import scheduled_share_registers
from tilewright.passes.warps.scheduled_share_registers import ScheduledShareRegistersPass
from tilewright.semantics.hazards import DeadlockError
from tilewright.semantics.scheduled import run_call
from tilewright.targets.cuda.target import CudaProgram

# ---- which kernels -------------------------------------------------------------------------------------------------

PASS = ScheduledShareRegistersPass()
# 128 rows by 256 columns: sums take 128 registers of a thread, the rows of the left operand 4.
BEFORE = example(scheduled_share_registers).before


def test_the_others_get_what_the_producer_gives_up() -> None:
    """Three warpgroups of 168 registers a thread, two of 240 and one of 24: the file has 65536."""
    unit = applied(PASS, BEFORE, "sm_90a")
    (region,) = (op for op in unit.module.walk() if isinstance(op, scheduled.ParallelOp))
    assert region.registers == 168
    assert 3 * 128 * 168 <= 65536
    assert 128 * (2 * 240 + 24) <= 3 * 128 * 168
    assert unit.remarks[0].reason == "matmuls need 132; the producer keeps 24 of its initial 168"


AFTER = "%5 = tile.load("
SECOND = 'scheduled.role() {role = "multiplies", warps = 1 : index} do { scheduled.end() }\n'
NARROWER = (("256xf", "64xf"), ("256)", "64)"), ("*256", "*64"), ("256@", "64@"), ("32@reg*4", "8@reg*4"))
LEFT = {
    "no producer": [('role = "copies"', 'role = "multiplies"')],
    "two roles": [(AFTER, SECOND + AFTER)],
    "a producer of several warps": [("warps = 1 : index} do", "warps = 2 : index} do")],
    "warps that are no warpgroups": [("warps = 8 : index", "warps = 10 : index")],
    "matmuls that are not asynchronous": [(", asynchronous = true", "")],
    "sums of few registers": [*NARROWER, ("8192", "2048")],
}


@pytest.mark.parametrize("name", LEFT)
def test_other_kernels_keep_their_registers(name: str) -> None:
    text = BEFORE
    for old, new in LEFT[name]:
        assert old in text
        text = text.replace(old, new)
    assert check_unchanged(PASS, text, "sm_90a").remarks == []


def test_chips_whose_threads_keep_their_registers_are_left() -> None:
    assert check_unchanged(PASS, BEFORE, "sm_80").remarks == []


# ---- registers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def by_128_keys(by_groups: Make, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CudaProgram]:
    """Compiles attention by two warpgroups in steps of 128 keys, for heads of 128: more than the registers that each
    thread of a block may begin with."""
    monkeypatch.setattr(attention_warpgroups, "_KEYS", 128)
    return lambda function, *arrays: by_groups(2, function, *arrays)


def many_registers(by_128_keys: Callable[..., CudaProgram]) -> tuple[CudaProgram, list[Tensor]]:
    arrays = random("f16", (1, 1, 128, 128), (1, 1, 384, 128), (1, 1, 384, 128))
    return by_128_keys(attention, *arrays), arrays


def test_masks_in_steps_of_128_keys(by_128_keys: Callable[..., CudaProgram]) -> None:
    arrays = random("f16", *[(1, 1, 264, 128)] * 3)
    check(by_128_keys(causal, *arrays), arrays, expected(*arrays, True))


def test_registers_of_those_that_copy_go_to_those_that_multiply(by_128_keys: Callable[..., CudaProgram]) -> None:
    program, arrays = many_registers(by_128_keys)
    (said,) = remarks(program, ScheduledShareRegistersPass)
    assert said.startswith("MMA warpgroups have 240 registers a thread: matmuls need 160")
    assert [op.count for op in ops_of(program, scheduled.SetRegistersOp)] == [24, 240]
    check(program, arrays, expected(*arrays, False))


def test_registers_are_not_asked_for_beyond_those_that_there_are(by_128_keys: Callable[..., CudaProgram]) -> None:
    program, arrays = many_registers(by_128_keys)
    (kernel,) = program.unit.kernels()
    for number, count, complaint in ((0, 32, DeadlockError), (1, 248, DeadlockError), (1, 232, None), (0, 20, None)):
        clone = kernel.clone()
        op = [each for each in clone.walk() if isinstance(each, scheduled.SetRegistersOp)][number]
        op.properties["count"] = IntegerAttr(count, IndexType())
        if count == 20:
            with pytest.raises(VerifyException, match="not 24 to 256 in steps of 8"):
                clone.verify()
        elif complaint is None:
            run_call(clone, arrays, 0)
        else:
            with pytest.raises(complaint, match=r"registers in `scheduled\.set_registers"):
                run_call(clone, arrays, 0)
    ((name, text),) = program.ptx.items()
    for more in (("\t24;", "\t32;"), ("\t240;", "\t248;")):
        assert more[0] in text
        program.ptx[name] = text.replace(*more)
        with pytest.raises(Deadlock, match="registers"):
            emulated(program, arrays)


def test_steps_of_128_keys_are_clean(by_128_keys: Callable[..., CudaProgram]) -> None:
    heads = tw.ShapeDtype((2, 8, 2048, 128), tw.bf16)
    program = by_128_keys(attention, heads, heads, heads)
    counts = check_clean(program)
    assert counts["USETMAXREG"] == 2
    assert counts["HGMMA"] == 2 * (128 // 16 + 128 // 16)
    ((_, taken),) = program.cost()["kernels"].items()
    assert (taken["threads"], taken["registers"], taken["resident_blocks"]) == (384, 168, 1)


@pytest.mark.parametrize(("width", "keys"), [(64, 128), (128, 64)])
def test_registers_that_are_enough_are_left_alone(
    by_groups: Make, width: int, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_warpgroups, "_MANY_KEYS", keys)
    program = by_groups(2, attention, *(tw.ShapeDtype((2, 8, 2048, width), tw.bf16) for _ in range(3)))
    assert ops_of(program, scheduled.SetRegistersOp) == []
    assert remarks(program, ScheduledShareRegistersPass) == []
