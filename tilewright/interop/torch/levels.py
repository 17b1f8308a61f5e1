"""Which nodes of a graph become programs, in which order these and the nodes that torch runs follow each other, and
what programs may write to.

Nodes that can be traced and nodes that cannot have levels, which alternate: all nodes of an even level become one
program, those of an odd level run in torch one after the other. A node's level is the least that is not below those of
what it reads.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Mapping
from typing import Any

from tilewright.interop.torch.packages import FxNode, GraphModule, fx, torch
from tilewright.interop.torch.registry import name_of
from tilewright.interop.torch.walk import is_graph, value_of


def levels_of(module: GraphModule, refused: Mapping[FxNode, str]) -> dict[FxNode, int]:
    """The level of each node that computes something: even where it is traced, odd where torch runs it."""
    levels: dict[FxNode, int] = {}
    least = {True: 0, False: 0}  # what later nodes start from, by whether torch runs them
    highest = 0
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output") or is_graph(node):
            continue
        in_torch = node in refused
        if node.target is operator.getitem and node.args[0] in levels:
            levels[node] = levels[node.args[0]]
            continue
        level = max([least[in_torch], *(levels.get(n, 0) for n in node.all_input_nodes)])
        if level % 2 != in_torch:
            level += 1
        if _writes(node):
            # What it writes may be read by any node, so that none may pass it.
            level = max(level, highest + (highest + 1) % 2)
            least = {True: level, False: level + 1}
        elif in_torch and _draws(node):
            # Random numbers are drawn in the order of the graph.
            least[True] = level
        levels[node] = level
        highest = max(highest, level)
    return levels


def _writes(node: FxNode) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _draws(node: FxNode) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def wanted_outside(module: GraphModule, levels: Mapping[FxNode, int]) -> set[FxNode]:
    """Nodes that are read at another level or returned, and those of which several views are: these share memory."""
    found: set[FxNode] = set()
    for node in module.graph.nodes:
        for source in node.all_input_nodes:
            if source in levels and (node.op == "output" or levels[node] != levels[source]):
                found.add(source)
    roots = collections.Counter(_root_of_view(node) for node in found)
    return found | {root for root, count in roots.items() if count > 1 and root in levels}


def donations_of(module: GraphModule, levels: Mapping[FxNode, int], wanted: set[FxNode]) -> dict[FxNode, FxNode]:
    """Results of the first program that may take the memory of an input, with that input: results that are copied to it
    at the end, and that nothing else reads, of inputs whose old contents nothing reads after the program."""
    seen = {_root_of_view(node) for node in wanted if is_view(node)}
    found: dict[FxNode, FxNode] = {}
    for node in module.graph.nodes:
        if name_of(node.target) != "aten.copy_.default" or any(user.op != "output" for user in node.users):
            continue
        target, source = node.args[:2]
        inside = all(levels.get(user) == 0 or user is node for user in (*target.users, *source.users))
        is_new = levels.get(source) == 0 and source.op == "call_function" and not is_view(source)
        is_free = target.op == "placeholder" and target not in seen and target not in found.values()
        if inside and is_new and is_free and _has_same_place(value_of(target), value_of(source)):
            found[source] = target
    return found


def is_view(node: FxNode) -> bool:
    """Whether a node gives another view of its first operand's memory, or is a part of such a list of views. Torch
    makes a result of a program that is one without a copy; it has the strides and the offset of eager torch then, by
    which AOTAutograd finds views of inputs again.

    Only inputs have the memory layout of eager torch, so `as_strided` of another value does not count.
    """
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and is_view(node.args[0])
    if node.op != "call_function" or not hasattr(node.target, "_schema"):
        return False
    if node.args and not isinstance(node.args[0], fx.Node):
        return False  # of a number
    if name_of(node.target) == "aten.as_strided.default" and node.args[0].op != "placeholder":
        return False
    aliases = [result.alias_info for result in node.target._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _root_of_view(node: FxNode) -> FxNode:
    while is_view(node):
        node = node.args[0]
    return node


def _has_same_place(target: Any, source: Any) -> bool:
    is_alike = target.shape == source.shape and target.dtype == source.dtype
    return is_alike and target.is_contiguous() and source.is_contiguous() and target.numel() > 0
