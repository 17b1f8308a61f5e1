"""Costs of programs: the same fields on every target, and work that is counted by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import fields

import tilewright as tw
from tilewright.cost.program import Cost, ProgramCost

NAMES = ("seconds", "compute_s", "memory_s", "launch_s", "bytes", "flops", "bound")
TARGETS = ("cpu", "null", "cuda:sm_80", "cuda:sm_90a", "cuda:sm_100a", "grid")


def cost_of(function: Any, target: str, *types: tw.ShapeDtype) -> ProgramCost:
    with tw.options(cache=False):
        return tw.jit(function).lower(*types).compile(target).cost()


def square(size: int, dtype: tw.DType) -> tw.ShapeDtype:
    return tw.ShapeDtype((size, size), dtype)


def matmul(a: Any, b: Any) -> Any:
    return a @ b


def test_fields() -> None:
    assert tuple(field.name for field in fields(Cost)) == NAMES


@pytest.mark.parametrize("target", TARGETS)
def test_a_matmul_costs_two_operations_for_each_term(target: str) -> None:
    found = cost_of(matmul, target, square(256, tw.bf16), square(256, tw.bf16))
    assert found.total.flops == 2 * 256**3
    (kernel,) = found.kernels.values()
    assert kernel == found.total
    assert kernel.seconds >= max(kernel.compute_s, kernel.memory_s)
    assert kernel.bound == max(("compute", "memory", "launch"), key=lambda name: getattr(kernel, f"{name}_s"))


@pytest.mark.parametrize("target", TARGETS)
def test_items_are_plain_values(target: str) -> None:
    found = cost_of(matmul, target, square(128, tw.bf16), square(128, tw.bf16))
    assert {*NAMES, "machine", "kernels"} <= set(found)
    assert json.loads(json.dumps(found.document())) == dict(found)
    assert found["seconds"] == found.total.seconds


@pytest.mark.parametrize("chip", ["sm_80", "sm_90a", "sm_100a"])
def test_arrays_of_a_gpu_are_moved_once(chip: str) -> None:
    (kernel,) = cost_of(lambda x: tw.nn.softmax(x), f"cuda:{chip}", square(4096, tw.f32)).kernels.values()
    assert kernel.bytes == 2 * 4096 * 4096 * 4
    assert kernel.bound == "memory"


@pytest.mark.parametrize(("size", "chip"), [(1024, "sm_80"), (4096, "sm_90a"), (4096, "sm_100a")])
def test_persistent_kernels_count_the_trips_of_each_block(size: int, chip: str) -> None:
    found = cost_of(matmul, f"cuda:{chip}", square(size, tw.bf16), square(size, tw.bf16))
    assert found.total.flops == pytest.approx(2 * size**3)
    assert found.total.bound == "compute"


def test_faster_chips_take_less_time() -> None:
    types = square(4096, tw.bf16), square(4096, tw.bf16)
    seconds = [cost_of(matmul, f"cuda:{chip}", *types).total.seconds for chip in ("sm_80", "sm_90a", "sm_100a")]
    assert seconds == sorted(seconds, reverse=True)
    # An H100 has 989 TFLOP/s of dense bf16 (data sheet): no prediction is below.
    assert 2 * 4096**3 / 989e12 < seconds[1] < 3 * 2 * 4096**3 / 989e12


def test_totals_are_sums() -> None:
    first = Cost.of(1.0, 2.0, 0.5, bytes=8.0, flops=16.0)
    assert first == Cost(2.5, 1.0, 2.0, 0.5, 8.0, 16.0, "memory")
    second = Cost.of(4.0, 1.0)
    assert Cost.total([first, second]) == Cost(6.5, 5.0, 3.0, 0.5, 8.0, 16.0, "compute")
    assert Cost.total([]).seconds == 0
