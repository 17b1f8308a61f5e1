"""`tw.kernel`: a Python function over tiles becomes a compiled kernel, once per types and compile-time values."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, ClassVar, overload

import msgspec
import numpy as np

from tilewright.api import tile_functions as tile_functions  # registers what kernels may call
from tilewright.api.array import Array, located, locating
from tilewright.api.lifting import cast, element_type, is_scalar, lift
from tilewright.api.programs import CompiledProgram, LoweredProgram, checked_target
from tilewright.api.stages import check_place
from tilewright.errors import ArgumentError, DTypeError, KernelSignatureError, OverlapError, ShapeError, TilewrightError
from tilewright.events import capturing
from tilewright.frontend import tracing
from tilewright.frontend.identity import static_key
from tilewright.frontend.pyast import Specialisation
from tilewright.frontend.pyast_signature import IN, INOUT, OUT, ArrayParameter, KernelSignature, read_signature
from tilewright.frontend.trace import Graph, Value
from tilewright.locks import Lock
from tilewright.options import Options, current
from tilewright.primitives import ArrayType
from tilewright.runtime.cpu.native import MISMATCH
from tilewright.runtime.dlpack import is_readonly, on_cuda, to_numpy
from tilewright.schedules import Request, checked_request
from tilewright.targets.base import Executable

_NO_CONTENTS = np.empty(0)
# The annotations of parameters by their effects.
_EFFECTS = {IN: "In", OUT: "Out", INOUT: "InOut"}
Tensor = np.ndarray[Any, Any]
Restore = Callable[[Tensor], Any]


class Kernel:
    """A tile kernel. Called with arrays it writes its Out and InOut parameters in place; called without its Out
    parameters, or inside a traced program, it returns them."""

    def __init__(self, function: FunctionType, target: str | None, local_names: Mapping[str, object]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._target = checked_target(target)
        self.kernel_signature: KernelSignature = read_signature(function, local_names)
        self._compiled: dict[tuple[Any, ...], CompiledKernel] = {}
        self._plain: list[_Plain] = []
        self._lock = Lock()

    def __reduce__(self) -> str:
        """Copies are the function itself, and pickles name it, as those of Python's functions."""
        return getattr(self, "__qualname__", self.name)

    @property
    def name(self) -> str:
        return self._function.__name__

    def __call__(self, *args: Any, **kwargs: object) -> Any:
        """Run the kernel: arrays by position (Out parameters may be left out, all of them), compile-time values by
        keyword.

        Raises:
            TilewrightError: the arguments do not fit the signature, or the kernel has a mistake.
        """
        try:
            if tracing.is_tracing():
                return self._traced(args, kwargs)
            if self._plain:
                result = self._run_plain(args, kwargs)
                if result is not MISMATCH:
                    return result
            arrays, static = self._split(args, kwargs)
            return self._run(arrays, static, args, kwargs)
        except TilewrightError as error:
            raise located(error) from None

    def lower(self, *args: object, schedule: Request | None = None, **kwargs: object) -> LoweredKernel:
        """Specialise the kernel for arguments, which may be `ShapeDtype`s. `schedule`: a `tw.schedules.TileKernel` for
        machines with warps; a kernel with a parameter of this name gets it from `.compile(schedule=...)` alone.

        Raises:
            TilewrightError: the arguments do not fit the signature, or `schedule` is no schedule.
        """
        try:
            if schedule is not None and "schedule" in self._parameters():
                kwargs, schedule = kwargs | {"schedule": schedule}, None
            arrays, static = self._split(args, kwargs)
            types = {p.name: _type_of(p.name, value) for p, value in arrays}
            request = None if schedule is None else checked_request(schedule)
            return replace(self._lowered(types, static), schedule=request)
        except TilewrightError as error:
            raise located(error) from None

    def _parameters(self) -> Collection[str]:
        return inspect.signature(self._function).parameters

    # ---- arguments ----------------------------------------------------------------------------------------------

    def _split(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[list[tuple[ArrayParameter, Any]], dict[str, Any]]:
        """Arrays with their parameters, in order, and the values of the compile-time parameters."""
        signature = self.kernel_signature
        by_name = {p.name: p for p in signature.arrays}
        named = {name: value for name, value in kwargs.items() if name in by_name}
        static = signature.static_values({name: value for name, value in kwargs.items() if name not in by_name})
        given = len(args) + len(named)
        wanted = signature.arrays if given == len(signature.arrays) else signature.inputs
        if given != len(wanted):
            listed = ", ".join(p.name for p in signature.arrays)
            message = f"`{self.name}` takes {len(signature.arrays)} arrays ({listed}), got {given}"
            raise ArgumentError(message, help="pass all arrays, or all but the Out ones")
        for name in named:
            if by_name[name] not in wanted:
                raise ArgumentError(f"`{name}` is given, but not all arrays are", help="pass all arrays")
        positional = [p for p in wanted if p.name not in named]
        values = dict(zip((p.name for p in positional), args, strict=True)) | named
        return [(p, values[p.name]) for p in wanted], static

    def _complete(self, types: Mapping[str, ArrayType]) -> tuple[ArrayType, ...]:
        """Types of all parameters: Out ones that were left out follow from the inputs."""
        signature = self.kernel_signature
        sizes = signature.bind(types)
        inputs = [types[p.name].dtype for p in signature.inputs]
        return tuple(
            types[p.name] if p.name in types else signature.output_type(p, sizes, inputs) for p in signature.arrays
        )

    def _specialised(self, types: Mapping[str, ArrayType], static: Mapping[str, object]) -> Specialisation:
        return Specialisation(self._function, self.kernel_signature, self._complete(types), static)

    def _lowered(self, types: Mapping[str, ArrayType], static: Mapping[str, object]) -> LoweredKernel:
        return LoweredKernel.of(self._specialised(types, static), self._target or current().target)

    # ---- running ------------------------------------------------------------------------------------------------

    def _run(
        self,
        arrays: Sequence[tuple[ArrayParameter, object]],
        static: dict[str, Any],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> Any:
        tensors: dict[str, KernelArray] = {}
        restore: Restore | None = None
        for parameter, value in arrays:
            tensors[parameter.name], back = _tensor(parameter, value)
            restore = restore or back
        compiled = self._find(tensors, static)
        fresh = len(arrays) < len(self.kernel_signature.arrays)
        results = compiled.run(tensors)
        if isinstance(next(iter(tensors.values()), None), _OnDevice) and len(args) == len(arrays):
            self._remember_plain(compiled, args, kwargs)
        if not fresh:
            return None
        on_device = next((each for each in tensors.values() if isinstance(each, _OnDevice)), None)
        back = restore if on_device is None else on_device.restore
        outputs = [results[p.name] for p in self.kernel_signature.arrays if p.effect == OUT]
        restored = [back(r) if back is not None else r for r in outputs]
        return restored[0] if len(restored) == 1 else tuple(restored)

    def _run_plain(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        """The result of a call like one before on arrays on a device, or `MISMATCH`."""
        if capturing():
            return MISMATCH
        options = current()
        for plain in self._plain:
            if plain.options is options and plain.count == len(args) and plain.has(kwargs):
                result = plain(args)
                if result is not MISMATCH:
                    return result
        return MISMATCH

    def _remember_plain(self, compiled: CompiledKernel, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Serve calls like this one, whose arrays are all on a device, without a look at anything else."""
        parameters = self.kernel_signature.arrays
        fresh = len(args) < len(parameters)
        given = [p for p in parameters if p.effect != OUT or not fresh]
        inputs = tuple(n for n, p in enumerate(given) if p.effect != OUT)
        # Program files take InOut arrays as inputs and as outputs.
        outputs = () if fresh else tuple(n for n, p in enumerate(given) if p.effect != IN)
        options, function = compiled.executable.settled_on_device([args[n] for n in inputs], [args[n] for n in outputs])
        if options is not None:
            written = [p for p in parameters if p.effect != IN]
            results = tuple(n for n, p in enumerate(written) if p.effect == OUT) if fresh else None
            static = {name: static_key(value) for name, value in kwargs.items()}
            plain = _Plain(options, len(args), static, function, (*inputs, *outputs), results)
            self._plain = [plain, *self._plain[: _MOST_PLAIN - 1]]

    def _find(self, tensors: dict[str, KernelArray], static: dict[str, object]) -> CompiledKernel:
        target = self._target or current().target
        types = tuple((name, array.shape, array.dtype) for name, array in tensors.items())
        try:
            values = tuple((name, static_key(value)) for name, value in static.items())
            key = (target, current().trace_file is not None, types, values)
            found = self._compiled.get(key)
        except TypeError:
            message = f"a compile-time value of `{self.name}` cannot be hashed"
            raise ArgumentError(message, help="pass numbers, strings, element types or tuples") from None
        if found is None:
            with self._lock:
                found = self._compiled.get(key)
                if found is None:
                    by_name = {name: ArrayType(a.shape, element_type(a.dtype)) for name, a in tensors.items()}
                    found = self._lowered(by_name, static).compile(target)
                    self._compiled[key] = found
        return found

    def _traced(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
        """A call inside a traced program: a node whose results are the Out and InOut arrays."""
        signature = self.kernel_signature
        arrays, static = self._split(args, kwargs)
        if any(p.effect == OUT for p, _ in arrays):
            inputs = ", ".join(p.name for p in signature.inputs)
            message = f"`{self.name}` is called with its Out arrays inside a traced program, where arrays are values"
            raise ArgumentError(message, help=f"write `{signature.outputs[0].name} = {self.name}({inputs})`")
        operands = {p.name: _lifted(p, value) for p, value in arrays}
        types = {name: ArrayType(x.shape, x.dtype) for name, x in operands.items()}
        specialisation = self._specialised(types, static)
        graph = tracing.current_graph()
        values = [x.value for x in operands.values()]
        results = [Array(v, graph) for v in add_call(graph, specialisation, values)]
        return results[0] if len(results) == 1 else tuple(results)


_MOST_PLAIN = 8


class _Plain(msgspec.Struct, frozen=True):
    """Calls with `count` arrays on a device and compile-time values with the keys `static`, under these options:
    `function` takes the arrays at `order`, and its results at `results` are those of the kernel; None if it gives
    none."""

    options: Options
    count: int
    static: dict[str, object]
    function: Callable[..., object]
    order: tuple[int, ...]
    results: tuple[int, ...] | None

    def has(self, static: Mapping[str, object]) -> bool:
        """Whether compile-time values are the same, and of the same types."""
        same_names = static.keys() == self.static.keys()
        return same_names and all(static_key(value) == self.static[name] for name, value in static.items())

    def __call__(self, args: tuple[object, ...]) -> object:
        found = self.function(*[args[n] for n in self.order])
        if found is MISMATCH:
            return MISMATCH
        if self.results is None:
            return None
        every = typing.cast("tuple[object, ...]", found) if isinstance(found, tuple) else (found,)
        chosen = [every[n] for n in self.results]
        return chosen[0] if len(chosen) == 1 else tuple(chosen)


def add_call(graph: Graph, specialisation: Specialisation, operands: Sequence[Value]) -> tuple[Value, ...]:
    """Append a call of a kernel to a graph: operands are its In and InOut arrays, results its Out and InOut arrays."""
    name = specialisation.name
    graph.kernels[name] = specialisation
    return graph.append("call", operands, {"callee": name}, specialisation.results)


@dataclass(frozen=True, repr=False)
class LoweredKernel(LoweredProgram["CompiledKernel"]):
    """A kernel for given array types and compile-time values, as the program that calls it and nothing else."""

    specialisation: Specialisation

    phase: ClassVar[str] = "tile"

    @staticmethod
    def of(specialisation: Specialisation, target: str) -> LoweredKernel:
        """The program of a specialisation: In and InOut parameters are its inputs, Out and InOut ones its outputs."""
        signature = specialisation.signature
        pairs = list(zip(signature.arrays, specialisation.types, strict=True))
        inputs = [(p, t) for p, t in pairs if p.effect != OUT]
        outputs = [p for p, _ in pairs if p.effect != IN]

        def traced(graph: Graph) -> Sequence[Value]:
            return add_call(graph, specialisation, graph.inputs)

        names = tuple(p.name for p, _ in inputs)
        graph = tracing.trace_program(traced, [t for _, t in inputs], names, signature.name)
        donated = tuple(
            (n, outputs.index(parameter)) for n, (parameter, _) in enumerate(inputs) if parameter.effect == INOUT
        )
        return LoweredKernel(graph, names, tuple(p.name for p in outputs), donated, target, specialisation)

    def _text(self) -> str:
        return str(self.specialisation.build())

    def _code(self, executable: Executable, target: str) -> CompiledKernel:
        return CompiledKernel(executable, target, self)


class CompiledKernel(CompiledProgram):
    """A kernel compiled for one specialisation and one target."""

    lowered: LoweredKernel

    def inputs_of(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Any]:
        if kwargs:
            message = f"`{self.lowered.specialisation.signature.name}` takes arrays by position"
            raise ArgumentError(message, help="pass all arrays in the order of the parameters")
        tensors, parameters = self._checked(args), self.lowered.specialisation.signature.arrays
        taken = [(p, tensors[p.name]) for p in parameters if p.effect != OUT]
        return [_copy(array) if p.effect == INOUT else _contents(array) for p, array in taken]

    @locating
    def __call__(self, *args: Any) -> None:
        """Run on all arrays of the kernel; Out and InOut ones are written in place.

        Raises:
            ArgumentError, ShapeError, DTypeError: the arrays are not what the kernel was specialised for.
            OverlapError: an array that is written overlaps another one.
        """
        self.run(self._checked(args))

    def _checked(self, args: tuple[object, ...]) -> dict[str, KernelArray]:
        """All arrays of the kernel by name.

        Raises:
            ArgumentError, ShapeError, DTypeError: the arrays are not those that the kernel was specialised for.
        """
        signature = self.lowered.specialisation.signature
        if len(args) != len(signature.arrays):
            message = f"`{signature.name}` takes {len(signature.arrays)} arrays, got {len(args)}"
            raise ArgumentError(message, help="pass all arrays in the order of the parameters")
        tensors = {p.name: _tensor(p, value)[0] for p, value in zip(signature.arrays, args, strict=True)}
        for (name, array), type in zip(tensors.items(), self.lowered.specialisation.types, strict=True):
            _check_type(name, array, type)
        return tensors

    def run(self, tensors: dict[str, KernelArray]) -> dict[str, Any]:
        """Run on arrays of the right types; Out arrays that are missing, all of them, are made. Gives all arrays by
        name.

        Raises:
            UnsupportedOnTargetError: an array is on a device, and the target takes none.
            OverlapError: an array that is written overlaps another one.
        """
        parameters = self.lowered.specialisation.signature.arrays
        every: dict[str, Any] = dict(tensors)
        if _OnDevice in map(type, every.values()):
            self._place(every)
        _check_overlap(parameters, every)
        inputs = [every[p.name] for p in parameters if p.effect != OUT]
        written = [p.name for p in parameters if p.effect != IN]
        # Donated arrays are written where they are; arrays for the others have to be named.
        if len(every) == len(parameters) and len(inputs) < len(parameters):
            results = self.executable(*inputs, out=[every[name] for name in written])
        else:
            results = self.executable(*inputs)
        for name, result in zip(written, results, strict=True):
            target = every.setdefault(name, result)
            if target is not result and isinstance(target, np.ndarray):
                np.copyto(target, result)
        return every

    def _place(self, arrays: dict[str, Any]) -> None:
        """Take arrays on a device as their libraries have them."""
        for name, array in arrays.items():
            if isinstance(array, _OnDevice):
                check_place(array.value, self.target)
                arrays[name] = array.value


# ---- arguments ------------------------------------------------------------------------------------------------------


def _lifted(parameter: ArrayParameter, value: object) -> Array:
    dtype = parameter.annotation.dtype
    return cast(lift(value), dtype) if dtype is not None and is_scalar(value) else lift(value)


class _OnDevice(msgspec.Struct, frozen=True):
    """An array of another library on a device; `restore` gives results its kind."""

    value: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    restore: Restore


# An argument of a kernel: in the memory of the host, or of a device.
KernelArray = Tensor | _OnDevice


def _contents(array: KernelArray) -> Any:
    return array.value if isinstance(array, _OnDevice) else array


def _copy(array: KernelArray) -> Any:
    """A copy of an array of the host; arrays on a device belong to their library."""
    return array.value if isinstance(array, _OnDevice) else array.copy()


def _type_of(name: str, value: object) -> ArrayType:
    if isinstance(value, ArrayType):
        return ArrayType(value.shape, value.dtype)
    try:
        if (found := on_cuda(value)) is not None:
            return ArrayType(found[0], element_type(found[1]))
        array, _ = to_numpy(value) if not isinstance(value, bool | int | float) else (_number(value), None)
        return ArrayType(array.shape, element_type(array.dtype))
    except TilewrightError as error:
        error.message = f"argument `{name}`: {error.message}"
        raise


def _number(value: float) -> Tensor:
    return np.asarray(value, np.float32 if isinstance(value, float) else None)


def _tensor(parameter: ArrayParameter, value: object) -> tuple[KernelArray, Restore | None]:
    """The NumPy array of an argument, or the array of a library on a device, checked for how the kernel uses it.

    Raises:
        ArgumentError: a `ShapeDtype`, or an array that cannot be written in place.
    """
    if type(value) is np.ndarray:
        array, restore = value, None
    elif isinstance(value, bool | int | float) and parameter.effect == IN:
        dtype = parameter.annotation.dtype
        return (_number(value) if dtype is None else np.asarray(value, dtype.numpy)), None
    elif isinstance(value, ArrayType):
        raise ArgumentError(f"`{parameter.name}` is a `ShapeDtype`, which has no contents", help="pass an array")
    else:
        try:
            found = on_cuda(value)
            array, restore = to_numpy(value) if found is None else (_NO_CONTENTS, None)
        except TilewrightError as error:
            error.message = f"argument `{parameter.name}`: {error.message}"
            raise
        if found is not None:
            return _on_device(parameter, value, found), None
    if parameter.effect == IN:
        return array, restore
    if not array.flags.writeable:
        raise _read_only(parameter)
    if not array.flags.c_contiguous:
        message = f"`{parameter.name}` is {_EFFECTS[parameter.effect]}, but the array is not contiguous"
        raise ArgumentError(message, help="pass `np.ascontiguousarray(x)`, and copy the result back")
    return array, restore


def _on_device(parameter: ArrayParameter, value: Any, found: tuple[Any, ...]) -> _OnDevice:
    if parameter.effect != IN and is_readonly(value):
        raise _read_only(parameter)
    return _OnDevice(value, *found)


def _read_only(parameter: ArrayParameter) -> ArgumentError:
    message = f"`{parameter.name}` is {_EFFECTS[parameter.effect]}, but its memory is read-only"
    return ArgumentError(message, help="pass a writeable array, such as a copy")


def _check_type(name: str, array: KernelArray, wanted: ArrayType) -> None:
    if array.shape != wanted.shape:
        message = f"`{name}` has shape {array.shape}, but the kernel was specialised for {wanted}"
        raise ShapeError(message, help="call the kernel itself, which specialises again")
    if element_type(array.dtype) != wanted.dtype:
        message = f"`{name}` is {array.dtype}, but the kernel was specialised for {wanted}"
        raise DTypeError(message, help="call the kernel itself, which specialises again")


def _check_overlap(parameters: Sequence[ArrayParameter], arrays: Mapping[str, object]) -> None:
    """Refuse arrays of the host that overlap; those on a device are compared where the program runs."""
    for a, b in itertools.combinations(parameters, 2):
        if a.effect == IN and b.effect == IN:
            continue
        first, second = arrays.get(a.name), arrays.get(b.name)
        both_on_host = isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
        if both_on_host and np.may_share_memory(first, second):
            written, other = (a, b) if a.effect != IN else (b, a)
            message = f"`{written.name}`, which the kernel writes, overlaps `{other.name}` in memory"
            raise OverlapError(message, help="pass a copy of one of them, or declare one InOut parameter")


# ---- decorator ------------------------------------------------------------------------------------------------------


@overload
def kernel(fn: Callable[..., object], /, *, target: str | None = None) -> Kernel: ...


@overload
def kernel(fn: None = None, /, *, target: str | None = None) -> Callable[[Callable[..., Any]], Kernel]: ...


def kernel(fn: Callable[..., object] | None = None, /, *, target: str | None = None) -> Any:
    """Compile a function over tiles: `@tw.kernel` or `@tw.kernel(target="interp")`.

        @tw.kernel
        def add(x: tw.In["N"], y: tw.In["N"], z: tw.Out["N"], *, block: int = 1024):
            for i in tw.grid(z, block):
                z[i] = x[i] + y[i]

    Positional parameters are arrays, annotated with how they are used and their named sizes; keyword-only parameters
    are compile-time values.

    Raises:
        KernelSignatureError: the signature is not of this form, or the source cannot be read.
        TargetError: the target is no string.
    """
    names = sys._getframe(1).f_locals  # pyright: ignore[reportPrivateUsage]  documented, despite its name

    def decorate(function: Callable[..., object]) -> Kernel:
        return _decorated(function, target, names)

    return decorate if fn is None else decorate(fn)


def _decorated(function: Callable[..., object], target: str | None, local_names: Mapping[str, object]) -> Kernel:
    if not isinstance(function, FunctionType):
        message = f"`tw.kernel` takes a Python function, got a {type(function).__name__}"
        raise located(KernelSignatureError(message, help="decorate a function written with `def`"))
    try:
        return Kernel(function, target, local_names)
    except TilewrightError as error:
        raise located(error) from None
