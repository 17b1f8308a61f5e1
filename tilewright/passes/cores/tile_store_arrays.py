"""Apply the requested storage formats and placements to the array types of kernels.

A kernel that is called with arrays of several kinds is copied. Pages of block floats are read and written as a whole
then. A result that is stored otherwise than the array that it is gets a kernel of its own, which moves the pages.
Kernels read and write tiles: an argument that is stored by rows is copied to tiles before it is read first, and a
result that is stored by rows is a copy of what is computed.

Before (wormhole):
    func.func @main(%x: tensor<32x32xf32>) -> tensor<32x32xf32> {
      %y = array.call(%x) {callee = "copy"} : tensor<32x32xf32>
      func.return %y : tensor<32x32xf32>
    }
    tile.kernel() {sym_name = "copy", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<32x32xf32>>, %out: !tile.ref<tensor<32x32xf32>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<32x32xf32>
      tile.store(%a, %out) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.yield()
    }
After:
    func.func @main(%x: tensor<32x32xf32>) -> tensor<32x32xf32> {
      %y = array.call(%x) {callee = "copy"} : tensor<32x32xf32>
      func.return %y : tensor<32x32xf32>
    }
    tile.kernel() {sym_name = "copy", grid = array<i64>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<32x32xf32>, #tile.pages<"bfp8">>, %out: !tile.ref<tensor<32x32xf32>>):
      %a = tile.load(%x) {map = affine_map<(d0, d1) -> (d0, d1)>} : tensor<32x32xf32>
      tile.store(%a, %out) {map = affine_map<(d0, d1) -> (d0, d1)>}
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import Rewriter

from tilewright.dialects import array, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.func import ReturnOp
from tilewright.dialects.rewriting import in_block
from tilewright.errors import CompilerBug, LayoutError, UnsupportedOnTargetError
from tilewright.layout.catalogue.placements import Pages, parse_storage
from tilewright.passes.array.lifetimes import storage
from tilewright.passes.base import Remark, Unit, blocks_of
from tilewright.passes.cores.relayouts import insert_relayout, insert_tilize
from tilewright.passes.layouts.layout_rules import location_of

_DEFAULT = Pages()


class TileStoreArraysPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "tile-store-arrays"

    def apply(self, unit: Unit) -> None:
        if not unit.storage:
            return
        store_arrays(unit, _asked_for(unit))


def store_arrays(unit: Unit, kinds: dict[SSAValue, Pages]) -> None:
    """Kernels take arrays as they are stored: `kinds` has those of values, their views among them, that are not stored
    as all others are."""
    made: dict[tuple[str, tuple[Pages, ...]], str] = {}
    for block in blocks_of(unit.main):
        for op in list(block.ops):
            if isinstance(op, array.CallOp):
                _store_for(unit, op, kinds, made)


def _asked_for(unit: Unit) -> dict[SSAValue, Pages]:
    """How values of the program are stored, views among them.

    Raises:
        UnsupportedOnTargetError: an array is not stored so, or takes part in control flow.
    """
    block = unit.main.body.block
    last = block.last_op
    if not isinstance(last, ReturnOp):
        raise CompilerBug("a program without an end")
    found: dict[SSAValue, Pages] = {}
    arguments = [_stored_as(unit, number, value) for number, value in enumerate(block.args)]
    asked = [_stored_as(unit, len(block.args) + number, value) for number, value in enumerate(last.operands)]
    copies: set[SSAValue] = set()
    for number, (argument, kind) in enumerate(zip(block.args, arguments, strict=True)):
        if kind.is_row_major:
            found[argument] = kind
            copies |= _read_in_tiles(unit, number, kind, asked)
        elif kind != _DEFAULT:
            spread(argument, kind, found)
    results = list(last.operands)
    for number, (value, kind) in enumerate(zip(results, asked, strict=True)):
        root = storage(value)
        is_another = isinstance(root.owner, Block) or root in copies or _is_other_result(value, number, results)
        # Kernels compute in tiles: rows are always another array than those that they made.
        if (is_another or kind.is_row_major) and kind != found.get(value, _DEFAULT):
            value = insert_relayout(unit, last, number, found.get(value, _DEFAULT), kind)
        if kind != _DEFAULT:
            spread(value, kind, found)
    return found


def _read_in_tiles(unit: Unit, number: int, kind: Pages, asked: Sequence[Pages]) -> set[SSAValue]:
    """Insert a tiled copy of an argument that is stored by rows, and return it. All users read the copy, except results
    that are `asked` to be stored by rows, too. Without users there is no copy."""
    block = unit.main.body.block
    uses = [
        use for use in block.args[number].uses if not isinstance(use.operation, ReturnOp) or asked[use.index] != kind
    ]
    if not uses:
        return set()
    readers = {in_block(use.operation, block) for use in uses}
    first = next(op for op in block.ops if op in readers)
    copy = insert_tilize(unit, block.args[number], first, number, kind)
    for use in uses:
        use.operation.operands[use.index] = copy
    return {copy}


def _is_other_result(value: SSAValue, number: int, results: Sequence[SSAValue]) -> bool:
    """Whether a result is, or is a view of, one that comes before it."""
    return any(storage(other) is storage(value) for other in results[:number])


def _stored_as(unit: Unit, number: int, value: SSAValue) -> Pages:
    text, grid = unit.storage.get(number), unit.machine.core_grid
    if text is None:
        return _DEFAULT
    type, asked = array_type(value), parse_storage(text)
    if asked.format and not type.dtype.is_float:
        raise _refused(value, f"an array of {type.dtype} is not stored as {asked.format}")
    try:
        pages = asked.pages(type.shape, (grid.rows, grid.columns))
    except LayoutError as error:
        raise _refused(value, error.message) from None
    inputs = len(unit.main.body.block.args)
    what = f"input {number}" if number < inputs else f"output {number - inputs}"
    unit.remarks.append(Remark(TileStoreArraysPass.name, what, f"stored as {text}", "requested"))
    return pages


def spread(value: SSAValue, kind: Pages, found: dict[SSAValue, Pages]) -> None:
    """A value, what it is a view of, and its views are one array.

    Raises:
        UnsupportedOnTargetError: one of them takes part in control flow.
    """
    if value in found:
        return
    found[value] = kind
    if isinstance(value.owner, array.ReshapeOp):
        spread(value.owner.operands[0], kind, found)
    elif isinstance(value.owner, array.WhileOp | array.IfOp):
        raise _refused(value, f"results of control flow are not stored as {kind}")
    for use in value.uses:
        if isinstance(use.operation, array.ReshapeOp):
            spread(use.operation.results[0], kind, found)
        elif isinstance(use.operation, array.WhileOp | array.IfOp | array.YieldOp):
            raise _refused(value, f"operands of control flow are not stored as {kind}", use.operation)


def _refused(value: SSAValue, what: str, op: Operation | None = None) -> UnsupportedOnTargetError:
    """The error of a value, at the line of an operation: by default the one that computes it, or an argument's first
    use."""
    error = UnsupportedOnTargetError(what, help="leave its storage as it is")
    if op is None:
        first = next((use.operation for use in value.uses), None)
        op = first if isinstance(value.owner, Block) else value.owner
    if op is not None:
        error.location = location_of(op)
    return error


def _store_for(
    unit: Unit,
    call: array.CallOp,
    kinds: dict[SSAValue, Pages],
    made: dict[tuple[str, tuple[Pages, ...]], str],
) -> None:
    """The kernel of a call takes its arrays as they are stored."""
    name = call.callee
    kernel = unit.kernel(name)
    operands, results = iter(call.operands), iter(call.results)
    wanted: list[Pages] = []
    for effect in kernel.effects:
        value = next(operands) if effect != tile.OUT else None
        result = next(results) if effect != tile.IN else None
        wanted.append(kinds.get(value if value is not None else result, _DEFAULT))  # type: ignore[arg-type]  one is there
    key = (name, tuple(wanted))
    if key not in made:
        made[key] = name if all(each == _DEFAULT for each in wanted) else _with_kinds(unit, kernel, wanted, len(made))
    call.callee = made[key]


def free_name(unit: Unit, stem: str, number: int) -> str:
    """A name that no kernel has: a stem and a number from the given one on."""
    taken = {kernel.sym_name for kernel in unit.kernels()}
    while f"{stem}_{number}" in taken:
        number += 1
    return f"{stem}_{number}"


def _with_kinds(unit: Unit, kernel: tile.KernelOp, wanted: list[Pages], number: int) -> str:
    """A kernel whose arrays are stored in some way: the kernel itself, where it is called once."""
    calls = [
        op
        for block in blocks_of(unit.main)
        for op in block.ops
        if isinstance(op, array.CallOp) and op.callee == kernel.sym_name
    ]
    if len(calls) > 1:
        copy = kernel.clone()
        copy.sym_name = free_name(unit, f"{kernel.sym_name}_stored", number)
        unit.module.body.block.add_op(copy)
        kernel = copy
    for ref, kind in zip(list(kernel.refs), wanted, strict=True):
        if kind != _DEFAULT:
            type = tile.ref(array_type(tile.ref_type(ref).array), pages=kind)
            Rewriter.replace_value_with_new_type(ref, type)
    return kernel.sym_name
