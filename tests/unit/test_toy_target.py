"""A target outside the package, in few lines: registered, it compiles what the array fuzzer makes, and is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tests.toy_target
import tilewright as tw
from tests.fuzz.bounds import compare
from tests.fuzz.generate import generate
from tests.fuzz.seeds import first_seed
from tests.sampling import count
from tests.toy_target import TARGET
from tilewright.errors import TargetError, UnsupportedOnTargetError
from tilewright.frontend.build import build_module
from tilewright.pipelines import compile_module
from tilewright.targets import base

FOLDER = Path(tests.toy_target.__file__).parent
MOST_LINES = 300
CHUNKS, PROGRAMS_PER_CHUNK = 3, count(6, 40)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_REGISTERED", {})
    base.register(TARGET)


def test_it_has_few_lines() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in FOLDER.iterdir() if path.is_file())
    assert 0 < lines < MOST_LINES


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_fuzzed_programs(chunk: int) -> None:
    """Programs are generated with bounds of their results, from NumPy alone."""
    start = (first_seed() if chunk else 0) + chunk * PROGRAMS_PER_CHUNK
    compared = 0
    for seed in range(start, start + PROGRAMS_PER_CHUNK):
        case = generate(seed)
        with tw.options(cache=False, verify=1):
            module, constants = build_module(case.graph), dict(case.graph.constants)
            executable = compile_module(module, constants, "toy", keep_stages=False)
        outputs = executable(*(x.copy() for x in case.inputs))
        for expected, got in zip(case.expected, outputs, strict=True):
            verdict = compare(expected, got)
            assert verdict.problem is None, f"seed {seed}: {verdict.problem}"
            compared += verdict.elements
    assert compared > 0


def test_a_user_names_it() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    compiled = tw.jit(lambda x: tw.sum(x * 2, axis=1)).lower(x).compile(target="toy")
    np.testing.assert_array_equal(compiled(x), [6.0, 24.0])
    assert "range(" in compiled.asm()
    assert "tile.kernel" in compiled.ir("tile")


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison sees what an emitter does: sums that lose their last term are wrong."""
    from tests.toy_target import emit

    folded = emit.folded
    monkeypatch.setattr(emit, "folded", lambda combine, values: folded(combine, values[:-1] or values))
    x = np.ones((2, 3), np.float32)
    compiled = tw.jit(lambda x: tw.sum(x, axis=1)).lower(x).compile(target="toy")
    np.testing.assert_array_equal(compiled(x), [2.0, 2.0])


def test_names_are_given_once() -> None:
    base.register(TARGET)
    with pytest.raises(TargetError, match="there is a target `toy` already"):
        base.register(base.Target("toy", True, False, TARGET.machine_named, TARGET.executable))
    with pytest.raises(TargetError, match="there is a target `cpu` already"):
        base.register(base.Target("cpu", True, False, TARGET.machine_named, TARGET.executable))
    with pytest.raises(TargetError) as caught:
        base.target_named("gpu")
    assert caught.value.help == "use cpu, cuda, grid, interp, null, toy, or one with a machine: TARGET:MACHINE"


def test_what_it_lacks_is_refused() -> None:
    x = np.ones(4, np.float32)
    with pytest.raises(UnsupportedOnTargetError):
        tw.jit(lambda x: x + 1).lower(x).compile(target="toy").save("toy.twp")
