"""Schedule of attention on warpgroups: a chain of matmuls, queries by keys and weights by values.

Queries, keys and values are copied to shared memory by the machine itself. The weights, which are made of the scores in
registers, are the left operand from there, or, where matmuls add up in tensor memory, from shared memory. Blocks of
keys are taken from the last one to the first: which ones a causal mask leaves is then a sum of multiples of indices, as
are the positions of all windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.ir import BlockArgument, SSAValue

from tilewright.cost.warps.products import TENSOR_COPY_BYTES
from tilewright.dialects import array
from tilewright.dialects.base import array_type
from tilewright.dtypes import DType
from tilewright.machines.machine import AtomFamily, Machine
from tilewright.passes.kernels.indexing import Axis, Linear
from tilewright.passes.warps.tensor_windows import MOST_DIMS
from tilewright.records import dataclass

# Keys of a step. Many hide more of what a step waits for, and rescale results less often; two warpgroups have registers
# for them, with heads of 128 if `scheduled-share-registers` gives them.
_KEYS, _, _MANY_KEYS = STEPS_OF_KEYS = 64, 96, 128
# What larger steps of keys, or tiles of queries, may add to those of a head, which are filled up to whole ones.
_MOST_FILLED = 1.1
# The widest results for which the threads of so many warpgroups have registers beside scores and weights: those of
# three and two share the registers of a multiprocessor with a warp that copies, one alone has all that there are.
_MOST_COLUMNS = {3: 64, 2: 128, 1: 256}
# Heads are made of whole lines of the copies.
_LINE_BYTES = 32


@dataclass(frozen=True)
class Chain:
    """`groups` warpgroups of a tile of `rows` queries, which multiply by `family`. A tile sees `first` blocks of `keys`
    keys, and `per_tile` more for each tile of the same head before it; at most `most_blocks`."""

    family: AtomFamily
    groups: int
    rows: int
    keys: int
    first: int
    per_tile: int
    most_blocks: int

    @property
    def atoms(self) -> tuple[str, str]:
        """By what queries and keys are multiplied, and weights and values."""
        scores = self.family.by_groups(self.groups)
        return scores, self.family.with_left_in_registers if self.family.left_from_registers else scores

    def blocks(self, rows_at: Linear) -> Linear:
        """How many blocks of keys a tile sees, from where its rows are."""
        if not self.per_tile:
            return Linear(self.first)
        terms = (
            (term, step // self.rows * self.per_tile) for term, step in rows_at.terms if not isinstance(term, Axis)
        )
        return Linear(self.first, tuple(terms))


def chain_of(
    products: Sequence[array.ContractOp],
    operand: DType,
    shape: Sequence[int],
    row_dim: int,
    offset: int | None,
    machine: Machine,
    wanted: tuple[int | None, int | None] = (None, None),
) -> Chain | None:
    """How warpgroups do the two matmuls of attention with scores of `shape`; None where they do not. `offset`: row 0
    sees keys up to that one, row 1 one more; None: all rows see all keys. `wanted`: the number of warpgroups, None: as
    many as keep all SMs busy; and the keys of a step, None: as many as are predicted to be best."""
    scores, values = products
    types = operand, operand, array_type(scores.results[0]).dtype.compute
    found = machine.group_atom_of(*types)
    widths = (array_type(scores.operands[0]).shape[-1], array_type(values.results[0]).shape[-1])
    lines = all(width * operand.itemsize % _LINE_BYTES == 0 and width <= _MOST_COLUMNS[1] for width in widths)
    windows = (*scores.operands, values.operands[1])
    if found is None or not lines or not all(_is_copied(value) for value in windows):
        return None
    family, atom = found
    if family.sums_in_tensor_memory:
        if max(widths) > _MOST_COLUMNS[2]:
            return None  # a thread has a row of the result
        groups, rows, keys = 1, atom.rows, _KEYS
    else:
        groups = wanted[0] or _groups(shape, row_dim, atom.rows, max(widths), offset is not None, machine)
        groups = groups if widths[1] <= _MOST_COLUMNS[2] else 1
        rows = atom.rows * groups
        keys = _KEYS if max(widths) > _MOST_COLUMNS[2] else wanted[1] or _keys_of_step(shape[-1])
        if offset is not None and rows % keys:
            keys = _KEYS  # what a causal mask leaves is whole steps more from tile to tile
        keys = min(keys, rows)
    tiles = -(-shape[row_dim] // rows)
    if offset is not None and shape[row_dim] + offset > shape[-1]:
        return None  # blocks beyond the keys would not be hidden from the last rows
    if offset is None:
        chain = Chain(family, groups, rows, keys, -(-shape[-1] // keys), 0, -(-shape[-1] // keys))
    else:
        first, per_tile = -(-(rows + offset) // keys), rows // keys
        chain = Chain(family, groups, rows, keys, first, per_tile, first + (tiles - 1) * per_tile)
    return chain if chain.first > 0 and chain.most_blocks > 1 else None


def _keys_of_step(keys: int) -> int:
    """How many of a head's keys are taken at a time."""
    few, many = (-(-keys // step) * step for step in (_KEYS, _MANY_KEYS))
    return _MANY_KEYS if _MANY_KEYS < many <= few * _MOST_FILLED else _KEYS


def _is_copied(value: SSAValue) -> bool:
    """Whether windows of an operand are windows of an array that the machine copies."""
    while isinstance(value.owner, array.TransposeOp | array.ReshapeOp | array.BroadcastOp):
        value = value.owner.operands[0]
    type = array_type(value)
    aligned = type.rank > 0 and type.shape[-1] * type.dtype.itemsize % TENSOR_COPY_BYTES == 0
    return isinstance(value, BlockArgument) and aligned and type.rank <= MOST_DIMS


def _groups(shape: Sequence[int], row_dim: int, rows: int, width: int, is_masked: bool, machine: Machine) -> int:
    """Several warpgroups, each of some rows, share what is copied, unless that leaves multiprocessors without a tile:
    three, whose softmax and matmuls overlap best, where there are registers for them, and masks take none."""
    queries = shape[row_dim]
    others = prod(shape[:-1]) // queries
    if others * (queries // (2 * rows)) < machine.cores:
        return 1
    of_three = -(-queries // (3 * rows))
    fills = others * of_three >= machine.cores and of_three * 3 * rows <= _MOST_FILLED * queries
    return 3 if fills and width <= _MOST_COLUMNS[3] and not is_masked else 2
