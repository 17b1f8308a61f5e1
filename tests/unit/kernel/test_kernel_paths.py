"""Names and tiles where paths meet: branches of run-time `if`s, trips of loops, flags."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_support import check, run
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

import tilewright as tw
from tests.cuda.chips import emulated
from tests.passes.pass_support import parse
from tilewright.dialects import tile
from tilewright.driver.compile import build_executable


@tw.kernel
def ramp(x: tw.In["N"], n: tw.In["", tw.i32], y: tw.Out["N"]):
    for i in tw.grid(x, 4):
        total = tw.zeros((4,), tw.f32)
        for t in range(3):
            if n[()] > t:
                part = x[i] * 2.0
                if n[()] > t + 1:
                    more = part + 1.0
                    total = total + more
                total = total + part
        y[i] = total


@tw.kernel
def products(a: tw.In["M K"], b: tw.In["K N"], n: tw.In["", tw.i32], c: tw.Out["M N"]):
    for i in tw.grid(c, 16):
        acc = tw.zeros((16, 16), tw.f32)
        for t in range(3):
            if n[()] > t:
                part = tw.dot(a[i, t * 16 : t * 16 + 16], b[t * 16 : t * 16 + 16, :])
                acc = acc + part
        c[i] = acc


def ramp_of(x: np.ndarray, n: int) -> np.ndarray:
    return sum((2 * x for t in range(3) if n > t), np.zeros_like(x)) + sum(
        (2 * x + 1 for t in range(3) if n > t + 1), np.zeros_like(x)
    )


@pytest.mark.parametrize("target", ["interp", "cpu", "grid:wormhole"])
def test_branches_assign_names_that_later_branches_assign_again(target: str) -> None:
    x = np.arange(8, dtype=np.float32)
    a, b = np.arange(16 * 48, dtype=np.float32).reshape(16, 48) % 5, np.ones((48, 16), np.float32)
    for n in (0, 2):
        count = np.asarray(n, np.int32)
        np.testing.assert_array_equal(run(ramp, x, count, target=target), ramp_of(x, n))
        np.testing.assert_array_equal(run(products, a, b, count, target=target), a[:, : 16 * n] @ b[: 16 * n])


def test_branches_on_an_emulated_gpu() -> None:
    x = np.arange(8, dtype=np.float32)
    shapes = tw.ShapeDtype((8,), tw.f32), tw.ShapeDtype((), tw.i32)
    program: Any = build_executable(ramp.lower(*shapes).graph, "cuda:sm_90a", ())
    for n in (0, 2):
        np.testing.assert_array_equal(emulated(program, [x, np.asarray(n, np.int32)])[0], ramp_of(x, n))


def test_one_branch_does_not_decide_what_counts_behind_the_other() -> None:
    @tw.kernel
    def choose(x: tw.In["N"], n: tw.In["", tw.i32], s: tw.Out["P"], m: tw.Out["P"], d: tw.Out["P"]):
        for i in tw.grid((x.shape[0],), 8):
            if n[()] > 0:
                t = x[i]
            elif n[()] < 0:
                t = x[i.start - 4 : i.start + 4]
            else:
                t = tw.full((8,), -2.0, tw.f32)
            s[i.index] = tw.sum(tw.exp(t))
            m[i.index] = tw.max(t)
            d[i.index] = tw.dot(tw.exp(t)[None], tw.ones((8, 1)))[0, 0]

    x = np.linspace(-3, -1, 10, dtype=np.float32)

    def reference(x: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, ...]:
        tiles = {1: (x[:8], x[8:]), -1: (x[:4], x[4:10]), 0: (np.full(8, -2.0),) * 2}[int(n)]
        sums = np.array([np.exp(t.astype(np.float64)).sum() for t in tiles])
        return sums, np.array([t.max() for t in tiles]), sums

    for n in (1, -1, 0):
        outputs = tuple(np.empty(2, np.float32) for _ in range(3))
        for target in ("interp", "cpu"):
            run(choose, x, np.asarray(n, np.int32), *outputs, target=target)
            for got, wanted in zip(outputs, reference(x, np.asarray(n)), strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-6, err_msg=f"{n} {target}")


def test_trips_do_not_decide_what_counts_in_others() -> None:
    """A loop's first trips see what was before it; tiles change places; branches of a trip count where they ran."""

    @tw.kernel
    def trips(x: tw.In["N"], n: tw.In["", tw.i32], y: tw.Out["4"]):
        for _ in tw.grid((1,), (1,)):
            start, edge = tw.ones((8,)), x[0:8]
            total, counted, seen = tw.zeros(()), tw.zeros(()), tw.zeros(())
            kept = tw.ones((8,))
            for t in range(9):
                total = total + tw.sum(start)
                start = x[0:8]
                counted = counted * 2 + tw.sum(edge * 0 + 1)
                edge, kept = kept, edge
                if n[()] == t:
                    kept = tw.ones((8,))
                seen = seen + tw.sum(kept * 0 + 1)
            y[0:4] = tw.concat([total[None], counted[None], seen[None], tw.sum(start * 0 + 1)[None]])

    def reference(x: np.ndarray, n: np.ndarray) -> np.ndarray:
        size = len(x)
        start, edge, kept, total, counted, seen = 8.0, size, 8, 0.0, 0, 0
        for t in range(9):
            total += start
            start = float(x.sum())
            counted = counted * 2 + edge
            edge, kept = kept, edge
            kept = 8 if n == t else kept
            seen += kept
        return np.array([total, counted, seen, size])

    for size in (5, 8):
        for n in (3, -1):
            check(trips, reference, np.ones(size, np.float32), np.asarray(n, np.int32))


def test_flags_start_as_false() -> None:
    @tw.kernel
    def first_positive(x: tw.In["N"], y: tw.Out["N"], z: tw.Out["N"], w: tw.Out["N"]):
        for _ in tw.grid((1,), (None,)):
            inverted, negated, assigned = False, False, False
            for t in range(x.shape[0]):
                hit = (x[t] > 0) & ~inverted
                inverted = inverted | hit
                y[t] = tw.where(hit, 1.0, 0.0)
                again = x[t] > 0 and not negated
                negated = negated or again
                z[t] = tw.where(again, 1.0, 0.0)
                if x[t] > 0 and not assigned:
                    assigned = True
                    w[t] = 1.0
                else:
                    w[t] = 0.0

    def reference(x: np.ndarray) -> tuple[np.ndarray, ...]:
        first = np.zeros_like(x)
        first[np.argmax(x > 0)] = (x > 0).any()
        return first, first, first

    for x in (np.arange(-5, 11), np.arange(-12, 0), np.ones(3)):
        check(first_positive, reference, x.astype(np.float32))


def test_signs_of_zeros_differ_between_branches() -> None:
    @tw.kernel
    def zeros(n: tw.In["", tw.i32], y: tw.Out["1", tw.f32]):
        for i in tw.grid(y, None):
            z = 0.0
            if n[()] > 0:
                z = -0.0
            y[i] = tw.full((), 1.0, tw.f32) / z

    for n, wanted in ((0, np.inf), (1, -np.inf)):
        check(zeros, lambda n, wanted=wanted: np.array([wanted]), np.asarray(n, np.int32))


# ---- the verifier of scopes -----------------------------------------------------------------------------------------


def kernel_text(*lines: str) -> str:
    return "\n".join(
        [
            'tile.kernel() {sym_name = "k", grid = array<i64: 1>, effects = ["in", "out"]} do {',
            "^bb0(%x: !tile.ref<tensor<4xf32>>, %y: !tile.ref<tensor<4xf32>>, %p: index):",
            *lines,
            "tile.yield()",
            "}",
        ]
    )


CONDITION = "%c = tile.full() {value = 1 : i64} : tensor<i1>"
FULL = "tile.full() {value = 1.0 : f64} : tensor<4xf32>"
STORE = "tile.store(%v, %y) {map = affine_map<(d0) -> (d0)>}"


def built_module(*lines: str) -> ModuleOp:
    return parse(kernel_text(*lines))


def moved(module: ModuleOp, from_: int, to: type[Any]) -> ModuleOp:
    """The module, its store's value replaced by one that another operation computes inside."""
    store = next(op for op in module.walk() if isinstance(op, tile.StoreOp))
    inner = [op for op in module.walk() if isinstance(op, tile.FullOp) and isinstance(op.parent_op(), to)]
    store.operands[0] = inner[from_].results[0]
    return module


def test_values_are_defined_where_they_are_used() -> None:
    choice = (CONDITION, "tile.if(%c) do {", f"%a = {FULL}", "tile.yield()", "} do {", "tile.yield()", "}")
    loop = ("tile.for() {trips = 3 : index} do {", "^bb0(%t: index):", f"%b = {FULL}", "tile.yield()", "}")
    module = built_module(*choice, *loop, f"%v = {FULL}", STORE)
    module.verify()
    for owner in (tile.IfOp, tile.ForOp):
        with pytest.raises(VerifyException, match=r"operand 0, a result of tile\.full, is not defined there"):
            moved(module.clone(), 0, owner).verify()
    late = module.clone()
    store = next(op for op in late.walk() if isinstance(op, tile.StoreOp))
    first = late.body.block.first_op
    assert isinstance(first, tile.KernelOp)
    store.detach()
    first.body.block.insert_op_before(store, first.body.block.ops.first or store)
    with pytest.raises(VerifyException, match="is not defined there"):
        late.verify()
