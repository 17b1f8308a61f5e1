"""Tile kernels of `attention` groups: online softmax, one pass over blocks of keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from xdsl.ir import SSAValue

from tilewright import schedules
from tilewright.cost.tiles import even_split
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.passes.array.attention_masks import Causal, causal_masks, scale_of
from tilewright.passes.kernels.indexing import Axis, Coordinates, Linear, Tile
from tilewright.passes.kernels.lower_contract_group import operand_coordinates, squeeze, store_roots, tile_position
from tilewright.passes.kernels.tile_builder import TileBuilder

if TYPE_CHECKING:
    from tilewright.passes.kernels.attention_warpgroups import Chain

ROW, KEY, INNER, COLUMN = 0.0, 1.0, 2.0, 3.0

# Rows of a tile and keys of a step, measured at 16 to 1024 queries: blocks of scores stay in near memory.
ROWS, KEYS = 128, 256
CAUSAL_ROWS, CAUSAL_KEYS = 64, 128
LEAST_ROWS, LEAST_KEYS = 16, 32
# Steps start at whole panels of packed keys.
KEY_MULTIPLE = 64
TILES_A_THREAD = 4


class AttentionParts(msgspec.Struct, frozen=True):
    """The values of an attention group, by role. Scores are (*batch, *rows, keys): the rows are queries, and heads that
    share keys. `weights`: the cast that rounds the weights, where they are rounded."""

    score_product: array.ContractOp
    scores: SSAValue
    value_product: array.ContractOp
    quotient: SSAValue
    weights: array.CastOp | None = None


class AttentionPlan(msgspec.Struct, frozen=True):
    """`shape` is that of the scores; `row_dim` is the dimension of which a tile has `row_extent` rows, and it takes
    `key_extent` keys a step. `repeat`: the dimension of heads of which so many share keys, and how many.
    `operand`: the type that operands are multiplied in, with sums of the compute type; None: all are of that.
    `chain`: the schedule of the matmuls, if warpgroups issue them. `in_base_2`: weights are powers of 2, by an
    instruction that gives 0 where they would be subnormal: for weights that are rounded."""

    shape: tuple[int, ...]
    row_dim: int
    row_extent: int
    key_extent: int
    repeat: tuple[int, int] | None
    operand: DType | None = None
    chain: Chain | None = None
    in_base_2: bool = False

    @property
    def warps(self) -> int | None:
        """How many share a tile, where it is declared."""
        return None if self.chain is None else self.chain.family.warps * self.chain.groups

    @property
    def grid(self) -> tuple[int, ...]:
        """Tiles along each dimension but the keys; heads that share keys are a dimension of their own, the last."""
        tiles = [-(-n // self.row_extent) if d == self.row_dim else n for d, n in enumerate(self.shape[:-1])]
        if self.repeat is None:
            return tuple(tiles)
        dim, times = self.repeat
        tiles[dim] //= times
        return (*tiles, times)


def attention_sizes(parts: AttentionParts) -> tuple[object, ...]:
    """The sizes and types by which attention fits or does not, however its dimensions are merged."""
    scores, values = array_type(parts.scores), array_type(parts.value_product.results[0])
    query = array_type(parts.score_product.operands[0])
    rounded = None if parts.weights is None else array_type(parts.weights.results[0]).dtype
    return scores.size, scores.shape[-1], query.shape[-1], values.shape[-1], query.dtype, scores.dtype, rounded


def rounded_type(parts: AttentionParts) -> DType | None:
    """The one type of the operands of both matmuls, to which the array program rounds the weights; None if the types
    differ or the weights are not rounded."""
    operands = [value for op in (parts.score_product, parts.value_product) for value in op.operands]
    types = {array_type(value).dtype for value in operands}
    return None if len(types) > 1 or parts.weights is None else types.pop()


def query_dim(parts: AttentionParts) -> int:
    """The dimension of the scores of which a tile has several rows: the queries, or the heads that share keys where
    there is one query."""
    shape = array_type(parts.scores).shape
    batch = len(parts.score_product.left_batch)
    queries = len(shape) - 2
    return queries if shape[queries] != 1 else max(range(batch, len(shape) - 1), key=lambda d: (shape[d], d))


def key_steps(keys: int, most: int) -> int:
    """How many keys a step takes: all, or parts as equal as can be."""
    return keys if keys <= most else even_split(keys, most, min(most, KEY_MULTIPLE))


def attention_plan(
    parts: AttentionParts, schedule: schedules.Attention, operand: DType | None = None, chain: Chain | None = None
) -> AttentionPlan:
    """The tiles of attention by its schedule."""
    shape, repeat = array_type(parts.scores).shape, shared_heads(parts)
    return AttentionPlan(shape, query_dim(parts), schedule.rows, schedule.keys, repeat, operand, chain)


def attention_in_blocks(parts: AttentionParts, threads: int, level: int = 0) -> schedules.Attention:
    """Blocks of queries for all threads. The keys of a step do not depend on the number of threads, nor do then the
    sums. Each level halves the rows and the keys."""
    shape, row_dim = array_type(parts.scores).shape, query_dim(parts)
    # Small steps waste few keys at the end of what a causal mask lets through.
    causal = any(mask.hides(shape) for mask in causal_masks(parts.scores))
    rows, keys = (CAUSAL_ROWS, CAUSAL_KEYS) if causal else (ROWS, KEYS)
    keys = max(keys >> level, LEAST_KEYS)
    others = math.prod(shape[:-1]) // max(1, shape[row_dim])
    while others * -(-shape[row_dim] // rows) < TILES_A_THREAD * threads and rows > LEAST_ROWS:
        rows //= 2
    row_extent = even_split(shape[row_dim], max(rows >> level, LEAST_ROWS))
    return schedules.Attention(rows=row_extent, keys=key_steps(shape[-1], keys))


def shared_heads(parts: AttentionParts) -> tuple[int, int] | None:
    """The dimension of heads that share keys or values, and how many do; None where each has its own."""
    repeats = (repeat_of(op) for op in (parts.score_product, parts.value_product))
    return next((repeat for repeat in repeats if repeat is not None), None)


def repeat_of(product: array.ContractOp) -> tuple[int, int] | None:
    """The batch dimension along which each matrix of a right operand is repeated, and how often: a broadcast to one
    more dimension, merged with the one before it."""
    merged = product.operands[1].owner
    if not isinstance(merged, array.ReshapeOp) or not isinstance(merged.operands[0].owner, array.BroadcastOp):
        return None
    spread = merged.operands[0].owner
    source, shape = array_type(spread.results[0]).shape, array_type(merged.results[0]).shape
    for dim in range(len(product.right_batch)):
        split = (*shape[:dim], *source[dim : dim + 2], *shape[dim + 1 :])
        if source == split and dim + 1 not in spread.axes:
            return dim, source[dim + 1]
    return None


def lower_attention_group(
    group: array.FusedOp,
    parts: AttentionParts,
    plan: AttentionPlan,
    builder: TileBuilder,
    indices: Sequence[SSAValue],
    outputs: Sequence[SSAValue],
) -> None:
    """Online softmax (Milakov and Gimelshein, 2018): a running maximum and sum. Blocks of keys that a causal mask hides
    from all rows of a tile are left out."""
    kernel = _Kernel(parts, plan, builder, indices)
    quotient = kernel.attend()
    width = kernel.column.extent
    at = (*kernel.rows_at, Linear.of(kernel.column) if width > 1 else Linear())
    result = squeeze(builder, quotient, at)
    builder.define(parts.quotient, at, builder.cast(result, array_type(parts.quotient).dtype))
    store_roots(group, parts.quotient, builder, at, outputs)


class _Kernel:
    def __init__(
        self, parts: AttentionParts, plan: AttentionPlan, builder: TileBuilder, indices: Sequence[SSAValue]
    ) -> None:
        self.parts, self.plan, self.builder = parts, plan, builder
        first, second = parts.score_product, parts.value_product
        self.dtype = array_type(first.results[0]).dtype.compute
        self.keys = plan.shape[-1]
        self.row, self.key = Axis(plan.row_extent, ROW, "q"), Axis(plan.key_extent, KEY, "k")
        self.inner = Axis(array_type(first.operands[0]).shape[-1], INNER, "d")
        self.column = Axis(array_type(second.results[0]).shape[-1], COLUMN, "e")
        at = [tile_position(None, index, 1, n) for index, n in zip(indices, plan.shape[:-1], strict=False)]
        queries = plan.shape[plan.row_dim]
        at[plan.row_dim] = tile_position(self.row, indices[plan.row_dim], plan.row_extent, queries)
        if plan.repeat is not None:
            dim, times = plan.repeat
            at[dim] = Linear.of(indices[dim], times) + Linear.of(indices[-1])
        self.rows_at = tuple(at)
        self.masks = causal_masks(parts.scores)
        # In base 2 the number by which scores are multiplied, where there is one, is multiplied with log2(e), and both
        # with differences of scores.
        self.scale = scale_of(parts.scores, first.results[0]) if plan.in_base_2 else None
        self.factor = math.log2(math.e) * (1.0 if self.scale is None else self.scale[1])
        # Where tiles are in registers, queries stay there.
        self.queries = None if plan.operand is None else self._queries()

    def attend(self) -> Tile:
        """The quotient of the tile."""
        builder, dtype = self.builder, self.dtype
        trips = -(-self.keys // self.plan.key_extent)
        if trips == 1:
            _, total, result = self._step(None, None)
            return self._quotient(result, total)
        if self.plan.chain is not None:
            return self._attend_in_a_chain(self.plan.chain)
        start = [
            builder.full(float("-inf"), dtype, (self.row,)),
            builder.full(0.0, dtype, (self.row,)),
            builder.full(0.0, dtype, (self.row, self.column)),
        ]
        _, total, result = builder.loop(trips, start, self._step, self._end())
        return self._quotient(result, total)

    def _quotient(self, result: Tile, total: Tile) -> Tile:
        """Of what is rounded to fewer bits, by one division for each row."""
        if self.plan.operand is None:
            return self.builder.map("divide", result, total)
        return self.builder.map("multiply", result, self.builder.map("reciprocal", total))

    def _end(self) -> tuple[Linear, int] | None:
        """The first key that no row of the tile sees, and the keys of a step."""
        masks = [mask for mask in self.masks if mask.hides(self.plan.shape)]
        if not masks:
            return None
        last = min(masks, key=lambda mask: mask.offset)
        query = self.rows_at[last.query_dim]
        highest = Linear(query.constant, tuple((t, c) for t, c in query.terms if not isinstance(t, Axis)))
        return highest + sum(axis.extent - 1 for axis in query.axes) + (last.offset + 1), self.plan.key_extent

    def _step(self, counter: SSAValue | None, carried: Sequence[Tile] | None) -> list[Tile]:
        """The maximum, sum and result of a block of keys, together with those before it."""
        builder, dtype = self.builder, self.dtype
        key_at = Linear.of(self.key) + (Linear.of(counter, self.plan.key_extent) if counter is not None else 0)
        scores = self._masked(self._products(key_at), key_at)
        highest, shift, weights = self._weigh(scores, None if carried is None else carried[0])
        sums = builder.reduce(weights, "add", [self.key])
        start = builder.full(0.0, dtype, (self.row, self.column))
        correction = self._power(carried[0], shift) if carried is not None else None
        if carried is not None and correction is not None:
            start = builder.map("multiply", carried[2], correction)
        values = self._values(key_at)
        if self.plan.operand is not None:
            weights = builder.cast(weights, self.plan.operand)
        result = builder.dot(weights, values, start, (self.row, self.column, self.key))
        # After the product, so that the correction is computed once, for both.
        if carried is not None and correction is not None:
            sums = builder.map("add", builder.map("multiply", carried[1], correction), sums)
        return [highest, sums, result]

    def _attend_in_a_chain(self, chain: Chain) -> Tile:
        """The quotient, the last block of keys first. The weights of a block are multiplied by its values when the
        scores of the one before it are being computed, so that neither matmul waits for the softmax of the other."""
        builder, dtype = self.builder, self.dtype
        blocks = chain.blocks(self.rows_at[self.plan.row_dim])
        last = self._block(blocks + -1)
        highest, _, weights = self._weigh(self._masked(self._products(last), last), None)
        start = [
            highest,
            builder.reduce(weights, "add", [self.key]),
            self._rounded(weights),
            builder.full(0.0, dtype, (self.row, self.column)),
        ]

        def step(counter: SSAValue, carried: Sequence[Tile]) -> list[Tile]:
            highest, total, weights, result = carried
            weighted = blocks + Linear.of(counter, -1) + -1
            key_at = self._block(weighted + -1)
            products = self._products(key_at)
            result = self._add_values(weights, self._block(weighted), result)
            following, shift, weights = self._weigh(self._masked(products, key_at), highest)
            correction = self._power(highest, shift)
            total = builder.map("multiply", total, correction)
            total = builder.map("add", total, builder.reduce(weights, "add", [self.key]))
            return [following, total, self._rounded(weights), builder.map("multiply", result, correction)]

        end = (blocks + -1, 1) if blocks.terms else None
        _, total, weights, result = builder.loop(chain.most_blocks - 1, start, step, end)
        return self._quotient(self._add_values(weights, self._block(Linear()), result), total)

    def _block(self, number: Linear) -> Linear:
        """The positions of the keys of a block."""
        return Linear.of(self.key) + number * self.plan.key_extent

    def _rounded(self, weights: Tile) -> Tile:
        return weights if self.plan.operand is None else self.builder.cast(weights, self.plan.operand)

    def _add_values(self, weights: Tile, key_at: Linear, result: Tile) -> Tile:
        axes = (self.row, self.column, self.key)
        return self.builder.dot(weights, self._values(key_at), result, axes, self._atom(1))

    def _atom(self, product: int) -> str:
        """By what a matmul is done; empty where it is not declared."""
        return "" if self.plan.chain is None else self.plan.chain.atoms[product]

    def _weigh(self, scores: Tile, highest_before: Tile | None) -> tuple[Tile, Tile, Tile]:
        """The highest scores so far, what is subtracted from them, and the weights."""
        builder, dtype = self.builder, self.dtype
        highest = builder.reduce(scores, "maximum", [self.key])
        if highest_before is not None:
            highest = builder.map("maximum", highest_before, highest)
        # A row without any key so far has maximum -inf; subtracting 0 instead keeps its terms at exp(-inf) = 0.
        lowest = builder.full(float("-inf"), dtype)
        shift = builder.map("select", builder.map("equal", highest, lowest), builder.full(0.0, dtype), highest)
        return highest, shift, self._power(scores, shift)

    def _power(self, scores: Tile, shift: Tile) -> Tile:
        """e to the difference of two scores: in base 2 by one multiply-add."""
        builder = self.builder
        if not self.plan.in_base_2:
            return builder.map("exp", builder.map("subtract", scores, shift))
        factor = builder.full(self.factor, self.dtype)
        scaled, start = builder.map("multiply", scores, factor, contract=True), builder.map("multiply", shift, factor)
        return builder.map("exp2", builder.map("subtract", scaled, start, contract=True), ftz=True)

    def _values(self, key_at: Linear) -> Tile:
        values = self._operand(self.parts.value_product, 1, [Linear.of(self.column)], key_at)
        if self.keys % self.plan.key_extent:
            values = self.builder.fill_padding(values, key_at, self.keys, 0)
        return values

    def _queries(self) -> Tile:
        first = self.parts.score_product
        batch = len(first.left_batch)
        return self._operand(first, 0, self.rows_at[batch:], Linear.of(self.inner))

    def _products(self, key_at: Linear) -> Tile:
        """Queries by a block of keys."""
        builder, first = self.builder, self.parts.score_product
        query = self._queries() if self.queries is None else self.queries
        keys = self._operand(first, 1, [key_at], Linear.of(self.inner))
        axes = (self.row, self.key)
        return builder.dot(query, keys, builder.full(0, self.dtype, axes), (*axes, self.inner), self._atom(0))

    def _masked(self, product: Tile, key_at: Linear) -> Tile:
        """The scores of a block of keys, -inf beyond the last key."""
        builder, dtype, first = self.builder, self.dtype, self.parts.score_product
        axes = (self.row, self.key)
        at = (*self.rows_at, key_at if self.keys > 1 else Linear())
        product = builder.cast(squeeze(builder, product, at), array_type(first.results[0]).dtype)
        builder.define(first.results[0], at, product)
        if self.scale is not None:
            builder.define(self.scale[0].results[0], at, product)
        for mask in reversed(self.masks):
            self._apply(mask, at)
        scores = builder.cast(builder.pull(self.parts.scores, at), dtype)
        scores = Tile(builder.expand(scores, axes), axes)
        return builder.fill_padding(scores, key_at, self.keys, float("-inf")) if self.keys % self.key.extent else scores

    def _apply(self, mask: Causal, at: Coordinates) -> None:
        """State what the scores after a causal mask are, those before it being stated."""
        if mask.choice is None:
            return
        seen = self.builder.pull(mask.choice.operands[1], at)
        if mask.hides(self.plan.shape):
            beyond = at[-1] + at[mask.query_dim] * -1
            seen = self.builder.fill_padding(seen, beyond, mask.offset + 1, float("-inf"))
        self.builder.define(mask.choice.results[0], at, seen)

    def _operand(self, op: array.ContractOp, side: int, free: Sequence[Linear], contracted: Linear) -> Tile:
        """An operand of a matmul as a tile of the type in which it is multiplied."""
        summed, paired = (op.left_contract, op.left_batch) if side == 0 else (op.right_contract, op.right_batch)
        batch = self.rows_at[: len(paired)]
        at = operand_coordinates(len(batch) + len(free) + 1, paired, summed, batch, [contracted], free)
        return self.builder.cast(self.builder.pull(op.operands[side], at), self.plan.operand or self.dtype)
