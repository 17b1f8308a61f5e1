"""Cases, and the comparison of what a rule gives with what its framework gives, element by element."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from tests.interop.special_values.values import is_float
from tilewright.errors import TilewrightError

Array = np.ndarray[Any, Any]
Results = Sequence[Array]


class Unusable(Exception):
    """Why a framework's results for a type say nothing."""


@dataclass(frozen=True)
class Case:
    """A rule for one element type: `ours`, and the framework on several of its paths (vectors, single elements), each
    of which gives a list of arrays. `ulps` is how far results may be apart; 0 is bit for bit, NaN of any payload."""

    framework: str
    op: str
    dtype: str
    ours: Callable[[], Results]
    theirs: Callable[[], Sequence[Results]]
    inputs: Sequence[Array] = ()
    ulps: float = 0.0
    # The framework in f64, to which results may be nearer than those of its own narrower types are.
    exact: Callable[[], Results] | None = None
    # Whether a zero may have either sign: the extreme of zeros of both, which depends on the order of comparisons.
    any_zero: bool = False
    # Whether the framework gives 0 for subnormal results.
    flushes: bool = False
    # How many of the results are compared: places of equal elements are in no order.
    results: int | None = None
    # What sums cancel from: elements may differ by `ulps` of these.
    scale: Array | None = None


@dataclass
class Outcome:
    """Counts of elements: right, wrong, and unsettled, where the paths of the framework differ and we give one of them.
    `refused` says why a case was not run."""

    case: Case
    right: int = 0
    wrong: int = 0
    unsettled: int = 0
    refused: str = ""
    examples: list[str] = field(default_factory=list)


def run(case: Case) -> Outcome:
    """Compare a case."""
    outcome = Outcome(case)
    try:
        references = case.theirs()
    except Unusable as reason:
        outcome.refused = str(reason)
        return outcome
    except Exception as error:  # what frameworks raise for types that they do not take
        outcome.refused = f"{case.framework} refuses the type"
        outcome.examples.append(f"{type(error).__name__}: {str(error).splitlines()[0][:90] if str(error) else ''}")
        return outcome
    try:
        found = case.ours()
    except TilewrightError as error:
        outcome.refused = _reason(error)
        return outcome
    except Exception as error:  # a finding
        outcome.wrong += 1
        outcome.examples.append(f"{type(error).__name__}: {error}"[:200])
        return outcome
    exact = case.exact() if case.exact is not None else None
    for n, ours in enumerate(found[: case.results]):
        _count(outcome, np.asarray(ours), [np.asarray(r[n]) for r in references], None if exact is None else exact[n])
    return outcome


def _reason(error: TilewrightError) -> str:
    return error.message.splitlines()[0].rpartition("times): ")[2].split("(")[0].strip()[:80]


def _count(outcome: Outcome, ours: Array, references: list[Array], exact: Array | None) -> None:
    for theirs in references:
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            outcome.wrong += max(1, theirs.size)
            outcome.examples.append(f"{ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}")
            return
    matches = np.stack([agree(ours, theirs, outcome.case) for theirs in references])
    if exact is not None:
        with np.errstate(all="ignore"):
            matches = matches | agree(ours, np.asarray(exact).astype(ours.dtype), outcome.case)
    settled = np.stack([agree(references[0], theirs, outcome.case) for theirs in references]).all(0)
    right = matches.any(0)
    outcome.right += int((right & settled).sum())
    outcome.unsettled += int((right & ~settled).sum())
    outcome.wrong += int((~right).sum())
    shown = [*np.argwhere(~right)[:6], *np.argwhere(right & ~settled)[:2]]
    for at in map(tuple, shown):
        given = ", ".join(_short(x[at] if x.shape == ours.shape else x[at[:1]]) for x in outcome.case.inputs)
        wanted = " or ".join(dict.fromkeys(str(r[at]) for r in references))
        outcome.examples.append(f"({given}) -> {ours[at]}, theirs {wanted}")


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) < 60 else f"{text[:40]} ... {text[-15:]}"


def agree(a: Array, b: Array, case: Case) -> Array:
    """A mask of equal elements: the same bits, both NaN, or finite and within a number of ULPs."""
    if not is_float(a.dtype):
        return a == b
    bits = np.dtype(f"u{a.dtype.itemsize}")
    same = np.ascontiguousarray(a).view(bits).reshape(a.shape) == np.ascontiguousarray(b).view(bits).reshape(b.shape)
    with np.errstate(all="ignore"):
        wide, other = a.astype(np.float64), b.astype(np.float64)
        same = same | (np.isnan(wide) & np.isnan(other))
        if case.any_zero:
            same = same | ((wide == 0) & (other == 0))
        if case.flushes:
            same = same | ((other == 0) & (np.abs(wide) <= float(ml_dtypes.finfo(a.dtype).tiny)))
        if case.ulps:
            info = ml_dtypes.finfo(a.dtype)
            size = np.abs(other) if case.scale is None else np.maximum(np.abs(other), case.scale.reshape(a.shape))
            near = np.abs(wide - other) <= case.ulps * np.maximum(
                size * float(info.eps), float(info.smallest_subnormal)
            )
            # A result of 0 has a sign; one that rounds to the smallest numbers has none to speak of.
            same = same | (near & np.isfinite(wide) & np.isfinite(other) & ((wide != 0) | (other != 0)))
    return same


def summary(outcomes: Sequence[Outcome]) -> str:
    """Counts, by framework."""
    lines: list[str] = []
    for framework in dict.fromkeys(o.case.framework for o in outcomes):
        these = [o for o in outcomes if o.case.framework == framework]
        rules = len({o.case.op for o in these})
        wrong = sorted({o.case.op for o in these if o.wrong})
        totals = {k: sum(getattr(o, k) for o in these) for k in ("right", "unsettled", "wrong")}
        text = ", ".join(f"{n} {k}" for k, n in totals.items())
        lines.append(
            f"{framework}: {rules} rules, {len(these)} cases: {text} elements" + f"; wrong: {wrong}" * bool(wrong)
        )
        refused = collections.Counter(o.refused for o in these if o.refused)
        lines += [f"    refused, {n} cases: {reason}" for reason, n in refused.most_common()]
    return "\n".join(lines)
