"""Compiles the statements of a kernel: assignments, stores, the grid, sequential loops with carried tiles, choices."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Region, SSAValue

from tilewright.dialects import tile
from tilewright.errors import (
    ArgumentError,
    DataDependentShapeError,
    DTypeError,
    RaceError,
    ShapeError,
    TilewrightError,
    UnsupportedSyntaxError,
)
from tilewright.frontend import pyast_functions as functions
from tilewright.frontend import pyast_indexing as indexing
from tilewright.frontend import pyast_merges as merges
from tilewright.frontend.pyast_builder import KernelBuilder
from tilewright.frontend.pyast_expressions import Expressions, Frame
from tilewright.frontend.pyast_races import counter_of_race
from tilewright.frontend.pyast_registry import handler_of
from tilewright.frontend.pyast_values import (
    Affine,
    Counter,
    Grid,
    LoopLocal,
    Ref,
    Steps,
    TileIndex,
    TileValue,
)
from tilewright.records import dataclass

# What a loop's target is bound to, from the number of the trip.
IndexOf = Callable[[Affine], Affine | TileIndex]

UNROLLED_TRIPS = 8
# Each attempt to compile a loop learns a carried name or edge; programs need two or three.
MAX_ATTEMPTS = 64

_UNSUPPORTED: dict[type[ast.stmt], tuple[str, str]] = {
    ast.While: ("`while`", "use `for t in range(n)` with a compile-time `n`, or `tw.steps`"),
    ast.Try: ("`try`", "check conditions with `tw.assert_`"),
    ast.TryStar: ("`try`", "check conditions with `tw.assert_`"),
    ast.AsyncWith: ("`async with`", "leave it out"),
    ast.AsyncFor: ("`async for`", "use `for`"),
    ast.FunctionDef: ("a nested function", "define the helper outside the kernel"),
    ast.AsyncFunctionDef: ("an async function", "define the helper outside the kernel, with `def`"),
    ast.ClassDef: ("a class", "define it outside the kernel"),
    ast.Global: ("`global`", "pass values as keyword parameters"),
    ast.Nonlocal: ("`nonlocal`", "pass values as keyword parameters"),
    ast.Import: ("an import", "import at the top of the file"),
    ast.ImportFrom: ("an import", "import at the top of the file"),
    ast.Raise: ("`raise`", "use `tw.assert_(condition, message)`"),
    ast.Delete: ("`del`", "leave it out"),
    ast.Match: ("`match`", "use `if` on compile-time values"),
    ast.Break: ("`break`", "bound the loop with `range`, and use `tw.where` for what depends on data"),
    ast.Continue: ("`continue`", "put the rest of the body under `if`"),
}


@dataclass(frozen=True)
class Returned:
    value: Any


@dataclass
class _Loop:
    """A loop run in order, and what attempts to compile it have learnt: the tiles that it carries as they are before
    it, edges that these have in some trips only, and names that a trip leaves without a value."""

    node: ast.For
    trips: int
    index_of: IndexOf
    assigned: Sequence[str]
    carried: dict[str, TileValue] = field(default_factory=dict)
    flags: dict[merges.Flag, None] = field(default_factory=dict)
    lost: dict[str, LoopLocal] = field(default_factory=dict)


class Compiler(Expressions):
    """Compiles one kernel into `body`; its grid's sizes are in `grid` afterwards."""

    def __init__(self, body: Block, frame: Frame) -> None:
        super().__init__(KernelBuilder(body), frame)
        self.kernel_frame = frame
        self.body = body
        self.grid: tuple[int, ...] | None = None
        self.grid_counters: list[Counter] = []  # of more than one point
        self.in_grid = False
        self.choice_depth = 0
        self.stored: set[str] = set()

    # ---- blocks -------------------------------------------------------------------------------------------------

    def run_kernel(self) -> None:
        """Compile the kernel function.

        Raises:
            TilewrightError: the kernel has a mistake; the error has its location.
        """
        self._block(self.frame.source.node.body)
        if self.grid is None:
            message = f"`{self.frame.source.name}` has no `tw.grid` loop"
            self.fail(self.frame.source.node, UnsupportedSyntaxError, message, "write `for i in tw.grid(out, block):`")

    def run_function(self, frame: Frame) -> Any:
        result = self._block(frame.source.node.body)
        return None if result is None else result.value

    def _block(self, statements: Sequence[ast.stmt]) -> Returned | None:
        for statement in statements:
            result = self._statement(statement)
            if result is not None:
                return result
        return None

    def _assert(self, node: ast.Assert) -> None:
        if not __debug__:  # `python -O` leaves assertions out
            return
        message = self.evaluate(node.msg) if node.msg is not None else ast.unparse(node.test)
        self.at(node, functions.assert_, self.b, self.evaluate(node.test), message)

    def _statement(self, node: ast.stmt) -> Returned | None:
        if self.grid is not None and not self.in_grid and not _is_idle(node):
            self.unsupported(node, "statements after its `tw.grid` loop", "move them into the loop, or before it")
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case ast.Expr():
                self.evaluate(node.value)
            case ast.Assign():
                value = self.evaluate(node.value)
                for target in node.targets:
                    self._assign(target, value)
            case ast.AnnAssign():
                if node.value is not None:
                    self._assign(node.target, self.evaluate(node.value))
            case ast.AugAssign():
                self._augmented(node)
            case ast.For():
                return self._for(node)
            case ast.If():
                return self._if(node)
            case ast.With():
                self._with(node)
            case ast.Return():
                return self._return(node)
            case ast.Assert():
                self._assert(node)
            case _:
                what, help = _UNSUPPORTED.get(type(node), (f"`{type(node).__name__}`", "leave it out"))
                self.unsupported(node, what, help)
        return None

    def _with(self, node: ast.With) -> None:
        """Zones, one in another where there are several."""
        if not self.in_grid:
            self.unsupported(node, "a zone outside its `tw.grid` loop", "put it into the loop")
        labels = [self._zone_label(item) for item in node.items]
        for inner in (each for statement in node.body for each in ast.walk(statement)):
            if isinstance(inner, ast.Return):
                self.unsupported(inner, "`return` inside a zone", "return after the `with`")
        for label in labels:
            self.at(node, self.b.add, tile.zone(label, tile.BEGIN))
        self._block(node.body)
        for label in reversed(labels):
            self.at(node, self.b.add, tile.zone(label, tile.END))

    def _zone_label(self, item: ast.withitem) -> str:
        call = item.context_expr
        if not isinstance(call, ast.Call) or handler_of(self.evaluate(call.func)) != "zone":
            self.unsupported(
                call, "`with` for anything but `tw.zone`", 'leave it out, or write `with tw.zone("name"):`'
            )
        if item.optional_vars is not None:
            self.unsupported(item.optional_vars, "`as` after a zone", "leave it out: a zone is no value")
        given = call.args[0] if len(call.args) == 1 and not call.keywords else None
        if not isinstance(given, ast.Constant) or not isinstance(given.value, str) or not given.value.strip():
            message = "the name of a zone is a text that is written out"
            self.fail(given or call, ArgumentError, message, 'write `with tw.zone("load"):`')
        return given.value

    def _return(self, node: ast.Return) -> Returned:
        if self.runtime_depth > self.frame.runtime_depth:
            self.unsupported(node, "`return` inside a loop or a choice made at run time", "return at the end")
        if self.frame is self.kernel_frame and node.value is not None:
            self.unsupported(node, "a returned value", "store it to an Out array: `c[i, j] = tile`")
        return Returned(None if node.value is None else self.evaluate(node.value))

    # ---- assignment ---------------------------------------------------------------------------------------------

    def _assign(self, target: ast.expr, value: object) -> None:
        if isinstance(target, ast.Subscript):
            owner = self.evaluate(target.value)
            if not isinstance(owner, Ref):
                what = "a tile" if isinstance(owner, TileValue) else f"a {type(owner).__name__}"
                self.unsupported(target, f"a store into {what}", "tiles are values: use `tw.where` or `tw.concat`")
            self._store(target, owner, self.evaluate(target.slice), value)
            return
        if isinstance(target, ast.Attribute):
            self.unsupported(target, "an assignment to an attribute", "assign to a name")
        self.bind(target, value)

    def _store(self, node: ast.expr, ref: Ref, index: object, value: object) -> None:
        if not self.in_grid:
            self.unsupported(node, "a store outside its `tw.grid` loop", "move it into the loop")
        access = self.at(node, indexing.store, self.b, ref, index, value)
        self.stored.add(ref.name)
        # A branch may be that of one point.
        counter = None if self.choice_depth else counter_of_race(access, self.grid_counters)
        if counter is not None:
            name = counter.name
            message = f"points of the grid that differ only in `{name}` store to the same elements of `{ref.name}`"
            help = f"index `{ref.name}` with `{name}`, or take `{name}` from the grid and walk it with `tw.steps`"
            self.fail(node, RaceError, message, help)

    def call(self, node: ast.Call, function: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        if handler_of(function) == "store" and args and isinstance(args[0], Ref):
            self.at(node, functions.check_arguments, "store", args, keywords)
            self._store(node, args[0], args[1], args[2])
            return None
        return super().call(node, function, args, keywords)

    def _augmented(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Subscript):
            current = self.evaluate(_reading(node.target))
            self._assign(node.target, self.binary(node, node.op, current, self.evaluate(node.value)))
            return
        owner = self.evaluate(node.target.value)
        if not isinstance(owner, Ref):
            self._assign(node.target, None)
            return
        index = self.evaluate(node.target.slice)
        current = self.at(node.target, indexing.load, self.b, owner, index)
        self._store(node.target, owner, index, self.binary(node, node.op, current, self.evaluate(node.value)))

    # ---- loops --------------------------------------------------------------------------------------------------

    def _for(self, node: ast.For) -> Returned | None:
        if node.orelse:
            self.unsupported(node, "`else` after a loop", "put it after the loop")
        over = self.evaluate(node.iter)
        if isinstance(over, Grid):
            self._grid(node, over)
            return None
        if isinstance(over, Steps):
            self._sequential(node, over.trips, lambda i: TileIndex(i, over.block, over.extent, _name(node.target)))
            return None
        if isinstance(over, range) and len(over) > UNROLLED_TRIPS:
            self._sequential(node, len(over), lambda i: i * over.step + over.start)
            return None
        for value in self.iterate(node.iter, over):
            self.bind(node.target, value)
            result = self._block(node.body)
            if result is not None:
                return result
        return None

    def _grid(self, node: ast.For, over: Grid) -> None:
        if self.grid is not None:
            self.unsupported(node, "more than one `tw.grid` loop", "walk blocks in order with `tw.steps`")
        if self.frame is not self.kernel_frame or self.runtime_depth:
            self.unsupported(node, "`tw.grid` anywhere but at its top level", "use `tw.steps` here")
        self.grid = over.trips
        names = [_name(t) for t in node.target.elts] if isinstance(node.target, ast.Tuple) else [_name(node.target)]
        indices: list[Affine | TileIndex] = []
        for position, (extent, block, trips) in enumerate(zip(over.extents, over.blocks, over.trips, strict=True)):
            value = self.body.insert_arg(IndexType(), len(self.body.args))
            name = names[position] if position < len(names) else f"index {position}"
            counter = Counter(value, trips, name)
            number = Affine.of(counter) if trips > 1 else Affine()
            self.grid_counters += [counter] if trips > 1 else []
            indices.append(number if block is None else TileIndex(number, block, extent, name))
        self.bind(node.target, tuple(indices) if over.is_tuple else indices[0])
        self.in_grid = True
        self._block(node.body)
        self.in_grid = False

    def _sequential(self, node: ast.For, trips: int, index_of: IndexOf) -> None:
        """A loop that runs in order; names assigned before and inside it are carried from trip to trip."""
        where = f"the loop over `{_name(node.target)}`"
        if trips == 1:
            self.bind(node.target, index_of(Affine()))
            self._nested(node.body)
        elif trips > 1:
            targets = _assigned([node.target])
            loop = _Loop(node, trips, index_of, [n for n in _assigned(node.body) if n not in targets])
            for _ in range(MAX_ATTEMPTS):
                if self._attempt(loop):
                    break
            self.frame.names.update(dict.fromkeys(targets, LoopLocal(where)))
        self._forget(_assigned([node]), where, keep=trips == 1)

    def _nested(self, body: Sequence[ast.stmt]) -> None:
        self.runtime_depth += 1
        self._block(body)
        self.runtime_depth -= 1

    def _attempt(self, loop: _Loop) -> bool:
        """Compile the loop with the carried tiles and flags known so far. When it turns out that there are more, record
        that and give False."""
        node, carried, before = loop.node, loop.carried, dict(self.frame.names)
        for name in loop.assigned:
            if isinstance(before.get(name), TileValue) and name not in loop.lost:
                carried.setdefault(name, before[name])
        starts = [x.value for x in carried.values()]
        starts += [self.b.guard_of(carried[f.name].edges[f.dim], f.edge) for f in loop.flags]
        types = [value.type for value in starts]
        block = Block(arg_types=[IndexType(), *types])
        counter = Counter(block.args[0], loop.trips, _name(node.target))
        tiles, guards = block.args[1 : 1 + len(carried)], block.args[1 + len(carried) :]
        flags = dict[merges.Flag, SSAValue](zip(loop.flags, guards, strict=True))
        for (name, start), argument in zip(carried.items(), tiles, strict=True):
            edges = merges.edges_in_trip(name, start.edges, flags)
            self.frame.names[name] = TileValue(argument, start.type, edges)
        self.frame.names.update(loop.lost)
        self.bind(node.target, loop.index_of(Affine.of(counter)))
        with self.b.inside(block):
            self._nested(node.body)
            after, self.frame.names = self.frame.names, before
            if self._lose(loop, before, after):
                block.erase(safe_erase=False)
                return False
            last = {name: self._after_trip(node, name, after[name], start, counter) for name, start in carried.items()}
            yielded = [x.value for x in last.values()]
            yielded += [self.b.guard_of(last[f.name].edges[f.dim], f.edge) for f in loop.flags]
        if self._learn(loop, before, after, last):
            block.erase(safe_erase=False)
            return False
        block.add_op(tile.YieldOp(arguments=yielded))
        op = tile.ForOp(arguments=starts, trips=loop.trips, outputs=types, body=Region(block))
        self.at(node, self.b.add, op)
        flags = dict(zip(loop.flags, op.results[len(carried) :], strict=True))
        for (name, start), value in zip(carried.items(), op.results[: len(carried)], strict=True):
            edges = merges.edges_after_loop(name, start.edges, last[name].edges, flags)
            self.frame.names[name] = TileValue(value, start.type, edges)
        self.frame.names.update(loop.lost)
        return True

    def _lose(self, loop: _Loop, before: dict[str, Any], after: dict[str, Any]) -> bool:
        """Record names that a trip leaves without a value; gives whether there are new ones."""
        lost = {
            name: after[name]
            for name in loop.assigned
            if name in before and isinstance(after[name], LoopLocal) and not isinstance(before[name], LoopLocal)
        }
        is_new = any(name not in loop.lost for name in lost)
        loop.lost.update(lost)
        for name in lost:
            loop.carried.pop(name, None)
        loop.flags = {flag: None for flag in loop.flags if flag.name not in lost}
        return is_new

    def _after_trip(self, node: ast.For, name: str, value: object, start: TileValue, counter: Counter) -> TileValue:
        result = self._carried_result(node, name, value, start)
        return TileValue(result.value, result.type, merges.independent_edges(result.edges, counter))

    def _carried_result(self, node: ast.For, name: str, value: object, start: TileValue) -> TileValue:
        """The carried value of the next trip, in the type that the loop started with."""
        if not isinstance(value, TileValue | bool | int | float | np.generic | Affine):
            message = f"`{name}` is a tile before the loop and a {type(value).__name__} after a trip"
            self.fail(node, ArgumentError, message, "use two names")
        lifted = self.at(node, self.b.lift, value)
        if lifted.shape != start.shape:
            message = f"`{name}` has shape {start.shape} before the loop and {lifted.shape} after a trip"
            self.fail(node, ShapeError, message, f"start `{name}` with the shape that it keeps")
        if lifted.type.dtype == start.type.dtype:
            return lifted
        if lifted.weak:
            return self.at(node, self.b.cast, lifted, start.type.dtype)
        message = f"`{name}` is {start.type.dtype} before the loop and {lifted.type.dtype} after a trip"
        help = f"start `{name}` as {lifted.type.dtype}, or cast in the loop: `.astype(tw.{start.type.dtype.name})`"
        self.fail(node, DTypeError, message, help)

    def _learn(
        self, loop: _Loop, before: Mapping[str, object], after: Mapping[str, object], last: Mapping[str, TileValue]
    ) -> bool:
        """Record what else the loop has to carry, and give whether that is anything."""
        learnt = False
        for name, result in last.items():
            changed = merges.changed_edges(name, loop.carried[name].edges, result.edges, loop.flags)
            loop.flags.update(dict.fromkeys(changed))
            learnt = learnt or bool(changed)
        for name in loop.assigned:
            if name in last or name in loop.lost or name not in before or isinstance(before[name], LoopLocal):
                continue
            if _same(before[name], after[name]):
                continue
            loop.carried[name] = self._promoted(loop.node, name, before[name], after[name])
            learnt = True
        return learnt

    def _promoted(self, node: ast.For, name: str, start: object, result: object) -> TileValue:
        """A number that a loop changes becomes a tile: of the type that the loop gives it."""
        if not isinstance(start, bool | int | float | np.generic | Affine):
            message = f"`{name}` is a {type(start).__name__} that changes in a loop run in order"
            self.fail(node, UnsupportedSyntaxError, message, "carry tiles and numbers, each in a name of its own")
        if isinstance(result, TileValue):
            return self.at(node, self.b.typed, start, result.type.dtype, result.shape)
        if not isinstance(result, bool | int | float | np.generic | Affine):
            message = f"`{name}` is a number before the loop and a {type(result).__name__} after a trip"
            self.fail(node, ArgumentError, message, "use two names")
        dtype = self.b.result_dtype([start, result])
        return self.at(node, self.b.typed, start, dtype, ())

    def _forget(self, names: Sequence[str], where: str, *, keep: bool) -> None:
        """Names that a loop alone assigns have no value after it."""
        if keep:
            return
        for name in names:
            self.frame.names.setdefault(name, LoopLocal(where))

    # ---- choices ------------------------------------------------------------------------------------------------

    def _if(self, node: ast.If) -> Returned | None:
        test = self.evaluate(node.test)
        if not isinstance(test, TileValue | Affine | TileIndex):
            chosen = node.body if self.condition(node.test, test, "`if`", "compare it") else node.orelse
            return self._block(chosen)
        condition = self.at(node.test, functions.truth, self.b, test)
        if condition.shape:
            message = f"`if` needs one truth value, got a tile of shape {condition.shape}"
            help = "choose element by element with `tw.where`, or reduce it with `tw.any` or `tw.all`"
            self.fail(node.test, DataDependentShapeError, message, help)
        self._choice(node, condition)
        return None

    def _choice(self, node: ast.If, condition: TileValue) -> None:
        before = dict(self.frame.names)
        blocks = (Block(), Block())
        outcomes: list[dict[str, Any]] = []
        self.choice_depth += 1
        for block, body in zip(blocks, (node.body, node.orelse), strict=True):
            self.frame.names = dict(before)
            with self.b.inside(block):
                self._nested(body)
            outcomes.append(self.frame.names)
        self.choice_depth -= 1
        self.frame.names = before
        merged: dict[str, tuple[TileValue, TileValue]] = {}
        unassigned = LoopLocal("one branch of an `if`")
        for name in dict.fromkeys(_assigned(node.body) + _assigned(node.orelse)):
            values = [names.get(name, unassigned) for names in outcomes]
            if any(isinstance(value, LoopLocal) for value in values):
                before[name] = values[0] if values[0] == values[1] else unassigned
            elif _same(*values):
                before[name] = values[0]
            else:
                merged[name] = self._merged(node, name, values, blocks)
        meeting = merges.Meeting(self.b, blocks)
        planned = [meeting.plan(a.edges, c.edges) for a, c in merged.values()]
        pairs = [*((a.value, c.value) for a, c in merged.values()), *meeting.yielded]
        for block, side in zip(blocks, (0, 1), strict=True):
            block.add_op(tile.YieldOp(arguments=[pair[side] for pair in pairs]))
        then, otherwise = (Region(block) for block in blocks)
        op = tile.IfOp(condition=condition.value, outputs=[a.type for a, _ in pairs], then=then, otherwise=otherwise)
        self.at(node, self.b.add, op)
        guards = op.results[len(merged) :]
        for (name, (a, _)), value, plan in zip(merged.items(), op.results, planned, strict=False):
            edges = self.at(node, meeting.edges, plan, condition, guards)
            before[name] = TileValue(value, a.type, edges)

    def _merged(
        self, node: ast.If, name: str, values: Sequence[object], blocks: tuple[Block, Block]
    ) -> tuple[Any, Any]:
        """A name's value after the choice: both sides in one type and shape."""
        for value in values:
            if not isinstance(value, TileValue | bool | int | float | np.generic | Affine):
                message = f"`{name}` is a {type(value).__name__} after one branch of a choice made at run time"
                self.fail(node, UnsupportedSyntaxError, message, "assign tiles or numbers in both branches")
        dtype = self.b.result_dtype(values)
        shapes = [v.shape for v in values if isinstance(v, TileValue) and v.shape]
        shape = shapes[0] if shapes else ()
        if any(s != shape for s in shapes):
            message = f"`{name}` has shape {shapes[0]} after one branch and {shapes[1]} after the other"
            self.fail(node, ShapeError, message, "give it one shape in both branches")
        results: list[TileValue] = []
        for block, value in zip(blocks, values, strict=True):
            with self.b.inside(block):
                results.append(self.at(node, self.b.typed, value, dtype, shape))
        return results[0], results[1]


def compile_body(body: Block, frame: Frame) -> Compiler:
    """Compile a kernel's statements into `body`, whose arguments are its arrays so far.

    Raises:
        TilewrightError: the kernel has a mistake.
    """
    compiler = Compiler(body, frame)
    try:
        compiler.run_kernel()
    except RecursionError:
        message = f"`{frame.source.name}` is nested too deeply"
        location = frame.source.location(frame.source.node)
        raise UnsupportedSyntaxError(message, location=location, help="split its expressions") from None
    except TilewrightError as error:
        error.location = error.location or frame.source.location(frame.source.node)
        raise
    return compiler


def _is_idle(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Pass | ast.For) or (isinstance(node, ast.Return) and node.value is None)


def _name(target: ast.expr) -> str:
    return target.id if isinstance(target, ast.Name) else ast.unparse(target)


def _reading(target: ast.expr) -> ast.expr:
    """An assignment target as an expression that reads it."""
    if isinstance(target, ast.Name):
        return ast.copy_location(ast.Name(target.id, ast.Load()), target)
    return target


def _assigned(body: Sequence[ast.AST]) -> list[str]:
    """Names that statements or targets assign, in order."""
    found: dict[str, None] = {}
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found[node.id] = None
    return list(found)


def _same(a: Any, b: Any) -> bool:
    """Whether two values are one: the same tile, or equal compile-time values of one type, signs of zeros included."""
    if a is b:
        return True
    if isinstance(a, TileValue | Ref) or type(a) is not type(b):
        return False
    if isinstance(a, tuple | list):
        own, other = [*cast("Sequence[Any]", a)], [*b]
        return len(own) == len(other) and all(map(_same, own, other))
    try:
        return bool(a == b) and (not isinstance(a, float) or math.copysign(1, a) == math.copysign(1, b))
    except (TypeError, ValueError):
        return False
