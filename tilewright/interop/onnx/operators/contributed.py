"""Operators of the domain `com.microsoft`, which optimised models and exports for ONNX Runtime hold."""

from __future__ import annotations

from typing import Any

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.functions_decompositions import call
from tilewright.interop.onnx.operators.elementwise import wide
from tilewright.interop.onnx.operators.linalg import gemm
from tilewright.interop.onnx.operators.normalisation import moments
from tilewright.interop.onnx.operators.quantised import dynamic_quantize, matmul_integer
from tilewright.interop.onnx.operators.recurrent import quantised_lstm
from tilewright.interop.onnx.operators.windows import conv
from tilewright.interop.onnx.registry import Node, operator

_DOMAIN = "com.microsoft"


def _narrow(like: Array, y: Array) -> Array:
    return tw.astype(y, like.dtype)


# ---- activations ----------------------------------------------------------------------------------------------------


@operator("Gelu", domain=_DOMAIN)
def gelu(node: Node, x: Array) -> Array:
    """`x` times the normal distribution function."""
    return tw.nn.gelu(x)


@operator("BiasGelu", domain=_DOMAIN)
def bias_gelu(node: Node, x: Array, bias: Array) -> Array:
    """`Gelu` of the sum."""
    return _narrow(x, tw.nn.gelu(wide(x) + wide(bias)))


@operator("FastGelu", domain=_DOMAIN)
def fast_gelu(node: Node, x: Array, bias: Array | None = None) -> Array:
    """`Gelu` of the sum, by its approximation through `tanh`."""
    return _narrow(x, tw.nn.gelu(wide(x) if bias is None else wide(x) + wide(bias), "tanh"))


@operator("QuickGelu", domain=_DOMAIN)
def quick_gelu(node: Node, x: Array) -> Array:
    """`x * sigmoid(alpha * x)`."""
    y = wide(x)
    return _narrow(x, y * tw.sigmoid(y * node.get("alpha", 1.702)))


def _activated(node: Node, y: Array, name: str, parameters: tuple[float, ...]) -> Array:
    """The activation function of a fused operator."""

    def parameter(index: int, default: float) -> float:
        return parameters[index] if index < len(parameters) else default

    match name:
        case "":
            return y
        case "Relu":
            return tw.nn.relu(y)
        case "Tanh":
            return tw.tanh(y)
        case "Sigmoid":
            return tw.sigmoid(y)
        case "LeakyRelu":
            return tw.nn.leaky_relu(y, parameter(0, 0.01))
        case "Clip":
            return tw.clip(y, parameter(0, float("-inf")), parameter(1, float("inf")))
        case "HardSigmoid":
            return tw.clip(y * parameter(0, 0.2) + parameter(1, 0.5), 0.0, 1.0)
        case _:
            raise node.unsupported(f"`{node.op}` with the activation {name!r}")


# ---- matmuls --------------------------------------------------------------------------------------------------------


@operator("Inverse", domain=_DOMAIN)
def inverse(node: Node, x: Array) -> Array:
    """The inverse of each matrix; NaN of singular ones."""
    return _narrow(x, call("getri", wide(x))[0])


@operator("FusedMatMul", domain=_DOMAIN)
@operator("TransposeMatMul", domain=_DOMAIN)
def fused_matmul(node: Node, a: Array, b: Array) -> Array:
    """`alpha * a @ b`, with transposes: of the last two dims, or of the first dim to the row's."""
    left = _arranged(a, node.get("transA", 0), node.get("transBatchA", 0))
    right = _arranged(b, node.get("transB", 0), node.get("transBatchB", 0))
    product, alpha = tw.matmul(left, right), node.get("alpha", 1.0)
    return product if alpha == 1.0 else product * alpha


def _arranged(x: Array, transposed: int, moved: int) -> Array:
    if x.ndim < 2:
        return x
    y = tw.moveaxis(x, 0, -2) if moved else x
    return y.mT if transposed else y


@operator("FusedGemm", domain=_DOMAIN)
def fused_gemm(node: Node, a: Array, b: Array, c: Array | None = None) -> Array:
    """`Gemm` and an activation."""
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    parameters = tuple(value for name in names if (value := node.get(name)) is not None)
    return _activated(node, gemm(node, a, b, c), node.get("activation", ""), parameters)


@operator("FusedConv", domain=_DOMAIN)
def fused_conv(node: Node, x: Array, w: Array, bias: Array | None = None, addend: Array | None = None) -> Array:
    """`Conv`, the sum with another array, and an activation."""
    y = conv(node, x, w, bias)
    y = y if addend is None else y + addend
    return _activated(node, y, node.get("activation", ""), tuple(node.get("activation_params", ())))


@operator("MatMulIntegerToFloat", domain=_DOMAIN)
def matmul_integer_to_float(
    node: Node,
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero: Array | None = None,
    b_zero: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """The matmul of quantised matrices, as floats."""
    scale = _scalar(a_scale) * _scalar(b_scale)
    y = tw.astype(matmul_integer(node, a, b, a_zero, b_zero), scale.dtype) * scale
    return y if bias is None else y + bias


@operator("DynamicQuantizeMatMul", domain=_DOMAIN)
def dynamic_quantize_matmul(
    node: Node, a: Array, b: Array, b_scale: Array, b_zero: Array | None = None, bias: Array | None = None
) -> Array:
    """The matmul of a matrix, quantised by its largest and smallest element, with a quantised one, as floats."""
    quantised, scale, zero = dynamic_quantize(node, a)
    return matmul_integer_to_float(node, quantised, b, scale, b_scale, zero, b_zero, bias)


def _scalar(x: Array) -> Array:
    return tw.reshape(x, ()) if x.size == 1 else x


@operator("DynamicQuantizeLSTM", domain=_DOMAIN)
def dynamic_quantize_lstm(
    node: Node,
    x: Array,
    w: Array,
    r: Array,
    bias: object,
    lengths: object,
    initial: object,
    initial_cell: object,
    peepholes: object,
    w_scale: Array,
    w_zero: Array,
    r_scale: Array,
    r_zero: Array,
) -> tuple[Array, ...]:
    """`LSTM` of quantised weights; inputs and hidden states are quantised by their largest and smallest element."""
    weights = [_centred(node, *parts) for parts in ((w, w_scale, w_zero), (r, r_scale, r_zero))]
    return quantised_lstm(node, x, weights[0], weights[1], bias, lengths, initial, initial_cell, peepholes)


def _centred(node: Node, weights: Array, scale: Array, zero: Array) -> tuple[Array, Array]:
    """Weights (directions, in, gates * hidden) as i32 without zero points, and scales for their columns."""
    per = (weights.shape[0], 1, -1)
    return tw.astype(weights, tw.i32) - tw.astype(tw.reshape(zero, per), tw.i32), tw.reshape(scale, per)


# ---- normalisation --------------------------------------------------------------------------------------------------


@operator("SkipLayerNormalization", domain=_DOMAIN)
def skip_layer_normalization(
    node: Node, x: Array, skip: Array, scale: Array, beta: Array | None = None, bias: Array | None = None
) -> Any:
    """`LayerNormalization` of a sum over the last dim; gives mean, inverse deviation and sum where they are named."""
    total = _sum_of(x, skip, bias)
    mean, squares = moments(total, (total.ndim - 1,))
    inverse = tw.rsqrt(squares / float(total.shape[-1]) + node.get("epsilon", 1e-12))
    result = (total - mean) * inverse * wide(scale)
    if beta is not None:
        result = result + wide(beta)
    return (_narrow(x, result), mean, inverse, _narrow(x, total))[: max(len(node.wanted), 1)]


@operator("SkipSimplifiedLayerNormalization", domain=_DOMAIN)
def skip_simplified_layer_normalization(
    node: Node, x: Array, skip: Array, scale: Array, bias: Array | None = None
) -> Any:
    """A sum divided by the root of its mean square over the last dim; gives the sum where it is named."""
    total = _sum_of(x, skip, bias)
    inverse = tw.rsqrt(tw.mean(total * total, -1, keepdims=True) + node.get("epsilon", 1e-12))
    result = _narrow(x, total * inverse * wide(scale))
    return (result, tw.zeros_like(inverse), inverse, _narrow(x, total))[: max(len(node.wanted), 1)]


def _sum_of(x: Array, skip: Array, bias: Array | None) -> Array:
    total = wide(x) + wide(skip)
    return total if bias is None else total + wide(bias)
