"""Bounded symbolic sizes and the exact integer arithmetic that layouts need on them.

A `Dim` is an unknown integer with bounds and a known divisor. Sums, integer multiples, floor quotients and remainders
of `Dim`s are `Affine` values in a normal form, so that `==` means "known to be equal" and hashing works. A result that
is known exactly is a plain `int`; `Size` is any of the three.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd, lcm
from typing import TypeAlias, TypeGuard

import msgspec
from msgspec.structs import replace

from tilewright.errors import LayoutError


def is_integer(value: object) -> TypeGuard[int]:
    """Whether `value` is a Python int (a bool is not a size)."""
    return isinstance(value, int) and not isinstance(value, bool)


class _Arithmetic:
    """The integer operators that `Dim` and `Affine` share. Division is by positive ints and rounds down."""

    def __add__(self, other: Size) -> Size:
        return _add(self._as_size(), other)

    def __radd__(self, other: int) -> Size:
        return _add(self._as_size(), other)

    def __sub__(self, other: Size) -> Size:
        return _add(self._as_size(), _scale(other, -1))

    def __rsub__(self, other: int) -> Size:
        return _add(other, _scale(self._as_size(), -1))

    def __neg__(self) -> Size:
        return _scale(self._as_size(), -1)

    def __mul__(self, factor: int) -> Size:
        return _scale(self._as_size(), factor)

    def __rmul__(self, factor: int) -> Size:
        return _scale(self._as_size(), factor)

    def __floordiv__(self, divisor: int) -> Size:
        return _divide(self._as_size(), divisor)

    def __mod__(self, divisor: int) -> Size:
        return _remainder(self._as_size(), divisor)

    def _as_size(self) -> Size:
        if isinstance(self, Dim | Affine):
            return self
        raise TypeError(f"{type(self).__name__} is not a size")


class Dim(_Arithmetic, msgspec.Struct, frozen=True):
    """An unknown integer: `min <= value <= max` and `value % multiple_of == 0`.

    Two `Dim`s that compare equal stand for the same number; give names to distinguish two that have the same bounds.
    The bounds are tightened to multiples.

    Raises:
        LayoutError: no integer satisfies the facts, or the name is not an identifier.
    """

    min: int
    max: int
    multiple_of: int = 1
    name: str = ""

    def __post_init__(self) -> None:
        if not all(is_integer(value) for value in (self.min, self.max, self.multiple_of)) or self.multiple_of < 1:
            raise LayoutError(
                f"the facts of a Dim are integers with multiple_of >= 1, got {self.min!r}, {self.max!r}, "
                f"{self.multiple_of!r}",
                help="write Dim(1, 1024, multiple_of=16, name='M')",
            )
        if self.name and not (self.name.isidentifier() and self.name.isascii()):
            raise LayoutError(f"{self.name!r} is not a name for a Dim", help="use letters, digits and `_`")
        low = -(-self.min // self.multiple_of) * self.multiple_of
        high = self.max // self.multiple_of * self.multiple_of
        if self.min > self.max:
            raise LayoutError(f"the bounds of a Dim are {self.min} and {self.max}", help="give the smaller one first")
        if low > high:
            raise LayoutError(
                f"no multiple of {self.multiple_of} is in {self.min}..{self.max}", help="widen the bounds of the Dim"
            )
        msgspec.structs.force_setattr(self, "min", low)
        msgspec.structs.force_setattr(self, "max", high)

    def __str__(self) -> str:
        return format_size(self)


class Part(msgspec.Struct, frozen=True):
    """`((factor * symbol + addend) // divisor) % modulus`, without the remainder when `modulus` is None."""

    symbol: Dim
    factor: int = 1
    addend: int = 0
    divisor: int = 1
    modulus: int | None = None

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest value."""
        if self.modulus is not None:
            return 0, self.modulus - self.multiple_of
        ends = self.value(self.symbol.min), self.value(self.symbol.max)
        return min(ends), max(ends)

    @property
    def multiple_of(self) -> int:
        """A divisor of every value."""
        whole = gcd(self.factor * self.symbol.multiple_of, self.addend)
        exact = whole // self.divisor if whole % self.divisor == 0 else 1
        return gcd(exact, self.modulus) if self.modulus is not None else exact

    @property
    def is_exact(self) -> bool:
        """Whether it is the symbol divided without rounding."""
        is_plain = self.factor == 1 and self.addend == 0 and self.modulus is None
        return is_plain and self.symbol.multiple_of % self.divisor == 0

    def value(self, symbol: int) -> int:
        """The value when the symbol is `symbol`."""
        quotient = (self.factor * symbol + self.addend) // self.divisor
        return quotient if self.modulus is None else quotient % self.modulus

    def sort_key(self) -> tuple[str, int, int, int, int, int, int, int]:
        symbol = self.symbol
        facts = symbol.name, symbol.min, symbol.max, symbol.multiple_of
        return (*facts, self.factor, self.addend, self.divisor, self.modulus or 0)


_Terms: TypeAlias = tuple[tuple[int, Part], ...]


class Affine(_Arithmetic, msgspec.Struct, frozen=True):
    """`constant + sum(coefficient * part)` in normal form. Made by arithmetic on `Dim`s, not by hand."""

    constant: int
    terms: _Terms

    @property
    def min(self) -> int:
        """A lower bound."""
        return self.constant + sum(factor * part.bounds[factor < 0] for factor, part in self.terms)

    @property
    def max(self) -> int:
        """An upper bound."""
        return self.constant + sum(factor * part.bounds[factor > 0] for factor, part in self.terms)

    @property
    def multiple_of(self) -> int:
        """A divisor of every value."""
        return gcd(self.constant, *(factor * part.multiple_of for factor, part in self.terms))

    def __str__(self) -> str:
        return format_size(self)


Size: TypeAlias = int | Dim | Affine


def is_size(value: object) -> TypeGuard[Size]:
    """Whether `value` is an int, a `Dim` or an `Affine`."""
    return is_integer(value) or isinstance(value, Dim | Affine)


def lower_bound(size: Size) -> int:
    """The least value that `size` can be shown to have."""
    return size if isinstance(size, int) else size.min


def upper_bound(size: Size) -> int:
    """The greatest value that `size` can be shown to have."""
    return size if isinstance(size, int) else size.max


def known_multiple(size: Size) -> int:
    """A number that divides every value of `size`; 0 when `size` is 0, which everything divides."""
    return abs(size) if isinstance(size, int) else size.multiple_of


def static(size: Size) -> int:
    """`size`, when it is known.

    Raises:
        LayoutError: it is not.
    """
    if isinstance(size, int):
        return size
    raise LayoutError(f"the size `{size}` must be known here", help="bind its Dims to numbers first")


def is_at_least(left: Size, right: Size) -> bool:
    """Whether `left >= right` can be shown for all values of the `Dim`s, such as `ceil(M / 8) * 8 >= M`."""
    difference = left - right
    if isinstance(difference, int) or difference.min >= 0:
        return lower_bound(difference) >= 0
    # Rounding down takes at most divisor - step from a numerator that moves in steps: bound each quotient by its line.
    constant, terms = _split(difference)
    scale = lcm(*(part.divisor for _, part in terms))
    total, slopes = constant * scale, dict[Dim, int]()
    for factor, part in terms:
        if part.modulus is not None:
            total += min(factor * bound for bound in part.bounds) * scale
            continue
        weight = factor * scale // part.divisor
        slopes[part.symbol] = slopes.get(part.symbol, 0) + weight * part.factor
        step = gcd(part.factor * part.symbol.multiple_of, part.divisor)
        total += weight * (part.addend - (part.divisor - step if factor > 0 else 0))
    total += sum(slope * (symbol.max if slope < 0 else symbol.min) for symbol, slope in slopes.items())
    # The difference moves in whole steps, so more than minus one step is enough.
    return total > -scale * difference.multiple_of


def ceil_divide(size: Size, divisor: int) -> Size:
    """`size / divisor` rounded up."""
    return (size + (divisor - 1)) // divisor


def multiply(left: Size, right: Size) -> Size:
    """The product of two sizes.

    Raises:
        LayoutError: both are unknown.
    """
    return right * left if isinstance(left, int) else _scale(left, right)


def normal(size: Size) -> Size:
    """`size` with what is known exactly as an int (`Dim(5, 5)` is 5)."""
    return size if isinstance(size, int) else _add(size, 0)


def symbols(sizes: Iterable[Size]) -> tuple[Dim, ...]:
    """The `Dim`s that occur in `sizes`, each once, in order of first use."""
    found: dict[Dim, None] = {}
    for size in sizes:
        if not isinstance(size, int):
            found.update((part.symbol, None) for _, part in _split(size)[1])
    return tuple(found)


def substitute(size: Size, values: Mapping[Dim, int]) -> Size:
    """`size` with the given `Dim`s replaced; the others stay.

    Raises:
        LayoutError: a value breaks the bounds or the divisor of its `Dim`.
    """
    constant, terms = _split(size)
    left: list[tuple[int, Part]] = []
    for factor, part in terms:
        if part.symbol not in values:
            left.append((factor, part))
            continue
        constant += factor * part.value(_admitted(part.symbol, values[part.symbol]))
    return _total(constant, left)


def _admitted(symbol: Dim, value: int) -> int:
    if symbol.min <= value <= symbol.max and value % symbol.multiple_of == 0:
        return value
    step = f" in steps of {symbol.multiple_of}" if symbol.multiple_of > 1 else ""
    raise LayoutError(
        f"{value} is not a value of the Dim `{symbol}`, whose range is {symbol.min}..{symbol.max}{step}",
        help="pass a value within the bounds, or declare the Dim with wider ones",
    )


def format_size(size: Size, names: Mapping[Dim, str] | None = None) -> str:
    """`size` as an expression in Python's syntax. `names` overrides the names of `Dim`s; a nameless one is `?`."""
    constant, terms = _split(size)
    text = ""
    for factor, part in terms:
        body = _format_part(part, names or {})
        sign = "-" if factor < 0 else "+" if text else ""
        if factor != 1:
            body = f"({body})" if "/" in body or "%" in body else body
        if abs(factor) != 1:
            body = f"{abs(factor)}*{body}"
        text += sign + body
    if not text:
        return str(constant)
    return text + (f"{constant:+d}" if constant else "")


def _format_part(part: Part, names: Mapping[Dim, str]) -> str:
    text = names.get(part.symbol) or part.symbol.name or "?"
    if part.factor != 1:
        text = f"{part.factor}*{text}"
    if part.addend:
        text = f"{text}+{part.addend}"
    if part.addend or part.factor != 1:
        text = f"({text})"
    if part.divisor != 1:
        text = f"{text}//{part.divisor}"
    return text if part.modulus is None else f"{text}%{part.modulus}"


def _split(size: Size) -> tuple[int, _Terms]:
    if isinstance(size, int):
        return size, ()
    if isinstance(size, Dim):
        return (size.min, ()) if size.min == size.max else (0, ((1, Part(size)),))
    return size.constant, size.terms


def _total(constant: int, terms: Iterable[tuple[int, Part]]) -> Size:
    merged: dict[Part, int] = {}
    for factor, part in terms:
        if part.is_exact and factor % part.divisor == 0:
            factor, part = factor // part.divisor, Part(part.symbol)
        merged[part] = merged.get(part, 0) + factor
    kept = tuple(
        (factor, part) for part, factor in sorted(merged.items(), key=lambda item: item[0].sort_key()) if factor
    )
    if not kept:
        return constant
    factor, part = kept[0]
    if constant == 0 and len(kept) == 1 and factor == 1 and part == Part(part.symbol):
        return part.symbol
    return Affine(constant, kept)


def _add(left: Size, right: Size) -> Size:
    (constant, terms), (more, other_terms) = _split(left), _split(right)
    return _total(constant + more, (*terms, *other_terms))


def _scale(size: Size, factor: Size) -> Size:
    if not is_integer(factor):
        raise LayoutError(
            f"cannot multiply `{size}` by `{factor}`: two unknown sizes cannot be multiplied",
            help="make one of the two static",
        )
    constant, terms = _split(size)
    return _total(constant * factor, ((factor * own, part) for own, part in terms))


def _part(part: Part) -> Size:
    """The value of `part` in normal form: in lowest terms, the addend reduced, needless remainders dropped."""
    if part.modulus is not None:
        return _part_with_remainder(part, part.modulus)
    symbol, divisor = part.symbol, part.divisor
    if part.factor < 0:
        return -_part(_negated(part))
    whole, addend = divmod(part.addend, divisor)
    addend -= addend % gcd(part.factor * symbol.multiple_of, divisor)
    common = gcd(part.factor, addend, divisor)
    reduced = Part(symbol, part.factor // common, addend // common, divisor // common)
    low, high = reduced.bounds
    if low == high:
        return low + whole
    if reduced.divisor == 1:
        return _total(reduced.addend + whole, ((reduced.factor, Part(symbol)),))
    return _total(whole, ((1, reduced),))


def _negated(part: Part) -> Part:
    """`-part`, as a quotient that rounds down again."""
    return replace(part, factor=-part.factor, addend=part.divisor - 1 - part.addend)


def _part_with_remainder(part: Part, modulus: int) -> Size:
    symbol, divisor = part.symbol, part.divisor
    factor, addend = part.factor % (divisor * modulus), part.addend % (divisor * modulus)
    addend -= addend % gcd(factor * symbol.multiple_of, divisor)
    common = gcd(factor, addend, divisor)
    plain = Part(symbol, factor // common, addend // common, divisor // common)
    low, high = plain.bounds
    if low // modulus == high // modulus:
        return _part(plain) - low // modulus * modulus
    return _total(0, ((1, replace(plain, modulus=modulus)),))


def _divide(size: Size, divisor: int) -> Size:
    _check_divisor(divisor)
    constant, terms = _split(size)
    result: Size = 0
    rest: list[tuple[int, Part]] = []
    for factor, part in terms:
        if factor * part.multiple_of % divisor:
            rest.append((factor, part))
            continue
        common = gcd(factor, divisor)
        result = result + _divide_part(part, 0, divisor // common) * (factor // common)
    low, high = _bounds(constant, rest)
    if low // divisor == high // divisor:
        return result + low // divisor
    common = gcd(divisor, *(factor for factor, _ in rest))
    if common > 1:
        inner = _total(constant // common, ((factor // common, part) for factor, part in rest))
        return result + _divide(inner, divisor // common)
    if len(rest) == 1:
        return result + _divide_part(rest[0][1], constant, divisor, rest[0][0])
    raise _not_exact(size, "//", divisor)


def _remainder(size: Size, divisor: int) -> Size:
    _check_divisor(divisor)
    constant, terms = _split(size)
    rest = [(factor, part) for factor, part in terms if factor * part.multiple_of % divisor]
    low, high = _bounds(constant, rest)
    if low // divisor == high // divisor:
        return _total(constant - low // divisor * divisor, rest)
    common = gcd(divisor, *(factor for factor, _ in rest))
    if common > 1:
        inner = _total(constant // common, ((factor // common, part) for factor, part in rest))
        return _remainder(inner, divisor // common) * common + constant % common
    if len(rest) == 1:
        return _remainder_part(rest[0][1], constant, divisor, rest[0][0])
    raise _not_exact(size, "%", divisor)


def _divide_part(part: Part, constant: int, divisor: int, times: int = 1) -> Size:
    """`(times * part + constant) // divisor`."""
    if times < 0:
        return -_divide_part(part, divisor - 1 - constant, divisor, -times)
    if part.is_exact:
        return _part(Part(part.symbol, times, constant * part.divisor, part.divisor * divisor))
    if part.modulus is None and times == 1:
        return _part(replace(part, addend=part.addend + constant * part.divisor, divisor=part.divisor * divisor))
    if part.modulus is not None and times == 1 and constant % divisor == 0 and part.modulus % divisor == 0:
        inner = replace(part, divisor=part.divisor * divisor, modulus=part.modulus // divisor)
        return _part(inner) + constant // divisor
    raise _not_exact(_total(constant, ((times, part),)), "//", divisor)


def _remainder_part(part: Part, constant: int, divisor: int, times: int) -> Size:
    """`(times * part + constant) % divisor`."""
    if times == -1 and part.modulus is None:
        return _remainder_part(_negated(part), constant, divisor, 1)
    if part.is_exact:
        return _part(Part(part.symbol, times, constant * part.divisor, part.divisor, divisor))
    if times == 1 and (part.modulus is None or part.modulus % divisor == 0):
        return _part(replace(part, addend=part.addend + constant * part.divisor, modulus=divisor))
    raise _not_exact(_total(constant, ((times, part),)), "%", divisor)


def _bounds(constant: int, terms: Iterable[tuple[int, Part]]) -> tuple[int, int]:
    low = high = constant
    for factor, part in terms:
        ends = [factor * bound for bound in part.bounds]
        low, high = low + min(ends), high + max(ends)
    return low, high


def _check_divisor(divisor: int) -> None:
    if not is_integer(divisor) or divisor < 1:
        raise LayoutError(f"sizes are divided by positive integers, not by {divisor!r}", help="use a divisor >= 1")


def _not_exact(size: Size, operator: str, divisor: int) -> LayoutError:
    return LayoutError(
        f"`({size}) {operator} {divisor}` has no closed form",
        help="state the divisor of each unknown with Dim(..., multiple_of=...)",
    )
