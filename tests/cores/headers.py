"""Compiles kernels against the real headers of TT-Metalium, which the wheel of ttnn ships, without importing it.

The wheel is fetched once with pip and only its headers are kept, in the user's cache. The translation units are the
firmware's own, which include a kernel: one for a thread that moves data, three for the one that computes (unpack, math,
pack). The compiler is clang of the wheel `ziglang`. It is asked for LLVM IR only: the assembler would not know the
instructions of the tensor units, and zig needs no C library then, which takes it minutes to build.

The standard library is most of the text of a translation unit, and none of it is the vendor's: it is read once.

The vector unit's own header, sfpi.h, is not in the wheel, and an empty one stands for it. Where a kernel uses the
vector unit, errors inside the headers are therefore not counted on math and pack; those in the kernel are everywhere.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from zipfile import ZipFile

import platformdirs

from tilewright.layout.catalogue.device_tiles import FORMATS

VERSION = "0.81.1"
_WHEEL = f"ttnn=={VERSION}"
_KEPT = (
    "ttnn/tt_metal/hw/",
    "ttnn/tt_metal/tt-llk/common/",
    "ttnn/tt_metal/tt-llk/tools/include/",
    "ttnn/tt_metal/tt-llk/tt_llk_",
    "ttnn/tt_metal/hostdevcommon/",
    "ttnn/tt_metal/api/",
)
_COMPILER = (sys.executable, "-m", "ziglang", "c++", "-target", "riscv32-linux-musl", "-std=c++20", "-w")
_COMPUTE_PARTS = ("unpack", "math", "pack")
# Numbers of the formats in the headers' `DataFormat`.
_FORMAT_NUMBERS = {"f32": 0, "f16": 1, "bf16": 5, "bfp8": 6, "i32": 8, "u32": 24}
_QUEUES = {"wormhole": 32, "blackhole": 64}
_STANDARD = (
    "algorithm",
    "array",
    "cstddef",
    "cstdint",
    "limits",
    "optional",
    "tuple",
    "type_traits",
    "utility",
    "variant",
)
_LLTT = """\
#pragma once
namespace lltt {
enum ExecBool : bool { NoExec = false, Exec = true };
template <ExecBool exec = NoExec>
inline void record(unsigned, unsigned) {}
inline void replay(unsigned, unsigned) {}
constexpr unsigned replay_insn(unsigned start, unsigned length) { return start << 16 | length; }
}  // namespace lltt
"""


class NoHeaders(Exception):
    """The wheel is not here and cannot be fetched."""


@cache
def headers() -> Path:
    """The folder `ttnn` of the wheel, with its headers.

    Raises:
        NoHeaders: it cannot be fetched.
    """
    folder = platformdirs.user_cache_path("tilewright") / "headers" / f"ttnn-{VERSION}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _unpack(_fetch(Path(scratch)), Path(scratch) / "kept")
            # Another process may have been faster.
            if not folder.exists():
                os.replace(Path(scratch) / "kept", folder)
    return folder / "ttnn"


def _fetch(into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--python-version", "3.12"]
    done = subprocess.run([*command, "--quiet", "--dest", str(into), _WHEEL], capture_output=True, text=True)
    wheels = list(into.glob("ttnn-*.whl"))
    if done.returncode or not wheels:
        raise NoHeaders(f"pip cannot fetch {_WHEEL}: {done.stderr.strip()[-500:]}")
    return wheels[0]


def _unpack(wheel: Path, into: Path) -> None:
    with ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(_KEPT) and not name.endswith("/") and "quasar" not in name:
                archive.extract(name, into)


def check_source(
    source: str,
    role: str,
    machine: str,
    formats: Sequence[str] = (),
    wide: bool = False,
    parts: Sequence[str] = _COMPUTE_PARTS,
) -> list[str]:
    """The errors of a kernel for the thread `role` of a machine. `formats`: those of the queues, bf16 where none is
    given; `wide`: whether tile registers have 32 bits; `parts`: which of the three parts of a kernel that computes."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "kernel.cpp").write_text(source)
        (folder / "kernel_includes.hpp").write_text('#include "kernel.cpp"\n')
        (folder / "defines_generated.h").write_text("")
        (folder / "chlkc_descriptors.h").write_text(_descriptors(machine, formats, wide))
        (folder / "lltt.h").write_text(_LLTT)
        (folder / "sfpi.h").write_text("#pragma once\n")
        # Of newlib, which the vendor's compiler has.
        (folder / "sys").mkdir()
        (folder / "sys/_stdint.h").write_text("#include <cstdint>\n")
        for part in _COMPUTE_PARTS:
            text = f'#define TRISC_{part.upper()}\n#include "defines_generated.h"\n#include "kernel.cpp"\n'
            (folder / f"chlkc_{part}.cpp").write_text(text)
        if role != "compute":
            return _compile(
                folder, machine, _mover_flags(role), "ncrisck.cc" if role == "reader" else "brisck.cc", False
            )
        return [
            error
            for number, part in enumerate(_COMPUTE_PARTS)
            if part in parts
            for error in _compile(folder, machine, _compute_flags(number, part), "trisck.cc", part != "unpack")
        ]


def _mover_flags(role: str) -> list[str]:
    """Each array is described by two numbers: that it is in DRAM, dealt over its banks, and the size of its pages."""
    processor, network = ("NCRISC", 0) if role == "reader" else ("BRISC", 1)
    described = ",".join(["2", "2048"] * 8)
    return [
        f"-DCOMPILE_FOR_{processor}",
        f"-DPROCESSOR_INDEX={int(role == 'reader')}",
        f"-DNOC_INDEX={network}",
        f"-DKERNEL_COMPILE_TIME_ARGS={described}",
    ]


def _compute_flags(number: int, part: str) -> list[str]:
    return [
        f"-DCOMPILE_FOR_TRISC={number}",
        f"-DUCK_CHLKC_{part.upper()}",
        f"-DPROCESSOR_INDEX={2 + number}",
        "-DNOC_INDEX=0",
    ]


@cache
def _standard() -> tempfile.TemporaryDirectory[str]:
    """A folder with the headers of the standard library, compiled, that this process removes when it ends."""
    folder = tempfile.TemporaryDirectory()
    (Path(folder.name) / "standard.hpp").write_text("".join(f"#include <{name}>\n" for name in _STANDARD))
    command = [*_COMPILER, "-x", "c++-header", "standard.hpp", "-o", "standard.pch"]
    subprocess.run(command, cwd=folder.name, check=True, capture_output=True)
    return folder


def _compile(folder: Path, machine: str, flags: Sequence[str], unit: str, lacks_vector: bool) -> list[str]:
    root = headers()
    command = [*_COMPILER, "-include-pch", f"{_standard().name}/standard.pch"]
    command += ["-Wno-missing-template-arg-list-after-template-kw", "-ferror-limit=0"]
    command += [f"-I{path}" for path in (folder, *_include_folders(root, machine))]
    command += [*_defines(machine), *flags, "-S", "-emit-llvm", "-o", str(folder / "kernel.ll")]
    command.append(str(root / "tt_metal/hw/firmware/src/tt-1xx" / unit))
    done = subprocess.run(command, capture_output=True, text=True)
    errors = re.findall(r"^(.+?:\d+:\d+): (?:fatal )?error: (.*)$", done.stderr, re.MULTILINE)
    if done.returncode and not errors:
        return [done.stderr.strip()]
    own = [f"{place.rsplit('/', 1)[-1]}: {what}" for place, what in errors if "kernel.cpp" in place]
    others = [f"{place}: {what}" for place, what in errors if "kernel.cpp" not in place]
    excused = lacks_vector and any("sfpi" in error or "sfpu" in error for error in others)
    return own if excused else own + others


def _include_folders(root: Path, machine: str) -> list[Path]:
    metal = root / "tt_metal"
    llk = "wormhole_b0" if machine == "wormhole" else machine
    inc, kernels, library = metal / "hw/inc", metal / f"hw/ckernels/{llk}/metal", metal / f"tt-llk/tt_llk_{llk}"
    family = inc / "internal/tt-1xx" / machine
    found = [inc, inc / "api/compute", inc / "internal", inc / "internal/tt-1xx", family, family / "noc"]
    found += [family / f"{llk}_defines", kernels / "common", kernels / "llk_io", kernels / "llk_api"]
    found += [kernels / "llk_api/llk_sfpu", metal / "tt-llk/common", metal / "tt-llk/tools/include"]
    found += [library / "common/inc", library / "llk_lib"]
    found += [metal / "hostdevcommon/api", metal / "api", metal / "hw/firmware/src/tt-1xx", root]
    return found


def _defines(machine: str) -> list[str]:
    names = {
        f"ARCH_{machine.upper()}": "",
        "TENSIX_FIRMWARE": "",
        "LOCAL_MEM_EN": "0",
        "KERNEL_BUILD": "",
        "PROGRAMMABLE_CORE_TYPE": "0",
        "NOC_MODE": "0",
        "PCIE_NOC_X": "0",
        "PCIE_NOC_Y": "3",
        "DISPATCH_MESSAGE_ADDR": "0",
    }
    banks = {
        "wormhole": {"NUM_DRAM_BANKS": "12", "IS_NOT_POW2_NUM_DRAM_BANKS": "1", "NUM_L1_BANKS": "64"}
        | {"LOG_BASE_2_OF_NUM_L1_BANKS": "6", "__riscv_xtttensixwh": "1"},
        "blackhole": {"NUM_DRAM_BANKS": "8", "LOG_BASE_2_OF_NUM_DRAM_BANKS": "3", "NUM_L1_BANKS": "130"}
        | {"IS_NOT_POW2_NUM_L1_BANKS": "1", "__riscv_xtttensixbh": "1"},
    }
    return [f"-D{name}={value}" if value else f"-D{name}" for name, value in (names | banks[machine]).items()]


def _descriptors(machine: str, formats: Sequence[str], wide: bool) -> str:
    """What the host generates about queues: their formats and the shape of their tiles."""
    count = _QUEUES[machine]
    named = [*formats, *["bf16"] * (count - len(formats))]
    numbers = [_FORMAT_NUMBERS[name] for name in named]
    tables: dict[str, tuple[str, Sequence[int]]] = {}
    for side in ("unpack", "pack"):
        for end in ("src", "dst"):
            tables[f"{side}_{end}_format"] = ("unsigned char", numbers)
        shape = {"tile_num_faces": 4, "partial_face": 0, "tile_face_r_dim": 16, "narrow_tile": 0, "tile_r_dim": 32}
        shape |= {"tile_c_dim": 32, "num_faces_r_dim": 2, "num_faces_c_dim": 2}
        tables |= {f"{side}_{name}": ("uint8_t", [value] * count) for name, value in shape.items()}
        tables[f"{side}_tile_size"] = ("uint16_t", [FORMATS[name].page_bytes for name in named])
    lines = ["#pragma once", "#include <cstdint>"]
    lines += [
        f"constexpr {kind} {name}[{count}] = {{{', '.join(map(str, values))}}};"
        for name, (kind, values) in tables.items()
    ]
    lines += [f"constexpr bool DST_ACCUM_MODE = {'true' if wide else 'false'};", "constexpr bool APPROX = false;"]
    lines += ["#define DST_SYNC_MODE DstSync::SyncHalf", "#ifdef COMPILE_FOR_TRISC"]
    lines += ["constexpr auto MATH_FIDELITY = ckernel::MathFidelity::HiFi4;", "#endif"]
    return "\n".join(lines) + "\n"


def has_compiler() -> bool:
    """Whether clang of the wheel `ziglang` is here."""
    return subprocess.run([sys.executable, "-m", "ziglang", "version"], capture_output=True).returncode == 0
