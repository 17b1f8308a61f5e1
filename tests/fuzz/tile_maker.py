"""A tile kernel under construction: its text, and the tiles that each block can see.

A kernel has the refs `a` and `b` (read), `w` and `x` (read and written), `out` and `vout` (written): `x` and `vout` are
vectors. Point `p` of the grid writes only its own rows, `step` of them, so that points may run in any order. All tiles
hold whole numbers, so that sums do not depend on their order while they stay small.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]

SIZES = (2, 3, 4, 5, 7, 8, 8, 11, 13, 16, 16, 17, 20)
DEEPEST = 2
LARGEST = 4  # of a clamped number
RECENT = 6


def type_of(shape: Shape, element: str = "f32") -> str:
    return f"tensor<{'x'.join([*map(str, shape), element])}>"


def numbers(values: Sequence[int]) -> str:
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


@dataclass(frozen=True)
class Window:
    """Where a tile lies in a ref: the affine expression of each axis of the ref, and the index scalars they use."""

    dims: int
    symbols: tuple[str, ...]
    axes: tuple[str, ...]

    @property
    def operands(self) -> str:
        return "".join(f", {s}" for s in self.symbols)

    def map(self, axis: int | None = None) -> str:
        """The affine map to all axes of the ref, or to one."""
        dims = ", ".join(f"d{i}" for i in range(self.dims))
        symbols = ", ".join(f"s{i}" for i in range(len(self.symbols)))
        axes = self.axes if axis is None else self.axes[axis : axis + 1]
        return f"affine_map<({dims})[{symbols}] -> ({', '.join(axes)})>"


class TileMaker:
    """Writes operations one after the other. `pool` holds the f32 tiles that the current block can use, by shape."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sizes = [self.pick(SIZES), self.pick(SIZES)]
        self.step = max(self.sizes)
        self.grid = self.pick((1, 1, 2, 3))
        self.rows = self.step * self.grid - self.pick((0, self.between(0, self.step - 1)))
        self.columns = max(1, self.step + self.pick((0, self.between(-3, 5))))
        self.pool: dict[Shape, list[str]] = {}
        self.counters: list[str] = []
        self.lines: list[str] = []
        self.depth = 0
        self._names = 0

    # ---- chance -------------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.random.choice(choices)

    def between(self, low: int, high: int) -> int:
        """Uniform, both ends included."""
        return self.random.randint(low, high)

    def size(self) -> int:
        return self.pick(self.sizes)

    def shape(self) -> Shape:
        """Mostly a matrix, now and then a vector."""
        return (self.size(), self.size()) if self.chance(0.75) else (self.size(),)

    # ---- text ---------------------------------------------------------------------------------------------------

    def name(self) -> str:
        self._names += 1
        return f"%v{self._names}"

    def line(self, text: str) -> None:
        self.lines.append("  " * (self.depth + 2) + text)

    def op(self, text: str, shape: Shape, element: str = "f32") -> str:
        """Append an operation with one result; gives its name."""
        name = self.name()
        self.line(f"{name} = tile.{text} : {type_of(shape, element)}")
        return name

    def map(self, fn: str, operands: Sequence[str], shape: Shape, element: str = "f32") -> str:
        return self.op(f'map({", ".join(operands)}) {{fn = "{fn}"}}', shape, element)

    def full(self, value: int, shape: Shape) -> str:
        return self.op(f"full() {{value = {float(value)} : f64}}", shape)

    def clamp(self, tile: str, shape: Shape) -> str:
        """A tile of small numbers: products of them stay exact."""
        raised = self.map("maximum", [tile, self.full(-LARGEST, shape)], shape)
        return self.map("minimum", [raised, self.full(LARGEST, shape)], shape)

    @contextmanager
    def block(self) -> Generator[None]:
        """Lines of a nested block; its tiles are gone at its end."""
        outer, counters = self.pool, list(self.counters)
        self.pool = {shape: list(tiles) for shape, tiles in outer.items()}
        self.depth += 1
        yield
        self.depth -= 1
        self.pool, self.counters = outer, counters

    # ---- tiles --------------------------------------------------------------------------------------------------

    def keep(self, tile: str, shape: Shape) -> str:
        self.pool.setdefault(shape, []).append(tile)
        return tile

    def any(self, shape: Shape) -> str:
        """A tile of a shape, often the last; loaded or filled if there is none."""
        known = self.pool.get(shape, [])
        if not known:
            return self.keep(self.load(shape) if shape else self.full(1, shape), shape)
        return known[-1] if self.chance(0.3) else self.pick(known)

    def recent(self, shape: Shape) -> str:
        """One of the last tiles of a shape."""
        return self.pick(self.pool[shape][-RECENT:]) if self.pool.get(shape) else self.any(shape)

    def show(self, tiles: Sequence[str], shapes: Sequence[Shape]) -> None:
        """Keep the results of a block, and store some of them, so that what went wrong in it can be seen."""
        for tile, shape in zip(tiles, shapes, strict=True):
            self.keep(tile, shape)
            if self.chance(0.5):
                self.store(tile, shape, self.pick(("w", "out")) if len(shape) == 2 else self.pick(("x", "vout")))

    def load(self, shape: Shape, names: str = "aabbww", fill: str | None = None) -> str:
        """A tile of a ref, whose lanes outside are filled, undefined, or undefined and then filled."""
        ref = self.pick(names) if len(shape) == 2 else "x"
        window = self.window(shape, own=ref in "wx")
        fill = fill or self.pick(("0.0", "0.0", "-2.0", "none", "later"))
        given = f", fill = {fill} : f64" if fill not in ("none", "later") else ""
        tile = self.op(f"load(%{ref}{window.operands}) {{map = {window.map()}{given}}}", shape)
        return self._filled(tile, shape, window) if fill == "later" else tile

    def _filled(self, tile: str, shape: Shape, window: Window) -> str:
        """The tile with lanes beyond the ends of the ref filled."""
        for axis, limit in enumerate((self.rows, self.columns)[: len(window.axes)]):
            tile = self.fill_padding(tile, shape, window.operands, window.map(axis), limit)
        return tile

    def fill_padding(self, tile: str, shape: Shape, operands: str, map: str, limit: int, value: int = 0) -> str:
        attributes = f"map = {map}, limit = {limit} : index, value = {float(value)} : f64"
        return self.op(f"fill_padding({tile}{operands}) {{{attributes}}}", shape)

    def window(self, shape: Shape, own: bool) -> Window:
        """A place for a tile; one in the point's own rows if asked."""
        symbols, row, column = ["%p"], f"s0 * {self.step}", str(self.pick((0, 0, 1, 8)))
        if not own and self.chance(0.3):
            row += f" + {self.between(0, 3)}"
        if self.counters and self.chance(0.4):
            symbols.append(self.pick(self.counters))
            column = f"s1 * {self.pick((1, 3, 8, 16))}"
        if len(shape) == 1:
            return Window(1, tuple(symbols[:1]), (f"d0 + {row}",))
        if not own and self.chance(0.25):
            return Window(2, tuple(symbols), (f"d1 + {row}", f"d0 + {column}"))
        return Window(2, tuple(symbols), (f"d0 + {row}", f"d1 + {column}"))

    def store(self, tile: str, shape: Shape, ref: str) -> None:
        window = self.window(shape, own=True)
        self.line(f"tile.store({tile}, %{ref}{window.operands}) {{map = {window.map()}}}")
