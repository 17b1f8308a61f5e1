"""Events reach captures, the JSON lines file and stderr, each by its own rule."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.errors import OptionError
from tilewright.events import capture, emit, listening
from tilewright.options import options


def test_captures_collect_every_level_and_nest():
    with capture() as outer:
        emit("a.one", x=1)
        with capture() as inner:
            emit("a.two", level=7, path=Path("p"))
        emit("a.three")
    emit("a.four")
    assert [record["kind"] for record in outer] == ["a.one", "a.two", "a.three"]
    assert [record["kind"] for record in inner] == ["a.two"]
    assert outer[0]["x"] == 1


def test_nothing_is_printed_without_debug(capsys):
    emit("cache.hit", key="abc")
    assert capsys.readouterr() == ("", "")


def test_the_ladder_prints_its_level_and_those_below(capsys):
    with options(debug=3, color="never"):
        emit("cache.hit", key="abc", seconds=0.123456789)
        emit("schedule.chosen", level=3, text="tile 4x8\nstages 2\n")
        emit("ir.phase", level=5, text="...")
    assert capsys.readouterr().err == (
        "[tw] cache.hit key=abc seconds=0.123457\n[tw] schedule.chosen\ntile 4x8\nstages 2\n"
    )


def test_colour_follows_the_option(capsys):
    for color, colored in [("always", True), ("never", False), ("auto", False)]:
        with options(debug=1, color=color):
            emit("a.b")
        assert ("\x1b[" in capsys.readouterr().err) == colored


def test_listening_tells_whether_a_record_is_worth_building(tmp_path):
    assert not listening(1)
    with options(debug=4):
        assert listening(4)
        assert not listening(5)
    with options(events_file=tmp_path / "e"):
        assert listening(7)
    with capture():
        assert listening(7)


def test_the_file_holds_one_json_object_a_line_whatever_the_fields(tmp_path):
    file = tmp_path / "events.jsonl"
    with options(events_file=file):
        emit("a.b", text="two\nlines", path=Path("x"), number=1.5, items=[1, "é"])
        emit("a.c", level=7)
    first, second = map(json.loads, file.read_text().splitlines())
    assert first["text"] == "two\nlines"
    assert (first["path"], first["number"], first["items"]) == ("x", 1.5, [1, "é"])
    assert second["kind"] == "a.c"
    assert second["time_s"] >= first["time_s"] > 1.6e9


def test_lines_of_several_processes_do_not_mix(tmp_path):
    file = tmp_path / "events.jsonl"
    code = "from tilewright.events import emit\nfor i in range(200): emit('x.y', i=i, text='z' * 3000)"
    environment = {"TW_EVENTS_FILE": str(file)}
    processes = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(records) == 400
    assert {record["pid"] for record in records} == {process.pid for process in processes}


def test_a_file_that_cannot_be_written_is_the_users_mistake(tmp_path):
    with options(events_file=tmp_path / "no" / "such" / "directory"), pytest.raises(OptionError, match="events_file"):
        emit("a.b")
