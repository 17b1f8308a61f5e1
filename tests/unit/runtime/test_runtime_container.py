"""The `.twp` file: what is saved comes back, what is damaged is refused wherever the damage is."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_programs import compile_ir, copy_ir, make_copy, make_manifest, make_program, spec

from tilewright.errors import CpuFeatureError, ProgramFileError
from tilewright.runtime import container, manifest
from tilewright.runtime.manifest import Alias, Message
from tilewright.runtime.program import Program, load
from tilewright.targets.cpu.support import support_object

CONSTANTS = (
    np.arange(100, dtype=np.float32).reshape(10, 10),
    b"",
    np.array(3.5),
    bytes(range(1, 48)),
    np.ones((70_000, 2), np.int8)[:, :1],
)
X = np.arange(6, dtype=np.float32)


def make_saved(path) -> Program:
    program = make_copy(spec("x", 6), constants=CONSTANTS, metadata={"who": "test", "ä": "ö"})
    program.save(path)
    return program


def test_everything_comes_back(tmp_path):
    saved = make_saved(tmp_path / "p.twp")
    loaded = load(tmp_path / "p.twp")
    assert loaded.manifest == saved.manifest
    np.testing.assert_array_equal(loaded(X), X)
    for back, constant in zip(loaded._constants, CONSTANTS, strict=True):
        expected = constant.tobytes() if isinstance(constant, np.ndarray) else constant
        assert back.tobytes() == expected
        assert len(back) == 0 or back.ctypes.data % 64 == 0
        assert not back.flags.writeable


def test_a_program_with_small_constants_keeps_no_file_open(tmp_path):
    make_saved(tmp_path / "p.twp")
    before = len(os.listdir("/proc/self/fd"))
    loaded = [load(tmp_path / "p.twp") for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) == before
    np.testing.assert_array_equal(loaded[0](X), X)


def test_a_loaded_program_can_be_saved_again_to_the_same_bytes_and_over_itself(tmp_path):
    make_saved(tmp_path / "p.twp")
    content = (tmp_path / "p.twp").read_bytes()
    loaded = load(tmp_path / "p.twp")
    loaded.save(tmp_path / "q.twp")
    loaded.save(tmp_path / "p.twp")
    assert (tmp_path / "q.twp").read_bytes() == (tmp_path / "p.twp").read_bytes() == content
    np.testing.assert_array_equal(loaded(X), X)
    assert sorted(os.listdir(tmp_path)) == ["p.twp", "q.twp"]


def test_manifests_round_trip_with_every_field():
    original = make_manifest(
        name="n",
        features=("avx2", "fma"),
        inputs=(spec("x", 2, 3), spec("s", dtype="bf16")),
        outputs=(spec("y", 2, 3),),
        aliases=(Alias(0, 0),),
        constants=manifest.place_constants([5, 6]),
        arena_bytes=7,
        worker_scratch_bytes=8,
        estimated_seconds=9.5,
        messages=(Message(1, "TW0401", "text", "help"),),
        metadata={"a": "b"},
    )
    assert manifest.decode(manifest.encode(original)) == original


def refuses(path, content: bytes) -> bool:
    path.write_bytes(content)
    try:
        load(path).verify()
    except ProgramFileError:
        return True
    return False


def test_a_change_of_any_byte_is_found(tmp_path):
    make_saved(tmp_path / "p.twp")
    content = (tmp_path / "p.twp").read_bytes()
    rng = np.random.default_rng(0)
    # All of the header and the last bytes; elsewhere a sample of two hundred.
    positions = {*range(320), *range(len(content) - 64, len(content)), *rng.integers(0, len(content), 200).tolist()}
    for position in positions:
        damaged = bytearray(content)
        damaged[position] ^= int(rng.integers(1, 256))
        assert refuses(tmp_path / "damaged.twp", bytes(damaged)), position
    assert not refuses(tmp_path / "intact.twp", content)


def test_a_file_of_any_other_length_is_refused(tmp_path):
    make_saved(tmp_path / "p.twp")
    content = (tmp_path / "p.twp").read_bytes()
    for length in [*range(300), *range(300, len(content), 997), len(content) - 1]:
        assert refuses(tmp_path / "short.twp", content[:length]), length
    assert refuses(tmp_path / "long.twp", content + b"\0")


def test_a_page_of_zeros_in_the_constants_is_found_at_the_first_call(tmp_path):
    make_saved(tmp_path / "p.twp")
    content = bytearray((tmp_path / "p.twp").read_bytes())
    content[-4096:] = bytes(4096)
    (tmp_path / "p.twp").write_bytes(content)
    loaded = load(tmp_path / "p.twp")
    for call in (lambda: loaded(X), loaded.function, loaded.verify):
        with pytest.raises(ProgramFileError, match="constants"):
            call()


@pytest.mark.parametrize("content", [b"", b"\x89TWP", b"PK\3\4" + bytes(1000), bytes(1000)])
def test_other_files_are_refused(tmp_path, content):
    assert refuses(tmp_path / "other.twp", content)


def test_another_version_is_refused_by_number(tmp_path):
    make_saved(tmp_path / "p.twp")
    content = bytearray((tmp_path / "p.twp").read_bytes())
    struct.pack_into("<I", content, 8, 99)
    (tmp_path / "p.twp").write_bytes(content)
    with pytest.raises(ProgramFileError, match="version 99, this runtime reads 1"):
        load(tmp_path / "p.twp")


@pytest.mark.parametrize("fields", [{"format_version": 7}, {"abi_version": 7}])
def test_another_manifest_or_abi_version_is_refused(tmp_path, fields):
    container.write(tmp_path / "p.twp", make_manifest(inputs=(), outputs=(), **fields), b"", b"", ())
    with pytest.raises(ProgramFileError, match="7"):
        load(tmp_path / "p.twp")


@pytest.mark.parametrize("content", [b"", b"\x80", b"\xc1", b"\x81\xa4name\x01", b"\x81\xa1x" + b"\x91" * 100_000])
def test_bytes_that_are_no_manifest_are_refused(content):
    with pytest.raises(ProgramFileError, match="manifest"):
        manifest.decode(content)


def test_a_program_for_another_machine_is_refused_when_it_is_loaded(tmp_path):
    wanting = make_manifest(features=("avx1024",), inputs=(), outputs=())
    container.write(tmp_path / "p.twp", wanting, compile_ir(copy_ir()), support_object(), ())
    with pytest.raises(CpuFeatureError, match="avx1024"):
        load(tmp_path / "p.twp")


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.twp")


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["directory", "pipe"])
def test_what_is_no_regular_file_is_neither_loaded_nor_replaced(tmp_path, make):
    program = make_saved(tmp_path / "p.twp")
    make(tmp_path / "other")
    before = os.lstat(tmp_path / "other").st_mode
    with pytest.raises(ProgramFileError, match="is not a regular file"):
        program.save(tmp_path / "other")
    with pytest.raises(ProgramFileError, match="is not a regular file"):
        load(tmp_path / "other")
    assert os.lstat(tmp_path / "other").st_mode == before


def test_a_save_through_a_link_replaces_what_it_points_to(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.twp").symlink_to(tmp_path / "folder" / "p.twp")
    for _ in range(2):
        make_saved(tmp_path / "link.twp")
        np.testing.assert_array_equal(load(tmp_path / "folder" / "p.twp")(X), X)
    assert (tmp_path / "link.twp").is_symlink()


def test_a_failed_save_leaves_the_old_file(tmp_path):
    program = make_saved(tmp_path / "p.twp")
    content = (tmp_path / "p.twp").read_bytes()
    with pytest.raises(FileNotFoundError, match="directory") as raised:
        program.save(tmp_path / "no" / "p.twp")
    assert raised.value.filename == str(tmp_path / "no" / "p.twp")
    broken = make_manifest(inputs=(), outputs=(), constants=manifest.place_constants([4, 4]))
    with pytest.raises(ValueError, match="zip"):
        container.write(tmp_path / "p.twp", broken, b"", b"", (np.ones(4, np.uint8),))
    assert (tmp_path / "p.twp").read_bytes() == content
    assert os.listdir(tmp_path) == ["p.twp"]


def test_loading_does_not_read_the_constants(tmp_path):
    # A sparse file of 64 GiB: reading it would take longer than any test.
    nbytes = 64 << 30
    wanting = make_manifest(
        inputs=(spec("x", 6),), outputs=(spec("y", 6),), constants=manifest.place_constants([nbytes])
    )
    small = make_program(copy_ir(24), inputs=(spec("x", 6),), outputs=(spec("y", 6),))
    small.save(tmp_path / "p.twp")
    content = container.read(tmp_path / "p.twp")
    sections = [manifest.encode(wanting), content.object_bytes, content.support_bytes]
    offsets, end = [], container._HEADER_BYTES
    for size in (*map(len, sections), nbytes):
        offsets.append(-(-end // 64) * 64)
        end = offsets[-1] + size
    digests = [*map(container._digest_of, sections), bytes(32)]
    header = container._PREFIX.pack(container._MAGIC, 1, 4, end) + b"".join(
        container._ENTRY.pack(*entry) for entry in zip(offsets, (*map(len, sections), nbytes), digests, strict=True)
    )
    with open(tmp_path / "sparse.twp", "wb") as file:
        file.write(header + container._digest_of(header))
        for offset, section in zip(offsets, sections, strict=False):
            file.seek(offset)
            file.write(section)
        file.truncate(end)
    loaded = load(tmp_path / "sparse.twp")
    assert loaded._constants[0].nbytes == nbytes
    assert loaded._constants[0][-1] == 0


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=300), st.data())
def test_the_checksum_of_constants_sees_every_single_byte(content, data):
    array = np.frombuffer(content, np.uint8)
    changed = array.copy()
    changed[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    assert container.constants_digest([array]) != container.constants_digest([changed])
    assert container.constants_digest([array]) == container.constants_digest([array.copy()])
    assert container.constants_digest([array, array[:0]]) != container.constants_digest([array])


def test_the_checksum_of_constants_sees_blocks_that_changed_places():
    blocks = np.random.default_rng(2).integers(0, 256, (4, 8 * container._BLOCK_WORDS), np.uint8)
    digests = {container.constants_digest([blocks[list(order)].reshape(-1)]) for order in ((0, 1, 2, 3), (1, 0, 2, 3))}
    assert len(digests) == 2
