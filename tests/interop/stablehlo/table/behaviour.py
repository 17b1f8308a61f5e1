"""Order, control flow, random numbers, and compositions of the library."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tests.interop.stablehlo.cases import Case
from tests.interop.stablehlo.table.numbers import F32, normal, special, whole

# ---- order ----------------------------------------------------------------------------------------------------------


def orders() -> Iterator[Case]:
    ties = whole(4, 9, low=0, high=4, dtype=F32)
    edges = np.tile(special()[:15], (2, 1))
    for name, x in {
        "ties": ties,
        "edges": edges,
        "ints": whole(4, 9),
        "empty": normal(2, 0),
        "one": normal(3, 1),
        "bools": whole(4, 5, low=0, high=2, dtype=bool),
        "bytes": whole(4, 9, low=0, high=255, dtype=np.uint8),
    }.items():
        yield Case(f"sort-{name}", lambda x: (jnp.sort(x, -1), jnp.sort(x, 0)), (x,))
        yield Case(f"argsort-{name}", lambda x: (jnp.argsort(x, -1), jnp.argsort(x, 0, descending=True)), (x,))
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float64, np.int64):
        yield Case(
            f"sort-{np.dtype(dtype).name}", lambda x: jnp.sort(x, -1), (whole(3, 8, low=-20, high=20, dtype=dtype),)
        )
    yield Case("sort-descending", lambda x: jnp.sort(x, descending=True), (edges,))
    yield Case("sort-pairs", lambda x, y: lax.sort((x, y), dimension=1, num_keys=1), (ties, normal(4, 9)))
    yield Case("sort-two-keys", lambda x, y: lax.sort((x, y), dimension=1, num_keys=2), (ties, whole(4, 9)))
    yield Case(
        "sort-three-keys",
        lambda x, y, z: lax.sort((x, y, z), dimension=0, num_keys=3),
        (whole(9, low=0, high=2), whole(9, low=0, high=2), normal(9)),
    )
    yield Case("lexsort", lambda x, y: jnp.lexsort((x, y)), (whole(9, low=0, high=3), whole(9, low=0, high=3)))
    yield Case("top_k", lambda x: lax.top_k(x, 3), (normal(4, 9),))
    yield Case("top_k-ties", lambda x: lax.top_k(x, 9), (ties,))
    yield Case("top_k-ints", lambda x: lax.top_k(x, 2), (whole(4, 9),))
    yield Case(
        "median", lambda x: (jnp.median(x), jnp.quantile(x, 0.3), jnp.percentile(x, 70, axis=0)), (normal(9, 4),)
    )
    yield Case(
        "searchsorted",
        lambda x, v: (jnp.searchsorted(x, v), jnp.searchsorted(x, v, side="right")),
        (np.sort(normal(9)), normal(5)),
    )
    yield Case("unique", lambda x: jnp.unique(x, size=5), (whole(9, low=0, high=4),))


# ---- control --------------------------------------------------------------------------------------------------------


def control() -> Iterator[Case]:
    yield Case(
        "while",
        lambda n: lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 1.5), (np.int32(0), F32(1))),
        (np.int32(5),),
    )
    yield Case("while-never", lambda x: lax.while_loop(lambda c: c.sum() > 1e9, lambda c: c * 2, x), (normal(3),))
    yield Case("fori", lambda x: lax.fori_loop(2, 7, lambda i, c: c + i * x, jnp.zeros_like(x)), (normal(3, 2),))
    yield Case("scan", lambda c, xs: lax.scan(lambda c, x: (c + x, c * x), c, xs), (normal(3), normal(4, 3)))
    yield Case(
        "scan-reverse",
        lambda c, xs: lax.scan(lambda c, x: (c + x, c * x), c, xs, reverse=True),
        (normal(3), normal(4, 3)),
    )
    yield Case("scan-empty", lambda c, xs: lax.scan(lambda c, x: (c + x, c * x), c, xs), (normal(3), normal(0, 3)))
    yield Case(
        "scan-unroll", lambda c, xs: lax.scan(lambda c, x: (c + x, None), c, xs, unroll=2)[0], (normal(3), normal(5, 3))
    )
    yield Case(
        "scan-gradient",
        jax.grad(lambda w, xs: lax.scan(lambda c, x: (jnp.tanh(w * c + x), c), jnp.zeros(3), xs)[0].sum()),
        (normal(3), normal(4, 3)),
    )
    yield Case(
        "scan-nested",
        lambda x: lax.scan(lambda c, r: (c + lax.scan(lambda d, e: (d * e, d), F32(1), r)[0], c), F32(0), x),
        (normal(3, 4),),
    )
    yield Case(
        "cond",
        lambda p, x: (lax.cond(p, jnp.sin, jnp.cos, x), lax.cond(~p, lambda: x * 2, lambda: x)),
        (np.bool_(True), normal(3)),
    )
    for n in (-1, 0, 1, 2, 7):
        yield Case(
            f"switch-{n}", lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, lambda x: x * 3], x), (np.int32(n), normal(3))
        )
    yield Case(
        "cond-vmap", jax.vmap(lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x)), (np.array([True, False]), normal(2, 3))
    )
    yield Case(
        "while-vmap",
        jax.vmap(lambda n: lax.while_loop(lambda c: c < n, lambda c: c * 2, F32(1))),
        (np.array([3.0, 100.0, 0.5], F32),),
    )
    yield Case("map", lambda x: lax.map(lambda r: r.sum() * r, x), (normal(4, 3),))
    yield Case("associative_scan", lambda x: lax.associative_scan(jnp.add, x), (normal(9, 2),))
    yield Case("custom-jvp", jax.grad(lambda x: jax.nn.relu(x).sum()), (normal(5),))
    yield Case("remat", jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.exp(x)).sum())), (normal(5),))
    yield Case("jit-nested", lambda x: jax.jit(lambda y: jax.jit(jnp.sin)(y) + y)(x), (normal(5),))


def random() -> Iterator[Case]:
    key = np.array([1, 42], np.uint32)

    def draws(function: Any) -> Any:
        return lambda k: function(jax.random.wrap_key_data(k))

    yield Case("uniform", draws(lambda k: jax.random.uniform(k, (5, 3))), (key,))
    yield Case("normal", draws(lambda k: jax.random.normal(k, (7,))), (key,), 256.0)
    yield Case("bits", draws(lambda k: (jax.random.bits(k, (5,)), jax.random.bits(k, (6,), np.uint8))), (key,))
    yield Case("randint", draws(lambda k: jax.random.randint(k, (9,), -3, 50)), (key,))
    yield Case("bernoulli", draws(lambda k: jax.random.bernoulli(k, 0.3, (9,))), (key,))
    yield Case("permutation", draws(lambda k: jax.random.permutation(k, 9)), (key,))
    yield Case("categorical", draws(lambda k: jax.random.categorical(k, jnp.arange(5.0), shape=(6,))), (key,))
    yield Case("split", draws(lambda k: jax.random.key_data(jax.random.split(k, 3))), (key,))
    yield Case("gamma", draws(lambda k: jax.random.gamma(k, 2.0, (4,))), (key,), 512.0)
    yield Case("truncated", draws(lambda k: jax.random.truncated_normal(k, -1.0, 2.0, (9,))), (key,), 256.0)

    for algorithm in (
        lax.RandomAlgorithm.RNG_PHILOX,
        lax.RandomAlgorithm.RNG_THREE_FRY,
        lax.RandomAlgorithm.RNG_DEFAULT,
    ):
        for dtype, shape in (
            (np.uint32, (9,)),
            (np.uint32, (4, 3)),
            (np.uint8, (3, 3)),
            (np.uint16, ()),
            (np.uint32, (0,)),
        ):
            yield Case(
                f"rng_bit_generator-{algorithm.name}-{shape}-{np.dtype(dtype).name}",
                lambda k, a=algorithm, d=dtype, s=shape: lax.rng_bit_generator(k, s, d, algorithm=a),
                (np.array([1, 2, 0xFFFFFFFF, 4], np.uint32),),
            )


def various() -> Iterator[Case]:
    x = normal(3, 4)
    for name in ["relu", "gelu", "silu", "elu", "selu", "softplus", "log_sigmoid", "hard_tanh", "glu", "swish", "mish"]:
        function = getattr(jax.nn, name)
        yield Case(f"nn-{name}", function, (x,), 64.0)
        yield Case(f"nn-{name}-gradient", jax.grad(lambda x, f=function: f(x).sum()), (x,), 64.0)
    yield Case("gelu-exact", functools.partial(jax.nn.gelu, approximate=False), (x,), 64.0)
    yield Case(
        "gelu-exact-bf16", functools.partial(jax.nn.gelu, approximate=False), (normal(3, 4, dtype=ml_dtypes.bfloat16),)
    )
    yield Case(
        "attention",
        lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
        (normal(2, 5, 3, 4), normal(2, 5, 3, 4), normal(2, 5, 3, 4)),
        64.0,
    )
    yield Case(
        "scaled-matmul",
        lambda x, y: (x.astype(jnp.bfloat16) @ y.astype(jnp.bfloat16)).astype(F32),
        (x, normal(4, 5)),
        1e5,
    )  # XLA multiplies without rounding the result to bf16
    yield Case("standardize", jax.nn.standardize, (x,), 64.0)
    yield Case("polyval", lambda x: jnp.polyval(jnp.arange(5.0), x), (x,), 64.0)
    yield Case("interp", lambda x, y, z: jnp.interp(x, y, z), (normal(5), np.sort(normal(4)), normal(4)), 64.0)
    yield Case("unused", lambda x, y: x, (x, normal(3)))
    yield Case("accuracy", lambda x: lax.exp(x, accuracy=lax.Tolerance(atol=1e-5, rtol=0.0, ulps=2)), (x,))
    preset = lax.DotAlgorithmPreset.BF16_BF16_F32  # XLA rounds the operands, which we do not
    yield Case("algorithm", lambda x, y: lax.dot(x, y, precision=preset), (x, normal(4, 5)), 2e5)
    yield Case("composite", lambda x: lax.composite(lambda y: y * 2 + 1, name="my.op")(x), (x,))
    yield Case("platform", lambda x: lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: x), (x,))
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    yield Case("sharding", lambda x: lax.with_sharding_constraint(x * 2, sharding) + 1, (x,))
    yield Case("same-twice", lambda x: (x, x), (x,))
    yield Case("no-arguments", lambda: jnp.ones((2, 3)), ())
    yield Case("hessian", jax.hessian(lambda x: jnp.sin(x).prod()), (normal(3),), 64.0)
    yield Case("jvp", lambda x, t: jax.jvp(lambda x: jnp.tanh(x @ x.T), (x,), (t,)), (x, normal(3, 4)), 64.0)
    yield Case(
        "ragged_dot",
        lambda x, w, s: lax.ragged_dot(x, w, s),
        (normal(6, 4), normal(2, 4, 3), np.array([2, 4], np.int32)),
        64.0,
    )


PARTS = (
    orders,
    control,
    random,
    various,
)
