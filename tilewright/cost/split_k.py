"""Split-K on machines with warps: whether a matmul of few tiles is summed in parts of its depth, and in which.

A matmul whose tiles do not fill the machine leaves cores idle for its whole depth. In parts of the depth it has so many
times the tiles; their sums, in the type they are added up in, are written, and a second kernel adds them, always in the
same order:

    seconds = max(product of `batches * parts` products of depth `part`, operand bytes / memory bandwidth)
              + launch + latencies + (parts + 1) * results * accumulator bytes / bandwidth of the cores that add

The last bandwidth is that of the second-level cache where it has room for the parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import msgspec
from msgspec.structs import replace

from tilewright.cost.warps.products import Epilogue, WarpProduct, warp_product_seconds
from tilewright.machines.machine import Machine

# Numbers of parts that are looked at, four for each doubling.
_COUNTS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
# Parts are multiples of it: whole steps of the depth for every type, that begin where copies may.
_MULTIPLE = 128
# Results of a core that make a tile as large as any: products of so many for each core are not looked at.
_ENOUGH = 128 * 256
# Results that a core adds at once, a few for each thread of a block.
_RESULTS_OF_A_CORE = 1024
# How much longer the product must take as it is: the prediction is no surer, and a second kernel has to be compiled.
_WORTH = 1.25


class SplitK(msgspec.Struct, frozen=True):
    """Parts of `part` of the depth, the last of which may be shorter, in `seconds` of predicted time with the kernel
    that adds them; `whole_s`: the time without parts."""

    part: int
    parts: int
    seconds: float
    whole_s: float


def split_k(product: WarpProduct, machine: Machine) -> SplitK | None:
    """The parts that a matmul should be summed in, if it should."""
    if product.rows * product.columns * product.batches >= _ENOUGH * machine.cores:
        return None
    whole_s = max(warp_product_seconds(product, machine), _reading_seconds(product, machine))
    found = [SplitK(part, parts, _seconds(product, part, parts, machine), whole_s) for part, parts in _cuts(product)]
    best = min(found, key=lambda each: each.seconds, default=None)
    return best if best is not None and best.seconds * _WORTH <= whole_s else None


def _cuts(product: WarpProduct) -> Iterator[tuple[int, int]]:
    """Sizes of parts, and how many there are, each once."""
    seen: set[int] = set()
    for count in _COUNTS:
        part = ceil(product.depth / count / _MULTIPLE) * _MULTIPLE
        if part < product.depth and part not in seen:
            seen.add(part)
            yield part, ceil(product.depth / part)


def _seconds(product: WarpProduct, part: int, parts: int, machine: Machine) -> float:
    cut = replace(product, depth=part, batches=product.batches * parts, epilogue=Epilogue.NONE)
    multiplied_s = max(warp_product_seconds(cut, machine), _reading_seconds(product, machine))
    return multiplied_s + machine.fork_join_s + _adding_seconds(product, parts, machine)


def _reading_seconds(product: WarpProduct, machine: Machine) -> float:
    """The time in which all cores load both operands from the memory beyond the caches."""
    elements = (product.rows + product.columns) * product.depth * product.batches
    return elements * product.operand.itemsize / (machine.memories[-1].bytes_per_second * machine.cores)


def _adding_seconds(product: WarpProduct, parts: int, machine: Machine) -> float:
    results = product.rows * product.columns * product.batches
    read = results * product.accumulator.itemsize * parts
    near, far = machine.memories[1], machine.memories[-1]
    memory = near if read <= near.bytes else far
    cores = min(machine.cores, ceil(results / _RESULTS_OF_A_CORE))
    moved = read + results * product.accumulator.itemsize
    return moved / (memory.bytes_per_second * cores) + near.latency_s + far.latency_s
