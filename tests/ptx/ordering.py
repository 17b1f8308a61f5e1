"""Who has seen what: vector clocks of a block's warps and of the mbarriers that complete asynchronous operations.

An agent is a warp, or an mbarrier, in whose name the asynchronous operations that it tracks are completed. Each agent
has a clock. A warp's clock moves on when it tells others (a barrier, an arrival) and when it fences, so that what it
does later is told apart from what it did before. PTX ISA, "Memory Consistency Model"; "Async Proxy"; "Memory
Consistency Model for 5th generation of TensorCore operations".
"""

from dataclasses import dataclass

import numpy as np

# Warps of a block and its mbarriers.
MOST_AGENTS = 128


@dataclass
class Sent:
    """What a barrier passes on: the clocks that its participants had seen, had fenced for the asynchronous proxy, and
    had fenced for tensor memory."""

    seen: np.ndarray
    fenced: np.ndarray
    tensor: np.ndarray

    def join(self, other: "Sent") -> None:
        for mine, theirs in ((self.seen, other.seen), (self.fenced, other.fenced), (self.tensor, other.tensor)):
            np.maximum(mine, theirs, out=mine)


def nothing_sent() -> Sent:
    return Sent(*(np.zeros(MOST_AGENTS, np.int32) for _ in range(3)))


class Ordering:
    """Row w of each table: what warp w knows of each agent.

    `seen`: the clock up to which the agent's work happened before. `fenced`: up to which it is also visible to the
    asynchronous proxy. `tensor`: up to which the agent's tensor-memory operations are ordered before those of w.
    """

    def __init__(self, warps: int) -> None:
        self.warps = warps
        self.agents = warps
        self.seen, self.fenced, self.tensor, self._tensor_met = (
            np.zeros((warps, MOST_AGENTS), np.int32) for _ in range(4)
        )
        self._own = np.arange(warps)
        self.seen[self._own, self._own] = 1
        self._tensor_sent = np.zeros(warps, np.int32)

    def add_agent(self) -> int:
        if self.agents == MOST_AGENTS:
            raise NotImplementedError(f"more than {MOST_AGENTS - self.warps} mbarriers")
        self.agents += 1
        return self.agents - 1

    @property
    def clocks(self) -> np.ndarray:
        """The clock of each warp."""
        return self.seen[self._own, self._own]

    def release(self, warp: int) -> Sent:
        tensor = self.tensor[warp].copy()
        tensor[warp] = self._tensor_sent[warp]
        sent = Sent(self.seen[warp].copy(), self.fenced[warp].copy(), tensor)
        self.seen[warp, warp] += 1
        return sent

    def acquire(self, warp: int, sent: Sent) -> None:
        for table, news in (
            (self.seen, sent.seen),
            (self.fenced, sent.fenced),
            (self._tensor_met, sent.tensor),
        ):
            np.maximum(table[warp], news, out=table[warp])

    def fence_proxy(self, warp: int) -> None:
        """fence.proxy.async: what the warp has seen is visible to the asynchronous proxy."""
        self.fenced[warp] = self.seen[warp]
        self.seen[warp, warp] += 1

    def fence_tensor_before(self, warp: int) -> None:
        """tcgen05.fence::before_thread_sync: the warp's tensor-memory operations go with what it tells from now on."""
        self._tensor_sent[warp] = self.seen[warp, warp]
        self.seen[warp, warp] += 1

    def fence_tensor_after(self, warp: int) -> None:
        """tcgen05.fence::after_thread_sync: what the warp was told of tensor memory orders its later operations."""
        np.maximum(self.tensor[warp], self._tensor_met[warp], out=self.tensor[warp])
