"""Tilize and untilize: conversion of rows to device tiles and back, between two queues of the compute thread."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from tilewright.dialects import cores
from tilewright.passes.cores.sections import step
from tilewright.passes.cores.threads import Threads


def emit_tilize(threads: Threads, rows: SSAValue, tiles: SSAValue, count: int) -> None:
    """Tiles side by side are pushed, of 32 rows that were waited for."""
    _through_registers(threads, (rows, cores.TilizeOp, {}), (tiles, cores.PackOp), count)


def emit_untilize(threads: Threads, tiles: SSAValue, rows: SSAValue, count: int) -> None:
    """32 rows are pushed, of tiles side by side that were waited for."""
    _through_registers(threads, (tiles, cores.CopyOp, {"broadcast": cores.NONE}), (rows, cores.UntilizeOp), count)


def _through_registers(
    threads: Threads,
    taken: tuple[SSAValue, type[cores.RegisterOp], dict[str, str]],
    packed: tuple[SSAValue, type[cores.PackingOp]],
    count: int,
) -> None:
    (source, takes, attributes), (target, packs) = taken, packed
    places: dict[str, tuple[int, Sequence[AffineExpr]]] = {"at": (1, [AffineExpr.dimension(0)])}
    slots = {"slot": 0, "count": count}
    threads.add(cores.COMPUTE, cores.ReserveOp, [target], {"pages": count})
    step(threads, cores.ACQUIRE)
    threads.add(cores.COMPUTE, takes, [source], slots | attributes, places)
    step(threads, cores.COMMIT)
    step(threads, cores.WAIT)
    threads.add(cores.COMPUTE, packs, [target], slots, places)
    step(threads, cores.RELEASE)
    threads.add(cores.COMPUTE, cores.PushOp, [target], {"pages": count})
