"""The common part of compiled programs: a manifest, code and constants, which can be saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tilewright.errors import CompilerBug, UnsupportedOnTargetError
from tilewright.options import Options
from tilewright.runtime import container
from tilewright.runtime.abi import ALIGNMENT_BYTES
from tilewright.runtime.container import Bytes
from tilewright.runtime.cpu.native import MISMATCH
from tilewright.runtime.files import checked_path
from tilewright.runtime.manifest import Manifest, Place, check, place_constants

Array = np.ndarray[Any, np.dtype[Any]]
Buffer = Array | bytes | bytearray | memoryview

Settled = tuple[Options | None, Callable[..., Any]]
"""Options, and the function of the inputs that serves plain calls under just these.

The function returns the program's results, or `MISMATCH` where a call of the program is needed. It takes as many
arrays as the program has inputs. The options are None until a call has settled them.
"""


def _mismatch(*_: object) -> object:
    return MISMATCH


UNSETTLED: Settled = (None, _mismatch)
"""Every call needs the program."""


class ProgramFile:
    """Code with its manifest and constants.

    `verify_constants` is called before the first use of the constants, where nothing has checked them. `elsewhere`
    states which entries of the compile cache hold constants, and where.

    Raises:
        CompilerBug: the manifest contradicts itself or the constants.
    """

    def __init__(
        self,
        manifest: Manifest,
        object_bytes: bytes,
        support_bytes: bytes,
        constants: Sequence[Buffer] = (),
        verify_constants: Callable[[], None] | None = None,
        elsewhere: Sequence[Place] = (),
    ) -> None:
        check(manifest)
        views = tuple(_constant_view(constant) for constant in constants)
        if [len(view) for view in views] != [constant.nbytes for constant in manifest.constants]:
            raise CompilerBug(f"the constants of `{manifest.name}` are not of the sizes in its manifest")
        self.manifest = manifest
        self._object_bytes = object_bytes
        self._support_bytes = support_bytes
        self._constants = views
        self._verify = verify_constants
        self._elsewhere = tuple(elsewhere)

    def settled_on_device(self, arrays: Sequence[object], outputs: Sequence[object] = ()) -> Settled:
        """The function that serves plain calls on arrays on a device such as these: none does."""
        return UNSETTLED

    @property
    def parts(
        self,
    ) -> tuple[Manifest, bytes, bytes, tuple[Bytes, ...], Callable[[], None] | None, tuple[Place, ...]]:
        """The arguments that make this program again, such as one of another class."""
        return (
            self.manifest,
            self._object_bytes,
            self._support_bytes,
            self._constants,
            self._verify,
            self._elsewhere,
        )

    def verify(self) -> None:
        """Check the constants of a loaded program now instead of at its first call.

        Raises:
            ProgramFileError: they are damaged.
        """
        if self._verify is not None:
            self._verify()
            self._verify = None

    def explain(self, machine: str | None = None) -> str:
        """Refuse: a program holds code, and none of what it was decided from.

        Raises:
            UnsupportedOnTargetError: always.
        """
        raise UnsupportedOnTargetError(
            f"the program `{self.manifest.name}` holds code and no tiles, so nothing is known of their layouts",
            help="lower and compile its function again: `f.lower(...).compile().explain()`",
        )

    def save(self, path: str | Path, inputs: Sequence[str] = ()) -> None:
        """Write the program to a `.twp` file, with these names of its inputs where they are given; an old file is
        replaced when the new one is complete.

        Raises:
            ArgumentError: `path` is no path.
            OSError: the file cannot be written.
        """
        self._write(checked_path(path), (), inputs)

    def save_beside_constants(self, path: Path) -> None:
        """Write the program to a file that is read where the compile cache has its large constants.

        Raises:
            OSError: the file cannot be written.
        """
        self._write(path, self._elsewhere)

    def _write(self, path: Path, elsewhere: Sequence[Place], inputs: Sequence[str] = ()) -> None:
        placed = place_constants([len(constant) for constant in self._constants], elsewhere)
        specs = self.manifest.inputs
        if inputs:
            specs = tuple(msgspec.structs.replace(spec, name=name) for spec, name in zip(specs, inputs, strict=True))
        manifest = msgspec.structs.replace(self.manifest, constants=placed, inputs=specs)
        container.write(path, manifest, self._object_bytes, self._support_bytes, self._constants)


def _constant_view(constant: Buffer) -> Bytes:
    """The bytes of a constant as a read-only array that begins at a multiple of 64; copied only when it must be."""
    if isinstance(constant, np.ndarray):
        flat = np.ascontiguousarray(constant).reshape(-1).view(np.uint8)
    else:
        flat = np.frombuffer(constant, np.uint8) if len(constant) else np.empty(0, np.uint8)
    if flat.ctypes.data % ALIGNMENT_BYTES:
        room = np.empty(len(flat) + ALIGNMENT_BYTES, np.uint8)
        start = -room.ctypes.data % ALIGNMENT_BYTES
        room[start : start + len(flat)] = flat
        flat = room[start : start + len(flat)]
    view = flat.view()
    view.flags.writeable = False
    return view
