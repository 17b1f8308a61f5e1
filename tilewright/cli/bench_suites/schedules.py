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
from tilewright.cli.bench_suites.case import Alternative, ScheduleCase, error_bound

if TYPE_CHECKING:
    from tilewright.cost.tiles import MatmulTile
    from tilewright.cost.vectors.products import Candidate, Product
    from tilewright.dialects.array import ContractOp, FusedOp
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


def _product_alternatives(shapes: Sequence[tuple[int, ...]], most: int, threads: int) -> dict[str, Alternative]:
    """The chosen schedule, the quickest by prediction with each register block and position of the right operand, those
    in parts where there are some, and some of all that are not predicted to take several times as long."""
    from tilewright.cost.vectors.products import best_candidate, candidates
    from tilewright.passes.kernels.lower_contract_group import contract_of
    from tilewright.passes.kernels.vector_products import product_of
    from tilewright.targets.cpu.host import host_machine

    machine = host_machine()
    contractions = _groups("contract", _multiply, shapes, threads)
    products = {name: product_of(group) for name, group in contractions.items()}
    name = max(products, key=lambda each: products[each].rows * products[each].columns)
    product, op = products[name], contract_of(contractions[name])
    chosen = best_candidate(product, machine, threads)
    known = sorted(candidates(product, machine, threads), key=lambda each: each.seconds)
    groups = {(each.block, each.right): each for each in reversed(known)}
    near = [each for each in known if each.seconds <= 2 * chosen.seconds]
    random.Random(0).shuffle(near)
    found = {_candidate_text(each): each for each in (chosen, *_by_time(groups.values()), *near)}
    packs = _chooses_right(shapes, threads, name)
    whole = {text: Alternative({name: _scheduled(op, each, packs)}, each.seconds) for text, each in found.items()}
    chosen_parts, parts = _alternatives_in_parts(name, product, machine, threads)
    return dict(list({**chosen_parts, **dict(list(whole.items())[: most // 2]), **parts, **whole}.items())[:most])


def _scheduled(op: ContractOp, candidate: Candidate, packs: bool) -> tw.schedules.Schedule:
    """The schedule of a candidate; where its matmul `packs`, with the treatment of the right operand."""
    from tilewright.passes.kernels.vector_products import vector_matmul
    from tilewright.passes.vectors.scheduled_pack_operands import NAMES

    right = NAMES.get(candidate.right) if packs else None
    return vector_matmul(op, candidate.tile, candidate.block, right)


def _chooses_right(shapes: Sequence[tuple[int, ...]], threads: int, name: str) -> bool:
    """Whether there is a choice of how a matmul reads its right operand."""
    with tw.options(threads=threads):
        compiled = tw.jit(_multiply).lower(*(tw.ShapeDtype(shape, tw.f32) for shape in shapes)).compile("cpu")
    schedule = compiled.schedules[name]
    return not isinstance(schedule, tw.schedules.VectorMatmul) or schedule.right is not None


def _alternatives_in_parts(
    name: str, product: Product, machine: Machine, threads: int
) -> tuple[dict[str, Alternative], dict[str, Alternative]]:
    """The tile of a matmul that is computed in parts, if it is, and the tiles that it may have."""
    from tilewright import dtypes
    from tilewright.cost.vectors.split_products import split_seconds, split_tile, split_tiles

    atom = machine.split_atom(dtypes.f32, dtypes.f32, dtypes.f32)
    if atom is None:
        return {}, {}
    tiles = sorted(split_tiles(product, atom), key=lambda t: split_seconds(product, t, atom, machine, threads))
    found = {tile: _in_parts(name, product, tile) for tile in tiles}
    texts = {tile: f"{tile.rows}x{tile.columns}x{tile.depth} in parts" for tile in tiles}
    chosen = split_tile(product, atom, machine, threads)
    first = {} if chosen is None else {texts[chosen]: found[chosen]}
    return first, {texts[tile]: each for tile, each in found.items()}


def _in_parts(name: str, product: Product, tile: MatmulTile) -> Alternative:
    extents = (min(tile.rows, product.rows), min(tile.columns, product.columns), tile.depth)
    return Alternative({name: tw.schedules.SplitMatmul(tile=extents)})


def _by_time(found: Iterable[Candidate]) -> list[Candidate]:
    return sorted(found, key=lambda candidate: candidate.seconds)


def _candidate_text(candidate: Candidate) -> str:
    tile, block = candidate.tile, candidate.block
    right = candidate.right.name.lower().replace("_", " ")
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
) -> dict[str, Alternative]:
    """The chosen tile and some of other extents along the dimensions that are kept and those that are reduced."""
    from tilewright.passes.kernels.lower_loop_group import loop_plan
    from tilewright.passes.kernels.vector_planner import VectorPlanner
    from tilewright.targets.cpu.host import host_machine

    machine = host_machine()
    planner = VectorPlanner(machine, threads)
    groups = _groups("loop", ours, [shape], threads)
    plans = {name: loop_plan(group, planner.loop(group)) for name, group in groups.items()}
    name, plan = max(plans.items(), key=lambda each: math.prod(each[1].space))
    chosen = tuple((plan.extents | plan.reduced)[d] for d in range(len(plan.space)))
    others = [tile for tile in _tiles(plan) if math.prod(tile) <= 4 * max(_REDUCED_ELEMENTS)]
    random.Random(0).shuffle(others)
    found = list(dict.fromkeys([chosen, *others]))[:most]
    return {"tile " + "x".join(map(str, tile)): Alternative({name: tw.schedules.Loop(tile=tile)}) for tile in found}


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
) -> dict[str, FusedOp]:
    """The groups of a kind by the names of their kernels."""
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
    groups = [op for op in unit.main.walk() if isinstance(op, FusedOp)]
    return {f"{kind}_{number}": op for number, op in enumerate(groups) if op.kind == kind}
