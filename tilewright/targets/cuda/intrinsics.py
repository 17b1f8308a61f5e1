"""The instructions of NVIDIA's chips that the emitters of warps call, as LLVM's NVVM intrinsics and PTX."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llvmlite import ir

from tilewright.dialects import scheduled
from tilewright.dtypes import DType
from tilewright.targets.cuda import chip_math, eight_bits
from tilewright.targets.cuda.atoms.hopper import assembly, chip
from tilewright.targets.llvm.values import Builder, Lanes, Value
from tilewright.targets.simt.lane_groups import in_each_lane

TRIPLE = "nvptx64-nvidia-cuda"
_I32 = ir.IntType(32)
_FUNCTIONS: Mapping[str, Callable[..., Lanes]] = {
    "divide": chip_math.divide,
    "reciprocal": chip_math.reciprocal,
    "sqrt": chip_math.square_root,
    "rsqrt": chip_math.inverse_square_root,
    "exp": chip_math.exp,
    "exp2": chip_math.exp2,
    "exp2.ftz": chip_math.power_of_two,
    "maximum": chip_math.maximum,
    "minimum": chip_math.minimum,
    "sigmoid": chip_math.sigmoid,
    "tanh": chip_math.tanh,
    "erf": chip_math.erf,
}


class NvidiaIntrinsics:
    """`Intrinsics` of chips of 32 lanes a warp."""

    triple = TRIPLE
    calling_convention = "ptx_kernel"
    functions = _FUNCTIONS

    def divided(self, dividend: Lanes, divisor: Lanes, exactly: bool) -> Lanes:
        return (chip_math.divide if exactly else chip_math.divide_roughly)(dividend, divisor)

    def thread_index(self, builder: Builder) -> Value:
        return _special(builder, "tid.x")

    def thread_index_anew(self, builder: Builder) -> Value:
        return assembly(builder, "mov.u32 $0, %tid.x;", "=r", _I32)

    def block_index(self, builder: Builder) -> Value:
        return _special(builder, "ctaid.x")

    def shuffle_xor(self, builder: Builder, word: Value, lanes: int) -> Value:
        return _shuffle(builder, "bfly", word, _i32(lanes))

    def shuffle(self, builder: Builder, word: Value, lane: Value) -> Value:
        return _shuffle(builder, "idx", word, lane)

    def barrier(self, builder: Builder, scope: str) -> None:
        """Barrier 0 of the block, or one of all lanes of the warp."""
        of_warp = scope == scheduled.WARP
        name = "bar.warp.sync" if of_warp else "barrier.cta.sync.aligned.all"
        chip(builder, name, ir.VoidType(), _i32(-1 if of_warp else 0))

    def converts(self, builder: Builder, dtype: DType) -> bool:
        return eight_bits.converts(builder, dtype)

    def rounded_code(self, builder: Builder, value: Value, dtype: DType) -> Value:
        return eight_bits.rounded_code(builder, value, dtype)

    def number_of(self, builder: Builder, code: Value, dtype: DType) -> Value:
        return eight_bits.number_of(builder, code, dtype)

    def rounded_to_tf32(self, builder: Builder, value: Value) -> Value:
        """As tensor cores take it: PTX ISA, cvt.rna.tf32.f32."""
        words = in_each_lane(builder, "llvm.nvvm.f2tf32.rna", _I32, [value])
        return builder.bitcast(words, value.type)

    def opaque(self, builder: Builder, value: Value) -> Value:
        return builder.asm(ir.FunctionType(_I32, [_I32]), "mov.b32 $0, $1;", "=r,r", [value], side_effect=False)


NVIDIA = NvidiaIntrinsics()


def _i32(value: int) -> ir.Constant:
    return ir.Constant(_I32, value)


def _special(builder: Builder, name: str) -> Value:
    """A special register. PTX ISA, special registers."""
    return chip(builder, f"read.ptx.sreg.{name}", _I32)


def _shuffle(builder: Builder, mode: str, word: Value, argument: Value) -> Value:
    return chip(builder, f"shfl.sync.{mode}.i32", _I32, _i32(-1), word, argument, _i32(31))
