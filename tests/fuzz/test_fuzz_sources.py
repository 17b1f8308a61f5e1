"""Random kernels as source text: branches, names, edges through every operation; planted mistakes must be found."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fuzz.mutants import Mutant, hunt
from tests.fuzz.seeds import first_seed
from tests.fuzz.source_mutants import PLANTED, kind_of
from tests.fuzz.source_reference import Language, Reference, Tile
from tests.fuzz.sources import check, expected_of, generate, shrunk
from tests.sampling import ALL

FRESH, FIXED = 4, 4


@pytest.mark.parametrize("first", [first_seed(), 0], ids=["fresh", "fixed"])
def test_kernels_agree_with_python(first: int) -> None:
    for seed in range(first, first + (FRESH if first else FIXED)):
        source = generate(seed)
        outcome = check(source)
        if outcome.kind:
            small = shrunk(source, 30.0)
            pytest.fail(f"seed {seed}: {outcome.kind}: {outcome.message}\n{small.text}", pytrace=False)


def test_kernels_are_varied_and_mostly_defined() -> None:
    sources = [generate(seed) for seed in range(60)]
    text = "".join(source.text for source in sources)
    for part in ("if ", "elif ", "else:", "range(3)", "range(10)", "reshape", "concat", "tw.dot", "fill=", "arange"):
        assert part in text
    expected = [found for found in map(expected_of, (s for s in sources if not s.refused)) if found is not None]
    elements, unknown = (sum(int(f(e)) for each in expected for e in each) for f in (np.size, _undefined))
    assert len(expected) > 40
    assert unknown < elements / 2
    assert 5 < sum(bool(source.refused) for source in sources) < 25
    assert generate(5) == generate(5)


def _undefined(array: np.ndarray) -> int:
    return int(np.isnan(array).sum())


def test_the_reference_poisons_what_is_outside() -> None:
    x = Reference(np.arange(6.0))
    window = x[4:8]
    assert np.isnan(window.values).tolist() == [False, False, True, True]
    assert float(Language.sum(window + 1).values) == 11
    assert float(Language.max(x[-3:-1]).values) == -np.inf
    assert np.isnan((window[None] + Tile(np.ones((2, 1)))).T.values).sum() == 4
    assert float(Language.sum(x[6:7][0].broadcast((3,)) + 1).values) == 0
    assert np.isnan(Language.sum(x[6:7][None], axis=0).values).all()


# ---- planted mistakes -----------------------------------------------------------------------------------------------

# One of each kind of mistake; the command plants all. The first seed that shows it is the one given, or not far.
SHOWN = {
    "reshape keeps no edges": 1,
    "copies of a lane count": 1,
    "one position outside counts": 1,
    "reductions fill with 0": 1,
    "edges of the first branch decide": 1,
    "names of one branch leak": 1,
}


@pytest.mark.parametrize("mutant", [m for m in PLANTED if ALL or m.name in SHOWN], ids=lambda m: m.name)
def test_planted_mistake_is_found(mutant: Mutant) -> None:
    first = SHOWN.get(mutant.name, 1)
    assert hunt(mutant, range(first, first + 100), kind_of) is not None
