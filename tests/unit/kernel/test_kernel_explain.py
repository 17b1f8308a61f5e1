"""`explain` of programs and kernels, lowered, compiled and saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.program import load

X = np.ones((48, 32), np.float32)
WEIGHTS = np.arange(32 * 64, dtype=np.float32).reshape(32, 64)


def layers(x):
    x = tw.nn.softmax(x @ WEIGHTS, axis=-1)
    return x + tw.sum(x, axis=-1, keepdims=True)


def test_every_kernel_of_a_program_is_explained() -> None:
    compiled = tw.jit(layers).lower(X).compile("cpu:x86-64-v3")
    text = compiled.explain()
    assert text.startswith(compiled.executable.explain())
    kernels = [line.split('"')[1] for line in compiled.ir("tile").splitlines() if "tile.kernel" in line]
    assert len(kernels) >= 2
    for name in kernels:
        assert f"`{name}`" in text
    assert text.count(" on x86-64-v3: ") == len(kernels)
    assert "test_kernel_explain.py:18  x = tw.nn.softmax(x @ WEIGHTS, axis=-1)" in text
    assert "test_kernel_explain.py:19  return x + tw.sum(" in text
    on_gpu = compiled.explain("sm_90a")
    assert on_gpu.count(" on sm_90a: ") == len(kernels)
    assert "x86-64-v3:" not in on_gpu


def test_lowered_programs_are_explained_without_compiling() -> None:
    lowered = tw.jit(layers).lower(X)
    text = lowered.explain("sm_90a")
    assert "on sm_90a: " in text
    assert lowered.compile("cpu").explain("sm_90a").endswith(text)


@tw.kernel
def doubled(x: tw.In["M N"], y: tw.InOut["M N"], *, block: int = 16):
    for i, j in tw.grid(x, (block, block)):
        sum_of = x[i, j] + y[i, j]
        y[i, j] = sum_of


def test_kernels_are_explained() -> None:
    lowered = doubled.lower(X, X)
    assert "sum_of = add(" in lowered.explain("sm_90a")
    compiled = lowered.compile("cpu")
    assert compiled.explain("sm_90a").endswith(lowered.explain("sm_90a"))
    assert "sum_of = add(" in compiled.explain()


def test_interpreted_programs_have_layouts_on_a_machine_only() -> None:
    compiled = tw.jit(layers).lower(X).compile("interp")
    assert compiled.explain() == compiled.executable.explain()
    assert "on sm_90a: " in compiled.explain("sm_90a")


def test_layouts_that_contradict_each_other_are_told_in_place() -> None:
    @tw.kernel
    def strange(x: tw.In["M N"], y: tw.Out["M N"]):
        for i, j in tw.grid(x, (16, 16)):
            y[i, j] = tw.layout(x[i, j], "(16, 16) : [16@warp | 16@lane]")

    lowered = strange.lower(X, X)
    assert "none" not in lowered.explain("sm_90a").splitlines()[0]
    refused = lowered.explain("x86-64-v3")
    assert ": none" in refused.splitlines()[0]
    assert "error[TW0303]" in refused


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(tw.TilewrightError, match="there is no machine `sm_1`"):
        tw.jit(layers).lower(X).explain("sm_1")


def test_a_saved_program_refuses(tmp_path: Path) -> None:
    tw.jit(layers).lower(X).compile("cpu").save(str(tmp_path / "p.twp"))
    with pytest.raises(tw.TilewrightError, match="holds code and no tiles") as caught:
        load(tmp_path / "p.twp").explain()
    assert caught.value.help is not None
    assert "compile" in caught.value.help
