"""Load relocatable ELF64 objects into this process in plain Python.

The objects' code, read-only data and writable data go to three runs of pages of one mapping, in that order, so that
every reference between them is in reach. Code is never writable and executable at once. Calls of functions out of reach
go through a stub at the end of the code, references to data through a table of addresses after the read-only data.

Sources: System V gABI; x86-64 psABI; ELF for the Arm 64-bit architecture (AAELF64).
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Callable, Iterator

import msgspec

from tilewright.errors import ProgramFileError
from tilewright.runtime.cpu.relocations import RELOCATIONS, Place
from tilewright.runtime.memory import Protection, libc, map_pages, protect_pages

_ELF_MAGIC = b"\x7fELF\x02\x01\x01"
_RELOCATABLE = 1
_NOBITS, _SYMTAB, _RELA = 8, 2, 4
_CONSTRUCTOR_SECTIONS = (".init_array", ".preinit_array", ".fini_array", ".ctors", ".dtors")
_ALLOC, _WRITE, _EXECUTE, _THREAD_LOCAL = 0x2, 0x1, 0x4, 0x400
_UNDEFINED, _ABSOLUTE, _RESERVED_INDEX = 0, 0xFFF1, 0xFF00
_WEAK, _INDIRECT_FUNCTION = 2, 10
_STUB_BYTES, _SLOT_BYTES = 16, 8

# Of a section and of an image: far more than any program has, far less than what could be allocated by mistake.
_MOST_BYTES = 1 << 30
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")

Resolver = Callable[[str], int | None]


class Section(msgspec.Struct, frozen=True):
    """One section that occupies memory."""

    name: str
    content: bytes
    size: int
    alignment: int


class _Symbol(msgspec.Struct, frozen=True):
    name: str
    section_index: int
    value: int
    weak: bool


class LinkedImage(msgspec.Struct, frozen=True):
    """An object linked for one address: `content` is code, then read-only, then writable bytes, each of whole pages."""

    content: bytearray
    code_bytes: int
    read_only_bytes: int
    addresses: dict[str, int]


class _Part:
    """One parsed object. `offsets` are the offsets of its sections in the image, `stubs_at` and `slots_at` those of its
    stubs and addresses: who lays the image out sets them."""

    def __init__(self, content: bytes | memoryview) -> None:
        self._bytes = bytes(content)
        if len(self._bytes) < _HEADER.size or not self._bytes.startswith(_ELF_MAGIC):
            raise _unloadable("it is not a 64-bit little-endian ELF object")
        header = _HEADER.unpack_from(self._bytes)
        self.machine: int = header[2]
        if header[1] != _RELOCATABLE or self.machine not in RELOCATIONS:
            raise _unloadable(f"it is of ELF type {header[1]} for machine {self.machine}")
        self.sections: dict[int, Section] = {}
        self.groups: tuple[list[int], list[int], list[int]] = ([], [], [])
        self.symbols: list[_Symbol] = []
        self.offsets: dict[int, int] = {}
        self.stubs_at = self.slots_at = 0
        self._relocations: list[tuple[int, int, int]] = []
        try:
            self._read(section_table=header[6], section_count=header[12], names_index=header[13])
        except (struct.error, IndexError, ValueError, OverflowError) as error:
            raise _unloadable("its tables point outside it") from error

    def _read(self, section_table: int, section_count: int, names_index: int) -> None:
        headers: list[tuple[int, ...]] = [
            _SECTION.unpack_from(self._bytes, section_table + i * _SECTION.size) for i in range(section_count)
        ]
        names = headers[names_index][4]
        for index, (name_at, kind, flags, _, offset, size, _, info, alignment, _) in enumerate(headers):
            name = self._text(names + name_at)
            if kind == _SYMTAB:
                self.symbols = self._read_symbols(offset, size, headers[headers[index][6]][4])
            elif kind == _RELA:
                self._relocations.append((info, offset, size))
            # Nothing unwinds through this code: unwind tables would only cost load time.
            elif flags & _ALLOC and name != ".eh_frame":
                if name.startswith(_CONSTRUCTOR_SECTIONS) or flags & _THREAD_LOCAL:
                    raise _unloadable(f"section `{name}` needs a loader with constructors or thread-local storage")
                if max(size, alignment) > _MOST_BYTES or alignment & (alignment - 1):
                    raise _unloadable(f"section `{name}` has {size} bytes, aligned to {alignment}")
                content = self._bytes[offset : offset + (0 if kind == _NOBITS else size)]
                self.sections[index] = Section(name, content, size, max(alignment, 1))
                self.groups[0 if flags & _EXECUTE else 2 if flags & _WRITE else 1].append(index)

    def _read_symbols(self, offset: int, size: int, names: int) -> list[_Symbol]:
        symbols: list[_Symbol] = []
        for name_at, info, _, section_index, value, _ in _SYMBOL.iter_unpack(self._bytes[offset : offset + size]):
            name = self._text(names + name_at)
            if info & 0xF == _INDIRECT_FUNCTION or _RESERVED_INDEX <= section_index != _ABSOLUTE:
                raise _unloadable(f"symbol `{name}` is of a kind that is not supported")
            symbols.append(_Symbol(name, section_index, value, info >> 4 == _WEAK))
        return symbols

    def _text(self, at: int) -> str:
        return self._bytes[at : self._bytes.index(0, at)].decode()

    def defined(self, base: int) -> dict[str, int]:
        """Addresses of the names that the object defines."""
        return {s.name: self._own(s, base) for s in self.symbols if s.name and s.section_index != _UNDEFINED}

    def _own(self, symbol: _Symbol, base: int) -> int:
        if symbol.section_index in self.offsets:
            return base + self.offsets[symbol.section_index] + symbol.value
        return symbol.value

    def link(self, image: bytearray, base: int, resolve: Resolver) -> None:
        """Write the object's sections, stubs and addresses to the image."""
        for index, section in self.sections.items():
            image[self.offsets[index] : self.offsets[index] + len(section.content)] = section.content
        targets = [self._address(symbol, base, resolve) for symbol in self.symbols]
        struct.pack_into(f"<{len(targets)}Q", image, self.slots_at, *targets)
        table = RELOCATIONS[self.machine]
        for index, symbol in enumerate(self.symbols):
            if symbol.section_index == _UNDEFINED and symbol.name:
                stub, slot = self.stubs_at + index * _STUB_BYTES, self.slots_at + index * _SLOT_BYTES
                table.write_stub(image, stub, slot - stub, base + stub)
        for section_index, offset, size in self._relocations:
            if section_index in self.sections:
                self._relocate(image, base, section_index, self._bytes[offset : offset + size], targets)

    def _address(self, symbol: _Symbol, base: int, resolve: Resolver) -> int:
        if symbol.section_index != _UNDEFINED or not symbol.name:
            return self._own(symbol, base)
        address = resolve(symbol.name)
        if address is None and not symbol.weak:
            raise _unloadable(f"it needs `{symbol.name}`, which neither this process nor its C library has")
        return address or 0

    def _relocate(self, image: bytearray, base: int, section_index: int, entries: bytes, targets: list[int]) -> None:
        section, start = self.sections[section_index], self.offsets[section_index]
        appliers = RELOCATIONS[self.machine].appliers
        relocations: Iterator[tuple[int, int, int, int]] = _RELOCATION.iter_unpack(entries)
        for at, kind, symbol, addend in relocations:
            apply = appliers.get(kind)
            name = self.symbols[symbol].name or section.name
            if apply is None:
                raise _unloadable(f"relocation {kind} of `{name}` in `{section.name}` is not supported")
            if at >= section.size:
                raise _unloadable(f"a relocation of `{name}` is outside of `{section.name}`")
            place = Place(
                image,
                start + at,
                base + start + at,
                targets[symbol],
                addend,
                base + self.slots_at + symbol * _SLOT_BYTES,
                base + self.stubs_at + symbol * _STUB_BYTES
                if self.symbols[symbol].section_index == _UNDEFINED
                else None,
            )
            if not apply(place):
                raise _unloadable(f"`{name}` is out of reach of relocation {kind} in `{section.name}`")


class Object:
    """Parsed objects with the memory layout of one image: link them for any base address with `link`.

    A symbol `name` of object number n is `name.n` to the other objects. The image's own names are those of the last.

    Raises:
        ProgramFileError: the bytes are no relocatable ELF64 object of a known machine, or use a feature not supported.
    """

    def __init__(self, *contents: bytes | memoryview) -> None:
        self._parts = [_Part(content) for content in contents]
        self.machine = self._parts[-1].machine
        if any(part.machine != self.machine for part in self._parts):
            raise _unloadable("its objects are for different machines")
        self._place()

    def _place(self) -> None:
        """Give each section its offset in the image; stubs follow the code, the address table the read-only data."""
        page = os.sysconf("SC_PAGE_SIZE")
        ends: list[int] = []
        at = 0
        for group in range(3):
            for part in self._parts:
                for index in part.groups[group]:
                    at = _round_up(at, part.sections[index].alignment)
                    part.offsets[index] = at
                    at += part.sections[index].size
            at = _round_up(at, _STUB_BYTES)
            for part in self._parts:
                if group == 0:
                    part.stubs_at = at
                    at += _STUB_BYTES * len(part.symbols)
                elif group == 1:
                    part.slots_at = at
                    at += _SLOT_BYTES * len(part.symbols)
            at = _round_up(at, page)
            ends.append(at)
        self._code_bytes, read_only_end, self.image_bytes = ends
        if self.image_bytes > _MOST_BYTES:
            raise _unloadable(f"its image has {self.image_bytes} bytes")
        self._read_only_bytes = read_only_end - self._code_bytes

    def link(self, base: int, resolve: Resolver) -> LinkedImage:
        """The image for address `base` (a multiple of the page size), external names looked up through `resolve`.

        Raises:
            ProgramFileError: a name that `resolve` does not know, an unknown relocation, or a target out of reach.
        """
        image = bytearray(self.image_bytes)
        defined = [part.defined(base) for part in self._parts]
        shared = {f"{name}.{n}": address for n, names in enumerate(defined) for name, address in names.items()}

        def look_up(name: str) -> int | None:
            return shared[name] if name in shared else resolve(name)

        for part in self._parts:
            try:
                part.link(image, base, look_up)
            except (struct.error, IndexError, ValueError, KeyError, OverflowError) as error:
                raise _unloadable(f"its relocations point outside it ({error})") from error
        return LinkedImage(image, self._code_bytes, self._read_only_bytes, defined[-1])


class Library:
    """Native code in memory. It is unmapped with the last reference unless `keep` was called."""

    def __init__(self, mapping: int, size: int, addresses: dict[str, int]) -> None:
        self._mapping = mapping
        self._size = size
        self._addresses = addresses
        self._unmap: Callable[[int, int], int] | None = libc().munmap

    def address(self, name: str) -> int:
        """The address of a symbol that the object defines.

        Raises:
            ProgramFileError: there is no such symbol.
        """
        if name not in self._addresses:
            raise _unloadable(f"it does not define `{name}`")
        return self._addresses[name]

    def keep(self) -> None:
        """Never unmap: threads may be inside for as long as the process lives."""
        self._unmap = None

    def __del__(self) -> None:
        # A constructor that raised leaves no attribute.
        if unmap := getattr(self, "_unmap", None):
            unmap(self._mapping, self._size)


def load(*contents: bytes | memoryview, resolve: Resolver | None = None) -> Library:
    """Map objects and link them with each other. `resolve` gives the address of an external name, by default from this
    process.

    Raises:
        ProgramFileError: the object is malformed, needs something unsupported, or needs a name that is not found.
        ResourceExhausted: no memory for it.
    """
    parsed = Object(*contents)
    size = parsed.image_bytes
    mapping = map_pages(size)
    try:
        linked = parsed.link(mapping, resolve or process_symbol)
        ctypes.memmove(mapping, (ctypes.c_char * size).from_buffer(linked.content), size)
        # The kernel makes the instruction cache coherent when pages first become executable, so no explicit flush.
        protect_pages(mapping, linked.code_bytes, Protection.EXECUTE)
        protect_pages(mapping + linked.code_bytes, linked.read_only_bytes, Protection.READ)
    except BaseException:
        libc().munmap(mapping, size)
        raise
    return Library(mapping, size, linked.addresses)


def process_symbol(name: str) -> int | None:
    """The address of `name` in this process, the C library or the maths library; None when none has it."""
    encoded = name.encode()
    for library in _symbol_libraries():
        if address := libc().dlsym(library, encoded):
            return address
    return None


@functools.cache
def _symbol_libraries() -> tuple[int | None, ...]:
    """Handles for `dlsym`: the process, then the maths library, which an interpreter need not have loaded itself."""
    found: list[int | None] = [None]
    for file in ("libm.so.6", "libm.so"):
        try:
            found.append(ctypes.CDLL(file)._handle)
        except OSError:
            continue
    return tuple(found)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _unloadable(reason: str) -> ProgramFileError:
    return ProgramFileError(
        f"the native code cannot be loaded: {reason}", help="compile the program again with this version of Tilewright"
    )
