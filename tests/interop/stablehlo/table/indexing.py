"""Gather, scatter and dynamic slices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tests.interop.stablehlo.cases import Case
from tests.interop.stablehlo.table.numbers import normal, whole


def _gather(name: str, x: Any, indices: Any, sizes: Any, mode: str = "clip", **numbers: Any) -> Case:
    dims = lax.GatherDimensionNumbers(**numbers)
    return Case(f"gather-{name}-{mode}", lambda x, i: lax.gather(x, i, dims, sizes, mode=mode), (x, indices))


def indexing() -> Iterator[Case]:
    x = normal(5, 6, 7)
    outside = whole(4, 2, low=-3, high=9)
    for mode in ("clip", "fill", "promise_in_bounds"):
        i = outside if mode != "promise_in_bounds" else np.abs(outside) % 4
        yield _gather(
            "points", x, i, (1, 1, 7), mode, offset_dims=(1,), collapsed_slice_dims=(0, 1), start_index_map=(0, 1)
        )
        yield _gather(
            "windows", x, i, (2, 3, 7), mode, offset_dims=(1, 2, 3), collapsed_slice_dims=(), start_index_map=(0, 1)
        )
        yield _gather(
            "swapped", x, i, (2, 1, 3), mode, offset_dims=(0, 2), collapsed_slice_dims=(1,), start_index_map=(2, 1)
        )
    yield _gather(
        "inner",
        x,
        whole(3, 4, 1, low=0, high=5),
        (1, 6, 2),
        offset_dims=(0, 2),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
    )
    yield _gather(
        "scalar",
        x,
        whole(1, low=0, high=5),
        (1, 6, 7),
        offset_dims=(0, 1),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
    )
    yield _gather("none", x, whole(3, 0), (1, 6, 7), offset_dims=(1, 2), collapsed_slice_dims=(0,), start_index_map=())
    yield _gather(
        "empty", x, whole(0, 1), (1, 6, 7), offset_dims=(1, 2), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    yield _gather(
        "batched",
        x,
        whole(5, 3, 1, low=0, high=6),
        (1, 1, 7),
        offset_dims=(2,),
        collapsed_slice_dims=(1,),
        start_index_map=(1,),
        operand_batching_dims=(0,),
        start_indices_batching_dims=(0,),
    )
    yield _gather(
        "batched-swapped",
        x,
        whole(3, 6, 1, low=-2, high=9),
        (2, 1, 7),
        offset_dims=(0, 3),
        collapsed_slice_dims=(),
        start_index_map=(0,),
        operand_batching_dims=(1,),
        start_indices_batching_dims=(1,),
    )
    for dtype in (np.uint8, np.int8, np.uint32, np.int64, np.uint64):
        yield Case(
            f"take-{np.dtype(dtype).name}",
            lambda x, i: jnp.take(x, i, axis=1, mode="clip"),
            (x, np.array([0, 5, 3, 100]).astype(dtype)),
        )
    yield Case("take-negative", lambda x, i: (x[i], x[:, i], x[i, i]), (x, whole(4, low=-4, high=4)))
    yield Case("take_along_axis", lambda x, i: jnp.take_along_axis(x, i, 1), (x, whole(5, 2, 7, low=0, high=6)))
    yield Case("take-mixed", lambda x, i: (x[1, i, 2:5], x[i, :, None, 3], x[..., i]), (x, whole(2, 3, low=0, high=5)))
    yield Case("take-bools", lambda x, i: x[i], (whole(6, low=0, high=2, dtype=bool), whole(3, low=0, high=6)))
    yield Case("take-vmap", jax.vmap(lambda x, i: x[i]), (x, whole(5, 2, low=0, high=6)))
    starts = [(np.int32(1), np.int32(2), np.int32(0)), (np.int32(-3), np.int32(100), np.int32(6))]
    for n, start in enumerate(starts):
        yield Case(f"dynamic_slice-{n}", lambda x, *s: lax.dynamic_slice(x, s, (2, 3, 4)), (x, *start))
        yield Case(
            f"dynamic_update_slice-{n}",
            lambda x, u, *s: lax.dynamic_update_slice(x, u, s),
            (x, normal(2, 3, 4), *start),
        )
    yield Case(
        "dynamic_slice-vmap", jax.vmap(lambda x, s: lax.dynamic_slice(x, (s, s), (2, 3))), (x, whole(5, low=-2, high=9))
    )
    yield Case(
        "dynamic_update_slice-vmap",
        jax.vmap(lambda x, u, s: lax.dynamic_update_slice(x, u, (s, s))),
        (x, normal(5, 2, 3), whole(5, low=-2, high=9)),
    )
    yield Case("dynamic_index", lambda x, i: lax.dynamic_index_in_dim(x, i, 1), (x, np.int32(3)))
    yield Case("dynamic_slice-unsigned", lambda x, i: lax.dynamic_slice(x, (i,), (2,)), (normal(5), np.uint8(200)))


def _scatter(
    name: str,
    function: Any,
    x: Any,
    indices: Any,
    updates: Any,
    mode: str = "fill",
    unique: bool = False,
    **numbers: Any,
) -> Case:
    dims = lax.ScatterDimensionNumbers(**numbers)
    return Case(
        f"scatter-{name}-{mode}",
        lambda x, i, u: function(x, i, u, dims, mode=mode, unique_indices=unique),
        (x, indices, updates),
    )


def scatters() -> Iterator[Case]:
    x = normal(5, 6, 7)
    outside = whole(4, 2, low=-3, high=9)
    functions = {
        "add": lax.scatter_add,
        "mul": lax.scatter_mul,
        "min": lax.scatter_min,
        "max": lax.scatter_max,
        "set": lax.scatter,
    }
    rows = {"update_window_dims": (1,), "inserted_window_dims": (0, 1), "scatter_dims_to_operand_dims": (0, 1)}
    blocks = {"update_window_dims": (1, 2, 3), "inserted_window_dims": (), "scatter_dims_to_operand_dims": (0, 1)}
    swapped = {"update_window_dims": (0, 2), "inserted_window_dims": (1,), "scatter_dims_to_operand_dims": (2, 1)}
    for name, function in functions.items():
        for mode in ("fill", "clip"):
            yield _scatter(
                f"{name}-rows",
                function,
                x,
                outside if name != "set" else np.array([[1, 2], [-1, 3], [9, 0], [4, 5]], np.int32),
                normal(4, 7),
                mode,
                **rows,
            )
        yield _scatter(
            f"{name}-blocks",
            function,
            x,
            outside if name != "set" else np.array([[0, 0], [3, 3], [4, 4], [-1, 1]], np.int32),
            normal(4, 2, 3, 7),
            **blocks,
        )
    yield _scatter("swapped", lax.scatter_add, x, outside, normal(2, 4, 3), **swapped)
    yield _scatter(
        "narrow-window",
        lax.scatter_add,
        x,
        whole(4, 1, low=0, high=5),
        normal(4, 3, 2),
        update_window_dims=(1, 2),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
    )
    yield _scatter(
        "no-index",
        lax.scatter_add,
        x,
        whole(3, 0),
        normal(3, 5, 6, 7),
        update_window_dims=(1, 2, 3),
        inserted_window_dims=(),
        scatter_dims_to_operand_dims=(),
    )
    yield _scatter(
        "empty",
        lax.scatter_add,
        x,
        whole(0, 1),
        normal(0, 6, 7),
        update_window_dims=(1, 2),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
    )
    yield _scatter(
        "batched",
        lax.scatter_add,
        x,
        whole(5, 3, 1, low=0, high=6),
        normal(5, 3, 7),
        update_window_dims=(2,),
        inserted_window_dims=(1,),
        scatter_dims_to_operand_dims=(1,),
        operand_batching_dims=(0,),
        scatter_indices_batching_dims=(0,),
    )
    for dtype in (np.int32, ml_dtypes.bfloat16, np.float64):
        yield Case(
            f"at-add-{np.dtype(dtype).name}",
            lambda x, i, u: x.at[i].add(u),
            (whole(6, 3, dtype=dtype), whole(8, low=-6, high=6), whole(8, 3, low=0, high=3, dtype=dtype)),
        )
    i = np.array([4, 1, 3], np.int32)
    yield Case(
        "at-set",
        lambda x, i, u: (x.at[i].set(u), x.at[:, i].set(0), x.at[1, 2:4].set(5), x.at[::2].mul(2)),
        (x, i, normal(3, 6, 7)),
    )
    yield Case("at-apply", lambda x, i: x.at[i].apply(jnp.sin), (normal(9), i))
    yield Case(
        "at-apply-twice",
        lambda x, i: x.at[i].apply(lambda y: y * 2 + 1),
        (normal(9), np.array([1, 1, 2, 12], np.int32)),
    )
    yield Case("at-scalar", lambda x, i: x.at[i, 0].set(7), (normal(4, 3), np.int32(-1)))
    yield Case("at-bool", lambda x, i: x.at[i].set(True), (whole(6, low=0, high=2, dtype=bool), i))
    yield Case(
        "gather-gradient", lambda x, i: jax.grad(lambda x: jnp.square(x[i]).sum())(x), (x, whole(3, 2, low=0, high=5))
    )
    yield Case("one_hot", lambda i: jax.nn.one_hot(i, 7), (whole(3, 4, low=-1, high=9),))
    yield Case("segment_sum", lambda x, i: jax.ops.segment_sum(x, i, 4), (normal(9, 2), whole(9, low=0, high=5)))
    yield Case("bincount", lambda i: jnp.bincount(i, length=6), (whole(20, low=0, high=6),))


PARTS = (
    indexing,
    scatters,
)
