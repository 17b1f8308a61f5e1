"""Layout inference: the cheapest layouts of all tiles of a kernel under the cost model.

    inference = infer_layouts(kernel, space_of(machine))
    inference.layout(value), inference.atom(product)

Each tile is a variable. Its domain grows from the anchors (layouts that matmuls, loads and stores prefer) along the
flows of the operations in both directions, nearest first, up to a cap. If the layouts on both sides of a flow do not
correspond, the data moves, at the cost that `plan_relayout` gives times the trips of the loops around it. Tiles that
have one value everywhere, or are computed from coordinates, have no layout: they are made where they are used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import prod
from typing import NamedTuple

import msgspec
from msgspec.structs import replace
from xdsl.ir import Block, Operation, SSAValue

from tilewright import ops
from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.dialects.walks import producers_first
from tilewright.errors import LayoutConflictError, SourceLocation
from tilewright.layout import Layout, is_injective
from tilewright.layout.access import register_access
from tilewright.layout.differences import in_memory
from tilewright.layout.dims import static
from tilewright.layout.refinement import plain_form, refine
from tilewright.layout.relayout import Reason, plan_relayout
from tilewright.layout.relayout_bound import holder_of, least_seconds
from tilewright.layout.solver import Origin, Problem, Solution
from tilewright.machines.machine import Machine
from tilewright.passes.layouts.layout_capacity import Overflow, fitted
from tilewright.passes.layouts.layout_costs import (
    ComputeCost,
    FlowCost,
    OperandCost,
    PackingCost,
    RepeatedLoadCost,
    ResultCost,
    TransferCost,
    Unmoved,
    image,
    instructions,
    preimage,
    terms,
)
from tilewright.passes.layouts.layout_rules import COMPUTING, ELEMENTWISE, Flow, Spread, flows, is_tile, location_of
from tilewright.passes.layouts.layout_spaces import Atom, Space
from tilewright.passes.layouts.layout_windows import fastest_dim, misaligned, transferred, window_of
from tilewright.primitives import ArrayType

LARGEST_DOMAIN = 8


class Inference(msgspec.Struct):
    """The layouts of a kernel's tiles.

    Attributes:
        problem: what was asked.
        variables: the variable of each tile that has a layout.
        products: the variable of each matmul's atom.
        solution: what the solver found and counted.
        packed: right operands that matmuls read from arrays, which are packed as a whole.
        overflows: where the tiles need more registers or memory than there is, whatever their layouts.
    """

    problem: Problem
    variables: Mapping[SSAValue, int]
    products: Mapping[tile.DotOp, int]
    solution: Solution
    packed: frozenset[SSAValue] = frozenset()
    overflows: tuple[Overflow, ...] = ()

    def layout(self, value: SSAValue) -> Layout | None:
        """The layout of a tile; None for one that is made where it is used."""
        number = self.variables.get(value)
        found = None if number is None else self.solution.values[number]
        assert found is None or isinstance(found, Layout)
        return found

    def atom(self, product: tile.DotOp) -> Atom:
        """How a matmul is done."""
        found = self.solution.values[self.products[product]]
        assert isinstance(found, Atom)
        return found


class _Pin(NamedTuple):
    """A tile that has to be in a layout, and what asks for that."""

    value: SSAValue
    layout: Layout
    origin: Origin


class _Kernel(msgspec.Struct):
    """A kernel being turned into a problem.

    Attributes:
        pins: the tiles that have to be in a layout.
        free: tiles that have none: they are made where they are used, or read from an array.
        packed: matmuls whose right operands are windows of arrays that may be packed as a whole.
        closed_in: operands of strict pins, into which no data moves, and where the pins are.
        closed_out: results of strict pins, out of which none moves.
    """

    kernel: tile.KernelOp
    space: Space
    pins: list[_Pin]
    closed_in: dict[SSAValue, SourceLocation | None] = msgspec.field(
        default_factory=dict[SSAValue, SourceLocation | None]
    )
    closed_out: dict[SSAValue, SourceLocation | None] = msgspec.field(
        default_factory=dict[SSAValue, SourceLocation | None]
    )
    ops: list[tuple[Operation, int]] = msgspec.field(default_factory=list[tuple[Operation, int]])
    flows: list[tuple[Flow, Operation, int]] = msgspec.field(default_factory=list[tuple[Flow, Operation, int]])
    outgoing: dict[SSAValue, list[Flow]] = msgspec.field(default_factory=dict[SSAValue, list[Flow]])
    incoming: dict[SSAValue, list[Flow]] = msgspec.field(default_factory=dict[SSAValue, list[Flow]])
    domains: dict[SSAValue, dict[Layout, None]] = msgspec.field(default_factory=dict[SSAValue, dict[Layout, None]])
    types: dict[SSAValue, ArrayType] = msgspec.field(default_factory=dict[SSAValue, ArrayType])
    free: set[SSAValue] = msgspec.field(default_factory=set[SSAValue])
    packed: set[tile.DotOp] = msgspec.field(default_factory=set[tile.DotOp])
    atoms: dict[tile.DotOp, tuple[Atom, ...]] = msgspec.field(default_factory=dict[tile.DotOp, tuple[Atom, ...]])


def infer_layouts(
    kernel: tile.KernelOp, space: Space, pins: Mapping[SSAValue, Layout] | None = None, budget: int = 100_000
) -> Inference:
    """The cheapest layouts of a kernel's tiles; `pins` are those that the user wants.

    Raises:
        LayoutConflictError: what matmuls, operations and pins ask contradicts itself.
        LayoutRuleError: an operation has no rule.
        LayoutBudgetError: the search was given up.
    """
    wanted = [_Pin(value, layout, _pin_origin(layout, _place_of(value))) for value, layout in (pins or {}).items()]
    work = _Kernel(kernel, space, wanted)
    work.ops = list(_operations(kernel.body.block, 1))
    _find_free(work)
    _find_packed(work)
    _find_pins(work)
    for op, trips in work.ops:
        for flow in flows(op):
            if flow.source not in work.free and flow.target not in work.free:
                work.flows.append((flow, op, trips * flow.times))
                work.outgoing.setdefault(flow.source, []).append(flow)
                work.incoming.setdefault(flow.target, []).append(flow)
    _seed(work)
    _spread(work)
    if space.streams and not work.pins:
        try:
            return _solve(work, budget, one_layout=True)
        except LayoutConflictError:
            pass  # the domains of tiles in a loop, which are capped, have no layout in common
    return _solve(work, budget)


def _operations(block: Block, trips: int) -> Iterator[tuple[Operation, int]]:
    """All operations with how often they run."""
    for op in block.ops:
        yield op, trips
        inner = trips * op.trips if isinstance(op, tile.ForOp) else trips
        for region in op.regions:
            yield from _operations(region.block, inner)


def _find_free(work: _Kernel) -> None:
    """Tiles that are alike everywhere or computed from their coordinates, and what is computed from such alone."""
    for op, _ in work.ops:
        moves = isinstance(op, tile.ReduceOp | tile.ArgReduceOp | tile.ScanOp | tile.SortOp | tile.TopKOp)
        is_known = all(operand in work.free or not is_tile(operand) for operand in op.operands)
        if isinstance(op, tile.FullOp | tile.IotaOp) or (isinstance(op, tile.TileOp) and is_known and not moves):
            work.free.update(op.results)


def _find_packed(work: _Kernel) -> None:
    """Right operands that are read from arrays packed as a whole: what leads to them alone is no tile of its own."""
    for op, _ in work.ops:
        if not isinstance(op, tile.DotOp) or not work.space.reads_in_place(op, 1):
            continue
        work.packed.add(op)
        value = op.right
        while isinstance(value.owner, tile.TileOp | tile.LoadOp | tile.FillPaddingOp) and len(list(value.uses)) == 1:
            work.free.add(value)
            if isinstance(value.owner, tile.LoadOp):
                break
            value = value.owner.operands[0]


def _find_pins(work: _Kernel) -> None:
    """Layouts that the kernel pins. A strict pin pins its operand too."""
    for op, _ in work.ops:
        if not isinstance(op, tile.RelayoutOp) or not is_tile(op.result):
            continue
        origin = _pin_origin(op.pinned, location_of(op))
        work.pins.append(_Pin(op.result, op.pinned, origin))
        if op.strict and op.source not in work.free:
            work.pins.append(_Pin(op.source, op.pinned, origin))
            work.closed_in[op.source] = location_of(op)
        if op.strict:
            work.closed_out[op.result] = location_of(op)


def _pin_origin(layout: Layout, place: SourceLocation | None) -> Origin:
    return Origin(f"the layout is pinned to {layout}", place)


# ---- domains --------------------------------------------------------------------------------------------------------


def _seed(work: _Kernel) -> None:
    """Seed the domains: first the layouts of pins and layouts that follow from them, before others fill the domains;
    then the layouts that matmuls prefer, then loads and stores."""
    for pin in work.pins:
        work.domains.setdefault(pin.value, {})[pin.layout] = None
        work.types[pin.value] = array_type(pin.value)
    _carry(work)
    for op, _ in work.ops:
        if isinstance(op, tile.DotOp):
            types = [array_type(operand) for operand in op.operands]
            known = tuple(work.space.atoms(*types))
            named = tuple(atom for atom in known if op.atom is not None and atom.name == op.atom)
            work.atoms[op] = named or tuple(atom for atom in known if not atom.asked)
            for atom in work.atoms[op]:
                _offer(work, op.result, atom.accumulator)
                for operand, layout in zip(op.operands, (atom.left, atom.right, atom.accumulator), strict=True):
                    _offer(work, operand, layout)
    for op, _ in work.ops:
        if not isinstance(op, tile.LoadOp | tile.StoreOp):
            continue
        value = transferred(op)
        if is_tile(value):
            type = array_type(value)
            for layout in work.space.distributions(type, fastest_dim(op)):
                _offer(work, value, layout)


def _offer(work: _Kernel, value: SSAValue, layout: Layout) -> bool:
    """Whether the layout is new to a tile whose domain has room for it. Computed tiles are in registers, and only a pin
    leaves terms of a sum uncombined."""
    domain = work.domains.get(value)
    if domain is None:
        if value in work.free or not is_tile(value):
            return False
        domain = work.domains[value] = {}
        work.types[value] = array_type(value)
    if len(domain) >= LARGEST_DOMAIN or layout in domain or layout.partial:
        return False
    if (in_memory(layout) and isinstance(value.owner, COMPUTING)) or not work.space.accepts(work.types[value], layout):
        return False
    domain[layout] = None
    return True


def _is_full(work: _Kernel, value: SSAValue) -> bool:
    return len(work.domains.get(value, ())) >= LARGEST_DOMAIN


@lru_cache(maxsize=16384)
def _packed(layout: Layout) -> Layout:
    """The layout with its registers numbered without gaps: other numbers cost nothing, and would crowd the domains."""
    strides = sorted({digit.stride: static(digit.extent) for digit in layout.iters if digit.axis == "reg"}.items())
    packed: dict[int, int] = {}
    following = 1
    for stride, extent in strides:
        packed[stride] = following
        following *= extent
    if all(stride == new for stride, new in packed.items()) or any(copy.axis == "reg" for copy in layout.replica):
        return layout
    shard = tuple(
        tuple(replace(d, stride=packed[d.stride]) if d.axis == "reg" else d for d in digits) for digits in layout.shard
    )
    return replace(layout, shard=shard)


def _spread(work: _Kernel) -> None:
    """Carry layouts along the flows, nearest first, until nothing is new; then, where there is room, as if each tile
    were loaded, which is all that a tile has that no anchor reaches."""
    _carry(work)
    for op, _ in work.ops:
        for value in op.results:
            if is_tile(value) and value not in work.free and not _is_full(work, value):
                for layout in work.space.distributions(array_type(value), array_type(value).rank - 1):
                    _offer(work, value, layout)
    _carry(work)


def _carry(work: _Kernel) -> None:
    pending = deque((value, layout) for value, domain in work.domains.items() for layout in domain)
    while pending:
        value, layout = pending.popleft()
        for flow in work.outgoing.get(value, ()):
            if _is_full(work, flow.target):
                continue
            found = image(flow.view, layout)
            if found is not None and _offer(work, flow.target, found := _packed(found)):
                pending.append((flow.target, found))
        for flow in work.incoming.get(value, ()):
            if _is_full(work, flow.source):
                continue
            found = preimage(flow.view, layout)
            if found is not None and _offer(work, flow.source, found := _packed(found)):
                pending.append((flow.source, found))


# ---- solving --------------------------------------------------------------------------------------------------------


def _solve(work: _Kernel, budget: int, one_layout: bool = False) -> Inference:
    """`one_layout`: loops compute all in one layout."""
    problem = Problem()
    machine = work.space.machine
    variables = {value: problem.variable(_name(value), domain) for value, domain in work.domains.items() if domain}
    products: dict[tile.DotOp, int] = {}
    for op, trips in work.ops:
        if isinstance(op, tile.DotOp):
            products[op] = _add_product(work, problem, variables, op, trips)
        elif isinstance(op, tile.LoadOp | tile.StoreOp):
            _add_transfer(problem, variables, op, machine, trips)
        elif isinstance(op, tile.MapOp) and op.results[0] in variables:
            each = machine.cycles[ops.FUNCTIONS[op.fn].cost] / machine.clock_hertz
            origin = Origin(f"`{op.fn}` is computed where its result is", location_of(op))
            problem.choose(variables[op.results[0]], ComputeCost(each * trips), origin)
    for flow, op, trips in work.flows:
        if flow.source not in variables or flow.target not in variables:
            continue
        source, target = array_type(flow.source), array_type(flow.target)
        # What a cast makes is moved, not what it is made of.
        moved = target.dtype if isinstance(op, tile.CastOp) else source.dtype
        cost = FlowCost(moved, machine, trips, flow.view, flow.combines, (source.shape, target.shape))
        if isinstance(op, tile.RelayoutOp):  # a pin may take on what is next to another
            edge, text = cost, flow.text
        elif one_layout and _is_within_loop(flow, op):
            edge, text = Unmoved(cost), f"{flow.text}, within a loop"
        else:
            edge, text = _closed(work, flow.source, flow.target, cost, flow.text)
        problem.relate(variables[flow.source], variables[flow.target], edge, Origin(text, location_of(op)))
        if work.space.streams and isinstance(flow.view, Spread):
            _add_repeated_loads(problem, variables[flow.target], flow, flow.view, machine, trips)
    for pin in work.pins:
        _add_pin(work, problem, variables[pin.value], pin)
    cheapest = problem.solve(budget)
    solution, too_full = fitted(work.kernel, problem, variables, cheapest, work.space.limits, budget)
    packed = frozenset(product.right for product in work.packed if product.right not in variables)
    return Inference(problem, variables, products, solution, packed, too_full)


def _is_within_loop(flow: Flow, op: Operation) -> bool:
    """Whether a loop computes, or loads, a tile for an elementwise operation, which alone reads it."""
    users = {use.operation for use in flow.source.uses}
    computed = isinstance(flow.source.owner, (tile.LoadOp, tile.BroadcastOp, *ELEMENTWISE))
    return computed and isinstance(op, ELEMENTWISE) and users == {op}


def _closed(
    work: _Kernel,
    source: SSAValue | None,
    target: SSAValue | None,
    cost: FlowCost | OperandCost | ResultCost,
    text: str,
) -> tuple[FlowCost | OperandCost | ResultCost | Unmoved, str]:
    """The cost of an edge from one tile to another, and what asks for it: nothing may move next to a strict pin."""
    for value, pins in ((target, work.closed_in), (source, work.closed_out)):
        if value is not None and value in pins:
            place = pins[value]
            where = "" if place is None else f" of line {place.line}"
            return Unmoved(cost), f"{text}, and nothing moves next to the strict pin{where}"
    return cost, text


def _misfit(work: _Kernel, pin: _Pin) -> str:
    """Why the tile cannot have the pinned layout on the machine; empty where it can."""
    fits = plan_relayout(pin.layout, pin.layout, array_type(pin.value).dtype, work.space.machine)
    if isinstance(fits, Reason):
        return str(fits)
    if not is_injective(pin.layout):
        return "elements share an address"
    accepted = work.space.accepts(array_type(pin.value), pin.layout)
    return "" if accepted else f"{work.space.machine.name} does not compute in such registers"


def _add_pin(work: _Kernel, problem: Problem, variable: int, pin: _Pin) -> None:
    """Only the layout of the pin, if it is one that the tile can have on the machine."""
    misfit = _misfit(work, pin)
    if misfit:
        problem.choose(variable, _nothing, Origin(f"{pin.origin.text}: {misfit}", pin.origin.location))
        return
    problem.pin(variable, pin.layout, pin.origin)
    owner = pin.value.owner
    if in_memory(pin.layout) and isinstance(owner, COMPUTING):
        problem.choose(variable, _in_registers, Origin("computed values are in registers", location_of(owner)))
    if pin.layout.partial and isinstance(owner, COMPUTING) and not isinstance(owner, tile.ReduceOp):
        problem.choose(variable, _finished, Origin("only a reduction leaves terms of a sum", location_of(owner)))


def _nothing(layout: Layout) -> None:
    return None


def _in_registers(layout: Layout) -> float | None:
    return None if in_memory(layout) else 0.0


def _finished(layout: Layout) -> float | None:
    return None if layout.partial else 0.0


def _add_product(work: _Kernel, problem: Problem, variables: Mapping[SSAValue, int], op: tile.DotOp, trips: int) -> int:
    machine = work.space.machine
    number = problem.variable("atom", work.atoms[op])
    where = location_of(op)
    problem.choose(number, _AtomCost(trips), Origin("the matmul takes an MMA atom of the machine", where))
    if op in work.packed:
        widths = {atom.block.static_shape[1] for atom in work.atoms[op] if atom.block is not None}
        direct = tuple(sorted(columns for columns in widths if work.space.reads_in_place(op, columns)))
        packing = PackingCost(direct, array_type(op.right).dtype, machine, trips)
        problem.choose(number, packing, Origin("the right operand is packed for the matmul", where))
    for operand, name in zip(op.operands, ("left", "right", "accumulator"), strict=True):
        if operand in variables and not (name == "right" and op in work.packed):
            cost = OperandCost(array_type(operand).dtype, machine, trips, name)
            edge, text = _closed(work, operand, None, cost, f"the {name} operand of the matmul")
            problem.relate(variables[operand], number, edge, Origin(text, where))
    if op.result in variables:
        cost_out = ResultCost(array_type(op.result).dtype, machine, trips)
        edge, text = _closed(work, None, op.result, cost_out, "the result of the matmul")
        problem.relate(number, variables[op.result], edge, Origin(text, where))
    return number


class _AtomCost(msgspec.Struct, frozen=True):
    trips: int

    def __call__(self, atom: Atom) -> float:
        return atom.seconds * self.trips


def _add_transfer(
    problem: Problem,
    variables: Mapping[SSAValue, int],
    op: tile.LoadOp | tile.StoreOp,
    machine: Machine,
    trips: int,
) -> None:
    stores = isinstance(op, tile.StoreOp)
    value = transferred(op)
    if value not in variables:
        return
    dtype = array_type(value).dtype
    cost = TransferCost(misaligned(window_of(op), machine, dtype), dtype, machine, trips, stores)
    text = "the tile is stored" if stores else "the tile is loaded"
    problem.choose(variables[value], cost, Origin(text, location_of(op)))


def _add_repeated_loads(
    problem: Problem, variable: int, flow: Flow, view: Spread, machine: Machine, trips: int
) -> None:
    """The loads that a broadcast tile is computed of, elementwise, for each repeat but the first."""
    again = prod(array_type(flow.target).shape) // max(1, prod(array_type(flow.source).shape)) - 1
    for op in _loads_of(flow.source) if again > 0 else ():
        dtype = array_type(op.results[0]).dtype
        window = misaligned(window_of(op), machine, dtype)
        cost = RepeatedLoadCost(window, dtype, machine, trips * again, False, view)
        problem.choose(variable, cost, Origin("the tile is loaded again for each repeat", location_of(op)))


def _loads_of(value: SSAValue) -> list[tile.LoadOp]:
    """The loads that a tile is computed of, elementwise."""
    owners = (each.owner for each in producers_first([value], _elementwise_operands))
    return [op for op in owners if isinstance(op, tile.LoadOp)]


def _elementwise_operands(value: SSAValue) -> list[SSAValue]:
    op = value.owner
    return [operand for operand in op.operands if is_tile(operand)] if isinstance(op, ELEMENTWISE) else []


def _name(value: SSAValue) -> str:
    owner = value.owner
    return value.name_hint or (owner.name if isinstance(owner, Operation) else "argument")


def _place_of(value: SSAValue) -> SourceLocation | None:
    owner = value.owner
    return location_of(owner) if isinstance(owner, Operation) else None


def forget_plans() -> None:
    """Empty the memories of plans and views, so that the next inference is as slow as the first."""
    for remembered in (
        plan_relayout,
        register_access,
        refine,
        plain_form,
        holder_of,
        least_seconds,
        image,
        preimage,
        terms,
        _packed,
        instructions,
    ):
        remembered.cache_clear()
