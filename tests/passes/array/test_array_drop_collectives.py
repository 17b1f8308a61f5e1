"""Collectives among one device, shardings and device indices, which `array-drop-collectives` removes or refuses."""

from __future__ import annotations

import pytest

from tests.passes.pass_support import applied, check_meaning, check_unchanged
from tilewright.dialects import array
from tilewright.errors import UnsupportedOnTargetError
from tilewright.passes.array.array_drop_collectives import ArrayDropCollectivesPass


def collective(attributes: str, result: str = "3x5xbf16") -> str:
    return f"""
    func.func @main(%x: tensor<3x5xbf16>) -> tensor<{result}> {{
      %y = array.collective(%x) {{{attributes}}} : tensor<{result}>
      %z = array.map(%y) {{fn = "negative"}} : tensor<{result}>
      func.return %z : tensor<{result}>
    }}
    """


ALONE = "devices = 1 : index, groups = array<i64: 0>, group_size = 1 : index"


@pytest.mark.parametrize(
    "attributes",
    [
        f'kind = "all_reduce", {ALONE}, fn = "maximum"',
        f'kind = "all_gather", {ALONE}, axis = 1 : index',
        f'kind = "reduce_scatter", {ALONE}, axis = 0 : index, fn = "add"',
        f'kind = "all_to_all", {ALONE}, split_axis = 0 : index, concat_axis = 1 : index',
        # Each of three devices alone: nothing is exchanged.
        'kind = "all_reduce", devices = 3 : index, groups = array<i64: 0, 1, 2>, group_size = 1 : index, fn = "add"',
    ],
)
def test_collectives_of_each_device_alone_are_removed(attributes: str) -> None:
    unit = applied(ArrayDropCollectivesPass(), collective(attributes))
    assert [op.name for op in unit.main.body.block.ops] == ["array.map", "func.return"]


AMONG = "devices = 2 : index, groups = array<i64: 0, 1>, group_size = 2 : index"


@pytest.mark.parametrize(
    ("attributes", "result", "words"),
    [
        (f'kind = "all_reduce", {AMONG}, fn = "add"', "3x5xbf16", "`all_reduce` of add among the devices 0, 1"),
        (f'kind = "all_gather", {AMONG}, axis = 1 : index', "3x10xbf16", "`all_gather` along axis 1"),
    ],
)
def test_collectives_among_devices_are_refused(attributes: str, result: str, words: str) -> None:
    with pytest.raises(UnsupportedOnTargetError, match="but a machine such as x86-64-v3 is one device") as error:
        applied(ArrayDropCollectivesPass(), collective(attributes, result))
    assert words in str(error.value)


def test_an_index_among_devices_is_refused() -> None:
    text = """
    func.func @main() -> tensor<i64> {
      %n = array.device_index() {devices = 4 : index} : tensor<i64>
      func.return %n : tensor<i64>
    }
    """
    with pytest.raises(UnsupportedOnTargetError, match="`device_index` of 4"):
        applied(ArrayDropCollectivesPass(), text)


def test_what_control_flow_shards_is_removed_too() -> None:
    text = """
    func.func @main(%x: tensor<7xi32>, %c: tensor<i1>) -> tensor<7xi32> {
      %y = array.if(%c) do {
        %a = array.shard(%x) {layout = "(7) : [7@mem]", open = array<i64: 0>} : tensor<7xi32>
        %b = array.map(%a, %a) {fn = "add"} : tensor<7xi32>
        array.yield(%b)
      } do {
        array.yield(%x)
      } : tensor<7xi32>
      func.return %y : tensor<7xi32>
    }
    """
    unit = applied(ArrayDropCollectivesPass(), text)
    assert not [op for op in unit.main.walk() if isinstance(op, array.ShardOp)]


def test_the_index_of_the_one_device_is_zero() -> None:
    text = """
    func.func @main(%x: tensor<i64>) -> tensor<i64> {
      %n = array.device_index() {devices = 1 : index} : tensor<i64>
      %y = array.map(%n, %x) {fn = "add"} : tensor<i64>
      func.return %y : tensor<i64>
    }
    """
    unit = check_meaning(ArrayDropCollectivesPass(), text)
    assert [op.value for op in unit.main.walk() if isinstance(op, array.ConstantOp)] == [0]


def test_a_program_without_devices_is_left_as_it_is() -> None:
    text = """
    func.func @main(%x: tensor<7xf32>) -> tensor<7xf32> {
      %y = array.map(%x) {fn = "exp"} : tensor<7xf32>
      func.return %y : tensor<7xf32>
    }
    """
    check_unchanged(ArrayDropCollectivesPass(), text)
