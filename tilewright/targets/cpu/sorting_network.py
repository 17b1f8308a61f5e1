"""Bitonic sorting (Batcher, "Sorting networks and their applications", 1968) of records in registers and in memory.

A record is spread over planes: one integer that holds all of it, or a rank and an index. In a network, pairs of
positions are compared and put in order, whatever they hold, so that vectors of pairs are compared at a time. Between
vectors a pair is two lanes of one number; places nearer to each other than a vector is long are moved together by
shuffles.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from llvmlite import ir

from tilewright.machines.machine import Machine
from tilewright.targets.cpu.loops import I1, I64, POINTER, i64, loop, offset_pointer
from tilewright.targets.cpu.shuffles import exchanged
from tilewright.targets.llvm.values import Builder, Value, builder_of, intrinsic, shuffle

# Vectors of a plane that are in registers at a time.
BLOCK_VECTORS = 8

# The most places of lines that are sorted as lanes of vectors: about the registers that there are.
MOST_IN_COLUMNS = 32

Record = tuple[Value, ...]
"""A vector of each plane."""


@dataclass(frozen=True)
class Network:
    """Comparisons of records in registers: `lanes` of them in a vector, runs of them in lists of vectors."""

    builder: Builder
    lanes: int
    planes: int
    itemsize: int

    def sorted(self, records: Sequence[Record]) -> list[Record]:
        """A power of two of vectors, in order. Sorted runs of doubling size are folded onto each other: the lower
        halves of both then hold the smaller records, and each half of the result rises and falls."""
        steps: list[int] = []
        size = 2
        while size <= self.lanes:
            steps += [size - 1, *_halves(size // 2)]
            size *= 2
        result = self._in_vectors(records, steps)
        while size <= self.lanes * len(result):
            result = self._folded(result, size // self.lanes)
            result = self.merged(result, size // 2)
            size *= 2
        return result

    def merged(self, records: Sequence[Record], size: int) -> list[Record]:
        """Runs of `size` records that rise and fall, each put in order."""
        result = list(records)
        distance = size // 2
        while distance >= self.lanes:
            for low in range(len(result)):
                high = low ^ (distance // self.lanes)
                if low < high:
                    result[low], result[high] = self.in_order(result[low], result[high])
            distance //= 2
        return self._in_vectors(result, _halves(2 * distance))

    def _folded(self, records: list[Record], vectors: int) -> list[Record]:
        """Places in order that are equally far from both ends of a run of some vectors."""
        result = list(records)
        for low in range(len(result)):
            high = low ^ (vectors - 1)
            if low < high:
                first, second = self.in_order(result[low], self.turned(result[high]))
                result[low], result[high] = first, self.turned(second)
        return result

    def _in_vectors(self, records: Sequence[Record], steps: Sequence[int]) -> list[Record]:
        """Compare and exchange lanes, step by step, whose indices differ by the bits of a step. Two vectors share their
        comparisons."""
        if len(records) == 1:
            (one,) = records
            for step in steps:
                one = self._lanes_in_order(one, step)
            return [one]
        result: list[Record] = []
        for first, second in zip(records[::2], records[1::2], strict=True):
            result += self._pair_in_order(first, second, steps)
        return result

    def _pair_in_order(self, first: Record, second: Record, steps: Sequence[int]) -> tuple[Record, Record]:
        """The lanes of two vectors in order. For each step the lower lanes of both come together in one vector, their
        partners in the other; `places` states where the lanes are."""
        lanes, places = self.lanes, list(range(2 * self.lanes))
        for step in steps:
            lower = [place for place in self._by_chunks(places, step) if places[place] ^ step > places[place]]
            where = {lane: place for place, lane in enumerate(places)}
            upper = [where[places[place] ^ step] for place in lower]
            first, second = self._picked(first, second, lower), self._picked(first, second, upper)
            first, second = self.in_order(first, second)
            places = [places[place] for place in (*lower, *upper)]
        where = {lane: place for place, lane in enumerate(places)}
        order = [where[lane] for lane in range(2 * lanes)]
        return self._picked(first, second, order[:lanes]), self._picked(first, second, order[lanes:])

    def _by_chunks(self, places: Sequence[int], step: int) -> list[int]:
        """The positions of two vectors, in an order in which picking half of them is one instruction: chunks of 16
        bytes of both in turn where a step stays within these, else one vector after the other."""
        chunk = 16 // self.itemsize
        if step >= chunk:
            return list(range(len(places)))
        return [v + c + n for c in range(0, self.lanes, chunk) for v in (0, self.lanes) for n in range(chunk)]

    def _picked(self, first: Record, second: Record, places: Sequence[int]) -> Record:
        return tuple(shuffle(self.builder, a, b, places) for a, b in zip(first, second, strict=True))

    def turned(self, one: Record) -> Record:
        """The lanes in reverse order."""
        return tuple(exchanged(self.builder, value, self.lanes - 1) for value in one) if self.lanes > 1 else one

    def in_order(self, first: Record, second: Record) -> tuple[Record, Record]:
        """The smaller and the larger of each pair of lanes."""
        builder = self.builder
        if self.planes == 1:
            pair = [first[0], second[0]]
            return (intrinsic(builder, "smin", pair),), (intrinsic(builder, "smax", pair),)
        keeps = self._precedes(first, second)
        smaller = tuple(builder.select(keeps, a, b) for a, b in zip(first, second, strict=True))
        larger = tuple(builder.select(keeps, b, a) for a, b in zip(first, second, strict=True))
        return smaller, larger

    def _lanes_in_order(self, one: Record, distance: int) -> Record:
        """Lanes in order whose numbers differ by the bits of `distance`: the lower ones take the smaller."""
        builder = self.builder
        other = tuple(exchanged(builder, value, distance) for value in one)
        lower = ir.Constant(
            ir.VectorType(I1, self.lanes), [ir.Constant(I1, int(n < n ^ distance)) for n in range(self.lanes)]
        )
        if self.planes == 1:
            pair = [one[0], other[0]]
            return (builder.select(lower, intrinsic(builder, "smin", pair), intrinsic(builder, "smax", pair)),)
        # Of two equal records, which hold nothing, each lane takes the other.
        keeps = builder.xor(self._precedes(one, other), builder.not_(lower))
        return tuple(builder.select(keeps, a, b) for a, b in zip(one, other, strict=True))

    def _precedes(self, first: Record, second: Record) -> Value:
        builder = self.builder
        smaller = builder.icmp_signed("<", first[0], second[0])
        equal = builder.icmp_signed("==", first[0], second[0])
        return builder.or_(smaller, builder.and_(equal, builder.icmp_signed("<", first[1], second[1])))


def side_by_side(network: Network, records: Sequence[Record]) -> list[Record]:
    """Any number of vectors in order, lane by lane, by the merges of odd and even places of the same paper."""
    result, count = list(records), len(records)
    size = 1
    while size < count:
        distance = size
        while distance:
            for low in range(count - distance):
                offset = low - distance % size
                # Pairs within a run of twice the size: of its halves first, then of places that the step before left.
                if offset >= 0 and offset // distance % 2 == 0 and _is_in_run(low, distance, size):
                    high = low + distance
                    result[low], result[high] = network.in_order(result[low], result[high])
            distance //= 2
        size *= 2
    return result


def _is_in_run(low: int, distance: int, size: int) -> bool:
    return low // (2 * size) == (low + distance) // (2 * size)


@dataclass(frozen=True)
class MemorySort:
    """Functions that sort records in memory, of which a module holds one for each kind of record."""

    machine: Machine
    planes: int
    bits: int

    @property
    def lanes(self) -> int:
        return 8 * self.machine.vector.bytes // self.bits

    @property
    def block(self) -> int:
        """Records that are in registers at a time. A sort has a power of two of blocks."""
        return BLOCK_VECTORS * self.lanes

    def sort(self, builder: Builder, planes: Sequence[Value], count: Value) -> None:
        """Put `count` records in order."""
        builder.call(self._function(builder, "sort", self._sort), [*planes, count])

    def merge(self, builder: Builder, planes: Sequence[Value], count: Value) -> None:
        """Put `count` records in order that rise and then fall."""
        builder.call(self._function(builder, "merge", self._merge), [*planes, count])

    def load(self, builder: Builder, planes: Sequence[Value], place: Value) -> Record:
        """The vectors from an index on."""
        shape = ir.VectorType(ir.IntType(self.bits), self.lanes)
        pointers = [self._at(builder, plane, place) for plane in planes]
        return tuple(builder.load(pointer, typ=shape, align=self.bits // 8) for pointer in pointers)

    def store(self, builder: Builder, planes: Sequence[Value], place: Value, one: Record) -> None:
        """Write vectors from an index on."""
        for plane, value in zip(planes, one, strict=True):
            builder.store(value, self._at(builder, plane, place), align=self.bits // 8)

    def network(self, builder: Builder) -> Network:
        """The comparisons of vectors of these records."""
        return Network(builder, self.lanes, self.planes, self.bits // 8)

    # ---- functions ----------------------------------------------------------------------------------------------

    def _function(
        self, builder: Builder, name: str, body: Callable[[Builder, ir.Function, Sequence[Value], Value], None]
    ) -> ir.Function:
        name = f"{name}.{self.planes}.i{self.bits}"
        found = builder.module.globals.get(name)
        if found is not None:
            return found
        type = ir.FunctionType(ir.VoidType(), [*[POINTER] * self.planes, I64])
        function = ir.Function(builder.module, type, name)
        function.linkage = "internal"
        inner = builder_of(function)
        body(inner, function, function.args[:-1], function.args[-1])
        inner.ret_void()
        return function

    def _sort(self, builder: Builder, this: ir.Function, planes: Sequence[Value], count: Value) -> None:
        """Both halves, folded onto each other, then each half of that."""
        merge = self._function(builder, "merge", self._merge)
        with self._unless_block(builder, planes, count, lambda network, records: network.sorted(records)):
            half = builder.lshr(count, i64(1))
            upper = [self._at(builder, plane, half) for plane in planes]
            builder.call(this, [*planes, half])
            builder.call(this, [*upper, half])
            network = self.network(builder)
            with loop(builder, i64(0), half, self.lanes, "fold") as at:
                mirrored = builder.sub(count, builder.add(at, i64(self.lanes)))
                first, second = self.load(builder, planes, at), self.load(builder, planes, mirrored)
                first, second = network.in_order(first, network.turned(second))
                self.store(builder, planes, at, first)
                self.store(builder, planes, mirrored, network.turned(second))
            builder.call(merge, [*planes, half])
            builder.call(merge, [*upper, half])

    def _merge(self, builder: Builder, this: ir.Function, planes: Sequence[Value], count: Value) -> None:
        """Records half the run apart, then a quarter, while they are in registers; then each quarter."""
        with self._unless_block(builder, planes, count, lambda network, records: network.merged(records, self.block)):
            is_two_blocks = builder.icmp_signed("==", count, i64(2 * self.block))
            with builder.if_else(is_two_blocks) as (then, otherwise):
                with then:
                    self._merge_parts(builder, this, planes, count, 2)
                with otherwise:
                    self._merge_parts(builder, this, planes, count, 4)

    def _merge_parts(
        self, builder: Builder, this: ir.Function, planes: Sequence[Value], count: Value, parts: int
    ) -> None:
        """Put records in order that are a part of the run or more apart, then each part."""
        network = self.network(builder)
        size = builder.udiv(count, i64(parts))
        starts = [[self._at(builder, p, builder.mul(size, i64(n))) for p in planes] for n in range(parts)]
        with loop(builder, i64(0), size, self.lanes, "pair") as at:
            records = [self.load(builder, start, at) for start in starts]
            distance = parts // 2
            while distance:
                for low in range(parts):
                    if not low & distance:
                        high = low + distance
                        records[low], records[high] = network.in_order(records[low], records[high])
                distance //= 2
            for start, one in zip(starts, records, strict=True):
                self.store(builder, start, at, one)
        for start in starts:
            builder.call(this, [*start, size])

    @contextmanager
    def _unless_block(
        self,
        builder: Builder,
        planes: Sequence[Value],
        count: Value,
        change: Callable[[Network, list[Record]], list[Record]],
    ) -> Generator[None]:
        """Change a block in registers; code for more than one follows."""
        is_block = builder.icmp_signed("==", count, i64(self.block))
        with builder.if_else(is_block) as (then, otherwise):
            with then:
                places = [i64(n * self.lanes) for n in range(BLOCK_VECTORS)]
                records = change(self.network(builder), [self.load(builder, planes, place) for place in places])
                for place, one in zip(places, records, strict=True):
                    self.store(builder, planes, place, one)
            with otherwise:
                yield

    def _at(self, builder: Builder, plane: Value, place: Value) -> Value:
        return offset_pointer(builder, plane, place, self.bits // 8)


def _halves(distance: int) -> list[int]:
    """Half a power of two, half of that and so on to 1."""
    return [1 << n for n in reversed(range(distance.bit_length() - 1))]
