"""Evaluates the expressions of a kernel. Python values are computed as Python does, at compile time; tiles become
operations; index integers stay affine as long as they can."""

from __future__ import annotations

import ast
import difflib
import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import FunctionType
from typing import Any, NoReturn

import numpy as np

from tilewright.errors import (
    ArgumentError,
    DataDependentShapeError,
    TilewrightError,
    UnknownNameError,
    UnsupportedSyntaxError,
)
from tilewright.frontend import pyast_functions as functions
from tilewright.frontend import pyast_indexing as indexing
from tilewright.frontend import pyast_instead as instead
from tilewright.frontend.pyast_builder import KernelBuilder
from tilewright.frontend.pyast_registry import handler_of, registered_names, uses_tiles
from tilewright.frontend.pyast_source import FunctionSource, is_ours, plain_function, source_of
from tilewright.frontend.pyast_values import (
    Affine,
    Grid,
    LoopLocal,
    Method,
    Ref,
    Steps,
    TileIndex,
    TileValue,
    as_affine,
    is_flag,
    number_of,
)
from tilewright.frontend.tracing import NoTraceError
from tilewright.records import dataclass

MAX_INLINE_DEPTH = 32
TRACED = (TileValue, Affine, TileIndex, Ref)

_BINARY: dict[type[ast.operator], tuple[Callable[[Any, Any], Any], str, str]] = {
    ast.Add: (lambda a, b: a + b, "add", "+"),
    ast.Sub: (lambda a, b: a - b, "subtract", "-"),
    ast.Mult: (lambda a, b: a * b, "multiply", "*"),
    ast.Div: (lambda a, b: a / b, "divide", "/"),
    ast.FloorDiv: (lambda a, b: a // b, "floor_divide", "//"),
    ast.Mod: (lambda a, b: a % b, "remainder", "%"),
    ast.Pow: (lambda a, b: a**b, "power", "**"),
    ast.BitAnd: (lambda a, b: a & b, "bitwise_and", "&"),
    ast.BitOr: (lambda a, b: a | b, "bitwise_or", "|"),
    ast.BitXor: (lambda a, b: a ^ b, "bitwise_xor", "^"),
    ast.LShift: (lambda a, b: a << b, "shift_left", "<<"),
    ast.RShift: (lambda a, b: a >> b, "shift_right", ">>"),
    ast.MatMult: (lambda a, b: a @ b, "matmul", "@"),
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
_COMPARE: dict[type[ast.cmpop], tuple[Callable[[Any, Any], bool], str]] = {
    ast.Eq: (operator.eq, "equal"),
    ast.NotEq: (operator.ne, "not_equal"),
    ast.Lt: (operator.lt, "less"),
    ast.LtE: (operator.le, "less_equal"),
    ast.Gt: (operator.gt, "greater"),
    ast.GtE: (operator.ge, "greater_equal"),
}
_PYTHON_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
METHODS = frozenset(
    (
        *("astype", "reshape", "sum", "prod", "max", "min", "mean", "var", "all", "any", "argmax", "argmin", "sort"),
        *("transpose", "squeeze", "expand_dims", "broadcast_to"),
    )
)
_UNSUPPORTED: dict[type[ast.expr], tuple[str, str]] = {
    ast.Lambda: ("a lambda", "define a helper with `def` outside the kernel"),
    ast.Await: ("`await`", "kernels run to the end without waiting"),
    ast.Yield: ("`yield`", "store tiles to an Out array"),
    ast.YieldFrom: ("`yield from`", "store tiles to an Out array"),
    ast.DictComp: ("a dict comprehension", "use a loop over tuples"),
    ast.SetComp: ("a set comprehension", "use a loop over tuples"),
    ast.Set: ("a set", "use a tuple"),
    ast.NamedExpr: ("`:=`", "assign on a line of its own"),
    ast.Starred: ("`*` here", "list the values"),
}


@dataclass(eq=False)
class Frame:
    """A function being compiled: the kernel, or a helper inlined into it. `runtime_depth` counts the loops and branches
    around its call."""

    source: FunctionSource
    names: dict[str, Any]
    free: dict[str, Any] = field(default_factory=dict)
    runtime_depth: int = 0


class Expressions(ABC):
    """The expression half of the compiler; `pyast_statements` adds the rest."""

    def __init__(self, builder: KernelBuilder, frame: Frame) -> None:
        self.b = builder
        self.frame = frame
        self.inline_depth = 0
        self.runtime_depth: int = 0

    # ---- errors -------------------------------------------------------------------------------------------------

    def fail(self, node: ast.AST, kind: type[TilewrightError], message: str, help: str) -> NoReturn:
        raise kind(message, location=self.frame.source.location(node), help=help)

    def unsupported(self, node: ast.AST, what: str, help: str) -> NoReturn:
        self.fail(node, UnsupportedSyntaxError, f"a kernel cannot contain {what}", help)

    def at(self, node: ast.AST, action: Callable[..., object], *args: Any, **keywords: object) -> Any:
        """Run something on behalf of a node: its operations and errors get the node's place."""
        location = self.frame.source.location(node)
        before, self.b.location = self.b.location, location
        try:
            return action(*args, **keywords)
        except TilewrightError as error:
            error.location = error.location or location
            raise
        finally:
            self.b.location = before

    # ---- expressions --------------------------------------------------------------------------------------------

    def evaluate(self, node: ast.expr) -> Any:
        """The value of an expression."""
        rule = getattr(self, f"_{type(node).__name__}", None)
        if rule is not None:
            return rule(node)
        what, help = _UNSUPPORTED.get(type(node), (f"a {type(node).__name__}", "use simpler expressions"))
        self.unsupported(node, what, help)

    def _Constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, complex):
            self.unsupported(node, "a complex number", "use real numbers")
        return node.value

    def _Name(self, node: ast.Name) -> Any:
        for names in (self.frame.names, self.frame.free):
            if node.id in names:
                value = names[node.id]
                if isinstance(value, LoopLocal):
                    self.fail(node, UnknownNameError, *value.what_is_wrong(node.id))
                return value
        known = [*self.frame.names, *self.frame.free]
        close = difflib.get_close_matches(node.id, known, 1)
        help = f"did you mean `{close[0]}`?" if close else "assign it, pass it as a keyword parameter, or import it"
        self.fail(node, UnknownNameError, f"the name `{node.id}` is not defined", help)

    def _Tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self._elements(node.elts))

    def _List(self, node: ast.List) -> list[Any]:
        return self._elements(node.elts)

    def _elements(self, nodes: list[ast.expr]) -> list[Any]:
        result: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                result.extend(self.iterate(node.value, self.evaluate(node.value)))
            else:
                result.append(self.evaluate(node))
        return result

    def _Dict(self, node: ast.Dict) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                self.unsupported(node, "`**` in a dict", "list the entries")
            result[self.evaluate(key)] = self.evaluate(value)
        return result

    def _Slice(self, node: ast.Slice) -> slice:
        parts = (None if part is None else self.evaluate(part) for part in (node.lower, node.upper, node.step))
        return slice(*parts)

    def _JoinedStr(self, node: ast.JoinedStr) -> str:
        return "".join(str(self.evaluate(part)) for part in node.values)

    def _FormattedValue(self, node: ast.FormattedValue) -> str:
        value = self.evaluate(node.value)
        if isinstance(value, TRACED):
            self.fail(node, DataDependentShapeError, "a text would hold a tile's contents", "use `tw.print(x)`")
        specification = "" if node.format_spec is None else str(self.evaluate(node.format_spec))
        return self.python(node, format, value, specification)

    def _BinOp(self, node: ast.BinOp) -> Any:
        return self.binary(node, node.op, self.evaluate(node.left), self.evaluate(node.right))

    def binary(self, node: ast.AST, op: ast.operator, left: object, right: object) -> Any:
        """`left op right`."""
        python, fn, text = _BINARY[type(op)]
        if not isinstance(left, TRACED) and not isinstance(right, TRACED):
            return self.python(node, python, left, right)
        if fn == "matmul":
            return self.at(node, functions.call_handler, self.b, "dot", [left, right], {})
        left, right = (o if isinstance(o, TRACED) else self.python(node, number_of, o) for o in (left, right))
        for operand in (left, right):
            if not isinstance(operand, (*TRACED, bool, int, float, np.generic)):
                message = f"`{text}` of a tile and a {type(operand).__name__}"
                self.fail(node, ArgumentError, message, "use tiles and numbers")
        if (found := self._affine(node, fn, left, right)) is not None:
            return found
        if fn == "power":
            return self.at(node, functions.power, self.b, left, right)
        return self.at(node, self.b.map, fn, left, right)

    def _affine(self, node: ast.AST, fn: str, left: object, right: object) -> Affine | None:
        """Arithmetic on index integers, where the result is one; None otherwise."""
        a, b = as_affine(left), as_affine(right)
        if a is None or b is None:
            return None
        if fn == "add":
            return a + b
        if fn == "subtract":
            return a - b
        if fn == "multiply" and (a.is_constant or b.is_constant):
            return b * a.constant if a.is_constant else a * b.constant
        if fn in ("floor_divide", "remainder") and b.is_constant:
            if b.constant < 1:
                self.fail(node, ArgumentError, f"an index is divided by {b.constant}", "divide by a positive integer")
            return a.divided(b.constant, remainder=fn == "remainder")
        return None

    def _UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.evaluate(node.operand)
        if isinstance(node.op, ast.Not):
            if is_flag(value) or isinstance(value, Affine | TileIndex):
                return self.at(node, functions.call_handler, self.b, "logical_not", [value], {})
            return not self.condition(node, value, "`not`", "write `~mask`")
        if isinstance(node.op, ast.Invert) and isinstance(value, bool):
            return not value  # as of a tile of bools, so that a flag may become one
        if not isinstance(value, TRACED):
            return self.python(node, _UNARY[type(node.op)], value)
        if isinstance(node.op, ast.UAdd):
            return value
        affine = as_affine(value)
        if isinstance(node.op, ast.USub) and affine is not None:
            return -affine
        return self.at(node, self.b.map, "negative" if isinstance(node.op, ast.USub) else "bitwise_not", value)

    def _Compare(self, node: ast.Compare) -> Any:
        result: Any = None
        left = self.evaluate(node.left)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(right_node)
            part = self._compare(node, op, left, right)
            if result is None or result is True:
                result = part
            elif part is not True and result is not False:
                result = part if part is False else self.at(node, self.b.map, "bitwise_and", result, part)
            left = right
        return result

    def _compare(self, node: ast.Compare, op: ast.cmpop, left: Any, right: Any) -> Any:
        if isinstance(op, ast.In | ast.NotIn) and _is_traced([left, [*right] if isinstance(right, dict) else right]):
            word = "`in`" if isinstance(op, ast.In) else "`not in`"
            message = f"{word} needs the contents of a tile or the value of an index at compile time"
            self.fail(node, DataDependentShapeError, message, "write `(x == a) | (x == b)`")
        if type(op) in _PYTHON_COMPARE:
            return bool(self.python(node, _PYTHON_COMPARE[type(op)], left, right))
        python, fn = _COMPARE[type(op)]
        traced = isinstance(left, TRACED), isinstance(right, TRACED)
        if not any(traced):
            return self.python(node, python, left, right)
        a, b = as_affine(left), as_affine(right)
        if a is not None and b is not None and (known := _decided(fn, (a - b).range)) is not None:
            return known
        if fn in ("equal", "not_equal") and (left is None or right is None or isinstance(left, str)):
            return fn == "not_equal"
        return self.at(node, self.b.map, fn, left, right)

    def _BoolOp(self, node: ast.BoolOp) -> Any:
        is_and = isinstance(node.op, ast.And)
        word, symbol = ("`and`", "&") if is_and else ("`or`", "|")
        help = f"write `(a) {symbol} (b)`"
        value: Any = is_and
        flag: Any = None  # of the flags so far: all of them are evaluated, which has no effects
        for part in node.values:
            value = self.evaluate(part)
            if flag is None and is_flag(value):
                flag = value
            elif flag is not None:
                if not is_flag(value) and not isinstance(value, bool):
                    message = f"{word} of a bool scalar and something else"
                    self.fail(part, DataDependentShapeError, message, help)
                flag = self.at(node, self.b.map, "bitwise_and" if is_and else "bitwise_or", flag, value)
            elif self.condition(part, value, word, help) != is_and:
                return value
        return value if flag is None else flag

    def condition(self, node: ast.AST, value: object, what: str, help: str) -> bool:
        """The truth of a compile-time value."""
        if isinstance(value, TileValue | Affine | TileIndex):
            subject = "a tile" if isinstance(value, TileValue) else "an index"
            self.fail(node, DataDependentShapeError, f"{what} needs the truth of {subject} at compile time", help)
        return bool(self.python(node, bool, value))

    def _IfExp(self, node: ast.IfExp) -> Any:
        test = self.evaluate(node.test)
        chosen = self.condition(node.test, test, "`a if c else b`", "write `tw.where(c, a, b)`")
        return self.evaluate(node.body if chosen else node.orelse)

    def _ListComp(self, node: ast.ListComp) -> list[Any]:
        return self._comprehension(node, node.elt, node.generators)

    def _GeneratorExp(self, node: ast.GeneratorExp) -> list[Any]:
        return self._comprehension(node, node.elt, node.generators)

    def _comprehension(self, node: ast.expr, element: ast.expr, generators: list[ast.comprehension]) -> list[Any]:
        outer = dict(self.frame.names)
        results: list[Any] = []

        def nest(rest: list[ast.comprehension]) -> None:
            if not rest:
                results.append(self.evaluate(element))
                return
            for value in self.iterate(rest[0].iter, self.evaluate(rest[0].iter)):
                self.bind(rest[0].target, value)
                if all(self.condition(t, self.evaluate(t), "a filter", "use `tw.where`") for t in rest[0].ifs):
                    nest(rest[1:])

        nest(generators)
        self.frame.names = outer
        return results

    def iterate(self, node: ast.expr, value: object) -> list[Any]:
        """The elements of a compile-time iterable."""
        if isinstance(value, TileValue | Ref):
            self.unsupported(node, "a loop over a tile or an array", "walk blocks with `tw.steps(a, axis=0, size=32)`")
        if isinstance(value, Grid | Steps):
            word = "grid" if isinstance(value, Grid) else "steps"
            self.unsupported(node, f"`tw.{word}` here", f"write `for ... in tw.{word}(...):` as a statement")
        return self.python(node, list, value)

    def bind(self, target: ast.expr, value: object) -> None:
        """Assign to a name or a tuple of names."""
        if isinstance(target, ast.Name):
            self.frame.names[target.id] = value
            return
        if not isinstance(target, ast.Tuple | ast.List):
            self.unsupported(target, "this assignment target", "assign to names, or store with `c[i, j] = tile`")
        if isinstance(value, TileIndex | Affine) or not hasattr(value, "__iter__"):
            message = f"{len(target.elts)} names for one value"
            self.fail(target, ArgumentError, message, "match the names to the values")
        parts = self.iterate(target, value)
        if any(isinstance(t, ast.Starred) for t in target.elts):
            self.unsupported(target, "`*` in an assignment", "name each value")
        if len(parts) != len(target.elts):
            message = f"{len(target.elts)} names for {len(parts)} values"
            self.fail(target, ArgumentError, message, "match the names to the values")
        for part, element in zip(target.elts, parts, strict=True):
            self.bind(part, element)

    # ---- attributes and subscripts ------------------------------------------------------------------------------

    def _Attribute(self, node: ast.Attribute) -> Any:
        owner = self.evaluate(node.value)
        name = node.attr
        if isinstance(owner, TileValue | Ref) and name in _TYPE_ATTRIBUTES:
            return _TYPE_ATTRIBUTES[name](owner.type)
        if isinstance(owner, TileValue):
            if name in ("T", "mT"):
                return self.at(node, functions.transpose if name == "T" else functions.matrix_transpose, self.b, owner)
            if name in METHODS:
                return Method(owner, name)
            close = difflib.get_close_matches(name, [*METHODS, *_TYPE_ATTRIBUTES, "T", "mT"], 1)
            help = f"did you mean `{close[0]}`?" if close else "use the functions of `tw`"
            self.fail(node, UnknownNameError, f"a tile has no attribute `{name}`", help)
        if isinstance(owner, Ref):
            help = f"load a tile first: `{owner.name}[...].{name}`"
            self.fail(node, UnknownNameError, f"the array `{owner.name}` has no attribute `{name}` in a kernel", help)
        if isinstance(owner, TileIndex):
            known = {"start": owner.start, "index": owner.number, "size": owner.block, "extent": owner.extent}
            if name not in known:
                help = "an index has `.start`, `.index`, `.size` and `.extent`"
                self.fail(node, UnknownNameError, f"an index has no attribute `{name}`", help)
            return known[name]
        if _holds_indices(owner):
            # A tuple has an `index` of its own, which is no number.
            message = f"`{ast.unparse(node.value)}` is a tuple of indices, which has no `.{name}`"
            self.fail(node, UnknownNameError, message, "name each index: `for i, in tw.grid(...)` for one")
        try:
            return getattr(owner, name)
        except AttributeError:
            close = difflib.get_close_matches(name, dir(owner), 1)
            help = f"did you mean `{close[0]}`?" if close else "check the name"
            what = getattr(owner, "__name__", type(owner).__name__)
            help = instead.ELSEWHERE.get(name, help) if what == "tilewright" else help
            self.fail(node, UnknownNameError, f"`{what}` has no attribute `{name}`", help)

    def _Subscript(self, node: ast.Subscript) -> Any:
        owner = self.evaluate(node.value)
        index = self.evaluate(node.slice)
        if isinstance(owner, Ref):
            return self.at(node, indexing.load, self.b, owner, index)
        if isinstance(owner, TileValue):
            return self.at(node, indexing.subscript_tile, self.b, owner, index)
        if isinstance(index, TRACED):
            help = "use a compile-time integer; loops of more than 8 trips are not unrolled"
            what = f"a {type(owner).__name__} is indexed with something known only at run time"
            self.fail(node, DataDependentShapeError, what, help)
        return self.python(node, operator.getitem, owner, index)

    # ---- calls --------------------------------------------------------------------------------------------------

    def _Call(self, node: ast.Call) -> Any:
        function = self.evaluate(node.func)
        args = self._elements(node.args)
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                keywords.update(self.evaluate(keyword.value))
            else:
                keywords[keyword.arg] = self.evaluate(keyword.value)
        return self.call(node, function, args, keywords)

    def call(self, node: ast.Call, function: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        if isinstance(function, Method):
            return self.at(node, functions.call_handler, self.b, function.name, [function.owner, *args], keywords)
        if hasattr(function, "kernel_signature"):
            self.unsupported(node, "a call of another kernel", "share code in a helper written with `def`")
        name = handler_of(function)
        if name is not None:
            if name in _COMPILE_TIME and not _is_traced([*args, *keywords.values()]):
                return self.python(node, function, *args, **keywords)
            return self.at(node, functions.call_handler, self.b, name, args, keywords)
        helper = plain_function(function)
        traced = _is_traced([*args, *keywords.values()])
        if helper is not None and is_ours(helper):
            return self._array_function(node, function, args, keywords, traced=traced)
        if helper is not None and (traced or hasattr(function, "__wrapped__") or uses_tiles(helper)):
            return self._inlined(node, helper, args, keywords)
        if not traced:
            self._check_change(node, function)
            return self.python(node, function, *args, **keywords)
        return self._builtin(node, function, args, keywords)

    def _check_change(self, node: ast.Call, function: Any) -> None:
        """Refuse to change a list in place where a path of run time decides whether, or how often, it happens."""
        owner = getattr(function, "__self__", None)
        if self.runtime_depth == self.frame.runtime_depth or not isinstance(owner, list | dict | set):
            return
        if function.__name__ in _CHANGES:
            what = f"`.{function.__name__}` inside a loop or a choice made at run time"
            self.unsupported(node, what, "assign a new value to a name, or decide at compile time")

    def _array_function(
        self, node: ast.Call, function: Any, args: list[Any], keywords: dict[str, Any], *, traced: bool
    ) -> Any:
        """A function of ours that has no handler: some are of use at compile time, such as `tw.finfo`."""
        if traced:
            self.unsupported(node, f"a call of `{ast.unparse(node.func)}`", instead.instead_of(function.__name__))
        try:
            return self.python(node, function, *args, **keywords)
        except NoTraceError:
            self.unsupported(node, f"a call of `{ast.unparse(node.func)}`", instead.instead_of(function.__name__))
        except TilewrightError as error:
            error.location = self.frame.source.location(node)  # it took the kernel's caller for the user's line
            raise

    def _builtin(self, node: ast.Call, function: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        """The Python builtins that make sense for tiles."""
        (first, *rest) = args or [None]
        is_unary = len(args) == 1 and not keywords
        if function is abs and is_unary:
            return self.at(node, self.b.map, "absolute", first)
        if function is len and is_unary and isinstance(first, TileValue | Ref) and first.type.rank:
            return first.type.shape[0]
        if any(function is each for each in (abs, len, tuple, list, zip, enumerate, reversed, isinstance, type, slice)):
            return self.python(node, function, *args, **keywords)
        what = getattr(function, "__name__", type(function).__name__)
        if any(function is each for each in (int, float, bool)):
            help = "keep it a tile: `.astype(tw.i32)`; what a tile holds is not known at compile time"
            self.fail(node, DataDependentShapeError, f"`{what}()` of a tile", help)
        if function is range:
            help = "use compile-time bounds, and `tw.where` to skip what is beyond"
            self.fail(node, DataDependentShapeError, "`range` with a bound known only at run time", help)
        if function is print:
            return self.at(node, functions.call_handler, self.b, "print", args, keywords)
        ours = registered_names()
        public = {"min": "minimum", "max": "maximum"}.get(what, what) if rest else what
        close = difflib.get_close_matches(public, ours, 1)
        help = f"use `tw.{close[0]}`" if close else "call functions of `tw`, or a helper written with `def`"
        self.unsupported(node, f"a call of `{what}` with tiles", help)

    def _inlined(
        self, node: ast.Call, helper: FunctionType, args: Sequence[object], keywords: Mapping[str, object]
    ) -> Any:
        if self.inline_depth >= MAX_INLINE_DEPTH:
            self.unsupported(node, f"calls nested {MAX_INLINE_DEPTH} deep", "write the recursion as a loop")
        frame = Frame(self.at(node, source_of, helper), {}, runtime_depth=self.runtime_depth)
        frame.free = frame.source.free_names()
        frame.names.update(self._arguments(node, helper, args, keywords))
        outer, self.frame = self.frame, frame
        self.inline_depth += 1
        try:
            return self.run_function(frame)
        finally:
            self.frame = outer
            self.inline_depth -= 1

    def _arguments(
        self, node: ast.Call, helper: FunctionType, args: Sequence[object], keywords: Mapping[str, object]
    ) -> dict[str, Any]:
        try:
            bound = inspect.signature(helper, follow_wrapped=False).bind(*args, **keywords)
        except TypeError as error:
            self.fail(node, ArgumentError, f"`{helper.__name__}`: {error}", "match its parameters")
        bound.apply_defaults()
        return dict(bound.arguments)

    @abstractmethod
    def run_function(self, frame: Frame) -> Any:
        """Compile a helper's body; gives what it returns."""

    # ---- Python values ------------------------------------------------------------------------------------------

    def python(self, node: ast.AST, function: Callable[..., Any], *args: Any, **keywords: object) -> Any:
        """Call Python at compile time; what it raises becomes the user's error at the node."""
        try:
            return function(*args, **keywords)
        except TilewrightError as error:
            error.location = error.location or self.frame.source.location(node)
            raise
        except Exception as error:
            message = f"at compile time, {type(error).__name__}: {error}"
            self.fail(node, ArgumentError, message, "check the values that are known at compile time")


_COMPILE_TIME = frozenset({"cdiv"})
# Methods that change a list, dict or set in place.
_CHANGES = frozenset(
    (
        *("add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault"),
        *("sort", "update"),
    )
)
_TYPE_ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "shape": lambda type: type.shape,
    "dtype": lambda type: type.dtype,
    "ndim": lambda type: type.rank,
    "size": lambda type: type.size,
}


def _decided(fn: str, difference: tuple[int, int]) -> bool | None:
    """Whether a comparison holds for every difference of its operands in a range, for none, or for some (None)."""
    low, high = difference
    compare = next(python for python, name in _COMPARE.values() if name == fn)
    if low == high:
        return compare(low, 0)
    if fn in ("equal", "not_equal"):
        return None if low <= 0 <= high else fn == "not_equal"
    ends = {compare(low, 0), compare(high, 0)}
    return ends.pop() if len(ends) == 1 else None


def _holds_indices(value: object) -> bool:
    """Whether a value is a tuple of indices, such as that of a grid of one axis in a tuple."""
    if not isinstance(value, tuple):
        return False
    parts: list[Any] = [*value]  # pyright: ignore[reportUnknownVariableType]  of a tuple of anything
    return any(isinstance(part, TileIndex) for part in parts)


def _is_traced(values: Any) -> bool:
    for value in values:
        if isinstance(value, TRACED):
            return True
        if isinstance(value, tuple | list) and _is_traced(value):
            return True
        if isinstance(value, dict) and _is_traced(value.values()):
            return True
    return False
