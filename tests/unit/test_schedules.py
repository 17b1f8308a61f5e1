"""Schedules as values: their code evaluates to them, and JSON keeps them."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.schedules import Schedule, checked_request, code_of, from_json, to_json

KINDS = [getattr(tw.schedules, name) for name in tw.schedules.__all__]
KINDS = [kind for kind in KINDS if isinstance(kind, type) and kind is not Schedule]
VALUES: dict[Any, list[Any]] = {
    "tile": [(1, 2, 3), (128, 64, 32)],
    "block": [None, (6, 64)],
    "right": [None, "in_place", "kept", "together"],
    "warps": [4, 8],
    "across": [None, (2, 2)],
    "stages": [2, 3],
    "family": [None, "wgmma"],
    "fallback": [0, 2],
    "rows": [16, 64],
    "keys": [32, 256],
    "warpgroups": [0, 2],
}


def some(kind: type[Schedule], choose: random.Random) -> Schedule:
    return kind(**{field.name: choose.choice(VALUES[field.name]) for field in msgspec.structs.fields(kind)})


@pytest.mark.parametrize("kind", KINDS)
def test_code_and_json_give_the_same_value(kind: type[Schedule]) -> None:
    choose = random.Random(0)
    for _ in range(20):
        schedule = some(kind, choose)
        assert eval(repr(schedule), {"tw": tw}) == schedule
        assert from_json(to_json(schedule)) == schedule
        assert type(from_json(to_json(schedule))) is kind
        assert hash(from_json(to_json(schedule))) == hash(schedule)


def test_code_and_json_of_several_kernels() -> None:
    choose = random.Random(1)
    schedules = {f"kernel_{number}": some(kind, choose) for number, kind in enumerate(KINDS)}
    assert eval(code_of(schedules), {"tw": tw}) == schedules
    assert from_json(to_json(schedules)) == schedules
    assert from_json(to_json({})) == {}


def test_fields_that_are_as_by_default_are_not_printed() -> None:
    assert repr(tw.schedules.Loop(tile=(1, 4))) == "tw.schedules.Loop(tile=(1, 4))"
    matmul = tw.schedules.WarpMatmul(tile=(128, 128, 64), warps=8, stages=4, family="wgmma")
    assert repr(matmul) == "tw.schedules.WarpMatmul(tile=(128, 128, 64), warps=8, stages=4, family='wgmma')"


def test_schedules_of_different_kinds_are_different() -> None:
    assert tw.schedules.Loop(tile=(1,)) != tw.schedules.Ordered(tile=(1,))


def test_lists_become_tuples() -> None:
    listed: Any = [1, 4]
    assert checked_request({"loop_0": tw.schedules.Loop(tile=listed)}) == {"loop_0": tw.schedules.Loop(tile=(1, 4))}


def test_integers_of_numpy_become_those_of_python() -> None:
    of_numpy: Any = (np.int64(1), np.int32(4))
    checked = checked_request(tw.schedules.Loop(tile=of_numpy))
    assert repr(checked) == "tw.schedules.Loop(tile=(1, 4))"
    assert from_json(to_json(tw.schedules.Loop(tile=of_numpy))) == checked


NOT_TUPLES: Any = "1, 4"
FRACTION: Any = (np.float32(1), 4)
TRUTH: Any = (np.bool_(True), 4)
NOT_A_SOURCE: Any = "somewhere"
OF_TEXT = '{"kind": "Loop", "tile": "1"}'


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (3, "the schedule is 3, which is no schedule"),
        ({"loop_0": "tile"}, "the schedule of `loop_0` is 'tile', which is no schedule"),
        ({3: tw.schedules.Loop(tile=(1,))}, "3 is no name of a kernel"),
        (tw.schedules.Loop(tile=NOT_TUPLES), "the schedule is not well formed"),
        (tw.schedules.Loop(tile=FRACTION), "the schedule is not well formed"),
        (tw.schedules.Loop(tile=TRUTH), "the schedule is not well formed"),
        (
            {"a": tw.schedules.VectorMatmul(tile=(1, 1, 1), right=NOT_A_SOURCE)},
            "of `a` is not well formed",
        ),
    ],
)
def test_what_is_no_schedule_is_refused(request_: Any, text: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        checked_request(request_)
    assert text in caught.value.message
    with pytest.raises(ScheduleError):
        tw.jit(lambda x: x, schedule=request_)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"loop_0": 1}',
        '{"kind": "Loop"}',
        '{"kind": "Unknown", "tile": [1]}',
        '{"kind": "Loop", "tile": [1, 4], "stages": 2}',
        '{"kind": "Loop", "tile": ' + "[" * 5000,
        OF_TEXT,
        "\ud800",
        None,
        {},
    ],
)
def test_json_of_no_schedules_is_refused(text: Any) -> None:
    with pytest.raises(ScheduleError, match="no JSON of schedules"):
        from_json(text)


def test_names_that_are_no_text_are_not_written() -> None:
    with pytest.raises(ScheduleError, match="no Unicode text"):
        to_json({"\ud800": tw.schedules.Loop(tile=(1, 4))})
