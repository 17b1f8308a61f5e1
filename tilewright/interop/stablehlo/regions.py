"""Functions that regions over scalars compute, as far as they have a name here."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from tilewright.dtypes import DType
from tilewright.interop.stablehlo.ir import Block, Dense, Operation, TensorType

_FUNCTIONS = {
    "stablehlo.add": "add",
    "stablehlo.multiply": "multiply",
    "stablehlo.maximum": "maximum",
    "stablehlo.minimum": "minimum",
    "stablehlo.and": "bitwise_and",
    "stablehlo.or": "bitwise_or",
    "stablehlo.xor": "bitwise_xor",
}
_ON_BOOLS = {"add": "bitwise_or", "multiply": "bitwise_and", "maximum": "bitwise_or", "minimum": "bitwise_and"}
# Operations of one result whose type is not told by their operands.
_TYPED = frozenset({"stablehlo.convert", "stablehlo.bitcast_convert", "stablehlo.constant"})


def combiner(block: Block, dtype: DType) -> str | None:
    """The scalar function that a region of two arguments applies to them; None where it does something else."""
    block = _without_placements(block)
    if len(block.operations) != 2 or len(block.arguments) != 2:
        return None
    operation, last = block.operations
    fn = _FUNCTIONS.get(operation.name)
    if fn is None or last.operands != operation.results or sorted(operation.operands) != sorted(block.arguments):
        return None
    return _ON_BOOLS.get(fn, fn) if dtype.is_bool else fn


def _without_placements(block: Block) -> Block:
    """A region without what only states where its scalars are."""
    names: dict[str, str] = {}
    kept: list[Operation] = []
    for operation in block.operations:
        operands = tuple(names.get(name, name) for name in operation.operands)
        if _is_placement(operation):
            names[operation.results[0]] = operands[0]
        else:
            kept.append(replace(operation, operands=operands))
    return replace(block, operations=tuple(kept)) if names else block


def _is_placement(operation: Operation) -> bool:
    is_one = len(operation.operands) == len(operation.results) == 1
    is_call = operation.attributes.get("call_target_name") == "Sharding"
    return is_one and (operation.name == "sdy.sharding_constraint" or is_call)


def chosen_argument(block: Block) -> int | None:
    """Which of its arguments a region gives, if it does nothing else."""
    (last,) = block.operations[-1:]
    if len(block.operations) == 1 and len(last.operands) == 1 and last.operands[0] in block.arguments:
        return block.arguments.index(last.operands[0])
    return None


class Expressions:
    """Numbers for expressions: equal ones have the same number."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.keys: list[Any] = []

    def number(self, *key: Hashable) -> int:
        """The number of an operation on numbers, or of an argument."""
        found = self._numbers.setdefault(key, len(self._numbers))
        if found == len(self.keys):
            self.keys.append(key)
        return found

    def values(self, block: Block, arguments: Sequence[int]) -> dict[str, int] | None:
        """The expression of each name in a region; None if it uses regions, or values from outside."""
        scope = dict(zip(block.arguments, arguments, strict=True))
        for operation in block.operations[:-1]:
            if operation.regions or len(operation.results) != 1 or any(o not in scope for o in operation.operands):
                return None
            scope[operation.results[0]] = self.number(_key(operation), *(scope[o] for o in operation.operands))
        return scope if all(o in scope for o in block.operations[-1].operands) else None

    def results(self, block: Block, arguments: Sequence[int]) -> tuple[int, ...] | None:
        """The expressions of a region's results for arguments; None if `values` gives None."""
        scope = self.values(block, arguments)
        return None if scope is None else tuple(scope[o] for o in block.operations[-1].operands)

    # ---- what is looked for -----------------------------------------------------------------------------------------

    def apply(self, name: str, *operands: int) -> int:
        """An operation without attributes."""
        return self.number((f"stablehlo.{name}",), *operands)

    def compare(self, direction: str, a: int, b: int) -> int:
        """A comparison."""
        return self.number(("stablehlo.compare", direction, False), a, b)

    def uses(self, root: int, leaves: set[int]) -> bool:
        """Whether an expression is made of these arguments and constants alone."""
        pending, seen = [root], set[int]()
        while pending:
            current = pending.pop()
            if current in seen:
                continue
            seen.add(current)
            key = self.keys[current]
            if key[0] == "argument" and current not in leaves:
                return False
            pending.extend(n for n in key[1:] if isinstance(n, int) and key[0] != "argument")
        return True


def _key(operation: Operation) -> Hashable:
    if operation.name == "stablehlo.compare":
        attributes = operation.attributes
        return operation.name, attributes.get("comparison_direction"), attributes.get("compare_type") == "TOTALORDER"
    if operation.name in _TYPED:
        value = operation.attributes.get("value")
        content = value.elements.tobytes() if isinstance(value, Dense) else None
        return operation.name, str(operation.types[0]), content
    attributes = tuple(sorted((name, repr(value)) for name, value in operation.attributes.items()))
    return (operation.name, *attributes)


def arg_reduction(block: Block, types: Sequence[TensorType]) -> str | None:
    """`maximum` or `minimum` where a region keeps the extreme of (value, index) pairs: NaN before all, then the lower
    index. None where it does something else."""
    if len(block.arguments) != 4 or len(types) != 2:
        return None
    expressions = Expressions()
    value, index, other, other_index = arguments = [expressions.number("argument", n) for n in range(4)]
    found = expressions.results(block, arguments)
    for direction, fn in (("GT", "maximum"), ("LT", "minimum")):
        beats = expressions.compare(direction, value, other)
        is_nan = expressions.compare("NE", value, value)
        kept = expressions.apply("or", beats, is_nan)
        is_equal = expressions.compare("EQ", value, other)
        is_first = expressions.apply("and", is_equal, expressions.compare("LT", index, other_index))
        values = expressions.apply("select", kept, value, other)
        indices = expressions.apply("select", expressions.apply("or", kept, is_first), index, other_index)
        if found == (values, indices):
            return fn
    return None
