"""PTX of the tests through NVIDIA's assembler, so that what the emulator runs is what the chip would be given."""

from functools import lru_cache

from msgspec.structs import replace

from tilewright.machines.machine import load
from tilewright.targets.cuda.toolchain import COMPILER


@lru_cache(maxsize=256)
def assembled(ptx: str, chip: str) -> str:
    """The text itself, once the assembler took it for the chip.

    Raises:
        ToolFailure: it does not.
    """
    COMPILER.cubin("test", ptx, replace(load(chip), llvm_cpu=chip))
    return ptx
