"""Layout inference: how long it takes on kernels without annotations, and on long chains between two matmuls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tilewright as tw
from tilewright.cli.bench_suites.case import CompilerCase

if TYPE_CHECKING:
    from xdsl.ir import SSAValue
    from xdsl.ir.affine import AffineMap

    from tilewright.dialects import tile
    from tilewright.dialects.tile import KernelOp
    from tilewright.primitives import ArrayType

_MACHINES = ("sm_90a", "x86-64-v4")


def cases(quick: bool) -> tuple[CompilerCase, ...]:
    lengths = (8,) if quick else (128, 1024)
    limits = {8: 0.1, 128: 0.1, 1024: 1.0}
    found: list[CompilerCase] = []
    for machine in _MACHINES:
        for length in lengths:
            kernel = chain(length)
            found.append(CompilerCase(f"chain of {length}, {machine}", _solve(kernel, machine), limits[length]))
        found.append(CompilerCase(f"softmax, {machine}", _solve(_softmax_kernel(), machine), 0.05))
        found.append(CompilerCase(f"attention, {machine}", _solve(_attention_kernel(), machine), 0.2))
    return tuple(found)


def _solve(kernel: KernelOp, machine: str) -> Callable[[], dict[str, float]]:
    def run() -> dict[str, float]:
        from tilewright.machines.machine import load
        from tilewright.passes.layouts.layout_inference import forget_plans, infer_layouts
        from tilewright.passes.spaces import space_of

        forget_plans()
        solution = infer_layouts(kernel, space_of(load(machine))).solution
        return {"variables": solution.variables, "nodes": solution.nodes, "cost_us": solution.cost * 1e6}

    return run


def chain(length: int) -> KernelOp:
    """A kernel with two matmuls of 64 x 64 tiles and between them `length` operations: arithmetic mixed with
    transposes, reshapes, and reductions whose results are broadcast back."""
    from tilewright import dtypes
    from tilewright.dialects import tile
    from tilewright.dialects.base import tensor
    from tilewright.primitives import ArrayType, infer

    side = 64
    half, single = ArrayType((side, side), dtypes.f16), ArrayType((side, side), dtypes.f32)
    kernel = tile.kernel("chain", (), [tile.ref(half)] * 3 + [tile.ref(single)], ["in", "in", "in", "out"])
    block = kernel.body.block

    def emit(kind: type[tile.TileOp], operands: list[SSAValue], **attributes: Any) -> SSAValue:
        primitive = kind.name.removeprefix("tile.")
        inputs = [_array_type(operand) for operand in operands]
        (result,) = infer(primitive, inputs, {"dtype": inputs[0].dtype.name, **attributes})
        plain = {key: value for key, value in attributes.items() if key not in ("shape", "dtype")}
        op = kind(arguments=operands, outputs=[tensor(result)], **plain)
        block.add_op(op)
        return op.results[0]

    def load(number: int) -> SSAValue:
        op = tile.LoadOp(source=block.args[number], map=_identity(), result=tensor(half))
        block.add_op(op)
        return op.result

    def product(left: SSAValue, right: SSAValue) -> SSAValue:
        zero = tile.FullOp(value=0.0, result=tensor(single))
        op = tile.DotOp(left=left, right=right, accumulator=zero.result, result=tensor(single))
        block.add_ops([zero, op])
        return op.result

    x = product(load(0), load(1))
    made = 0
    while made < length:
        step = made % 8
        if step == 3:
            x = emit(tile.TransposeOp, [x], permutation=(1, 0))
        elif step == 5 and made + 1 < length:
            row = emit(tile.ReduceOp, [x], fn="maximum", axes=(1,))
            x = emit(tile.MapOp, [x, emit(tile.BroadcastOp, [row], shape=(side, side), axes=(0,))], fn="subtract")
            made += 2
        elif step == 0 and made + 1 < length:
            wide = emit(tile.ReshapeOp, [x], shape=(side, 4, side // 4))
            x = emit(tile.ReshapeOp, [emit(tile.MapOp, [wide], fn="absolute")], shape=(side, side))
            made += 2
        else:
            x = emit(tile.MapOp, [x], fn="exp" if step % 2 else "negative")
        made += 1
    last = product(emit(tile.CastOp, [x], dtype="f16"), load(2))
    block.add_ops([tile.StoreOp(value=last, destination=block.args[3], map=_identity()), tile.YieldOp()])
    return kernel


def _array_type(value: SSAValue) -> ArrayType:
    from tilewright.dialects.base import array_type

    return array_type(value)


def _identity() -> AffineMap:
    from xdsl.ir.affine import AffineMap

    return AffineMap.identity(2)


def _softmax(x: tw.Array) -> tw.Array:
    return tw.nn.softmax(x, axis=-1)


def _attention(q: tw.Array, k: tw.Array, v: tw.Array) -> tw.Array:
    return tw.nn.softmax(q @ k.mT, axis=-1) @ v


def _softmax_kernel() -> KernelOp:
    return _tiled(_softmax, tw.ShapeDtype((512, 256), tw.f32))


def _attention_kernel() -> KernelOp:
    whole = tw.ShapeDtype((512, 64), tw.f32)
    return _tiled(_attention, whole, whole, whole)


def _tiled(function: Callable[..., tw.Array], *arguments: tw.ShapeDtype) -> KernelOp:
    """The only kernel of an array program, with the tiles of a CPU."""
    from tilewright.frontend.build import build_module
    from tilewright.machines.machine import load
    from tilewright.passes.base import Unit
    from tilewright.pipelines import array_to_tile

    graph = tw.jit(function).lower(*arguments).graph
    unit = Unit(build_module(graph), graph.snapshot(), load("x86-64-v4"), threads=1)
    for each in array_to_tile(unit.machine.model):
        each.apply(unit)
    (kernel,) = unit.kernels()
    return kernel
