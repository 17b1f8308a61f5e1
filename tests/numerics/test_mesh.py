"""Programs on all devices of a mesh, against what NumPy makes of the arrays of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.programs import Program, build
from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import ArgumentError, MeshError, UnsupportedOnTargetError
from tilewright.frontend.build import build_module
from tilewright.frontend.trace import Value
from tilewright.pipelines import compile_module
from tilewright.semantics import mesh

Tensor = np.ndarray[Any, Any]
PAIRS = (0, 1, 2, 3, 4, 5, 6, 7)
STRIDED = (0, 2, 4, 6, 1, 3, 5, 7)
REVERSED = (6, 4, 2, 0, 7, 5, 3, 1)


def on_devices(make: Callable[[Program], Sequence[Value]], arguments: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    program = build(make)
    module = build_module(program)
    module.verify()
    assert mesh.devices_of(module) in (1, len(arguments))
    return mesh.run(module.body.block.first_op.body.block, arguments, program.constants)


def exchanged(x: Tensor, kind: str, group_size: int, groups: Sequence[int], **attributes: Any) -> Tensor:
    """What the devices have of a collective, stacked; `x` is what they bring."""

    def make(p: Program) -> Sequence[Value]:
        operand = p.array(*x.shape[1:], dtype=dtypes.from_numpy(x.dtype))
        return p.add(
            "collective", [operand], kind=kind, devices=len(x), groups=groups, group_size=group_size, **attributes
        )

    return np.stack([results[0] for results in on_devices(make, [[own] for own in x])])


def brought(*shape: int) -> Tensor:
    return np.random.default_rng(0).standard_normal((8, *shape)).astype(np.float32)


@pytest.mark.parametrize(("size", "groups"), [(8, PAIRS), (2, PAIRS), (4, STRIDED), (4, REVERSED), (1, PAIRS)])
def test_groups_reduce_and_gather(size: int, groups: tuple[int, ...]) -> None:
    x = brought(4 * size, 3)
    rows = [groups[n : n + size] for n in range(0, 8, size)]
    total = exchanged(x, "all_reduce", size, groups, fn="add")
    highest = exchanged(x, "all_reduce", size, groups, fn="maximum")
    gathered = exchanged(x, "all_gather", size, groups, axis=1)
    scattered = exchanged(x, "reduce_scatter", size, groups, fn="add", axis=0)
    for row in rows:
        for place, device in enumerate(row):
            expected = x[list(row)].sum(0)
            np.testing.assert_allclose(total[device], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(scattered[device], expected[4 * place : 4 * place + 4], rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(highest[device], x[list(row)].max(0))
            np.testing.assert_array_equal(gathered[device], np.hstack(x[list(row)]))


def test_parts_go_to_all() -> None:
    x = brought(8, 3)
    found = exchanged(x, "all_to_all", 4, STRIDED, split_axis=0, concat_axis=1)
    for device in range(8):
        place, first = device // 2, device % 2
        parts = [x[first + 2 * other][2 * place : 2 * place + 2] for other in range(4)]
        np.testing.assert_array_equal(found[device], np.concatenate(parts, 1))


def test_arrays_go_from_sources_to_targets() -> None:
    x = brought(3)
    shifted = exchanged(x, "permute", 2, tuple(n for d in range(7) for n in (d, d + 1)))
    np.testing.assert_array_equal(shifted, np.concatenate([np.zeros((1, 3), np.float32), x[:-1]]))
    swapped = exchanged(x, "permute", 2, (2, 5, 5, 2, 7, 7))
    expected = np.zeros_like(x)
    expected[[5, 2, 7]] = x[[2, 5, 7]]
    np.testing.assert_array_equal(swapped, expected)
    np.testing.assert_array_equal(exchanged(x, "permute", 2, ()), np.zeros_like(x))


def test_the_first_of_a_group_is_copied_and_others_have_zeros() -> None:
    x = brought(3)
    found = exchanged(x, "broadcast", 3, (4, 0, 7, 1, 2, 3))
    expected = np.zeros_like(x)
    expected[[4, 0, 7]], expected[[1, 2, 3]] = x[4], x[1]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [dtypes.bf16, dtypes.i8, dtypes.bool_], ids=str)
def test_narrow_sums_round_once(dtype: DType) -> None:
    x = (brought(50) * 3).astype(dtype.numpy)
    fn = "bitwise_or" if dtype.is_bool else "add"
    found = exchanged(x, "all_reduce", 8, PAIRS, fn=fn)
    wide = x.astype(np.float32).sum(0) if dtype.is_float else x.any(0) if dtype.is_bool else x.sum(0, dtype=np.int8)
    np.testing.assert_allclose(found[3].astype(np.float64), wide.astype(dtype.numpy).astype(np.float64), rtol=1e-2)


def _sum_in_a_loop(p: Program, trips: Value, operand: Value, group_size: int) -> tuple[Value, ...]:
    """The carried array summed over a group of devices as often as is said."""
    condition, body = p.nested("condition"), p.nested("body")
    for graph in (condition, body):
        for value in (trips, operand):
            graph.input(value.type)
    zero = condition.add("constant", value=0, resource="", shape=(), dtype="i64")[0]
    condition.outputs = list(condition.add("map", [zero, condition.inputs[0]], fn="less"))
    one = body.add("constant", value=1, resource="", shape=(), dtype="i64")[0]
    left = body.add("map", [body.inputs[0], one], fn="subtract")[0]
    collective = {"kind": "all_reduce", "devices": 4, "groups": (0, 1, 2, 3), "group_size": group_size, "fn": "add"}
    body.outputs = [left, *body.add("collective", [body.inputs[1]], **collective)]
    types = [trips.type, operand.type]
    return p.append("while", [trips, operand], {}, types, (condition, body))


def test_groups_may_go_through_a_loop_in_different_numbers() -> None:
    def make(p: Program) -> Sequence[Value]:
        trips = p.array(dtype=dtypes.i64)
        return _sum_in_a_loop(p, trips, p.array(2), 2)[1:]

    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    found = on_devices(make, [[np.int64(trips), own] for trips, own in zip((1, 1, 3, 3), x, strict=True)])
    np.testing.assert_array_equal(np.stack(found)[:2, 0], [x[0] + x[1]] * 2)
    np.testing.assert_array_equal(np.stack(found)[2:, 0], [4 * (x[2] + x[3])] * 2)


def test_devices_that_wait_without_end_are_named() -> None:
    def make(p: Program) -> Sequence[Value]:
        first = p.add("device_index", devices=4)[0]
        return _sum_in_a_loop(p, first, p.array(2), 4)[1:]

    with pytest.raises(
        MeshError, match="the device 1 waits at `all_reduce` of add among the devices 0, 1, 2, 3, but 0"
    ):
        on_devices(make, [[x] for x in np.ones((4, 2), np.float32)])


def test_a_branch_without_exchange_may_differ() -> None:
    def make(p: Program) -> Sequence[Value]:
        x, number = p.array(2), p.add("device_index", devices=4)[0]
        is_first = p.map("equal", number, p.add("constant", value=0, resource="", shape=(), dtype="i64")[0])
        then, otherwise = p.nested("then"), p.nested("otherwise")
        then.outputs, otherwise.outputs = list(then.add("map", [x], fn="negative")), [x]
        return p.append("if", [is_first], {}, [x.type], (then, otherwise))

    found = on_devices(make, [[x] for x in np.ones((4, 2), np.float32)])
    np.testing.assert_array_equal(np.stack(found)[:, 0, 0], [-1, 1, 1, 1])


def _summed(p: Program, devices: int = 8) -> Sequence[Value]:
    groups = tuple(range(devices))
    x = p.add("shard", [p.array(4)], layout=f"(4) : [4@mem] + replica[{devices}@device.x]", open=())[0]
    return p.add("collective", [x], kind="all_reduce", devices=devices, groups=groups, group_size=devices, fn="add")


def test_the_interpreter_runs_all_devices() -> None:
    program = build(_summed)
    (found,) = compile_module(build_module(program), {}, "interp")(np.arange(4, dtype=np.float32))
    np.testing.assert_array_equal(found, 8 * np.arange(4))


@pytest.mark.parametrize("target", ["cpu", "null", "cuda:sm_90a", "grid"])
def test_targets_of_one_device_refuse_exchanges_by_name(target: str) -> None:
    message = "needs `all_reduce` of add among the devices 0, 1, 2, 3, 4, 5, 6, 7, but .* one device"
    with pytest.raises(UnsupportedOnTargetError, match=message) as caught:
        compile_module(build_module(build(_summed)), {}, target)
    assert 'target="interp"' in str(caught.value.help)
    with pytest.raises(UnsupportedOnTargetError, match="device_index"):
        compile_module(build_module(build(lambda p: p.add("device_index", devices=2))), {}, target)


def test_groups_of_one_are_nothing_to_a_single_device() -> None:
    def make(p: Program) -> Sequence[Value]:
        alone = {"devices": 8, "groups": PAIRS, "group_size": 1}
        x = p.add("collective", [p.array(4)], kind="all_gather", axis=0, **alone)[0]
        x = p.add("collective", [x], kind="permute", devices=1, groups=(0, 0), group_size=2)[0]
        return [p.map("negative", x), *p.add("device_index", devices=1)]

    x, number = compile_module(build_module(build(make)), {}, "cpu")(np.arange(4, dtype=np.float32))
    np.testing.assert_array_equal(x, -np.arange(4))
    assert number == 0


def test_one_program_has_one_number_of_devices() -> None:
    module = build_module(build(lambda p: [*p.add("device_index", devices=2), *_summed(p)]))
    with pytest.raises(ArgumentError, match="for 2 and for 8 devices"):
        mesh.devices_of(module)
