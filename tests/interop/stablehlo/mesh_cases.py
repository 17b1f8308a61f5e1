"""Functions of JAX on a mesh of eight devices, compared with what JAX computes on as many that it makes of the host.

    python -m tests.interop.stablehlo.mesh_cases FOLDER

writes the texts, arguments and results of all; `outcomes` starts it in a process of its own, as the number of devices
is fixed when JAX is first used.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.interop.stablehlo.cases import Case, Outcome, compared

_DEVICES = 8
_FOLDER = Path(__file__).parents[3]


def all_cases() -> Iterator[Case]:
    """The table. Functions are under `jit`, or to be put there."""
    for part in (_reductions, _moves, _control, _borders, _programs):
        yield from part()


def _meshes() -> tuple[Any, Any]:
    import jax
    from jax.sharding import Mesh

    devices = np.array(jax.devices())
    return Mesh(devices, ("x",)), Mesh(devices.reshape(4, 2), ("x", "y"))


def _spread(function: Callable[..., Any], ins: Any, outs: Any, **more: Any) -> Any:
    """`shard_map` on the mesh of two axes, or on that of one where `flat` is set."""
    import jax

    mesh = _meshes()[0 if more.pop("flat", False) else 1]
    return jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=outs, **more)


def _normal(*shape: int) -> Any:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def _reductions() -> Iterator[Case]:
    from jax import lax
    from jax.sharding import PartitionSpec as P

    x, whole = _normal(8, 8), np.arange(64, dtype=np.int32).reshape(8, 8)
    xy = P("x", "y")
    yield Case("psum-x", _spread(lambda x: lax.psum(x, "x"), xy, P(None, "y")), (x,))
    yield Case("psum-y", _spread(lambda x: lax.psum(x, "y"), xy, P("x", None)), (x,))
    yield Case("psum-xy", _spread(lambda x: lax.psum(x, ("x", "y")), xy, P()), (x,))
    yield Case("psum-yx", _spread(lambda x: lax.psum(x, ("y", "x")), xy, P()), (x,))
    yield Case("psum-ints", _spread(lambda x: lax.psum(x, "x"), P("x"), P(), flat=True), (whole,))
    yield Case("psum-tree", _spread(lambda x: lax.psum({"a": x, "b": (x[0], 2)}, "x"), P("x"), P(), flat=True), (x,))
    yield Case("psum-bf16", _spread(lambda x: lax.psum(x.astype("bfloat16"), "y"), xy, P("x", None)), (x,))
    yield Case("pmean", _spread(lambda x: lax.pmean(x, "x"), xy, P(None, "y")), (x,))
    yield Case("pmax-pmin", _spread(lambda x: (lax.pmax(x, "y"), lax.pmin(x, "x")), xy, (P("x"), P(None, "y"))), (x,))
    groups = [[0, 3, 5, 6], [7, 1, 2, 4]]
    by_groups = _spread(
        lambda x: (lax.psum(x, "x", axis_index_groups=groups), lax.pmax(x, "x", axis_index_groups=groups)),
        P("x"),
        P("x"),
        flat=True,
        check_vma=False,
    )
    yield Case("psum-groups", by_groups, (x,))
    for axis in (0, 1):
        for tiled in (True, False):
            rows = _normal(*((32, 8), (8, 16))[axis]) if tiled else _normal(*((16, 2), (4, 4))[axis])
            scattered = _spread(
                lambda x, axis=axis, tiled=tiled: lax.psum_scatter(
                    x, "x" if axis == 0 else "y", scatter_dimension=axis, tiled=tiled
                ),
                xy,
                P(("x", "y")),
            )
            yield Case(f"psum_scatter-{axis}-{tiled}", scattered, (rows,))


def _moves() -> Iterator[Case]:
    import ml_dtypes
    from jax import lax
    from jax.sharding import PartitionSpec as P

    x, xy = _normal(8, 8), P("x", "y")
    for axis in (0, 1):
        for tiled in (True, False):
            gathered = _spread(
                lambda x, axis=axis, tiled=tiled: lax.all_gather(x, "x", axis=axis, tiled=tiled),
                xy,
                xy,
                check_vma=False,
            )
            yield Case(f"all_gather-{axis}-{tiled}", gathered, (x,))
    both = _spread(lambda x: lax.all_gather(x, ("y", "x"), tiled=True), xy, P(), check_vma=False)
    yield Case("all_gather-yx", both, (x,))
    narrow = np.arange(16).reshape(8, 2).astype(ml_dtypes.float8_e4m3fnuz)
    yield Case("all_gather-narrow", _spread(lambda x: lax.all_gather(x, "x"), P("x"), P("x"), flat=True), (narrow,))
    for split, concat in ((0, 1), (1, 0), (1, 1)):
        for tiled in (True, False):
            exchanged = _spread(
                lambda x, split=split, concat=concat, tiled=tiled: lax.all_to_all(x, "y", split, concat, tiled=tiled),
                xy,
                xy,
                check_vma=False,
            )
            rows = x if tiled else _normal(8, 4)
            yield Case(f"all_to_all-{split}-{concat}-{tiled}", exchanged, (rows,))
    swap = _spread(
        lambda x: lax.all_to_all(x, "x", 1, 0, axis_index_groups=[[0, 2, 4, 6], [1, 3, 5, 7]], tiled=True),
        P("x"),
        P("x"),
        flat=True,
    )
    yield Case("all_to_all-groups", swap, (x,))
    for name, pairs in {
        "ring": [(n, (n + 1) % 4) for n in range(4)],
        "shift": [(n, n + 1) for n in range(3)],
        "swap": [(0, 2), (2, 0)],
    }.items():
        permuted = _spread(lambda x, pairs=pairs: lax.ppermute(x, "x", pairs), xy, xy)
        yield Case(f"ppermute-{name}", permuted, (x,))
    numbered = _spread(lambda x: x + 10 * lax.axis_index("x") + lax.axis_index("y"), xy, xy)
    yield Case("axis_index", numbered, (x,))
    yield Case("axis_index-xy", _spread(lambda x: x + lax.axis_index(("y", "x")), xy, xy), (x,))


def _control() -> Iterator[Case]:
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import PartitionSpec as P

    x = _normal(8, 8)

    def diverging(x: Any) -> Any:
        place = lax.axis_index("x")
        trips = lax.fori_loop(0, place, lambda n, c: c * 1.5, x)
        return lax.cond(place % 2 == 0, lambda: trips + 1, lambda: -trips)

    yield Case("diverging", _spread(diverging, P("x"), P("x"), flat=True), (x,))

    def looped(x: Any) -> Any:
        return lax.scan(lambda c, n: (lax.psum(c, "x") * 0.1 + n, lax.pmax(c, "x")), x, jnp.arange(3.0))

    outs = (P(None, "y"), P(None, None, "y"))
    yield Case("scan", _spread(looped, P(None, "y"), outs, check_vma=False), (x,))

    def by_row(x: Any) -> Any:
        """Devices of a row of the mesh go another number of times through a loop of exchanges."""
        return lax.fori_loop(0, lax.axis_index("x"), lambda n, c: lax.psum(c, "y") * 0.5 + x, x)

    yield Case("loop-by-row", _spread(by_row, P("x", "y"), P("x", "y"), check_vma=False), (x,))

    def branched(x: Any) -> Any:
        return lax.cond(lax.psum(x.sum(), "x") > 0, lambda: lax.psum(x, "x"), lambda: x * 2)

    yield Case("branch", _spread(branched, P("x"), P("x"), flat=True, check_vma=False), (x,))


def _borders() -> Iterator[Case]:
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    x, (flat, mesh) = _normal(8, 8), _meshes()
    some = _spread(lambda x: lax.psum(x, "x").sum(), P("x"), P(), axis_names={"x"})
    yield Case("some-axes", some, (x,))
    yield Case("both-in-one-dim", _spread(lambda x: x * lax.axis_index("x"), P(("y", "x")), P(("y", "x"))), (x,))
    yield Case("turned", _spread(lambda x: x.T, P("x", "y"), P("y", "x")), (x,))
    yield Case("made-inside", _spread(lambda: lax.axis_index("x")[None], (), P("x"), flat=True), ())
    yield Case(
        "twice", lambda x: jnp.cumsum(_spread(lambda x: x + lax.psum(x, "y"), P("x", "y"), P("x", "y"))(x), 0), (x,)
    )

    def nested(x: Any) -> Any:
        inner = jax.shard_map(lambda x: lax.psum(x, "y"), in_specs=P(None, "y"), out_specs=P(), axis_names={"y"})
        return lax.psum(inner(x), "x")

    yield Case("nested", _spread(nested, P("x"), P(), axis_names={"x"}), (x,))
    turned = jax.sharding.Mesh(np.array(jax.devices())[::-1].reshape(2, 4), ("a", "b"))
    other = jax.shard_map(lambda x: lax.all_gather(x, "b", tiled=True), mesh=turned, in_specs=P("b"), out_specs=P("b"))
    yield Case("devices-in-another-order", other, (x,))
    yield Case("pmap", jax.pmap(lambda x: lax.psum(x, "i"), axis_name="i"), (x,))
    rows, blocks = NamedSharding(flat, P("x")), NamedSharding(mesh, P("x", "y"))
    yield Case("jit", jax.jit(lambda x: x @ x.T, in_shardings=rows, out_shardings=rows), (x,))
    constrained = jax.jit(lambda x: lax.with_sharding_constraint(jnp.sort(x) * 2, NamedSharding(mesh, P("y"))) + x)
    yield Case("constrained", constrained, (jax.device_put(x, blocks),))
    unconstrained = NamedSharding(mesh, P(P.UNCONSTRAINED, "x"))
    yield Case(
        "open", jax.jit(lambda x: lax.with_sharding_constraint(x, unconstrained) - 1), (jax.device_put(x, blocks),)
    )


def _programs() -> Iterator[Case]:
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import PartitionSpec as P

    params = {"w1": _normal(4, 16), "b1": _normal(16), "w2": _normal(16, 2)}
    batch = (_normal(32, 4), _normal(32, 2))
    yield Case(
        "data-parallel",
        _spread(training_step(lambda x: lax.pmean(x, "x")), (P(), P("x")), P(), flat=True),
        (params, batch),
    )
    mapped = _spread(lambda w, x: (x @ w) ** 2, (P(), P("x")), P("x"), flat=True)
    yield Case("gradient", jax.grad(lambda w, x: mapped(w, x).mean()), (_normal(8, 2), _normal(16, 8)))

    def ring(left: Any, right: Any) -> Any:
        """A product whose right operand goes around, a block of rows at a time."""
        place, block = lax.axis_index("x"), right.shape[0]

        def step(n: Any, carried: Any) -> Any:
            total, held = carried
            columns = lax.dynamic_slice_in_dim(left, (place - n) % 8 * block, block, 1)
            return total + columns @ held, lax.ppermute(held, "x", [(d, (d + 1) % 8) for d in range(8)])

        start = lax.pcast(jnp.zeros((left.shape[0], right.shape[1])), "x", to="varying")
        return lax.fori_loop(0, 8, step, (start, right))[0]

    yield Case("ring", _spread(ring, (P("x"), P("x")), P("x"), flat=True), (_normal(16, 24), _normal(24, 5)))

    def two_ways(x: Any, up: Any, down: Any) -> Any:
        """A layer whose hidden dim is divided over one axis and whose batch is over the other."""
        return lax.psum(jax.nn.gelu(x @ up) @ down, "y")

    layer = _spread(two_ways, (P("x"), P(None, "y"), P("y")), P("x"))
    yield Case("two-ways", layer, (_normal(8, 6), _normal(6, 10), _normal(10, 3)))
    keys = _spread(
        lambda key: jax.random.normal(jax.random.fold_in(key, lax.axis_index("x")), (3,)), P(), P("x"), flat=True
    )
    yield Case("random", lambda words: keys(jax.random.wrap_key_data(words)), (np.array([1, 2], np.uint32),))


def training_step(mean: Callable[[Any], Any]) -> Callable[..., Any]:
    """A step of training a small network. `mean` combines what each device has of a batch."""
    import jax
    import jax.numpy as jnp

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        return jnp.square(jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] - y).mean()

    def step(params: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda params: mean(loss(params, batch)))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    return step


# ---- the other process ----------------------------------------------------------------------------------------------


def write(folder: Path) -> None:
    """Write all cases, each in the forms of text that JAX has, and what JAX computes."""
    import jax

    names: list[str] = []
    for uses_shardy in (True, False):
        jax.config.update("jax_use_shardy_partitioner", uses_shardy)
        for case in all_cases():
            name = case.name if uses_shardy else f"{case.name}-gspmd"
            if not uses_shardy and case.name not in _OLDER:
                continue
            function = case.function if hasattr(case.function, "lower") else jax.jit(case.function)
            lowered = function.lower(*case.arguments)
            module = lowered.compiler_ir("stablehlo").operation
            (folder / f"{name}.generic").write_text(module.get_asm(print_generic_op_form=True, enable_debug_info=False))
            (folder / f"{name}.pretty").write_text(lowered.as_text())
            _check_call(lowered, case)
            arrays = {f"input{n:03d}": _bits(a) for n, a in enumerate(jax.tree.leaves(case.arguments))}
            results = jax.tree.leaves(lowered.compile()(*case.arguments))
            arrays |= {f"result{n:03d}": _bits(a) for n, a in enumerate(results)}
            np.savez(folder / f"{name}.npz", **arrays)
            names.append(name)
    (folder / "names.json").write_text(json.dumps(names))


def _check_call(lowered: Any, case: Case) -> None:
    """Call what JAX has lowered with arrays that are on several devices, where the case has such."""
    import jax

    import tilewright as tw

    if not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(case.arguments)):
        return
    found = tw.from_jax(lowered, target="interp")(*case.arguments)
    np.testing.assert_allclose(np.asarray(found), np.asarray(case.function(*case.arguments)), rtol=1e-5)


# Cases in the form of text that JAX had before Shardy, too.
_OLDER = (
    "psum-x",
    "axis_index",
    "diverging",
    "some-axes",
    "both-in-one-dim",
    "turned",
    "twice",
    "devices-in-another-order",
    "jit",
    "constrained",
    "data-parallel",
)


def _bits(array: Any) -> Any:
    """`.npz` has none of the types of `ml_dtypes`."""
    found = np.asarray(array)
    return (
        found.view(np.uint8)
        if found.dtype.itemsize == 1
        else found.astype(np.float32)
        if found.dtype.name == "bfloat16"
        else found
    )


@contextlib.contextmanager
def _written() -> Generator[tuple[Path, list[str]]]:
    """A folder of the cases, and their names."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={_DEVICES}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        command = [sys.executable, "-m", "tests.interop.stablehlo.mesh_cases", directory]
        subprocess.run(command, check=True, env=environment, cwd=_FOLDER)
        yield folder, json.loads((folder / "names.json").read_text())


def outcomes(match: str = "") -> Iterator[Outcome]:
    """Run the cases whose names match on the interpreter, in both forms of text, and compare."""
    with _written() as (folder, names):
        for name in names:
            if re.search(match, name):
                yield _outcome(folder, name)


def texts() -> list[tuple[str, str]]:
    """The names and texts of all, in both forms."""
    with _written() as (folder, names):
        return [(name, (folder / f"{name}.{form}").read_text()) for name in names for form in ("generic", "pretty")]


def _outcome(folder: Path, name: str) -> Outcome:
    import tilewright as tw
    from tilewright.errors import TilewrightError
    from tilewright.frontend.trace import digest

    generic, pretty = ((folder / f"{name}.{form}").read_text() for form in ("generic", "pretty"))
    with np.load(folder / f"{name}.npz") as arrays:
        inputs = [arrays[key] for key in sorted(arrays.files) if key.startswith("input")]
        expected = [arrays[key] for key in sorted(arrays.files) if key.startswith("result")]
    operations = tuple(sorted(set(re.findall(r'"((?:stablehlo|chlo|sdy)\.\w+)"', generic))))
    try:
        model = tw.from_stablehlo(generic, target="interp")
        given = [_typed(x, spec.dtype) for x, spec in zip(inputs, model.inputs, strict=True)]
        if digest(model.lower(*given).graph) != digest(tw.from_stablehlo(pretty).lower(*given).graph):
            return Outcome(name, "wrong", "the two forms of the text give different programs", operations)
        result = model(*given)
    except TilewrightError as error:
        return Outcome(name, "error", f"{type(error).__name__}: {error.message}"[:2000], operations)
    results = [_bits(r) for r in ([result] if len(model.outputs) == 1 else result)]
    steps = 1 << 17 if "bf16" in name else 32.0
    difference = compared(results, expected, steps)
    return Outcome(name, "wrong" if difference else "passed", difference, operations)


def _typed(array: Any, dtype: Any) -> Any:
    """An argument as it was before it was written."""
    storage = getattr(dtype, "numpy", dtype)
    return array if array.dtype == storage else array.view(storage)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
