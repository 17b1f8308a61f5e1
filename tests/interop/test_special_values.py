"""A sample of `python -m tests.interop.special_values`: rules whose frameworks are particular about special values."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest

for _package in ("torch", "jax", "onnx", "onnxruntime"):
    pytest.importorskip(_package)

from tests.interop.special_values.__main__ import cases  # noqa: E402
from tests.interop.special_values.compare import run  # noqa: E402

# Framework, rule, and a part of the element types.
_SAMPLE = (
    ("torch", "aten.fmod.Tensor", "int8"),
    ("torch", "aten.remainder.Tensor", "int64"),
    ("torch", "aten.remainder.Tensor", "float32"),
    ("torch", "aten.sign.default", "float16"),
    ("torch", "aten.floor_divide.default", "bfloat16"),
    ("torch", "aten.clamp.default", "float16"),
    ("torch", "aten.fmod.Scalar", "float64"),
    ("torch", "aten.div.Scalar", "float16"),
    ("torch", "aten.mul.Scalar", "float16"),
    ("torch", "aten.mul.Tensor", "float8_e4m3fn"),
    ("torch", "aten.fill.Scalar", "uint8"),
    ("torch", "aten.square.default", "bool"),
    ("torch", "aten.mean.default", "float32"),
    ("torch", "aten._to_copy.default", "float32 to int8"),
    ("torch", "aten._to_copy.default", "float64 to uint8"),
    ("torch", "aten._to_copy.default", "float16 to uint64"),
    ("torch", "aten._to_copy.default", "float64 to bfloat16"),
    ("torch", "aten._to_copy.default", "float32 to float8_e4m3fn"),
    ("torch", "aten._to_copy.default", "float64 to float8_e5m2"),
    ("onnx", "Cast", "float32 to uint8"),
    ("onnx", "Cast", "float32 to float8_e4m3fnuz"),
    ("onnx", "Cast", "float64 to uint8"),
    ("onnx", "Cast", "float32 to int4"),
    ("onnx", "Cast", "float8_e5m2 to float8_e5m2"),
    ("onnx", "Shrink", "int32"),
    ("onnx", "Clip", "float32 nan 1"),
    ("stablehlo", "max", "float32"),
    ("stablehlo", "min", "bfloat16"),
    ("stablehlo", "clamp", "float64"),
    ("stablehlo", "top_k", "bfloat16"),
    ("stablehlo", "convert", "float32 to uint4"),
    ("stablehlo", "convert", "float8_e5m2 to int4"),
    ("stablehlo", "convert", "int4 to uint8"),
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize(("framework", "rule", "dtype"), _SAMPLE)
def test_special_values(framework: str, rule: str, dtype: str) -> None:
    chosen = [c for c in cases(framework, rule) if c.op == rule and c.dtype.startswith(dtype)]
    chosen = chosen[:4] if rule.endswith(".Scalar") else chosen[:2]
    assert chosen
    for case in chosen:
        outcome = run(case)
        assert not outcome.wrong, outcome.examples
        assert outcome.right
