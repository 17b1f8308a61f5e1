"""Registers in vectors of a few: every count of lanes, on the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from llvmlite import ir

from tests.cuda.test_chip_emitters import I32, Small, i32
from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.targets.cuda.eight_bits import number_of, rounded_code
from tilewright.targets.llvm.values import FLOAT, declare_features
from tilewright.targets.simt.lane_groups import WIDTH, Grouped, grouped, groups_of

E4M3, E5M2 = dtypes.f8e4m3fn, dtypes.f8e5m2


@pytest.mark.parametrize("lanes", range(1, WIDTH + 1))
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=repr)
def test_eight_bits_two_at_a_time(dtype: DType, lanes: int) -> None:
    kernel = Small("sm_90a")
    declare_features(kernel.module, [E4M3.name, E5M2.name])
    builder = kernel.builder
    first = builder.sub(builder.mul(kernel.thread, i32(8)), i32(512))
    whole = [builder.sitofp(builder.add(first, i32(n)), FLOAT) for n in range(lanes)]
    scaled = [builder.fmul(number, ir.Constant(FLOAT, 1.125)) for number in whole]
    codes = rounded_code(builder, grouped(builder, scaled), dtype)
    back = Grouped(builder, [number_of(builder, codes, dtype)], range(lanes))
    taken = Grouped(builder, [codes], range(lanes))
    results = [each for n in range(lanes) for each in (builder.zext(taken[n], I32), back[n])]
    found = kernel.run(results).reshape(128, lanes, 2)
    numbers = (np.arange(128)[:, None] * 8 - 512 + np.arange(lanes)).astype(np.float32) * np.float32(1.125)
    expected = numbers.astype(dtype.numpy)
    np.testing.assert_array_equal(found[:, :, 0], expected.view(np.uint8))
    np.testing.assert_array_equal(found[:, :, 1].view(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 17])
def test_registers_come_out_of_their_vectors(count: int) -> None:
    kernel = Small("sm_90a")
    builder = kernel.builder
    numbers = list(range(3, 3 + 2 * count, 2))
    values = {n: builder.add(kernel.thread, i32(1000 * n)) for n in numbers}
    vectors = [grouped(builder, [values[n] for n in group]) for group in groups_of(numbers)]
    held = Grouped(builder, vectors, numbers)
    assert list(held) == numbers
    assert len(held) == count
    found = kernel.run([held[n] for n in numbers])
    np.testing.assert_array_equal(found, np.arange(128)[:, None] + 1000 * np.array(numbers))


@pytest.mark.parametrize("constant", [True, False])
def test_one_value_in_all_lanes(constant: bool) -> None:
    kernel = Small("sm_90a")
    value = i32(7) if constant else kernel.thread
    vector = grouped(kernel.builder, [value] * 5)
    found = kernel.run([Grouped(kernel.builder, [vector], range(5))[n] for n in range(5)])
    np.testing.assert_array_equal(found, np.full((128, 5), 7) if constant else np.arange(128)[:, None].repeat(5, 1))
