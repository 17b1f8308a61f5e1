"""Mistakes planted by rule in what brings order into schedules: does the executor of schedules see them?

`python -m tests.cuda.schedule_mutants` plants each mistake in each kernel of `KERNELS`, runs it, and prints what was
caught and each mutant that was not. A mutant is an edit of a clone of the kernel: an operation that synchronises is
left out, repeated, moved past its neighbour or given another number, or changes places with one of another role; rings
lose a stage. One that still is a schedule in order, which only waits for more or for the same, is none of the mistakes:
`Mutant.harmless` is the reason, where the rule knows it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from xdsl.dialects.builtin import AffineMapAttr, DenseArrayBase, IndexType, IntegerAttr, StringAttr, i64
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.utils.exceptions import VerifyException

import tilewright as tw
from tests.cuda.chips import built
from tests.cuda.fake_driver import tensor_maps
from tests.cuda.role_kernels import RoleProduct
from tests.numerics.test_phases import expected_of
from tests.programs import causal_attention
from tests.ptx.emulator import run as execute
from tests.ptx.errors import SharedRace, TensorMemoryFault
from tilewright import dtypes
from tilewright.dialects import scheduled, tensor_memory, tile
from tilewright.errors import CompilerBug
from tilewright.frontend.build import build_module
from tilewright.machines.machine import Machine
from tilewright.pipelines import compile_module
from tilewright.primitives import ArrayType
from tilewright.semantics.array import Interpreter
from tilewright.semantics.scheduled import run_call
from tilewright.targets.cuda.emit import emit_kernel
from tilewright.targets.cuda.target import CudaProgram
from tilewright.targets.cuda.toolchain import COMPILER

Tensor = np.ndarray[Any, Any]
Edit = Callable[[Operation], None]

SYNCHRONISES = (
    scheduled.BarrierOp,
    scheduled.CommitOp,
    scheduled.WaitOp,
    scheduled.FenceOp,
    scheduled.ArriveOp,
    scheduled.ExpectOp,
    scheduled.AwaitOp,
    scheduled.MmaWaitOp,
    tensor_memory.MmaCommitOp,
    tensor_memory.TensorFenceOp,
    tensor_memory.TensorFreeOp,
    scheduled.StoreWaitOp,
)
# Said twice, these say nothing more.
_IDEMPOTENT = (
    *(scheduled.BarrierOp, scheduled.WaitOp, scheduled.FenceOp, scheduled.AwaitOp, scheduled.MmaWaitOp),
    tensor_memory.TensorFenceOp,
    scheduled.StoreWaitOp,
)
_FINDS_NOTHING = "no copy is under way"
_FENCED_AGAIN = "fenced again before the next product"
_COUNTS_COPIES = (scheduled.CopyOp, scheduled.CommitOp, scheduled.WaitOp)
_USES_BARRIERS = (
    *(scheduled.ArriveOp, scheduled.ExpectOp, scheduled.AwaitOp, scheduled.TensorCopyOp),
    tensor_memory.MmaCommitOp,
)
_USES_TENSOR_MEMORY = (tensor_memory.TensorAllocOp, tensor_memory.TensorMmaOp, tensor_memory.TensorLoadOp)
# What touches memory where an operand is there.
_MOVES = (tile.LoadOp, tile.StoreOp, scheduled.MmaOp, scheduled.TensorStoreOp)
_SWAPPED = (scheduled.ArriveOp, scheduled.ExpectOp, scheduled.AwaitOp, tensor_memory.MmaCommitOp)


@dataclass(frozen=True)
class Mutant:
    """An edit of operation number `number` of a kernel, in the order of the text."""

    rule: str
    number: int
    edit: Edit
    harmless: str = ""

    def operation(self, kernel: tile.KernelOp) -> Operation:
        """The one that is edited."""
        return list(kernel.walk())[self.number]

    def planted(self, kernel: tile.KernelOp) -> tile.KernelOp:
        """A clone with the mistake."""
        clone = kernel.clone()
        self.edit(self.operation(clone))
        return clone


@dataclass(frozen=True)
class Subject:
    """A kernel and what it is called with; the machine, where code is made of it, too."""

    name: str
    kernel: tile.KernelOp
    arrays: Sequence[Tensor]
    machine: Machine | None = None

    def run(self, kernel: tile.KernelOp, seed: int) -> list[Tensor]:
        """The results by the executor of schedules."""
        return run_call(kernel, self.arrays, seed)

    def emulate(self, kernel: tile.KernelOp, machine: Machine) -> None:
        """Run the code, on the emulator of PTX.

        Raises:
            SharedRace: it sees one.
        """
        code = emit_kernel(kernel, machine)
        ptx = COMPILER.ptx(code.name, code.text, machine)
        pending = iter(self.arrays)
        given: list[Tensor] = []
        for ref, effect in zip(kernel.refs, kernel.effect_names, strict=True):
            type = tile.ref_type(ref)
            given.append(np.zeros(type.shape, type.dtype.numpy) if effect == tile.OUT else next(pending).copy())
        parameters = [*given, *tensor_maps(code.tensor_maps, given)]
        execute(ptx, code.name, code.blocks, code.threads, parameters, code.shared_bytes)


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: why it was caught, or empty."""

    mutant: Mutant
    op: str
    caught: str

    @property
    def is_missed(self) -> bool:
        return not self.caught and not self.mutant.harmless

    @property
    def is_wronged(self) -> bool:
        """Whether what is in order was taken for a mistake."""
        return bool(self.caught and self.mutant.harmless)


# ---- the rules ------------------------------------------------------------------------------------------------------


def mutants_of(kernel: tile.KernelOp) -> Iterator[Mutant]:
    """All mutants of a kernel."""
    ops = list(kernel.walk())
    for number, op in enumerate(ops):
        yield from _of_operation(op, number)
    yield from _exchanged(ops)


def _of_operation(op: Operation, number: int) -> Iterator[Mutant]:
    if isinstance(op, SYNCHRONISES):
        yield Mutant("left out", number, _leave_out, _why_leaving_out_is_harmless(op))
        yield Mutant("repeated", number, _repeat, _why_repeating_is_harmless(op))
        if (other := _neighbour(op, forwards=True)) is not None:
            yield Mutant("moved down", number, lambda each: _move(each, forwards=True), _why_harmless(op, other, True))
        if (other := _neighbour(op, forwards=False)) is not None:
            yield Mutant("moved up", number, lambda each: _move(each, forwards=False), _why_harmless(op, other, False))
    for rule, edit, harmless in _numbers(op):
        yield Mutant(rule, number, edit, harmless)


def _numbers(op: Operation) -> Iterator[tuple[str, Edit, str]]:
    """Other numbers in an operation: a rule, its edit and why it is harmless."""
    match op:
        case scheduled.BarrierOp():
            narrower = {scheduled.EVERY_ROLE: scheduled.BLOCK, scheduled.BLOCK: scheduled.WARP}.get(op.scope.data)
            if narrower:
                yield f"of a {narrower}", lambda each: _put(each, "scope", StringAttr(narrower)), ""
        case scheduled.WaitOp() | scheduled.MmaWaitOp():
            yield "one more pending", _added("pending", 1), _FINDS_NOTHING if _finds_nothing(op) else ""
            if op.pending.value.data:
                yield "one fewer pending", _added("pending", -1), "waits for more"
        case scheduled.CopyOp() if op.trips is not None:
            yield "a trip too few", _added("trips", -1), ""
            unused = "waits for a copy that nobody uses" if _is_awaited_behind(op) else ""
            yield "a trip too many", _added("trips", 1), unused
        case scheduled.AllocOp() if op.stages is not None:
            yield "the last stage is the first", _share_a_stage, ""
            if op.count > 2:
                yield "one stage fewer", _added("stages", -1), ""
        case scheduled.MbarrierOp():
            yield from ((rule, edit, "") for rule, edit in _numbers_of_barriers(op))
        case tensor_memory.TensorMmaOp():
            for by in (1, -1):
                yield f"adds {by:+}", lambda each, by=by: _shift(each, "adds", by), ""
        case tensor_memory.TensorFenceOp():
            other = tensor_memory.BEFORE if op.side.data == tensor_memory.AFTER else tensor_memory.AFTER
            yield f"{other} instead", lambda each: _put(each, "side", StringAttr(other)), ""
        case _ if isinstance(op, _USES_BARRIERS):
            yield from ((rule, edit, "") for rule, edit in _numbers_at_barriers(op))
        case _:
            pass


def _numbers_of_barriers(op: scheduled.MbarrierOp) -> Iterator[tuple[str, Edit]]:
    yield "one arrival more", _added("arrivals", 1)
    if op.arrivals.value.data > 1:
        yield "one arrival fewer", _added("arrivals", -1)
    if op.count.value.data > 1:
        yield "one barrier fewer", _with_a_barrier_fewer
        yield "the last barrier is the first", _share_a_barrier


def _numbers_at_barriers(
    op: scheduled.ArriveOp
    | scheduled.ExpectOp
    | scheduled.AwaitOp
    | scheduled.TensorCopyOp
    | tensor_memory.MmaCommitOp,
) -> Iterator[tuple[str, Edit]]:
    if isinstance(op, scheduled.ExpectOp):
        for by in (1, -1, int(op.bytes.value.data), -(int(op.bytes.value.data) // 2)):
            yield f"{by:+} bytes", _added("bytes", by)
    shifted = {scheduled.AwaitOp: "phase", scheduled.ArriveOp: "trip"}.get(type(op))
    if shifted in op.properties:
        for by in (1, -1):
            yield f"{shifted} {by:+}", lambda each, by=by: _shift(each, shifted, by)
    count = _count(op)
    if count > 1:
        yield "the next barrier", lambda each: _shift(each, "number", 1, count)
    for at in range(len(_barriers(op)) - 1):
        yield f"other barriers, {at}", lambda each, at=at: _take_others(each, at)


def _exchanged(ops: Sequence[Operation]) -> Iterator[Mutant]:
    """Operations of two roles that change places, where they differ."""
    swapped = [(number, op) for number, op in enumerate(ops) if isinstance(op, _SWAPPED)]
    for (number, op), (later, other) in combinations(swapped, 2):
        same = (op.mbarrier, op.properties) == (other.mbarrier, other.properties)
        if _role(op) is not _role(other) and not same and _have_trips_alike(op, other):
            apart = later - number
            yield Mutant(f"changes places with {other.name}", number, lambda each, by=apart: _exchange(each, by))


# ---- mutants that are in order --------------------------------------------------------------------------------------


def _why_leaving_out_is_harmless(op: Operation) -> str:
    if _is_fenced_again(op):
        return _FENCED_AGAIN
    return _FINDS_NOTHING if _finds_nothing(op) else ""


def _why_repeating_is_harmless(op: Operation) -> str:
    if isinstance(op, _IDEMPOTENT):
        return "says the same again"
    # Groups without copies are newer than those with copies that they follow.
    return "waits for more" if isinstance(op, scheduled.CommitOp) else ""


def _why_harmless(op: Operation, other: Operation, forwards: bool) -> str:
    """Why `op` may be moved past `other`."""
    if _finds_nothing(op) or _finds_nothing(other):
        return _FINDS_NOTHING
    if _is_fenced_again(op) or _is_fenced_again(other):
        return _FENCED_AGAIN
    if isinstance(op if forwards else other, tensor_memory.TensorFreeOp):
        return "given back later"
    kinds = {type(op), type(other)}
    if kinds == {scheduled.WaitOp, scheduled.CopyOp}:
        return "the copy is in no group yet"
    if kinds == {scheduled.WaitOp, scheduled.BarrierOp} and _is_left_alone(op if forwards else other):
        return "nobody touches what it waits for"
    if kinds == {scheduled.StoreWaitOp, scheduled.MmaWaitOp}:
        return "each waits for something else"
    for moved, passed, down in ((op, other, forwards), (other, op, not forwards)):
        if isinstance(moved, scheduled.ArriveOp) and isinstance(passed, scheduled.BarrierOp) and down:
            return "says later that a stage is empty"
        stores = any(isinstance(each, scheduled.TensorStoreOp) for each in passed.walk())
        if isinstance(moved, scheduled.StoreWaitOp) and not down and not stores:
            return "waits sooner"
        if isinstance(moved, scheduled.CommitOp) and not isinstance(passed, _COUNTS_COPIES):
            return "" if any(isinstance(each, _COUNTS_COPIES) for each in passed.walk()) else "the same groups"
        if isinstance(moved, scheduled.CommitOp) and isinstance(passed, scheduled.CopyOp) and down:
            return "waits for more"
    return ""


def _finds_nothing(op: Operation) -> bool:
    """Whether a wait is behind a loop whose waits leave only groups for trips that there are not, which are empty."""
    if not isinstance(op, scheduled.WaitOp):
        return False
    loop = _neighbour(op, forwards=False)
    if not isinstance(loop, tile.ForOp) or loop.end is not None:
        return False
    inner = list(loop.body.block.ops)
    copies = [each for each in inner if isinstance(each, scheduled.CopyOp)]
    pending = [int(each.pending.value.data) for each in inner if isinstance(each, scheduled.WaitOp)]
    commits = [each for each in inner if isinstance(each, scheduled.CommitOp)]
    return len(commits) == 1 and len(pending) == 1 and all(_ahead(each) > pending[0] for each in copies)


def _is_fenced_again(op: Operation) -> bool:
    """Whether behind a fence the next product of the block comes behind another one, and a barrier."""
    if not isinstance(op, scheduled.FenceOp):
        return False
    kinds: list[type] = []
    behind = op.next_op
    while behind is not None and not isinstance(behind, scheduled.MmaOp | tile.ForOp):
        kinds.append(type(behind))
        behind = behind.next_op
    if not isinstance(behind, scheduled.MmaOp) or scheduled.FenceOp not in kinds:
        return False
    return scheduled.BarrierOp in kinds[kinds.index(scheduled.FenceOp) :]


def _is_left_alone(op: Operation) -> bool:
    """Whether behind an operation there is nothing in the memory of rings any longer."""
    kernel, behind = _kernel(op), op.next_op
    rings = [each for each in kernel.walk() if isinstance(each, scheduled.AllocOp) and each.stages is not None]
    while behind is not None:
        for each in behind.walk():
            if isinstance(each, scheduled.StageOp | scheduled.CopyOp):
                return False
            if isinstance(each, scheduled.AllocOp) and any(_overlap(each, ring) for ring in rings):
                return False
        behind = behind.next_op
    return isinstance(op.parent_op(), scheduled.ParallelOp)


def _overlap(one: scheduled.AllocOp, other: scheduled.AllocOp) -> bool:
    if one.offset_bytes is None or other.offset_bytes is None:
        return True
    first, second = (int(each.offset_bytes.value.data) for each in (one, other))
    return first < second + other.bytes and second < first + one.bytes


def _ahead(op: scheduled.CopyOp) -> int:
    """How many trips later what a trip copies is used; none where copies do not end with the trips."""
    return 0 if op.trip is None else op.trip.data.eval([], [0] * len(op.symbols))[0]


def _is_awaited_behind(op: scheduled.CopyOp) -> bool:
    """Whether all copies of a loop are waited for behind it."""
    loop = op.parent_op()
    assert loop is not None
    following = _neighbour(loop, forwards=True)
    return isinstance(following, scheduled.WaitOp) and not following.pending.value.data


# ---- edits ----------------------------------------------------------------------------------------------------------


def _leave_out(op: Operation) -> None:
    if isinstance(op, scheduled.MmaWaitOp):
        op.result.replace_all_uses_with(op.accumulator)
    op.detach()
    op.erase()


def _repeat(op: Operation) -> None:
    block = op.parent_block()
    assert block is not None
    if not isinstance(op, scheduled.MmaWaitOp):
        block.insert_op_after(op.clone(), op)
        return
    before = op.clone()
    block.insert_op_before(before, op)
    op.operands[0] = before.result


def _move(op: Operation, forwards: bool) -> None:
    other = _neighbour(op, forwards)
    block = op.parent_block()
    assert other is not None
    assert block is not None
    op.detach()
    if forwards:
        block.insert_op_after(op, other)
    else:
        block.insert_op_before(op, other)


def _neighbour(op: Operation, forwards: bool) -> Operation | None:
    """The next operation that touches memory or synchronises; None where there is none, or values are in the way."""
    other = op.next_op if forwards else op.prev_op
    while other is not None and not _matters(other):
        if _needs(other, op) or _needs(op, other):
            return None
        other = other.next_op if forwards else other.prev_op
    if other is None or _needs(other, op) or _needs(op, other):
        return None
    return other


def _matters(op: Operation) -> bool:
    inner = [each for each in op.walk() if not isinstance(each, tile.YieldOp | scheduled.EndOp)]
    return any(
        isinstance(each, (*SYNCHRONISES, *_USES_BARRIERS, *_USES_TENSOR_MEMORY, scheduled.CopyOp, scheduled.MbarrierOp))
        or (isinstance(each, scheduled.MmaOp) and each.asynchronous is not None)
        or (isinstance(each, _MOVES) and any(_is_of_a_block(operand) for operand in each.operands))
        for each in inner
    )


def _is_of_a_block(value: SSAValue) -> bool:
    return isinstance(value.type, tile.RefType) and value.type.space.data == scheduled.BLOCK


def _needs(user: Operation, op: Operation) -> bool:
    results = list(op.results)
    return any(operand in results for each in user.walk() for operand in each.operands)


def _put(op: Operation, name: str, attribute: Any) -> None:
    op.properties[name] = attribute


def _added(name: str, by: int) -> Edit:
    def edit(op: Operation) -> None:
        given = op.properties[name]
        assert isinstance(given, IntegerAttr)
        op.properties[name] = IntegerAttr(given.value.data + by, IndexType())

    return edit


def _shift(op: Operation, name: str, by: int, modulus: int | None = None) -> None:
    map = _map(op, name)
    (result,) = map.results
    shifted = result + by
    _put_map(op, name, map, shifted if modulus is None else shifted % modulus)


def _map(op: Operation, name: str) -> AffineMap:
    given = op.properties[name]
    assert isinstance(given, AffineMapAttr)
    return given.data


def _put_map(op: Operation, name: str, map: AffineMap, result: AffineExpr) -> None:
    op.properties[name] = AffineMapAttr(AffineMap(map.num_dims, map.num_symbols, (result,)))


def _with_a_barrier_fewer(op: Operation) -> None:
    assert isinstance(op, scheduled.MbarrierOp)
    count, block = int(op.count.value.data) - 1, op.parent_block()
    assert block is not None
    attributes = {"count": count, "arrivals": int(op.arrivals.value.data)}
    fewer = scheduled.MbarrierOp.make([], attributes, [tile.ref(ArrayType((count,), dtypes.i64), scheduled.BLOCK)])
    block.insert_op_before(fewer, op)
    op.result.replace_all_uses_with(fewer.result)
    _leave_out(op)


def _share_a_barrier(op: Operation) -> None:
    assert isinstance(op, scheduled.MbarrierOp)
    for use in list(op.result.uses):
        _modulo(use.operation, "number", int(op.count.value.data) - 1)


def _share_a_stage(op: Operation) -> None:
    """All stages are numbered as before, but the last has the first's place."""
    assert isinstance(op, scheduled.AllocOp)
    for use in list(op.result.uses):
        _modulo(use.operation, "map", op.count - 1)


def _modulo(op: Operation, name: str, modulus: int) -> None:
    map = _map(op, name)
    (result,) = map.results
    _put_map(op, name, map, result % modulus)


def _take_others(op: Operation, at: int) -> None:
    others = [each for each in _barriers(op) if each is not op.operands[_barrier_operand(op)].owner]
    op.operands[_barrier_operand(op)] = others[at].result


def _barrier_operand(op: Operation) -> int:
    return 2 if isinstance(op, scheduled.TensorCopyOp) else 0


def _have_trips_alike(*ops: Operation) -> bool:
    """Whether operations are all in loops, or all say nothing of a trip."""
    in_loops = [isinstance(op.parent_op(), tile.ForOp) for op in ops]
    plain = [all(isinstance(operand.type, tile.RefType) for operand in op.operands) for op in ops]
    return all(in_loops) or all(plain)


def _exchange(op: Operation, apart: int) -> None:
    """Each takes the other's place, and the trip of the loop there."""
    ops = list(_kernel(op).walk())
    other = ops[ops.index(op) + apart]
    for each, place in ((op, other), (other, op)):
        block = place.parent_block()
        assert block is not None
        new = each.clone()
        for number, operand in enumerate(new.operands):
            if not isinstance(operand.type, tile.RefType):
                new.operands[number] = block.args[0] if block.args else operand
        block.insert_op_before(new, place)
    for each in (op, other):
        _leave_out(each)


# ---- where an operation is ------------------------------------------------------------------------------------------


def _kernel(op: Operation) -> tile.KernelOp:
    around: Operation | None = op
    while not isinstance(around, tile.KernelOp):
        assert around is not None
        around = around.parent_op()
    return around


def _role(op: Operation) -> Operation | None:
    around = op.parent_op()
    while around is not None and not isinstance(around, scheduled.RoleOp):
        around = around.parent_op()
    return around


def _barriers(op: Operation) -> list[scheduled.MbarrierOp]:
    return [each for each in _kernel(op).walk() if isinstance(each, scheduled.MbarrierOp)]


def _count(op: Any) -> int:
    return int(op.mbarrier.owner.count.value.data)


# ---- judging --------------------------------------------------------------------------------------------------------


def judge(subject: Subject, mutant: Mutant, expected: Sequence[Tensor], seeds: Sequence[int]) -> Verdict:
    """Whether a mutant is seen: the executor complains, or has another result, or the emulator sees a race or a
    fault in tensor memory."""
    name = f"{mutant.operation(subject.kernel).name} {mutant.number}"
    try:
        kernel = mutant.planted(subject.kernel)
        kernel.verify()
        for seed in seeds:
            got = subject.run(kernel, seed)
            if not all(np.array_equal(*pair, equal_nan=True) for pair in zip(got, expected, strict=True)):
                return Verdict(mutant, name, "another result")
        if not mutant.harmless and subject.machine is not None:
            subject.emulate(kernel, subject.machine)
    except (CompilerBug, VerifyException, SharedRace, TensorMemoryFault) as error:
        return Verdict(mutant, name, f"{type(error).__name__}: {error}")
    return Verdict(mutant, name, "")


def verdicts(subject: Subject, seeds: Sequence[int]) -> Iterator[Verdict]:
    """Those of all mutants of a kernel.

    Raises:
        AssertionError: the kernel itself does not give the same for all seeds.
    """
    expected = subject.run(subject.kernel, seeds[0])
    for seed in seeds[1:]:
        for got, wanted in zip(subject.run(subject.kernel, seed), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
    for mutant in mutants_of(subject.kernel):
        yield judge(subject, mutant, expected, seeds)


# ---- kernels --------------------------------------------------------------------------------------------------------


def few_blocks(kernel: tile.KernelOp) -> tile.KernelOp:
    """The same with at most four blocks, along the last dims of the grid."""
    clone = kernel.clone()
    for op in clone.walk():
        if isinstance(op, scheduled.ParallelOp):
            left, extents = 4, list(op.shape)
            for dim in reversed(range(len(extents))):
                extents[dim] = min(extents[dim], left)
                left //= extents[dim]
            op.extents = DenseArrayBase.from_list(i64, extents)
    return clone


def subjects_of(program: CudaProgram, arrays: Sequence[Tensor], name: str) -> list[Subject]:
    """The kernels of a program, a few blocks of each."""
    unit = program.unit
    found: list[Subject] = []

    def call(callee: str, given: list[Tensor]) -> list[Tensor]:
        kernel = unit.kernel(callee)
        found.append(Subject(f"{name}, {callee}", few_blocks(kernel), [np.array(a) for a in given], unit.machine))
        return run_call(kernel, given)

    Interpreter(unit.constants, call).run(unit.main.body.block, list(arrays))
    return [each for each in found if any(isinstance(op, SYNCHRONISES) for op in each.kernel.walk())]


def role_subjects() -> list[Subject]:
    """Products that a role feeds, or that fence what they copied."""
    product = RoleProduct(m=100, n=40, k=150)
    modules = {
        "copied by a role": product.copied_by_a_role(),
        "multiplied by two": product.multiplied_twice(),
        "copied by itself": product.copied_by_itself(),
    }
    return [
        Subject(name, op, product.arrays())
        for name, module in modules.items()
        for op in module.walk()
        if isinstance(op, tile.KernelOp)
    ]


def product(x: Any) -> Any:
    return x @ x.T


def softmax(x: Any) -> Any:
    return tw.nn.softmax(x, axis=0)


def layer_norm(x: Any) -> Any:
    centred = x - tw.mean(x, axis=-1, keepdims=True)
    return centred / tw.sqrt(tw.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


def transposed(x: Any) -> Any:
    return x.T.astype(tw.f32)


def attention(x: Any) -> Any:
    return tw.nn.softmax(x @ x.T, axis=-1) @ x


# With shapes for which loops have more trips than stages, and warps depend on each other.
PROGRAMS: dict[Callable[[Any], Any], tuple[int, int]] = {
    product: (64, 608),
    softmax: (64, 96),
    layer_norm: (64, 96),
    transposed: (128, 96),
    attention: (288, 288),
}


def program_subjects(function: Callable[[Any], Any], chip: str) -> list[Subject]:
    """The kernels of one of `PROGRAMS`."""
    # So small that attention depends on all rows.
    x = (0.1 * np.random.default_rng(0).standard_normal(PROGRAMS[function])).astype(np.float16)
    program = built(tw.jit(function).lower(x), f"cuda:{chip}")
    return subjects_of(program, [x], f"{function.__name__} on {chip}")


def fused_subjects(chip: str) -> list[Subject]:
    """Attention as one kernel."""
    program, arrays, _ = expected_of(causal_attention)
    compiled = compile_module(build_module(program), program.constants, f"cuda:{chip}")
    return subjects_of(compiled, arrays, f"causal attention on {chip}")


def tensor_memory_subjects(chip: str) -> list[Subject]:
    """A product that is so large that it is done in tensor memory, where there is some."""
    x = np.random.default_rng(0).integers(-4, 5, (512, 608)).astype(np.float16)
    program = built(tw.jit(product).lower(x), f"cuda:{chip}")
    return subjects_of(program, [x], f"a large product on {chip}")


def of_heads(q: Any, k: Any, v: Any) -> Any:
    return tw.nn.attention(q, k, v)


def causal_of_heads(q: Any, k: Any, v: Any) -> Any:
    return tw.nn.attention(q, k, v, causal=True)


def chain_subjects(function: Callable[..., Any] = of_heads) -> list[Subject]:
    """Attention whose products are a chain that a warp copies for, of more steps than stages."""
    shape = (1, 1, 320, 16)
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal(shape).astype(np.float16) for _ in range(3))
    q = q if function is causal_of_heads else q[:, :, :64]
    program = built(tw.jit(function).lower(q, k, v), "cuda:sm_90a")
    return subjects_of(program, [q, k, v], f"{function.__name__} on sm_90a")


def all_subjects(chips: Sequence[str]) -> Iterator[Subject]:
    """Those that `main` judges."""
    yield from role_subjects()
    yield from tensor_memory_subjects("sm_100a")
    yield from chain_subjects()
    yield from chain_subjects(causal_of_heads)
    for chip in chips:
        for function in PROGRAMS:
            yield from program_subjects(function, chip)
        yield from fused_subjects(chip)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chips", nargs="+", default=["sm_80", "sm_90a"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--all", action="store_true", help="print what was caught and why, too")
    given = parser.parse_args()
    total = caught = harmless = 0
    for subject in all_subjects(given.chips):
        found = list(verdicts(subject, range(given.seeds)))
        missed = [each for each in found if each.is_missed]
        total, caught = total + len(found), caught + sum(bool(each.caught) for each in found)
        harmless += sum(bool(each.mutant.harmless) for each in found)
        print(f"{subject.name}: {len(found)} mutants, {len(missed)} missed", flush=True)
        for each in found:
            what = each.caught or each.mutant.harmless or "MISSED"
            if given.all or not each.caught:
                print(f"    {each.op}, {each.mutant.rule}: {what}")
    print(f"{total} mutants, {caught} caught, {harmless} in order, {total - caught - harmless} missed")


if __name__ == "__main__":
    main()
