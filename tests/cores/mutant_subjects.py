"""The programs in which mistakes are planted, and what they are called with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
from xdsl.ir import Operation, SSAValue

from tests.cores import programs
from tests.numerics.test_phases import expected_of
from tests.programs import Program
from tilewright import dtypes
from tilewright.cost.cores import tiles as core_tiles
from tilewright.dialects import cores, tile
from tilewright.dialects.fields import encode
from tilewright.frontend.build import build_module
from tilewright.frontend.trace import Value
from tilewright.machines.machine import load
from tilewright.pipelines import compile_module
from tilewright.semantics.cores import DeviceArray, run_program
from tilewright.semantics.cores.memory_plan import addresses_of

Tensor = np.ndarray[Any, Any]
MACHINE = load("wormhole")


@dataclass(frozen=True)
class Subject:
    """A kernel, what it is called with, and what comes out, by NumPy. `why_alike`: why an edit of an operation by a
    rule computes the same, where that is a matter of numbers."""

    name: str
    kernel: tile.KernelOp
    arrays: Sequence[Tensor]
    wanted: Sequence[Tensor]
    tolerance: float = 0.03
    why_alike: Callable[[Operation, str], str] = lambda op, rule: ""

    def run(self, kernel: tile.KernelOp, seed: int) -> list[Tensor]:
        """The results, bit by bit."""
        pending = iter(self.arrays)
        given: list[DeviceArray] = []
        results: list[DeviceArray] = []
        for ref, effect in zip(kernel.refs, kernel.effects, strict=True):
            type = tile.ref_type(ref)
            is_result = effect == tile.OUT
            by_rows = cores.is_by_rows(ref)
            if is_result:
                made = DeviceArray.undefined(type.shape, type.dtype, by_rows=by_rows)
            else:
                made = DeviceArray.from_numpy(next(pending), by_rows=by_rows)
            given.append(made)
            if is_result:
                results.append(made)
        run_program(kernel, given, MACHINE, seed=seed, proofs=False)
        return [result.to_numpy() for result in results]

    def expected(self) -> list[Tensor]:
        """What the program gives as it is, which is right.

        Raises:
            AssertionError: it is not.
        """
        found = self.run(self.kernel, 0)
        for got, wanted in zip(found, self.wanted, strict=True):
            scale = float(np.abs(wanted.astype(np.float64)).max())
            np.testing.assert_allclose(
                got.astype(np.float64), wanted.astype(np.float64), rtol=self.tolerance, atol=self.tolerance * scale
            )
        return found


def program_of(kernel: tile.KernelOp) -> cores.ProgramOp:
    return next(op for op in kernel.walk() if isinstance(op, cores.ProgramOp))


def numbers(shape: Sequence[int], seed: int = 0) -> Tensor:
    return np.random.default_rng(seed).standard_normal(shape).astype(ml_dtypes.bfloat16)


def placed(kernel: tile.KernelOp) -> tile.KernelOp:
    """With the addresses of its queues."""
    program = program_of(kernel)
    assert MACHINE.grid is not None
    for queue, address in zip(program.queues, addresses_of(program, MACHINE.grid), strict=True):
        queue.properties["address_bytes"] = encode(address)
    return kernel


def multicast_matmul() -> Subject:
    x, y = numbers((64, 64)), numbers((64, 96), 1)
    wanted = x.astype(np.float64) @ y.astype(np.float64)
    return Subject("matmul with multicasts", placed(programs.multicast_matmul(2, 3, 2)), [x, y], [wanted])


def gather_to_one() -> Subject:
    x = numbers((32, 96))
    wanted = x.astype(np.float64).reshape(32, 3, 32).sum(axis=1)
    return Subject("gather to one core", placed(programs.gather_to_one(3)), [x], [wanted])


def accumulated_matmul() -> Subject:
    x, y = numbers((64, 96)), numbers((96, 32), 1)
    wanted = x.astype(np.float64) @ y.astype(np.float64)
    kernel = placed(programs.single_core_matmul(2, 3, 1, accumulates=True))
    return Subject("matmul that accumulates", kernel, [x, y], [wanted])


def row_sums() -> Subject:
    x = numbers((32, 96))
    wanted = np.zeros((32, 32))
    wanted[:, 0] = x.astype(np.float64).sum(axis=1)
    return Subject("sums of rows", placed(programs.row_sums(3)), [x], [wanted])


def through_memory() -> Subject:
    x = numbers((32, 96))
    return Subject("through memory", placed(programs.through_memory(3)), [x], [np.exp(-x.astype(np.float64))])


def normalised() -> Subject:
    """Rows and columns that end within a tile, and more rows than cores take at once."""

    def make(p: Program) -> list[Value]:
        x = p.array(70, 50)
        total = p.reduce(p.map("multiply", x, x), "add", (1,))
        return [p.map("multiply", x, p.broadcast(p.map("rsqrt", total), x.shape, (0,)))]

    return _compiled("rows normalised 70x50 f32", make)


def edges() -> Subject:
    """A product of which every size ends within a tile."""
    return _compiled("product 40x50x33 f32", lambda p: [p.dot(p.array(40, 50), p.array(50, 33), 0, 1, 0)])


def shared() -> Subject:
    """A sum of which three cores do a part each."""

    def why_alike(op: Operation, rule: str) -> str:
        before = [*itertools.islice(_before(op), 6)]
        adds_once = any(isinstance(each, cores.CopyOp) and each.transpose for each in before)
        is_alike = isinstance(op, cores.PackOp) and rule == "slot +1" and adds_once
        return "the part of a core is one sum, which is added to 0" if is_alike else ""

    subject = _compiled("sums of rows 32x1500 f32", lambda p: [p.reduce(p.array(32, 1500), "add", (1,))])
    return replace(subject, why_alike=why_alike)


def _before(op: Operation) -> Iterator[Operation]:
    while op.prev_op is not None:
        op = op.prev_op
        yield op


def softmax() -> Subject:
    return _compiled("softmax 64x96 f32", lambda p: [p.softmax(p.array(64, 96))])


def product() -> Subject:
    """gelu(x @ w + bias)."""

    def make(p: Program) -> list[Value]:
        bf16 = dtypes.bf16
        x, w, bias = p.array(96, 96, dtype=bf16), p.array(96, 96, dtype=bf16), p.array(96, dtype=bf16)
        y = p.dot(x, w, 0, 1, 0)
        y = p.map("add", y, p.broadcast(bias, y.shape, (1,)))
        inner = p.map("erf", p.map("multiply", y, p.splat(0.5**0.5, y.shape, bf16)))
        half = p.map("multiply", y, p.splat(0.5, y.shape, bf16))
        return [p.map("multiply", half, p.map("add", inner, p.splat(1.0, y.shape, bf16)))]

    return _compiled("product, bias and gelu 96x96x96 bf16", make)


def trips_together() -> Subject:
    """A product of six trips on 2 x 2 cores: two one by one, two together, and two block by block with what follows;
    two cores of each row and column fetch a half."""

    def make(p: Program) -> list[Value]:
        y = p.dot(p.array(128, 768, dtype=dtypes.bf16), p.array(768, 128, dtype=dtypes.bf16), 0, 1, 0)
        return [p.map("negative", y)]

    tile = core_tiles.ProductTile(64, 64, 128)
    with (
        mock.patch("tilewright.passes.kernels.core_planner.product_tile", return_value=tile),
        mock.patch("tilewright.passes.cores.partials.shared_loop", return_value=None),
        mock.patch.object(core_tiles, "_LEAST_FETCHED", 4),
    ):
        return _compiled("product 128x768x128 bf16, trips together", make)


def by_elements() -> Subject:
    """Elements that numbers in a queue name, some of them outside of the array."""
    x = np.random.default_rng(0).standard_normal((20, 17)).astype(np.float32)
    indices = np.random.default_rng(1).integers(-2, 19, (20, 17)).astype(np.int32)
    inside = (indices >= 0) & (indices < 17) & (np.arange(20)[:, None] < 19)
    below = np.roll(x, -1, 0)
    wanted = np.where(inside, np.take_along_axis(below, np.clip(indices, 0, 16), 1), 0)
    return Subject("elements by index", placed(programs.shifted_elements(20, 17)), [x, indices], [wanted])


def turned() -> Subject:
    x = numbers((3, 20, 17))
    return Subject("matrices turned", placed(programs.turned_elements(20, 17, 3)), [x], [x.swapaxes(1, 2)])


def combined() -> Subject:
    """Pages by the vector unit, and what is left of lines by the reader, of numbers of all bits: few of them would hide
    a mistake by chance."""
    shape = (41, 71)

    def make(p: Program) -> list[Value]:
        return [p.reduce(p.array(*shape, dtype=dtypes.i32), "bitwise_xor", (0, 1))]

    subject = _compiled("exclusive or of all 41x71 i32", make)
    x = np.random.default_rng(0).integers(-(2**31), 2**31, shape).astype(np.int32)
    return replace(subject, arrays=[x], wanted=[np.bitwise_xor.reduce(x, None)])


def in_order() -> Subject:
    return _compiled("rows in order 40x50 f32", lambda p: p.add("sort", [p.array(40, 50)], axis=1, descending=False))


def rows_to_tiles() -> Subject:
    return _compiled("rows to tiles 70x300 f32", lambda p: [p.array(70, 300)], {0: "row-major"})


def tiles_to_rows() -> Subject:
    return _compiled("tiles to rows 70x300 f32", lambda p: [p.array(70, 300)], {1: "row-major"})


def _mask_of_zeros(op: Operation, rule: str) -> str:
    """Where a choice takes its condition for a number, which is 0: the condition is a page of ones and zeros, and is
    taken where it is 0."""
    if not isinstance(op, cores.MapOp) or op.fn != "select":
        return ""
    condition, _, otherwise = op.operand_numbers
    before = [*_before(op)]
    fills = (each for each in before if isinstance(each, cores.MapOp) and otherwise in each.slots)
    copies = (each for each in before if isinstance(each, cores.RegisterOp) and condition in each.slots)
    fill, copy = next(fills, None), next(copies, None)
    is_filled = fill is not None and fill.fn == "fill" and [n for n in fill.numbers] == [0.0]
    is_mask = isinstance(copy, cores.CopyOp) and copy.broadcast == cores.NONE and _holds_bits(copy.queue)
    is_edited = rule == f"argument 2 {condition - otherwise:+}"
    return "the mask is 0 where it is taken for 0" if is_edited and is_filled and is_mask else ""


def _holds_bits(queue: SSAValue) -> bool:
    """Whether all that is written to a queue are ones and zeros."""
    users = [use.operation for use in queue.uses]
    writers = [each for each in users if not isinstance(each, cores.QueueStepOp | cores.ConfigureOp | cores.CopyOp)]
    return bool(writers) and all(
        isinstance(each, cores.GenerateOp) and each.choice is not None and {n for n in each.choice[1:]} <= {0.0, 1.0}
        for each in writers
    )


def _compiled(name: str, make: Callable[[Program], list[Value]], storage: Mapping[int, str] | None = None) -> Subject:
    """A program of one kernel, as the compiler makes it."""
    program, arrays, wanted = expected_of(make)
    unit = compile_module(build_module(program), program.constants, "grid:wormhole", storage=storage).unit
    (kernel,) = unit.kernels()
    return Subject(name, kernel, arrays, wanted, why_alike=_mask_of_zeros)


SUBJECTS: tuple[Callable[[], Subject], ...] = (
    multicast_matmul,
    gather_to_one,
    accumulated_matmul,
    row_sums,
    through_memory,
    softmax,
    normalised,
    edges,
    shared,
    product,
    trips_together,
    by_elements,
    turned,
    combined,
    in_order,
    rows_to_tiles,
    tiles_to_rows,
)
