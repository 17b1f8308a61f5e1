"""Options: how to compile and run, never what to compile.

One typed definition gives the context manager and decorator `options(debug=4)`, the variable `TW_DEBUG=4`, the CLI
flag `--debug 4` and the keyword. The innermost context wins, then the environment, then the default. A new thread
starts with the environment's options, as context variables do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import field
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from pathlib import Path
from types import FunctionType
from typing import Any, ParamSpec, SupportsIndex, TypeGuard, TypeVar, cast

from tilewright.errors import OptionError, user_location
from tilewright.records import dataclass

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_BYTE_UNITS = {"": 1, "b": 1, "k": 2**10, "kib": 2**10, "m": 2**20, "mib": 2**20, "g": 2**30, "gib": 2**30}
_TRUE = {"1", "on", "true", "yes"}
_FALSE = {"0", "off", "false", "no"}


@dataclass(frozen=True)
class _Kind:
    """How one option reads its value: `parse` takes text or a typed value and raises ValueError on anything else."""

    parse: Callable[[object], Any]
    takes: str
    example: str


def _whole(value: object) -> int:
    """A whole number, as Python's or NumPy's or as text."""
    if isinstance(value, bool):
        raise ValueError
    return int(value) if isinstance(value, str) else operator.index(cast("SupportsIndex", value))


def _integer(low: int, high: int) -> _Kind:
    def parse(value: object) -> int:
        number = _whole(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return _Kind(parse, f"an integer from {low} to {high}", str(min(high, max(low, 1))))


def _parse_switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in _TRUE | _FALSE:
        raise ValueError
    return text in _TRUE


def _parse_bytes(value: object) -> int:
    text = str(value if isinstance(value, str) else _whole(value)).strip().lower()
    digits = text.rstrip("kmgib")
    number = int(digits) * _BYTE_UNITS[text[len(digits) :]] if text[len(digits) :] in _BYTE_UNITS else -1
    if number < 0:
        raise ValueError
    return number


def _parse_path(value: object) -> Path | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str | os.PathLike):
        raise ValueError
    if "\0" in os.fsdecode(value):
        raise ValueError
    try:
        return Path(os.fsdecode(value)).expanduser()
    except RuntimeError:  # `~name` of a user whom the system does not know
        raise ValueError from None


def _parse_text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value.strip()


def _choice(*names: str) -> _Kind:
    def parse(value: object) -> str:
        if value not in names:
            raise ValueError
        return str(value)

    return _Kind(parse, "one of " + ", ".join(names), names[0])


_SWITCH = _Kind(_parse_switch, "on or off", "on")
_BYTES = _Kind(_parse_bytes, "a number of bytes, with an optional KiB, MiB or GiB", "4GiB")
_PATH = _Kind(_parse_path, "a path", "./tilewright-out")
_TEXT = _Kind(_parse_text, "a name", "cpu")


def _about(kind: _Kind, doc: str) -> dict[str, Any]:
    return {"kind": kind, "doc": doc}


@dataclass(frozen=True)
class Options:
    """All options with their defaults. `replace`, `from_environment` and `from_cli` check the values that they take."""

    debug: int = field(
        default=0,
        metadata=_about(
            _integer(0, 7),
            "What to print on stderr: 1 devices and cache, 2 launches, 3 schedules, 4 source, 5 IR per phase, "
            "6 IR per pass, 7 machine code; from 3 on programs are compiled anew, not taken from the cache",
        ),
    )
    verify: int = field(
        default=1, metadata=_about(_integer(0, 2), "Verify the IR: 0 never, 1 at phase borders, 2 after each pass")
    )
    target: str = field(default="cpu", metadata=_about(_TEXT, "What to compile for: `target` or `target:machine`"))
    cache: bool = field(default=True, metadata=_about(_SWITCH, "Keep compiled programs on disk"))
    cache_dir: Path | None = field(
        default=None, metadata=_about(_PATH, "Where the compile cache lives; empty for the user's cache directory")
    )
    cache_limit_bytes: int = field(
        default=4 * 2**30, metadata=_about(_BYTES, "Size above which the oldest cache entries are removed; 0 for never")
    )
    threads: int = field(
        default=0, metadata=_about(_integer(0, 256), "CPU threads of one call; 0 for one per usable physical core")
    )
    memory_limit_bytes: int = field(
        default=0, metadata=_about(_BYTES, "Most memory that one call may allocate; 0 for what the machine has")
    )
    dump_dir: Path | None = field(
        default=None, metadata=_about(_PATH, "Where to write what is compiled: IR of each phase, LLVM IR, assembly")
    )
    events_file: Path | None = field(
        default=None, metadata=_about(_PATH, "Where to append the structured log, one JSON object a line")
    )
    trace_file: Path | None = field(
        default=None,
        metadata=_about(_PATH, "Where to write what ran when, for Perfetto: the zones of kernels that run on GPUs"),
    )
    color: str = field(
        default="auto", metadata=_about(_choice("auto", "always", "never"), "Colour what is printed on stderr")
    )

    def replace(self, **changes: object) -> Options:
        """A copy with `changes` applied.

        Raises:
            OptionError: a name that is no option, or a value outside its type.
        """
        return _apply(self, changes, "`{}`".format)

    @staticmethod
    def from_environment(environ: Mapping[str, str]) -> Options:
        """The defaults with each `TW_*` variable in `environ` applied; an empty variable counts as not set.

        Raises:
            OptionError: a variable with a value outside its option's type.
        """
        given = {spec.name: environ[spec.variable] for spec in specs() if environ.get(spec.variable)}
        return _apply(Options(), given, lambda name: f"`{_variable(name)}`")

    @staticmethod
    def from_cli(values: Mapping[str, object]) -> Options:
        """The current options with the flags of a command line applied; None counts as not given.

        Raises:
            OptionError: a name that is no option, or a value outside its type.
        """
        given = {name.replace("-", "_"): value for name, value in values.items() if value is not None}
        return _apply(current(), given, lambda name: f"`{_flag(name)}`")


@dataclass(frozen=True)
class OptionSpec:
    """One option for help texts and parsers: `takes` describes its values in words."""

    name: str
    default: object
    takes: str
    doc: str
    variable: str
    flag: str


@functools.cache
def specs() -> tuple[OptionSpec, ...]:
    """Every option in the order of definition."""
    return tuple(
        OptionSpec(f.name, f.default, f.metadata["kind"].takes, f.metadata["doc"], _variable(f.name), _flag(f.name))
        for f in dataclasses.fields(Options)
    )


def _variable(name: str) -> str:
    return "TW_" + name.upper()


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


@functools.cache
def _kinds() -> dict[str, _Kind]:
    return {f.name: f.metadata["kind"] for f in dataclasses.fields(Options)}


def _apply(base: Options, changes: Mapping[str, object], spelling: Callable[[str], str]) -> Options:
    kinds = _kinds()
    checked = {}
    for name, value in changes.items():
        if name not in kinds:
            import difflib

            near = difflib.get_close_matches(name, kinds, n=1, cutoff=0.5)
            hint = f"did you mean {spelling(near[0])}?" if near else "the options are " + ", ".join(kinds)
            raise OptionError(f"there is no option {spelling(name)}", help=hint)
        try:
            checked[name] = kinds[name].parse(value)
        except (ValueError, TypeError):
            raise OptionError(
                f"{spelling(name)} is {value!r}, but takes {kinds[name].takes}",
                help=f"give it a value such as {kinds[name].example}",
            ) from None
    return dataclasses.replace(base, **checked)


@dataclass(eq=False, slots=True)
class _Entered:
    """The options of a context that was entered. `has_ended`: another thread ended it, which cannot take it off the
    contexts of the thread that entered it."""

    owner: options
    options: Options
    has_ended: bool = False


_contexts: ContextVar[tuple[_Entered, ...]] = ContextVar("tilewright_options", default=())


@functools.cache
def _environment_options() -> Options:
    return Options.from_environment(os.environ)


def _runs_later(function: Callable[..., object]) -> TypeGuard[FunctionType]:
    """Whether calling a function only makes a generator or a coroutine."""
    later = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
    return isinstance(function, FunctionType) and bool(function.__code__.co_flags & later)


def current() -> Options:
    """The options in force here. The environment is read once, at the first call.

    Raises:
        OptionError: a `TW_*` variable has a value outside its option's type.
    """
    contexts = _contexts.get()
    if contexts and contexts[-1].has_ended:
        contexts = tuple(each for each in contexts if not each.has_ended)
        _contexts.set(contexts)
    return contexts[-1].options if contexts else _environment_options()


class options:
    """`with options(debug=4):` or `@options(debug=4)`: these options inside, on top of those in force on entry.

    Raises:
        OptionError: a name that is no option, or a value outside its type, when it is made; a decorated function that
            is a generator or a coroutine, whose body runs after the call.
    """

    def __init__(self, base: Options | None = None, /, **changes: object) -> None:
        try:
            (base or Options()).replace(**changes)
        except OptionError as error:
            error.location = user_location()
            raise
        self._base = base
        self._changes = changes
        self._entered: list[_Entered] = []

    def __enter__(self) -> Options:
        chosen = (self._base or current()).replace(**self._changes)
        entered = _Entered(self, chosen)
        self._entered.append(entered)
        _contexts.set((*_contexts.get(), entered))
        return chosen

    def __exit__(self, *exception: object) -> None:
        # Contexts in generators end in any order, and in the thread whose garbage collection closes the generator.
        entered = _contexts.get()
        own = [each for each in entered if each.owner is self]
        if own:
            _contexts.set(tuple(each for each in entered if each is not own[-1]))
            with contextlib.suppress(ValueError):  # a copy of the context, such as that of a task, has ended it
                self._entered.remove(own[-1])
        elif self._entered:
            self._entered.pop().has_ended = True

    def __call__(self, function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        if _runs_later(function):
            raise OptionError(
                f"the body of `{function.__name__}` runs after the call, without the options of its decorator",
                location=user_location(),
                help="write `with options(...):` in the body",
            )

        @functools.wraps(function)
        def with_options(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            with self:
                return function(*args, **kwargs)

        return with_options
