"""Zones around anything in a random tile kernel."""

from __future__ import annotations

import random

from xdsl.ir import Block

from tests.fuzz.tile_steps import Kernel
from tests.passes.pass_support import parse
from tilewright.dialects import tile

MOST_ZONES = 3


def with_zones(kernel: Kernel) -> Kernel:
    """The kernel with some zones in each of its blocks, one in another or one after another."""
    module, chosen = parse(kernel.text), random.Random(kernel.seed)
    blocks = [
        region.block
        for op in module.walk()
        if isinstance(op, tile.KernelOp | tile.ForOp | tile.IfOp)
        for region in op.regions
    ]
    for block in blocks:
        for _ in range(chosen.randint(1, MOST_ZONES)):
            _add_zone(block, chosen)
    return Kernel(kernel.seed, str(module))


def _add_zone(block: Block, chosen: random.Random) -> None:
    """Around what is not cut by another zone."""
    ops = list(block.ops)
    first = chosen.randrange(len(ops))
    end = first
    while end < len(ops) - 1 and chosen.random() < 0.8:
        op = ops[end]
        if isinstance(op, tile.ZoneOp) and not op.begins:
            break
        end = ops.index(op.other()) + 1 if isinstance(op, tile.ZoneOp) else end + 1
    label = chosen.choice("abc")
    block.insert_op_before(tile.zone(label, tile.BEGIN), ops[first])
    block.insert_op_before(tile.zone(label, tile.END), ops[end])
