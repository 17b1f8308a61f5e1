"""Names of tiles, compared with the printed kernel and with the source."""

from __future__ import annotations

import linecache
import re
from pathlib import Path

import pytest

import tilewright as tw
from tests.passes.layouts.test_layout_inference import KERNELS, kernel_of
from tilewright.dialects import tile
from tilewright.passes.layouts.tile_names import names_of, source_line

SQUARE = tw.ShapeDtype((32, 32), tw.f32)


@tw.kernel
def several(x: tw.In["M N"], y: tw.InOut["M N"], *, bm: int = 16):
    for i, j in tw.grid(x, (bm, bm)):
        first, second = x[i, j] + 1, tw.exp(x[i, j]) * 2
        plain: object = first * first + second
        plain += 1  # the name stays
        größe = tw.sqrt(plain)
        y[i, j] = größe + plain


@tw.kernel
def carried(x: tw.In["M N"], y: tw.Out["M"], *, b: int = 16):
    for i in tw.grid(y, b):
        low = tw.full((b,), 3.0, tw.f32)
        high = tw.full((b,), 4.0, tw.f32)
        for k in tw.steps(x, axis=1, size=b):
            block = x[i, k]
            low, high = tw.minimum(low, tw.min(block, axis=1)), tw.maximum(high, tw.max(block, axis=1))
        y[i] = low + high


WRITTEN = """
import tilewright as tw

@tw.kernel
def f(x: tw.In["N"], y: tw.Out["N"]):
    for i in tw.grid(x, 16):
        t = x[i] + 1
        y[i] = t
"""


def built(kernel: tw.Kernel, *types: tw.ShapeDtype) -> tile.KernelOp:
    return kernel.lower(*types).specialisation.build()


@pytest.mark.parametrize(("file", "name"), KERNELS)
def test_labels_are_the_printed_numbers(file: str, name: str) -> None:
    kernel = kernel_of(file, name)
    labels = names_of(kernel).labels
    printed = re.findall(r"^\s*((?:%\d+, )*%\d+) = (tile\.\w+)\(([^)]*)\)", str(kernel), re.MULTILINE)
    made = [op for op in kernel.walk() if op.results]
    assert len(printed) == len(made)
    for (results, kind, operands), op in zip(printed, made, strict=True):
        assert op.name == kind
        assert [labels[result] for result in op.results] == results.split(", ")
        assert [labels[operand] for operand in op.operands] == re.findall(r"%\d+", operands)


def test_names_are_those_assigned_to() -> None:
    kernel = built(several, SQUARE, SQUARE)
    names = names_of(kernel).names
    by_operation = [(op.name.removeprefix("tile."), names.get(op.results[0])) for op in kernel.walk() if op.results]
    assert [pair for pair in by_operation if pair[1] is not None] == [
        ("map", "first"),
        ("map", "second"),
        ("map", "plain"),
        ("map", "plain"),
        ("map", "größe"),
    ]


def test_carried_tiles_have_the_name_of_what_they_begin_with() -> None:
    kernel = built(carried, SQUARE, tw.ShapeDtype((32,), tw.f32))
    names = names_of(kernel).names
    (loop,) = [op for op in kernel.walk() if isinstance(op, tile.ForOp)]
    begins = {op.value: names[op.result] for op in kernel.walk() if isinstance(op, tile.FullOp) and op.result in names}
    assert sorted(begins.values()) == ["high", "low"]
    for initial, argument, result in zip(loop.initial, loop.body.block.args[1:], loop.results, strict=True):
        assert names[argument] == names[result] == names[initial]
    loads = [op for op in kernel.walk() if isinstance(op, tile.LoadOp)]
    assert [names[op.result] for op in loads] == ["block"]


def test_a_file_that_cannot_be_read_names_nothing(tmp_path: Path) -> None:
    path = tmp_path / "gone.py"
    path.write_text(WRITTEN)
    space: dict[str, tw.Kernel] = {}
    exec(compile(WRITTEN, str(path), "exec"), space)
    kernel = built(space["f"], *(tw.ShapeDtype((16,), tw.f32),) * 2)
    assert set(names_of(kernel).names.values()) == {"t"}
    path.write_text("this is (no longer Python")
    linecache.checkcache(str(path))
    assert names_of(kernel).names == {}
    assert source_line(None) == ""
