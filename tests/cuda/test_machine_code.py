"""What the assembler makes of kernels: nothing spilled, nothing called, and the chip's own instructions."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw
from tests.cuda.chips import CHIPS, KINDS, built
from tests.sampling import ALL, sampled
from tilewright.cli.bench_suites.cuda_static import subroutines
from tilewright.targets.cuda.toolchain import instructions_of


def softmax(x: Any) -> Any:
    return tw.nn.softmax(x, axis=-1)


def layer_norm(x: Any) -> Any:
    centred = x - tw.mean(x, axis=-1, keepdims=True)
    return centred / tw.sqrt(tw.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


def column_sums(x: Any) -> Any:
    return tw.sum(x, axis=0)


def transposed(x: Any) -> Any:
    return x.T + 1


def gelu(x: Any) -> Any:
    return tw.nn.gelu(x)


STREAMING = (softmax, layer_norm, column_sums, transposed, gelu)
# The instruction of each operand type, where tensor cores take it as it is.
PRODUCTS = {"f32": "FFMA", "bf16": "HMMA", "f16": "HMMA", "i8": "IMMA"}
# Where warpgroups do it, or tensor memory. They take i8 that lies along the contracted dim, which these right operands
# do not.
BY_OTHERS = {
    **{("sm_90a", dtype): "HGMMA" for dtype in ("bf16", "f16")},
    **{(chip, dtype): "UTCHMMA" for chip in ("sm_100a", "sm_103a") for dtype in ("bf16", "f16")},
}


def product(a: Any, b: Any) -> Any:
    """A product, of integers in 32 bits."""
    return tw.matmul(a, b, dtype=tw.i32) if a.dtype == tw.i8 else a @ b


def compiled(function: Any, chip: str, *types: tw.ShapeDtype) -> Any:
    return built(tw.jit(function).lower(*types), f"cuda:{chip}")


def check_clean(program: Any) -> dict[str, int]:
    """Every kernel keeps its values in registers and calls nothing; the instructions of all."""
    for name, cubin in program.cubins.items():
        assert cubin.usage.spill_bytes == 0, name
        assert cubin.usage.stack_bytes == 0, name
        assert cubin.usage.registers <= 255, name
        assert not cubin.usage.serialized, name
    text = program.asm()
    assert subroutines(text) == []
    return instructions_of(text)


def is_tested(chip: str, row: int, column: int) -> bool:
    """Whether a pair is: all pairs of one chip of each kind, and every other one of the rest."""
    return ALL or chip in KINDS or (row + column // 2) % 2 == 0


# One type for each function and chip, in turn.
STREAMED = [
    (f, chip, ("f32", "bf16")[(n + m) % 2])
    for n, f in enumerate(STREAMING)
    for m, chip in enumerate(CHIPS)
    if is_tested(chip, n, m)
]
MULTIPLIED = [
    (chip, dtype) for n, dtype in enumerate(PRODUCTS) for m, chip in enumerate(CHIPS) if is_tested(chip, n, m)
]


@pytest.mark.parametrize(
    ("function", "chip", "dtype"), sampled(STREAMED, 3), ids=lambda each: getattr(each, "__name__", each)
)
def test_streaming_kernels_are_clean(function: Any, chip: str, dtype: str) -> None:
    counts = check_clean(compiled(function, chip, tw.ShapeDtype((256, 1024), getattr(tw, dtype))))
    assert counts["LDG"] >= 1
    assert counts["STG"] >= 1


@pytest.mark.parametrize(("chip", "dtype"), sampled(MULTIPLIED, 2))
def test_products_take_the_instruction_of_their_type(chip: str, dtype: str) -> None:
    square = tw.ShapeDtype((512, 512), getattr(tw, dtype))
    counts = check_clean(compiled(product, chip, square, square))
    wanted = BY_OTHERS.get((chip, dtype), PRODUCTS[dtype])
    assert counts[wanted] >= 4
    others = {"HMMA", "IMMA", "HGMMA", "IGMMA", "UTCHMMA", "UTCIMMA"} - {wanted}
    assert not others & set(counts)


def test_rows_are_read_in_vectors_of_four_words() -> None:
    text = compiled(softmax, "sm_90a", tw.ShapeDtype((256, 1024), tw.f32)).asm()
    assert "LDG.E.128" in text
    assert "STG.E.128" in text
