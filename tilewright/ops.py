"""The table of scalar functions, which defines `exp`, `add` and all others.

Builders, verifiers, interpreters, emitters, the cost model and the tests read it. A new function is one row here plus,
for each native target, its emission.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType

Array = np.ndarray[Any, Any]

# Result type rules.
SAME = "same"  # operands and result share one type
TO_BOOL = "bool"  # operands share one type, the result is bool
SELECT = "select"  # (bool, T, T) -> T

# Cost classes, in rising price; a machine file gives cycles per vector for each.
MOVE, ALU, MULTIPLY, DIVIDE, TRANSCENDENTAL = "move", "alu", "multiply", "divide", "transcendental"

# The stated error bound of functions of narrow floats whose `ulp` is not 0, in units of the last place of f32, in which
# they are computed before the result is rounded.
NARROW_ULP = 4.0


class ScalarFunction(msgspec.Struct, frozen=True):
    """One scalar function over arrays.

    `kinds` are the `DType.kind` letters that its operands may have. `reference` is the NumPy definition in the compute
    type (`DType.compute`); the result is rounded to the operand type. `identity` maps a type to the value that leaves
    the other operand unchanged, for functions that may reduce. `ulp` is the stated error bound of native code in units
    of the last place of the compute type; 0 means exactly rounded.
    """

    name: str
    arity: int
    kinds: str
    reference: Callable[..., Array]
    result: str = SAME
    cost: str = ALU
    ulp: float = 0.0
    identity: Callable[[DType], float | int | bool] | None = None
    commutative: bool = False

    @property
    def reducible(self) -> bool:
        return self.identity is not None

    def result_type(self, operands: Sequence[DType]) -> DType:
        return dtypes.bool_ if self.result == TO_BOOL else operands[-1]

    def accepts(self, operands: Sequence[DType]) -> bool:
        """Whether operand types fit: the right number, one type (after a select's condition), an allowed kind."""
        if len(operands) != self.arity:
            return False
        values = operands[1:] if self.result == SELECT else operands
        if self.result == SELECT and not operands[0].is_bool:
            return False
        return all(v == values[0] for v in values) and values[0].kind in self.kinds


# Additions to a running float sum in a row, at most, and those of a block where there are more. Each block is summed by
# itself and added to the sum of blocks, so that rounding errors grow with the number of levels, not with the number of
# terms. The end of a block this long is hidden behind the beginning of the next one.
LONGEST_CHAIN, SUM_BLOCK = 32, 16


def summation_depth(count: int) -> int:
    """Additions that a term of a float reduction of `count` terms goes through, at most, on targets that add in blocks:
    those with vectors or warps, and `interp`. The error of a sum is at most so many half units of precision of the sum
    of magnitudes.

    Two neighbouring levels take more than `LONGEST_CHAIN` terms together with as many additions and one; the rest is a
    last level, the vectors and lanes of a register block by pairs, and the parts that threads sum.
    """
    levels = math.log(max(count, 1), LONGEST_CHAIN + 1)
    return min(max(count - 1, 0), math.ceil((LONGEST_CHAIN + 2) * levels) + 2 * LONGEST_CHAIN)


def evaluate(name: str, operands: Sequence[Array]) -> Array:
    """Apply function `name` to arrays of one shape (or that broadcast), rounding as native code does."""
    function = FUNCTIONS[name]
    types = [dtypes.from_numpy(o.dtype) for o in operands]
    result = function.result_type(types)
    widened = [o.astype(t.compute.numpy, copy=False) for o, t in zip(operands, types, strict=True)]
    with np.errstate(all="ignore"):
        return np.asarray(function.reference(*widened)).astype(result.numpy, copy=False)


def cast(value: Array, destination: DType) -> Array:
    """Convert an array: floats to integers saturate with NaN to 0, integers wrap, anything to bool is `!= 0`, f32 to
    tf32 rounds ties away from zero."""
    source = dtypes.from_numpy(value.dtype)
    if destination.is_bool:
        return value.astype(np.float64) != 0 if source.is_float else value != 0
    if source.is_float and destination.is_integer:
        return _saturate(value.astype(np.float64), destination)
    if source.is_integer and destination.is_float and destination.bits < 64:
        return _round_integer(value, destination)
    if source.name == "f64" and destination.is_narrow_float:
        return _round_double(value, destination)
    if destination == dtypes.tf32:
        return _round_to_tf32(value)
    with np.errstate(all="ignore"):
        return value.astype(destination.numpy)


def _round_to_tf32(value: Array) -> Array:
    """f32 with 13 bits less, ties away from zero."""
    bits = value.astype(np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(value), rounded, value)


def _saturate(value: Array, destination: DType) -> Array:
    info = np.iinfo(destination.numpy)
    low, high = float(info.min), float(info.max)  # `high` rounds up to 2^63 or 2^64 for the widest types
    inside = np.where(np.isnan(value) | (value <= low) | (value >= high), 0.0, value)
    with np.errstate(all="ignore"):
        result = inside.astype(destination.numpy)
    result = np.where(value >= high, info.max, result)
    return np.where(value <= low, info.min, result).astype(destination.numpy)


def _round_integer(value: Array, destination: DType) -> Array:
    """Integer to a narrow float with one rounding: through a double made odd when it is inexact."""
    if destination.name == "f32":
        return value.astype(np.float32)
    return _round_double(_to_odd_double(value), destination)


def _to_odd_double(value: Array) -> Array:
    wide = value.astype(np.float64)
    if value.dtype.itemsize < 8:
        return wide
    # Beyond 2^53 keep the top bits and a sticky bit, so that the next rounding sees what was lost.
    magnitude = np.abs(value.astype(object))
    big = magnitude >= 2**53
    sticky = np.vectorize(_with_sticky_bit, otypes=[np.float64])
    rounded = np.where(big, sticky(magnitude), np.abs(wide)) if value.size else wide
    return np.copysign(rounded, wide)


def _with_sticky_bit(magnitude: int) -> float:
    return float((magnitude >> 11) << 11 | ((magnitude & 0x7FF) != 0) << 11)


def _round_double(value: Array, destination: DType) -> Array:
    """f64 to a narrow float with one rounding (NumPy's f16 is direct; others go through an f32 rounded to odd)."""
    with np.errstate(all="ignore"):
        if destination.name == "f16":
            return value.astype(np.float16)
        narrow = value.astype(np.float32)
        bits = narrow.view(np.uint32)
        inexact = (narrow.astype(np.float64) != value) & np.isfinite(narrow)
        too_big = np.abs(narrow.astype(np.float64)) > np.abs(value)
        truncated = np.where(inexact & too_big, bits - np.uint32(1), bits)
        odd = np.where(inexact, truncated | np.uint32(1), truncated).astype(np.uint32)
        return odd.view(np.float32).astype(destination.numpy)


# ---- references -----------------------------------------------------------------------------------------------------


def _floor_divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.floor_divide(a, b)
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    return np.where(b == 0, 0, np.floor_divide(a, safe)).astype(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.remainder(a, b)
    safe = np.where((b == 0) | (b == -1), 1, b).astype(b.dtype) if b.dtype.kind == "i" else np.where(b == 0, 1, b)
    return np.where(b == 0, 0, np.remainder(a, safe.astype(b.dtype))).astype(a.dtype)


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.power(a, b)
    a, b = np.broadcast_arrays(a, b)
    result = np.ones_like(a)
    base, exponent = a.copy(), np.maximum(b, 0)
    while np.any(exponent):
        result = np.where(exponent & 1, result * base, result)
        base, exponent = base * base, exponent >> 1
    if a.dtype.kind == "u":
        return result
    odd = (b & 1) != 0
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(odd, -1, 1), 0))
    return np.where(b < 0, inverse, result).astype(a.dtype)


def _shift_left(a: Array, b: Array) -> Array:
    bits = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    return np.where(inside, a << np.where(inside, b, 0).astype(a.dtype), 0).astype(a.dtype)


def _shift_right(a: Array, b: Array) -> Array:
    bits = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    last = (a >> np.array(bits - 1, a.dtype)).astype(a.dtype) if a.dtype.kind == "i" else np.zeros_like(a)
    return np.where(inside, a >> np.where(inside, b, 0).astype(a.dtype), last).astype(a.dtype)


def _sign(a: Array) -> Array:
    return np.sign(a)


def _negative(a: Array) -> Array:
    return np.negative(a) if a.dtype.kind != "u" else (np.zeros_like(a) - a)


def _reciprocal(a: Array) -> Array:
    return np.divide(np.ones_like(a), a)


def _rsqrt(a: Array) -> Array:
    return 1.0 / np.sqrt(a)


def _in_double(function: Callable[..., object]) -> Callable[..., Array]:
    """A reference that NumPy lacks, evaluated by a float64 ufunc and rounded to the operand type."""

    def apply(*operands: Array) -> Array:
        wide = function(*(o.astype(np.float64) for o in operands))
        return np.asarray(wide).astype(operands[0].dtype)

    return apply


def _from_math(name: str) -> Callable[..., Array]:
    import math

    return _in_double(np.vectorize(getattr(math, name), otypes=[np.float64]))


def _sigmoid(a: Array) -> Array:
    wide = a.astype(np.float64)
    e = np.exp(-np.abs(wide))
    return (np.where(wide >= 0, 1.0, e) / (1.0 + e)).astype(a.dtype)


# ---- the table ------------------------------------------------------------------------------------------------------

_zero: Callable[[DType], float | int | bool] = lambda d: False if d.is_bool else 0  # noqa: E731  one-line table entries
_one: Callable[[DType], float | int | bool] = lambda d: True if d.is_bool else 1  # noqa: E731
_ones: Callable[[DType], float | int | bool] = lambda d: True if d.is_bool else (-1 if d.kind == "i" else d.highest)  # noqa: E731

FLOAT, INTEGER, NUMERIC, BITS, ANY = "f", "iu", "iuf", "iub", "iufb"


def _transcendental(name: str, reference: Callable[..., Array], arity: int = 1, ulp: float = 2.0) -> ScalarFunction:
    return ScalarFunction(name, arity, FLOAT, reference, cost=TRANSCENDENTAL, ulp=ulp)


_ROWS = (
    # arithmetic
    ScalarFunction("add", 2, NUMERIC, np.add, identity=_zero, commutative=True),
    ScalarFunction("subtract", 2, NUMERIC, np.subtract),
    ScalarFunction("multiply", 2, NUMERIC, np.multiply, cost=MULTIPLY, identity=_one, commutative=True),
    ScalarFunction("divide", 2, FLOAT, np.divide, cost=DIVIDE),
    ScalarFunction("floor_divide", 2, NUMERIC, _floor_divide, cost=DIVIDE),
    ScalarFunction("remainder", 2, NUMERIC, _remainder, cost=DIVIDE),
    ScalarFunction("power", 2, NUMERIC, _power, cost=TRANSCENDENTAL, ulp=4.0),
    ScalarFunction("maximum", 2, ANY, np.maximum, identity=lambda d: d.lowest, commutative=True),
    ScalarFunction("minimum", 2, ANY, np.minimum, identity=lambda d: d.highest, commutative=True),
    ScalarFunction("negative", 1, NUMERIC, _negative),
    ScalarFunction("absolute", 1, NUMERIC, np.abs),
    ScalarFunction("sign", 1, NUMERIC, _sign),
    ScalarFunction("square", 1, NUMERIC, np.square, cost=MULTIPLY),
    ScalarFunction("reciprocal", 1, FLOAT, _reciprocal, cost=DIVIDE),
    ScalarFunction("copysign", 2, FLOAT, np.copysign),
    # rounding
    ScalarFunction("floor", 1, FLOAT, np.floor),
    ScalarFunction("ceil", 1, FLOAT, np.ceil),
    ScalarFunction("trunc", 1, FLOAT, np.trunc),
    ScalarFunction("round", 1, FLOAT, np.rint),
    # bits and logic
    ScalarFunction("bitwise_and", 2, BITS, np.bitwise_and, identity=_ones, commutative=True),
    ScalarFunction("bitwise_or", 2, BITS, np.bitwise_or, identity=_zero, commutative=True),
    ScalarFunction("bitwise_xor", 2, BITS, np.bitwise_xor, identity=_zero, commutative=True),
    ScalarFunction("bitwise_not", 1, BITS, np.invert),
    ScalarFunction("shift_left", 2, INTEGER, _shift_left),
    ScalarFunction("shift_right", 2, INTEGER, _shift_right),
    # comparisons and choice
    ScalarFunction("equal", 2, ANY, np.equal, result=TO_BOOL, commutative=True),
    ScalarFunction("not_equal", 2, ANY, np.not_equal, result=TO_BOOL, commutative=True),
    ScalarFunction("less", 2, ANY, np.less, result=TO_BOOL),
    ScalarFunction("less_equal", 2, ANY, np.less_equal, result=TO_BOOL),
    ScalarFunction("greater", 2, ANY, np.greater, result=TO_BOOL),
    ScalarFunction("greater_equal", 2, ANY, np.greater_equal, result=TO_BOOL),
    ScalarFunction("isnan", 1, FLOAT, np.isnan, result=TO_BOOL),
    ScalarFunction("isinf", 1, FLOAT, np.isinf, result=TO_BOOL),
    ScalarFunction("isfinite", 1, FLOAT, np.isfinite, result=TO_BOOL),
    ScalarFunction("signbit", 1, FLOAT, np.signbit, result=TO_BOOL),
    ScalarFunction("select", 3, ANY, np.where, result=SELECT),
    # roots, exponentials, logarithms
    ScalarFunction("sqrt", 1, FLOAT, np.sqrt, cost=DIVIDE),
    _transcendental("rsqrt", _in_double(_rsqrt)),
    _transcendental("cbrt", np.cbrt),
    _transcendental("exp", np.exp),
    _transcendental("exp2", np.exp2),
    _transcendental("expm1", np.expm1),
    _transcendental("log", np.log),
    _transcendental("log2", np.log2),
    _transcendental("log10", np.log10),
    _transcendental("log1p", np.log1p),
    # trigonometry and friends
    _transcendental("sin", np.sin),
    _transcendental("cos", np.cos),
    _transcendental("tan", np.tan, ulp=4.0),
    _transcendental("asin", np.arcsin),
    _transcendental("acos", np.arccos),
    _transcendental("atan", np.arctan),
    _transcendental("atan2", np.arctan2, arity=2),
    _transcendental("sinh", np.sinh),
    _transcendental("cosh", np.cosh),
    _transcendental("tanh", np.tanh),
    _transcendental("asinh", np.arcsinh),
    _transcendental("acosh", np.arccosh),
    _transcendental("atanh", np.arctanh),
    _transcendental("hypot", np.hypot, arity=2),
    _transcendental("erf", _from_math("erf")),
    _transcendental("erfc", _from_math("erfc")),
    _transcendental("sigmoid", _sigmoid),
)

FUNCTIONS: dict[str, ScalarFunction] = {row.name: row for row in _ROWS}

# Functions whose result jumps, so that a rounding difference in an operand may change the result by any amount.
DISCONTINUOUS = frozenset(
    {"floor", "ceil", "trunc", "round", "floor_divide", "remainder", "sign", "signbit", "copysign", "isnan", "isinf"}
    | {"isfinite", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
)
