"""Instructions of clusters: barrier.cluster, mapa and getctarank (PTX ISA, under their names).

The barrier opens when a thread waits there and no thread of the cluster can go on: the latest time. Lanes of a warp may
come one after another to an aligned instruction, as long as they come to the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tests.emulators.ptx.block import WARP, Block, Retry, lane_bits, reader, warps_of, writer
from tests.emulators.ptx.errors import BarrierMisuse, Divergence
from tests.emulators.ptx.mbarriers import lanes_of, values_of
from tests.emulators.ptx.parser import Instruction
from tests.emulators.ptx.words import Words

if TYPE_CHECKING:
    from tests.emulators.ptx.clusters import Cluster

Effect = Callable[[Block, np.ndarray], "Retry | None"]
_NONE = -1


class ClusterBarrier:
    """At which all threads of a cluster meet that have not ended. Each phase ends when the last has come."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._phase = 0
        self._gathered, self._completed = cluster.ordering.nothing_sent(), cluster.ordering.nothing_sent()
        # By rank and thread the phase at which it arrived, while it has not waited for its end; and the aligned
        # instructions by which it arrived last and at which it waits, 0 for those that are not aligned.
        self._arrivals = np.full((cluster.size, WARP * cluster.warps), _NONE)
        self._arrived_at, self._waits_at = np.zeros_like(self._arrivals), np.zeros_like(self._arrivals)

    def __str__(self) -> str:
        came = int((self._came() & ~self._ended()).sum())
        return f"the barrier of the cluster ({came} of {int((~self._ended()).sum())} threads came)"

    def arrive(self, block: Block, mask: np.ndarray, relaxed: bool, place: int) -> None:
        arrivals, ordering = self._arrivals[block.rank], self._cluster.ordering
        _require(block, mask & (arrivals != _NONE), "arrives at the barrier of the cluster again before it waits")
        arrivals[mask] = self._phase
        self._arrived_at[block.rank, mask] = place
        release = ordering.release_mbarriers if relaxed else ordering.release
        for agent in _agents(block, mask):
            self._gathered.join(release(agent))

    def wait(self, block: Block, mask: np.ndarray, place: int) -> Retry | None:
        arrivals = self._arrivals[block.rank]
        _require(block, mask & (arrivals == _NONE), "waits at the barrier of the cluster, but has not arrived")
        self._waits_at[block.rank, mask] = place
        over = mask & self._may_go(block, place)
        again = mask & ~over
        arrivals[over], self._waits_at[block.rank, over] = _NONE, 0
        for agent in _agents(block, over):
            self._cluster.ordering.acquire(agent, self._completed)
        if not again.any():
            return None

        def is_over() -> bool:
            self._open()
            return bool((again & self._may_go(block, place)).any())

        return Retry(again, is_over, self.__str__)

    def _may_go(self, block: Block, place: int) -> np.ndarray:
        """The threads whose phase ended, if they wait: for an aligned instruction in warps all of which are there."""
        ended = self._arrivals[block.rank] != self._phase
        if not place:
            return ended
        there = (self._waits_at[block.rank] == place) | block.finished
        return ended & np.repeat(warps_of(there).all(axis=1), WARP)

    def _open(self) -> None:
        """Where all have come: the phase ends."""
        if (self._came() | self._ended()).all():
            self._check_aligned()
            self._phase += 1
            self._completed, self._gathered = self._gathered, self._cluster.ordering.nothing_sent()

    def _check_aligned(self) -> None:
        for block in self._cluster.blocks:
            places = warps_of(self._arrived_at[block.rank])
            most = np.where(warps_of(block.finished), 0, places).max(axis=1, keepdims=True)
            if ((places != most) & ~warps_of(block.finished)).any():
                raise Divergence(
                    f"threads of a warp arrive by several aligned barriers of the cluster, {block.where()}"
                )

    def _came(self) -> np.ndarray:
        return self._arrivals == self._phase

    def _ended(self) -> np.ndarray:
        return np.stack([block.finished for block in self._cluster.blocks])


def _agents(block: Block, mask: np.ndarray) -> list[int]:
    return [block.first_warp + int(warp) for warp in np.flatnonzero(lane_bits(mask))]


def _require(block: Block, wrong: np.ndarray, reason: str) -> None:
    if wrong.any():
        raise BarrierMisuse(f"thread {int(np.argmax(wrong))} {reason}, {block.where()}")


def decode_barrier(instruction: Instruction, words: Words) -> Effect:
    """barrier.cluster.arrive{.release, .relaxed}{.aligned}; barrier.cluster.wait{.acquire}{.aligned}"""
    place, kind = id(instruction) if words.take("aligned") else 0, words.left[1:2]
    waits = kind == ["wait"]
    order = words.take_one(("acquire",) if waits else ("release", "relaxed"), "none")
    if words.left != ["cluster", "wait" if waits else "arrive"] or instruction.operands:
        raise words.unknown()

    def effect(block: Block, mask: np.ndarray) -> Retry | None:
        barrier = block.cluster.barrier
        if waits:
            return barrier.wait(block, mask, place)
        barrier.arrive(block, mask, order == "relaxed", place)
        return None

    return effect


def map_address(instruction: Instruction, words: Words) -> Effect:
    """mapa{.shared::cluster}.type d, a, b: the place of rank b where a is in another block."""
    name = words.take_type(("u32", "u64"))
    words.take("shared::cluster")
    words.finish()
    target, address, rank = instruction.operands
    write, read = writer(target, name, instruction), reader(address, name, instruction)
    read_rank = reader(rank, "u32", instruction)

    def effect(block: Block, mask: np.ndarray) -> None:
        addresses, ranks = values_of(block, read), values_of(block, read_rank)
        result = np.zeros(block.lanes.size, addresses.dtype)
        for lane in lanes_of(mask):
            result[lane] = block.cluster.address_in(block, lane, int(addresses[lane]), int(ranks[lane]))
        write(block, mask, result)

    return effect


def rank_of_address(instruction: Instruction, words: Words) -> Effect:
    """getctarank{.shared::cluster}.type d, a: which block has an address."""
    name = words.take_type(("u32", "u64"))
    words.take("shared::cluster")
    words.finish()
    target, address = instruction.operands
    write, read = writer(target, "u32", instruction), reader(address, name, instruction)

    def effect(block: Block, mask: np.ndarray) -> None:
        addresses, result = values_of(block, read), np.zeros(block.lanes.size, np.uint32)
        for lane in lanes_of(mask):
            result[lane] = block.cluster.locate(block, lane, int(addresses[lane]))[0].rank
        write(block, mask, result)

    return effect
