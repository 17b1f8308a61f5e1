"""Any chip as the device of this process: programs for it run as PTX on the emulator."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from unittest.mock import patch

import tilewright as tw
from tests.cuda.running import unassembled
from tests.emulators.cuda_driver import FakeDriver
from tilewright.machines.machine import load
from tilewright.passes.warps.warp_space import SHARED
from tilewright.runtime.cuda import driver as cuda_driver
from tilewright.runtime.cuda.driver import Device
from tilewright.targets.cuda import target


@contextmanager
def emulated_chip(name: str) -> Generator[FakeDriver]:
    """A driver with one device, a chip such as sm_90a; machine code is PTX, in a cache of its own."""
    digits = name.removeprefix("sm_").rstrip("af")
    machine = load(name)
    capability = (int(digits[:-1]), int(digits[-1]))
    device = Device(0, f"Emulated {name}", capability, 1 << 32, machine.cores, machine.memory_of(SHARED).bytes)
    driver = FakeDriver(device)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(target, "cubin", unassembled),
        tw.options(cache_dir=folder),
        cuda_driver.replaced(driver),
    ):
        yield driver
