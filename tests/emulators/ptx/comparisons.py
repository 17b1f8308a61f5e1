"""setp, set, selp and slct: PTX ISA, "Comparison and Selection Instructions"."""

from collections.abc import Callable

import numpy as np

from tests.emulators.ptx.formats import TYPES, flushed
from tests.emulators.ptx.words import Pure, Words

_BITS = ("b16", "b32", "b64")
_UNSIGNED = ("u16", "u32", "u64")
_SIGNED = ("s16", "s32", "s64")
_FLOATS = ("f16", "bf16", "f32", "f64")
_ORDERED = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _comparison(words: Words, name: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    floats = name in _FLOATS
    names = ["eq", "ne"]
    if name not in _BITS:
        names += ["lt", "le", "gt", "ge"]
    if name in _UNSIGNED:
        names += list(_UNSIGNED_NAMES)
    if floats:
        names += [f"{each}u" for each in _ORDERED] + ["num", "nan"]
    chosen = words.take_one(names, None)
    chosen = _UNSIGNED_NAMES.get(chosen, chosen)
    flush = words.take("ftz")
    if flush and name not in ("f16", "bf16", "f32"):
        raise words.unknown()

    def compare(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if flush:
            a, b = flushed(a), flushed(b)
        if not floats:
            return _ORDERED[chosen](a, b)
        unordered = np.isnan(a) | np.isnan(b)
        if chosen in ("num", "nan"):
            return unordered if chosen == "nan" else ~unordered
        result = _ORDERED[chosen.removesuffix("u")](a, b)
        return result | unordered if chosen.endswith("u") else result & ~unordered

    return compare


def set_predicate(words: Words) -> Pure:
    """setp d|e, a, b, c: d is the comparison, e its opposite, both combined with the predicate c if there is one."""
    name = words.take_type((*_BITS, *_UNSIGNED, *_SIGNED, *_FLOATS))
    compare = _comparison(words, name)
    combine = _COMBINE.get(words.take_one(tuple(_COMBINE), "none"))

    def compute(a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        result = compare(a, b)
        return (combine(result, c), combine(~result, c)) if combine else (result, ~result)

    return Pure(("pred", "pred"), (name, name, *(("pred",) if combine else ())), compute)


def set_number(words: Words) -> Pure:
    """set: the comparison as a number: all bits set in an integer, 1.0 in a float."""
    name = words.take_type((*_BITS, *_UNSIGNED, *_SIGNED, *_FLOATS))
    target = words.take_type(("u16", "s16", "u32", "s32", "f16", "bf16", "f32"))
    compare = _comparison(words, name)
    combine = _COMBINE.get(words.take_one(tuple(_COMBINE), "none"))
    kind = TYPES[target]
    true = kind.dtype.type(1) if kind.is_float else ~np.zeros((), kind.dtype)

    def compute(a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None) -> np.ndarray:
        result = combine(compare(a, b), c) if combine else compare(a, b)
        return np.where(result, true, np.zeros((), kind.dtype))

    return Pure((target,), (name, name, *(("pred",) if combine else ())), compute)


def select(words: Words) -> Pure:
    name = words.take_type((*_BITS, *_UNSIGNED, *_SIGNED, "f32", "f64"))
    return Pure((name,), (name, name, "pred"), lambda a, b, choice: np.where(choice, a, b))


def select_by_sign(words: Words) -> Pure:
    """slct d, a, b, c: a where c >= 0 (-0 counts as 0), else b; also b where c is NaN."""
    by = words.take_type(("s32", "f32"))
    name = words.take_type((*_BITS, *_UNSIGNED, *_SIGNED, "f32", "f64"))
    flush = words.take("ftz")
    if flush and by != "f32":
        raise words.unknown()

    def compute(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        return np.where((flushed(c) if flush else c) >= 0, a, b)

    return Pure((name,), (name, name, by), compute)
