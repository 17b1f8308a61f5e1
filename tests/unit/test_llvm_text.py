"""The text of a module is the one that llvmlite writes."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from llvmlite import ir

import tilewright as tw
from tilewright.targets.cpu import emit
from tilewright.targets.llvm.text import module_text
from tilewright.targets.llvm.values import Builder, declare_features, shuffle

_I1, _I8, _I32, _FLOAT = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, 4)


def one_of_each_kind() -> ir.Module:
    """A module with an instruction of each kind, with and without flags, attributes, alignment and metadata."""
    module: Any = ir.Module('quoted "name"')
    module.triple = "x86_64-unknown-linux-gnu"
    declare_features(module, ["avx2"])
    pair = module.context.get_identified_type("pair")
    pair.set_body(_I32, _FLOAT)
    constant: Any = ir.GlobalVariable(module, _I32, "constant")
    constant.initializer = ir.Constant(_I32, 7)
    outer: Any = ir.Function(module, ir.FunctionType(_FLOAT, [_FLOAT], var_arg=True), "outer")
    nothing = ir.Function(module, ir.FunctionType(ir.VoidType(), []), "nothing")
    pointer = ir.PointerType()
    function: Any = ir.Function(module, ir.FunctionType(_FLOAT, [pointer, _I32, _VECTOR, _FLOAT]), 'odd"name')
    function.attributes.add("nounwind")
    where, number, vector, value = function.args
    builder: Builder = ir.IRBuilder(function.append_basic_block("entry"))
    loop, odd, end = (function.append_basic_block(name) for name in ("loop", "odd name", "end"))
    slot = builder.alloca(_FLOAT)
    loaded = builder.load(slot, align=4)
    builder.load(where, typ=_VECTOR).set_metadata("nontemporal", module.add_metadata([ir.Constant(_I32, 1)]))
    builder.store(builder.fadd(loaded, value, flags=["contract", "nnan"]), slot, align=4)
    builder.store(builder.fneg(value), slot).set_metadata("nontemporal", module.add_metadata([ir.Constant(_I32, 1)]))
    first = builder.gep(where, [number], inbounds=True, source_etype=_FLOAT)
    builder.gep(first, [number, number], source_etype=ir.ArrayType(_I8, 4))
    builder.sext(number, ir.IntType(64))
    builder.add(number, ir.Constant(_I32, 3), flags=["nsw"])
    lanes = builder.insert_element(vector, value, ir.Constant(_I32, 2))
    builder.extract_element(shuffle(builder, lanes, None, [3, 2, 1, 0]), number)
    builder.extract_value(builder.insert_value(ir.Constant(pair, None), value, 1), 0)
    builder.call(nothing, [])
    called = builder.call(outer, [value, value], tail=True, fastmath=["fast"])
    builder.call(outer, [called], cconv="fastcc", attrs=["nounwind"])
    test = builder.and_(builder.icmp_signed("<", number, ir.Constant(_I32, 5)), builder.fcmp_ordered("<", value, value))
    builder.fcmp_unordered("!=", value, value, flags=["ninf"])
    builder.select(test, value, called)
    builder.select(test, value, called, flags=["nnan"])
    builder.branch(loop)
    builder.position_at_end(loop)
    phi = builder.phi(_I32)
    phi.add_incoming(number, function.entry_basic_block)
    phi.add_incoming(phi, loop)
    builder.cbranch(test, loop, odd)
    builder.position_at_end(odd)
    builder.switch(phi, end).add_case(ir.Constant(_I32, 1), loop)
    builder.position_at_end(end)
    builder.ret(value)
    return module


def test_each_kind_of_instruction() -> None:
    module = one_of_each_kind()
    assert module_text(module) == str(module)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_modules_of_programs(dtype: type[Any]) -> None:
    pairs: list[tuple[str, str]] = []

    def both(module: ir.Module) -> str:
        pairs.append((module_text(module), str(module)))
        return pairs[-1][0]

    def program(x: tw.Array, w: tw.Array) -> tuple[tw.Array, ...]:
        product = tw.maximum(x @ w, 0)
        return product, tw.sum(product, axis=1), tw.flip(x.T, axis=0), tw.sort(x, axis=1), tw.cumulative_sum(x, axis=1)

    with patch.object(emit, "module_text", both), tw.options(cache=False):
        tw.jit(program).lower(np.ones((13, 21), dtype), np.ones((21, 33), dtype)).compile(target="cpu").asm()
    assert len(pairs) > 2
    for ours, theirs in pairs:
        assert ours == theirs
