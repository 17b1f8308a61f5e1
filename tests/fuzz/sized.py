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
