"""Einstein summation: subscripts are parsed, diagonals taken, and operands contracted two at a time in the order that
takes the fewest multiplications."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import count
from typing import Any

import msgspec
import numpy as np

from tilewright.api.array import Array, located
from tilewright.api.functions_linalg import Labels, diagonal, join, summed
from tilewright.api.lifting import ArrayLike, promoted, transpose
from tilewright.errors import ArgumentError, DTypeError, ShapeError

# `numpy.einsum_path` names an axis by one of 52 letters; all orders of more operands take too long to try.
_MOST_LABELS, _MOST_OPTIMAL = 52, 5


class _Axis(msgspec.Struct, frozen=True):
    """An axis that `...` stands for, counted from the last of them."""

    from_last: int


def einsum(subscripts: str, /, *operands: ArrayLike) -> Array:
    """Sum of products in index notation, such as `einsum("bik,bkj->bij", x, y)`.

    A letter names an axis; letters that the result lacks are summed over; a letter twice in one operand takes its
    diagonal; `...` stands for leading axes that broadcast; without `->` the result has the letters that occur once, in
    alphabetical order. Axes of size 1 broadcast. Three and more operands are contracted in the order that
    `numpy.einsum_path` gives: the best of all orders for up to five, that of a greedy search for more.

    Raises:
        ArgumentError: the subscripts are malformed or name other than the given operands.
        ShapeError: they do not fit the shapes.
        DTypeError: the operands are bools.
    """
    terms, result_term = _parse(subscripts, len(operands))
    arrays = promoted(*operands)
    if arrays[0].dtype.is_bool:
        raise located(DTypeError("`einsum` takes numbers, not bools", help="use `x.astype(tw.i32)`"))
    labelled = [_label(term, x) for term, x in zip(terms, arrays, strict=True)]
    _check_sizes(labelled)
    result = _result_labels(terms, result_term, [labels for _, labels in labelled])
    labelled = [_without_diagonals(x, labels) for x, labels in labelled]
    for step in _path(labelled, result):
        taken = [labelled.pop(position) for position in sorted(step, reverse=True)][::-1]
        labelled.append(_contracted(taken, labelled, result))
    ((total, labels),) = labelled
    total, labels = summed(total, labels, set(result))
    return transpose(total, tuple(map(labels.index, result)))


def _malformed(subscripts: str, why: str) -> ArgumentError:
    error = ArgumentError(f"the subscripts {subscripts!r} {why}", help='write them as in "ij,jk->ik"')
    located(error)
    return error


def _parse(subscripts: object, count: int) -> tuple[list[str], str | None]:
    if not isinstance(subscripts, str):
        message = f"the subscripts of `einsum` are of type {type(subscripts).__name__}, not a string"
        raise located(ArgumentError(message, help='write them before the operands, as in "ij,jk->ik"'))
    compact = "".join(subscripts.split())
    left, arrow, right = compact.partition("->")
    terms = left.split(",")
    if not terms or len(terms) != count:
        raise _malformed(subscripts, f"name {len(terms)} operands, but {count} are given")
    result = right if arrow else None
    for term in (*terms, result or ""):
        letters = term.replace("...", "", 1)
        if not all(c.isascii() and c.isalpha() for c in letters):
            raise _malformed(subscripts, "hold something other than letters, `...`, `,` and `->`")
    if result is not None:
        if "..." in left and "..." not in result:
            raise _malformed(subscripts, "have `...` in an operand but not in the result")
        letters = result.replace("...", "")
        if len(set(letters)) != len(letters):
            raise _malformed(subscripts, "name an axis of the result twice")
        if missing := set(letters) - set(left):
            raise _malformed(subscripts, f"name `{min(missing)}` in the result only")
    return terms, result


def _label(term: str, x: Array) -> tuple[Array, Labels]:
    before, dots, after = term.partition("...")
    implied = x.ndim - len(before) - len(after)
    if implied < 0 or (implied and not dots):
        message = f"the subscripts `{term}` name {len(before) + len(after)} axes of an array of shape {x.shape}"
        raise located(ShapeError(message, help="name each axis, or write `...` for the others"))
    return x, (*before, *(_Axis(d) for d in range(implied, 0, -1)), *after)


def _check_sizes(labelled: list[tuple[Array, Labels]]) -> None:
    sizes: dict[object, int] = {}
    for x, labels in labelled:
        for label, size in zip(labels, x.shape, strict=True):
            known = sizes.get(label, 1)
            if size != 1 and known not in (1, size):
                name = f"`{label}`" if isinstance(label, str) else "an axis of `...`"
                raise located(ShapeError(f"{name} has size {known} and size {size}", help="use equal sizes, or 1"))
            sizes[label] = known if size == 1 else size


def _result_labels(terms: list[str], result: str | None, found: list[Labels]) -> Labels:
    implied = sorted(
        {label for labels in found for label in labels if isinstance(label, _Axis)}, key=lambda axis: -axis.from_last
    )
    if result is not None:
        before, _, after = result.partition("...")
        return (*before, *implied, *after)
    counts = Counter("".join(terms).replace(".", ""))
    return (*implied, *sorted(letter for letter, times in counts.items() if times == 1))


def _without_diagonals(x: Array, labels: Labels) -> tuple[Array, Labels]:
    """One axis for each label that occurs twice or more."""
    while len(set(labels)) < len(labels):
        label = next(label for label in labels if labels.count(label) > 1)
        first = labels.index(label)
        second = labels.index(label, first + 1)
        if x.shape[first] != x.shape[second]:
            message = f"`{label}` has sizes {x.shape[first]} and {x.shape[second]} in one operand"
            raise located(ShapeError(message, help="a diagonal needs equal sizes"))
        others = [d for d in range(x.ndim) if d not in (first, second)]
        x = diagonal(transpose(x, (*others, first, second)))
        labels = (*(labels[d] for d in others), label)
    return x, labels


def _path(labelled: Sequence[tuple[Array, Labels]], result: Labels) -> list[tuple[int, ...]]:
    """The steps of a contraction: the positions of the operands of each, which leave the list; its result is appended.

    Of integers the first order is as good as any, as overflow wraps; floats round in the order of the steps.
    """
    if len(labelled) < 3:
        return [tuple(range(len(labelled)))]
    numbers: dict[Hashable, int] = {}
    of = count()
    for _, labels in labelled:
        for label in labels:
            if label not in numbers:
                numbers[label] = next(of)
    if len(numbers) > _MOST_LABELS:
        return [tuple(range(len(labelled)))]
    described: list[Any] = []
    for x, labels in labelled:
        described += [np.broadcast_to(np.float32(0), x.shape), [numbers[label] for label in labels]]
    kind = "optimal" if len(labelled) <= _MOST_OPTIMAL else "greedy"
    found: Any = np.einsum_path(*described, [numbers[label] for label in result], optimize=kind)
    return found[0][1:]  # after the name of the function


def _contracted(
    taken: Sequence[tuple[Array, Labels]], others: Sequence[tuple[Array, Labels]], result: Labels
) -> tuple[Array, Labels]:
    """The operands of a step joined from the left; labels that neither the others nor the result have are summed."""
    (total, labels), *rest = taken
    for n, (x, right) in enumerate(rest):
        following = [*rest[n + 1 :], *others]
        later = {label for _, each in following for label in each} | set(result)
        kept = _intermediate(labels, right, later) if following else result
        total, labels = join(total, labels, x, right, kept, total.dtype), kept
    return total, labels


def _intermediate(left: Labels, right: Labels, wanted: set[Hashable]) -> Labels:
    """The labels that later steps need, in the order in which a contraction gives them."""
    shared = [label for label in left if label in right and label in wanted]
    free = [label for label in (*left, *right) if label in wanted and label not in shared]
    return (*shared, *free)
