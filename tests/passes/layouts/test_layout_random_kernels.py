"""Layouts of random kernels cost what brute force over all assignments finds: products, transposes, reductions,
broadcasts and reshapes that want different things. Costs are looked up pair by pair, without bounds."""

from __future__ import annotations

import os
import random
from math import inf, prod
from typing import Any

import numpy as np
import pytest
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineMap

from tilewright import dtypes
from tilewright.dialects import tile
from tilewright.dialects.base import array_type, tensor
from tilewright.layout.solver import Problem, Relation
from tilewright.machines import machine as machines
from tilewright.passes.layouts import layout_inference
from tilewright.passes.layouts.layout_inference import infer_layouts
from tilewright.passes.spaces import space_of
from tilewright.passes.warps.warp_space import WarpSpace
from tilewright.primitives import ArrayType, infer

KERNELS = int(os.environ.get("TW_TEST_LAYOUT_KERNELS", "60"))
SIDE = 32
LARGEST = 3_000_000  # assignments that brute force looks at


class RandomKernel:
    """A kernel of two or three loads, up to five operations and a store."""

    def __init__(self, seed: int) -> None:
        self.generator = random.Random(f"layouts {seed}")
        square = ArrayType((SIDE, SIDE), dtypes.f32)
        self.kernel = tile.kernel("random", (), [tile.ref(square)] * 4, ["in", "in", "in", "out"])
        self.block = self.kernel.body.block
        self.squares: list[SSAValue] = [self._load(n, square) for n in range(self.generator.randrange(2, 4))]
        self._dot()
        for _ in range(self.generator.randrange(2, 5)):
            self.generator.choice((self._dot, self._transpose, self._shift, self._reshape, self._add))()
        last = self.squares[-1]
        store = tile.StoreOp(value=last, destination=self.block.args[3], map=_identity())
        self.block.add_ops([store, tile.YieldOp()])

    def _load(self, number: int, type: ArrayType) -> SSAValue:
        op = tile.LoadOp(source=self.block.args[number], map=_identity(), result=tensor(type))
        self.block.add_op(op)
        return op.result

    def _any(self) -> SSAValue:
        return self.generator.choice(self.squares[-3:])

    def _emit(self, kind: type[tile.TileOp], operands: list[SSAValue], **attributes: Any) -> SSAValue:
        inputs = [array_type(operand) for operand in operands]
        (result,) = infer(kind.name.removeprefix("tile."), inputs, {"dtype": inputs[0].dtype.name, **attributes})
        plain = {key: value for key, value in attributes.items() if key != "shape"}
        op = kind(arguments=operands, outputs=[tensor(result)], **plain)
        self.block.add_op(op)
        return op.results[0]

    def _dot(self) -> None:
        left, right = self._any(), self._any()
        zero = tile.FullOp(value=0.0, result=left.type)
        op = tile.DotOp(left=left, right=right, accumulator=zero.result, result=left.type)
        self.block.add_ops([zero, op])
        self.squares.append(op.result)

    def _transpose(self) -> None:
        self.squares.append(self._emit(tile.TransposeOp, [self._any()], permutation=(1, 0)))

    def _shift(self) -> None:
        value, axis = self._any(), self.generator.randrange(2)
        row = self._emit(tile.ReduceOp, [value], fn="maximum", axes=(axis,))
        wide = self._emit(tile.BroadcastOp, [row], shape=(SIDE, SIDE), axes=(1 - axis,))
        self.squares.append(self._emit(tile.MapOp, [value, wide], fn="subtract"))

    def _reshape(self) -> None:
        wide = self._emit(tile.ReshapeOp, [self._any()], shape=(SIDE, 4, SIDE // 4))
        self.squares.append(self._emit(tile.ReshapeOp, [wide], shape=(SIDE, SIDE)))

    def _add(self) -> None:
        self.squares.append(self._emit(tile.MapOp, [self._any(), self._any()], fn="add"))


def _identity() -> AffineMap:
    return AffineMap.identity(2)


def cheapest(problem: Problem) -> float:
    """The least cost of all assignments."""
    sizes = [len(domain) for domain in problem.domains]
    total = np.zeros(sizes)
    for constraint in problem.constraints:
        if isinstance(constraint, Relation):
            first, second = constraint.first, constraint.second
            cost = constraint.cost or (lambda a, b: 0.0 if a == b else None)
            rows = [[cost(a, b) for b in problem.domains[second]] for a in problem.domains[first]]
            costs = np.array([[inf if found is None else found for found in row] for row in rows])
            costs = costs if first < second else costs.T
            total = total + costs.reshape([n if v in (first, second) else 1 for v, n in enumerate(sizes)])
        else:
            values = [constraint.cost(value) for value in problem.domains[constraint.variable]]
            own = np.array([inf if cost is None else cost for cost in values])
            total = total + own.reshape([n if v == constraint.variable else 1 for v, n in enumerate(sizes)])
    return float(total.min())


@pytest.mark.parametrize("name", ["sm_90a", "x86-64-v4"])
def test_the_cost_equals_brute_force_over_all_assignments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_inference, "LARGEST_DOMAIN", 4)
    monkeypatch.setattr(WarpSpace, "limits", {})  # registers are counted by tests of their own
    space = space_of(machines.load(name))
    compared = seed = 0
    while compared < KERNELS // 2:
        seed += 1
        inference = infer_layouts(RandomKernel(seed).kernel, space)
        sizes = [len(domain) for domain in inference.problem.domains]
        if sum(size >= 4 for size in sizes) < 6 or prod(sizes) > LARGEST:
            continue
        compared += 1
        assert inference.solution.cost == pytest.approx(cheapest(inference.problem), rel=1e-9), f"seed {seed}"
    assert seed < 40 * KERNELS
