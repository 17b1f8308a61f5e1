"""SVG drawings: parsed as XML and compared, cell by cell, with coordinates that are enumerated and banks that are
computed from byte addresses."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from layout_oracle import vectors

from tilewright.errors import LayoutError
from tilewright.layout import Layout, row_major
from tilewright.layout.access import MemoryPorts
from tilewright.layout.catalogue import mma_operand_b, packed_panels_b, shared_matrix, wgmma_accumulator
from tilewright.layout.svg import draw_svg

SVG = "{http://www.w3.org/2000/svg}"
Cell = tuple[str, str]


def parsed(text: str) -> ElementTree.Element:
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    return root


def cells(root: ElementTree.Element) -> dict[tuple[int, int], Cell]:
    """Label and colour of each cell."""
    found: dict[tuple[int, int], Cell] = {}
    for group in root.iter(f"{SVG}g"):
        if group.get("class") == "cell":
            row, column = map(int, group.get("data-index", "").split(","))
            found[row, column] = _label_and_colour(group)
    return found


def legend(root: ElementTree.Element) -> dict[str, str]:
    return dict(_label_and_colour(group) for group in root.iter(f"{SVG}g") if group.get("class") == "legend")


def _label_and_colour(group: ElementTree.Element) -> Cell:
    text, box = group.find(f"{SVG}text"), group.find(f"{SVG}rect")
    assert text is not None
    assert box is not None
    return text.text or "", box.get("fill", "")


def texts(root: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("layout", [wgmma_accumulator((64, 16)), mma_operand_b((16, 16), 16, (2, 2))])
def test_registers_are_labelled_with_their_place_and_coloured_by_lane(layout: Layout) -> None:
    root = parsed(draw_svg(layout))
    found = cells(root)
    colours: dict[int, set[str]] = {}
    places = vectors(layout)
    assert found.keys() == places.keys()
    for index, place in places.items():
        at = dict(place)
        label, colour = found[index]  # type: ignore[index]
        assert label == f"W{at.get('warp', 0)} L{at.get('lane', 0)} R{at.get('reg', 0)}"
        colours.setdefault(at.get("lane", 0), set()).add(colour)
    assert all(len(each) == 1 for each in colours.values())
    assert len({colour for each in colours.values() for colour in each}) == len(colours)
    assert legend(root) == {f"lane {lane}": colour for lane, (colour,) in colours.items()}


@pytest.mark.parametrize(
    ("layout", "item_bytes", "ports"),
    [
        (shared_matrix((16, 64), 16), 2, MemoryPorts()),
        (shared_matrix((16, 64), 8, 64), 1, MemoryPorts()),
        (row_major((9, 33), "mem.shared"), 4, MemoryPorts()),
        (row_major((9, 33)), 8, MemoryPorts(16, 8)),
    ],
)
def test_memory_is_coloured_by_bank(layout: Layout, item_bytes: int, ports: MemoryPorts) -> None:
    root = parsed(draw_svg(layout, ports=ports, item_bytes=item_bytes))
    found = cells(root)
    colours: dict[int, set[str]] = {}
    for index, place in vectors(layout).items():
        address = sum(value for _, value in place)
        word, _ = divmod(address * item_bytes, ports.bank_bytes)
        bank = word - ports.banks * (word // ports.banks)
        label, colour = found[index]  # type: ignore[index]
        assert label == f"@{address} B{bank}"
        colours.setdefault(bank, set()).add(colour)
    assert len({colour for each in colours.values() for colour in each}) == len(colours)
    assert legend(root) == {f"bank {bank}": colour for bank, (colour,) in colours.items()}


def test_a_swizzle_keeps_the_rows_of_a_column_in_different_banks() -> None:
    plain, swizzled = row_major((8, 64)), shared_matrix((8, 64), 16)
    banks = [
        {cells(parsed(draw_svg(each, ports=MemoryPorts(), item_bytes=2)))[row, 0][1] for row in range(8)}
        for each in (plain, swizzled)
    ]
    assert [len(each) for each in banks] == [1, 8]


def test_big_tiles_are_cut_and_say_so() -> None:
    layout = packed_panels_b((100, 200), 32)
    root = parsed(draw_svg(layout, title="panels <of> a & b"))
    assert set(cells(root)) == {(row, column) for row in range(64) for column in range(64)}
    assert "cut: rows 0 to 63 of 100, columns 0 to 63 of 200" in texts(root)
    assert "panels <of> a & b" in texts(root)
    assert str(layout) in texts(root)
    window = parsed(draw_svg(layout, rows=range(90, 100), columns=range(31, 33)))
    assert set(cells(window)) == {(row, column) for row in range(90, 100) for column in (31, 32)}
    assert "cut: rows 90 to 99 of 100, columns 31 to 32 of 200" in texts(window)
    assert {str(n) for n in (*range(90, 100), 31, 32)} <= set(texts(window))
    assert not any(text.startswith("cut") for text in texts(parsed(draw_svg(row_major((64, 64))))))


def test_axes_slices_copies_and_marks() -> None:
    layout = Layout.parse("(4, 4) : [2@reg*2 2@lane*2 | 2@lane 2@reg] + replica[2@lane*4]")
    root = parsed(draw_svg(layout, "reg"))
    assert cells(root)[3, 1][0] == "R3"
    assert "each repeated over 2@lane*4" not in texts(root)
    assert "each repeated over 2@lane*4" in texts(parsed(draw_svg(layout)))
    marked = parsed(draw_svg(layout, marked={(1, 2): "two & more"}))
    (titled,) = [group for group in marked.iter(f"{SVG}g") if group.find(f"{SVG}title") is not None]
    assert titled.get("data-index") == "1,2"
    assert "framed in red: two & more" in texts(marked)
    slab = parsed(draw_svg(row_major((2, 2, 3)), leading=(1,)))
    assert [cells(slab)[1, column][0] for column in range(3)] == ["@9", "@10", "@11"]
    assert "the slice at (1, ...)" in texts(slab)
    grid = Layout.parse("(2, 4) : [2@core.y | 2@core.x 2@mem]")
    assert cells(parsed(draw_svg(grid)))[1, 3][0] == "y=1 x=1 @1"
    assert len(cells(parsed(draw_svg(row_major((5,), "lane"))))) == 5
    assert len(cells(parsed(draw_svg(row_major(()))))) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: draw_svg(row_major((4, 4)), "lane"),
        lambda: draw_svg(row_major((4, 4), "lane"), ports=MemoryPorts()),
        lambda: draw_svg(row_major((4, 4)), rows=range(2, 5)),
        lambda: draw_svg(row_major((4, 4)), columns=range(0)),
        lambda: draw_svg(row_major((2, 4, 4)), leading=(0, 1)),
    ],
)
def test_mistakes_are_layout_errors(make) -> None:
    with pytest.raises(LayoutError) as caught:
        make()
    assert caught.value.help
