"""Dataclasses that are quick to define, against those of the standard library."""

from __future__ import annotations

import abc
import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
import threading
from dataclasses import field
from typing import Any, ClassVar

import pytest

from tilewright import records

DEFINE = {"ours": records.dataclass, "theirs": dataclasses.dataclass}


def classes(dataclass: Any) -> dict[str, type]:
    """The same classes by either definition."""

    @dataclass(frozen=True)
    class Point:
        """A point."""

        x: int
        y: float = 0.5
        kinds: ClassVar[tuple[str, ...]] = ("a",)

        @property
        def both(self) -> float:
            return self.x + self.y

    @dataclass
    class Box:
        low: int
        names: list[str] = field(default_factory=list)
        hidden: int = field(default=3, repr=False, compare=False)
        made: dict[str, int] = field(default_factory=dict, init=False)
        late: int = field(default=7, kw_only=True)

        def __post_init__(self) -> None:
            self.low += 1

    @dataclass(eq=False)
    class Node:
        value: object = None

    @dataclass(frozen=True, repr=False)
    class Named(Point):
        name: str = "n"

        def __repr__(self) -> str:
            return "named"

        def __hash__(self) -> int:
            return 5

    @dataclass(frozen=True)
    class Empty:
        pass

    @dataclass(frozen=True, slots=True)
    class Slots:
        x: int

    @dataclass(slots=True, eq=False)
    class Loose:
        x: int
        y: list[int] = field(default_factory=list)
        z: int = 4

    @dataclass(frozen=True)
    class Heir(Slots):
        y: int = 1

    @dataclass
    class Parent:
        a: int

        def __init__(self, a: int) -> None:
            self.a = 2 * a

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Parent)

    class Abstract(abc.ABC):
        @abc.abstractmethod
        def __hash__(self) -> int: ...

    @dataclass(frozen=True)
    class Concrete(Abstract):
        x: int = 1

    @dataclass
    class Given:
        x: int
        start: dataclasses.InitVar[int] = 0

        def __post_init__(self, start: int) -> None:
            self.x += start

    @dataclass(init=False)
    class Bare:
        x: int = 4

    found = (Point, Box, Node, Named, Empty, Slots, Heir, Parent, Concrete, Given, Bare, Loose)
    return {each.__name__: each for each in found}


OPTIONS = ("init", "repr", "eq", "order", "unsafe_hash", "frozen")


def outcome(make: Any) -> object:
    """What a call returns or raises, as text without addresses."""
    try:
        return repr(make())
    except Exception as error:
        return type(error).__name__, str(error)


CALLS: dict[str, Any] = {
    "fields": lambda c: {n: [(f.name, f.type) for f in dataclasses.fields(each)] for n, each in c.items()},
    "texts": lambda c: [c["Point"](1), c["Box"](1, ["a"]), c["Named"](1), c["Empty"](), c["Slots"](2), c["Heir"](2, 3)],
    "equal": lambda c: [c["Point"](1) == c["Point"](1, 0.5), c["Point"](1) == c["Point"](2), c["Point"](1) == 1],
    "equal across classes": lambda c: c["Point"](1, 2.0) == c["Named"](1, 2.0),
    "ignored field": lambda c: c["Box"](1, hidden=4) == c["Box"](1, hidden=5),
    "identity": lambda c: [c["Node"](1) == c["Node"](1), hash(c["Node"](1)) is not None],
    "same nan": lambda c: (lambda nan: c["Point"](nan) == c["Point"](nan))(float("nan")),
    "hash": lambda c: [hash(c["Point"](1)), hash(c["Empty"]()), hash(c["Named"](1))],
    "no hash": lambda c: hash(c["Box"](1)),
    "no hash beside a comparison": lambda c: hash(c["Parent"](1)),
    "own constructor": lambda c: [c["Parent"](3).a, c["Parent"](1) == c["Parent"](2)],
    "assignment": lambda c: setattr(c["Point"](1), "x", 2),
    "new attribute": lambda c: setattr(c["Point"](1), "z", 2),
    "deletion": lambda c: delattr(c["Point"](1), "x"),
    "of an heir that is none": lambda c: setattr(type("Sub", (c["Point"],), {})(1), "z", 2),
    "of its field": lambda c: setattr(type("Sub", (c["Point"],), {})(1), "x", 2),
    "changed": lambda c: vars(dataclasses.replace(c["Box"](1, ["b"]), low=5)),
    "replace": lambda c: dataclasses.replace(c["Point"](1), x=5),
    "dict": lambda c: dataclasses.asdict(c["Box"](1)),
    "own lists": lambda c: c["Box"](1).names is c["Box"](1).names,
    "keyword": lambda c: vars(c["Box"](1, late=2)),
    "too few": lambda c: c["Point"](),
    "too many": lambda c: c["Point"](1, 2, 3),
    "unknown": lambda c: c["Point"](1, z=3),
    "keyword as position": lambda c: c["Box"](1, [], 3, 4),
    "abstract method": lambda c: [c["Concrete"](2), hash(c["Concrete"](2))],
    "argument that is no field": lambda c: [c["Given"](1, 2), c["Given"](1, start=5)],
    "no constructor": lambda c: [c["Bare"](), outcome(lambda: c["Bare"](1))],
    "options": lambda c: [[getattr(each.__dataclass_params__, o) for o in OPTIONS] for each in c.values()],
    "slots": lambda c: [c["Slots"].__slots__, c["Loose"].__slots__, c["Loose"](1), hasattr(c["Loose"](1), "__dict__")],
    "change of a slot": lambda c: [setattr(c["Loose"](1), "x", 2), setattr(c["Loose"](1), "w", 2)],
    "change of a frozen slot": lambda c: setattr(c["Slots"](1), "x", 2),
    "copies of slots": lambda c: [copy.copy(c["Slots"](1)), copy.deepcopy(c["Heir"](1)), copy.copy(c["Loose"](2, [1]))],
    "equal slots": lambda c: [c["Slots"](1) == c["Slots"](1), hash(c["Slots"](1)), hash(c["Heir"](1, 2))],
    "match": lambda c: [each.__match_args__ for each in c.values()],
    "copies": lambda c: [copy.copy(c["Point"](1)), copy.deepcopy(c["Box"](1, ["a"]))],
    "signature": lambda c: [str(inspect.signature(c[name])) for name in ("Empty", "Slots", "Point")],
    "parameters": lambda c: [[*inspect.signature(each).parameters] for each in c.values()],
    "doc": lambda c: c["Point"].__doc__,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_record_behaves_as_a_dataclass(name: str) -> None:
    ours, theirs = (outcome(lambda define=define: CALLS[name](classes(define))) for define in DEFINE.values())
    assert ours == theirs


@pytest.mark.parametrize("base", DEFINE)
@pytest.mark.parametrize("heir", DEFINE)
@pytest.mark.parametrize("frozen", [True, False])
def test_records_and_dataclasses_inherit_from_each_other(base: str, heir: str, frozen: bool) -> None:
    @DEFINE[base](frozen=frozen)
    class Base:
        x: int
        y: list[int] = field(default_factory=list)

    @DEFINE[heir](frozen=frozen)
    class Heir(Base):
        z: int = 3
        x: int = 2

    made = Heir(1, z=5)
    assert dataclasses.astuple(made) == (1, [], 5)
    assert [each.name for each in dataclasses.fields(Heir)] == ["x", "y", "z"]
    assert made == Heir(1, [], 5) != Heir(1, [], 6)
    assert repr(made).endswith("Heir(x=1, y=[], z=5)")
    if frozen:
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.x = 2


def test_the_definition_of_dialects_leaves_dataclasses_as_they_are() -> None:
    code = "import dataclasses as d; known = d.dataclass; import tilewright.dialects; print(known is d.dataclass)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"True\n"


def test_a_record_that_holds_itself_has_a_text() -> None:
    @records.dataclass
    class Loop:
        inner: object = None

    loop = Loop()
    loop.inner = loop
    assert repr(loop).endswith("Loop(inner=...)")


@records.dataclass(frozen=True)
class Whole:
    """At the top of a module, where pickle finds it."""

    x: int


@records.dataclass(frozen=True, slots=True)
class Slotted:
    x: int


def test_a_record_survives_pickle() -> None:
    assert pickle.loads(pickle.dumps(Slotted(3))) == Slotted(3)
    assert pickle.loads(pickle.dumps(Whole(3))) == Whole(3)


def test_threads_may_make_the_first_instances_together() -> None:
    for _ in range(50):
        point, barrier, made = classes(records.dataclass)["Point"], threading.Barrier(4), []

        def make(point: Any = point, barrier: threading.Barrier = barrier, made: list[Any] = made) -> None:
            barrier.wait()
            made.append(point(4))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made == [point(4)] * 4


def test_a_definition_is_several_times_quicker() -> None:
    code = (
        "import time, dataclasses; from tilewright import records\n"
        "def seconds(dataclass):\n"
        "    start = time.process_time()\n"
        "    for _ in range(100):\n"
        "        dataclass(frozen=True)(type('A', (), {'__annotations__': {'x': int, 'y': float}, '__doc__': ''}))\n"
        "    return time.process_time() - start\n"
        "print(min(seconds(dataclasses.dataclass) / seconds(records.dataclass) for _ in range(3)))"
    )
    ratios = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) for _ in "ab"]
    assert max(ratios) > 3
