"""Operators of torch's OpInfo database on their samples, through the backend's plans and in eager torch."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import aot_function
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.interop.torch.dynamo import BackendOptions, build_plan, decompositions
from tilewright.interop.torch.plan import Plan
from tilewright.interop.torch.registry import known_operators, name_of
from tilewright.interop.torch.walk import unsupported_operators

# Results of sampled sizes beyond this say nothing more, and take long.
_MAX_ELEMENTS = 1 << 16
# Operators of vectors whose signs each library chooses; the database says what does not depend on them.
_FREE_SIGNS = ("linalg.eigh", "linalg.svd", "svd")
# Operators that give places of elements by their order.
_ORDERS = ("argsort", "kthvalue", "median", "sort", "topk")


@dataclass(frozen=True)
class Outcome:
    """What became of an operator for one element type: how many samples were right, how many of these in compiled parts
    alone; what ran in torch, with the reason; what was wrong; and the operators of its graphs that were compiled."""

    name: str
    dtype: str
    samples: int
    right: int
    compiled: int
    in_torch: tuple[tuple[str, str], ...]
    wrong: tuple[str, ...]
    compiled_operators: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """right, partly, falls back, wrong, or untraced where torch makes no graph of it."""
        if self.wrong:
            return "wrong"
        if not self.samples:
            return "untraced"
        return "right" if self.compiled == self.samples else "partly" if self.compiled else "falls back"


@functools.cache
def operators() -> dict[str, Any]:
    """The database by name."""
    return {f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db}


def is_unsettled(op: Any, kind: torch.dtype) -> bool:
    """Whether an operator gives what memory happened to hold, or the places of equal elements in no order."""
    has_ties = not kind.is_floating_point and op.name in _ORDERS
    return has_ties or op.name.startswith(("empty", "new_empty"))


def run(
    name: str, dtype: str, count: int | None, options: BackendOptions, on_sample: Callable[[], None] = lambda: None
) -> Outcome:
    """The outcome of an operator over at most `count` samples, which are spread over the first 200, or over all there
    are for None. `on_sample` is called before each."""
    op, kind = operators()[name], getattr(torch, dtype)
    totals = {"samples": 0, "right": 0, "compiled": 0}
    in_torch: dict[str, str] = {}
    met: set[str] = set()
    wrong: list[str] = []
    for number, sample in _chosen(op, kind, count):
        on_sample()
        case = _case(op, sample)
        if case is None:
            continue
        plans: list[Plan] = []
        try:
            found = case.compiled(plans, options)
        except Exception as error:  # the message says of what kind
            if not case.is_traced:
                continue  # torch makes no graph of this sample
            totals["samples"] += 1
            wrong.append(f"sample {number}: {type(error).__name__}: {_first_lines(error)}")
            continue
        if not plans:
            continue
        totals["samples"] += 1
        refused = {node: reason for plan in plans for node, reason in plan.refused.items()}
        difference = None if _draws(refused) else case.difference(found)
        if difference is not None:
            wrong.append(f"sample {number}: {difference}")
            continue
        totals["right"] += 1
        totals["compiled"] += not refused
        in_torch.update((n, reason) for n, _, reason in unsupported_operators(refused))
        met.update(name_of(node.target) for node in case.nodes if node not in refused)
    pairs = tuple(sorted(in_torch.items()))
    return Outcome(name, dtype, **totals, in_torch=pairs, wrong=tuple(wrong), compiled_operators=tuple(sorted(met)))


def core_operators() -> list[str]:
    """Names of the overloads that torch tags as core."""
    found: list[str] = []
    # Those of the dispatcher: `dir(torch.ops.aten)` has what was used in this process only.
    registered = torch._C._dispatch_get_all_op_names()
    known = {name.removeprefix("aten::").partition(".")[0] for name in registered if name.startswith("aten::")}
    for name in known:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            target = getattr(packet, overload)
            if torch.Tag.core in target.tags:
                found.append(str(target))
    return sorted(found)


def core_samples(kind: torch.dtype) -> list[str]:
    """The operators of the database some sample of which eager torch runs as one operator of the core of ATen that has
    a rule, and nothing else."""
    wanted = {*core_operators()} & {*known_operators()}
    found: list[str] = []
    for name, op in operators().items():
        if kind not in op.dtypes or is_unsettled(op, kind):
            continue
        for sample in itertools.islice(op.sample_inputs("cpu", kind), 400):
            ran = _Dispatched()
            try:
                with ran, _quiet():
                    op(sample.input, *sample.args, **sample.kwargs)
            except Exception:  # some samples are there to be refused
                continue
            if len(ran.names) == 1 and ran.names <= wanted:
                found.append(name)
                break
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class _Dispatched(TorchDispatchMode):
    """Collects the names of operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.detach.default:
            self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def _draws(refused: Mapping[Any, str]) -> bool:
    """Whether random numbers are drawn: how many and in which order is not that of eager torch."""
    return any(torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in refused)


def _first_lines(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return " ".join(lines[:1] + [line for line in lines[1:] if "difference" in line][:1])[:300]


def _chosen(op: Any, kind: torch.dtype, count: int | None) -> Iterator[tuple[int, Any]]:
    if kind not in op.dtypes or is_unsettled(op, kind):
        return
    torch.manual_seed(0)
    records = op.supports_autograd and kind.is_floating_point
    samples = enumerate(op.sample_inputs("cpu", kind, requires_grad=records))
    if count is None:
        yield from samples
        return
    first = [*itertools.islice(samples, 200)]
    yield from first[:: max(1, -(-len(first) // count))]


def _case(op: Any, sample: Any) -> _Case | None:
    """A sample as a function of its tensors; None where eager torch gives no tensor, or the sample is large."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    at = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if sum(leaves[n].numel() for n in at) > _MAX_ELEMENTS:
        return None

    def function(*tensors: torch.Tensor) -> list[Any]:
        given = list(leaves)
        for n, tensor in zip(at, tensors, strict=True):
            given[n] = tensor
        first, args, kwargs = pytree.tree_unflatten(given, spec)
        result = op(first, *args, **kwargs)
        if op.name in _FREE_SIGNS:
            result = sample.output_process_fn_grad(result)
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    case = _Case(function, [leaves[n] for n in at])
    try:
        case.expected = _with_gradients(function, case.inputs)
    except Exception:  # some samples are there to be refused, or have no gradient
        return None
    return case if case.expected else None


def _with_gradients(function: Callable[..., list[Any]], inputs: Sequence[Any]) -> list[Any]:
    """Results, and the gradients of inputs that record them, for fixed gradients of results."""
    torch.manual_seed(0)
    given = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
    results = function(*given)
    recorded = [r for r in results if r.requires_grad]
    wanted = [t for t in given if t.requires_grad]
    if not recorded or not wanted:
        return [r.detach() for r in results]
    generator = torch.Generator().manual_seed(1)
    seeds = [torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r.dtype) for r in recorded]
    gradients = torch.autograd.grad(recorded, wanted, seeds, allow_unused=True)
    return [*(r.detach() for r in results), *(g for g in gradients if g is not None)]


@dataclass
class _Case:
    """A function of tensors, which record gradients where they can, and what eager torch gives; nodes of its graphs."""

    function: Callable[..., list[Any]]
    inputs: list[Any]
    expected: list[Any] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    is_traced: bool = False

    def compiled(self, plans: list[Plan], options: BackendOptions) -> list[Any]:
        """Results and gradients by compiled graphs, whose plans are listed."""

        def compile_graph(module: Any, inputs: Any) -> Any:
            self.is_traced = True
            self.nodes += [node for node in module.graph.nodes if node.op == "call_function"]
            plan = build_plan(module, options=options)
            plans.append(plan)
            return plan

        function = aot_function(
            self.function,
            compile_graph,
            compile_graph,
            inference_compiler=compile_graph,
            decompositions=decompositions(),
        )
        with _quiet():
            return _with_gradients(function, self.inputs)

    def difference(self, found: list[Any]) -> str | None:
        """How results differ from those of eager torch, and by more than these do from f64."""
        try:
            torch.testing.assert_close(found, self.expected, equal_nan=True, check_stride=False)
        except AssertionError as error:
            return None if self._is_rounding(found) else _first_lines(error)
        return None

    def _is_rounding(self, found: list[Any]) -> bool:
        if len(found) != len(self.expected) or any(
            f.shape != e.shape for f, e in zip(found, self.expected, strict=True)
        ):
            return False
        try:
            wide = [
                t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t for t in self.inputs
            ]
            exact = _with_gradients(self.function, wide)
        except Exception:  # some operators have no form for f64
            return False
        triples = zip(found, self.expected, exact, strict=True)
        return all(_distance(f, x) <= 4 * _distance(e, x) + 1e-6 * _size(x) for f, e, x in triples)


def _distance(a: Any, b: Any) -> float:
    return (a.double() - b.double()).abs().max().item() if a.numel() else 0.0


def _size(x: Any) -> float:
    return x.double().abs().max().item() if x.numel() else 0.0


def states(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many outcomes there are of each state."""
    found: dict[str, int] = {}
    for outcome in outcomes:
        found[outcome.state] = found.get(outcome.state, 0) + 1
    return found
