"""Random programs of `jax.lax`; `python -m tests.interop.stablehlo.sampler` tries many more."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")

from tests.interop.stablehlo.sampler import run


def test_random_programs_are_as_jax_has_them() -> None:
    outcomes = run(6, seed=1)
    assert not [(seed, o.state, o.reason) for seed, o in outcomes if o.state not in ("passed", "jax")]
