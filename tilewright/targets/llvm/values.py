"""Shared code of the emitters of scalar functions: splat constants, intrinsics, fused steps and bit patterns.

Everything here takes a value that is a scalar or a vector and gives code of the same number of lanes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
from llvmlite import ir

# llvmlite carries no annotations, and what a type checker infers for its builder's methods is wrong.
Builder: TypeAlias = Any
Value: TypeAlias = Any
_VECTOR: type[Any] = ir.VectorType
_CONSTANT: type[Any] = ir.Constant


class _BFloat(ir.Type):
    """LLVM's `bfloat`, which llvmlite has no class for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


BFLOAT = _BFloat()
HALF, FLOAT, DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_BITS: dict[ir.Type, int] = {FLOAT: 32, DOUBLE: 64}
_SUFFIXES: dict[ir.Type, str] = {HALF: "f16", FLOAT: "f32", DOUBLE: "f64"}


def builder_of(function: ir.Function) -> Builder:
    """A builder at the start of a function without blocks."""
    return ir.IRBuilder(function.append_basic_block("entry"))


def undefined(shape: ir.Type) -> ir.Constant:
    return _Splat(shape, "undef", None)


def with_element(shape: ir.Type, element: ir.Type) -> ir.Type:
    """The type with as many lanes as `shape` and elements of type `element`."""
    return ir.VectorType(element, lanes_of(shape)) if isinstance(shape, ir.VectorType) else element


def element_of(shape: Any) -> ir.Type:
    """The type of one lane."""
    return shape.element if isinstance(shape, _VECTOR) else shape


def lanes_of(shape: Any) -> int:
    """How many lanes a type has: 1 for a scalar."""
    return shape.count if isinstance(shape, _VECTOR) else 1


class _Splat(ir.Constant):
    """A vector constant in LLVM's short form; `ir.Constant` would spell every lane out."""

    def __init__(self, shape: ir.Type, text: str, value: float | int | None) -> None:
        self.type = shape
        self.constant = text
        self.value = value

    def _get_reference(self) -> str:
        return str(self.constant)


def splat(shape: ir.Type, value: float | int) -> ir.Constant:
    """`value` in every lane; a float is rounded to the element type, an integer taken modulo its width."""
    element = element_of(shape)
    if isinstance(element, ir.IntType):
        text = str(value) if element.width > 1 else ("true" if value else "false")
    else:
        text = _hexadecimal(float(value), element)
    if isinstance(shape, ir.VectorType):
        return _Splat(shape, f"splat ({element} {text})", value)
    return _Splat(shape, text, value)


def integer_constant(value: Value) -> int | None:
    """The integer that a constant has in every lane; None where it is no such constant."""
    if isinstance(value, _Splat):
        return value.value if isinstance(value.value, int) else None
    held = value.constant if isinstance(value, _CONSTANT) else None
    return held if isinstance(held, int) else None


def _hexadecimal(value: float, element: ir.Type) -> str:
    # LLVM writes a float constant as the bits of the double that equals it.
    rounded = struct.unpack("<f", struct.pack("<f", value))[0] if element == FLOAT else value
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"


_INSTRUCTION: Any = ir.Instruction  # llvmlite carries no annotations


class _Shuffle(_INSTRUCTION):
    """A shuffle whose lanes are plain numbers; llvmlite's has a constant for each."""

    def __init__(self, block: ir.Block, first: Value, second: Value, lanes: Sequence[int]) -> None:
        shape = ir.VectorType(first.type.element, len(lanes))
        _INSTRUCTION.__init__(self, block, shape, "shufflevector", [first, second])
        numbers = ", ".join([f"i32 {lane}" for lane in lanes])
        self._mask = f"<{len(lanes)} x i32> " + (f"<{numbers}>" if any(lanes) else "zeroinitializer")

    def descr(self, buf: list[str]) -> None:
        texts = [f"{operand.type} {operand.get_reference()}" for operand in self.operands]
        buf.append(f"shufflevector {', '.join(texts)}, {self._mask}\n")


def shuffle(builder: Builder, first: Value, second: Value | None, lanes: Sequence[int]) -> Value:
    """The numbered lanes of two vectors, the second's numbered after the first's."""
    instruction = _Shuffle(builder.block, first, undefined(first.type) if second is None else second, lanes)
    builder._insert(instruction)
    return instruction


_FEATURES = "tilewright.features"


def declare_features(module: ir.Module, features: Sequence[str]) -> None:
    """State what LLVM features the code of a module may use, for builders to see."""
    metadata: Any = module  # llvmlite carries no annotations
    metadata.add_named_metadata(_FEATURES, list(features))


def has_features(builder: Builder, *names: str) -> bool:
    """Whether the code may use all of some LLVM features."""
    declared: Any = builder.module.namedmetadata.get(_FEATURES)
    nodes: list[Any] = [] if declared is None else declared.operands
    return {text.string for node in nodes for text in node.operands}.issuperset(names)


def intrinsic(builder: Builder, name: str, arguments: Sequence[Value], result: ir.Type | None = None) -> Value:
    """Call `llvm.<name>`, overloaded on the type of its first argument, and on `result` too where that differs."""
    first = arguments[0].type
    returned = result or first
    suffixes = [_suffix(returned)] if returned == first else [_suffix(returned), _suffix(first)]
    full_name = ".".join(["llvm", name, *suffixes])
    return _called(builder, full_name, returned, arguments)


def _called(builder: Builder, name: str, result: ir.Type, arguments: Sequence[Value]) -> Value:
    """Call an intrinsic by its full name."""
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [a.type for a in arguments]), name)
    return builder.call(function, list(arguments))


def _suffix(shape: ir.Type) -> str:
    element = element_of(shape)
    text = f"i{element.width}" if isinstance(element, ir.IntType) else _SUFFIXES[element]
    return f"v{lanes_of(shape)}{text}" if isinstance(shape, ir.VectorType) else text


def _in_lanes(builder: Builder, value: Value, shape: ir.Type) -> Value:
    """The first lanes of a value, or the value in the first of more lanes."""
    if value.type == shape:
        return value
    first = ir.Constant(ir.IntType(32), 0)
    if not isinstance(value.type, ir.VectorType):
        return builder.insert_element(undefined(shape), value, first)
    if not isinstance(shape, ir.VectorType):
        return builder.extract_element(value, first)
    return shuffle(builder, value, None, [min(n, lanes_of(value.type)) for n in range(lanes_of(shape))])


class Lanes(msgspec.Struct, frozen=True):
    """A value with operators that emit code; plain numbers on either side become constants.

    Floats compare ordered (false on NaN), integers signed. `&`, `|`, `^` act on integers and on conditions. Doubles
    `for_single` are on their way to an `f32` result: shorter polynomials do.
    """

    builder: Builder
    value: Value
    for_single: bool = False

    @property
    def type(self) -> ir.Type:
        return self.value.type

    @property
    def element(self) -> str:
        return _SUFFIXES[element_of(self.type)]

    @property
    def precision(self) -> str:
        """Which polynomial fits: `f32`, `f64`, or `mixed` for doubles on their way to `f32`."""
        return "mixed" if self.for_single else self.element

    def of(self, value: Lanes | float) -> Value:
        """The LLVM value of an operand next to this one."""
        return value.value if isinstance(value, Lanes) else splat(self.type, value)

    def wrap(self, value: Value) -> Lanes:
        return Lanes(self.builder, value, self.for_single)

    def constant(self, value: float) -> Lanes:
        return self.wrap(splat(self.type, value))

    def _operate(self, on_floats: str, on_integers: str, left: Value, right: Value) -> Lanes:
        operation = on_integers if isinstance(element_of(self.type), ir.IntType) else on_floats
        return self.wrap(getattr(self.builder, operation)(left, right))

    def __add__(self, other: Lanes | float) -> Lanes:
        return self._operate("fadd", "add", self.value, self.of(other))

    def __radd__(self, other: float) -> Lanes:
        return self._operate("fadd", "add", self.of(other), self.value)

    def __sub__(self, other: Lanes | float) -> Lanes:
        return self._operate("fsub", "sub", self.value, self.of(other))

    def __rsub__(self, other: float) -> Lanes:
        return self._operate("fsub", "sub", self.of(other), self.value)

    def __mul__(self, other: Lanes | float) -> Lanes:
        return self._operate("fmul", "mul", self.value, self.of(other))

    def __rmul__(self, other: float) -> Lanes:
        return self._operate("fmul", "mul", self.of(other), self.value)

    def __truediv__(self, other: Lanes | float) -> Lanes:
        return self.wrap(self.builder.fdiv(self.value, self.of(other)))

    def __rtruediv__(self, other: float) -> Lanes:
        return self.wrap(self.builder.fdiv(self.of(other), self.value))

    def __neg__(self) -> Lanes:
        return self.wrap(self.builder.fneg(self.value))

    def __and__(self, other: Lanes | int) -> Lanes:
        return self.wrap(self.builder.and_(self.value, self.of(other)))

    def __or__(self, other: Lanes | int) -> Lanes:
        return self.wrap(self.builder.or_(self.value, self.of(other)))

    def __xor__(self, other: Lanes | int) -> Lanes:
        return self.wrap(self.builder.xor(self.value, self.of(other)))

    def __lshift__(self, bits: Lanes | int) -> Lanes:
        return self.wrap(self.builder.shl(self.value, self.of(bits)))

    def __rshift__(self, bits: Lanes | int) -> Lanes:
        """Arithmetic: copies the sign."""
        return self.wrap(self.builder.ashr(self.value, self.of(bits)))

    def logical_shift_right(self, bits: Lanes | int) -> Lanes:
        return self.wrap(self.builder.lshr(self.value, self.of(bits)))

    def _compare(self, operator: str, other: Lanes | float) -> Lanes:
        if isinstance(element_of(self.type), ir.IntType):
            return self.wrap(self.builder.icmp_signed(operator, self.value, self.of(other)))
        return self.wrap(self.builder.fcmp_ordered(operator, self.value, self.of(other)))

    def __lt__(self, other: Lanes | float) -> Lanes:
        return self._compare("<", other)

    def __le__(self, other: Lanes | float) -> Lanes:
        return self._compare("<=", other)

    def __gt__(self, other: Lanes | float) -> Lanes:
        return self._compare(">", other)

    def __ge__(self, other: Lanes | float) -> Lanes:
        return self._compare(">=", other)

    def equals(self, other: Lanes | float) -> Lanes:
        return self._compare("==", other)

    def is_nan(self) -> Lanes:
        return self.wrap(self.builder.fcmp_unordered("uno", self.value, self.value))

    def unordered_or(self, operator: str, other: Lanes | float) -> Lanes:
        """A comparison of floats that is true on NaN."""
        return self.wrap(self.builder.fcmp_unordered(operator, self.value, self.of(other)))

    def choose(self, if_true: Lanes, if_false: Lanes | float) -> Lanes:
        """On a condition: one of two values, lane by lane."""
        return self.wrap(self.builder.select(self.value, if_true.value, if_true.of(if_false)))

    def bits(self) -> Lanes:
        """The bit pattern of a float as an integer of its width."""
        word = ir.IntType(32 if self.element == "f32" else 64)
        return self.wrap(self.builder.bitcast(self.value, with_element(self.type, word)))

    def as_float(self) -> Lanes:
        """The float that an integer of its width is the bit pattern of."""
        element = FLOAT if element_of(self.type) == ir.IntType(32) else DOUBLE
        return self.wrap(self.builder.bitcast(self.value, with_element(self.type, element)))

    def absolute(self) -> Lanes:
        return self.wrap(intrinsic(self.builder, "fabs", [self.value]))

    def square_root(self) -> Lanes:
        return self.wrap(intrinsic(self.builder, "sqrt", [self.value]))

    def with_sign_of(self, other: Lanes) -> Lanes:
        return self.wrap(intrinsic(self.builder, "copysign", [self.value, other.value]))

    def at_most(self, limit: Lanes | float) -> Lanes:
        """The smaller; NaN where this value is NaN (a machine minimum returns its second operand then)."""
        return self.wrap(self.builder.select((self > limit).value, self.of(limit), self.value))

    def at_least(self, limit: Lanes | float) -> Lanes:
        """The larger; NaN where this value is NaN."""
        return self.wrap(self.builder.select((self < limit).value, self.of(limit), self.value))

    def can_scale(self) -> bool:
        """Whether the processor multiplies by powers of two in one step, and has the other instructions below."""
        return has_features(self.builder, "avx512f", "avx512vl") and self.element in ("f32", "f64")

    def scaled_by(self, exponent: Lanes, counts: Lanes | None = None) -> Lanes:
        """This value times 2^floor(exponent), `exponent` being a float, rounded once; 0 in lanes that do not count."""
        return self._of_processor("mask.scalef", [self, exponent], counts)

    def exponent(self) -> Lanes:
        """The k of |x| = 2^k m with m in [1, 2), as a float: -inf of 0, inf of inf, NaN of NaN."""
        return self._of_processor("mask.getexp", [self])

    def significand(self) -> Lanes:
        """The m of x = 2^k m with |m| in [1, 2): 1 of 0 and of inf."""
        return self._of_processor("mask.getmant", [self], immediate=0)

    def inverse_square_root_guess(self) -> Lanes:
        """1 / sqrt(x) but for 2^-14 of it: inf of 0 with its sign, 0 of inf, NaN below 0."""
        return self._of_processor("rsqrt14", [self], rounds=False)

    def _of_processor(
        self,
        name: str,
        operands: Sequence[Lanes],
        counts: Lanes | None = None,
        immediate: int | None = None,
        *,
        rounds: bool = True,
    ) -> Lanes:
        """The result of a masked instruction of AVX-512, where `can_scale`; 0 in lanes that do not count."""
        lanes = lanes_of(self.type)
        element = element_of(self.type)
        width = next(n for n in (128, 256, 512, lanes * _BITS[element]) if n >= lanes * _BITS[element])
        held = ir.VectorType(element, width // _BITS[element])
        arguments = [_in_lanes(self.builder, operand.value, held) for operand in operands]
        if immediate is not None:
            arguments.append(ir.Constant(ir.IntType(32), immediate))
        bits = max(8, lanes_of(held))
        mask: Value = ir.Constant(ir.IntType(bits), -1)
        if counts is not None:
            whole = _in_lanes(self.builder, counts.value, ir.VectorType(ir.IntType(1), bits))
            mask = self.builder.bitcast(whole, ir.IntType(bits))
        arguments += [splat(held, 0), mask]
        if width == 512 and rounds:
            arguments.append(ir.Constant(ir.IntType(32), 4))  # round as set
        full_name = f"llvm.x86.avx512.{name}.{'ps' if element == FLOAT else 'pd'}.{width}"
        found = _called(self.builder, full_name, held, arguments)
        return self.wrap(_in_lanes(self.builder, found, self.type))

    def most_looked_up(self) -> int:
        """How many values the processor looks up in registers, two of AVX-512 or one of AVX2; 0 where it does not."""
        if has_features(self.builder, "avx512f"):
            return 32 if self.element == "f32" else 16
        return 8 if self.element == "f32" and has_features(self.builder, "avx2") else 0

    def looked_up(self, table: Sequence[float]) -> Lanes:
        """Of `most_looked_up` values the one with the number that stands in the last bits of each lane."""
        kind, suffix, word = (FLOAT, "ps", 32) if self.element == "f32" else (DOUBLE, "pd", 64)
        size = len(table) if len(table) * word == 256 else 512 // word
        lanes = lanes_of(self.type)
        if lanes > size:
            parts = [shuffle(self.builder, self.value, None, range(n, n + lanes // 2)) for n in (0, lanes // 2)]
            low, high = (self.wrap(part).looked_up(table).value for part in parts)
            return self.wrap(shuffle(self.builder, low, high, range(lanes)))
        held, numbers = ir.VectorType(kind, size), ir.VectorType(ir.IntType(word), size)
        index = self.builder.bitcast(_in_lanes(self.builder, self.value, held), numbers)
        registers = [
            ir.Constant(held, [ir.Constant(kind, v) for v in table[n : n + size]]) for n in range(0, len(table), size)
        ]
        if len(registers) == 1:
            found = _called(self.builder, "llvm.x86.avx2.permps", held, [registers[0], index])
        else:
            operands = [registers[0], index, registers[1]]
            found = _called(self.builder, f"llvm.x86.avx512.vpermi2var.{suffix}.512", held, operands)
        return self.wrap(_in_lanes(self.builder, found, self.type))

    def times_plus(self, factor: Lanes | float, term: Lanes | float) -> Lanes:
        """`self * factor + term`, rounded once."""
        return self.wrap(intrinsic(self.builder, "fma", [self.value, self.of(factor), self.of(term)]))


def exact_sum(left: Lanes, right: Lanes) -> tuple[Lanes, Lanes]:
    """left + right as the rounded sum and what it lost (Knuth, "The Art of Computer Programming", volume 2)."""
    total = left + right
    moved = total - left
    return total, (left - (total - moved)) + (right - moved)


def exact_product(left: Lanes, right: Lanes) -> tuple[Lanes, Lanes]:
    """left * right as the rounded result and its rounding error."""
    total = left * right
    return total, left.times_plus(right, -total)


def through_double(function: Callable[..., Lanes], *arguments: Lanes) -> Lanes:
    """Evaluate a function of `f64` values on `f32` values; one rounding at the end."""
    first = arguments[0]
    double = with_element(first.type, DOUBLE)
    result = function(*(Lanes(a.builder, a.builder.fpext(a.value, double), for_single=True) for a in arguments))
    return first.wrap(first.builder.fptrunc(result.value, first.type))


def polynomial(x: Lanes, coefficients: Sequence[float]) -> Lanes:
    """`coefficients[0] + coefficients[1] * x + ...`: even and odd powers apart, so that the two chains overlap."""
    if len(coefficients) <= 3:
        return horner(x, coefficients)
    square = x * x
    return horner(square, coefficients[1::2]).times_plus(x, horner(square, coefficients[0::2]))


def horner(x: Lanes, coefficients: Sequence[float | Lanes]) -> Lanes:
    """The polynomial in one chain: higher latency, more exact where large terms of both signs cancel."""
    total = x.wrap(x.of(coefficients[-1]))
    for coefficient in reversed(coefficients[:-1]):
        total = total.times_plus(x, coefficient)
    return total
