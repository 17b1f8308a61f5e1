"""Collections of garbage stop within some work, and are afterwards as they were."""

from __future__ import annotations

import gc
import threading

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
