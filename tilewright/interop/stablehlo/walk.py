"""The walk over a program: each operation is traced by its rule; functions are traced where they are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from tilewright.api.array import Array, located
from tilewright.api.lifting import broadcast
from tilewright.errors import ModelFileError, ShapeError, TilewrightError, UnsupportedOperatorError
from tilewright.interop.narrow import Coded
from tilewright.interop.stablehlo.ir import Block, Function, Module, Operation, Symbol, TensorType
from tilewright.interop.stablehlo.operators.calls import TARGETS
from tilewright.interop.stablehlo.reader import unsupported_operations
from tilewright.interop.stablehlo.registry import Entry, Node, find
from tilewright.records import dataclass

# What malformed attributes and operands make of plain Python in a rule.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)
# Operations of a program whose calls are written out: more take minutes to trace, whatever they compute.
_MAX_OPERATIONS = 500_000
_MAX_DEPTH = 64
RETURNS = frozenset({"stablehlo.return", "func.return", "sdy.return"})
# Operations that only a program for each device has, and those that enter a region for each device.
_FOR_EACH = frozenset(
    f"stablehlo.{name}"
    for name in (
        "all_gather",
        "all_reduce",
        "all_to_all",
        "collective_broadcast",
        "collective_permute",
        "partition_id",
        "reduce_scatter",
        "replica_id",
    )
)
_ENTRANCES = ("sdy.manual_computation", "SPMDFullToShardShape")
# An array, or its bit patterns where no array has its type.
Value = Any
Scope = dict[str, Value]


@dataclass(frozen=True)
class Walk:
    """Traces functions of one module."""

    module: Module

    def run(self, function: Function, arguments: Sequence[Value]) -> list[Value]:
        """Trace a function for its arguments, and give its results.

        Raises:
            TilewrightError: an operation cannot be traced; the message names it and its line.
        """
        results = self._block(function.body, {}, arguments, is_lifted=False)
        if len(results) != len(function.results):
            message = f"`{function.name}` returns {len(results)} values, and declares {len(function.results)}"
            raise located(ModelFileError(message, help="export the program again"))
        for number, (type, value) in enumerate(zip(function.results, results, strict=True)):
            _check(type, value, f"result {number} of `{function.name}`", is_lifted=False)
        return results

    def _block(self, block: Block, scope: Scope, arguments: Sequence[Value], *, is_lifted: bool) -> list[Value]:
        if len(arguments) != len(block.arguments):
            message = f"{len(arguments)} values for a region or function of {len(block.arguments)}"
            raise located(ModelFileError(message, help="export the program again"))
        for name, type, value in zip(block.arguments, block.types, arguments, strict=True):
            _check(type, value, f"the argument {name}", is_lifted=is_lifted)
            scope[name] = value
        for operation in block.operations[:-1]:
            self._operation(operation, scope, is_lifted=is_lifted)
        return [scope[name] for name in block.operations[-1].operands]

    def _operation(self, operation: Operation, scope: Scope, *, is_lifted: bool) -> None:
        operands = [scope[name] for name in operation.operands]
        try:
            results = self._results(operation, operands, scope, is_lifted=is_lifted)
            if len(results) != len(operation.types):
                raise located(ModelFileError(f"{len(results)} results, not {len(operation.types)}"))
            for expected, value in zip(operation.types, results, strict=True):
                _check(expected, value, "the result", is_lifted=is_lifted)
        except TilewrightError as error:
            error.message = f"{_described(operation, operands)}: {error.message}"
            error.args = (error.message,)
            raise
        except _MALFORMED as error:
            message = f"{_described(operation, operands)}: {error or type(error).__name__}"
            raise located(ModelFileError(message, help="the operation is malformed: export it again")) from error
        scope.update(zip(operation.results, results, strict=False))

    def _results(
        self, operation: Operation, operands: list[Value], scope: Scope, *, is_lifted: bool
    ) -> Sequence[Value]:
        entry = find(operation.name)
        if entry is None:
            raise unsupported_operations({operation.name: 1})

        def run(block: Block, *arguments: Value) -> list[Value]:
            return self._block(block, scope, arguments, is_lifted=is_lifted)

        def lift(block: Block, *arguments: Value) -> list[Value]:
            return self._block(block, scope, arguments, is_lifted=True)

        def call(name: str, *arguments: Value) -> list[Value]:
            return self._block(self.module.functions[name].body, {}, arguments, is_lifted=is_lifted)

        node = Node(self.module, operation, run, lift, call)
        if is_lifted:
            operands = _alike(node, entry, operands)
        results = _applied(entry, node, operands)
        return results if _is_tuple(results) else (results,)


def _is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    return isinstance(value, tuple)


def _alike(node: Node, entry: Entry, operands: list[Value]) -> list[Value]:
    """Operands of one shape, for an operation that is written for scalars.

    Raises:
        UnsupportedOperatorError: it does more than to compute each element by itself.
    """
    if not entry.elementwise:
        raise node.unsupported(f"a region with `{node.name}`")
    shape = max((o.shape for o in operands), key=len, default=())
    return [broadcast(o, shape) if isinstance(o, Array) else o for o in operands]


def _applied(entry: Entry, node: Node, operands: Sequence[Value]) -> Any:
    narrow = [value for value in operands if isinstance(value, Coded)]
    if entry.narrow or not narrow:
        return entry.rule(node, *operands)
    storages = {value.storage for value in narrow}
    if entry.moves and len(storages) == 1:
        results = entry.rule(node, *(o.codes if isinstance(o, Coded) else o for o in operands))
        (storage,) = storages
        return tuple(Coded(r, storage) for r in results) if _is_tuple(results) else Coded(results, storage)
    raise node.unsupported(f"`{node.name}` of {narrow[0].storage.name}", "convert to f32 and back")


def _check(type: TensorType, value: Value, what: str, *, is_lifted: bool) -> None:
    """Compare a value with the type that the text gives it, in a lifted region its element type alone.

    Raises:
        ModelFileError, ShapeError: it has another one.
    """
    fits = isinstance(value, Coded) == type.is_narrow and (
        value.storage == type.storage if isinstance(value, Coded) else value.dtype == type.dtype
    )
    if not fits:
        message = f"{what} is {_text(value)}, but the text declares {type}"
        raise located(ModelFileError(message, help="the text contradicts itself: export it again"))
    if not is_lifted and value.shape != type.shape:
        message = f"{what} is {_text(value)}, but the text declares {type}"
        raise located(ShapeError(message, help="the text contradicts itself: export it again"))


def _described(operation: Operation, operands: Sequence[Value]) -> str:
    return f"line {operation.line} ({operation.name} of {', '.join(map(_text, operands)) or 'nothing'})"


def _text(value: Value) -> str:
    if isinstance(value, Coded):
        return f"{value.storage.name}[{', '.join(map(str, value.shape))}]"
    return f"{value.dtype}[{', '.join(map(str, value.shape))}]"


# ---- what a program needs -------------------------------------------------------------------------------------------


def check_program(module: Module, main: Function) -> None:
    """Refuse a program before it is traced.

    Raises:
        UnsupportedOperatorError: lists all operations that have no rule, with how often they occur; or functions call
            themselves, or make too many operations.
        ModelFileError: a function is called that is not there.
    """
    missing: Counter[str] = Counter()
    for function in module.functions.values():
        for block_operation in function.body.operations:
            for operation in block_operation.walk():
                name = _unsupported(operation)
                if name:
                    missing[name] += 1
    if missing:
        raise unsupported_operations(missing)
    _count(module, main, {}, 0)


def _unsupported(operation: Operation) -> str:
    """The name of an operation or custom call that has no rule; empty if it has one."""
    if operation.name == "stablehlo.custom_call":
        target = operation.attributes.get("call_target_name")
        return "" if target in TARGETS else f"custom call `{target}`"
    return "" if operation.name in RETURNS or find(operation.name) is not None else operation.name


def _count(module: Module, function: Function, known: dict[str, int | None], depth: int) -> int:
    """The number of operations of a function whose calls are written out."""
    known[function.name] = None
    total = 0
    for block_operation in function.body.operations:
        for operation in block_operation.walk():
            total += 1
            callee = _callee(operation)
            if callee is not None:
                total += _count_callee(module, operation, callee, known, depth)
            if total > _MAX_OPERATIONS:
                message = f"more than {_MAX_OPERATIONS} operations when calls are written out"
                raise located(UnsupportedOperatorError(message, help="split the program"))
    known[function.name] = total
    return total


def _count_callee(module: Module, operation: Operation, name: str, known: dict[str, int | None], depth: int) -> int:
    if name not in module.functions:
        message = f"line {operation.line}: there is no function `{name}`"
        raise located(ModelFileError(message, help="export the program again"))
    if depth >= _MAX_DEPTH or (name in known and known[name] is None):
        what = "calls itself" if depth < _MAX_DEPTH else f"is called more than {_MAX_DEPTH} deep"
        message = f"line {operation.line}: the function `{name}` {what}"
        raise located(UnsupportedOperatorError(message, help="write the recursion as a loop"))
    counted = known.get(name)
    return _count(module, module.functions[name], known, depth + 1) if counted is None else counted


def callee_of(attributes: Mapping[str, object]) -> str | None:
    """The function that an operation's attributes name."""
    for key in ("callee", "decomposition"):
        symbol = attributes.get(key)
        if isinstance(symbol, Symbol):
            return symbol.name
    return None


def _callee(operation: Operation) -> str | None:
    return callee_of(operation.attributes) if operation.name in ("func.call", "stablehlo.composite") else None


def is_for_each_device(module: Module, main: Function) -> bool:
    """Whether the arrays of a program are those of each device, not whole ones of which devices hold parts."""
    if module.devices == 1:
        return False
    if module.replicas > 1:
        return True
    called, pending = {main.name}, [*main.body.operations]
    is_for_each = False
    while pending:
        operation = pending.pop()
        if operation.name in _ENTRANCES or operation.attributes.get("call_target_name") in _ENTRANCES:
            return False
        is_for_each = is_for_each or operation.name in _FOR_EACH
        pending.extend(inner for block in operation.regions for inner in block.operations)
        name = _callee(operation)
        if name is not None and name not in called:
            called.add(name)
            pending.extend(module.functions[name].body.operations)
    return is_for_each
