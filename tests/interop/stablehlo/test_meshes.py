"""Programs for several devices: against JAX on eight, against NumPy where texts are written by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import (
    ArgumentError,
    MeshError,
    ModelFileError,
    ShapeError,
    TilewrightError,
    UnsupportedOnTargetError,
    UnsupportedOperatorError,
)
from tilewright.frontend.trace import digest

_X = np.arange(48, dtype=np.float32).reshape(8, 2, 3)
_EXCHANGES = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "collective_permute",
    "partition_id",
    "reduce_scatter",
)


def test_every_case_is_as_jax_has_it_on_eight_devices() -> None:
    pytest.importorskip("jax")
    from tests.interop.stablehlo.mesh_cases import outcomes

    found = list(outcomes())
    failed = [f"{o.name}: {o.state}: {o.reason}" for o in found if o.state != "passed"]
    assert not failed, "\n".join(failed)
    assert len(found) >= 60
    assert {f"stablehlo.{name}" for name in _EXCHANGES} <= {name for o in found for name in o.operations}


def test_a_step_of_training_on_eight_devices_is_that_of_one() -> None:
    jax = pytest.importorskip("jax")
    from jax.sharding import AbstractMesh
    from jax.sharding import PartitionSpec as P

    from tests.interop.stablehlo.mesh_cases import training_step

    random = np.random.default_rng(0)
    shapes = {"w1": (4, 16), "b1": (16,), "w2": (16, 2)}
    params = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    batch = tuple(random.standard_normal((32, n)).astype(np.float32) for n in (4, 2))
    mean = training_step(lambda x: jax.lax.pmean(x, "x"))
    mapped = jax.shard_map(mean, mesh=AbstractMesh((8,), ("x",)), in_specs=(P(), P("x")), out_specs=P())
    spread = tw.from_jax(jax.export.export(jax.jit(mapped), platforms=["cpu"])(params, batch), target="interp")
    assert spread.program.devices == 8
    alone = tw.from_jax(training_step(lambda x: x), params, batch, target="cpu")
    for _ in range(3):
        found, expected = spread(params, batch), alone(params, batch)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
        params = found[0]
    with pytest.raises(UnsupportedOnTargetError, match=r"among the devices 0, 1, 2, 3, 4, 5, 6, 7|device_index"):
        tw.from_jax(jax.export.export(jax.jit(mapped), platforms=["cpu"])(params, batch), target="cpu")(params, batch)


def _program(
    body: str, result: str, attributes: str = "mhlo.num_partitions = 8 : i32", operand: str = "2x3xf32"
) -> str:
    """A text for each device, of one operation on `%x`."""
    lines = f"  %0 = {body} : (tensor<{operand}>) -> tensor<{result}>\n  return %0 : tensor<{result}>"
    return f"""module @m attributes {{{attributes}}} {{
func.func public @main(%x: tensor<{operand}>) -> tensor<{result}> {{
{lines}
}}
}}
"""


def _region(operation: str, dtype: str = "f32") -> str:
    return f"""({{
  ^bb0(%a: tensor<{dtype}>, %b: tensor<{dtype}>):
    %c = stablehlo.{operation} %a, %b : tensor<{dtype}>
    stablehlo.return %c : tensor<{dtype}>
  }})"""


def _reduced(groups: str, more: str = "", region: str = _region("add")) -> str:
    return f'"stablehlo.all_reduce"(%x) <{{replica_groups = dense<{groups}>{more}}}> {region}'


_GLOBAL = ", channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids"
_CHANNEL = ", channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
_TWO_BY_FOUR = "mhlo.num_replicas = 2 : i32, mhlo.num_partitions = 4 : i32"


@pytest.mark.parametrize(
    ("attributes", "groups", "more", "rows"),
    [
        # Numbers of devices, in a table that is filled up.
        (_TWO_BY_FOUR, "[[0, 5, -1], [1, 2, -1], [7, 3, -1], [4, 6, -1]]> : tensor<4x3xi64", _GLOBAL, "05 12 73 46"),
        ("mhlo.num_partitions = 8 : i32", "> : tensor<0x0xi64", _GLOBAL, "01234567"),
        # Replicas of each partition; of all partitions.
        (_TWO_BY_FOUR, "[[0, 1]]> : tensor<1x2xi64", "", "04 15 26 37"),
        (_TWO_BY_FOUR, "[[0], [1]]> : tensor<2x1xi64", _CHANNEL, "0123 4567"),
        (_TWO_BY_FOUR, "> : tensor<0x0xi64", _CHANNEL, "01234567"),
        (_TWO_BY_FOUR, "> : tensor<0x0xi64", "", "04 15 26 37"),
        ("mhlo.num_replicas = 8 : i32", "[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64", "", "0246 1357"),
    ],
)
def test_groups_count_replicas_partitions_or_devices(attributes: str, groups: str, more: str, rows: str) -> None:
    body = f'"stablehlo.all_reduce"(%x) <{{replica_groups = dense<{groups}>{more}}}> {_region("add")}'
    model = tw.from_stablehlo(_program(body, "2x3xf32", attributes), target="interp")
    assert model.is_for_each_device
    assert model.devices == 8
    found = model(_X)
    for row in rows.split():
        for device in map(int, row):
            np.testing.assert_array_equal(found[device], _X[list(map(int, row))].sum(0))


@pytest.mark.parametrize(
    ("operation", "function"),
    [
        ("and", np.logical_and),
        ("or", np.logical_or),
        ("xor", np.logical_xor),
        ("add", np.logical_or),
        ("minimum", np.logical_and),
    ],
)
def test_bools_are_combined(operation: str, function: Any) -> None:
    body = '"stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>'
    body += f"{_GLOBAL}}}> {_region(operation, 'i1')}"
    x = np.random.default_rng(1).random((8, 5)) > 0.4
    found = tw.from_stablehlo(_program(body, "5xi1", operand="5xi1"), target="interp")(x)
    np.testing.assert_array_equal(found, np.broadcast_to(function.reduce(x), (8, 5)))


def _moved(x: Any, sources: dict[int, int]) -> Any:
    found = np.zeros_like(x)
    for target, source in sources.items():
        found[target] = x[source]
    return found


@pytest.mark.parametrize(
    ("attributes", "table", "more", "sources"),
    [
        ("mhlo.num_partitions = 8 : i32", "[[0, 1], [1, 5], [6, 6]]> : tensor<3x2xi64", _CHANNEL, {1: 0, 5: 1, 6: 6}),
        (_TWO_BY_FOUR, "[[3, 0]]> : tensor<1x2xi64", _CHANNEL, {0: 3, 4: 7}),
        (_TWO_BY_FOUR, "[[0, 1], [1, 0]]> : tensor<2x2xi64", "", {n: (n + 4) % 8 for n in range(8)}),
        ("mhlo.num_partitions = 8 : i32", "> : tensor<0x2xi64", _CHANNEL, {}),
    ],
)
def test_pairs_count_replicas_or_partitions(attributes: str, table: str, more: str, sources: dict[int, int]) -> None:
    body = f'"stablehlo.collective_permute"(%x) <{{source_target_pairs = dense<{table}>{more}}}>'
    found = tw.from_stablehlo(_program(body, "2x3xf32", attributes), target="interp")(_X)
    np.testing.assert_array_equal(found, _moved(_X, sources))


def test_the_first_of_a_group_is_copied() -> None:
    groups = "dense<[[3, 0, 1], [6, 7, 2]]> : tensor<2x3xi64>"
    body = f'"stablehlo.collective_broadcast"(%x) <{{replica_groups = {groups}{_CHANNEL}}}>'
    found = tw.from_stablehlo(_program(body, "2x3xf32"), target="interp")(_X)
    np.testing.assert_array_equal(found, _moved(_X, {3: 3, 0: 3, 1: 3, 6: 6, 7: 6, 2: 6}))


def test_groups_may_be_axes_of_a_mesh() -> None:
    groups = '#stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>'
    body = f'"stablehlo.all_gather"(%x) <{{all_gather_dim = 0 : i64, replica_groups = {groups}{_GLOBAL}}}>'
    text = _program(body, "8x3xf32").replace("func.func", 'sdy.mesh @mesh = <["x"=4, "y"=2]>\nfunc.func')
    found = tw.from_stablehlo(text, target="interp")(_X)
    for device in range(8):
        np.testing.assert_array_equal(found[device], _X[device % 2 :: 2].reshape(8, 3))


def test_several_arrays_are_exchanged_at_once_and_devices_are_numbered() -> None:
    text = f"""module @m attributes {{{_TWO_BY_FOUR}}} {{
func.func @main(%x: tensor<2xf32>, %n: tensor<3xi32>) -> (tensor<4xf32>, tensor<6xi32>, tensor<ui32>, tensor<ui32>) {{
  %0:2 = "stablehlo.all_gather"(%x, %n) <{{all_gather_dim = 0 : i64, replica_groups = dense<[[1, 0]]> : \
tensor<1x2xi64>}}> : (tensor<2xf32>, tensor<3xi32>) -> (tensor<4xf32>, tensor<6xi32>)
  %1 = stablehlo.partition_id : tensor<ui32>
  %2 = stablehlo.replica_id : tensor<ui32>
  return %0#0, %0#1, %1, %2 : tensor<4xf32>, tensor<6xi32>, tensor<ui32>, tensor<ui32>
}}
}}
"""
    x, n = np.arange(16, dtype=np.float32).reshape(8, 2), np.arange(24, dtype=np.int32).reshape(8, 3)
    a, b, partition, replica = tw.from_stablehlo(text, target="interp")(x, n)
    for device in range(8):
        pair = [4 + device % 4, device % 4]
        np.testing.assert_array_equal(a[device], x[pair].reshape(-1))
        np.testing.assert_array_equal(b[device], n[pair].reshape(-1))
    np.testing.assert_array_equal(partition, np.arange(8, dtype=np.uint32) % 4)
    np.testing.assert_array_equal(replica, np.arange(8, dtype=np.uint32) // 4)


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (
            _reduced("[[0, 1, 2], [3, 4, -1]]> : tensor<2x3xi64", _GLOBAL),
            UnsupportedOperatorError,
            "2 and of 3 devices",
        ),
        (_reduced("[[0, -1, 2], [3, 4, -1]]> : tensor<2x3xi64", _GLOBAL), ModelFileError, "the groups"),
        (_reduced("[[0, 1], [2, 3]]> : tensor<2x2xi64", _GLOBAL), ArgumentError, "among 4 of 8 devices"),
        (_reduced("[[0, 1, 2, 3, 4, 5, 6, 6]]> : tensor<1x8xi64", _GLOBAL), ArgumentError, "two places"),
        (_reduced("[[0, 1, 2, 3, 4, 5, 6, 8]]> : tensor<1x8xi64", _GLOBAL), ArgumentError, "the device 8"),
        (_reduced("[[0, 1]]> : tensor<1x2xi64"), ModelFileError, "the number 1, but there are 1 replicas"),
        (_reduced("[0, 1]> : tensor<2xi64", _GLOBAL), ModelFileError, "no table of numbers"),
        (_reduced("0> : tensor<999999x99999xi64", _GLOBAL), ModelFileError, "names more than"),
        (
            _reduced("[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64", _GLOBAL, _region("subtract")),
            UnsupportedOperatorError,
            "a region that has no name",
        ),
        (
            '"stablehlo.all_to_all"(%x) <{concat_dimension = 0 : i64, split_dimension = 0 : i64, split_count = 4 '
            f": i64, replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>{_CHANNEL}}}>",
            ModelFileError,
            "4 parts for groups of 2",
        ),
        (
            '"stablehlo.reduce_scatter"(%x) <{scatter_dimension = 1 : i64, replica_groups = dense<[[0, 1], [2, 3], [4, '
            f"5], [6, 7]]> : tensor<4x2xi64>{_GLOBAL}}}> {_region('add')}",
            ShapeError,
            "2 devices do not divide axis 1",
        ),
        (
            f'"stablehlo.collective_permute"(%x) <{{source_target_pairs = dense<0> : tensor<2x3xi64>{_CHANNEL}}}>',
            ModelFileError,
            "no pairs",
        ),
        (
            f'"stablehlo.all_gather"(%x) <{{all_gather_dim = 0 : i64, replica_groups = 1 : i64{_GLOBAL}}}>',
            UnsupportedOperatorError,
            "another form",
        ),
    ],
)
def test_wrong_exchanges_are_refused_by_name(body: str, error: type[TilewrightError], message: str) -> None:
    model = tw.from_stablehlo(_program(body, "2x3xf32"), target="interp")
    with pytest.raises(error, match=message):
        model(_X)


_SHARDY = """sdy.mesh @mesh = <["x"=4, "y"=2], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>
sdy.mesh @one = <[], device_ids=[3]>
func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)2, ?}p1, {"y", ?}p0]>}) \
-> (tensor<8x8xf32>, tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}], unreduced={"y"}>}) {
  %0 = sdy.reshard %a <@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  %1 = sdy.all_gather [{"x"}, {}] %0 out_sharding=<@mesh, [{}, {}]> : tensor<8x8xf32>
  %2 = sdy.all_slice [{"x"}, {}] %1 out_sharding=<@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  %3 = sdy.all_to_all [{"x"}: 0->1] %2 out_sharding=<@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  %4 = sdy.all_reduce {"y"} %3 out_sharding=<@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  %5 = sdy.collective_permute %4 out_sharding=<@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  %6 = sdy.reduce_scatter [{"y"}, {}] %5 out_sharding=<@mesh, [{"y"}, {"x"}]> : tensor<8x8xf32>
  %7 = sdy.propagation_barrier %6 allowed_direction=NONE : tensor<8x8xf32>
  sdy.sharding_group %7 group_id=1 : tensor<8x8xf32>
  %8 = sdy.sharding_constraint %7 <mesh<["z"=8]>, [{"z"}, {}]> : tensor<8x8xf32>
  %9:2 = sdy.manual_computation(%8, %7) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {}]>] \
out_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {}]>] manual_axes={"x"} (%b: tensor<2x8xf32>, %c: tensor<8x8xf32>) {
    sdy.return %b, %c : tensor<2x8xf32>, tensor<8x8xf32>
  } : (tensor<8x8xf32>, tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>)
  %10 = sdy.manual_computation() in_shardings=[] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} () {
    %i = stablehlo.partition_id : tensor<ui32>
    %f = stablehlo.convert %i : (tensor<ui32>) -> tensor<f32>
    %k = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<2xf32>
    sdy.return %k : tensor<2xf32>
  } : () -> tensor<8xf32>
  %11 = stablehlo.add %9#0, %9#1 : tensor<8x8xf32>
  return %11, %10 : tensor<8x8xf32>, tensor<8xf32>
}
"""


def test_shardy_is_read_as_it_is_printed() -> None:
    model = tw.from_stablehlo(_SHARDY, target="interp")
    assert (model.devices, model.is_for_each_device) == (8, False)
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    doubled, numbers = model(x)
    np.testing.assert_array_equal(doubled, 2 * x)
    # Device 0 is last in the mesh, and takes the values of its column.
    np.testing.assert_array_equal(numbers, np.repeat([6, 4, 2, 0], 2).astype(np.float32))
    ir = model.lower(tw.ShapeDtype((8, 8), tw.f32)).ir()
    assert ir.count("array.shard(") == 9  # what names parts of axes has no note
    assert 'layout = "(8, 8) : [8@device.z | 8@mem]", open = array<i64>' in ir
    assert 'layout = "(8) : [4@device.x 2@mem] + partial[add 2@device.y]", open = array<i64: 0>' in ir


def test_both_forms_of_shardy_give_one_program() -> None:
    pytest.importorskip("jax")
    from jax._src.interpreters.mlir import make_ir_context
    from jaxlib.mlir import ir

    with make_ir_context():
        module = ir.Module.parse(_SHARDY).operation
        generic, pretty = module.get_asm(print_generic_op_form=True), module.get_asm()
    x = tw.ShapeDtype((8, 8), tw.f32)
    programs = [digest(tw.from_stablehlo(text).lower(x).graph) for text in (generic, pretty, _SHARDY)]
    assert programs[0] == programs[1] == programs[2]


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("device_ids=[7, 6, 5", "device_ids=[7, 6, 6", ModelFileError, "not numbered 0 and up"),
        ('["x"=4, "y"=2], device', '["x"=4, "x"=2], device', ModelFileError, "axes of different names"),
        ('["x"=4, "y"=2], device', '["x"=99999, "y"=99999], device', ModelFileError, "1 to 65536 devices"),
        ("%a <@mesh", "%a <@mash", ModelFileError, "no mesh `mash`"),
        ('%a <@mesh, [{"x"}, {}]', '%a <@mesh, [{"z"}, {}]', ModelFileError, "over z on a mesh of x, y"),
        ('%a <@mesh, [{"x"}, {}]', '%a <@mesh, [{"x"}, {"x"}]', ModelFileError, "over x, x"),
        ('%a <@mesh, [{"x"}, {}]', '%a <@mesh, [{"x"}]', ModelFileError, "a sharding of 1 dims for an array of 2"),
        (
            ' in_shardings=[<@mesh, [{"x"}, {}]>, ',
            " in_shardings=[",
            ModelFileError,
            "`in_shardings` is no sharding for each",
        ),
        (
            'in_shardings=[<@mesh, [{"x"}',
            'in_shardings=[<@mesh, [{"x":(1)2}',
            UnsupportedOperatorError,
            "parts of axes",
        ),
        (
            ' in_shardings=[<@mesh, [{"x"}',
            ' in_shardings=[<@mesh, [{"y"}',
            ShapeError,
            "but the text declares f32[2, 8]",
        ),
        ("sdy.mesh @one", "sdy.meshes @one", ModelFileError, "outside of functions"),
    ],
)
def test_wrong_shardings_are_refused(old: str, new: str, error: type[TilewrightError], message: str) -> None:
    assert old in _SHARDY
    with pytest.raises(error) as caught:
        tw.from_stablehlo(_SHARDY.replace(old, new, 1), target="interp")(np.zeros((8, 8), np.float32))
    assert message in str(caught.value)


def test_a_program_that_is_only_spread_runs_on_one_device() -> None:
    text = """module @m attributes {mhlo.num_partitions = 8 : i32} {
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}, \
%b: tensor<8x8xf32> {mhlo.sharding = "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"}) -> tensor<8x8xf32> {
  %0 = stablehlo.dot %a, %b : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}
}
"""
    model = tw.from_stablehlo(text, target="cpu")
    a, b = (np.random.default_rng(n).random((8, 8), np.float32) for n in range(2))
    np.testing.assert_allclose(model(a, b), a @ b, rtol=1e-5)
    ir = model.lower(a, b).ir()
    assert "[4@device.x 2@mem*4 | 2@device.y 4@mem]" in ir
    assert "(8, 8) : [2@device.number 4@mem*8 | 8@mem] + replica[4@device.number*2]" in ir
    assert "shard" not in model.lower(a, b).compile().ir("tile")


def test_too_many_devices_are_refused() -> None:
    for attribute in ("mhlo.num_partitions = 99999", "mhlo.num_replicas = 0", "mhlo.num_replicas = 1.5"):
        with pytest.raises(ModelFileError, match=r"devices"):
            tw.from_stablehlo(_program('"stablehlo.abs"(%x)', "2x3xf32", attribute))


def test_arguments_of_several_replicas_are_those_of_each() -> None:
    model = tw.from_stablehlo(_program('"stablehlo.abs"(%x)', "2x3xf32", _TWO_BY_FOUR), target="interp")
    assert model.is_for_each_device
    np.testing.assert_array_equal(model(-_X), _X)
    assert not tw.from_stablehlo(_program('"stablehlo.abs"(%x)', "2x3xf32")).is_for_each_device


def test_devices_that_do_not_meet_are_named() -> None:
    text = f"""module @m attributes {{mhlo.num_partitions = 8 : i32}} {{
func.func @main(%x: tensor<2x3xf32>, %p: tensor<i1>) -> tensor<2x3xf32> {{
  %0 = "stablehlo.if"(%p) ({{
    %1 = {_reduced("[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64", _GLOBAL)} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    stablehlo.return %1 : tensor<2x3xf32>
  }}, {{
    stablehlo.return %x : tensor<2x3xf32>
  }}) : (tensor<i1>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}}
}}
"""
    model = tw.from_stablehlo(text, target="interp")
    np.testing.assert_array_equal(model(_X, np.ones(8, bool))[0], _X.sum(0))
    np.testing.assert_array_equal(model(_X, np.zeros(8, bool)), _X)
    with pytest.raises(MeshError, match="waits at `all_reduce` of add among the devices"):
        model(_X, np.arange(8) < 4)
