"""What is said when a chip, a tool or a capability is not there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import tilewright as tw
from tilewright.errors import ResourceUnavailable, TargetError, TilewrightError, ToolFailure, UnsupportedOnTargetError
from tilewright.machines.machine import load
from tilewright.runtime.cuda import driver as cuda_driver
from tilewright.targets.cuda import device_code, toolchain
from tilewright.targets.cuda.toolchain import DeviceCompiler, Usage, instructions_of, ptx_feature, usage_of

X = tw.ShapeDtype((8, 8), tw.f32)
TINY = "define ptx_kernel void @k() {\n  ret void\n}"


def lowered(function: Any = lambda x: x + 1) -> Any:
    return tw.jit(function).lower(X)


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        ("cuda", ResourceUnavailable, "the chip of the first NVIDIA GPU here; found: "),
        ("cuda:sm_50", TargetError, "no NVIDIA chip `sm_50`"),
    ],
)
def test_a_chip_that_is_not_here_has_to_be_named(
    monkeypatch: pytest.MonkeyPatch, target: str, error: type[TilewrightError], message: str
) -> None:
    monkeypatch.setattr(cuda_driver, "found", lambda: cuda_driver.Found(problem="no driver"))
    with pytest.raises(error, match=message) as found:
        lowered().compile(target)
    assert "sm_90a" in str(found.value.help)


def test_other_phases_are_named() -> None:
    program = lowered().compile("cuda:sm_90a")
    with pytest.raises(UnsupportedOnTargetError, match="no `cpp` phase") as found:
        program.ir("cpp")
    assert "ptx, sass" in str(found.value.help)
    for phase in ("array", "tile", "scheduled", "llvm", "ptx", "sass"):
        assert program.ir(phase)


def test_arrays_whose_offsets_need_more_than_32_bits_are_refused() -> None:
    with pytest.raises(UnsupportedOnTargetError, match="an array of 4294967296 elements"):
        tw.jit(lambda x: x + 1).lower(tw.ShapeDtype((65536, 65536), tw.f32)).compile("cuda:sm_90a")


@pytest.mark.parametrize(
    ("cpu", "features"), [("sm_100a", ("ptx83",)), ("sm_90a", ("ptx89",)), ("sm_90a", ()), ("sm_1", ("ptx83",))]
)
def test_pairs_of_chip_and_ptx_version_are_looked_up(cpu: str, features: tuple[str, ...]) -> None:
    machine = replace(load("sm_90a"), llvm_cpu=cpu, llvm_features=features)
    with pytest.raises(TargetError, match="names the chip"):
        ptx_feature(machine)


def test_a_rejected_module_is_an_error_and_the_next_one_is_compiled() -> None:
    tools = DeviceCompiler()
    machine = load("sm_90a")
    with pytest.raises(ToolFailure, match="LLVM rejects `k`"):
        tools.ptx("k", "define void @k( {", machine)
    with pytest.raises(ToolFailure, match="nvJitLink rejects `k`"):
        tools.cubin("k", "no PTX at all", machine)
    assert tools.cubin("k", tools.ptx("k", TINY, machine), machine).usage.spill_bytes == 0
    tools.close()


def test_a_crash_of_llvm_ends_its_process_not_ours() -> None:
    """An instruction that the chip does not have ends the process that LLVM runs in."""
    tools, machine = DeviceCompiler(), load("sm_90a")
    crashing = (
        "declare void @llvm.nvvm.tcgen05.fence.before.thread.sync()\n"
        "define ptx_kernel void @k() {\n  call void @llvm.nvvm.tcgen05.fence.before.thread.sync()\n  ret void\n}"
    )
    with pytest.raises(ToolFailure, match="LLVM crashed on `k`"):
        tools.ptx("k", crashing, machine)
    assert ".visible .entry k" in tools.ptx("k", TINY, machine)
    tools.close()


def test_a_killed_process_is_started_again() -> None:
    tools, machine = DeviceCompiler(), load("sm_90a")
    tools.ptx("k", TINY, machine)
    (idle,) = tools._pool._idle
    os.kill(idle.process_id, signal.SIGKILL)
    while idle.is_running:
        time.sleep(0.001)
    assert tools.ptx("k", TINY, machine)
    assert tools._pool._idle[0].process_id != idle.process_id
    tools.close()


def test_a_process_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "tool.py"
    script.write_text("raise SystemExit(3)")
    monkeypatch.setattr(device_code, "__file__", str(script))
    with pytest.raises(ToolFailure, match="did not start: its process ended with status 3"):
        DeviceCompiler().ptx("k", TINY, load("sm_90a"))


def test_without_an_assembler_a_program_is_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(*_: Any) -> Any:
        raise ToolFailure("there is no nvJitLink", help=toolchain.INSTALL)

    monkeypatch.setattr(toolchain.COMPILER, "cubin", missing)
    with tw.options(cache=True, cache_dir=tmp_path):
        program = lowered().compile("cuda:sm_90a")
        assert ".entry" in program.ir("ptx")
        with pytest.raises(ToolFailure, match="no nvJitLink"):
            program.ir("sass")


def test_without_the_extra_the_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    with pytest.raises(ToolFailure, match="no nvdisasm") as found:
        toolchain.sass_of(b"")
    assert "tilewright[cuda]" in str(found.value.help)


def test_kernels_that_share_registers_are_assembled_by_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    """nvJitLink would leave the instruction out."""
    tools, machine = DeviceCompiler(), load("sm_90a")
    ptx = tools.ptx("k", TINY, machine)
    tools.close()
    shares = ptx.replace("{", ".maxnreg 168\n{\n\tsetmaxnreg.dec.sync.aligned.u32 24;", 1)
    cubin = tools.cubin("k", shares, machine)
    assert instructions_of(toolchain.sass_of(cubin.content))["USETMAXREG"] == 1
    assert (cubin.usage.registers, cubin.usage.spill_bytes) == (168, 0)
    with pytest.raises(ToolFailure, match="ptxas fails for `k`"):
        tools.cubin("k", shares.replace("u32 24", "u32 25"), machine)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    with pytest.raises(ToolFailure, match="there is no ptxas") as found:
        tools.cubin("k", shares, machine)
    assert "tilewright[cuda]" in str(found.value.help)


def test_a_report_without_registers_is_an_error() -> None:
    with pytest.raises(ToolFailure, match="reports no registers"):
        usage_of("info : nothing")


def test_reports_of_code_from_the_cache_of_the_driver() -> None:
    """As nvJitLink 13.0 gives them on a machine with a device: without the lines of ptxas."""
    report = (
        "info    : 0 bytes gmem\ninfo    : Function properties for 'contract_0':\n"
        "info    : used 154 registers, used 2 barriers, 8 stack, 1024 bytes smem, 960 bytes cmem[0], 24 bytes lmem\n"
    )
    assert usage_of(report) == Usage(registers=154, spill_bytes=24, stack_bytes=8, shared_bytes=1024)
