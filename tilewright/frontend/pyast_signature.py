"""The signature of a tile kernel: array parameters with named sizes, and compile-time parameters.

def matmul(a: In["M K"], b: In["K N"], c: Out["M N", f32], *, bm: int = 128)
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import msgspec

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import (
    ArgumentError,
    DTypeError,
    KernelSignatureError,
    ShapeError,
    SourceLocation,
    user_location,
)
from tilewright.frontend.pyast_source import FunctionSource, source_of
from tilewright.primitives import ArrayType

IN, OUT, INOUT = "in", "out", "inout"  # as in the tile dialect, which is not imported for a cached program

Sizes = tuple[str | int, ...]


class ArrayAnnotation(msgspec.Struct, frozen=True):
    """`In["M K", f32]`: how a kernel uses an array, its sizes (names or integers) and its element type, if fixed."""

    effect: str
    sizes: Sizes
    dtype: DType | None = None


class _Effect(type):
    """Makes `In["M K"]` an annotation."""

    effect: str

    def __getitem__(cls, item: object) -> ArrayAnnotation:
        untyped = (item, None)
        parts: list[Any] = [*item] if isinstance(item, tuple) else [item]
        text, dtype = parts if len(parts) == 2 else untyped
        if not isinstance(text, str):
            message = f"`{cls.__name__}[...]` takes sizes in a string, got {item!r}"
            name = cls.__name__
            help = f'write `{name}["M N"]` or `{name}["M N", tw.f32]`'
            raise KernelSignatureError(message, location=user_location(), help=help)
        return ArrayAnnotation(cls.effect, _sizes(text), None if dtype is None else _element_type(dtype))


class In(metaclass=_Effect):
    """An array that a kernel reads: `In["M K"]`."""

    effect = IN


class Out(metaclass=_Effect):
    """An array that a kernel writes, with undefined contents before: `Out["M N"]`."""

    effect = OUT


class InOut(metaclass=_Effect):
    """An array that a kernel reads and writes: `InOut["M N"]`."""

    effect = INOUT


def _sizes(text: str) -> Sizes:
    sizes: list[str | int] = []
    for part in text.replace(",", " ").split():
        if not (part.isdigit() or part.isidentifier()):
            message = f"`{part}` is neither the name of a size nor a number"
            help = 'write sizes as in "M K" or "batch 64"'
            raise KernelSignatureError(message, location=user_location(), help=help)
        sizes.append(int(part) if part.isdigit() else part)
    return tuple(sizes)


def _element_type(dtype: object) -> DType:
    try:
        return dtypes.as_dtype(dtype)
    except (KeyError, TypeError):
        names = ", ".join(d.name for d in dtypes.ALL)
        message = f"{dtype!r} is not an element type"
        raise KernelSignatureError(message, location=user_location(), help=f"the types are {names}") from None


class ArrayParameter(msgspec.Struct, frozen=True):
    name: str
    annotation: ArrayAnnotation
    location: SourceLocation

    @property
    def effect(self) -> str:
        return self.annotation.effect


class KernelSignature(msgspec.Struct, frozen=True):
    """`arrays` are the positional parameters; `required` and `defaults` the keyword-only ones."""

    name: str
    arrays: tuple[ArrayParameter, ...]
    required: tuple[str, ...]
    defaults: Mapping[str, Any]

    @property
    def inputs(self) -> tuple[ArrayParameter, ...]:
        return tuple(p for p in self.arrays if p.effect != OUT)

    @property
    def outputs(self) -> tuple[ArrayParameter, ...]:
        return tuple(p for p in self.arrays if p.effect != IN)

    def static_values(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Values of all keyword-only parameters.

        Raises:
            ArgumentError: one is unknown or missing.
        """
        known = (*self.required, *self.defaults)
        for name in given:
            if name not in known:
                listed = ", ".join(f"`{n}`" for n in known) or "none"
                message = f"`{self.name}` has no keyword parameter `{name}`"
                raise ArgumentError(message, help=f"the compile-time parameters are: {listed}")
        missing = [name for name in self.required if name not in given]
        if missing:
            message = f"`{self.name}` needs a value for `{missing[0]}`"
            raise ArgumentError(message, help=f"call it with `{missing[0]}=...`")
        return {name: given[name] if name in given else self.defaults[name] for name in known}

    def bind(self, types: Mapping[str, ArrayType]) -> dict[str, int]:
        """Sizes by name from the types of some parameters, checked against each other and the annotations.

        Raises:
            ShapeError: ranks or sizes do not fit.
            DTypeError: an element type is another than the annotated one.
        """
        bound: dict[str, tuple[int, str]] = {}
        for parameter in self.arrays:
            if (type := types.get(parameter.name)) is not None:
                self._bind_one(parameter, type, bound)
        return {name: size for name, (size, _) in bound.items()}

    def _bind_one(self, parameter: ArrayParameter, type: ArrayType, bound: dict[str, tuple[int, str]]) -> None:
        wanted = parameter.annotation
        text = " ".join(map(str, wanted.sizes))
        if len(wanted.sizes) != type.rank:
            message = f'`{parameter.name}` has the shape {type.shape}, but `{self.name}` declares "{text}"'
            raise ShapeError(message, help=f"pass an array of rank {len(wanted.sizes)}")
        if wanted.dtype is not None and wanted.dtype != type.dtype:
            message = f"`{parameter.name}` is {type.dtype}, but `{self.name}` declares {wanted.dtype}"
            raise DTypeError(message, help=f"pass an array of {wanted.dtype.numpy.name}")
        for axis, (size, actual) in enumerate(zip(wanted.sizes, type.shape, strict=True)):
            if isinstance(size, int):
                if size != actual:
                    message = f"axis {axis} of `{parameter.name}` has size {actual}, but `{self.name}` declares {size}"
                    raise ShapeError(message, help=f'pass an array whose shape fits "{text}"')
                continue
            known, where = bound.setdefault(size, (actual, parameter.name))
            if known != actual:
                message = f"{size} is {known} in `{where}` but {actual} in `{parameter.name}`"
                raise ShapeError(message, help=f'axes with one name have one size: `{parameter.name}` is "{text}"')

    def output_type(self, parameter: ArrayParameter, sizes: Mapping[str, int], inputs: Sequence[DType]) -> ArrayType:
        """The type of an `Out` array that was left out: its sizes from the bound names, its element type as annotated
        or what the inputs promote to.

        Raises:
            ArgumentError: a size or the element type does not follow from the inputs.
        """
        missing = [n for n in parameter.annotation.sizes if isinstance(n, str) and n not in sizes]
        if missing:
            message = f"the size {missing[0]} of `{parameter.name}` does not follow from the inputs of `{self.name}`"
            raise ArgumentError(message, help=f"pass an array for `{parameter.name}` outside a traced program")
        shape = tuple(n if isinstance(n, int) else sizes[n] for n in parameter.annotation.sizes)
        dtype = parameter.annotation.dtype
        if dtype is None:
            if not inputs:
                message = f"the element type of `{parameter.name}` does not follow from the inputs of `{self.name}`"
                raise ArgumentError(message, help=f'annotate it: `tw.Out["...", tw.f32]` for `{parameter.name}`')
            dtype = inputs[0]
            for other in inputs[1:]:
                dtype = dtypes.promote(dtype, other)
        return ArrayType(shape, dtype)


def read_signature(function: FunctionType, local_names: Mapping[str, object]) -> KernelSignature:
    """The signature of a kernel function. `local_names` are those where it is defined, which annotations that Python
    kept as text may use.

    Raises:
        KernelSignatureError: it is not of the form that a kernel takes.
    """
    source = source_of(function)
    located = _parameter_nodes(source)
    arrays: list[ArrayParameter] = []
    required: list[str] = []
    defaults: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        location = source.location(located[parameter.name])
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            message = f"`{source.name}` takes `*{parameter.name}`, which a kernel cannot"
            raise KernelSignatureError(message, location=location, help="name every parameter")
        if parameter.kind == parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                required.append(parameter.name)
            else:
                defaults[parameter.name] = parameter.default
            continue
        if parameter.default is not parameter.empty:
            message = f"the array parameter `{parameter.name}` has a default"
            raise KernelSignatureError(message, location=location, help="put compile-time parameters after `*`")
        annotation = _annotation(source, parameter, location, local_names)
        arrays.append(ArrayParameter(parameter.name, annotation, location))
    if not any(p.effect != IN for p in arrays):
        message = f"`{source.name}` has no Out or InOut parameter, so it could not give a result"
        raise KernelSignatureError(
            message, location=source.location(source.node), help='annotate what it writes: `c: tw.Out["M N"]`'
        )
    return KernelSignature(source.name, tuple(arrays), tuple(required), defaults)


def _parameter_nodes(source: FunctionSource) -> dict[str, ast.arg]:
    arguments = source.node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return {a.arg: a for a in every}


def _annotation(
    source: FunctionSource, parameter: inspect.Parameter, location: SourceLocation, local_names: Mapping[str, object]
) -> ArrayAnnotation:
    given = parameter.annotation
    if isinstance(given, str):
        try:
            given = eval(given, {**source.free_names(), **local_names})
        except KernelSignatureError as error:
            error.location = location
            raise
        except Exception as error:
            message = f"the annotation of `{parameter.name}` cannot be read: {error}"
            raise KernelSignatureError(message, location=location, help='write `tw.In["M K"]`') from None
    if isinstance(given, ArrayAnnotation):
        return given
    message = f"the parameter `{parameter.name}` of `{source.name}` is not annotated as In, Out or InOut"
    if given is In or given is Out or given is InOut:
        message = f"the annotation of `{parameter.name}` names no sizes"
    array = f'write `{parameter.name}: tw.In["M K"]`'
    if given in (bool, int, float):
        array = f'write `{parameter.name}: tw.In[""]` for a number that changes from call to call'
    raise KernelSignatureError(message, location=location, help=f"{array}, or put a compile-time parameter after `*`")
