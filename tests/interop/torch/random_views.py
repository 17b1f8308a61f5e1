"""Compare random torch programs with views and in-place writes, compiled, with eager torch.

    python -m tests.interop.torch.random_views [--programs 2000] [--seed 0] [--dtype float32] [--verbose]

A program is a list of statements over a growing list of tensors: views of earlier ones, writes to them, and new
tensors; it returns some of them, inputs and views of these too. It runs three times, with sizes that differ where its
shapes are dynamic, on inputs that an earlier call has written to. Results, inputs, buffers and which of them share
memory must be those of eager torch, bit for bit: numbers are small and whole, so that no rounding is involved.
"""

from __future__ import annotations

import argparse
import collections
import logging
import random
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.interop.torch import backend

DTYPES = ("float32", "bfloat16", "int64", "bool")
_MAX_ELEMENTS = 4096
Statement = tuple[Callable[..., Any], tuple[int, ...]]


# ---- statements -----------------------------------------------------------------------------------------------------

_VIEWS: dict[str, Callable[[Any], Any]] = {
    "alias": lambda x: x[...],
    "detach": lambda x: x.detach(),
    "first": lambda x: x[0],
    "last": lambda x: x.select(-1, -1),
    "tail": lambda x: x[1:],
    "head": lambda x: x[:-1],
    "window": lambda x: x.narrow(-1, 1, 2),
    "even": lambda x: x[..., ::2],
    "transpose": lambda x: x.transpose(0, -1),
    "reversed": lambda x: x.permute(*reversed(range(x.ndim))),
    "new_first": lambda x: x.unsqueeze(0),
    "new_last": lambda x: x.unsqueeze(-1),
    "flat": lambda x: x.reshape(-1),
    "squeezed": lambda x: x.squeeze(0),
    "diagonal": lambda x: x.diagonal(),
    "repeated": lambda x: x.unsqueeze(0).expand(2, *x.shape),
    "halves": lambda x: x.chunk(2, 0)[0],
}
_NEW: dict[str, Callable[[Any], Any]] = {
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
    "copied": lambda x: x.t().clone() if x.ndim == 2 else x.clone(),
    "flipped": lambda x: x.flip(0),
    "opposite": lambda x: ~x if x.dtype == torch.bool else -x,
    "total": lambda x: x.any(0) if x.dtype == torch.bool else x.clamp(-1, 1).sum(0).to(x.dtype).clamp(-64, 64),
    "doubled": lambda x: torch.cat([x, x], 0),
    "of_truth": lambda x: (x != 0).to(x.dtype),
    "like": lambda x: torch.ones_like(x),
    "bits": lambda x: x.to(torch.int32).to(x.dtype),
}
_PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "plus": lambda x, y: (x | y) if x.dtype == torch.bool else (x + y).clamp(-64, 64),
    "where": lambda x, y: torch.where(x != 0, y, x),
    "larger": lambda x, y: torch.maximum(x, y),
}


def _is_number(x: Any) -> bool:
    return x.dtype != torch.bool


def _bounded_add(x: Any, y: Any) -> None:
    x.logical_or_(y) if not _is_number(x) else x.add_(y).clamp_(-64, 64)


def _set(x: Any, y: Any) -> None:
    x[...] = y


def _masked(x: Any) -> None:
    x.masked_fill_(x == 1, 2)


def _index_put(x: Any) -> None:
    x[torch.tensor([0])] = x[-1:].clone()


_WRITES: dict[str, Callable[[Any], Any]] = {
    "negate": lambda x: x.neg_() if _is_number(x) else x.logical_not_(),
    "increase": lambda x: x.add_(1).clamp_(-64, 64) if _is_number(x) else x.logical_or_(True),
    "fill": lambda x: x.fill_(3),
    "zero": lambda x: x.zero_(),
    "bound": lambda x: x.clamp_(-2, 2) if _is_number(x) else x.logical_and_(True),
    "masked": _masked,
    "first_row": lambda x: x[0].fill_(1),
    "last_column": lambda x: x[..., -1:].copy_(x[..., :1]),
    "index_put": _index_put,
    "assign_window": lambda x: x[1:].zero_(),
}
_PAIR_WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "add": _bounded_add,
    "copy": lambda x, y: x.copy_(y),
    "set": _set,
    "multiply": lambda x, y: x.mul_(y.clamp(-1, 1)) if _is_number(x) else x.logical_and_(y),
}
_KINDS = ((_VIEWS, 1, 5), (_NEW, 1, 2), (_PAIRS, 2, 2), (_WRITES, 1, 4), (_PAIR_WRITES, 2, 3))


@dataclass(frozen=True)
class Program:
    """Statements over tensors by number, of which the first are the inputs, and the numbers of what is returned."""

    dtype: str
    dynamic: bool
    shapes: tuple[tuple[tuple[int, ...], ...], ...]
    statements: tuple[tuple[str, int, tuple[int, ...]], ...]
    results: tuple[int, ...]

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run the statements."""
        tensors = list(inputs)
        for name, kind, operands in self.statements:
            functions, arity, _ = _KINDS[kind]
            found = functions[name](*(tensors[n] for n in operands[:arity]))
            if kind < 3:
                tensors.append(found)
        return tuple(tensors[n] for n in self.results)

    def __str__(self) -> str:
        lines = [f"{self.dtype} {'dynamic' if self.dynamic else 'static'} {self.shapes[0]}"]
        number = len(self.shapes[0])
        for name, kind, operands in self.statements:
            target = f"t{number} = " if kind < 3 else ""
            number += kind < 3
            lines.append(f"    {target}{name}({', '.join(f't{n}' for n in operands)})")
        return "\n".join([*lines, f"    return {', '.join(f't{n}' for n in self.results)}"])


def generate(rng: random.Random, dtype: str | None = None) -> Program:
    """A random program that eager torch runs for each of its shapes."""
    kind = dtype or rng.choice(DTYPES)
    dynamic = rng.random() < 0.5
    count = rng.randint(1, 3)
    shapes = [tuple((rng.randint(3, 6), rng.randint(3, 6)) for _ in range(count))]
    if rng.random() < 0.5:
        shapes = [(shapes[0][0],) * count]
    # Of other sizes alike where inputs are alike, so that they broadcast as before.
    grown = tuple(tuple(n + 2 for n in shape) for shape in shapes[0])
    every = (shapes[0], grown if dynamic else shapes[0], shapes[0])
    statements: list[tuple[str, int, tuple[int, ...]]] = []
    number = count
    for _ in range(rng.randint(2, 10)):
        for _ in range(20):
            at = rng.choices(range(len(_KINDS)), [weight for *_, weight in _KINDS])[0]
            functions, arity, _ = _KINDS[at]
            statement = (rng.choice(list(functions)), at, tuple(rng.randrange(number) for _ in range(arity)))
            trial = Program(kind, dynamic, every, (*statements, statement), tuple(range(number + (at < 3))))
            if _runs(trial):
                statements.append(statement)
                number += at < 3
                break
    wanted = tuple(rng.randrange(number) for _ in range(rng.randint(1, 4)))
    return Program(kind, dynamic, every, tuple(statements), wanted)


def _runs(program: Program) -> bool:
    try:
        results = [t for n in (0, 1) for t in program(*inputs_of(program, n))]
    except (RuntimeError, IndexError, TypeError):
        return False
    return all(t.numel() <= _MAX_ELEMENTS and t.ndim <= 5 for t in results)


def inputs_of(program: Program, call: int) -> list[Any]:
    """Small whole numbers."""
    generator = torch.Generator().manual_seed(call)
    made = [torch.randint(-2, 4, shape, generator=generator) for shape in program.shapes[call]]
    kind = getattr(torch, program.dtype)
    return [t > 0 if kind == torch.bool else t.to(kind) for t in made]


# ---- comparison -----------------------------------------------------------------------------------------------------


def outcome(program: Program) -> tuple[str, str]:
    """Whether a program is equal, different, or one that torch's own tracing changes; and how it differs."""
    reason = _difference(program, backend)
    if reason is None:
        return "equal", ""
    # The graph that AOTAutograd makes, run by eager torch.
    return "of torch's tracing" if _difference(program, "aot_eager") else "different", reason


def _difference(program: Program, compiler: Any) -> str | None:
    torch._dynamo.reset()
    compiled = torch.compile(program.__call__, backend=compiler, dynamic=program.dynamic, fullgraph=True)
    for call in range(len(program.shapes)):
        ours, theirs = inputs_of(program, call), inputs_of(program, call)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = compiled(*ours)
            except Exception as error:  # any is a finding
                lines = traceback.format_exception_only(error)
                return f"call {call}: {lines[0].strip()[:300]}"
            expected = program(*theirs)
        reason = _compared([*found, *ours], [*expected, *theirs])
        if reason is None:
            reason = _sharing(found, ours, expected, theirs)
        if reason is not None:
            return f"call {call}: {reason}"
    return None


def _compared(found: Sequence[Any], expected: Sequence[Any]) -> str | None:
    for n, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"tensor {n} is {ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
        if not torch.equal(ours, theirs):
            return f"tensor {n} is {ours.tolist()}, not {theirs.tolist()}"
    return None


def _sharing(found: Sequence[Any], ours: Sequence[Any], expected: Sequence[Any], theirs: Sequence[Any]) -> str | None:
    """Whether what is written to the first result is seen in the same other tensors."""
    for results in (found, expected):
        if any(n > 1 and s == 0 for n, s in zip(results[0].shape, results[0].stride(), strict=True)):
            return None
        results[0].logical_not_() if results[0].dtype == torch.bool else results[0].add_(5)
    reason = _compared([*found, *ours], [*expected, *theirs])
    return None if reason is None else f"after a write to the first result, {reason}"


def main() -> None:
    """The command: see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("--verbose", action="store_true", help="print each program that differs in full")
    given = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    logging.disable(logging.ERROR)  # torch's, of programs that it cannot trace
    start = time.perf_counter()
    for seed in range(given.seed, given.seed + given.programs):
        program = generate(random.Random(seed), given.dtype)
        state, reason = outcome(program)
        counts[state] += 1
        if state != "equal":
            print(f"seed {seed}: {state}: {reason}\n{program if given.verbose else ''}", flush=True)
    print(f"{dict(counts)} in {time.perf_counter() - start:.0f} s")
    raise SystemExit(bool(counts["different"]))


if __name__ == "__main__":
    main()
