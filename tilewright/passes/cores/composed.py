"""Functions that the vector unit lacks, composed of those that it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.passes.cores.sections import Node, Number, Read, apply, bits_of, convert

_BITS = 32


def composed(fn: str, arguments: Sequence[Node], carrier: DType) -> Node | None:
    """A function of operands in a type of registers; None where the vector unit has it, or has no way to it."""
    make = _COMPOSED.get((fn, carrier.kind))
    return None if make is None else make(*arguments)


def _of(fn: str, *operands: Node | float) -> Node:
    """A function of nodes, and of numbers of their type: that of the last node."""
    carrier = next(each.carrier for each in reversed(operands) if isinstance(each, Node))
    nodes = [each if isinstance(each, Node) else Number(float(each), carrier) for each in operands]
    return apply(fn, nodes, carrier)


def _copysign(a: Node, b: Node) -> Node:
    size = _of("absolute", a)
    return _of("select", _of("signbit", b), _of("negative", size), size)


def _hypot(a: Node, b: Node) -> Node:
    """The larger one times the square root of 1 and the square of a ratio, which do not overflow; of two that are equal
    the ratio is 1, zeros and infinities among them. With one that is none it is none."""
    sizes = [_of("absolute", each) for each in (a, b)]
    large, small = _of("maximum", *sizes), _of("minimum", *sizes)
    ratio = _of("select", _of("equal", small, large), 1.0, _of("divide", small, large))
    return _of("multiply", large, _of("sqrt", _of("add", _of("multiply", ratio, ratio), 1.0)))


def _same(a: Node) -> Node:
    return a


def _sign(a: Node) -> Node:
    return _of("maximum", _of("minimum", a, 1), -1)


def _sign_of_unsigned(a: Node) -> Node:
    return _of("minimum", a, 1)


def _power(base: Node, exponent: Node) -> Node:
    """By squares, from the largest bit of the exponent on: modulo 2^32. It takes four registers."""
    if isinstance(exponent, Number):
        return _known_power(base, int(exponent.value))
    less = _of("subtract", base, 1)
    result: Node | None = None
    for place in reversed(range(_BITS)):
        bit = _of("bitwise_and", _of("shift_right", exponent, place) if place else exponent, 1)
        # What is multiplied by where the bit is set, else 1.
        factor = _of("add", _of("multiply", bit, less), 1)
        result = factor if result is None else _of("multiply", _of("multiply", result, result), factor)
    assert result is not None
    return result


def _signed_power(base: Node, exponent: Node) -> Node:
    """With an exponent below zero it is 0, but of 1 and -1, which have the powers of 1 and 2."""
    if isinstance(exponent, Number) and exponent.value >= 0:
        return _known_power(base, int(exponent.value))
    power = _power(base, _of("maximum", exponent, 0))
    base, exponent = _again(base), _again(exponent)
    unit = _of("multiply", convert(_of("equal", _of("absolute", base), 1), base.carrier), base)
    below = _of("select", _of("bitwise_and", exponent, 1), unit, _of("multiply", unit, unit))
    return _of("select", _of("less", _again(exponent), 0), below, power)


def _again(node: Node) -> Node:
    """A page that is read once more, so that it has no register up to here."""
    return replace(node) if isinstance(node, Read) else node


def _known_power(base: Node, exponent: int) -> Node:
    result: Node = Number(1.0, base.carrier)
    while exponent:
        if exponent % 2:
            result = base if isinstance(result, Number) else _of("multiply", result, base)
        exponent //= 2
        if exponent:
            base = _of("multiply", base, base)
    return result


def _unsigned_divide(a: Node, b: Node) -> Node:
    """By the division of numbers with a sign, of half the dividend; what is left of twice the result may have the
    divisor in it once more. A divisor of 2^31 or more is in the dividend once or not at all."""
    half = bits_of(_of("shift_right", a, 1), dtypes.i32)
    doubled = _of("shift_left", bits_of(_of("floor_divide", half, bits_of(b, dtypes.i32)), dtypes.u32), 1)
    is_large = _of("greater_equal", b, 2.0 ** (_BITS - 1))
    quotient = _of("select", is_large, 0, doubled)
    left = _of("subtract", a, _of("multiply", quotient, b))
    found = _of("select", _of("greater_equal", left, b), _of("add", quotient, 1), quotient)
    return _of("select", _of("equal", b, 0), 0, found)


_COMPOSED: dict[tuple[str, str], Callable[..., Node]] = {
    ("copysign", "f"): _copysign,
    ("hypot", "f"): _hypot,
    ("sign", "i"): _sign,
    ("sign", "u"): _sign_of_unsigned,
    ("absolute", "u"): _same,
    ("power", "i"): _signed_power,
    ("power", "u"): _power,
    ("floor_divide", "u"): _unsigned_divide,
}
