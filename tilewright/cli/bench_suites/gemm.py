"""Matmuls; sizes are rows x columns x depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.cli.bench_suites.case import (
    Array,
    BinaryPeers,
    Case,
    TernaryPeers,
    Ways,
    error_bound,
    exact_erf,
    onnx_model,
)
from tilewright.cli.bench_suites.ops import numpy_gelu
from tilewright.dtypes import by_name

_SQUARES = (64, 128, 256, 512, 1024, 2048, 4096)
_OTHERS = (
    (1, 4096, 4096),
    (4, 4096, 4096),
    (32, 1536, 384),
    (128, 384, 1536),
    (1024, 1536, 384),
    (4096, 64, 1024),
    (64, 64, 65536),
    (1000, 1000, 999),
)
Sizes = tuple[int, int, int]


def cases(quick: bool) -> tuple[Case, ...]:
    plain = ((48, 40, 32),) if quick else (*((n, n, n) for n in _SQUARES), *_OTHERS)
    square: Sizes = (32, 32, 32) if quick else (1024, 1024, 1024)
    layer: Sizes = (24, 32, 16) if quick else (1024, 1536, 384)
    return (
        *(_plain("f32", sizes) for sizes in plain),
        _batched(3, (16, 16, 8)) if quick else _batched(96, (128, 128, 32)),
        _transposed_left(square),
        _transposed_right(square),
        _plain("f64", square),
        _narrow("bf16", square),
        _narrow("f16", square),
        _integers(square),
        _bias_gelu(layer),
        _residual(layer),
    )


def _case(
    name: str,
    sizes: Sizes,
    shapes: tuple[tuple[int, ...], ...],
    ours: Any,
    peers: Mapping[str, Ways],
    *,
    dtype: str = "f32",
    products: int = 1,
    operations: int = 1,
    reference: Callable[..., Any] | None = None,
) -> Case:
    """A case on normal inputs of one float type."""
    storage = by_name(dtype).numpy
    rows, columns, depth = sizes

    def inputs(generator: np.random.Generator) -> tuple[Array, ...]:
        return tuple(generator.standard_normal(shape).astype(storage) for shape in shapes)

    elements = sum(math.prod(shape) for shape in shapes) + products * rows * columns
    return Case(
        name=f"{dtype} {name}",
        make_inputs=inputs,
        ours=ours,
        peers=peers,
        flops=2.0 * products * rows * columns * depth,
        bytes=float(elements * storage.itemsize),
        tolerance=error_bound(operations, depth, dtype),
        dtype=dtype,
        reference=reference,
    )


def _text(sizes: Sizes) -> str:
    return "x".join(map(str, sizes))


def _operands(sizes: Sizes) -> tuple[tuple[int, int], tuple[int, int]]:
    rows, columns, depth = sizes
    return (rows, depth), (depth, columns)


# ---- floats ----------------------------------------------------------------------------------------------------------


def _multiply(library: ModuleType, a: Any, b: Any) -> Any:
    return a @ b


@tw.jit
def _product(a: tw.Array, b: tw.Array) -> tw.Array:
    return a @ b


_PLAIN: BinaryPeers = dict.fromkeys(("numpy", "torch", "jax"), _multiply)


def _plain(dtype: str, sizes: Sizes) -> Case:
    return _case(_text(sizes), sizes, _operands(sizes), _product, _PLAIN | {"onnxruntime": _onnx_product}, dtype=dtype)


def _batched(products: int, sizes: Sizes) -> Case:
    shapes = tuple((products, *shape) for shape in _operands(sizes))
    peers = _PLAIN | {"onnxruntime": _onnx_product}
    return _case(f"{products} of {_text(sizes)}", sizes, shapes, _product, peers, products=products)


def _onnx_product(onnx: ModuleType, *inputs: Array) -> bytes:
    node = onnx.helper.make_node("MatMul", ["x0", "x1"], ["y"])
    return onnx_model(onnx, inputs, [node], {}, result=inputs[0].dtype)


# ---- transposed in memory --------------------------------------------------------------------------------------------


@tw.jit
def _left(a: tw.Array, b: tw.Array) -> tw.Array:
    return a.T @ b


@tw.jit
def _right(a: tw.Array, b: tw.Array) -> tw.Array:
    return a @ b.T


def _transposed_left(sizes: Sizes) -> Case:
    left, right = _operands(sizes)
    peers: BinaryPeers = {
        "numpy": lambda numpy, a, b: a.T @ b,
        "torch": lambda torch, a, b: a.T @ b,
        "jax": lambda jax, a, b: a.T @ b,
        "onnxruntime": _onnx_gemm("transA"),
    }
    return _case(f"{_text(sizes)} a.T", sizes, (left[::-1], right), _left, peers)


def _transposed_right(sizes: Sizes) -> Case:
    left, right = _operands(sizes)
    peers: BinaryPeers = {
        "numpy": lambda numpy, a, b: a @ b.T,
        "torch": lambda torch, a, b: a @ b.T,
        "jax": lambda jax, a, b: a @ b.T,
        "onnxruntime": _onnx_gemm("transB"),
    }
    return _case(f"{_text(sizes)} b.T", sizes, (left, right[::-1]), _right, peers)


def _onnx_gemm(transposed: str) -> Callable[..., bytes]:
    def build(onnx: ModuleType, *inputs: Array) -> bytes:
        node = onnx.helper.make_node("Gemm", ["x0", "x1"], ["y"], **{transposed: 1})
        return onnx_model(onnx, inputs, [node], {})

    return build


# ---- 16-bit floats: peers in their own type, or through f32 ----------------------------------------------------------

_OWN, _WIDE = "in its own type", "through f32"


def _narrow(dtype: str, sizes: Sizes) -> Case:
    peers: dict[str, BinaryPeers] = {
        # Its own product of these types is an element loop.
        "numpy": {_WIDE: lambda numpy, a, b: (a.astype(numpy.float32) @ b.astype(numpy.float32)).astype(a.dtype)},
        "torch": {_OWN: _multiply, _WIDE: lambda torch, a, b: (a.float() @ b.float()).to(a.dtype)},
        "jax": {_OWN: _multiply, _WIDE: lambda jax, a, b: (a.astype("float32") @ b.astype("float32")).astype(a.dtype)},
        # Its CPU provider has no product of bf16.
        "onnxruntime": {_WIDE: _onnx_wide} if dtype == "bf16" else {_OWN: _onnx_product, _WIDE: _onnx_wide},
    }
    return _case(_text(sizes), sizes, _operands(sizes), _product, peers, dtype=dtype, reference=_multiply)


def _onnx_wide(onnx: ModuleType, *inputs: Array) -> bytes:
    make, storage = onnx.helper.make_node, onnx.helper.np_dtype_to_tensor_dtype(inputs[0].dtype)
    nodes = [make("Cast", [f"x{n}"], [f"wide{n}"], to=onnx.TensorProto.FLOAT) for n in range(2)]
    nodes += [make("MatMul", ["wide0", "wide1"], ["product"]), make("Cast", ["product"], ["y"], to=storage)]
    return onnx_model(onnx, inputs, nodes, {}, result=inputs[0].dtype)


# ---- integers --------------------------------------------------------------------------------------------------------


@tw.jit
def _integer_product(a: tw.Array, b: tw.Array) -> tw.Array:
    return tw.matmul(a, b, dtype=tw.i32)


def _integers(sizes: Sizes) -> Case:
    rows, columns, depth = sizes

    def inputs(generator: np.random.Generator) -> tuple[Array, ...]:
        return tuple(generator.integers(-128, 128, shape, np.int8) for shape in _operands(sizes))

    def in_doubles(numpy: ModuleType, a: Any, b: Any) -> Any:
        # Exact; NumPy's own product of integers is an element loop.
        return a.astype(numpy.float64) @ b.astype(numpy.float64)

    def jax_product(jax: ModuleType, a: object, b: object) -> Any:
        return jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type="int32")

    def onnx_product(onnx: ModuleType, *inputs: Array) -> bytes:
        node = onnx.helper.make_node("MatMulInteger", ["x0", "x1"], ["y"])
        return onnx_model(onnx, inputs, [node], {}, result=np.int32)

    peers: BinaryPeers = {
        "numpy": lambda numpy, a, b: in_doubles(numpy, a, b).astype(numpy.int32),
        "torch": lambda torch, a, b: torch._int_mm(a, b),
        "jax": jax_product,
        "onnxruntime": onnx_product,
    }
    return Case(
        name=f"i8 {_text(sizes)}",
        make_inputs=inputs,
        ours=_integer_product,
        peers=peers,
        flops=2.0 * rows * columns * depth,
        bytes=float(rows * depth + depth * columns + 4 * rows * columns),
        tolerance=0.0,
        dtype="i32",
        reference=in_doubles,
    )


# ---- with what follows the product -----------------------------------------------------------------------------------


@tw.jit
def _product_bias_gelu(x: tw.Array, weight: tw.Array, bias: tw.Array) -> tw.Array:
    return tw.nn.gelu(x @ weight + bias)


@tw.jit
def _product_residual(x: tw.Array, weight: tw.Array, residual: tw.Array) -> tw.Array:
    return x @ weight + residual


def _bias_gelu(sizes: Sizes) -> Case:
    def reference(numpy: ModuleType, x: Any, weight: Any, bias: Any) -> Any:
        sums = x @ weight + bias
        return sums * 0.5 * (1 + exact_erf(sums * 0.5**0.5))

    peers: TernaryPeers = {
        "numpy": lambda numpy, x, weight, bias: numpy_gelu(numpy, x @ weight + bias),
        "torch": lambda torch, x, weight, bias: torch.nn.functional.gelu(torch.addmm(bias, x, weight)),
        "jax": lambda jax, x, weight, bias: jax.nn.gelu(x @ weight + bias, approximate=False),
        "onnxruntime": _onnx_then_add("Gelu"),
    }
    shapes = (*_operands(sizes), (sizes[1],))
    name = f"{_text(sizes)} bias gelu"
    return _case(name, sizes, shapes, _product_bias_gelu, peers, operations=8, reference=reference)


def _residual(sizes: Sizes) -> Case:
    peers: TernaryPeers = {
        "numpy": lambda numpy, x, weight, residual: x @ weight + residual,
        "torch": lambda torch, x, weight, residual: torch.addmm(residual, x, weight),
        "jax": lambda jax, x, weight, residual: x @ weight + residual,
        "onnxruntime": _onnx_then_add(None),
    }
    shapes = (*_operands(sizes), sizes[:2])
    return _case(f"{_text(sizes)} residual", sizes, shapes, _product_residual, peers, operations=2)


def _onnx_then_add(activation: str | None) -> Callable[..., bytes]:
    def build(onnx: ModuleType, *inputs: Array) -> bytes:
        make = onnx.helper.make_node
        nodes = [make("MatMul", ["x0", "x1"], ["product"])]
        nodes += [make("Add", ["product", "x2"], ["sum" if activation else "y"])]
        nodes += [make(activation, ["sum"], ["y"])] if activation else []
        return onnx_model(onnx, inputs, nodes, {})

    return build
