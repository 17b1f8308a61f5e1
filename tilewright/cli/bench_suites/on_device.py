"""The cases of `gemm`, `attention` and `ops` on a GPU, of sizes that fill one; peers are torch and Triton.

A result is compared in some of its rows and columns, which takes the reference no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.cli.bench_suites import on_device_ops
from tilewright.cli.bench_suites.case import (
    Array,
    BinaryPeers,
    DeviceCase,
    TernaryPeers,
    Ways,
    error_bound,
    normal_of,
    picked,
)
from tilewright.dtypes import by_name
from tilewright.records import dataclass

Sizes = tuple[int, int, int]
_LARGE: tuple[Sizes, ...] = ((4096, 4096, 4096), (8192, 8192, 8192))
_QUICK: tuple[Sizes, ...] = ((64, 64, 64),)


def cases(suite: str, quick: bool) -> tuple[DeviceCase, ...]:
    """The cases of `gemm`, `attention` or `ops`."""
    return {"gemm": _products, "attention": _attentions, "ops": on_device_ops.cases}[suite](quick)


# ---- products --------------------------------------------------------------------------------------------------------


def _products(quick: bool) -> tuple[DeviceCase, ...]:
    squares = _QUICK if quick else _LARGE
    odd, square = ((33, 47, 39), _QUICK[0]) if quick else ((4001, 3999, 4003), _LARGE[1])
    return (
        *(_floats(dtype, sizes) for dtype in ("bf16", "f16") for sizes in squares),
        *(_floats("bf16", sizes, left=True) for sizes in squares),
        *(_floats("bf16", sizes, right=True) for sizes in squares),
        *(_floats_of_8_bits(sizes) for sizes in squares),
        *(_integers(sizes) for sizes in squares),
        *(_tf32(sizes) for sizes in squares),
        _floats("bf16", (32, 32, 32) if quick else (1024, 1024, 1024), batch=2 if quick else 64),
        _bias_gelu(square),
        _floats("bf16", odd),
    )


@dataclass(frozen=True)
class _Product:
    """Sizes are rows x columns x depth. `dtype` is that of the operands, which may be stored transposed; `batch`
    matmuls run at once, or one on arrays without a leading axis."""

    sizes: Sizes
    dtype: str
    result: str
    left: bool = False
    right: bool = False
    batch: int = 0

    @property
    def name(self) -> str:
        words = [self.dtype if self.dtype != "f32" else "tf32"]
        words += [f"{self.batch} of"] if self.batch else []
        words += ["x".join(map(str, self.sizes))]
        return " ".join(words + ["a.T"] * self.left + ["b.T"] * self.right)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        rows, columns, depth = self.sizes
        lead = (self.batch,) if self.batch else ()
        a = (depth, rows) if self.left else (rows, depth)
        b = (columns, depth) if self.right else (depth, columns)
        return (*lead, *a), (*lead, *b)

    def operands(self, a: Any, b: Any) -> tuple[Any, Any]:
        """The matrices to multiply."""
        return a.mT if self.left else a, b.mT if self.right else b

    def cut(self, result: Array) -> Array:
        return result[..., picked(self.sizes[0])[:, None], picked(self.sizes[1])]

    def reference(self, numpy: ModuleType, a: Array, b: Array) -> Array:
        left, right = self.operands(a, b)
        return left[..., picked(self.sizes[0]), :] @ right[..., picked(self.sizes[1])]

    def case(self, ours: Callable[..., Any], peers: Mapping[str, Ways], tolerance: float, **more: Any) -> DeviceCase:
        rows, columns, depth = self.sizes
        products = self.batch or 1
        read = sum(math.prod(shape) for shape in self.shapes) * by_name(self.dtype).itemsize
        fields: dict[str, Any] = {
            "name": self.name,
            "make_inputs": normal_of(self.dtype, *self.shapes),
            "ours": tw.jit(ours),
            "peers": peers,
            "flops": 2.0 * products * rows * columns * depth,
            "bytes": float(read + products * rows * columns * by_name(self.result).itemsize),
            "tolerance": tolerance,
            "dtype": self.result,
            "reference": self.reference,
            "cut": self.cut,
            "multiplies": "tf32" if self.dtype == "f32" else self.dtype,
        }
        return DeviceCase(**(fields | more))


def _floats(dtype: str, sizes: Sizes, *, left: bool = False, right: bool = False, batch: int = 0) -> DeviceCase:
    product = _Product(sizes, dtype, dtype, left, right, batch)

    def multiplied(a: tw.Array, b: tw.Array) -> tw.Array:
        x, y = product.operands(a, b)
        return x @ y

    peers: BinaryPeers = {
        "torch": lambda torch, a, b: multiplied(a, b),
        "triton": lambda kernels, a, b: kernels.matmul(*product.operands(a, b)),
    }
    return product.case(multiplied, peers, error_bound(1, sizes[2], dtype))


def _floats_of_8_bits(sizes: Sizes) -> DeviceCase:
    """Of e4m3 to bf16, without scales: torch's are 1."""
    product = _Product(sizes, "f8e4m3fn", "bf16", right=True)

    def scaled(torch: ModuleType, a: Any, b: Any, fast: bool) -> Any:
        one = _one_on(torch, a.device)
        return torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=fast)

    peers: dict[str, BinaryPeers] = {
        "torch": {
            "with fast accumulation": lambda torch, a, b: scaled(torch, a, b, True),
            "with sums in f32": lambda torch, a, b: scaled(torch, a, b, False),
        },
        "triton": {"": lambda kernels, a, b: kernels.matmul(a, b.T, kernels.torch.bfloat16)},
    }
    # Tensor cores of Hopper add some 32 products of 8-bit floats at a time to sums of about 14 bits: DeepSeek-V3
    # technical report (arXiv 2412.19437), 3.3.2.
    tolerance = error_bound(1, sizes[2], "bf16") + sizes[2] / 32 * 2.0**-14
    return product.case(_product_to_bf16, peers, tolerance)


def _product_to_bf16(a: tw.Array, b: tw.Array) -> tw.Array:
    return tw.matmul(a, b.T, dtype=tw.bf16)


@cache
def _one_on(torch: ModuleType, device: object) -> Any:
    """A scale of 1, made once: making it is a launch."""
    return torch.ones((), device=device)


def _integers(sizes: Sizes) -> DeviceCase:
    product = _Product(sizes, "i8", "i32", right=True)
    peers: BinaryPeers = {
        "torch": lambda torch, a, b: torch._int_mm(a, b.T),
        "triton": lambda kernels, a, b: kernels.matmul(a, b.T, kernels.torch.int32),
    }

    def inputs(generator: np.random.Generator) -> tuple[Array, ...]:
        return tuple(generator.integers(-128, 128, shape, np.int8) for shape in product.shapes)

    def exact(numpy: ModuleType, a: Array, b: Array) -> Array:
        rows, columns = a[picked(sizes[0])], b[picked(sizes[1])]
        # Sums of doubles are exact up to 2^53, and products of integers in NumPy an element loop.
        return rows.astype(np.float64) @ columns.astype(np.float64).T

    return product.case(_product_to_i32, peers, 0.0, make_inputs=inputs, reference=exact)


def _product_to_i32(a: tw.Array, b: tw.Array) -> tw.Array:
    return tw.matmul(a, b.T, dtype=tw.i32)


def _tf32(sizes: Sizes) -> DeviceCase:
    product = _Product(sizes, "f32", "f32", right=True)
    peers: BinaryPeers = {
        "torch": lambda torch, a, b: a @ b.T,
        "triton": lambda kernels, a, b: kernels.matmul(a, b.T),
    }
    # Of both operands 10 bits behind the leading one are left.
    tolerance = error_bound(1, sizes[2]) + 2.0**-10
    return product.case(_product_of_tf32, peers, tolerance)


def _product_of_tf32(a: tw.Array, b: tw.Array) -> tw.Array:
    return tw.matmul(a, b.T, precision="tf32")


def _bias_gelu(sizes: Sizes) -> DeviceCase:
    """By a hyperbolic tangent, which cuBLASLt has, too."""
    product = _Product(sizes, "bf16", "bf16")

    def fused(torch: ModuleType, a: object, b: object, bias: object) -> Any:
        return torch._addmm_activation(bias, a, b, use_gelu=True)

    def by_parts(torch: ModuleType, a: object, b: object, bias: object) -> Any:
        return torch.nn.functional.gelu(torch.addmm(bias, a, b), approximate="tanh")

    def reference(numpy: ModuleType, a: Array, b: Array, bias: Array) -> Array:
        x = product.reference(numpy, a, b) + bias[picked(sizes[1])]
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    peers: dict[str, TernaryPeers] = {
        "torch": {"fused": fused, "by parts": by_parts},
        "triton": {"": lambda kernels, a, b, bias: kernels.matmul_gelu(a, b, bias)},
    }
    return product.case(
        _product_and_gelu,
        peers,
        # The product, its sum with the bias and the result are rounded.
        error_bound(8, sizes[2], "bf16") + by_name("bf16").epsilon,
        name=f"{product.name} bias gelu",
        make_inputs=normal_of("bf16", *product.shapes, (sizes[1],)),
        reference=reference,
    )


def _product_and_gelu(a: tw.Array, b: tw.Array, bias: tw.Array) -> tw.Array:
    return tw.nn.gelu(a @ b + bias, "tanh")


# ---- attention -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Attention:
    """Of (batch, heads, length, size), with `shared` heads of keys and values, as many as of queries unless given."""

    batch: int
    heads: int
    length: int
    size: int
    causal: bool
    dtype: str = "bf16"
    shared: int | None = None

    @property
    def name(self) -> str:
        heads = f"{self.heads}/{self.shared}" if self.shared else f"{self.heads}"
        return f"{self.dtype} {self.batch}x{heads}x{self.length}x{self.size}{' causal' if self.causal else ''}"

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        kept = (self.batch, self.shared or self.heads, self.length, self.size)
        return (self.batch, self.heads, self.length, self.size), kept, kept

    def cut(self, result: Array) -> Array:
        return result[-1, picked(self.heads, 2)][:, picked(self.length)]

    def reference(self, numpy: ModuleType, q: Array, k: Array, v: Array) -> Array:
        heads, rows = picked(self.heads, 2), picked(self.length)
        kept = heads // (self.heads // k.shape[1])
        logits = q[-1, heads][:, rows] @ k[-1, kept].swapaxes(-1, -2) * self.size**-0.5
        if self.causal:
            logits = np.where(np.arange(self.length) <= rows[:, None], logits, -np.inf)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ v[-1, kept]


def _attentions(quick: bool) -> tuple[DeviceCase, ...]:
    if quick:
        return (
            _attention(_Attention(1, 2, 64, 64, causal=False)),
            _attention(_Attention(1, 2, 64, 64, causal=True, shared=1)),
        )
    # As many tokens, and as large ones, whatever the length.
    tokens, width = 16384, 2048
    plain = [
        _Attention(tokens // length, width // size, length, size, causal)
        for size in (64, 128)
        for length in (1024, 4096, 16384)
        for causal in (False, True)
    ]
    others = [
        _Attention(8, 32, 2048, 128, causal=True, shared=8),
        _Attention(2, 32, 8192, 128, causal=True, shared=8),
        _Attention(4, 16, 4096, 128, causal=False, dtype="f16"),
    ]
    return tuple(_attention(form) for form in (*plain, *others))


def _attention(form: _Attention) -> DeviceCase:
    def sdpa(torch: ModuleType, q: object, k: object, v: object, backend: str) -> Any:
        chosen = getattr(torch.nn.attention.SDPBackend, backend)
        with torch.nn.attention.sdpa_kernel(chosen):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=form.causal, enable_gqa=form.shared is not None
            )

    def attention(q: tw.Array, k: tw.Array, v: tw.Array) -> tw.Array:
        return tw.nn.attention(q, k, v, causal=form.causal)

    peers: dict[str, TernaryPeers] = {
        "torch": {
            "with flash attention": lambda torch, q, k, v: sdpa(torch, q, k, v, "FLASH_ATTENTION"),
            "with cuDNN": lambda torch, q, k, v: sdpa(torch, q, k, v, "CUDNN_ATTENTION"),
        },
        "triton": {"": lambda kernels, q, k, v: kernels.attention(q, k, v, form.causal)},
    }
    pairs = form.length * (form.length + 1) // 2 if form.causal else form.length**2
    kind = by_name(form.dtype)
    q, k, v = (math.prod(shape) for shape in form.shapes)
    return DeviceCase(
        name=form.name,
        make_inputs=normal_of(form.dtype, *form.shapes),
        ours=tw.jit(attention),
        peers=peers,
        flops=4.0 * form.batch * form.heads * pairs * form.size,
        bytes=float((2 * q + k + v) * kind.itemsize),
        # Weights are rounded before they multiply values.
        tolerance=error_bound(12, form.size + form.length, form.dtype) + kind.epsilon / 2,
        dtype=form.dtype,
        reference=form.reference,
        cut=form.cut,
        multiplies=form.dtype,
    )
