"""Functions of elements: by the chip's own instructions where it has some; the others are the LLVM that all targets
share, in which a division is one of this target (`ChipBuilder`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.targets.llvm.conversions import emit_cast as cast_shared
from tilewright.targets.llvm.functions import emit_function as emit_shared
from tilewright.targets.llvm.values import FLOAT, Builder, Lanes, Value, element_of
from tilewright.targets.simt.intrinsics import Intrinsics
from tilewright.targets.simt.remainders import fmod

# Functions that targets share, whose divisions of f32 must not be off.
_DIVIDED_EXACTLY = {"floor_divide"}


class ChipBuilder(ir.IRBuilder):  # pyright: ignore[reportUntypedBaseClass]
    """Appends instructions, those of a chip by its `intrinsics`. A division of f32 in functions that targets share is
    within 2 ULP, but in some: a correctly rounded one would be a call of a subroutine. A remainder is exact."""

    def __init__(self, block: Any, intrinsics: Intrinsics) -> None:
        super().__init__(block)  # pyright: ignore[reportUnknownMemberType]
        self.intrinsics = intrinsics
        self.divides_exactly = False

    def fdiv(self, lhs: Value, rhs: Value, name: str = "", flags: Sequence[str] = ()) -> Value:
        if element_of(lhs.type) == FLOAT:
            return self.intrinsics.divided(Lanes(self, lhs), Lanes(self, rhs), self.divides_exactly).value
        return super().fdiv(lhs, rhs, name, flags)  # pyright: ignore

    def frem(self, lhs: Value, rhs: Value, name: str = "", flags: Sequence[str] = ()) -> Value:
        return fmod(self, lhs, rhs)


def emit_function(
    builder: Builder,
    name: str,
    dtype: DType,
    arguments: Sequence[Value],
    *,
    ftz: bool = False,
    contract: bool = False,
) -> Value:
    """Apply function `name` to scalars or vectors of type `dtype` (of a select: the type of its values), in register
    form. Results of narrow floats are rounded where they are held; with `ftz` subnormal ones may be 0. With `contract`
    LLVM may fuse a multiplication and a sum."""
    functions = builder.intrinsics.functions
    own = functions.get(f"{name}.ftz", functions.get(name)) if ftz else functions.get(name)
    if own is None or dtype.compute != dtypes.f32:
        builder.divides_exactly = name in _DIVIDED_EXACTLY
        result = emit_shared(builder, name, dtype.compute, arguments)
        builder.divides_exactly = False
        if contract:  # of a multiplication, sum or difference, which is one instruction
            result.flags.append("contract")
        return result
    return own(*(Lanes(builder, argument) for argument in arguments)).value


def emit_cast(builder: Builder, value: Value, source: DType, destination: DType) -> Value:
    """Convert between register forms. A narrow float that needs one rounding gets it where it is held."""
    if destination == dtypes.tf32:
        return builder.intrinsics.rounded_to_tf32(builder, value)
    once = source.bits <= 16 or source == dtypes.f32
    packed = destination.is_narrow_float
    return cast_shared(builder, value, source, dtypes.f32 if packed and once else destination)
