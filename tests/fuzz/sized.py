"""Random functions over sizes that a call binds, against programs for just the sizes of the call.

    python -m tests.fuzz.sized --programs 500 --seed 7 --target cpu

A function is a list of steps that choose by names of sizes, never by the sizes, so that it is one function at all of
them. What lies behind the real elements of its arguments is poisoned.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np

import tilewright as tw
from tilewright.frontend.sizes import plan

ROWS = tw.Dim(1, 24, name="rows")
BATCH = tw.Dim(1, 6, name="batch")
WIDTH = 4
SPEC = (BATCH, ROWS, WIDTH)
SIZES = ((3, 17), (4, 24), (2, 9), (3, 10), (4, 16), (1, 23), (4, 5))
BUCKETS = {ROWS: (8, 24), BATCH: (4,)}

# An array with the names of its sizes: a size that is no name is always the same.
Named = tuple[Any, tuple[Any, ...]]


class Steps:
    """One random function: `trace` runs the same steps on any sizes."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, x: Any, y: Any) -> tuple[Any, ...]:
        generator = random.Random(self._seed)
        pool: list[Named] = [(x, ("batch", "rows", WIDTH)), (y, ("batch", "rows", WIDTH))]
        for _ in range(generator.randint(3, 9)):
            step = generator.choice(STEPS)
            made = step(generator, pool)
            if made is not None:
                pool.append(_tame(made))
        return tuple(array for array, _ in pool[2:]) or (x + y,)


def _tame(made: Named) -> Named:
    """Values that no rounding of a sum in another order tips over."""
    array, names = made
    return (array / 8 if array.dtype.is_float else array), names


def _elements(generator: random.Random, pool: list[Named]) -> Named:
    array, names = generator.choice(pool)
    functions: list[Callable[[Any], Any]] = [tw.tanh, tw.exp, tw.abs, lambda a: 1 / (tw.abs(a) + 0.5)]
    functions += [lambda a: a - 1, lambda a: tw.sqrt(tw.abs(a))]
    return generator.choice(functions)(array), names


def _infinite(generator: random.Random, pool: list[Named]) -> Named | None:
    """Some infinities: a mask that multiplies by 0 would make them NaN."""
    array, names = generator.choice(pool)
    if not names:
        return None
    places = tw.iota(array.shape, generator.randrange(len(names)))
    return tw.where(places % 5 == 3, generator.choice([np.inf, -np.inf]), array), names


def _two(generator: random.Random, pool: list[Named]) -> Named | None:
    first, names = generator.choice(pool)
    others = [a for a, n in pool if n == names]
    functions: list[Callable[[Any, Any], Any]] = [tw.add, tw.multiply, tw.maximum, lambda a, b: tw.where(a > b, a, 1.0)]
    return generator.choice(functions)(first, generator.choice(others)), names


def _reduce(generator: random.Random, pool: list[Named]) -> Named | None:
    array, names = generator.choice(pool)
    if not names:
        return None
    axis = generator.randrange(len(names))
    functions = [tw.sum, tw.max, tw.min, tw.mean, tw.prod, tw.argmax]
    result = generator.choice(functions)(array, axis=axis)
    return result.astype(tw.f32), (*names[:axis], *names[axis + 1 :])


def _along(generator: random.Random, pool: list[Named]) -> Named | None:
    array, names = generator.choice(pool)
    if not names:
        return None
    axis = generator.randrange(len(names))
    functions: list[Callable[..., Any]] = [
        tw.nn.softmax,
        tw.cumulative_sum,
        tw.flip,
        lambda a, axis: tw.sort(a, axis=axis, descending=generator.random() < 0.5),
        lambda a, axis: tw.roll(a, 1, axis=axis),
        lambda a, axis: a - tw.max(a, axis=axis, keepdims=True),
        lambda a, axis: tw.take(a, tw.argsort(tw.iota((a.shape[axis],), 0) % 3, stable=True), axis=axis),
    ]
    return generator.choice(functions)(array, axis=axis), names


def _transpose(generator: random.Random, pool: list[Named]) -> Named:
    array, names = generator.choice(pool)
    order = generator.sample(range(len(names)), len(names))
    return tw.permute_dims(array, tuple(order)), tuple(names[d] for d in order)


def _merge(generator: random.Random, pool: list[Named]) -> Named | None:
    array, names = generator.choice(pool)
    if len(names) < 2:
        return None
    axis = generator.randrange(len(names) - 1)
    shape = array.shape
    merged = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
    name = (names[axis], names[axis + 1])
    return tw.reshape(array, merged), (*names[:axis], name, *names[axis + 2 :])


def _split(generator: random.Random, pool: list[Named]) -> Named | None:
    merged = [(a, n, d) for a, n in pool for d, name in enumerate(n) if isinstance(name, tuple)]
    if not merged:
        return None
    array, names, axis = generator.choice(merged)
    sizes = {"batch": pool[0][0].shape[0], "rows": pool[0][0].shape[1]}
    parts = [_size(sizes, part) for part in names[axis]]
    shape = array.shape
    return tw.reshape(array, (*shape[:axis], *parts, *shape[axis + 1 :])), (
        *names[:axis],
        *names[axis],
        *names[axis + 1 :],
    )


def _size(sizes: dict[str, int], name: Any) -> int:
    if isinstance(name, tuple):
        return _size(sizes, name[0]) * _size(sizes, name[1])
    return name if isinstance(name, int) else sizes[name]


def _product(generator: random.Random, pool: list[Named]) -> Named | None:
    first, names = generator.choice(pool)
    second, others = generator.choice(pool)
    shared = [(a, b) for a, n in enumerate(names) for b, m in enumerate(others) if n == m]
    if not shared or len(names) + len(others) > 6:
        return None
    a, b = generator.choice(shared)
    left, right = tw.moveaxis(first, a, -1), tw.moveaxis(second, b, -1)
    return tw.tensordot(left, right, axes=((-1,), (-1,))), (*names[:a], *names[a + 1 :], *others[:b], *others[b + 1 :])


def _cut(generator: random.Random, pool: list[Named]) -> Named | None:
    array, names = generator.choice(pool)
    axes = [d for d, name in enumerate(names) if not isinstance(name, tuple)]
    if not axes:
        return None
    axis = generator.choice(axes)
    first, last = array[(slice(None),) * axis + (slice(0, 1),)], array[(slice(None),) * axis + (slice(-1, None),)]
    way = generator.randrange(4)
    if way == 0:
        return tw.squeeze(first, axis=axis), (*names[:axis], *names[axis + 1 :])
    if way == 1:
        return tw.squeeze(last, axis=axis), (*names[:axis], *names[axis + 1 :])
    if way == 2:
        return tw.concat([array[(slice(None),) * axis + (slice(1, None),)], first], axis=axis), names
    widths = [(0, 0)] * len(names)
    widths[axis] = (2, 0)
    padded = tw.pad(array, tuple(widths), constant_values=0.5)
    return padded[(slice(None),) * axis + (slice(1, -1),)], names


def _integers(generator: random.Random, pool: list[Named]) -> Named | None:
    """Integers, of few bits too, whose padding must not be taken for large ones."""
    array, names = generator.choice(pool)
    if not names:
        return None
    dtype = generator.choice([tw.i8, tw.u8, tw.i16, tw.i32, tw.i64, tw.u32])
    whole = (tw.clip(array, -2, 2) * 9.3).astype(dtype)
    axis = generator.randrange(len(names))
    less = (*names[:axis], *names[axis + 1 :])
    functions: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (lambda a: tw.sum(a, axis=axis), less),
        (lambda a: tw.max(a, axis=axis), less),
        (lambda a: tw.min(a, axis=axis), less),
        (lambda a: tw.argmin(a, axis=axis), less),
        (lambda a: tw.all(a > 1, axis=axis), less),
        (lambda a: tw.any(a > 17, axis=axis), less),
        (lambda a: tw.sort(a, axis=axis, descending=True), names),
        (lambda a: tw.cumulative_sum(a, axis=axis), names),
        (lambda a: 7 // a + 7 % a, names),
        (lambda a: tw.flip(tw.cumulative_sum(tw.flip(a, axis=axis), axis=axis), axis=axis), names),
    ]
    function, result = generator.choice(functions)
    return function(whole).astype(tw.f32), result


def _scattered(generator: random.Random, pool: list[Named]) -> Named | None:
    """Rows that are added up where an index says, some of them outside."""
    array, names = generator.choice(pool)
    if not names or isinstance(names[0], tuple):
        return None
    dtype = generator.choice([tw.i8, tw.i32, tw.i64, tw.u8])
    places = (tw.arange(array.shape[0]) * generator.choice([1, 3, 5]) % 7).astype(dtype)
    if generator.random() < 0.5:
        return tw.zeros((5, *array.shape[1:])).at[places].add(array), (5, *names[1:])
    return array.at[places].set(array / 2), names


def _moving(generator: random.Random, pool: list[Named]) -> Named | None:
    """Windows whose place the data say, in front of the array and behind it too."""
    array, names = generator.choice(pool)
    axes = [d for d, name in enumerate(names) if not isinstance(name, tuple)]
    if not axes:
        return None
    axis = generator.choice(axes)
    dtype = generator.choice([tw.i8, tw.i32, tw.i64, tw.u8])
    start = (tw.argmax(tw.reshape(array, (-1,))) % 9 + generator.choice([-4, 0, 11])).astype(dtype)
    starts = [start if d == axis else 0 for d in range(len(names))]
    size = generator.choice([1, array.shape[axis], -(-array.shape[axis] // 2)])
    part = tw.dynamic_slice(array, starts, (*array.shape[:axis], size, *array.shape[axis + 1 :]))
    if generator.random() < 0.5:
        return tw.mean(part, axis=axis), (*names[:axis], *names[axis + 1 :])
    return tw.dynamic_update_slice(array, part * 2, starts), names


def _over_rows(generator: random.Random, pool: list[Named]) -> Named | None:
    array, names = generator.choice(pool)
    if not names or isinstance(names[0], tuple):
        return None

    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        return carry / 2 + row, carry - row * tw.mean(row)

    total, rows = tw.scan(step, tw.zeros(array.shape[1:]), array, reverse=generator.random() < 0.5)
    return (rows, names) if generator.random() < 0.5 else (total, names[1:])


def _chosen(generator: random.Random, pool: list[Named]) -> Named | None:
    array, names = generator.choice(pool)
    if not names:
        return None
    axis = generator.randrange(len(names))
    functions = [tw.sum, tw.max, lambda a, axis: tw.sort(a, axis=axis)[(slice(None),) * axis + (0,)]]
    first, second = generator.choice(functions), generator.choice(functions)
    chosen = tw.cond(tw.mean(array) > 0.1, lambda: first(array, axis=axis), lambda: second(array, axis=axis) + 1)
    return chosen, (*names[:axis], *names[axis + 1 :])


def _repeated(generator: random.Random, pool: list[Named]) -> Named | None:
    array, names = generator.choice(pool)
    if not names or len(names) > 4:
        return None
    axis = generator.randrange(len(names))
    return tw.fori_loop(
        0, generator.choice([3, array.shape[axis]]), lambda i, a: a / 2 + tw.mean(a, axis=axis, keepdims=True), array
    ), names


def _pooled(generator: random.Random, pool: list[Named]) -> Named | None:
    three = [(a, n) for a, n in pool if len(n) == 3 and not isinstance(n[2], tuple)]
    if not three:
        return None
    array, names = generator.choice(three)
    pooled = generator.choice([tw.nn.max_pool, tw.nn.avg_pool])
    return pooled(array, (3,), stride=1, padding=1), names


def _joined(generator: random.Random, pool: list[Named]) -> Named | None:
    """Twice an axis, or an array behind equal elements of it."""
    array, names = generator.choice(pool)
    if not names:
        return None
    axis = generator.randrange(len(names))
    if generator.random() < 0.5:
        return tw.concat([array, array + 1], axis=axis), (*names[:axis], (2, names[axis]), *names[axis + 1 :])
    front = (slice(None),) * axis
    joined = tw.concat([tw.full(array.shape, -1.5), array], axis=axis)
    return joined[(*front, slice(array.shape[axis] // 2, array.shape[axis] // 2 + array.shape[axis]))], names


def _where(generator: random.Random, pool: list[Named]) -> Named | None:
    """Masks made of positions."""
    array, names = generator.choice(pool)
    if not names:
        return None
    a, b = generator.randrange(len(names)), generator.randrange(len(names))
    first, second = tw.iota(array.shape, a), tw.iota(array.shape, b)
    masks = [
        first <= second,
        first < array.shape[a] // 2,
        first % 3 != 0,
        first + second > 4,
        first >= array.shape[a] - 1,
    ]
    return tw.where(generator.choice(masks), array, generator.choice([0.0, 1.0, -np.inf, array * 2])), names


def _equal(generator: random.Random, pool: list[Named]) -> Named | None:
    """Equal elements, and windows of them."""
    array, names = generator.choice(pool)
    if not names:
        return None
    axis = generator.randrange(len(names))
    front = (slice(None),) * axis
    size = array.shape[axis]
    equal = tw.full(array.shape, generator.choice([-1.0, 2.0]))
    repeated = tw.broadcast_to(array[(*front, slice(0, 1))], array.shape)
    made = generator.choice([equal, repeated])
    functions: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (lambda a: a, names),
        (lambda a: tw.max(a[(*front, slice(size // 2, None))], axis=axis), (*names[:axis], *names[axis + 1 :])),
        (lambda a: tw.sum(a, axis=axis), (*names[:axis], *names[axis + 1 :])),
        (lambda a: tw.cumulative_sum(a, axis=axis), names),
        (lambda a: tw.concat([a[(*front, slice(1, None))], array[(*front, slice(0, 1))]], axis=axis), names),
    ]
    function, result = generator.choice(functions)
    return function(made), result


STEPS: Sequence[Callable[[random.Random, list[Named]], Named | None]] = (
    _elements,
    _infinite,
    _two,
    _two,
    _reduce,
    _reduce,
    _along,
    _along,
    _transpose,
    _merge,
    _split,
    _product,
    _cut,
    _cut,
    _integers,
    _integers,
    _scattered,
    _moving,
    _over_rows,
    _chosen,
    _repeated,
    _pooled,
    _joined,
    _where,
    _equal,
)


def poisoned(array: np.ndarray, shape: Any, type: Any) -> np.ndarray:
    """In the place of the padding of arguments: NaN behind what is real."""
    if shape is None or array.shape == type.shape:
        return array
    padded = np.full(type.shape, np.nan if array.dtype.kind == "f" else 77, array.dtype)
    padded[tuple(slice(n) for n in array.shape)] = array
    return padded


def check(seed: int, target: str = "interp", sizes: Sequence[tuple[int, int]] = SIZES) -> tuple[int, int]:
    """Compare one function at several sizes; how many sizes ran on the program of a bucket, and how many not."""
    function = Steps(seed)
    sized = tw.jit(function, target=target, dims={"x": SPEC, "y": SPEC}, buckets=BUCKETS)
    exact = tw.jit(function, target=target)
    data = np.random.default_rng(seed)
    for batch, rows in sizes:
        x, y = (data.uniform(-2, 2, (batch, rows, WIDTH)).astype(np.float32) for _ in range(2))
        with mock.patch.object(plan, "_pad", poisoned):
            results = sized(x, y)
        for n, (got, wanted) in enumerate(zip(results, exact(x, y), strict=True)):
            scale = max(1.0, float(np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0)))
            message = f"seed {seed}, sizes {batch} x {rows}, result {n}"
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4 * scale, err_msg=message)
    alone = sum(1 for program in sized.programs if program.why_exact)
    return len(sizes) - alone, alone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="interp")
    given = parser.parse_args()
    shared = alone = failed = 0
    for seed in range(given.seed, given.seed + given.programs):
        try:
            on_buckets, on_their_own = check(seed, given.target)
        except AssertionError as error:
            failed += 1
            print(f"seed {seed}: {error}")
            continue
        shared, alone = shared + on_buckets, alone + on_their_own
    print(f"{given.programs} functions, {failed} wrong; {shared} calls on programs of buckets, {alone} on their own")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
