"""Stages of a traced function: `Lowered` (a program), then `Compiled` (code that runs)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from tilewright import dtypes
from tilewright.api.array import located, locating
from tilewright.api.complex_array import as_stored, from_stored
from tilewright.api.lifting import element_or_complex_type, shape_of
from tilewright.api.programs import CompiledProgram, LoweredProgram
from tilewright.api.pytree import LEAF, Structure, build, flatten, paths
from tilewright.api.views import View, view_of
from tilewright.errors import (
    ArgumentError,
    DTypeError,
    ShapeError,
    TilewrightError,
    UnsupportedOnTargetError,
)
from tilewright.events import capturing
from tilewright.frontend import tracing
from tilewright.frontend.identity import StaticValue
from tilewright.options import Options, current
from tilewright.primitives import ArrayType, check_limits
from tilewright.runtime.cpu.native import MISMATCH
from tilewright.runtime.program_file import UNSETTLED
from tilewright.targets.base import Executable, target_named

Tensor = np.ndarray[Any, Any]
Restore = Callable[[Tensor], Any]
# How one argument is traced: a shape and a NumPy dtype, or the Python type of a number.
Leaf = tuple[tuple[int, ...], np.dtype[Any]] | type

_NUMBER_TYPES = {float: dtypes.f32, int: dtypes.i64, bool: dtypes.bool_, complex: dtypes.complex64}


class ShapeDtype(ArrayType, frozen=True):
    """An argument without contents, for `lower`: `tw.ShapeDtype((8, 4), tw.f32)`."""

    @locating
    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "shape", shape_of(self.shape))
        msgspec.structs.force_setattr(self, "dtype", element_or_complex_type(self.dtype))
        check_limits(self)


class Signature(NamedTuple):
    """The signature that a program is traced for: structure and types of arguments, values of static ones.

    `views` states how arguments are taken from memory, by their positions, where the program reads that.
    """

    structure: Structure
    leaves: tuple[Leaf, ...]
    static: tuple[tuple[str, StaticValue], ...]
    views: tuple[tuple[int, View], ...] = ()

    def has_parts(self) -> bool:
        """Whether an argument is a part of the memory that the program reads."""
        return any(not view.is_permutation for _, view in self.views)


class Call(msgspec.Struct, frozen=True):
    """The arguments of one call: their signature, the arrays (none for `ShapeDtype`), and the way back.

    Arrays on a CUDA device are other libraries' own, at the `on_device` positions; `restores_device` where the results
    are to be such.
    """

    signature: Signature
    arrays: list[Any]
    restore: Restore | None
    on_device: tuple[int, ...] = ()
    restores_device: bool = False

    def has_complex(self) -> bool:
        """Whether an argument holds complex numbers."""
        leaves = self.signature.leaves
        return any(leaf is complex if isinstance(leaf, type) else leaf[1].kind == "c" for leaf in leaves)

    def is_positional(self) -> bool:
        """Whether all arguments are arrays, given by position and in no container."""
        positional, named = self.signature.structure.children
        return not named.children and all(child is LEAF for child in positional.children)

    def plain_types(self) -> list[Any] | None:
        """The shape, the type and the view, if there is one, of each argument in turn, if all are arrays in CPU memory,
        given by position and in no container."""
        if self.on_device or not self.is_positional():
            return None
        types: list[Any] = []
        views = dict(self.signature.views)
        for n, leaf in enumerate(self.signature.leaves):
            if isinstance(leaf, type) or leaf[1].kind == "c":
                return None
            types += leaf
            if n in views:
                types.append(views[n])
        return types

    def on_memory(self, *, permuted_only: bool = False) -> Call:
        """Make it a call of a program that reads the memory of arrays that are not contiguous, and views it itself;
        `permuted_only`: only that of transposed ones."""
        views: list[tuple[int, View]] = []
        arrays = list(self.arrays)
        for n, (array, leaf) in enumerate(zip(self.arrays, self.signature.leaves, strict=True)):
            if not isinstance(array, np.ndarray) or array.flags.c_contiguous or isinstance(leaf, type):
                continue
            found = view_of(array) if leaf[1].kind != "c" else None
            if found is not None and (found[0].is_permutation or not permuted_only):
                view, arrays[n] = found
                views.append((n, view))
        return replace(self, signature=self.signature._replace(views=tuple(views)), arrays=arrays) if views else self

    def check_contents(self) -> None:
        """Refuse to run on a `ShapeDtype`.

        Raises:
            ArgumentError: an argument is one.
        """
        if len(self.arrays) != len(self.signature.leaves):
            help = "pass arrays, or look at the program with `.lower(...)`"
            raise located(ArgumentError("a `ShapeDtype` has no contents to run on", help=help))

    def check_place(self, target: str) -> None:
        """Refuse arrays on a device where the target takes none.

        Raises:
            UnsupportedOnTargetError: an argument is one.
        """
        if self.on_device:
            check_place(self.arrays[self.on_device[0]], target)

    def restored(self, results: Sequence[Any], complex_results: Sequence[int] = ()) -> Sequence[Any]:
        """The results as arrays of the kind of the first argument; those at `complex_results` as complex numbers."""
        if self.on_device and not self.restores_device:
            results = [np.asarray(result) for result in results]
        if complex_results:
            results = list(results)
            for n in complex_results:
                results[n] = from_stored(np.asarray(results[n]))
        return results if self.restore is None else [self.restore(result) for result in results]


def check_place(array: object, target: str) -> None:
    """Refuse an array on a device where the target takes none.

    Raises:
        UnsupportedOnTargetError: the target takes none.
    """
    if not target_named(target)[0].device_arrays:
        message = f"an argument is on the device `{_device_text(array)}`, not in CPU memory"
        help = 'copy it to the CPU, or compile for its device: target="cuda:CHIP"'
        raise located(UnsupportedOnTargetError(message, help=help))


def _device_text(array: object) -> str:
    from tilewright.runtime.cuda.array import device_of

    return f"cuda:{device_of(array)}"


def read_call(
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    static: tuple[tuple[str, StaticValue], ...],
    names: Sequence[str],
) -> Call:
    """Flatten the dynamic arguments of a call; `names` are the function's parameters.

    Raises:
        ArgumentError, DTypeError, UnsupportedOnTargetError: an argument is no array that can be passed.
    """
    values: list[Any] = []
    structure = flatten((args, kwargs), values, depth=-2)  # these two containers are not the user's
    leaves: list[Leaf] = []
    arrays: list[Any] = []
    restore: Restore | None = None
    on_device: list[int] = []
    restores_device = False
    for position, value in enumerate(values):
        if type(value) is np.ndarray:
            leaves.append((value.shape, value.dtype))
            arrays.append(value if value.dtype.kind != "c" else as_stored(value))
            restore = restore or _unchanged
            continue
        try:
            leaf, array, back = _read_leaf(value)
        except TilewrightError as error:
            error.message = f"argument `{argument_names(structure, names)[position]}`: {error.message}"
            raise located(error) from None
        leaves.append(leaf)
        if array is not None:
            if isinstance(array, np.ndarray):
                array = as_stored(array)
            else:
                on_device.append(len(arrays))
                _refuse_complex(leaf)
            arrays.append(array)
        restores_device = restores_device or (restore is None and bool(on_device))
        restore = restore or back
    signature = Signature(structure, tuple(leaves), static)
    return Call(signature, arrays, restore, tuple(on_device), restores_device)


def _refuse_complex(leaf: Leaf) -> None:
    """Refuse complex numbers in the memory of a device.

    Raises:
        UnsupportedOnTargetError: the argument is such.
    """
    if not isinstance(leaf, type) and leaf[1].kind == "c":
        help = "pass it from CPU memory, or its parts as an array of floats with a last axis of 2"
        raise located(UnsupportedOnTargetError("complex numbers are not taken from the memory of a device", help=help))


def _read_leaf(value: object) -> tuple[Leaf, Any, Restore | None]:
    kind = type(value)
    if kind in _NUMBER_TYPES:
        return kind, _number(value, _NUMBER_TYPES[kind].numpy), None
    if isinstance(value, ArrayType):
        return (value.shape, value.dtype.numpy), None, None
    if isinstance(value, np.generic):
        return ((), value.dtype), np.asarray(value), None
    if isinstance(value, str | bytes):
        raise ArgumentError(f"a {kind.__name__} is not an array", help="name the parameter in `static_argnames`")
    from tilewright.runtime.dlpack import on_cuda, to_numpy

    found = on_cuda(value)
    if found is not None:
        shape, dtype, back = found
        return (shape, dtype), value, back
    array, restore = to_numpy(value)
    return (array.shape, array.dtype), array, restore


def _is_readonly(array: object) -> bool:
    if isinstance(array, np.ndarray):
        return not array.flags.writeable
    from tilewright.runtime.dlpack import is_readonly

    return is_readonly(array)


def _unchanged(array: Tensor) -> Tensor:
    return array


def _number(value: object, dtype: np.dtype) -> Tensor:
    try:
        return np.asarray(value, dtype)
    except OverflowError:
        raise DTypeError(f"the integer {value} does not fit i64", help="pass a NumPy array of u64 or f64") from None


def argument_names(structure: Structure, names: Sequence[str]) -> list[str]:
    """Source expressions of the leaves of `(args, kwargs)`, such as `params["w"][0]`."""
    positional, named = structure.children
    roots = [names[n] if n < len(names) else f"argument {n + 1}" for n in range(len(positional.children))]
    children = (*zip(roots, positional.children, strict=True), *zip(named.keys, named.children, strict=True))
    return [path for root, child in children for path in paths(child, root)]


def root_of(path: str) -> str:
    """The parameter that a leaf's path starts from."""
    return path.partition("[")[0].partition(".")[0]


def leaf_type(leaf: Leaf) -> ArrayType:
    """Shape and element type of an argument.

    Raises:
        DTypeError: no element type of ours stores it.
    """
    if isinstance(leaf, type):
        return ArrayType((), _NUMBER_TYPES[leaf])
    shape, dtype = leaf
    return ArrayType(shape, element_or_complex_type(dtype))


def rebuilt_from(result: Structure) -> Structure:
    """The structure to build from what a native function gives: a leaf where it is the tuple that is given."""
    is_given = result.kind is tuple and len(result.children) > 1 and all(child is LEAF for child in result.children)
    return LEAF if is_given else result


@dataclass(frozen=True, repr=False)
class Lowered(LoweredProgram["Compiled"]):
    """A traced function.

    Attributes:
        result: the containers of its results.
        complex_results: the outputs that hold complex numbers, as floats with a last axis of 2.
    """

    signature: Signature
    result: Structure
    read: Callable[..., Call]
    complex_results: tuple[int, ...] = ()

    phase: ClassVar[str] = "array"

    def _text(self) -> str:
        return str(tracing.build_ir(self.graph))

    def _code(self, executable: Executable, target: str) -> Compiled:
        return Compiled(executable, target, self)


class Compiled(CompiledProgram):
    """A traced function compiled for one signature and one target."""

    lowered: Lowered
    # The options under which the function below serves calls of arrays by position, and what it makes of its results.
    _plain: ClassVar[tuple[Options | None, Callable[..., Any], Structure]] = (*UNSETTLED, LEAF)

    def inputs_of(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Any]:
        arrays = list(self._checked(args, kwargs).arrays)
        for n, _ in self.lowered.donated:
            if isinstance(arrays[n], np.ndarray):
                arrays[n] = arrays[n].copy()
        return arrays

    @locating
    def __call__(self, *args: Any, **kwargs: object) -> Any:
        """Run on arguments with the structure, shapes and types that the program was traced for.

        Raises:
            ArgumentError, ShapeError, DTypeError: the arguments are others.
        """
        options, function, structure = self._plain
        if options is current() and not kwargs and len(args) == len(self.lowered.names) and not capturing():
            result = function(*args)
            if result is not MISMATCH:
                return result if structure is LEAF else build(structure, result)
        call = self._checked(args, kwargs)
        result = self.run(call)
        if self._is_plain(call):
            object.__setattr__(self, "_plain", (*self.executable.settled, rebuilt_from(self.lowered.result)))
        return result

    def _is_plain(self, call: Call) -> bool:
        """Whether the native function gives what a call like this one gives; it checks its arguments itself, and gives
        one array bare that the program gives in a container."""
        lowered = self.lowered
        is_bare = lowered.result is LEAF or len(lowered.graph.outputs) != 1
        as_given = not (call.signature.static or lowered.donated or lowered.complex_results)
        return is_bare and as_given and call.plain_types() is not None

    def _checked(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Call:
        call = self.lowered.read(args, kwargs)
        if call.signature != self.lowered.signature:
            self._refuse(call.signature)
        call.check_contents()
        call.check_place(self.target)
        return call

    def run(self, call: Call) -> Any:
        """Run on arguments that were checked."""
        for n, _ in self.lowered.donated:
            if _is_readonly(call.arrays[n]):
                message = f"argument `{self.lowered.names[n]}` is donated, but its memory is read-only"
                raise located(ArgumentError(message, help="pass a copy, or do not donate it"))
        results = call.restored(self.executable(*call.arrays), self.lowered.complex_results)
        return build(self.lowered.result, results)

    def _refuse(self, given: Signature) -> None:
        expected = self.lowered.signature
        if given.static != expected.static:
            changed = ", ".join(f"{name}={value!r}" for name, value in expected.static)
            message = f"the program was traced for other static values: {changed}"
            raise located(ArgumentError(message, help="call the jitted function, which traces again"))
        if given.structure != expected.structure:
            message = f"the arguments are {given.structure}, but the program was traced for {expected.structure}"
            raise located(ArgumentError(message, help="pass containers of the same form"))
        for name, leaf, traced in zip(self.lowered.names, given.leaves, expected.leaves, strict=True):
            if leaf != traced:
                got, wanted = leaf_type(leaf), leaf_type(traced)
                kind = ShapeError if got.shape != wanted.shape else DTypeError
                message = f"argument `{name}` is {got}, but the program was traced for {wanted}"
                raise located(kind(message, help="lower the function again for these arguments"))
