"""Instructions of sm_90a: mbarriers, tensor copies, fences of proxies, elections, registers and wgmma.

Each function writes one step with an llvmlite builder and knows nothing of tiles. LLVM's intrinsics are taken where
there are some; wgmma has none. Pointers to shared memory are in address space 3. Sources: PTX ISA 9.7.13.15
("mbarrier"), 9.7.9.25 ("Asynchronous copy"), 9.7.15 ("Asynchronous Warpgroup Level Matrix Instructions").
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from llvmlite import ir

from tilewright.errors import CompilerBug
from tilewright.records import dataclass

Builder = Any  # llvmlite carries no annotations
Value = Any
I1, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 16, 32, 64))
VOID = ir.VoidType()
_SHARED, _SHARED_CLUSTER = 3, 7


def chip(builder: Builder, name: str, result: ir.Type, *arguments: Value) -> Value:
    """Call `llvm.nvvm.<name>`."""
    full_name = f"llvm.nvvm.{name}"
    function = builder.module.globals.get(full_name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [each.type for each in arguments]), full_name)
    return builder.call(function, list(arguments))


def assembly(builder: Builder, text: str, constraints: str, result: ir.Type, *arguments: Value) -> Value:
    """Inline PTX that is neither moved nor dropped."""
    function = ir.FunctionType(result, [each.type for each in arguments])
    return builder.asm(function, text, constraints, list(arguments), side_effect=True)


def _i32(value: Value) -> Value:
    return ir.Constant(I32, value) if isinstance(value, int) else value


# ---- mbarriers: 8 bytes of shared memory, aligned to 8 ---------------------------------------------------------------


def mbarrier_init(builder: Builder, barrier: Value, arrivals: int) -> None:
    """Begin phase 0, which ends after so many arrivals; a fence and a barrier of the block have to follow."""
    chip(builder, "mbarrier.init.shared", VOID, barrier, _i32(arrivals))


def mbarrier_arrive(builder: Builder, barrier: Value) -> None:
    """One arrival; what the thread did before is seen by those who wait for the phase."""
    chip(builder, "mbarrier.arrive.scope.cta.space.cta", I64, barrier, _i32(1))


def mbarrier_arrive_at(builder: Builder, barrier: Value, rank: Value) -> None:
    """One arrival at the mbarrier of this offset in the block of that rank of the cluster."""
    text = "{.reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; mbarrier.arrive.shared::cluster.b64 _, [there];}"
    assembly(builder, text, "r,r,~{memory}", VOID, builder.ptrtoint(barrier, I32), rank)


def mbarrier_expect(builder: Builder, barrier: Value, bytes_expected: Value) -> None:
    """One arrival, and so many bytes of copies that the phase waits for as well."""
    chip(builder, "mbarrier.arrive.expect.tx.scope.cta.space.cta", I64, barrier, _i32(bytes_expected))


def mbarrier_wait(builder: Builder, barrier: Value, parity: Value) -> None:
    """Until the phase of that parity is complete; a fresh mbarrier's phase of parity 1 counts as complete."""
    again, after = builder.append_basic_block("wait"), builder.append_basic_block("after_wait")
    builder.branch(again)
    builder.position_at_end(again)
    done = chip(builder, "mbarrier.try.wait.parity.scope.cta.space.cta", I1, barrier, _i32(parity))
    builder.cbranch(done, after, again)
    builder.position_at_end(after)


# ---- fences ----------------------------------------------------------------------------------------------------------


def fence_mbarrier_init(builder: Builder) -> None:
    """mbarriers that the thread initialised are there for copies."""
    chip(builder, "fence.mbarrier_init.release.cluster", VOID)


def fence_shared_writes(builder: Builder) -> None:
    """Make stores of threads to shared memory visible to asynchronous copies and MMAs."""
    chip(builder, "fence.proxy.async.shared_cta", VOID)


# ---- clusters --------------------------------------------------------------------------------------------------------


def rank_in_cluster(builder: Builder) -> Value:
    """The rank of the block in its cluster."""
    return chip(builder, "read.ptx.sreg.cluster.ctarank", I32)


def cluster_sync(builder: Builder) -> None:
    """All threads of the cluster come; of what was done before, they see which mbarriers were made, and fenced."""
    chip(builder, "barrier.cluster.arrive.relaxed.aligned", VOID)
    chip(builder, "barrier.cluster.wait.aligned", VOID)


# ---- tensor copies ---------------------------------------------------------------------------------------------------


class TensorMapParameter(ir.PointerType):
    """The type of a kernel's parameter that is a tensor map. Without the last attribute LLVM copies it to the stack,
    where the copy engine cannot read it."""

    def _to_string(self) -> str:
        return 'ptr byval([128 x i8]) align 64 "nvvm.grid_constant"'


def tensor_map(argument: Value) -> Value:
    """The address of a tensor map, from the kernel's argument."""
    return ir.FormattedConstant(ir.PointerType(), argument.get_reference())


def tensor_copy_in(
    builder: Builder,
    target: Value,
    source: Value,
    coordinates: Sequence[Value],
    barrier: Value,
    *,
    names_cluster: bool = False,
    blocks: int = 1,
) -> None:
    """Copy the box of tensor map `source` at `coordinates`, innermost first, to shared memory at `target`.

    The bytes of the whole box are completed at `barrier`. `names_cluster`: the form for PTX before 8.6, which is slow
    on sm_12x; else the one within a block. `blocks`: to the same position in each of the first so many of the cluster,
    where they are completed at the mbarrier in the same position; more than one names the cluster.
    """
    places = [_i32(each) for each in coordinates]
    no_hint, no = ir.Constant(I64, 0), ir.Constant(I1, 0)
    rank = f"tile.{len(places)}d"
    if not names_cluster and blocks == 1:
        name = f"cp.async.bulk.tensor.g2s.cta.{rank}"
        chip(builder, name, VOID, target, barrier, source, *places, no_hint, no)
        return
    target = builder.addrspacecast(target, ir.PointerType(addrspace=_SHARED_CLUSTER))
    several, mask = blocks > 1, (1 << blocks) - 1 if blocks > 1 else 0
    rest = (ir.Constant(I16, mask), no_hint, ir.Constant(I1, several), no, _i32(0))
    chip(builder, f"cp.async.bulk.tensor.g2s.{rank}", VOID, target, barrier, source, *places, *rest)


def tensor_copy_out(builder: Builder, target: Value, coordinates: Sequence[Value], source: Value) -> None:
    """Copy shared memory at `source` to the box of tensor map `target`, in the thread's open group."""
    places = [_i32(each) for each in coordinates]
    name = f"cp.async.bulk.tensor.s2g.tile.{len(places)}d"
    chip(builder, name, VOID, source, target, *places, ir.Constant(I64, 0), ir.Constant(I1, 0))


def bulk_commit(builder: Builder) -> None:
    """Close the thread's group of copies to global memory."""
    chip(builder, "cp.async.bulk.commit.group", VOID)


def bulk_wait(builder: Builder, groups_left: int, *, only_read: bool = False) -> None:
    """Until all but the last groups are done; `only_read`: until shared memory may be written again."""
    chip(builder, f"cp.async.bulk.wait.group{'.read' if only_read else ''}", VOID, _i32(groups_left))


# ---- threads and registers -------------------------------------------------------------------------------------------


def elect_one(builder: Builder) -> Value:
    """Whether this lane is the one that acts for its warp, all of which is here."""
    elected = chip(builder, "elect.sync", ir.LiteralStructType([I32, I1]), _i32(-1))
    return builder.extract_value(elected, 1)


def set_most_registers(builder: Builder, count: int, *, grows: bool) -> None:
    """Take registers for a warpgroup from what others gave back, or give back; for kernels with `.maxnreg`."""
    chip(builder, f"setmaxnreg.{'inc' if grows else 'dec'}.sync.aligned.u32", VOID, _i32(count))


def barrier_sync(builder: Builder, number: int, threads: int) -> None:
    """Named barrier `number` of so many threads."""
    chip(builder, "barrier.cta.sync.aligned.count", VOID, _i32(number), _i32(threads))


def barrier_arrive(builder: Builder, number: int, threads: int) -> None:
    """Come to a named barrier without waiting there."""
    chip(builder, "barrier.cta.arrive.aligned.count", VOID, _i32(number), _i32(threads))


# ---- wgmma -----------------------------------------------------------------------------------------------------------

_DEPTH_BYTES, _ROWS = 32, 64
_UNLIKELY_BITS = 0x7FD5A3C1
_BYTES = {"bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}


@dataclass(frozen=True)
class Wgmma:
    """D (64 x columns) += A (64 x 32 bytes) @ B (32 bytes x columns): types by their names in PTX.

    `left_major` and `right_major`: "k", or "mn" of 16-bit operands in shared memory. A is in registers or in shared
    memory, as it is given. Accumulators are the registers of `wgmma_accumulator`, f16 in pairs.

    Raises:
        CompilerBug: the chip has no such MMA.
    """

    columns: int
    left: str
    right: str
    result: str
    left_major: str = "k"
    right_major: str = "k"

    def __post_init__(self) -> None:
        mixed = {self.left, self.right}
        pairs = len(mixed) == 1 or mixed <= {"e4m3", "e5m2"} or mixed <= {"s8", "u8"}
        results = ("s32",) if self.left in ("s8", "u8") else ("f32",)
        results = ("f16", "f32") if self.left in ("f16", "e4m3", "e5m2") else results
        transposed = "mn" in (self.left_major, self.right_major)
        integers_fit = self.result != "s32" or self.columns in (8, 24) or self.columns % 16 == 0
        fits = self.columns % 8 == 0 and 8 <= self.columns <= 256 and integers_fit
        if not pairs or self.result not in results or not fits or (transposed and _BYTES[self.left] != 2):
            raise CompilerBug(f"there is no {self}")

    @property
    def accumulators(self) -> int:
        return self.columns // (4 if self.result == "f16" else 2)

    @property
    def depth(self) -> int:
        return _DEPTH_BYTES // _BYTES[self.left]

    def text(self, left: str, right: str, adds: str) -> str:
        """One instruction; accumulators are operands 0 on."""
        names = ", ".join(f"${number}" for number in range(self.accumulators))
        shape = f"m{_ROWS}n{self.columns}k{self.depth}.{self.result}.{self.left}.{self.right}"
        options = [] if self.result == "s32" else ["1", "1"]
        if _BYTES[self.left] == 2:
            majors = [self.right_major] if left.startswith("{") else [self.left_major, self.right_major]
            options += ["1" if major == "mn" else "0" for major in majors]
        return f"wgmma.mma_async.sync.aligned.{shape} {{{names}}}, {', '.join([left, right, adds, *options])};"


def wgmma(
    builder: Builder,
    kind: Wgmma,
    accumulators: Sequence[Value],
    lefts: Sequence[Sequence[Value]],
    rights: Sequence[Value],
    adds: Value,
) -> list[Value]:
    """Issue one MMA for each of `lefts` and `rights`, one after the other: the accumulators that they will give.

    Each of `lefts` is one matrix descriptor, or four registers of 32 bits. `adds` (i1): whether the first MMA adds to
    the accumulators. All are one piece of assembly whose accumulators stay where they are: between it and `wgmma_wait`
    nothing may touch them.
    """
    arguments: list[Value] = []
    text = ["{.reg .pred adds, always;", "setp.ne.b32 always, 1, 0;"]
    first = 2 * len(accumulators)

    def operand(value: Value) -> str:
        arguments.append(value)
        return f"${first + len(arguments) - 1}"

    text.append(f"setp.ne.b32 adds, {operand(builder.zext(adds, I32))}, 0;")
    for number, (left, right) in enumerate(zip(lefts, rights, strict=True)):
        name = operand(left[0]) if len(left) == 1 else f"{{{', '.join(map(operand, left))}}}"
        text.append(kind.text(name, operand(right), "always" if number else "adds"))
    letters = ",".join("l" if value.type == I64 else "r" for value in arguments)
    return _tied(builder, " ".join([*text, "}"]), accumulators, letters, arguments)


def wgmma_fence(builder: Builder, accumulators: Sequence[Value], operands: Sequence[Value] = ()) -> list[Value]:
    """Give registers that were touched to the MMAs that follow: accumulators, then those of A, as given."""
    return _tied(builder, "wgmma.fence.sync.aligned;", accumulators, operands=operands)


def wgmma_commit(builder: Builder) -> None:
    """Close a group of MMAs."""
    assembly(builder, "wgmma.commit_group.sync.aligned;", "", VOID)


def wgmma_wait(
    builder: Builder, groups_left: int, accumulators: Sequence[Value], operands: Sequence[Value] = ()
) -> list[Value]:
    """Until all but the last groups are complete: the accumulators, which are values like others from here on.
    Registers of A are given as well, so that nothing else takes their position before."""
    text = f"wgmma.wait_group.sync.aligned {groups_left};"
    return _tied(builder, text, accumulators, operands=operands)


def compute_before(builder: Builder, values: Sequence[Value]) -> None:
    """Compute values of f32 before any wait that follows: the assembler moves waits ahead of arithmetic, and MMAs would
    not overlap with it. It moves nothing across a branch that depends on the values; this one is taken for one of 2^32
    of them, and does nothing then."""
    if values:
        bits = reduce(builder.xor, [builder.bitcast(value, I32) for value in values])
        text = f"{{.reg .pred never; setp.eq.b32 never, $0, {_UNLIKELY_BITS}; @never nanosleep.u32 0;}}"
        assembly(builder, text, "r", VOID, bits)


def _tied(
    builder: Builder,
    text: str,
    accumulators: Sequence[Value],
    letters: str = "",
    arguments: Sequence[Value] = (),
    operands: Sequence[Value] = (),
) -> list[Value]:
    """Assembly that changes registers in place: operands 0 on are results, those that follow are the same registers."""
    values = [*accumulators, *operands]
    outputs = ["=f" if each.type == ir.FloatType() else "=r" for each in accumulators] + ["=r"] * len(operands)
    inputs = [str(number) for number in range(len(values))]
    constraints = ",".join([*outputs, *inputs, *([letters] if letters else []), "~{memory}"])
    result = ir.LiteralStructType([each.type for each in values])
    changed = assembly(builder, text, constraints, result, *values, *arguments)
    return [builder.extract_value(changed, number) for number in range(len(values))]
