"""Dataclasses that are quick to define.

`dataclasses.dataclass` compiles six methods of each class when the class is defined, in half a millisecond, and a
process that compiles a small program imports hundreds of classes and uses some. Here all that is derived from the
fields, and the fields themselves, are made when they are first looked up.
"""

from __future__ import annotations

import dataclasses
from abc import update_abstractmethods
from collections.abc import Callable, Mapping
from functools import cache
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, cast

_standard: Any = dataclasses.dataclass

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """Define a dataclass as `dataclasses.dataclass` does, which defines those with rare options."""
        return _defined(cls, **options) if cls is not None else lambda cls: _defined(cls, **options)


def _defined(
    cls: Any,
    *,
    frozen: bool = False,
    init: bool = True,
    repr: bool = True,
    eq: bool = True,
    slots: bool = False,
    **rare: bool,
) -> Any:
    options = {"frozen": frozen, "init": init, "repr": repr, "eq": eq}
    if rare or any(map(_is_init_var, cls.__annotations__.values())):
        return _standard(slots=slots, **options, **rare)(cls)
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__
    names = ["__dataclass_fields__", "__dataclass_params__", "__match_args__"]
    names += [*["__init__"] * init, *["__repr__"] * repr, *["__eq__"] * eq, *["__hash__"] * (eq and frozen)]
    names += ["__setattr__", "__delattr__"] * frozen
    if slots:  # a second class, which has its fields from the beginning
        cls = _standard(init=False, repr=False, eq=False, slots=True)(cls)
        made = _Derived(cls, {}, {}, options)
        cls.__dataclass_params__ = made.parameters()
        if frozen:
            cls.__getstate__, cls.__setstate__ = _state, _set_state
    else:
        made = _Derived(cls, cls.__annotations__, _taken_defaults(cls), options)
    given = cast("Mapping[str, Any]", cls.__dict__)
    own = {name for name, method in given.items() if method is not None}  # a comparison alone makes its hash None
    for name in names:
        if name not in own:
            setattr(cls, name, _Late(made, name))
    if eq and not frozen and "__hash__" not in own:
        cls.__hash__ = None
    return update_abstractmethods(cls)


def _taken_defaults(cls: Any) -> dict[str, Any]:
    """The defaults of fields as the class states them; values take the place of what `dataclasses.field` returned."""
    given = cast("Mapping[str, Any]", cls.__dict__)
    defaults = {name: given[name] for name in cls.__annotations__ if name in given}
    for name, value in defaults.items():
        if isinstance(value, dataclasses.Field):
            default: Any = cast("dataclasses.Field[Any]", value).default
            if default is dataclasses.MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, default)
    return defaults


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    """Set the slots of a frozen record, which is being copied."""
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


def _is_init_var(annotation: object) -> bool:
    return "InitVar" in annotation if isinstance(annotation, str) else isinstance(annotation, dataclasses.InitVar)


class _Late:
    """Attribute of a class that is made when it is first looked up, and replaces this object then."""

    def __init__(self, made: _Derived, name: str) -> None:
        self._made = made
        self._name = name

    def __get__(self, record: object | None, owner: type | None = None) -> Any:
        value = _MAKERS[self._name](self._made)
        setattr(self._made.cls, self._name, value)
        return value.__get__(record, owner) if hasattr(value, "__get__") else value


class _Derived:
    """Attributes derived from the annotations of a class, its defaults by field, and the options of its definition."""

    def __init__(
        self, cls: Any, annotations: Mapping[str, Any], defaults: Mapping[str, Any], options: Mapping[str, bool]
    ) -> None:
        self.cls = cls
        self._annotations = annotations
        self._defaults = defaults
        self._options = options

    def fields(self) -> dict[str, dataclasses.Field[Any]]:
        """Fields by name, those of bases first."""
        found: dict[str, dataclasses.Field[Any]] = {}
        for base in reversed(self.cls.__mro__[1:]):
            found |= getattr(base, "__dataclass_fields__", {})
        return found | self._twin(self._annotations, self._defaults).__dataclass_fields__

    def parameters(self) -> Any:
        """The options as `dataclasses` keeps them."""
        found = self._twin({}, {}).__dataclass_params__
        for name, value in self._options.items():
            setattr(found, name, value)
        return found

    def _twin(self, annotations: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
        """A class of the standard library with the same fields and nothing else. It has a text: to a class without one
        the library gives its signature, which takes long to make."""
        names = {"__module__": self.cls.__module__, "__annotations__": dict(annotations), "__doc__": "-"}
        return _standard(init=False, repr=False, eq=False)(type(self.cls.__name__, (), {**defaults, **names}))

    def match_args(self) -> tuple[str, ...]:
        return tuple(field.name for field in dataclasses.fields(self.cls) if field.init and not field.kw_only)

    def eq(self) -> Callable[[Any, object], bool]:
        return _eq(tuple(field.name for field in dataclasses.fields(self.cls) if field.compare))

    def hash(self) -> Callable[[Any], int]:
        fields = dataclasses.fields(self.cls)
        return _hash(tuple(field.name for field in fields if (field.compare if field.hash is None else field.hash)))

    def repr(self) -> Callable[[Any], str]:
        names = [field.name for field in dataclasses.fields(self.cls) if field.repr]

        def __repr__(self: Any) -> str:
            return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

        return recursive_repr()(__repr__)

    def setattr(self) -> Callable[..., None]:
        cls: type = self.cls
        names = frozenset(field.name for field in dataclasses.fields(self.cls))

        def __setattr__(self: Any, name: str, value: object) -> None:
            if type(self) is cls or name in names:
                raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
            super(cls, self).__setattr__(name, value)

        return __setattr__

    def delattr(self) -> Callable[..., None]:
        cls: type = self.cls
        names = frozenset(field.name for field in dataclasses.fields(self.cls))

        def __delattr__(self: Any, name: str) -> None:
            if type(self) is cls or name in names:
                raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
            super(cls, self).__delattr__(name)

        return __delattr__

    def init(self) -> Any:
        """The function of the text `def __init__(self, a, b=...): self.a = a; self.b = b`."""
        known: dict[str, Any] = {"_missing": dataclasses.MISSING, "_set": object.__setattr__}
        parameters: list[str] = []
        body: list[str] = []
        for field in sorted(dataclasses.fields(self.cls), key=lambda field: bool(field.kw_only)):
            name, value = field.name, field.name
            if field.kw_only and field.init and "*" not in parameters:
                parameters.append("*")
            if field.default_factory is not dataclasses.MISSING:
                known[f"_make_{name}"], known[f"_{name}"] = field.default_factory, dataclasses.MISSING
                value = f"_make_{name}() if {name} is _missing else {name}" if field.init else f"_make_{name}()"
            elif not field.init:
                continue  # the class has its default, if any
            elif field.default is not dataclasses.MISSING:
                known[f"_{name}"] = field.default
            if field.init:
                parameters.append(f"{name}=_{name}" if f"_{name}" in known else name)
            body.append(f"_set(self, '{name}', {value})" if self._options["frozen"] else f"self.{name} = {value}")
        if hasattr(self.cls, "__post_init__"):
            body.append("self.__post_init__()")
        text = f"def __init__({', '.join(['self', *parameters])}):\n " + "\n ".join(body or ["pass"])
        made = _function("__init__", text, known)
        types = {field.name: field.type for field in dataclasses.fields(self.cls) if field.init}
        made.__annotations__ = {**types, "return": None}
        made.__module__, made.__qualname__ = self.cls.__module__, f"{self.cls.__qualname__}.__init__"
        return made


@cache
def _eq(names: tuple[str, ...]) -> Callable[[Any, object], bool]:
    """The comparison of all classes that have these fields."""
    left, right = _tuple("self", names), _tuple("other", names)
    same = f"if other.__class__ is self.__class__:\n  return {left} == {right}"
    return _function("__eq__", f"def __eq__(self, other):\n {same}\n return NotImplemented", {})


@cache
def _hash(names: tuple[str, ...]) -> Callable[[Any], int]:
    return _function("__hash__", f"def __hash__(self):\n return hash({_tuple('self', names)})", {})


def _tuple(record: str, names: tuple[str, ...]) -> str:
    return f"({''.join(f'{record}.{name}, ' for name in names)})"


def _function(name: str, text: str, known: dict[str, Any]) -> Any:
    """The function that a text defines, which may use what is `known`."""
    exec(text, known)
    return known[name]


_MAKERS: dict[str, Callable[[_Derived], Any]] = {
    "__dataclass_fields__": _Derived.fields,
    "__dataclass_params__": _Derived.parameters,
    "__match_args__": _Derived.match_args,
    "__init__": _Derived.init,
    "__repr__": _Derived.repr,
    "__eq__": _Derived.eq,
    "__hash__": _Derived.hash,
    "__setattr__": _Derived.setattr,
    "__delattr__": _Derived.delattr,
}
