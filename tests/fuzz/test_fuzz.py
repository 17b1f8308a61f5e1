"""Random programs that are new for each state of the compiler, some fixed ones, planted mistakes that must be found."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fuzz import sized
from tests.fuzz.bounds import apply, compare
from tests.fuzz.check import check
from tests.fuzz.generate import generate
from tests.fuzz.intervals import Bounded, apply_cast, apply_map
from tests.fuzz.mutants import BY_NAME, MUTANTS, hunt, planted
from tests.fuzz.printing import source_of
from tests.fuzz.run import run_seed
from tests.fuzz.seeds import first_seed
from tests.fuzz.shrink import shrink
from tests.sampling import count
from tilewright import dtypes

CHUNKS, PROGRAMS_PER_CHUNK = 5, count(7, 40)
FIRST_SEED = first_seed()


def check_seeds(seeds: range) -> None:
    for seed in seeds:
        case, outcome = run_seed(seed)
        if outcome.kind:
            small = shrink(case, lambda c, kind=outcome.kind: check(c).kind == kind, 30.0)
            pytest.fail(f"seed {seed}: {outcome.kind}: {outcome.message}\n{source_of(small)}", pytrace=False)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_fresh_programs(chunk: int) -> None:
    start = FIRST_SEED + chunk * PROGRAMS_PER_CHUNK
    print(f"seeds {start} to {start + PROGRAMS_PER_CHUNK - 1}")
    check_seeds(range(start, start + PROGRAMS_PER_CHUNK))


def test_fixed_programs() -> None:
    check_seeds(range(count(8, 15)))


def test_programs_are_large_and_mostly_certain() -> None:
    elements = unknown = nodes = 0
    names: set[str] = set()
    for seed in range(60):
        case = generate(seed)
        nodes += len(case.graph.nodes)
        names.update(n.op for n in case.graph.walk())
        elements += sum(e.value.size for e in case.expected)
        unknown += sum(int(e.unknown.sum()) for e in case.expected)
    assert nodes >= 60 * 18
    assert len(names) == 27
    assert unknown < elements / 100


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant_still_applies(mutant: object) -> None:
    with planted(mutant):  # type: ignore[arg-type]
        pass


# ---- the oracle -----------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_program() -> None:
    first, second = generate(5), generate(5)
    assert [n.op for n in first.graph.walk()] == [n.op for n in second.graph.walk()]
    for a, b in zip(first.expected, second.expected, strict=True):
        np.testing.assert_array_equal(a.value, b.value)


@pytest.mark.parametrize("fn", ["exp", "tanh", "sin", "log", "sqrt", "floor", "square", "reciprocal", "atan", "erf"])
@pytest.mark.parametrize("name", [d.name for d in dtypes.FLOATS])
def test_bounds_hold_for_moved_operands(fn: str, name: str) -> None:
    """Any operand within its error gives a result within the bound."""
    rng = np.random.default_rng(3)
    dtype = dtypes.by_name(name)
    x = rng.uniform(0.2, 9, 400).astype(dtype.numpy)
    error = np.where(rng.random(400) < 0.7, rng.uniform(0, 0.02, 400), 0.0)
    expected = apply_map(fn, [Bounded(x, error)])
    moved = (x.astype(np.float64) + error * rng.uniform(-1, 1, 400)).astype(dtype.numpy)
    moved = np.where(np.abs(moved.astype(np.float64) - x.astype(np.float64)) <= error, moved, x).astype(dtype.numpy)
    got = apply_map(fn, [Bounded(moved)])
    assert compare(expected, got.value).problem is None


def test_exact_values_have_no_room() -> None:
    value = np.array([1, 2, 3], np.float32)
    nudged = np.nextafter(value, np.float32(9))
    assert compare(Bounded(value), value).problem is None
    assert compare(Bounded(value), nudged).problem is not None
    assert compare(Bounded(np.array([-0.0, np.nan])), np.array([0.0, np.nan])).problem is None


def test_products_are_bounded_in_any_order_of_their_sums() -> None:
    """Operands wider than the result are multiplied as they are, and the sum alone is rounded."""
    rng = np.random.default_rng(6)
    left, right = (rng.standard_normal((20000, 11)).astype(np.float32) for _ in range(2))
    attributes = {"left_batch": (0,), "right_batch": (0,), "left_contract": (1,), "right_contract": (1,)}
    (expected,) = apply("contract", [Bounded(left), Bounded(right)], {**attributes, "dtype": "f16"})
    for _ in range(5):
        total = np.zeros(len(left), np.float32)
        for term in rng.permutation(11):
            total = total + left[:, term] * right[:, term]
        assert compare(expected, total.astype(np.float16)).problem is None
    assert (expected.errors == 0).mean() > 0.9


def test_uncertain_decisions_are_unknown() -> None:
    x, y = np.array([1.0, 2.0]), np.array([1.05, 3.0])
    result = apply_map("less", [Bounded(x, np.array([0.1, 0.1])), Bounded(y)])
    assert result.unknown.tolist() == [True, False]
    whole = apply_cast(Bounded(np.array([1.95, 1.5]), np.array([0.1, 0.1])), dtypes.i32)
    assert whole.unknown.tolist() == [True, False]


# ---- planted mistakes -----------------------------------------------------------------------------------------------

# Mistakes that a few dozen programs must show.
PLANTED = ("reverse off by one", "half of the lanes dropped", "missing epilogue", "reductions start from zero")


@pytest.mark.parametrize("name", PLANTED)
def test_planted_mistake_is_found(name: str) -> None:
    assert hunt(BY_NAME[name], range(40)) is not None


def test_fresh_functions_over_sizes() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + count(20, 60)):
        sized.check(seed)
