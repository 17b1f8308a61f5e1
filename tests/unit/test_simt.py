"""The shared emitter of GPU targets generates valid LLVM IR for a test-only implementation of `Intrinsics`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir

import tilewright as tw
from tests.cuda.chips import built
from tilewright.dialects import scheduled
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.targets.llvm.values import Lanes
from tilewright.targets.simt.emit import BlockEmitter
from tilewright.targets.simt.intrinsics import Intrinsics

I32 = ir.IntType(32)


class StubChip:
    """Each instruction is a call of a function that only the test knows."""

    triple = "x86_64-unknown-linux-gnu"
    calling_convention = ""
    functions: Mapping[str, Callable[..., Lanes]] = {}

    def divided(self, dividend: Lanes, divisor: Lanes, exactly: bool) -> Lanes:
        return dividend.wrap(ir.IRBuilder.fdiv(dividend.builder, dividend.value, divisor.value))

    def thread_index(self, builder: Any) -> Any:
        return self._call(builder, "thread_index", I32)

    def thread_index_anew(self, builder: Any) -> Any:
        return self._call(builder, "thread_index", I32)

    def block_index(self, builder: Any) -> Any:
        return self._call(builder, "block_index", I32)

    def shuffle_xor(self, builder: Any, word: Any, lanes: int) -> Any:
        return self._call(builder, "shuffle_xor", I32, word, ir.Constant(I32, lanes))

    def shuffle(self, builder: Any, word: Any, lane: Any) -> Any:
        return self._call(builder, "shuffle", I32, word, lane)

    def barrier(self, builder: Any, scope: str) -> None:
        self._call(builder, f"barrier_{scope}", ir.VoidType())

    def converts(self, builder: Any, dtype: DType) -> bool:
        return False

    def rounded_code(self, builder: Any, value: Any, dtype: DType) -> Any:
        raise NotImplementedError

    def number_of(self, builder: Any, code: Any, dtype: DType) -> Any:
        raise NotImplementedError

    def rounded_to_tf32(self, builder: Any, value: Any) -> Any:
        return value

    def opaque(self, builder: Any, value: Any) -> Any:
        return self._call(builder, "opaque", I32, value)

    def _call(self, builder: Any, name: str, result: ir.Type, *arguments: Any) -> Any:
        name = f"nobodys.{name}"
        function = builder.module.globals.get(name)
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(result, [each.type for each in arguments]), name)
        return builder.call(function, list(arguments))


CHIP: Intrinsics = StubChip()


def emitted(function: Callable[..., Any], *arrays: Any) -> list[str]:
    """The kernels of a program, scheduled for a GPU, as LLVM IR for the test chip."""
    unit = built(tw.jit(function).lower(*arrays), "cuda:sm_80").unit
    texts: list[str] = []
    for kernel in unit.kernels():
        (region,) = (op for op in kernel.body.block.ops if isinstance(op, scheduled.ParallelOp))
        emitter = BlockEmitter(kernel, region, unit.machine, 1 if region.warps is None else region.warps, CHIP)
        emitter.emit()
        texts.append(str(emitter.module))
    return texts


X = np.ones((48, 200), np.float32)


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (lambda x: tw.exp(x) / 3, {"thread_index", "block_index"}),
        (lambda x: tw.sum(x, axis=1), {"thread_index", "block_index", "shuffle_xor"}),
        (lambda x: tw.cumsum(x, axis=1), {"thread_index", "block_index", "shuffle"}),
        (lambda x: (y := x[:, :17].astype(tw.int16)) @ y.mT, {"thread_index", "block_index", "barrier_block"}),
        (lambda x: x.mT.astype(tw.bfloat16), {"thread_index", "block_index"}),
    ],
    ids=["map", "reduction", "scan", "matmul", "transpose"],
)
def test_kernels_call_the_instructions_of_the_chip(function: Callable[..., Any], calls: set[str]) -> None:
    texts = emitted(function, X)
    assert texts
    for text in texts:
        llvm.parse_assembly(text).verify()
        assert "nvvm" not in text
        assert "asm " not in text
    for name in calls:
        assert any(f"nobodys.{name}" in text for text in texts), name


def test_mma_instructions_are_the_targets_own() -> None:
    with pytest.raises(CompilerBug, match=r"the atom `mma.sync.*` does not take its operands there"):
        emitted(lambda x: x @ x.mT, np.ones((48, 18), np.float16))
