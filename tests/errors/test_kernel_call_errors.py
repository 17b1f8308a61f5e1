"""Error messages for invalid calls of tile kernels, directly and in traced programs, and on the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import (
    ArgumentError,
    DTypeError,
    OutOfBoundsError,
    OverlapError,
    ShapeError,
    TilewrightError,
    UnsupportedOnTargetError,
    UnsupportedSyntaxError,
)
from tilewright.targets.interp.kernels import bounds_checked


@tw.kernel
def add(x: tw.In["M N"], y: tw.In["M N", tw.f32], z: tw.Out["M N"], *, b: int):
    for i in tw.grid(z, b):
        z[i] = x[i] + y[i]


def _floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_mistakes_in_a_call() -> None:
    x = _floats(4, 6)
    cases: list[tuple[type[TilewrightError], str, tuple[Any, ...], dict[str, Any]]] = [
        (ShapeError, "M is 4 in `x` but 5 in `y`", (x, _floats(5, 6), x.copy()), {"b": 2}),
        (ShapeError, '`x` has the shape (4,), but `add` declares "M N"', (_floats(4), x, x.copy()), {"b": 2}),
        (DTypeError, "`y` is f64, but `add` declares f32", (x, x.astype(float), x.copy()), {"b": 2}),
        (DTypeError, "complex64", (x.astype(np.complex64), x, x.copy()), {"b": 2}),
        (ArgumentError, "`add` takes 3 arrays (x, y, z), got 1", (x,), {"b": 2}),
        (ArgumentError, "`add` needs a value for `b`", (x, x, x.copy()), {}),
        (ArgumentError, "`add` has no keyword parameter `c`", (x, x, x.copy()), {"b": 2, "c": 3}),
        (ArgumentError, "cannot be hashed", (x, x, x.copy()), {"b": [2]}),
        (ArgumentError, "`z` is Out, but the array is not contiguous", (x, x, _floats(6, 4).T), {"b": 2}),
        (ArgumentError, "argument `x`: a value of type dict", ({}, x, x.copy()), {"b": 2}),
        (OverlapError, "`z`, which the kernel writes, overlaps `x`", (x, x.copy(), x), {"b": 2}),
    ]
    for kind, sentence, arrays, static in cases:
        with pytest.raises(kind) as caught:
            add(*arrays, **static)
        assert sentence in caught.value.message
        assert caught.value.location is not None
        assert caught.value.location.file == __file__
    fixed = x.copy()
    fixed.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        add(x, x, fixed, b=2)


def test_mistakes_inside_a_traced_program() -> None:
    x = _floats(4, 6)
    with pytest.raises(ArgumentError, match=r"write `z = add\(x, y\)`"):
        tw.jit(lambda a: add(a, a, a, b=2))(x)

    @tw.kernel
    def sizes(x: tw.In["N"], y: tw.Out["M"]):
        for i in tw.grid(y, 4):
            y[i] = 1

    with pytest.raises(ArgumentError, match="the size M of `y` does not follow"):
        sizes(_floats(4))


def test_kernel_functions_belong_into_kernels() -> None:
    for call in (lambda: tw.dot(1, 2), lambda: tw.grid((3,), (1,)), lambda: tw.steps(3, size=1), lambda: tw.zone("a")):
        with pytest.raises(UnsupportedSyntaxError, match=r"belongs inside a function decorated with `@tw.kernel`"):
            call()


def test_single_positions_outside_are_reported_where_that_is_asked_for() -> None:
    @tw.kernel
    def pick(x: tw.In["N"], which: tw.In["M"], y: tw.Out["M"]):
        for i in tw.grid(which, None):
            y[i] = x[which[i]]

    @tw.kernel
    def every_third(x: tw.In["N"], y: tw.Out["M"]):
        for i in tw.grid(y, None):
            y[i] = x[i * 3]

    x = np.arange(6, dtype=np.float32)
    with tw.options(target="interp"):
        assert pick(x, np.array([5, 6])).tolist() == [5, 0]
        with bounds_checked():
            assert pick(x, np.array([5, 0]))[0] == 5
            with pytest.raises(OutOfBoundsError, match="element 6 is outside axis 0") as caught:
                pick(x, np.array([5, 6]))
            assert caught.value.location is not None
            assert "y[i] = x[which[i]]" in caught.value.location.snippet()
            y = np.zeros(3, np.float32)
            with pytest.raises(OutOfBoundsError, match="element 6"):
                every_third(x, y)


def test_assertions_and_prints_run_on_the_interpreter(capsys: pytest.CaptureFixture[str]) -> None:
    @tw.kernel
    def checked(x: tw.In["N"], y: tw.Out["N"]):
        for i in tw.grid(x, 4):
            tile = x[i]
            tw.print("tile", tile)
            assert tw.all(tile >= 0), "negative"
            y[i] = tile

    with tw.options(target="interp"):
        checked(np.array([1, 2, 3, 4, 5], np.float32))
        assert "tile [1. 2. 3. 4.]" in capsys.readouterr().err
        with pytest.raises(TilewrightError, match="negative") as caught:
            checked(np.array([1, -2], np.float32))
        assert caught.value.location is not None
    with tw.options(target="cpu"), pytest.raises(UnsupportedOnTargetError, match="does not run on the cpu target"):
        checked(np.array([1, 2], np.float32))
