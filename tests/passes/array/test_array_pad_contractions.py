"""Contractions whose depth is no whole number of steps of a matrix instruction."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.pass_support import applied, check_meaning, check_unchanged, parse, random_inputs, run, unit_of
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.passes.array.array_pad_contractions import ArrayPadContractionsPass
from tilewright.passes.base import Unit

PASS = ArrayPadContractionsPass()
AMX = "x86-64-amx"


def matmul(rows: int, depth: int, columns: int, given: str = "i8", made: str = "i32", more: str = "") -> str:
    return f"""
    func.func @main(%x: tensor<{rows}x{depth}x{given}>, %y: tensor<{depth}x{columns}x{given}>)
        -> tensor<{rows}x{columns}x{made}> {{
      %z = array.contract(%x, %y) {{left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1>,
        right_contract = array<i64: 0>{more}}} : tensor<{rows}x{columns}x{made}>
      func.return %z : tensor<{rows}x{columns}x{made}>
    }}
    """


def depths(unit: Unit) -> list[int]:
    found = [op for op in unit.main.body.block.ops if isinstance(op, array.ContractOp)]
    return [array_type(op.operands[0]).shape[op.left_contract[0]] for op in found]


@pytest.mark.parametrize(("depth", "padded"), [(100, 128), (65, 128), (63, 64), (8, 64)])
def test_depths_become_whole_steps(depth: int, padded: int) -> None:
    assert depths(check_meaning(PASS, matmul(40, depth, 24), AMX)) == [padded]


def test_narrow_floats_in_their_own_steps() -> None:
    text = matmul(40, 65, 24, "bf16", "f32")
    unit = applied(PASS, text, AMX)
    assert depths(unit) == [96]
    arrays = random_inputs(unit)
    exact = arrays[0].astype(np.float64) @ arrays[1].astype(np.float64)
    np.testing.assert_allclose(run(unit, arrays)[0], exact, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "machine"),
    [
        (matmul(40, 128, 24), AMX),  # whole steps
        (matmul(40, 7, 24), AMX),  # mostly zeros
        (matmul(15, 100, 24), AMX),  # few rows
        (matmul(40, 100, 7), AMX),  # few columns
        (matmul(31, 100, 24, "bf16", "f32"), AMX),  # few rows of floats
        (matmul(40, 100, 15, "bf16", "f32"), AMX),  # few columns of floats
        (matmul(40, 100, 24, "f32", "f32"), AMX),  # parts of f32 are padded as they are made
        (matmul(40, 100, 24, "i16", "i32"), AMX),  # no instruction
        (matmul(40, 100, 24), "x86-64-v4"),
        (matmul(40, 100, 24), "x86-64-v3"),
    ],
)
def test_others_stay(text: str, machine: str) -> None:
    check_unchanged(PASS, text, machine)


def test_transposed_operands_are_padded_as_they_are_stored() -> None:
    text = """
    func.func @main(%x: tensor<3x100x40xi8>, %y: tensor<3x24x100xi8>) -> tensor<3x40x24xi32> {
      %a = array.transpose(%x) {permutation = array<i64: 0, 2, 1>} : tensor<3x40x100xi8>
      %b = array.transpose(%y) {permutation = array<i64: 2, 0, 1>} : tensor<100x3x24xi8>
      %z = array.contract(%a, %b) {left_batch = array<i64: 0>, right_batch = array<i64: 1>,
        left_contract = array<i64: 2>, right_contract = array<i64: 0>} : tensor<3x40x24xi32>
      func.return %z : tensor<3x40x24xi32>
    }
    """
    unit = check_meaning(PASS, text, AMX)
    shapes = [array_type(op.results[0]).shape for op in unit.main.body.block.ops if isinstance(op, array.PadOp)]
    assert shapes == [(3, 128, 40), (3, 24, 128)]


def test_captured_weights_are_padded_at_compile_time() -> None:
    text = """
    func.func @main(%x: tensor<40x100xi8>) -> tensor<40x24xi32> {
      %w = array.constant() {value = 0 : index, resource = "w"} : tensor<24x100xi8>
      %t = array.transpose(%w) {permutation = array<i64: 1, 0>} : tensor<100x24xi8>
      %z = array.contract(%x, %t) {left_batch = array<i64>, right_batch = array<i64>, left_contract = array<i64: 1>,
        right_contract = array<i64: 0>} : tensor<40x24xi32>
      func.return %z : tensor<40x24xi32>
    }
    """
    weights = np.random.default_rng(0).integers(-100, 100, (24, 100)).astype(np.int8)
    unit = unit_of(parse(text), {"w": weights}, AMX)
    PASS.apply(unit)
    unit.module.verify()
    assert sum(isinstance(op, array.PadOp) for op in unit.main.body.block.ops) == 1
    x = random_inputs(unit)[0]
    np.testing.assert_array_equal(run(unit, [x])[0], x.astype(np.int32) @ weights.T.astype(np.int32))
