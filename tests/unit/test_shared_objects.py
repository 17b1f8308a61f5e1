"""Machine code of kernels that programs share in the compile cache: what is compiled, damage, processes that race."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import events
from tilewright.errors import ToolFailure
from tilewright.machines.machine import load
from tilewright.runtime import cache_index, shared_objects
from tilewright.runtime.cache import CompileCache
from tilewright.runtime.shared_objects import OBJECTS, SharedObjects
from tilewright.targets.cpu.codegen import compile_object, compiler_of
from tilewright.targets.cpu.compile_pool import CompilePool

MACHINE = load("x86-64-v3")
X = np.linspace(-1, 1, 60, dtype=np.float32).reshape(4, 15)


@pytest.fixture(autouse=True)
def keep_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small kernels are worth keeping, too."""
    monkeypatch.setattr(shared_objects, "WORTH_KEEPING_BYTES", 0)


def text(number: int) -> str:
    return (
        'target triple = "x86_64-unknown-linux-gnu"\n'
        f"define i64 @f(i64 %v) {{\n  %w = add i64 %v, {number}\n  ret i64 %w\n}}\n"
    )


def compiled(directory: Path, numbers: list[int], compiler: str = "one") -> tuple[list[bytes], int]:
    """The objects of some modules through the cache of a directory, and how many of them were compiled."""
    shared = SharedObjects(CompileCache(directory), compiler)
    with events.capture() as seen, CompilePool(MACHINE, 1, shared) as pool:
        for number in numbers:
            pool.submit(f"k{number}", text(number))
        objects = [each.object_bytes for each in pool.finish()]
    (count,) = [event["compiled"] for event in seen if event["kind"] == "compile.modules"]
    assert isinstance(count, int)
    return objects, count


def name_of(text: str, compiler: str = "one") -> str:
    """The name of a kernel in the cache: a digest of its text, keyed with one of the compiler."""
    key = hashlib.blake2b(compiler.encode(), digest_size=20).digest()
    return hashlib.blake2b(text.encode(), key=key, digest_size=20).hexdigest()


def packs(directory: Path) -> list[Path]:
    return [entry.path for entry in CompileCache(directory).entries() if entry.record["target"] == OBJECTS]


def expected(numbers: list[int]) -> list[bytes]:
    return [compile_object(text(number), MACHINE) for number in numbers]


def test_only_modules_that_no_program_had_are_compiled(tmp_path: Path) -> None:
    assert compiled(tmp_path, [1, 2, 3]) == (expected([1, 2, 3]), 3)
    assert compiled(tmp_path, [3, 4, 1]) == (expected([3, 4, 1]), 1)
    assert compiled(tmp_path, [4, 3, 2, 1]) == (expected([4, 3, 2, 1]), 0)
    assert len(packs(tmp_path)) == 2


def test_another_compiler_or_processor_has_objects_of_its_own(tmp_path: Path) -> None:
    compiled(tmp_path, [1])
    assert compiled(tmp_path, [1], compiler="two")[1] == 1
    assert compiler_of(load("x86-64-v3")) != compiler_of(load("x86-64-v4"))


def test_few_bytes_of_text_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_objects, "WORTH_KEEPING_BYTES", len(text(1)) + len(text(2)))
    compiled(tmp_path, [1])
    assert not packs(tmp_path)
    compiled(tmp_path, [1, 2])
    assert len(packs(tmp_path)) == 1


def test_modules_that_llvm_rejects_are_not_kept(tmp_path: Path) -> None:
    with CompilePool(MACHINE, 1, SharedObjects(CompileCache(tmp_path), "one")) as pool:
        pool.submit("good", text(1))
        pool.submit("bad", "define i64 @f( {")
        with pytest.raises(ToolFailure, match="LLVM rejects"):
            pool.finish()
    assert not packs(tmp_path)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip_a_bit, cut_off, Path.unlink], ids=lambda each: each.__name__)
def test_damage_of_a_pack_costs_a_compilation(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    compiled(tmp_path, [1, 2])
    (pack,) = packs(tmp_path)
    damage(pack)
    assert compiled(tmp_path, [1, 2]) == (expected([1, 2]), 2)
    assert compiled(tmp_path, [1, 2]) == (expected([1, 2]), 0)


def test_damage_that_the_cache_does_not_see_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a pack that is too large to be hashed at each use, and keeps its size and time."""
    compiled(tmp_path, [1, 2])
    (pack,) = packs(tmp_path)
    flip_a_bit(pack)
    monkeypatch.setattr(CompileCache, "find", lambda *_: pack)
    with events.capture() as seen:
        assert compiled(tmp_path, [1, 2]) == (expected([1, 2]), 1)
    assert "cache.damaged" in [event["kind"] for event in seen]


@pytest.mark.parametrize("objects", [None, [], {"a": 1}, {"a": {"offset": 0}}], ids=repr)
def test_a_record_that_states_no_objects_is_dropped(tmp_path: Path, objects: object) -> None:
    cache = CompileCache(tmp_path)
    record = {"name": "n", "target": OBJECTS, "objects": objects}
    cache.put("ab", lambda path: path.write_bytes(b"x"), record, names=[name_of(text(1))])
    assert compiled(tmp_path, [1]) == (expected([1]), 1)
    assert cache.find("ab") is None


@pytest.mark.parametrize("key", ["7", "x'ff'", "'ABC'", "''", "'0123'", "CAST(x'ff41' AS TEXT)"])
def test_a_damaged_name_costs_one_kernel_alone(tmp_path: Path, key: str) -> None:
    """Names that state no key, or one of no entry."""
    compiled(tmp_path, [1])
    compiled(tmp_path, [2])
    with sqlite3.connect(tmp_path / "index.sqlite") as connection:
        connection.execute(f"UPDATE contents SET key = {key} WHERE name = ?", (name_of(text(1)),))
    connection.close()
    assert compiled(tmp_path, [1, 2]) == (expected([1, 2]), 1)
    assert compiled(tmp_path, [1, 2]) == (expected([1, 2]), 0)


@pytest.mark.parametrize("statement", ["DROP TABLE contents", "ALTER TABLE contents RENAME COLUMN name TO other"])
def test_an_index_with_other_names_is_started_over(tmp_path: Path, statement: str) -> None:
    compiled(tmp_path, [1])
    with sqlite3.connect(tmp_path / "index.sqlite") as connection:
        connection.execute(statement)
    connection.close()
    compiled(tmp_path, [1])
    assert compiled(tmp_path, [1]) == (expected([1]), 0)


def test_names_go_with_their_entry(tmp_path: Path) -> None:
    compiled(tmp_path, [1])
    compiled(tmp_path, [2])
    cache = CompileCache(tmp_path)
    names = [name_of(text(number)) for number in (1, 2)]
    cache.remove(cache.holders(names)[names[0]])
    assert [*cache.holders(names)] == names[1:]
    cache.clear()
    assert cache.holders(names) == {}


def test_the_number_of_entries_does_not_matter_to_a_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the index that are read by a compile that finds a kernel and adds one."""
    checked, read = cache_index._checked, list[object]()
    monkeypatch.setattr(cache_index, "_checked", lambda cells: read.append(cells) or checked(cells))

    def rows_of_compile(numbers: list[int]) -> int:
        read.clear()
        assert compiled(tmp_path, numbers) == (expected(numbers), 1)
        return len(read)

    compiled(tmp_path, [1])
    few = rows_of_compile([1, 2])
    cache = CompileCache(tmp_path, limit_bytes=10**9)
    for number in range(300):
        cache.put(f"{number:040x}", lambda path: path.write_bytes(b"x"), {"target": OBJECTS}, sync=False)
    assert rows_of_compile([1, 3]) == few


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CompileCache, "_write_file", fail)
    assert compiled(tmp_path, [1]) == (expected([1]), 1)
    (tmp_path / "file").write_text("no directory")
    assert compiled(tmp_path / "file" / "cache", [1]) == (expected([1]), 1)


# ---- programs -------------------------------------------------------------------------------------------------------


def first(x: Any) -> Any:
    return tw.nn.softmax(x)


def second(x: Any) -> Any:
    """Its first kernel is the only one of the first program."""
    return tw.sort(tw.nn.softmax(x), axis=0)


def modules(function: Callable[[Any], Any], **options: Any) -> tuple[Any, list[dict[str, object]]]:
    """The result of a function that is compiled, and the events of its modules."""
    with events.capture() as seen, tw.options(**options):
        result = tw.jit(function)(X)
    return result, [event for event in seen if event["kind"] == "compile.modules"]


def test_a_second_program_does_not_compile_the_kernels_of_the_first(tmp_path: Path) -> None:
    _, (one,) = modules(first, cache_dir=tmp_path)
    result, (two,) = modules(second, cache_dir=tmp_path)
    assert (one["found"], two["found"]) == (0, 1)
    exponentials = np.exp(X.astype(np.float64))
    softmax = exponentials / exponentials.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(result, np.sort(softmax, axis=0), rtol=1e-5)


def test_a_program_that_is_watched_or_not_cached_is_compiled_whole(tmp_path: Path) -> None:
    modules(first, cache_dir=tmp_path)
    assert modules(second, cache_dir=tmp_path, dump_dir=tmp_path / "dump")[1] == []
    assert modules(second, cache_dir=tmp_path, cache=False)[1] == []


RACE = """
import json, sys
from pathlib import Path
from tests.unit import test_shared_objects as tests
tests.shared_objects.WORTH_KEEPING_BYTES = 0
numbers = json.loads(sys.argv[2])
for n in range(len(numbers)):
    some = numbers[: n + 1]
    assert tests.compiled(Path(sys.argv[1]), some)[0] == tests.expected(some)
"""


def test_processes_that_share_kernels_never_get_wrong_ones(tmp_path: Path) -> None:
    orders = [list(range(8)), list(range(7, -1, -1)), [0, 4, 1, 5, 2, 6, 3, 7]]
    racing = [
        subprocess.Popen([sys.executable, "-c", RACE, str(tmp_path), json.dumps(order)], stderr=subprocess.PIPE)
        for order in orders
    ]
    for process in racing:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    assert compiled(tmp_path, list(range(8)))[1] == 0
