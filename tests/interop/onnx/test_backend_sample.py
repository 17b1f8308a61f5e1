"""A sample of the backend tests of the package `onnx`; `python -m tests.interop.onnx.suite` runs all."""

from __future__ import annotations

import collections

import pytest

pytest.importorskip("onnx")

from tests.interop.onnx.cases import KINDS, cases, run_case

_EVERY = {"node": 61, "simple": 4, "pytorch-operator": 7, "pytorch-converted": 13}


@pytest.mark.parametrize("kind", KINDS)
def test_no_backend_test_of_a_sample_is_wrong(kind: str) -> None:
    outcomes = [run_case(case) for case in cases(kind)[:: _EVERY[kind]]]
    failed = [f"{o.name}: {o.state}: {o.reason}" for o in outcomes if o.state in ("wrong", "error")]
    assert not failed, "\n".join(failed)
    counts = collections.Counter(o.state for o in outcomes)
    assert counts["passed"] >= 0.85 * len(outcomes) if kind == "node" else counts["passed"] > 0
