"""What the machine is: compared with LLVM's own detection, and on recorded and made-up systems."""

from __future__ import annotations

import os

import llvmlite.binding as llvm
import pytest

from tilewright.runtime.cpu import features as cpu_features
from tilewright.runtime.cpu.features import CacheLevel, parse_cpu_list, parse_cpuinfo

# Instructions of the system's kernel or of trusted environments, which no compiled program uses.
PRIVILEGED = {"sgx", "pconfig", "wbnoinvd", "shstk", "hreset", "enqcmd", "uintr", "kl", "widekl", "invpcid", "usermsr"}
# What kernels do not list where it does not work: of Zen 5 the random numbers of `rdseed` (AMD-SB-7055).
HIDDEN = {"rdseed"}

ZEN3 = """
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 33
flags\t\t: fpu cx8 cmov mmx fxsr sse sse2 lm pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand
"""
SAPPHIRE_RAPIDS = "vendor_id: GenuineIntel\ncpu family: 6\nmodel: 143\nflags: avx512f amx_tile amx_bf16 avx512_fp16\n"
CASCADE_LAKE = "vendor_id: GenuineIntel\ncpu family: 6\nmodel: 85\nflags: avx512f avx512_vnni\n"
V3_FLAGS = "avx2 bmi1 bmi2 f16c fma abm movbe"
GRAVITON3 = """
processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd aes pmull sha1 sha2 crc32 atomics fphp asimdhp asimdrdm jscvt fcma lrcpc sve i8mm bf16 asimddp
CPU implementer\t: 0x41
CPU variant\t: 0x1
CPU part\t: 0xd40
"""


def test_features_and_name_are_those_that_llvm_finds():
    theirs = {feature[1:] for feature in llvm.get_host_cpu_features().flatten().split(",") if feature[0] == "+"}
    ours = cpu_features.host()
    if ours.architecture == "x86_64":
        assert ours.features <= theirs
        listed = {feature for words in cpu_features.X86_FEATURES.values() for feature in words}
        assert (theirs - ours.features) & listed <= PRIVILEGED | HIDDEN
    assert ours.name == llvm.get_host_cpu_name() or ours.name.startswith("x86-64") or ours.name == "generic"


@pytest.mark.parametrize(
    ("text", "architecture", "name", "some_features"),
    [
        (ZEN3, "x86_64", "znver3", {"sse3", "sse4.2", "crc32", "rdrnd", "64bit"}),
        (SAPPHIRE_RAPIDS, "x86_64", "sapphirerapids", {"amx-tile", "amx-bf16", "avx512fp16"}),
        (CASCADE_LAKE, "x86_64", "cascadelake", {"avx512vnni"}),
        (CASCADE_LAKE.replace("_vnni", "bw"), "x86_64", "skylake-avx512", {"avx512bw"}),
        (f"vendor_id: Unheard\nflags: {V3_FLAGS}\n", "x86_64", "x86-64-v3", {"lzcnt", "bmi"}),
        ("vendor_id: AuthenticAMD\ncpu family: 26\nmodel: 2\nflags: avx2\n", "x86_64", "znver5", {"avx2"}),
        ("vendor_id: AuthenticAMD\ncpu family: 25\nmodel: 17\nflags: avx2\n", "x86_64", "znver4", {"avx2"}),
        ("vendor_id: AuthenticAMD\ncpu family: 23\nmodel: 49\nflags: avx2\n", "x86_64", "znver2", {"avx2"}),
        ("", "x86_64", "x86-64", set()),
        (GRAVITON3, "aarch64", "neoverse-v1", {"neon", "lse", "fullfp16", "sve", "dotprod", "bf16", "i8mm"}),
        ("Features: fp asimd\nCPU implementer: 0x99\nCPU part: 0x1\n", "aarch64", "generic", {"neon"}),
        ("whatever", "riscv64", "generic", set()),
    ],
)
def test_recorded_cpus(text, architecture, name, some_features):
    host = parse_cpuinfo(text, architecture)
    assert (host.architecture, host.name) == (architecture, name)
    assert some_features <= host.features


def test_the_words_of_both_tables_are_features_that_llvm_knows():
    llvm.initialize_all_targets()
    for triple, table in [
        ("x86_64-linux-gnu", cpu_features.X86_FEATURES),
        ("aarch64-linux-gnu", cpu_features.ARM_FEATURES),
    ]:
        for feature in sorted({word for words in table.values() for word in words}):
            assert llvm_knows(triple, feature), feature
        assert not llvm_knows(triple, "no-such-feature")


def llvm_knows(triple: str, feature: str) -> bool:
    """LLVM warns on stderr about a feature that it does not know, and says nothing else."""
    reader, writer = os.pipe()
    saved = os.dup(2)
    os.dup2(writer, 2)
    try:
        llvm.Target.from_triple(triple).create_target_machine(features=f"+{feature}")
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(writer)
    with os.fdopen(reader) as stream:
        return "not a recognized feature" not in stream.read()


def test_missing_takes_names_with_and_without_a_sign():
    present = sorted(cpu_features.host().features)[0]
    assert cpu_features.missing([present, f"+{present}"]) == ()
    assert cpu_features.missing(["+zzz", "aaa", present]) == ("aaa", "zzz")


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", (0,)), ("0-3", (0, 1, 2, 3)), ("0-1,8,10-11", (0, 1, 8, 10, 11)), ("", ())]
)
def test_cpu_lists(text, cpus):
    assert parse_cpu_list(text) == cpus


def make_system(root, files: dict[str, str]):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def cache_files(index: int, level: str, kind: str, size: str, shared: str) -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu0/cache/index{index}"
    values = {"level": level, "type": kind, "size": size, "coherency_line_size": "64", "shared_cpu_list": shared}
    return {f"{folder}/{name}": value for name, value in values.items()}


def test_caches_are_read_from_sysfs(tmp_path):
    files = (
        cache_files(3, "3", "Unified", "32M", "0-7")
        | cache_files(0, "1", "Data", "48K", "0,4")
        | cache_files(1, "1", "Instruction", "32K", "0,4")
        | cache_files(2, "2", "Unified", "1280K", "0,4")
    )
    assert cpu_features.cache_levels(make_system(tmp_path, files)) == (
        CacheLevel(1, "data", 48 * 1024, 64, 2),
        CacheLevel(1, "instruction", 32 * 1024, 64, 2),
        CacheLevel(2, "unified", 1280 * 1024, 64, 2),
        CacheLevel(3, "unified", 32 * 1024**2, 64, 8),
    )
    assert cpu_features.cache_levels(tmp_path / "nothing") == ()


def test_one_cpu_of_each_core_comes_first(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 5})
    cores = {0: "0", 1: "0", 2: "1", 3: "1", 5: "2"}
    folder = "sys/devices/system/cpu/cpu{}/topology/{}"
    files = {folder.format(cpu, "core_id"): core for cpu, core in cores.items()}
    files |= {folder.format(cpu, "physical_package_id"): "0" for cpu in cores}
    root = make_system(tmp_path, files)
    assert cpu_features.cpu_order(root) == (0, 2, 5, 1, 3)
    assert cpu_features.physical_cores(root) == 3
    assert cpu_features.usable_cpus(root) == 5
    assert cpu_features.cpu_order(tmp_path / "nothing") == (0, 1, 2, 3, 5)
    assert cpu_features.physical_cores(tmp_path / "nothing") == 5


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "250000 100000"}, 2.5),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "150000 100000"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/cpu.max": "300000 100000",
                "sys/fs/cgroup/a/cpu.max": "100000 100000",
            },
            1.0,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/docker/1",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
    ],
)
def test_the_quota_of_a_control_group_bounds_the_cpus(files, quota, tmp_path, monkeypatch):
    root = make_system(tmp_path, files)
    assert cpu_features.cpu_quota(root) == quota
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert cpu_features.usable_cpus(root) == {None: 8, 2.5: 3, 1.5: 2, 1.0: 1, 0.5: 1}[quota]


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/memory.max": "1048576"},
        {"proc/self/cgroup": "5:memory:/a", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1048576"},
    ],
)
def test_the_limit_of_a_control_group_bounds_the_memory(files, tmp_path):
    assert cpu_features.usable_memory_bytes(make_system(tmp_path, files)) == 1048576
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert cpu_features.usable_memory_bytes(tmp_path / "nothing") == total
    assert 0 < cpu_features.usable_memory_bytes() <= total


def test_this_machine_is_consistent():
    order = cpu_features.cpu_order()
    assert sorted(order) == sorted(os.sched_getaffinity(0))
    assert 1 <= cpu_features.default_threads() <= cpu_features.physical_cores() <= len(order)
    assert 1 <= cpu_features.usable_cpus() <= len(order)
