"""Symbolic sizes against Python's own integer arithmetic."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from layout_oracle import SMALL

from tilewright.errors import LayoutError
from tilewright.layout import Dim, ceil_divide, known_multiple, lower_bound, substitute, upper_bound
from tilewright.layout.dims import format_size, is_at_least, multiply, symbols

M = Dim(1, 40, name="M")
K = Dim(0, 96, multiple_of=16, name="K")
I = Dim(-3, 5, name="I")  # noqa: E741
VALUES = {M: [1, 7, 16, 40], K: [0, 16, 48, 96], I: [-3, 0, 2, 5]}

steps = st.lists(
    st.tuples(st.sampled_from(["+", "-", "*", "//", "%"]), st.sampled_from([1, 2, 3, 4, 8, 12, 16, 128])), max_size=4
)


def apply(value, chain):
    """A chain of operators on a size, and the same on an int: Python defines both."""
    for operator, operand in chain:
        if operator == "+":
            value = value + operand
        elif operator == "-":
            value = value - operand
        elif operator == "*":
            value = value * operand
        elif operator == "//":
            value = value // operand
        else:
            value = value % operand
    return value


def check(size, expected):
    """Compare value, bounds, divisor and text of `size` with `expected(m, k, i)` at all sample values."""
    divisor = known_multiple(size)
    for m, k, i in product(*VALUES.values()):
        wanted = expected(m, k, i)
        assert substitute(size, {M: m, K: k, I: i}) == wanted
        assert lower_bound(size) <= wanted <= upper_bound(size)
        assert wanted % divisor == 0 if divisor else wanted == 0
        assert eval(format_size(size), {"M": m, "K": k, "I": i}) == wanted


def test_bounds_in_the_wrong_order_are_told_from_bounds_without_a_multiple():
    with pytest.raises(LayoutError, match="bounds of a Dim are 5 and 4"):
        Dim(5, 4)
    with pytest.raises(LayoutError, match=r"no multiple of 16 is in 1\.\.15"):
        Dim(1, 15, multiple_of=16)


@SMALL
@given(st.sampled_from([M, K, I]), steps, st.sampled_from([M, K, I]), steps, steps)
def test_arithmetic_agrees_with_integers(first, chain, second, other_chain, last):
    def expected(m, k, i):
        at = {M: m, K: k, I: i}
        return apply(apply(at[first], chain) + apply(at[second], other_chain), last)

    try:
        size = apply(apply(first, chain) + apply(second, other_chain), last)
    except LayoutError:
        assume(False)
    check(size, expected)


@SMALL
@given(st.integers(1, 200), st.integers(1, 50), st.integers(1, 50), st.integers(-9, 9))
def test_quotients_of_one_unknown_always_have_a_form(factor, first, second, shift):
    size = ((M * factor + shift) // first + shift) // second
    check(size, lambda m, k, i: ((m * factor + shift) // first + shift) // second)
    check(size - K, lambda m, k, i: ((m * factor + shift) // first + shift) // second - k)
    check((shift - I * factor) // first % second, lambda m, k, i: (shift - i * factor) // first % second)
    check((K * factor + shift) // first // second, lambda m, k, i: (k * factor + shift) // first // second)
    check((K // 8 * factor + shift) % first, lambda m, k, i: (k // 8 * factor + shift) % first)


@SMALL
@given(st.integers(1, 60), st.integers(1, 60))
def test_rounding_up_twice_is_rounding_up_once(first, second):
    assert ceil_divide(ceil_divide(M, first), second) == ceil_divide(M, first * second)
    assert ceil_divide(M * 64, 64 * first) == ceil_divide(M, first)
    assert ceil_divide(I, first) == -(-I // first)


def test_what_is_known_becomes_plain():
    assert K // 16 * 16 == K
    assert K % 8 == 0
    assert M * 64 % 64 == 0
    assert (M + 5) - M == 5
    assert (M * 8 + 3) // 8 == M
    assert M // 64 == 0
    assert (I + 3) % 16 == I + 3
    assert (M * 2 + 1) // 4 == M // 2
    assert Dim(17, 20) * 17 % 16 == Dim(17, 20) - 16
    assert (M // 4) % 2 // 2 == 0
    assert (M % 8) % 4 == M % 4
    assert multiply(3, M) == multiply(M, 3) == M + M + M
    assert substitute(Dim(5, 5), {}) + 0 == 5
    assert symbols([K + M, 3, I - K]) == (K, M, I)


def test_bounds_are_tightened_to_multiples():
    dim = Dim(1, 1000, multiple_of=16)
    assert (dim.min, dim.max) == (16, 992)
    assert (known_multiple(dim // 4), known_multiple(dim * 3), known_multiple(dim + 8)) == (4, 48, 8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dim(5, 4),
        lambda: Dim(1, 15, multiple_of=16),
        lambda: Dim(0, 8, multiple_of=0),
        lambda: Dim(0, 8, name="a b"),
        lambda: Dim(0.5, 8),
        lambda: M // 0,
        lambda: M % -2,
        lambda: M * K,
        lambda: (M + I) // 7,
        lambda: (M % 8) // 3,
        lambda: substitute(M, {M: 41}),
        lambda: substitute(K // 2, {K: 8}),
    ],
)
def test_mistakes_are_layout_errors(make):
    with pytest.raises(LayoutError) as caught:
        make()
    assert caught.value.help


@SMALL
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12), st.sampled_from([1, 2, 3, 16]))
def test_padding_is_known_to_cover(high, first, second, step):
    """Rounding up to a block, and then to a block of blocks, covers what was rounded: never the other way around."""
    size = Dim(0, high * step, multiple_of=step, name="S")
    once, twice = ceil_divide(size, first), ceil_divide(size, first * second)
    assert is_at_least(once * first, size)
    assert is_at_least(twice * second, once)
    assert is_at_least(twice * (first * second), once * first)
    values = range(0, high * step + 1, step)
    for left, right in [(size, once * first), (once, twice * second), (once * first - 1, size), (size + K, size)]:
        pairs = [(substitute(left, {size: at, K: 0}), substitute(right, {size: at, K: 0})) for at in values]
        if is_at_least(left, right):
            assert all(own >= other for own, other in pairs)
