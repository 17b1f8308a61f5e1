"""Programs that are broken on purpose, each with what says so: the verifier, the simulator, or another result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.utils.exceptions import VerifyException

from tests.cores import mutant_subjects, programs
from tests.cores import test_hazards as hazards
from tests.cores.breaking import change
from tests.cores.builder import Builder, affine
from tests.cores.metamorphic import Tensor, depends_on_padding, run_bits, same
from tests.cores.test_hazards import (
    COMPUTE,
    READER,
    WRITER,
    Break,
    Program,
    all_of,
    moves_behind,
    nothing,
    trips,
)
from tilewright.dialects import cores, tile
from tilewright.dialects.fields import decode, encode
from tilewright.semantics.hazards import CoreHazard

VERIFIER, PADDING, RESULT = "does not verify", "depends on padding", "another result"
# What says so where it is no kind of the simulator.
OTHER_KINDS = (VERIFIER, PADDING, RESULT)


@dataclass(frozen=True)
class Broken:
    """A program that is broken so: `found` says which kind of mistake is seen in it."""

    name: str
    kind: str
    found: Callable[[], str]


def broken(name: str, kind: str, program: Program, breaks: Break = nothing, proofs: bool = True) -> Broken:
    """Found by the verifier, or by a run on zeros, behind what is proven before it or without."""

    def found() -> str:
        kernel = program()
        breaks(kernel)
        try:
            hazards.run(kernel, proofs=proofs)
        except VerifyException:
            return VERIFIER
        except CoreHazard as error:
            return error.kind
        return ""

    return Broken(name, kind, found)


def with_other_result(
    name: str, right: Program, wrong: Program, *shapes: tuple[int, ...], dtype: str = "bf16"
) -> Broken:
    """Found by its result, which is not that of a program that is right."""

    def found() -> str:
        inputs = [_numbers(shape, dtype, i) for i, shape in enumerate(shapes)]
        return "" if same(run_bits(right(), inputs), run_bits(wrong(), inputs)) else RESULT

    return Broken(name, RESULT, found)


def on_padding(name: str, program: Program, *shapes: tuple[int, ...], dtype: str = "bf16") -> Broken:
    """Found by what is beyond the edges of its arguments."""

    def found() -> str:
        inputs = [_numbers(shape, dtype, i) for i, shape in enumerate(shapes)]
        return PADDING if depends_on_padding(program(), inputs) else ""

    return Broken(name, PADDING, found)


def _numbers(shape: tuple[int, ...], dtype: str, seed: int) -> Tensor:
    type = {"bf16": ml_dtypes.bfloat16, "f32": np.float32}[dtype]
    return np.random.default_rng(seed).standard_normal(shape).astype(type)


# ---- programs that are broken as they are ---------------------------------------------------------------------------


def broken_by(program: Program, breaks: Break) -> Program:
    def make() -> tile.KernelOp:
        kernel = program()
        breaks(kernel)
        return kernel

    return make


def rows_to_tiles() -> tile.KernelOp:
    return mutant_subjects.rows_to_tiles().kernel


def tiles_to_rows() -> tile.KernelOp:
    return mutant_subjects.tiles_to_rows().kernel


def with_first_queue_at(address_bytes: int) -> Break:
    """The first queue somewhere, and the others, which are behind it, as much further."""

    def edit(kernel: tile.KernelOp) -> None:
        queues = hazards.find_program(kernel).queues
        further = address_bytes - decode(queues[0].properties["address_bytes"])
        for queue in queues:
            queue.properties["address_bytes"] = encode(decode(queue.properties["address_bytes"]) + further)

    return edit


def on_cores(rows: int, columns: int) -> Break:
    """The program on another rectangle of cores."""

    def edit(kernel: tile.KernelOp) -> None:
        program = hazards.find_program(kernel)
        program.properties["cores"] = encode((rows, columns))

    return edit


def all_trips(count: int) -> Break:
    return all_of(*(trips(role, count) for role in cores.ROLES))


def also(role: str, block: Callable[[Builder], None]) -> Callable[[], tile.KernelOp]:
    """One page that is read and popped, and what a thread does beside."""

    def make() -> tile.KernelOp:
        b = Builder((1, 1), [((32, 32), "bf16", "in")])
        x = b.queue("bf16", 2)
        with b.thread("reader"):
            b.reserve(x)
            b.fetch(0, x, "0, 0")
            b.barrier("read")
            b.push(x)
        with b.thread("writer"):
            b.wait(x)
            b.pop(x)
        with b.thread("compute"):
            pass
        thread = next(t for t in b.kernel.walk() if isinstance(t, cores.ThreadOp) and t.role == role)
        end = thread.body.block.last_op
        assert end is not None
        end.detach()
        b._blocks.append(thread.body.block)
        block(b)
        thread.body.block.add_op(end)
        b._blocks.pop()
        b.add(cores.EndOp, [], {})
        return b.kernel

    return make


def first_queue(b: Builder) -> SSAValue:
    return next(op for op in b.kernel.walk() if isinstance(op, cores.QueueOp)).result


def halves() -> tile.KernelOp:
    """Two cores that each sum one of two tiles, and both write the result."""
    b = Builder((1, 2), [((32, 64), "bf16", "in"), ((32, 32), "bf16", "out")])
    x, ones, z = b.queue("bf16", 1), b.queue("bf16", 1), b.queue("bf16", 1)
    with b.thread("reader"):
        b.reserve(ones)
        b.generate(ones, "1", face_rows=True)
        b.push(ones)
        b.reserve(x)
        b.fetch(0, x, "0, s0", [b.column])
        b.barrier("read")
        b.push(x)
    with b.thread("compute"):
        b.wait(ones)
        b.wait(x)
        b.registers("acquire")
        b.reduce(x, ones, "add", "row")
        b.registers("commit")
        b.pop(x)
        b.pop(ones)
        b.reserve(z)
        b.registers("wait")
        b.pack(z)
        b.registers("release")
        b.push(z)
    with b.thread("writer"):
        b.wait(z)
        b.put(1, z, "0, 0")
        b.barrier("write")
        b.pop(z)
    return b.finished()


def without_padding(kernel: tile.KernelOp) -> None:
    for op in [op for op in kernel.walk() if isinstance(op, cores.PadOp)]:
        op.detach()
        op.erase()


def compiled_product() -> tile.KernelOp:
    return mutant_subjects.edges().kernel


def narrow(kernel: tile.KernelOp) -> None:
    """Registers of 16 bits."""
    hazards.find_program(kernel).properties.pop("wide")


def wide_matmul() -> tile.KernelOp:
    return programs.single_core_matmul(1, 3, 1, "f32")


def wait_behind_copy(kernel: tile.KernelOp) -> None:
    moves_behind(COMPUTE, cores.WaitOp, cores.CopyOp, 1, 1)(kernel)


def one_coordinate() -> AffineMap:
    return affine("d0", 1, 2)


def around(kernel: tile.KernelOp) -> None:
    for role, op in ((READER, cores.FetchOp), (WRITER, cores.PutOp)):
        change(kernel, role, op, map="s1 % 2, d0 + s0")
