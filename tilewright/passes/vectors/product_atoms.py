"""The atoms of matmuls: their register blocks, and the types that operands have for them."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import SSAValue

from tilewright.dialects import tile
from tilewright.dialects.base import array_type, tensor
from tilewright.errors import CompilerBug
from tilewright.layout import Layout
from tilewright.passes.layouts.layout_spaces import Atom
from tilewright.primitives import ArrayType


def block_of(atom: Atom) -> Layout:
    """The register block of an atom. Raises CompilerBug where the atom is none of this kind of machine."""
    if atom.block is None:
        raise CompilerBug(f"the atom `{atom}` has no register block")
    return atom.block


def cast_operands(kernel: tile.KernelOp, atoms: Mapping[tile.DotOp, Atom], layouts: dict[SSAValue, Layout]) -> None:
    """Matmuls without a matrix instruction multiply in the accumulator's type: convert their operands first."""
    for op in list(kernel.walk()):
        block = op.parent_block()
        if not isinstance(op, tile.DotOp) or block is None or atoms[op].instruction is not None:
            continue
        dtype = array_type(op.accumulator).dtype
        for position in (0, 1):
            type = array_type(op.operands[position])
            if type.dtype != dtype:
                cast = tile.CastOp(arguments=[op.operands[position]], outputs=[tensor(ArrayType(type.shape, dtype))])
                block.insert_op_before(cast, op)
                if op.operands[position] in layouts:
                    layouts[cast.results[0]] = layouts[op.operands[position]]
                op.operands[position] = cast.results[0]
