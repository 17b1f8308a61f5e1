"""What compiling products takes before LLVM and the assembler: calls of functions, and lines of the text that they are
given, which their time goes by. Both are the same on any machine. The limits are about a third above what it takes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import tilewright as tw
from tests.effort import calls_of

EVEN, ODD = (4096, 4096, 4096), (1001, 999, 777)
F8 = {"left": "f8e4m3fn", "right": "f8e5m2", "dtype": tw.f32}
I8 = {"left": "i8", "right": "i8", "dtype": tw.i32}
TF32 = {"left": "f32", "right": "f32", "precision": "tf32"}
BF16 = {"left": "bf16", "right": "bf16"}


def product(turned: bool, settings: dict[str, Any], a: Any, b: Any, *bias: Any) -> Any:
    result = tw.matmul(a, b.T if turned else b, **settings)
    return tw.nn.gelu(result + bias[0]) if bias else result


def lowered(form: str, left: str, right: str, sizes: tuple[int, int, int], **settings: Any) -> Any:
    """`form`: `NN`, `NT` for a right operand that lies transposed, and `+gelu` for a bias and a GELU."""
    rows, columns, depth = sizes
    turned = form.startswith("NT")
    types = [
        tw.ShapeDtype((rows, depth), getattr(tw, left)),
        tw.ShapeDtype((columns, depth) if turned else (depth, columns), getattr(tw, right)),
    ]
    if form.endswith("+gelu"):
        types.append(tw.ShapeDtype((columns,), tw.bf16 if left == "bf16" else tw.f32))
    return tw.jit(partial(product, turned, settings)).lower(*types)


def made(form: str, operands: dict[str, Any], sizes: tuple[int, int, int], chip: str) -> Any:
    with tw.options(cache=False, verify=1):
        return lowered(form, sizes=sizes, **operands).compile(f"cuda:{chip}").executable.built


@pytest.mark.parametrize(
    ("form", "operands", "sizes", "chip", "thousand_calls", "lines"),
    [
        ("NN", BF16, EVEN, "sm_90a", 490, 3800),
        ("NN+gelu", BF16, EVEN, "sm_80", 1000, 7400),
        # Three kernels: both operands are laid out in rows that copies can begin at.
        ("NN", BF16, ODD, "sm_90a", 1000, 7300),
        ("NT", F8, EVEN, "sm_90a", 370, 2800),
        ("NN+gelu", F8, EVEN, "sm_90a", 740, 4600),
        ("NN", F8, ODD, "sm_120a", 980, 7500),
        ("NT", F8, ODD, "sm_100a", 1000, 8700),
        ("NT", I8, ODD, "sm_80", 1040, 8400),
        ("NT+gelu", TF32, EVEN, "sm_90a", 800, 5200),
        ("NN", TF32, ODD, "sm_100a", 430, 3200),
    ],
)
def test_products_take_no_more_effort_than_they_did(
    form: str, operands: dict[str, Any], sizes: tuple[int, int, int], chip: str, thousand_calls: int, lines: int
) -> None:
    made(form, operands, (256, 256, 256), chip)  # what is made once for all kernels
    program, calls = calls_of(partial(made, form, operands, sizes, chip))
    printed = sum(code.text.count("\n") for code in program.kernels.values())
    print(f"{calls} calls, {printed} lines")
    assert calls < thousand_calls * 1000
    assert printed < lines
