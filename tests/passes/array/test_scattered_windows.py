"""Scatters to all elements of a window, as updates of it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.pass_support import applied, check_meaning, check_unchanged
from tilewright.dialects import array
from tilewright.passes.array.array_simplify import ArraySimplifyPass
from tilewright.passes.base import Unit

PASS = ArraySimplifyPass()


def updates(unit: Unit) -> list[type]:
    found = (array.ScatterOp, array.DynamicUpdateSliceOp)
    return [type(op) for op in unit.main.walk() if isinstance(op, found)]


Dims = tuple[int, int]


def scattered(first: int, second: int, axes: Dims = (0, 1), fn: str = "set", dims: Dims = (0, 1)) -> str:
    """A window of (5, 7, 2) from two positions on, by indices of (3, 4) that count along `dims`."""
    return f"""
    func.func @main(%x: tensor<5x7x2xi32>, %u: tensor<3x4x2xi32>) -> tensor<5x7x2xi32> {{
      %i = array.iota() {{axis = {dims[0]} : index}} : tensor<3x4xi32>
      %j = array.iota() {{axis = {dims[1]} : index}} : tensor<3x4xi32>
      %a = array.constant() {{value = {first} : index, resource = ""}} : tensor<3x4xi32>
      %b = array.constant() {{value = {second} : index, resource = ""}} : tensor<3x4xi32>
      %r = array.map(%i, %a) {{fn = "add"}} : tensor<3x4xi32>
      %c = array.map(%b, %j) {{fn = "add"}} : tensor<3x4xi32>
      %z = array.scatter(%x, %u, %r, %c) {{axes = array<i64: {axes[0]}, {axes[1]}>, fn = "{fn}"}} : tensor<5x7x2xi32>
      func.return %z : tensor<5x7x2xi32>
    }}
    """


@pytest.mark.parametrize("fn", ["set", "add", "maximum"])
@pytest.mark.parametrize(("axes", "dims"), [((0, 1), (0, 1)), ((1, 0), (0, 1)), ((1, 0), (1, 0))])
@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 1), (0, 1)])
def test_a_window_is_updated(first: int, second: int, axes: tuple[int, int], dims: tuple[int, int], fn: str) -> None:
    unit = check_meaning(PASS, scattered(first, second, axes, fn, dims))
    assert updates(unit) == [array.DynamicUpdateSliceOp]


@pytest.mark.parametrize(("first", "second"), [(3, 0), (0, 4), (-1, 0), (99, 1)])
def test_a_window_that_is_outside_somewhere_stays(first: int, second: int) -> None:
    """Elements outside are dropped."""
    assert updates(applied(PASS, scattered(first, second))) == [array.ScatterOp]


def test_a_diagonal_stays() -> None:
    assert updates(applied(PASS, scattered(1, 1, dims=(0, 0)))) == [array.ScatterOp]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_one_position_of_an_axis(axis: int) -> None:
    shape = "x".join(size for d, size in enumerate("572") if d != axis)
    text = f"""
    func.func @main(%x: tensor<5x7x2xf32>, %u: tensor<1x{shape}xf32>) -> tensor<5x7x2xf32> {{
      %i = array.constant() {{value = 1 : index, resource = ""}} : tensor<1xi64>
      %z = array.scatter(%x, %u, %i) {{axes = array<i64: {axis}>, fn = "set"}} : tensor<5x7x2xf32>
      func.return %z : tensor<5x7x2xf32>
    }}
    """
    assert updates(check_meaning(PASS, text)) == [array.DynamicUpdateSliceOp]


def test_several_updates_of_one_position_stay() -> None:
    text = """
    func.func @main(%x: tensor<5x2xf32>, %u: tensor<3x2xf32>) -> tensor<5x2xf32> {
      %i = array.constant() {value = 1 : index, resource = ""} : tensor<3xi64>
      %z = array.scatter(%x, %u, %i) {axes = array<i64: 0>, fn = "add"} : tensor<5x2xf32>
      func.return %z : tensor<5x2xf32>
    }
    """
    check_unchanged(PASS, text)


def test_small_arrays_of_constants_are_constants() -> None:
    """As the first position of a window is, which importers state as a concatenation of numbers."""
    text = """
    func.func @main(%x: tensor<9xf32>) -> tensor<9xf32> {
      %a = array.constant() {value = 2 : index, resource = ""} : tensor<1xi32>
      %b = array.constant() {value = 3 : index, resource = ""} : tensor<1xi32>
      %c = array.concat(%a, %b) {axis = 0 : index} : tensor<2xi32>
      %s = array.slice(%c) {starts = array<i64: 1>, limits = array<i64: 2>, strides = array<i64: 1>} : tensor<1xi32>
      %w = array.broadcast(%s) {axes = array<i64: 0>} : tensor<9xi32>
      %f = array.cast(%w) : tensor<9xf32>
      %z = array.map(%x, %f) {fn = "add"} : tensor<9xf32>
      func.return %z : tensor<9xf32>
    }
    """
    unit = check_meaning(PASS, text, inputs=[np.arange(9, dtype=np.float32)])
    assert not any(isinstance(op, array.ConcatOp | array.SliceOp) for op in unit.main.walk())
