"""Runs the PTX that LLVM's NVPTX back end prints, with NumPy: all threads of a block at once, the blocks of a cluster
in turns, cluster after cluster.

The source of truth is the PTX ISA (https://docs.nvidia.com/cuda/parallel-thread-execution), whose headings the comments
cite. What is not implemented raises `NotImplementedError` with the text of the instruction; nothing is guessed.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from tests.emulators.ptx.block import WARP, Block
from tests.emulators.ptx.bulk import BulkGroups
from tests.emulators.ptx.clusters import Cluster, ClusterRun
from tests.emulators.ptx.counts import Counts
from tests.emulators.ptx.decode import Program, decoded
from tests.emulators.ptx.mbarriers import MBarriers
from tests.emulators.ptx.memory import LOCAL_BASE, PARAMETER_BASE, SHARED_BASE, GlobalMemory
from tests.emulators.ptx.parser import Entry, Variable
from tests.emulators.ptx.shared import SharedMemory
from tests.emulators.ptx.tensor_cores import Transfers
from tests.emulators.ptx.tensor_maps import TensorMap
from tests.emulators.ptx.tensor_memory import TensorMemory
from tests.emulators.ptx.warpgroups import WarpGroups

# Of a tensor map, as a parameter (CUDA Driver API, CUtensorMap).
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64

# Of a block, and of a cluster that every chip takes: CUDA C++ Programming Guide, table of technical specifications and
# "Thread Block Clusters".
_REGISTERS = 65536
_BLOCKS_OF_CLUSTER = 8


def run(
    ptx: str,
    name: str,
    blocks: int | tuple[int, int, int],
    threads: int,
    arrays: Sequence[np.ndarray | TensorMap],
    shared_bytes: int = 0,
    order: random.Random | None = None,
    cluster: int | None = None,
) -> Counts:
    """Runs entry `name` of the module `ptx` on `blocks` blocks of `threads` threads, and counts what it did.

    Parameter i is the address of `arrays[i]`, which the kernel writes in place, or the tensor map that is there.
    `shared_bytes`: the dynamic shared array. `order` shuffles the blocks, and chooses which asynchronous operation
    lands next. `cluster`: as many blocks along x are one, where the launch says so.
    """
    program = decoded(ptx, name)
    required = program.entry.required_threads
    if required is not None and (*required, 1, 1)[:3] != (threads, 1, 1):
        raise ValueError(f"{name} needs blocks of {required} threads, not {threads}")
    registers = threads * (program.entry.most_registers or 0)
    if registers > _REGISTERS:
        raise ValueError(f"{name} needs {registers} registers for a block, of {_REGISTERS}")
    if len(arrays) != len(program.entry.parameters):
        raise ValueError(f"{name} has {len(program.entry.parameters)} parameters, not {len(arrays)}")
    memory = GlobalMemory([each for each in arrays if isinstance(each, np.ndarray)])
    extents = (blocks, 1, 1) if isinstance(blocks, int) else blocks
    size = cluster_size(program.entry, extents[0], cluster)
    positions = [(x, y, z) for z in range(extents[2]) for y in range(extents[1]) for x in range(0, extents[0], size)]
    if order is not None:
        order.shuffle(positions)
    counts = Counts()
    plan = _MemoryPlan(program, memory, arrays, shared_bytes, order or random.Random(0))
    executed: Counter[int] = Counter()
    with np.errstate(all="ignore"):
        for position in positions:
            together = plan.cluster(position, size, extents, threads, memory, counts)
            ClusterRun(program, together, executed).run()
    for step, number in executed.items():
        counts.instructions[program.steps[step].instruction.opcode] += number
    return counts


def cluster_size(entry: Entry, blocks: int, launched: int | None) -> int:
    """The blocks of a cluster: what an entry requires or a launch of `blocks` along x says.

    Raises:
        ValueError: they do not fit.
    """
    (required, *rest) = entry.cluster or (launched or 1, 1, 1)
    if any(extent != 1 for extent in rest):
        raise NotImplementedError(f"{entry.name} needs clusters of {entry.cluster} blocks")
    if entry.needs_cluster and entry.cluster is None and launched is None:
        raise ValueError(f"{entry.name} needs a size of clusters")
    if launched not in (None, required):
        raise ValueError(f"{entry.name} needs clusters of {required} blocks, not {launched}")
    if not 1 <= required <= (entry.most_of_cluster or _BLOCKS_OF_CLUSTER):
        raise ValueError(f"{entry.name} in clusters of {required} blocks")
    if blocks % required:
        raise ValueError(f"{blocks} blocks of {entry.name} in clusters of {required}")
    return required


class _MemoryPlan:
    """Where variables lie: the same in every block."""

    def __init__(
        self,
        program: Program,
        memory: GlobalMemory,
        arrays: Sequence[np.ndarray | TensorMap],
        shared_bytes: int,
        order: random.Random,
    ) -> None:
        self._order = order
        self._most_registers = program.entry.most_registers
        self.registers = program.entry.register_bits
        self.symbols: dict[str, int] = {}
        variables = [*program.module.variables, *program.entry.variables]
        for variable in variables:
            if variable.space in ("global", "const"):
                self.symbols[variable.name] = memory.add(_initialised(variable))
        fixed = [variable for variable in variables if variable.space == "shared" and not variable.extern]
        end = self._place(fixed, SHARED_BASE)
        # All dynamic arrays begin where the fixed ones end, each where its alignment lets it.
        dynamic = [variable for variable in variables if variable.space == "shared" and variable.extern]
        end = max([end, *(self._place([variable], end) for variable in dynamic)]) + shared_bytes
        self.shared_bytes = end - SHARED_BASE
        self.local_bytes = (
            -(-(self._place([v for v in variables if v.space == "local"], LOCAL_BASE) - LOCAL_BASE) // 16) * 16
        )
        self.tensor_maps: dict[int, TensorMap] = {}
        self.parameters = self._parameters(program.entry, arrays, iter(memory.addresses))

    def _place(self, variables: Sequence[Variable], start: int) -> int:
        for variable in variables:
            if variable.data is not None:
                raise NotImplementedError(f"initialiser of {variable.space} variable {variable.name}")
            start = -(-start // variable.align) * variable.align
            self.symbols[variable.name] = start
            start += variable.size
        return start

    def _parameters(
        self, entry: Entry, arrays: Sequence[np.ndarray | TensorMap], addresses: Iterator[int]
    ) -> np.ndarray:
        """The bytes of the parameters: addresses of arrays; tensor maps are opaque."""
        end = self._place(entry.parameters, PARAMETER_BASE)
        data = np.full(end - PARAMETER_BASE, 0xCD, np.uint8)
        for parameter, given in zip(entry.parameters, arrays, strict=True):
            address = self.symbols[parameter.name]
            if isinstance(given, TensorMap):
                if parameter.size != _MAP_BYTES or parameter.align % _MAP_ALIGNMENT:
                    raise ValueError(f"parameter {parameter.name} of {parameter.size} bytes holds no tensor map")
                self.tensor_maps[address] = given
                continue
            if parameter.size != 8:
                raise NotImplementedError(f"parameter {parameter.name} of {parameter.size} bytes")
            start = address - PARAMETER_BASE
            data[start : start + 8] = np.array([next(addresses)], np.uint64).view(np.uint8)
        return data

    def cluster(
        self,
        first: tuple[int, int, int],
        size: int,
        extents: tuple[int, int, int],
        threads: int,
        memory: GlobalMemory,
        counts: Counts,
    ) -> Cluster:
        """The blocks from `first` on."""
        cluster = Cluster(size, -(-threads // WARP), self._order)
        for rank in range(size):
            position = (first[0] + rank, *first[1:])
            cluster.blocks.append(self._block(cluster, position, extents, threads, memory, counts))
        return cluster

    def _block(
        self,
        cluster: Cluster,
        position: tuple[int, int, int],
        extents: tuple[int, int, int],
        threads: int,
        memory: GlobalMemory,
        counts: Counts,
    ) -> Block:
        lanes = -(-threads // WARP) * WARP
        # No value that a program has not written is of use: a pattern that stands out.
        registers = [
            np.zeros(lanes, bool) if bits == 1 else np.full(lanes, 0xCDCDCDCDCDCDCDCD % (1 << bits), f"uint{bits}")
            for bits in self.registers
        ]
        local = np.full((lanes, self.local_bytes), 0xCD, np.uint8)
        block = Block(
            cluster,
            len(cluster.blocks),
            position,
            extents,
            threads,
            registers,
            self.symbols,
            memory,
            self.parameters,
            local,
            counts,
            self.tensor_maps,
        )
        block.shared = SharedMemory(self.shared_bytes, lanes, block.first_warp, block.ordering, cluster.where)
        block.mbarriers, block.bulk = MBarriers(block), BulkGroups()
        block.warpgroups = WarpGroups(block, self._most_registers)
        block.tensor_memory, block.transfers = TensorMemory(block), Transfers()
        return block


def _initialised(variable: Variable) -> np.ndarray:
    data = np.frombuffer(variable.data or bytes(variable.size), np.uint8).copy()
    data.flags.writeable = variable.space == "global"
    return data
