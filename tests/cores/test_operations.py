"""Each operation of the thread that computes, and each way in which it reads pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from xdsl.utils.exceptions import VerifyException

from tests.cores.builder import Builder
from tilewright import dtypes, ops
from tilewright.dialects import tile
from tilewright.layout.catalogue.placements import Placement
from tilewright.machines.machine import load
from tilewright.semantics.cores import DeviceArray, run_program

Tensor = np.ndarray[Any, Any]
MACHINE = load("blackhole")


def computed(
    inputs: Sequence[Tensor], dtype: str, body: Callable[[Builder, list[Any]], None], pages: int = 1, **more: Any
) -> Tensor:
    """A tile of some type, that `body` leaves in register 0 of pages of the inputs."""
    refs = [(each.shape, dtypes.from_numpy(each.dtype).name, "in") for each in inputs]
    b = Builder((1, 1), [*refs, ((32, 32), dtype, "out")])
    queues = [b.queue(name, pages) for _, name, _ in refs]
    out = b.queue(dtype, 1)
    with b.thread("reader"):
        for number, queue in enumerate(queues):
            b.reserve(queue, pages)
            b.fetch(number, queue, "0, d0", extents=(pages,))
            b.barrier("read")
            b.push(queue, pages)
    with b.thread("compute"):
        for queue in queues:
            b.wait(queue, pages)
        b.registers("acquire")
        body(b, queues)
        b.registers("commit")
        for queue in queues:
            b.pop(queue, pages)
        b.reserve(out)
        b.registers("wait")
        b.pack(out)
        b.registers("release")
        b.push(out)
    with b.thread("writer"):
        b.wait(out)
        b.put(len(inputs), out, "0, 0")
        b.barrier("write")
        b.pop(out)
    return run_kernel(b.finished(), inputs, **more)


def run_kernel(kernel: tile.KernelOp, inputs: Sequence[Tensor], placement: Placement | None = None) -> Tensor:
    arrays = [DeviceArray.from_numpy(each, placement=placement) for each in inputs]
    type = tile.ref_type(kernel.refs[-1])
    arrays.append(DeviceArray.undefined(type.shape, type.dtype, placement=placement))
    run_program(kernel, arrays, MACHINE)
    return arrays[-1].to_numpy()


def numbers(dtype: str, seed: int, columns: int = 32) -> Tensor:
    rng = np.random.default_rng(seed)
    if dtype == "f32":
        return rng.uniform(0.1, 0.9, (32, columns)).astype(np.float32)
    return rng.integers(0 if dtype == "u32" else -9, 9, (32, columns)).astype(dtypes.by_name(dtype).numpy)


FUNCTIONS = [
    (function.name, dtype)
    for function in ops.FUNCTIONS.values()
    for dtype in ("f32", "i32", "u32")
    if {"f32": "f", "i32": "i", "u32": "u"}[dtype] in function.kinds and function.name != "select"
]


@pytest.mark.parametrize(("name", "dtype"), FUNCTIONS)
def test_functions(name: str, dtype: str) -> None:
    function = ops.FUNCTIONS[name]
    given = [numbers(dtype, seed) for seed in range(function.arity)]

    def body(b: Builder, queues: list[Any]) -> None:
        for slot, queue in enumerate(queues):
            b.copy(queue, slot)
        b.map(name, range(function.arity), dtype=dtype)

    wanted = ops.evaluate(name, given).astype(given[0].dtype)
    np.testing.assert_allclose(computed(given, dtype, body), wanted, rtol=1e-6, atol=1e-7)


def test_erf_far_out() -> None:
    x = np.array([0.0, -0.0, 1e-30, 3.9, -4.1, np.inf, -np.inf, np.nan] * 128, np.float32).reshape(32, 32)

    def body(b: Builder, queues: list[Any]) -> None:
        b.copy(queues[0])
        b.map("erf", [0])

    np.testing.assert_allclose(computed([x], "f32", body), ops.evaluate("erf", [x]), rtol=1e-6)


def test_numbers_and_choices() -> None:
    """`where(x < 0.5, 2, x)`, by a comparison, a number and a choice."""
    x = numbers("f32", 0)

    def body(b: Builder, queues: list[Any]) -> None:
        b.copy(queues[0], 1)
        b.map("less", [1, -1], 0, numbers=[0.5])
        b.map("fill", [-1], 2, numbers=[2.0])
        b.map("select", [0, 2, 1], 0)

    np.testing.assert_array_equal(computed([x], "f32", body), np.where(x < 0.5, np.float32(2), x))


@pytest.mark.parametrize(("before", "after"), [("f32", "i32"), ("i32", "f32"), ("f32", "u32"), ("u32", "f32")])
def test_casts(before: str, after: str) -> None:
    x = numbers(before, 0) * 100 if before == "f32" else numbers(before, 0)

    def body(b: Builder, queues: list[Any]) -> None:
        b.copy(queues[0], 1)
        b.cast(0, 1, before, after)

    np.testing.assert_array_equal(computed([x], after, body), ops.cast(x, dtypes.by_name(after)))


def test_bits_stay() -> None:
    x = numbers("f32", 0)

    def body(b: Builder, queues: list[Any]) -> None:
        b.copy(queues[0], 1)
        b.cast(0, 1, "f32", "i32", bits=True)

    np.testing.assert_array_equal(computed([x], "i32", body), x.view(np.int32))


def test_bits_of_16_are_not_taken_for_32() -> None:
    b = Builder((1, 1), [])
    with b.thread("compute"):
        b.cast(0, 0, "f32", "bf16", bits=True)
    with pytest.raises(VerifyException, match="bits of f32 are not taken for bf16"):
        b.finished().verify()


@pytest.mark.parametrize("dtype", ["f32", "i32"])
@pytest.mark.parametrize("fn", ["add", "maximum", "minimum"])
@pytest.mark.parametrize("along", ["row", "column"])
def test_folds(along: str, fn: str, dtype: str) -> None:
    x = numbers(dtype, 0)

    def body(b: Builder, queues: list[Any]) -> None:
        b.copy(queues[0])
        b.fold(fn, along, dtype=dtype)

    found = computed([x], dtype, body)
    reduce = {"add": np.sum, "maximum": np.max, "minimum": np.min}[fn]
    axis = 1 if along == "row" else 0
    results = found[:, 0] if along == "row" else found[0]
    np.testing.assert_allclose(results, reduce(x, axis=axis), rtol=1e-6)


@pytest.mark.parametrize("transpose", [None, True])
@pytest.mark.parametrize("broadcast", ["none", "row", "column", "scalar"])
def test_copies(broadcast: str, transpose: bool | None) -> None:
    x = numbers("f32", 0)
    wanted = repeated(x.T if transpose else x, broadcast)
    found = computed([x], "f32", lambda b, queues: b.copy(queues[0], broadcast=broadcast, transpose=transpose))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("accumulates", [None, True])
@pytest.mark.parametrize("broadcast", ["none", "row", "column", "scalar"])
@pytest.mark.parametrize("fn", ["add", "subtract", "multiply"])
def test_binaries(fn: str, broadcast: str, accumulates: bool | None) -> None:
    """With sums, of two pages one after another."""
    x, y = numbers("f32", 0, 64), numbers("f32", 1, 64)

    def body(b: Builder, queues: list[Any]) -> None:
        for page in ("0", "1") if accumulates else ("1",):
            b.binary(fn, *queues, 0, 1, page, page, broadcast=broadcast, accumulates=accumulates)

    function = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}[fn]
    parts = [function(x[:, s], repeated(y[:, s], broadcast)) for s in (slice(32), slice(32, 64))]
    found = computed([x, y], "f32", body, 2)
    np.testing.assert_allclose(found, sum(parts) if accumulates else parts[1], rtol=4e-3, atol=4e-3)


def repeated(x: Tensor, broadcast: str) -> Tensor:
    first = {"none": x, "row": x[:1], "column": x[:, :1], "scalar": x[:1, :1]}[broadcast]
    return np.broadcast_to(first, (32, 32))


@pytest.mark.parametrize("transpose", [None, True])
def test_products_of_blocks(transpose: bool | None) -> None:
    """Of 1 x 2 and 2 x 1 pages, each of the right one's transposed or not."""
    x, y = numbers("f32", 0, 64), numbers("f32", 1, 64)
    found = computed([x, y], "f32", lambda b, q: b.matmul(*q, (1, 1, 2), transpose=transpose), 2)
    right = [y[:, :32], y[:, 32:]]
    wanted = sum(x[:, 32 * i : 32 * i + 32] @ (p.T if transpose else p) for i, p in enumerate(right))
    np.testing.assert_allclose(found, wanted, rtol=4e-3)


def test_arrays_over_the_memories_of_cores() -> None:
    x = numbers("f32", 0)
    found = computed([x], "f32", lambda b, queues: b.copy(queues[0]), placement=Placement((1, 1), (2, 4)))
    np.testing.assert_array_equal(found, x)
