"""Small PTX kernels for the tests: one instruction applied to arrays, and bodies with the usual declarations around."""

from collections.abc import Sequence

import numpy as np

from tests.emulators.ptx.emulator import run

THREADS = 64
HEADER = ".version 8.3\n.target sm_90a\n.address_size 64\n"
_REGISTER = {8: "%h", 16: "%h", 32: "%r", 64: "%d"}


def bits_of_type(name: str) -> int:
    """Bits of a register that holds a value of type `name`; predicates are passed as 32-bit numbers."""
    if name == "pred":
        return 32
    digits = name.lstrip("busf")
    return 2 * int(digits.removesuffix("x2")) if digits.endswith("x2") else int(digits)


def kernel(body: str, parameters: int, declarations: str = "") -> str:
    """A module with the entry `test`, whose registers %h %r %d %p are declared and whose parameters are in %d100 on."""
    names = ", ".join(f".param .u64 p{number}" for number in range(parameters))
    loads = "".join(f"ld.param.b64 %d{100 + number}, [p{number}];\n" for number in range(parameters))
    registers = ".reg .b16 %h<32>;\n.reg .b32 %r<128>;\n.reg .b64 %d<128>;\n.reg .pred %p<16>;\n"
    return f"{HEADER}{declarations}\n.visible .entry test({names})\n{{\n{registers}{loads}{body}\nret;\n}}\n"


def execute(body: str, arrays: Sequence[np.ndarray], threads: int = 32, blocks: int = 1, **options):
    """Runs `body` with the addresses of `arrays` in %d100 on; module declarations by keyword."""
    declarations = options.pop("declarations", "")
    return run(kernel(body, len(arrays), declarations), "test", blocks, threads, arrays, **options)


def apply(opcode: str, result: str, *operands: tuple[str, np.ndarray] | str) -> np.ndarray:
    """`opcode result, operands` of each element: operands are (type, numbers of that width) or immediates as text.

    Returns unsigned numbers of the result's width, booleans for predicates.
    """
    arrays = [np.ascontiguousarray(operand[1]) for operand in operands if not isinstance(operand, str)]
    size = arrays[0].size
    lines = ["mov.u32 %r0, %tid.x;", "mov.u32 %r1, %ctaid.x;", f"mad.lo.s32 %r0, %r1, {THREADS}, %r0;"]
    words, loaded = [], 0
    for operand in operands:
        if isinstance(operand, str):
            words.append(operand)
            continue
        lines += _loaded(operand[0], loaded)
        words.append(f"%p{loaded + 2}" if operand[0] == "pred" else _name(operand[0], loaded))
        loaded += 1
    target = "%p1" if result == "pred" else _name(result, 9)
    lines.append(f"{opcode} {target}, {', '.join(words)};")
    if result == "pred":
        lines.append(f"selp.b32 {_name(result, 9)}, 1, 0, %p1;")
    bits = bits_of_type(result)
    lines += _address(loaded, bits)
    lines.append(f"st.global.b{bits} [%d{40 + loaded}], {_name(result, 9)};")
    padded = -(-size // THREADS) * THREADS
    output = np.zeros(padded, f"uint{bits}")
    execute("\n".join(lines), [*(np.resize(array, padded) for array in arrays), output], THREADS, padded // THREADS)
    return output[:size] != 0 if result == "pred" else output[:size]


def _name(name: str, number: int) -> str:
    return f"{_REGISTER[bits_of_type(name)]}{number + 10}"


def _address(number: int, bits: int) -> list[str]:
    address = f"%d{40 + number}"
    return [f"mul.wide.u32 {address}, %r0, {bits // 8};", f"add.s64 {address}, {address}, %d{100 + number};"]


def _loaded(name: str, number: int) -> list[str]:
    bits = bits_of_type(name)
    lines = [*_address(number, bits), f"ld.global.b{bits} {_name(name, number)}, [%d{40 + number}];"]
    if name == "pred":
        lines.append(f"setp.ne.s32 %p{number + 2}, {_name(name, number)}, 0;")
    return lines
