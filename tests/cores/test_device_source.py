"""Programs printed as C++: the text is as a person would write it, says what the program says, and the real headers of
TT-Metalium take it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import FloatAttr, f64
from xdsl.ir.affine import AffineExpr

from tests.cores import fake_ttnn, headers, programs
from tests.cores.builder import Builder, affine
from tilewright import dtypes, ops
from tilewright.dialects import cores, tile
from tilewright.errors import UnsupportedOnTargetError
from tilewright.machines import machine as machines
from tilewright.targets.grid.emit import ProgramSource, emit_program
from tilewright.targets.grid.emit_expressions import Value, constant, evaluate, variable
from tilewright.targets.grid.emit_functions import Register, calls_of

MACHINES = ("wormhole", "blackhole")
NAMED: dict[str, Callable[[], tile.KernelOp]] = {
    "elementwise": lambda: programs.elementwise(8, 2, 4, rows=3),
    "matmul": lambda: programs.single_core_matmul(2, 3, 2),
    "accumulated": lambda: programs.single_core_matmul(2, 3, 2, accumulates=True),
    "multicast": lambda: programs.multicast_matmul(2, 3, 4),
    "row sums": lambda: programs.row_sums(3, padding=5),
    "to one": lambda: programs.gather_to_one(4),
    "through memory": lambda: programs.through_memory(3, "f32"),
    "by elements": lambda: programs.shifted_elements(20, 17),
    "all movers": lambda: all_movers(),
    "all computing": lambda: all_computing(),
    "control flow": lambda: control_flow(),
}


def source_of(name: str, machine: str = "wormhole") -> ProgramSource:
    return emit_program(NAMED[name](), machines.load(machine))


def texts(source: ProgramSource) -> dict[str, str]:
    found = {"reader": source.reader, "compute": source.compute, "writer": source.writer}
    return {role: text for role, text in found.items() if text is not None}


def formats_of(kernel: tile.KernelOp) -> list[str]:
    return [op.result.type.format.data for op in kernel.walk() if isinstance(op, cores.QueueOp)]  # type: ignore[union-attr]


def is_wide(kernel: tile.KernelOp) -> bool:
    return any(isinstance(op, cores.ProgramOp) and op.wide is not None for op in kernel.walk())


def pad(
    b: Builder, array: int, queue: Any, map: str, symbols: Sequence[Any], extents: Sequence[int], at: str, fill: float
) -> None:
    given = len(symbols)
    attributes = {"extents": tuple(extents), "map": affine(map, len(extents), given), "fill": FloatAttr(fill, f64)}
    b.add(cores.PadOp, [b.arrays[array], queue, *symbols], attributes | {"at": affine(at, len(extents), given)})


def rearrange(b: Builder, source: Any, queue: Any, extents: Sequence[int], *places: tuple[Any, ...]) -> None:
    """`places`: of the source and of the queue the map, the shape of the tile, and its dims along rows and columns."""
    attributes: dict[str, Any] = {"extents": tuple(extents)}
    for prefix, (map, shape, (rows, columns)) in zip(("source_", ""), places, strict=True):
        attributes |= {f"{prefix}map": affine(map, len(extents), 0), f"{prefix}shape": tuple(shape)}
        attributes |= {f"{prefix}rows": rows, f"{prefix}columns": columns}
    b.add(cores.RearrangeOp, [source, queue], attributes)


def all_movers() -> tile.KernelOp:
    """Each operation of threads that move data, with places that may be outside of arrays; it does nothing sensible."""
    shape = (3, 70, 45)
    b = Builder((2, 4), [(shape, "f32", "in"), ((50,), "i32", "in"), (shape, "f32", "out"), ((40, 40), "bf16", "in")])
    x, y, w = (b.queue("f32", 16) for _ in range(3))
    i, h, z = b.queue("i32", 12), b.queue("bf16", 4), b.queue("i32", 4)
    ready, sent = b.semaphore(), b.semaphore(3)
    here = [b.row, b.column]
    with b.thread("reader"):
        b.reserve(x, 4)
        with b.loop(5) as k:
            b.fetch(0, x, "s2 - 1, d0 + s0, d1 - s1", [*here, k], extents=(2, 2), at="2 * d0 + d1", zeros=True)
            b.barrier("read")
            pad(b, 0, x, "s2 - 1, d0 + s0, d1 - s1", [*here, k], (2, 2), "2 * d0 + d1", 1.5)
        b.push(x, 4)
        b.reserve(i, 2)
        b.generate(i, "d0 * 32 + d1 + 1024 * d2 - s1", here, count=2)
        b.push(i, 2)
        b.reserve(h, 2)
        b.generate(h, "d0 + d1 - s0", here, choice=(30.5, 1.0, float("-inf")))
        b.generate(h, "1", face_rows=True)
        b.generate(h, "d0 - d1", count=2)
        b.push(h, 2)
        b.wait(i, 2)
        b.reserve(y, 4)
        b.gather(0, y, "s0, d1 + s2, d0 - s1", [*here], [i], shape=(3, 40, 45), rows=1, columns=2, fill=float("inf"))
        b.push(y, 4)
        b.reserve(z, 4)
        b.gather(1, z, "d0 + s0", [b.column], shape=(50,), rows=-1, columns=0)
        b.push(z, 4)
        b.reserve(i, 4)
        b.wait(z, 4)
        rearrange(b, z, i, (40, 30), ("d0, d1", (40, 50), (0, 1)), ("d1, d0", (50, 40), (1, 0)))
    with b.thread("writer"):
        b.wait(x, 4)
        b.send(x, w, "s0, (s1 + 1) % 4", here, at="1", to="s1", pages=2)
        b.increment(ready, "s0, (s1 + 1) % 4", here, value=2)
        b.wait_semaphore(ready, 2, at_least=True)
        b.set(ready, 0)
        b.reserve(w, 2)
        b.multicast(w, "0, 0, s0, 3", here, at="1", pages=1)
        b.multicast(w, "0, s1, 1, s1", here, pages=2)
        b.barrier("write")
        b.multicast_semaphore(sent, "1, 0, 1, 3")
        b.barrier("write")
        b.put(2, x, "d0, s0, s1", here, extents=(3,))
        b.scatter(2, x, "d0 - s0, d1, d2", here, shape=(2, 40, 33), rows=1, columns=2)
        b.increment(ready, "0, 0")
        b.barrier("write")
        b.pop(x, 4)
    return b.finished()


def all_computing() -> tile.KernelOp:
    """Each operation of the thread that computes, in many forms."""
    b = Builder((1, 1), [((32, 32), "bf16", "in"), ((32, 32), "bf16", "out")])
    x, y, ones, z, f, i = (b.queue(name, 8) for name in ("bf16", "bfp8", "bf16", "bf16", "f32", "i32"))
    with b.thread("compute"):
        b.wait(x, 8)
        b.reserve(z, 8)
        for sequence in range(2):
            b.registers("acquire")
            b.copy(x, 0, 2, at="2 * d0 + 1")
            for broadcast in ("row", "column", "scalar"):
                b.copy(x, 1, broadcast=broadcast)
            b.copy(y, 2, 2, transpose=True)
            for fn in ("add", "subtract", "multiply"):
                for broadcast in ("none", "row", "column", "scalar"):
                    b.binary(fn, x, y, 0, 3, "d0", "0", broadcast=broadcast)
                b.binary(fn, x, y, accumulates=True)
            b.matmul(x, y, (2, 2, 3), left_at="1", right_at="2", left_stride=4, right_stride=2)
            b.matmul(x, y, (1, 1, 1), transpose=True)
            for fn in ("add", "maximum"):
                for along in ("row", "column", "scalar"):
                    b.reduce(x, ones, fn, along, pages=4, at="d0 + 4")
            for along in ("row", "column"):
                b.fold("minimum", along, 1, 2)
            b.cast(0, 0, "f32", "bf16")
            b.registers("commit")
            b.registers("wait")
            if sequence:
                b.configure("edges", "row")
            b.pack(z, 0, 2, at="d0 * 3")
            b.configure("edges", "none")
            b.registers("release")
        b.push(z, 8)
    with b.thread("reader"):
        b.reserve(f)
        b.reserve(i)
    return b.finished()


def control_flow() -> tile.KernelOp:
    """Loops with ends, choices inside of loops, and packing on top of what is there, by counters."""
    b = Builder((3, 2), [((32, 64), "bf16", "in"), ((32, 64), "bf16", "out")])
    x, z = b.queue("bf16", 2), b.queue("bf16", 2)
    here = [b.row, b.column]
    with b.thread("reader"), b.loop(7, "3 * s0 + s1 - 2", here) as i, b.loop(1), b.loop(4, "s0", [b.row]) as j:
        with b.choice("(s0 + s1) % 3", [i, j]) as (then, otherwise):
            with b.within(then):
                b.reserve(x)
            with b.within(otherwise), b.zero("s0 - 2", [j]):
                b.push(x)
        b.fetch(0, x, "0, (s0 - s1) // 2", [i, j])
    with b.thread("compute"), b.loop(6) as k:
        b.accumulate("s0", [k])
        b.registers("acquire")
        with b.choice("s0", [b.row]) as (then, otherwise):
            with b.within(then):
                b.copy(x)
                b.map("exp", [0])
            with b.within(otherwise):
                b.copy(x, broadcast="row")
                b.map("add", [0, -1], numbers=[2.5])
        b.map("exp", [0])
        b.map("add", [0, 1])
        b.map("add", [0, -1], numbers=[1.0])
        b.registers("commit")
        b.registers("wait")
        b.pack(z)
        b.registers("release")
    return b.finished()


# ---- the text -------------------------------------------------------------------------------------------------------


def test_a_program_reads_as_a_person_would_write_it():
    source = emit_program(programs.elementwise(4, 2, 4, rows=2), machines.load("wormhole"))
    assert source.reader == READER
    assert source.compute == COMPUTE


READER = """\
// program: brings what is computed with to the queues, on each of 2 x 1 cores.

#include "api/dataflow/dataflow_api.h"

void kernel_main() {
    constexpr uint32_t cb_in0 = 0;
    constexpr uint32_t cb_in1 = 1;
    constexpr uint32_t cb_in0_bytes = get_tile_size(cb_in0);
    constexpr uint32_t cb_in1_bytes = get_tile_size(cb_in1);
    const uint32_t core_row = get_arg_val<uint32_t>(0);
    constexpr auto in0_args = TensorAccessorArgs<0>();
    const auto in0 = TensorAccessor(in0_args, get_common_arg_val<uint32_t>(0));
    constexpr auto in1_args = TensorAccessorArgs<in0_args.next_compile_time_args_offset()>();
    const auto in1 = TensorAccessor(in1_args, get_common_arg_val<uint32_t>(1));

    for (uint32_t i = 0; i < 2; ++i) {
        cb_reserve_back(cb_in0, 2);
        for (uint32_t j = 0; j < 2; ++j) {
            noc_async_read_page(core_row * 4 + i * 2 + j, in0, get_write_ptr(cb_in0) + j * cb_in0_bytes);
        }
        noc_async_read_barrier();
        cb_push_back(cb_in0, 2);
        cb_reserve_back(cb_in1, 2);
        for (uint32_t j = 0; j < 2; ++j) {
            noc_async_read_page(core_row * 4 + i * 2 + j, in1, get_write_ptr(cb_in1) + j * cb_in1_bytes);
        }
        noc_async_read_barrier();
        cb_push_back(cb_in1, 2);
    }
}
"""
COMPUTE = """\
// program: computes, on each of 2 x 1 cores.

#include "api/compute/compute_kernel_hw_startup.h"
#include "api/compute/common.h"
#include "api/compute/eltwise_binary.h"
#include "api/compute/pack.h"

void kernel_main() {
    constexpr uint32_t cb_in0 = 0;
    constexpr uint32_t cb_in1 = 1;
    constexpr uint32_t cb_out0 = 2;

    compute_kernel_hw_startup(cb_in0, cb_in1, cb_out0);

    add_init(cb_in0, cb_in1);
    for (uint32_t i = 0; i < 2; ++i) {
        cb_wait_front(cb_in0, 2);
        cb_wait_front(cb_in1, 2);
        tile_regs_acquire();
        for (uint32_t j = 0; j < 2; ++j) {
            add_tiles(cb_in0, cb_in1, j, j, j);
        }
        tile_regs_commit();
        cb_pop_front(cb_in0, 2);
        cb_pop_front(cb_in1, 2);
        cb_reserve_back(cb_out0, 2);
        tile_regs_wait();
        for (uint32_t j = 0; j < 2; ++j) {
            pack_tile<true>(j, cb_out0, j);
        }
        tile_regs_release();
        cb_push_back(cb_out0, 2);
    }
}
"""


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", NAMED)
def test_texts_are_in_shape(name, machine):
    source = source_of(name, machine)
    assert source == source_of(name, machine)
    for text in texts(source).values():
        assert all(len(line) <= 120 and line == line.rstrip() and "\t" not in line for line in text.splitlines())
        assert text.count("{") == text.count("}")
        assert text.endswith("}\n")
        assert "\n\n\n" not in text
        assert len(re.findall(r"#include (.*)", text)) == len({*re.findall(r"#include (.*)", text)})


@pytest.mark.parametrize("name", NAMED)
def test_nothing_is_declared_in_vain(name):
    for text in texts(source_of(name)).values():
        declared = re.findall(r"(?:constexpr|const) (?:uint32_t|auto) (\w+) =", text)
        declared += re.findall(r"^(?:inline \w+|inline volatile tt_l1_ptr uint32_t\*) (\w+)\(", text, re.MULTILINE)
        unused = [each for each in declared if len(re.findall(rf"\b{each}\b", text)) < 2]
        assert not unused, text


def test_init_calls_are_where_units_change():
    compute = source_of("control flow").compute
    assert compute is not None
    body = compute[compute.index("for (") :]
    # Behind a choice with two ways, the vector unit is prepared again; an addition of a number is another preparation
    # than one of registers, though the state has one name.
    after = body[body.index("} else {") :].split("}", 2)[2]
    assert re.findall(r"(\w+_init)\(", after) == [
        "exp_tile_init",
        "add_binary_tile_init",
        "binop_with_scalar_tile_init",
    ]
    assert "unary_bcast_uninit<BroadcastType::ROW>" in body
    assert compute.rstrip().endswith("pack_reconfig_l1_acc(0);\n}")


def test_a_wait_for_writes_is_before_increments_only_where_something_may_be_under_way():
    reader, writer = (texts(source_of("multicast"))[role] for role in ("reader", "writer"))
    for text in (reader, writer):
        assert "else {\n            noc_semaphore_inc" in text
    moves = texts(source_of("all movers"))["writer"]
    assert re.search(r"noc_async_write_barrier\(\);\n    noc_semaphore_inc\(core_address\(core_row", moves)


# ---- expressions ----------------------------------------------------------------------------------------------------

SIZES = (1, 5, 7)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> AffineExpr:
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        leaf = draw(st.integers(0, 2))
        if leaf == 0:
            return AffineExpr.constant(draw(st.integers(-9, 9)))
        return (
            AffineExpr.dimension(draw(st.integers(0, 2))) if leaf == 1 else AffineExpr.symbol(draw(st.integers(0, 2)))
        )
    left = draw(expressions(depth - 1))
    match draw(st.integers(0, 4)):
        case 0:
            return left + draw(expressions(depth - 1))
        case 1:
            return left * draw(st.integers(-4, 4))
        case 2:
            return left // draw(st.integers(1, 5))
        case 3:
            return left % draw(st.integers(1, 5))
        case _:
            return left.ceil_div(draw(st.integers(1, 5)))


@settings(max_examples=400, deadline=None)
@given(expressions())
def test_expressions_say_what_the_maps_say(expression):
    dims = [variable(f"i{n}", size) for n, size in enumerate(SIZES)]
    symbols = [variable(f"s{n}", size) for n, size in enumerate(SIZES)]
    value = evaluate(expression, dims, symbols)
    python = value.text.replace("/", "//")
    for point in np.ndindex(*SIZES, *SIZES):
        names = dict(zip(("i0", "i1", "i2", "s0", "s1", "s2"), point, strict=True))
        found = eval(python, {"floor_divide": _floor_divide}, {n: _Unsigned(v) for n, v in names.items()})
        wanted = expression.eval(list(point[:3]), list(point[3:]))
        assert int(found) % 2**32 == wanted % 2**32
        assert value.low <= wanted <= value.high


def _signed(number: int) -> int:
    return (int(number) + 2**31) % 2**32 - 2**31


def _floor_divide(number: int, divisor: int) -> _Unsigned:
    return _Unsigned(_signed(number) // int(divisor))


class _Unsigned(int):
    """A number of C++'s `uint32_t`, whose quotients are those of what wraps around."""

    def __new__(cls, value: int) -> _Unsigned:
        return super().__new__(cls, value % 2**32)

    def _with(self, operation: str, other: int) -> _Unsigned:
        return _Unsigned(getattr(int, operation)(self, int(other) % 2**32))

    __add__ = __radd__ = lambda self, other: self._with("__add__", other)
    __mul__ = __rmul__ = lambda self, other: self._with("__mul__", other)
    __floordiv__ = lambda self, other: self._with("__floordiv__", other)  # noqa: E731
    __mod__ = lambda self, other: self._with("__mod__", other)  # noqa: E731
    __sub__ = lambda self, other: self._with("__sub__", other)  # noqa: E731
    __rsub__ = lambda self, other: _Unsigned(other - int(self))  # noqa: E731
    __neg__ = lambda self: _Unsigned(-int(self))  # noqa: E731


def test_what_is_known_is_not_computed():
    i, s = variable("i", 4), variable("s", 8)
    d0, s0 = AffineExpr.dimension(0), AffineExpr.symbol(0)
    cases = {
        (d0 * 1 + 0): "i",
        (d0 // 4): "0",
        (d0 % 4): "i",
        (s0 * 4 + d0): "s * 4 + i",
        ((s0 + d0) // 2): "(s + i) / 2",
        (s0 + -3): "s - 3",
        ((s0 + -3) // 2): "floor_divide(s - 3, 2)",
        (s0 % 8 // 2): "s / 2",
    }
    assert {str(e): evaluate(e, [i], [s]).text for e in cases} == {str(e): text for e, text in cases.items()}
    assert constant(-2) == Value("-2", -2, -2, 2)


# ---- functions ------------------------------------------------------------------------------------------------------

# What the vector unit has no call for, by type.
REFUSED = {
    "f32": {
        "copysign",
        "hypot",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "bitwise_not",
        "shift_left",
        "shift_right",
    },
    "i32": {"sign", "power"},
    "u32": {"sign", "absolute", "floor_divide", "power"},
}


def functions_of(dtype: str) -> list[str]:
    kind = dtypes.by_name(dtype).kind
    return [
        name for name, row in ops.FUNCTIONS.items() if kind in row.kinds or (dtype == "f32" and name in REFUSED["f32"])
    ]


@pytest.mark.parametrize("dtype", REFUSED)
def test_functions_without_a_form_are_refused_by_name(dtype):
    for fn in functions_of(dtype):
        operands = [Register(n) for n in range(ops.FUNCTIONS[fn].arity)]
        if fn in REFUSED[dtype]:
            with pytest.raises(UnsupportedOnTargetError, match=f"`{fn}` of {dtype}"):
                calls_of(fn, dtypes.by_name(dtype), operands, 0, wide=True)
        else:
            assert calls_of(fn, dtypes.by_name(dtype), operands, 0, wide=True)[-1].registers[-1] == 0


def test_numbers_take_calls_of_their_own():
    f32, x = dtypes.f32, Register(3)

    def text(fn: str, *operands: Register | float, slot: int = 3, spare: int | None = None) -> list[str]:
        calls = calls_of(fn, f32, operands, slot, wide=True, spare=spare)
        return [f"{c.function}({', '.join([*map(str, c.registers), *c.parameters])})" for c in calls]

    assert text("add", x, 1.5) == text("add", 1.5, x) == ["add_unary_tile(3, 0x3FC00000)"]
    assert text("subtract", x, 1.5) == ["sub_unary_tile(3, 0x3FC00000)"]
    assert text("subtract", 1.5, x) == ["rsub_unary_tile(3, 0x3FC00000)"]
    assert text("divide", x, 4.0) == ["mul_unary_tile(3, 0x3E800000)"]
    assert text("less", 1.0, x) == ["unary_gt_tile(3, 0x3F800000)"]
    assert text("exp", x, slot=5) == ["copy_dest_values<DataFormat::Float32>(3, 5)", "exp_tile(5)"]
    assert text("add", 1.0, 2.0) == ["fill_tile(3, 3.0f)"]
    assert text("fill", float("inf")) == ["fill_tile_bitcast(3, 0x7F800000)"]
    assert text("atan2", 2.0, x, slot=1) == ["fill_tile(1, 2.0f)", "atan2_binary_tile(1, 3, 1)"]
    assert text("atan2", x, 2.0, spare=6) == ["fill_tile(6, 2.0f)", "atan2_binary_tile(3, 6, 3)"]
    assert text("select", x, Register(1), 2.0, slot=5) == [
        "fill_tile(5, 2.0f)",
        "where_tile<DataFormat::Float32>(3, 1, 5, 5)",
    ]
    assert text("select", x, 1.0, 0.0) == ["mul_unary_tile(3, 0x3F800000)", "add_unary_tile(3, 0x00000000)"]
    with pytest.raises(UnsupportedOnTargetError, match=r"`atan2` of f32.*needs a tile register more"):
        text("atan2", x, 2.0)


def program_of(fn: str, dtype: str, numbers: bool) -> tile.KernelOp:
    """A program with one function, of registers or of a register and a number on each side."""
    b = Builder((1, 1), [((32, 32), dtype, "in"), ((32, 32), dtype, "out")])
    x, z = b.queue(dtype, 2), b.queue(dtype, 2)
    arity = ops.FUNCTIONS[fn].arity
    with b.thread("compute"):
        b.registers("acquire")
        b.copy(x, 0, 1)
        if not numbers:
            b.map(fn, list(range(arity)), dtype=dtype)
        elif arity == 2:
            b.map(fn, [0, -1], numbers=[3.0], dtype=dtype)
            b.map(fn, [-1, 0], numbers=[3.0], dtype=dtype)
        b.registers("commit")
        b.registers("wait")
        b.pack(z)
        b.registers("release")
    return b.finished()


# ---- the host -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMED)
def test_the_host_gives_kernels_what_they_ask_for(name):
    kernel = NAMED[name]()
    source = emit_program(kernel, machines.load("wormhole"))
    tensors = [fake_ttnn.Tensor(1000 + number, 2048) for number in range(len(kernel.refs))]
    made = fake_ttnn.describe(source.host, texts(source), tensors)
    rows, columns = made.shape
    assert len(made.kernels) == len(texts(source))
    for described in made.kernels:
        text = described.kernel_source
        accessors = re.findall(r"TensorAccessor\(\w+, get_common_arg_val<uint32_t>\((\d+)\)\)", text)
        common = getattr(described, "common_runtime_args", [])
        tables = re.findall(r"noc_(?:x|y)_arguments = (\d+);", text)
        assert [int(each) for each in accessors] == list(range(len(accessors)))
        assert len(common) == len(accessors) + (rows + columns if tables else 0)
        assert len(getattr(described, "compile_time_args", [])) == 2 * len(accessors)
        if tables:
            assert [common[int(tables[0])], common[int(tables[1])]] == [fake_ttnn.FIRST_X, fake_ttnn.FIRST_Y]
        own = re.findall(r"const uint32_t (core_\w+) = get_arg_val<uint32_t>\((\d+)\)", text)
        given_to_cores = getattr(described, "runtime_args", {})
        for column in range(columns if own else 0):
            for row in range(rows):
                wanted = [{"core_row": row, "core_column": column}[each] for each, _ in own]
                assert given_to_cores[column][row] == wanted
    numbers = [cb.format_descriptors[0].buffer_index for cb in made.cbs]
    assert numbers == sorted({*numbers})
    named = {int(n) for text in texts(source).values() for n in re.findall(r"uint32_t cb_\w+ = (\d+);", text)}
    assert named <= {*numbers}
    assert len(made.semaphores) == sum(isinstance(op, cores.SemaphoreOp) for op in kernel.walk())


def test_what_ttnn_has_no_tensors_of_is_refused():
    with pytest.raises(UnsupportedOnTargetError, match="ttnn has no tensors of f16"):
        emit_program(programs.elementwise(2, dtype="f16"), machines.load("wormhole"))


def test_more_queues_than_a_core_has_are_refused():
    b = Builder((1, 1), [((32, 32), "bf16", "in")])
    for _ in range(33):
        b.queue("bf16", 1)
    kernel = b.finished()
    with pytest.raises(UnsupportedOnTargetError, match="33 queues, and a core of wormhole has 32"):
        emit_program(kernel, machines.load("wormhole"))
    assert emit_program(kernel, machines.load("blackhole")).compute is None


def test_single_elements_of_block_floats_are_refused():
    b = Builder((1, 1), [((32, 32), "bf16", "in")])
    queue = b.queue("bfp8", 1)
    with b.thread("reader"):
        b.reserve(queue)
        b.generate(queue, "1")
    with pytest.raises(UnsupportedOnTargetError, match="single elements of bfp8"):
        emit_program(b.finished(), machines.load("wormhole"))


# ---- the real headers -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_headers():
    try:
        headers.headers()
    except headers.NoHeaders as error:
        pytest.skip(str(error))


def check(kernel: tile.KernelOp, machine: str) -> dict[str, list[str]]:
    source = emit_program(kernel, machines.load(machine))
    formats, wide = formats_of(kernel), is_wide(kernel)
    checked = {role: headers.check_source(text, role, machine, formats, wide) for role, text in texts(source).items()}
    return {role: errors for role, errors in checked.items() if errors}


@pytest.mark.headers
@pytest.mark.usefixtures("real_headers")
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", NAMED)
def test_the_headers_take_what_is_printed(name, machine):
    assert not check(NAMED[name](), machine)


@pytest.mark.headers
@pytest.mark.usefixtures("real_headers")
@pytest.mark.parametrize("dtype", REFUSED)
def test_the_headers_have_all_functions(dtype):
    """One kernel with all calls: they are checked on the part that sees their declarations alone."""
    printed: list[str] = []
    includes: set[str] = set()
    for fn in functions_of(dtype):
        for numbers in (False, True):
            try:
                text = emit_program(program_of(fn, dtype, numbers), machines.load("wormhole")).compute
            except UnsupportedOnTargetError:
                continue
            assert text is not None
            includes |= {*re.findall(r"#include .*", text)}
            body = text[text.index("copy_tile(") : text.index("tile_regs_commit")]
            printed.append("{\n" + body[body.index("\n") + 1 :] + "}\n")
    assert len(printed) > 25
    source = "\n".join(sorted(includes)) + "\nvoid kernel_main() {\n" + "".join(printed) + "}\n"
    assert not headers.check_source(source, "compute", "wormhole", [dtype], wide=True, parts=["unpack"])
    assert not headers.check_source(source, "compute", "blackhole", [dtype], wide=True, parts=["unpack"])


@pytest.mark.headers
@pytest.mark.usefixtures("real_headers")
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "role", "right", "wrong", "says"),
    [
        (
            "through memory",
            "compute",
            "copy_tile(cb_in0, 0, 0)",
            "copy_tile(cb_in0, 0)",
            "no matching function for call",
        ),
        ("matmul", "compute", "tile_regs_commit()", "tile_regs_committed()", "undeclared identifier"),
        ("matmul", "reader", "cb_push_back(cb_in0, 2)", "cb_push_back(cb_in0)", "no matching function for call"),
        ("multicast", "writer", "noc_semaphore_inc(", "noc_semaphore_inc(1, 2, 3, 4, 5, ", "no matching function"),
    ],
)
def test_the_headers_refuse_what_is_wrong(name, role, right, wrong, says, machine):
    text = texts(source_of(name, machine))[role]
    assert right in text
    errors = headers.check_source(text.replace(right, wrong, 1), role, machine)
    assert errors
    assert all(error.startswith("kernel.cpp:") and says in error for error in errors)
