"""Points of a grid that touch the same elements: refused where the indices prove it, else found by the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_support import check, run

import tilewright as tw
from tilewright.errors import RaceError


@tw.kernel
def add_up(x: tw.In["S N"], y: tw.InOut["N"], *, block: int = 4):
    for s, i in tw.grid(x, (None, block)):
        y[i] += x[s, i]


def test_an_axis_of_one_point_is_no_race() -> None:
    y = np.ones(8, np.float32)
    for target in ("interp", "cpu"):
        run(add_up, np.ones((1, 8), np.float32), y, target=target)
    assert (y == 3).all()
    with pytest.raises(RaceError, match="differ only in `s`") as caught:
        add_up.lower(np.ones((2, 8), np.float32), y).ir()
    assert caught.value.location is not None
    assert "y[i] += x[s, i]" in caught.value.location.snippet()


def test_a_branch_may_be_that_of_one_point() -> None:
    @tw.kernel
    def totals(x: tw.In["M N"], y: tw.Out["M"]):
        for i, j in tw.grid(x, (4, 4)):
            if j.index == 1:
                y[i] = tw.sum(x[i, :], axis=1)

    check(totals, lambda x: x.sum(1), np.arange(96, dtype=np.float32).reshape(8, 12))


def test_windows_that_meet_only_outside_are_no_race() -> None:
    @tw.kernel
    def apart(x: tw.In["N"], y: tw.InOut["4"], z: tw.Out["N"]):
        for i in tw.grid(x, None):
            y[i * 2 + 2 : i * 2 + 5 : 2] = tw.full((2,), 1.0, tw.f32)
            z[i] = x[i]

    y = np.zeros(4, np.float32)
    for target in ("interp", "cpu"):
        run(apart, np.ones(2, np.float32), y, np.empty(2, np.float32), target=target)
    assert y.tolist() == [0, 0, 1, 0]


def lower_race(kernel: tw.Kernel, *arrays: np.ndarray) -> None:
    with pytest.raises(RaceError, match="store to the same elements"):
        kernel.lower(*arrays).ir()


def test_overlapping_windows_are_proven() -> None:
    @tw.kernel
    def smeared(x: tw.In["N"], y: tw.Out["N"]):
        for i in tw.grid(x, None):
            y[i : i + 2] = tw.full((2,), 1.0, tw.f32)

    @tw.kernel
    def at_the_end(x: tw.In["N"], y: tw.Out["N"]):
        for i in tw.grid(x, None):
            y[i // (x.shape[0] - 1) + i - i // (x.shape[0] - 1) * 2] = 1.0

    lower_race(smeared, np.ones(8, np.float32), np.ones(8, np.float32))
    lower_race(at_the_end, np.ones(8, np.float32), np.ones(8, np.float32))


def test_the_interpreter_finds_what_indices_do_not_prove() -> None:
    @tw.kernel
    def scattered(places: tw.In["N", tw.i32], y: tw.InOut["M"]):
        for i in tw.grid(places, None):
            y[places[i]] = 1.0

    @tw.kernel
    def conditional(x: tw.In["N"], y: tw.InOut["M"]):
        for i in tw.grid(x, None):
            if x[i] > 0:
                y[0] = x[i]

    @tw.kernel
    def neighbour(x: tw.In["N"], y: tw.InOut["N"]):
        for i in tw.grid(x, None):
            y[i] = y[i - 1] + x[i]

    @tw.kernel
    def later(x: tw.In["N"], y: tw.InOut["N"]):
        for i in tw.grid(x, None):
            y[i] = y[i + 1] + x[i]

    y = np.zeros(4, np.float32)
    run(scattered, np.array([3, 1, 7, -1], np.int32), y, target="interp")
    run(conditional, np.array([0, 2, 0], np.float32), y, target="interp")
    assert y.tolist() == [2, 1, 0, 1]
    cases = (
        (scattered, np.array([3, 1, 3], np.int32), "point (2) stores to an element that is also touched by (0)"),
        (conditional, np.array([0, 2, 1], np.float32), "point (2) stores to an element that is also touched by (1)"),
        (neighbour, np.ones(4, np.float32), "point (1) loads an element that is stored by (0)"),
        (later, np.ones(4, np.float32), "point (1) stores to an element that is also touched by (0)"),
    )
    for kernel, x, sentence in cases:
        with pytest.raises(RaceError) as caught:
            run(kernel, x, np.zeros(4, np.float32), target="interp")
        assert sentence in caught.value.message
        assert caught.value.location is not None
        assert "y[" in caught.value.location.snippet()
