"""Dataclasses that are quick to define.

`dataclasses.dataclass` compiles six methods of each class when the class is defined, in half a millisecond, and a
process that compiles a small program imports hundreds of classes and makes instances of some. Here comparison, hash and
text are functions over the names of the fields, and the constructor is compiled when it is first looked up.
"""

from __future__ import annotations

import dataclasses
import inspect
from abc import update_abstractmethods
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

_standard = dataclasses.dataclass

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """Define a dataclass as `dataclasses.dataclass` does, which defines those with slots and other rare options."""
        return _defined(cls, **options) if cls is not None else lambda cls: _defined(cls, **options)


def _defined(
    cls: type, *, frozen: bool = False, init: bool = True, repr: bool = True, eq: bool = True, **rare: bool
) -> type:
    annotations = inspect.get_annotations(cls)
    if rare or any("InitVar" in str(annotation) for annotation in annotations.values()):
        made: type = _standard(frozen=frozen, init=init, repr=repr, eq=eq, **rare)(cls)
        return made
    _set_fields(cls, annotations, {"frozen": frozen, "init": init, "repr": repr, "eq": eq})
    methods: dict[str, Any] = {}
    if init:
        methods["__init__"] = _Constructor(cls, frozen)
    if repr:
        methods["__repr__"] = _repr(cls)
    if eq:
        methods["__eq__"] = _eq(cls)
        methods["__hash__"] = _hash(cls) if frozen else None
    if frozen:
        methods["__setattr__"], methods["__delattr__"] = _frozen(cls)
    own = {name for name, method in vars(cls).items() if method is not None}  # a comparison alone makes its hash None
    for name, method in methods.items():
        if name not in own:
            setattr(cls, name, method)
    return update_abstractmethods(cls)


def _set_fields(cls: Any, annotations: dict[str, Any], options: dict[str, bool]) -> None:
    """Set what `dataclasses` reads of a class: its fields, its options, and defaults as values of the class."""
    own = {name: vars(cls)[name] for name in annotations if name in vars(cls)}
    # The standard library makes the fields, of a class that has only these, no methods, and a text: to a class without
    # one it gives its signature, which takes long to make.
    twin: Any = type(
        cls.__name__, (), {"__module__": cls.__module__, "__annotations__": annotations, "__doc__": "-", **own}
    )
    _standard(init=False, repr=False, eq=False)(twin)
    for name, value in own.items():
        if isinstance(value, dataclasses.Field):
            if name in vars(twin):
                setattr(cls, name, vars(twin)[name])
            else:
                delattr(cls, name)
    for option, value in options.items():
        setattr(twin.__dataclass_params__, option, value)
    cls.__dataclass_params__ = twin.__dataclass_params__
    fields: dict[str, Any] = {}
    for base in (*reversed(cls.__mro__[1:]), twin):
        fields |= getattr(base, "__dataclass_fields__", {})
    cls.__dataclass_fields__ = fields
    if "__match_args__" not in vars(cls):
        cls.__match_args__ = tuple(each.name for each in dataclasses.fields(cls) if each.init and not each.kw_only)
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__


def _values(names: list[str]) -> Callable[[object], tuple[Any, ...]]:
    """The values of fields as a tuple."""
    if not names:
        return lambda record: ()
    values = attrgetter(*names)
    return values if len(names) > 1 else lambda record: (values(record),)


def _eq(cls: type) -> Callable[[Any, object], bool]:
    values = _values([field.name for field in dataclasses.fields(cls) if field.compare])

    def __eq__(self: Any, other: object) -> bool:
        if other.__class__ is self.__class__:
            return values(self) == values(other)
        return NotImplemented

    return __eq__


def _hash(cls: type) -> Callable[[Any], int]:
    fields = dataclasses.fields(cls)
    values = _values([field.name for field in fields if (field.compare if field.hash is None else field.hash)])
    return lambda self: hash(values(self))


def _repr(cls: type) -> Callable[[Any], str]:
    names = [field.name for field in dataclasses.fields(cls) if field.repr]

    def __repr__(self: Any) -> str:
        return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return recursive_repr()(__repr__)


def _frozen(cls: type) -> tuple[Callable[..., None], Callable[..., None]]:
    names = frozenset(field.name for field in dataclasses.fields(cls))

    def __setattr__(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return __setattr__, __delattr__


class _Constructor:
    """Compiles the constructor of a class when it is first looked up, which then takes its place."""

    def __init__(self, cls: type, frozen: bool) -> None:
        self._cls = cls
        self._frozen = frozen

    def __get__(self, record: object | None, owner: type | None = None) -> Any:
        constructor = _constructor(self._cls, self._frozen)
        self._cls.__init__ = constructor
        return constructor.__get__(record, owner)


def _constructor(cls: type, frozen: bool) -> Any:
    """The function of the text `def __init__(self, a, b=...): self.a = a; self.b = b`."""
    known: dict[str, Any] = {"_missing": dataclasses.MISSING, "_set": object.__setattr__}
    parameters: list[str] = []
    body: list[str] = []
    for field in sorted(dataclasses.fields(cls), key=lambda field: bool(field.kw_only)):
        name, value = field.name, field.name
        if field.kw_only and field.init and "*" not in parameters:
            parameters.append("*")
        if field.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"], known[f"_{name}"] = field.default_factory, dataclasses.MISSING
            value = f"_make_{name}() if {name} is _missing else {name}" if field.init else f"_make_{name}()"
        elif field.default is not dataclasses.MISSING:
            known[f"_{name}"] = field.default
        elif not field.init:
            continue
        if field.init:
            parameters.append(f"{name}=_{name}" if f"_{name}" in known else name)
        elif field.default_factory is dataclasses.MISSING:
            continue  # the class has the default
        body.append(f"_set(self, '{name}', {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    text = f"def __init__({', '.join(['self', *parameters])}):\n " + "\n ".join(body or ["pass"])
    exec(text, known)
    constructor = known["__init__"]
    constructor.__module__, constructor.__qualname__ = cls.__module__, f"{cls.__qualname__}.__init__"
    return constructor
