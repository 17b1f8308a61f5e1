"""The example kernels agree with NumPy in float64 on the interpreter and the CPU, for sizes that divide their tiles and
sizes that do not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import tilewright as tw

FOLDER = Path(__file__).parents[2] / "examples" / "kernels"
TARGETS = ("interp", "cpu")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"kernel_example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [2048, 1500, 1])
def test_vector_add(n: int, target: str) -> None:
    example = load("vector_add")
    x, y = floats(n), floats(n, seed=1)
    with tw.options(target=target):
        np.testing.assert_array_equal(example.vector_add(x, y), x + y)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(8, 512), (5, 300), (1, 7)])
def test_softmax(shape: tuple[int, int], target: str) -> None:
    example = load("softmax")
    x = 4 * floats(*shape)
    with tw.options(target=target):
        for kernel in (example.softmax, example.softmax_in_blocks):
            np.testing.assert_allclose(kernel(x), example.reference(x), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(8, 64), (6, 75)])
def test_layer_norm(shape: tuple[int, int], target: str) -> None:
    example = load("layer_norm")
    x, scale, shift = floats(*shape), floats(shape[1], seed=1), floats(shape[1], seed=2)
    with tw.options(target=target):
        result = example.layer_norm(x, scale, shift)
    np.testing.assert_allclose(result, example.reference(x, scale, shift), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sizes", [(128, 64, 128), (150, 70, 90), (3, 5, 2)])
def test_matmul(sizes: tuple[int, int, int], target: str) -> None:
    example = load("matmul")
    m, k, n = sizes
    a, b, bias = floats(m, k), floats(k, n, seed=1), floats(n, seed=2)
    with tw.options(target=target):
        product = example.matmul(a, b)
        fused = example.matmul_bias_gelu(a, b, bias)
    np.testing.assert_allclose(product, example.reference(a, b), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(fused, example.reference(a, b, bias), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [(64, 64), (40, 70), (5, 5)])
def test_flash_attention(sizes: tuple[int, int], causal: bool, target: str) -> None:
    example = load("flash_attention")
    queries, keys = sizes
    q, k, v = floats(1, 2, queries, 16), floats(1, 2, keys, 16, seed=1), floats(1, 2, keys, 16, seed=2)
    with tw.options(target=target):
        result = example.flash_attention(q, k, v, causal=causal, queries=32, keys=32)
    np.testing.assert_allclose(result, example.reference(q, k, v, causal), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_example_arguments_and_main(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    example = load(name)
    for kernel, arguments in example.EXAMPLE_ARGUMENTS.items():
        assert "tile.store" in getattr(example, kernel).lower(*arguments).ir()
    example.main()
    printed = capsys.readouterr().out.splitlines()
    assert printed
    assert all(float(line.rsplit(" ", 1)[1]) < 1e-3 for line in printed)
