"""`x[key]` and `x.at[key]` against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from api_support import numbers, run, same
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.errors import DataDependentShapeError, DTypeError, IndexError_, ShapeError

X = np.arange(4 * 5 * 6, dtype=np.int32).reshape(4, 5, 6)

KEYS: list[Any] = [
    (),
    ...,
    0,
    -1,
    (1, -2, 3),
    slice(None),
    slice(1, 3),
    slice(None, None, -1),
    slice(3, None, -2),
    slice(3, 1),
    slice(-100, 100, 3),
    (..., 0),
    (0, ..., slice(None, None, 2)),
    (slice(1), ..., slice(2, 4), -1),
    None,
    (None, 1, None, slice(2, None), None),
    (..., None),
    [0, 2],
    [[0, 1], [2, -1]],
    ([0, 2], [1, -1]),
    ([[0], [2]], [1, 3, 4]),
    (slice(None), [0, 2]),
    (slice(None), [0, 2], [1, 3]),
    ([0, 2], slice(None), [1, 3]),
    ([0, 2], slice(1, 3), [[1], [3]]),
    (0, slice(None), [1, 3]),
    ([1, 3], slice(None), 0),
    (0, [1, 3]),
    (slice(None), 0, [1, 3]),
    (None, [1, 3], None, slice(1, 4)),
    ([1, 3], None, [1, 3]),
    (..., [1, 3]),
    ([1, 3], ..., [0, 2]),
    (1, ..., [0, 2]),
    (slice(None, None, -1), [0, 2], slice(4, 0, -2)),
    (slice(None), 0, ..., [0, 2]),
    (slice(None), [0, 1], ..., [0, 2]),
    np.zeros((2, 0), np.int64),
    [],
    (np.int32(1), np.uint8(2)),
    np.array(1),
    np.array([True, False, True, True]),
    (slice(None), np.array([True, False, False, True, True])),
    np.arange(20).reshape(4, 5) % 3 == 0,
    (np.arange(20).reshape(4, 5) % 3 == 0, slice(1, 3)),
    np.zeros((4, 5, 6), bool),
]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_reading(key):
    same(run(lambda x: x[key], X), np.ascontiguousarray(X[key]).reshape(X[key].shape))


def _traced(key: Any) -> tuple[Any, list[np.ndarray]]:
    """The key with its index arrays and integers replaced by places in a list, and the list."""
    found: list[np.ndarray] = []

    def replace(part: Any) -> Any:
        if isinstance(part, list | np.ndarray | int | np.integer) and not isinstance(part, bool):
            found.append(np.asarray(part, np.int64))
            return len(found) - 1
        return part

    parts = tuple(replace(p) for p in (key if isinstance(key, tuple) else (key,)))
    return parts, found


def _is_mask(part: Any) -> bool:
    return isinstance(part, np.ndarray) and part.dtype == bool


INTEGER_KEYS = [k for k in KEYS if not any(map(_is_mask, k if isinstance(k, tuple) else (k,)))]


@pytest.mark.parametrize("key", INTEGER_KEYS, ids=repr)
def test_reading_at_traced_indices(key):
    parts, found = _traced(key)

    def read(x, indices):
        return x[tuple(indices[p] if isinstance(p, int) else p for p in parts)]

    expected = X[key]
    same(run(read, X, found), np.asarray(expected))


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_setting(key):
    expected = X.copy()
    value = -numbers(X[key].shape, "i32", 5, 1, 99)
    expected[key] = value
    same(run(lambda x, v: x.at[key].set(v), X, value), expected)


@pytest.mark.parametrize("key", INTEGER_KEYS, ids=repr)
def test_adding_at_traced_indices(key):
    parts, found = _traced(key)
    value = numbers(X[key].shape, "i32", 5, 1, 99)

    def update(x, indices, v):
        return x.at[tuple(indices[p] if isinstance(p, int) else p for p in parts)].add(v)

    expected = X.copy()
    np.add.at(expected, key, value)
    same(run(update, X, found, value), expected)


@pytest.mark.parametrize(("name", "ufunc"), [("multiply", np.multiply), ("max", np.maximum), ("min", np.minimum)])
@pytest.mark.parametrize("key", [slice(1, 3), [0, 0, 2], (slice(None), slice(None, None, 2)), ([1, 1], slice(1, 3))])
def test_other_updates(name, ufunc, key):
    expected = X.copy()
    ufunc.at(expected, key, 7)
    same(run(lambda x: getattr(x.at[key], name)(7), X), expected)


def test_update_broadcasts_and_promotes_numbers():
    x = np.zeros((3, 4), np.float32)
    expected = x.copy()
    expected[:, 1:3] = [[1], [2], [3]]
    same(run(lambda a: a.at[:, 1:3].set(np.array([[1], [2], [3]], np.float32)), x), expected)
    same(run(lambda a: a.at[...].set(2), x), np.full((3, 4), 2, np.float32))
    same(run(lambda a: a.at[1].get(), x), x[1])


def test_traced_indices_outside_clamp_reading_and_drop_writing():
    x = np.arange(4.0)
    indices = np.array([-9, -1, 0, 9])
    same(run(lambda a, i: a[i], x, indices), x[[0, 3, 0, 3]])
    same(run(lambda a, i: a.at[i].add(1), x, indices), np.array([1.0, 1, 2, 4]))
    same(run(lambda a, i: a[i], x, 9), np.asarray(x[3]))
    same(run(lambda a, i: a.at[i].set(0), x, 9), x)


@pytest.mark.parametrize("dtype", ["u8", "i8", "i16", "i32", "u32", "i64", "u64"])
def test_index_types(dtype):
    x = numbers((200,), "f32")
    indices = np.array([0, 3, 127], tw.dtypes.by_name(dtype).numpy)
    same(run(lambda a, i: a[i], x, indices), x[indices])
    if indices.dtype.kind == "i":
        same(run(lambda a, i: a[i], x, -indices), x[-indices])


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("indices", [[0, 2], [[1], [0]], [], 1], ids=repr)
def test_take(axis, indices):
    same(run(lambda x: tw.take(x, indices, axis=axis), X), np.take(X, np.asarray(indices, np.int64), axis=axis))
    traced = np.asarray(indices, np.int32)
    same(run(lambda x, i: tw.take(x, i, axis=axis), X, traced), np.take(X, traced, axis=axis))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take_along_axis(axis):
    order = np.argsort(-X, axis=axis)
    same(run(lambda x, i: tw.take_along_axis(x, i, axis=axis), X, order), np.take_along_axis(X, order, axis))
    row = np.take(order, [0], axis=axis)[:1]
    if axis != 0:
        same(run(lambda x, i: tw.take_along_axis(x, i, axis=axis), X, row), np.take_along_axis(X, row, axis))


def test_windows_at_traced_places():
    same(run(lambda x, i: tw.dynamic_slice(x, (i, 1, 0), (2, 3, 6)), X, 1), X[1:3, 1:4])
    same(run(lambda x, i: tw.dynamic_slice(x, (i, 0, 0), (2, 5, 6)), X, 99), X[2:])
    update = np.full((1, 2, 2), -1, np.int32)
    expected = X.copy()
    expected[2:3, 3:5, 4:6] = update
    same(run(lambda x, u, i: tw.dynamic_update_slice(x, u, (i, 3, 9)), X, update, 2), expected)


# ---- random keys ----------------------------------------------------------------------------------------------------


@st.composite
def _keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    common = draw(st.sampled_from([(2,), (1,), (2, 1), (3, 2), ()]))
    parts: list[Any] = []
    for extent in shape[: draw(st.integers(0, len(shape)))]:
        kind = draw(st.sampled_from(["int", "slice", "slice", "array"]))
        if kind == "int" and extent:
            parts.append(draw(st.integers(-extent, extent - 1)))
        elif kind == "array" and extent:
            own = tuple(n if draw(st.booleans()) else 1 for n in common)
            count = math.prod(own)
            drawn = draw(st.lists(st.integers(-extent, extent - 1), min_size=count, max_size=count))
            parts.append(np.array(drawn).reshape(own))
        else:
            parts.append(draw(st.slices(extent)))
        if draw(st.integers(0, 5)) == 0:
            parts.append(None)
    if draw(st.booleans()):
        parts.append(...)
    return tuple(parts)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_random_keys(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)))
    x = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    key = data.draw(_keys(shape))
    expected = x[key]
    same(run(lambda a: a[key], x), np.asarray(expected))
    # Positions named twice are combined in an order that NumPy does not promise, so they are added.
    changed = x.copy()
    np.add.at(changed, key, 3)
    same(run(lambda a: a.at[key].add(3), x), changed)


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (4, IndexError_),
        (-5, IndexError_),
        ([0, 4], IndexError_),
        ((0, 0, 0, 0), IndexError_),
        ((..., ...), IndexError_),
        (1.0, IndexError_),
        ("a", IndexError_),
        (True, IndexError_),
        (slice(None, None, 0), IndexError_),
        (slice(0.5, None), IndexError_),
        ([0.5], IndexError_),
        (np.zeros(3, bool), IndexError_),
        ([[0, 1], [2]], IndexError_),
        (([0, 1], [0, 1, 2]), ShapeError),
    ],
    ids=repr,
)
def test_keys_that_do_not_fit(key, error):
    with pytest.raises(error):
        run(lambda x: x[key], X)


def test_sizes_that_would_depend_on_data():
    with pytest.raises(DataDependentShapeError):
        run(lambda x: x[x > 3], X)
    with pytest.raises(DataDependentShapeError):
        run(lambda x, n: x[:n], X, 2)


def test_updates_that_do_not_fit():
    with pytest.raises(DTypeError):
        run(lambda x: x.at[0].set(1.5), X)
    with pytest.raises(ShapeError):
        run(lambda x, v: x.at[0].set(v), X, np.zeros((2, 2), np.int32))
    with pytest.raises(DTypeError):
        run(lambda x, i: x[i], X, np.array([0.5]))


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "u8"])
def test_known_indices_of_types_narrower_than_an_axis(dtype: str) -> None:
    x = np.arange(70000, dtype=np.float32)
    indices = np.array([1, 2, 100] if dtype[0] == "u" else [1, -2, 100], dtype)
    same(run(lambda x: x[indices], x), x[indices])
    same(run(lambda x: tw.take(x, indices), x), x[indices])
