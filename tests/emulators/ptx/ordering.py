"""Who has seen what: vector clocks of a cluster's warps and of the mbarriers that complete asynchronous operations.

An agent is a warp, or an mbarrier, in whose name the asynchronous operations that it tracks are completed. Each agent
has a clock. A warp's clock moves on when it tells others (a barrier, an arrival) and when it fences, so that what it
does later is told apart from what it did before. PTX ISA, "Memory Consistency Model"; "Async Proxy"; "Memory
Consistency Model for 5th generation of TensorCore operations".
"""

from dataclasses import dataclass

import numpy as np

# Warps and mbarriers of each block.
_AGENTS_OF_BLOCK = 128


@dataclass
class Sent:
    """What a barrier passes on: the clocks that its participants had seen, had fenced for the asynchronous proxy, had
    fenced for tensor memory, and up to which they knew of mbarriers."""

    seen: np.ndarray
    fenced: np.ndarray
    tensor: np.ndarray
    initialised: np.ndarray

    def join(self, other: "Sent") -> None:
        np.maximum(self.seen, other.seen, out=self.seen)
        np.maximum(self.fenced, other.fenced, out=self.fenced)
        np.maximum(self.tensor, other.tensor, out=self.tensor)
        np.maximum(self.initialised, other.initialised, out=self.initialised)


class Ordering:
    """Row w of each table: what warp w, of those of all blocks, knows of each agent.

    `seen`: the clock up to which the agent's work happened before. `fenced`: up to which it is also visible to the
    asynchronous proxy. `tensor`: up to which the agent's tensor-memory operations are ordered before those of w.
    `initialised`: up to which w knows of the mbarriers that a warp initialised and fenced, even where it knows of
    nothing else.
    """

    def __init__(self, warps: int, blocks: int) -> None:
        self.warps = warps
        self.agents = warps
        self.most_agents = blocks * _AGENTS_OF_BLOCK
        self.seen, self.fenced, self.tensor, self._tensor_met, self.initialised = (
            np.zeros((warps, self.most_agents), np.int32) for _ in range(5)
        )
        self._own = np.arange(warps)
        self.seen[self._own, self._own] = 1
        self._tensor_sent = np.zeros(warps, np.int32)

    def add_agent(self) -> int:
        if self.agents == self.most_agents:
            raise NotImplementedError(f"more than {self.most_agents - self.warps} mbarriers")
        self.agents += 1
        return self.agents - 1

    @property
    def clocks(self) -> np.ndarray:
        """The clock of each warp."""
        return self.seen[self._own, self._own]

    def nothing_sent(self) -> Sent:
        return Sent(*(np.zeros(self.most_agents, np.int32) for _ in range(4)))

    def release(self, warp: int) -> Sent:
        tensor = self.tensor[warp].copy()
        tensor[warp] = self._tensor_sent[warp]
        sent = Sent(self.seen[warp].copy(), self.fenced[warp].copy(), tensor, self.initialised[warp].copy())
        self.seen[warp, warp] += 1
        return sent

    def release_mbarriers(self, warp: int) -> Sent:
        """What a relaxed operation passes on: that the warp initialised and fenced mbarriers."""
        sent = self.nothing_sent()
        sent.initialised[warp] = self.initialised[warp, warp]
        return sent

    def acquire(self, warp: int, sent: Sent) -> None:
        for table, news in (
            (self.seen, sent.seen),
            (self.fenced, sent.fenced),
            (self._tensor_met, sent.tensor),
            (self.initialised, sent.initialised),
        ):
            np.maximum(table[warp], news, out=table[warp])

    def fence_proxy(self, warp: int) -> None:
        """fence.proxy.async: what the warp has seen is visible to the asynchronous proxy."""
        self.fenced[warp] = self.seen[warp]
        self.seen[warp, warp] += 1

    def fence_mbarriers(self, warp: int) -> None:
        """fence.mbarrier_init.release.cluster: that the warp initialised mbarriers goes with all that it tells."""
        self.initialised[warp, warp] = self.seen[warp, warp]
        self.seen[warp, warp] += 1

    def knows_mbarriers(self, warp: int, other: int, clock: int) -> bool:
        """Whether a warp knows of the mbarriers that another initialised at a time."""
        return bool(self.seen[warp, other] >= clock or self.initialised[warp, other] >= clock)

    def fence_tensor_before(self, warp: int) -> None:
        """tcgen05.fence::before_thread_sync: the warp's tensor-memory operations go with what it tells from now on."""
        self._tensor_sent[warp] = self.seen[warp, warp]
        self.seen[warp, warp] += 1

    def fence_tensor_after(self, warp: int) -> None:
        """tcgen05.fence::after_thread_sync: what the warp was told of tensor memory orders its later operations."""
        np.maximum(self.tensor[warp], self._tensor_met[warp], out=self.tensor[warp])
