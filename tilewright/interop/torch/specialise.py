"""Graphs whose sizes are symbols, for the sizes of one call: every size becomes a number, and what computes sizes
disappears."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from tilewright import events
from tilewright.interop.torch.packages import FxNode, GraphModule, fake_tensors, fx, symbolic_shapes, torch
from tilewright.interop.torch.registry import find_rule
from tilewright.interop.torch.walk import attribute_of, is_tensor, value_of
from tilewright.locks import Lock

# How many combinations of sizes of one graph keep their programs.
MAX_SPECIALISATIONS = 64

_NUMBERS = (bool, int, float)


def has_symbols(module: GraphModule) -> bool:
    """Whether sizes or numbers that a graph is called with are symbols."""
    return any(_is_symbolic(value_of(node)) for node in module.graph.nodes if node.op == "placeholder")


def _is_symbolic(value: Any) -> bool:
    if is_tensor(value):
        return not all(isinstance(n, int) for n in (*value.shape, *_strides(value)))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _strides(tensor: Any) -> Sequence[Any]:
    return tensor.stride() if tensor.layout == torch.strided else ()


class Specialised:
    """A graph with symbols as a function: it is built again for each combination of sizes that it is called with."""

    def __init__(self, module: GraphModule, build: Callable[[GraphModule], Callable[[list[Any]], Any]]) -> None:
        # Of the instance, because Dynamo's wrapper copies what is in its dict alone.
        self._boxed_call = True
        self._module = module
        self._build = build
        self._programs: OrderedDict[Any, Callable[[list[Any]], Any]] = OrderedDict()
        self._lock = Lock()
        self.count = 0

    def __call__(self, args: list[Any]) -> Any:
        """Run on tensors and numbers; the list is emptied."""
        key = tuple((a.shape, a.stride()) if is_tensor(a) else a for a in args)
        with self._lock:
            program = self._programs.get(key)
            if program is None:
                self.count += 1
                events.emit("torch.specialise", sizes=key, count=self.count)
                program = self._programs[key] = self._build(specialise(self._module, args))
            self._programs.move_to_end(key)
            while len(self._programs) > MAX_SPECIALISATIONS:
                self._programs.popitem(last=False)
        return program(args)


def specialise(module: GraphModule, args: Sequence[object]) -> GraphModule:
    """The graph for the sizes of `args`, which are tensors (fake ones too) and numbers. Placeholders stay as many."""
    environment = symbolic_shapes.ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    mode = fake_tensors.FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    graph = fx.Graph()
    values: dict[FxNode, Any] = {}
    given = iter(args)
    with mode:
        for node in module.graph.nodes:
            values[node] = _copied(module, node, graph, values, given, mode)
    return fx.GraphModule(module, graph)


def _copied(module: GraphModule, node: FxNode, graph: Any, values: dict[FxNode, Any], given: Any, mode: Any) -> Any:
    """The node in the new graph, or the number that it stands for."""
    if node.op == "placeholder":
        return _placeholder(node, graph, next(given), mode)
    if node.op == "output":
        return graph.output(fx.map_arg(node.args[0], values.__getitem__))
    args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    if node.op == "get_attr":
        copied = graph.get_attr(node.target)
        copied.meta["symbolic"] = node
        attribute = attribute_of(module, node.target)
        copied.meta["val"] = mode.from_tensor(attribute, static_shapes=True) if is_tensor(attribute) else attribute
        return copied
    fake_args, fake_kwargs = fx.map_arg((args, kwargs), value_of)
    result = node.target(*fake_args, **fake_kwargs)
    if isinstance(result, _NUMBERS):
        return result
    if result is None and not node.users and find_rule(node.target) is None:
        return None
    copied = graph.create_node("call_function", node.target, args, kwargs, node.name)
    copied.meta["val"] = result
    copied.meta["symbolic"] = node
    return copied


def _placeholder(node: FxNode, graph: Any, value: Any, mode: Any) -> Any:
    copied = graph.placeholder(node.name)
    copied.meta["symbolic"] = node
    if isinstance(value, _NUMBERS):
        copied.meta["val"] = value
        return value
    if is_tensor(value):
        is_fake = isinstance(value, fake_tensors.FakeTensor)
        with torch.no_grad():
            made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        copied.meta["val"] = made if is_fake or value.layout == torch.strided else mode.from_tensor(value)
        return copied
    copied.meta["val"] = value
    return copied
