"""Matmuls of bf16 by an instruction that multiplies words of two steps of the depth: NumPy's results exactly for whole
numbers, within the bound of f32 sums for others, on this host and by the meaning of the scheduled kernel."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal, get_args

import ml_dtypes
import numpy as np
import pytest
from xdsl.ir import Block
from xdsl.utils.exceptions import VerifyException

import tilewright as tw
from tests.fuzz.guarded_memory import guarded_copy
from tests.passes.pass_support import remarks, run, unit_of
from tests.programs import Program, build
from tests.sampling import alternating, sampled
from tilewright import dtypes
from tilewright.cost.vectors.register_blocks import register_blocks
from tilewright.dialects import array, scheduled, tile
from tilewright.frontend.build import build_module
from tilewright.frontend.trace import Value
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.pipelines import array_to_tile, compile_module, tile_to_vectors
from tilewright.primitives import ArrayType
from tilewright.schedules import VectorMatmul
from tilewright.targets.cpu.host import host_machine

Tensor = np.ndarray[Any, Any]
BF16, BF = ml_dtypes.bfloat16, dtypes.bf16
MACHINE = "x86-64-v4-bf16"
# Each f32 addition or multiplication is off by at most half of this, of a bf16 result by half of the other.
F32_EPS, BF16_EPS = 2.0**-23, 2.0**-7


def whole_numbers(shape: tuple[int, ...], seed: int) -> Tensor:
    """Small enough for every sum of products to be exact in f32."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(BF16)


def fractions(shape: tuple[int, ...], seed: int) -> Tensor:
    return np.random.default_rng(seed).standard_normal(shape).astype(BF16)


def exact(x: Tensor, w: Tensor) -> Tensor:
    return np.matmul(x.astype(np.float64), w.astype(np.float64))


def check_close(found: Tensor, x: Tensor, w: Tensor) -> None:
    """Within the rounding of a sum of f32 in any order, and of its result."""
    wanted, magnitude = exact(x, w), np.matmul(np.abs(x.astype(np.float64)), np.abs(w.astype(np.float64)))
    error = np.abs(np.asarray(found).astype(np.float64) - wanted)
    assert np.all(error <= magnitude * x.shape[-1] * F32_EPS / 2 + np.abs(wanted) * BF16_EPS / 2 * 1.01)


def turned(value: Tensor) -> Tensor:
    return np.ascontiguousarray(np.swapaxes(value, -1, -2))


def matmul(x, w):
    return x @ w


def by_rows(x, w):
    return x @ tw.matrix_transpose(w)


def of_columns(x, w):
    return tw.matrix_transpose(x) @ w


# ---- shapes ---------------------------------------------------------------------------------------------------------

SHAPES = (
    *((1, 64, 40), (5, 33, 17), (13, 7, 5), (30, 2, 30), (64, 64, 64), (3, 1, 4), (31, 3, 129), (29, 50, 16)),
    *((8, 700, 300), (65, 129, 257), (62, 1000, 256), (16, 31, 1040), (100, 4099, 33), (7, 8203, 70)),
)


@pytest.mark.parametrize(("shape", "batch", "threads"), alternating(SHAPES, [(), (3,)], [1, 2]), ids=str)
def test_operands_of_all_orders(shape: tuple[int, int, int], batch: tuple[int, ...], threads: int) -> None:
    rows, depth, columns = shape
    x, w = whole_numbers((*batch, rows, depth), 1), whole_numbers((*batch, depth, columns), 2)
    wanted = exact(x, w).astype(BF16)
    with tw.options(threads=threads):
        for function, left, right in ((matmul, x, w), (by_rows, x, turned(w)), (of_columns, turned(x), w)):
            np.testing.assert_array_equal(tw.jit(function, target="cpu")(left, right), wanted)


@pytest.mark.parametrize("seed", range(12))
def test_sizes_at_random(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows, depth, columns = (int(n) for n in np.exp(generator.uniform(0, np.log((200, 3000, 300)))))
    x, w = fractions((rows, depth), seed), fractions((depth, columns), seed + 1)
    for function, left, right in ((matmul, x, w), (by_rows, x, turned(w)), (of_columns, turned(x), w)):
        check_close(tw.jit(function, target="cpu")(left, right), x, w)


Source = Literal["in_place", "kept", "together"]


@pytest.mark.parametrize("right", get_args(Source))
@pytest.mark.parametrize("extents", [(16, 32, 10), (5, 64, 34), (64, 96, 12), (9, 32, 8), (67, 160, 33)], ids=str)
def test_tiles_that_divide_nothing(
    extents: tuple[int, int, int], right: Literal["in_place", "kept", "together"]
) -> None:
    """Sources of the right operand, and blocks of the depth, with an odd one last."""
    x, w = whole_numbers((67, 33), 3), whole_numbers((33, 150), 4)
    known = register_blocks(dtypes.f32, load(MACHINE))
    block = next((b.rows, b.columns) for b in known if extents[1] % b.columns == 0)
    lowered = tw.jit(matmul).lower(x, w)
    schedule = VectorMatmul(tile=extents, block=block, right=right)
    assert "vdpbf16ps" in lowered.compile(f"cpu:{MACHINE}", schedule=schedule).asm()
    if has_words():
        found = tw.jit(matmul, target=f"cpu:{MACHINE}", schedule=schedule)(x, w)
        np.testing.assert_array_equal(found, exact(x, w).astype(BF16))


def test_steps_that_begin_inside_a_word_are_multiplied_as_f32() -> None:
    x, w = whole_numbers((67, 33), 3), whole_numbers((33, 150), 4)
    lowered = tw.jit(matmul).lower(x, w)
    block = next((b.rows, b.columns) for b in register_blocks(dtypes.f32, load(MACHINE)) if b.vectors == 2)
    schedule = VectorMatmul(tile=(16, 32, 9), block=block)
    assert "vdpbf16ps" not in lowered.compile(f"cpu:{MACHINE}", schedule=schedule).asm()


def has_words() -> bool:
    """Whether the host has the instruction."""
    return host_machine().word_atom(dtypes.bf16, dtypes.bf16, dtypes.f32) is not None


# ---- what is around a matmul ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [32, 45])
def test_captured_weights_and_epilogues(depth: int) -> None:
    x, w, b = whole_numbers((70, depth), 5), whole_numbers((depth, 90), 6), whole_numbers((90,), 7)

    def layer(x):
        return tw.maximum(x @ w + b, 0) * 2

    rounded = exact(x, w).astype(BF16).astype(np.float32) + b.astype(np.float32)
    wanted = np.maximum(rounded.astype(BF16), BF16(0)) * BF16(2)
    np.testing.assert_array_equal(tw.jit(layer, target="cpu")(x), wanted)


def test_operands_that_are_computed() -> None:
    x, w = whole_numbers((40, 51), 8), whole_numbers((51, 37), 9)
    found = tw.jit(lambda x, w: (x + 1) @ (w[::-1] * 2), target="cpu")(x, w)
    np.testing.assert_array_equal(found, exact(x + BF16(1), w[::-1] * BF16(2)).astype(BF16))


def test_several_contracted_dims() -> None:
    x, w = whole_numbers((20, 3, 33), 10), whole_numbers((3, 33, 50), 11)
    found = tw.jit(lambda x, w: tw.tensordot(x, w, axes=2), target="cpu")(x, w)
    np.testing.assert_array_equal(found, exact(x.reshape(20, -1), w.reshape(-1, 50)).astype(BF16))


@pytest.mark.parametrize("start", [0, 1, 2])
@pytest.mark.parametrize("size", [32, 33])
def test_parts_of_arrays_beside_infinities(start: int, size: int) -> None:
    """Elements outside the window along the depth, even in a word that the window shares, do not enter the sum."""
    x, w = whole_numbers((20, 64), 12), whole_numbers((64, 48), 13)
    inside = slice(start, start + size)
    for value, outside in ((x, np.s_[:, inside]), (w, np.s_[inside])):
        kept = value[outside].copy()
        value[...] = np.inf
        value[outside] = kept
    wanted = exact(x[:, inside], w[inside]).astype(BF16)
    parts = tw.jit(lambda x, w: x[:, start : start + size] @ w[start : start + size], target="cpu")
    np.testing.assert_array_equal(parts(x, w), wanted)
    by_row = tw.jit(lambda x, w: x[:, start : start + size] @ w[:, start : start + size].T, target="cpu")
    np.testing.assert_array_equal(by_row(x, turned(w)), wanted)


@pytest.mark.parametrize("depth", [6, 7])
def test_infinities_and_nans_stay_in_their_rows_and_columns(depth: int) -> None:
    x, w = whole_numbers((9, depth), 14), np.ones((depth, 40), BF16)
    x[2, depth - 1], x[5, 0], w[3, 7], w[depth - 1, 30] = np.inf, np.nan, -np.inf, np.nan
    with np.errstate(invalid="ignore"):
        wanted = exact(x, w)
    for function, right in ((matmul, w), (by_rows, turned(w))):
        found = tw.jit(function, target="cpu")(x, right)
        np.testing.assert_array_equal(found.astype(np.float64), wanted)


def test_subnormal_numbers_count_as_zeros_at_most() -> None:
    x, w = np.full((16, 33), 2.0**-130, BF16), np.ones((33, 64), BF16)
    x[3] = 1
    found = tw.jit(matmul, target="cpu")(x, w).astype(np.float64)
    assert np.all(found[3] == 33)
    assert np.all((found >= 0) & (np.abs(found - exact(x, w)) <= 33 * 2.0**-126))


@pytest.mark.parametrize("at_end", [True, False])
def test_operands_are_not_read_beyond_their_ends(at_end: bool) -> None:
    for rows, depth, columns in ((7, 9, 20), (1, 5, 1), (13, 4, 33), (29, 3, 47), (3, 41, 700), (170, 31, 530)):
        x, w = whole_numbers((rows, depth), 15), whole_numbers((depth, columns), 16)
        wanted = exact(x, w).astype(BF16)
        for function, left, right in ((matmul, x, w), (by_rows, x, turned(w)), (of_columns, turned(x), w)):
            arrays = guarded_copy(left, at_end), guarded_copy(right, at_end)
            np.testing.assert_array_equal(tw.jit(function, target="cpu")(*arrays), wanted)


def test_bits_do_not_depend_on_threads() -> None:
    x, w = fractions((130, 5001), 17), fractions((5001, 200), 18)
    found: set[bytes] = set()
    for threads in (1, 2, 5):
        with tw.options(threads=threads):
            found.add(np.asarray(tw.jit(matmul, target="cpu")(x, w)).tobytes())
    assert len(found) == 1


# ---- kernels --------------------------------------------------------------------------------------------------------


def contraction(
    left: tuple[int, ...], right: tuple[int, ...], right_axis: int, result: str
) -> Callable[[Program], list[Value]]:
    batch = len(left) - 2

    def make(p: Program) -> list[Value]:
        arrays = [p.array(*shape, dtype=dtypes.bf16) for shape in (left, right)]
        axes = {"left_batch": tuple(range(batch)), "right_batch": tuple(range(batch)), "dtype": result}
        return list(p.add("contract", arrays, left_contract=(batch + 1,), right_contract=(right_axis,), **axes))

    return make


@pytest.mark.parametrize("result", ["bf16", "f32"])
@pytest.mark.parametrize(
    ("left", "right", "right_axis"),
    [((37, 21), (21, 50), 0), ((37, 22), (50, 22), 1), ((5, 50, 33), (5, 17, 33), 2), ((64, 4100), (4100, 40), 0)],
    ids=str,
)
def test_scheduled_kernels_mean_the_matmul(
    left: tuple[int, ...], right: tuple[int, ...], right_axis: int, result: str
) -> None:
    """On any host: no instruction is executed but NumPy's."""
    make = contraction(left, right, right_axis, result)
    unit, program = scheduled_unit(make), build(make)
    dots = [op for kernel in unit.kernels() for op in kernel.walk() if isinstance(op, scheduled.DotOp)]
    assert dots
    assert all(tile.ref_type(dot.left).dtype == dtypes.bf16 for dot in dots)
    x, w = whole_numbers(left, 19), whole_numbers(right, 20)
    (found,) = run(unit, [x, w])
    plain = w if right_axis == len(left) - 2 else turned(w)
    np.testing.assert_array_equal(found, exact(x, plain).astype(dtypes.by_name(result).numpy))
    with tw.options(threads=2):
        (native,) = compile_module(build_module(program), program.constants, "cpu", keep_stages=False)(x, w)
    np.testing.assert_array_equal(native, found)


@pytest.mark.parametrize("shape", sampled([shape for shape in SHAPES if shape[1] > 3], 3), ids=str)
def test_words_are_multiplied_by_their_instruction(shape: tuple[int, int, int]) -> None:
    """By the machine's name, on any host; others multiply as f32; short depths are multiplied one by one."""
    rows, depth, columns = shape
    arrays = np.zeros((rows, depth), BF16), np.zeros((depth, columns), BF16)
    code = {m: tw.jit(matmul).lower(*arrays).compile(f"cpu:{m}").asm() for m in (MACHINE, "x86-64-v4")}
    assert "vdpbf16ps" in code[MACHINE]
    assert "vfmadd" not in code[MACHINE]
    assert "vdpbf16ps" not in code["x86-64-v4"]


@pytest.mark.parametrize("shape", [(1, 256, 1024), (4, 64, 600), (30, 1, 30)], ids=str)
def test_rows_that_are_bound_by_reading_are_multiplied_as_f32(shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    arrays = np.zeros((rows, depth), BF16), np.zeros((depth, columns), BF16)
    assert "vdpbf16ps" not in tw.jit(matmul).lower(*arrays).compile(f"cpu:{MACHINE}").asm()


@pytest.mark.parametrize(("rows", "depth", "words"), [(8, 64, False), (20, 63, False), (20, 64, True), (70, 63, True)])
def test_few_rows_along_the_depth_are_multiplied_as_f32(rows: int, depth: int, words: bool) -> None:
    """Very few read the right operand as it is stored; words of an odd depth begin anywhere in it."""
    arrays = np.zeros((rows, depth), BF16), np.zeros((40, depth), BF16)
    assert ("vdpbf16ps" in tw.jit(by_rows).lower(*arrays).compile(f"cpu:{MACHINE}").asm()) == words


def test_other_types_are_multiplied_as_they_were() -> None:
    for dtype in (np.float32, np.float16):
        arrays = np.zeros((64, 64), dtype), np.zeros((64, 64), dtype)
        assert "vdpbf16ps" not in tw.jit(matmul).lower(*arrays).compile(f"cpu:{MACHINE}").asm()


# ---- panels ---------------------------------------------------------------------------------------------------------


def scheduled_unit(make: Callable[[Program], list[Value]]) -> Unit:
    """A program on the machine with words, its operands packed."""
    program = build(make)
    unit = unit_of(build_module(program), dict(program.constants), MACHINE)
    for each in (*array_to_tile(unit.machine.model), *tile_to_vectors()):
        each.apply(unit)
        unit.module.verify()
    return unit


@pytest.mark.parametrize("depth", [6, 7])
def test_captured_arrays_are_packed_in_words(depth: int) -> None:
    """Element by element: of each panel all words of a row of two steps, the first step in the lower bits, zeros beyond
    the end."""
    weights = fractions((depth, 20), 21)

    def make(p: Program) -> list[Value]:
        return [p.dot(p.array(9, depth, dtype=BF), p.constant(weights, ArrayType(weights.shape, BF)), 0, 1, 0)]

    unit = scheduled_unit(make)
    (op,) = (op for op in unit.main.walk() if isinstance(op, array.ConstantOp))
    (dot,) = (op for op in unit.module.walk() if isinstance(op, scheduled.DotOp))
    width, steps = dot.micro_tile[1], -(-depth // 2)
    expected = np.zeros(-(-20 // width) * steps * width, np.uint32)
    for k in range(depth):
        for n in range(20):
            at = n // width * steps * width + k // 2 * width + n % width
            expected[at] |= np.uint32(weights.view(np.uint16)[k, n]) << np.uint32(16 * (k % 2))
    np.testing.assert_array_equal(unit.constants[op.resource], expected)


@pytest.mark.parametrize(("depth", "views"), [(40, 1), (41, 0)])
def test_arrays_with_the_depth_inside_are_packed_as_the_words_that_they_hold(depth: int, views: int) -> None:
    """An even depth has whole words in each row."""
    unit = scheduled_unit(lambda p: [p.dot(p.array(90, depth, dtype=BF), p.array(70, depth, dtype=BF), 0, 1, 1)])
    assert sum(isinstance(op, scheduled.ViewOp) for op in unit.module.walk()) == views
    expected = [("packed by all threads", "words of an operand known at run time")]
    assert remarks(unit, "scheduled-pack-operands") == expected


def test_the_first_rows_of_many_keep_words() -> None:
    unit = scheduled_unit(lambda p: [p.dot(p.array(128, 512, dtype=BF), p.array(512, 600, dtype=BF), 0, 1, 0)])
    assert remarks(unit, "scheduled-pack-operands") == [("kept by the first rows", "other rows read it again")]


def test_a_view_has_all_elements_of_its_array() -> None:
    ref = tile.ref(ArrayType((4, 6), BF))
    kernel = Block(arg_types=[ref])
    for shape, message in (((4, 3), None), ((4, 6), "no array of the words"), ((2, 6), "no array of the words")):
        view = scheduled.ViewOp(source=kernel.args[0], result=tile.ref(ArrayType(shape, dtypes.u32)))
        with nullcontext() if message is None else pytest.raises(VerifyException, match=message):
            view.verify()


def test_machines_state_instructions_of_words_apart_from_those_of_matrices() -> None:
    words, matrices = load(MACHINE), load("x86-64-amx")
    assert words.matrix_atom(BF, BF, dtypes.f32, 64) is None
    atom = words.word_atom(BF, BF, dtypes.f32)
    assert atom is not None
    assert (atom.name, atom.group) == ("vdpbf16ps", 2)
    assert words.matrix_peak_flops("bf16") == 2 * words.peak_flops(dtypes.f32)
    assert matrices.word_atom(BF, BF, dtypes.f32) is None
    assert all(words.word_atom(*types) is None for types in ((BF, BF, BF), (dtypes.f16, dtypes.f16, dtypes.f32)))
