"""Programs for grids of cores, written down op by op."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, FloatAttr, IndexType, f64, i32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from tilewright import dtypes
from tilewright.dialects import cores, tile
from tilewright.dialects.fields import encode
from tilewright.layout.catalogue.placements import Pages
from tilewright.primitives import ArrayType


def affine(text: str, dims: int, symbols: int) -> AffineMap:
    """The map to the numbers that a text of `d0...` and `s0...` gives, such as "d0 + 2 * s0, s1"."""
    names: dict[str, Any] = {f"d{i}": AffineExpr.dimension(i) for i in range(dims)}
    names |= {f"s{i}": AffineExpr.symbol(i) for i in range(symbols)}
    results = [
        each if isinstance(each, AffineExpr) else AffineExpr.constant(each) for each in eval(f"({text},)", {}, names)
    ]
    return AffineMap(dims, symbols, tuple(results))


class Builder:
    """A kernel that is one program. `refs`: its arrays, each by shape, type and effect, of which those with the numbers
    `by_rows` are stored so. `wide` registers have 32 bits, if not said where an array has."""

    def __init__(
        self,
        shape: tuple[int, int],
        refs: Sequence[tuple[Sequence[int], str, str]],
        wide: bool | None = None,
        by_rows: Sequence[int] = (),
    ) -> None:
        arrays = [ArrayType(tuple(size), dtypes.by_name(name)) for size, name, _ in refs]
        types = [tile.ref(each, pages=Pages(is_row_major=n in by_rows)) for n, each in enumerate(arrays)]
        self.kernel = tile.kernel("program", (), types, [effect for *_, effect in refs])
        body = Block(arg_types=[IndexType(), IndexType()])
        is_wide = any(dtypes.by_name(name).bits == 32 for _, name, _ in refs) if wide is None else wide
        program = cores.ProgramOp(cores=shape, wide=is_wide, body=Region(body))
        self.kernel.body.block.add_ops([program, tile.YieldOp()])
        self.arrays = self.kernel.refs
        self.row, self.column = body.args
        self._blocks = [body]

    def add(self, op: type[Any], operands: Sequence[SSAValue], attributes: dict[str, Any], **more: Any) -> Operation:
        properties = {k: encode(v) for k, v in attributes.items() if v is not None}
        made = op.create(operands=operands, properties=properties, **more)
        self._blocks[-1].add_op(made)
        return made

    def finished(self) -> tile.KernelOp:
        """The kernel, verified."""
        self.add(cores.EndOp, [], {})
        self.kernel.verify()
        return self.kernel

    @contextmanager
    def _inside(self, block: Block, end: type[Any]) -> Iterator[None]:
        self._blocks.append(block)
        yield
        self.add(end, [], {})
        self._blocks.pop()

    # ---- structure --------------------------------------------------------------------------------------------------

    def queue(self, format: str, pages: int, address: int | None = None, layout: str = "") -> SSAValue:
        type = cores.queue(format, pages, layout)
        return self.add(cores.QueueOp, [], {"address_bytes": address}, result_types=[type]).results[0]

    def semaphore(self, initial: int = 0) -> SSAValue:
        made = self.add(cores.SemaphoreOp, [], {"initial": initial}, result_types=[cores.SemaphoreType()])
        return made.results[0]

    @contextmanager
    def thread(self, role: str, noc: int | None = None) -> Iterator[None]:
        noc = {"reader": 0, "writer": 1}.get(role) if noc is None else noc
        block = Block()
        self.add(cores.ThreadOp, [], {"role": role, "noc": noc}, regions=[Region(block)])
        with self._inside(block, cores.EndOp):
            yield

    @contextmanager
    def loop(self, trips: int, end: str | None = None, symbols: Sequence[SSAValue] = ()) -> Iterator[SSAValue]:
        block = Block(arg_types=[IndexType()])
        stop = None if end is None else affine(end, 0, len(symbols))
        self.add(tile.ForOp, symbols, {"trips": trips, "end": stop}, regions=[Region(block)])
        with self._inside(block, tile.YieldOp):
            yield block.args[0]

    @contextmanager
    def choice(self, condition: str, symbols: Sequence[SSAValue]) -> Iterator[tuple[Block, Block]]:
        """Both blocks, to be filled by `within`."""
        blocks = Block(), Block()
        map = affine(condition, 0, len(symbols))
        self.add(cores.IfOp, symbols, {"map": map}, regions=[Region(blocks[0]), Region(blocks[1])])
        yield blocks

    @contextmanager
    def within(self, block: Block) -> Iterator[None]:
        with self._inside(block, cores.EndOp):
            yield

    @contextmanager
    def zero(self, condition: str, symbols: Sequence[SSAValue]) -> Iterator[None]:
        """What runs where a condition is 0."""
        with self.choice(condition, symbols) as (then, otherwise):
            with self.within(otherwise):
                pass
            with self.within(then):
                yield

    # ---- queues, semaphores -----------------------------------------------------------------------------------------

    def reserve(self, queue: SSAValue, pages: int = 1) -> None:
        self.add(cores.ReserveOp, [queue], {"pages": pages})

    def push(self, queue: SSAValue, pages: int = 1) -> None:
        self.add(cores.PushOp, [queue], {"pages": pages})

    def wait(self, queue: SSAValue, pages: int = 1) -> None:
        self.add(cores.WaitOp, [queue], {"pages": pages})

    def pop(self, queue: SSAValue, pages: int = 1) -> None:
        self.add(cores.PopOp, [queue], {"pages": pages})

    def set(self, semaphore: SSAValue, value: int) -> None:
        self.add(cores.SemaphoreSetOp, [semaphore], {"value": value})

    def increment(self, semaphore: SSAValue, core: str, symbols: Sequence[SSAValue] = (), value: int = 1) -> None:
        map = affine(core, 0, len(symbols))
        self.add(cores.SemaphoreIncrementOp, [semaphore, *symbols], {"core": map, "value": value})

    def wait_semaphore(self, semaphore: SSAValue, value: int, at_least: bool | None = None) -> None:
        self.add(cores.SemaphoreWaitOp, [semaphore], {"value": value, "at_least": at_least})

    def multicast_semaphore(self, semaphore: SSAValue, rectangle: str, symbols: Sequence[SSAValue] = ()) -> None:
        map = affine(rectangle, 0, len(symbols))
        self.add(cores.SemaphoreMulticastOp, [semaphore, *symbols], {"rectangle": map})

    # ---- movers -----------------------------------------------------------------------------------------------------

    def fetch(
        self,
        array: int,
        queue: SSAValue,
        map: str,
        symbols: Sequence[SSAValue] = (),
        *,
        extents: Sequence[int] = (1,),
        at: str = "d0",
        zeros: bool | None = None,
        op: type[Any] = cores.FetchOp,
    ) -> None:
        rank, given = len(extents), len(symbols)
        attributes = {"extents": tuple(extents), "map": affine(map, rank, given), "at": affine(at, rank, given)}
        self.add(op, [self.arrays[array], queue, *symbols], attributes | {"zeros": zeros})

    def put(
        self,
        array: int,
        queue: SSAValue,
        map: str,
        symbols: Sequence[SSAValue] = (),
        *,
        extents: Sequence[int] = (1,),
        at: str = "d0",
    ) -> None:
        self.fetch(array, queue, map, symbols, extents=extents, at=at, op=cores.PutOp)

    def fetch_rows(self, *args: Any, **more: Any) -> None:
        self.fetch(*args, op=cores.FetchRowsOp, **more)

    def put_rows(self, *args: Any, **more: Any) -> None:
        self.fetch(*args, op=cores.PutRowsOp, **more)

    def barrier(self, of: str) -> None:
        self.add(cores.BarrierOp, [], {"of": of})

    def multicast(
        self, queue: SSAValue, rectangle: str, symbols: Sequence[SSAValue] = (), *, at: str = "0", pages: int = 1
    ) -> None:
        given = len(symbols)
        attributes = {"at": affine(at, 0, given), "pages": pages, "rectangle": affine(rectangle, 0, given)}
        self.add(cores.MulticastOp, [queue, *symbols], attributes)

    def send(
        self,
        source: SSAValue,
        destination: SSAValue,
        core: str,
        symbols: Sequence[SSAValue] = (),
        *,
        at: str = "0",
        to: str = "0",
        pages: int = 1,
    ) -> None:
        given = len(symbols)
        attributes = {"at": affine(at, 0, given), "to": affine(to, 0, given), "pages": pages}
        self.add(cores.SendOp, [source, destination, *symbols], attributes | {"core": affine(core, 0, given)})

    def generate(
        self,
        queue: SSAValue,
        map: str,
        symbols: Sequence[SSAValue] = (),
        *,
        count: int = 1,
        choice: tuple[float, float, float] | None = None,
        face_rows: bool | None = None,
        corner: tuple[int, int] | None = None,
    ) -> None:
        chosen = None if choice is None else ArrayAttr([FloatAttr(each, f64) for each in choice])
        attributes = {"map": affine(map, 3, len(symbols)), "count": count, "choice": chosen, "face_rows": face_rows}
        attributes["corner"] = corner
        self.add(cores.GenerateOp, [queue, *symbols], attributes)

    def gather(
        self,
        array: int,
        queue: SSAValue,
        map: str,
        symbols: Sequence[SSAValue] = (),
        indices: Sequence[SSAValue] = (),
        *,
        shape: Sequence[int],
        rows: int,
        columns: int,
        at: str = "0",
        fill: float | None = None,
        op: type[Any] = cores.GatherOp,
    ) -> None:
        lanes, given = len(shape), len(symbols)
        attributes = {
            "shape": tuple(shape),
            "rows": rows,
            "columns": columns,
            "map": affine(map, lanes, given + len(indices)),
            "at": affine(at, 0, given),
            "fill": None if fill is None else FloatAttr(fill, f64),
            "operandSegmentSizes": DenseArrayBase.from_list(i32, [1, 1, given, len(indices)]),
        }
        self.add(op, [self.arrays[array], queue, *symbols, *indices], attributes)

    def scatter(self, array: int, queue: SSAValue, map: str, *args: Any, **more: Any) -> None:
        self.gather(array, queue, map, *args, op=cores.ScatterOp, **more)

    # ---- compute ----------------------------------------------------------------------------------------------------

    def configure(self, unit: str, state: str, queues: Sequence[SSAValue] = ()) -> None:
        self.add(cores.ConfigureOp, queues, {"unit": unit, "state": state})

    def registers(self, step: str) -> None:
        self.add(cores.RegistersOp, [], {"step": step})

    def copy(
        self,
        queue: SSAValue,
        slot: int = 0,
        count: int = 1,
        at: str = "d0",
        symbols: Sequence[SSAValue] = (),
        *,
        broadcast: str = "none",
        transpose: bool | None = None,
        configured: bool = True,
    ) -> None:
        map = affine(at, 1, len(symbols))
        attributes = {"slot": slot, "count": count, "at": map, "broadcast": broadcast, "transpose": transpose}
        self._computing(cores.CopyOp, [queue, *symbols], attributes, configured)

    def tilize(self, queue: SSAValue, slot: int = 0, count: int = 1, at: str = "d0") -> None:
        attributes = {"slot": slot, "count": count, "at": affine(at, 1, 0)}
        self._computing(cores.TilizeOp, [queue], attributes, True)

    def binary(
        self,
        fn: str,
        left: SSAValue,
        right: SSAValue,
        slot: int = 0,
        count: int = 1,
        left_at: str = "d0",
        right_at: str = "d0",
        symbols: Sequence[SSAValue] = (),
        *,
        broadcast: str = "none",
        accumulates: bool | None = None,
        configured: bool = True,
    ) -> None:
        given = len(symbols)
        attributes = {
            "fn": fn,
            "slot": slot,
            "count": count,
            "left_at": affine(left_at, 1, given),
            "right_at": affine(right_at, 1, given),
            "broadcast": broadcast,
            "accumulates": accumulates,
        }
        self._computing(cores.BinaryOp, [left, right, *symbols], attributes, configured)

    def matmul(
        self,
        left: SSAValue,
        right: SSAValue,
        block: tuple[int, int, int],
        slot: int = 0,
        left_at: str = "0",
        right_at: str = "0",
        symbols: Sequence[SSAValue] = (),
        *,
        left_stride: int | None = None,
        right_stride: int | None = None,
        transpose: bool | None = None,
        configured: bool = True,
    ) -> None:
        rows, columns, depth = block
        attributes = {
            "slot": slot,
            "count": rows * columns,
            "left_at": affine(left_at, 0, len(symbols)),
            "right_at": affine(right_at, 0, len(symbols)),
            "block": block,
            "left_stride": depth if left_stride is None else left_stride,
            "right_stride": columns if right_stride is None else right_stride,
            "transpose": transpose,
        }
        self._computing(cores.MatmulOp, [left, right, *symbols], attributes, configured)

    def reduce(
        self,
        queue: SSAValue,
        scaler: SSAValue,
        fn: str,
        along: str,
        slot: int = 0,
        pages: int = 1,
        at: str = "d0",
        symbols: Sequence[SSAValue] = (),
        *,
        configured: bool = True,
    ) -> None:
        map = affine(at, 1, len(symbols))
        attributes = {"slot": slot, "count": 1, "fn": fn, "along": along, "at": map, "pages": pages}
        self._computing(cores.ReduceOp, [queue, scaler, *symbols], attributes, configured)

    def map(
        self,
        fn: str,
        arguments: Sequence[int],
        slot: int = 0,
        count: int = 1,
        numbers: Sequence[float] = (),
        dtype: str = "f32",
        *,
        configured: bool = True,
    ) -> None:
        attributes = {
            "fn": fn,
            "dtype": dtype,
            "slot": slot,
            "count": count,
            "arguments": tuple(arguments),
            "numbers": ArrayAttr([FloatAttr(float(each), f64) for each in numbers]),
        }
        self._computing(cores.MapOp, [], attributes, configured)

    def cast(
        self, slot: int, source: int, from_type: str, to_type: str, count: int = 1, bits: bool | None = None
    ) -> None:
        attributes = {"slot": slot, "source": source, "count": count, "from_type": from_type, "to_type": to_type}
        attributes |= {} if bits is None else {"bits": bits}
        self._computing(cores.CastOp, [], attributes, True)

    def fold(self, fn: str, along: str, slot: int = 0, count: int = 1, dtype: str = "f32") -> None:
        attributes = {"slot": slot, "count": count, "fn": fn, "along": along, "dtype": dtype}
        self._computing(cores.FoldOp, [], attributes, True)

    def accumulate(self, condition: str, symbols: Sequence[SSAValue] = ()) -> None:
        self.add(cores.AccumulateOp, symbols, {"map": affine(condition, 0, len(symbols))})

    def pack(
        self,
        queue: SSAValue,
        slot: int = 0,
        count: int = 1,
        at: str = "d0",
        symbols: Sequence[SSAValue] = (),
        *,
        configured: bool = True,
    ) -> None:
        attributes = {"slot": slot, "count": count, "at": affine(at, 1, len(symbols))}
        self._computing(cores.PackOp, [queue, *symbols], attributes, configured)

    def untilize(self, queue: SSAValue, slot: int = 0, count: int = 1, at: str = "d0") -> None:
        attributes = {"slot": slot, "count": count, "at": affine(at, 1, 0)}
        self._computing(cores.UntilizeOp, [queue], attributes, True)

    def _computing(
        self, op: type[Any], operands: Sequence[SSAValue], attributes: dict[str, Any], configured: bool
    ) -> None:
        """An operation, behind what configures its units for it."""
        properties = {k: encode(v) for k, v in attributes.items() if v is not None}
        made = op.create(operands=operands, properties=properties)
        if configured:
            for unit, state in cores.states_of(made).items():
                self.configure(unit, state)
        self._blocks[-1].add_op(made)
