"""Transposes: one layout for the load and one for the store, and no more operations than that takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.chips import built, emulated
from tilewright import dtypes
from tilewright.dialects import scheduled, tile

Tensor = np.ndarray[Any, Any]


def compiled(function: Callable[..., Any], *arrays: Any) -> Any:
    return built(tw.jit(function).lower(*arrays), "cuda:sm_90a")


def count(program: Any, kind: type) -> int:
    return sum(isinstance(op, kind) for kernel in program.unit.kernels() for op in kernel.walk())


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8", "f64", "bool"])
@pytest.mark.parametrize("shape", [(64, 64), (33, 70), (5, 130), (3, 40, 17)], ids=str)
def test_transposes(dtype: str, shape: tuple[int, ...]) -> None:
    kind = dtypes.by_name(dtype).numpy
    x = np.random.default_rng(0).integers(-4, 5, shape).astype(kind)
    program = compiled(lambda x: x.mT, x)
    np.testing.assert_array_equal(emulated(program, [x])[0], x.swapaxes(-1, -2))


def test_elements_are_exchanged_in_shared_memory_and_stored_in_vectors() -> None:
    program = compiled(lambda x: x.T, tw.ShapeDtype((512, 512), tw.f32))
    assert count(program, scheduled.AllocOp) == 1
    (text,) = program.ptx.values()
    assert "st.global.v4" in text
    assert "ld.global.v4" in text
    assert "st.global.b32" not in text


def test_what_lies_as_it_lay_is_left_alone() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for function in (lambda x: x[1:3], lambda x: tw.concat((x, x)), lambda x: tw.broadcast_to(x, (3, 4, 6))):
        program = compiled(function, x)
        assert count(program, scheduled.AllocOp) == 0
        assert count(program, tile.BitcastOp) == 0
        np.testing.assert_array_equal(emulated(program, [x])[0], tw.jit(function, target="interp")(x))
