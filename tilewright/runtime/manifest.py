"""The manifest of a compiled program: its arrays, its memory, and the machine that it needs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from tilewright.dtypes import by_name
from tilewright.errors import CompilerBug, ProgramFileError
from tilewright.runtime.abi import ABI_VERSION, MAX_THREADS, round_up
from tilewright.runtime.array_spec import ArraySpec
from tilewright.runtime.cuda.steps import DeviceCode, check_device
from tilewright.runtime.grid.code import GridCode

FORMAT_VERSION = 1

# An entry of the compile cache, or nothing, and an offset in it in bytes.
Place = tuple[str, int]


class Alias(msgspec.Struct, frozen=True):
    """The program writes output number `output` over the memory of input number `input`, which is donated."""

    output: int
    input: int


class Constant(msgspec.Struct, frozen=True):
    """The range of one constant in the file's section of constants, in bytes; offsets are multiples of 64. One with a
    `key` is in that entry of the compile cache instead, at that offset."""

    offset: int
    nbytes: int
    key: str = ""


class Message(msgspec.Struct, frozen=True):
    """The meaning of a positive status of the program. `code` names the error class to raise, such as `TW0401`."""

    status: int
    code: str
    text: str
    help: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a program but its code and constants.

    `cpu` and `features` are LLVM's names; only `features` must be present to run. `estimated_seconds` is the cost
    model's; above a microsecond the interpreter's lock is released. The code is one object, or several one after the
    other of `object_sizes` bytes; of a program for a GPU, one for each of its kernels; of one for a grid of cores, the
    text of all. `device` or `grid` states what a call does with them then. The code calls `library_functions`, which
    are bound when it is loaded. `metadata["memory_report"]`, where given, is the table that an out-of-memory error
    shows.
    """

    name: str
    triple: str
    cpu: str
    features: tuple[str, ...]
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    aliases: tuple[Alias, ...] = ()
    constants: tuple[Constant, ...] = ()
    object_sizes: tuple[int, ...] = ()
    arena_bytes: int = 0
    worker_scratch_bytes: int = 0
    estimated_seconds: float = 1.0
    messages: tuple[Message, ...] = ()
    library_functions: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    device: DeviceCode | None = None
    grid: GridCode | None = None
    format_version: int = FORMAT_VERSION
    abi_version: int = ABI_VERSION

    def memory_bytes(self, threads: int) -> int:
        """Bytes of the arena for a number of threads."""
        return round_up(self.arena_bytes) + threads * round_up(self.worker_scratch_bytes)

    @property
    def new_output_bytes(self) -> int:
        """Bytes of the outputs that take over no input's memory."""
        aliased = {alias.output for alias in self.aliases}
        return sum(spec.nbytes for index, spec in enumerate(self.outputs) if index not in aliased)

    def with_report(self, message: str) -> str:
        """The error for missing memory, with the table of large buffers if there is one."""
        report = self.metadata.get("memory_report", "")
        return f"{message}\n{report}" if report else message


def place_constants(sizes: Sequence[int], elsewhere: Sequence[Place] = ()) -> tuple[Constant, ...]:
    """Lay constants of these sizes in bytes out one after the other, each at a multiple of 64, but for those that have
    a key in the compile cache."""
    placed: list[Constant] = []
    offset = 0
    for nbytes, (key, at) in zip(sizes, elsewhere or [("", 0)] * len(sizes), strict=True):
        placed.append(Constant(at if key else offset, nbytes, key))
        offset = offset if key else round_up(offset + nbytes)
    return tuple(placed)


def split_objects(manifest: Manifest, content: bytes) -> list[bytes]:
    """The objects in a program's code.

    Raises:
        ProgramFileError: they are not as long as the code.
    """
    ends = list(itertools.accumulate(manifest.object_sizes or (len(content),)))
    if ends[-1] != len(content):
        raise ProgramFileError(
            "the program's objects are not of the sizes in its manifest",
            help="compile the program again with this version of Tilewright",
        )
    return [content[end - size : end] for size, end in zip(manifest.object_sizes or (len(content),), ends, strict=True)]


def encode(manifest: Manifest) -> bytes:
    return msgspec.msgpack.encode(manifest)


def decode(content: bytes | memoryview) -> Manifest:
    """The manifest in a program file.

    Raises:
        ProgramFileError: the bytes are not a manifest of this version.
    """
    try:
        manifest = msgspec.msgpack.decode(content, type=Manifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProgramFileError(
            f"the program's manifest cannot be read: {error}",
            help="compile the program again with this version of Tilewright",
        ) from error
    if (manifest.format_version, manifest.abi_version) != (FORMAT_VERSION, ABI_VERSION):
        raise ProgramFileError(
            f"the program has manifest version {manifest.format_version} and ABI version {manifest.abi_version}, "
            f"this runtime has {FORMAT_VERSION} and {ABI_VERSION}",
            help="compile the program again with this version of Tilewright",
        )
    return manifest


def check(manifest: Manifest) -> None:
    """Refuse a manifest that contradicts itself.

    Raises:
        CompilerBug: it does; the compiler wrote it.
    """
    for spec in (*manifest.inputs, *manifest.outputs):
        try:
            by_name(spec.dtype)
        except KeyError:
            raise CompilerBug(f"`{manifest.name}` declares `{spec.name}` with unknown dtype `{spec.dtype}`") from None
        if min(spec.shape, default=0) < 0:
            raise CompilerBug(f"`{manifest.name}` declares `{spec.name}` with shape {spec.shape}")
    _check_aliases(manifest)
    if min(manifest.memory_bytes(MAX_THREADS), manifest.arena_bytes, manifest.worker_scratch_bytes) < 0:
        raise CompilerBug(f"`{manifest.name}` declares a negative arena")
    end = 0
    for constant in manifest.constants:
        if constant.key:
            continue
        if constant.offset != round_up(end) or constant.nbytes < 0:
            raise CompilerBug(f"the constants of `{manifest.name}` are not one after the other at multiples of 64")
        end = constant.offset + constant.nbytes
    if manifest.device is not None:
        arrays = [spec.nbytes for spec in (*manifest.inputs, *manifest.outputs)]
        check_device(manifest.name, manifest.device, [*arrays, *(constant.nbytes for constant in manifest.constants)])


def _check_aliases(manifest: Manifest) -> None:
    for alias in manifest.aliases:
        if not (0 <= alias.output < len(manifest.outputs) and 0 <= alias.input < len(manifest.inputs)):
            raise CompilerBug(f"`{manifest.name}` declares an alias of arrays that it does not have: {alias}")
        output, source = manifest.outputs[alias.output], manifest.inputs[alias.input]
        if (output.shape, output.dtype) != (source.shape, source.dtype):
            raise CompilerBug(f"`{manifest.name}` writes output {output} over input {source}, which differs")
    for ends in ([alias.output for alias in manifest.aliases], [alias.input for alias in manifest.aliases]):
        if len(set(ends)) != len(ends):
            raise CompilerBug(f"`{manifest.name}` declares two aliases of one array")
