"""Matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw
from tilewright.cli.bench_suites.case import Array, BinaryPeers, Case, onnx_model
from tilewright.dtypes import by_name

_SIZES = [(256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (1024, 384, 1536)]
_TOLERANCES = {"f32": 1e-5, "f64": 1e-12, "bf16": 1e-2}


def cases(quick: bool) -> tuple[Case, ...]:
    if quick:
        return (_case(48, 32, 40, "f32"), _case(32, 32, 32, "f64"), _case(32, 32, 32, "bf16"))
    return (*(_case(*sizes, "f32") for sizes in _SIZES), _case(512, 512, 512, "f64"), _case(512, 512, 512, "bf16"))


@tw.jit
def _product(a: Any, b: Any) -> Any:
    return a @ b


def _case(rows: int, depth: int, columns: int, dtype: str) -> Case:
    storage = by_name(dtype).numpy

    def inputs(generator: np.random.Generator) -> tuple[Array, ...]:
        shapes = ((rows, depth), (depth, columns))
        return tuple(generator.standard_normal(shape).astype(storage) for shape in shapes)

    peers: BinaryPeers = {
        "numpy": _numpy_wide if dtype == "bf16" else lambda numpy, a, b: a @ b,
        "torch": lambda torch, a, b: a @ b,
        "jax": lambda jax, a, b: a @ b,
    }
    unsupported: dict[str, str] = {}
    if dtype == "bf16":
        unsupported["onnxruntime"] = "its CPU provider has no bf16 MatMul"
    else:
        peers["onnxruntime"] = _onnx
    elements = rows * depth + depth * columns + rows * columns
    return Case(
        name=f"{dtype} {rows}x{depth}x{columns}",
        make_inputs=inputs,
        ours=_product,
        peers=peers,
        flops=2.0 * rows * depth * columns,
        bytes=float(elements * storage.itemsize),
        tolerance=_TOLERANCES[dtype],
        dtype=dtype,
        unsupported=unsupported,
    )


def _numpy_wide(numpy: Any, a: Array, b: Array) -> Array:
    # NumPy's own product of this type is an element loop; its users go through f32.
    return (a.astype(numpy.float32) @ b.astype(numpy.float32)).astype(a.dtype)


def _onnx(onnx: Any, *inputs: Array) -> bytes:
    return onnx_model(onnx, inputs, [onnx.helper.make_node("MatMul", ["x0", "x1"], ["y"])], {})
