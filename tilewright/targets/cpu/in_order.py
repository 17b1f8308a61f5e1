"""Print regions whose points go in order along their last dimension: what one stores, the next one loads.

Threads take the points from a counter, so that who waits for an earlier point waits for a thread that is at it. A flag
of each point signals that it has stored what the next one loads; what a point does before, such as adding up what it
holds, threads do side by side.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import msgspec
from llvmlite import ir
from xdsl.ir import Operation, SSAValue

from tilewright.dialects import scheduled, tile
from tilewright.targets.cpu.context import round_up
from tilewright.targets.cpu.loops import I1, I8, I32, I64, POINTER, i64, offset_pointer
from tilewright.targets.llvm.values import Builder, Value

# The flags begin on a line of their own.
_FLAGS_AT = 64
# A flag comes within microseconds, unless the thread that is to set it does not run.
_SPINS_BEFORE_YIELD = 4096


def turns_bytes(points: int) -> int:
    """Memory for the counter and the flags of a region."""
    return round_up(_FLAGS_AT + points)


def clear_turns(builder: Builder, turns: Value, points: int) -> None:
    """Before the region: no point is taken, none is done."""
    type = ir.FunctionType(ir.VoidType(), [POINTER, I8, I64, I1])
    fill = _declared(builder, "llvm.memset.p0.i64", type)
    builder.call(fill, [turns, ir.Constant(I8, 0), i64(_FLAGS_AT + points), ir.Constant(I1, 0)])


@contextmanager
def taken_points(builder: Builder, turns: Value, points: int) -> Generator[Value]:
    """A loop over the points that this thread takes."""
    look, body, after = (builder.append_basic_block(f"turn.{name}") for name in ("look", "body", "end"))
    builder.branch(look)
    builder.position_at_end(look)
    point = builder.atomic_rmw("add", turns, i64(1), "monotonic")
    builder.cbranch(builder.icmp_unsigned("<", point, i64(points)), body, after)
    builder.position_at_end(body)
    yield point
    builder.branch(look)
    builder.position_at_end(after)


class Turn(msgspec.Struct, frozen=True):
    """The point that is being emitted, its position along the last dimension, and what passes between points: the refs
    that the region both loads and stores."""

    builder: Builder
    turns: Value
    point: Value
    place: Value
    architecture: str
    passed: frozenset[SSAValue]

    def before(self, nest: scheduled.NestOp) -> None:
        """Wait for the point before this one, if the nest loads what that stored."""
        if not any(isinstance(op, tile.LoadOp) and op.source in self.passed for op in nest.body.block.ops):
            return
        with self.builder.if_then(self.builder.icmp_signed(">", self.place, i64(0))):
            self._wait(self._flag(self.builder.sub(self.point, i64(1))))

    def after(self, nest: scheduled.NestOp) -> None:
        """Let the next point continue, if the nest has stored what that loads."""
        if any(isinstance(op, tile.StoreOp) and op.destination in self.passed for op in nest.body.block.ops):
            # llvmlite does not print atomic stores.
            self.builder.atomic_rmw("xchg", self._flag(self.point), ir.Constant(I8, 1), "release")

    def _flag(self, point: Value) -> Value:
        return offset_pointer(self.builder, offset_pointer(self.builder, self.turns, i64(_FLAGS_AT), 1), point, 1)

    def _wait(self, flag: Value) -> None:
        builder = self.builder
        before = builder.block
        names = ("look", "pause", "yield", "done")
        look, pause, give_way, done = (builder.append_basic_block(f"wait.{name}") for name in names)
        builder.branch(look)
        builder.position_at_end(look)
        spins = builder.phi(I32, "spins")
        builder.cbranch(builder.trunc(builder.load_atomic(flag, "acquire", 1, typ=I8), I1), done, pause)
        builder.position_at_end(pause)
        self._pause()
        more = builder.add(spins, ir.Constant(I32, 1))
        tired = builder.icmp_unsigned(">", more, ir.Constant(I32, _SPINS_BEFORE_YIELD))
        builder.cbranch(tired, give_way, look)
        builder.position_at_end(give_way)
        builder.call(_declared(builder, "sched_yield", ir.FunctionType(I32, [])), [])
        builder.branch(look)
        for value, source in ((ir.Constant(I32, 0), before), (more, pause), (ir.Constant(I32, 0), give_way)):
            spins.add_incoming(value, source)
        builder.position_at_end(done)

    def _pause(self) -> None:
        """Hint 1 of AArch64 is YIELD."""
        x86 = self.architecture == "x86_64"
        name, arguments = ("llvm.x86.sse2.pause", []) if x86 else ("llvm.aarch64.hint", [ir.Constant(I32, 1)])
        type = ir.FunctionType(ir.VoidType(), [I32 for _ in arguments])
        self.builder.call(_declared(self.builder, name, type), arguments)


def passed_on(region: scheduled.ParallelOp) -> frozenset[SSAValue]:
    """The arrays that a region both loads and stores."""
    inside: list[Operation] = list(region.walk())
    loaded = {op.source for op in inside if isinstance(op, tile.LoadOp)}
    stored = {op.destination for op in inside if isinstance(op, tile.StoreOp)}
    return frozenset(ref for ref in loaded & stored if not tile.ref_type(ref).space.data)


def _declared(builder: Builder, name: str, type: ir.FunctionType) -> ir.Function:
    function = builder.module.globals.get(name)
    return ir.Function(builder.module, type, name) if function is None else function
