"""Identity of the values that a program depends on: by content, never by `repr` or by address.

`static_key` is the key of a compile-time value within a process: a hashable value that differs where the type, the
structure or the bits differ (4 is not 4.0, 0.0 is not -0.0, NaN is itself).

`content_digest` is a digest for all processes: arrays by type, shape and bytes; functions by code object, defaults,
closure and whatever their code reaches through globals, attributes and containers; objects by class and state. Modules
of Python, NumPy and Tilewright are taken by name, as their versions are part of every cache key.
"""

from __future__ import annotations

import copyreg
import dataclasses
import enum
import functools
import hashlib
import importlib.util
import os
import struct
import sys
from collections.abc import Callable, Iterator
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np

from tilewright.array_digests import digest_array
from tilewright.cached import cached_property
from tilewright.errors import ArgumentError, TilewrightError
from tilewright.frontend.references import closure, references

_MAX_DEPTH = 200
_MAX_VALUES = 200_000
_EXACT = (int, bool, str, bytes, type(None), type(...), type(NotImplemented))
_KNOWN_PACKAGES = frozenset({*sys.stdlib_module_names, "numpy", "ml_dtypes", "tilewright"}) - {"__main__"}
# Their items of these types are told apart by `repr`: True from 1, 1 from "1".
_REPEATABLE = frozenset({int, bool, str, type(None)})
# Classes written in C of which `_items` and `_state` see everything.
_OPEN_CLASSES = frozenset({object, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, BaseException})
_CACHED = (functools.cached_property, cached_property)
_DESCRIPTORS = (
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
    ClassMethodDescriptorType,
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})
# What Python adds to each class, and says nothing of what its methods do.
_CLASS_NOISE = frozenset(
    {
        "__abstractmethods__",
        "__annotations__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__module__",
        "__orig_bases__",
        "__parameters__",
        "__static_attributes__",
        "__weakref__",
        "_abc_impl",
    }
)


# `type`, but with a result whose attributes a type checker does not ask about.
_kind_of: Callable[[Any], Any] = type


class StaticValue:
    """A compile-time value that is compared by its `static_key`."""

    __slots__ = ("key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.key = static_key(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticValue) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return repr(self.value)


def static_key(value: Any) -> Any:
    """A hashable key of a compile-time value: equal where type, structure and bits are equal. Objects of other classes
    than containers, dataclasses and `msgspec.Struct` are compared as their class does.

    Raises:
        TypeError: the value, or one inside it, cannot be hashed.
    """
    kind = _kind_of(value)
    if kind in _EXACT:
        return kind, value
    if kind is float:
        return kind, struct.pack("<d", value)
    if kind is complex:
        return kind, struct.pack("<dd", value.real, value.imag)
    if isinstance(value, np.generic):
        return kind, value.dtype.str, value.tobytes()
    if isinstance(value, tuple):
        items: Any = tuple.__iter__(value)  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
        return kind, tuple([static_key(item) for item in items])
    if kind is frozenset:
        return kind, frozenset(map(static_key, value))
    if dataclasses.is_dataclass(kind) and not isinstance(value, type):
        hash(value)
        return kind, tuple([_field_key(value, field) for field in dataclasses.fields(value)])
    hash(value)
    struct_fields: tuple[str, ...] | None = getattr(kind, "__struct_fields__", None)  # of a class of msgspec's
    if struct_fields is not None and not isinstance(value, type):
        return kind, tuple([static_key(getattr(value, name)) for name in struct_fields])
    return kind, value


class _Same:
    """An object that equals itself alone: a field that its dataclass leaves out of comparisons and cannot hash."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _field_key(value: object, field: dataclasses.Field[object]) -> Any:
    content = getattr(value, field.name, None)
    if field.compare:
        return static_key(content)
    try:
        return static_key(content)
    except TypeError:
        return _Same(content)


def content_digest(value: object, name: str) -> str:
    """A digest of a value and all that it reaches, in hex; `name` stands for the value in errors.

    Raises:
        ArgumentError: a value that is reached has no content that can be read, such as an open file.
    """
    return _Walk().digest(value, name).hex()


class UnidentifiedError(Exception):
    """A value's content cannot be read; `path` states how it is reached."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(what)
        self.path = path
        self.what = what


class _Walk:
    """One walk over everything that a value reaches. Each object is hashed once, by the digests of its parts; a part
    that contains the object again counts by how many objects are between."""

    def __init__(self) -> None:
        self._done: dict[int, bytes] = {}
        self._open: dict[int, int] = {}
        # Values that only attributes produce live until the end, so that no other value gets their addresses.
        self._kept: list[Any] = []

    def digest(self, value: object, name: str) -> bytes:
        try:
            return self._digest(value, name)
        except UnidentifiedError as error:
            message = f"`{error.path}` is {error.what}, so code that uses it cannot be identified"
            help = "use numbers, strings, arrays, tuples, functions, or objects that hold only such values"
            raise ArgumentError(message, help=help) from None

    def _digest(self, value: Any, path: str) -> bytes:
        kind = _kind_of(value)
        if kind in _EXACT or kind is float or kind is complex or isinstance(value, np.generic):
            return _hashed("value", kind.__qualname__, repr(static_key(value)[1:]))
        identity = id(value)
        if identity in self._done:
            return self._done[identity]
        if identity in self._open:
            return _hashed("within", len(self._open) - self._open[identity])
        if len(self._open) >= _MAX_DEPTH or len(self._kept) >= _MAX_VALUES:
            raise UnidentifiedError(path, "one of too many values that reach each other")
        self._open[identity] = len(self._open)
        self._kept.append(value)
        parts = [_hashed(part) if isinstance(part, str | int) else part for part in self._parts(value, path)]
        del self._open[identity]
        result = self._done[identity] = _hashed(*parts)
        return result

    def _parts(self, value: object, path: str) -> Iterator[str | int | bytes]:
        """The identity of a value: texts, integers and digests."""
        if isinstance(value, ModuleType):
            yield from self._module(value, path)
        elif isinstance(value, FunctionType):
            yield from self._function(value, path)
        elif isinstance(value, CodeType):
            yield from self._code(value, path)
        elif isinstance(value, type):
            yield from self._class(value, path)
        elif isinstance(value, MethodType):
            yield "method"
            yield self._digest(value.__func__, path)
            yield self._digest(value.__self__, path)
        elif isinstance(value, np.ndarray):
            yield from self._array(value, path)
        elif _kind_of(value) in (property, staticmethod, classmethod):
            yield _kind_of(value).__name__
            names = ("fget", "fset", "fdel") if isinstance(value, property) else ("__func__",)
            for name in names:
                yield self._digest(getattr(value, name), f"{path}.{name}")
        elif hasattr(value, "__dlpack__"):
            yield f"array of {type(value).__module__}.{type(value).__qualname__}"
            yield self._digest(_as_numpy(value, path), path)
        else:
            yield self._digest(type(value), path)
            yield from self._object(value, path)

    # ---- functions and modules ----------------------------------------------------------------------------------

    def _function(self, value: FunctionType, path: str) -> Iterator[str | int | bytes]:
        yield f"function {value.__module__}.{value.__qualname__}"
        if _is_known(value.__module__):
            # A function that a library made around the user's values.
            yield self._digest(closure(value), path)
            return
        yield self._digest(value.__code__, path)
        yield self._digest(value.__defaults__, f"{path}.__defaults__")
        yield self._digest(value.__kwdefaults__, f"{path}.__kwdefaults__")
        yield self._digest(vars(value), path)
        for reference, referenced in sorted(references(value).items()):
            yield reference
            yield self._digest(referenced, reference)

    def _code(self, code: CodeType, path: str) -> Iterator[str | int | bytes]:
        """A code object without the file that it was read from."""
        yield "code"
        yield code.co_name
        yield hashlib.blake2b(code.co_code + code.co_exceptiontable, digest_size=16).digest()
        yield code.co_flags
        yield from (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
            yield repr(names)
        for constant in code.co_consts:
            yield self._digest(constant, path)

    def _module(self, value: ModuleType, path: str) -> Iterator[str | int | bytes]:
        """A module that is used other than for one of its attributes: its text, and its plain values now."""
        yield f"module {value.__name__}"
        if _is_known(value.__name__):
            return
        spec = getattr(value, "__spec__", None) or importlib.util.find_spec(value.__name__)
        origin = getattr(spec, "origin", None) or getattr(value, "__file__", None)
        if origin is not None:
            yield _file_digest(origin, path)
        for name, item in sorted(vars(value).items()):
            if isinstance(item, int | float | str | bytes | tuple | np.ndarray | np.generic) and name[:2] != "__":
                yield name
                yield self._digest(item, f"{path}.{name}")

    def _class(self, value: type, path: str) -> Iterator[str | int | bytes]:
        """A class: its own attributes and methods, its bases and its metaclass."""
        yield f"class {value.__module__}.{value.__qualname__}"
        if _is_known(value.__module__):
            return
        if (file := _installed_file(value.__module__)) is not None:
            yield _file_digest(file, path)
            return
        for base in (type(value), *value.__mro__[1:]):
            yield self._digest(base, path)
        is_enum = issubclass(value, enum.Enum)
        if is_enum:
            members: Any = value.__members__.items()
            for name, member in members:
                yield name
                yield self._digest(member.value, f"{path}.{name}")
        for name, item in sorted(vars(value).items()):
            if name not in _CLASS_NOISE and not (is_enum and _is_of_enum(item)):
                yield name
                yield self._digest(item, f"{path}.{name}")

    # ---- values with a state ------------------------------------------------------------------------------------

    def _array(self, value: Any, path: str) -> Iterator[str | int | bytes]:
        yield f"array {value.dtype!r} {value.dtype.descr if value.dtype.names else value.dtype.str}"
        plain = value.view(np.ndarray)
        if value.dtype.hasobject:
            yield repr(value.shape)
            yield self._digest(plain.reshape(-1).tolist(), path)
        else:
            yield digest_array(plain)
        if type(value) is not np.ndarray:
            yield self._digest(type(value), path)
            yield self._digest(getattr(value, "__dict__", {}), f"{path}.__dict__")

    def _object(self, value: Any, path: str) -> Iterator[str | int | bytes]:
        if isinstance(value, np.dtype):
            yield f"{value!r} {value.str}"
        elif isinstance(value, enum.Enum):
            yield value.name
            yield self._digest(value.value, f"{path}.value")
        elif isinstance(value, BuiltinFunctionType):
            yield f"{value.__module__}.{value.__qualname__}"
            if value.__self__ is not None and not isinstance(value.__self__, ModuleType):
                yield self._digest(value.__self__, path)
        elif isinstance(value, _DESCRIPTORS):
            yield f"{value.__objclass__.__qualname__}.{value.__name__}"
        elif isinstance(value, _CACHED):
            yield self._digest(value.func, path)
        elif isinstance(value, np.ufunc):
            yield value.__name__
            if getattr(np, value.__name__, None) is not value:
                raise UnidentifiedError(path, "a ufunc that is not one of NumPy's")
        elif hasattr(value, "__wrapped__") and _is_known(type(value).__module__):
            # A function of `tw.jit` or `tw.kernel`, or one behind a cache of Python.
            yield self._digest(value.__wrapped__, path)
        else:
            yield from self._content(value, path)

    def _content(self, value: object, path: str) -> Iterator[str | int | bytes]:
        """The items of a container, the attributes of an object, and what a class written in C keeps."""
        yield from self._items(value, path)
        for name, item in sorted(_state(value).items()):
            yield name
            yield self._digest(item, f"{path}.{name}")
        if not _hides_state(value):
            return
        try:
            reduce = copyreg.dispatch_table.get(_kind_of(value))
            reduced: Any = reduce(value) if reduce is not None else value.__reduce_ex__(4)
        except Exception:
            what = f"an object of type `{type(value).__qualname__}`, whose content cannot be read"
            raise UnidentifiedError(path, what) from None
        if isinstance(reduced, str):
            yield reduced
            return
        for part in reduced:
            # Iterators give the items of a container, such as a deque.
            yield self._digest([*part] if hasattr(part, "__next__") else part, path)

    def _items(self, value: object, path: str) -> Iterator[str | int | bytes]:
        for base in (int, float, complex, str, bytes):
            if isinstance(value, base):
                yield repr(static_key(base.__getnewargs__(value)))
        if isinstance(value, tuple | list):
            base: Any = tuple if isinstance(value, tuple) else list
            items: list[Any] = [*base.__iter__(value)]
            if set(map(type, items)) <= _REPEATABLE:
                yield repr(items)
                return
            for index, item in enumerate(items):
                yield self._digest(item, f"{path}[{index}]")
        elif isinstance(value, dict):
            pairs: Any = dict.items(value)  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType]
            for index, (key, item) in enumerate(pairs):
                yield self._digest(key, f"key {index} of {path}")
                yield self._digest(
                    item, f"{path}[{key!r}]" if isinstance(key, str | int) else f"item {index} of {path}"
                )
        elif isinstance(value, set | frozenset):
            members: Any = [*value]  # pyright: ignore[reportUnknownVariableType]
            yield from sorted(self._digest(item, f"an item of {path}") for item in members)


def _hashed(*parts: bytes | str | int) -> bytes:
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part if isinstance(part, bytes) else f"{type(part).__name__} {part}".encode()
        hasher.update(len(content).to_bytes(8, "little") + content)
    return hasher.digest()


def _is_known(module: object) -> bool:
    """Whether a module's code is identified by the versions in every cache key."""
    return isinstance(module, str) and module.split(".")[0] in _KNOWN_PACKAGES


def _is_of_enum(item: object) -> bool:
    """Whether Python's enumerations add an attribute to their classes, or it is a member."""
    is_function = _kind_of(item) in (FunctionType, property, classmethod, staticmethod)
    return not is_function or getattr(item, "__module__", None) == "enum"


def _state(value: object) -> dict[str, Any]:
    """The instance attributes of an object, by name; those in slots included."""
    state: dict[str, Any] = {}
    for kind in type(value).__mro__:
        slots: Any = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            name = f"_{kind.__name__.lstrip('_')}{slot}" if slot[:2] == "__" and slot[-2:] != "__" else slot
            if slot not in ("__dict__", "__weakref__") and hasattr(value, name):
                state[name] = getattr(value, name)
    for name, item in dict(getattr(value, "__dict__", {})).items():
        # What follows from the other attributes is there or not, as it was asked for or not.
        if not isinstance(getattr(_kind_of(value), name, None), _CACHED):
            state[name] = item
    return state


def _hides_state(value: object) -> bool:
    """Whether a class written in C keeps something in its instances that is neither an item nor an attribute."""
    kinds = [kind for kind in type(value).__mro__ if kind not in _OPEN_CLASSES]
    return any(map(_has_fields_in_c, kinds)) or type(value) is object


@functools.cache
def _has_fields_in_c(kind: type) -> bool:
    """Whether instances of a class are larger than its base, its slots, a dict and weak references account for."""
    base: Any = kind.__base__
    slots: Any = vars(kind).get("__slots__", ())
    names = {slots} if isinstance(slots, str) else {*slots}
    pointers = len(names - {"__dict__", "__weakref__"}) + ("__dict__" in vars(kind)) + ("__weakref__" in vars(kind))
    return kind.__basicsize__ > base.__basicsize__ + 8 * pointers or kind.__itemsize__ != base.__itemsize__


def _as_numpy(value: object, path: str) -> Any:
    from tilewright.runtime.dlpack import to_numpy

    try:
        return to_numpy(value)[0]
    except TilewrightError as error:
        raise UnidentifiedError(path, f"an array that cannot be read here ({error.message})") from None


def _installed_file(module: str) -> str | None:
    """The file of a module that is installed as part of a package; None for others, whose classes are walked."""
    file = getattr(sys.modules.get(module), "__file__", None)
    is_installed = file is not None and not _INSTALLED.isdisjoint(file.split(os.sep))
    return file if is_installed else None


@functools.lru_cache(maxsize=256)
def _file_digest(origin: str, path: str) -> bytes:
    try:
        with open(origin, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
    except OSError:
        raise UnidentifiedError(path, "a module whose file cannot be read") from None
