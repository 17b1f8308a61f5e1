"""Random tile kernels, new for each state of the compiler, some fixed ones, planted mistakes that must be found."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.fuzz.mutants import Mutant, hunt
from tests.fuzz.seeds import first_seed
from tests.fuzz.tile_shrink import shrink
from tests.fuzz.tile_steps import Kernel, generate, module_text
from tests.fuzz.tiles import check, expected_of, inputs_of
from tests.passes.pass_support import parse, unit_of
from tests.sampling import count

CHUNKS, KERNELS_PER_CHUNK = 4, count(4, 20)
FIRST_SEED = first_seed()


def check_seeds(seeds: range) -> None:
    for seed in seeds:
        kernel = generate(seed)
        outcome = check(kernel)
        if outcome.kind:
            small = shrink(kernel, lambda k, kind=outcome.kind: check(k).kind == kind, 30.0)
            pytest.fail(f"seed {seed}: {outcome.kind}: {outcome.message}\n{small.text}", pytrace=False)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_fresh_kernels(chunk: int) -> None:
    start = FIRST_SEED + chunk * KERNELS_PER_CHUNK
    print(f"seeds {start} to {start + KERNELS_PER_CHUNK - 1}")
    check_seeds(range(start, start + KERNELS_PER_CHUNK))


def test_fixed_kernels() -> None:
    check_seeds(range(count(4, 10)))


def test_kernels_are_large_and_mostly_defined() -> None:
    operations: set[str] = set()
    lines = elements = unknown = 0
    for seed in range(20):
        kernel = generate(seed)
        outcome = check(kernel, targets=())
        lines += kernel.text.count("\n")
        operations.update(re.findall(r"tile\.(?!ref)(\w+)", kernel.text))
        elements, unknown = elements + outcome.elements, unknown + outcome.unknown
    assert lines >= 20 * 60
    assert len(operations) == 19
    assert elements > 5_000
    assert unknown < elements / 3


def test_the_same_seed_gives_the_same_kernel() -> None:
    assert generate(5) == generate(5)
    assert generate(5).text != generate(6).text


# ---- the oracle -----------------------------------------------------------------------------------------------------

LOAD = "{map = affine_map<(d0, d1) -> (d0, d1)>}"


def first_output(*lines: str) -> np.ndarray:
    unit = unit_of(parse(module_text(2, 3, 1, lines)), {})
    return expected_of(unit, inputs_of(unit, 0))[2]


def test_sums_that_depend_on_their_order_are_undefined() -> None:
    large, small = 2.0**24, 2.0**23
    for value, is_defined in ((large, False), (small, True)):
        result = first_output(
            f"%row = tile.full() {{value = {value} : f64}} : tensor<2x2xf32>",
            '%sums = tile.reduce(%row) {fn = "add", axes = array<i64: 1>} : tensor<2xf32>',
            "%wide = tile.broadcast(%sums) {axes = array<i64: 0>} : tensor<2x3xf32>",
            f"tile.store(%wide, %out) {LOAD}",
        )
        assert np.isnan(result).all() != is_defined


def test_lanes_outside_an_array_are_undefined() -> None:
    result = first_output(
        "%tile = tile.load(%a) {map = affine_map<(d0, d1) -> (d0, d1 + 1)>} : tensor<2x3xf32>",
        f"tile.store(%tile, %out) {LOAD}",
    )
    assert np.isnan(result).tolist() == [[False, False, True]] * 2


def test_a_shrunk_kernel_still_fails() -> None:
    """Failing here means to hold a product; its loop, its branch and everything else goes."""
    kernel = next(k for k in map(generate, range(100)) if "tile.dot" in k.text and "tile.for" in k.text)

    def fails(candidate: Kernel) -> bool:
        parse(candidate.text)
        return "tile.dot" in candidate.text

    small = shrink(kernel, fails, 20.0)
    assert small.text.count("tile.dot") == 1
    assert small.text.count("\n") < 18


# ---- planted mistakes -----------------------------------------------------------------------------------------------

LOWERING = "passes.vectors.tile_lower_to_vectors:_Lowering"

PLANTED = (
    Mutant("carried tiles overwritten early", f"{LOWERING}._may_overwrite", "return False", "return True"),
    Mutant("carried tiles exchanged one by one", f"{LOWERING}._lower_yield", "if value in carried_tiles:", "if False:"),
    Mutant("product starts from zero", f"{LOWERING}._accumulator", "return buffer, True", "return buffer, False"),
    Mutant(
        "accumulator overwritten for its other users",
        f"{LOWERING}._only_feeds",
        "return all(use.operation is op for use in value.uses)",
        "return True",
    ),
    Mutant(
        "written right operand read where it lies",
        f"{LOWERING}._right",
        "direct[0].source not in self.places.conflicts",
        "True",
    ),
    Mutant(
        "written left operand read where it lies",
        f"{LOWERING}._reads",
        "load.source not in self.places.conflicts",
        "True",
    ),
    Mutant("different depths taken for one", f"{LOWERING}._lower_dot", "not same_bound(", "False and same_bound("),
    Mutant(
        "loads of a written array out of order",
        "passes.vectors.nest_segments:Segment.add",
        "self._keeps_its_order(op)",
        "False",
    ),
)


# The semantics of nests load whole tiles before they store: what one nest does to itself shows in native code only.
NATIVE = ("carried tiles overwritten early",)
# Seeds that show them, or are not far from some that do.
FIRST_SEEDS = {
    "carried tiles overwritten early": 245,
    "carried tiles exchanged one by one": 210,
    "product starts from zero": 205,
    "accumulator overwritten for its other users": 225,
    "written right operand read where it lies": 215,
    "written left operand read where it lies": 312,
    "different depths taken for one": 255,
    "loads of a written array out of order": 201,
}


@pytest.mark.parametrize("mutant", PLANTED, ids=lambda m: m.name)
def test_planted_mistake_is_found(mutant: Mutant) -> None:
    targets = None if mutant.name in NATIVE else ()
    first = FIRST_SEEDS[mutant.name]
    assert hunt(mutant, range(first, first + 200), lambda seed: check(generate(seed), targets).kind) is not None
