"""Kernels for NVIDIA chips, compiled and looked at: time from the program to machine code, registers, shared memory,
and the instructions that multiply, copy and wait. No GPU is used. A kernel that spills or calls fails its case."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import tilewright as tw
from tilewright.cli.bench_suites.case import CompilerCase
from tilewright.dtypes import DType
from tilewright.errors import ToolFailure
from tilewright.records import dataclass

if TYPE_CHECKING:
    from tilewright.targets.cuda.target import CudaProgram

# A name, a function, and the types of its arrays.
Program = tuple[str, Callable[..., Any], tuple[tw.ShapeDtype, ...]]
# Which operands of a product lie transposed.
_TURNED = ((False, False), (False, True), (True, False), (True, True))
# Sizes of programs, and small ones.
_Sizes = tuple[tuple[int, ...], tuple[int, ...]]
_CUBES: _Sizes = (4096, 4096, 4096), (512, 512, 512)
_ODD: _Sizes = (1001, 999, 777), (101, 99, 77)
_FEW_TILES: _Sizes = (256, 512, 8192), (256, 512, 8192)
_WIDE_ROWS: _Sizes = (4096, 1024), (512, 1024)
_IMAGE = (8, 256, 256, 28, 28)
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


@dataclass(frozen=True)
class Form:
    """A program for arrays of any sizes: `types` gives those of its arrays. `sizes` are what is looked at, and `quick`
    those to see that everything works."""

    name: str
    function: Callable[..., Any]
    types: Callable[..., tuple[tw.ShapeDtype, ...]]
    sizes: tuple[int, ...]
    quick: tuple[int, ...]


def programs(quick: bool) -> list[Program]:
    """The programs that are compiled for each chip: names, functions, and types of their arrays."""
    return [(form.name, form.function, form.types(*(form.quick if quick else form.sizes))) for form in forms()]


def forms() -> list[Form]:
    """The programs, each for arrays of any sizes; sizes of matmuls are (rows, columns, depth)."""
    return [
        *_products(),
        Form("attention", _attention, _heads, (8, 1024, 64), (8, 128, 64)),
        Form("softmax", partial(tw.nn.softmax, axis=-1), _matrix, *_WIDE_ROWS),
        Form("layer norm", _layer_norm, _matrix, *_WIDE_ROWS),
        Form("row sum", partial(tw.sum, axis=1), _matrix, *_WIDE_ROWS),
        Form("column sum", partial(tw.sum, axis=0), _matrix, *_WIDE_ROWS),
        Form("transpose", _transposed, _matrix, *_WIDE_ROWS),
        Form("conv 3x3", partial(tw.nn.conv, padding=1), _image_and_weights, _IMAGE, _IMAGE),
    ]


def _products() -> Iterator[Form]:
    for dtype in (tw.bf16, tw.f16, tw.f32):
        yield Form(f"gemm {dtype.name}", _product, partial(_operands, dtype, dtype), *_CUBES)
    yield from _products_of_8_bits()
    yield Form("gemm tf32, b.T", _rounding_product, partial(_operands, tw.f32, tw.f32, right_turned=True), *_CUBES)
    for turned in ((True, False), (False, True), (True, True)):
        types = partial(_operands, tw.bf16, tw.bf16, left_turned=turned[0], right_turned=turned[1])
        yield Form(_with_letters("gemm bf16", turned), partial(_turned_product, *turned), types, *_CUBES)
    yield Form("gemm bf16, gelu", _product_and_gelu, _operands_and_bias, *_CUBES)
    yield Form("gemm bf16, few tiles", _product, partial(_operands, tw.bf16, tw.bf16), *_FEW_TILES)


def _products_of_8_bits() -> Iterator[Form]:
    """All types in the order that instructions take, the others in those that they do not, and sizes of which rows
    begin anywhere."""
    for left, right, result in ((tw.i8, tw.i8, tw.i32), (tw.f8e4m3fn, tw.f8e4m3fn, tw.f32)):
        name = f"gemm {left.name}"
        for turned in _TURNED:
            yield _wide_form(name, turned, left, right, result)
        yield _wide_form(f"{name} odd", (False, False), left, right, result, _ODD)
        yield _wide_form(f"{name} odd", (False, True), left, right, result, _ODD)
    yield _wide_form("gemm f8e5m2", (False, True), tw.f8e5m2, tw.f8e5m2, tw.f32)
    yield _wide_form("gemm f8e4m3fn f8e5m2", (False, True), tw.f8e4m3fn, tw.f8e5m2, tw.f32)
    yield _wide_form("gemm f8e4m3fn f8e5m2", (True, False), tw.f8e4m3fn, tw.f8e5m2, tw.f32)


def _wide_form(
    name: str, turned: tuple[bool, bool], left: DType, right: DType, result: DType, sizes: _Sizes = _CUBES
) -> Form:
    """A matmul whose operands may be stored transposed, with a result type of its own."""
    types = partial(_operands, left, right, left_turned=turned[0], right_turned=turned[1])
    return Form(_with_letters(name, turned), partial(_wide_product, *turned, result), types, *sizes)


def _with_letters(name: str, turned: tuple[bool, bool]) -> str:
    letters = " ".join(letter for letter, is_turned in zip(("a.T", "b.T"), turned, strict=True) if is_turned)
    return f"{name}, {letters}" if letters else name


# ---- types of arrays, by sizes --------------------------------------------------------------------------------------


def _operands(
    left: DType,
    right: DType,
    rows: int,
    columns: int,
    depth: int,
    *,
    left_turned: bool = False,
    right_turned: bool = False,
) -> tuple[tw.ShapeDtype, ...]:
    return (
        tw.ShapeDtype((depth, rows) if left_turned else (rows, depth), left),
        tw.ShapeDtype((columns, depth) if right_turned else (depth, columns), right),
    )


def _operands_and_bias(rows: int, columns: int, depth: int) -> tuple[tw.ShapeDtype, ...]:
    return (*_operands(tw.bf16, tw.bf16, rows, columns, depth), tw.ShapeDtype((columns,), tw.bf16))


def _heads(heads: int, length: int, width: int) -> tuple[tw.ShapeDtype, ...]:
    """Queries, keys and values."""
    return (tw.ShapeDtype((heads, length, width), tw.bf16),) * 3


def _matrix(rows: int, columns: int) -> tuple[tw.ShapeDtype, ...]:
    return (tw.ShapeDtype((rows, columns), tw.f32),)


def _image_and_weights(batch: int, channels: int, outputs: int, height: int, width: int) -> tuple[tw.ShapeDtype, ...]:
    return (
        tw.ShapeDtype((batch, channels, height, width), tw.bf16),
        tw.ShapeDtype((outputs, channels, 3, 3), tw.bf16),
    )


# ---- what is computed -----------------------------------------------------------------------------------------------


def _product(a: tw.Array, b: tw.Array) -> tw.Array:
    return a @ b


def _turned_product(left: bool, right: bool, a: tw.Array, b: tw.Array) -> tw.Array:
    """A matmul of operands that are stored transposed."""
    return (a.T if left else a) @ (b.T if right else b)


def _wide_product(left: bool, right: bool, result: DType, a: tw.Array, b: tw.Array) -> tw.Array:
    return tw.matmul(a.T if left else a, b.T if right else b, dtype=result)


def _rounding_product(a: tw.Array, b: tw.Array) -> tw.Array:
    return tw.matmul(a, b.T, precision="tf32")


def _attention(q: tw.Array, k: tw.Array, v: tw.Array) -> tw.Array:
    return tw.nn.softmax(q @ k.mT * q.shape[-1] ** -0.5, axis=-1) @ v


def _transposed(x: tw.Array) -> tw.Array:
    return x.T + 0


def _product_and_gelu(a: tw.Array, b: tw.Array, bias: tw.Array) -> tw.Array:
    return tw.nn.gelu(a @ b + bias)


def _layer_norm(x: tw.Array) -> tw.Array:
    centred = x - tw.mean(x, axis=-1, keepdims=True)
    return centred / tw.sqrt(tw.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


def _compile(function: Callable[..., object], types: tuple[tw.ShapeDtype, ...], chip: str) -> CudaProgram:
    """To machine code: cubins are made when they are first asked for."""
    from tilewright.driver.compile import build_executable

    lowered = tw.jit(function).lower(*types)
    program = cast("CudaProgram", build_executable(lowered.graph, f"cuda:{chip}", lowered.donated))
    program.cubins  # noqa: B018
    return program


def figures(program: CudaProgram) -> Mapping[str, float]:
    """The maximum of registers and of shared memory over the kernels of a program, and its instruction counts.

    Raises:
        ToolFailure: a kernel spills registers, keeps a stack, calls a subroutine or waits for each MMA.
    """
    from tilewright.targets.cuda.toolchain import instructions_of

    kernels = program.cost()["kernels"]
    for name, cubin in program.cubins.items():
        if cubin.usage.spill_bytes or cubin.usage.stack_bytes:
            raise ToolFailure(f"`{name}` spills registers to memory", help="report it")
        if cubin.usage.serialized:
            raise ToolFailure(f"`{name}` waits for each asynchronous MMA", help="report it")
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
    """The subroutines that a kernel calls. A call to an address within the kernel is a branch, and the assembler itself
    adds traps for invalid deallocation of tensor memory."""
    called = set(re.findall(r"CALL\S* `\((\S+)\)", sass))
    return sorted(name for name in called if not name.startswith((".L_", "__cuda_sm10x_tcgen05_guardrail_trap")))
