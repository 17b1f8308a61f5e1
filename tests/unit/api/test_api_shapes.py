"""Creation and manipulation against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from api_support import SHAPES, close, numbers, run, same

import tilewright as tw
from tilewright import dtypes
from tilewright.errors import (
    ArgumentError,
    DataDependentShapeError,
    DTypeError,
    IndexError_,
    ResourceExhausted,
    ShapeError,
)

ALL_DTYPES = [d.name for d in dtypes.ALL]
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


# ---- creation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("shape", [(), 3, (2, 0), (2, 3)], ids=str)
def test_constant_arrays(shape, dtype):
    kind = dtypes.by_name(dtype)
    same(run(lambda: tw.zeros(shape, dtype=kind)), np.zeros(shape, kind.numpy))
    same(run(lambda: tw.ones(shape, dtype=dtype)), np.ones(shape, kind.numpy))
    same(run(lambda: tw.full(shape, 1, dtype=kind.numpy)), np.ones(shape, kind.numpy))
    like = np.zeros(shape, kind.numpy)
    same(run(lambda x: tw.ones_like(x), like), np.ones_like(like))
    same(run(lambda x: tw.zeros_like(x, dtype=tw.i32), like), np.zeros_like(like, np.int32))


def test_default_types():
    results = run(lambda: (tw.zeros(2), tw.ones(2), tw.empty(2), tw.full(2, 1), tw.full(2, 1.0), tw.full(2, True)))
    assert [str(r.dtype) for r in results] == ["float32", "float32", "float32", "int64", "float32", "bool"]


def test_the_length_is_the_size_of_the_first_axis():
    same(run(lambda x: tw.full(2, len(x)), np.zeros((5, 3), np.float32)), np.full(2, 5))


def test_full_of_a_traced_number():
    same(run(lambda x: tw.full((2, 3), x), np.float64(2.5)), np.full((2, 3), 2.5))
    same(run(lambda x: tw.full_like(np.zeros((2,), np.float32), x), 3), np.full((2,), 3, np.float32))


@pytest.mark.parametrize(
    "bounds", [(5,), (0,), (-3,), (2, 7), (7, 2), (7, 2, -1), (0, 10, 3), (0, 10, 4), (1, 1, 5), (-2, 3, 2)], ids=str
)
@pytest.mark.parametrize("dtype", [None, "i8", "i32", "u64", "f32", "f64", "bf16"])
def test_arange_of_integers(bounds, dtype):
    kind = dtypes.by_name(dtype or "i64").numpy
    same(run(lambda: tw.arange(*bounds, dtype=dtype)), np.arange(*bounds).astype(kind))


@pytest.mark.parametrize("bounds", [(0.0, 1.0, 0.1), (1.5,), (2.0, -1.0, -0.25), (0.0, 1.0, 0.3)], ids=str)
def test_arange_of_floats(bounds):
    close(run(lambda: tw.arange(*bounds)), np.arange(*bounds), "f32", 8)
    close(run(lambda: tw.arange(*bounds, dtype=tw.f64)), np.arange(*bounds), "f64", 8)


@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize(
    ("start", "stop", "count"), [(0, 1, 11), (-2.5, 4, 7), (3, 3, 4), (5, 1, 5), (0, 1, 1), (0, 1, 0)]
)
def test_linspace(start, stop, count, endpoint):
    expected = np.linspace(start, stop, count, endpoint=endpoint)
    close(run(lambda: tw.linspace(start, stop, count, endpoint=endpoint, dtype=tw.f64)), expected, "f64", 16)
    close(run(lambda: tw.linspace(start, stop, count, endpoint=endpoint)), expected, "f32", 16)
    if endpoint and count > 1:
        assert run(lambda: tw.linspace(start, stop, count))[-1] == np.float32(stop)


@pytest.mark.parametrize(("rows", "columns", "k"), [(3, None, 0), (2, 4, 1), (4, 2, -1), (0, 3, 0), (2, 2, 5)])
def test_eye(rows, columns, k):
    same(run(lambda: tw.eye(rows, columns, k=k)), np.eye(rows, columns, k, np.float32))
    same(run(lambda: tw.eye(rows, columns, k=k, dtype=tw.bool)), np.eye(rows, columns, k, bool))


@pytest.mark.parametrize("k", [-3, -1, 0, 2])
@pytest.mark.parametrize("dtype", ["f32", "i8", "bool"])
def test_triangles(k, dtype):
    x = numbers((2, 3, 4), dtype)
    same(run(lambda a: tw.tril(a, k=k), x), np.tril(x, k))
    same(run(lambda a: tw.triu(a, k=k), x), np.triu(x, k))


@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_meshgrid(indexing, count):
    vectors = [np.arange(n + 2) for n in range(count)]
    actual = run(lambda *v: tw.meshgrid(*v, indexing=indexing), *vectors)
    expected = np.meshgrid(*vectors, indexing=indexing)
    assert len(actual) == count
    for a, b in zip(actual, expected, strict=True):
        same(a, b)


def test_asarray():
    same(run(lambda: tw.asarray([[1, 2], [3, 4]])), np.array([[1, 2], [3, 4]]))
    same(run(lambda: tw.asarray([1.5, 2])), np.array([1.5, 2], np.float32))
    same(run(lambda: tw.asarray([True, False])), np.array([True, False]))
    same(run(lambda: tw.asarray(3, dtype=tw.f16)), np.asarray(3, np.float16))
    same(run(lambda x: tw.asarray([[x, 1.0], [2.0, x]]), np.float32(7)), np.array([[7, 1], [2, 7]], np.float32))
    same(run(lambda: tw.asarray(np.float64(2))), np.asarray(2.0))
    same(run(lambda: tw.from_dlpack(X)), X)


def test_captured_arrays_do_not_change_later():
    captured = np.arange(3.0)
    function = tw.jit(lambda x: x + captured, target="interp")
    x = np.zeros(3)
    function(x)
    captured[:] = 9
    same(function(x), np.arange(3.0))


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis):
    classes = np.array([[0, 2, 1], [3, -1, 7]])
    expected = np.moveaxis((classes[..., None] == np.arange(4)).astype(np.float32), -1, axis)
    same(run(lambda x: tw.one_hot(x, 4, axis=axis), classes), expected)


def test_creation_refuses():
    for call, error in [
        (lambda: tw.zeros(-1), ShapeError),
        (lambda: tw.zeros(2, dtype="complex256"), DTypeError),
        (lambda: tw.zeros(2.5), ArgumentError),
        (lambda: tw.zeros(2, device="cpu"), ArgumentError),
        (lambda: tw.full(2, 300, dtype=tw.u8), DTypeError),
        (lambda: tw.full(2, 1.5, dtype=tw.i8), DTypeError),
        (lambda: tw.arange(0, 5, 0), ArgumentError),
        (lambda: tw.arange(float("inf")), ArgumentError),
        (lambda: tw.linspace(0, 1, -1), ArgumentError),
        (lambda: tw.asarray([[1, 2], [3]]), ShapeError),
        (lambda: tw.asarray("1j"), ArgumentError),
        (lambda: tw.tril(np.zeros(3)), ShapeError),
        (lambda: tw.meshgrid(np.zeros((2, 2))), ShapeError),
        (lambda: tw.meshgrid(indexing="yx"), ArgumentError),
    ]:
        with pytest.raises(error):
            run(call)


# ---- types ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ALL_DTYPES)
@pytest.mark.parametrize("destination", ALL_DTYPES)
def test_astype_of_small_numbers(source, destination):
    x = numbers((5,), source, low=0, high=3)
    kind = dtypes.by_name(destination)
    expected = x.astype(np.float64)
    expected = expected != 0 if kind.is_bool else (np.trunc(expected) if kind.is_integer else expected)
    same(run(lambda a: a.astype(kind), x), expected.astype(kind.numpy))


def test_bitcast():
    x = np.array([1.0, -2.5, np.inf], np.float32)
    same(run(lambda a: tw.bitcast(a, tw.u32), x), x.view(np.uint32))
    with pytest.raises(DTypeError):
        run(lambda a: tw.bitcast(a, tw.u16), x)


def test_questions_about_types():
    assert tw.result_type(tw.i8, tw.u8) == tw.i16
    assert tw.result_type(tw.f16, 1.5) == tw.f16
    assert tw.result_type(tw.i8, 1.5) == tw.f32
    assert tw.can_cast(tw.i8, tw.i16)
    assert tw.can_cast(tw.u8, tw.i16)
    assert not tw.can_cast(tw.i16, tw.i8)
    assert not tw.can_cast(tw.i8, tw.u16)
    assert not tw.can_cast(tw.f32, tw.i64)
    assert tw.isdtype(tw.i8, "signed integer")
    assert tw.isdtype(tw.f16, ("integral", tw.f16))
    assert not tw.isdtype(tw.f16, "integral")
    with pytest.raises(ArgumentError):
        tw.isdtype(tw.f16, "floating")
    with pytest.raises(ArgumentError):
        tw.result_type(1, 2)


@pytest.mark.parametrize("dtype", [d.name for d in dtypes.FLOATS])
def test_finfo_against_ml_dtypes(dtype):
    import ml_dtypes

    ours, theirs = tw.finfo(dtypes.by_name(dtype)), ml_dtypes.finfo(dtypes.by_name(dtype).numpy)
    assert (ours.bits, ours.eps, ours.max, ours.min, ours.smallest_normal) == tuple(
        float(getattr(theirs, name)) for name in ("bits", "eps", "max", "min", "smallest_normal")
    )
    with pytest.raises(DTypeError):
        tw.finfo(tw.i8)


@pytest.mark.parametrize("dtype", [d.name for d in dtypes.INTEGERS])
def test_iinfo_against_numpy(dtype):
    ours, theirs = tw.iinfo(dtypes.by_name(dtype)), np.iinfo(dtypes.by_name(dtype).numpy)
    assert (ours.bits, ours.max, ours.min) == (theirs.bits, theirs.max, theirs.min)
    with pytest.raises(DTypeError):
        tw.iinfo(tw.f32)


# ---- manipulation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(24,), (4, 6), (2, -1), (-1,), (1, 24, 1), [3, 8]], ids=str)
def test_reshape(shape):
    same(run(lambda x: tw.reshape(x, shape), X), X.reshape(shape))
    same(run(lambda x: x.reshape(*shape), X), X.reshape(shape))
    same(run(lambda x: x.reshape(shape), X), X.reshape(shape))


def test_reshape_of_no_elements():
    same(run(lambda x: tw.reshape(x, (3, 0, 5)), np.zeros((2, 0))), np.zeros((3, 0, 5)))
    with pytest.raises(ShapeError):
        run(lambda x: tw.reshape(x, (0, -1)), np.zeros((2, 0)))


METHODS = [
    ("T", lambda x: x.T, lambda x: x.T),
    ("mT", lambda x: x.mT, lambda x: x.swapaxes(-1, -2)),
    ("transpose", lambda x: x.transpose(1, 0, 2), lambda x: x.transpose(1, 0, 2)),
    ("transpose_tuple", lambda x: x.transpose((2, 0, -2)), lambda x: x.transpose(2, 0, 1)),
    ("swapaxes", lambda x: x.swapaxes(0, -1), lambda x: x.swapaxes(0, -1)),
    ("flatten", lambda x: x.flatten(), lambda x: x.flatten()),
    ("ravel", lambda x: x.ravel(), lambda x: x.ravel()),
    ("squeeze", lambda x: x[:1, :, :1].squeeze(), lambda x: x[:1, :, :1].squeeze()),
    ("squeeze_axis", lambda x: tw.squeeze(x[:1, :, :1], 0), lambda x: x[:1, :, :1].squeeze(0)),
    ("take", lambda x: x.take(np.array([1, 0]), 1), lambda x: x.take([1, 0], 1)),
    ("repeat_method", lambda x: x.repeat(2, 1), lambda x: x.repeat(2, 1)),
    ("expand", lambda x: tw.expand_dims(x, 1), lambda x: np.expand_dims(x, 1)),
    ("expand_two", lambda x: tw.expand_dims(x, (0, -1)), lambda x: np.expand_dims(x, (0, -1))),
    ("permute", lambda x: tw.permute_dims(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    ("moveaxis", lambda x: tw.moveaxis(x, 0, -1), lambda x: np.moveaxis(x, 0, -1)),
    ("moveaxis_two", lambda x: tw.moveaxis(x, (0, 2), (2, 1)), lambda x: np.moveaxis(x, (0, 2), (2, 1))),
    ("flip", lambda x: tw.flip(x), lambda x: np.flip(x)),
    ("flip_axes", lambda x: tw.flip(x, axis=(0, -1)), lambda x: np.flip(x, (0, -1))),
    ("roll", lambda x: tw.roll(x, 5), lambda x: np.roll(x, 5)),
    ("roll_axis", lambda x: tw.roll(x, -1, axis=1), lambda x: np.roll(x, -1, 1)),
    ("roll_axes", lambda x: tw.roll(x, (1, 7), axis=(0, 2)), lambda x: np.roll(x, (1, 7), (0, 2))),
    ("repeat", lambda x: tw.repeat(x, 3), lambda x: np.repeat(x, 3)),
    ("repeat_none", lambda x: tw.repeat(x, 0, axis=1), lambda x: np.repeat(x, 0, 1)),
    ("repeat_each", lambda x: tw.repeat(x, [2, 0, 1], axis=1), lambda x: np.repeat(x, [2, 0, 1], 1)),
    ("tile", lambda x: tw.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3))),
    ("tile_number", lambda x: tw.tile(x, 3), lambda x: np.tile(x, 3)),
    ("tile_less", lambda x: tw.tile(x, (2,)), lambda x: np.tile(x, (2,))),
    ("tile_more", lambda x: tw.tile(x, (2, 1, 1, 0)), lambda x: np.tile(x, (2, 1, 1, 0))),
    ("broadcast", lambda x: tw.broadcast_to(x[:, :1], (5, 2, 3, 4)), lambda x: np.broadcast_to(x[:, :1], (5, 2, 3, 4))),
    ("concat", lambda x: tw.concat([x, x[:, :1]], axis=1), lambda x: np.concatenate([x, x[:, :1]], 1)),
    ("concat_flat", lambda x: tw.concat([x, x[0]], axis=None), lambda x: np.concatenate([x, x[0]], None)),
    ("stack", lambda x: tw.stack([x, -x], axis=-1), lambda x: np.stack([x, -x], -1)),
    ("diagonal", lambda x: tw.diagonal(x), lambda x: np.diagonal(x, 0, -2, -1)),
    ("diagonal_up", lambda x: tw.diagonal(x, offset=2), lambda x: np.diagonal(x, 2, -2, -1)),
    ("diagonal_down", lambda x: tw.diagonal(x, offset=-1), lambda x: np.diagonal(x, -1, -2, -1)),
    ("diagonal_out", lambda x: tw.diagonal(x, offset=9), lambda x: np.diagonal(x, 9, -2, -1)),
]


@pytest.mark.parametrize(("function", "reference"), [row[1:] for row in METHODS], ids=[row[0] for row in METHODS])
def test_manipulation(function, reference):
    same(run(function, X), np.ascontiguousarray(reference(X)))


def test_concat_promotes():
    joined = run(lambda a, b: tw.concat([a, b]), np.zeros(2, np.int8), np.ones(2, np.float16))
    same(joined, np.array([0, 0, 1, 1], np.float16))


def test_one_array_is_joined_along_its_first_axis():
    same(run(tw.concat, X), np.concatenate(X))
    same(run(lambda x: tw.stack(x, axis=1), X), np.stack(X, axis=1))
    same(run(lambda x: x + tw.concat(X), np.concatenate(X)), 2 * np.concatenate(X))


def test_no_elements_are_repeated_no_times():
    same(run(lambda x: tw.repeat(x[:0], [], axis=0), X), X[:0])


@pytest.mark.parametrize("sections", [2, 4, [1], [1, 3], [0, 4], [3, 9]], ids=str)
def test_split(sections):
    for actual, expected in zip(run(lambda x: tw.split(x, sections, axis=2), X), np.split(X, sections, 2), strict=True):
        same(actual, expected)


def test_unstack_and_broadcast_arrays():
    for actual, expected in zip(run(lambda x: tw.unstack(x, axis=1), X), np.unstack(X, axis=1), strict=True):
        same(actual, expected)
    pair = (X[:, :1], X[0])
    for actual, expected in zip(run(tw.broadcast_arrays, *pair), np.broadcast_arrays(*pair), strict=True):
        same(actual, expected)
    assert tw.broadcast_shapes((2, 1), (3,), ()) == (2, 3)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("widths", [1, (2, 0), ((1, 0), (0, 2), (3, 1)), 0], ids=str)
def test_pad(widths, mode):
    same(run(lambda x: tw.pad(x, widths, mode), X), np.pad(X, widths, mode))


def test_pad_with_a_value():
    same(run(lambda x, v: tw.pad(x, 1, constant_values=v), X, 7), np.pad(X, 1, constant_values=7))


@pytest.mark.parametrize("shape", SHAPES)
def test_round_trips_of_odd_shapes(shape):
    x = numbers(shape, "f32")
    same(run(lambda a: tw.reshape(tw.permute_dims(a[None], range(a.ndim + 1)), a.shape), x), x)
    same(run(lambda a: tw.flip(tw.flip(a)), x), x)


def test_manipulation_refuses():
    for call, error in [
        (lambda x: tw.reshape(x, (5, 5)), ShapeError),
        (lambda x: tw.reshape(x, (-1, -1)), ShapeError),
        (lambda x: tw.reshape(x, (5, -1)), ShapeError),
        (lambda x: tw.permute_dims(x, (0, 1)), ArgumentError),
        (lambda x: tw.permute_dims(x, (0, 1, 1)), ArgumentError),
        (lambda x: tw.squeeze(x, 0), ShapeError),
        (lambda x: tw.flip(x, axis=3), IndexError_),
        (lambda x: tw.moveaxis(x, (0, 1), 2), ArgumentError),
        (lambda x: tw.roll(x, (1, 2), axis=(0,)), ArgumentError),
        (lambda x: tw.concat([]), ArgumentError),
        (lambda x: tw.concat([x, x[0]]), ShapeError),
        (lambda x: tw.stack([x, x[0]]), ShapeError),
        (lambda x: tw.split(x, 3, axis=2), ShapeError),
        (lambda x: tw.repeat(x, -1), ArgumentError),
        (lambda x: tw.repeat(x, [1, 2], axis=1), ShapeError),
        (lambda x: tw.repeat(x, x[0, 0, 0].astype(tw.i32)), DataDependentShapeError),
        (lambda x: tw.tile(x, (-1,)), ArgumentError),
        (lambda x: tw.broadcast_to(x, (3, 4, 2)), ShapeError),
        (lambda x: tw.pad(x, -1), ArgumentError),
        (lambda x: tw.pad(x, ((1, 1), (1, 1))), ShapeError),
        (lambda x: tw.pad(x, 1, "mirror"), ArgumentError),
        (lambda x: tw.pad(x[:0], 1, "edge"), ShapeError),
        (lambda x: tw.pad(x, 1, constant_values=np.float64(1)), DTypeError),
        (lambda x: tw.matrix_transpose(x[0, 0]), ShapeError),
        (lambda x: x + x[:1, :2], ShapeError),
    ]:
        with pytest.raises(error):
            run(call, X)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: tw.pad(x[0], ((0, 2**40),), mode="edge"), "pad"),
        (lambda x: tw.pad(tw.broadcast_to(x[0, 0], (2**40,)), ((0, 1),), mode="reflect"), "pad"),
        (lambda x: tw.repeat(x, [1, 2**40, 1], axis=0), "repeat"),
        (lambda x: tw.arange(0, 2**40, 0.5, dtype=tw.int32), "arange"),
        (lambda x: tw.linspace(0, 9, 2**40, dtype=tw.int32), "linspace"),
        (
            lambda x: tw.nn.avg_pool(
                tw.broadcast_to(x[0, 0], (1, 1, 2**40)), 3, stride=1, padding=((1, 1),), count_padding=False
            ),
            "avg_pool",
        ),
    ],
)
def test_tables_larger_than_the_memory_are_refused(function, name):
    with pytest.raises(ResourceExhausted, match=f"`{name}` makes a table of [0-9]+ elements"):
        tw.jit(function).lower(np.ones((3, 1), np.float32))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: tw.unstack(tw.broadcast_to(x, (2**40,))),
        lambda x: tw.split(tw.broadcast_to(x, (2**40,)), 2**40),
        lambda x: tw.diff(tw.broadcast_to(x, (2**40,)), n=2**39),
    ],
)
def test_programs_of_too_many_operations_are_refused(function):
    with pytest.raises(ShapeError, match=r"is traced as [0-9]+ operations"):
        tw.jit(function).lower(np.ones(1, np.float32))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tw.permute_dims(x, None),
        lambda x: tw.permute_dims(x, 0),
        lambda x: tw.expand_dims(x, axis=None),
        lambda x: tw.expand_dims(x, axis=1.5),
        lambda x: tw.take(x, None, axis=0),
        lambda x: tw.take(x, slice(1), axis=0),
        lambda x: tw.fft.fftn(x, axes=1.5),
    ],
)
def test_axes_and_indices_of_other_types_are_refused(function):
    with pytest.raises(ArgumentError, match=r", not an integer|is not a"):
        run(function, X)


def test_axes_in_an_array():
    same(run(lambda x: tw.permute_dims(x, np.array([2, 0, 1])), X), X.transpose(2, 0, 1))
    same(run(lambda x: tw.sum(x, axis=np.int64(1)), X), X.sum(1))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tw.tril(x, k=0.5),
        lambda x: tw.triu(x, k=np.array([0, 1])),
        lambda x: tw.tril(x, k=x),
        lambda x: tw.concat(3),
        lambda x: tw.stack(3),
        lambda x: tw.dynamic_slice(x, None, (1, 1, 1)),
        lambda x: tw.dynamic_slice(x, (0, 0, 0), None),
    ],
)
def test_diagonals_and_sequences_of_other_types_are_refused(function):
    with pytest.raises((ArgumentError, DataDependentShapeError)):
        run(function, X)


def test_a_diagonal_may_be_traced():
    same(run(lambda x, k: tw.tril(x, k=k), X, np.int64(1)), np.tril(X, 1))
    same(run(lambda x: tw.triu(x, k=np.int8(-1)), X), np.triu(X, -1))


def test_only_functions_are_compiled():
    with pytest.raises(ArgumentError, match="`jit` of 3"):
        tw.jit(3)
