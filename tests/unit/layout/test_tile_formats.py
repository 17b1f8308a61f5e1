"""Bytes of device tiles: against ml_dtypes, against a scalar oracle written from the format's definition, and against
the layout of a tile's faces for positions."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import dtypes
from tilewright.dialects.cores import page_grid
from tilewright.errors import UnsupportedOnTargetError
from tilewright.layout.catalogue.device_tiles import FORMATS
from tilewright.layout.catalogue.grid import tile_faces
from tilewright.semantics.cores import tile_formats

NUMPY = {
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "i32": np.int32,
    "u32": np.uint32,
}
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 1e-39, 3.4e38, 1.0, -1.99999, 2.0**-126, 65519.0, 65520.0]


def any_bits(seed: int, *shape: int) -> np.ndarray:
    """Floats of all magnitudes, infinities and NaN among them."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2**32, shape, np.uint64).astype(np.uint32).view(np.float32)
    return np.where(rng.random(shape) < 0.1, rng.choice(np.float32(SPECIAL), shape), values)


def near(seed: int, *shape: int, spread: int = 12) -> np.ndarray:
    """Finite floats whose exponents are near one another in a block of 16."""
    rng = np.random.default_rng(seed)
    centres = rng.integers(-100, 100, (*shape[:-1], shape[-1] // 16, 1))
    exponents = centres + rng.integers(-spread, 1, (*shape[:-1], shape[-1] // 16, 16))
    mantissas = rng.choice([1, -1], exponents.shape) * (1 + rng.integers(0, 2**23, exponents.shape) / 2**23)
    return np.ldexp(mantissas, exponents).astype(np.float32).reshape(shape)


def position(row: int, column: int) -> int:
    """Where the layout of a tile has an element."""
    return tile_faces().coordinates((row, column)).get("mem", 0)


def block_oracle(block: list[int]) -> tuple[int, list[int]]:
    """The exponent and the codes of 16 numbers, from their bits, by exact integers."""
    parts = [(bits >> 31, bits >> 23 & 255, bits & 0x7FFFFF) for bits in block]
    shared = max(exponent for _, exponent, _ in parts)
    codes = []
    for sign, exponent, fraction in parts:
        magnitude = 0
        if exponent:
            kept = (2**23 + fraction) // 2 ** (shared - exponent)  # what 24 bits still see
            magnitude, rest = divmod(kept, 2**17)
            if rest > 2**16 or (rest == 2**16 and magnitude % 2):
                magnitude += 1
            magnitude = min(magnitude, 127)
        codes.append(128 * sign + magnitude if magnitude else 0)
    return shared, codes


def value_oracle(shared: int, code: int) -> float:
    magnitude = code % 128
    if shared == 255 and magnitude >= 64:
        return math.nan if magnitude > 64 else math.copysign(math.inf, -1 if code >= 128 else 1)
    value = math.ldexp(magnitude, shared - 133)
    return math.copysign(value if value >= 2.0**-126 else 0.0, -1 if code >= 128 else 1)


@pytest.mark.parametrize("fmt", FORMATS)
def test_sizes_of_pages(fmt):
    values = np.zeros((2, 3, 32, 32), np.float32)
    assert tile_formats.encode(values, FORMATS[fmt]).shape == (2, 3, FORMATS[fmt].page_bytes)
    assert FORMATS[fmt].page_bytes == {"bf16": 2048, "f16": 2048, "bfp8": 1088}.get(fmt, 4096)


@pytest.mark.parametrize("fmt", NUMPY)
def test_elements_are_where_the_layout_has_them(fmt):
    values = np.arange(1024).reshape(32, 32).astype(NUMPY[fmt])
    page = tile_formats.encode(values.astype(np.float32) if fmt.endswith("16") else values, fmt)
    stored = page.view(NUMPY[fmt])
    for row in range(32):
        for column in range(32):
            assert stored[position(row, column)] == values[row, column]


def test_elements_of_block_floats_are_where_the_layout_has_them():
    for row, column in [(0, 0), (0, 15), (0, 16), (15, 31), (16, 0), (31, 31), (7, 20), (23, 9)]:
        values = np.zeros((32, 32), np.float32)
        values[row, column] = 1.0
        page = tile_formats.encode(values, "bfp8")
        place = position(row, column)
        assert [int(i) for i in np.flatnonzero(page)] == [place // 16, 64 + place]
        assert (page[place // 16], page[64 + place]) == (127, 64)


@pytest.mark.parametrize("fmt", ["bf16", "f16", "f32"])
def test_floats_are_those_of_ml_dtypes(fmt):
    values = any_bits(1, 64, 1024)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(NUMPY[fmt])
    assert np.array_equal(tile_formats.encode_in_faces(values, fmt), expected.view(np.uint8))
    decoded = tile_formats.decode_in_faces(expected.view(np.uint8), fmt)
    assert decoded.dtype == np.float32
    assert np.array_equal(decoded, expected.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("fmt", ["i32", "u32"])
def test_integers_stay_as_they_are(fmt):
    info = np.iinfo(NUMPY[fmt])
    values = np.random.default_rng(2).integers(info.min, info.max, (3, 32, 32), NUMPY[fmt], endpoint=True)
    decoded = tile_formats.decode(tile_formats.encode(values, fmt), fmt)
    assert decoded.dtype == values.dtype
    assert np.array_equal(decoded, values)


@pytest.mark.parametrize("make", [any_bits, near, lambda seed, *shape: near(seed, *shape, spread=1)])
def test_block_floats_against_the_definition(make):
    values = make(3, 4, 1024)
    pages = tile_formats.encode_in_faces(values, "bfp8")
    decoded = tile_formats.decode_in_faces(pages, "bfp8")
    for page, numbers, back in zip(pages, values, decoded, strict=True):
        for block in range(64):
            at = slice(16 * block, 16 * block + 16)
            shared, codes = block_oracle([int(bits) for bits in numbers.view(np.uint32)[at]])
            assert (int(page[block]), [int(code) for code in page[64:][at]]) == (shared, codes)
            expected = np.float32([value_oracle(shared, code) for code in codes])
            assert np.array_equal(back[at], expected, equal_nan=True)
            assert np.array_equal(
                np.signbit(back[at]) & ~np.isnan(expected), np.signbit(expected) & ~np.isnan(expected)
            )


def test_every_pair_of_an_exponent_and_a_code_is_read():
    pages = np.zeros((64, 1088), np.uint8)
    codes, exponents = np.meshgrid(np.arange(256), np.arange(256))
    pages[:, 64:] = codes.reshape(64, 1024)
    pages[:, :64] = exponents.reshape(64, 64, 16)[:, :, 0]
    expected = np.float32([value_oracle(int(e), int(c)) for e, c in zip(exponents.flat, codes.flat, strict=True)])
    assert np.array_equal(tile_formats.decode_in_faces(pages, "bfp8").ravel(), expected, equal_nan=True)


@pytest.mark.parametrize(
    ("block", "shared", "codes"),
    [
        # From tt-metal's own tests of rounding: six bits behind the leading one, ties to even, 127 at most.
        ([1.0 + 2**-7], 127, [64]),
        ([1.0 + 3 * 2**-7], 127, [66]),
        ([1.0 + 2**-7 + 2**-20], 127, [65]),
        ([1.999], 127, [127]),
        ([-(2.0**-7), 1.0], 127, [0, 64]),
        ([-(2.0**-7) * 1.25, 1.0], 127, [129, 64]),
        ([math.inf, 2.0**127, 1.0], 255, [64, 32, 0]),
        ([0.0] * 16, 0, [0] * 16),
    ],
)
def test_blocks_by_hand(block, shared, codes):
    values = np.zeros(1024, np.float32)
    values[: len(block)] = block
    page = tile_formats.encode_in_faces(values, "bfp8")
    assert (page[0], list(page[64 : 64 + len(codes)])) == (shared, codes)


def test_block_floats_are_near_what_they_store():
    values = near(4, 16, 1024)
    decoded = tile_formats.decode_in_faces(tile_formats.encode_in_faces(values, "bfp8"), "bfp8")
    blocks = values.reshape(-1, 16)
    step = np.exp2(np.floor(np.log2(np.abs(blocks).max(-1, keepdims=True))) - 6)
    # Half a step, and a whole one where the magnitude is 127.
    assert np.all(np.abs(decoded.reshape(-1, 16) - blocks) <= step)
    assert np.mean(np.abs(decoded.reshape(-1, 16) - blocks) <= step / 2) > 0.99


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(FORMATS)), st.integers(0, 2**32 - 1))
def test_what_was_stored_once_is_stored_the_same(fmt, seed):
    values = near(seed, 1, 1024) if FORMATS[fmt].dtype[0] in "bf" else any_bits(seed, 1, 1024).view(NUMPY[fmt])
    pages = tile_formats.encode_in_faces(values, fmt)
    again = tile_formats.encode_in_faces(tile_formats.decode_in_faces(pages, fmt), fmt)
    assert np.array_equal(again, pages)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 2, 5, 31, 32, 33, 40, 64]), max_size=4).filter(lambda s: math.prod(s) <= 9000),
    st.sampled_from(["f32", "bf16", "f16", "i32", "u32", "bool"]),
    st.integers(0, 99),
)
def test_arrays_come_back(shape, name, seed):
    dtype = dtypes.by_name(name)
    array = np.random.default_rng(seed).integers(0, 200, shape).astype(dtype.numpy)
    fmt = tile_formats.format_of(dtype)
    pages = tile_formats.store_array(array, fmt)
    back = tile_formats.load_array(pages, shape, dtype, fmt)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert np.array_equal(back, array)


@pytest.mark.parametrize("shape", [(), (3,), (70,), (33, 5), (2, 3, 33, 40)])
def test_pages_are_counted_by_the_dims_before_then_rows_then_columns(shape):
    array = np.arange(1, 1 + math.prod(shape), dtype=np.int32).reshape(shape)
    matrix = array.reshape((*(1,) * (2 - len(shape)), *shape))
    pages = tile_formats.store_array(array, "i32", padding=-7).view(np.int32)
    grid = page_grid(shape)
    assert len(pages) == math.prod(grid)
    for number, (*before, row, column) in enumerate(np.ndindex(*grid)):
        for r, c in [(0, 0), (0, 1), (4, 7), (15, 16), (16, 15), (31, 31)]:
            at = (*before, 32 * row + r, 32 * column + c)
            inside = all(i < size for i, size in zip(at, matrix.shape, strict=True))
            assert pages[number, position(r, c)] == (matrix[at] if inside else -7)


@pytest.mark.parametrize("fmt", ["f32", "bf16", "f16", "bfp8"])
def test_padding_of_floats_shows(fmt):
    page = tile_formats.store_array(np.ones((3, 20), np.float32), fmt)
    values = tile_formats.decode(page, fmt)[0]
    assert np.all(values[:3, :20] == 1)
    assert np.all(np.isnan(values[3:]))
    beside = values[:3, 20:]
    assert np.all(beside == -127 / 64 if fmt == "bfp8" else np.isnan(beside))


def test_padding_of_integers_shows():
    for fmt, poison in (("i32", -(2**31)), ("u32", 2**31)):
        values = tile_formats.decode(tile_formats.store_array(np.ones(5, np.int64), fmt), fmt)[0]
        assert np.all(values[0, :5] == 1)
        assert np.count_nonzero(values == poison) == 1019


def test_types_without_a_format():
    assert tile_formats.format_of(dtypes.bool_).name == "bf16"
    for dtype, instead in ((dtypes.f64, "f32"), (dtypes.i8, "i32"), (dtypes.u16, "u32"), (dtypes.f8e5m2, "f32")):
        with pytest.raises(UnsupportedOnTargetError, match=f"elements of {dtype.name}") as caught:
            tile_formats.format_of(dtype)
        assert instead in str(caught.value.help)


def test_tf32_cuts_off():
    values = any_bits(5, 4096)
    cut = tile_formats.to_tf32(values)
    finite = values[np.isfinite(values)]
    mantissas, exponents = np.frexp(finite.astype(np.float64))
    normal = np.abs(finite) >= 2.0**-126
    expected = np.ldexp(np.trunc(mantissas * 2**11) / 2**11, exponents)
    assert np.array_equal(cut[np.isfinite(values)][normal], expected[normal].astype(np.float32))
    assert np.array_equal(np.isnan(cut), np.isnan(values))
    assert np.array_equal(np.isinf(cut), np.isinf(values))
    assert np.isnan(tile_formats.to_tf32(np.uint32([0x7F800001]).view(np.float32)))[0]
