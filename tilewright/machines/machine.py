"""Machines as data: typed on load from the `.toml` files in this folder."""

from __future__ import annotations

import math
import os
import pkgutil
import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import replace

from tilewright.dtypes import DType, by_name, u32
from tilewright.errors import CompilerBug, TargetError
from tilewright.machines.core_grid import CoreGrid, Transfer


class Memory(msgspec.Struct, frozen=True):
    """One level: capacity in bytes, sustained bytes per second of one core, latency in seconds.

    Attributes:
        ways: lines whose addresses differ by a multiple of `period_bytes` that a cache holds at once; 0 for no cache.
        banks: words of `bank_bytes` that it serves at once; 0 where it has no banks that software sees.
        widest_bytes: the widest access of one lane.
    """

    name: str
    bytes: int
    line_bytes: int
    bytes_per_second: float
    latency_s: float
    ways: int = 0
    banks: int = 0
    bank_bytes: int = 4
    widest_bytes: int = 16

    @property
    def period_bytes(self) -> int:
        """How far apart lines are that go to the same set of a cache."""
        return self.bytes // self.ways if self.ways else self.line_bytes

    def lines_at(self, pitch_bytes: int) -> int:
        """Lines at a pitch that the cache holds at once."""
        apart = max(self.line_bytes, math.gcd(pitch_bytes, self.period_bytes))
        return self.period_bytes // apart * self.ways


class Link(msgspec.Struct, frozen=True):
    """The interconnect along the axes called `axis` or `axis.*`: bytes per second into or out of one position, latency
    of a message in seconds, and the size below which a message costs as much as one of that size."""

    axis: str
    bytes_per_second: float
    latency_s: float
    message_bytes: int
    multicast: bool = False


class Vector(msgspec.Struct, frozen=True):
    """The vector unit of one core."""

    bytes: int
    registers: int
    fma_per_cycle: float
    fma_latency_cycles: float


class MatrixAtom(msgspec.Struct, frozen=True):
    """An MMA instruction: `rows` x `depth` times `depth` x `columns`, in `cycles` where many follow each other on one
    core. A family that differs in types has one name. Its right operand has as many steps of the depth as fill a word
    of 32 bits side by side.

    With `parts` more than 1 it stands for several instructions: each operand is multiplied by two to the power `scale`
    and taken apart into a sum of so many numbers of the type `part`, rounded to nearest one after the other, and the
    MMAs of two parts whose indices have a sum below `parts` are added. The result is not finite if a part is out of
    range. Only matmuls that request it are computed so, or whose predicted time is below the share `sure` of the usual
    one."""

    name: str
    left: str
    right: str
    accumulator: str
    rows: int
    columns: int
    depth: int
    cycles: float
    parts: int = 1
    part: str = ""
    scale: int = 0
    sure: float = 1.0

    @property
    def flops_per_cycle(self) -> float:
        """Multiplications and additions in a cycle of one core."""
        return 2.0 * self.rows * self.columns * self.depth / self.cycles

    @property
    def group(self) -> int:
        """Steps of the depth in one word of the right operand."""
        return 32 // by_name(self.part or self.right).bits

    @property
    def pairs(self) -> int:
        """Number of MMAs between parts."""
        return self.parts * (self.parts + 1) // 2

    @property
    def is_vector(self) -> bool:
        """Whether it multiplies a word of one row, in all lanes of a vector register, by a vector of words: the inner
        step of a micro-kernel."""
        return self.rows == 1


class AtomFamily(msgspec.Struct, frozen=True):
    """Facts of the MMA instructions of one name, for machines with warps. The layouts of their operands and sums are
    constructors of `layout/catalogue/fragments.py`.

    Attributes:
        warps: how many warps execute one instruction together.
        asynchronous: it completes later, and reads its operands in shared memory, in swizzled layouts.
        left_from_registers: it may also read its left operand from registers.
        sums_in_tensor_memory: its sums are in tensor memory, otherwise in the registers of its warps.
    """

    name: str
    warps: int = 1
    asynchronous: bool = False
    left_from_registers: bool = False
    sums_in_tensor_memory: bool = False

    def by_warps(self, across: tuple[int, int]) -> str:
        """The name of the atom of single warps, so many along the rows and columns."""
        return f"{self.name}, {across[0]} x {across[1]} warps"

    def by_groups(self, groups: int) -> str:
        """The name of the atom of so many groups of warps, which share its rows or read some of its columns each."""
        return f"{self.name}, {groups} warpgroup{'s' if groups > 1 else ''}"

    @property
    def with_left_in_registers(self) -> str:
        """The name of the atom with the left operand in registers."""
        return f"{self.name}, left in registers"


class Residency(msgspec.Struct, frozen=True):
    """The resources of an SM, which its resident thread blocks share.

    Attributes:
        blocks: how many there are at most.
        block_threads: the most threads of one block.
        registers: those of all threads, of 32 bits.
        register_unit: a warp has a multiple of so many registers.
        partitions: parts of the SM, each with its share of the warps and registers.
        shared_bytes: the shared memory of all blocks.
        shared_unit_bytes: a block has a multiple of so many bytes of it.
        reserved_shared_bytes: what the system takes of it for each block.
    """

    blocks: int
    block_threads: int
    registers: int
    register_unit: int
    partitions: int
    shared_bytes: int
    shared_unit_bytes: int
    reserved_shared_bytes: int


class RegisterShares(msgspec.Struct, frozen=True):
    """The registers of a thread that the warps of a role may ask for while a block runs: from `fewest` to `most`, in
    steps of `step`."""

    fewest: int
    most: int
    step: int


class Model(StrEnum):
    """The execution model of a machine: which passes, cost model and executor a program is compiled with.

    Attributes:
        VECTORS: threads with vector registers, and caches (CPUs).
        WARPS: thread blocks of warps with shared memory (GPUs).
        CORES: a grid of cores with local memory, which move data explicitly.
    """

    VECTORS = "vectors"
    WARPS = "warps"
    CORES = "cores"


class Machine(msgspec.Struct, frozen=True, eq=False):
    """One machine as the compiler sees it.

    Attributes:
        axes: extents of the axes of one core.
        default_memory: the memory that the axis `mem` counts addresses of; `mem.NAME` is the memory NAME.
        cycles: cycles of one core per vector operation, by cost class.
        converts: types of 8 bits that one instruction converts from and to.
        stores_matrices: whether a warp stores matrices of 8 x 8 elements of 16 bits at once.
        families: the MMA instructions of warps by name: those of single warps first.
        residency: what blocks share, where a core runs several at once.
        register_shares: how many registers a thread may ask for, where warps can give registers to each other.
        grid: the cores of a machine that is a grid of them, which move data explicitly.
        cores: how many cores a chip has, where the file is about a chip; the threads to use are an option elsewhere.
    """

    name: str
    target: str
    model: Model
    architecture: str
    axes: dict[str, int]
    llvm_cpu: str
    llvm_features: tuple[str, ...]
    vector: Vector
    clock_hertz: float
    memories: tuple[Memory, ...]
    fork_join_s: float
    wake_s: float
    cycles: dict[str, float]
    default_memory: str
    links: tuple[Link, ...] = ()
    matrix_atoms: tuple[MatrixAtom, ...] = ()
    families: tuple[AtomFamily, ...] = ()
    cores: int = 1
    converts: tuple[str, ...] = ()
    stores_matrices: bool = False
    residency: Residency | None = None
    register_shares: RegisterShares | None = None
    grid: CoreGrid | None = None

    def matrix_atom(self, left: DType, right: DType, accumulator: DType, depth: int) -> MatrixAtom | None:
        """The instruction that multiplies matrices of several rows of these types, where there is one and the depth is
        made of its steps."""
        return next((a for a in self._matrix_atoms(left, right, accumulator) if depth and depth % a.depth == 0), None)

    def matrix_step(self, left: DType, right: DType, accumulator: DType) -> MatrixAtom | None:
        """The instruction that multiplies matrices of several rows of these types, whatever the depth."""
        return next(self._matrix_atoms(left, right, accumulator), None)

    def _matrix_atoms(self, left: DType, right: DType, accumulator: DType) -> Iterator[MatrixAtom]:
        types = (left.name, right.name, accumulator.name)
        for atom in self.matrix_atoms:
            if (atom.left, atom.right, atom.accumulator) == types and atom.parts == 1 and not atom.is_vector:
                yield atom

    def word_atom(self, left: DType, right: DType, accumulator: DType) -> MatrixAtom | None:
        """The instruction that multiplies vectors of words of these types, where there is one."""
        types = (left.name, right.name, accumulator.name)
        found = (a for a in self.matrix_atoms if (a.left, a.right, a.accumulator) == types)
        return next((a for a in found if a.is_vector), None)

    def split_atom(self, left: DType, right: DType, accumulator: DType) -> MatrixAtom | None:
        """The MMA instruction that multiplies matrices of these types in parts, or None."""
        types = (left.name, right.name, accumulator.name)
        found = (a for a in self.matrix_atoms if (a.left, a.right, a.accumulator) == types and a.parts > 1)
        return next(found, None)

    def atom_of_part(self, accumulator: DType) -> MatrixAtom:
        """The instruction that multiplies parts, for sums of a type that has them."""
        part = next(a.part for a in self.matrix_atoms if a.accumulator == accumulator.name and a.parts > 1)
        types = (part, part, accumulator.name)
        return next(a for a in self.matrix_atoms if (a.left, a.right, a.accumulator) == types)

    def atom_of(self, name: str, left: DType, right: DType, accumulator: DType) -> MatrixAtom | None:
        """The instruction of a family that multiplies matrices of these types, where there is one."""
        wanted = (name, left.name, right.name, accumulator.name)
        return next((a for a in self.matrix_atoms if (a.name, a.left, a.right, a.accumulator) == wanted), None)

    def family_of(self, atom: str) -> AtomFamily | None:
        """The family of an atom such as `mma.sync, 2 x 2 warps`, or None."""
        name = atom.partition(",")[0]
        return next((family for family in self.families if family.name == name), None)

    def families_of(self, left: DType, right: DType, accumulator: DType) -> dict[AtomFamily, MatrixAtom]:
        """The families that multiply matrices of these types, with their instructions."""
        atoms = {family: self.atom_of(family.name, left, right, accumulator) for family in self.families}
        return {family: atom for family, atom in atoms.items() if atom is not None}

    def warp_atom_of(self, left: DType, right: DType, accumulator: DType) -> MatrixAtom | None:
        """The MMA instruction of single warps for matrices of these types, or None."""
        names = (family.name for family in self.families if family.warps == 1)
        atoms = (self.atom_of(name, left, right, accumulator) for name in names)
        return next((atom for atom in atoms if atom is not None), None)

    def group_atom_of(self, left: DType, right: DType, accumulator: DType) -> tuple[AtomFamily, MatrixAtom] | None:
        """The asynchronous instruction that multiplies matrices of these types, and its family, where there is one."""
        found = self.families_of(left, right, accumulator).items()
        return next(((family, atom) for family, atom in found if family.asynchronous), None)

    def is_asynchronous(self, atom: str) -> bool:
        """Whether an atom, by its name, completes later."""
        return (family := self.family_of(atom)) is not None and family.asynchronous

    def sums_in_tensor_memory(self, atom: str) -> bool:
        """Whether an atom, by its name, adds up in tensor memory."""
        return (family := self.family_of(atom)) is not None and family.sums_in_tensor_memory

    def matrix_atom_of_words(self, left: DType, right: DType, accumulator: DType, depth: int) -> MatrixAtom | None:
        """The MMA instruction for a right operand packed in words."""
        return self.matrix_atom(left, left, accumulator, depth) if right == u32 else None

    def memory(self, name: str) -> Memory:
        return next(m for m in self.memories if m.name == name)

    def memory_of(self, axis: str) -> Memory:
        """The memory whose addresses an axis such as `mem` or `mem.shared` counts.

        Raises:
            TargetError: the machine has no such memory.
        """
        name = axis.partition(".")[2] or self.default_memory
        found = next((m for m in self.memories if m.name == name), None)
        if found is None:
            known = ", ".join(m.name for m in self.memories)
            raise TargetError(f"{self.name} has no memory `{name}`", help=f"the memories are {known}")
        return found

    def link_of(self, axis: str) -> Link | None:
        """The interconnect along an axis, or None."""
        return next((link for link in self.links if link.axis == axis.partition(".")[0]), None)

    @property
    def core_grid(self) -> CoreGrid:
        """The grid of a machine whose model is cores.

        Raises:
            CompilerBug: its model is another one.
        """
        if self.grid is None:
            raise CompilerBug(f"the machine {self.name} is no grid of cores")
        return self.grid

    def lanes(self, dtype: DType) -> int:
        """Elements of `dtype` (in its compute type) in one vector register."""
        return max(1, self.vector.bytes // dtype.compute.itemsize)

    def peak_flops(self, dtype: DType) -> float:
        """Multiply and add operations per second of one core."""
        return 2 * self.lanes(dtype) * self.vector.fma_per_cycle * self.clock_hertz

    def matrix_peak_flops(self, operands: str) -> float | None:
        """Multiply and add operations per second of one core by the fastest instruction that multiplies matrices of a
        type; None where there is none."""
        atoms = [atom for atom in self.matrix_atoms if atom.left == atom.right == operands and atom.parts == 1]
        return max((atom.flops_per_cycle * self.clock_hertz for atom in atoms), default=None)


def parse(text: str) -> Machine:
    """The machine of a file's text."""
    data: dict[str, Any] = tomllib.loads(text)
    return Machine(
        name=data["name"],
        target=data["target"],
        model=_model(data),
        architecture=data["architecture"],
        axes=data["axes"],
        llvm_cpu=data["llvm"]["cpu"],
        llvm_features=tuple(data["llvm"]["features"]),
        vector=Vector(**data["vector"]),
        clock_hertz=data["clock"]["hertz"],
        memories=tuple(Memory(**m) for m in data["memory"]),
        fork_join_s=data["launch"]["fork_join_s"],
        wake_s=data["launch"]["wake_s"],
        cycles=data["cycles"],
        default_memory=data["default_memory"],
        links=tuple(Link(**link) for link in data.get("link", ())),
        matrix_atoms=tuple(MatrixAtom(**atom) for atom in data.get("matrix_atom", ())),
        families=tuple(AtomFamily(**family) for family in data.get("matrix_family", ())),
        cores=data.get("cores", 1),
        converts=tuple(data.get("converts", ())),
        stores_matrices=data.get("stores_matrices", False),
        residency=Residency(**data["residency"]) if "residency" in data else None,
        register_shares=RegisterShares(**data["register_shares"]) if "register_shares" in data else None,
        grid=_core_grid(data) if "grid" in data else None,
    )


def _model(data: Mapping[str, object]) -> Model:
    model = Model(data["model"])
    if (model == Model.CORES) != ("grid" in data):
        raise CompilerBug(f"the machine `{data['name']}` needs a table `grid` if and only if its model is cores")
    return model


def _core_grid(data: dict[str, Any]) -> CoreGrid:
    transfers = [
        Transfer(each["kind"], each["latency_cycles"], tuple(1e9 * rate for rate in each["gigabytes_per_second"]))
        for each in data["transfer"]
    ]
    return CoreGrid(**data["grid"], clock_hertz=data["clock"]["hertz"], transfers=tuple(transfers))


@cache
def _all_names() -> tuple[str, ...]:
    folder = os.path.dirname(__file__)
    if os.path.isdir(folder):
        files = os.listdir(folder)
    else:
        from importlib import resources  # reads archives too, and imports much more than reading a folder needs

        files = [file.name for file in resources.files("tilewright.machines").iterdir()]
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


def names(**stated: str) -> list[str]:
    """The machines that ship with the package and whose files state these texts, such as `target="cpu"`. Files are not
    parsed for it: that takes longer than compiling a small kernel."""
    lines = {f'{key} = "{value}"' for key, value in stated.items()}
    return [name for name in _all_names() if not lines or lines <= {*_text(name).splitlines()}]


def _text(name: str) -> str:
    content = pkgutil.get_data("tilewright.machines", f"{name}.toml")
    if content is None:
        raise CompilerBug(f"the file of the machine `{name}` cannot be read")
    return content.decode()


@cache
def load(name: str) -> Machine:
    """The machine called `name`.

    Raises:
        TargetError: there is no such machine.
    """
    if name not in names():
        raise TargetError(f"there is no machine `{name}`", help=f"use one of {', '.join(names())}")
    return parse(_text(name))


def with_caches(machine: Machine, sizes: dict[str, int]) -> Machine:
    """The machine with cache capacities (bytes by level name) of the host."""
    memories = tuple(replace(m, bytes=sizes.get(m.name, m.bytes)) for m in machine.memories)
    return replace(machine, memories=memories)
