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
from tests.passes.warps.test_scheduled_specialize_warps import ops_of, remarks
from tilewright.dialects import scheduled
from tilewright.passes.kernels import attention_warpgroups
from tilewright.passes.warps.scheduled_share_registers import ScheduledShareRegistersPass
from tilewright.semantics.hazards import DeadlockError
from tilewright.semantics.scheduled import run_call
from tilewright.targets.cuda.target import CudaProgram

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
