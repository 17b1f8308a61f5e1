"""Which sums of contractions `array-join-contractions` joins, and what it leaves."""

from __future__ import annotations

import pytest

from tests.passes.pass_support import check_meaning, check_unchanged, remarks
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.array.array_join_contractions import ArrayJoinContractionsPass
from tilewright.passes.base import Unit

PASS = ArrayJoinContractionsPass()
ROWS, COLUMNS = 24, 40


def terms(depths: list[int], lines: str, *, returned: str = "%sum", stored: bool = False) -> str:
    """A program with a contraction `%p0`, `%p1` ... for each depth, and what `lines` compute of them. The left operands
    are `%a0` ..., stored with the depth first, and transposed where that is `stored`."""
    arguments = ", ".join(
        f"%a{n}: tensor<{k}x{ROWS}xi32>, %b{n}: tensor<{k}x{COLUMNS}xi32>" for n, k in enumerate(depths)
    )
    products: list[str] = []
    for n, k in enumerate(depths):
        name, axis = (f"%t{n}", 1) if stored else (f"%a{n}", 0)
        if stored:
            products.append(
                f"{name} = array.transpose(%a{n}) {{permutation = array<i64: 1, 0>}} : tensor<{ROWS}x{k}xi32>"
            )
        products.append(
            f"%p{n} = array.contract({name}, %b{n}) {{left_batch = array<i64>, right_batch = array<i64>, "
            f"left_contract = array<i64: {axis}>, right_contract = array<i64: 0>}} : {RESULT}"
        )
    body = "\n".join(products)
    return f"""
    func.func @main({arguments}, %x: {RESULT}) -> {RESULT} {{
      {body}
      {lines}
      func.return {returned} : {RESULT}
    }}
    """


RESULT = f"tensor<{ROWS}x{COLUMNS}xi32>"


def add(name: str, first: str, second: str) -> str:
    return f'{name} = array.map({first}, {second}) {{fn = "add"}} : {RESULT}\n'


def contractions(unit: Unit) -> list[array.ContractOp]:
    return [op for op in unit.main.body.block.ops if isinstance(op, array.ContractOp)]


def depths_of(unit: Unit) -> list[int]:
    return [array_type(op.operands[1]).shape[0] for op in contractions(unit)]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("depths", [[2, 3], [1, 1, 1, 1], [8, 2, 5]])
def test_a_sum_is_one_contraction_of_all_depths(depths: list[int], stored: bool) -> None:
    lines, total = "", "%p0"
    for n in range(1, len(depths)):
        lines += add(f"%s{n}", total, f"%p{n}")
        total = f"%s{n}"
    unit = check_meaning(PASS, terms(depths, lines, returned=total, stored=stored))
    assert depths_of(unit) == [sum(depths)]
    assert [decision for decision, _ in remarks(unit, PASS.name)] == ["one contraction"]
    concats = [op for op in unit.main.body.block.ops if isinstance(op, array.ConcatOp)]
    assert [op.axis for op in concats] == [0, 0]  # as they are stored


def test_other_terms_are_added_as_before() -> None:
    lines = add("%s", "%x", "%p0") + add("%t", "%p1", "%x") + add("%sum", "%s", "%t")
    unit = check_meaning(PASS, terms([2, 3], lines))
    assert depths_of(unit) == [5]


def test_contractions_of_another_form_stay() -> None:
    other = f"""
      %u = array.transpose(%b1) {{permutation = array<i64: 1, 0>}} : tensor<{COLUMNS}x3xi32>
      %q = array.contract(%a1, %u) {{left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 0>,
        right_contract = array<i64: 1>}} : {RESULT}
    """
    check_unchanged(PASS, terms([2, 3], other + add("%sum", "%q", "%p0")))


def test_sums_that_share_operands_share_the_concatenation() -> None:
    lines = add("%sum", "%p0", "%p1")
    text = terms([2, 3], lines).replace("func.return %sum", f"""
      %c0 = array.contract(%b0, %a0) {{left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 0>,
        right_contract = array<i64: 0>}} : tensor<{COLUMNS}x{ROWS}xi32>
      %c1 = array.contract(%b1, %a1) {{left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 0>,
        right_contract = array<i64: 0>}} : tensor<{COLUMNS}x{ROWS}xi32>
      %c = array.map(%c0, %c1) {{fn = "add"}} : tensor<{COLUMNS}x{ROWS}xi32>
      %d = array.transpose(%c) {{permutation = array<i64: 1, 0>}} : {RESULT}
      %e = array.map(%sum, %d) {{fn = "multiply"}} : {RESULT}
      func.return %e""")  # fmt: skip
    unit = check_meaning(PASS, text)
    assert depths_of(unit) == [5, 5]
    assert sum(isinstance(op, array.ConcatOp) for op in unit.main.body.block.ops) == 2


@pytest.mark.parametrize(
    "lines",
    [
        add("%sum", "%p0", "%x"),  # one contraction
        add("%s", "%p0", "%p1") + add("%t", "%s", "%p0") + add("%sum", "%t", "%p1"),  # with other users
        f'%sum = array.map(%p0, %p1) {{fn = "maximum"}} : {RESULT}\n',
    ],
)
def test_others_stay(lines: str) -> None:
    check_unchanged(PASS, terms([2, 3], lines))


def test_deep_contractions_stay() -> None:
    """Their operands are larger than what they compute."""
    check_unchanged(PASS, terms([2, 64], add("%sum", "%p0", "%p1")))
