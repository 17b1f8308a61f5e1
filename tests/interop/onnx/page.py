"""The page that says which ONNX operators are supported, from the outcomes of the backend tests."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence

import onnx
from onnx import defs

from tests.interop.onnx.cases import Outcome
from tilewright.interop.onnx.loading import NEWEST_OPSET
from tilewright.interop.onnx.needs import HOST_OPERATORS
from tilewright.interop.onnx.registry import find_rule, known_operators

_HEAD = """# ONNX operators

`tw.from_onnx` reads opsets up to {opset}. Each operator is traced as array functions by a rule of its own, or by the
function that ONNX defines it by; what no program can hold runs on the host, between programs.
`python -m tests.interop.onnx.suite` runs the backend tests of the package `onnx` {version} on `cpu`, at their own
tolerances, and writes this page.

## Backend tests

| Kind | Tests | Passed | Not supported | Other |
|---|---:|---:|---:|---|
{kinds}

"Other" are tests whose expected values are rounding errors of the reference, larger than the tolerance.

## Operators

"Rule" is a rule of its own, "definition" the function of ONNX, "host" the reference evaluator of the package `onnx`,
which moves data for any other operator too where they are strings. Tests are those of one node that is this operator.

| Operator | By | Tests passed | Why not all |
|---|---|---:|---|
{operators}

## Operators of ONNX Runtime

Of its domain `com.microsoft` these have rules, which `tests/interop/onnx/test_contributed.py` compares with ONNX
Runtime: {contributed}.
"""


def page(found: Mapping[str, Sequence[Outcome]]) -> str:
    """The text of `docs/reference/onnx.md`. Outcomes are by kind."""
    kinds = "\n".join(_kind_row(kind, outcomes) for kind, outcomes in found.items())
    single: dict[str, list[Outcome]] = collections.defaultdict(list)
    for outcome in (o for outcomes in found.values() for o in outcomes if len(o.operators) == 1):
        single[outcome.operators[0]].append(outcome)
    rows = "\n".join(_operator_row(name, single.get(name, ())) for name in _names())
    return _HEAD.format(
        opset=NEWEST_OPSET, version=onnx.__version__, kinds=kinds, operators=rows, contributed=contributed()
    )


def contributed() -> str:
    """The operators of ONNX Runtime that have a rule."""
    return ", ".join(f"`{name}`" for domain, name in known_operators() if domain == "com.microsoft")


def _kind_row(kind: str, outcomes: Sequence[Outcome]) -> str:
    counts = collections.Counter(o.state for o in outcomes)
    others = ", ".join(f"{n} {s}" for s, n in sorted(counts.items()) if s not in ("passed", "unsupported"))
    return f"| {kind} | {len(outcomes)} | {counts['passed']} | {counts['unsupported']} | {others} |"


def _names() -> list[str]:
    schemas = [s for s in defs.get_all_schemas() if not s.deprecated]
    return sorted(f"{s.domain}.{s.name}" if s.domain else s.name for s in schemas)


def _operator_row(name: str, outcomes: Sequence[Outcome]) -> str:
    domain, _, op = name.rpartition(".")
    schema = defs.get_schema(op, domain=domain)
    if (domain, op) in HOST_OPERATORS:
        by = "host"
    elif find_rule(domain, op, NEWEST_OPSET) is not None:
        by = "rule"
    elif schema.has_function or schema.has_context_dependent_function:
        by = "definition"
    else:
        by = "-"
    passed = sum(o.state == "passed" for o in outcomes)
    reasons = collections.Counter(_reason(o) for o in outcomes if o.state != "passed")
    why = "; ".join(reason for reason, _ in reasons.most_common(3)) if by != "-" else ""
    return f"| {name} | {by} | {f'{passed} of {len(outcomes)}' if outcomes else ''} | {why} |"


def _reason(outcome: Outcome) -> str:
    text = re.sub(r"^node .*?\) of [^:]*: ", "", outcome.reason.splitlines()[0] if outcome.reason else outcome.state)
    text = re.sub(r"^'[^']*' is of", "elements of", text)
    return text.replace("|", "\\|")[:120]
