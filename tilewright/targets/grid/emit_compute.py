"""The compute kernel, as TT-Metalium C++: API of ttnn 0.81, `api/compute/*.h`.

One text is compiled three times, for unpack, math and pack; each call is taken apart into those by the headers.

`configure` prints the call that prepares a unit. The first formats are part of `compute_kernel_hw_startup`. The state
of the vector unit depends on more than the function, such as whether an operand is a number: if a `map` needs another
state, it is set up right before the `map`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import Operation, SSAValue

from tilewright import dtypes
from tilewright.cached import cached_property
from tilewright.dialects import cores, tile
from tilewright.errors import CompilerBug, UnsupportedOnTargetError
from tilewright.targets.grid.emit_expressions import Value, add, constant, multiply
from tilewright.targets.grid.emit_functions import Call, Operand, Register, bits_calls, calls_of, cast_calls, fold_calls
from tilewright.targets.grid.emit_thread import Facts, ThreadPrinter, ThreadSource, following

_VERBS = {"add": "add", "subtract": "sub", "multiply": "mul"}
_BROADCASTS = {cores.ROW: "rows", cores.COLUMN: "cols", cores.SCALAR: "scalar"}
_BROADCAST_TYPES = {cores.ROW: "ROW", cores.COLUMN: "COL", cores.SCALAR: "SCALAR"}
_POOLS = {"add": "SUM", "maximum": "MAX"}
_REDUCED = {cores.ROW: "REDUCE_ROW", cores.COLUMN: "REDUCE_COL", cores.SCALAR: "REDUCE_SCALAR"}
_STEPS = {cores.ACQUIRE: "acquire", cores.COMMIT: "commit", cores.WAIT: "wait", cores.RELEASE: "release"}

_TILIZE_ROWS = """\
// Rows become tiles in registers, as in `tilize_block`, which takes one register at a time and packs it at once.
inline void tilize_rows(uint32_t queue, uint32_t count, uint32_t first_page, uint32_t first_register) {
    UNPACK((llk_unpack_tilize_block(queue, count, first_page)));
    for (uint32_t i = 0; i < count; ++i) {
        MATH((llk_math_eltwise_unary_datacopy<
              DataCopyType::A2D,
              DST_ACCUM_MODE,
              BroadcastType::NONE,
              UnpackToDestEn>(first_register + i, queue)));
    }
}
"""

# An operation of the matrix unit, which has a state there.
_Matrix = cores.CopyOp | cores.TilizeOp | cores.BinaryOp | cores.MatmulOp | cores.ReduceOp
# The operations that the matrix unit may be prepared for, each once, in the order of the program: the order in which
# their states are ended. None: no state.
_Prepared = tuple["_Matrix | None", ...]


def _unique(*operations: _Matrix | None) -> _Prepared:
    return tuple(dict.fromkeys(operations))


class ComputePrinter(ThreadPrinter):
    """Prints the thread that computes."""

    def __init__(self, facts: Facts, thread: cores.ThreadOp) -> None:
        super().__init__(facts, thread, includes={"api/compute/compute_kernel_hw_startup.h": None})
        self.includes["api/compute/common.h"] = None
        self._vector: str | None = None
        self._matrix: _Prepared = (None,)
        self._edges = cores.NONE
        self._accumulates = False
        # The queue that rows are packed to, while pack is prepared for that.
        self._rows: SSAValue | None = None
        self._startup: dict[str, SSAValue] = {}

    def source(self, title: str) -> ThreadSource:
        """The whole kernel."""
        opening = self._open()
        self.print_block(self.thread.body.block)
        if self._accumulates:
            # The packer stays as it is for the next program.
            self.line("pack_reconfig_l1_acc(0);")
        self._print_last_ends()
        declarations = self.declarations()
        text = self.text(title, declarations, [f"    {opening}"] if opening else [])
        return ThreadSource(cores.COMPUTE, None, text, core_arguments=tuple(self.core_arguments))

    def _open(self) -> str:
        """The call that sets all units to the formats that are used first."""
        ops = list(self.thread.body.walk())
        if all(any(isinstance(op, kind) for op in ops) for kind in (cores.TilizeOp, cores.UntilizeOp)):
            what = "a kernel takes rows and gives rows, for which pack is prepared in two ways"
            raise UnsupportedOnTargetError(what, help="make it two kernels, with tiles between")
        matrix = next((op for op in ops if isinstance(op, _Matrix)), None)
        pack = next((op for op in ops if isinstance(op, cores.PackingOp)), None)
        if pack is None:
            return ""
        out = self.queue(pack.queue)
        if matrix is None:
            self._startup = {cores.PACK: pack.queue}
            return f"compute_kernel_hw_startup({out}, {out});"
        sources = _sources(matrix)
        self._startup = {cores.PACK: pack.queue, cores.UNPACK_A: sources[0], cores.UNPACK_B: sources[-1]}
        if isinstance(matrix, cores.MatmulOp):
            left, right = self.queue(matrix.left), self.queue(matrix.right)
            return f"compute_kernel_hw_startup<SrcOrder::Reverse>({left}, {right}, {out});"
        names = [self.queue(each) for each in sources]
        return f"compute_kernel_hw_startup({', '.join([*names, out])});"

    # ---- operations -------------------------------------------------------------------------------------------------

    def print_own(self, op: Operation) -> None:
        match op:
            case cores.ConfigureOp():
                self._print_configure(op)
            case cores.RegistersOp():
                self.line(f"tile_regs_{_STEPS[op.step]}();")
            case cores.CopyOp():
                self._print_copy(op)
            case cores.TilizeOp():
                self._print_tilize(op)
            case cores.BinaryOp():
                self._print_binary(op)
            case cores.MatmulOp():
                self._print_matmul(op)
            case cores.ReduceOp():
                self._print_reduce(op)
            case cores.MapOp() | cores.CastOp() | cores.FoldOp():
                self._print_calls(self._vector_calls(op), len(op.slots))
            case cores.AccumulateOp():
                self._print_accumulate(op)
            case cores.PackOp():
                self._print_pack(op)
            case cores.UntilizeOp():
                self._print_untilize(op)
            case _:
                super().print_own(op)

    def enter_loop(self, op: tile.ForOp) -> None:
        """Account for the unit states at the back edge of a loop."""
        inits: set[str] = set()
        for each in op.body.walk():
            if isinstance(each, cores.MapOp | cores.CastOp | cores.FoldOp):
                inits |= {call.init for call in self._vector_calls(each)}
            elif isinstance(each, cores.ConfigureOp) and each.unit == cores.MATRIX:
                self._matrix = _unique(*self._matrix, _prepares(each))
            elif isinstance(each, cores.UntilizeOp) and _is_prepared_inside(op):
                self._rows = each.queue
        if inits and inits != {self._vector}:
            self._vector = None

    def state(self) -> object:
        return self._vector, self._matrix, self._edges, self._rows

    def join(self, *states: object) -> None:
        """Units are prepared as after one of several ways to here."""
        found: Any = states
        vectors = {vector for vector, *_ in found}
        self._vector = next(iter(vectors)) if len(vectors) == 1 else None
        self._matrix = _unique(*(each for _, prepared, *_ in found for each in prepared))
        self._edges = found[-1][2]
        self._rows = next((rows for *_, rows in found if rows is not None), None)

    # ---- states -----------------------------------------------------------------------------------------------------

    def _print_configure(self, op: cores.ConfigureOp) -> None:
        unit, state = op.unit, op.state
        match unit:
            case cores.UNPACK_A | cores.UNPACK_B | cores.PACK:
                self._print_format(op)
            case cores.MATRIX:
                self._print_matrix(op, state)
            case cores.VECTOR:
                self._print_vector(op)
            case _:
                self._print_edges(op)

    def _print_format(self, op: cores.ConfigureOp) -> None:
        unit, state = op.unit, op.state
        if unit == cores.PACK:
            self._end_states_of_pack(op)
        if unit == cores.PACK and self._rows is not None:
            self.line(f"pack_untilize_uninit({self.queue(self._rows)});")
            self._rows = None
        user = following(op, lambda each: cores.states_of(each).get(unit) == state)
        if isinstance(user, cores.UntilizeOp):
            self._prepare_untilize(user)
            return
        first = self._startup.get(unit)
        if first is not None and cores.queue_type(first).format.data == state and _is_at_start(op):
            return
        queue = op.queues[0] if op.queues else self._user_of(op)
        self.includes["api/compute/reconfig_data_format.h"] = None
        calls = {
            cores.UNPACK_A: "reconfig_data_format_srca",
            cores.UNPACK_B: "reconfig_data_format_srcb",
            cores.PACK: "pack_reconfig_data_format",
        }
        self.line(f"{calls[unit]}({self.queue(queue)});")

    def _print_edges(self, op: cores.ConfigureOp) -> None:
        state = op.state
        self._edges = state if state in _REDUCED else cores.NONE
        self.includes["api/compute/reduce.h"] = None
        if self._edges == cores.NONE:
            self.line("PACK((llk_pack_reduce_mask_clear()));")
        elif not all(isinstance(each, cores.ReduceOp) and each.along == state for each in self._matrix):
            self._print_mask(op)

    def _print_mask(self, op: Operation) -> None:
        """Set what of tiles is packed, which preparing a reduction does, too."""
        pack = following(op, lambda each: isinstance(each, cores.PackOp))
        if isinstance(pack, cores.PackOp) and self._edges in _REDUCED:
            kind = f"ReduceDim::{_REDUCED[self._edges]}, PackMode::Default"
            self.line(f"PACK((llk_pack_reduce_mask_config<{kind}>({self.queue(pack.queue)})));")

    def _user_of(self, op: cores.ConfigureOp) -> SSAValue:
        """The queue that the next operation uses a unit for, in the state that it is given."""
        unit, state = op.unit, op.state
        user = following(op, lambda each: cores.states_of(each).get(unit) == state)
        match user:
            case cores.PackOp():
                return user.queue
            case cores.CopyOp() | cores.TilizeOp() | cores.BinaryOp() | cores.MatmulOp() | cores.ReduceOp():
                sources = _sources(user)
                return sources[0] if unit == cores.UNPACK_A else sources[-1]
            case _:
                raise CompilerBug(f"nothing uses the unit `{unit}` in the state `{state}`")

    def _print_matrix(self, op: cores.ConfigureOp, state: str) -> None:
        for before in [each for each in self._matrix if each is not None]:
            self._print_end(op, before)
        user = _prepares(op)
        outlasts = isinstance(user, cores.ReduceOp | cores.TilizeOp) or _is_broadcast(user)
        self._matrix = (user if outlasts else None,)
        match user:
            case cores.CopyOp():
                self._prepare_copy(user)
            case cores.TilizeOp():
                self._prepare_tilize(user)
            case cores.BinaryOp():
                self._prepare_binary(user)
            case cores.MatmulOp():
                rows, columns, _ = user.block_shape
                self.includes["api/compute/matmul.h"] = None
                arguments = [self.queue(user.left), self.queue(user.right), str(int(user.transpose))]
                arguments += [str(each) for each in (columns, rows, user.left_stride)]
                self.line(f"matmul_block_init({', '.join(arguments)});")
            case cores.ReduceOp():
                self._prepare_reduce(user)
            case _:
                raise CompilerBug(f"nothing uses the matrix unit in the state `{state}`")

    def _end_states_of_pack(self, op: Operation) -> None:
        """Take back what the matrix unit is prepared for that pack is, too: preparing pack would break it, and it is
        prepared again before it is used."""
        for before in [each for each in self._matrix if isinstance(each, cores.ReduceOp | cores.TilizeOp)]:
            self._print_end(op, before)
            self._matrix = _unique(*(each for each in self._matrix if each is not before), None)

    def _print_end(self, op: Operation, before: _Matrix) -> None:
        """Take back what outlasts an operation, before another one."""
        if isinstance(before, cores.ReduceOp):
            self.line(f"reduce_uninit({self.queue(before.queue)});")
            self._print_mask(op)
        elif isinstance(before, cores.TilizeOp):
            self.line(f"tilize_uninit({self.queue(before.queue)}, {self._packed_to(before)});")
        elif isinstance(before, cores.CopyOp) and _is_broadcast(before):
            kind = _BROADCAST_TYPES[before.broadcast]
            self.line(f"unary_bcast_uninit<BroadcastType::{kind}>({self.queue(before.queue)});")

    def _print_last_ends(self) -> None:
        """Units are left as the next program takes them to be: inputs and pack go through whole tiles."""
        for each in self._matrix:
            if isinstance(each, cores.TilizeOp | cores.ReduceOp):
                self._print_end(each, each)
        if self._rows is not None:
            self.line(f"pack_untilize_uninit({self.queue(self._rows)});")

    def _packed_to(self, op: Operation) -> str:
        """The queue that the next registers are packed to."""
        pack = following(op, lambda each: isinstance(each, cores.PackingOp))
        if not isinstance(pack, cores.PackingOp):
            raise CompilerBug(f"the result of {op.name} is not packed")
        return self.queue(pack.queue)

    def _prepare_tilize(self, op: cores.TilizeOp) -> None:
        self.includes["api/compute/tilize.h"] = None
        self.line(f"tilize_init({self.queue(op.queue)}, {len(op.slots)}, {self._packed_to(op)});")

    def _prepare_untilize(self, op: cores.UntilizeOp) -> None:
        self._rows = op.queue
        self.includes["api/compute/pack_untilize.h"] = None
        self.line(f"pack_untilize_dest_init<{len(op.slots)}, {len(op.slots)}>({self.queue(op.queue)});")

    def _prepare_copy(self, op: cores.CopyOp) -> None:
        queue = self.queue(op.queue)
        if op.transpose:
            if op.broadcast != cores.NONE:
                raise UnsupportedOnTargetError(
                    "a tile is not transposed and broadcast at once", help="transpose it into a tile of its own first"
                )
            self.includes["api/compute/transpose.h"] = None
            self.line(f"transpose_init({queue});")
        elif op.broadcast == cores.NONE:
            self.includes["api/compute/tile_move_copy.h"] = None
            self.line(f"copy_init({queue});")
        else:
            self.includes["api/compute/bcast.h"] = None
            self.line(f"unary_bcast_init<BroadcastType::{_BROADCAST_TYPES[op.broadcast]}>({queue});")

    def _prepare_binary(self, op: cores.BinaryOp) -> None:
        queues, verb = f"{self.queue(op.left)}, {self.queue(op.right)}", _VERBS[op.fn]
        if op.broadcast != cores.NONE:
            if op.accumulates:
                raise UnsupportedOnTargetError(
                    f"`{op.fn}` with a broadcast is not added to a register", help="add it by the vector unit"
                )
            self.includes["api/compute/bcast.h"] = None
            self.line(f"{verb}_bcast_{_BROADCASTS[op.broadcast]}_init({queues});")
            return
        self.includes["api/compute/eltwise_binary.h"] = None
        # Products are added to registers whatever is asked for: those that were acquired are zero.
        accumulates = ", true" if op.accumulates else ""
        self.line(f"{verb}_init({queues}{accumulates});")

    def _prepare_reduce(self, op: cores.ReduceOp) -> None:
        self.includes["api/compute/reduce.h"] = None
        out = self._packed_to(op)
        queue, scaler = self.queue(op.queue), self.queue(op.scaler)
        swaps = op.fn == "add" and op.along == cores.ROW
        if swaps and cores.queue_type(op.queue).format != cores.queue_type(op.scaler).format:
            # Sums along rows are products with the scaler, which is the first operand there.
            self.includes["api/compute/reconfig_data_format.h"] = None
            self.line(f"reconfig_data_format({scaler}, {queue});")
        self.line(f"reduce_init<{_reduction(op)}>({queue}, {scaler}, {out});")

    def _print_vector(self, op: cores.ConfigureOp) -> None:
        user = following(op, lambda each: cores.states_of(each).get(cores.VECTOR) == op.state)
        calls = self._vector_calls(user) if user is not None else []
        inits = {call.init for call in calls}
        if len(inits) == 1 and inits != {self._vector}:
            self._print_init(calls[0])

    def _print_init(self, call: Call) -> None:
        self.includes[call.include] = None
        self._vector = call.init
        self.line(call.init)

    # ---- matrix unit ------------------------------------------------------------------------------------------------

    def _print_copy(self, op: cores.CopyOp) -> None:
        queue = self.queue(op.queue)
        call = "copy_tile" if not op.transpose else "transpose_tile"
        if op.broadcast != cores.NONE:
            call = f"unary_bcast<BroadcastType::{_BROADCAST_TYPES[op.broadcast]}>"
        with self.loops((len(op.slots),)) as (index,):
            (at,) = self.map(op.at, op.symbols, [index])
            self.line(f"{call}({queue}, {at.text}, {_slot(op, index)});")

    def _print_tilize(self, op: cores.TilizeOp) -> None:
        self.helpers[_TILIZE_ROWS] = None
        (at,) = self.map(op.at, op.symbols, [constant(0)])
        self.line(f"tilize_rows({self.queue(op.queue)}, {len(op.slots)}, {at.text}, {op.slots.start});")

    def _print_binary(self, op: cores.BinaryOp) -> None:
        broadcast = "" if op.broadcast == cores.NONE else f"_bcast_{_BROADCASTS[op.broadcast]}"
        call = f"{_VERBS[op.fn]}_tiles{broadcast}"
        left, right = self.queue(op.left), self.queue(op.right)
        with self.loops((len(op.slots),)) as (index,):
            (left_at,) = self.map(op.left_at, op.symbols, [index])
            (right_at,) = self.map(op.right_at, op.symbols, [index])
            self.line(f"{call}({left}, {right}, {left_at.text}, {right_at.text}, {_slot(op, index)});")

    def _print_matmul(self, op: cores.MatmulOp) -> None:
        rows, columns, depth = op.block_shape
        left_stride, right_stride = op.left_stride, op.right_stride
        left, right = self.queue(op.left), self.queue(op.right)
        (left_at,) = self.map(op.left_at, op.symbols)
        (right_at,) = self.map(op.right_at, op.symbols)
        with self.loops((depth,)) as (step,):
            places = [add(left_at, step).text, add(right_at, multiply(step, constant(right_stride))).text]
            shape = [int(op.transpose), columns, rows, left_stride]
            arguments = [left, right, *places, str(op.slots.start), *map(str, shape)]
            self.line(f"matmul_block({', '.join(arguments)});")

    def _print_reduce(self, op: cores.ReduceOp) -> None:
        queue, scaler = self.queue(op.queue), self.queue(op.scaler)
        with self.loops((op.pages,)) as (page,):
            (at,) = self.map(op.at, op.symbols, [page])
            self.line(f"reduce_tile<{_reduction(op)}>({queue}, {scaler}, {at.text}, 0, {op.slots.start});")

    # ---- vector unit ------------------------------------------------------------------------------------------------

    def _vector_calls(self, op: Operation) -> list[Call]:
        wide = self.facts.wide
        match op:
            case cores.MapOp():
                numbers = [float(each) for each in op.numbers]
                operands: list[Operand] = [Register(n) if n >= 0 else numbers[-1 - n] for n in op.operand_numbers]
                _keep_apart(op, [each.number for each in operands if isinstance(each, Register)])
                dtype, spare = dtypes.by_name(op.dtype), self._spare_register(len(op.slots))
                return calls_of(op.fn, dtype, operands, op.slots.start, wide, spare)
            case cores.CastOp():
                source = op.source
                _keep_apart(op, [source])
                if op.bits:
                    return bits_calls(Register(source), op.slots.start)
                return cast_calls(Register(source), op.from_type, op.to_type, op.slots.start, wide)
            case cores.FoldOp():
                return fold_calls(op.fn, op.along, dtypes.by_name(op.dtype), op.slots.start, wide)
            case _:
                raise CompilerBug(f"{op.name} is not of the vector unit")

    def _spare_register(self, count: int) -> int | None:
        """The first of so many registers that the thread does not use."""
        first = self._used_registers
        return first if first + count <= self.facts.grid.half_registers(self.facts.wide) else None

    @cached_property
    def _used_registers(self) -> int:
        """One past the last register that the thread uses."""
        ops = [op for op in self.thread.body.walk() if isinstance(op, cores.RegisterOp | cores.PackingOp)]
        return max(op.slots.stop for op in ops)

    def _print_calls(self, calls: Sequence[Call], count: int) -> None:
        """Each call, for all registers."""
        for call in calls:
            if call.init != self._vector:
                self._print_init(call)
            self.includes[call.include] = None
            with self.loops((count,)) as (index,):
                registers = [add(constant(register), index).text for register in call.registers]
                self.line(f"{call.function}({', '.join([*registers, *call.parameters])});")

    # ---- pack -------------------------------------------------------------------------------------------------------

    def _print_accumulate(self, op: cores.AccumulateOp) -> None:
        self._accumulates = True
        self.includes["api/compute/pack.h"] = None
        (value,) = self.map(op.map, op.symbols)
        condition = str(int(value.number != 0)) if value.number is not None else f"{value.within(2)} != 0"
        self.line(f"pack_reconfig_l1_acc({condition});")

    def _print_pack(self, op: cores.PackOp) -> None:
        self.includes["api/compute/pack.h"] = None
        queue = self.queue(op.queue)
        with self.loops((len(op.slots),)) as (index,):
            (at,) = self.map(op.at, op.symbols, [index])
            self.line(f"pack_tile<true>({add(constant(op.slots.start), index).text}, {queue}, {at.text});")

    def _print_untilize(self, op: cores.UntilizeOp) -> None:
        (at,) = self.map(op.at, op.symbols, [constant(0)])
        if at.number != 0:
            raise CompilerBug(f"rows are packed to page {at.text} of a queue, and not to its back")
        count, queue = len(op.slots), self.queue(op.queue)
        self.line(f"pack_untilize_dest<{count}, {count}>({queue}, 1, 0, {op.slots.start});")


def _slot(op: cores.RegisterOp, index: Value) -> str:
    return add(constant(op.slots.start), index).text


def _sources(op: _Matrix) -> Sequence[SSAValue]:
    """The queues that go to the first and the second input of the matrix unit."""
    match op:
        case cores.CopyOp() | cores.TilizeOp():
            return [op.queue]
        case cores.BinaryOp():
            return [op.left, op.right]
        case cores.MatmulOp():
            return [op.right, op.left]
        case cores.ReduceOp():
            return [op.queue, op.scaler]


def _prepares(op: cores.ConfigureOp) -> _Matrix | None:
    """The operation that a state of the matrix unit is for: the next one that needs it."""
    user = following(op, lambda each: cores.states_of(each).get(cores.MATRIX) == op.state)
    return user if isinstance(user, _Matrix) else None


def _is_prepared_inside(op: tile.ForOp) -> bool:
    """Whether pack is prepared for something in a loop."""
    return any(isinstance(each, cores.ConfigureOp) and each.unit == cores.PACK for each in op.body.walk())


def _is_broadcast(op: _Matrix | None) -> bool:
    return isinstance(op, cores.CopyOp) and op.broadcast != cores.NONE


def _is_at_start(op: cores.ConfigureOp) -> bool:
    """Whether it is outside of loops, and nothing before it uses or changes a unit."""
    before = op.prev_op
    while before is not None:
        if not isinstance(before, cores.ConfigureOp | cores.RegistersOp | cores.QueueStepOp):
            return False
        if isinstance(before, cores.ConfigureOp) and before.unit == op.unit:
            return False
        before = before.prev_op
    return isinstance(op.parent_op(), cores.ThreadOp)


def _reduction(op: cores.ReduceOp) -> str:
    return f"PoolType::{_POOLS[op.fn]}, ReduceDim::{_REDUCED[op.along]}"


def _keep_apart(op: cores.RegisterOp, operands: Sequence[int]) -> None:
    """Operands are where the results go, or wholly elsewhere: what is done for one register after the other holds."""
    first, count = op.slots.start, len(op.slots)
    if any(0 < abs(first - operand) < count for operand in operands):
        raise CompilerBug(f"{op.name}: {count} registers from {first} on overlap operands at {operands}")
