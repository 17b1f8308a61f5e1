"""The words that the project is written in: finds sentences that do not use the terms of the field.

`python -m tests.docs.terminology` counts violations by area, `--list AREA` prints each with the words to use instead.
`docs/reference/glossary.md` defines the terms.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.docs.texts import AREAS, Text


@dataclass(frozen=True)
class Rule:
    """A pattern that prose does not contain, the words to use instead, and the uses that are right, each with why."""

    pattern: str
    instead: str
    allowed: Sequence[tuple[str, str]] = ()
    areas: Sequence[str] = tuple(AREAS)

    def violations(self, text: str) -> Iterator[re.Match[str]]:
        permitted = [found.span() for use, _ in self.allowed for found in re.finditer(use, text, re.IGNORECASE)]
        for found in re.finditer(self.pattern, text, re.IGNORECASE):
            if not any(start <= found.start() and found.end() <= end for start, end in permitted):
                yield found


_HEADLESS = "What|Where|Those|Whose|Whatever|Whoever|Whichever|Nobody"
_PRONOUNS = "It|They|The same|Its|Their|This is|These are"
_OPENING = "begin with a noun or a verb of the field"
_NO_NOUN = "name the thing: nothing precedes the pronoun"
_SENTENCES = ("pipelines", "errors", "remarks")

RULES: Sequence[Rule] = (
    # Openings: a text, and each sentence in it, begins with the noun that it is about or with a verb of the field. A
    # table cell or list item of a page that begins in lower case continues a sentence.
    Rule(rf"(?-i:(^\W{{0,2}}|[.?!]\s+)({_HEADLESS}))\b", _OPENING, [("^Where$", "an ONNX operator")]),
    Rule(rf"(?-i:^({_HEADLESS.lower()}))\b", _OPENING, areas=_SENTENCES),
    Rule(rf"(?-i:^({_PRONOUNS}))\b", _NO_NOUN),
    Rule(rf"(?-i:^({_PRONOUNS.lower()}))\b", _NO_NOUN, areas=_SENTENCES),
    # Nouns of the field.
    Rule(
        r"(?<!-)\bproducts?\b(?!-)",
        "matmul, contraction or MMA",
        [
            (r"\b(dot|outer|inner|cross|scalar|cumulative|Kronecker|Cartesian) products?\b", "a term of its own"),
            (
                r"\bproducts? of (the |all |its |their |two |these )?(elements|numbers|sizes|extents|factors)\b",
                "of scalars",
            ),
            (r"\bproducts? (over|along) (an |the |all )?(axis|axes)\b", "reductions of scalars"),
            (r"\bsums?(,| and| or| of) products?\b", "reductions of scalars"),
        ],
    ),
    Rule(r"\bagents?\b", "threads or roles"),
    Rule(r"\bblocks of cores\b|\bcores of an? GPU\b", "thread blocks (CTAs); SMs"),
    Rule(r"\b(planted mistakes?|mistakes? (is|are) planted|planted)\b", "mutants"),
    Rule(
        r"\b(the|a|an|its|one|each|every|their|which|what|no|same|of|own|right|other|another|two|some|all) places?\b",
        "address, offset, index, position or core: the one that it is",
        [
            (r"\b(decimal|last) places?\b", "digits of a number"),
            (r"\b(takes?|taking) (the|its|their) places?\b", "an idiom: to replace"),
        ],
    ),
    Rule(
        r"\bnumbers? of (an?|the|its|that|this|each|every) "
        r"(element|block|page|input|output|argument|axis|kernel|core|device|lane|thread|tile|step|stage|point|window)\b",
        "index or id",
    ),
    Rule(r"\blines? of (an?|the) (array|matrix|tile|result)\b|\bwhole lines\b", "row, column, or cache line"),
    Rule(r"\b(sizes|lengths) that (a|the|each) call binds?\b", "symbolic dimensions"),
    # Verbs of the field.
    Rule(r"\bturned\b", "transposed", [(r"\bturned (on|off|into)\b", "an option; a conversion")]),
    Rule(r"\bthe other way (round|around)\b", "transposed; reversed; vice versa"),
    Rule(r"\b(bring|brings|brought|bringing)\b", "load, copy, multicast"),
    Rule(r"\b(has|have|had|let|lets) (the|a) machine\b", "starts an asynchronous copy (TMA), issues an MMA"),
    Rule(
        r"\b(warps?|warpgroups?|threads?|blocks?|loops?|cores?)( that)? multipl(y|ies)\b",
        "computes the matmul; issues MMAs",
    ),
    Rule(r"\b(said|told|tell|tells|says?)\b", "declared, stated, signalled; describes, reports, shows"),
    Rule(r"\b(lie|lies|lying)\b", "is stored, is laid out, is contiguous; is at"),
    Rule(r"\bbehind\b", "after, following, beyond"),
    Rule(r"\bbeside\b", "next to, alongside, in addition to"),
    Rule(r"\bwithout end\b", "forever; deadlock"),
    Rule(r"\bnobody\b", "no reader, no waiter, no thread"),
    Rule(r"\b(does|do) not come\b|\bnever comes\b", "is never signalled; does not arrive"),
    Rule(r"\b(go|goes|went|going) on\b", "continue, proceed"),
)


@dataclass(frozen=True)
class Violation:
    """A match of a rule in a text, at the line where the text begins."""

    text: Text
    found: str
    rule: Rule

    def __str__(self) -> str:
        excerpt = " ".join(self.text.text.split())
        return f"{self.text.path}:{self.text.line}: `{self.found.strip()}` -> {self.rule.instead}\n    {excerpt}"


def prose(text: str) -> str:
    """A text without what is no prose: code in backticks, indented examples, prompts, targets of links, names of
    attributes and parameters in the list of a docstring. White space is one space within a paragraph."""
    text = re.sub(r"^ {4}\w+: ", "    name: ", text, flags=re.MULTILINE)
    text = re.sub(r"^((?:Before|After)[^\n]*:)\n(?: {4}.*\n?)+", r"\1\n", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`+[^`]*`+", "`", text))
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(" ".join(each.split()) for each in paragraphs if not re.match(r"( {4}|\s*>>> |\s*\.\. )", each))


def violations_in(text: Text, area: str) -> Iterator[Violation]:
    plain = prose(text.text)
    for rule in RULES:
        if area in rule.areas:
            yield from (Violation(text, found.group(), rule) for found in rule.violations(plain))


def violations(area: str) -> list[Violation]:
    """The violations of an area; a text that is collected twice counts once."""
    return [each for text in dict.fromkeys(AREAS[area]()) for each in violations_in(text, area)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Count sentences that do not use the terms of the field, by area.")
    parser.add_argument("--list", metavar="AREA", choices=[*AREAS], help="print each violation of an area")
    area = parser.parse_args().list
    if area is not None:
        print(*violations(area), sep="\n")
        return
    for each in AREAS:
        print(f"{each:12} {len(violations(each)):6}")


if __name__ == "__main__":
    main()
