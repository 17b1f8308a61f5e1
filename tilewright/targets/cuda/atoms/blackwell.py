"""Instructions of sm_100a: tensor memory and the MMAs of tcgen05, of one block. The rest is as on `hopper`.

Addresses of tensor memory are 32-bit numbers: the lane in the upper half, the column in the lower. Source: PTX ISA
9.7.16, "TensorCore 5th Generation Family Instructions".
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from tilewright.errors import CompilerBug
from tilewright.records import dataclass
from tilewright.targets.cuda.atoms.hopper import I16, I32, VOID, Builder, Value, assembly, chip

_TENSOR = ir.PointerType(addrspace=6)
_ONE_BLOCK, _DISCARDED = 1, 0
_DEPTH_BYTES = 32


def _i32(value: Value) -> Value:
    return ir.Constant(I32, value) if isinstance(value, int) else value


# ---- tensor memory ---------------------------------------------------------------------------------------------------


def tmem_alloc(builder: Builder, slot: Value, columns: int) -> None:
    """A warp allocates 32, 64, 128, 256 or 512 columns; their address is stored to shared memory at `slot`."""
    chip(builder, "tcgen05.alloc.shared.cg1", VOID, slot, _i32(columns))


def tmem_dealloc(builder: Builder, address: Value, columns: int) -> None:
    """A warp gives back what was allocated, as it has to before the block ends."""
    chip(builder, "tcgen05.dealloc.cg1", VOID, builder.inttoptr(address, _TENSOR), _i32(columns))


def tmem_relinquish(builder: Builder) -> None:
    """The block allocates no more, so that others on the multiprocessor may."""
    chip(builder, "tcgen05.relinq.alloc.permit.cg1", VOID)


def tmem_load(builder: Builder, address: Value, columns: int) -> list[Value]:
    """`columns` (a power of two up to 128) of a warp's own 32 lanes: a 32-bit register of each lane a column.

    The wait is in the same piece of assembly: LLVM would move what computes with the registers before it.
    """
    names = ", ".join(f"${number}" for number in range(columns))
    text = f"tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {{{names}}}, [${columns}]; tcgen05.wait::ld.sync.aligned;"
    constraints = ",".join(["=r"] * columns + ["r", "~{memory}"])
    if columns == 1:
        return [assembly(builder, text, constraints, I32, address)]
    loaded = assembly(builder, text, constraints, ir.LiteralStructType([I32] * columns), address)
    return [builder.extract_value(loaded, number) for number in range(columns)]


def tmem_store(builder: Builder, address: Value, values: Sequence[Value]) -> None:
    """Store a 32-bit register of each lane a column to a warp's own 32 lanes, and wait until they are there."""
    names = ", ".join(f"${number + 1}" for number in range(len(values)))
    text = f"tcgen05.st.sync.aligned.32x32b.x{len(values)}.b32 [$0], {{{names}}}; tcgen05.wait::st.sync.aligned;"
    assembly(builder, text, ",".join(["r"] * (1 + len(values)) + ["~{memory}"]), VOID, address, *values)


# ---- order among threads ---------------------------------------------------------------------------------------------


def tcgen05_fence_before(builder: Builder) -> None:
    """The thread's tensor-memory operations come before what it signals next."""
    chip(builder, "tcgen05.fence.before.thread.sync", VOID)


def tcgen05_fence_after(builder: Builder) -> None:
    """The thread's tensor-memory operations come after what it waited for."""
    chip(builder, "tcgen05.fence.after.thread.sync", VOID)


def tcgen05_commit(builder: Builder, barrier: Value) -> None:
    """One arrival at an mbarrier when the MMAs that this thread issued are complete."""
    chip(builder, "tcgen05.commit.shared.cg1", VOID, barrier)


def tcgen05_commit_to(builder: Builder, barrier: Value, blocks: int) -> None:
    """One arrival at the mbarrier of this offset in each of the first `blocks` blocks of the cluster, when the MMAs
    that this thread issued are complete."""
    chip(builder, "tcgen05.commit.mc.shared.cg1", VOID, barrier, ir.Constant(I16, (1 << blocks) - 1))


# ---- products --------------------------------------------------------------------------------------------------------

# Table 42, "Instruction descriptor": kinds as LLVM numbers them, and types by kind.
_KINDS = {"f16": 0, "tf32": 1, "f8f6f4": 2, "i8": 3}
_KIND_OF = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "e4m3": "f8f6f4", "e5m2": "f8f6f4", "s8": "i8", "u8": "i8"}
_TYPES = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "u8": 0, "s8": 1}
_RESULTS = {"f16": 0, "f32": 1, "s32": 2}
_RESULTS_OF = {"f16": ("f16", "f32"), "tf32": ("f32",), "f8f6f4": ("f16", "f32"), "i8": ("s32",)}
_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}


@dataclass(frozen=True)
class Tcgen05:
    """D (rows x columns) += A (rows x 32 bytes) @ B (32 bytes x columns): types by their names in PTX.

    Raises:
        CompilerBug: the chip has no such MMA.
    """

    rows: int
    columns: int
    left: str
    right: str
    result: str
    left_major: str = "k"
    right_major: str = "k"

    def __post_init__(self) -> None:
        kind = _KIND_OF[self.left]
        step = 16 if self.rows == 128 or (kind == "i8" and self.columns > 32) else 8
        fits = self.rows in (64, 128) and self.columns % step == 0 and step <= self.columns <= 256
        alike = self.left == self.right or kind in ("f8f6f4", "i8")
        transposed = "mn" in (self.left_major, self.right_major)
        result = self.result in _RESULTS_OF[kind] and not (self.result == "f16" and self.left == "bf16")
        if not fits or not alike or kind != _KIND_OF[self.right] or not result or (transposed and kind == "tf32"):
            raise CompilerBug(f"there is no {self}")

    @property
    def depth(self) -> int:
        return _DEPTH_BYTES // _BYTES[self.left]

    @property
    def descriptor(self) -> int:
        """The instruction descriptor."""
        majors = (self.left_major == "mn") << 15 | (self.right_major == "mn") << 16
        types = _RESULTS[self.result] << 4 | _TYPES[self.left] << 7 | _TYPES[self.right] << 10
        return types | majors | self.columns >> 3 << 17 | self.rows >> 4 << 24


def tcgen05_mma(builder: Builder, kind: Tcgen05, target: Value, left: Value, right: Value, adds: Value) -> None:
    """One thread issues an MMA: `target` in tensor memory, `left` and `right` matrix descriptors, `adds` (i1)."""
    numbers = (_KINDS[_KIND_OF[kind.left]], _ONE_BLOCK, _DISCARDED)
    chip(
        builder,
        "tcgen05.mma.shared",
        VOID,
        builder.inttoptr(target, _TENSOR),
        left,
        right,
        _i32(kind.descriptor),
        adds,
        *map(_i32, numbers),
    )
