"""The order in which `einsum` contracts three and more operands, against every order."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.api import functions_einsum

SIZES = dict(zip("abcdefg", (2, 7, 3, 11, 5, 13, 4), strict=True))


def random_subscripts(seed: int, operands: int) -> str:
    """Operands of one to three axes, each of which another one has, too, and a result of some of the axes."""
    draw = random.Random(seed)
    terms = [draw.sample("abcdefg", draw.randint(1, 3)) for _ in range(operands)]
    named = sorted({letter for term in terms for letter in term})
    result = draw.sample(named, draw.randint(0, min(3, len(named))))
    return ",".join(map("".join, terms)) + "->" + "".join(result)


def multiplications(left: set[str], right: set[str]) -> int:
    return math.prod(SIZES[letter] for letter in left | right)


def least(terms: Sequence[frozenset[str]], result: frozenset[str]) -> int:
    """The multiplications of the best order of all: each pair first, and the best of what is left."""
    if len(terms) == 1:
        return 0
    found: list[int] = []
    for j in range(len(terms)):
        for i in range(j):
            others = [term for n, term in enumerate(terms) if n not in (i, j)]
            kept = (terms[i] | terms[j]) & frozenset(result.union(*others))
            found.append(multiplications({*terms[i]}, {*terms[j]}) + least([*others, kept], result))
    return min(found)


@pytest.mark.parametrize("operands", [3, 4, 5])
@pytest.mark.parametrize("seed", range(6))
def test_the_order_takes_the_fewest_multiplications(operands: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    subscripts = random_subscripts(seed, operands)
    terms, result = subscripts.split("->")
    counted: list[int] = []
    join = functions_einsum.join

    def counting(left: Any, left_labels: Any, right: Any, right_labels: Any, *others: Any) -> Any:
        counted.append(multiplications({*left_labels}, {*right_labels}))
        return join(left, left_labels, right, right_labels, *others)

    monkeypatch.setattr(functions_einsum, "join", counting)
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal([SIZES[letter] for letter in term]) for term in terms.split(",")]
    found = tw.jit(lambda *xs: tw.einsum(subscripts, *xs))(*arrays)
    np.testing.assert_allclose(found, np.einsum(subscripts, *arrays), rtol=1e-12, atol=1e-12)
    best = least([frozenset(term) for term in terms.split(",")], frozenset(result))
    # NumPy counts a step that sums as twice one that does not.
    assert sum(counted) <= 2 * best


def test_a_vector_goes_first() -> None:
    x, y, z = (np.ones((64, 64), np.float32) for _ in range(3))
    v = np.ones(64, np.float32)
    text = tw.jit(lambda *xs: tw.einsum("ab,bc,cd,d->a", *xs)).lower(x, y, z, v).ir("array")
    contractions = [line for line in text.splitlines() if "array.contract(" in line]
    assert len(contractions) == 3
    assert all(line.endswith("tensor<64xf32>") for line in contractions)


def test_more_operands_and_axes_than_the_search_takes() -> None:
    rng = np.random.default_rng(0)
    matrices = [rng.standard_normal((3, 3)) for _ in range(20)]
    chain = "".join(chr(ord("a") + n) for n in range(21))
    subscripts = ",".join(chain[n : n + 2] for n in range(20)) + f"->{chain[0]}{chain[-1]}"
    found = tw.jit(lambda *xs: tw.einsum(subscripts, *xs))(*matrices)
    np.testing.assert_allclose(found, np.linalg.multi_dot(matrices), rtol=1e-10)
    wide = [rng.standard_normal((1,) * 54 + (2,)) for _ in range(3)]
    found = tw.jit(lambda *xs: tw.einsum("...a,...a,...a->...a", *xs))(*wide)
    np.testing.assert_allclose(found, np.prod(wide, axis=0), rtol=1e-12)
