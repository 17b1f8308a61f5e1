"""Properties of a grid of cores that move data explicitly: its shape, the memory and the units of a core, its networks,
and how long each takes. The numbers are in the machine's file, with their sources."""

from __future__ import annotations

from math import ceil

import msgspec

from tilewright.cached import cached_property

DRAM_READ, DRAM_WRITE, CORE_READ, CORE_WRITE, LOCAL = "dram_read", "dram_write", "core_read", "core_write", "local"
TRANSFERS = (DRAM_READ, DRAM_WRITE, CORE_READ, CORE_WRITE, LOCAL)


class Transfer(msgspec.Struct, frozen=True):
    """One kind of transfer by one core: bytes a second that many transactions of 16, 32, 64 ... bytes reach, and the
    cycles from a transaction's beginning to its arrival where nothing else is under way."""

    kind: str
    latency_cycles: float
    bytes_per_second: tuple[float, ...]

    def rate_of(self, transaction_bytes: int) -> float:
        """Bytes a second of transactions of a size: those of the nearest power of two in the table."""
        index = round_log2(max(16, transaction_bytes)) - 4
        return self.bytes_per_second[min(index, len(self.bytes_per_second) - 1)]


def round_log2(value: int) -> int:
    """The exponent of the power of two nearest to a number, by ratio."""
    down = value.bit_length() - 1
    return down + (value * value > 2 ** (2 * down + 1))


class CoreGrid(msgspec.Struct, frozen=True, dict=True):
    """A grid of cores.

    Attributes:
        rows, columns: the cores that programs run on.
        queues: how many queues a core has at most.
        semaphores: how many semaphores a core has at most.
        registers: tile registers of 16 bits; half of them are computed in while the others are packed, and a register
            of 32 bits takes two.
        memory_base_bytes, memory_end_bytes: the addresses of a core's memory that programs may use.
        memory_alignment_bytes, dram_alignment_bytes: addresses of transfers are multiples of these.
        dram_banks: pages of an array go to these in turn.
        dram_bytes_per_second: of all banks together.
        networks: how many networks there are, and so movers of a core.
        network_bytes_per_cycle: what one link of a network moves.
        hop_cycles: what each router on the way adds to the latency of a transfer.
        semaphore_cycles: from an increment of another core's semaphore to its arrival, on a way of no hops.
        multiply_cycles: of a matmul of two tiles, at the fidelity that is exact for 16-bit floats.
        matrix_cycles, copy_cycles: of the matrix unit, for a tile of sums or differences, and for a copied one.
        reduce_cycles: of the matrix unit, for a tile that is reduced.
        tilize_cycles, untilize_cycles: of unpack, for a tile that it takes out of rows, and of pack, for one that it
            writes as rows, whatever the format.
        vector_lanes: elements that the vector unit works on at once.
        vector_cycles: of one of those, by cost class.
        unpack_bytes_per_cycle, pack_bytes_per_cycle: between a core's memory and its units.
        configure_cycles: of a change of a unit's state.
        issue_cycles: of a mover, for each transfer that it begins.
        element_cycles: of a mover, for each element that it copies by itself.
        fill_cycles: of a mover, for each 4 bytes of padding that it stores.
        dispatch_cycles: from the launch of a program to its first instruction.
        transfers: how long data takes.
    """

    rows: int
    columns: int
    queues: int
    semaphores: int
    registers: int
    memory_base_bytes: int
    memory_end_bytes: int
    memory_alignment_bytes: int
    dram_alignment_bytes: int
    dram_banks: int
    dram_bytes_per_second: float
    networks: int
    network_bytes_per_cycle: float
    hop_cycles: float
    semaphore_cycles: float
    multiply_cycles: float
    matrix_cycles: float
    copy_cycles: float
    reduce_cycles: float
    tilize_cycles: float
    untilize_cycles: float
    vector_lanes: int
    vector_cycles: dict[str, float]
    unpack_bytes_per_cycle: float
    pack_bytes_per_cycle: float
    configure_cycles: float
    issue_cycles: float
    element_cycles: float
    fill_cycles: float
    dispatch_cycles: float
    clock_hertz: float
    transfers: tuple[Transfer, ...]

    @property
    def memory_bytes(self) -> int:
        """Bytes of a core's memory that programs may use."""
        return self.memory_end_bytes - self.memory_base_bytes

    def half_registers(self, wide: bool) -> int:
        """Tile registers that can be computed in at a time, of 32 bits where `wide`."""
        return self.registers // (4 if wide else 2)

    @cached_property
    def _by_kind(self) -> dict[str, Transfer]:
        return {each.kind: each for each in self.transfers}

    def transfer(self, kind: str) -> Transfer:
        return self._by_kind[kind]

    def latency_cycles(self, kind: str) -> float:
        """From the beginning of a transaction to its arrival, where nothing else is under way."""
        return self._by_kind[kind].latency_cycles

    def occupancy_cycles(self, kind: str, transaction_bytes: int, count: int = 1) -> float:
        """How long transactions of a size keep a core's end of a network busy."""
        rate = self._by_kind[kind].rate_of(transaction_bytes)
        return ceil(count * max(16, transaction_bytes) * self.clock_hertz / rate)

    def unpack_cycles(self, page_bytes: int) -> float:
        """Of one page of a queue, on its way to the matrix unit or the tile registers."""
        return page_bytes / self.unpack_bytes_per_cycle

    def unpack_rows_cycles(self, page_bytes: int) -> float:
        """Of as many bytes of rows, on their way to be one tile."""
        return max(self.tilize_cycles, self.unpack_cycles(page_bytes))

    def pack_cycles(self, page_bytes: int) -> float:
        """Of one page, from a tile register to a queue."""
        return page_bytes / self.pack_bytes_per_cycle

    def pack_rows_cycles(self, page_bytes: int) -> float:
        """Of one tile, on its way to as many bytes of rows."""
        return max(self.untilize_cycles, self.pack_cycles(page_bytes))

    def generate_cycles(self, elements: int, bits: int, in_words: bool) -> float:
        """Of a mover that stores numbers: one by one, or the same number in words."""
        return self.fill_cycles * elements * bits / 32 if in_words else self.element_cycles * elements

    def vector_tile_cycles(self, cost: str) -> float:
        """Of the vector unit, for one tile."""
        return 32 * 32 / self.vector_lanes * self.vector_cycles[cost]
