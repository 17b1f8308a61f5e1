"""Build `array` IR from a traced program. Imported on a cache miss only."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from xdsl.dialects.builtin import FileLineColLoc, IntAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tilewright.dialects import array
from tilewright.dialects.base import tensor
from tilewright.dialects.func import FuncOp, ReturnOp
from tilewright.frontend.trace import Graph, Node, Value


def build_module(graph: Graph) -> ModuleOp:
    """A module with the function `main` of the traced program, and its tile kernels."""
    block = Block(arg_types=[tensor(v.type) for v in graph.inputs])
    values: dict[Value, SSAValue] = dict(zip(graph.inputs, block.args, strict=True))
    _build_nodes(graph, block, values)
    results = [values[v] for v in graph.outputs]
    block.add_op(ReturnOp(*results))
    inputs: list[Attribute] = [a.type for a in block.args]
    main = FuncOp("main", (inputs, [r.type for r in results]), Region(block))
    return ModuleOp([main, *(kernel.build() for kernel in graph.kernels.values())])


def _build_nodes(graph: Graph, block: Block, values: dict[Value, SSAValue]) -> None:
    for node in graph.nodes:
        op = _build_node(node, values)
        if (at := node.location) is not None:
            op.location = _location(at.file, at.line, at.column)
        block.add_op(op)
        values.update(zip(node.results, op.results, strict=True))


@lru_cache(maxsize=4096)
def _location(file: str, line: int, column: int) -> FileLineColLoc:
    return FileLineColLoc(StringAttr(file), IntAttr(line), IntAttr(column))


def _build_node(node: Node, values: dict[Value, SSAValue]) -> Operation:
    operands = [values[v] for v in node.operands]
    types = [tensor(v.type) for v in node.results]
    regions = [_region(g, values) for g in node.graphs]
    if node.op == "while":
        return array.WhileOp(arguments=operands, outputs=types, condition=regions[0], body=regions[1])
    if node.op == "if":
        return array.IfOp(arguments=operands, outputs=types, then=regions[0], otherwise=regions[1])
    if node.op == "call":
        return array.CallOp(arguments=operands, callee=node.attributes["callee"], outputs=types)
    return array.build(node.op, operands, node.attributes, [v.type for v in node.results])


def _region(graph: Graph, outer: Mapping[Value, SSAValue]) -> Region:
    block = Block(arg_types=[tensor(v.type) for v in graph.inputs])
    values = dict(outer) | dict(zip(graph.inputs, block.args, strict=True))
    _build_nodes(graph, block, values)
    block.add_op(array.YieldOp(arguments=[values[v] for v in graph.outputs]))
    return Region(block)
