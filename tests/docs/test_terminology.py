"""The project is written in the terms of the field: few areas are exempt, and their counts only fall."""

from __future__ import annotations

import ast

import pytest

from tests.docs.terminology import RULES, prose, violations, violations_in
from tests.docs.texts import AREAS, Text, error_arguments, paragraphs_of, phrases_in, remark_arguments, strings_given

# Violations that are left. Lower a number with the texts that are rewritten; it never rises.
BASELINE: dict[str, int] = {}


@pytest.mark.parametrize("area", AREAS)
def test_an_area_has_no_more_violations_than_its_baseline(area: str) -> None:
    found = violations(area)
    baseline = BASELINE.get(area, 0)
    listed = "\n".join(map(str, found[:20]))
    assert len(found) <= baseline, f"see `python -m tests.docs.terminology --list {area}`:\n{listed}"
    assert len(found) == baseline, f"{area} has only {len(found)} violations: lower its baseline to that"


# ---- sentences -------------------------------------------------------------------------------------------------------

BAD = (
    "What a pass is.",
    "Loads a tile. Where it is full, waits.",
    "whose rows are read",
    "they are read",
    "It is loaded once.",
    "The same, rounded to a type.",
    "Products of rows",
    "a product with its epilogue",
    "Deadlock: the agents wait for each other",
    "the place of a window",
    "the number of the page that is written",
    "copies whole lines",
    "the right operand is turned",
    "rows become columns, or the other way round",
    "a warp brings the next stage",
    "a warp has the machine copy",
    "windows that warpgroups multiply",
    "the manifest says nothing of a device",
    "elements lie next to each other",
    "one behind the last",
    "buffers beside the accumulator",
    "waits without end",
    "a semaphore that nobody signals",
    "a signal that does not come",
    "the loop goes on",
    "sizes that a call binds",
    "planted mistakes",
    "the cores of a GPU",
)
GOOD = (
    "Pair CTAs that read the same operand tile: each loads half and multicasts it to both.",
    "Shuffle elements between lanes, where a relayout stays within a warp.",
    "a dot product of two vectors, or an outer product",
    "a cross-product",
    "The product of the sizes is the number of elements.",
    "Rounding errors of 4 units in the last place.",
    "Tracing is turned off.",
    "Operators are turned into kernels.",
    "`what` and `product` are names of variables.",
    "[this page](lies/behind.md) links to another",
    "The sum of products over an axis.",
    "Compute in place.",
    "    product = indented code",
    "The layouts.\n\nAttributes:\n    products: the variable of each atom.",
)


@pytest.mark.parametrize("text", BAD)
def test_a_bad_sentence_is_found(text: str) -> None:
    assert [*violations_in(Text("page.md", 1, text), "errors")]


@pytest.mark.parametrize("text", GOOD)
def test_a_good_sentence_is_not_found(text: str) -> None:
    assert not [*violations_in(Text("page.md", 1, text), "docs")]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.pattern)
def test_each_rule_finds_a_bad_sentence(rule: object) -> None:
    assert any(each.rule is rule for bad in BAD for each in violations_in(Text("page.md", 1, bad), "errors"))


def test_a_violation_names_the_file_the_line_and_the_word_to_use() -> None:
    (violation,) = violations_in(Text("a.md", 7, "the pages behind it"), "docs")
    assert str(violation) == "a.md:7: `behind` -> after, following, beyond\n    the pages behind it"


# ---- where texts are found -------------------------------------------------------------------------------------------


def _strings(source: str) -> ast.Module:
    return ast.parse(source)


def test_texts_of_errors_are_found_through_names_and_parts() -> None:
    tree = _strings(
        """
def refuse(size):
    message = f"the size is {size}"
    raise ShapeError(message, help="give " + ("one" if size else "two"))

def other():
    raise SomethingElse("no error of ours")
"""
    )
    found = [text.text for text in strings_given("a.py", tree, error_arguments)]
    assert found == ["the size is {}", "give ", "one", "two"]


def test_texts_of_remarks_are_found() -> None:
    tree = _strings(
        """
WHY = "no room"

def decide(unit):
    decision, why = "not copied", WHY
    unit.remarks.append(Remark("a-pass", "kernel", decision, why))
    raise Refused("two loops")
"""
    )
    found = {text.text for text in strings_given("a.py", tree, remark_arguments)}
    assert found == {"a-pass", "kernel", "not copied", "two loops"}


def test_phrases_have_several_words_and_are_no_docstrings() -> None:
    tree = _strings('"""Of a module."""\n\nNAME = "queue"\nTEXT = f"queue {NAME} is full"\n')
    assert [text.text for text in phrases_in("a.py", tree)] == ["queue {} is full"]


def test_a_page_is_taken_apart_without_its_code() -> None:
    page = "# Title\n\nOne line\nand another.\n\n- item\n  of two lines\n- last\n```\ncode\n```\n| a | b |\n"
    found = [(text.line, text.text) for text in paragraphs_of("a.md", page)]
    assert found == [
        (1, "Title"),
        (3, "One line and another."),
        (6, "item of two lines"),
        (8, "last"),
        (12, "a"),
        (12, "b"),
    ]


def test_prose_is_without_code_and_targets_of_links() -> None:
    assert prose("Use ``x @ y`` as\nin [a page](b.md).\n\n    x = 1\n") == "Use ` as in [a page]."
