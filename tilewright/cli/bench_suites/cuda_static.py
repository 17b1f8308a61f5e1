"""Kernels for NVIDIA chips, compiled and looked at: time from the program to machine code, registers, shared memory,
and the instructions that multiply, copy and wait. No GPU is used. A kernel that spills or calls fails its case."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import tilewright as tw
from tilewright.cli.bench_suites.case import CompilerCase
from tilewright.dtypes import DType
from tilewright.errors import ToolFailure

if TYPE_CHECKING:
    from tilewright.targets.cuda.target import CudaProgram

# A name, a function, and the types of its arrays.
Program = tuple[str, Callable[..., Any], tuple[tw.ShapeDtype, ...]]
# Which operands of a product lie transposed.
_TURNED = ((False, False), (False, True), (True, False), (True, True))
# One chip of each generation.
CHIPS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")
_PRODUCT_LIMIT_S, _OTHER_LIMIT_S = 0.4, 1.0
# What is counted, by the first word of an instruction's name, or its whole beginning where that says more.
MULTIPLYING = ("FFMA", "FFMA2", "HMMA", "IMMA", "QMMA", "HGMMA", "IGMMA", "QGMMA", "UTCHMMA", "UTCIMMA", "UTCQMMA")
COPYING = (
    *("LDG", "STG", "LDS", "STS", "LDSM", "STSM", "LDGSTS", "UTMALDG", "UTMALDG.MULTICAST", "UTMASTG", "LDTM", "STTM"),
)
WAITING = ("BAR", "SYNCS")


def cases(quick: bool) -> tuple[CompilerCase, ...]:
    chips = CHIPS[1:2] if quick else CHIPS
    found: list[CompilerCase] = []
    for chip in chips:
        for name, function, types in programs(quick):
            limit_s = _PRODUCT_LIMIT_S if name.startswith("gemm") else _OTHER_LIMIT_S
            run = partial(_compile, function, types, chip)
            found.append(CompilerCase(f"{name}, {chip}", run, limit_s, figures))
    return tuple(found)


def programs(quick: bool) -> list[Program]:
    """The programs that are compiled for each chip: names, functions, and types of their arrays."""
    side = 512 if quick else 4096
    found: list[Program] = []
    for dtype in ("bf16", "f16", "f32"):
        square = tw.ShapeDtype((side, side), getattr(tw, dtype))
        found.append((f"gemm {dtype}", _product, (square, square)))
    square, row = tw.ShapeDtype((side, side), tw.bf16), tw.ShapeDtype((side,), tw.bf16)
    heads = tw.ShapeDtype((8, side // 4, 64), tw.bf16)
    rows = tw.ShapeDtype((side, 1024), tw.f32)
    image, kernel = tw.ShapeDtype((8, 256, 28, 28), tw.bf16), tw.ShapeDtype((256, 256, 3, 3), tw.bf16)
    wide = tw.ShapeDtype((side, side), tw.f32)
    return [
        *found,
        *_products_of_8_bits((side,) * 3, (101, 99, 77) if quick else (1001, 999, 777)),
        ("gemm tf32, b.T", _rounding_product, (wide, wide)),
        ("gemm bf16, a.T", partial(_turned_product, True, False), (square, square)),
        ("gemm bf16, b.T", partial(_turned_product, False, True), (square, square)),
        ("gemm bf16, a.T b.T", partial(_turned_product, True, True), (square, square)),
        ("gemm bf16, gelu", _product_and_gelu, (square, square, row)),
        ("gemm bf16, few tiles", _product, (tw.ShapeDtype((256, 8192), tw.bf16), tw.ShapeDtype((8192, 512), tw.bf16))),
        ("attention", _attention, (heads, heads, heads)),
        ("softmax", partial(tw.nn.softmax, axis=-1), (rows,)),
        ("layer norm", _layer_norm, (rows,)),
        ("row sum", partial(tw.sum, axis=1), (rows,)),
        ("column sum", partial(tw.sum, axis=0), (rows,)),
        ("transpose", _transposed, (rows,)),
        ("conv 3x3", partial(tw.nn.conv, padding=1), (image, kernel)),
    ]


def _products_of_8_bits(even: Sequence[int], odd: Sequence[int]) -> Iterator[Program]:
    """All types in the order that instructions take, the others in those that they do not, and sizes of which rows
    begin anywhere."""
    for left, right, result in ((tw.i8, tw.i8, tw.i32), (tw.f8e4m3fn, tw.f8e4m3fn, tw.f32)):
        name = f"gemm {left.name}"
        for turned in _TURNED:
            yield _named_product(name, turned, even, left, right, result)
        yield _named_product(f"{name} odd", (False, False), odd, left, right, result)
        yield _named_product(f"{name} odd", (False, True), odd, left, right, result)
    yield _named_product("gemm f8e5m2", (False, True), even, tw.f8e5m2, tw.f8e5m2, tw.f32)
    yield _named_product("gemm f8e4m3fn f8e5m2", (False, True), even, tw.f8e4m3fn, tw.f8e5m2, tw.f32)
    yield _named_product("gemm f8e4m3fn f8e5m2", (True, False), even, tw.f8e4m3fn, tw.f8e5m2, tw.f32)


def _named_product(
    name: str, turned: tuple[bool, bool], sizes: Sequence[int], left: DType, right: DType, result: DType
) -> Program:
    """A product of (rows, columns, depth) whose operands may lie transposed."""
    rows, columns, depth = sizes
    letters = " ".join(letter for letter, is_turned in zip(("a.T", "b.T"), turned, strict=True) if is_turned)
    types = (
        tw.ShapeDtype((depth, rows) if turned[0] else (rows, depth), left),
        tw.ShapeDtype((columns, depth) if turned[1] else (depth, columns), right),
    )
    return f"{name}, {letters}" if letters else name, partial(_wide_product, *turned, result), types


def _product(a: Any, b: Any) -> Any:
    return a @ b


def _turned_product(left: bool, right: bool, a: Any, b: Any) -> Any:
    """A product of operands that lie transposed in memory."""
    return (a.T if left else a) @ (b.T if right else b)


def _wide_product(left: bool, right: bool, result: DType, a: Any, b: Any) -> Any:
    return tw.matmul(a.T if left else a, b.T if right else b, dtype=result)


def _rounding_product(a: Any, b: Any) -> Any:
    return tw.matmul(a, b.T, precision="tf32")


def _attention(q: Any, k: Any, v: Any) -> Any:
    return tw.nn.softmax(q @ k.mT * q.shape[-1] ** -0.5, axis=-1) @ v


def _transposed(x: Any) -> Any:
    return x.T + 0


def _product_and_gelu(a: Any, b: Any, bias: Any) -> Any:
    return tw.nn.gelu(a @ b + bias)


def _layer_norm(x: Any) -> Any:
    centred = x - tw.mean(x, axis=-1, keepdims=True)
    return centred / tw.sqrt(tw.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


def _compile(function: Callable[..., Any], types: tuple[tw.ShapeDtype, ...], chip: str) -> CudaProgram:
    """To machine code: cubins are made when they are first asked for."""
    with tw.options(cache=False):
        program: Any = tw.jit(function).lower(*types).compile(f"cuda:{chip}").executable
    program.cubins  # noqa: B018
    return program


def figures(program: CudaProgram) -> Mapping[str, float]:
    """Of all kernels of a program: the most registers and bytes of shared memory, and how often instructions stand.

    Raises:
        ToolFailure: a kernel spills registers, keeps a stack, calls a subroutine or waits for each product.
    """
    from tilewright.targets.cuda.toolchain import instructions_of

    kernels = program.cost()["kernels"]
    for name, cubin in program.cubins.items():
        if cubin.usage.spill_bytes or cubin.usage.stack_bytes:
            raise ToolFailure(f"`{name}` spills registers to memory", help="report it")
        if cubin.usage.serialized:
            raise ToolFailure(f"`{name}` waits for each asynchronous product", help="report it")
        if subroutines(program.sass[name]):
            raise ToolFailure(f"`{name}` calls {', '.join(subroutines(program.sass[name]))}", help="report it")
    counts = instructions_of("\n".join(program.sass.values()))
    taken = {
        "registers": max(kernel["registers"] for kernel in kernels.values()),
        "shared_bytes": max(kernel["shared_bytes"] for kernel in kernels.values()),
        "instructions": sum(counts.values()),
    }
    return taken | {name: counts[name] for name in (*MULTIPLYING, *COPYING, *WAITING) if name in counts}


def subroutines(sass: str) -> list[str]:
    """The subroutines that a kernel calls. A call to a place within the kernel is a way to branch, and the assembler
    itself adds traps for tensor memory that is given back wrongly."""
    called = set(re.findall(r"CALL\S* `\((\S+)\)", sass))
    return sorted(name for name in called if not name.startswith((".L_", "__cuda_sm10x_tcgen05_guardrail_trap")))
