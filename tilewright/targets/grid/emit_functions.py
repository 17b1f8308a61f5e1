"""The scalar functions as calls of the vector unit (SFPU) on tile registers: the names that ttnn 0.81 has for them.

Most calls work in place, or write any register; those with one number take its bits. Functions without a call of their
own are composed of others if that is exact enough, and are refused if it is not.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import isfinite, log

import numpy as np

from tilewright import dtypes, ops
from tilewright.dtypes import DType
from tilewright.errors import UnsupportedOnTargetError
from tilewright.records import dataclass

_API = "api/compute/compute_kernel_api.h"
_BINARY = "api/compute/eltwise_binary_sfpu.h"
_FORMATS = {"f32": "Float32", "bf16": "Float16_b", "i32": "Int32", "u32": "UInt32"}


@dataclass(frozen=True)
class Register:
    """A tile register, the first of as many as an operation has."""

    number: int


Operand = Register | float


@dataclass(frozen=True)
class Call:
    """One call. `init`: the call that prepares the vector unit for it; `registers` and `parameters`: its arguments."""

    include: str
    init: str
    function: str
    registers: tuple[int, ...]
    parameters: tuple[str, ...] = ()


def _unary(header: str) -> str:
    return f"api/compute/eltwise_unary/{header}.h"


# Functions of one float: header, name of the call, further arguments.
_FLOAT_UNARY: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "negative": (_unary("negative"), "negative_tile", ()),
    "absolute": (_API, "abs_tile", ()),
    "sign": (_API, "sign_tile", ()),
    "square": (_API, "square_tile", ()),
    "reciprocal": (_unary("recip"), "recip_tile", ()),
    "floor": (_unary("rounding"), "floor_tile", ()),
    "ceil": (_unary("rounding"), "ceil_tile", ()),
    "trunc": (_unary("rounding"), "trunc_tile", ()),
    "round": (_unary("rounding"), "round_tile", ("0",)),
    "isnan": (_unary("isinf_isnan"), "isnan_tile", ()),
    "isinf": (_unary("isinf_isnan"), "isinf_tile", ()),
    "isfinite": (_unary("isinf_isnan"), "isfinite_tile", ()),
    "signbit": (_API, "signbit_tile", ()),
    "sqrt": (_unary("sqrt"), "sqrt_tile", ()),
    "rsqrt": (_unary("rsqrt"), "rsqrt_tile", ()),
    "cbrt": (_unary("cbrt"), "cbrt_tile", ()),
    "exp": (_unary("exp"), "exp_tile", ()),
    "exp2": (_API, "exp2_tile", ()),
    "expm1": (_API, "expm1_tile", ()),
    "log": (_API, "log_tile", ()),
    "log1p": (_unary("log1p"), "log1p_tile", ()),
    "sin": (_unary("trigonometry"), "sin_tile", ()),
    "cos": (_unary("trigonometry"), "cos_tile", ()),
    "tan": (_unary("trigonometry"), "tan_tile", ()),
    "asin": (_unary("trigonometry"), "asin_tile", ()),
    "acos": (_unary("trigonometry"), "acos_tile", ()),
    "atan": (_unary("trigonometry"), "atan_tile", ()),
    "sinh": (_unary("trigonometry"), "sinh_tile", ()),
    "cosh": (_unary("trigonometry"), "cosh_tile", ()),
    "asinh": (_unary("trigonometry"), "asinh_tile", ()),
    "acosh": (_unary("trigonometry"), "acosh_tile", ()),
    "atanh": (_unary("trigonometry"), "atanh_tile", ()),
    "tanh": (_API, "tanh_tile", ()),
    "erf": (_unary("erf_erfc"), "erf_tile<false>", ()),
    "erfc": (_unary("erf_erfc"), "erfc_tile", ()),
    "sigmoid": (_API, "sigmoid_tile", ()),
}
_FLOAT_BINARY: dict[str, tuple[str, str]] = {
    "add": (_BINARY, "add_binary_tile"),
    "subtract": (_BINARY, "sub_binary_tile"),
    "multiply": (_BINARY, "mul_binary_tile"),
    "divide": (_BINARY, "div_binary_tile"),
    "power": (_BINARY, "power_binary_tile"),
    "maximum": ("api/compute/binary_max_min.h", "binary_max_tile"),
    "minimum": ("api/compute/binary_max_min.h", "binary_min_tile"),
    "remainder": ("api/compute/binary_remainder.h", "remainder_binary_tile"),
    "atan2": ("api/compute/atan2.h", "atan2_binary_tile"),
    "equal": (_BINARY, "eq_binary_tile"),
    "not_equal": (_BINARY, "ne_binary_tile"),
    "less": (_BINARY, "lt_binary_tile"),
    "less_equal": (_BINARY, "le_binary_tile"),
    "greater": (_BINARY, "gt_binary_tile"),
    "greater_equal": (_BINARY, "ge_binary_tile"),
}
# Functions of a float and a number, by the side of the number.
_SCALARS = _unary("binop_with_scalar")
_FLOAT_NUMBER_RIGHT: dict[str, tuple[str, str]] = {
    "add": (_SCALARS, "add_unary_tile"),
    "subtract": (_SCALARS, "sub_unary_tile"),
    "multiply": (_SCALARS, "mul_unary_tile"),
    "power": (_API, "power_tile"),
    "maximum": (_API, "unary_max_tile"),
    "minimum": (_API, "unary_min_tile"),
    "equal": (_unary("comp"), "unary_eq_tile"),
    "not_equal": (_unary("comp"), "unary_ne_tile"),
    "less": (_unary("comp"), "unary_lt_tile"),
    "less_equal": (_unary("comp"), "unary_le_tile"),
    "greater": (_unary("comp"), "unary_gt_tile"),
    "greater_equal": (_unary("comp"), "unary_ge_tile"),
}
_FLOAT_NUMBER_LEFT: dict[str, tuple[str, str]] = {
    "subtract": (_SCALARS, "rsub_unary_tile"),
    "divide": (_unary("rdiv"), "rdiv_tile"),
    "power": (_unary("rpow"), "rpow_tile"),
}
_INTEGER_UNARY: dict[str, tuple[str, str]] = {
    "negative": (_unary("negative"), "negative_tile_int32"),
    "absolute": (_API, "abs_tile_int32"),
    "bitwise_not": (_unary("bitwise_not"), "bitwise_not_tile"),
}
_INTEGER_BINARY: dict[str, tuple[str, str]] = {
    "add": ("api/compute/add_int_sfpu.h", "add_int_tile<{format}>"),
    "subtract": ("api/compute/sub_int_sfpu.h", "sub_int_tile<{format}>"),
    "multiply": ("api/compute/mul_int_sfpu.h", "mul_int_tile<{format}>"),
    "maximum": ("api/compute/binary_max_min.h", "binary_max_{suffix}_tile"),
    "minimum": ("api/compute/binary_max_min.h", "binary_min_{suffix}_tile"),
    "remainder": ("api/compute/binary_remainder.h", "remainder_{suffix}_tile"),
    "bitwise_and": ("api/compute/binary_bitwise_sfpu.h", "bitwise_and_binary_tile<{format}>"),
    "bitwise_or": ("api/compute/binary_bitwise_sfpu.h", "bitwise_or_binary_tile<{format}>"),
    "bitwise_xor": ("api/compute/binary_bitwise_sfpu.h", "bitwise_xor_binary_tile<{format}>"),
    "shift_left": ("api/compute/binary_shift.h", "binary_left_shift_tile<{format}>"),
    "shift_right": ("api/compute/binary_shift.h", "binary_right_shift_tile<{format}>"),
    "equal": ("api/compute/binary_comp.h", "eq_int_tile<{format}>"),
    "not_equal": ("api/compute/binary_comp.h", "ne_int_tile<{format}>"),
    "less": ("api/compute/binary_comp.h", "lt_int_tile<{format}>"),
    "less_equal": ("api/compute/binary_comp.h", "le_int_tile<{format}>"),
    "greater": ("api/compute/binary_comp.h", "gt_int_tile<{format}>"),
    "greater_equal": ("api/compute/binary_comp.h", "ge_int_tile<{format}>"),
}
_INTEGER_NUMBER_RIGHT: dict[str, tuple[str, str]] = {
    "add": (_SCALARS, "add_unary_tile_int32"),
    "subtract": (_SCALARS, "sub_unary_tile_int32"),
    "maximum": (_API, "unary_max_{suffix}_tile"),
    "minimum": (_API, "unary_min_{suffix}_tile"),
    "bitwise_and": (_unary("bitwise"), "bitwise_and_tile<{format}>"),
    "bitwise_or": (_unary("bitwise"), "bitwise_or_tile<{format}>"),
    "bitwise_xor": (_unary("bitwise"), "bitwise_xor_tile<{format}>"),
    "shift_left": (_unary("shift"), "left_shift_tile<{format}>"),
    "shift_right": (_unary("shift"), "right_shift_tile<{format}>"),
}
_SIGNED_NUMBER_RIGHT: dict[str, tuple[str, str]] = {
    "equal": (_unary("comp"), "unary_eq_tile_int32"),
    "not_equal": (_unary("comp"), "unary_ne_tile_int32"),
    "less": (_unary("comp"), "unary_lt_tile_int32"),
    "less_equal": (_unary("comp"), "unary_le_tile_int32"),
    "greater": (_unary("comp"), "unary_gt_tile_int32"),
    "greater_equal": (_unary("comp"), "unary_ge_tile_int32"),
}
_INTEGER_NUMBER_LEFT: dict[str, tuple[str, str]] = {"subtract": (_unary("rsub"), "rsub_unary_int32_tile")}
# The same question from the other side.
_MIRRORED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}
# Calls whose preparation has another name than their own, by the call's.
_INITS = {
    "floor_tile": "rounding_op_tile_init",
    "ceil_tile": "rounding_op_tile_init",
    "trunc_tile": "rounding_op_tile_init",
    "round_tile": "rounding_op_tile_init",
    "abs_tile_int32": "abs_tile_init",
    "negative_tile_int32": "negative_tile_init",
    "signbit_tile_int32": "signbit_tile_int32_init",
    "add_unary_tile": "binop_with_scalar_tile_init",
    "sub_unary_tile": "binop_with_scalar_tile_init",
    "mul_unary_tile": "binop_with_scalar_tile_init",
    "div_unary_tile": "binop_with_scalar_tile_init",
    "rsub_unary_tile": "binop_with_scalar_tile_init",
    "add_unary_tile_int32": "binop_with_scalar_tile_init",
    "sub_unary_tile_int32": "binop_with_scalar_tile_init",
    "binary_left_shift_tile": "binary_shift_tile_init",
    "binary_right_shift_tile": "binary_shift_tile_init",
    "binary_logical_right_shift_tile": "binary_shift_tile_init",
    "bitwise_and_binary_tile": "binary_bitwise_tile_init",
    "bitwise_or_binary_tile": "binary_bitwise_tile_init",
    "bitwise_xor_binary_tile": "binary_bitwise_tile_init",
    "fill_tile_bitcast": "fill_tile_init",
    "fill_tile_int": "fill_tile_init",
    "copy_dest_values": "copy_dest_values_init",
} | {f"unary_{each}_tile_int32": f"unary_{each}_tile_init" for each in ("eq", "ne", "lt", "le", "gt", "ge")}
# Preparations that take the template arguments of their calls.
_TEMPLATED_INITS = {"mul_int_tile", "typecast_tile", "erf_tile"} | {
    f"{each}_int_tile" for each in ("eq", "ne", "lt", "le", "gt", "ge")
}


def calls_of(
    fn: str, dtype: DType, operands: Sequence[Operand], slot: int, wide: bool, spare: int | None = None
) -> list[Call]:
    """The calls that put a function of registers and numbers to the register `slot`. `wide`: registers have 32 bits;
    `spare`: a register that nothing else uses, where there is one.

    Raises:
        UnsupportedOnTargetError: there are no such calls.
    """
    if all(not isinstance(each, Register) for each in operands):
        return [_fill(_evaluate(fn, dtype, operands), dtype, slot)]
    return _Lowering(fn, dtype, slot, wide, spare).calls(operands)


def cast_calls(source: Operand, from_type: str, to_type: str, slot: int, wide: bool) -> list[Call]:
    """The calls that put a register to the register `slot`, converted between two types.

    Raises:
        UnsupportedOnTargetError: there are no such calls.
    """
    before, after = dtypes.by_name(from_type), dtypes.by_name(to_type)
    lowering = _Lowering(f"cast to {to_type}", before, slot, wide)
    calls = lowering.moved(source)
    if before == after or (before.is_integer and after.is_integer):
        # Between integers the bits stay, in two's complement.
        return calls
    if before.is_float and after.is_float and not wide:
        # Registers of 16 bits hold what was rounded.
        return calls
    names = [_FORMATS.get(each.name) for each in (before, after)]
    if None in names:
        raise UnsupportedOnTargetError(
            f"the vector unit does not cast {from_type} to {to_type}", help="use bf16 in place of f16"
        )
    types = ", ".join(f"static_cast<uint32_t>(DataFormat::{name})" for name in names)
    return [*calls, _call(_unary("typecast"), f"typecast_tile<{types}>", (slot,))]


def bits_calls(source: Operand, slot: int) -> list[Call]:
    """The calls that put the bits of a register of 32 bits to the register `slot`."""
    return _Lowering("bits", dtypes.i32, slot, True).moved(source)


def fold_calls(fn: str, along: str, dtype: DType, slot: int, wide: bool) -> list[Call]:
    """The calls that reduce the register `slot` along its rows (`row`) or its columns (`column`)."""
    pool = {"add": "SUM", "maximum": "MAX", "minimum": "MIN"}[fn]
    kind = f"PoolType::{pool}, {_Lowering(fn, dtype, slot, wide).format}"
    end = "ROW" if along == "row" else "COL"
    return [Call(_API, f"sfpu_reduce_init<{kind}>();", f"sfpu_reduce<{kind}, ReduceDim::REDUCE_{end}>", (slot,))]


def _evaluate(fn: str, dtype: DType, numbers: Sequence[Operand]) -> float:
    if fn == "fill":
        return float(next(each for each in numbers if not isinstance(each, Register)))
    given = [np.asarray(each, dtype.numpy) for each in numbers if not isinstance(each, Register)]
    return float(ops.evaluate(fn, given))


def _fill(number: float, dtype: DType, slot: int) -> Call:
    if dtype.is_integer:
        return _call(_unary("fill"), f"fill_tile_int<DataFormat::{_FORMATS[dtype.name]}>", (slot,), (_integer(number),))
    if isfinite(number):
        literal = repr(float(np.float32(number))) + "f"
        return _call(_unary("fill"), "fill_tile", (slot,), (literal,))
    return _call(_unary("fill"), "fill_tile_bitcast", (slot,), (_float_bits(number),))


def _integer(number: float) -> str:
    return f"static_cast<uint32_t>({int(number)})" if number < 0 else str(int(number))


def _float_bits(number: float) -> str:
    with np.errstate(over="ignore"):
        (bits,) = struct.unpack("<I", np.float32(number).tobytes())
    return f"0x{bits:08X}"


def _call(include: str, function: str, registers: tuple[int, ...], parameters: tuple[str, ...] = ()) -> Call:
    name, _, template = function.partition("<")
    init = _INITS.get(name, f"{name}_init")
    if template and name in _TEMPLATED_INITS:
        init += f"<{template}"
    return Call(include, f"{init}();", function, registers, parameters)


@dataclass(frozen=True)
class _Lowering:
    """How one function becomes calls that end in a register."""

    fn: str
    dtype: DType
    slot: int
    wide: bool
    spare: int | None = None

    @property
    def format(self) -> str:
        if self.dtype.is_integer:
            return f"DataFormat::{_FORMATS[self.dtype.name]}"
        return "DataFormat::Float32" if self.wide else "DataFormat::Float16_b"

    def _named(self, row: tuple[str, str]) -> tuple[str, str]:
        include, function = row
        return include, function.format(format=self.format, suffix="int32" if self.dtype.is_signed else "uint32")

    def _unsupported(self, why: str = "has no form on the vector unit") -> UnsupportedOnTargetError:
        return UnsupportedOnTargetError(
            f"`{self.fn}` of {self.dtype.name} {why}", help="write it with other functions, or run it on another target"
        )

    def moved(self, source: Operand) -> list[Call]:
        """An operand in the register."""
        if not isinstance(source, Register):
            return [_fill(source, self.dtype, self.slot)]
        if source.number == self.slot:
            return []
        header = "api/compute/copy_dest_values.h"
        return [_call(header, f"copy_dest_values<{self.format}>", (source.number, self.slot))]

    def calls(self, operands: Sequence[Operand]) -> list[Call]:
        match operands:
            case [operand] if self.fn == "fill":
                return self.moved(operand)
            case [operand]:
                return self._of_one(operand)
            case [Register() as left, Register() as right]:
                return self._of_registers(left.number, right.number)
            case [Register() as left, float() as right]:
                return self._with_number(left, right, right_side=True)
            case [float() as left, Register() as right]:
                return self._with_number(right, left, right_side=False)
            case [condition, left, right]:
                return self._select(condition, left, right)
            case _:
                raise self._unsupported()

    def _of_one(self, operand: Operand) -> list[Call]:
        moved, slot = self.moved(operand), self.slot
        if self.dtype.is_integer:
            if self.fn == "square":
                number = operand.number if isinstance(operand, Register) else slot
                include, function = self._named(_INTEGER_BINARY["multiply"])
                return [_call(include, function, (number, number, slot))]
            if self.fn not in _INTEGER_UNARY or (self.fn == "absolute" and not self.dtype.is_signed):
                raise self._unsupported()
            include, function = self._named(_INTEGER_UNARY[self.fn])
            return [*moved, _call(include, function, (slot,))]
        if self.fn in ("log2", "log10"):
            base = 2.0 if self.fn == "log2" else 10.0
            return [*moved, _call(_API, "log_with_base_tile", (slot,), (_float_bits(1 / log(base)),))]
        if self.fn == "bitwise_not" and self.dtype.is_bool:
            return [*moved, _call(_SCALARS, "rsub_unary_tile", (slot,), (_float_bits(1.0),))]
        if self.fn not in _FLOAT_UNARY:
            raise self._unsupported()
        include, function, parameters = _FLOAT_UNARY[self.fn]
        return [*moved, _call(include, function, (slot,), parameters)]

    def _of_registers(self, left: int, right: int) -> list[Call]:
        registers = (left, right, self.slot)
        if self.dtype.is_integer:
            if self.fn == "floor_divide" and self.dtype.is_signed:
                return [_call("api/compute/div_int32_floor.h", "div_int32_floor_tile", registers)]
            if self.fn == "shift_right" and not self.dtype.is_signed:
                return [
                    _call("api/compute/binary_shift.h", f"binary_logical_right_shift_tile<{self.format}>", registers)
                ]
            if self.fn not in _INTEGER_BINARY:
                raise self._unsupported()
            return [_call(*self._named(_INTEGER_BINARY[self.fn]), registers)]
        if self.fn == "floor_divide":
            divided = _call(*_FLOAT_BINARY["divide"], registers)
            return [divided, _call(_unary("rounding"), "floor_tile", (self.slot,))]
        name = {"bitwise_and": "minimum", "bitwise_or": "maximum", "bitwise_xor": "not_equal"}.get(self.fn, self.fn)
        if (name != self.fn and not self.dtype.is_bool) or name not in _FLOAT_BINARY:
            raise self._unsupported()
        return [_call(*_FLOAT_BINARY[name], registers)]

    def _with_number(self, register: Register, number: float, right_side: bool) -> list[Call]:
        """A function of a register and a number: by a call that takes one, or by a number that is put to the register
        of the result first."""
        integer = self.dtype.is_integer
        function = ops.FUNCTIONS[self.fn]
        fn, on_right = self.fn, right_side
        if not right_side and (function.commutative or fn in _MIRRORED):
            fn, on_right = _MIRRORED.get(fn, fn), True
        if fn == "divide" and on_right and not integer:
            return [*self.moved(register), *self._divided(number)]
        if integer:
            right = _INTEGER_NUMBER_RIGHT | (_SIGNED_NUMBER_RIGHT if self.dtype.is_signed else {})
            table = right if on_right else _INTEGER_NUMBER_LEFT
        else:
            table = _FLOAT_NUMBER_RIGHT if on_right else _FLOAT_NUMBER_LEFT
        row = table.get(fn)
        if integer and fn == "shift_right" and not self.dtype.is_signed:
            row = None
        if row is not None:
            include, name = self._named(row)
            bits = _integer(number) if integer else _float_bits(number)
            return [*self.moved(register), _call(include, name, (self.slot,), (bits,))]
        room = self._room(register.number)
        left, right_register = (register.number, room) if right_side else (room, register.number)
        return [_fill(number, self.dtype, room), *self._of_registers(left, right_register)]

    def _room(self, *used: int) -> int:
        """A register for a number, while others are used."""
        room = self.slot if self.slot not in used else self.spare
        if room is None or room in used:
            raise self._unsupported("with a number needs a tile register more than there is")
        return room

    def _divided(self, number: float) -> list[Call]:
        """The register divided by a number: multiplied by its inverse, which is exact for powers of two; else that
        rounds twice."""
        if number == 0:
            raise self._unsupported("by a zero has no form on the vector unit")
        with np.errstate(over="ignore"):
            inverse = float(np.float32(1.0) / np.float32(number))
        return [_call(_SCALARS, "mul_unary_tile", (self.slot,), (_float_bits(inverse),))]

    def _select(self, condition: Operand, left: Operand, right: Operand) -> list[Call]:
        if not isinstance(condition, Register):
            return self.moved(left if condition else right)
        header, function, slot = _unary("where"), f"where_tile<{self.format}>", self.slot
        used = {each.number for each in (condition, left, right) if isinstance(each, Register)}
        match left, right:
            case (Register(), Register()):
                return [_call(header, function, (condition.number, left.number, right.number, slot))]
            case (float(), float()) if self._is_line(left, right):
                moved = self.moved(condition)
                scaled = _call(_SCALARS, "mul_unary_tile", (slot,), (_float_bits(left - right),))
                return [*moved, scaled, _call(_SCALARS, "add_unary_tile", (slot,), (_float_bits(right),))]
            case _:
                pass
        calls: list[Call] = []
        places: list[int] = []
        for each in (left, right):
            if isinstance(each, Register):
                places.append(each.number)
                continue
            places.append(self._room(*used))
            used.add(places[-1])
            calls.append(_fill(each, self.dtype, places[-1]))
        return [*calls, _call(header, function, (condition.number, *places, slot))]

    def _is_line(self, left: float, right: float) -> bool:
        """Whether a choice of two numbers is right + condition * (left - right), exactly."""
        if self.dtype.is_integer or not (isfinite(left) and isfinite(right)):
            return False
        difference = np.float32(np.float32(left) - np.float32(right))
        return bool(np.float32(difference + np.float32(right)) == np.float32(left))
