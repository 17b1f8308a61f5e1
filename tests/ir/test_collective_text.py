"""Operations for devices of a mesh: text, verifiers, and what passes may do with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from xdsl.parser import Parser
from xdsl.traits import NoMemoryEffect, Pure
from xdsl.utils.exceptions import VerifyException

from tests.ir.test_round_trip import context
from tests.programs import Program, build
from tilewright import dtypes
from tilewright.dialects import array
from tilewright.errors import ArgumentError, DTypeError, IndexError_, ShapeError, TilewrightError
from tilewright.frontend.build import build_module
from tilewright.frontend.trace import Value
from tilewright.machines.machine import load
from tilewright.passes.array.array_fuse_loops import ArrayFuseLoopsPass
from tilewright.passes.array.array_simplify import ArraySimplifyPass
from tilewright.passes.base import Unit
from tilewright.primitives import ArrayType

ALL = {"devices": 4, "groups": (0, 1, 2, 3)}
KINDS: dict[str, dict[str, Any]] = {
    "all_reduce": {"group_size": 4, "fn": "add"},
    "all_gather": {"group_size": 2, "axis": 1},
    "reduce_scatter": {"group_size": 4, "fn": "maximum", "axis": 0},
    "all_to_all": {"group_size": 2, "split_axis": 0, "concat_axis": 1},
    "broadcast": {"group_size": 4},
    "permute": {"group_size": 2},
}


def _every(p: Program) -> list[Value]:
    x = p.add("shard", [p.array(8, 4)], layout="(8, 4) : [2@device.x 4@mem*4 | 4@mem]", open=(1,))[0]
    made = [p.add("collective", [x], kind=kind, **ALL, **more)[0] for kind, more in KINDS.items()]
    return [*made, *p.add("device_index", devices=4)]


def _text() -> str:
    return str(build_module(build(_every)))


def test_text_round_trips() -> None:
    module = Parser(context(), _text()).parse_module()
    module.verify()
    assert str(module) == _text()
    shapes = [array.array_type(r).shape for r in module.body.block.first_op.body.block.last_op.operands]
    assert shapes == [(8, 4), (8, 8), (2, 4), (4, 8), (8, 4), (8, 4), ()]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "all_gather"', 'kind = "all_gathered"', "no collective"),
        ("groups = array<i64: 0, 1, 2, 3>", "groups = array<i64: 0, 1, 2, 2>", "two places"),
        ("groups = array<i64: 0, 1, 2, 3>", "groups = array<i64: 0, 1, 2>", "3 devices in groups of 4"),
        ("groups = array<i64: 0, 1, 2, 3>", "groups = array<i64: 0, 1, 2, 4>", "the device 4 of a program for 4"),
        ("(8, 4) : [2@device.x", "(7, 4) : [2@device.x", "the layout is of the shape"),
        ("2@device.x", "2@lane", "other kinds"),
        ("2@device.x", "2@devise", "no axis of any machine"),
        ("tensor<8x8xf32>", "tensor<8x4xf32>", "other types than the outputs"),
        ('fn = "maximum", axis = 0 : index', 'fn = "maximum", axis = 2 : index', "axis 2"),
    ],
)
def test_a_broken_collective_does_not_verify(old: str, new: str, message: str) -> None:
    assert old in _text()
    with pytest.raises(VerifyException, match=message):
        Parser(context(), _text().replace(old, new, 1)).parse_module().verify()


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"kind": "all_reduce", "group_size": 4, "fn": "add", "devices": 8}, ArgumentError, "among 4 of 8 devices"),
        ({"kind": "all_reduce", "group_size": 4}, ArgumentError, "`all_reduce` has nothing"),
        ({"kind": "all_reduce", "group_size": 4, "fn": "add", "axis": 0}, ArgumentError, "has axis, fn"),
        ({"kind": "all_reduce", "group_size": 4, "fn": "exp"}, ArgumentError, "cannot reduce with `exp`"),
        ({"kind": "all_reduce", "group_size": 4, "fn": "bitwise_or"}, DTypeError, "does not reduce f32"),
        ({"kind": "all_reduce", "group_size": 3, "fn": "add"}, ArgumentError, "in groups of 3"),
        ({"kind": "reduce_scatter", "group_size": 4, "fn": "add", "axis": 1}, ShapeError, "4 devices do not divide"),
        ({"kind": "all_gather", "group_size": 4, "axis": -1}, IndexError_, "axis -1"),
        ({"kind": "permute", "group_size": 4}, ArgumentError, "in groups of 4"),
        ({"kind": "permute", "group_size": 2, "groups": (0, 1, 2, 1)}, ArgumentError, "a source or a target twice"),
        ({"kind": "broadcast", "group_size": 1, "devices": 0}, ArgumentError, "a program for 0 devices"),
    ],
)
def test_a_wrong_collective_is_refused_where_it_is_traced(
    attributes: dict[str, Any], error: type[TilewrightError], message: str
) -> None:
    program = Program()
    with pytest.raises(error, match=message):
        program.add("collective", [program.array(8, 6)], **(ALL | attributes))


def _unit(make: Any) -> Unit:
    program = build(make)
    return Unit(build_module(program), dict(program.constants), load("x86-64-v3"), 2)


def _collectives(unit: Unit) -> list[array.CollectiveOp]:
    return [op for op in unit.module.walk() if isinstance(op, array.CollectiveOp)]


def test_equal_ones_are_one_and_unused_ones_go() -> None:
    def make(p: Program) -> Sequence[Value]:
        x = p.array(8, 4)
        kinds = ("all_reduce", "all_reduce", "all_gather")
        first, second, _ = (p.add("collective", [x], kind=kind, **ALL, **KINDS[kind])[0] for kind in kinds)
        return [p.map("multiply", first, second)]

    unit = _unit(make)
    assert len(_collectives(unit)) == 3
    ArraySimplifyPass().apply(unit)
    assert [op.kind for op in _collectives(unit)] == ["all_reduce"]


def test_those_of_constants_are_not_computed_at_compile_time() -> None:
    def make(p: Program) -> Sequence[Value]:
        x = np.arange(32, dtype=np.float32).reshape(8, 4)
        captured = p.constant(x, ArrayType(x.shape, dtypes.f32))
        return p.add("collective", [captured], kind="all_gather", **ALL, **KINDS["all_gather"])

    unit = _unit(make)
    ArraySimplifyPass().apply(unit)
    assert len(_collectives(unit)) == 1


def test_they_stay_in_their_region() -> None:
    def make(p: Program) -> Sequence[Value]:
        x, condition = p.array(8, 4), p.array(dtype=dtypes.bool_)
        outside = p.add("collective", [x], kind="all_reduce", **ALL, **KINDS["all_reduce"])[0]
        then, otherwise = p.nested("then"), p.nested("otherwise")
        then.outputs = list(then.add("collective", [x], kind="all_reduce", **ALL, **KINDS["all_reduce"]))
        otherwise.outputs = [outside]
        return p.append("if", [condition], {}, [x.type], (then, otherwise))

    unit = _unit(make)
    ArraySimplifyPass().apply(unit)
    parents = [op.parent_op() for op in _collectives(unit)]
    assert [op.name for op in parents if op is not None] == ["func.func", "array.if"]
    assert all(op.has_trait(NoMemoryEffect) and not op.has_trait(Pure) for op in _collectives(unit))


def test_fusion_neither_takes_them_in_nor_copies_them() -> None:
    def make(p: Program) -> Sequence[Value]:
        x = p.map("exp", p.array(8, 4))
        total = p.add("collective", [x], kind="all_reduce", **ALL, **KINDS["all_reduce"])[0]
        return [p.map("sin", p.map("negative", total)), p.reduce(p.map("cos", total), "add", (0,))]

    unit = _unit(make)
    ArrayFuseLoopsPass().apply(unit)
    unit.module.verify()
    (collective,) = _collectives(unit)
    assert collective.parent_op() is unit.main
    assert all(isinstance(op.parent_op(), array.FusedOp) for op in unit.module.walk() if isinstance(op, array.MapOp))
