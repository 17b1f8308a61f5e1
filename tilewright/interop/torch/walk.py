"""The walk over nodes of an FX graph: each is traced by its rule."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilewright.api.array import Array, located
from tilewright.api.complex_array import stored_type
from tilewright.api.complex_primitives import from_pairs
from tilewright.api.lifting import constant, lift, with_weakness
from tilewright.dtypes import DType
from tilewright.errors import TilewrightError, UnsupportedOperatorError
from tilewright.frontend import tracing
from tilewright.frontend.trace import Graph, Value
from tilewright.interop.torch.packages import FxNode, GraphModule, fx, torch
from tilewright.interop.torch.registry import CHECKS, IN_TORCH, find_rule, name_of
from tilewright.interop.torch.tensors import dtype_of, has_dtype
from tilewright.primitives import ArrayType

# What a form that a rule does not know makes of plain Python in it.
_UNKNOWN_FORM = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
# What writes to an input at the end of a graph is no fallback.
WRITTEN = "an input is written"
_NO_TENSOR = "a result that is no tensor"

# What a node computes: an array, a tuple of arrays and None, or a number.
Traced = Any


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor, fake or real."""
    return isinstance(value, torch.Tensor)


def value_of(node: FxNode) -> Any:
    """The known description of a node's value: fake tensors, numbers, or a graph."""
    value = node.meta.get("val")
    if value is None and node.op == "get_attr":
        return attribute_of(node.graph.owning_module, node.target)
    return value


def is_graph(node: FxNode) -> bool:
    """Whether a node stands for a graph, which an operator takes as an operand."""
    return node.op == "get_attr" and isinstance(value_of(node), torch.nn.Module)


def constant_of(node: FxNode) -> Any:
    """The constant that `get_attr` gives: an array for a tensor, or a graph."""
    value = attribute_of(node.graph.owning_module, node.target)
    return constant(value.detach()) if is_tensor(value) else value


def call_graph(module: GraphModule, arguments: Sequence[Traced]) -> list[Traced]:
    """Trace a graph that is an operand of an operator, into the current program; gives its results."""
    nodes = [n for n in module.graph.nodes if n.op != "placeholder"]
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    values = trace_nodes(module, nodes[:-1], dict(zip(placeholders, arguments, strict=True)))
    (results,) = fx.map_arg((nodes[-1].args[0],), values.__getitem__)
    return [*results] if isinstance(results, list | tuple) else [results]


def operands_of(node: FxNode) -> list[FxNode]:
    """The nodes that a node reads, without graphs."""
    return [n for n in node.all_input_nodes if not is_graph(n)]


def tensors_in(value: object) -> list[Any]:
    """The tensors of a value that is a tensor, or a sequence of them."""
    return [value] if is_tensor(value) else [part for part in parts_of(value) if is_tensor(part)]


def parts_of(value: Any) -> Sequence[Any]:
    """The parts of a sequence; none of anything else."""
    return [*value] if isinstance(value, list | tuple) else []  # pyright: ignore[reportUnknownVariableType]  anything


def attribute_of(module: GraphModule, path: str) -> Any:
    """The attribute at a dotted path."""
    found = module
    for name in path.split("."):
        found = getattr(found, name)
    return found


def array_type(tensor: Any) -> ArrayType:
    """The type of the array for a tensor.

    Raises:
        UnsupportedOperatorError: there is none.
    """
    reason = why_not_array(tensor)
    if reason is not None:
        raise located(UnsupportedOperatorError(reason, help="keep such tensors out of compiled functions"))
    return ArrayType(tuple(int(n) for n in tensor.shape), dtype_of(tensor.dtype))


def why_not_array(tensor: Any) -> str | None:
    """Why no array of a program can stand for a tensor; None if one can."""
    if tensor.layout != torch.strided:
        return f"a tensor of layout {tensor.layout}"
    if tensor.device.type != "cpu":
        return f"a tensor on the device {tensor.device}"
    if not has_dtype(tensor.dtype):
        return f"elements of {tensor.dtype}"
    if not all(isinstance(n, int) for n in tensor.shape):
        return "a size that depends on data"
    return None


def trace_nodes(module: GraphModule, nodes: Iterable[FxNode], known: Mapping[FxNode, Traced]) -> dict[FxNode, Traced]:
    """Trace nodes, in order, into the current program; `known` are the values of nodes before them.

    Raises:
        TilewrightError: a node cannot be traced; the message names it.
    """
    values: dict[FxNode, Traced] = dict(known)
    for node in nodes:
        if node.op == "get_attr":
            values[node] = constant_of(node)
            continue
        graphs = {n: constant_of(n) for n in node.all_input_nodes if is_graph(n)}
        args, kwargs = fx.map_arg(
            (node.args, node.kwargs), (values | graphs).__getitem__ if graphs else values.__getitem__
        )
        try:
            values[node] = apply_rule(node.target, args, kwargs)
        except TilewrightError as error:
            error.message = f"{name_of(node.target)}: {error.message}"
            error.args = (error.message,)
            raise
    return values


def apply_rule(target: Any, args: Sequence[Any], kwargs: Mapping[str, object]) -> Traced:
    """Trace an operator.

    Raises:
        UnsupportedOperatorError: it has no rule, or its rule does not know this form.
        TilewrightError: the rule refuses it.
    """
    if target is operator.getitem:
        return args[0][args[1]]
    if not hasattr(target, "_schema") and args and all(isinstance(a, bool | int | float) for a in args):
        return target(*args)
    rule = find_rule(target)
    if rule is None:
        raise located(UnsupportedOperatorError("there is no rule for the operator", help="run it in torch"))
    try:
        return rule(*args, **kwargs)
    except TilewrightError:
        raise
    except _UNKNOWN_FORM as error:
        message = f"no rule for this form of the operator ({error or type(error).__name__})"
        raise located(UnsupportedOperatorError(message, help="run it in torch")) from error


def status_of(node: FxNode) -> FxNode | None:
    """The status that a node checks; None of other nodes."""
    return node.args[0] if node.op == "call_function" and name_of(node.target) in CHECKS else None


def why_no_rule(node: FxNode) -> str:
    """Why an operator has no rule."""
    return IN_TORCH.get(name_of(node.target), "no rule")


# ---- what can be traced ---------------------------------------------------------------------------------------------


class Support:
    """Finds out which nodes of a graph can be traced, by tracing each alone with the types that are known of it."""

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        self._known: dict[Any, str | None] = {}

    def reason_against(self, node: FxNode) -> str | None:
        """Why a node cannot be traced; None if it can."""
        if node.op == "get_attr":
            attribute = attribute_of(self._module, node.target)
            return why_not_array(attribute) if is_tensor(attribute) else None
        if node.op != "call_function":
            return f"a node of kind {node.op}"
        if node.target is operator.getitem:
            # An element of what another node gives goes where that node goes.
            return self.reason_against(node.args[0]) if isinstance(node.args[0], fx.Node) else "an element of a list"
        if status_of(node) is not None:
            return None
        if name_of(node.target) == "aten.copy_.default":
            return WRITTEN
        if find_rule(node.target) is None:
            return why_no_rule(node)
        if name_of(node.target) == "aten.as_strided.default" and not value_of(node.args[0]).is_contiguous():
            return "strides of memory in another order than that of the axes"
        key = _form(node)
        if key not in self._known:
            self._known[key] = self._try(node)
        return self._known[key]

    def has_no_rule(self, node: FxNode) -> bool:
        """Whether no form of a node's operator can be traced; operators on numbers alone are none of ours."""
        return (
            node.target is not operator.getitem and bool(tensors_in(value_of(node))) and find_rule(node.target) is None
        )

    def _try(self, node: FxNode) -> str | None:
        inputs = [value_of(n) for n in operands_of(node)]
        results = tensors_in(value_of(node))
        if not results:
            return _NO_TENSOR
        if any(isinstance(value, _SYMBOLS) for value in inputs):
            return "a number that depends on data"
        for tensor in (*(t for value in inputs for t in tensors_in(value)), *results):
            reason = why_not_array(tensor)
            if reason is not None:
                return reason
        try:
            found = _trial(node)
        except TilewrightError as error:
            return error.message
        return _difference(found, value_of(node))


def _form(node: FxNode) -> Any:
    """A key of all that tracing a node depends on."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), _described_node)
    return node.target, repr((args, kwargs)), _described_node(node)


def _described_node(node: FxNode) -> Any:
    return _described(value_of(node))


def _described(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_described(part) for part in parts_of(value))
    if isinstance(value, torch.nn.Module):
        return id(value)
    if not is_tensor(value):
        return str(value)
    return str(tuple(value.shape)), value.dtype, value.layout, value.device


def _trial(node: FxNode) -> Traced:
    """Trace a node into a program that is thrown away."""
    sources = [n for n in node.all_input_nodes if is_tensor(value_of(n))]
    results: list[Traced] = []

    def traced(graph: Graph) -> list[Value]:
        inputs = {n: _input(value, graph, value_of(n)) for n, value in zip(sources, graph.inputs, strict=True)}

        def given(source: FxNode) -> Any:
            return inputs[source] if source in inputs else value_of(source)

        args, kwargs = fx.map_arg((node.args, node.kwargs), given)
        results.append(apply_rule(node.target, args, kwargs))
        return []

    types = [stored_type(array_type(value_of(n))) for n in sources]
    tracing.trace_program(traced, types, [str(n) for n in sources], "trial")
    return results[0]


def _input(value: Value, graph: Graph, tensor: Any) -> Array:
    array = Array(value, graph)
    return from_pairs(array) if tensor.dtype.is_complex else array


def _difference(found: Traced, wanted: Any) -> str | None:
    """How the type of what a rule gave differs from what torch states it is; None if it does not."""
    if is_tensor(wanted):
        return _type_difference(found, wanted)
    if len(found) != len(wanted):
        return f"the rule gives {len(found)} results, not {len(wanted)}"
    for part, tensor in zip(found, wanted, strict=True):
        # A gradient that nobody asked for is None there.
        if is_tensor(tensor) and part is not None and (reason := _type_difference(part, tensor)) is not None:
            return reason
        if is_tensor(tensor) and part is None:
            return "the rule leaves out a result"
    return None


def _type_difference(found: Traced, wanted: Any) -> str | None:
    shape, dtype = tuple(found.shape), found.dtype
    if shape == tuple(wanted.shape) and dtype == dtype_of(wanted.dtype):
        return None
    return f"the rule gives {dtype}{list(shape)}, not {_dtype_name(wanted)}{list(wanted.shape)}"


def _dtype_name(tensor: Any) -> DType:
    return dtype_of(tensor.dtype)


def unsupported_operators(reasons: Mapping[FxNode, str]) -> list[tuple[str, int, str]]:
    """Each operator among nodes that cannot be traced, how often it occurs, and the first reason."""
    # What takes an element of a result goes where the operator goes, and numbers are none of ours.
    hidden = [n for n, reason in reasons.items() if n.target is operator.getitem or reason == _NO_TENSOR]
    listed = {node: reason for node, reason in reasons.items() if node not in hidden}
    counts = Counter(name_of(node.target) for node in listed)
    first: dict[str, str] = {}
    for node, reason in listed.items():
        first.setdefault(name_of(node.target), reason)
    return [(name, count, first[name]) for name, count in sorted(counts.items())]


def unsupported_error(reasons: Mapping[FxNode, str], help: str) -> TilewrightError:
    """The error that names every operator that cannot be traced, with its count and reason."""
    listed = unsupported_operators(reasons)
    lines = "; ".join(f"{name} ({count} times): {reason}" for name, count, reason in listed)
    return located(UnsupportedOperatorError(f"the program uses operators that are not supported: {lines}", help=help))


def strong(value: object) -> Array:
    """An array that takes no other type from what it meets."""
    return with_weakness(lift(value), False)
