"""`tw.jit`: a Python function over arrays becomes a compiled program, once per signature."""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MethodType
from typing import Any, NamedTuple, cast, overload

import numpy as np
from msgspec.structs import replace

from tilewright.api.array import Array, located
from tilewright.api.complex_array import ComplexArray, stored_type
from tilewright.api.complex_primitives import from_pairs, to_pairs
from tilewright.api.lifting import lift, with_weakness
from tilewright.api.programs import checked_target
from tilewright.api.pytree import LEAF, Structure, build, flatten
from tilewright.api.sizes import SizedProgram, SizedPrograms, checked_spec
from tilewright.api.stages import (
    Call,
    Compiled,
    Leaf,
    Lowered,
    Signature,
    argument_names,
    leaf_type,
    read_call,
    rebuilt_from,
    root_of,
)
from tilewright.api.views import View, reading_again, view_of
from tilewright.errors import ArgumentError, DTypeError, TilewrightError
from tilewright.events import capturing
from tilewright.frontend import tracing
from tilewright.frontend.identity import StaticValue
from tilewright.frontend.trace import Graph, Value
from tilewright.layout.dims import Dim
from tilewright.locks import Lock
from tilewright.options import Options, current
from tilewright.primitives import ArrayType
from tilewright.runtime.cpu.native import MISMATCH
from tilewright.runtime.dlpack import Reader, Restore, Tensor, reader, restorer
from tilewright.runtime.program_file import UNSETTLED
from tilewright.schedules import Request, checked_request
from tilewright.targets.base import Executable, target_named

Names = str | Iterable[str]
Native = Callable[..., Any]  # a native function of a program


class _Latest(NamedTuple):
    """The function of the latest call on arrays by position: it checks the types of its arguments itself, and gives
    `MISMATCH` when they are others. Good under just these `options`. `result` is a leaf where the function gives the
    result as it is."""

    options: Options | None
    function: Native
    n_inputs: int
    result: Structure


_MOST_ON_DEVICE = 8
# How many programs of a function read parts of arrays where they are.
_MOST_OF_PARTS = 8

# The type of `operator.call` does not fit `map`.
_read: Callable[[Reader, Any], Tensor] = cast("Any", operator.call)


class _Sharing(NamedTuple):
    """How arrays of some classes are read, one function for each argument, and the function that gives results the kind
    of the first."""

    reads: tuple[Reader, ...]
    restore: Restore

    @staticmethod
    def of(args: Sequence[object]) -> _Sharing | None:
        """The functions for arrays like these; None if some have none."""
        reads: list[Reader] = []
        for argument in args:
            read = reader(argument)
            if read is None:
                return None
            reads.append(read)
        return _Sharing(tuple(reads), restorer(args[0])) if reads else None

    def read(self, args: Sequence[object]) -> list[Tensor] | None:
        """NumPy arrays on the memory of the arguments; None where some are of other classes, or cannot be shared."""
        if len(args) != len(self.reads):
            return None
        try:
            return [*map(_read, self.reads, args)]
        except Exception:  # `read_call` meets it again, and states which argument it is
            return None

    def around(self, function: Native) -> Native:
        """A native function as one that takes such arrays too."""
        reads, restore = self

        def shared(*args: object) -> Any:
            plain = function(*args)
            if plain is not MISMATCH:
                return plain
            try:
                arrays = [*map(_read, reads, args)]
            except Exception:  # `read_call` meets it again, and states which argument it is
                return MISMATCH
            result = function(*arrays)
            if type(result) is tuple:
                return tuple([restore(array) for array in cast("tuple[Tensor, ...]", result)])
            return result if result is MISMATCH else restore(result)

        return shared


class _Setting(NamedTuple):
    """The settings that a compiled program depends on besides its arguments: threads change tile sizes, a trace keeps
    zones."""

    target: str
    threads: int | None
    is_traced: bool

    @staticmethod
    def of(target: str, options: Options) -> _Setting:
        return _Setting(target, options.threads, options.trace_file is not None)


class JitFunction:
    """A function that is traced and compiled once per structure, shapes, types and static values of its arguments, for
    each target and number of threads that the options name."""

    def __init__(
        self,
        function: Callable[..., object],
        target: str | None,
        static: Names,
        donate: Names,
        dims: Mapping[str, Sequence[int | Dim | None]] | None = None,
        buckets: Mapping[Dim, Sequence[int]] | None = None,
        schedule: Request | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._target = checked_target(target)
        self._name = getattr(function, "__name__", type(function).__name__)
        self._parameters, self._positional, self._unnamed = _parameters(function)
        self._static = self._checked("static_argnames", static)
        self._donate = self._checked("donate", donate)
        self._dynamic = tuple(name for name in self._positional if name not in self._static)
        self._compiled: dict[tuple[Any, _Setting], Compiled] = {}
        self._by_arrays: dict[tuple[Any, ...], tuple[Executable, Structure]] = {}
        self._latest = _Latest(*UNSETTLED, 0, LEAF)
        self._sharing: _Sharing | None = None
        # Plain calls on a device, the latest first: types and kinds of arrays alternate.
        self._on_device: list[_Latest] = []
        self._lock = Lock()
        self._schedule = None if schedule is None else _checked_schedule(schedule)
        self._sizes = self._sized(dims, buckets or {}) if dims or buckets else None

    def __reduce__(self) -> str:
        """Copies are the function itself, and pickles name it, as those of Python's functions."""
        return getattr(self, "__qualname__", self._name)

    @property
    def programs(self) -> list[SizedProgram]:
        """The programs of a function with `dims` so far: one program for each bucket of sizes that was called, and one
        for each size that no bucket serves, with the reason."""
        return self._sizes.programs if self._sizes is not None else []

    @property
    def static_argnames(self) -> frozenset[str]:
        """The names of the parameters that are compile-time values."""
        return self._static

    def __call__(self, *args: Any, **kwargs: object) -> Any:
        """Run the function. Inside another traced function it is traced into that.

        Raises:
            TilewrightError: the arguments cannot be traced, or the function has a mistake.
        """
        if tracing.is_tracing():
            return self._function(*args, **kwargs)
        if kwargs:
            args, kwargs = self._by_position(args, kwargs)
        try:
            options = current()
            latest = self._latest
            if options is latest.options and len(args) == latest.n_inputs and not kwargs and not capturing():
                result = latest.function(*args)
                if result is not MISMATCH:
                    return result if latest.result is LEAF else build(latest.result, result)
            return self._look_up(args, kwargs, _Setting.of(self._target or options.target, options))
        except TilewrightError as error:
            located(error)
            raise

    def again(self, args: Sequence[object]) -> Any:
        """The result of a call on arrays by position, of such types as a call before; `MISMATCH` for any other, and
        inside a trace.

        Raises:
            TilewrightError: the program failed.
        """
        if tracing.is_tracing():
            return MISMATCH
        latest_options, function, n_inputs, structure = self._latest
        options = current()
        try:
            if options is latest_options and len(args) == n_inputs and not capturing():
                result = function(*args)
                if result is not MISMATCH:
                    return result if structure is LEAF else build(structure, result)
            return self._known(args, _Setting.of(self._target or options.target, options))
        except TilewrightError as error:
            located(error)
            raise

    def _look_up(self, args: tuple[Any, ...], kwargs: dict[str, Any], setting: _Setting) -> Any:
        """Find the program by the types of the arguments: quickly if all are arrays in CPU memory or on a device, by
        position."""
        if self._on_device and not kwargs:
            found = self._plain_on_device(args)
            if found is not MISMATCH:
                return found
        if kwargs or not self._by_arrays:
            return self._call(args, kwargs, setting)
        found = self._known(args, setting)
        if found is MISMATCH and (sharing := _Sharing.of(args)) is not None:
            self._sharing = sharing
            found = self._known(args, setting)
        return self._call(args, kwargs, setting) if found is MISMATCH else found

    def _known(self, args: Sequence[object], setting: _Setting) -> Any:
        """The result of a call on arrays of types that a program was compiled for, if they are NumPy's or of the
        classes of the latest others; else `MISMATCH`."""
        arrays: Sequence[Any] = args
        sharing = None
        for argument in args:
            if type(argument) is not np.ndarray:
                if isinstance(argument, np.generic):
                    return self._known([np.asarray(a) if isinstance(a, np.generic) else a for a in args], setting)
                sharing = self._sharing
                if sharing is None or (read := sharing.read(args)) is None:
                    return MISMATCH
                arrays = read
                break
        key: list[Any] = [setting]
        taken: list[Any] = []
        as_given = True
        for array in arrays:
            key.append(array.shape)
            key.append(array.dtype)
            if not array.flags.c_contiguous:
                as_given = False
                view = view_of(array)
                if view is None:
                    array = np.ascontiguousarray(array)
                else:
                    key.append(view[0])
                    array = view[1]
            taken.append(array)
        found = self._by_arrays.get(tuple(key))
        if found is None:
            return MISMATCH
        executable, result = found
        results = executable(*taken)
        # A program that gives one array in a container is left out: its native function gives the bare array.
        if result is LEAF or len(results) != 1:
            options, function = executable.settled
            if not as_given:
                function = reading_again(function, arrays)
            if sharing is not None:
                function = sharing.around(function)
            self._latest = _Latest(options, function, len(args), rebuilt_from(result))
        return build(result, results if sharing is None else [sharing.restore(array) for array in results])

    def lower(self, *args: object, **kwargs: object) -> Lowered:
        """Trace the function for arguments, which may be `ShapeDtype`s.

        Raises:
            TilewrightError: the arguments cannot be traced, or the function has a mistake.
        """
        args, kwargs = self._by_position(args, kwargs)
        return self._trace(self._read(args, kwargs), args, kwargs)

    def _by_position(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """The arguments of a call, all by position if those with names are the next parameters, in any order: one
        program serves both forms."""
        given = len(args)
        names = self._positional[given : given + len(kwargs)]
        if not kwargs or given < self._unnamed or len(names) < len(kwargs) or not all(name in kwargs for name in names):
            return args, kwargs
        return (*args, *[kwargs[name] for name in names]), {}

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any], setting: _Setting) -> Any:
        call = self._read(args, kwargs)
        call.check_contents()
        call.check_place(setting.target)
        if self._sizes is not None:
            if call.has_complex():
                raise located(_complex_with_dims())
            names = argument_names(call.signature.structure, self._dynamic)
            retraced = functools.partial(self._traced_at, call, args, kwargs)
            return self._sizes.run(call, setting, names, retraced, setting.target)
        if not self._donate and target_named(setting.target)[0].viewed_inputs:
            call = self._on_memory(call, setting)
        key = (call.signature, setting)
        compiled = self._compiled.get(key)
        if compiled is None:
            with self._lock:
                compiled = self._compiled.get(key)
                if compiled is None:
                    compiled = self._trace(call, args, kwargs).compile(setting.target)
                    self._remember(key, compiled, call)
        result = compiled.run(call)
        if call.on_device and call.is_positional() and not (self._static or self._donate or call.has_complex()):
            self._remember_on_device(compiled, call)
        return result

    def _on_memory(self, call: Call, setting: _Setting) -> Call:
        """The call as one of a program that reads the memory of views. There are only so many programs for parts of
        arrays, which may be others at each call; the arrays of further ones are copied."""
        viewed = call.on_memory()
        if not viewed.signature.has_parts() or (viewed.signature, setting) in self._compiled:
            return viewed
        count = sum(signature.has_parts() for signature, _ in self._compiled)
        return viewed if count < _MOST_OF_PARTS else call.on_memory(permuted_only=True)

    def _plain_on_device(self, args: tuple[object, ...]) -> object:
        """The result of a call like one before on arrays on a device, or `MISMATCH`."""
        options = current()
        if capturing():
            return MISMATCH
        for found in self._on_device:
            if found.options is options and found.n_inputs == len(args):
                result = found.function(*args)
                if result is not MISMATCH:
                    self._latest = found
                    return result if found.result is LEAF else build(found.result, result)
        return MISMATCH

    def _remember_on_device(self, compiled: Compiled, call: Call) -> None:
        result, count = compiled.lowered.result, len(compiled.lowered.graph.outputs)
        if len(call.on_device) < len(call.arrays) or (result is not LEAF and count == 1):
            return
        options, function = compiled.executable.settled_on_device(call.arrays)
        if options is not None:
            found = _Latest(options, function, len(call.arrays), result)
            self._on_device = [found, *self._on_device[: _MOST_ON_DEVICE - 1]]
            self._latest = found

    def _remember(self, key: tuple[object, _Setting], compiled: Compiled, call: Call) -> None:
        self._compiled[key] = compiled
        types = call.plain_types()
        if types is not None and not self._static and not self._donate and not compiled.lowered.complex_results:
            self._by_arrays[key[1], *types] = (compiled.executable, compiled.lowered.result)

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        args, kwargs, static = self._without_static(*self._by_position(args, kwargs))
        try:
            values = tuple([(name, StaticValue(value)) for name, value in static.items()])
            call = read_call(args, kwargs, values, self._dynamic)
            hash(call.signature)
        except TypeError:
            raise located(
                ArgumentError(
                    "a static argument, or a static field, cannot be hashed", help="use a tuple or a frozen dataclass"
                )
            ) from None
        return call

    def _without_static(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, object]]:
        if not self._static:
            return args, kwargs, {}
        static = {name: value for name, value in zip(self._positional, args, strict=False) if name in self._static}
        static |= {name: value for name, value in kwargs.items() if name in self._static}
        dynamic = tuple(a for a, fixed in zip(args, self._which_static(args), strict=True) if not fixed)
        return dynamic, {name: value for name, value in kwargs.items() if name not in static}, static

    def _trace(self, call: Call, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Lowered:
        signature = call.signature
        names = argument_names(signature.structure, self._dynamic)
        types = [stored_type(_typed(name, leaf)) for name, leaf in zip(names, signature.leaves, strict=True)]
        views = dict(signature.views)
        for n, view in views.items():
            types[n] = replace(types[n], shape=view.memory)
        structures: list[Structure] = []
        complex_results: list[int] = []

        def traced(graph: Graph) -> Sequence[Value]:
            inputs = [
                _input(value, graph, leaf, views.get(n))
                for n, (value, leaf) in enumerate(zip(graph.inputs, signature.leaves, strict=True))
            ]
            dynamic, named = build(signature.structure, inputs)
            result = self._function(*self._with_static(args, dynamic), **(kwargs | named))
            outputs: list[Any] = []
            structures.append(flatten(result, outputs))
            arrays = [_output(output) for output in outputs]
            complex_results.extend(n for n, array in enumerate(arrays) if isinstance(array, ComplexArray))
            return [to_pairs(array).value if isinstance(array, ComplexArray) else array.value for array in arrays]

        graph = tracing.trace_program(traced, types, names, re.sub(r"\W+", "", self._name))
        donated = self._donations(graph, names)
        target = self._target or current().target
        outputs = tuple(f"return[{n}]" for n in range(len(graph.outputs)))
        common = (graph, tuple(names), outputs, donated, target)
        return Lowered(*common, signature, structures[0], self._read, tuple(complex_results), schedule=self._schedule)

    def _traced_at(
        self, call: Call, args: tuple[object, ...], kwargs: Mapping[str, object], signature: Signature
    ) -> Lowered:
        """The program for a call like this one with other sizes."""
        with tracing.keeping_views():
            lowered = self._trace(replace(call, signature=signature), args, kwargs)
        if lowered.complex_results:
            raise located(_complex_with_dims())
        return lowered

    def _sized(
        self, dims: Mapping[str, Sequence[int | Dim | None]] | None, buckets: Mapping[Dim, Sequence[int]]
    ) -> SizedPrograms:
        settings: dict[str, Any] = {"dims": dims or {}, "buckets": buckets}
        for name, given in settings.items():
            if not isinstance(given, Mapping):
                raise located(ArgumentError(f"`{name}` is {given!r}, not a dict", help=f"see `tw.jit` for `{name}`"))
        specs = {str(name): checked_spec(str(name), spec) for name, spec in (dims or {}).items()}
        if self._donate:
            raise located(ArgumentError("`donate` and `dims` do not go together", help="leave one of them out"))
        if self._schedule is not None:
            message = "`schedule` and `dims` do not go together: each bucket of sizes has kernels of its own"
            raise located(ArgumentError(message, help="leave one of them out"))
        self._checked("dims", [root_of(name) for name in specs])
        return SizedPrograms(specs, buckets)

    def _with_static(self, args: tuple[object, ...], dynamic: Sequence[object]) -> list[Any]:
        rest = iter(dynamic)
        return [a if fixed else next(rest) for a, fixed in zip(args, self._which_static(args), strict=True)]

    def _which_static(self, args: tuple[object, ...]) -> list[bool]:
        return [n < len(self._positional) and self._positional[n] in self._static for n in range(len(args))]

    def _donations(self, graph: Graph, names: Sequence[str]) -> tuple[tuple[int, int], ...]:
        """Each donated input with the first output of its type that is not taken yet."""
        free = list(range(len(graph.outputs)))
        pairs: list[tuple[int, int]] = []
        for n, (value, name) in enumerate(zip(graph.inputs, names, strict=True)):
            if root_of(name) not in self._donate:
                continue
            fitting = next((m for m in free if graph.outputs[m].type == value.type), None)
            if fitting is None:
                message = f"argument `{name}` is donated, but no result is another {value.type} to take its memory"
                raise located(ArgumentError(message, help="return the updated array, or do not donate it"))
            free.remove(fitting)
            pairs.append((n, fitting))
        return tuple(pairs)

    def _checked(self, what: str, given: Names) -> frozenset[str]:
        names = (given,) if isinstance(given, str) else tuple(given)
        for name in names:
            if name not in self._parameters:
                message = f"`{what}` names `{name}`, which is no parameter of `{self._name}`"
                raise located(
                    ArgumentError(message, help=f"the parameters are {', '.join(self._parameters) or 'none'}")
                )
        return frozenset(names)


def _checked_schedule(schedule: object) -> Request:
    try:
        return checked_request(schedule)
    except TilewrightError as error:
        raise located(error) from None


def _complex_with_dims() -> TilewrightError:
    message = "a function with `dims` takes and gives no complex numbers"
    return DTypeError(message, help="pass their parts as an array of floats with a last axis of 2")


def _parameters(function: Callable[..., object]) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Names of the parameters: all, and those that may be positional; how many of these, the first ones, have to be."""
    parameters = inspect.signature(function).parameters.values()
    unnamed = [p.name for p in parameters if p.kind == p.POSITIONAL_ONLY]
    positional = [*unnamed, *(p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD)]
    keyword = [p.name for p in parameters if p.kind == p.KEYWORD_ONLY]
    return (*positional, *keyword), tuple(positional), len(unnamed)


def _typed(name: str, leaf: Leaf) -> ArrayType:
    try:
        return leaf_type(leaf)
    except TilewrightError as error:
        error.message = f"argument `{name}`: {error.message}"
        raise


def _input(value: Value, graph: Graph, leaf: Leaf, view: View | None) -> Array:
    """The array of an argument, of its memory if there is a view; Python numbers take the type of what they meet."""
    array = Array(value, graph, weak=isinstance(leaf, type))
    if view is not None:
        array = view.of(array)
    if isinstance(leaf, type):
        return with_weakness(from_pairs(array), True) if leaf is complex else array
    return from_pairs(array) if leaf[1].kind == "c" else array


def _output(value: object) -> Array:
    try:
        lifted = lift(value)
    except TilewrightError as error:
        error.message = f"the traced function returned something else than arrays: {error.message}"
        raise
    return lifted


@overload
def jit(
    fn: Callable[..., object],
    /,
    *,
    target: str | None = None,
    static_argnames: Names = (),
    donate: Names = (),
    dims: Mapping[str, Sequence[int | Dim | None]] | None = None,
    buckets: Mapping[Dim, Sequence[int]] | None = None,
    schedule: Request | None = None,
) -> JitFunction: ...


@overload
def jit(
    fn: None = None,
    /,
    *,
    target: str | None = None,
    static_argnames: Names = (),
    donate: Names = (),
    dims: Mapping[str, Sequence[int | Dim | None]] | None = None,
    buckets: Mapping[Dim, Sequence[int]] | None = None,
    schedule: Request | None = None,
) -> Callable[[Callable[..., Any]], JitFunction]: ...


def jit(
    fn: Callable[..., object] | None = None,
    /,
    *,
    target: str | None = None,
    static_argnames: Names = (),
    donate: Names = (),
    dims: Mapping[str, Sequence[int | Dim | None]] | None = None,
    buckets: Mapping[Dim, Sequence[int]] | None = None,
    schedule: Request | None = None,
) -> Any:
    """Compile a function over arrays: `@tw.jit`, `@tw.jit(target="interp")` or `tw.jit(f)`.

    Arguments are arrays of NumPy, torch, JAX or any DLPack library, Python numbers (traced as f32, i64 or bool that
    take the type of what they meet), and tuples, lists, dicts and dataclasses of them. Results are of the kind of the
    first array. Transposed arrays are read as they are in memory, by a program for each order of their dimensions.
    Parameters in `static_argnames` are compile-time values; the memory of those in `donate` may be reused
    for results.

    `dims` declares symbolic dimensions: for a parameter, or an array in it, one entry for each axis, an integer, a
    `tw.Dim`, or None for sizes that are compiled for as they come. `dims={"x": (tw.Dim(1, 512, name="rows"), 384)}`
    compiles one program for each bucket of rows that is called, which pads and masks; `buckets` gives the largest sizes
    of the buckets of a `Dim`. Compiled programs are in `.programs`.

    `schedule` maps kernels by the names that `explain` prints to values of `tw.schedules`, which take the place of the
    schedules that the cost model chooses; one schedule applies to every kernel of its kind. Inside another traced
    function the schedule is that of the outer one.

    Raises:
        ArgumentError: a name is no parameter, an entry of `dims` is nothing of these, or a bucket is out of range.
        ScheduleError: a value of `schedule` is no schedule.
        TargetError: the target is no string.
    """

    def decorate(function: Callable[..., object]) -> JitFunction:
        if not callable(function):
            raise located(ArgumentError(f"`jit` of {function!r:.40}", help="pass a function of arrays"))
        return JitFunction(function, target, static_argnames, donate, dims, buckets, schedule)

    return decorate if fn is None else decorate(fn)
