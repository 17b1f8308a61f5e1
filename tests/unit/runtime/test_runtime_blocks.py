"""The memory of large outputs: kept when an array dies, used again, never while something reads it, and bounded."""

from __future__ import annotations

import ctypes
import gc
import threading

import numpy as np
from numpy._core.multiarray import get_handler_name

import tilewright as tw
from tilewright.runtime import abi
from tilewright.runtime.cpu.pool import load_support
from tilewright.targets.cpu.support import support_object

LARGE = abi.LEAST_BLOCK_BYTES // 4


@tw.jit
def plus_one(x):
    return x + 1


def state() -> abi.BlocksState:
    """What is kept, in this process."""
    plus_one(np.zeros(LARGE, np.float32))
    anchor = abi.BlocksAnchor.from_address(load_support(support_object()).blocks)
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    capsule = ctypes.cast(anchor.handler, ctypes.py_object).value
    handler = pointer(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, b"mem_handler")
    return abi.BlocksState.from_address(abi.MemoryHandler.from_address(handler).context)


def test_large_outputs_own_their_memory_and_leave_numpy_as_it_was():
    x = np.arange(LARGE, dtype=np.float32)
    y = plus_one(x)
    assert y.flags.owndata
    assert y.base is None
    assert y.ctypes.data % abi.ALIGNMENT_BYTES == 0
    assert get_handler_name(y) == "tilewright"
    assert get_handler_name(np.empty(LARGE, np.float32)) == "default_allocator"
    assert get_handler_name(plus_one(x[:1000].copy())) == "default_allocator"


def test_outputs_that_are_not_small_begin_where_a_line_does():
    for elements in (abi.LEAST_ALIGNED_BYTES // 4, 5001, 100_003):
        outputs = [plus_one(np.zeros(elements, np.float32)) for _ in range(5)]
        assert all(y.ctypes.data % abi.ALIGNMENT_BYTES == 0 for y in outputs)
        assert all(get_handler_name(y) == "tilewright" for y in outputs)
    kept = state()
    before = kept.kept_bytes
    del outputs
    assert kept.kept_bytes == before, "blocks below the least size are given back"


def test_memory_is_used_again_after_the_last_reader():
    x = np.arange(LARGE, dtype=np.float32)
    first = plus_one(x)
    address, view = first.ctypes.data, first[10:]
    del first
    second = plus_one(x * 2)
    assert not np.may_share_memory(view, second)
    np.testing.assert_array_equal(view, x[10:] + 1)
    del view
    third = plus_one(x)
    assert third.ctypes.data == address
    np.testing.assert_array_equal(second, x * 2 + 1)
    np.testing.assert_array_equal(third, x + 1)


def test_an_array_that_grows_keeps_its_elements():
    x = np.arange(LARGE, dtype=np.float32)
    y = plus_one(x)
    y.resize(3 * LARGE, refcheck=False)
    np.testing.assert_array_equal(y[:LARGE], x + 1)
    np.testing.assert_array_equal(y[LARGE:], 0)
    del y
    np.testing.assert_array_equal(plus_one(np.ones(3 * LARGE, np.float32)), 2)


def test_what_is_kept_is_bounded():
    kept = state()
    arrays = [plus_one(np.zeros(n * LARGE, np.float32)) for n in (90, 90, 90, 3, 3, 3, 3, 3, 3, 3, 3, 3)]
    while arrays:
        del arrays[0]
        slots = [(slot.block, slot.nbytes) for slot in kept.slots]
        assert kept.kept_bytes == sum(nbytes for _, nbytes in slots) <= abi.MOST_KEPT_BYTES
        assert all((block is None) == (nbytes == 0) for block, nbytes in slots)
    assert kept.busy == 0
    assert [nbytes for _, nbytes in slots] == [3 * abi.LEAST_BLOCK_BYTES] * abi.BLOCK_SLOTS


def test_threads_never_share_a_block():
    wrong: list[int] = []

    def work(number: int) -> None:
        x = np.full(LARGE, number, np.float32)
        for _ in range(50):
            held = [plus_one(x), plus_one(x)]
            wrong.extend(int(value) for y in held for value in (y.min(), y.max()) if value != number + 1)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert wrong == []
