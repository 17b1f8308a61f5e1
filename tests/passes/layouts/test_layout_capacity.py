"""Layouts that fit registers and shared memory: the cheapest that do, by brute force; what does not fit is named."""

from __future__ import annotations

import random
from itertools import product
from math import inf

import pytest

from tests.passes.layouts.test_layout_inference import kernel_of
from tests.passes.layouts.test_layout_random_kernels import RandomKernel
from tests.sampling import count
from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.layout import Layout
from tilewright.layout.solver import Relation
from tilewright.machines import machine as machines
from tilewright.passes.layouts import layout_inference
from tilewright.passes.layouts.layout_capacity import bytes_of, fitted, lifetimes, overflows
from tilewright.passes.layouts.layout_inference import Inference, infer_layouts
from tilewright.passes.spaces import space_of


def test_tiles_live_from_where_they_are_made_to_their_last_use() -> None:
    kernel = kernel_of("flash_attention", "flash_attention")
    alive = {life.value: life for life in lifetimes(kernel)}
    ops = list(kernel.walk())[1:]
    loop = next(op for op in ops if isinstance(op, tile.ForOp))
    inside = set(loop.walk()) - {loop}
    for op in ops:
        for operand in op.operands:
            life = alive[operand]
            position = 2 * ops.index(op)
            assert life.first <= position <= life.last
            if op in inside and operand.owner not in inside and operand.owner is not loop.body.block:
                assert life.last >= 2 * ops.index(list(loop.walk())[-1]), "what a loop reads lives until its end"
    last = 2 * ops.index(list(loop.walk())[-1])
    for argument, following, result in zip(
        loop.body.block.args[1:], loop.body.block.last_op.operands, loop.results, strict=True
    ):
        assert alive[argument].last < alive[following].last == last, "the next trip's takes its place"
        assert alive[result].first == last + 1, "a loop's result is there when it ends"


def test_bytes_of_registers_are_of_one_thread_and_of_memories_of_a_block() -> None:
    registers = Layout.parse("(64, 64) : [4@warp 16@reg | 2@reg*16 32@lane]")
    assert bytes_of(registers, 4) == ("reg", 16 * 2 * 4)
    assert bytes_of(registers, 2) == ("reg", 16 * 2 * 2)
    assert bytes_of(Layout.parse("(64, 64) : [64@mem.shared*72 | 64@mem.shared]"), 2) == (
        "mem.shared",
        2 * (63 * 72 + 64),
    )


def _needed(inference: Inference, values: tuple[object, ...], kernel: tile.KernelOp, memory: str) -> int:
    """The most bytes at any point, counted point by point."""
    alive = [life for life in lifetimes(kernel) if life.value in inference.variables]
    most = 0
    for point in range(max(life.last for life in alive) + 2):
        total = 0
        for life in alive:
            layout = values[inference.variables[life.value]]
            if life.first <= point <= life.last and isinstance(layout, Layout):
                where, size = bytes_of(layout, array_type(life.value).dtype.itemsize)
                total += size if where == memory else 0
        most = max(most, total)
    return most


def _cost(inference: Inference, values: tuple[object, ...]) -> float:
    total = 0.0
    for constraint in inference.problem.constraints:
        if isinstance(constraint, Relation):
            cost = constraint.cost(values[constraint.first], values[constraint.second]) if constraint.cost else 0.0
        else:
            cost = constraint.cost(values[constraint.variable])
        total += inf if cost is None else cost
    return total


def test_the_answer_is_the_cheapest_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_inference, "LARGEST_DOMAIN", 3)
    space = space_of(machines.load("sm_90a"))
    changed, wanted = 0, count(2, 4)
    for seed in range(1, 60):
        kernel = RandomKernel(seed).kernel
        inference = infer_layouts(kernel, space)
        domains = inference.problem.domains
        if len(domains) > 9:
            continue
        needed = _needed(inference, inference.solution.values, kernel, "reg")
        limit = random.Random(seed).choice((needed - 4, needed // 2, needed * 3 // 4))
        problem, cheapest = inference.problem, inference.solution
        solution, too_full = fitted(kernel, problem, inference.variables, cheapest, {"reg": limit}, 100_000)
        every = product(*domains)
        best = min(
            (_cost(inference, values) for values in every if _needed(inference, values, kernel, "reg") <= limit),
            default=inf,
        )
        if too_full:
            assert solution is cheapest
            assert too_full[0].needed_bytes == needed > too_full[0].limit_bytes == limit
            continue
        changed += 1
        assert _needed(inference, solution.values, kernel, "reg") <= limit
        assert solution.cost == pytest.approx(best, rel=1e-9), seed
        if changed == wanted:
            break
    assert changed == wanted


def test_what_cannot_fit_is_named_and_nothing_is_searched() -> None:
    kernel = kernel_of("flash_attention", "flash_attention")
    space = space_of(machines.load("sm_90a"))
    inference = infer_layouts(kernel, space)
    alive = [life for life in lifetimes(kernel) if life.value in inference.variables]

    def taken(value: object) -> tuple[str, int] | None:
        layout = inference.layout(value)  # type: ignore[arg-type]
        return None if layout is None else bytes_of(layout, array_type(value).dtype.itemsize)  # type: ignore[arg-type]

    assert not overflows(alive, taken, {"reg": 1 << 20})
    (found,) = overflows(alive, taken, {"reg": 16})
    assert found.needed_bytes == _needed(inference, inference.solution.values, kernel, "reg")
    sizes = [taken(value)[1] for value in found.tiles]  # type: ignore[index]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == found.needed_bytes
