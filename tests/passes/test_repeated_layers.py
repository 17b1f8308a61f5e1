"""The layers that are found are those of the definition, by a search of all starts, periods and counts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tests.passes.pass_support import parse, unit_of
from tilewright.dialects import array
from tilewright.passes.repeated_layers import EDGE, Layers, find_layers, flatten

LEAST = 4
FUNCTIONS = ("exp", "tanh", "log")


def block_of(lines: Sequence[str], inputs: int, result: str) -> Block:
    arguments = ", ".join(f"%a{n}: tensor<8xf32>" for n in range(inputs))
    text = "\n".join((*lines, f"func.return %{result} : tensor<8xf32>"))
    return unit_of(parse(f"func.func @main({arguments}) -> tensor<8xf32> {{\n{text}\n}}"), {}).main.body.block


def found(lines: Sequence[str], inputs: int, result: str) -> Layers | None:
    return find_layers(flatten(block_of(lines, inputs, result)), LEAST)


def one(result: str, fn: str, *operands: str) -> str:
    return f'%{result} = array.map({", ".join(f"%{each}" for each in operands)}) {{fn = "{fn}"}} : tensor<8xf32>'


def captured(result: str, name: str) -> str:
    return f'%{result} = array.constant() {{value = 0 : index, resource = "{name}"}} : tensor<8xf32>'


def test_arguments_of_each_layer() -> None:
    lines = [one("x0", "exp", "a0")]
    for n in range(6):
        lines += [one(f"y{n}", "add", f"x{n}", f"a{n + 1}"), one(f"x{n + 1}", "tanh", f"y{n}")]
    layers = found([*lines, one("end", "exp", "x6")], 7, "end")
    assert layers is not None
    assert (layers.start, layers.period, layers.count) == (1, 2, 6)
    assert layers.own == [[1, 2, 3, 4, 5, 6]]


def test_captured_arrays_of_each_layer() -> None:
    lines = [one("x0", "exp", "a0")]
    for n in range(6):
        lines += [captured(f"w{n}", f"w{n}"), one(f"x{n + 1}", "add", f"x{n}", f"w{n}")]
    layers = found(lines, 1, "x6")
    assert layers is not None
    assert (layers.start, layers.period, layers.count) == (1, 2, 6)
    assert layers.own == [["w0", "w1", "w2", "w3", "w4", "w5"]]


@pytest.mark.parametrize("again", [0, 3])
def test_an_argument_in_two_layers_is_no_layers_own(again: int) -> None:
    lines = [one("x0", "exp", "a0")]
    for n in range(7):
        argument = again if n == 6 else n
        lines.append(one(f"x{n + 1}", "add", f"x{n}", f"a{argument + 1}"))
    assert found(lines, 8, "x7") is None


@pytest.mark.parametrize(("used", "possible"), [(1, True), (2, True), (4, False), (9, True), (10, True)])
def test_uses_after_the_layers(used: int, possible: bool) -> None:
    """Of results in the middle there are none, but where enough layers are on one side of it."""
    lines = [one("x0", "exp", "a0"), *(one(f"x{n + 1}", "add", f"x{n}", "a0") for n in range(10))]
    layers = found([*lines, one("y", "log", "x10"), one("z", "multiply", "y", f"x{used}")], 1, "z")
    assert layers is not None
    assert (layers.count >= 8) == possible


def layers_by_definition(block: Block, start: int, period: int, count: int) -> bool:
    """Whether operations from `start` on are layers: equal ones, whose operands are invariant, move along from the same
    layer or the one before it, or are arguments that differ in each."""
    ops = list(block.ops)
    if start + period * count > len(ops):
        return False
    layers = [ops[start + n * period : start + (n + 1) * period] for n in range(count)]
    if any(each.name != "array.map" for layer in layers for each in layer):
        return False
    where = {result: n for n, op in enumerate(ops) for result in op.results}
    for column in zip(*layers, strict=True):
        if len({(op.properties["fn"], len(op.operands)) for op in column}) != 1:
            return False
        if not all(_is_operand(values, where) for values in _operands(column, where, period)):
            return False
    return _only_ends_are_used(ops, where, start, period, count)


Row = list[tuple[int, SSAValue]]


def _operands(column: Sequence[Operation], where: dict[SSAValue, int], period: int) -> list[Row]:
    """The operands of equal operations, each with how far before them it is computed, `period` steps at most twice."""
    rows: list[Row] = []
    for n in range(len(column[0].operands)):
        values = [op.operands[n] for op in column]
        distances = [where[op.results[0]] - where.get(v, -(10**6)) for op, v in zip(column, values, strict=True)]
        rows.append([(d if d <= 2 * period else -1, v) for d, v in zip(distances, values, strict=True)])
    return rows


def _is_operand(row: Row, where: dict[SSAValue, int]) -> bool:
    values = [value for _, value in row]
    if len(set(values)) == 1:
        return True
    if all(isinstance(value, BlockArgument) for value in values):
        return len(set(values)) == len(values)
    return len({distance for distance, _ in row}) == 1 and row[0][0] > 0


def _only_ends_are_used(
    ops: Sequence[Operation], where: dict[SSAValue, int], start: int, period: int, count: int
) -> bool:
    """Whether only the next layer uses results of a layer, but for those of the first and last ones."""
    end = start + period * count
    for user in ops[end:]:
        layers = [(where[v] - start) // period for v in user.operands if start <= where.get(v, -1) < end]
        if any(EDGE <= layer < count - EDGE for layer in layers):
            return False
    return True


@settings(max_examples=150, deadline=None)
@given(
    layer=st.lists(
        st.tuples(st.sampled_from(FUNCTIONS), st.sampled_from(["last", "both", "own", "common"])),
        min_size=1,
        max_size=4,
    ),
    first=st.integers(0, 2),
    count=st.integers(1, 8),
    last=st.integers(0, 2),
)
def test_random_layers(layer: Sequence[tuple[str, str]], first: int, count: int, last: int) -> None:
    """No run of layers by definition has more operations to repeat than the one that is found. Of runs in which an
    argument comes again, as one that layers have in common does where fewer operations are taken for a layer, a part
    would do, which is not looked for."""
    lines: list[str] = []
    names = ["a0"]
    inputs = 2

    def add(fn: str, kind: str) -> None:
        nonlocal inputs
        other = {"both": names[-2:][0], "common": "a1", "own": f"a{inputs}"}.get(kind)
        inputs += kind == "own"
        name = f"x{len(lines)}"
        operands = [names[-1]] if other is None else [names[-1], other]
        lines.append(
            one(name, fn if other is None else {"exp": "add", "tanh": "multiply", "log": "minimum"}[fn], *operands)
        )
        names.append(name)

    for n in range(first):
        add(FUNCTIONS[n], "last")
    for _ in range(count):
        for fn, kind in layer:
            add(fn, kind)
    for n in range(last):
        add(FUNCTIONS[-n], "last")
    if not lines:
        return
    block = block_of(lines, inputs, names[-1])
    layers = find_layers(flatten(block), LEAST)
    every = [
        ((each - EDGE) * period, start, period, each)
        for period in range(1, len(lines) + 1)
        for start in range(len(lines))
        for each in range(LEAST, len(lines) // period + 1)
        if layers_by_definition(block, start, period, each)
    ]
    best = max(every, default=(0,))[0]
    repeated = 0 if layers is None else (layers.count - EDGE) * layers.period
    assert repeated <= best
    # The first layer reads an argument, not a result, where nothing is before it.
    if count - (first == 0) >= LEAST or all(kind != "common" for _, kind in layer):
        assert repeated == best
    if layers is not None:
        assert layers_by_definition(block, layers.start, layers.period, layers.count)
        assert all(isinstance(op, array.MapOp) for op in layers.flat.ops[layers.start : layers.end])
