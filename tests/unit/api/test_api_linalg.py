"""Products against NumPy in f64, and that nothing is repeated in memory on the way to `contract`."""

from __future__ import annotations

import numpy as np
import pytest
from api_support import FLOAT_DTYPES, numbers, run, same
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright import dtypes
from tilewright.errors import ArgumentError, DTypeError, ShapeError


def near(actual: np.ndarray, expected: np.ndarray, magnitude: np.ndarray, dtype: str) -> None:
    """Within a few units in the last place of the sum of magnitudes of the products."""
    assert (actual.shape, actual.dtype) == (expected.shape, dtypes.by_name(dtype).numpy)
    bound = 8 * dtypes.by_name(dtype).epsilon * np.maximum(magnitude, 1e-30)
    assert (np.abs(actual.astype(np.float64) - expected) <= bound).all()


def wide(*arrays: np.ndarray) -> list[np.ndarray]:
    return [a.astype(np.float64) for a in arrays]


def operations(function, *arguments) -> list[str]:
    """Names of the primitives of the traced program."""
    return [node.op for node in tw.jit(function, target="interp").lower(*arguments).graph.nodes]


SHAPE_PAIRS = [
    ((4,), (4,)),
    ((4,), (4, 3)),
    ((2, 4), (4,)),
    ((2, 4), (4, 3)),
    ((5, 2, 4), (5, 4, 3)),
    ((5, 2, 4), (4, 3)),
    ((2, 4), (5, 4, 3)),
    ((5, 2, 4), (4,)),
    ((4,), (5, 4, 3)),
    ((6, 5, 2, 4), (5, 4, 3)),
    ((6, 1, 2, 4), (5, 4, 3)),
    ((6, 1, 2, 4), (1, 5, 4, 3)),
    ((1, 2, 4), (5, 4, 3)),
    ((0, 4), (4, 3)),
    ((2, 0), (0, 3)),
    ((0, 2, 4), (0, 4, 3)),
    ((1, 1), (1, 1)),
]


@pytest.mark.parametrize(("left", "right"), SHAPE_PAIRS, ids=str)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_matmul(left, right, dtype):
    a, b = numbers(left, dtype, 1), numbers(right, dtype, 2)
    expected, magnitude = np.asarray(np.matmul(*wide(a, b))), np.asarray(np.matmul(*map(np.abs, wide(a, b))))
    near(run(tw.matmul, a, b), expected, magnitude, dtype)
    near(run(lambda x, y: x @ y, a, b), expected, magnitude, dtype)


@pytest.mark.parametrize(("left", "right"), SHAPE_PAIRS, ids=str)
def test_matmul_repeats_nothing(left, right):
    used = operations(lambda x, y: x @ y, np.zeros(left), np.zeros(right))
    assert "broadcast" not in used
    assert used.count("contract") == 1


def test_plain_products_are_one_operation():
    assert operations(lambda x, y: x @ y, np.zeros((5, 2, 4)), np.zeros((5, 4, 3))) == ["contract"]
    assert operations(lambda x, y: x @ y, np.zeros((5, 2, 4)), np.zeros((4, 3))) == ["contract"]
    assert operations(lambda x, y: tw.einsum("ij,jk->ki", x, y), np.zeros((2, 4)), np.zeros((4, 3))) == ["contract"]


@pytest.mark.parametrize("dtype", ["i8", "i32", "u16", "i64"])
def test_matmul_of_integers(dtype):
    a, b = numbers((3, 4), dtype, 1), numbers((4, 2), dtype, 2)
    same(run(tw.matmul, a, b), a @ b)


def test_matmul_with_a_wider_result():
    a, b = numbers((3, 64), "bf16", 1), numbers((64, 2), "bf16", 2)
    expected, magnitude = np.matmul(*wide(a, b)), np.matmul(*map(np.abs, wide(a, b)))
    near(run(lambda x, y: tw.matmul(x, y, dtype=tw.f32), a, b), expected, magnitude, "f32")


def test_half_precision_accumulates_in_f32():
    a, b = np.ones((1, 4096), np.float16), np.ones((4096, 1), np.float16)
    same(run(tw.matmul, a, b), np.full((1, 1), 4096, np.float16))


def test_matmul_with_numpy_on_the_left():
    a, b = numbers((3, 4), "f64", 1), numbers((4, 2), "f64", 2)
    np.testing.assert_allclose(run(lambda y: a @ y, b), a @ b)


def test_matmul_refuses():
    a = np.zeros((2, 3))
    for call, error in [
        (lambda x: x @ x, ShapeError),
        (lambda x: x @ 2.0, ShapeError),
        (lambda x: tw.matmul(x > 0, x.mT > 0), DTypeError),
        (lambda x: tw.matmul(x[None] * np.ones((4, 1, 1)), np.ones((5, 3, 2))), ShapeError),
        (lambda x: tw.tensordot(x, x, axes=1), ShapeError),
        (lambda x: tw.tensordot(x, x, axes=3), ArgumentError),
        (lambda x: tw.tensordot(x, x, axes=((0,), (0, 1))), ArgumentError),
        (lambda x: tw.vecdot(x, x[:, :2]), ShapeError),
        (lambda x: tw.outer(x, x), ShapeError),
        (lambda x: tw.diagonal(x[0]), ShapeError),
    ]:
        with pytest.raises(error):
            run(call, a)


@pytest.mark.parametrize("axes", [0, 1, 2, ((0, 2), (1, 0)), ((2,), (0,)), ((-1, 0), (0, 1))], ids=str)
def test_tensordot(axes):
    b_shape = {0: (2,), 1: (4, 2), 2: (3, 4, 2)}.get(axes, (4, 2, 5)) if isinstance(axes, int) else (4, 2, 5)
    a, b = numbers((2, 3, 4), "f64", 1), numbers(b_shape, "f64", 2)
    np.testing.assert_allclose(run(lambda x, y: tw.tensordot(x, y, axes=axes), a, b), np.tensordot(a, b, axes))


@pytest.mark.parametrize(("left", "right", "axis"), [((4,), (4,), -1), ((3, 4), (4,), -1), ((2, 1, 4), (3, 4), -1)])
def test_vecdot(left, right, axis):
    a, b = numbers(left, "f64", 1), numbers(right, "f64", 2)
    np.testing.assert_allclose(run(lambda x, y: tw.vecdot(x, y, axis=axis), a, b), np.vecdot(a, b, axis=axis))


def test_vecdot_along_a_middle_axis_and_outer():
    a, b = numbers((2, 4, 3), "f64", 1), numbers((2, 4, 3), "f64", 2)
    np.testing.assert_allclose(run(lambda x, y: tw.vecdot(x, y, axis=-2), a, b), (a * b).sum(-2))
    same(run(tw.outer, a[0, 0], b[0, :, 0]), np.outer(a[0, 0], b[0, :, 0]))


# ---- einsum ---------------------------------------------------------------------------------------------------------

SUBSCRIPTS = [
    ("ij->ji", (2, 3)),
    ("ij->", (2, 3)),
    ("ij->i", (2, 3)),
    ("ii->i", (3, 3)),
    ("ii", (3, 3)),
    ("iij->ji", (3, 3, 2)),
    ("iii->i", (3, 3, 3)),
    ("ijij->ij", (2, 3, 2, 3)),
    ("ba", (2, 3)),
    ("...i->...", (2, 3, 4)),
    ("i...->...i", (2, 3, 4)),
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ij,jk->ki", (2, 3), (3, 4)),
    ("ij,kj->ik", (2, 3), (4, 3)),
    ("bij,bjk->bik", (5, 2, 3), (5, 3, 4)),
    ("bij,bjk->ikb", (5, 2, 3), (5, 3, 4)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("bqhd,bkhd->bhqk", (2, 4, 3, 5), (2, 6, 3, 5)),
    ("i,j->ij", (2,), (3,)),
    ("i,i->i", (3,), (3,)),
    ("i,i->", (3,), (3,)),
    (",i->i", (), (3,)),
    (",", (), ()),
    ("ij,ij->", (2, 3), (2, 3)),
    ("ij,k->k", (2, 3), (4,)),
    ("ij,i->j", (2, 3), (2,)),
    ("...ij,...jk->...ik", (5, 2, 3), (3, 4)),
    ("...ij,...jk", (5, 1, 2, 3), (6, 3, 4)),
    ("i...,i...->...", (3, 2), (3, 2)),
    ("ij,jk->ik", (2, 1), (3, 4)),
    ("ij,ij->ij", (2, 1), (2, 3)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("ij,jk,kl", (2, 3), (3, 4), (4, 5)),
    ("a,b,c->abc", (2,), (3,), (4,)),
    ("ab,ac,ad->bcd", (2, 3), (2, 4), (2, 5)),
    ("ij,jk,ki->", (2, 3), (3, 4), (4, 2)),
    ("ii,ij->j", (3, 3), (3, 2)),
    ("ij,jk->ik", (2, 0), (0, 3)),
    ("zA,Ab->zb", (2, 3), (3, 2)),
    (" i j , j k -> i k ", (2, 3), (3, 4)),
]


@pytest.mark.parametrize("case", SUBSCRIPTS, ids=lambda c: "_".join(map(str, c)))
def test_einsum(case):
    subscripts, *shapes = case
    operands = [numbers(s, "f64", n) for n, s in enumerate(shapes)]
    actual = run(lambda *x: tw.einsum(subscripts, *x), *operands)
    expected = np.einsum(subscripts, *operands)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_einsum(data):
    sizes = {"a": 2, "b": 3, "c": 1, "d": 4}
    terms = data.draw(st.lists(st.text("abcd", max_size=4), min_size=1, max_size=3))
    present = sorted(set("".join(terms)))
    result = "".join(data.draw(st.permutations(present)))[: data.draw(st.integers(0, len(present)))]
    operands = [numbers(tuple(sizes[c] for c in term), "f64", n) for n, term in enumerate(terms)]
    subscripts = ",".join(terms) + "->" + result
    actual = run(lambda *x: tw.einsum(subscripts, *x), *operands)
    np.testing.assert_allclose(actual, np.einsum(subscripts, *operands), atol=1e-10)


def test_einsum_of_integers_and_mixed_types():
    a, b = numbers((2, 3), "i32", 1), numbers((3, 4), "i32", 2)
    same(run(lambda x, y: tw.einsum("ij,jk", x, y), a, b), a @ b)
    mixed = run(lambda x, y: tw.einsum("ij,jk", x, y), a, b.astype(np.float64))
    same(mixed, (a @ b).astype(np.float64))


def test_einsum_refuses():
    a = np.zeros((2, 3))
    for subscripts, operands, error in [
        ("ij,jk->ik", (a,), ArgumentError),
        ("ij->ik", (a,), ArgumentError),
        ("ij->ii", (a,), ArgumentError),
        ("i+j", (a,), ArgumentError),
        ("...j->j", (a,), ArgumentError),
        ("ijk", (a,), ShapeError),
        ("i", (a,), ShapeError),
        ("ii", (a,), ShapeError),
        ("ij,ij->ij", (a, a.T), ShapeError),
        ("ij,jk", (a > 0, a.T > 0), DTypeError),
    ]:
        with pytest.raises(error):
            run(lambda *x, s=subscripts: tw.einsum(s, *x), *operands)


@pytest.mark.parametrize("target", ["interp", "cpu"])
@pytest.mark.parametrize("left", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("right", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_8_bits_multiply_in_both_formats(left, right, target):
    """Alike they give their own type, mixed f32; sums are of f32."""
    rng = np.random.default_rng(0)
    kinds = [dtypes.EXTENSIONS[name].numpy for name in (left, right)]
    a, b = (rng.integers(-4, 5, shape).astype(kind) for shape, kind in zip(((19, 70), (70, 33)), kinds, strict=True))
    exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    own, wide = tw.jit(lambda x, y: (x @ y, tw.matmul(x, y, dtype=tw.f32)), target=target)(a, b)
    same(wide, exact)
    same(own, exact.astype(kinds[0]) if left == right else exact)
