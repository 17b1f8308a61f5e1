"""Why a program with an edit is none with a mistake: because all its agents do the same, or what orders no less."""

from __future__ import annotations

from collections.abc import Sequence

from tests.cores.mutant_subjects import program_of
from tests.cores.traces import Event, UnknownEvents, orders_no_less, traces_of
from tilewright.dialects import cores, tile

SAME = "each agent does the same in the same order"
DEEPER = "pages of a deeper queue are the same ones, and those that fill it may be further ahead"
NETWORK = "on another network the same takes another time"
PLACE = "no other queue is where this one is"
ORDERS = "waits sooner or for more, or tells later: all is behind what it was behind"


def why_in_order(kernel: tile.KernelOp, planted: tile.KernelOp) -> tuple[str, bool]:
    """The reason why a program is as good as another one, empty where there is none, and whether it may be that it
    waits for ever."""
    before, after = program_of(kernel), program_of(planted)
    depths, new_depths = _depths(before), _depths(after)
    if _shape(before) != _shape(after):
        return "", False
    is_deeper = all(new >= old for new, old in zip(new_depths, depths, strict=True))
    try:
        first = traces_of(before, depths)
        second = traces_of(after, depths if is_deeper else new_depths)
    except (UnknownEvents, KeyError):
        return "", False
    if first.keys() != second.keys():
        return "", False
    if first == second:
        return _why_same(before, after), False
    known: dict[tuple[tuple[Event, ...], tuple[Event, ...]], bool] = {}
    for key, events in first.items():
        pair = tuple(events), tuple(second[key])
        if pair[0] == pair[1]:
            continue
        if pair not in known:
            known[pair] = orders_no_less(*pair)
        if not known[pair]:
            return "", False
    return ORDERS, True


def _why_same(before: cores.ProgramOp, after: cores.ProgramOp) -> str:
    if _depths(before) != _depths(after):
        return DEEPER
    if [each.noc for each in before.threads] != [each.noc for each in after.threads]:
        return NETWORK
    if [each.address_bytes for each in before.queues] != [each.address_bytes for each in after.queues]:
        return PLACE
    return SAME


def _depths(program: cores.ProgramOp) -> list[int]:
    return [cores.queue_type(queue.result).pages for queue in program.queues]


def _shape(program: cores.ProgramOp) -> Sequence[object]:
    """What has to be alike in any case."""
    return [
        program.shape,
        program.wide is not None,
        [cores.queue_type(queue.result).format for queue in program.queues],
        [each.initial for each in program.semaphores],
        [each.role for each in program.threads],
    ]
