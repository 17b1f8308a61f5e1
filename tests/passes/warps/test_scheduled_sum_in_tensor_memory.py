"""Attention whose products add up in tensor memory: on an emulator and by the definitions of the operations against
float64, and what the assembler makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import built
from tests.cuda.test_attention import attention, causal, expected
from tests.cuda.test_attention_warpgroups import check, exact, of_matrices, random, seen_from
from tests.cuda.test_machine_code import check_clean
from tests.passes.warps.test_scheduled_specialize_warps import ops_of
from tests.sampling import alternating
from tilewright.dialects import scheduled
from tilewright.dialects.scheduled import tensor_memory
from tilewright.targets.cuda.target import CudaProgram


def compiled(function: Callable[..., Any], *arrays: Any, chip: str = "sm_100a") -> CudaProgram:
    return built(tw.jit(function).lower(*arrays), f"cuda:{chip}")


def in_tensor_memory(program: CudaProgram) -> CudaProgram:
    """All its products are."""
    assert len(ops_of(program, tensor_memory.TensorMmaOp)) == 4
    assert ops_of(program, scheduled.MmaOp) == []
    return program


@pytest.mark.parametrize(
    ("function", "dtype", "queries", "others", "chip"),
    [
        (attention, "bf16", (1, 2, 100, 32), (1, 1, 136, 32), "sm_100a"),
        (attention, "f16", (1, 1, 72, 48), (1, 1, 300, 48), "sm_100a"),
        (attention, "f16", (1, 1, 130, 128), (1, 1, 136, 128), "sm_103a"),
        (causal, "f16", (1, 2, 200, 64), (1, 2, 200, 64), "sm_100a"),
        (causal, "bf16", (1, 1, 264, 16), (1, 1, 264, 16), "sm_100a"),
    ],
)
def test_heads(
    function: Callable[..., Any], dtype: str, queries: tuple[int, ...], others: tuple[int, ...], chip: str
) -> None:
    """With edges, and with heads that share keys."""
    arrays = random(dtype, queries, others, others)
    program = in_tensor_memory(compiled(function, *arrays, chip=chip))
    check(program, arrays, expected(*arrays, function is causal))


@pytest.mark.parametrize(("offset", "queries", "keys"), [(0, 136, 200), (30, 72, 104)])
def test_what_a_query_sees_begins_anywhere(offset: int, queries: int, keys: int) -> None:
    arrays = random("f16", (queries, 32), (keys, 32), (keys, 32))
    check(in_tensor_memory(compiled(seen_from(offset), *arrays)), arrays, exact(*arrays, offset))


@pytest.mark.parametrize("turned", ["q", "k", "v"])
def test_arrays_that_lie_transposed(turned: str) -> None:
    arrays = random("f16", (64, 32), (72, 32), (72, 32))
    number = "qkv".index(turned)
    given = [np.ascontiguousarray(each.T) if n == number else each for n, each in enumerate(arrays)]

    def of(*stored: Any) -> Any:
        return of_matrices(*(each.T if n == number else each for n, each in enumerate(stored)))

    check(in_tensor_memory(compiled(of, *given)), given, exact(*arrays, 72))


@pytest.mark.parametrize(("function", "width"), alternating((attention, causal), (16, 64, 128)))
def test_machine_code_has_nothing_spilled(function: Callable[..., Any], width: int) -> None:
    heads = tw.ShapeDtype((2, 8, 1024, width), tw.bf16)
    counts = check_clean(in_tensor_memory(compiled(function, heads, heads, heads)))
    # Scores and values, in the loop and beside it: an instruction for each 16 numbers of the depth.
    assert counts["UTCHMMA"] >= 2 * (width // 16 + 64 // 16)
    assert counts["UTMALDG"] >= 5
    assert "HMMA" not in counts


def test_wide_heads_and_few_keys_are_by_single_warps() -> None:
    for shape in ((1, 1, 128, 256), (1, 1, 64, 64)):
        heads = tw.ShapeDtype(shape, tw.bf16)
        assert ops_of(compiled(attention, heads, heads, heads), tensor_memory.TensorMmaOp) == []
