"""Let an array share the pages of another one, of which a kernel made a copy in another shape.

A kernel that only moves an array to other pages, such as attention heads to the front, is left out if the kernels that
read the copy can read the pages of the original instead, or the kernel that makes the original can write the pages of
the copy: their windows are composed with the view of one array in the other. That is chosen where it is predicted to
take fewer cycles: windows that are whole pages of one array and parts of pages of the other one take long.

Before (wormhole):
    func.func @main(%x: tensor<32x64xf32>) -> tensor<2x32x32xf32> {
      %y = array.call(%x) {callee = "split"} : tensor<2x32x32xf32>
      %z = array.call(%y) {callee = "negate"} : tensor<2x32x32xf32>
      func.return %z : tensor<2x32x32xf32>
    }
    tile.kernel() {sym_name = "split", grid = array<i64: 2>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<32x64xf32>>, %out: !tile.ref<tensor<2x32x32xf32>>, %i: index):
      %a = tile.load(%x, %i) {map = affine_map<(d0, d1, d2)[s0] -> (d1, d2 + s0 * 32)>} : tensor<1x32x32xf32>
      tile.store(%a, %out, %i) {map = affine_map<(d0, d1, d2)[s0] -> (d0 + s0, d1, d2)>}
      tile.yield()
    }
    tile.kernel() {sym_name = "negate", grid = array<i64: 2>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<2x32x32xf32>>, %out: !tile.ref<tensor<2x32x32xf32>>, %i: index):
      %a = tile.load(%x, %i) {map = affine_map<(d0, d1)[s0] -> (s0, d0, d1)>} : tensor<32x32xf32>
      %b = tile.map(%a) {fn = "negative"} : tensor<32x32xf32>
      tile.store(%b, %out, %i) {map = affine_map<(d0, d1)[s0] -> (s0, d0, d1)>}
      tile.yield()
    }
After:
    func.func @main(%x: tensor<32x64xf32>) -> tensor<2x32x32xf32> {
      %z = array.call(%x) {callee = "negate"} : tensor<2x32x32xf32>
      func.return %z : tensor<2x32x32xf32>
    }
    tile.kernel() {sym_name = "negate", grid = array<i64: 2>, effects = ["in", "out"]} do {
    ^bb0(%x: !tile.ref<tensor<32x64xf32>>, %out: !tile.ref<tensor<2x32x32xf32>>, %i: index):
      %a = tile.load(%x, %i) {map = affine_map<(d0, d1)[s0] -> (d0, s0 * 32 + d1)>} : tensor<32x32xf32>
      %b = tile.map(%a) {fn = "negative"} : tensor<32x32xf32>
      tile.store(%b, %out, %i) {map = affine_map<(d0, d1)[s0] -> (s0, d0, d1)>}
      tile.yield()
    }
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from xdsl.ir import SSAValue
from xdsl.rewriter import Rewriter

from tilewright.dialects import array, tile
from tilewright.dialects.base import array_type
from tilewright.dialects.rewriting import erase
from tilewright.passes.array.lifetimes import storage
from tilewright.passes.base import Remark, Unit, blocks_of
from tilewright.passes.cores.array_lifetimes import ArrayLives, CalledArray
from tilewright.passes.cores.core_space import CoreSpace, array_of
from tilewright.passes.cores.linear_views import LinearView, is_within, merging_view, view_between
from tilewright.passes.cores.tile_store_arrays import free_name

Use = tuple[array.CallOp, tile.KernelOp, int]
Accesses = tile.LoadOp | tile.StoreOp
# A kernel, one of its refs, and the view that it is taken for.
_Version = tuple[str, int, LinearView]
_SHARED = "_shared"


class TileSharePagesPass(msgspec.Struct, frozen=True):
    name: ClassVar[str] = "tile-share-pages"

    def apply(self, unit: Unit) -> None:
        calls = [op for block in blocks_of(unit.main) for op in block.ops if isinstance(op, array.CallOp)]
        names = {call.callee for call in calls}
        versions: dict[_Version, str] = {}
        for call in calls:
            _Sharing(unit, call, versions).share()
        if versions:
            _drop_unused(unit, names, versions.values())


@dataclass(frozen=True)
class _Viewed:
    """An array that may be a view of another one. `uses`: the calls whose kernels take it, each with its view of the
    storage; `stored`: the value whose pages they are then; `cycles`: that are saved."""

    array: CalledArray
    stored: SSAValue
    uses: tuple[tuple[Use, LinearView], ...]
    cycles: float


class _Sharing:
    """One call of a kernel that may be a copy. `versions`: the names of kernels that take views."""

    def __init__(self, unit: Unit, call: array.CallOp, versions: dict[_Version, str]) -> None:
        self._unit, self._call, self._versions = unit, call, versions
        self._kernel = unit.kernel(call.callee)
        self._space = CoreSpace(unit.machine.core_grid)

    def share(self) -> None:
        moved = _copy_of(self._kernel)
        if moved is None:
            return
        load, store, permutation = moved
        lives = ArrayLives(self._unit)
        read, made = (lives.arrays[storage(value)] for value in (self._call.operands[0], self._call.results[0]))
        inverse = [permutation.index(d) for d in range(len(permutation))]
        # What is read from the original's pages, and what is written to the copy's.
        choices = [
            self._viewed(made, self._call.results[0], self._call.operands[0], view_between(store, load, permutation)),
            self._viewed(read, self._call.operands[0], self._call.results[0], view_between(load, store, inverse)),
        ]
        known = [choice for choice in choices if choice is not None and choice.cycles > 0]
        if known:
            best = max(known, key=lambda choice: choice.cycles)
            self._apply(best, best.array is made)

    # ---- costs ------------------------------------------------------------------------------------------------------

    def _viewed(
        self, viewed: CalledArray, value: SSAValue, stored: SSAValue, view: LinearView | None
    ) -> _Viewed | None:
        """An array as a view of what another value stores; None where it cannot be one."""
        if view is None or not viewed.is_own or not self._is_in_one_block(viewed):
            return None
        root = _between(viewed.value, value)
        if root is None:
            return None
        uses: list[tuple[Use, LinearView]] = []
        saved = self._copy_cycles()
        for use in viewed.uses:
            call, kernel, number = use
            if call is self._call:
                continue
            own = _between(_value_of(use), viewed.value)
            if own is None:
                return None
            whole = view.after(root).after(own)
            for op in _accesses(kernel, number):
                gained = self._gained(op, whole)
                if gained is None:
                    return None
                saved += gained
            uses.append((use, whole))
        return _Viewed(viewed, stored, tuple(uses), saved) if uses else None

    def _gained(self, op: Accesses, view: LinearView) -> float | None:
        """Cycles that an access takes less in the storage; None where it takes other elements there, or turns its
        pages around."""
        before, after = op.map, view.map(op.map)
        if not is_within(view, before, op):
            return None
        old, new = self._space.window(op, before, view.shape), self._space.window(op, after, view.stored)
        if new is None or (old is not None and old.paging != new.paging):
            return None
        cycles = self._space.access_cycles
        return cycles(op, before, view.shape) - cycles(op, after, view.stored)

    def _copy_cycles(self) -> float:
        accesses = [op for op in self._kernel.walk() if isinstance(op, Accesses)]
        cycles = max(self._space.access_cycles(op, op.map, tile.ref_type(array_of(op)).shape) for op in accesses)
        return self._unit.machine.core_grid.dispatch_cycles + cycles

    def _is_in_one_block(self, viewed: CalledArray) -> bool:
        """Whether all that takes an array is in the block of the copy: what is viewed is there where it is."""
        block = self._call.parent_block()
        return all(call.parent_block() is block for call, _, _ in viewed.uses)

    # ---- rewriting --------------------------------------------------------------------------------------------------

    def _apply(self, chosen: _Viewed, reads_original: bool) -> None:
        call, stored = self._call, chosen.stored
        what = f"{array_type(chosen.array.value)} at `{self._kernel.sym_name}`"
        where = "the array that it is a copy of" if reads_original else "the array that is a copy of it"
        reason = (
            f"predicted to save {chosen.cycles:.0f} cycles, of which {self._copy_cycles():.0f} are those of the copy"
        )
        self._unit.remarks.append(Remark(TileSharePagesPass.name, what, f"shares the pages of {where}", reason))
        if not reads_original:
            stored = Rewriter.replace_value_with_new_type(chosen.array.value, call.results[0].type)
            call.results[0].replace_all_uses_with(stored)
        for use, view in chosen.uses:
            _use_view(self._unit, use, view, stored, self._versions)
        erase(call)


def _copy_of(kernel: tile.KernelOp) -> tuple[tile.LoadOp, tile.StoreOp, list[int]] | None:
    """The load and the store of a kernel that does no more than to move an array, with the dim of the stored tile that
    each dim of the loaded one is."""
    ops = list(kernel.body.block.ops)
    if kernel.effects != (tile.IN, tile.OUT) or len(ops) not in (3, 4):
        return None
    load, *between, store, _ = ops
    if not isinstance(load, tile.LoadOp) or not isinstance(store, tile.StoreOp) or load.fill is not None:
        return None
    rank = array_type(load.result).rank
    permutation = list(range(rank))
    if between:
        (op,) = between
        if not isinstance(op, tile.TransposeOp) or op.operands[0] is not load.result:
            return None
        for place, source in enumerate(op.attributes_of()["permutation"]):
            permutation[source] = place
    last = between[0].results[0] if between else load.result
    return (load, store, permutation) if store.value is last else None


def _between(value: SSAValue, other: SSAValue) -> LinearView | None:
    """The view of one value as another one of the same memory; None where their dims are split."""
    return merging_view(array_type(value).shape, array_type(other).shape)


def _value_of(use: Use) -> SSAValue:
    """The operand, or the result, of a call that is a ref of its kernel."""
    call, kernel, number = use
    operands, results = iter(call.operands), iter(call.results)
    for effect in kernel.effects[:number]:
        for values, none in ((operands, tile.OUT), (results, tile.IN)):
            if effect != none:
                next(values)
    return next(results) if kernel.effects[number] == tile.OUT else next(operands)


def _accesses(kernel: tile.KernelOp, number: int) -> Iterator[Accesses]:
    for use in kernel.refs[number].uses:
        if isinstance(use.operation, Accesses):
            yield use.operation


def _use_view(unit: Unit, use: Use, view: LinearView, stored: SSAValue, made: dict[_Version, str]) -> None:
    """A call takes the storage of a view, by a version of its kernel whose accesses are composed with the view."""
    call, kernel, number = use
    value = _value_of(use)
    if kernel.effects[number] != tile.OUT:
        place = next(n for n, operand in enumerate(call.operands) if operand is value)
        call.operands[place] = stored
    key = call.callee, number, view
    if key not in made:
        kernel = unit.kernel(call.callee).clone()
        made[key] = free_name(unit, _stem(call.callee), len(made))
        kernel.sym_name = made[key]
        unit.module.body.block.add_op(kernel)
        for op in list(_accesses(kernel, number)):
            op.map = view.map(op.map)
        own = tile.ref_type(kernel.refs[number])
        type = tile.ref(array_type(stored), pages=own.pages.data)
        Rewriter.replace_value_with_new_type(kernel.refs[number], type)
    call.callee = made[key]


def _stem(name: str) -> str:
    """The name of the kernel that a version is of, and `shared`."""
    return f"{name.split(_SHARED)[0]}{_SHARED}"


def _drop_unused(unit: Unit, names: set[str], versions: Collection[str]) -> None:
    """Take out views that nothing takes, and of some kernels and their versions those that nothing calls. The only
    version of a kernel has its name."""
    for block in blocks_of(unit.main):
        for op in reversed(list(block.ops)):
            if isinstance(op, array.ReshapeOp) and op.results[0].first_use is None:
                erase(op)
    calls = [op for block in blocks_of(unit.main) for op in block.ops if isinstance(op, array.CallOp)]
    called = {call.callee for call in calls}
    for name in (names | {*versions}) - called:
        kernel = unit.kernel(name)
        erase(kernel)
    for name in names - called:
        mine = [version for version in versions if version in called and _stem(version) == _stem(name)]
        if len(mine) == 1:
            unit.kernel(mine[0]).sym_name = name
            for call in calls:
                if call.callee == mine[0]:
                    call.callee = name
