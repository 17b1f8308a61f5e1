"""Shared code of the catalogue's families: atoms written as text, repetition over a shape, and checks of arguments."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Literal

from tilewright.errors import LayoutError
from tilewright.layout.construct import row_major
from tilewright.layout.dims import is_integer
from tilewright.layout.iters import Iter, Replica
from tilewright.layout.layout import Layout
from tilewright.layout.operations import canonical, product

Role = Literal["a", "b", "c"]
"""Which matrix of `c += a @ b` a fragment holds: (M, K), (K, N) or (M, N)."""


@lru_cache(maxsize=256)
def atom(text: str) -> Layout:
    """The layout written in `text`, without digits of extent 1."""
    return canonical(Layout.parse(text))


def repeated(tile: Layout, shape: Sequence[int], what: str, axis: str = "reg") -> Layout:
    """Copies of `tile` that fill `shape`, one after another along `axis`, the last dim fastest.

    Raises:
        LayoutError: `shape` is not made of whole tiles.
    """
    return product(row_major(whole_tiles(shape, tile.static_shape, what), axis), tile)


def whole_tiles(shape: Sequence[int], tile_shape: Sequence[int], what: str) -> tuple[int, ...]:
    """How many tiles fill `shape` along each dim.

    Raises:
        LayoutError: `shape` is not made of whole tiles.
    """
    fits = len(shape) == len(tile_shape) and all(is_integer(size) and size > 0 for size in shape)
    if not fits or any(size % step for size, step in zip(shape, tile_shape, strict=True)):
        sizes = ", ".join(map(str, shape))
        raise LayoutError(
            f"{what} of shape ({sizes}) is not made of whole tiles of {' x '.join(map(str, tile_shape))}",
            help=f"use {_multiples(tile_shape)}",
        )
    return tuple(size // step for size, step in zip(shape, tile_shape, strict=True))


def one_of(value: object, allowed: Collection[object], what: str) -> None:
    """Raise LayoutError unless `value` is allowed."""
    if isinstance(value, bool) or value not in allowed:
        listed = ", ".join(map(str, allowed))
        raise LayoutError(f"{value!r} is not {what}", help=f"choose from: {listed}")


def placed(tile: Layout, role: Role, holders: tuple[int, int], axis: str) -> Layout:
    """`tile` once for each of `holders` = (along M, along N) on `axis`, numbered with those along N fastest.

    Holders side by side along a dim that the operand lacks have copies of it.
    """
    along_m, along_n = holders
    if not all(is_integer(count) and count > 0 for count in holders):
        raise LayoutError(f"{holders} cannot be placed along M and N", help="give two positive numbers")
    rows = (Iter(along_m, along_n, axis),) if role != "b" and along_m > 1 else ()
    columns = (Iter(along_n, 1, axis),) if role != "a" and along_n > 1 else ()
    copies = (Replica(along_m, along_n, axis),) if role == "b" and along_m > 1 else ()
    copies = (Replica(along_n, 1, axis),) if role == "a" and along_n > 1 else copies
    shape = (1 if role == "b" else along_m, 1 if role == "a" else along_n)
    return product(Layout(shape, (rows, columns), copies), tile)


def _multiples(tile_shape: Sequence[int]) -> str:
    sizes = [f"a multiple of {step}" if step > 1 else "any size" for step in tile_shape]
    return " by ".join(sizes)
