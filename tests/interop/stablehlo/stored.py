"""Exported programs that are kept as text with what JAX computed, so that they can be tested without JAX.

    python -m tests.interop.stablehlo.stored

writes them anew into `data/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "data"
NAMES = ("transformer", "recurrent", "operations")


def read(name: str) -> tuple[str, list[Any], list[Any]]:
    """The text, the arguments and the results."""
    with np.load(FOLDER / f"{name}.npz") as arrays:
        inputs = [arrays[key] for key in sorted(arrays.files) if key.startswith("input")]
        results = [arrays[key] for key in sorted(arrays.files) if key.startswith("result")]
    return (FOLDER / f"{name}.mlir").read_text(), inputs, results


def _operations(x: Any, i: Any) -> Any:
    """One function with operations of most kinds."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    windows = lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "SAME")
    image = lax.conv_general_dilated(x[None, None], x[None, None, :2, :3], (1, 2), "SAME", rhs_dilation=(1, 2))
    pooled = jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID").sum())(x)
    return {
        "scan": lax.scan(lambda c, a: (c * a + 1, jnp.sort(a)), x[0], x),
        "index": (x[i], x.at[i].add(1.0), x.at[:, i].set(2.0), lax.dynamic_slice(x, (i[0], i[1]), (2, 2))),
        "order": (lax.top_k(x, 2), jnp.argsort(x, 1), jnp.argmax(x, 0), jnp.cumsum(x, 0)),
        "windows": (windows, image, pooled),
        "branches": (lax.switch(i[0], [jnp.sin, jnp.cos, jnp.tanh], x), lax.cond(i[1] > 1, lambda: x, lambda: -x)),
        "random": jax.random.normal(jax.random.key(0), (3,)),
        "bits": (lax.bitcast_convert_type(x, jnp.int32) >> 3, lax.population_count(i), x.astype(jnp.bfloat16)),
        "shapes": (jnp.pad(x, ((1, 0), (0, 2)))[::-1, ::2].T, jnp.where(x > 0, x, jnp.inf), jnp.concatenate([x, x])),
        "scalars": (jax.scipy.special.erfinv(x * 0.3), lax.reduce_precision(x, 5, 10), lax.clamp(0.0, x, 1.0)),
    }


def main() -> None:
    import functools

    import jax

    from tests.interop.stablehlo.programs import networks as programs

    random = np.random.default_rng(5)
    params = programs.transformer(vocabulary=13, width=8, heads=2, layers=1)
    tokens = random.integers(0, 13, (2, 6)).astype(np.int32)
    x = random.standard_normal((4, 5)).astype(np.float32)
    xs = random.standard_normal((5, 2, 3)).astype(np.float32)
    step = functools.partial(programs.train_step, heads=2)
    written = {
        "transformer": (step, (params, programs.adam_state(params), tokens)),
        "recurrent": (programs.lstm_gradient, (programs.lstm_params(3, 4), xs)),
        "operations": (_operations, (x, np.array([1, 3], np.int32))),
    }
    FOLDER.mkdir(exist_ok=True)
    for name, (function, arguments) in written.items():
        lowered = jax.jit(function, keep_unused=True).lower(*arguments)
        module = lowered.compiler_ir("stablehlo").operation
        generic = module.get_asm(print_generic_op_form=True, enable_debug_info=False)
        text = (
            generic
            if name == "recurrent"
            else jax.export.export(jax.jit(function, keep_unused=True))(*arguments).mlir_module()
        )
        (FOLDER / f"{name}.mlir").write_text(_without_paths(text))
        arrays = {f"input{n:03d}": np.asarray(a) for n, a in enumerate(jax.tree.leaves(arguments))}
        results = jax.tree.leaves(lowered.compile()(*arguments))
        # `.npz` has no bf16.
        arrays |= {f"result{n:03d}": _storable(np.asarray(r)) for n, r in enumerate(results)}
        np.savez_compressed(FOLDER / f"{name}.npz", **arrays)


def _storable(array: Any) -> Any:
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _without_paths(text: str) -> str:
    """Locations without the folders of whoever wrote the text."""
    import re

    return re.sub(r'loc\("/[^"]*/', 'loc("', text)


if __name__ == "__main__":
    main()
