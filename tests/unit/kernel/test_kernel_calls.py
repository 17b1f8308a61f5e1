"""Calling kernels: in place and for fresh results, inside traced programs, as stages, from DLPack arrays."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_support import TARGETS, numbers, run

import tilewright as tw
from tilewright.errors import DTypeError
from tilewright.frontend.pyast import Specialisation


@tw.kernel
def add(x: tw.In["N"], y: tw.In["N"], z: tw.Out["N"], *, block: int = 8):
    for i in tw.grid(z, block):
        z[i] = x[i] + y[i]


@tw.kernel
def matmul(a: tw.In["M K"], b: tw.In["K N"], c: tw.Out["M N"], *, bm: int = 16, bn: int = 16, bk: int = 8):
    for i, j in tw.grid(c, (bm, bn)):
        acc = tw.zeros((bm, bn), tw.f32)
        for k in tw.steps(a, axis=1, size=bk):
            acc = tw.dot(a[i, k], b[k, j], acc)
        c[i, j] = acc


@tw.kernel
def update(x: tw.In["N"], state: tw.InOut["N"], norm: tw.Out["1"]):
    for _ in tw.grid((1,), (1,)):
        new = state[:] * 0.5 + x[:]
        state[:] = new
        norm[0] = tw.sum(tw.abs(new))


@pytest.mark.parametrize("target", TARGETS)
def test_results_are_written_in_place_or_returned(target: str) -> None:
    x, y = numbers(20), numbers(20, seed=1)
    z = np.empty_like(x)
    assert run(add, x, y, z, target=target) is None
    np.testing.assert_array_equal(z, x + y)
    np.testing.assert_array_equal(run(add, x, y, target=target, block=3), x + y)
    np.testing.assert_array_equal(run(add, y=y, x=x, target=target), x + y)
    np.testing.assert_array_equal(run(add, x[::2], y[::-2], target=target), x[::2] + y[::-2])


@pytest.mark.parametrize("target", TARGETS)
def test_inout_and_out_together(target: str) -> None:
    x, state = numbers(9), numbers(9, seed=1)
    expected = (state * np.float32(0.5) + x).astype(np.float32)
    norm = run(update, x, state, target=target)
    np.testing.assert_allclose(state, expected, rtol=1e-6)
    np.testing.assert_allclose(norm, [np.abs(expected).sum()], rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_calls_inside_traced_programs(target: str) -> None:
    a, b = numbers(10, 7), numbers(7, 12, seed=1)

    @tw.jit(target=target)
    def model(a: Any, b: Any) -> Any:
        product = tw.exp(matmul(a, b * 2) * 0.1)
        again = matmul(product, tw.matrix_transpose(product), bm=8)
        state, norm = update(tw.sum(again, axis=0), tw.ones(10))
        return product, again, state, norm

    with tw.options(cache=False):
        product, again, state, norm = model(a, b)
    wide = np.exp((a.astype(np.float64) @ (b * 2)) * 0.1)
    twice = wide @ wide.T
    new = 0.5 + twice.sum(0)
    for got, wanted in ((product, wide), (again, twice), (state, new), (norm, [np.abs(new).sum()])):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_captured_arrays_are_operands() -> None:
    weights = numbers(7, 12)
    a = numbers(10, 7, seed=1)
    for target in TARGETS:
        with tw.options(cache=False):
            result = tw.jit(lambda a: matmul(a, weights), target=target)(a)
        np.testing.assert_allclose(result, a.astype(np.float64) @ weights, rtol=1e-5, atol=1e-5)


def test_stages() -> None:
    types = tuple(tw.ShapeDtype(s, tw.f32) for s in ((20, 30), (30, 40), (20, 40)))
    lowered = matmul.lower(*types, bm=8)
    assert "tile.dot" in lowered.ir()
    assert lowered.ir("tile").count("tensor<8x16xf32>") > 0
    compiled = lowered.compile("cpu")
    assert "scheduled.dot" in compiled.ir("scheduled")
    assert "array.call" in compiled.ir("array")
    assert "tile.dot" in compiled.ir("tile")
    assert "tw_main" in compiled.ir("llvm")
    assert "tw_main" in compiled.asm()
    assert compiled.cost()["seconds"] > 0
    assert isinstance(compiled.explain(), str)
    a, b, c = numbers(20, 30), numbers(30, 40), np.zeros((20, 40), np.float32)
    compiled(a, b, c)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)
    with pytest.raises(tw.TilewrightError, match="specialised for"):
        compiled(a, b, np.zeros((20, 41), np.float32))
    assert "tile.dot" in lowered.compile("interp").ir("tile")
    assert str(matmul.lower(*types[:2]).specialisation.types[2]) == "f32[20, 40]"


def test_saved_kernels_run_without_the_compiler(tmp_path: Path) -> None:
    from tilewright.runtime.program import load

    types = (tw.ShapeDtype((10,), tw.f32),) * 3
    path = tmp_path / "add.twp"
    add.lower(*types).compile("cpu").save(str(path))
    x, y = numbers(10), numbers(10, seed=1)
    np.testing.assert_array_equal(load(path)(x, y), x + y)


def test_every_operation_has_its_place() -> None:
    lowered = matmul.lower(*(tw.ShapeDtype((16, 16), tw.f32),) * 3)
    source = Path(__file__).read_text().splitlines()
    ops = [
        op
        for op in lowered.specialisation.build().walk()
        if op.name in ("tile.dot", "tile.load", "tile.store", "tile.full")
    ]
    for op in ops:
        at: Any = op.location
        assert at.filename.data == __file__
        text = source[at.line.data - 1][at.column.data - 1 :]
        expected = {"tile.dot": "tw.dot", "tile.full": "tw.zeros", "tile.store": "c[i, j]"}.get(op.name, ("a[", "b["))
        assert text.startswith(expected)


def test_defaults_targets_and_kinds_of_arrays() -> None:
    @tw.kernel(target="interp")
    def halves(x: tw.In["N", tw.i32], y: tw.Out["N", tw.f16]):
        for i in tw.grid(y, 4):
            y[i] = (x[i] / 2).astype(tw.f16)

    result = halves(np.arange(5, dtype=np.int32))
    assert result.dtype == np.float16
    np.testing.assert_array_equal(result, np.arange(5) / 2)

    class Shared:
        """An array of another library, known by its DLPack methods only."""

        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **keywords: Any) -> Any:
            return self.array.__dlpack__(**keywords)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    x = numbers(5)
    z = np.zeros_like(x)
    with tw.options(target="interp"):
        add(Shared(x), Shared(x), z)
    np.testing.assert_array_equal(z, 2 * x)


SOURCE = """
import tilewright as tw
BLOCK = {block}
def helper(x):
    return x * {factor}
@tw.kernel
def scale(x: tw.In["N"], y: tw.Out["N"], *, extra: float = 0.0):
    for i in tw.grid(x, BLOCK):
        y[i] = helper(x[i]) + extra
"""


def _scale(block: int = 4, factor: int = 2) -> tw.Kernel:
    text = SOURCE.format(block=block, factor=factor)
    file = f"<digest {block} {factor}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": "cell"}
    exec(compile(text, file, "exec"), names)
    return names["scale"]


def _digest(kernel: tw.Kernel, n: int = 8, **static: Any) -> str:
    specialisation = kernel.lower(tw.ShapeDtype((n,), tw.f32), **static).specialisation
    assert isinstance(specialisation, Specialisation)
    return specialisation.digest


def test_the_digest_stands_for_everything_that_a_kernel_depends_on() -> None:
    same = _digest(_scale())
    assert same == _digest(_scale())
    others = {
        _digest(_scale(block=8)),
        _digest(_scale(factor=3)),
        _digest(_scale(), n=9),
        _digest(_scale(), extra=1.0),
        _digest(_scale(), extra=1),
    }
    assert len(others) == 5
    assert same not in others


def _double(x: Any) -> Any:
    return x * 2


def _half(x: Any) -> Any:
    return x * 0.5


def test_functions_are_compile_time_values() -> None:
    @tw.kernel
    def apply(x: tw.In["N"], y: tw.Out["N"], *, f: Any, g: Any = tw.negative):
        for i in tw.grid(y, 4):
            y[i] = g(f(x[i]))

    x = numbers(6)
    for target in TARGETS:
        np.testing.assert_array_equal(run(apply, x, f=_double, target=target), -2 * x)
        np.testing.assert_array_equal(run(apply, x, f=_half, g=tw.abs, target=target), np.abs(x) / 2)
    digests = {_digest(apply, f=_double), _digest(apply, f=_half), _digest(apply, f=_half, g=tw.abs)}
    assert len(digests) == 3
    assert _digest(apply, f=_double) in digests


WARM = """
import sys
import numpy as np
sys.path.insert(0, {folder!r})
from cached_kernel import add
x = np.arange(5, dtype=np.float32)
assert (add(x, x) == 2 * x).all()
print("xdsl" in sys.modules, "llvmlite" in sys.modules)
"""
CACHED = """
import tilewright as tw
@tw.kernel
def add(x: tw.In["N"], y: tw.In["N"], z: tw.Out["N"], *, block: int = 8):
    for i in tw.grid(z, block):
        z[i] = x[i] + y[i]
"""


def test_a_warm_start_builds_no_ir(tmp_path: Path) -> None:
    (tmp_path / "cached_kernel.py").write_text(CACHED)
    environment = os.environ | {"TW_CACHE_DIR": str(tmp_path / "cache"), "TW_CACHE": "1"}
    command = [sys.executable, "-c", WARM.format(folder=str(tmp_path))]
    root = Path(__file__).parents[3]
    runs = [
        subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    ]
    assert runs == [["True", "True"], ["False", "False"]]


def test_unused_values_are_dropped() -> None:
    @tw.kernel
    def wasteful(x: tw.In["N"], y: tw.Out["N"]):
        for i in tw.grid(y, 4):
            unused = tw.exp(x[i])
            total = tw.zeros((4,))
            for t in range(20):
                unused = unused + t
                total = total + 1
            y[i] = x[i]

    text = wasteful.lower(tw.ShapeDtype((8,), tw.f32)).ir()
    assert "tile.map" not in text
    assert text.count("tile.load") == 1


def test_a_call_in_a_program_for_many_sizes_is_compiled_for_each() -> None:
    """What a kernel does beyond the real elements of a padded array is not known."""
    sized = tw.jit(lambda x: add(x, x) + 1, target="interp", dims={"x": (tw.Dim(1, 24),)})
    x = np.arange(7, dtype=np.float32)
    np.testing.assert_array_equal(sized(x), 2 * x + 1)
    assert "`call`" in sized.programs[0].why_exact


def test_a_saved_kernel_names_its_parameters_in_errors(tmp_path: Path) -> None:
    @tw.kernel
    def negative(values: tw.In["N"], result: tw.Out["N"]):
        for i in tw.grid(result, 4):
            result[i] = -values[i]

    x = np.ones(6, np.float32)
    path = str(tmp_path / "negative.twp")
    negative.lower(x).compile("cpu").save(path)
    with pytest.raises(DTypeError, match="`values` of `negative` must be f32"):
        tw.load(path)(x.astype(np.float64))
