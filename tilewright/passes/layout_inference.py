"""Layouts of all tiles of a kernel: the cheapest, for the cost model, among the layouts worth considering.

    inference = infer_layouts(kernel, space_of(machine))
    inference.layout(value), inference.atom(product)

Each tile is a variable. Its domain grows from the anchors (what products, loads and stores like) along the flows of the
operations in both directions, nearest first, up to a cap. Where the layouts on both sides of a flow do not correspond,
the data moves, at the cost that `plan_relayout` gives times the trips of the loops around it. Tiles that are the same
everywhere, or computed from their coordinates, have no layout: they are made where they are used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from xdsl.ir import Block, Operation, SSAValue

from tilewright.dialects import tile
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.errors import LayoutError, SourceLocation
from tilewright.layout import Layout, reduce, row_major, strided
from tilewright.layout.access import register_access
from tilewright.layout.differences import in_memory
from tilewright.layout.refinement import plain_form, refine
from tilewright.layout.relayout import Plan, plan_relayout
from tilewright.layout.solver import Origin, Problem, Solution
from tilewright.machines.machine import Machine
from tilewright.passes.affine_access import Index, linear_form
from tilewright.passes.layout_rules import COMPUTING, Flow, Folded, View, flows, is_tile, location_of
from tilewright.passes.layout_spaces import Atom, Space

LARGEST_DOMAIN = 8


@dataclass(frozen=True)
class FlowCost:
    """What a flow costs when its source and target have given layouts: the movement between what the view makes of the
    one and the other. Equal costs are computed once."""

    view: View
    combines: str | None
    dtype: DType
    machine: Machine
    trips: int
    shapes: tuple[tuple[int, ...], tuple[int, ...]]

    def __call__(self, source: Layout, target: Layout) -> float | None:
        plan = self.plan(source, target)
        return None if plan is None else sum(each.seconds for each in plan) * self.trips

    def plan(self, source: Layout, target: Layout) -> list[Plan] | None:
        """The movements, without their number of trips; None where there is no way."""
        start = self._image(source)
        if start is None:
            return self._through_memory(source, target)
        plan = plan_relayout(start, target, self.dtype, self.machine)
        return [plan] if isinstance(plan, Plan) else None

    def _image(self, source: Layout) -> Layout | None:
        """The target's layout when nothing has moved; combined dims still hold terms."""
        try:
            if self.combines is not None and isinstance(self.view, Folded):
                return reduce(source, self.view.view.dims, self.combines)
            return self.view.image(source)
        except LayoutError:
            return None

    def _through_memory(self, source: Layout, target: Layout) -> list[Plan] | None:
        """Stored in the order of elements, read back as the target wants them."""
        name = f"mem.{self.machine.memories[0].name}"
        first = plan_relayout(source, row_major(self.shapes[0], name), self.dtype, self.machine)
        second = plan_relayout(row_major(self.shapes[1], name), target, self.dtype, self.machine)
        return [first, second] if isinstance(first, Plan) and isinstance(second, Plan) else None


@dataclass(frozen=True)
class OperandCost:
    """What it costs to bring a tile to an operand of an atom."""

    operand: str
    dtype: DType
    machine: Machine
    trips: int

    def __call__(self, given: Layout, atom: Atom) -> float | None:
        plan = plan_relayout(given, getattr(atom, self.operand), self.dtype, self.machine)
        return plan.seconds * self.trips if isinstance(plan, Plan) else None


@dataclass(frozen=True)
class ResultCost:
    """What it costs to take an atom's result to the layout of the value."""

    dtype: DType
    machine: Machine
    trips: int

    def __call__(self, atom: Atom, wanted: Layout) -> float | None:
        plan = plan_relayout(atom.accumulator, wanted, self.dtype, self.machine)
        return plan.seconds * self.trips if isinstance(plan, Plan) else None


@dataclass(frozen=True)
class TransferCost:
    """What it costs to load a tile from a window of memory, or to store it there."""

    window: Layout
    dtype: DType
    machine: Machine
    trips: int
    stores: bool

    def __call__(self, layout: Layout) -> float | None:
        ends = (layout, self.window) if self.stores else (self.window, layout)
        plan = plan_relayout(*ends, self.dtype, self.machine)
        return plan.seconds * self.trips if isinstance(plan, Plan) else None


@dataclass
class Inference:
    """The layouts of a kernel's tiles.

    Attributes:
        problem: what was asked.
        variables: the variable of each tile that has a layout.
        products: the variable of each product's atom.
        solution: what the solver found and counted.
    """

    problem: Problem
    variables: Mapping[SSAValue, int]
    products: Mapping[tile.DotOp, int]
    solution: Solution

    def layout(self, value: SSAValue) -> Layout | None:
        """The layout of a tile; None for one that is made where it is used."""
        number = self.variables.get(value)
        found = None if number is None else self.solution.values[number]
        assert found is None or isinstance(found, Layout)
        return found

    def atom(self, product: tile.DotOp) -> Atom:
        """How a product is done."""
        found = self.solution.values[self.products[product]]
        assert isinstance(found, Atom)
        return found


@dataclass
class _Kernel:
    """A kernel being turned into a problem."""

    kernel: tile.KernelOp
    space: Space
    pins: Mapping[SSAValue, Layout]
    ops: list[tuple[Operation, int]] = field(default_factory=list[tuple[Operation, int]])
    flows: list[tuple[Flow, Operation, int]] = field(default_factory=list[tuple[Flow, Operation, int]])
    domains: dict[SSAValue, dict[Layout, None]] = field(default_factory=dict[SSAValue, dict[Layout, None]])
    free: set[SSAValue] = field(default_factory=set[SSAValue])
    atoms: dict[tile.DotOp, tuple[Atom, ...]] = field(default_factory=dict[tile.DotOp, tuple[Atom, ...]])


def infer_layouts(
    kernel: tile.KernelOp, space: Space, pins: Mapping[SSAValue, Layout] | None = None, budget: int = 100_000
) -> Inference:
    """The cheapest layouts of a kernel's tiles; `pins` are those that the user wants.

    Raises:
        LayoutConflictError: what products, operations and pins ask contradicts itself.
        LayoutRuleError: an operation has no rule.
        LayoutBudgetError: the search was given up.
    """
    work = _Kernel(kernel, space, pins or {})
    work.ops = list(_operations(kernel.body.block, 1))
    _find_free(work)
    for op, trips in work.ops:
        work.flows += [(flow, op, trips) for flow in flows(op) if not {flow.source, flow.target} & work.free]
    _seed(work)
    _spread(work)
    return _solve(work, budget)


def _operations(block: Block, trips: int) -> Iterator[tuple[Operation, int]]:
    """All operations with how often they run."""
    for op in block.ops:
        yield op, trips
        inner = trips * op.trips.value.data if isinstance(op, tile.ForOp) else trips
        for region in op.regions:
            yield from _operations(region.block, inner)


def _find_free(work: _Kernel) -> None:
    """Tiles that are alike everywhere or computed from their coordinates, and what is computed from such alone."""
    for op, _ in work.ops:
        moves = isinstance(op, tile.ReduceOp | tile.ArgReduceOp | tile.ScanOp | tile.SortOp)
        is_known = all(operand in work.free or not is_tile(operand) for operand in op.operands)
        if isinstance(op, tile.FullOp | tile.IotaOp) or (isinstance(op, tile.TileOp) and is_known and not moves):
            work.free.update(op.results)


# ---- domains --------------------------------------------------------------------------------------------------------


def _seed(work: _Kernel) -> None:
    """What products, then loads and stores, like."""
    for value, layout in work.pins.items():
        _offer(work, value, layout)
    for op, _ in work.ops:
        if isinstance(op, tile.DotOp):
            types = [array_type(operand) for operand in op.operands]
            work.atoms[op] = tuple(work.space.atoms(*types))
            for atom in work.atoms[op]:
                _offer(work, op.result, atom.accumulator)
                for operand, layout in zip(op.operands, (atom.left, atom.right, atom.accumulator), strict=True):
                    _offer(work, operand, layout)
    for op, _ in work.ops:
        if not isinstance(op, tile.LoadOp | tile.StoreOp):
            continue
        value = _transferred(op)
        if is_tile(value):
            type = array_type(value)
            for layout in work.space.distributions(type, _fastest_dim(_window(op), type.rank)):
                _offer(work, value, layout)


def _transferred(op: tile.LoadOp | tile.StoreOp) -> SSAValue:
    return op.result if isinstance(op, tile.LoadOp) else op.value


def _offer(work: _Kernel, value: SSAValue, layout: Layout) -> bool:
    """Whether the layout is new to a tile whose domain has room for it. What is computed is in registers."""
    if value in work.free or not is_tile(value) or (in_memory(layout) and isinstance(value.owner, COMPUTING)):
        return False
    domain = work.domains.setdefault(value, {})
    if layout in domain or len(domain) >= LARGEST_DOMAIN:
        return False
    domain[layout] = None
    return True


def _spread(work: _Kernel) -> None:
    """Carry layouts along the flows, nearest first, until nothing is new."""
    outgoing: dict[SSAValue, list[Flow]] = {}
    incoming: dict[SSAValue, list[Flow]] = {}
    for flow, _, _ in work.flows:
        outgoing.setdefault(flow.source, []).append(flow)
        incoming.setdefault(flow.target, []).append(flow)
    _carry(work, outgoing, incoming)
    # What no anchor reaches streams like a load.
    for op, _ in work.ops:
        for value in op.results:
            if is_tile(value) and value not in work.free and not work.domains.get(value):
                for layout in work.space.distributions(array_type(value), array_type(value).rank - 1):
                    _offer(work, value, layout)
    _carry(work, outgoing, incoming)


def _carry(
    work: _Kernel, outgoing: Mapping[SSAValue, Sequence[Flow]], incoming: Mapping[SSAValue, Sequence[Flow]]
) -> None:
    pending = deque((value, layout) for value, domain in work.domains.items() for layout in domain)
    while pending:
        value, layout = pending.popleft()
        reached = [(flow.target, _image(flow.view, layout)) for flow in outgoing.get(value, ())]
        reached += [(flow.source, _preimage(flow.view, layout)) for flow in incoming.get(value, ())]
        for other, found in reached:
            if found is not None and _offer(work, other, found):
                pending.append((other, found))


@lru_cache(maxsize=16384)
def _image(view: View, layout: Layout) -> Layout | None:
    try:
        return view.image(layout)
    except LayoutError:
        return None


@lru_cache(maxsize=16384)
def _preimage(view: View, layout: Layout) -> Layout | None:
    try:
        return view.preimage(layout)
    except LayoutError:
        return None


def _window(op: tile.LoadOp | tile.StoreOp) -> Layout:
    """The tile's place in memory, as far as it is linear in the tile's dims; the start does not matter."""
    ref = op.source if isinstance(op, tile.LoadOp) else op.destination
    shape, extents = array_type(_transferred(op)).shape, tile.ref_type(ref).shape
    strides = [0] * len(shape)
    step = 1
    for size, expression in zip(reversed(extents), reversed(op.map.data.results), strict=True):
        form = linear_form(expression, tuple(Index(n) for n in range(len(shape))))
        for dim in range(len(shape)):
            strides[dim] += step * (form.coefficient(dim) if form is not None else 0)
        step *= size
    return strided(shape, strides)


def _fastest_dim(window: Layout, rank: int) -> int:
    steps = [min((abs(d.stride) for d in digits if d.stride), default=1 << 60) for digits in window.shard]
    return steps.index(min(steps)) if rank else 0


# ---- solving --------------------------------------------------------------------------------------------------------


def _solve(work: _Kernel, budget: int) -> Inference:
    problem = Problem()
    machine = work.space.machine
    variables = {value: problem.variable(_name(value), domain) for value, domain in work.domains.items() if domain}
    products: dict[tile.DotOp, int] = {}
    for op, trips in work.ops:
        if isinstance(op, tile.DotOp):
            products[op] = _add_product(work, problem, variables, op, trips)
        elif isinstance(op, tile.LoadOp | tile.StoreOp):
            _add_transfer(problem, variables, op, machine, trips)
    for flow, op, trips in work.flows:
        if flow.source not in variables or flow.target not in variables:
            continue
        source, target = array_type(flow.source), array_type(flow.target)
        cost = FlowCost(flow.view, flow.combines, source.dtype, machine, trips, (source.shape, target.shape))
        origin = Origin(flow.text, location_of(op))
        problem.relate(variables[flow.source], variables[flow.target], cost, origin)
    for value, layout in work.pins.items():
        problem.pin(variables[value], layout, Origin(f"the layout is pinned to {layout}", _place_of(value)))
    return Inference(problem, variables, products, problem.solve(budget))


def _add_product(work: _Kernel, problem: Problem, variables: Mapping[SSAValue, int], op: tile.DotOp, trips: int) -> int:
    machine = work.space.machine
    number = problem.variable("atom", work.atoms[op])
    where = location_of(op)
    problem.choose(number, _AtomCost(trips), Origin("the product takes an atom of the machine", where))
    for operand, name in zip(op.operands, ("left", "right", "accumulator"), strict=True):
        if operand in variables:
            cost = OperandCost(name, array_type(operand).dtype, machine, trips)
            problem.relate(variables[operand], number, cost, Origin(f"the {name} operand of the product", where))
    if op.result in variables:
        cost_out = ResultCost(array_type(op.result).dtype, machine, trips)
        problem.relate(number, variables[op.result], cost_out, Origin("the result of the product", where))
    return number


@dataclass(frozen=True)
class _AtomCost:
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
    value = _transferred(op)
    if value not in variables:
        return
    cost = TransferCost(_window(op), array_type(value).dtype, machine, trips, stores)
    text = "the tile is stored" if stores else "the tile is loaded"
    problem.choose(variables[value], cost, Origin(text, location_of(op)))


def _name(value: SSAValue) -> str:
    owner = value.owner
    return value.name_hint or (owner.name if isinstance(owner, Operation) else "argument")


def _place_of(value: SSAValue) -> SourceLocation | None:
    owner = value.owner
    return location_of(owner) if isinstance(owner, Operation) else None


def forget_plans() -> None:
    """Empty the memories of plans and views, so that the next inference is as slow as the first."""
    for remembered in (plan_relayout, register_access, refine, plain_form, _image, _preimage):
        remembered.cache_clear()
