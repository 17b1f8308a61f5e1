"""Random bits from counters.

The generators are those of Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011). The
specification leaves open how a state becomes key and counter, and which element gets which word: here as XLA does it on
CPUs, where the default is Philox.
"""

from __future__ import annotations

import math

from tilewright import dtypes
from tilewright.api import lifting
from tilewright.api.array import Array
from tilewright.api.functions_manipulation import stack
from tilewright.api.lifting import broadcast, cast, emit, full
from tilewright.interop.stablehlo.operators.elementwise import like, mapped
from tilewright.interop.stablehlo.operators.manipulation import sliced
from tilewright.interop.stablehlo.registry import Node, operation
from tilewright.primitives import Shape

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_PHILOX_ROUNDS = 10
_THREEFRY_PARITY = 0x1BD11BDA
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_THREEFRY_GROUPS = 5


@operation("stablehlo.rng")
def rng(node: Node, *operands: object) -> object:
    """Numbers that every implementation draws in its own way."""
    raise node.unsupported("`stablehlo.rng`, whose numbers are not defined", "draw them from a key with `jax.random`")


@operation("stablehlo.rng_bit_generator")
def rng_bit_generator(node: Node, state: Array) -> tuple[Array, Array]:
    """The state after a draw, and the bits drawn."""
    algorithm = node.get("rng_algorithm")
    type = node.types[1]
    if type.is_narrow or not type.dtype.is_integer:
        raise node.unsupported(f"random bits of {type}")
    if state.dtype != dtypes.u64 or state.ndim != 1 or state.shape[0] not in (2, 3):
        raise node.unsupported(f"a generator whose state is {state.value.type}")
    words = [lifting.reshape(sliced(state, (n,), (n + 1,)), ()) for n in range(state.shape[0])]
    if algorithm == "THREE_FRY" and len(words) == 2:
        return _drawn_by_threefry(words, type.shape, type.dtype)
    if algorithm in ("DEFAULT", "PHILOX"):
        return _drawn_by_philox(words, type.shape, type.dtype)
    raise node.unsupported(f"the generator `{algorithm}` with a state of {len(words)} words")


def _halves(x: Array) -> tuple[Array, Array]:
    """The low and the high 32 bits."""
    return cast(x, dtypes.u32), cast(mapped("shift_right", x, like(x, 32)), dtypes.u32)


def _joined(low: Array, high: Array) -> Array:
    wide = cast(high, dtypes.u64)
    return cast(low, dtypes.u64) | mapped("shift_left", wide, like(wide, 32))


def _counted(first: Array, count: int) -> Array:
    return broadcast(first, (count,)) + emit("iota", axis=0, shape=(count,), dtype="u64")


def _flat(words: Array, shape: Shape, dtype: dtypes.DType) -> Array:
    """The first words in the shape of the result."""
    size = math.prod(shape)
    kept = sliced(lifting.reshape(words, (words.size,)), (0,), (size,))
    return lifting.reshape(cast(kept, dtype), shape)


# ---- Philox ---------------------------------------------------------------------------------------------------------


def _drawn_by_philox(words: list[Array], shape: Shape, dtype: dtypes.DType) -> tuple[Array, Array]:
    """Four words for each count; of a state of two words the key stands for the high half of the counter too."""
    is_wide = dtype.bits == 64
    count = -(-math.prod(shape) // (2 if is_wide else 4))
    key, first = words[0], words[1]
    low = _counted(first, count)
    high = broadcast(words[2] if len(words) == 3 else key, (count,))
    if len(words) == 3:
        high = high + cast(mapped("less", low, broadcast(first, (count,))), dtypes.u64)
    drawn = _philox([*_halves(low), *_halves(high)], key)
    parts = [_joined(*drawn[:2]), _joined(*drawn[2:])] if is_wide else drawn
    bits = _flat(stack(parts, axis=-1), shape, dtype)
    after = first + like(first, count)
    new = [key, after]
    if len(words) == 3:
        new.append(words[2] + cast(mapped("less", after, first), dtypes.u64))
    return stack(new), bits


def _philox(counter: list[Array], key: Array) -> list[Array]:
    shape = counter[0].shape
    keys = [broadcast(half, shape) for half in _halves(key)]
    a, b, c, d = counter
    for _ in range(_PHILOX_ROUNDS):
        low, high = (_products(x, m) for x, m in zip((a, c), _MULTIPLIERS, strict=True))
        a, b, c, d = high[1] ^ b ^ keys[0], high[0], low[1] ^ d ^ keys[1], low[0]
        keys = [k + like(k, step) for k, step in zip(keys, _WEYL, strict=True)]
    return [a, b, c, d]


def _products(x: Array, factor: int) -> tuple[Array, Array]:
    wide = cast(x, dtypes.u64)
    return _halves(wide * like(wide, factor))


# ---- Threefry -------------------------------------------------------------------------------------------------------


def _drawn_by_threefry(words: list[Array], shape: Shape, dtype: dtypes.DType) -> tuple[Array, Array]:
    """Two words for each count. Of results of 32 bits and less they are neighbours along the first even axis; the first
    axis is made even where none is."""
    key, first = words
    if dtype.bits == 64:
        count = math.prod(shape)
        bits = lifting.reshape(_joined(*_threefry(_counted(first, count), key)), shape)
        return stack([key, first + like(first, count)]), bits
    full_shape = shape or (1,)
    axis = next((d for d, n in enumerate(full_shape) if n % 2 == 0), 0)
    half = tuple(-(-n // 2) if d == axis else n for d, n in enumerate(full_shape))
    count = math.prod(half)
    drawn = [lifting.reshape(word, half) for word in _threefry(_counted(first, count), key)]
    paired = lifting.reshape(stack(drawn, axis=axis + 1), tuple(2 * n if d == axis else n for d, n in enumerate(half)))
    kept = sliced(paired, (0,) * paired.ndim, full_shape)
    return stack([key, first + like(first, count)]), lifting.reshape(cast(kept, dtype), shape)


def _threefry(counter: Array, key: Array) -> tuple[Array, Array]:
    first, second = (broadcast(half, counter.shape) for half in _halves(key))
    keys = [first, second, first ^ second ^ full(counter.shape, _THREEFRY_PARITY, dtypes.u32)]
    a, b = _halves(counter)
    a, b = a + keys[0], b + keys[1]
    for group in range(_THREEFRY_GROUPS):
        for turn in _ROTATIONS[group % 2]:
            a = a + b
            b = mapped("shift_left", b, like(b, turn)) | mapped("shift_right", b, like(b, 32 - turn))
            b = a ^ b
        a = a + keys[(group + 1) % 3]
        b = b + keys[(group + 2) % 3] + like(b, group + 1)
    return a, b
