"""A tile kernel as Python source: a tile is a list of its elements, row by row, and arrays are flat."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr

from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.errors import UnsupportedOnTargetError
from tilewright.semantics import array as array_semantics


@dataclass
class Code:
    """The source of a function, and the constants and routines that it has by name."""

    function: str
    text: str = ""
    names: dict[str, Any] = field(default_factory=dict[str, Any])


def emit_kernel(kernel: tile.KernelOp) -> Code:
    """The function of a kernel, which loops over its grid."""
    code = Code(f"kernel_{kernel.sym_name}", names={"folded": folded})
    emitter = _Emitter(code)
    emitter.line(f"def {code.function}({', '.join(map(emitter.name, kernel.refs))}):")
    for depth, (index, extent) in enumerate(zip(kernel.indices, kernel.grid, strict=True), 1):
        emitter.depth = depth
        emitter.line(f"for {emitter.name(index)} in range({extent}):")
    emitter.depth = len(kernel.grid) + 1
    emitter.block(kernel.body.block, [])
    return code


def folded(combine: Callable[[Any, Any], Any], values: list[Any]) -> Any:
    """All values combined, in pairs."""
    while len(values) > 1:
        pairs = [combine(*pair) for pair in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[2 * len(pairs) :]
    return values[0]


class _Emitter:
    def __init__(self, code: Code) -> None:
        self.code, self.depth = code, 0
        self._names: dict[SSAValue, str] = {}

    def line(self, text: str) -> None:
        self.code.text += "    " * self.depth + text + "\n"

    def name(self, value: SSAValue) -> str:
        return self._names.setdefault(value, f"v{len(self._names)}")

    def constant(self, value: Any) -> str:
        name = f"c{len(self.code.names)}"
        self.code.names[name] = value
        return name

    def block(self, block: Block, results: Sequence[str]) -> None:
        """The operations of a block; what it yields is assigned to names."""
        self.line("pass")
        for op in block.ops:
            if isinstance(op, tile.YieldOp):
                self._assign(results, [self.name(value) for value in op.operands])
            else:
                self._op(op, [self.name(r) for r in op.results], [self.name(o) for o in op.operands])

    def _assign(self, targets: Sequence[str], values: Sequence[str]) -> None:
        if targets:
            self.line(f"{', '.join(targets)}, = {', '.join(values)},")

    def _nested(self, header: str, block: Block, results: Sequence[str]) -> None:
        self.line(header)
        self.depth += 1
        self.block(block, results)
        self.depth -= 1

    def _op(self, op: Operation, results: Sequence[str], operands: Sequence[str]) -> None:
        match op:
            case tile.StoreOp():
                inside, place = self._access(op, op.value, op.destination)
                every, e = _elements(array_type(op.value).shape)
                self.line(f"[{operands[1]}.__setitem__({place}, {operands[0]}[{e}]) {every} if {inside}]")
            case tile.ForOp():
                counter, *carried = (self.name(argument) for argument in op.body.block.args)
                end = op.trips if op.end is None else self._affine(op.end.results[0], op.symbols, "0")
                self._assign(carried, [self.name(value) for value in op.initial])
                self._nested(f"for {counter} in range(min({op.trips}, {end})):", op.body.block, carried)
                self._assign(results, carried)
            case tile.IfOp():
                self._nested(f"if {operands[0]}[0]:", op.then.block, results)
                self._nested("else:", op.otherwise.block, results)
            case tile.ArgReduceOp() | tile.ScanOp() | tile.SortOp() | tile.TopKOp():
                self._assign(results, [f"*{self.constant(_routine(op))}({', '.join(operands)})"])
            case tile.ZoneOp():
                pass
            case _:
                self._assign(results, [self._computed(op, operands)])

    def _computed(self, op: Operation, operands: Sequence[str]) -> str:
        """The list of a tile's elements."""
        result = array_type(op.results[0])
        element, (every, e) = result.dtype.numpy.type, _elements(result.shape)
        match op:
            case tile.LoadOp():
                inside, place = self._access(op, op.result, op.source)
                return f"[{operands[0]}[{place}] if {inside} else {self.constant(element(op.fill or 0))} {every}]"
            case tile.RelayoutOp():
                return operands[0]
            case tile.FullOp():
                return f"[{self.constant(element(op.value))} {every}]"
            case tile.IotaOp():
                return f"[{self.constant(np.int64)}({self._affine(op.map.results[0], op.symbols, e)}) {every}]"
            case tile.FillPaddingOp():
                is_padding = f"{self._affine(op.map.results[0], op.symbols, e)} >= {op.limit}"
                return f"[{self.constant(element(op.value))} if {is_padding} else {operands[0]}[{e}] {every}]"
            case tile.MapOp() | tile.CastOp() | tile.BitcastOp():
                return f"[{self.constant(_lane(op))}(*each) for each in zip({', '.join(operands)})]"
            case tile.ReduceOp():
                return self._reduced(op, operands[0])
            case tile.DotOp():
                return self._dot(op, operands)
            case tile.BroadcastOp() | tile.ReshapeOp() | tile.TransposeOp() | tile.SliceOp() | tile.ConcatOp():
                return f"[({' + '.join(operands)})[n] for n in {_places(op)}]"
            case _:
                raise UnsupportedOnTargetError(f"`{op.name}` is not compiled for scalars", help="use the cpu target")

    def _reduced(self, op: tile.ReduceOp, source: str) -> str:
        """Lines of elements, each combined in the compute type and rounded once."""
        type = array_type(op.operands[0])
        kept = [dim for dim in range(type.rank) if dim not in op.axes]
        order = np.arange(prod(type.shape)).reshape(type.shape).transpose(*kept, *op.axes)
        lines = order.reshape(prod(type.shape[dim] for dim in kept), -1).tolist()
        wide, narrow = self.constant(type.dtype.compute.numpy.type), self.constant(type.dtype.numpy.type)
        return (
            f"[{narrow}(folded({self.constant(_lane(op))}, [{wide}({source}[n]) for n in line])) for line in {lines}]"
        )

    def _dot(self, op: tile.DotOp, operands: Sequence[str]) -> str:
        left, right, total = operands
        (rows, depth), columns = array_type(op.left).shape, array_type(op.right).shape[1]
        wide, add = self.constant(array_type(op.result).dtype.numpy.type), self.constant(lambda a, b: a + b)
        terms = f"[{wide}({left}[i * {depth} + k]) * {wide}({right}[k * {columns} + j]) for k in range({depth})]"
        element = f"folded({add}, [{total}[i * {columns} + j], *{terms}])"
        return f"[{element} for i in range({rows}) for j in range({columns})]"

    def _access(self, op: tile.LoadOp | tile.StoreOp, value: SSAValue, ref: SSAValue) -> tuple[str, str]:
        """Whether an element of a tile is inside an array, and its offset there."""
        shape, (_, e) = tile.ref_type(ref).shape, _elements(array_type(value).shape)
        indices = [self._affine(expression, op.symbols, e) for expression in op.map.results]
        inside = [f"0 <= {index} < {size}" for index, size in zip(indices, shape, strict=True)]
        steps = [f"({index}) * {prod(shape[dim + 1 :])}" for dim, index in enumerate(indices)]
        return " and ".join(inside) or "True", " + ".join(steps) or "0"

    def _affine(self, expression: AffineExpr, symbols: Sequence[SSAValue], e: str) -> str:
        """An affine expression, with the names of its symbols: of a tile, element `e`."""

        def named(symbol: re.Match[str]) -> str:
            value = symbols[int(symbol[1])]
            return self.name(value) if isinstance(value.type, IndexType) else f"int({self.name(value)}[{e}])"

        return re.sub(r"\bs(\d+)\b", named, str(expression).replace("floordiv", "//").replace("mod", "%"))


def _elements(shape: Sequence[int]) -> tuple[str, str]:
    """Loops over the elements of a tile, and the offset of an element in its list."""
    loops = [f"for d{dim} in range({size})" for dim, size in enumerate(shape)]
    steps = [f"d{dim} * {prod(shape[dim + 1 :])}" for dim in range(len(shape))]
    return " ".join(loops) or "for _ in (0,)", " + ".join(steps) or "0"


def _lane(op: Any) -> Callable[..., Any]:
    """The function of elements that an operation applies or combines with."""
    primitive = "map" if isinstance(op, tile.ReduceOp) else op.primitive
    attributes = op.attributes_of() | {"shape": ()}
    return lambda *elements: array_semantics.apply(primitive, [np.asarray(e) for e in elements], attributes)[0][()]


def _routine(op: Any) -> Callable[..., list[list[Any]]]:
    """An operation that the machine has a routine for, from and to lists."""
    types, attributes = [array_type(operand) for operand in op.operands], op.attributes_of()

    def routine(*tiles: list[Any]) -> list[list[Any]]:
        arrays = [np.array(t, type.dtype.numpy).reshape(type.shape) for t, type in zip(tiles, types, strict=True)]
        return [list(np.ravel(each)) for each in array_semantics.apply(op.primitive, arrays, attributes)]

    return routine


def _places(op: Any) -> list[int]:
    """The elements of all operands, one operand after the other, that a move takes."""
    shapes = [array_type(operand).shape for operand in op.operands]
    starts = [sum(map(prod, shapes[:n])) for n in range(len(shapes))]
    numbers = [start + np.arange(prod(shape)).reshape(shape) for start, shape in zip(starts, shapes, strict=True)]
    return array_semantics.apply(op.primitive, numbers, op.attributes_of())[0].ravel().tolist()
