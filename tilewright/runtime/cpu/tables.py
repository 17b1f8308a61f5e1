"""How `/proc/cpuinfo` spells what LLVM calls a feature or a CPU.

Sources: Linux `arch/x86/include/asm/cpufeatures.h` and `arch/arm64/kernel/cpuinfo.c` for the left sides; LLVM's feature
and processor names for the right sides.
"""

from __future__ import annotations

_SAME_NAME = (
    "adx aes avx avx2 avx512f avx512dq avx512cd avx512bw avx512vl avx512ifma avx512vbmi bmi2 cldemote clflushopt clwb "
    "clzero cmov cx16 cx8 f16c fma fma4 fsgsbase fxsr gfni lwp mmx movbe movdir64b movdiri mwaitx popcnt ptwrite rdpid "
    "rdpru rdseed rtm serialize sse sse2 sse4a ssse3 tbm tsxldtrk vaes vpclmulqdq waitpkg xop xsave xsavec xsaveopt "
    "xsaves invpcid sm3 sm4 sha512"
)

X86_FEATURES: dict[str, tuple[str, ...]] = {name: (name,) for name in _SAME_NAME.split()} | {
    "lm": ("64bit",),
    "pni": ("sse3",),
    "sse4_1": ("sse4.1",),
    "sse4_2": ("sse4.2", "crc32"),
    "abm": ("lzcnt",),
    "lahf_lm": ("sahf",),
    "bmi1": ("bmi",),
    "pclmulqdq": ("pclmul",),
    "rdrand": ("rdrnd",),
    "sha_ni": ("sha",),
    "3dnowprefetch": ("prfchw",),
    "ospke": ("pku",),
    "avx512_vbmi2": ("avx512vbmi2",),
    "avx512_vnni": ("avx512vnni",),
    "avx512_bitalg": ("avx512bitalg",),
    "avx512_vpopcntdq": ("avx512vpopcntdq",),
    "avx512_bf16": ("avx512bf16",),
    "avx512_fp16": ("avx512fp16",),
    "avx512_vp2intersect": ("avx512vp2intersect",),
    "avx_vnni": ("avxvnni",),
    "avx_ifma": ("avxifma",),
    "avx_vnni_int8": ("avxvnniint8",),
    "avx_vnni_int16": ("avxvnniint16",),
    "avx_ne_convert": ("avxneconvert",),
    "cmpccxadd": ("cmpccxadd",),
    "amx_tile": ("amx-tile",),
    "amx_int8": ("amx-int8",),
    "amx_bf16": ("amx-bf16",),
    "amx_fp16": ("amx-fp16",),
    "amx_complex": ("amx-complex",),
}

ARM_FEATURES: dict[str, tuple[str, ...]] = {
    "fp": ("fp-armv8",),
    "asimd": ("neon",),
    "aes": ("aes",),
    "sha2": ("sha2",),
    "sha3": ("sha3",),
    "sm4": ("sm4",),
    "crc32": ("crc",),
    "atomics": ("lse",),
    "asimdhp": ("fullfp16",),
    "asimdrdm": ("rdm",),
    "asimddp": ("dotprod",),
    "asimdfhm": ("fp16fml",),
    "jscvt": ("jsconv",),
    "fcma": ("complxnum",),
    "lrcpc": ("rcpc",),
    "ilrcpc": ("rcpc-immo",),
    "dcpop": ("ccpp",),
    "dcpodp": ("ccdp",),
    "uscat": ("lse2",),
    "flagm": ("flagm",),
    "flagm2": ("altnzcv",),
    "frint": ("fptoint",),
    "ssbs": ("ssbs",),
    "sb": ("sb",),
    "dit": ("dit",),
    "paca": ("pauth",),
    "bti": ("bti",),
    "rng": ("rand",),
    "i8mm": ("i8mm",),
    "bf16": ("bf16",),
    "sve": ("sve",),
    "sve2": ("sve2",),
    "sveaes": ("sve-aes",),
    "svebitperm": ("sve-bitperm",),
    "svesha3": ("sve-sha3",),
    "svesm4": ("sve-sm4",),
    "svef32mm": ("f32mm",),
    "svef64mm": ("f64mm",),
    "sme": ("sme",),
    "sme2": ("sme2",),
}

INTEL_MODELS: dict[int, str] = {
    model: name
    for name, models in {
        "nehalem": (0x1A, 0x1E, 0x1F, 0x2E),
        "westmere": (0x25, 0x2C, 0x2F),
        "sandybridge": (0x2A, 0x2D),
        "ivybridge": (0x3A, 0x3E),
        "haswell": (0x3C, 0x3F, 0x45, 0x46),
        "broadwell": (0x3D, 0x47, 0x4F, 0x56),
        "skylake": (0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6),
        "skylake-avx512": (0x55,),
        "icelake-client": (0x7D, 0x7E),
        "icelake-server": (0x6A, 0x6C),
        "rocketlake": (0xA7,),
        "tigerlake": (0x8C, 0x8D),
        "alderlake": (0x97, 0x9A),
        "raptorlake": (0xB7, 0xBA, 0xBF),
        "meteorlake": (0xAA, 0xAC),
        "lunarlake": (0xBD,),
        "arrowlake": (0xC5,),
        "arrowlake-s": (0xC6,),
        "sapphirerapids": (0x8F,),
        "emeraldrapids": (0xCF,),
        "graniterapids": (0xAD,),
        "graniterapids-d": (0xAE,),
        "silvermont": (0x37, 0x4A, 0x4C, 0x4D, 0x5A, 0x5D),
        "goldmont": (0x5C, 0x5F),
        "goldmont-plus": (0x7A,),
        "tremont": (0x86, 0x8A, 0x96, 0x9C),
        "gracemont": (0xBE,),
        "sierraforest": (0xAF,),
    }.items()
    for model in models
}
"""Models of Intel's family 6. Model 0x55 is three CPUs that only their features tell apart."""

ARM_PARTS: dict[tuple[int, int], str] = {
    (0x41, 0xD03): "cortex-a53",
    (0x41, 0xD05): "cortex-a55",
    (0x41, 0xD07): "cortex-a57",
    (0x41, 0xD08): "cortex-a72",
    (0x41, 0xD09): "cortex-a73",
    (0x41, 0xD0A): "cortex-a75",
    (0x41, 0xD0B): "cortex-a76",
    (0x41, 0xD0C): "neoverse-n1",
    (0x41, 0xD40): "neoverse-v1",
    (0x41, 0xD41): "cortex-a78",
    (0x41, 0xD44): "cortex-x1",
    (0x41, 0xD46): "cortex-a510",
    (0x41, 0xD47): "cortex-a710",
    (0x41, 0xD48): "cortex-x2",
    (0x41, 0xD49): "neoverse-n2",
    (0x41, 0xD4D): "cortex-a715",
    (0x41, 0xD4E): "cortex-x3",
    (0x41, 0xD4F): "neoverse-v2",
    (0x41, 0xD84): "neoverse-v3",
    (0x41, 0xD8E): "neoverse-n3",
    (0x46, 0x001): "a64fx",
    (0x48, 0xD01): "tsv110",
    (0x51, 0x001): "oryon-1",
    (0xC0, 0xAC3): "ampere1",
    (0xC0, 0xAC4): "ampere1a",
    (0xC0, 0xAC5): "ampere1b",
}
"""(implementer, part) of the MIDR register."""


def amd_name(family: int, model: int) -> str | None:
    """LLVM's name of an AMD CPU from Zen on; None for any other."""
    if family == 0x17:
        return "znver1" if model < 0x30 else "znver2"
    if family == 0x19:
        return "znver4" if model & 0xF0 in (0x10, 0x60, 0x70, 0xA0) else "znver3"
    return "znver5" if family == 0x1A else None


X86_LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("x86-64-v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2", "fma"})),
    ("x86-64-v3", frozenset({"avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"})),
    ("x86-64-v2", frozenset({"cx16", "popcnt", "sahf", "sse4.2", "ssse3"})),
)
"""The psABI's levels from the highest down, for a CPU that no table names."""
