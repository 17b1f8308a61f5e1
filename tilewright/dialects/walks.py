"""Walks over graphs of values and operations that need no stack of Python's: programs may be chains of any length."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from typing import TypeVar

N = TypeVar("N", bound=Hashable)


def reached(root: N, following: Callable[[N], Iterable[N]]) -> Iterator[N]:
    """Yield a node and those that follow it, directly or not: each once, after one that it follows."""
    pending, seen = [root], {root}
    while pending:
        node = pending.pop()
        yield node
        for each in following(node):
            if each not in seen:
                seen.add(each)
                pending.append(each)


def producers_first(roots: Iterable[N], needs: Callable[[N], Iterable[N]], known: Container[N] = ()) -> Iterator[N]:
    """Yield the nodes that lead to the roots in depth-first post-order: each once, after all nodes that it `needs`.

    Nodes in `known` are left out with what they need. It may be the caller's dict of results, filled on the way: a
    memoised recursive function becomes a loop whose body finds the results of a node's needs in that dict.
    """
    started: set[N] = set()
    for root in roots:
        if root in started or root in known:
            continue
        started.add(root)
        path = [(root, iter(needs(root)))]
        while path:
            node, rest = path[-1]
            for following in rest:
                if following not in started and following not in known:
                    started.add(following)
                    path.append((following, iter(needs(following))))
                    break
            else:
                path.pop()
                yield node
