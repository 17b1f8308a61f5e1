"""Graphs whose sizes are symbols, as programs over ranges of sizes: one program serves all sizes of a bucket.

Dynamo gives the cache of each layer a symbol of its own, though all are of one length. So symbols that have the same
value in a call are one variable, and a bucket has a pattern of equal symbols and the largest size of each variable. Its
program is built from specialised graphs at several sizes (`frontend.sizes`). Dynamo's guards ensure that the graph is
the same function at all sizes that they allow, so that a call needs no trace at its sizes: `CallFormula` gives its
plan. `Specialised` compiles graphs that have no such program, for the sizes of a call alone.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright import events
from tilewright.driver.compile import compile_graph
from tilewright.errors import TilewrightError
from tilewright.frontend.sizes.family import NotUniform
from tilewright.frontend.sizes.formulas import CallFormula, Point
from tilewright.frontend.sizes.plan import PaddedProgram
from tilewright.interop.torch.levels import is_view
from tilewright.interop.torch.packages import FxNode, GraphModule, fake_tensors, fx, sympy, torch
from tilewright.interop.torch.plan import Part, Plan, Step, errors_of_torch, run_in_torch
from tilewright.interop.torch.registry import name_of
from tilewright.interop.torch.specialise import Specialised, specialise
from tilewright.interop.torch.walk import is_tensor, operands_of, tensors_in, value_of
from tilewright.locks import Lock
from tilewright.options import current
from tilewright.records import dataclass

# The largest size of the first bucket; from there on buckets double. Sizes that hardly matter have wider buckets: those
# whose work at the largest sizes is at most so much more.
_SMALLEST_BUCKET = 32
_WIDE_BUCKETS = tuple(_SMALLEST_BUCKET * 4**n for n in range(1, 8))
_ALLOWED_WORK = 1.5
_LARGEST = 1 << 30
# Multiplications of a matrix product in the time of one element that is read.
_MULTIPLICATIONS = 8
# How many different sizes a graph may have at once, and for how many the steps of a call are kept.
_MAX_VARIABLES = 3
_MAX_CALLS = 4096

Sizes = Mapping[Any, int]
# For each symbol its variable, or the number that it always is.
Pattern = tuple[int | str, ...]


class OutOfRange(Exception):
    """A graph has no program over ranges of sizes; the message gives the reason."""


class Symbols:
    """The symbols of a graph, and where its arguments indicate them.

    Raises:
        OutOfRange: an argument is another kind of number, or no argument indicates a symbol.
    """

    def __init__(self, module: GraphModule) -> None:
        self.placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.positions: dict[Any, int] = {}
        for position, node in enumerate(self.placeholders):
            value = value_of(node)
            if isinstance(value, torch.SymFloat | torch.SymBool):
                raise OutOfRange("a number that is no integer is an argument")
            if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
                self.positions.setdefault(value.node.expr, position)
        numbers = [n for node in self.placeholders for n in _numbers_of(value_of(node))]
        unknown = {s for n in numbers for s in n.node.expr.free_symbols} - {*self.positions}
        if unknown:
            raise OutOfRange(f"no argument determines {', '.join(sorted(map(str, unknown)))}")
        self.names = list(self.positions)
        self._limits = [_limits(value_of(self.placeholders[n]).node) for n in self.positions.values()]

    def limits(self, pattern: Pattern) -> list[tuple[int, int]]:
        """The least and the largest size of each variable that the guards of the graph allow."""
        found: list[tuple[int, int]] = []
        for variable in range(1 + max((entry for entry in pattern if isinstance(entry, int)), default=-1)):
            ranges = [self._limits[n] for n, entry in enumerate(pattern) if entry == variable]
            found.append((max(low for low, _ in ranges), min(high for _, high in ranges)))
        return found

    def arguments(self, sizes: Sizes) -> list[Any]:
        """Arguments without contents for these sizes."""
        with fake_tensors.FakeTensorMode():
            return [self._argument(value_of(node), sizes) for node in self.placeholders]

    @staticmethod
    def _argument(value: Any, sizes: Sizes) -> Any:
        if is_tensor(value):
            shape, strides = ([number_at(n, sizes) for n in given] for given in (value.shape, value.stride()))
            return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
        return number_at(value, sizes)


def _limits(node: Any) -> tuple[int, int]:
    """The range of a symbol: 0 and 1 are sizes of their own."""
    known = node.shape_env.var_to_range.get(node.expr) if node.shape_env is not None else None
    if known is None:
        return 2, _LARGEST
    # Compared first: a bound may be infinite, below too (numbers that count positions), which is no integer.
    return int(known.lower) if known.lower > 2 else 2, int(known.upper) if known.upper < _LARGEST else _LARGEST


def _numbers_of(value: Any) -> list[Any]:
    """The symbolic integers of an argument."""
    if is_tensor(value):
        if value.layout != torch.strided:
            raise OutOfRange(f"an argument has the layout {value.layout}")
        return [n for n in (*value.shape, *value.stride()) if isinstance(n, torch.SymInt)]
    return [value] if isinstance(value, torch.SymInt) else []


def number_at(number: Any, sizes: Sizes) -> Any:
    """A number of a graph at these sizes."""
    return int(number.node.expr.xreplace(sizes)) if isinstance(number, torch.SymInt) else number


# ---- one program for many sizes -------------------------------------------------------------------------------------


class SizedPart:
    """A part of the plan as one program for the sizes of a bucket."""

    def __init__(self, part: Part, others: Sequence[Part], points: Sequence[Point], target: str | None) -> None:
        if any(value_of(n).dtype.is_complex for n in (*part.inputs, *part.outputs)):
            raise NotUniform("complex numbers go in or come out")
        if any(other.orders != part.orders for other in others):
            raise NotUniform("the order of axes in memory depends on a size")
        graphs = [part.graph(), *(other.graph() for other in others)]
        padded = PaddedProgram(graphs)
        plans = [padded.plan(graph) for graph in graphs[1:]]
        self._formula = CallFormula(plans, points)
        self._executable = compile_graph(padded.graph, target or current().target)
        self._reads, self._makes = part.conversions()

    def at(self, point: Point) -> Callable[..., list[Any]]:
        """The part for the sizes of a call, as a function of its inputs."""
        plan = self._formula.at(point)
        reads, makes, executable = self._reads, self._makes, self._executable

        def run(*tensors: object) -> list[Any]:
            arrays = plan.arguments([read(tensor) for read, tensor in zip(reads, tensors, strict=True)])
            with errors_of_torch():
                results = plan.results(executable(*arrays))
            return [make(result) for make, result in zip(makes, results, strict=True)]

        return run


@dataclass(frozen=True)
class SizedOperation:
    """A node that torch runs, in the graph of symbols."""

    node: FxNode
    sources: tuple[FxNode, ...]

    def at(self, sizes: Sizes) -> Callable[..., Sequence[Any]]:
        numbers = {n: number_at(value_of(n), sizes) for n in operands_of(self.node) if not is_tensor(value_of(n))}
        numbers = {n: value for n, value in numbers.items() if n not in self.sources}
        return run_in_torch(self.node, self.sources, numbers)


class SizedPlan(Plan):
    """The plan of a graph for the sizes of a bucket: `at` gives its steps for those of a call.

    `modules` are the graph at the largest sizes, and at those of `points`.

    Raises:
        NotUniform: a part has no program over sizes.
    """

    def __init__(
        self, modules: Sequence[GraphModule], points: Sequence[Point], outputs: Sequence[Any], target: str | None
    ) -> None:
        self._others = [{n.name: n for n in module.graph.nodes} for module in modules[1:]]
        self._modules = modules[1:]
        self._points = points
        self._outputs = outputs
        super().__init__(modules[0], target)
        del self._others, self._modules

    def _function(self, part: Part) -> Any:
        part = replace(part, donated=())
        return SizedPart(part, [self._same(part, n) for n in range(len(self._modules))], self._points, self._target)

    def _same(self, part: Part, position: int) -> Part:
        """The part in another of the modules."""
        names = self._others[position]
        missing = [n for n in (*part.nodes, *part.inputs) if n.name not in names]
        if missing:
            raise NotUniform(f"`{missing[0]}` is not there at all sizes")
        nodes, inputs, outputs = (tuple(names[n.name] for n in t) for t in (part.nodes, part.inputs, part.outputs))
        return Part(self._modules[position], nodes, inputs, outputs)

    def _operation(self, node: FxNode, sources: Sequence[FxNode]) -> Any:
        return SizedOperation(node.meta["symbolic"], tuple(n.meta["symbolic"] for n in sources))

    def at(self, point: Point, sizes: Sizes) -> Callable[[list[Any]], list[Any]]:
        """The plan for the sizes of a call."""
        steps = [replace(step, run=_at(step, point, sizes)) for step in self._steps]
        results = [
            (False, number_at(value_of(item), sizes))
            if isinstance(item, fx.Node) and not is_place
            else (is_place, known)
            for item, (is_place, known) in zip(self._outputs, self._results, strict=True)
        ]
        bound = object.__new__(Plan)
        bound.__dict__.update(self.__dict__, _steps=steps, _results=results)
        return bound


def _at(step: Step, point: Point, sizes: Sizes) -> Callable[..., Sequence[Any]]:
    if isinstance(step.run, SizedPart):
        return step.run.at(point)
    return step.run.at(sizes) if isinstance(step.run, SizedOperation) else step.run


# ---- buckets --------------------------------------------------------------------------------------------------------


@dataclass
class Bucket:
    """The largest size of each variable of a pattern, the least that are served, and the plan, or why there is none."""

    pattern: Pattern
    least: Point
    largest: Point
    plan: SizedPlan | None
    why_not: str = ""

    def serves(self, pattern: Pattern, point: Point) -> bool:
        return pattern == self.pattern and all(
            a <= n <= b for a, n, b in zip(self.least, point, self.largest, strict=True)
        )


class RangedGraph:
    """A graph with symbols as a function: programs over ranges of sizes, and programs of single sizes where there are
    no such ones."""

    def __init__(
        self,
        module: GraphModule,
        build: Callable[[GraphModule], Any],
        report: Callable[[Plan], None],
        target: str | None,
    ) -> None:
        # Of the instance, because Dynamo's wrapper copies what is in its dict alone.
        self._boxed_call = True
        self._module = module
        self._target = target
        self._exact = Specialised(module, build)
        self._report = report
        self._symbols = Symbols(module)
        self._outputs = next(n for n in module.graph.nodes if n.op == "output").args[0]
        self._places = tuple(self._symbols.positions.values())
        self._calls: OrderedDict[tuple[Any, ...], Callable[[list[Any]], Any]] = OrderedDict()
        self._buckets: dict[Any, list[Bucket]] = {}
        self._first: tuple[int, ...] = ()
        self._changed: set[int] = set()
        self._work: dict[tuple[Pattern, Point], float] = {}
        self._lock = Lock()

    def __call__(self, args: list[Any]) -> Any:
        """Run on tensors and numbers; the list is emptied."""
        options = current()
        key = (options.target, options.threads, *[args[n] for n in self._places])
        found = self._calls.get(key)
        if found is None:
            with self._lock:
                found = self._calls.get(key)
                if found is None:
                    found = self._calls[key] = self._find(key[2:], key[:2])
                    while len(self._calls) > _MAX_CALLS:
                        self._calls.popitem(last=False)
        return found(args)

    def _find(self, values: tuple[int, ...], setting: object) -> Callable[[list[Any]], Any]:
        pattern, point = _pattern_of(values)
        self._first = self._first or values
        self._changed |= {n for n, (a, b) in enumerate(zip(self._first, values, strict=True)) if a != b}
        if len(point) > _MAX_VARIABLES:
            pattern, point = _pattern_of(values, self._changed)
        if len(point) > _MAX_VARIABLES or not point:
            return self._exact
        bucket = self._bucket(pattern, point, setting)
        if bucket.plan is None:
            return self._exact
        try:
            return bucket.plan.at(point, self._sizes(pattern, point))
        except NotUniform:
            return self._exact

    def _sizes(self, pattern: Pattern, point: Point) -> dict[Any, Any]:
        numbers = [point[entry] if isinstance(entry, int) else int(entry) for entry in pattern]
        return {name: sympy.Integer(n) for name, n in zip(self._symbols.names, numbers, strict=True)}

    # ---- programs ---------------------------------------------------------------------------------------------------

    def _bucket(self, pattern: Pattern, point: Point, setting: object) -> Bucket:
        buckets = self._buckets.setdefault(setting, [])
        limits = self._symbols.limits(pattern)
        tops = [max(_SMALLEST_BUCKET, 1 << (n - 1).bit_length()) for n in point]
        needed = _distinct([min(top, high) for top, (_, high) in zip(tops, limits, strict=True)])
        allowed = _ALLOWED_WORK * self._work_at(pattern, needed)
        for bucket in buckets:
            is_enough = bucket.largest == needed or self._work_at(pattern, bucket.largest) <= allowed
            if bucket.serves(pattern, point) and is_enough:
                return bucket
        found = self._made(pattern, point, self._largest(pattern, needed, allowed, limits), limits)
        buckets.append(found)
        ranges = [list(r) for r in zip(found.least, found.largest, strict=True)]
        events.emit("torch.sizes", ranges=ranges, why_not=found.why_not, count=len(buckets))
        return found

    def _made(self, pattern: Pattern, point: Point, largest: Point, limits: Sequence[tuple[int, int]]) -> Bucket:
        """The program of a bucket: from the least sizes on, or if those are special, from larger ones on."""
        why_not = ""
        all_sizes = tuple(min(low, n) for n, (low, _) in zip(point, limits, strict=True))
        upper_half = tuple(min(n, top // 2 + 1) for n, top in zip(point, largest, strict=True))
        for least in (all_sizes, upper_half):
            try:
                points = _sample_points(least, largest, point)
                modules = [self._module_at(pattern, p) for p in (largest, *points)]
                plan = SizedPlan(modules, points, self._outputs, self._target)
                self._report(plan)
                return Bucket(pattern, least, largest, plan)
            except NotUniform as error:
                why_not = why_not or str(error)
            except TilewrightError as error:
                why_not = why_not or error.message
            except Exception as error:  # nobody called it at these sizes: torch itself may refuse them
                why_not = why_not or f"{type(error).__name__}: {error}"
        return Bucket(pattern, (0,) * len(point), largest, None, why_not)

    def _module_at(self, pattern: Pattern, point: Point) -> GraphModule:
        with _unlogged():
            return specialise(self._module, self._symbols.arguments(self._sizes(pattern, point)))

    # ---- how large buckets are --------------------------------------------------------------------------------------

    def _largest(self, pattern: Pattern, needed: Point, allowed: float, limits: Sequence[tuple[int, int]]) -> Point:
        """The largest sizes of a bucket: powers of two, and larger ones as long as the work is allowed."""
        tops = needed
        for position in range(len(tops)):
            for wider in _WIDE_BUCKETS:
                wide = _distinct((*tops[:position], wider, *tops[position + 1 :]))
                if wider <= tops[position] or wider > limits[position][1]:
                    continue
                if self._work_at(pattern, wide) > allowed:
                    break
                tops = wide
        return tops

    def _work_at(self, pattern: Pattern, point: Point) -> float:
        if (pattern, point) not in self._work:
            try:
                self._work[pattern, point] = work_of(self._module_at(pattern, point))
            except Exception:  # nobody called it at these sizes: torch itself may refuse them
                self._work[pattern, point] = float("inf")
        return self._work[pattern, point]


@contextlib.contextmanager
def _unlogged() -> Generator[None]:
    """Suppress torch's error log on this thread while a graph is traced at trial sizes, which no caller asked for."""
    logger, thread = logging.getLogger("torch._subclasses.fake_tensor"), threading.get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)


def _pattern_of(values: Sequence[int], variable: Collection[int] | None = None) -> tuple[Pattern, Point]:
    """Which symbols are equal, and the sizes that are there. Sizes of 0 and 1 are part of the pattern: torch computes
    something else with them. So are those of symbols that are not among `variable`."""
    found: dict[int, int] = {}
    pattern = tuple(
        found.setdefault(n, len(found)) if n > 1 and (variable is None or position in variable) else str(n)
        for position, n in enumerate(values)
    )
    return pattern, tuple(found)


def _distinct(sizes: Sequence[int]) -> Point:
    """Sizes of which no two are equal, so that no rule takes two for one."""
    made: list[int] = []
    for size in sizes:
        while size in made:
            size += 1
        made.append(size)
    return tuple(made)


def _sample_points(least: Point, largest: Point, called: Point) -> list[Point]:
    """Sizes below the largest at which a graph is traced: the least, those of the call, and others in between."""
    count = {1: 5, 2: 8}.get(len(largest), 2 * len(largest) + 2)
    spans = [top - 1 - low for low, top in zip(least, largest, strict=True)]
    inner = tuple(min(n, top - 1) for n, top in zip(called, largest, strict=True))
    candidates = [_distinct(least), inner, tuple(top - 1 for top in largest)]
    for step in itertools.count(1):
        if len(dict.fromkeys(candidates)) >= count or step > 4 * count:
            break
        # Fractions of the golden ratio and its like: no two variables go together.
        ratios = [(step * r) % 1.0 for r in (0.618034, 0.414214, 0.732051)]
        candidates.append(tuple(low + int(span * r) for low, span, r in zip(least, spans, ratios, strict=False)))
    points = [p for p in dict.fromkeys(candidates) if len(set(p)) == len(p)]
    if len(points) < len(largest) + 2:
        raise NotUniform("a range of too few sizes")
    return points


def work_of(module: GraphModule) -> float:
    """An estimate of a graph's cost, in elements read and written; matmuls also count their multiplications."""
    return sum(_work_of_node(node) for node in module.graph.nodes if node.op == "call_function" and not is_view(node))


def _work_of_node(node: FxNode) -> float:
    results = tensors_in(value_of(node))
    operands = [value_of(n) for n in node.all_input_nodes if is_tensor(value_of(n))]
    name, made = name_of(node.target), sum(t.numel() for t in results)
    if any(word in name for word in ("embedding", "index", "gather")):
        return made
    multiplied = 0
    if "attention" in name:
        multiplied = 2 * operands[0].numel() * operands[1].shape[-2]
    elif "mm" in name:
        multiplied = made * operands[-1].shape[-2]
    elif "convolution" in name:
        multiplied = made * operands[1][0].numel()
    return made + max(sum(t.numel() for t in operands), multiplied / _MULTIPLICATIONS)
