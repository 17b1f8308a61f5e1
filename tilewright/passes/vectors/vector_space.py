"""The layout space of vectors: vector registers of one core, packed panels, register blocks of micro-kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import prod

import msgspec

from tilewright.cost.tiles import even_split
from tilewright.cost.vectors.products import tile_seconds
from tilewright.cost.vectors.register_blocks import RegisterBlock, micro_kernel_name, register_blocks
from tilewright.dialects import tile
from tilewright.layout import Layout, row_major
from tilewright.layout.catalogue import packed_panels_b, register_block, spread_rows
from tilewright.layout.dims import static
from tilewright.layout.iters import fuse_digits, weighted
from tilewright.machines.machine import Machine, MatrixAtom
from tilewright.passes.layouts.layout_spaces import Atom, dealt, power_up
from tilewright.passes.vectors.product_operands import reads_its_array
from tilewright.primitives import ArrayType


class VectorSpace(msgspec.Struct, frozen=True):
    """Vector registers of one core, and its caches."""

    machine: Machine

    @property
    def limits(self) -> Mapping[str, int]:
        # Tiles stream through registers a vector at a time: what is kept is in the caches, which have no edge.
        return {}

    @property
    def streams(self) -> bool:
        return True

    def reads_in_place(self, op: tile.DotOp, columns: int) -> bool:
        return reads_its_array(op, columns)

    def accepts(self, type: ArrayType, layout: Layout) -> bool:
        """Whether vectors run along one dim. A replicated result of a reduction is stored and loaded again in
        vectors."""
        lanes = _lanes_along_one_dim(layout)
        return lanes is not None and lanes <= self.machine.lanes(type.dtype)

    def distributions(self, type: ArrayType, fastest: int) -> Iterator[Layout]:
        yield from _distributions(type.shape, fastest, self.machine.lanes(type.dtype))

    def atoms(self, left: ArrayType, right: ArrayType, accumulator: ArrayType) -> Iterator[Atom]:
        depth, dtype = left.shape[1], accumulator.dtype
        instruction = self.machine.matrix_atom(left.dtype, right.dtype, dtype, depth)
        if instruction is not None:
            yield self._matrix(left, right, accumulator, instruction)
            return
        parts = self.machine.split_atom(left.dtype, right.dtype, dtype)
        if parts is not None and depth % parts.depth == 0:
            yield self._matrix(left, right, accumulator, parts)
        for block in register_blocks(dtype, self.machine):
            yield self._micro_kernel(left, right, accumulator, block)
        words = self.machine.word_atom(left.dtype, right.dtype, dtype)
        if words is not None:
            for block in register_blocks(dtype, self.machine):
                yield self._micro_kernel(left, right, accumulator, block, words)

    def _micro_kernel(
        self,
        left: ArrayType,
        right: ArrayType,
        accumulator: ArrayType,
        block: RegisterBlock,
        words: MatrixAtom | None = None,
    ) -> Atom:
        """A register block of vectors, which multiplies elements or `words` of them."""
        (rows, depth), dtype = left.shape, accumulator.dtype
        group = 1 if words is None else words.group
        item = dtype.compute.itemsize // group
        return Atom(
            micro_kernel_name(rows, block, words),
            spread_rows(left.shape, max(1, self.machine.memories[0].line_bytes // item)),
            packed_panels_b(right.shape, block.columns, group),
            row_major(accumulator.shape),
            tile_seconds(rows, right.shape[1], -(-depth // group), block, dtype, self.machine),
            register_block((even_split(rows, block.rows), block.columns), block.lanes),
            words,
            words is not None,
        )

    def _matrix(self, left: ArrayType, right: ArrayType, accumulator: ArrayType, instruction: MatrixAtom) -> Atom:
        """2 x 2 accumulators of a matrix instruction: each operand that is loaded is used twice."""
        height, width = 2 * instruction.rows, 2 * instruction.columns
        blocks = -(-left.shape[0] // height) * -(-right.shape[1] // width)
        steps = 4 * blocks * -(-left.shape[1] // instruction.depth)
        return Atom(
            instruction.name if instruction.parts > 1 else f"{instruction.name}, {height} x {width}",
            row_major(left.shape),
            packed_panels_b(right.shape, width, instruction.group),
            row_major(accumulator.shape),
            steps * instruction.cycles / self.machine.clock_hertz,
            register_block((height, width), instruction.columns),
            instruction,
            instruction.parts > 1,
        )


@lru_cache(maxsize=16384)
def _lanes_along_one_dim(layout: Layout) -> int | None:
    """The lanes of vectors that run along one dim; None of a layout whose vectors do not."""
    digits = [(weight, d) for own in layout.shard for weight, d in weighted(fuse_digits(own)) if d.axis == "simd"]
    if any(copy.axis == "simd" for copy in layout.replica) or len(digits) > 1:
        return None
    is_plain = all(weight == digit.stride == 1 for weight, digit in digits)
    return prod(static(digit.extent) for _, digit in digits) if is_plain else None


@lru_cache(maxsize=4096)
def _distributions(shape: tuple[int, ...], fastest: int, lanes: int) -> tuple[Layout, ...]:
    """Vectors along each dim, the fastest one first."""
    dims = list(reversed(range(len(shape))))
    found: list[Layout] = []
    for dim in [fastest, *(dim for dim in dims if dim != fastest)] if dims else []:
        holder = ("simd", min(lanes, power_up(shape[dim])))
        found.append(dealt(shape, [dim, *(other for other in dims if other != dim)], (holder,), 1))
    return tuple(found)
