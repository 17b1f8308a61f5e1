"""Random programs of `jax.lax`, compared with JAX on the CPU.

    python -m tests.interop.stablehlo.sampler --count 200 --seed 0

Each program is a list of steps on arrays that earlier ones made, told by its seed alone. Numbers are kept small, and
steps at which a rounding difference jumps (comparisons of computed floats) choose only between alike values.
"""

from __future__ import annotations

import argparse
import collections
import random
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.interop.stablehlo.cases import Case, Outcome, run_case

_MAX_ELEMENTS = 600
_MAX_AXES = 4
_STEPS = """
    unary unary binary binary reduce shape shape pad slice dot gather scatter dynamic window sort scan select
    concatenate loop convolution branch
"""
_ON_INTEGERS = (lax.neg, lax.abs, lax.sign, lambda x: x & 7, lambda x: x >> 1, lambda x: x * 3 % 11)
_ON_FLOATS = (
    *(jnp.tanh, jnp.sin, jnp.cos, lax.logistic, lax.erf, lax.neg, lax.abs),
    *(lambda x: jnp.exp(-x * x), lambda x: lax.rsqrt(x * x + 1), lambda x: jnp.log1p(x * x)),
    lambda x: lax.reduce_precision(x, 8, 7),
)
Step = Callable[[list[Any]], Any]


class Maker:
    """Makes the steps of one program, from its own random numbers. `values` are examples of what steps made."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._numbers = np.random.default_rng(seed)
        self.values: list[Any] = [self._array() for _ in range(self.random.randint(1, 3))]
        self.arguments = tuple(self.values)
        self.steps: list[Step] = []

    def _array(self) -> Any:
        shape = [self.random.choice([1, 2, 3, 4, 5, 7, 8]) for _ in range(self.random.randint(0, 3))]
        if self.random.random() < 0.06 and shape:
            shape[0] = 0
        if self.random.random() < 0.3:
            return self._numbers.integers(-5, 6, shape).astype(np.int32)
        return self._numbers.standard_normal(shape).astype(np.float32)

    def make(self, count: int) -> Case:
        """A case of so many steps."""
        names = _STEPS.split()
        while len(self.steps) < count:
            step = getattr(self, f"_{self.random.choice(names)}")()
            if step is None:
                continue
            made = step(self.values)
            if made.size > _MAX_ELEMENTS or made.ndim > _MAX_AXES:
                continue
            self.steps.append(step)
            self.values.append(np.asarray(made))
        steps, first = tuple(self.steps), len(self.arguments)

        def program(*arguments: Any) -> Any:
            values = list(arguments)
            for step in steps:
                values.append(step(values))
            return values[first:]

        return self._transformed(program)

    def _transformed(self, program: Callable[..., list[Any]]) -> Case:
        """The program as it is, over a batch, or its gradient."""
        choice = self.random.random()
        if choice < 0.25:
            stacked = tuple(np.stack([a, a[::-1] if a.ndim else a + a]) for a in self.arguments)
            return Case("random-vmap", jax.vmap(program), stacked, steps=2048.0)
        floats = tuple(n for n, a in enumerate(self.arguments) if a.dtype == np.float32)
        if choice > 0.6 or not floats:
            return Case("random", program, self.arguments, steps=2048.0)

        def loss(*arguments: Any) -> Any:
            return sum(jnp.tanh(v).sum() for v in program(*arguments) if v.dtype == np.float32)

        return Case("random-gradient", jax.grad(lambda *a: loss(*a) + 0.0, floats), self.arguments, steps=2.0**15)

    # ---- choices ----------------------------------------------------------------------------------------------------

    def _pick(self, wanted: Callable[[Any], bool] = lambda v: True) -> int | None:
        found = [n for n, v in enumerate(self.values) if wanted(v)]
        # Later values more often: programs get deep.
        return None if not found else max(self.random.choice(found), self.random.choice(found))

    def _float(self, wanted: Callable[[Any], bool] = lambda v: True) -> int | None:
        return self._pick(lambda v: v.dtype == np.float32 and wanted(v))

    def _axis(self, n: int) -> int:
        return self.random.randrange(self.values[n].ndim)

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _unary(self) -> Step | None:
        n = self._pick()
        assert n is not None
        f = self.random.choice(_ON_FLOATS if self.values[n].dtype == np.float32 else _ON_INTEGERS)
        return lambda v: f(v[n])

    def _binary(self) -> Step | None:
        n = self._pick()
        assert n is not None
        shape, dtype = self.values[n].shape, self.values[n].dtype
        m = self._pick(lambda v: v.dtype == dtype and (v.shape == shape or v.shape == ()))
        assert m is not None
        f = self.random.choice([lax.add, lax.sub, lax.mul, lax.max, lax.min])
        return lambda v: (
            jnp.tanh(f(*jnp.broadcast_arrays(v[n], v[m])) / 3)
            if v[n].dtype == np.float32
            else (f(*jnp.broadcast_arrays(v[n], v[m])) % 13)
        )

    def _reduce(self) -> Step | None:
        n = self._pick(lambda v: v.ndim > 0 and v.size > 0)
        if n is None:
            return None
        axes = tuple(d for d in range(self.values[n].ndim) if self.random.random() < 0.5)
        f = self.random.choice([jnp.sum, jnp.max, jnp.min, jnp.prod, jnp.mean])
        if f in (jnp.prod, jnp.mean) and self.values[n].dtype != np.float32:
            f = jnp.sum
        return lambda v: f(v[n], axes)

    def _shape(self) -> Step | None:
        n = self._pick()
        assert n is not None
        x = self.values[n]
        choice = self.random.randrange(5)
        if choice == 0:
            order = self.random.sample(range(x.ndim), x.ndim)
            return lambda v: jnp.transpose(v[n], order)
        if choice == 1:
            return lambda v: v[n].reshape(-1)
        if choice == 2 and x.size:
            factor = self.random.choice([k for k in range(1, x.size + 1) if x.size % k == 0])
            return lambda v: v[n].reshape(factor, -1)
        if choice == 3:
            sizes = tuple(self.random.choice([1, 2, 3]) for _ in range(self.random.randint(1, 2)))
            return lambda v: jnp.broadcast_to(v[n], (*sizes, *x.shape))
        axes = tuple(d for d in range(x.ndim) if self.random.random() < 0.5)
        return lambda v: lax.rev(v[n], axes)

    def _pad(self) -> Step | None:
        n = self._pick(lambda v: v.ndim > 0)
        if n is None:
            return None
        x = self.values[n]
        sizes: list[tuple[int, int, int]] = []
        for size in x.shape:
            low, high, inner = self.random.randint(-2, 2), self.random.randint(-2, 3), self.random.choice([0, 0, 1, 2])
            whole = size + max(0, size - 1) * inner
            sizes.append((low, high, inner) if whole + low + high >= 0 and whole + min(low, 0) >= 0 else (1, 0, 0))
        return lambda v: lax.pad(v[n], np.asarray(2, v[n].dtype), sizes)

    def _slice(self) -> Step | None:
        n = self._pick(lambda v: v.ndim > 0)
        if n is None:
            return None
        starts = [self.random.randint(0, size) for size in self.values[n].shape]
        limits = [self.random.randint(start, size) for start, size in zip(starts, self.values[n].shape, strict=True)]
        strides = [self.random.choice([1, 1, 2, 3]) for _ in starts]
        return lambda v: lax.slice(v[n], starts, limits, strides)

    def _dot(self) -> Step | None:
        n, m = self._float(lambda v: v.ndim > 0), self._float(lambda v: v.ndim > 0)
        if n is None or m is None:
            return None
        pairs = [
            (a, b)
            for a, size in enumerate(self.values[n].shape)
            for b, other in enumerate(self.values[m].shape)
            if size == other
        ]
        if not pairs:
            return None
        a, b = self.random.choice(pairs)
        batch = [(c, d) for c, d in pairs if c != a and d != b][:1] if self.random.random() < 0.5 else []
        numbers = (((a,), (b,)), ([c for c, _ in batch], [d for _, d in batch]))
        return lambda v: lax.dot_general(v[n], v[m], numbers) / 4

    def _indices(self, size: int, count: int) -> Any:
        return self._numbers.integers(-2, size + 2, (count,)).astype(np.int32)

    def _gather(self) -> Step | None:
        n = self._pick(lambda v: v.ndim > 0 and v.size > 0)
        if n is None:
            return None
        axis = self._axis(n)
        i = self._indices(self.values[n].shape[axis], self.random.randint(1, 5))
        if self.random.random() < 0.5:
            return lambda v: jnp.take(v[n], i, axis=axis, mode="clip")
        width = self.random.randint(1, self.values[n].shape[axis])
        sizes = tuple(width if d == axis else size for d, size in enumerate(self.values[n].shape))
        numbers = lax.GatherDimensionNumbers(
            offset_dims=tuple(range(1, len(sizes) + 1)), collapsed_slice_dims=(), start_index_map=(axis,)
        )
        return lambda v: lax.gather(v[n], jnp.asarray(i)[:, None], numbers, sizes, mode="clip")

    def _scatter(self) -> Step | None:
        n = self._pick(lambda v: v.ndim > 0 and v.size > 0)
        if n is None:
            return None
        axis = self._axis(n)
        size = self.values[n].shape[axis]
        if self.random.random() < 0.5:
            i = self._indices(size, self.random.randint(1, 4))
            return lambda v: jnp.moveaxis(jnp.moveaxis(v[n], axis, 0).at[i].add(1, mode="drop"), 0, axis)
        j = self._numbers.permutation(size)[: self.random.randint(1, size)].astype(np.int32)
        return lambda v: jnp.moveaxis(jnp.moveaxis(v[n], axis, 0).at[j].set(-1), 0, axis)

    def _dynamic(self) -> Step | None:
        n = self._pick(lambda v: v.ndim > 0 and v.size > 0)
        if n is None:
            return None
        starts = [np.int32(self.random.randint(-2, size + 1)) for size in self.values[n].shape]
        sizes = [self.random.randint(1, size) for size in self.values[n].shape]
        if self.random.random() < 0.5:
            return lambda v: lax.dynamic_slice(v[n], starts, sizes)
        return lambda v: lax.dynamic_update_slice(v[n], jnp.ones(sizes, v[n].dtype), starts)

    def _window(self) -> Step | None:
        n = self._float(lambda v: v.ndim > 0 and v.size > 0)
        if n is None:
            return None
        rank = self.values[n].ndim
        window = tuple(self.random.randint(1, 3) for _ in range(rank))
        strides = tuple(self.random.randint(1, 2) for _ in range(rank))
        padding = self.random.choice(["SAME", "VALID"])
        start, f = self.random.choice([(0.0, lax.add), (-np.inf, lax.max), (np.inf, lax.min)])
        dilation = tuple(self.random.choice([1, 1, 2]) for _ in range(rank))

        def step(v: list[Any]) -> Any:
            made = lax.reduce_window(v[n], np.float32(start), f, window, strides, padding, window_dilation=dilation)
            return jnp.where(jnp.isfinite(made), made, 0)

        return step

    def _sort(self) -> Step | None:
        n = self._pick(lambda v: v.ndim > 0 and v.size > 0)
        if n is None:
            return None
        axis = self._axis(n)
        return lambda v: jnp.sort(v[n], axis)

    def _scan(self) -> Step | None:
        n = self._float(lambda v: v.ndim > 0 and v.shape[0] < 9)
        if n is None:
            return None
        if self.random.random() < 0.5:
            return lambda v: jnp.tanh(jnp.cumsum(v[n], 0))
        reverse = self.random.random() < 0.5
        start = np.zeros(self.values[n].shape[1:], np.float32)
        return lambda v: lax.scan(lambda c, x: (jnp.tanh(c + x), c * x), start, v[n], reverse=reverse)[1]

    def _select(self) -> Step | None:
        n = self._pick()
        assert n is not None
        shape, dtype = self.values[n].shape, self.values[n].dtype
        mask = self._numbers.random(shape) < 0.5
        m = self._pick(lambda v: v.shape == shape and v.dtype == dtype)
        assert m is not None
        return lambda v: jnp.where(mask, v[n], v[m])

    def _concatenate(self) -> Step | None:
        n = self._pick(lambda v: v.ndim > 0)
        if n is None:
            return None
        axis, dtype = self._axis(n), self.values[n].dtype

        def fits(v: Any) -> bool:
            return (
                v.ndim == self.values[n].ndim
                and v.dtype == dtype
                and all(a == b for d, (a, b) in enumerate(zip(v.shape, self.values[n].shape, strict=True)) if d != axis)
            )

        m = self._pick(fits)
        assert m is not None
        return lambda v: jnp.concatenate([v[n], v[m]], axis)

    def _loop(self) -> Step | None:
        n = self._float()
        if n is None:
            return None
        trips = self.random.randint(0, 4)
        return lambda v: lax.fori_loop(0, trips, lambda i, c: jnp.sin(c + i * 0.5), v[n])

    def _branch(self) -> Step | None:
        n = self._float()
        if n is None:
            return None
        chosen = np.bool_(self.random.random() < 0.5)
        return lambda v: lax.cond(jnp.asarray(chosen) & (v[0].size >= 0), jnp.cos, lambda x: x * 2 - 1, v[n])

    def _convolution(self) -> Step | None:
        n = self._float(lambda v: v.ndim == 2 and v.size > 0)
        if n is None:
            return None
        kernel = self._numbers.standard_normal((2, 1, self.random.randint(1, 3), self.random.randint(1, 3)))
        strides = (self.random.randint(1, 2), self.random.randint(1, 2))
        return lambda v: lax.conv_general_dilated(v[n][None, None], kernel.astype(np.float32), strides, "SAME")[0] / 3


def run(count: int, seed: int) -> list[tuple[int, Outcome]]:
    """What became of random programs, by their seeds."""
    found: list[tuple[int, Outcome]] = []
    for n in range(seed, seed + count):
        maker = Maker(n)
        found.append((n, run_case(maker.make(maker.random.randint(5, 20)))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    start = time.perf_counter()
    counts: collections.Counter[str] = collections.Counter()
    for n in range(given.seed, given.seed + given.count):
        ((_, outcome),) = run(1, n)
        counts[outcome.state] += 1
        if outcome.state != "passed":
            print(f"seed {n}: {outcome.state}: {outcome.reason}", flush=True)
    print(f"{dict(counts)} in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
