"""Attention by warpgroups that a warp of its own has the machine copy for: on an emulator and by the definitions of the
operations against float64, and what the assembler makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import IndexType, IntegerAttr
from xdsl.utils.exceptions import VerifyException

import tilewright as tw
from tests.cuda.chips import Tensor, built, emulated
from tests.cuda.test_attention import attention, causal, expected
from tests.cuda.test_machine_code import check_clean
from tests.cuda.test_pipeline import executed, of_kind
from tests.cuda.test_warpgroups import defined, ops_of, remarks, without
from tests.emulators.ptx.errors import BarrierMisuse, Deadlock, RegisterRace, SharedRace
from tests.passes.pass_support import parse, unit_of
from tilewright import dtypes
from tilewright.dialects import scheduled
from tilewright.dialects.scheduled import asynchronous
from tilewright.driver.compile import build_executable
from tilewright.errors import ScheduleError
from tilewright.machines.machine import load
from tilewright.passes.base import Unit
from tilewright.passes.kernels import attention_warpgroups
from tilewright.passes.warps.scheduled_pipeline_copies import ScheduledPipelineCopiesPass
from tilewright.passes.warps.scheduled_share_registers import ScheduledShareRegistersPass
from tilewright.passes.warps.scheduled_specialize_chains import ScheduledSpecializeChainsPass
from tilewright.passes.warps.tile_lower_to_warps import TileLowerToWarpsPass
from tilewright.semantics.hazards import DeadlockError
from tilewright.semantics.scheduled import run_call
from tilewright.targets.cuda.target import CudaProgram

Make = Callable[..., CudaProgram]


@pytest.fixture
def by_groups(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Compiles attention for sm_90a, its tiles shared by so many warpgroups."""

    def compiled(groups: int, function: Callable[..., Any], *arrays: Any) -> CudaProgram:
        monkeypatch.setattr(attention_warpgroups, "_groups", lambda *_: groups)
        return built(tw.jit(function).lower(*arrays), "cuda:sm_90a")

    return compiled


def of_matrices(q: Any, k: Any, v: Any) -> Any:
    weights = tw.nn.softmax(tw.matmul(q, k.mT, dtype=tw.f32) * q.shape[-1] ** -0.5, axis=-1)
    return weights.astype(v.dtype) @ v


def seen_from(offset: int) -> Callable[[Any, Any, Any], Any]:
    """Attention in which each query sees so many keys more than the one before it, and the first `offset` + 1."""

    def of(q: Any, k: Any, v: Any) -> Any:
        rows, columns = tw.arange(q.shape[-2])[:, None], tw.arange(k.shape[-2])[None, :]
        scores = tw.matmul(q, k.mT, dtype=tw.f32) * q.shape[-1] ** -0.5
        weights = tw.nn.softmax(tw.where(columns <= rows + offset, scores, -float("inf")), axis=-1)
        return weights.astype(v.dtype) @ v

    return of


def exact(q: Tensor, k: Tensor, v: Tensor, offset: int) -> Tensor:
    q, k, v = (each.astype(np.float64) for each in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) * q.shape[-1] ** -0.5
    rows, columns = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])[None, :]
    weights = np.exp(np.where(columns <= rows + offset, scores, -np.inf))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def random(dtype: str, *shapes: tuple[int, ...]) -> list[Tensor]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(shape).astype(dtypes.by_name(dtype).numpy) for shape in shapes]


def check(program: CudaProgram, arrays: list[Tensor], wanted: Tensor) -> None:
    (said,) = remarks(program, ScheduledSpecializeChainsPass)
    assert said.startswith("a warp copies 3 windows ahead")
    assert remarks(program, ScheduledPipelineCopiesPass) == []
    assert ops_of(program, scheduled.CopyOp) == []
    got, counts = executed(program, arrays)
    assert counts.shared_conflicts == 0
    # Scores, weights and results are rounded once each: scores are below 8, weights at most 1.
    bound = (8 + 2) * dtypes.from_numpy(got.dtype).epsilon * np.abs(arrays[-1].astype(np.float64)).max()
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=0, atol=bound)
    # Exponentials are not those of NumPy to the last bit, and so are some results of their rounding.
    np.testing.assert_allclose(defined(program, tuple(arrays)).astype(np.float64), wanted, rtol=0, atol=bound)


# ---- that it is right -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "dtype", "groups", "queries", "others"),
    [
        (attention, "bf16", 2, (1, 2, 100, 32), (1, 1, 136, 32)),
        (attention, "f16", 1, (1, 1, 72, 48), (1, 1, 300, 48)),
        (causal, "f16", 1, (1, 2, 200, 32), (1, 1, 200, 32)),
        (causal, "bf16", 2, (1, 1, 264, 64), (1, 1, 264, 64)),
        (attention, "bf16", 3, (1, 1, 392, 64), (1, 1, 264, 64)),
        (causal, "f16", 3, (1, 1, 392, 64), (1, 1, 392, 64)),
    ],
)
def test_heads(
    by_groups: Make,
    function: Callable[..., Any],
    dtype: str,
    groups: int,
    queries: tuple[int, ...],
    others: tuple[int, ...],
) -> None:
    """With edges, and with heads that share keys."""
    arrays = random(dtype, queries, others, others)
    check(by_groups(groups, function, *arrays), arrays, expected(*arrays, function is causal))


@pytest.mark.parametrize(("offset", "queries", "keys"), [(0, 136, 200), (30, 72, 104)])
def test_what_a_query_sees_begins_anywhere(by_groups: Make, offset: int, queries: int, keys: int) -> None:
    """In the second case blocks beyond the last key are taken from the last tile."""
    arrays = random("f16", (queries, 32), (keys, 32), (keys, 32))
    check(by_groups(2, seen_from(offset), *arrays), arrays, exact(*arrays, offset))


def test_queries_that_see_beyond_the_last_key_are_by_single_warps(by_groups: Make) -> None:
    arrays = random("f16", (136, 32), (72, 32), (72, 32))
    program = by_groups(1, seen_from(0), *arrays)
    assert ops_of(program, scheduled.MmaWaitOp) == []
    np.testing.assert_allclose(executed(program, arrays)[0].astype(np.float64), exact(*arrays, 0), rtol=0, atol=5e-3)


@pytest.mark.parametrize("turned", ["q", "k", "v"])
def test_arrays_that_lie_transposed(by_groups: Make, turned: str) -> None:
    arrays = random("f16", (64, 32), (72, 32), (72, 32))
    number = "qkv".index(turned)
    given = [np.ascontiguousarray(each.T) if n == number else each for n, each in enumerate(arrays)]

    def of(*stored: Any) -> Any:
        return of_matrices(*(each.T if n == number else each for n, each in enumerate(stored)))

    check(by_groups(1, of, *given), given, exact(*arrays, 72))


# ---- what a warp does not copy --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chain:
    """x y, and each block of that, rounded, by one of z: tile operations, with something else in some places."""

    on_the_way: str = ""
    end: str = ""
    source_behind: str = "%z"
    ahead: str = ""
    behind: str = ""

    def unit(self) -> Unit:
        """Lowered to warps."""
        block = "%bn" if self.on_the_way else "%b"
        unit = unit_of(
            parse(f"""
func.func @main(%x: tensor<64x16xf16>, %y: tensor<48x16xf16>, %z: tensor<48x16xf16>) -> tensor<64x16xf32> {{
  %r = array.call(%x, %y, %z) {{callee = "chain"}} : tensor<64x16xf32>
  func.return %r : tensor<64x16xf32>
}}
tile.kernel() {{sym_name = "chain", grid = array<i64: 2>, effects = ["in", "in", "in", "out"],
    warps = 4 : index}} do {{
^bb0(%x: !tile.ref<tensor<64x16xf16>>, %y: !tile.ref<tensor<48x16xf16>>, %z: !tile.ref<tensor<48x16xf16>>,
    %out: !tile.ref<tensor<64x16xf32>>, %i: index):
  %a = tile.load(%x) {{map = affine_map<(d0, d1) -> (d0, d1)>}} : tensor<64x16xf16>
  %zero = tile.full() {{value = 0.0 : f64}} : tensor<64x16xf32>
  %b0 = tile.load(%y) {{map = affine_map<(d0, d1) -> (d1, d0)>}} : tensor<16x16xf16>
  %s0 = tile.dot(%a, %b0, %zero) {{atom = "wgmma, 1 warpgroup"}} : tensor<64x16xf32>
  %w0 = tile.cast(%s0) : tensor<64x16xf16>
  {self.ahead}
  %w, %sum = tile.for({"%i, " if self.end else ""}%w0, %zero) {{trips = 2 : index{self.end}}} do {{
  ^bb1(%t: index, %w1: tensor<64x16xf16>, %sum1: tensor<64x16xf32>):
    %b = tile.load(%y, %t) {{map = affine_map<(d0, d1)[s0] -> (d1 + s0 * 16 + 16, d0)>}} : tensor<16x16xf16>
    {self.on_the_way}
    %s = tile.dot(%a, {block}, %zero) {{atom = "wgmma, 1 warpgroup"}} : tensor<64x16xf32>
    %c = tile.load(%z, %t) {{map = affine_map<(d0, d1)[s0] -> (d0 + s0 * 16, d1)>}} : tensor<16x16xf16>
    %p = tile.dot(%w1, %c, %sum1) {{atom = "wgmma, left in registers"}} : tensor<64x16xf32>
    %w2 = tile.cast(%s) : tensor<64x16xf16>
    tile.yield(%w2, %p)
  }} : tensor<64x16xf16>, tensor<64x16xf32>
  %c2 = tile.load({self.source_behind}) {{map = affine_map<(d0, d1) -> (d0, d1)>}} : tensor<16x16xf16>
  %last = tile.dot(%w, %c2, %sum) {{atom = "wgmma, left in registers"}} : tensor<64x16xf32>
  {self.behind}
  tile.store(%last, %out) {{map = affine_map<(d0, d1) -> (d0, d1)>}}
  tile.yield()
}}
"""),
            {},
        )
        unit.machine = load("sm_90a")
        TileLowerToWarpsPass().apply(unit)
        return unit


NEGATED = '%bn = tile.map(%b) {fn = "negative"} : tensor<16x16xf16>'


def product_of(source: str, name: str, row: int, left: str, sum: str) -> str:
    """One more product, beside the loop."""
    rows = "d1, d0" if source == "%y" else "d0, d1"
    place = rows.replace("d1" if source == "%y" else "d0", f"{'d1' if source == '%y' else 'd0'} + {row}")
    atom = "wgmma, 1 warpgroup" if source == "%y" else "wgmma, left in registers"
    return f"""
  %in_{name} = tile.load({source}) {{map = affine_map<(d0, d1) -> ({place})>}} : tensor<16x16xf16>
  %{name} = tile.dot({left}, %in_{name}, {sum}) {{atom = "{atom}"}} : tensor<64x16xf32>
"""


def stored(*names: str) -> str:
    return "".join(f"  tile.store(%{name}, %out) {{map = affine_map<(d0, d1) -> (d0, d1)>}}\n" for name in names)


LATE = "the result of a matmul is first used after the stage of its window must be free"
REFUSED = {
    "unused": (Chain(behind=product_of("%z", "u", 0, "%w", "%sum")), "the result of a matmul is unused"),
    "used behind the loop": (Chain(ahead=product_of("%y", "u", 0, "%a", "%zero"), behind=stored("u")), LATE),
    "begun too early": (
        Chain(
            ahead=product_of("%y", "u", 0, "%a", "%zero")
            + product_of("%y", "v", 16, "%a", "%zero")
            + product_of("%y", "late", 32, "%a", "%zero")
            + stored("u", "v", "late")
        ),
        LATE,
    ),
    "too many behind the loop": (
        Chain(
            behind=product_of("%z", "u", 0, "%w", "%last") + product_of("%z", "v", 16, "%w", "%u") + stored("u", "v")
        ),
        "after the loop 3 windows share 2 stages",
    ),
    "computed": (Chain(on_the_way=NEGATED), "`map` stands between the window of the right operand and the matmul"),
    "another array": (Chain(source_behind="%x"), "a matmul outside the loop reads an array that the loop does not"),
    "too far": (
        Chain(end=", end = affine_map<()[s0] -> (s0 * 3)>"),
        "the trip count of the loop differs between blocks",
    ),
    "divided": (
        Chain(end=", end = affine_map<()[s0] -> (s0 floordiv 2)>"),
        "the trip count of the loop is not known at block start",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_warp_does_not_copy_stays_as_it_is_and_says_why(name: str) -> None:
    chain, reason = REFUSED[name]
    unit = chain.unit()
    before = str(unit.module)
    ScheduledSpecializeChainsPass().apply(unit)
    assert [remark.reason for remark in unit.remarks] == [reason]
    assert str(unit.module) == before


def test_products_beside_the_loop_in_turn() -> None:
    """As many as there are stages behind it, and three before it, whose results are used in time."""
    ahead = "".join(product_of("%y", name, row, "%a", "%zero") + stored(name) for name, row in (("u", 0), ("v", 16)))
    chain = Chain(ahead=ahead, behind=product_of("%z", "next", 16, "%w", "%last") + stored("next"))
    unit = chain.unit()
    ScheduledSpecializeChainsPass().apply(unit)
    unit.module.verify()
    assert len(of_kind(unit, asynchronous.TensorCopyOp)) == 8
    (kernel,) = unit.kernels()
    rng = np.random.default_rng(3)
    x, y, z = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((64, 16), (48, 16), (48, 16)))
    (got,) = run_call(kernel, [x, y, z], 0)
    weights = [x.astype(np.float64) @ y[at : at + 16].T for at in (0, 16, 32)]
    wanted = sum(w @ z[16 * n : 16 * n + 16] for n, w in enumerate(weights[:2])) + weights[2] @ z[:16]
    np.testing.assert_array_equal(got, wanted)


def test_a_loop_that_ends_sooner_in_some_blocks() -> None:
    unit = Chain(end=", end = affine_map<()[s0] -> (s0 + 1)>").unit()
    ScheduledSpecializeChainsPass().apply(unit)
    unit.module.verify()
    assert len(of_kind(unit, asynchronous.TensorCopyOp)) == 5


# ---- that each synchronisation is needed ----------------------------------------------------------------------------

BROKEN = {
    "mbarrier.arrive.expect_tx": (Deadlock, BarrierMisuse),
    "mbarrier.arrive.shared": (Deadlock,),
    "mbarrier.try_wait": (SharedRace, RegisterRace, BarrierMisuse),
    "wgmma.wait_group.sync.aligned 0": (SharedRace, RegisterRace),
    "wgmma.wait_group.sync.aligned 1": (SharedRace, RegisterRace),
    "wgmma.fence": (RegisterRace,),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_left_out_is_found(by_groups: Make, broken: str) -> None:
    arrays = random("f16", (64, 16), (384, 16), (384, 16))
    program = by_groups(1, of_matrices, *arrays)
    ((name, text),) = program.ptx.items()
    lines = text.splitlines()
    assert any(broken in line for line in lines)
    program.ptx[name] = "\n".join(without(line) if broken in line else line for line in lines)
    with pytest.raises(BROKEN[broken]):
        emulated(program, arrays)


# ---- what is chosen, and machine code -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "width", "groups"),
    [(causal, 64, 2), (causal, 128, 2), (causal, 256, 1), (attention, 64, 3), (attention, 128, 2)],
)
def test_large_attention_is_clean(function: Callable[..., Any], width: int, groups: int) -> None:
    heads = tw.ShapeDtype((2, 8, 4096, width), tw.bf16)
    program = built(tw.jit(function).lower(heads, heads, heads), "cuda:sm_90a")
    counts = check_clean(program)
    # Both products, and the first and the last of them outside of the loop: steps of 16 along heads and keys.
    keys = 64 if groups == 1 else 128
    assert counts["HGMMA"] == 2 * (width // 16 + keys // 16)
    assert counts["UTMALDG"] >= 5
    assert not {"HMMA", "LDGSTS", "LDSM"} & set(counts)
    ((_, taken),) = program.cost()["kernels"].items()
    # Where registers are reallocated, the warp that copies is a warpgroup.
    assert taken["threads"] == 128 * groups + (128 if width == 128 or groups == 3 else 32)
    assert "wgmma.wait_group.sync.aligned 1" in "".join(program.ptx.values())


@pytest.mark.parametrize(
    ("queries", "heads", "width", "function", "groups"),
    [
        (4096, 32, 64, attention, 3),
        (4096, 32, 64, causal, 2),  # masks take registers
        (4096, 32, 128, attention, 2),  # results take registers
        (1024, 64, 64, attention, 2),  # six tiles of 192 queries have 128 too many
        (4096, 5, 64, attention, 2),  # three would leave SMs without a tile
        (4096, 2, 64, attention, 1),
    ],
)
def test_warpgroups_of_a_tile(queries: int, heads: int, width: int, function: Callable[..., Any], groups: int) -> None:
    type = tw.ShapeDtype((1, heads, queries, width), tw.bf16)
    schedules = tw.jit(function).lower(type, type, type).compile("cuda:sm_90a").schedules
    ((_, chosen),) = schedules.items()
    assert isinstance(chosen, tw.schedules.Attention)
    assert chosen.warpgroups == groups


@pytest.mark.parametrize(("keys", "admitted"), [(64, True), (96, True), (128, False)])
def test_steps_of_a_causal_mask_divide_the_rows_of_a_tile(keys: int, admitted: bool) -> None:
    """The blocks that a tile sees are whole ones more than those of the tile before it."""
    type = tw.ShapeDtype((1, 1, 768, 64), tw.bf16)
    schedule = tw.schedules.Attention(rows=192, keys=keys, warpgroups=3)
    graph = tw.jit(causal).lower(type, type, type).graph
    if not admitted:
        with pytest.raises(ScheduleError, match="does not admit rows=192 and keys=128 on 3 warpgroups"):
            build_executable(graph, "cuda:sm_90a", (), schedule=schedule)
        return
    arrays = random("bf16", *[(1, 1, 768, 64)] * 3)
    check(build_executable(graph, "cuda:sm_90a", (), schedule=schedule), arrays, expected(*arrays, True))


# ---- registers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def by_128_keys(by_groups: Make, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CudaProgram]:
    """Compiles attention by two warpgroups in steps of 128 keys, for heads of 128: more than the registers that each
    thread of a block may begin with."""
    monkeypatch.setattr(attention_warpgroups, "_KEYS", 128)
    return lambda function, *arrays: by_groups(2, function, *arrays)


def many_registers(by_128_keys: Callable[..., CudaProgram]) -> tuple[CudaProgram, list[Tensor]]:
    arrays = random("f16", (1, 1, 128, 128), (1, 1, 384, 128), (1, 1, 384, 128))
    return by_128_keys(attention, *arrays), arrays


def test_masks_in_steps_of_128_keys(by_128_keys: Callable[..., CudaProgram]) -> None:
    arrays = random("f16", *[(1, 1, 264, 128)] * 3)
    check(by_128_keys(causal, *arrays), arrays, expected(*arrays, True))


def test_registers_of_those_that_copy_go_to_those_that_multiply(by_128_keys: Callable[..., CudaProgram]) -> None:
    program, arrays = many_registers(by_128_keys)
    (said,) = remarks(program, ScheduledShareRegistersPass)
    assert said.startswith("MMA warpgroups have 240 registers a thread: matmuls need 160")
    assert [op.count for op in ops_of(program, scheduled.SetRegistersOp)] == [24, 240]
    check(program, arrays, expected(*arrays, False))


def test_registers_are_not_asked_for_beyond_those_that_there_are(by_128_keys: Callable[..., CudaProgram]) -> None:
    program, arrays = many_registers(by_128_keys)
    (kernel,) = program.unit.kernels()
    for number, count, complaint in ((0, 32, DeadlockError), (1, 248, DeadlockError), (1, 232, None), (0, 20, None)):
        clone = kernel.clone()
        op = [each for each in clone.walk() if isinstance(each, scheduled.SetRegistersOp)][number]
        op.properties["count"] = IntegerAttr(count, IndexType())
        if count == 20:
            with pytest.raises(VerifyException, match="not 24 to 256 in steps of 8"):
                clone.verify()
        elif complaint is None:
            run_call(clone, arrays, 0)
        else:
            with pytest.raises(complaint, match=r"registers in `scheduled\.set_registers"):
                run_call(clone, arrays, 0)
    ((name, text),) = program.ptx.items()
    for more in (("\t24;", "\t32;"), ("\t240;", "\t248;")):
        assert more[0] in text
        program.ptx[name] = text.replace(*more)
        with pytest.raises(Deadlock, match="registers"):
            emulated(program, arrays)


def test_steps_of_128_keys_are_clean(by_128_keys: Callable[..., CudaProgram]) -> None:
    heads = tw.ShapeDtype((2, 8, 2048, 128), tw.bf16)
    program = by_128_keys(attention, heads, heads, heads)
    counts = check_clean(program)
    assert counts["USETMAXREG"] == 2
    assert counts["HGMMA"] == 2 * (128 // 16 + 128 // 16)
    ((_, taken),) = program.cost()["kernels"].items()
    assert (taken["threads"], taken["registers"], taken["resident_blocks"]) == (384, 168, 1)


@pytest.mark.parametrize(("width", "keys"), [(64, 128), (128, 64)])
def test_registers_that_are_enough_are_left_alone(
    by_groups: Make, width: int, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_warpgroups, "_MANY_KEYS", keys)
    program = by_groups(2, attention, *(tw.ShapeDtype((2, 8, 2048, width), tw.bf16) for _ in range(3)))
    assert ops_of(program, scheduled.SetRegistersOp) == []
    assert remarks(program, ScheduledShareRegistersPass) == []
