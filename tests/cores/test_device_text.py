"""Programs printed as C++: the text is as a person would write it, and says what the program says."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.ir.affine import AffineExpr

from tests.cores import programs
from tests.cores.builder import Builder
from tests.cores.compiling import compiled
from tests.cores.printed import MACHINES, NAMED, REFUSED, functions_of, source_of, texts
from tests.emulators import ttnn as fake_ttnn
from tests.programs import Program
from tilewright import dtypes, ops
from tilewright.dialects import cores
from tilewright.errors import UnsupportedOnTargetError
from tilewright.machines import machine as machines
from tilewright.passes.cores.sections import takes_number
from tilewright.targets.grid.emit import emit_program
from tilewright.targets.grid.emit_expressions import Value, constant, evaluate, variable
from tilewright.targets.grid.emit_functions import Register, calls_of

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


@settings(max_examples=150, deadline=None)
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


@pytest.mark.parametrize("machine", MACHINES)
def test_rows_are_pages_of_their_array(machine):
    program = Program("main")
    program.outputs = [program.array(2, 100, 200)]
    (tilize,) = compiled(program, machine, storage={0: "row-major"}).kernels()
    source = emit_program(tilize, machines.load(machine))
    assert "noc_async_read(array.get_noc_addr(row + i, offset), place, bytes);" in (source.reader or "")
    assert "up_to(32, 100 - " in (source.reader or "")
    compute = source.compute or ""
    begin, end = compute.index("tilize_init(cb_in0, 4, cb_out0);"), compute.index("tilize_uninit(cb_in0, cb_out0);")
    assert begin < compute.index("tilize_rows(cb_in0, 4, 0, 0);") < end
    assert "`in0` is by rows." in source.host
    assert "for index in [0]:\n        modes[index] = ttnn.UnpackToDestMode.UnpackToDestFp32" in source.host
    (untilize,) = compiled(program, machine, storage={1: "row-major"}).kernels()
    source = emit_program(untilize, machines.load(machine))
    assert "noc_async_write(place, array.get_noc_addr(row + i, offset), bytes);" in (source.writer or "")
    compute = source.compute or ""
    begin, end = (
        compute.index("pack_untilize_dest_init<4, 4>(cb_out0);"),
        compute.index("pack_untilize_uninit(cb_out0)"),
    )
    assert begin < compute.index("pack_untilize_dest<4, 4>(cb_out0, 1, 0, 0);") < end
    assert "for index in [0]:" in source.host


def test_pack_is_prepared_for_rows_and_for_tiles():
    (compute,) = texts(source_of("rows and tiles")).values()
    for before, after in itertools.pairwise(
        re.findall(r"pack_untilize_\w*init|pack_tile<|pack_untilize_dest<", compute)
    ):
        assert after != "pack_tile<" or before != "pack_untilize_dest<"
        assert after != "pack_untilize_dest<" or before == "pack_untilize_dest_init"


def test_rows_in_and_out_of_one_kernel_are_refused():
    b = Builder((1, 1), [((32, 32), "bf16", "in")])
    x, z = b.queue("bf16", 1), b.queue("bf16", 1)
    with b.thread("compute"):
        b.tilize(x)
        b.untilize(z)
    with pytest.raises(UnsupportedOnTargetError, match="takes rows and gives rows"):
        emit_program(b.finished(), machines.load("wormhole"))


def test_single_elements_of_block_floats_are_refused():
    b = Builder((1, 1), [((32, 32), "bf16", "in")])
    queue = b.queue("bfp8", 1)
    with b.thread("reader"):
        b.reserve(queue)
        b.generate(queue, "1")
    with pytest.raises(UnsupportedOnTargetError, match="single elements of bfp8"):
        emit_program(b.finished(), machines.load("wormhole"))


def test_numbers_are_in_registers_for_functions_that_take_no_others() -> None:
    """No register is needed beside those that the lowering gives."""
    refused = 0
    for name, function in ops.FUNCTIONS.items():
        for dtype in (dtypes.f32, dtypes.i32, dtypes.u32):
            if dtype.kind not in function.kinds:
                continue
            for numbers in itertools.product((False, True), repeat=function.arity):
                for said in _refusals(name, dtype, numbers):
                    assert "a tile register more" not in said, (name, dtype, numbers)
                    refused += 1
    assert refused, "some functions have no form at all"


def _refusals(name: str, dtype: dtypes.DType, numbers: tuple[bool, ...]) -> list[str]:
    """Why a function of registers, and numbers where it takes them, has no calls, for each register of its result."""
    places = itertools.count()
    operands = [
        3.0 if is_number and takes_number(name, dtype, position) else Register(next(places))
        for position, is_number in enumerate(numbers)
    ]
    found: list[str] = []
    for slot in range(next(places)):
        try:
            calls_of(name, dtype, operands, slot, wide=True, spare=None)
        except UnsupportedOnTargetError as error:
            found.append(str(error))
    return found
