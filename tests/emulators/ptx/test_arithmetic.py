"""Arithmetic of the PTX emulator against exact integers and fractions."""

import math
import operator
from fractions import Fraction
from itertools import product

import ml_dtypes
import numpy as np
import pytest

from tests.emulators.ptx.kernels import apply, bits_of_type, execute

FORMATS = {
    "f16": (np.float16, 11, -14),
    "bf16": (ml_dtypes.bfloat16, 8, -126),
    "f32": (np.float32, 24, -126),
    "f64": (np.float64, 53, -1022),
}
NAN_BITS = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}


def integers(name: str, count: int, seed: int) -> np.ndarray:
    """Random numbers of every magnitude, and the extremes."""
    bits = bits_of_type(name)
    generator = np.random.default_rng(seed)
    wide = generator.integers(0, 1 << 64, count, np.uint64, endpoint=False) >> generator.integers(
        64 - bits, 64, count, np.uint64
    )
    limits = np.iinfo(f"{'int' if name[0] == 's' else 'uint'}{bits}")
    special = [0, 1, 2, limits.max, limits.max - 1, limits.min & ((1 << bits) - 1), (1 << bits) - 1]
    wide[: len(special)] = special
    return wide.astype(f"uint{bits}").view(limits.dtype)


def floats(name: str, count: int, seed: int) -> np.ndarray:
    """Random bit patterns, numbers near one, and special values."""
    dtype, digits, least = FORMATS[name]
    bits = bits_of_type(name.removeprefix("b"))
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 1 << bits, count, np.uint64, endpoint=False).astype(f"uint{bits}").view(dtype)
    values[::2] = (generator.standard_normal(values[::2].size) * 3).astype(dtype)
    tiny = math.ldexp(1.0, least - digits + 1)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, tiny, -tiny, math.ldexp(1.0, least), 1.5, 3 * tiny]
    values[: len(special)] = np.array(special).astype(dtype)
    return values


def pairs(values: np.ndarray, special: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of the first `special` values, and each value with another one."""
    first, second = np.array(list(product(values[:special], repeat=2)), values.dtype).T
    return np.concatenate([first, values]), np.concatenate([second, np.roll(values, 7)])


def exact_rounding(value: Fraction, name: str, mode: str) -> float:
    """`value` (not zero) rounded to format `name` with integers alone."""
    _, digits, least = FORMATS[name]
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    quantum = Fraction(2) ** (max(exponent, least) - digits + 1)
    lower = math.floor(abs(value) / quantum)
    rest = abs(value) / quantum - lower
    away = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and lower % 2 == 1),
        "rz": False,
        "rm": value < 0 and rest > 0,
        "rp": value > 0 and rest > 0,
    }[mode]
    result = (lower + away) * quantum
    sign = 1 if value > 0 else -1
    largest = (2 - Fraction(2) ** (1 - digits)) * Fraction(2) ** (1 - least)
    if result > largest:
        inward = mode == "rz" or (mode == "rm" and value > 0) or (mode == "rp" and value < 0)
        return sign * (float(largest) if inward else math.inf)
    return math.copysign(float(result), sign)


def expected_sum(terms: list[float], exact: Fraction | None, name: str, mode: str) -> float:
    """The sum of `terms` (products are one term): their exact value rounded, or what IEEE 754 says of zeros."""
    if exact is None:
        with np.errstate(all="ignore"):
            return float(np.sum(np.array(terms)))
    if exact != 0:
        return exact_rounding(exact, name, mode)
    signs = {math.copysign(1.0, term) for term in terms}
    return 0.0 * signs.pop() if len(signs) == 1 else (-0.0 if mode == "rm" else 0.0)


def assert_same_floats(actual: np.ndarray, expected: list[float], name: str, *operands: np.ndarray) -> None:
    dtype = FORMATS[name][0]
    with np.errstate(all="ignore"):
        values = np.array(expected, np.float64).astype(dtype)
    wanted = values.view(actual.dtype).copy()
    if name in NAN_BITS:
        wanted[np.isnan(values)] = NAN_BITS[name]
    else:
        actual, wanted = actual.copy(), wanted
        missing = np.isnan(values)
        assert np.isnan(actual.view(dtype)[missing]).all()
        actual[missing] = wanted[missing]
    wrong = np.flatnonzero(actual != wanted)
    where = [operand[wrong[:3]] for operand in operands]
    assert not wrong.size, f"{where}: {actual.view(dtype)[wrong[:3]]} instead of {values[wrong[:3]]}"


def numbers(values: np.ndarray) -> list[float]:
    """Python's numbers of an array of any floating-point type."""
    with np.errstate(all="ignore"):
        return values.astype(np.float64).tolist()


def finite(*numbers: float) -> bool:
    return all(map(math.isfinite, numbers))


ROUNDED = [(name, mode) for name in ("f16", "bf16", "f64") for mode in ("rn",)]
ROUNDED += [("f32", mode) for mode in ("rn", "rz", "rm", "rp")]


@pytest.mark.parametrize(("name", "mode"), ROUNDED)
@pytest.mark.parametrize("operation", ["add", "sub", "mul"])
def test_sums_and_products_are_rounded_once(operation: str, name: str, mode: str) -> None:
    a, b = pairs(floats(name, 300, 1))
    actual = apply(f"{operation}.{mode}.{name}", name, (name.lstrip("b") and name, a), (name, b))
    expected = []
    for x, y in zip(numbers(a), numbers(b), strict=True):
        y = -y if operation == "sub" else y
        if operation == "mul":
            exact = Fraction(x) * Fraction(y) if finite(x, y) else None
            expected.append(exact_rounding(exact, name, mode) if exact else x * y)
        else:
            expected.append(expected_sum([x, y], Fraction(x) + Fraction(y) if finite(x, y) else None, name, mode))
    assert_same_floats(actual, expected, name, a, b)


@pytest.mark.parametrize(("name", "mode"), ROUNDED)
def test_fma_is_rounded_once(name: str, mode: str) -> None:
    a, b = pairs(floats(name, 400, 2))
    c = np.roll(floats(name, 400, 3), 5)
    c = np.resize(c, a.size)
    # Addends that nearly cancel the product, and halves of its last bit.
    with np.errstate(all="ignore"):
        near = (-a.astype(np.float64) * b.astype(np.float64)).astype(a.dtype)
    c[1::3] = near[1::3]
    actual = apply(f"fma.{mode}.{name}", name, (name, a), (name, b), (name, c))
    expected = []
    for x, y, z in zip(numbers(a), numbers(b), numbers(c), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z) if finite(x, y, z) else None
        product_sign = math.copysign(1.0, x) * math.copysign(1.0, y)
        terms = [product_sign * abs(x * y) if not finite(x, y) else math.copysign(0.0, product_sign), z]
        if exact is None and finite(x, y):
            terms[0] = 0.0
        expected.append(expected_sum(terms, exact, name, mode))
    assert_same_floats(actual, expected, name, a, b, c)


def test_fma_of_f32_at_halfway_points() -> None:
    """Products whose sum lies by a hair beside the middle of two f32 numbers: float64 alone rounds these twice."""
    generator = np.random.default_rng(4)
    c = (1 + generator.integers(0, 1 << 23, 2000) * 2.0**-23).astype(np.float32)
    a = np.full(2000, 2.0**-12, np.float32) * (1 + generator.integers(0, 2, 2000) * 2.0**-23).astype(np.float32)
    b = np.full(2000, 2.0**-12, np.float32) * (1 - generator.integers(0, 2, 2000) * 2.0**-23).astype(np.float32)
    actual = apply("fma.rn.f32", "f32", ("f32", a), ("f32", b), ("f32", c))
    expected = [
        exact_rounding(Fraction(x) * Fraction(y) + Fraction(z), "f32", "rn")
        for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    assert_same_floats(actual, expected, "f32", a, b, c)
    naive = (a.astype(np.float64) * b + c).astype(np.float32)
    assert (naive != np.array(expected, np.float32)).any(), "the operands do not tell one rounding from two"


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("operation", ["div", "rcp", "sqrt"])
def test_quotients_and_roots_are_rounded_once(operation: str, name: str) -> None:
    a, b = pairs(floats(name, 300, 5))
    operands = [(name, a), (name, b)] if operation == "div" else [(name, a)]
    actual = apply(f"{operation}.rn.{name}", name, *operands)
    for result, x, y in zip(actual.view(a.dtype).astype(float), numbers(a), numbers(b), strict=True):
        dividend, divisor = (x, y) if operation == "div" else (1.0, x)
        if operation == "sqrt":
            # The root lies between the middles to its neighbours: their squares enclose the operand.
            if finite(x) and x > 0:
                dtype = a.dtype.type
                below, above = (float(np.nextafter(dtype(result), dtype(end))) for end in (0, math.inf))
                low, high = (Fraction(result) + Fraction(other) for other in (below, above))
                assert low * low <= 4 * Fraction(x) <= high * high
            else:
                assert str(result) == str(math.nan if x < 0 or math.isnan(x) else x)
        elif finite(dividend, divisor) and dividend and divisor:
            assert result == exact_rounding(Fraction(dividend) / Fraction(divisor), name, "rn")
        else:
            with np.errstate(all="ignore"):
                assert str(result) == str(float(np.float64(dividend) / np.float64(divisor)))


@pytest.mark.parametrize("operation", ["ex2", "lg2", "sin", "cos", "tanh", "rsqrt", "rcp", "sqrt"])
def test_approximate_functions_follow_python(operation: str) -> None:
    a = floats("f32", 400, 6)
    functions = {
        "ex2": lambda x: 2.0**x,
        "lg2": math.log2,
        "sin": math.sin,
        "cos": math.cos,
        "tanh": math.tanh,
        "rsqrt": lambda x: 1 / math.sqrt(x),
        "rcp": lambda x: 1 / x,
        "sqrt": math.sqrt,
    }
    a = a[np.isfinite(a) & (np.abs(a) < 100) & (np.abs(a) > 1e-30)]
    if operation in ("lg2", "rsqrt", "sqrt"):
        a = np.abs(a)
    actual = apply(f"{operation}.approx.f32", "f32", ("f32", a)).view(np.float32)
    expected = [functions[operation](x) for x in numbers(a)]
    np.testing.assert_allclose(actual, expected, rtol=6e-8, atol=1e-45)


def test_approximate_functions_at_special_values() -> None:
    zeros = np.array([0.0, -0.0, np.inf, -np.inf], np.float32)
    for operation, expected in {
        "ex2": [1, 1, np.inf, 0],
        "lg2": [-np.inf, -np.inf, np.inf, np.nan],
        "rsqrt": [np.inf, -np.inf, 0, np.nan],
        "rcp": [np.inf, -np.inf, 0, -0.0],
    }.items():
        actual = apply(f"{operation}.approx.f32", "f32", ("f32", zeros)).view(np.float32)
        np.testing.assert_array_equal(actual, np.array(expected, np.float32), operation)
        assert (np.signbit(actual) == np.signbit(np.array(expected, np.float32)))[np.isfinite(actual)].all()


def test_flush_and_saturate() -> None:
    a = np.array([1e-40, -1e-40, 1e-20, 2.0, -2.0, 0.25, np.nan], np.float32)
    b = np.array([1.0, 1.0, 1e-20, 1.0, 1.0, 1.0, 1.0], np.float32)
    plain = apply("mul.rn.f32", "f32", ("f32", a), ("f32", b)).view(np.float32)
    np.testing.assert_array_equal(plain, a * b)
    flushed = apply("mul.rn.ftz.f32", "f32", ("f32", a), ("f32", b))
    assert flushed[:3].tolist() == [0, 0x80000000, 0]
    saturated = apply("mul.rn.sat.f32", "f32", ("f32", a), ("f32", b)).view(np.float32)
    np.testing.assert_array_equal(saturated, np.array([1e-40, 0, 1e-40, 1, 0, 0.25, 0], np.float32))


EXTREMES = [(each, name) for each in ("min", "max", "min.NaN", "max.NaN") for name in ("f16", "bf16", "f32")]


@pytest.mark.parametrize(("operation", "name"), [*EXTREMES, ("min", "f64"), ("max", "f64")])
def test_extremes_order_zeros_and_choose_numbers_before_nan(operation: str, name: str) -> None:
    a, b = pairs(floats(name, 100, 7))
    actual = apply(f"{operation}.{name}", name, (name, a), (name, b))
    expected = []
    for x, y in zip(numbers(a), numbers(b), strict=True):
        known = [each for each in (x, y) if not math.isnan(each)]
        if len(known) < 2 and (not known or "NaN" in operation):
            expected.append(math.nan)
        else:
            best = min if operation.startswith("min") else max
            expected.append(best(known, key=lambda each: (each, math.copysign(1.0, each))))
    assert_same_floats(actual, expected, name, a, b)


@pytest.mark.parametrize("operation", ["min.f32", "max.NaN.f32"])
def test_extremes_of_three(operation: str) -> None:
    values = np.array([1.0, -2.0, np.nan, 3.0], np.float32)
    a, b, c = (each.ravel() for each in np.meshgrid(values, values, values))
    actual = apply(operation, "f32", ("f32", a), ("f32", b), ("f32", c)).view(np.float32)
    function = np.fmin if operation == "min.f32" else np.maximum
    np.testing.assert_array_equal(actual, function(function(a, b), c))


def test_packed_halves_are_two_numbers() -> None:
    generator = np.random.default_rng(8)
    a, b, c = generator.standard_normal((3, 256)).astype(np.float16)
    words = [("b32", each.view(np.uint32)) for each in (a, b, c)]
    np.testing.assert_array_equal(apply("add.f16x2", "b32", *words[:2]).view(np.float16), a + b)
    both = (a.astype(np.float64) * b + c).astype(np.float16)
    np.testing.assert_array_equal(apply("fma.rn.f16x2", "b32", *words).view(np.float16), both)
    a, b = (each.astype(ml_dtypes.bfloat16) for each in (a, b))
    words = [("b32", each.view(np.uint32)) for each in (a, b)]
    np.testing.assert_array_equal(apply("mul.bf16x2", "b32", *words).view(ml_dtypes.bfloat16), a * b)
    np.testing.assert_array_equal(apply("neg.bf16x2", "b32", words[0]).view(ml_dtypes.bfloat16), -a)


def wrapped(value: int, name: str) -> int:
    return value % (1 << bits_of_type(name))


def truncated_quotient(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


INTEGER_OPERATIONS = {
    "add": operator.add,
    "sub": operator.sub,
    "mul.lo": operator.mul,
    "min": min,
    "max": max,
    "div": truncated_quotient,
    "rem": lambda x, y: x - y * truncated_quotient(x, y),
}


@pytest.mark.parametrize("name", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_integers_against_python(name: str) -> None:
    a, b = pairs(integers(name, 200, 9), 7)
    x, y = a.tolist(), b.tolist()
    bits = bits_of_type(name)
    for operation, function in INTEGER_OPERATIONS.items():
        divides = operation in ("div", "rem")
        second = np.where(b == 0, b.dtype.type(3), b) if divides else b
        actual = apply(f"{operation}.{name}", name, (name, a), (name, second)).tolist()
        assert actual == [wrapped(function(p, q), name) for p, q in zip(x, second.tolist(), strict=True)], operation
    high = apply(f"mul.hi.{name}", name, (name, a), (name, b)).tolist()
    assert high == [wrapped((p * q) >> bits, name) for p, q in zip(x, y, strict=True)]
    if bits < 64:
        wide = f"{name[0]}{2 * bits}"
        c = integers(wide, a.size, 10)
        actual = apply(f"mad.wide.{name}", wide, (name, a), (name, b), (wide, c)).tolist()
        assert actual == [wrapped(p * q + r, wide) for p, q, r in zip(x, y, c.tolist(), strict=True)]


def test_saturated_sums() -> None:
    a, b = pairs(integers("s32", 100, 11), 7)
    clamp = [max(-(1 << 31), min((1 << 31) - 1, p - q)) for p, q in zip(a.tolist(), b.tolist(), strict=True)]
    assert apply("sub.sat.s32", "s32", ("s32", a), ("s32", b)).view(np.int32).tolist() == clamp


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_clamp(bits: int) -> None:
    a = integers(f"u{bits}", 300, 12)
    amounts = np.resize(np.array([0, 1, 5, bits - 1, bits, bits + 1, 200, 0xFFFFFFFF], np.uint32), 300)
    signed = a.view(f"int{bits}").tolist()
    mask = (1 << bits) - 1
    every = list(zip(a.tolist(), signed, (min(int(each), bits) for each in amounts), strict=True))
    operands = (f"b{bits}", a), ("u32", amounts)
    assert apply(f"shl.b{bits}", f"b{bits}", *operands).tolist() == [(x << n) & mask for x, _, n in every]
    assert apply(f"shr.u{bits}", f"b{bits}", *operands).tolist() == [x >> n for x, _, n in every]
    assert apply(f"shr.s{bits}", f"b{bits}", *operands).tolist() == [(s >> n) & mask for _, s, n in every]


@pytest.mark.parametrize("bits", [32, 64])
def test_bits_against_strings(bits: int) -> None:
    a = integers(f"u{bits}", 200, 13)
    name = f"b{bits}"
    texts = [f"{x:0{bits}b}" for x in a.tolist()]
    assert apply(f"popc.{name}", "u32", (name, a)).tolist() == [text.count("1") for text in texts]
    assert apply(f"clz.{name}", "u32", (name, a)).tolist() == [(text + "1").index("1") for text in texts]
    assert apply(f"brev.{name}", name, (name, a)).tolist() == [int(text[::-1], 2) for text in texts]
    found = [bits - 1 - text.index("1") if "1" in text else 0xFFFFFFFF for text in texts]
    assert apply(f"bfind.u{bits}", "u32", (name, a)).tolist() == found
    signed = [text.replace("1", "x").replace("0", "1").replace("x", "0") if text[0] == "1" else text for text in texts]
    found = [text.index("1") if "1" in text else 0xFFFFFFFF for text in signed]
    assert apply(f"bfind.shiftamt.s{bits}", "u32", (name, a)).tolist() == found


@pytest.mark.parametrize("name", ["u32", "s32", "u64", "s64"])
def test_bit_fields_against_the_loop_of_the_isa(name: str) -> None:
    bits = bits_of_type(name)
    a, b = integers(f"u{bits}", 400, 14), integers(f"u{bits}", 400, 15)
    generator = np.random.default_rng(16)
    start = generator.integers(0, bits + 8, 400).astype(np.uint32)
    length = generator.integers(0, bits + 8, 400).astype(np.uint32)
    extracted, inserted = [], []
    for x, y, position, count in zip(a.tolist(), b.tolist(), start.tolist(), length.tolist(), strict=True):
        last = min(position + count - 1, bits - 1)
        sign = 0 if name[0] == "u" or count == 0 else (x >> last) & 1
        field = 0
        for i in range(bits):
            field |= ((x >> (i + position)) & 1 if i < count and i + position < bits else sign) << i
        extracted.append(field)
        for i in range(count):
            if position + i < bits:
                y = y & ~(1 << (position + i)) | ((x >> i) & 1) << (position + i)
        inserted.append(y)
    actual = apply(f"bfe.{name}", name, (name, a), ("u32", start), ("u32", length)).tolist()
    assert actual == extracted
    operands = (f"b{bits}", a), (f"b{bits}", b), ("u32", start), ("u32", length)
    assert apply(f"bfi.b{bits}", f"b{bits}", *operands).tolist() == inserted


def test_logic_of_three() -> None:
    a, b, c = (integers("u32", 64, seed) for seed in (17, 18, 19))
    for table, expected in {"0xE8": (a & b) | (a & c) | (b & c), "0x96": a ^ b ^ c, "0x40": a & b & ~c}.items():
        actual = apply("lop3.b32", "b32", ("b32", a), ("b32", b), ("b32", c), table)
        np.testing.assert_array_equal(actual, expected)


def test_permute_bytes() -> None:
    a, b, selector = (integers("u32", 256, seed) for seed in (20, 21, 22))
    expected = []
    for x, y, chosen in zip(a.tolist(), b.tolist(), selector.tolist(), strict=True):
        source = x.to_bytes(4, "little") + y.to_bytes(4, "little")
        result = bytearray()
        for position in range(4):
            nibble = (chosen >> (4 * position)) & 15
            byte = source[nibble & 7]
            result.append((255 if byte & 128 else 0) if nibble & 8 else byte)
        expected.append(int.from_bytes(result, "little"))
    assert apply("prmt.b32", "b32", ("b32", a), ("b32", b), ("b32", selector)).tolist() == expected
    # The modes of the ISA's table, for a selector of 1: bytes 3 2 1 0 of the result are these of b:a.
    one = np.array([0x33221100], np.uint32), np.array([0x77665544], np.uint32)
    table = {"f4e": 0x44332211, "b4e": 0x66770011, "rc8": 0x11111111, "ecl": 0x33221111, "ecr": 0x11111100}
    table["rc16"] = 0x33223322
    for mode, result in table.items():
        assert apply(f"prmt.b32.{mode}", "b32", ("b32", one[0]), ("b32", one[1]), "1").tolist() == [result], mode


@pytest.mark.parametrize("mode", ["l.wrap", "r.wrap", "l.clamp", "r.clamp"])
def test_funnel_shifts(mode: str) -> None:
    low, high = integers("u32", 200, 23), integers("u32", 200, 24)
    amount = np.random.default_rng(25).integers(0, 70, 200).astype(np.uint32)
    expected = []
    for x, y, n in zip(low.tolist(), high.tolist(), amount.tolist(), strict=True):
        n = n % 32 if "wrap" in mode else min(n, 32)
        both = y << 32 | x
        expected.append((both << n >> 32 if mode[0] == "l" else both >> n) & 0xFFFFFFFF)
    assert apply(f"shf.{mode}.b32", "b32", ("b32", low), ("b32", high), ("u32", amount)).tolist() == expected


COMPARISONS = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


@pytest.mark.parametrize("name", ["s32", "u64", "f16", "bf16", "f32", "f64"])
def test_comparisons(name: str) -> None:
    is_float = "f" in name
    a, b = pairs(floats(name, 50, 26) if is_float else integers(name, 50, 26), 7)
    x, y = (numbers(a), numbers(b)) if is_float else (a.tolist(), b.tolist())
    every = list(zip(x, y, strict=True))
    unordered = [math.isnan(p) or math.isnan(q) for p, q in every] if is_float else [False] * len(every)
    choice = np.arange(a.size, dtype=np.uint32) % 2
    for word, compare in COMPARISONS.items():
        ordered = [compare(p, q) and not apart for (p, q), apart in zip(every, unordered, strict=True)]
        assert apply(f"setp.{word}.{name}", "pred", (name, a), (name, b)).tolist() == ordered, word
        combined = [p != bool(q) for p, q in zip(ordered, choice.tolist(), strict=True)]
        actual = apply(f"setp.{word}.xor.{name}", "pred", (name, a), (name, b), ("pred", choice))
        assert actual.tolist() == combined
        if is_float:
            loose = [compare(p, q) or apart for (p, q), apart in zip(every, unordered, strict=True)]
            assert apply(f"setp.{word}u.{name}", "pred", (name, a), (name, b)).tolist() == loose
    if is_float:
        assert apply(f"setp.nan.{name}", "pred", (name, a), (name, b)).tolist() == unordered
    assert apply(f"set.lt.u32.{name}", "u32", (name, a), (name, b)).tolist() == [0xFFFFFFFF * (p < q) for p, q in every]


def test_selections() -> None:
    a, b = integers("u32", 100, 27), integers("u32", 100, 28)
    choice = np.arange(100, dtype=np.uint32) % 3
    np.testing.assert_array_equal(
        apply("selp.b32", "b32", ("b32", a), ("b32", b), ("pred", choice)), np.where(choice != 0, a, b)
    )
    by = floats("f32", 100, 29)
    np.testing.assert_array_equal(
        apply("slct.b32.f32", "b32", ("b32", a), ("b32", b), ("f32", by)), np.where(by >= 0, a, b)
    )


def test_signs() -> None:
    a, b = pairs(floats("f32", 60, 30))
    bits_a, bits_b = a.view(np.uint32), b.view(np.uint32)
    known = ~np.isnan(a)
    np.testing.assert_array_equal(apply("neg.f32", "f32", ("f32", a))[known], (bits_a ^ 0x80000000)[known])
    np.testing.assert_array_equal(apply("abs.f32", "f32", ("f32", a))[known], (bits_a & 0x7FFFFFFF)[known])
    np.testing.assert_array_equal(
        apply("copysign.f32", "f32", ("f32", a), ("f32", b)), (bits_a & 0x80000000) | (bits_b & 0x7FFFFFFF)
    )
    np.testing.assert_array_equal(
        apply("testp.normal.f32", "pred", ("f32", a)), np.isfinite(a) & (np.abs(a) >= 2.0**-126)
    )


@pytest.mark.parametrize("name", ["add", "sub"])
@pytest.mark.parametrize("bits", [32, 64])
def test_carries_join_two_words(name: str, bits: int) -> None:
    """Numbers of two words: the low words set the carry (or borrow) that the high words take."""
    a, b = (integers(f"u{bits}", 64, seed).astype(f"uint{bits}") for seed in (1, 2))
    c, d = np.roll(a, 5), np.roll(b, 11)
    outputs = [np.zeros(64, a.dtype) for _ in range(2)]
    register, size = ("%r", 4) if bits == 32 else ("%d", 8)
    body = f"mov.u32 %r0, %tid.x; mul.wide.u32 %d0, %r0, {size};"
    for number in range(6):
        body += f"add.s64 %d{number + 1}, %d{100 + number}, %d0;"
    for number in range(4):
        body += f"ld.global.b{bits} {register}{number + 20}, [%d{number + 1}];"
    body += f"{name}.cc.u{bits} {register}30, {register}20, {register}22;"
    body += f"{name}c.u{bits} {register}31, {register}21, {register}23;"
    body += f"st.global.b{bits} [%d5], {register}30; st.global.b{bits} [%d6], {register}31;"
    execute(body, [a, c, b, d, *outputs], 64)
    operation = operator.add if name == "add" else operator.sub
    for lane in range(64):
        first, second = (int(low[lane]) + (int(high[lane]) << bits) for low, high in ((a, c), (b, d)))
        assert int(outputs[0][lane]) + (int(outputs[1][lane]) << bits) == operation(first, second) % (1 << 2 * bits)
