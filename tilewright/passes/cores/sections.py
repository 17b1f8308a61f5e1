"""Sections: computation in tile registers between the pages that are unpacked and those that are packed.

A section is a graph of operations on the page at one position: reads of pages, numbers, functions. Positions are those
of the result's pages, row by row. As many positions are computed at a time as the registers have room for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, FloatAttr, f64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from tilewright import dtypes, ops
from tilewright.dialects import cores
from tilewright.dialects.walks import producers_first
from tilewright.dtypes import DType
from tilewright.errors import CompilerBug
from tilewright.layout.catalogue.device_tiles import FORMATS
from tilewright.layout.catalogue.paging import Paging
from tilewright.passes.cores.affine_expressions import ZERO, divided, plus, remainder, times
from tilewright.passes.cores.threads import Scope, Threads
from tilewright.primitives import ArrayType

# What padding holds: a number, something finite, or nothing that is known.
FINITE = "finite"
Padding = float | str | None

# Functions of two pages that the matrix unit does on its way from queues.
_MATRIX = ("add", "subtract", "multiply")


@dataclass(eq=False)
class Held:
    """A tile in a queue: its pages are the next ones at the front, from when it is waited for until its scope ends.
    `pads`: what is beyond the tile along the rows and the columns of its pages."""

    queue: SSAValue
    paging: Paging
    type: ArrayType
    scope: Scope
    pads: tuple[Padding, Padding] = (None, None)
    waited: bool = False
    first: int = 0

    @property
    def format(self) -> str:
        return cores.queue_type(self.queue).format.data

    @property
    def pages(self) -> int:
        return self.paging.pages(self.type.shape)

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.paging.counts(self.type.shape)

    @property
    def is_wide(self) -> bool:
        """Whether its elements have more bits than the inputs of the matrix unit."""
        return FORMATS[self.format].bits > 16


# ---- graphs ---------------------------------------------------------------------------------------------------------


class Node:
    """Something that a register holds, in the type `carrier`: f32, i32 or u32."""

    carrier: DType

    @property
    def operands(self) -> tuple[Node, ...]:
        return ()


@dataclass(eq=False)
class Number(Node):
    """`is_held`: it is in a register, for a function that takes no others."""

    value: float
    carrier: DType
    is_held: bool = False


@dataclass(eq=False)
class Read(Node):
    """A page of a tile: `page` is its number at a position (row of positions, column)."""

    held: Held
    page: Callable[[AffineExpr, AffineExpr], AffineExpr]
    broadcast: str
    transposed: bool
    is_flat: bool
    carrier: DType


@dataclass(eq=False)
class Apply(Node):
    """A function of the table."""

    fn: str
    arguments: tuple[Node, ...]
    carrier: DType

    @property
    def operands(self) -> tuple[Node, ...]:
        return self.arguments


@dataclass(eq=False)
class Convert(Node):
    """A number of one type as another one."""

    source: Node
    to: DType
    carrier: DType

    @property
    def operands(self) -> tuple[Node, ...]:
        return (self.source,)


@dataclass(eq=False)
class Bits(Node):
    """The bits of a number, taken for those of another type."""

    source: Node
    carrier: DType

    @property
    def operands(self) -> tuple[Node, ...]:
        return (self.source,)


def carrier_of(dtype: DType) -> DType:
    """The type in which registers hold numbers of a type: bools are 0 or 1 of f32, and positions in an array fit
    i32."""
    if dtype.is_float or dtype.is_bool:
        return dtypes.f32
    return dtypes.u32 if dtype.kind == "u" else dtypes.i32


def number_of_carrier(value: float, dtype: DType) -> float:
    """A number of a type as registers hold it: one that 32 bits do not reach, such as the least of i64, is the nearest
    that they do."""
    carrier = carrier_of(dtype)
    if carrier.is_float:
        return value
    low, high = (0, 2**32 - 1) if carrier == dtypes.u32 else (-(2**31), 2**31 - 1)
    return float(min(max(value, low), high))


def apply(fn: str, arguments: Sequence[Node], operands: DType) -> Node:
    """A function of operands of a type (the last one's)."""
    if operands.is_bool and fn in _OF_BOOLS:
        fn = _OF_BOOLS[fn]
        if fn == "not":
            return apply("equal", [arguments[0], Number(0.0, dtypes.f32)], dtypes.f32)
    carrier = carrier_of(operands)
    if fn == "select":
        arguments = [convert(arguments[0], carrier), *arguments[1:]]
    if any(not isinstance(each, Number) for each in arguments):
        from tilewright.passes.cores.composed import composed

        made = composed(fn, arguments, carrier)
        if made is not None:
            return made
    held = [
        Number(each.value, each.carrier, True)
        if isinstance(each, Number) and not takes_number(fn, carrier, position)
        else each
        for position, each in enumerate(arguments)
    ]
    found: Node = Apply(fn, tuple(held), carrier)
    if all(isinstance(each, Number) for each in arguments):
        values = [np.asarray(each.value, each.carrier.numpy) for each in arguments if isinstance(each, Number)]
        if fn == "select":
            values[0] = values[0] != 0
        result = ops.evaluate(fn, values)
        found = Number(float(result), carrier)
    is_test = ops.FUNCTIONS[fn].result == ops.TO_BOOL
    return convert(found, dtypes.f32) if is_test else found


# Functions that the vector unit has no form of with a number, of floats, of integers, and of those without a sign.
_OF_REGISTERS = {
    "f": {"floor_divide", "remainder", "copysign", "atan2", "hypot", "select"},
    "i": {"multiply", "floor_divide", "remainder", "power", "select"},
}
_OF_REGISTERS["u"] = _OF_REGISTERS["i"] | {
    *("shift_right", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
}


def takes_number(fn: str, carrier: DType, position: int) -> bool:
    """Whether an operand of a function may be a number that is in no register."""
    if fn in ("shift_left", "shift_right") and position == 0:
        return False
    return fn not in _OF_REGISTERS["f" if carrier.is_float else carrier.kind]


_OF_BOOLS = {
    "bitwise_and": "minimum",
    "bitwise_or": "maximum",
    "bitwise_xor": "not_equal",
    "bitwise_not": "not",
}


def convert(node: Node, carrier: DType) -> Node:
    """A number in another carrier."""
    if node.carrier == carrier:
        return node
    if isinstance(node, Number):
        return Number(node.value, carrier)
    return Convert(node, carrier, carrier)


def bits_of(node: Node, carrier: DType) -> Node:
    """The bits of a number as those of another type of as many."""
    if node.carrier == carrier:
        return node
    if isinstance(node, Number):
        found = _reinterpreted(node.value, node.carrier, carrier)
        # What is none may be one of many, which a number here does not tell apart.
        if not np.isnan(found) and not np.isnan(node.value):
            return Number(found, carrier)
        node = Number(node.value, node.carrier, True)
    return Bits(node, carrier)


def _reinterpreted(value: float, before: DType, after: DType) -> float:
    return float(np.asarray(value, before.numpy).view(after.numpy))


def rounded(node: Node, dtype: DType) -> Node:
    """A number rounded to a narrower float, in f32."""
    if isinstance(node, Number):
        return Number(float(np.asarray(node.value).astype(dtype.numpy).astype(np.float64)), dtypes.f32)
    if isinstance(node, Read) and node.held.type.dtype == dtype:
        return node
    return Convert(node, dtype, dtypes.f32)


# ---- padding --------------------------------------------------------------------------------------------------------


def padding_of(node: Node, side: int) -> Padding:
    """The value of a graph on padding: along rows (`side` 0) or columns (1)."""
    found: dict[Node, Padding] = {}
    for each in _nodes_of(node):
        found[each] = _padding(each, side, [found[operand] for operand in each.operands])
    return found[node]


def _padding(node: Node, side: int, values: Sequence[Padding]) -> Padding:
    """The value of a node on padding, from those of its operands."""
    if isinstance(node, Number):
        return node.value
    if isinstance(node, Read):
        if node.transposed:
            side = 1 - side
        # What is repeated along the side comes from within the tile.
        repeated = {cores.ROW: side == 0, cores.COLUMN: side == 1, cores.SCALAR: True}.get(node.broadcast, False)
        return FINITE if repeated else node.held.pads[side]
    if isinstance(node, Convert):
        return values[0]
    if isinstance(node, Bits) and isinstance(values[0], int | float):
        found = _reinterpreted(values[0], node.source.carrier, node.carrier)
        return None if np.isnan(found) else found
    return _applied(node, values) if isinstance(node, Apply) else None


def _applied(node: Apply, values: Sequence[Padding]) -> Padding:
    if any(value is None for value in values):
        return None
    numbers = [value for value in values if not isinstance(value, str) and value is not None]
    if len(numbers) == len(values):
        operands = [np.asarray(value, node.carrier.numpy) for value in numbers]
        if node.fn == "select":
            operands[0] = operands[0] != 0
        result = float(ops.evaluate(node.fn, operands))
        return None if np.isnan(result) else result
    infinite = [value for value in numbers if np.isinf(value)]
    if node.fn == "multiply" and 0.0 in numbers:
        return 0.0
    if node.fn == "add" and infinite:
        return infinite[0]
    if node.fn == "subtract" and infinite:
        return infinite[0] if values[0] == infinite[0] else -infinite[0]
    if node.fn == "divide" and values[0] == 0.0:
        return 0.0
    return FINITE if node.fn in ("add", "subtract", "multiply", "maximum", "minimum", "negative", "absolute") else None


# ---- registers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """A node, and the registers (in units of positions done at a time) of its result and its operands."""

    node: Node
    slot: int
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The order in which a graph is computed, and how many registers a position takes."""

    steps: tuple[_Step, ...]
    registers: int


def plan_of(root: Node) -> Plan:
    """Operands that need more registers are computed first (Sethi and Ullman, 1970); what is used more than once is
    computed once. A result takes the place of an operand that is not used again."""
    matrix = _matrix_operations(root)
    needs: dict[Node, int] = {}

    def operands(node: Node) -> list[Node]:
        return [] if node in matrix else _registers_of(node)

    def dearest_first(node: Node) -> list[Node]:
        return sorted(operands(node), key=needs.__getitem__, reverse=True)

    for node in producers_first([root], operands, needs):
        below = sorted((needs[each] for each in operands(node)), reverse=True)
        needs[node] = max([1, *(n + i for i, n in enumerate(below))])
    order = list(producers_first([root], dearest_first))
    uses = Counter(each for node in order for each in operands(node))
    slots: dict[Node, int] = {}
    free: list[int] = []
    count = 0
    steps: list[_Step] = []
    for node in order:
        own = [slots[each] for each in operands(node)]
        for each in operands(node):
            uses[each] -= 1
            if uses[each] == 0:
                free.append(slots[each])
        if not free:
            free.append(count)
            count += 1
        slots[node] = min(free)
        free.remove(slots[node])
        steps.append(_Step(node, slots[node], tuple(own)))
    return Plan(tuple(steps), count)


def _registers_of(node: Node) -> list[Node]:
    """The operands of a node that are in registers."""
    return [each for each in node.operands if not isinstance(each, Number) or each.is_held]


def spilled(root: Node, registers: int) -> Node:
    """The node to compute first and to spill to memory if a graph needs too many registers: the one that leaves the
    fewest registers in use, of equals the one with the most steps."""
    nodes = _nodes_of(root)
    found: list[tuple[int, int, int]] = []
    for number, node in enumerate(nodes):
        if node is root or isinstance(node, Read | Number):
            continue
        own = plan_of(node)
        if own.registers <= registers:
            left = plan_of(replaced(root, node, Number(0.0, node.carrier, True))).registers
            found.append((left, -len(own.steps), number))
    if not found:
        raise CompilerBug(f"a function takes more than {registers} registers")
    return nodes[min(found)[2]]


def replaced(root: Node, node: Node, other: Node) -> Node:
    """A graph with another node in place of one."""
    memo: dict[Node, Node] = {node: other}
    for each in producers_first([root], lambda inner: inner.operands, memo):
        memo[each] = _with_operands(each, [memo[operand] for operand in each.operands])
    return memo[root]


def read_again(root: Node) -> Node:
    """A graph that reads pages anew for each use, so that no register holds one from its first use to its last."""
    memo: dict[Node, Node] = {}
    for each in producers_first([root], lambda inner: inner.operands):
        operands = [replace(o) if isinstance(o, Read) else memo[o] for o in each.operands]
        memo[each] = _with_operands(each, operands)
    return memo[root]


def _with_operands(node: Node, operands: Sequence[Node]) -> Node:
    match node:
        case Apply():
            return Apply(node.fn, tuple(operands), node.carrier)
        case Convert():
            return Convert(operands[0], node.to, node.carrier)
        case Bits():
            return Bits(operands[0], node.carrier)
        case _:
            return node


def _nodes_of(root: Node) -> list[Node]:
    """The nodes of a graph, each after its operands."""
    return list(producers_first([root], lambda node: node.operands))


def _matrix_operations(root: Node) -> set[Node]:
    """Additions, subtractions and multiplications of two pages that the matrix unit computes. Neither page has another
    reader."""
    nodes = _nodes_of(root)
    users = Counter(operand for node in nodes for operand in node.operands)
    return {node for node in nodes if matrix_operands(node) is not None and all(users[a] == 1 for a in node.operands)}


def matrix_operands(node: Node) -> tuple[Read, Read] | None:
    """The two pages of a function that the matrix unit does, of which it repeats a part of the second only."""
    if not isinstance(node, Apply) or node.fn not in _MATRIX or len(node.arguments) != 2:
        return None
    left, right = node.arguments
    if not isinstance(left, Read) or not isinstance(right, Read) or node.carrier != dtypes.f32:
        return None
    if left.broadcast != cores.NONE and node.fn != "subtract":
        left, right = right, left
    if left.broadcast != cores.NONE or left.transposed or right.transposed:
        return None
    if left.held.is_wide or right.held.is_wide or left.held.type.dtype.is_bool or right.held.type.dtype.is_bool:
        return None
    return left, right


# ---- emission -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Places:
    """Some of the positions of a result: rows of positions and columns, from `first` on."""

    rows: tuple[int, int]
    columns: tuple[int, int]


@dataclass(frozen=True)
class Target:
    """A queue that a section packs to, and the page index of a position."""

    queue: SSAValue
    page: Callable[[AffineExpr, AffineExpr], AffineExpr]


def emit_section(
    threads: Threads, root: Node, targets: Sequence[Target], places: Places, is_flat: bool, registers: int
) -> None:
    """Compute a graph at some positions, and pack it. `registers`: how many there are."""
    plan = plan_of(root)
    most = max(1, registers // plan.registers)
    (first_row, rows), (first_column, columns) = places.rows, places.columns
    reads = [step.node for step in plan.steps] + [a for step in plan.steps for a in step.node.operands]
    flat = is_flat and columns > 1 and rows > 1 and first_column == 0
    if flat and all(each.is_flat for each in reads if isinstance(each, Read)):
        rows, columns, flattened = 1, rows * columns, columns
        for start, count in _chunks(threads, columns, most):
            _emit_chunk(threads, plan, targets, count, lambda d, s=start: _split(plus(s, d), flattened, first_row))
    elif columns == 1 or rows == 1:
        by_rows = columns == 1
        for start, count in _chunks(threads, rows if by_rows else columns, most):

            def at(d: AffineExpr, s: AffineExpr = start) -> tuple[AffineExpr, AffineExpr]:
                row, column = (plus(s, d), ZERO) if by_rows else (ZERO, plus(s, d))
                return plus(row, first_row), plus(column, first_column)

            _emit_chunk(threads, plan, targets, count, at)
    else:
        row = plus(threads.open_loop(rows, roles=[cores.COMPUTE]), first_row)
        for start, count in _chunks(threads, columns, most):
            _emit_chunk(threads, plan, targets, count, lambda d, s=start: (row, plus(plus(s, d), first_column)))
        threads.close()


def _split(place: AffineExpr, columns: int, first_row: int) -> tuple[AffineExpr, AffineExpr]:
    return plus(divided(place, columns), first_row), remainder(place, columns)


def _chunks(threads: Threads, extent: int, most: int) -> Iterator[tuple[AffineExpr, int]]:
    """Beginnings and sizes of parts of at most `most` places: in a loop, then what remains after it."""
    exact = max(n for n in range(1, min(most, extent) + 1) if extent % n == 0)
    size = exact if 2 * exact > min(most, extent) else min(most, extent)
    trips, left = divmod(extent, size)
    if trips == 1:
        yield ZERO, size
    else:
        counter = threads.open_loop(trips, roles=[cores.COMPUTE])
        yield times(counter, size), size
        threads.close()
    if left:
        yield AffineExpr.constant(trips * size), left


def _emit_chunk(
    threads: Threads,
    plan: Plan,
    targets: Sequence[Target],
    count: int,
    at: Callable[[AffineExpr], tuple[AffineExpr, AffineExpr]],
) -> None:
    place = at(AffineExpr.dimension(0))
    step(threads, cores.ACQUIRE)
    for each in plan.steps:
        _emit_step(threads, each, count, place)
    step(threads, cores.COMMIT)
    step(threads, cores.WAIT)
    for target in targets:
        page = target.page(*place)
        slot = plan.steps[-1].slot * count
        threads.add(cores.COMPUTE, cores.PackOp, [target.queue], {"slot": slot, "count": count}, {"at": (1, [page])})
    step(threads, cores.RELEASE)


def step(threads: Threads, name: str) -> None:
    threads.add(cores.COMPUTE, cores.RegistersOp, [], {"step": name})


def _emit_step(threads: Threads, each: _Step, count: int, place: tuple[AffineExpr, AffineExpr]) -> None:
    node, where = each.node, {"slot": each.slot * count, "count": count}
    if isinstance(node, Read):
        attributes = {**where, "broadcast": node.broadcast} | ({"transpose": True} if node.transposed else {})
        page = plus(node.page(*place), node.held.first)
        threads.add(cores.COMPUTE, cores.CopyOp, [node.held.queue], attributes, {"at": (1, [page])})
    elif isinstance(node, Number):
        attributes = {**where, "fn": "fill", "dtype": node.carrier.name, "arguments": (-1,)}
        threads.add(cores.COMPUTE, cores.MapOp, [], attributes | {"numbers": _numbers([node.value])})
    elif isinstance(node, Convert):
        types = {"from_type": node.source.carrier.name, "to_type": node.to.name}
        threads.add(cores.COMPUTE, cores.CastOp, [], {**where, **types, "source": each.operands[0] * count})
    elif isinstance(node, Bits):
        types = {"from_type": node.source.carrier.name, "to_type": node.carrier.name, "bits": True}
        threads.add(cores.COMPUTE, cores.CastOp, [], {**where, **types, "source": each.operands[0] * count})
    elif isinstance(node, Apply) and not each.operands and (pages := matrix_operands(node)) is not None:
        left, right = pages
        maps = {
            "left_at": (1, [plus(left.page(*place), left.held.first)]),
            "right_at": (1, [plus(right.page(*place), right.held.first)]),
        }
        attributes = {**where, "fn": node.fn, "broadcast": right.broadcast}
        threads.add(cores.COMPUTE, cores.BinaryOp, [left.held.queue, right.held.queue], attributes, maps)
    elif isinstance(node, Apply):
        slots = iter(each.operands)
        numbers: list[float] = []
        arguments: list[int] = []
        for argument in node.arguments:
            if isinstance(argument, Number) and not argument.is_held:
                numbers.append(argument.value)
                arguments.append(-len(numbers))
            else:
                arguments.append(next(slots) * count)
        attributes = {**where, "fn": node.fn, "dtype": node.carrier.name, "arguments": tuple(arguments)}
        threads.add(cores.COMPUTE, cores.MapOp, [], attributes | {"numbers": _numbers(numbers)})


def _numbers(values: Sequence[float]) -> ArrayAttr[FloatAttr]:
    return ArrayAttr([FloatAttr(float(value), f64) for value in values])
