"""Quality of the schedules that the cost model chooses: random matmuls and reductions, with these and with other
schedules.

Matmuls are of f32, 16 to 2048 a side; reductions add up or compare 4 KiB to 32 MiB of f32 over one or two dimensions.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import tilewright as tw
from tilewright.cli.bench_suites.case import ScheduleCase, error_bound
from tilewright.cost.given import Given

if TYPE_CHECKING:
    from tilewright.cost.vectors.products import Product, Schedule
    from tilewright.dialects.array import FusedOp
    from tilewright.machines.machine import Machine
    from tilewright.passes.kernels.lower_loop_group import LoopPlan

_PRODUCTS, _REDUCTIONS, _ALTERNATIVES = 120, 80, 24
_LEAST_SIDE, _MOST_SIDE, _MOST_FLOPS = 16, 2048, 4e9
_LEAST_ELEMENTS, _MOST_ELEMENTS = 1 << 10, 1 << 23

# Of reductions: elements of a tile along the reduced dimensions, and extents along the last two that are kept.
_REDUCED_ELEMENTS = (16, 256, 1024, 4096, 16384, 65536)
_KEPT_TARGETS = ((1, 1), (1, 8), (1, 32), (1, 128), (1, 512), (1, 2048), (4, 64), (16, 512))


def cases(quick: bool) -> tuple[ScheduleCase, ...]:
    products, reductions, most = (3, 2, 4) if quick else (_PRODUCTS, _REDUCTIONS, _ALTERNATIVES)
    shapes = _product_shapes(products, 48 if quick else _MOST_SIDE)
    reduced = _reductions(reductions, 2 * _LEAST_ELEMENTS if quick else _MOST_ELEMENTS)
    return (
        *(_product_case(f"product {n:03}", *shape, most) for n, shape in enumerate(shapes)),
        *(_reduction_case(f"reduction {n:03}", *found, most) for n, found in enumerate(reduced)),
    )


def _log_uniform(generator: random.Random, least: float, most: float) -> float:
    return math.exp(generator.uniform(math.log(least), math.log(most)))


# ---- products -------------------------------------------------------------------------------------------------------


def _product_shapes(count: int, most_side: int) -> Iterator[tuple[int, int, int]]:
    """Rows, columns and depth."""
    generator = random.Random(1)
    while count:
        rows, columns, depth = (_side(generator, most_side) for _ in range(3))
        if 2.0 * rows * columns * depth <= _MOST_FLOPS:
            count -= 1
            yield rows, columns, depth


def _side(generator: random.Random, most: int) -> int:
    """Half of them round, as the sides of matrices often are."""
    size = _log_uniform(generator, _LEAST_SIDE, most)
    even = generator.choice([int(size), int(size), round(size / 16) * 16, 1 << round(math.log2(size))])
    return max(_LEAST_SIDE, even)


def _multiply(a: tw.Array, b: tw.Array) -> tw.Array:
    return a @ b


def _product_case(name: str, rows: int, columns: int, depth: int, most: int) -> ScheduleCase:
    shapes = ((rows, depth), (depth, columns))
    return ScheduleCase(
        name=f"{name}: {rows}x{columns}x{depth}",
        ours=_multiply,
        shapes=shapes,
        result=(rows, columns),
        reference=_multiply,
        alternatives=partial(_product_alternatives, shapes, most),
        tolerance=error_bound(1, depth),
    )


def _product_alternatives(shapes: Sequence[tuple[int, ...]], most: int, threads: int) -> dict[str, Given]:
    """The chosen schedule, the quickest by prediction with each register block and position of the right operand, those
    in parts where there are some, and some of all that are not predicted to take several times as long."""
    from tilewright.cost.vectors.products import best_schedule, schedules
    from tilewright.passes.kernels.vector_planner import product_of
    from tilewright.targets.cpu.host import host_machine

    machine = host_machine()
    product = max(map(product_of, _groups("contract", _multiply, shapes, threads)), key=lambda p: p.rows * p.columns)
    chosen = best_schedule(product, machine, threads)
    known = sorted(schedules(product, machine, threads), key=lambda s: s.seconds)
    groups = {(schedule.block, schedule.right): schedule for schedule in reversed(known)}
    near = [schedule for schedule in known if schedule.seconds <= 2 * chosen.seconds]
    random.Random(0).shuffle(near)
    found = {_schedule_text(schedule): schedule for schedule in (chosen, *_by_time(groups.values()), *near)}
    given = {text: Given(product=schedule) for text, schedule in found.items()}
    chosen_parts, parts = _alternatives_in_parts(product, machine, threads)
    return dict(list({**chosen_parts, **dict(list(given.items())[: most // 2]), **parts, **given}.items())[:most])


def _alternatives_in_parts(
    product: Product, machine: Machine, threads: int
) -> tuple[dict[str, Given], dict[str, Given]]:
    """The tile of a matmul that is computed in parts, if it is, and the tiles that it may have."""
    from tilewright import dtypes
    from tilewright.cost.vectors.split_products import split_seconds, split_tile, split_tiles

    atom = machine.split_atom(dtypes.f32, dtypes.f32, dtypes.f32)
    if atom is None:
        return {}, {}
    tiles = sorted(split_tiles(product, atom), key=lambda t: split_seconds(product, t, atom, machine, threads))
    given = {f"{t.rows}x{t.columns}x{t.depth} in parts": Given(split=t) for t in tiles}
    chosen = split_tile(product, atom, machine, threads)
    return {text: each for text, each in given.items() if each.split == chosen}, given


def _by_time(found: Iterable[Schedule]) -> list[Schedule]:
    return sorted(found, key=lambda schedule: schedule.seconds)


def _schedule_text(schedule: Schedule) -> str:
    tile, block = schedule.tile, schedule.block
    right = schedule.right.name.lower().replace("_", " ")
    return f"{tile.rows}x{tile.columns}x{tile.depth} by {block.rows}x{block.columns}, {right}"


# ---- reductions -----------------------------------------------------------------------------------------------------


def _reductions(count: int, most_elements: int) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """A function, a shape, and the dimensions that are reduced."""
    generator = random.Random(2)
    while count:
        elements = _log_uniform(generator, _LEAST_ELEMENTS, most_elements)
        rank = generator.choice([2, 3])
        cuts = sorted(generator.random() for _ in range(rank - 1))
        parts = [high - low for low, high in zip([0.0, *cuts], [*cuts, 1.0], strict=True)]
        shape = tuple(max(2, round(elements**part)) for part in parts)
        if _LEAST_ELEMENTS <= math.prod(shape) <= most_elements:
            count -= 1
            axes = tuple(sorted(generator.sample(range(rank), generator.randint(1, 2))))
            yield generator.choice(["sum", "max"]), shape, axes


def _reduce(fn: str, axes: tuple[int, ...], x: tw.Array) -> tw.Array:
    return getattr(tw, fn)(x, axis=axes)


def _numpy_reduce(fn: str, axes: tuple[int, ...], x: np.ndarray) -> np.ndarray:
    return getattr(np, fn)(x, axis=axes)


def _reduction_case(name: str, fn: str, shape: tuple[int, ...], axes: tuple[int, ...], most: int) -> ScheduleCase:
    ours = partial(_reduce, fn, axes)
    terms = math.prod(shape[d] for d in axes)
    text = f"{fn} of {'x'.join(map(str, shape))} over {','.join(map(str, axes))}"
    return ScheduleCase(
        name=f"{name}: {text}",
        ours=ours,
        shapes=(shape,),
        result=tuple(n for d, n in enumerate(shape) if d not in axes),
        reference=partial(_numpy_reduce, fn, axes),
        alternatives=partial(_reduction_alternatives, ours, shape, most),
        tolerance=error_bound(0, terms) if fn == "sum" else 0.0,
    )


def _reduction_alternatives(
    ours: Callable[..., object], shape: tuple[int, ...], most: int, threads: int
) -> dict[str, Given]:
    """The chosen tile and some of other extents along the dimensions that are kept and those that are reduced."""
    from tilewright.passes.kernels.vector_planner import VectorPlanner
    from tilewright.targets.cpu.host import host_machine

    machine = host_machine()
    planner = VectorPlanner(machine, threads)
    plans = [planner.loop(group) for group in _groups("loop", ours, [shape], threads)]
    plan = max(plans, key=lambda plan: math.prod(plan.space))
    chosen = tuple((plan.extents | plan.reduced)[d] for d in range(len(plan.space)))
    others = [tile for tile in _tiles(plan) if math.prod(tile) <= 4 * max(_REDUCED_ELEMENTS)]
    random.Random(0).shuffle(others)
    found = list(dict.fromkeys([chosen, *others]))[:most]
    return {"tile " + "x".join(map(str, tile)): Given(reductions={plan.space: tile}) for tile in found}


def _tiles(plan: LoopPlan) -> Iterator[tuple[int, ...]]:
    from tilewright.cost.tiles import even_split

    kept, reduced = [*reversed(plan.kept)], sorted(plan.reduced, reverse=True)
    for room in _REDUCED_ELEMENTS:
        for order in (reduced, reduced[::-1]):
            for targets in _KEPT_TARGETS:
                extents: Mapping[int, int] = dict.fromkeys(kept, 1)
                for d, target in zip(kept, reversed(targets), strict=False):
                    extents[d] = even_split(plan.space[d], target)
                left = room
                for d in order:
                    extents[d] = even_split(plan.space[d], max(1, left))
                    left //= extents[d]
                yield tuple(extents[d] for d in range(len(plan.space)))


# ---- what the compiler makes of a program ---------------------------------------------------------------------------


def _groups(
    kind: str, function: Callable[..., object], shapes: Sequence[tuple[int, ...]], threads: int
) -> list[FusedOp]:
    """The groups of a kind, before they become kernels."""
    from tilewright.dialects.array import FusedOp
    from tilewright.frontend.build import build_module
    from tilewright.passes.base import Unit
    from tilewright.passes.kernels.array_lower_to_tile import ArrayLowerToTilePass
    from tilewright.pipelines import array_to_tile
    from tilewright.targets.cpu.host import host_machine

    graph = tw.jit(function).lower(*(tw.ShapeDtype(shape, tw.f32) for shape in shapes)).graph
    unit = Unit(build_module(graph), graph.snapshot(), host_machine(), threads)
    for each in array_to_tile(unit.machine.model):
        if isinstance(each, ArrayLowerToTilePass):
            break
        each.apply(unit)
    return [op for op in unit.main.walk() if isinstance(op, FusedOp) and op.kind == kind]
