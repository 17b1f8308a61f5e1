"""Dead-code elimination in tile kernels: operations without effect and uses, results of choices and carried tiles of
loops that nothing reads."""

from __future__ import annotations

from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.traits import Pure

from tilewright.dialects import tile
from tilewright.dialects.base import rebuilt
from tilewright.dialects.rewriting import erase, has_uses, insert_before

_EFFECTS = (tile.StoreOp, tile.PrintOp, tile.AssertOp, tile.ZoneOp)


def drop_unused(kernel: tile.KernelOp) -> None:
    """Remove operations without effects whose results have no uses, innermost and last first, until none is left."""
    while _sweep(kernel.body.block):
        pass


def _sweep(block: Block) -> bool:
    changed = False
    for op in reversed(list(block.ops)):
        for region in op.regions:
            changed |= _sweep(region.block)
        if _is_unused(op):
            erase(op)
            changed = True
        elif isinstance(op, tile.ForOp):
            changed |= _stop_dead_carries(op) or _drop_carried(op)
        elif isinstance(op, tile.IfOp):
            changed |= _drop_results(op)
    return changed


def _is_unused(op: Operation) -> bool:
    if isinstance(op, tile.YieldOp) or has_uses(op):
        return False
    return not any(isinstance(inner, _EFFECTS) for inner in op.walk())


def _stop_dead_carries(op: tile.ForOp) -> bool:
    """Let tiles that only feed themselves pass through the loop unchanged, so that what computes them falls away."""
    body = op.body.block
    last = body.last_op
    if last is None:
        return False
    live = _live_carries(op, body, last)
    changed = False
    for n, argument in enumerate(body.args[1:]):
        if n not in live and last.operands[n] is not argument:
            last.operands[n] = argument
            changed = True
    return changed


def _live_carries(op: tile.ForOp, body: Block, last: Operation) -> set[int]:
    """Carried tiles that a result in use, or an effect of the body, depends on."""
    live = {n for n, result in enumerate(op.results) if result.first_use is not None}
    pending: list[SSAValue] = [last.operands[n] for n in live]
    for inner in body.walk():
        if not inner.has_trait(Pure) and not isinstance(inner, tile.LoadOp | tile.YieldOp | tile.ForOp | tile.IfOp):
            pending.extend(inner.operands)
    seen: set[SSAValue] = set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, BlockArgument) and value.owner is body and value.index:
            live.add(value.index - 1)
            pending.append(last.operands[value.index - 1])
        elif isinstance(value, BlockArgument):
            pending.extend(_around(value.owner))
        elif isinstance(value.owner, Operation):
            for used in value.owner.walk():
                pending.extend(used.operands)
    return live


def _around(block: Block) -> list[SSAValue]:
    """Values that a nested block's arguments and effects may depend on: all operands of its operation."""
    owner = block.parent_op()
    return [] if owner is None or isinstance(owner, tile.KernelOp) else [o for op in owner.walk() for o in op.operands]


def _drop_results(op: tile.IfOp) -> bool:
    """Rebuild a choice without the results that nothing uses."""
    kept = [n for n, result in enumerate(op.results) if result.first_use is not None]
    if len(kept) == len(op.results):
        return False
    for region in (op.then, op.otherwise):
        last = region.block.last_op
        if last is not None:
            last.operands = [last.operands[n] for n in kept]
    regions = [op.detach_region(region) for region in (op.then, op.otherwise)]
    made = rebuilt(op, [op.condition], [op.results[n].type for n in kept], regions)
    made.location = op.location
    insert_before(op, made)
    for n, result in zip(kept, made.results, strict=True):
        op.results[n].replace_all_uses_with(result)
    erase(op)
    return True


def _drop_carried(op: tile.ForOp) -> bool:
    """Rebuild a loop without the tiles that neither its body nor anything after it reads."""
    body = op.body.block
    last = body.last_op
    if last is None:
        return False
    unused = [
        n
        for n, (argument, result) in enumerate(zip(body.args[1:], op.results, strict=True))
        if result.first_use is None and all(u.operation is last and u.index == n for u in argument.uses)
    ]
    if not unused:
        return False
    kept = [n for n in range(len(op.results)) if n not in unused]
    yielded = [last.operands[n] for n in kept]
    erase(last)
    body.add_op(tile.YieldOp(arguments=yielded))
    for n in reversed(unused):
        body.erase_arg(body.args[n + 1])
    op.body.detach_block(body)
    operands = [*op.symbols, *(op.initial[n] for n in kept)]
    made = rebuilt(op, operands, [op.results[n].type for n in kept], [Region(body)])
    made.location = op.location
    insert_before(op, made)
    for n, result in zip(kept, made.results, strict=True):
        op.results[n].replace_all_uses_with(result)
    erase(op)
    return True
