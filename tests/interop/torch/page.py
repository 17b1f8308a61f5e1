"""The page that says which ATen operators have rules, and what became of the operators of torch's OpInfo database."""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping, Sequence

import torch

from tests.interop.torch.samples import Outcome, core_operators
from tilewright.interop.torch.dynamo import decompositions
from tilewright.interop.torch.registry import IN_TORCH, known_operators

_HEAD = """# PyTorch operators

Graphs of `torch.compile` and exported programs are taken apart to ATen operators, by AOTAutograd and the decompositions
of torch. Each of those below is traced as array functions by a rule; what has no rule, or a form that its rule does not
know, runs in torch (`torch.compile`, and `tw.from_torch` with `fallback="torch"`) or is refused (`tw.from_torch`).

`python -m tests.interop.torch.opinfo` runs the operators of torch's OpInfo database ({version}) on `cpu`, forward and
backward, compares them with eager torch, and writes this page. Of operators that eager torch runs as one of the core of
ATen ({core_operators} of them) all samples of float32 were run ({core_samples} of which torch makes graphs), of others
at most {samples}.

## OpInfo

| Elements | Operators | Right | Right, some forms in torch | Right, in torch | Wrong | No samples |
|---|---:|---:|---:|---:|---:|---:|
{counts}

"Right" are operators whose samples all became compiled programs, within the tolerances of `torch.testing.assert_close`
or as close to f64 as eager torch is. "In torch" are those for which an operator of a graph, of the backward pass too,
has no rule. "No samples" are those of which torch makes no graph, has no samples of these elements, or leaves the
results open. Results of random number generators are not compared.

## Operators that run in torch

| Operator of a graph | Operators of OpInfo | Why |
|---|---:|---|
{in_torch}

## Core ATen

{core_known} of the {core_count} overloads that torch tags as its core have a rule, and {core_taken} more are taken
apart. The others run in torch:

{core_missing}

In the graphs of samples of float32 that were compiled, {core_met} of those with a
rule came up; not {core_unmet}, which `tests/interop/torch/test_core_overloads.py` compares with eager torch.

## Operators that take graphs

{graphs}

`cond`, `while_loop`, `scan` and `map` become branches and loops of the program, with gradients; the values that a
`while_loop` keeps for its gradients have a size that depends on data, and run in torch. `flex_attention` takes
functions of scores and masks that consist of elementwise operations and look-ups with an index for each axis; others
run in torch. A block mask only marks where its mask is false throughout, so its mask decides. Graphs that are
checkpointed or called at several places are traced where they are called. A graph that holds an operator without a
rule runs in torch as a whole.

## Rules

{rules}
"""


def page(found: Mapping[str, Sequence[Outcome]], core: Collection[str], samples: int) -> str:
    """The text of `docs/reference/torch.md`. Outcomes are by element type: of all samples for operators of `core` and
    float32, else of at most `samples`."""
    counts = "\n".join(_count_row(dtype, outcomes) for dtype, outcomes in found.items())
    every = [outcome for outcomes in found.values() for outcome in outcomes]
    return _HEAD.format(
        samples=samples,
        core_operators=len(core),
        core_samples=sum(outcome.samples for outcome in found["float32"] if outcome.name in core),
        **_met(found["float32"]),
        version=torch.__version__.partition("+")[0],
        counts=counts,
        in_torch=_in_torch_rows(every),
        **rules_and_core(),
    )


def rules_and_core() -> dict[str, object]:
    """The parts of the page that follow from the rules alone."""
    names = known_operators()
    taken = {str(target) for target in decompositions()}
    core = core_operators()
    missing = [name for name in core if name not in names and name not in taken]
    return {
        "core_known": sum(name in names for name in core),
        "core_count": len(core),
        "core_taken": sum(name in taken and name not in names for name in core),
        "core_missing": "\n".join(f"- `{name}`: {IN_TORCH.get(name, 'complex numbers')}" for name in missing),
        "graphs": ", ".join(f"`{name.rpartition('.')[2]}`" for name in names if "higher_order" in name) + ".",
        "rules": ", ".join(f"`{name.removeprefix('aten.')}`" for name in names if name.startswith("aten.")) + ".",
    }


def _met(outcomes: Sequence[Outcome]) -> dict[str, object]:
    met = {name for outcome in outcomes for name in outcome.compiled_operators}
    ruled = [name for name in core_operators() if name in known_operators()]
    unmet = ", ".join(f"`{name}`" for name in ruled if name not in met)
    return {"core_met": sum(name in met for name in ruled), "core_unmet": unmet}


def _count_row(dtype: str, outcomes: Sequence[Outcome]) -> str:
    counts = collections.Counter(outcome.state for outcome in outcomes)
    kinds = ("right", "partly", "falls back", "wrong", "untraced")
    return f"| {dtype} | {len(outcomes)} | {' | '.join(str(counts[kind]) for kind in kinds)} |"


def _in_torch_rows(outcomes: Sequence[Outcome]) -> str:
    users: dict[str, set[str]] = collections.defaultdict(set)
    reasons: dict[str, str] = {}
    for outcome in outcomes:
        for name, reason in outcome.in_torch:
            users[name].add(outcome.name)
            reasons.setdefault(name, reason)
    ordered = sorted(users, key=lambda name: (-len(users[name]), name))
    return "\n".join(f"| {n} | {len(users[n])} | {reasons[n][:100].replace('|', ',')} |" for n in ordered)
