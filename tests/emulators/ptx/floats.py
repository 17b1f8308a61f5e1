"""PTX ISA, "Floating-Point Instructions" and "Half Precision Floating-Point Instructions"."""

from collections.abc import Callable
from functools import reduce

import numpy as np

from tests.emulators.ptx.formats import (
    TYPES,
    bits_of,
    canonical,
    flushed,
    multiply_add,
    narrowed,
    saturated,
    sign_bit,
    sum_to_odd,
    wide,
)
from tests.emulators.ptx.words import Pure, Words

FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64")
ROUNDINGS = ("rn", "rz", "rm", "rp")


def _single(name: str) -> str:
    return name.removesuffix("x2")


def _finished(words: Words, name: str, compute: Callable[..., np.ndarray], sources: int) -> Pure:
    """The instruction with its `.ftz` and `.sat` around `compute`."""
    flush, saturate = words.take("ftz"), words.take("sat")
    if name == "f64" and (flush or saturate):
        raise words.unknown()

    def whole(*operands: np.ndarray) -> np.ndarray:
        if flush:
            operands = tuple(map(flushed, operands))
        result = compute(*operands)
        if flush:
            result = flushed(result)
        return saturated(result) if saturate else result

    return Pure((name,), (name,) * sources, whole)


def _mixed(words: Words) -> str | None:
    """The type of the narrow operands of an f32 instruction ("Mixed Precision Floating-Point Instructions")."""
    return words.left.pop() if words.left[-2:] in (["f32", "f16"], ["f32", "bf16"]) else None


def add(words: Words) -> Pure:
    """add and sub; a sum of f32 or f64 is rounded by NumPy where the rounding is to nearest."""
    narrow = _mixed(words)
    whole = _add(words)
    if narrow is None:
        return whole
    return Pure(whole.results, (narrow, "f32"), lambda a, b: whole.compute(wide(a).astype(np.float32), b))


def _add(words: Words) -> Pure:
    name = words.take_type(FLOATS)
    mode = words.take_one(ROUNDINGS, "rn")
    single = _single(name)
    if single == "f64" and mode != "rn":
        raise words.unknown()
    negate = words.name == "sub"

    def compute(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if single in ("f32", "f64") and mode == "rn":
            return canonical(a - b if negate else a + b)
        return narrowed(sum_to_odd(wide(a), -wide(b) if negate else wide(b), mode), single, mode)

    return _finished(words, name, compute, 2)


def mul(words: Words) -> Pure:
    name = words.take_type(FLOATS)
    mode = words.take_one(ROUNDINGS, "rn")
    single = _single(name)
    if single == "f64" and mode != "rn":
        raise words.unknown()

    def compute(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if single in ("f32", "f64") and mode == "rn":
            return canonical(a * b)
        return narrowed(wide(a) * wide(b), single, mode)

    return _finished(words, name, compute, 2)


def fma(words: Words) -> Pure:
    """fma, and mad of floating-point types, which is the same from sm_20 on."""
    narrow = _mixed(words)
    whole = _fma(words)
    if narrow is None:
        return whole
    sources = (narrow, narrow, "f32")
    return Pure(whole.results, sources, lambda a, b, c: whole.compute(*(wide(x).astype(np.float32) for x in (a, b)), c))


def _fma(words: Words) -> Pure:
    name = words.take_type(FLOATS)
    mode = words.take_one(ROUNDINGS, None)
    single = _single(name)
    relu = words.take("relu")
    if (single == "f64" and mode != "rn") or (relu and single not in ("f16", "bf16")):
        raise words.unknown()

    def compute(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        result = multiply_add(a, b, c, single, mode)
        if relu:
            # Negative results become +0, NaN the canonical one.
            result = np.where(bits_of(sign_bit(result)) != 0, bits_of(result) * 0, bits_of(result)).view(result.dtype)
        return result

    return _finished(words, name, compute, 3)


def div(words: Words) -> Pure:
    name = words.take_type(("f32", "f64"))
    mode = words.take_one(("rn", "approx", "full"), None)
    if name == "f64" and mode != "rn":
        raise words.unknown()

    def compute(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        result = canonical(a / b)
        if mode != "approx":
            return result
        # "div": the reciprocal of a divisor above 2^126 is lost: 0 is left, or NaN where the dividend is infinite.
        beyond = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
        lost = np.where(np.isinf(a), np.float32(np.nan), np.where(np.isnan(a), a, np.float32(0)))
        return canonical(np.where(beyond, lost, result).astype(np.float32))

    return _finished(words, name, compute, 2)


def _reciprocal_root(x: np.ndarray) -> np.ndarray:
    return 1.0 / np.sqrt(x)


# Looked up when an instruction runs, so that tests may put others in their place.
APPROXIMATE: dict[str, tuple[Callable[[np.ndarray], np.ndarray], tuple[str, ...]]] = {
    "ex2": (np.exp2, ("f16", "f16x2", "bf16", "bf16x2", "f32")),
    "lg2": (np.log2, ("f32",)),
    "sin": (np.sin, ("f32",)),
    "cos": (np.cos, ("f32",)),
    "tanh": (np.tanh, ("f16", "f16x2", "bf16", "bf16x2", "f32")),
    "rsqrt": (_reciprocal_root, ("f32", "f64")),
    "rcp": (np.reciprocal, ("f32", "f64")),
    "sqrt": (np.sqrt, ("f32", "f64")),
}


def function(words: Words) -> Pure:
    """ex2 lg2 sin cos tanh rsqrt rcp sqrt. Results of `.approx` are correctly rounded, which its error bounds allow."""
    called = words.name
    name = words.take_type(APPROXIMATE[called][1])
    modes = ("approx", "rn") if words.name in ("rcp", "sqrt") else ("approx",)
    mode = words.take_one(modes, None)
    if name == "f64" and mode == "approx" and words.name != "rsqrt":
        raise words.unknown()

    def compute(a: np.ndarray) -> np.ndarray:
        function = APPROXIMATE[called][0]
        if _single(name) == "f64":
            return function(a)
        return narrowed(function(wide(a)), _single(name))

    return _finished(words, name, compute, 1)


def sign(words: Words) -> Pure:
    """neg and abs of floating-point types: the sign bit alone changes."""
    name = words.take_type(FLOATS)
    flip = words.name == "neg"

    def compute(a: np.ndarray) -> np.ndarray:
        unsigned = bits_of(a)
        top = unsigned.dtype.type(1 << (8 * a.dtype.itemsize - 1))
        return (unsigned ^ top if flip else unsigned & ~top).view(a.dtype)

    return _finished(words, name, compute, 1)


def copysign(words: Words) -> Pure:
    """copysign d, a, b: the sign of a, the rest of b."""
    name = words.take_type(("f32", "f64"))

    def compute(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (sign_bit(a) | (bits_of(b) ^ sign_bit(b))).view(a.dtype)

    return Pure((name,), (name, name), compute)


def extreme(words: Words) -> Pure:
    """min and max: -0 is below +0; a NaN yields the other operand, or with `.NaN` NaN. f32 has a form of three operands
    (PTX ISA, "Floating Point Instructions: max")."""
    name = words.take_type(FLOATS)
    sources = len(words.instruction.operands) - 1
    if sources not in ((2, 3) if name == "f32" else (2,)):
        raise words.unknown()
    keep_nan = words.take("NaN")
    least = words.name == "min"

    def of_two(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = np.broadcast_arrays(a, b)
        negative_first = (a == b) & (sign_bit(np.ascontiguousarray(a)) != 0)
        a_first = (a < b) | negative_first
        result = np.where(a_first if least else ~a_first, a, b)
        result = np.where(np.isnan(a), b, np.where(np.isnan(b), a, result))
        if keep_nan:
            result = np.where(np.isnan(b), b, np.where(np.isnan(a), a, result))
        return canonical(result)

    return _finished(words, name, lambda *operands: reduce(of_two, operands), sources)


def test_property(words: Words) -> Pure:
    """testp: a property of a number as a predicate."""
    name = words.take_type(("f32", "f64"))
    kind = words.take_one(("finite", "infinite", "number", "notanumber", "normal", "subnormal"), None)
    tiny = np.finfo(TYPES[name].dtype).tiny
    compute: Callable[[np.ndarray], np.ndarray] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & (np.abs(a) >= tiny),
        "subnormal": lambda a: (a != 0) & (np.abs(a) < tiny),
    }[kind]
    return Pure(("pred",), (name,), compute)
