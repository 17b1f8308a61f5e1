"""Ways to break a program: each changes one operation of a thread."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import AffineMapAttr
from xdsl.ir import Operation
from xdsl.rewriter import Rewriter

from tests.cores.builder import affine
from tilewright.dialects import cores, tile
from tilewright.dialects.fields import encode


def find(kernel: tile.KernelOp, role: str, op: type[Operation], number: int = 0) -> Any:
    """An operation of a thread, by its class and its number among those."""
    found = [each for each in kernel.walk() if isinstance(each, op) and cores.thread_of(each).role == role]
    return found[number]


def drop(kernel: tile.KernelOp, role: str, op: type[Operation], number: int = 0) -> None:
    found = find(kernel, role, op, number)
    found.detach()
    found.erase()


def repeat(kernel: tile.KernelOp, role: str, op: type[Operation], number: int = 0) -> None:
    """An operation, once more behind itself."""
    found = find(kernel, role, op, number)
    found.parent.insert_op_after(found.clone(), found)


def move_before(kernel: tile.KernelOp, role: str, op: type[Operation], other: type[Operation], *numbers: int) -> None:
    """An operation, before another of its thread."""
    first, second = numbers or (0, 0)
    moved, target = find(kernel, role, op, first), find(kernel, role, other, second)
    moved.detach()
    target.parent.insert_op_before(moved, target)


def move_after(kernel: tile.KernelOp, role: str, op: type[Operation], other: type[Operation], *numbers: int) -> None:
    """An operation, behind another of its thread."""
    first, second = numbers or (0, 0)
    moved, target = find(kernel, role, op, first), find(kernel, role, other, second)
    moved.detach()
    target.parent.insert_op_after(moved, target)


def change(kernel: tile.KernelOp, role: str, op: type[Operation], number: int = 0, **attributes: Any) -> None:
    """Attributes of an operation; a text is a map where there was one."""
    found = find(kernel, role, op, number)
    for name, value in attributes.items():
        before = found.properties.get(name)
        if isinstance(before, AffineMapAttr) and isinstance(value, str):
            map = before.data
            found.properties[name] = encode(affine(value, map.num_dims, map.num_symbols))
        else:
            found.properties[name] = encode(value)


def change_trips(kernel: tile.KernelOp, role: str, trips: int) -> None:
    change(kernel, role, tile.ForOp, trips=trips)


def change_queue(kernel: tile.KernelOp, number: int, format: str | None = None, pages: int | None = None) -> None:
    """A queue of another format, or of so many pages."""
    queue = [each for each in kernel.walk() if isinstance(each, cores.QueueOp)][number]
    type = cores.queue_type(queue.result)
    changed = cores.queue(type.format.data if format is None else format, type.pages if pages is None else pages)
    Rewriter.replace_value_with_new_type(queue.result, changed)


def repeat_at_end(kernel: tile.KernelOp, role: str, op: type[Operation], number: int = 0) -> None:
    """An operation, once more at the end of its thread."""
    found = find(kernel, role, op, number)
    end = cores.thread_of(found).body.block.last_op
    assert end is not None
    end.parent.insert_op_before(found.clone(), end)  # type: ignore[union-attr]


def exchange(kernel: tile.KernelOp, role: str, op: type[Operation], other: Any) -> None:
    """An operation is one of another class, with the same attributes."""
    found = find(kernel, role, op)
    found.parent.insert_op_before(other.create(operands=found.operands, properties=dict(found.properties)), found)
    found.detach()
