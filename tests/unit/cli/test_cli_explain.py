"""`tilewright explain`: texts, documents, drawings and refusals."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from cli_support import CommandLine

from tilewright.layout import Layout, draw
from tilewright.layout.catalogue import wgmma_accumulator, wgmma_transposed

KERNELS = """
import tilewright as tw

_TILE = tw.ShapeDtype((64, 64), tw.f16)
EXAMPLE_ARGUMENTS = dict.fromkeys(("pinned", "stored", "changed", "wrong"), (_TILE, _TILE))


@tw.kernel
def pinned(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        wide = tw.layout(x[i, j] + 1, tw.layouts.wgmma_accumulator((64, 64)))
        two = tw.full((64, 64), 2.0, tw.f16)
        y[i, j] = wide * two


@tw.kernel
def stored(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        kept = tw.layout(x[i, j], tw.layouts.row_major((64, 64), "mem.shared"))
        kept = tw.layout(kept.T, tw.layouts.row_major((64, 64), "mem.shared"))
        other = tw.layout(kept.T, tw.layouts.column_major((64, 64), "mem.shared"))
        y[i, j] = tw.exp(other)


@tw.kernel
def changed(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        kept = tw.layout(x[i, j], tw.layouts.wgmma_accumulator((64, 64)))
        kept = tw.layout(kept, tw.layouts.wgmma_transposed((64, 64)))
        y[i, j] = kept


@tw.kernel
def wrong(x: tw.In["M N"], y: tw.Out["M N"]):
    for i, j in tw.grid(x, (64, 64)):
        y[i, j] = tw.layout(x[i, j], "(64, 64) : [64@lane | 64@reg]")
"""


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    return path


def test_kernels_are_explained(tilewright: CommandLine, kernels: Path):
    run = tilewright("explain", f"{kernels}::pinned", "--machine", "sm_90a")
    assert run.exit_code == 0, run.stderr
    assert "on sm_90a: " in run.stdout
    assert "kernels.py:11  wide = tw.layout(x[i, j] + 1" in run.stdout
    assert "called  wgmma accumulator" in run.stdout
    assert "made or read where they are used, without a layout:" in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 120
    assert "\x1b[" not in run.stdout


def test_the_document_has_what_the_text_says(tilewright: CommandLine, kernels: Path):
    run = tilewright("explain", f"{kernels}::pinned", "--machine", "sm_90a", "--json")
    found = run.document
    assert {name: found[name] for name in ("file", "name", "target", "machine")} == {
        "file": str(kernels),
        "name": "pinned",
        "target": "cpu",
        "machine": "sm_90a",
    }
    (kernel,) = found["kernels"]
    tiles = {tile["name"]: tile for tile in kernel["tiles"]}
    assert Layout.parse(tiles["wide"]["layout"]) == wgmma_accumulator((64, 64))
    assert tiles["wide"]["reason"]["kind"] == "pinned"
    assert tiles["wide"]["reason"]["location"]["line"] == 11
    assert tiles["wide"]["alternative"] is None
    assert kernel["uniform"][-1].endswith(" two = full")
    assert kernel["seconds"] == pytest.approx(sum(tile["seconds"] for tile in kernel["tiles"]))


def test_the_machine_is_the_targets_unless_given(tilewright: CommandLine, functions: Path):
    run = tilewright("explain", f"{functions}::scale", "--target", "cpu:aarch64-neon", "--json")
    assert run.exit_code == 0, run.stderr
    assert (run.document["target"], run.document["machine"]) == ("cpu:aarch64-neon", "aarch64-neon")
    assert {tile["location"]["line"] for tile in run.document["kernels"][0]["tiles"]} == {13}
    assert "functions.py:13" in tilewright("explain", f"{functions}::scale").stdout


def test_one_value(tilewright: CommandLine, kernels: Path):
    whole = tilewright("explain", f"{kernels}::pinned", "--machine", "sm_90a", "--json").document["kernels"][0]
    (wide,) = [tile for tile in whole["tiles"] if tile["name"] == "wide"]
    for name in ("wide", wide["label"], f"{whole['kernel']}/wide"):
        run = tilewright("explain", f"{kernels}::pinned", "--machine", "sm_90a", "--value", name, "--json")
        assert run.document["kernels"][0]["tiles"] == [wide]
    constant = tilewright("explain", f"{kernels}::pinned", "--machine", "sm_90a", "--value", "two")
    assert "two = full" in constant.stdout


def test_drawings_as_text(tilewright: CommandLine, kernels: Path, tmp_path: Path):
    given = ("explain", f"{kernels}::pinned", "--machine", "sm_90a", "--value", "wide", "--draw", "text")
    assert tilewright(*given).stdout == draw(wgmma_accumulator((64, 64))) + "\n"
    window = tilewright(*given, "--rows", "8:10", "--columns", "3").stdout
    assert window == draw(wgmma_accumulator((64, 64)), rows=range(8, 10), columns=range(3)) + "\n"
    out = tmp_path / "drawing.txt"
    run = tilewright(*given, "--out", out, "--json")
    assert run.document["out"] == str(out)
    assert run.document["drawing"]["format"] == "text"
    assert run.document["drawing"]["text"] + "\n" == out.read_text() == draw(wgmma_accumulator((64, 64))) + "\n"


def test_drawings_as_svg_show_banks_of_memory(tilewright: CommandLine, kernels: Path, tmp_path: Path):
    out = tmp_path / "drawing.svg"
    given = ("--machine", "sm_90a", "--draw", "svg", "--rows", "2", "--columns", "4:6", "--out", out)
    run = tilewright("explain", f"{kernels}::stored", "--value", "other", *given)
    assert run.stdout == f"wrote {out}\n"
    texts = [each.text for each in ElementTree.parse(out).iter("{http://www.w3.org/2000/svg}text")]
    # Column-major elements of 2 bytes: a column is 128 bytes, which is all 32 banks once.
    assert {"@256 B0", "@257 B0", "@320 B0", "@321 B0"} <= set(texts)
    assert any((text or "").startswith("other = relayout(") for text in texts)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("--value", "wied"), "no tile is called `wied`"),
        (("--value", "other_kernel/wide"), "no tile is called"),
        (("--value", "two", "--draw", "text"), "has no layout to draw"),
        (("--draw", "svg"), "name it with --value"),
        (("--rows", "3"), "add --draw text or --draw svg"),
        (("--value", "wide", "--draw", "text", "--rows", "a"), "`--rows a` is no window"),
        (("--value", "wide", "--draw", "text", "--columns", "60:70"), "there is no window 60:70"),
        (("--value", "wide", "--out", "no/such/folder/x.txt"), "cannot be written"),
        (("--machine", "sm_91"), "there is no machine `sm_91`"),
        (("--target", "abacus"), "there is no target `abacus`"),
    ],
)
def test_refusals(tilewright: CommandLine, kernels: Path, given: tuple[str, ...], expected: str):
    run = tilewright(
        "explain", f"{kernels}::pinned", *(() if "--machine" in given else ("--machine", "sm_90a")), *given
    )
    assert run.exit_code == 1
    assert expected in run.stderr
    assert "Traceback" not in run.stderr


def test_a_name_of_several_layouts_is_not_drawn(tilewright: CommandLine, kernels: Path):
    given = ("--machine", "sm_90a", "--value", "kept", "--draw", "text")
    assert tilewright("explain", f"{kernels}::stored", *given).exit_code == 0
    run = tilewright("explain", f"{kernels}::changed", *given)
    assert run.exit_code == 1
    assert "is the name of tiles in different layouts" in run.stderr
    first, second = re.findall(r"(kernel_\S+/%\d+)", run.stderr.replace(",", " "))
    drawn = tilewright("explain", f"{kernels}::changed", *given[:3], first, *given[4:])
    assert drawn.stdout == draw(wgmma_accumulator((64, 64))) + "\n"
    drawn = tilewright("explain", f"{kernels}::changed", *given[:3], second, *given[4:])
    assert drawn.stdout == draw(wgmma_transposed((64, 64))) + "\n"


def test_a_kernel_without_layouts_says_why(tilewright: CommandLine, kernels: Path):
    run = tilewright("explain", f"{kernels}::wrong", "--machine", "sm_90a")
    assert run.exit_code == 1
    assert "error[TW0303]" in run.stdout
    assert "kernels.py:36" in run.stdout
    document = tilewright("explain", f"{kernels}::wrong", "--machine", "sm_90a", "--json").document
    assert document["kernels"][0]["error"]["code"] == "TW0303"
    drawn = tilewright("explain", f"{kernels}::pinned", "--machine", "x86-64-v3", "--value", "wide", "--draw", "text")
    assert "error[TW0303]" in drawn.stderr


def test_a_saved_program_has_no_tiles(tilewright: CommandLine):
    run = tilewright("explain", "model.twp")
    assert run.exit_code == 1
    assert "give the function that it was compiled from" in run.stderr
