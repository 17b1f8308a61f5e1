"""Symbolic dimensions: `tw.jit(dims=...)` compiles one program for each bucket of sizes, not one for each size."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tilewright import events
from tilewright.api.array import located
from tilewright.api.pytree import Structure, build
from tilewright.api.stages import Call, Leaf, Lowered, Signature, root_of
from tilewright.driver.compile import compile_graph
from tilewright.errors import ArgumentError, ShapeError, TilewrightError, UnsupportedOnTargetError
from tilewright.frontend.sizes.family import NotUniform
from tilewright.frontend.sizes.plan import CallPlan, PaddedProgram
from tilewright.layout.dims import Dim, is_integer
from tilewright.locks import Lock
from tilewright.targets.base import Executable

Spec = tuple["int | Dim | None", ...]

# The largest sizes of the first buckets; from there on there are four to an octave.
_SMALL = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# How many programs of one size alone are kept, how many sizes of programs for many, and what their arguments may take.
_MAX_EXACT = 64
_MAX_PLANS = 4096
_MAX_PLAN_BYTES = 256 << 20
# How often the program of a bucket is made again because a size showed something new.
_MAX_TRACES = 5


def bucket_sizes(dim: Dim) -> tuple[int, ...]:
    """The largest sizes of the buckets of a size: at most a quarter more than what is needed, from 32 on.

    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, then four to an octave, rounded up to what the size is a multiple of; the last is
    its maximum.
    """
    octaves = (_SMALL[-1] << n for n in itertools.count())
    large = (octave * quarters // 4 for octave in octaves for quarters in (5, 6, 7, 8))
    step = dim.multiple_of
    rounded = (-(-size // step) * step for size in itertools.chain(_SMALL, large))
    below = itertools.takewhile(lambda size: size < dim.max, rounded)
    return (*dict.fromkeys(size for size in below if size >= dim.min), dim.max)


class SizedProgram(msgspec.Struct, frozen=True):
    """One program that a function with `dims` was compiled to.

    Attributes:
        sizes: the range of each size that it serves, by the size's name.
        why_exact: empty for a bucket; else why there is a program for these sizes alone.
    """

    sizes: Mapping[str, tuple[int, int]]
    why_exact: str = ""


class _Runnable(msgspec.Struct, frozen=True):
    """A program for the sizes of a call."""

    executable: Executable
    plan: CallPlan | None
    result: Structure

    def run(self, call: Call) -> Any:
        if self.plan is None:
            results = self.executable(*call.arrays)
        else:
            results = self.plan.results(self.executable(*self.plan.arguments(call.arrays)))
        return build(self.result, call.restored(results))


class _Bucket(msgspec.Struct):
    """The program for a range of sizes, or why there is none."""

    info: SizedProgram
    traces: list[Lowered] = msgspec.field(default_factory=list)
    padded: PaddedProgram | None = None
    executable: Executable | None = None
    why_not: str = ""


Trace = Callable[[Signature], Lowered]


class SizedPrograms:
    """The programs of a function some of whose sizes are `Dim`s."""

    def __init__(self, specs: Mapping[str, Spec], buckets: Mapping[Dim, Sequence[int]]) -> None:
        self._specs = dict(specs)
        self._dims = tuple(dict.fromkeys(n for spec in specs.values() for n in spec if isinstance(n, Dim)))
        self._bucket_sizes = {dim: self._checked_buckets(dim, buckets.get(dim)) for dim in self._dims}
        for dim in buckets:
            if dim not in self._dims:
                raise located(ArgumentError(f"`buckets` names {dim}, which is no size of `dims`", help="remove it"))
        self._buckets: dict[Any, _Bucket] = {}
        self._runnables: OrderedDict[Any, _Runnable] = OrderedDict()
        self._exact: OrderedDict[Any, SizedProgram] = OrderedDict()
        self._lock = Lock()

    @property
    def programs(self) -> list[SizedProgram]:
        """The programs that are there, in the order in which they were compiled."""
        with self._lock:
            return [*(b.info for b in self._buckets.values() if b.executable is not None), *self._exact.values()]

    def run(self, call: Call, setting: object, names: Sequence[str], trace: Trace, target: str) -> Any:
        """Run a call on the program for its sizes, which is compiled if it is not there.

        Raises:
            ShapeError: a size is outside of the range of its `Dim`, or one `Dim` has two sizes.
        """
        if call.on_device:
            message = "a function with `dims` takes arrays in CPU memory, which it can pad"
            raise located(UnsupportedOnTargetError(message, help="copy them to the CPU, or leave `dims` out"))
        key = (call.signature, setting)
        found = self._runnables.get(key)
        if found is None:
            with self._lock:
                found = self._runnables.get(key) or self._find(call.signature, setting, names, trace, target)
                self._keep(key, found)
        return found.run(call)

    # ---- sizes ------------------------------------------------------------------------------------------------------

    def bound(self, names: Sequence[str], leaves: Sequence[Leaf]) -> dict[Dim, int]:
        """The value of each symbolic dimension, from the arguments.

        Raises:
            ShapeError: an array has other axes than `dims` declares, or a size is outside the range of its `Dim`.
            ArgumentError: `dims` names an array that the call lacks.
        """
        unknown = [path for path in self._specs if not any(path in (name, root_of(name)) for name in names)]
        if unknown:
            message = f"`dims` names `{unknown[0]}`, which is no array of the call"
            raise located(ArgumentError(message, help=f"the arrays are {', '.join(f'`{name}`' for name in names)}"))
        sizes: dict[Dim, int] = {}
        for name, leaf in zip(names, leaves, strict=True):
            spec = self._spec(name)
            if spec is None:
                continue
            shape: tuple[int, ...] = () if isinstance(leaf, type) else leaf[0]
            wanted = f"({', '.join('?' if n is None else str(n) for n in spec)})"
            if len(shape) != len(spec):
                message = f"argument `{name}` has shape {shape}, but `dims` declares {wanted}"
                raise located(ShapeError(message, help="give one entry for each axis"))
            for size, expected in zip(shape, spec, strict=True):
                fits = expected is None or size == expected
                if isinstance(expected, Dim):
                    fits = _takes(expected, size) and sizes.setdefault(expected, size) == size
                if not fits:
                    said = "".join(f", and {dim} is {n}" for dim, n in sizes.items() if dim == expected and n != size)
                    message = f"argument `{name}` has shape {shape}, but `dims` declares {wanted}{said}"
                    raise located(ShapeError(message, help="give arrays of these sizes, or widen the `Dim`"))
        return sizes

    def _spec(self, name: str) -> Spec | None:
        return self._specs.get(name) or self._specs.get(root_of(name))

    def _at(self, names: Sequence[str], signature: Signature, sizes: Mapping[Dim, int]) -> Signature:
        """The signature of a call with these sizes."""
        leaves: list[Leaf] = []
        for name, leaf in zip(names, signature.leaves, strict=True):
            spec = self._spec(name)
            if spec is None or isinstance(leaf, type):
                leaves.append(leaf)
                continue
            shape = tuple(sizes[n] if isinstance(n, Dim) else size for n, size in zip(spec, leaf[0], strict=True))
            leaves.append((shape, leaf[1]))
        return signature._replace(leaves=tuple(leaves))

    def _range(self, dim: Dim, size: int) -> tuple[int, int]:
        """The bucket of a size: its least and its largest size."""
        least = dim.min
        for largest in self._bucket_sizes[dim]:
            if size <= largest:
                return least, largest
            least = largest + dim.multiple_of
        return least, dim.max

    @staticmethod
    def _checked_buckets(dim: Dim, given: object) -> tuple[int, ...]:
        if given is None:
            return bucket_sizes(dim)
        sizes: Any = given if isinstance(given, Sequence) and not isinstance(given, str) else (None,)
        wrong = [size for size in sizes if not is_integer(size) or not _takes(dim, size)]
        if wrong or not sizes:
            found = repr(given if wrong[0] is None else wrong[0]) if wrong else "nothing"
            message = f"{found} is no size of {dim}"
            raise located(ArgumentError(message, help="give a tuple of sizes in its range"))
        return tuple(sorted({*sizes, dim.max}))

    # ---- programs ---------------------------------------------------------------------------------------------------

    def _find(
        self, signature: Signature, setting: object, names: Sequence[str], trace: Trace, target: str
    ) -> _Runnable:
        sizes = self.bound(names, signature.leaves)
        own = trace(signature)
        ranges = {dim: self._range(dim, size) for dim, size in sizes.items()}
        largest = self._at(names, signature, {dim: top for dim, (_, top) in ranges.items()})
        key = (largest, setting)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = _Bucket(SizedProgram({_name(dim): r for dim, r in ranges.items()}))
            self._buckets[key] = bucket
            if all(low == top for low, top in ranges.values()):
                bucket.why_not = "a bucket of one size"
            else:
                other = self._at(names, signature, _other_sizes(ranges))
                self._start(bucket, lambda: trace(largest), [lambda: trace(other), lambda: own])
        plan = self._plan(bucket, own, target)
        if isinstance(plan, CallPlan) and bucket.executable is not None:
            return _Runnable(bucket.executable, plan, own.result)
        return self._exactly(own, sizes, plan if isinstance(plan, str) else bucket.why_not, target)

    @staticmethod
    def _start(bucket: _Bucket, largest: Callable[[], Lowered], others: Sequence[Callable[[], Lowered]]) -> None:
        """Make the program of a bucket from the trace of its largest sizes and one of the others."""
        for other in others:
            try:
                traces = [largest(), other()]
            except Exception as error:  # nobody called it at these sizes: what it raises there is no caller's mistake
                bucket.why_not = bucket.why_not or _reason(error)
                continue
            try:
                bucket.padded, bucket.traces = PaddedProgram([each.graph for each in traces]), traces
            except NotUniform as error:
                bucket.why_not = bucket.why_not or _reason(error)
                continue
            return

    def _plan(self, bucket: _Bucket, own: Lowered, target: str) -> CallPlan | str:
        """How a call runs on the program of a bucket, or why it cannot. The program is made again where the call shows
        that more depends on the sizes, and compiled once it serves a call."""
        padded, traces = bucket.padded, bucket.traces
        if padded is None:
            return bucket.why_not
        try:
            plan = padded.plan(own.graph)
        except NotUniform as error:
            traces = [*traces, own]
            if len(traces) > _MAX_TRACES:
                return str(error)
            try:
                padded = PaddedProgram([each.graph for each in traces])
                plan = padded.plan(own.graph)
            except NotUniform as why:
                return str(why)
        if bucket.executable is None or padded is not bucket.padded:
            try:
                executable = compile_graph(padded.graph, target)
            except UnsupportedOnTargetError as error:
                bucket.padded, bucket.why_not = None, error.message
                return error.message
            bucket.traces, bucket.padded, bucket.executable = traces, padded, executable
            events.emit("sizes.bucket", ranges={name: list(r) for name, r in bucket.info.sizes.items()})
        return plan

    def _exactly(self, own: Lowered, sizes: Mapping[Dim, int], why: str, target: str) -> _Runnable:
        """A program for just these sizes."""
        info = SizedProgram({_name(dim): (n, n) for dim, n in sizes.items()}, why)
        events.emit("sizes.exact", sizes={_name(dim): n for dim, n in sizes.items()}, why=why)
        executable = own.compile(target).executable
        self._exact[own.signature] = info
        return _Runnable(executable, None, own.result)

    def _keep(self, key: object, runnable: _Runnable) -> None:
        self._runnables[key] = runnable
        while len(self._exact) > _MAX_EXACT:
            dropped, _ = self._exact.popitem(last=False)
            for other in [k for k in self._runnables if k[0] == dropped]:
                del self._runnables[other]
        plans = [r.plan.nbytes for r in self._runnables.values() if r.plan is not None]
        while len(plans) > _MAX_PLANS or (len(plans) > 1 and sum(plans) > _MAX_PLAN_BYTES):
            oldest = next(k for k, r in self._runnables.items() if r.plan is not None)
            del self._runnables[oldest]
            plans.pop(0)


def checked_spec(name: str, spec: object) -> Spec:
    """The entry of `dims` for an argument.

    Raises:
        ArgumentError: it is no sequence of integers, `Dim`s and None.
    """
    entries: Any = spec if isinstance(spec, Sequence) and not isinstance(spec, str) else (object(),)
    for entry in entries:
        is_size = isinstance(entry, int) and not isinstance(entry, bool)
        if not (entry is None or is_size or isinstance(entry, Dim)):
            message = f"`dims` gives {spec!r} for `{name}`"
            raise located(ArgumentError(message, help="give a tuple with an integer, a `tw.Dim` or None for each axis"))
    return tuple(entries)


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, TilewrightError) else str(error) or type(error).__name__


def _takes(dim: Dim, size: int) -> bool:
    return dim.min <= size <= dim.max and size % dim.multiple_of == 0


def _name(dim: Dim) -> str:
    return dim.name or str(dim)


def _other_sizes(ranges: Mapping[Dim, tuple[int, int]]) -> dict[Dim, int]:
    """Sizes of the same buckets, other than the largest and than each other where there are such."""
    return {
        dim: max(top - dim.multiple_of * (1 + n % max(1, (top - low) // dim.multiple_of)), low)
        for n, (dim, (low, top)) in enumerate(ranges.items())
    }
