"""Mistakes planted in the front end of tile kernels: `python -m tests.fuzz.source_mutants --kernels 300`.

Each one is about where a tile lies outside its array, about the paths on which names and edges meet, or about names
that leak; the fuzzer of the kernel language must find it.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings

from tests.fuzz.mutants import Mutant, hunt
from tests.fuzz.sources import check, generate


def _builder(name: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"frontend.pyast_builder:{function}", old, new)


def _reductions(name: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"frontend.pyast_reductions:{function}", old, new)


def _merges(name: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"frontend.pyast_merges:{function}", old, new)


def _indexing(name: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"frontend.pyast_indexing:{function}", old, new)


def _compiler(name: str, method: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"frontend.pyast_statements:Compiler.{method}", old, new)


PLANTED = (
    # edges of single operations
    _builder(
        "reshape forgets axes of size 1", "_reshaped_edges", "whole.append(tuple(e.of_tile for e in own))", "pass"
    ),
    _builder("reshape forgets dropped axes", "_reshaped_edges", "whole = [x.edges[-1]]", "whole = [()]"),
    _builder("reshape moves edges to the first axis", "_reshaped_edges", "edges[places[dim]] = own", "edges[0] = own"),
    _builder("reshape keeps no edges", "_reshaped_edges", "edges[places[dim]] = own", "pass"),
    _builder(
        "transpose leaves edges",
        "KernelBuilder.transpose",
        "x.edges[p] for p in permutation",
        "e for e in x.edges[:-1]",
    ),
    _builder("transpose forgets dropped axes", "KernelBuilder.transpose", "), x.edges[-1])", "), ())"),
    _builder("slice keeps the old start", "KernelBuilder.slice", "e.start + e.stride * start", "e.start"),
    _builder("slice keeps the old stride", "KernelBuilder.slice", "e.stride * step", "e.stride"),
    _builder("slice forgets dropped axes", "KernelBuilder.slice", "(*edges, x.edges[-1])", "(*edges, ())"),
    _builder("slice forgets guards", "KernelBuilder.slice", "e.limit, e.guard)", "e.limit)"),
    _builder("slice of tiles forgets edges", "KernelBuilder.slice", "for e in own)", "for e in ())"),
    _builder("copies of a lane count", "spread_edges", "tuple(e.of_tile for e in own)", "()"),
    _builder("only the first copy of a lane is outside", "spread_edges", "tuple(e.of_tile for e in own)", "own"),
    _builder("broadcast forgets dropped axes", "spread_edges", "edges[-1] = x.edges[-1]", "pass"),
    _builder("broadcast forgets edges", "spread_edges", "own if size == shape[axis]", "() if size == shape[axis]"),
    _builder(
        "elementwise results take one operand's edges",
        "KernelBuilder.map",
        "union_edges(*(t.edges for t in typed))",
        "typed[0].edges",
    ),
    _builder(
        "elementwise results take the last operand's edges",
        "KernelBuilder.map",
        "union_edges(*(t.edges for t in typed))",
        "typed[-1].edges",
    ),
    _builder("fills leave out dropped axes", "KernelBuilder.filled", "(*dims, x.rank)", "dims"),
    _builder("fills stop after one edge", "KernelBuilder.filled", "in x.edges[dim]:", "in x.edges[dim][:1]:"),
    _builder("fills begin a lane late", "KernelBuilder.fill_edge", '"limit": edge.limit', '"limit": edge.limit + 1'),
    _builder(
        "fills ignore guards",
        "KernelBuilder.fill_edge",
        "if edge.guard is None:\n        return filled",
        "if True:\n        return filled",
    ),
    _builder(
        "guards are inverted",
        "KernelBuilder.fill_edge",
        "[guard.value, filled.value, x.value]",
        "[guard.value, x.value, filled.value]",
    ),
    _builder("fills ignore strides", "KernelBuilder.fill_edge", "* edge.stride", "* 1"),
    _builder("absent guards hold", "KernelBuilder.guard_of", "bool(guards)", "True"),
    _builder("several guards must all hold", "KernelBuilder._either", '"bitwise_or"', '"bitwise_and"'),
    _builder(
        "concatenation ignores edges", "KernelBuilder.concat", "if any(p.edges[axis] for p in typed):", "if False:"
    ),
    # reductions and products
    _reductions("reductions fill with 0", "reduce", "identity_of(fn, dtype.compute)", "0"),
    _reductions(
        "reductions forget what is outside",
        "reduce",
        "b.filled(b.cast(x, dtype.compute), axes,",
        "b.filled(b.cast(x, dtype.compute), [],",
    ),
    _reductions(
        "reductions keep edges of the first axes",
        "reduce",
        "(*(x.edges[d] for d in kept), ())",
        "(*x.edges[: len(kept)], ())",
    ),
    _reductions(
        "results of reductions do not count",
        "reduce",
        "(*(x.edges[d] for d in kept), ())",
        "(*(x.edges[d] for d in kept), x.edges[axes[0]])",
    ),
    _reductions(
        "results of reductions count always", "reduce", "(*(x.edges[d] for d in kept), ())", "((),) * (len(kept) + 1)"
    ),
    _reductions("scans run over what is outside", "scan", "[axis], identity_of", "[], identity_of"),
    _reductions("scans forget edges", "scan", "wide.type, x.edges)", "wide.type, tuple(() for _ in x.edges))"),
    _reductions(
        "sorts put what is outside first",
        "sort",
        "dtype.lowest if descending else",
        "dtype.highest if descending else -math.inf if True else",
    ),
    _reductions(
        "products take depth beyond the left operand", "dot", "for edge in depth:", "for edge in right.edges[0]:"
    ),
    _reductions(
        "products take depth beyond the right operand", "dot", "for edge in depth:", "for edge in left.edges[1]:"
    ),
    _reductions("products forget dropped axes", "dot", "union_edges(left.edges[-1:], right.edges[-1:])[0]", "()"),
    _reductions("products forget rows", "dot", "(left.edges[0], right.edges[1], ())", "((), right.edges[1], ())"),
    _reductions(
        "products swap rows and columns",
        "dot",
        "(left.edges[0], right.edges[1], ())",
        "(right.edges[1], left.edges[0], ())",
    ),
    _reductions("windows begin inside their array", "edge_of", "if low < 0:", "if False:"),
    _reductions("windows end inside their array", "edge_of", ">= size:", "> size + 9:"),
    # indices
    _indexing(
        "one position outside counts",
        "access_of",
        "whole.update(dict.fromkeys(edge_of(coordinate, 0, 1, ref.type.shape[axis])))",
        "pass",
    ),
    _indexing(
        "filled lanes do not count",
        "load",
        "access.edges if fill is None else no_edges(len(access.shape))",
        "access.edges",
    ),
    # branches
    _merges(
        "edges of the first branch decide",
        "Meeting._plan_dim",
        "planned.append((edge, THEN))",
        "planned.append((edge, None))",
    ),
    _merges("edges of the second branch are lost", "Meeting._plan_dim", "planned.append((edge, OTHERWISE))", "pass"),
    _merges("edges of the second branch follow the condition", "Meeting._edge", "guard == THEN", "guard is not None"),
    _merges(
        "guards of two branches are one",
        "Meeting._plan_dim",
        "self._guard(1, sides[1], edge)",
        "self._guard(1, sides[0][:0], edge)",
    ),
    _merges(
        "edges of both branches are those of one",
        "Meeting._plan_dim",
        "if set(sides[0]) == set(sides[1]):",
        "if sides[0]:",
    ),
    # loops
    _merges(
        "loops know all edges from the first trip", "edges_in_trip", "Edge(e.start, e.stride, e.limit, guard)", "e"
    ),
    _merges("loops forget edges in their trips", "edges_in_trip", "*guarded)", ")"),
    _merges(
        "edges before a loop hold in all trips", "changed_edges", "if before != after and", "if after - before and"
    ),
    # names
    _compiler(
        "names of one branch leak",
        "_choice",
        "if any(isinstance(value, LoopLocal) for value in values):",
        "if all(isinstance(value, LoopLocal) for value in values):",
    ),
    _compiler("names of branches keep the first value", "_choice", "elif _same(*values):", "elif True:"),
    _compiler(
        "names of loops leak",
        "_attempt",
        "after, self.frame.names = self.frame.names, before",
        "after = self.frame.names",
    ),
)


def kind_of(seed: int) -> str:
    """How the kernel of a seed fails on the interpreter."""
    source = generate(seed)
    outcome = check(source, ("interp",))
    return outcome.kind


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.source_mutants", description=__doc__)
    parser.add_argument("--kernels", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="part of a mutant's name")
    parser.add_argument("--from", type=int, default=1, dest="first", help="number of the first mutant")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = [mutant for mutant in PLANTED[arguments.first - 1 :] if arguments.only in mutant.name]
    missed = 0
    for number, mutant in enumerate(chosen, arguments.first):
        start = time.monotonic()
        found = hunt(mutant, range(arguments.seed, arguments.seed + arguments.kernels), kind_of)
        missed += found is None
        result = "NOT FOUND" if found is None else f"after {found[0]:4} kernels: {found[1]}"
        print(f"{number:2}  {mutant.name:52} {result}  ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found within {arguments.kernels} kernels each")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
