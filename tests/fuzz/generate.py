"""Seeded random array programs, with inputs and expected outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.fuzz import motifs, steps
from tests.fuzz.bounds import Oracle, Undecided, attention_values
from tests.fuzz.intervals import Bounded, Tensor
from tests.fuzz.maker import Maker
from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.frontend.trace import Graph, Value

NODES = (20, 34)
MOST_OUTPUTS = 14

Step = Callable[[Maker], object]

STEPS: Sequence[tuple[float, Step]] = (
    (13, steps.unary),
    (9, steps.binary),
    (3, steps.select),
    (3, steps.cast),
    (1, steps.bitcast),
    (2, steps.reshape),
    (1, steps.unit_reshape),
    (2.5, steps.transpose),
    (2, steps.broadcast),
    (2, steps.slice_),
    (1.2, steps.reverse),
    (1.5, steps.pad),
    (1.5, steps.concat),
    (1, steps.dynamic_slice),
    (1, steps.dynamic_update_slice),
    (1.5, steps.gather),
    (1.2, steps.scatter),
    (4, steps.reduce),
    (1, steps.arg_reduce),
    (1.2, steps.scan),
    (1.2, steps.window_reduce),
    (2.5, steps.contract),
    (1, steps.convolve),
    (1, steps.sort),
    (0.7, steps.top_k),
    (0.6, steps.random_bits),
    (0.7, steps.loop),
    (0.6, steps.choice),
    (1, motifs.softmax),
    (1, motifs.normalise),
    (1.5, motifs.matmul),
    (1.2, motifs.attention),
    (1.5, motifs.diamond),
    (1.5, motifs.views),
    (1.2, motifs.twins),
    (3.5, motifs.special_constants),
    (0.15, motifs.long_rows),
    (0.35, motifs.big_loop),
    (0.4, motifs.many_indices),
)


@dataclass(frozen=True)
class Case:
    """A program with the arrays to call it with and what it must give."""

    seed: int
    graph: Graph
    inputs: list[Tensor]
    expected: list[Bounded]


def generate(seed: int, allowed: Collection[DType] = dtypes.ALL, oracle: Callable[[Any], Oracle] = Oracle) -> Case:
    """The program of a seed, of values of the element types that are allowed and as exact as an oracle says."""
    maker = Maker(seed, allowed, oracle)
    weights = np.array([w for w, _ in STEPS])
    for _ in range(maker.between(1, 3)):
        maker.attempt(lambda m: m.pool.append(m.source()))
    wanted = maker.between(*NODES)
    for _ in range(40 * NODES[1]):
        if len(maker.graph.nodes) >= wanted:
            break
        maker.attempt(STEPS[int(maker.random.choice(len(STEPS), p=weights / weights.sum()))][1])
    maker.graph.outputs = _outputs(maker)
    drop_dead(maker.graph)
    expected = [maker.known(v) for v in maker.graph.outputs]
    if attention_values(maker.graph):
        expected = oracle(maker.graph.constants).run(maker.graph, maker.inputs)
    return Case(seed, maker.graph, maker.inputs, expected)


def _outputs(maker: Maker) -> list[Value]:
    """Everything that nothing uses, some values inside, now and then an input."""
    used = {o for node in maker.graph.walk() for o in node.operands}
    used |= {o for node in maker.graph.walk() for graph in node.graphs for o in graph.outputs}
    made = [v for v in maker.pool if v.producer is not None]
    ends = [v for v in made if v not in used][-MOST_OUTPUTS:]
    inside = [v for v in made if v in used]
    extra = [maker.pick(inside) for _ in range(maker.between(0, 2)) if inside]
    if maker.chance(0.05) and maker.graph.inputs:
        extra.append(maker.pick(maker.graph.inputs))
    return [*ends, *extra] or maker.pool[-1:]


def drop_dead(graph: Graph) -> None:
    """Remove nodes whose results nothing needs."""
    live = set(graph.outputs)
    for node in reversed(list(graph.nodes)):
        if not any(r in live for r in node.results):
            graph.nodes.remove(node)
            continue
        live.update(node.operands)
        for region in node.graphs:
            live.update(region.outputs)
            live.update(o for inner in region.walk() for o in inner.operands)
            for inner in region.walk():
                for nested in inner.graphs:
                    live.update(nested.outputs)


def judge_undecided(graph: Graph, inputs: Sequence[Tensor]) -> list[Bounded] | None:
    """Expected outputs, or None when the control flow is not certain."""
    try:
        return Oracle(graph.constants).run(graph, inputs)
    except Undecided:
        return None
