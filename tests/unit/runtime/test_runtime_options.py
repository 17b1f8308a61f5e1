"""Options: every way in gives the same value, and every bad value names its spelling."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tilewright.errors import OptionError
from tilewright.options import Options, current, options, specs

GOOD = {
    "debug": ("4", 4),
    "verify": ("2", 2),
    "target": ("cuda:sm_90a", "cuda:sm_90a"),
    "cache": ("off", False),
    "cache_dir": ("/tmp/somewhere", Path("/tmp/somewhere")),
    "cache_limit_bytes": ("3 MiB", 3 * 1024**2),
    "threads": ("8", 8),
    "memory_limit_bytes": ("4GiB", 4 * 1024**3),
    "dump_dir": ("out", Path("out")),
    "events_file": ("events.jsonl", Path("events.jsonl")),
    "trace_file": ("trace.json", Path("trace.json")),
    "color": ("never", "never"),
}
BAD = {
    "debug": "8",
    "verify": "-1",
    "target": " ",
    "cache": "maybe",
    "cache_limit_bytes": "4 bananas",
    "threads": "257",
    "memory_limit_bytes": "-1",
    "color": "red",
}


def test_the_tables_of_this_file_cover_all_options_and_there_are_at_most_20():
    names = [spec.name for spec in specs()]
    assert names == [f.name for f in dataclasses.fields(Options)] == list(GOOD)
    assert len(names) <= 20
    assert all(spec.doc and spec.takes for spec in specs())


@pytest.mark.parametrize("name", GOOD)
def test_variable_flag_keyword_and_typed_value_agree(name):
    text, value = GOOD[name]
    spec = next(spec for spec in specs() if spec.name == name)
    ways = [
        Options.from_environment({spec.variable: text}),
        Options.from_cli({spec.flag.removeprefix("--"): text}),
        Options().replace(**{name: text}),
        Options().replace(**{name: value}),
    ]
    assert [getattr(way, name) for way in ways] == [value] * 4
    assert getattr(Options(), name) != value


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_names_the_way_it_came_in(name):
    spec = next(spec for spec in specs() if spec.name == name)
    for make, spelling in [
        (lambda: Options.from_environment({spec.variable: BAD[name]}), spec.variable),
        (lambda: Options.from_cli({name: BAD[name]}), spec.flag),
        (lambda: options(**{name: BAD[name]}), name),
    ]:
        with pytest.raises(OptionError) as caught:
            make()
        assert f"`{spelling}`" in caught.value.message
        assert spec.takes in caught.value.message
        assert caught.value.help


@pytest.mark.parametrize("value", [True, 1.5, None, [4]])
def test_a_value_of_a_wrong_type_is_refused(value):
    with pytest.raises(OptionError):
        options(debug=value)


def test_an_unknown_option_is_refused_with_the_nearest_name():
    with pytest.raises(OptionError) as caught:
        options(thread=2)
    assert caught.value.help == "did you mean `threads`?"


@pytest.mark.parametrize(
    ("text", "nbytes"), [("0", 0), ("17", 17), ("2k", 2048), ("1 KiB", 1024), ("5m", 5 * 2**20), ("7GiB", 7 * 2**30)]
)
def test_sizes_are_read_with_their_units(text, nbytes):
    assert Options().replace(memory_limit_bytes=text).memory_limit_bytes == nbytes


def test_contexts_nest_and_end():
    base = current()
    with options(debug=3) as outer:
        assert current() is outer
        with options(threads=2):
            assert (current().debug, current().threads) == (3, 2)
        assert current() is outer
        with pytest.raises(RuntimeError), options(debug=5):
            raise RuntimeError
        assert current() is outer
    assert current() is base


def test_one_context_object_can_be_entered_twice_and_decorates_recursive_functions():
    context = options(debug=2)
    with context, options(threads=3), context:
        assert (current().debug, current().threads) == (2, 3)

    @options(verify=2)
    def countdown(n: int) -> list[int]:
        """Counts."""
        return [current().verify, *(countdown(n - 1) if n else [])]

    assert countdown(2) == [2, 2, 2]
    assert countdown.__name__ == "countdown"
    assert current().verify == Options().verify


def test_a_context_belongs_to_its_thread():
    seen = []
    with options(debug=6):
        thread = threading.Thread(target=lambda: seen.append(current().debug))
        thread.start()
        thread.join()
    assert seen == [0]


def test_the_environment_is_read_in_a_fresh_process():
    code = "from tilewright.options import current; print(current().debug, current().cache)"
    environment = {"TW_DEBUG": "5", "TW_CACHE": "0", "TW_THREADS": ""}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=Path.cwd())
    assert run.stdout.split() == ["5", "False"], run.stderr


def test_flags_apply_on_top_of_the_options_in_force():
    with options(debug=3, threads=2):
        chosen = Options.from_cli({"threads": 5, "cache-dir": None})
    assert (chosen.debug, chosen.threads, chosen.cache_dir) == (3, 5, current().cache_dir)


def test_a_home_directory_that_does_not_exist_is_refused():
    with pytest.raises(OptionError, match="TW_CACHE_DIR"):
        Options.from_environment({"TW_CACHE_DIR": "~nosuchuser/x"})


def in_force_until_closed(threads: int) -> Iterator[None]:
    with options(threads=threads):
        yield


def test_contexts_of_generators_end_in_any_order():
    generator = in_force_until_closed(3)
    with options(threads=2):
        next(generator)
        assert current().threads == 3
    assert current().threads == 3
    generator.close()
    assert current().threads == Options().threads


def test_a_generator_that_another_thread_closes_leaves_that_thread_its_options():
    generator = in_force_until_closed(5)
    next(generator)
    seen = []

    def close() -> None:
        with options(threads=7):
            generator.close()
            seen.append(current().threads)
        seen.append(current().threads)

    thread = threading.Thread(target=close)
    thread.start()
    thread.join()
    assert seen == [7, Options().threads]
    assert current().threads == Options().threads


def test_one_context_is_entered_again_and_in_several_threads():
    chosen, seen = options(threads=3), []

    def enter() -> None:
        with chosen, options(threads=4), chosen:
            seen.append(current().threads)
        seen.append(current().threads)

    with chosen:
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        assert current().threads == 3
    assert seen == [3, Options().threads]
    assert current().threads == Options().threads


def test_functions_whose_body_runs_after_the_call_are_not_decorated():
    def generator() -> Iterator[int]:
        yield 1

    async def coroutine() -> None: ...

    for function in (generator, coroutine):
        with pytest.raises(OptionError, match=f"`{function.__name__}`") as caught:
            options(threads=2)(function)
        assert caught.value.location is not None


def test_whole_numbers_of_numpy_are_whole_numbers():
    chosen = Options().replace(threads=np.int64(2), memory_limit_bytes=np.uint8(3))
    assert (chosen.threads, chosen.memory_limit_bytes) == (2, 3)
    assert {type(chosen.threads), type(chosen.memory_limit_bytes)} == {int}
    with pytest.raises(OptionError):
        options(threads=np.bool_(True))


def test_a_path_with_a_null_character_is_refused_at_the_line_of_the_user():
    with pytest.raises(OptionError, match="`cache_dir`") as caught:
        options(cache_dir="a\0b")
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
