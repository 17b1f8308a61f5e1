"""Explanations of layouts: sums are the solution's cost, alternatives are the best of all assignments that differ, and
reasons are what the kernels say."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

import tilewright as tw
from tests.passes.layouts.test_layout_inference import KERNELS, MACHINES, cost_of, kernel_of, space
from tilewright.layout import Layout
from tilewright.layout.catalogue import wgmma_accumulator
from tilewright.passes.layouts import layout_explanation
from tilewright.passes.layouts.layout_explanation import KernelExplanation, explain_layouts
from tilewright.passes.layouts.layout_explanation_text import document_of, text_of, time_text
from tilewright.passes.layouts.layout_inference import Inference, infer_layouts

HALF = tw.ShapeDtype((64, 64), tw.f16)


def explained(file: str, name: str, machine: str) -> tuple[Inference, KernelExplanation]:
    kernel = kernel_of(file, name)
    inference = infer_layouts(kernel, space(machine))
    return inference, explain_layouts(kernel, inference, machine)


@pytest.fixture(scope="module")
def matmul() -> dict[str, tuple[Inference, KernelExplanation]]:
    return {machine: explained("matmul", "matmul", machine) for machine in MACHINES}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("file", "name"), KERNELS)
def test_every_cost_is_somewhere_and_nowhere_twice(file: str, name: str, machine: str) -> None:
    inference, found = explained(file, name, machine)
    assert found.seconds == inference.solution.cost
    parts = found.products_seconds + found.computing_seconds + found.transfers_seconds + found.relayouts_seconds
    assert parts == pytest.approx(found.seconds, rel=1e-9)
    each = sum(each.seconds for each in found.tiles)
    each += sum(p.seconds * p.trips + sum(edge.seconds for edge in p.operands) for p in found.products)
    assert each == pytest.approx(found.seconds, rel=1e-9)
    assert found.products_seconds == pytest.approx(sum(p.seconds * p.trips for p in found.products))
    edges = [edge for tile in found.tiles for edge in (*tile.incoming, *tile.transfers)]
    edges += [edge for product in found.products for edge in product.operands]
    assert edges
    for edge in edges:
        assert sum(step.seconds * step.trips for step in edge.movements) == pytest.approx(edge.seconds, abs=1e-18)
    assert [tile.layout for tile in found.tiles] == [
        inference.layout(value) for value in sorted(inference.variables, key=_number(found, inference).__getitem__)
    ]


def _number(found: KernelExplanation, inference: Inference) -> dict[Any, int]:
    """Where each value is in the kernel's text."""
    kernel = next(iter(inference.variables)).owner
    while kernel.parent_op() is not None:  # type: ignore[union-attr]
        kernel = kernel.parent_op()  # type: ignore[union-attr,assignment]
    labels = layout_explanation.names_of(kernel).labels  # type: ignore[arg-type]
    return {value: int(label[1:]) for value, label in labels.items()}


@pytest.mark.parametrize("machine", MACHINES)
def test_alternatives_are_the_best_that_differ(matmul: dict[str, Any], machine: str) -> None:
    inference, found = matmul[machine]
    domains = inference.problem.domains
    costs = {values: cost_of(inference, values) for values in product(*domains)}
    numbers = _number(found, inference)
    by_label = {f"%{numbers[value]}": variable for value, variable in inference.variables.items()}
    checked = 0
    for each in (*found.tiles, *found.products):
        variable = by_label.get(each.label, next(iter(inference.products.values())))
        chosen = inference.solution.values[variable]
        others = {values: cost for values, cost in costs.items() if values[variable] != chosen and cost < float("inf")}
        if not others:
            assert each.alternative is None
            continue
        least = min(others.values())
        assert each.alternative is not None
        assert each.alternative.extra_seconds == pytest.approx(least - found.seconds, rel=1e-6, abs=1e-15)
        best = {str(values[variable]) for values, cost in others.items() if cost <= least * (1 + 1e-9)}
        assert each.alternative.what in best
        checked += 1
    assert checked >= 4


def test_reasons_of_a_product(matmul: dict[str, Any]) -> None:
    _, found = matmul["x86-64-v4"]
    reasons = {(tile.name or tile.made_by, tile.label): tile.reason for tile in found.tiles}
    kinds = {label: reason.kind for (_, label), reason in reasons.items()}
    assert kinds == {"%6": "stored", "%8": "product", "%9": "loaded", "%11": "product"}
    (atom,) = {p.atom for p in found.products}
    result = reasons["acc", "%11"]
    assert result.text == f"the result of the matmul by `{atom}`"
    assert result.location is not None
    assert result.location.line == 17
    assert found.uniform == ("%5 acc = full", "%10 = load, read from its array, packed as a whole")
    (only,) = found.products
    assert (only.label, only.trips) == ("%11 acc", 12)


@tw.kernel
def pinned_chain(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        wide = tw.layout(x[i, j] + 1, tw.layouts.wgmma_accumulator((64, 64)))
        squared = wide * wide
        total = tw.sum(squared, axis=1, keepdims=True)
        y[i, j] = squared / total


def test_what_is_pinned_is_followed() -> None:
    kernel = pinned_chain.lower(HALF, HALF).specialisation.build()
    found = explain_layouts(kernel, infer_layouts(kernel, space("sm_90a")), "sm_90a")
    tiles = {tile.name: tile for tile in found.tiles if tile.name}
    wide, squared = tiles["wide"], tiles["squared"]
    assert wide.reason.kind == "pinned"
    assert wide.layout_name == "wgmma accumulator"
    assert str(wgmma_accumulator((64, 64))) in wide.reason.text
    assert wide.alternative is None
    assert squared.reason.kind == "follows"
    assert squared.reason.source == f"{wide.label} wide"
    assert squared.reason.text == f"follows {wide.label} wide: operands and result of `multiply` are in one layout"
    reduced = next(tile for tile in found.tiles if tile.made_by.startswith("reduce"))
    assert reduced.layout_name == "value per row of a wgmma accumulator"
    assert ("combine", "lane") in [(step.move, step.reach) for edge in reduced.incoming for step in edge.movements]
    text = text_of(found)
    assert f"{wide.label} wide = relayout" in text
    assert "combine between lanes" in text


def test_only_some_tiles() -> None:
    kernel = kernel_of("flash_attention", "flash_attention")
    inference = infer_layouts(kernel, space("x86-64-v4"))
    whole = explain_layouts(kernel, inference, "x86-64-v4")
    for only in ("scores", "acc", "%23"):
        part = explain_layouts(kernel, inference, "x86-64-v4", only)
        assert part.tiles == tuple(tile for tile in whole.tiles if only in (tile.name, tile.label))
        assert part.tiles
        assert part.products == ()
        assert (part.seconds, part.relayouts_seconds) == (whole.seconds, whole.relayouts_seconds)
    assert explain_layouts(kernel, inference, "x86-64-v4", "nothing").tiles == ()


def test_many_tiles_have_their_alternatives_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_explanation, "MOST_ALTERNATIVES", 3)
    kernel = kernel_of("softmax", "softmax")
    inference = infer_layouts(kernel, space("x86-64-v4"))
    whole = explain_layouts(kernel, inference, "x86-64-v4")
    assert not whole.has_alternatives
    assert all(tile.alternative is None for tile in whole.tiles)
    assert "ask for those of one" in text_of(whole)
    (one,) = explain_layouts(kernel, inference, "x86-64-v4", whole.tiles[0].label).tiles
    assert one.alternative is not None


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("file", "name"), [KERNELS[2], KERNELS[4]])
def test_the_text_fits_and_says_it_all(file: str, name: str, machine: str) -> None:
    _, found = explained(file, name, machine)
    text = text_of(found)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 120
    unwrapped = " ".join(text.split())
    for tile in found.tiles:
        assert str(tile.layout) in unwrapped
        assert tile.reason.text in unwrapped
        assert tile.layout_name is None or tile.layout_name in unwrapped
        (title,) = [line for line in lines if line.startswith(f"  {tile.label} ")]
        assert title.endswith(time_text(tile.seconds) if tile.seconds else "free")
    for each in found.products:
        assert f"matmul {each.label} by `{each.atom}`" in unwrapped
    used = {tile.location.line for tile in found.tiles if tile.location is not None}
    shown = [int(line.split(":")[1].split()[0]) for line in lines if line.startswith(f"{file}.py:")]
    assert set(shown) == used


def test_the_document_is_json_with_layouts_that_can_be_read(matmul: dict[str, Any]) -> None:
    for _, found in matmul.values():
        document = json.loads(json.dumps(document_of(found)))
        assert document.keys() == {
            *("kernel", "machine", "tiles", "products", "uniform", "overflows", "seconds", "products_seconds"),
            *("computing_seconds", "transfers_seconds", "relayouts_seconds", "variables", "nodes", "has_alternatives"),
        }
        for tile, plain in zip(found.tiles, document["tiles"], strict=True):
            assert Layout.parse(plain["layout"]) == tile.layout
            assert plain["shape"] == list(tile.shape)
            assert plain["location"]["line"] == (tile.location.line if tile.location else None)
            for edge in plain["incoming"] + plain["transfers"]:
                assert edge.keys() == {"source", "target", "rule", "location", "movements", "seconds"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ns"), (1.234e-9, "1.23 ns"), (9.996e-7, "1 us"), (1.5e-5, "15 us"), (0.0123, "12.3 ms"), (2.0, "2 s")],
)
def test_times_have_three_digits(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
