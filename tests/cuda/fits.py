"""Random programs compiled for every NVIDIA chip: does each find a plan that fits?

    python -m tests.cuda.fits                                 300 programs, each for one of the chips, in turns
    python -m tests.cuda.fits --programs 40 --seed 7          others
    python -m tests.cuda.fits --kinds attention --chips sm_80 some alone

A program is a form of `_KINDS` with random sizes and types: attention with heads of 8 to 576, products, convolutions,
reductions, rows that are normalised, transposes, scans, best elements, and tile kernels with tiles of any size. It is
compiled to PTX. What is counted: compiled, and of these those that took a fallback; refused, by reason; failed. Tile
kernels whose own tiles are larger than the machine may be refused, as that is for the user to change; anything else
that is refused for its size counts as a fault.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tilewright as tw
from tests.cuda.chips import CHIPS
from tilewright.dtypes import DType
from tilewright.errors import TilewrightError

COMPILED, SMALLER, REFUSED, FAULT = "compiled", "compiled by a fallback", "refused", "fault"
_FLOATS = (tw.f32, tw.bf16, tw.f16)
_HEADS = (8, 16, 24, 40, 64, 72, 80, 96, 128, 160, 192, 256, 288, 320, 384, 448, 512, 576)
_SIZES = (1, 3, 16, 17, 40, 64, 100, 128, 256, 300, 512, 777, 1024, 2048)
_LENGTHS = (*_SIZES, 4096, 5000, 16384, 65536)
# Of a tile of a user's kernel.
_MOST_TILE_ELEMENTS = 32 * 4096


@dataclass(frozen=True)
class Case:
    """A program and the types of its arrays. `is_tiled`: its tiles are the user's own."""

    text: str
    function: Any
    types: tuple[tw.ShapeDtype, ...]
    static: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def is_tiled(self) -> bool:
        return bool(self.static)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case on a chip."""

    kind: str
    reason: str = ""
    seconds: float = 0.0


# ---- programs -------------------------------------------------------------------------------------------------------


@tw.kernel
def tiled_product(
    a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"], *, bm: int = 64, bn: int = 64, bk: int = 32
) -> None:
    for i, j in tw.grid(c, (bm, bn)):
        total = tw.zeros((bm, bn), tw.f32)
        for k in tw.steps(a, axis=1, size=bk):
            total = tw.dot(a[i, k], b[k, j], total)
        c[i, j] = total


@tw.kernel
def tiled_softmax(x: tw.In["M N"], y: tw.Out["M N"], *, rows: int = 4) -> None:
    for i in tw.grid(x, rows):
        row = x[i]
        exponential = tw.exp(row - tw.max(row, axis=1, keepdims=True))
        y[i] = exponential / tw.sum(exponential, axis=1, keepdims=True)


def _attention(draw: random.Random) -> Case:
    dtype, head, width = draw.choice(_FLOATS), draw.choice(_HEADS), draw.choice(_HEADS)
    queries, keys, heads = draw.choice(_SIZES), draw.choice(_SIZES), draw.choice((1, 2, 12))
    width = head if draw.random() < 0.7 else width
    is_causal = draw.random() < 0.3 and queries == keys

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.mT * head**-0.5
        if is_causal:
            scores = tw.where(tw.tril(tw.ones((queries, keys), dtype=tw.bool)), scores, -float("inf"))
        return tw.nn.softmax(scores, axis=-1) @ v

    shapes = (heads, queries, head), (heads, keys, head), (heads, keys, width)
    text = f"attention {dtype.name} {shapes}{' causal' if is_causal else ''}"
    return Case(text, attend, _types(dtype, *shapes))


def _product(draw: random.Random) -> Case:
    dtype, (m, n, k) = draw.choice((*_FLOATS, tw.f64, tw.i8)), (draw.choice(_SIZES) for _ in range(3))
    left, right, is_followed = (draw.random() < 0.4 for _ in range(3))

    def multiply(a: Any, b: Any) -> Any:
        result = tw.matmul(a.mT if left else a, b.mT if right else b, dtype=tw.i32 if dtype == tw.i8 else dtype)
        return tw.nn.gelu(result) + 1 if is_followed and dtype.is_float else result

    batch = draw.choice(((), (3,)))
    shapes = (*batch, *((k, m) if left else (m, k))), (*batch, *((n, k) if right else (k, n)))
    return Case(f"product {dtype.name} {shapes} {left, right, is_followed}", multiply, _types(dtype, *shapes))


def _convolution(draw: random.Random) -> Case:
    dtype, channels, outputs = draw.choice(_FLOATS), draw.choice((1, 3, 16, 40, 128)), draw.choice((1, 8, 40, 128, 300))
    side, kernel, stride = draw.choice((7, 14, 28, 57)), draw.choice((1, 3, 5, 7)), draw.choice((1, 2))

    def convolve(x: Any, w: Any) -> Any:
        return tw.nn.conv(x, w, padding=kernel // 2, stride=stride)

    shapes = (2, channels, side, side), (outputs, channels, kernel, kernel)
    return Case(f"convolution {dtype.name} {shapes} stride {stride}", convolve, _types(dtype, *shapes))


def _rows(draw: random.Random) -> Case:
    dtype, shape = draw.choice((*_FLOATS, tw.f64)), (draw.choice((1, 7, 64, 512)), draw.choice(_LENGTHS))
    axis, name = draw.choice((0, 1)), draw.choice(("softmax", "layer_norm", "sum", "max", "argmax", "var"))
    functions: dict[str, Callable[[Any], Any]] = {
        "softmax": lambda x: tw.nn.softmax(x, axis=axis),
        "layer_norm": lambda x: (x - tw.mean(x, axis=axis, keepdims=True)) / tw.std(x, axis=axis, keepdims=True),
        "sum": lambda x: tw.sum(x * 2, axis=axis),
        "max": lambda x: tw.max(x, axis=axis),
        "argmax": lambda x: tw.argmax(x, axis=axis),
        "var": lambda x: tw.var(x, axis=axis),
    }
    return Case(f"{name} {dtype.name} {shape} axis {axis}", functions[name], _types(dtype, shape))


def _ordered(draw: random.Random) -> Case:
    dtype, shape = draw.choice((tw.f32, tw.f64, tw.i32)), (draw.choice((1, 7, 64, 512)), draw.choice(_LENGTHS))
    axis = draw.choice((0, 1))
    return Case(
        f"cumulative_sum {dtype.name} {shape} axis {axis}",
        lambda x: tw.cumulative_sum(x, axis=axis),
        _types(dtype, shape),
    )


def _loop(draw: random.Random) -> Case:
    dtype, rank = draw.choice((*_FLOATS, tw.f64, tw.i8)), draw.choice((1, 2, 3, 4))
    shape = tuple(draw.choice((1, 3, 8, 65, 128)) for _ in range(rank))
    permutation = tuple(draw.sample(range(rank), rank))

    def permute(x: Any) -> Any:
        turned = tw.permute_dims(x, permutation)
        return tw.concat([turned, turned], axis=rank - 1) + 1

    return Case(f"transpose {dtype.name} {shape} {permutation}", permute, _types(dtype, shape))


def _tiled_product(draw: random.Random) -> Case:
    dtype = draw.choice(_FLOATS)
    static = {name: draw.choice((16, 32, 64, 128, 256)) for name in ("bm", "bn")} | {
        "bk": draw.choice((16, 32, 64, 128))
    }
    m, n, k = (draw.choice((64, 100, 512, 1024)) for _ in range(3))
    types = (*_types(dtype, (m, k), (k, n)), tw.ShapeDtype((m, n), tw.f32))
    return Case(f"tiled product {dtype.name} {m, n, k} {static}", tiled_product, types, static)


def _tiled_rows(draw: random.Random) -> Case:
    rows, columns = draw.choice((1, 2, 4, 16, 32)), draw.choice((64, 256, 1000, 1024, 4096, 16384))
    rows = max(1, min(rows, _MOST_TILE_ELEMENTS // columns))
    return Case(
        f"tiled softmax {columns} rows {rows}", tiled_softmax, _types(tw.f32, *[(512, columns)] * 2), {"rows": rows}
    )


_KINDS: dict[str, Callable[[random.Random], Case]] = {
    "attention": _attention,
    "product": _product,
    "convolution": _convolution,
    "rows": _rows,
    "ordered": _ordered,
    "loop": _loop,
    "tiled_product": _tiled_product,
    "tiled_rows": _tiled_rows,
}
# Attention and tiled products are what takes memory.
_WEIGHTS = {"attention": 4, "product": 2, "tiled_product": 2}


def _types(dtype: DType, *shapes: tuple[int, ...]) -> tuple[tw.ShapeDtype, ...]:
    return tuple(tw.ShapeDtype(shape, dtype) for shape in shapes)


def case_of(seed: int, kinds: Sequence[str] = tuple(_KINDS)) -> Case:
    """The program of a seed."""
    draw = random.Random(seed)
    (kind,) = draw.choices(kinds, [_WEIGHTS.get(kind, 1) for kind in kinds])
    return _KINDS[kind](draw)


# ---- compiling ------------------------------------------------------------------------------------------------------


def tried(case: Case, chip: str) -> Outcome:
    """Compile a case to PTX."""
    start = time.perf_counter()
    function = case.function if case.is_tiled else tw.jit(case.function)
    try:
        with tw.options(cache=False):
            compiled = function.lower(*case.types, **case.static).compile(f"cuda:{chip}")
            program = compiled.executable
            program.ir("ptx")
    except TilewrightError as error:
        reason = re.sub(r"\w*\d\w*", "N", error.message)
        # A user's own tiles may be larger than the machine; and what no chip computes is no question of its size.
        is_own = case.is_tiled or "shared memory" not in reason
        return Outcome(REFUSED if is_own else FAULT, reason, time.perf_counter() - start)
    except Exception as error:  # a crash is an outcome, too
        return Outcome(FAULT, f"{type(error).__name__}: {error}", time.perf_counter() - start)
    kind = SMALLER if program.unit.fallbacks.by_key else COMPILED
    return Outcome(kind, "", time.perf_counter() - start)


def main() -> int:
    """Count outcomes; the exit status says whether there were faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=tuple(_KINDS), choices=tuple(_KINDS))
    parser.add_argument("--chips", nargs="+", default=CHIPS)
    arguments = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    for number in range(arguments.programs):
        seed, chip = arguments.seed + number, arguments.chips[number % len(arguments.chips)]
        case = case_of(seed, arguments.kinds)
        outcome = tried(case, chip)
        counts[outcome.kind, outcome.reason] += 1
        if outcome.kind != COMPILED or outcome.seconds > 10:
            print(f"{seed} {chip} {case.text}: {outcome.kind} {outcome.reason} ({outcome.seconds:.1f} s)", flush=True)
    print(f"{arguments.programs} programs")
    for (kind, reason), count in counts.most_common():
        print(f"{count:5} {kind}{': ' if reason else ''}{reason}")
    return int(any(kind == FAULT for kind, _ in counts))


if __name__ == "__main__":
    raise SystemExit(main())
