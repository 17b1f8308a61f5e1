"""Kernels in Triton for the cases of a device, which `tilewright bench` compares with ours.

They are written as one writes Triton: tiles in an order that keeps operands in the second-level cache, rows that one
program holds, and sizes of tiles that Triton's own search chooses. Arrays are torch tensors on one device, contiguous
unless a function documents otherwise; results are new. With `TRITON_INTERPRET=1` they run on tensors of the host."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from tilewright.cli.bench_suites.ops import EPSILON

_SQRT_HALF: tl.constexpr = tl.constexpr(0.7071067811865476)
_SQRT_2_OVER_PI: tl.constexpr = tl.constexpr(0.7978845608028654)
_LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
_INTERPRETED = bool(triton.knobs.runtime.interpret)


def _search(*configs: triton.Config) -> list[triton.Config]:
    """Configurations for the autotuner; only the first if there is no device to measure on."""
    return [*configs[:1]] if _INTERPRETED else [*configs]


# ---- products --------------------------------------------------------------------------------------------------------


def _tiles(rows: int, columns: int, depth: int, stages: int, warps: int) -> triton.Config:
    sizes = {"TILE_ROWS": rows, "TILE_COLUMNS": columns, "TILE_DEPTH": depth, "GROUP": 8}
    return triton.Config(sizes, num_stages=stages, num_warps=warps)


def _is_whole(given: dict[str, int]) -> bool:
    """Whether tiles of some sizes fill the matrices."""
    step = given["TILE_DEPTH"] * 2 // given["ITEM_BYTES"]
    tiles = ((given["rows"], given["TILE_ROWS"]), (given["columns"], given["TILE_COLUMNS"]), (given["depth"], step))
    return all(extent % tile == 0 for extent, tile in tiles)


@triton.autotune(
    # Depths are of 16-bit types: of others the same bytes.
    configs=_search(
        _tiles(128, 128, 64, 3, 4),
        _tiles(128, 128, 64, 4, 8),
        _tiles(128, 256, 64, 3, 8),
        _tiles(256, 128, 64, 3, 8),
        _tiles(128, 128, 128, 3, 8),
        _tiles(64, 128, 64, 4, 4),
        _tiles(128, 256, 32, 4, 8),
        _tiles(128, 64, 64, 4, 4),
    ),
    key=["rows", "columns", "depth", "a_row", "b_depth"],
)
@triton.heuristics({"IS_WHOLE": _is_whole})
@triton.jit
def _matmul(
    a, b, bias, result,
    rows, columns, depth,
    a_batch, a_row, a_depth,
    b_batch, b_depth, b_column,
    result_batch, result_row,
    TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr, TILE_DEPTH: tl.constexpr, GROUP: tl.constexpr,
    ITEM_BYTES: tl.constexpr, SUM: tl.constexpr, HAS_GELU: tl.constexpr, IS_WHOLE: tl.constexpr,
):  # fmt: skip
    """One tile of one matmul of a batch. Consecutive program instances take GROUP tiles of a column, then continue with
    the next one, so that both operands stay in the second-level cache."""
    step: tl.constexpr = TILE_DEPTH * 2 // ITEM_BYTES
    number, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row_tiles, column_tiles = tl.cdiv(rows, TILE_ROWS), tl.cdiv(columns, TILE_COLUMNS)
    band = number // (GROUP * column_tiles)
    height = min(row_tiles - band * GROUP, GROUP)
    place = number % (GROUP * column_tiles)
    row = (band * GROUP + place % height) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    column = (place // height) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    k = tl.arange(0, step)
    a_at = a + batch * a_batch + row[:, None].to(tl.int64) * a_row + k[None, :] * a_depth
    b_at = b + batch * b_batch + k[:, None] * b_depth + column[None, :].to(tl.int64) * b_column
    total = tl.zeros((TILE_ROWS, TILE_COLUMNS), SUM)
    for done in range(0, depth, step):
        if IS_WHOLE:
            left, right = tl.load(a_at), tl.load(b_at)
        else:
            left = tl.load(a_at, mask=(row < rows)[:, None] & (k < depth - done)[None, :], other=0.0)
            right = tl.load(b_at, mask=(k < depth - done)[:, None] & (column < columns)[None, :], other=0.0)
        total = tl.dot(left, right, total, out_dtype=SUM, input_precision="tf32")
        a_at += step * a_depth
        b_at += step * b_depth
    if HAS_GELU:
        total += tl.load(bias + column, mask=column < columns, other=0.0)[None, :].to(SUM)
        total = 0.5 * total * (1.0 + _tanh((total + 0.044715 * total * total * total) * _SQRT_2_OVER_PI))
    place_of = result + batch * result_batch + row[:, None].to(tl.int64) * result_row + column[None, :]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(place_of, total.to(result.dtype.element_ty), mask=inside)


def matmul(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """`a @ b` of shapes (..., M, K) and (..., K, N) with at most one leading axis and any strides, as `dtype`, by
    default that of the operands. Integers of 8 bits are summed in i32, floats in f32; f32 is rounded to tf32."""
    return _product(a, b, None, dtype or a.dtype)


def matmul_gelu(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """GELU of `a @ b + bias` by a hyperbolic tangent, of shapes (M, K), (K, N) and (N,), in one kernel."""
    return _product(a, b, bias, a.dtype)


def _product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    rows, depth, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    batches = a.shape[0] if a.ndim == 3 else 1
    result = torch.empty((*a.shape[:-1], columns), device=a.device, dtype=dtype)
    strides = [array.stride(0) if array.ndim == 3 else 0 for array in (a, b, result)]

    def grid(chosen: dict[str, int]) -> tuple[int, int]:
        tiles = triton.cdiv(rows, chosen["TILE_ROWS"]) * triton.cdiv(columns, chosen["TILE_COLUMNS"])
        return tiles, batches

    _matmul[grid](
        a, b, bias, result,
        rows, columns, depth,
        strides[0], a.stride(-2), a.stride(-1),
        strides[1], b.stride(-2), b.stride(-1),
        strides[2], result.stride(-2),
        ITEM_BYTES=a.element_size(), SUM=tl.int32 if dtype == torch.int32 else tl.float32, HAS_GELU=bias is not None,
    )  # fmt: skip
    return result


# ---- attention -------------------------------------------------------------------------------------------------------


def _blocks(queries: int, keys: int, stages: int, warps: int) -> triton.Config:
    return triton.Config({"QUERIES": queries, "KEYS": keys}, num_stages=stages, num_warps=warps)


@triton.jit
def _attend(
    q, k_at, v_at, total, top, weight, row, begin, end, length, scale,
    SIZE: tl.constexpr, KEYS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The keys from `begin` to `end`: a new sum of values, the greatest score of each query, and its sum of weights,
    which are two to the power of scores times `scale`. KIND 0: all keys take part; 1: those up to the query's own; 2:
    those there are."""
    for first in range(begin, end, KEYS):
        key = first + tl.arange(0, KEYS)
        place = key.to(tl.int64) * SIZE
        if KIND == 0:
            k = tl.load(k_at + place[None, :])
        else:
            k = tl.load(k_at + place[None, :], mask=(key < length)[None, :], other=0.0)
        logits = tl.dot(q, k)
        if KIND == 1:
            logits = tl.where((key[None, :] <= row[:, None]) & (key < length)[None, :], logits, float("-inf"))
        if KIND == 2:
            logits = tl.where((key < length)[None, :], logits, float("-inf"))
        new_top = tl.maximum(top, tl.max(logits, 1))
        parts = tl.math.exp2(logits * scale - (new_top * scale)[:, None])
        shrink = tl.math.exp2((top - new_top) * scale)
        weight = weight * shrink + tl.sum(parts, 1)
        if KIND == 0:
            v = tl.load(v_at + place[:, None])
        else:
            v = tl.load(v_at + place[:, None], mask=(key < length)[:, None], other=0.0)
        total = tl.dot(parts.to(v.dtype), v, total * shrink[:, None])
        top = new_top
    return total, top, weight


@triton.autotune(
    configs=_search(
        _blocks(64, 32, 3, 4),
        _blocks(128, 64, 3, 4),
        _blocks(128, 64, 3, 8),
        _blocks(128, 128, 2, 8),
        _blocks(128, 128, 3, 8),
        _blocks(64, 64, 4, 4),
    ),
    key=["length", "SIZE", "IS_CAUSAL"],
)
@triton.jit
def _attention(
    q, k, v, result, scale, length, heads, group,
    SIZE: tl.constexpr, IS_CAUSAL: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Some queries of one head; arrays are (batch, heads, length, SIZE), keys and values have `heads / group` heads."""
    # Causal blocks differ in work: the longest come first, so that the last to end are short.
    block = tl.num_programs(0) - 1 - tl.program_id(0) if IS_CAUSAL else tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    shared = (head // heads) * (heads // group) + (head % heads) // group
    row, size = block * QUERIES + tl.arange(0, QUERIES), tl.arange(0, SIZE)
    q_at = head * length * SIZE + row[:, None].to(tl.int64) * SIZE + size[None, :]
    inside = (row < length)[:, None]
    queries = tl.load(q + q_at, mask=inside, other=0.0)
    k_at, v_at = k + shared * length * SIZE + size[:, None], v + shared * length * SIZE + size[None, :]
    total = tl.zeros((QUERIES, SIZE), tl.float32)
    top = tl.full((QUERIES,), float("-inf"), tl.float32)
    weight = tl.zeros((QUERIES,), tl.float32)
    whole = (block * QUERIES if IS_CAUSAL else length) // KEYS * KEYS
    end = tl.minimum((block + 1) * QUERIES, length) if IS_CAUSAL else length
    rest: tl.constexpr = 1 if IS_CAUSAL else 2
    # Powers of two take less time than those of e.
    scale *= _LOG2_E
    total, top, weight = _attend(
        queries, k_at, v_at, total, top, weight, row, 0, whole, length, scale, SIZE, KEYS, 0
    )  # fmt: skip
    total, top, weight = _attend(
        queries, k_at, v_at, total, top, weight, row, whole, end, length, scale, SIZE, KEYS, rest
    )  # fmt: skip
    tl.store(result + q_at, (total / weight[:, None]).to(result.dtype.element_ty), mask=inside)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """`softmax(q @ k.mT / sqrt(size)) @ v` of shapes (batch, heads, length, size), of 16-bit floats; `q` may have a
    multiple of the heads of `k` and `v`. The size is a power of two."""
    batch, heads, length, size = q.shape
    result = torch.empty_like(q)
    _attention[lambda chosen: (triton.cdiv(length, chosen["QUERIES"]), batch * heads)](
        q, k, v, result, size**-0.5, length, heads, heads // k.shape[1], SIZE=size, IS_CAUSAL=causal
    )
    return result


# ---- rows that one program holds -------------------------------------------------------------------------------------


def _by_warps(*counts: int) -> list[triton.Config]:
    return _search(*(triton.Config({}, num_warps=count) for count in counts))


@triton.autotune(configs=_by_warps(8, 4, 16, 32), key=["columns"])
@triton.jit
def _softmax(x, result, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    row = tl.load(x + at, mask=inside, other=float("-inf")).to(tl.float32)
    powers = tl.exp(row - tl.max(row, 0))
    tl.store(result + at, (powers / tl.sum(powers, 0)).to(result.dtype.element_ty), mask=inside)


@triton.autotune(configs=_by_warps(8, 4, 16, 32), key=["columns"])
@triton.jit
def _norm(x, weight, bias, result, columns, epsilon, IS_CENTRED: tl.constexpr, BLOCK: tl.constexpr):
    """Layer norm, or where it is not centred, RMS norm, which has no bias."""
    column = tl.arange(0, BLOCK)
    at, inside = tl.program_id(0).to(tl.int64) * columns + column, column < columns
    row = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if IS_CENTRED:
        row = tl.where(inside, row - tl.sum(row, 0) / columns, 0.0)
    row *= tl.rsqrt(tl.sum(row * row, 0) / columns + epsilon)
    row *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if IS_CENTRED:
        row += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(result + at, row.to(result.dtype.element_ty), mask=inside)


@triton.autotune(configs=_by_warps(8, 4, 16), key=["columns"])
@triton.jit
def _row_sum(x, result, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    total = tl.sum(tl.load(x + at, mask=tl.arange(0, BLOCK) < columns, other=0.0).to(tl.float32), 0)
    tl.store(result + tl.program_id(0), total.to(result.dtype.element_ty))


@triton.autotune(configs=_by_warps(8, 4, 16), key=["columns"])
@triton.jit
def _cumulative_sum(x, result, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    row = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(result + at, tl.cumsum(row, 0).to(result.dtype.element_ty), mask=inside)


@triton.autotune(configs=_by_warps(4, 8), key=["columns"])
@triton.jit
def _gather(table, rows, result, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    source = tl.load(rows + tl.program_id(0)).to(tl.int64) * columns + column
    target = tl.program_id(0).to(tl.int64) * columns + column
    tl.store(result + target, tl.load(table + source, mask=column < columns), mask=column < columns)


def _block(columns: int) -> int:
    return triton.next_power_of_2(columns)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Of the rows of a matrix, in f32."""
    result = torch.empty_like(x)
    _softmax[(x.shape[0],)](x, result, x.shape[1], BLOCK=_block(x.shape[1]))
    return result


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Of the rows of a matrix, in f32; `weight` and `bias` are as long as a row."""
    result = torch.empty_like(x)
    _norm[(x.shape[0],)](x, weight, bias, result, x.shape[1], EPSILON, IS_CENTRED=True, BLOCK=_block(x.shape[1]))
    return result


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Of the rows of a matrix, in f32; `weight` is as long as a row."""
    result = torch.empty_like(x)
    _norm[(x.shape[0],)](x, weight, None, result, x.shape[1], EPSILON, IS_CENTRED=False, BLOCK=_block(x.shape[1]))
    return result


def row_sum(x: torch.Tensor) -> torch.Tensor:
    """(rows, columns) to (rows,), in f32."""
    result = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
    _row_sum[(x.shape[0],)](x, result, x.shape[1], BLOCK=_block(x.shape[1]))
    return result


def cumulative_sum(x: torch.Tensor) -> torch.Tensor:
    """Along the rows of a matrix, in f32."""
    result = torch.empty_like(x)
    _cumulative_sum[(x.shape[0],)](x, result, x.shape[1], BLOCK=_block(x.shape[1]))
    return result


def gather(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """`table[rows]` of a matrix and numbers of its rows."""
    result = torch.empty((rows.shape[0], table.shape[1]), device=table.device, dtype=table.dtype)
    _gather[(rows.shape[0],)](table, rows, result, table.shape[1], BLOCK=_block(table.shape[1]))
    return result


# ---- columns, tiles, and elements by themselves ----------------------------------------------------------------------


def _parts(rows: int, columns: int, warps: int) -> triton.Config:
    return triton.Config({"ROWS": rows, "COLUMNS": columns}, num_warps=warps)


@triton.autotune(
    configs=_search(_parts(32, 128, 4), _parts(64, 128, 8), _parts(16, 256, 4), _parts(64, 64, 4)),
    key=["rows", "columns"],
)
@triton.jit
def _column_sums(x, partial, rows, columns, SLICES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Some columns over every SLICES-th block of rows."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(tl.program_id(1) * ROWS, rows, SLICES * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        at = row[:, None].to(tl.int64) * columns + column[None, :]
        total += tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(partial + tl.program_id(1) * columns + column, tl.sum(total, 0), mask=column < columns)


def column_sum(x: torch.Tensor) -> torch.Tensor:
    """(rows, columns) to (columns,), in f32: parts of the columns, which torch adds."""
    rows, columns = x.shape
    slices = max(1, min(64, rows // 64))
    partial = torch.empty((slices, columns), device=x.device, dtype=torch.float32)
    _column_sums[lambda chosen: (triton.cdiv(columns, chosen["COLUMNS"]), slices)](
        x, partial, rows, columns, SLICES=slices
    )
    return partial.sum(0).to(x.dtype)


@triton.autotune(
    configs=_search(_parts(64, 64, 4), _parts(64, 64, 8), _parts(128, 64, 8), _parts(64, 128, 8)),
    key=["rows", "columns"],
)
@triton.jit
def _transpose(x, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(x + row[:, None].to(tl.int64) * columns + column[None, :], mask=inside)
    at = column[:, None].to(tl.int64) * rows + row[None, :]
    tl.store(result + at, tl.trans(tile), mask=tl.trans(inside))


def transpose(x: torch.Tensor) -> torch.Tensor:
    """A matrix with rows for columns."""
    rows, columns = x.shape
    result = torch.empty((columns, rows), device=x.device, dtype=x.dtype)
    _transpose[lambda chosen: (triton.cdiv(rows, chosen["ROWS"]), triton.cdiv(columns, chosen["COLUMNS"]))](
        x, result, rows, columns
    )
    return result


@triton.jit
def _gelu_of(x):
    return 0.5 * x * (1.0 + tl.math.erf(x * _SQRT_HALF))


@triton.jit
def _tanh(x):
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


def _by_size(*sizes: tuple[int, int]) -> list[triton.Config]:
    return _search(*(triton.Config({"BLOCK": size}, num_warps=warps) for size, warps in sizes))


@triton.autotune(configs=_by_size((1024, 4), (2048, 4), (2048, 8), (4096, 8)), key=["size"])
@triton.jit
def _gelu(x, result, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    wide = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(result + at, _gelu_of(wide).to(result.dtype.element_ty), mask=at < size)


@triton.autotune(configs=_by_size((1024, 4), (2048, 4), (2048, 8), (4096, 8)), key=["size"])
@triton.jit
def _chain(x, y, result, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32)
    right = tl.load(y + at, mask=at < size, other=0.0).to(tl.float32)
    found = tl.maximum(_tanh(left * right + 0.5) * left - right * 0.25, -1.0) + left
    tl.store(result + at, found.to(result.dtype.element_ty), mask=at < size)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """By the error function, in f32."""
    result, size = torch.empty_like(x), math.prod(x.shape)
    _gelu[lambda chosen: (triton.cdiv(size, chosen["BLOCK"]),)](x, result, size)
    return result


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`max(tanh(x y + 1/2) x - y / 4, -1) + x`, in f32."""
    result, size = torch.empty_like(x), math.prod(x.shape)
    _chain[lambda chosen: (triton.cdiv(size, chosen["BLOCK"]),)](x, y, result, size)
    return result
