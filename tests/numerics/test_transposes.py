"""Reads along one dimension and writes along another: blocks are transposed in registers, edges and all."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.fuzz.guarded_memory import guarded_copy
from tests.sampling import alternating, sampled

SHAPES = ((16, 16), (17, 33), (64, 64), (100, 37), (1, 50), (50, 1), (15, 64), (64, 15), (257, 129))
TYPES = ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8")


@tw.jit(target="cpu")
def turned(x):
    return x.T + x.T


@tw.jit(target="cpu")
def difference(x, y):
    return x.T - y


@pytest.mark.parametrize("place", range(len(TYPES)), ids=TYPES.__getitem__)
def test_transposes_with_arithmetic(place: int) -> None:
    """Each type meets every other shape."""
    dtype = TYPES[place]
    for shape in sampled(SHAPES, 2, place % 2):
        x = np.arange(np.prod(shape)).reshape(shape).astype(dtype) % 50
        y = (np.arange(np.prod(shape)).reshape(shape[::-1]) % 7).astype(dtype)
        np.testing.assert_array_equal(turned(x), x.T + x.T)
        np.testing.assert_array_equal(difference(x, y), x.T - y)


def test_transposes_within_a_batch() -> None:
    x = np.arange(3 * 65 * 4 * 20, dtype=np.float32).reshape(3, 65, 4, 20)
    moved = tw.jit(lambda x: tw.permute_dims(x, (0, 2, 3, 1)) * 2, target="cpu")
    np.testing.assert_array_equal(moved(x), x.transpose(0, 2, 3, 1) * 2)


def test_lanes_outside_take_their_fill() -> None:
    """A padded array, transposed."""
    x = np.arange(40 * 30, dtype=np.float32).reshape(40, 30)
    padded = tw.jit(lambda x: tw.pad(x, ((3, 5), (2, 20)), constant_values=7).T * 2, target="cpu")
    np.testing.assert_array_equal(padded(x), np.pad(x, ((3, 5), (2, 20)), constant_values=7).T * 2)


def test_whole_blocks_are_not_gathered() -> None:
    text = tw.jit(lambda x: x.T * 2, target="cpu:x86-64-v4").lower(np.zeros((64, 64), np.float32)).compile().asm()
    assert "vunpcklps" in text
    assert "gather" not in text


# Beyond the second-level cache of the machine files, with rows of whole lines and of other lengths.
LARGE = (((1040, 528), (1, 0)), ((1031, 517), (1, 0)), ((3, 224, 80, 32), (0, 3, 1, 2)), ((64, 96, 208), (2, 1, 0)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int32", "int64"])
@pytest.mark.parametrize(("shape", "order"), LARGE, ids=str)
def test_large_transposes(shape: tuple[int, ...], order: tuple[int, ...], dtype: str) -> None:
    x = np.random.default_rng(5).integers(-100, 100, shape).astype(dtype)
    moved = tw.jit(lambda x: tw.permute_dims(x, order), target="cpu")
    np.testing.assert_array_equal(moved(x), x.transpose(order))


@pytest.mark.parametrize("first", [0, 4, 16], ids=["a line", "a piece of a line", "another line"])
def test_results_in_memory_of_others(first: int) -> None:
    """Which begins with a line or not; what lies around it stays."""
    x = np.random.default_rng(6).normal(size=(1024, 528)).astype(np.float32)
    memory = np.full(x.size + 96, 7, np.float32)
    start = -memory.ctypes.data % 64 // 4 + first
    out = memory[start : start + x.size].reshape(x.shape[::-1])
    compiled = tw.jit(lambda x: x.T, target="cpu").lower(x).compile()
    compiled.executable.program(x, out=out)
    np.testing.assert_array_equal(out, x.T)
    assert (memory[:start] == 7).all()
    assert (memory[start + x.size :] == 7).all()


def test_only_whole_lines_of_large_arrays_go_past_the_caches() -> None:
    def code(shape: tuple[int, int], machine: str = "x86-64-v4") -> str:
        return tw.jit(lambda x: x.T, target=f"cpu:{machine}").lower(np.zeros(shape, np.float32)).compile().asm()

    large = code((1024, 512))
    assert "vmovntps" in large
    assert "sfence" in large
    for other in (code((128, 64)), code((1023, 511)), code((1024, 512), "x86-64-v3")):
        assert "vmovnt" not in other
        assert "sfence" not in other


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint8"])
def test_moves_of_small_elements_are_not_gathered(dtype: str) -> None:
    for shape in ((130, 70), (64, 64), (33, 200)):
        x = np.random.default_rng(8).integers(0, 100, shape).astype(dtype)
        np.testing.assert_array_equal(tw.jit(lambda x: x.T, target="cpu")(x), x.T)
    text = tw.jit(lambda x: x.T, target="cpu:x86-64-v4").lower(np.zeros((64, 64), dtype)).compile().asm()
    assert "vpunpcklbw" in text or "vpunpcklwd" in text
    assert "vpinsr" not in text


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_arithmetic_on_small_elements_is_not_gathered(dtype: str) -> None:
    """Vectors are as long as the blocks that are transposed, not as registers."""
    text = tw.jit(lambda x: x.T * 2, target="cpu:x86-64-v4").lower(np.zeros((128, 128), dtype)).compile().asm()
    assert "vpunpck" in text
    assert "vpinsrb" not in text
    assert "vpinsrw" not in text


SHORT_RUNS = alternating(
    (2, 3, 4, 5, 7, 9, 12, 15, 19, 23, 37),
    ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "bool"),
    ((2, 1, 0), (1, 2, 0), (2, 0, 1)),
    every=3,
)


@pytest.mark.parametrize(("last", "dtype", "order"), SHORT_RUNS, ids=str)
def test_short_runs(last: int, dtype: str, order: tuple[int, ...]) -> None:
    """Runs that are no multiple of a block or of a 16-byte load, which are loaded with elements before them: copies,
    and operands of a comparison."""
    x = np.random.default_rng(9).integers(0, 2 if dtype == "bool" else 100, (37, 41, last)).astype(dtype)
    expected = x.transpose(order)
    np.testing.assert_array_equal(tw.jit(lambda x: tw.permute_dims(x, order), target="cpu")(x), expected)
    same = tw.jit(lambda x, y: tw.permute_dims(x, order) == y, target="cpu")
    assert same(x, np.ascontiguousarray(expected)).all()


@pytest.mark.parametrize("last", [5, 7, 12])
def test_short_runs_are_not_gathered(last: int) -> None:
    turned = tw.jit(lambda x: tw.permute_dims(x, (2, 1, 0)), target="cpu:x86-64-v4")
    text = turned.lower(np.zeros((64, 32, last), np.float32)).compile().asm()
    assert "vunpcklps" in text
    assert "vinsertps" not in text


@pytest.mark.parametrize("at_end", [True, False], ids=["end of a page", "start of a page"])
@pytest.mark.parametrize("shape", [(17, 5), (8, 7), (33, 13), (5, 4)])
def test_short_runs_are_read_inside_of_their_array(shape: tuple[int, int], at_end: bool) -> None:
    """Also where lanes are outside, and read another element instead."""
    x = np.random.default_rng(10).random(shape).astype(np.float32)
    padded = tw.jit(lambda x: tw.pad(x, ((3, 5), (0, 0))).T * 2, target="cpu")
    joined = tw.jit(lambda x: tw.concat([x.T, 2 * x.T], axis=1), target="cpu")
    placed = guarded_copy(x, at_end)
    np.testing.assert_array_equal(padded(placed), np.pad(x, ((3, 5), (0, 0))).T * 2)
    np.testing.assert_array_equal(joined(placed), np.concatenate([x.T, 2 * x.T], axis=1))
