"""The `.twp` file: a header, then four sections, each at a multiple of 64 bytes with zeros between.

    header      magic, version, size of the file, a table of sections, checksum of all that
    manifest    see `manifest.py`
    object      the program's relocatable object
    support     the support object
    constants   mapped, not read

The first three sections are checked when the file is opened. The constants may be large: their checksum is made for
speed (sums of blocks, hashed together), and is taken only when asked for, so that opening a file does not read them.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from tilewright.errors import ProgramFileError
from tilewright.runtime.abi import ALIGNMENT_BYTES, round_up
from tilewright.runtime.files import IrregularFileError, open_regular, replacing
from tilewright.runtime.manifest import FORMAT_VERSION, Constant, Manifest, check, decode, encode

_MAGIC = b"\x89TWP\r\n\x1a\n"
_SECTIONS = ("manifest", "object", "support", "constants")
_DIGEST_BYTES = 32
_PREFIX = struct.Struct("<8sIIQ")
_ENTRY = struct.Struct(f"<QQ{_DIGEST_BYTES}s")
_TABLE_END = _PREFIX.size + len(_SECTIONS) * _ENTRY.size
# Constants that are read instead of mapped.
_COPIED_BYTES = 2**20
_HEADER_BYTES = _TABLE_END + _DIGEST_BYTES
_BLOCK_WORDS = 8192

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Find = Callable[[str], Bytes | None]


class Contents(msgspec.Struct, frozen=True):
    """An opened program file. `constants` are read-only views of the mapped file."""

    manifest: Manifest
    object_bytes: bytes
    support_bytes: bytes
    constants: tuple[Bytes, ...]
    _section: Bytes
    _digest: bytes

    def verify_constants(self) -> None:
        """Read all constants, wherever they are, and compare their checksum.

        Raises:
            ProgramFileError: they are damaged.
        """
        end = 0
        for constant in _own(self.manifest):
            if self._section[end : constant.offset].any():
                raise _damaged("its constants do not match their checksum")
            end = constant.offset + constant.nbytes
        if constants_digest(self.constants) != self._digest:
            raise _damaged("its constants do not match their checksum")


def write(
    path: Path, manifest: Manifest, object_bytes: bytes, support_bytes: bytes, constants: Sequence[Bytes]
) -> None:
    """Write a program file; an old one is replaced at once when the new one is complete. A symbolic link stays, and
    what it points to is replaced.

    Raises:
        OSError: the file cannot be written.
        ProgramFileError: it is there and is no regular file: a directory, a pipe or a device.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise ProgramFileError(f"{path} is not a regular file", help="name a file to write")
    small = (encode(manifest), object_bytes, support_bytes)
    constants_bytes = max((c.offset + c.nbytes for c in _own(manifest)), default=0)
    sizes = (*map(len, small), constants_bytes)
    digests = (*map(_digest_of, small), constants_digest(constants))
    offsets: list[int] = []
    end = _HEADER_BYTES
    for size in sizes:
        offsets.append(round_up(end))
        end = offsets[-1] + size
    header = _PREFIX.pack(_MAGIC, FORMAT_VERSION, len(_SECTIONS), end)
    header += b"".join(_ENTRY.pack(*entry) for entry in zip(offsets, sizes, digests, strict=True))
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(header + _digest_of(header))
        for offset, content in zip(offsets, small, strict=False):
            _write_at(file, offset, content)
        for placed, content in zip(manifest.constants, constants, strict=True):
            if placed.key:
                continue
            _write_at(file, offsets[-1] + placed.offset, content.data)
        _write_at(file, end, b"")


def _write_at(file: BinaryIO, offset: int, content: bytes | memoryview) -> None:
    file.write(bytes(offset - file.tell()))
    file.write(content)


def _own(manifest: Manifest) -> list[Constant]:
    """The constants that are in the program's file."""
    return [constant for constant in manifest.constants if not constant.key]


def read(path: Path, find: Find | None = None) -> Contents:
    """Open a program file. The file must not change in place while the contents are in use. `find` gives the constants
    that are elsewhere, by their keys.

    Raises:
        ProgramFileError: it is damaged, truncated or from another version; a constant is not found.
        OSError: it cannot be opened.
    """
    try:
        descriptor = open_regular(path)
    except IrregularFileError as error:
        raise ProgramFileError(str(error), help="give a file that `save` wrote") from None
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if size < _HEADER_BYTES:
            raise _damaged(f"it has {size} bytes, less than a header")
        content = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    entries = _read_header(content, size)
    end = _HEADER_BYTES
    sections: list[bytes] = []
    for name, (offset, nbytes, digest) in zip(_SECTIONS, entries, strict=True):
        if not end <= offset <= offset + nbytes <= size:
            raise _damaged(f"its section `{name}` is outside of it")
        if any(content[end:offset]):
            raise _damaged(f"there is something before its section `{name}`")
        end = offset + nbytes
        if name != "constants":
            sections.append(content[offset:end])
            if _digest_of(sections[-1]) != digest:
                raise _damaged(f"its section `{name}` does not match its checksum")
    manifest = decode(sections[0])
    check(manifest)
    offset, nbytes, digest = entries[-1]
    # A map keeps a file descriptor: of small constants none stays.
    if nbytes > _COPIED_BYTES:
        section = np.frombuffer(content, np.uint8, nbytes, offset)
    else:
        section = _aligned(content[offset : offset + nbytes])
    views = tuple(_view(section, constant, find) for constant in manifest.constants)
    return Contents(manifest, sections[1], sections[2], views, section, digest)


def _aligned(content: bytes) -> Bytes:
    """A copy that begins at a cache line, as sections of a map do, and is not written to."""
    space = np.empty(len(content) + ALIGNMENT_BYTES, np.uint8)
    start = -space.ctypes.data % ALIGNMENT_BYTES
    found = space[start : start + len(content)]
    found[:] = np.frombuffer(content, np.uint8)
    found.flags.writeable = False
    return found


def _view(section: Bytes, constant: Constant, find: Find | None) -> Bytes:
    if constant.key:
        found = find(constant.key) if find is not None else None
        part = None if found is None else found[constant.offset : constant.offset + constant.nbytes]
        if part is None or len(part) != constant.nbytes:
            raise ProgramFileError(
                "a constant of the program is missing from the compile cache that stores it",
                help="compile the program again, and `save` it to move it",
            )
        return part
    view = section[constant.offset : constant.offset + constant.nbytes]
    if len(view) != constant.nbytes:
        raise _damaged("its constants are shorter than its manifest declares")
    return view


def _read_header(content: mmap.mmap, size: int) -> list[tuple[int, int, bytes]]:
    magic, version, section_count, file_bytes = _PREFIX.unpack_from(content)
    if magic != _MAGIC:
        raise ProgramFileError("the file is no program file", help="give a file that `save` wrote, ending in .twp")
    if version != FORMAT_VERSION:
        raise ProgramFileError(
            f"the program file has version {version}, this runtime reads {FORMAT_VERSION}",
            help="compile the program again with this version of Tilewright",
        )
    if content[_TABLE_END:_HEADER_BYTES] != _digest_of(content[:_TABLE_END]) or section_count != len(_SECTIONS):
        raise _damaged("its header does not match its checksum")
    if file_bytes != size:
        raise _damaged(f"it has {size} bytes where its header declares {file_bytes}")
    return [_ENTRY.unpack_from(content, _PREFIX.size + i * _ENTRY.size) for i in range(len(_SECTIONS))]


def constants_digest(constants: Sequence[Bytes]) -> bytes:
    """A checksum of all constants that runs at memory speed: each block's sum of 64-bit words, hashed with BLAKE2b.

    It finds damage, not forgery: a file is trusted like any native code.
    """
    hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for constant in constants:
        whole = len(constant) // 8 * 8
        words = constant[:whole].view("<u8")
        blocks = len(words) // _BLOCK_WORDS
        hashed.update(len(constant).to_bytes(8, "little"))
        hashed.update(words[: blocks * _BLOCK_WORDS].reshape(blocks, _BLOCK_WORDS).sum(axis=1, dtype="<u8").tobytes())
        hashed.update(words[blocks * _BLOCK_WORDS :].tobytes())
        hashed.update(constant[whole:].tobytes())
    return hashed.digest()


def _digest_of(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _damaged(reason: str) -> ProgramFileError:
    return ProgramFileError(f"the program file is damaged: {reason}", help="compile and save the program again")
