"""Legality: the operations that a program may hold at the end of each phase."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects import array, tile
from tilewright.dialects.func import FuncOp, ReturnOp
from tilewright.errors import VerificationError
from tilewright.machines.machine import Model
from tilewright.passes.base import Unit, blocks_of

# The host program after fusion: calls of kernels and libraries, control flow, and views.
_HOST = (
    array.CallOp,
    array.LibraryCallOp,
    array.WhileOp,
    array.IfOp,
    array.YieldOp,
    array.ConstantOp,
    array.ReshapeOp,
    ReturnOp,
)
# Tile operations of threads of a core: loops, zones and prints.
_OF_THREADS = (tile.ForOp, tile.YieldOp, tile.ZoneOp, tile.PrintOp)
_HELP = "report the program: this is a bug of the compiler"


class _Legal(msgspec.Struct, frozen=True):
    """Operations of kernels: by the prefix of their names, of the classes alone where a dialect is only partly legal,
    without those that are illegal."""

    dialects: tuple[str, ...]
    classes: tuple[type[Operation], ...] = ()
    illegal: tuple[type[Operation], ...] = ()

    def allows(self, op: Operation) -> bool:
        if isinstance(op, self.illegal):
            return False
        return isinstance(op, self.classes) or op.name.startswith(self.dialects)


_TILE = _Legal(("tile.",))
_SCHEDULED = {
    Model.VECTORS: _Legal(("tile.", "scheduled."), illegal=(tile.DotOp, tile.RelayoutOp)),
    Model.WARPS: _Legal(("tile.", "scheduled."), illegal=(tile.DotOp,)),
    Model.CORES: _Legal(("cores.",), classes=_OF_THREADS),
}


def verify_module(unit: Unit, after: str) -> None:
    """Verify each operation and the order of definitions and uses.

    Raises:
        VerificationError: an operation is invalid, or uses a value before its definition.
    """
    try:
        unit.module.verify()
    except VerifyException as error:
        sentence = str(error).partition("\n")[0]
        raise VerificationError(f"the IR of `{unit.name}` is invalid after {after}: {sentence}", help=_HELP) from error
    for block in blocks_of(unit.main):
        _check_order(unit, block, after)


def check_phase(unit: Unit, phase: str) -> None:
    """Check that a program holds only operations of its phase, `tile` or `scheduled`.

    Raises:
        VerificationError: an operation of another phase is left.
    """
    legal = _TILE if phase == "tile" else _SCHEDULED[unit.machine.model]
    for op in _illegal(unit.module, legal):
        message = f"the operation `{op.name}` of `{unit.name}` is illegal after the {phase} phase"
        raise VerificationError(message, help=_HELP)


def _illegal(module: ModuleOp, legal: _Legal) -> Iterator[Operation]:
    for top in module.body.block.ops:
        if isinstance(top, FuncOp):
            yield from (op for op in top.walk() if op is not top and not isinstance(op, _HOST))
        elif isinstance(top, tile.KernelOp):
            yield from (op for op in top.walk() if op is not top and not legal.allows(op))
        else:
            yield top


def _check_order(unit: Unit, block: Block, after: str) -> None:
    seen: set[Operation] = set()
    for op in block.ops:
        for operand in op.operands:
            owner = operand.owner
            if isinstance(owner, Operation) and owner.parent_block() is block and owner not in seen:
                message = f"`{op.name}` of `{unit.name}` uses a value of `{owner.name}` before it is computed"
                raise VerificationError(f"{message}, after {after}", help=_HELP)
        seen.add(op)
