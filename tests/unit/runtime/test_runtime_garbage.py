"""Collections of garbage stop within some work, and are afterwards as they were."""

from __future__ import annotations

import gc
import sys
import threading
from types import ModuleType

import pytest

from tilewright.runtime.garbage import no_collections


def test_collections_stop_and_go_on() -> None:
    assert gc.isenabled()
    with no_collections():
        assert not gc.isenabled()
        with no_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collections_go_on_after_an_error() -> None:
    with pytest.raises(ValueError, match="of the work"), no_collections():
        raise ValueError("of the work")
    assert gc.isenabled()


def test_collections_that_were_off_stay_off() -> None:
    gc.disable()
    try:
        with no_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_last_thread_out_lets_collections_go_on() -> None:
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        with no_collections():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=work)
    with no_collections():
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def make_modules(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    for number in range(count):
        name = f"many_modules_{number}"
        monkeypatch.setitem(sys.modules, name, ModuleType(name))


def is_young(value: object) -> bool:
    return any(value is each for generation in (0, 1) for each in gc.get_objects(generation))


@pytest.mark.parametrize(("count", "stays_young"), [(10, True), (200, False)])
def test_objects_of_many_modules_become_old(monkeypatch: pytest.MonkeyPatch, count: int, stays_young: bool) -> None:
    with no_collections():
        made: list[object] = []
        make_modules(monkeypatch, count)
        thresholds = gc.get_threshold()
        gc.set_threshold(0)
    try:
        assert is_young(made) == stays_young
    finally:
        gc.set_threshold(*thresholds)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_what_the_process_froze_stays_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with no_collections():
            make_modules(monkeypatch, 200)
        assert gc.get_freeze_count() >= count - 1000 > 0
    finally:
        gc.unfreeze()
