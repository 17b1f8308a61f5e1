"""How a graph runs: compiled parts, what torch runs between them, and views."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tilewright.api.array import Array
from tilewright.api.jit import JitFunction
from tilewright.api.lifting import transpose
from tilewright.api.stages import ShapeDtype
from tilewright.errors import LinearAlgebraError
from tilewright.frontend import tracing
from tilewright.frontend.trace import Graph
from tilewright.interop.torch.levels import donations_of, is_view, levels_of, wanted_outside
from tilewright.interop.torch.packages import FxNode, GraphModule, TorchTensor, fx, torch
from tilewright.interop.torch.registry import name_of
from tilewright.interop.torch.tensors import dtype_of, numpy_reader, tensor_maker
from tilewright.interop.torch.walk import (
    Support,
    attribute_of,
    is_graph,
    is_tensor,
    operands_of,
    status_of,
    trace_nodes,
    value_of,
    why_not_array,
)
from tilewright.records import dataclass

# ---- compiled parts -------------------------------------------------------------------------------------------------


def _memory_order(tensor: Any) -> tuple[int, ...] | None:
    """The axes of a tensor from the one with the largest stride on, if its elements are dense in that order but not in
    that of the axes; else None."""
    if tensor.layout != torch.strided or tensor.is_contiguous() or not tensor.numel():
        return None
    order = sorted(range(tensor.ndim), key=lambda d: (-tensor.stride(d), d))
    return tuple(order) if tensor.permute(order).is_contiguous() else None


@contextlib.contextmanager
def errors_of_torch() -> Generator[None]:
    """Translate the error of a factorisation that fails to `torch.linalg.LinAlgError`."""
    try:
        yield
    except LinearAlgebraError as error:
        raise torch.linalg.LinAlgError(str(error)) from error


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(d) for d in np.argsort(order))


@dataclass(frozen=True)
class Part:
    """Nodes of a graph as one program. Tensors whose axes are in another order in memory go in and come out as they
    are there. The first outputs take the memory of the inputs `donated`."""

    module: GraphModule = field(repr=False)
    nodes: tuple[FxNode, ...]
    inputs: tuple[FxNode, ...]
    outputs: tuple[FxNode, ...]
    donated: tuple[FxNode, ...] = ()

    def function(self, target: str | None) -> Callable[..., list[Any]]:
        """The part as a function of its inputs; it gives its outputs in a list."""
        program = JitFunction(self._traced(*self.orders), target, (), tuple(map(str, self.donated)))
        reads, makes = self.conversions()

        def run(*tensors: object) -> list[Any]:
            with errors_of_torch():
                results = program(*[read(t) for read, t in zip(reads, tensors, strict=True)])
            if len(makes) == 1:
                return [makes[0](results)]
            return [make(result) for make, result in zip(makes, results, strict=True)]

        return run

    @property
    def orders(self) -> tuple[list[Any], list[Any]]:
        """The order in memory of each input and output."""
        return [_memory_order(value_of(n)) for n in self.inputs], [_memory_order(value_of(n)) for n in self.outputs]

    def conversions(self) -> tuple[list[Callable[[Any], Any]], list[Callable[[Any], Any]]]:
        """For each input a function from its tensor to the array, for each output one from the array to the tensor."""
        orders, returned = self.orders
        reads = [_reader(value_of(n).dtype, order) for n, order in zip(self.inputs, orders, strict=True)]
        makes = [_maker(value_of(n).dtype, order) for n, order in zip(self.outputs, returned, strict=True)]
        return reads, makes

    def graph(self) -> Graph:
        """The traced program, with views that change nothing, so that it has one form at all sizes."""
        orders, returned = self.orders
        types = [
            ShapeDtype(
                tuple(value_of(n).shape[d] for d in order or range(value_of(n).ndim)), dtype_of(value_of(n).dtype)
            )
            for n, order in zip(self.inputs, orders, strict=True)
        ]
        with tracing.keeping_views():
            return JitFunction(self._traced(orders, returned), None, (), ()).lower(*types).graph

    def _traced(self, orders: Sequence[Any], returned: Sequence[Any]) -> Callable[..., Any]:
        def traced(*arrays: Array) -> Any:
            pairs = zip(self.inputs, arrays, orders, strict=True)
            known = {n: a if order is None else transpose(a, _inverse(order)) for n, a, order in pairs}
            values = trace_nodes(self.module, self.nodes, known)
            results = [
                values[n] if order is None else transpose(values[n], order)
                for n, order in zip(self.outputs, returned, strict=True)
            ]
            return results[0] if len(results) == 1 else tuple(results)

        parameters = [inspect.Parameter(str(n), inspect.Parameter.POSITIONAL_ONLY) for n in self.inputs]
        traced.__dict__["__signature__"] = inspect.Signature(parameters)
        traced.__name__ = "graph"
        return traced


def _reader(dtype: object, order: tuple[int, ...] | None) -> Callable[[Any], Any]:
    read = numpy_reader(dtype)
    return read if order is None else lambda tensor: read(tensor.permute(order))


def _maker(dtype: object, order: tuple[int, ...] | None) -> Callable[[Any], Any]:
    make = tensor_maker(dtype_of(dtype))
    if order is None:
        return make
    back = _inverse(order)
    return lambda array: make(array).permute(back)


# ---- the plan -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """Something that runs: it reads places, writes others, and leaves some empty that nothing reads later."""

    run: Callable[..., Sequence[Any]]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...] = ()


class Plan:
    """A graph as a function of a list of tensors and numbers, which it empties. Sizes are those that the graph was
    traced for. `refused` states why torch runs a node, `parts` how many programs there are."""

    def __init__(self, module: GraphModule, target: str | None) -> None:
        # Of the instance, because Dynamo's wrapper copies what is in its dict alone.
        self._boxed_call = True
        support = Support(module)
        nodes = [n for n in module.graph.nodes if n.op not in ("placeholder", "output") and not is_graph(n)]
        reasons = {n: support.reason_against(n) for n in nodes}
        self.refused = {n: reason for n, reason in reasons.items() if reason is not None}
        self._refuse_distant_checks(module)
        self.parts = 0
        self._target = target
        self._places: dict[FxNode, int] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self._place(node)
        self._count = len(self._places)
        self._build(module)

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run; torch's gradients are not recorded."""
        values = [*args, *self._empty]
        args.clear()
        if self._records and torch.is_grad_enabled():
            with torch.no_grad():
                self._run(values)
        else:
            self._run(values)
        return [values[item] if is_place else item for is_place, item in self._results]

    def _run(self, values: list[Any]) -> None:
        for step in self._steps:
            results = step.run(*[values[n] for n in step.reads])
            for place, result in zip(step.writes, results, strict=True):
                values[place] = result
            for place in step.frees:
                values[place] = None

    def _refuse_distant_checks(self, module: GraphModule) -> None:
        """Leave checks of a status that another part computes to torch."""
        checks = {n: status for n in module.graph.nodes if (status := status_of(n)) is not None}
        while checks:
            levels = levels_of(module, self.refused)
            distant = [n for n, s in checks.items() if n not in self.refused and levels.get(n) != levels.get(s)]
            if not distant:
                return
            self.refused.update(dict.fromkeys(distant, "a status from another part"))

    # ---- building ---------------------------------------------------------------------------------------------------

    def _place(self, node: FxNode) -> int:
        return self._places.setdefault(node, len(self._places))

    def _build(self, module: GraphModule) -> None:
        output = next(n for n in module.graph.nodes if n.op == "output")
        levels = levels_of(module, self.refused)
        wanted = wanted_outside(module, levels)
        donated = donations_of(module, levels, wanted)
        steps: list[Step] = []
        for level in range(max(levels.values(), default=-1) + 1):
            nodes = [n for n, at in levels.items() if at == level]
            steps += self._in_torch(module, nodes) if level % 2 else self._compiled(module, nodes, wanted, donated)
        self._results = [self._result(item) for item in output.args[0]]
        kept = {place for is_place, place in self._results if is_place}
        self._steps = _with_frees(steps, kept)
        # Programs record no gradients by themselves.
        self._records = self.parts < len(self._steps)
        self._empty = [None] * (len(self._places) - self._count)

    def _result(self, item: object) -> tuple[bool, Any]:
        return (True, self._places[item]) if isinstance(item, fx.Node) else (False, item)

    def _in_torch(self, module: GraphModule, nodes: Sequence[FxNode]) -> list[Step]:
        return [self._single(module, node) for node in nodes]

    def _single(self, module: GraphModule, node: FxNode) -> Step:
        """One node that torch runs."""
        if node.op == "get_attr":
            attribute = attribute_of(module, node.target)
            return Step(lambda: (attribute,), (), (self._place(node),))
        sources = tuple(operands_of(node))
        if name_of(node.target) == "aten.copy_.default":
            return Step(_copy, tuple(self._places[n] for n in node.args[:2]), (self._place(node),))
        run = self._operation(node, sources)
        return Step(run, tuple(self._places[n] for n in sources), (self._place(node),))

    def _function(self, part: Part) -> Callable[..., list[Any]]:
        return part.function(self._target)

    def _operation(self, node: FxNode, sources: Sequence[FxNode]) -> Callable[..., Sequence[Any]]:
        return run_in_torch(node, sources)

    def _compiled(
        self,
        module: GraphModule,
        nodes: Sequence[FxNode],
        wanted: set[FxNode],
        donated: Mapping[FxNode, FxNode],
    ) -> list[Step]:
        """The program of one level, and the views of what it gives and takes."""
        outside = set(self._places)
        asked = [n for n in nodes if n in wanted]
        views = [n for n in asked if _is_view_of(n, outside, asked)]
        taking = [n for n in asked if n in donated]
        outputs = [*taking, *(n for n in asked if n not in views and n not in donated)]
        # What is checked stays in the program where nothing else of it is used.
        checked = {n: status for n in nodes if (status := status_of(n)) is not None}
        outputs += [status for status in dict.fromkeys(checked.values()) if status not in outputs]
        steps: list[Step] = []
        if outputs:
            inside = _needed([*outputs, *checked], set(nodes))
            ordered = [n for n in nodes if n in inside]
            inputs = list(dict.fromkeys(s for n in ordered for s in operands_of(n) if s not in inside))
            # The order of inputs decides which output takes whose memory.
            given = [donated[n] for n in taking]
            inputs = [*given, *(n for n in inputs if n not in given)]
            part = Part(module, tuple(ordered), tuple(inputs), tuple(outputs), tuple(given))
            run = self._function(part)
            self.parts += 1
            steps.append(Step(run, tuple(self._places[n] for n in inputs), tuple(self._place(n) for n in outputs)))
        for node in views:
            chain = _view_chain(node, self._places)
            steps += [self._single(module, view) for view in chain]
        return steps


def run_in_torch(
    node: FxNode, sources: Sequence[FxNode], known: Mapping[FxNode, object] | None = None
) -> Callable[..., Sequence[Any]]:
    """An operation of torch as a function of the values of `sources`; `known` are other values that it reads."""
    # A view in the graph may be one of memory in another order than was traced.
    target = torch.ops.aten.reshape.default if name_of(node.target) == "aten.view.default" else node.target
    fixed = {**{n: value_of(n) for n in node.all_input_nodes if is_graph(n)}, **(known or {})}

    def run(*values: object) -> tuple[Any]:
        given = {**fixed, **dict(zip(sources, values, strict=True))}
        args, kwargs = fx.map_arg((node.args, node.kwargs), given.__getitem__)
        return (target(*args, **kwargs),)

    return run


def _copy(target: TorchTensor, source: TorchTensor) -> tuple[TorchTensor]:
    """Write to an input, unless a program has done so; the result is the input."""
    if target.data_ptr() != source.data_ptr() or target.stride() != source.stride():
        target.copy_(source)
    return (target,)


def _needed(outputs: Sequence[FxNode], among: set[FxNode]) -> set[FxNode]:
    """The nodes that outputs depend on, themselves included."""
    found: set[FxNode] = set()
    pending = [*outputs]
    while pending:
        node = pending.pop()
        if node in among and node not in found:
            found.add(node)
            pending.extend(node.all_input_nodes)
    return found


def _is_view_of(node: FxNode, outside: set[FxNode], asked: Sequence[FxNode]) -> bool:
    """Whether a node only looks at memory that is there anyhow: of the part's inputs or of its other outputs."""
    if not is_view(node):
        return False
    source = node.args[0]
    if source in outside:
        return is_tensor(value_of(source)) and why_not_array(value_of(source)) is None
    return source in asked or _is_view_of(source, outside, asked)


def _view_chain(node: FxNode, placed: Mapping[FxNode, int]) -> list[FxNode]:
    """Views up to `node` that are not made yet, in order."""
    chain: list[FxNode] = []
    while node not in placed:
        chain.append(node)
        node = node.args[0]
    return chain[::-1]


def _with_frees(steps: Sequence[Step], kept: set[int]) -> list[Step]:
    """The steps, each with the positions that nothing reads after it."""
    seen = set(kept)
    found: list[Step] = []
    for step in reversed(steps):
        touched = dict.fromkeys((*step.reads, *step.writes))
        frees = tuple(place for place in touched if place not in seen)
        seen.update(touched)
        found.append(Step(step.run, step.reads, step.writes, frees))
    return found[::-1]
