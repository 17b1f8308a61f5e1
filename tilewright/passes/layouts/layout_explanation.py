"""Explanation of inferred layouts: the reason for each, and the cost of alternatives.

    explanation = explain_layouts(kernel, infer_layouts(kernel, space_of(machine)))
    explanation.values[0].reason.text                 # 'the left operand of the product by `mma.sync, 2 x 2 warps`'

A reason is found from what fixes layouts: pins and atoms of matmuls, then loads and stores. Their layouts are followed
along the flows that move nothing. The next best layout of a tile is that of the cheapest assignment in which the tile
has another one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from xdsl.ir import Operation, SSAValue

from tilewright.cached import cached_property
from tilewright.dialects import tile
from tilewright.dialects.base import array_type, plain_attributes
from tilewright.errors import LayoutBudgetError, SourceLocation
from tilewright.layout import Layout
from tilewright.layout.naming import name_of
from tilewright.layout.relayout import Plan
from tilewright.layout.solver import Choice, Constraint, Relation, Solution
from tilewright.passes.layouts.layout_capacity import REGISTERS, Overflow
from tilewright.passes.layouts.layout_costs import ComputeCost, TransferCost
from tilewright.passes.layouts.layout_inference import Inference
from tilewright.passes.layouts.layout_rules import is_tile, location_of
from tilewright.passes.layouts.layout_spaces import Atom
from tilewright.passes.layouts.tile_names import TileNames, names_of

MOST_ALTERNATIVES = 200
# Beyond as many partial assignments for all tiles together, next best layouts take seconds.
MOST_NODES = 4000
"""In a kernel with more tiles, only those asked for have their next best layout looked for."""
_LARGEST_INCREASES = 3


@runtime_checkable
class _Planned(Protocol):
    """A cost that stands for movements."""

    def plan(self, *values: object) -> list[Plan] | None: ...


@dataclass(frozen=True)
class Movement:
    """One step of a plan: `seconds` for one trip, of `trips`; `layout` is where the tile is afterwards."""

    move: str
    reach: str
    detail: str
    seconds: float
    trips: int
    layout: Layout


@dataclass(frozen=True)
class Edge:
    """The relayout of a tile from one layout to another; `rule` states what the operation asks."""

    source: str
    target: str
    rule: str
    location: SourceLocation | None
    movements: tuple[Movement, ...]
    seconds: float


@dataclass(frozen=True)
class Reason:
    """Why a tile has its layout.

    Attributes:
        kind: `pinned`, `product`, `loaded`, `stored`, `follows` or `compromise`.
        source: the label of the tile or matmul that it follows; None where it follows none.
    """

    kind: str
    text: str
    location: SourceLocation | None = None
    source: str | None = None


@dataclass(frozen=True)
class Increase:
    """The items that cost more in an alternative."""

    what: str
    seconds: float


@dataclass(frozen=True)
class Alternative:
    """The next best: what it is, what the whole kernel then costs more, and where most of that is."""

    what: str
    name: str | None
    extra_seconds: float
    increases: tuple[Increase, ...]


@dataclass(frozen=True)
class TileExplanation:
    """One tile.

    Attributes:
        label: its number in the kernel's text.
        name: the user's; None where it has none.
        made_by: the operation that makes it.
        layout_name: the catalogue's; None for a layout that is not in it.
        incoming: the movements that load it here from the tiles that it is made of.
        transfers: its movements from and to memory.
        computing_seconds: of the arithmetic that makes it, copies included.
        seconds: of all of these.
        alternative: None where no other layout is possible, or none was looked for.
    """

    label: str
    name: str | None
    made_by: str
    location: SourceLocation | None
    shape: tuple[int, ...]
    dtype: str
    layout: Layout
    layout_name: str | None
    reason: Reason
    incoming: tuple[Edge, ...]
    transfers: tuple[Edge, ...]
    computing_seconds: float
    seconds: float
    alternative: Alternative | None


@dataclass(frozen=True)
class ProductExplanation:
    """How a matmul is done: by which atom, and what its operands' way to it costs."""

    label: str
    location: SourceLocation | None
    atom: str
    seconds: float
    trips: int
    operands: tuple[Edge, ...]
    alternative: Alternative | None


@dataclass(frozen=True)
class KernelExplanation:
    """All of a kernel. Seconds are of one point of its grid, loop trips included.

    Attributes:
        uniform: tiles that have no layout: they are made where they are used.
        overflows: where tiles need more than there is, in words; they would be spilled.
        has_alternatives: whether next best layouts were looked for.
    """

    kernel: str
    machine: str
    tiles: tuple[TileExplanation, ...]
    products: tuple[ProductExplanation, ...]
    uniform: tuple[str, ...]
    overflows: tuple[str, ...]
    seconds: float
    products_seconds: float
    computing_seconds: float
    transfers_seconds: float
    relayouts_seconds: float
    variables: int
    nodes: int
    has_alternatives: bool


def explain_layouts(
    kernel: tile.KernelOp, inference: Inference, machine: str, only: str | None = None
) -> KernelExplanation:
    """The explanation of what inference found for a kernel. With `only`, the label or the user's name of some tiles,
    the others are left out."""
    return _Explainer(kernel, inference, names_of(kernel)).explain(machine, only)


@dataclass(eq=False)
class _Explainer:
    kernel: tile.KernelOp
    inference: Inference
    names: TileNames

    def explain(self, machine: str, only: str | None) -> KernelExplanation:
        chosen = [value for value in self.inference.variables if self._is_asked_for(value, only)]
        chosen.sort(key=list(self.names.labels).index)
        tiles = len(self.inference.variables)
        is_quick = tiles <= MOST_ALTERNATIVES and tiles * self.inference.solution.nodes <= MOST_NODES
        with_alternatives = only is not None or is_quick
        products = list(self.inference.products) if only is None else []
        solution = self.inference.solution
        by_kind = self._seconds_by_kind()
        return KernelExplanation(
            kernel=self.kernel.sym_name,
            machine=machine,
            tiles=tuple(self._tile(value, with_alternatives) for value in chosen),
            products=tuple(self._product(op, with_alternatives) for op in products),
            uniform=tuple(self._uniform(only)),
            overflows=tuple(self._overflow(each) for each in self.inference.overflows),
            seconds=solution.cost,
            products_seconds=by_kind["products"],
            computing_seconds=by_kind["computing"],
            transfers_seconds=by_kind["transfers"],
            relayouts_seconds=by_kind["relayouts"],
            variables=solution.variables,
            nodes=solution.nodes,
            has_alternatives=with_alternatives,
        )

    # ---- what things are called -------------------------------------------------------------------------------------

    def _is_asked_for(self, value: SSAValue, only: str | None) -> bool:
        return only is None or only in (self.names.labels[value], self.names.names.get(value))

    def _called(self, value: SSAValue) -> str:
        name = self.names.names.get(value)
        label = self.names.labels[value]
        return label if name is None else f"{label} {name}"

    def _label(self, variable: int) -> str:
        """The tile of a variable, or the matmul whose atom it is."""
        product = self._product_of.get(variable)
        return self._called(self._value_of[variable]) if product is None else f"atom of {self._called(product.result)}"

    @cached_property
    def _value_of(self) -> dict[int, SSAValue]:
        return {variable: value for value, variable in reversed(list(self.inference.variables.items()))}

    @cached_property
    def _product_of(self) -> dict[int, tile.DotOp]:
        return {variable: op for op, variable in self.inference.products.items()}

    def _made_by(self, value: SSAValue) -> str:
        op = value.owner
        if not isinstance(op, Operation):
            return "carried by a loop"
        if isinstance(op, tile.ForOp):
            return "result of a loop"
        plain = plain_attributes(op)
        kind = op.name.removeprefix("tile.")
        fn = str(plain.get("fn", ""))
        what = fn if isinstance(op, tile.MapOp) else f"{kind} {fn}".strip()
        operands = ", ".join(self.names.labels[operand] for operand in op.operands if is_tile(operand))
        return f"{what}({operands})" if operands else what

    def _uniform(self, only: str | None) -> Iterator[str]:
        for value in self.names.labels:
            if is_tile(value) and value not in self.inference.variables and self._is_asked_for(value, only):
                where = ", read from its array, packed as a whole" if value in self.inference.packed else ""
                yield f"{self._called(value)} = {self._made_by(value)}{where}"

    def _overflow(self, found: Overflow) -> str:
        what = "the registers of a thread" if found.memory == REGISTERS else f"`{found.memory}`"
        largest = ", ".join(self._called(value) for value in found.tiles[:3])
        return f"{found.needed_bytes} bytes of {what}, of which there are {found.limit_bytes}: {largest}"

    # ---- costs ------------------------------------------------------------------------------------------------------

    @cached_property
    def _constraints(self) -> Sequence[Constraint]:
        return self.inference.problem.constraints

    @cached_property
    def _costs(self) -> list[float]:
        """The cost of each constraint in the solution."""
        values = self.inference.solution.values
        return [self.inference.problem.cost_of(constraint, values) for constraint in self._constraints]

    def _seconds_by_kind(self) -> dict[str, float]:
        total = {"products": 0.0, "computing": 0.0, "transfers": 0.0, "relayouts": 0.0}
        for constraint, seconds in zip(self._constraints, self._costs, strict=True):
            if isinstance(constraint, Relation):
                total["relayouts"] += seconds
            elif constraint.variable in self._product_of:
                total["products"] += seconds
            elif isinstance(constraint.cost, ComputeCost):
                total["computing"] += seconds
            else:
                total["transfers"] += seconds
        return total

    @cached_property
    def _around(self) -> dict[int, list[int]]:
        """The constraints on each variable."""
        found: dict[int, list[int]] = {}
        for number, constraint in enumerate(self._constraints):
            for variable in set(_variables(constraint)):
                found.setdefault(variable, []).append(number)
        return found

    def _edge(self, number: int) -> Edge:
        """The movements that a constraint stands for."""
        constraint = self._constraints[number]
        values = [self.inference.solution.values[variable] for variable in _variables(constraint)]
        cost = constraint.cost
        plans = (cost.plan(*values) or []) if isinstance(cost, _Planned) else []
        trips = _trips(cost)
        movements = tuple(
            Movement(str(step.move), step.reach.name.lower(), step.detail, step.seconds, trips, step.layout)
            for plan in plans
            for step in plan.steps
        )
        ends = self._ends(constraint)
        return Edge(*ends, constraint.origin.text, constraint.origin.location, movements, self._costs[number])

    def _ends(self, constraint: Constraint) -> tuple[str, str]:
        labels = [self._label(variable) for variable in _variables(constraint)]
        if len(labels) == 2:
            return labels[0], labels[1]
        stores = isinstance(constraint.cost, TransferCost) and constraint.cost.stores
        return (labels[0], "memory") if stores else ("memory", labels[0])

    # ---- tiles and products -----------------------------------------------------------------------------------------

    def _tile(self, value: SSAValue, with_alternative: bool) -> TileExplanation:
        variable = self.inference.variables[value]
        layout = self.inference.layout(value)
        assert layout is not None
        type = array_type(value)
        incoming, transfers = list[Edge](), list[Edge]()
        computing = 0.0
        for number in self._around.get(variable, ()):
            constraint = self._constraints[number]
            if isinstance(constraint.cost, ComputeCost):
                computing += self._costs[number]
            elif isinstance(constraint, Choice):
                transfers += [self._edge(number)] if isinstance(constraint.cost, TransferCost) else []
            elif constraint.second == variable:
                incoming.append(self._edge(number))
        owner = value.owner
        return TileExplanation(
            label=self.names.labels[value],
            name=self.names.names.get(value),
            made_by=self._made_by(value),
            location=location_of(owner) if isinstance(owner, Operation) else _location_around(value),
            shape=type.shape,
            dtype=type.dtype.name,
            layout=layout,
            layout_name=name_of(layout, _bits(value)),
            reason=self._reasons[variable],
            incoming=tuple(edge for edge in incoming if edge.movements),
            transfers=tuple(edge for edge in transfers if edge.movements),
            computing_seconds=computing,
            seconds=computing + sum(edge.seconds for edge in (*incoming, *transfers)),
            alternative=self._alternative(variable, _bits(value)) if with_alternative else None,
        )

    def _product(self, op: tile.DotOp, with_alternative: bool) -> ProductExplanation:
        variable = self.inference.products[op]
        atom = self.inference.atom(op)
        seconds, trips, operands = 0.0, 1, list[Edge]()
        for number in self._around.get(variable, ()):
            constraint = self._constraints[number]
            if isinstance(constraint, Choice):
                trips = _trips(constraint.cost)
                seconds += self._costs[number] / trips
            elif constraint.second == variable:
                operands.append(self._edge(number))
        return ProductExplanation(
            label=self._called(op.result),
            location=location_of(op),
            atom=atom.name,
            seconds=seconds,
            trips=trips,
            operands=tuple(operands),
            alternative=self._alternative(variable, 0) if with_alternative else None,
        )

    def _alternative(self, variable: int, bits: int) -> Alternative | None:
        solution = self.inference.solution
        try:
            other = self.inference.problem.alternative(solution, variable)
        except LayoutBudgetError:
            return None
        if other is None:
            return None
        value = other.values[variable]
        name = name_of(value, bits) if isinstance(value, Layout) else None
        extra = other.cost - solution.cost
        # Sums of the same costs in another order differ in their last digits.
        extra = extra if extra > 1e-9 * solution.cost else 0.0
        return Alternative(str(value), name, extra, tuple(self._increases(other))[:_LARGEST_INCREASES])

    def _increases(self, other: Solution) -> list[Increase]:
        """Constraints that cost more than in the solution, the largest difference first."""
        values, before = other.values, self.inference.solution.values
        found: list[Increase] = []
        for number, constraint in enumerate(self._constraints):
            variables = _variables(constraint)
            if all(values[variable] == before[variable] for variable in variables):
                continue
            more = self.inference.problem.cost_of(constraint, values) - self._costs[number]
            if more > 0:
                ends = " to ".join(self._ends(constraint)) if not self._is_product(constraint) else "the matmul itself"
                found.append(Increase(ends, more))
        return sorted(found, key=lambda increase: -increase.seconds)

    def _is_product(self, constraint: Constraint) -> bool:
        return isinstance(constraint, Choice) and constraint.variable in self._product_of

    # ---- reasons ----------------------------------------------------------------------------------------------------

    @cached_property
    def _reasons(self) -> dict[int, Reason]:
        """Why the variable of each tile has its value."""
        found: dict[int, Reason] = {}
        self._follow(found, self._fixed())
        self._follow(found, self._transferred())
        # Such as a reduction, which costs something wherever its result is.
        while nearest := next(self._nearest(found), None):
            self._follow(found, [nearest])
        for variable in self._value_of:
            if variable not in found:
                count = len(self.inference.problem.domains[variable])
                text = f"no neighbour has it: the cheapest way between them, of {count} layouts considered"
                found[variable] = Reason("compromise", text)
        return found

    def _follow(self, found: dict[int, Reason], roots: Iterable[tuple[int, Reason]]) -> None:
        """Give reasons to the roots, and to what has their layout because nothing moves between the two."""
        pending: deque[int] = deque()
        for variable, reason in roots:
            if variable not in found:
                found[variable] = reason
                pending.append(variable)
        while pending:
            variable = pending.popleft()
            for number in self._around[variable]:
                constraint = self._constraints[number]
                if isinstance(constraint, Choice) or self._costs[number] != 0:
                    continue
                other = constraint.second if constraint.first == variable else constraint.first
                if other in found or other in self._product_of or variable in self._product_of:
                    continue
                source = self._label(variable)
                origin = constraint.origin
                found[other] = Reason("follows", f"follows {source}: {origin.text}", origin.location, source)
                pending.append(other)

    def _fixed(self) -> Iterator[tuple[int, Reason]]:
        """Tiles that are pinned, and those that are where an atom wants or leaves them."""
        for constraint in self._constraints:
            if isinstance(constraint, Relation) or isinstance(constraint.cost, TransferCost | ComputeCost):
                continue
            if constraint.variable in self._value_of:
                origin = constraint.origin
                yield constraint.variable, Reason("pinned", origin.text, origin.location)
        for number, constraint in enumerate(self._constraints):
            if isinstance(constraint, Choice) or self._costs[number] != 0:
                continue
            for product, other in (_variables(constraint), tuple(reversed(_variables(constraint)))):
                if product in self._product_of and other in self._value_of:
                    yield other, self._by_product(product, constraint)

    def _by_product(self, product: int, constraint: Relation) -> Reason:
        atom = self.inference.solution.values[product]
        assert isinstance(atom, Atom)
        text = f"{constraint.origin.text} by `{atom}`"
        return Reason("product", text, constraint.origin.location, self._label(product))

    def _transferred(self) -> Iterator[tuple[int, Reason]]:
        for number, constraint in enumerate(self._constraints):
            if isinstance(constraint, Choice) and isinstance(constraint.cost, TransferCost):
                kind = "stored" if constraint.cost.stores else "loaded"
                is_best = self._is_least(number, constraint.variable)
                why = "no layout considered takes less time" if is_best else "the extra cost is saved elsewhere"
                yield constraint.variable, Reason(kind, f"{kind}: {why}", constraint.origin.location)

    def _nearest(self, found: dict[int, Reason]) -> Iterator[tuple[int, Reason]]:
        """Tiles without a reason that one with a reason reaches in no layout at less cost."""
        for number, constraint in enumerate(self._constraints):
            if isinstance(constraint, Choice) or constraint.first not in found or constraint.second in found:
                continue
            if constraint.second in self._value_of and self._is_least(number, constraint.second):
                source, origin = self._label(constraint.first), constraint.origin
                text = f"follows {source} at the least cost: {origin.text}"
                yield constraint.second, Reason("follows", text, origin.location, source)

    def _is_least(self, number: int, variable: int) -> bool:
        """Whether the constraint would cost no less with another value of the variable."""
        values = list(self.inference.solution.values)
        for other in self.inference.problem.domains[variable]:
            values[variable] = other
            if self.inference.problem.cost_of(self._constraints[number], values) < self._costs[number]:
                return False
        return True


def _variables(constraint: Constraint) -> tuple[int, ...]:
    if isinstance(constraint, Choice):
        return (constraint.variable,)
    return constraint.first, constraint.second


def _trips(cost: object) -> int:
    """How often the loops around it pay a cost."""
    return int(getattr(getattr(cost, "edge", cost), "trips", 1))


def _bits(value: SSAValue) -> int:
    return 8 * array_type(value).dtype.itemsize


def _location_around(value: SSAValue) -> SourceLocation | None:
    """The line of the loop that carries a tile."""
    loop = value.owner.parent_op() if not isinstance(value.owner, Operation) else None
    return location_of(loop) if loop is not None else None
