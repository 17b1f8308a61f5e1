"""The object loader: code that LLVM wrote is loaded and run; AArch64 code is linked and walked through."""

from __future__ import annotations

import ctypes
import math
import re
import struct

import numpy as np
import pytest
from runtime_programs import compile_ir
from test_runtime_relocations import arm_page, run_x86_stub, signed

from tests.effort import is_within
from tilewright.errors import ProgramFileError
from tilewright.runtime.cpu import elf

BASE = 0x7000_0000_0000
ARM_TRIPLE = "aarch64-unknown-linux-gnu"
X86_TRIPLE = "x86_64-unknown-linux-gnu"

MIXED = """
@counter = global i64 40
@fixed = constant i64 9
@zeros = internal global [1000 x i64] zeroinitializer, align 64
@table = constant [4 x ptr] [ptr @one, ptr @two, ptr @counter, ptr null]
declare double @exp(double)
declare ptr @memcpy(ptr, ptr, i64)

define i64 @one() { ret i64 1 }
define i64 @two() { ret i64 2 }

define i64 @count() {
  %old = load i64, ptr @counter
  %new = add i64 %old, 2
  store i64 %new, ptr @counter
  ret i64 %new
}

define i64 @call_table(i64 %i) {
  %at = getelementptr ptr, ptr @table, i64 %i
  %function = load ptr, ptr %at
  %result = call i64 %function()
  ret i64 %result
}

define double @exp_plus_pi(double %x) {
  %e = call double @exp(double %x)
  %y = fadd double %e, 3.141592653589793
  ret double %y
}

define i64 @zero_at(i64 %i, i64 %value) {
  %at = getelementptr [1000 x i64], ptr @zeros, i64 0, i64 %i
  %old = load i64, ptr %at
  store i64 %value, ptr %at
  ret i64 %old
}

define i64 @choose(i64 %i) {
  switch i64 %i, label %other [ i64 0, label %a
                                i64 1, label %b
                                i64 2, label %c
                                i64 3, label %d
                                i64 4, label %e ]
a:
  %ra = call i64 @count()
  ret i64 %ra
b:
  ret i64 77
c:
  %rc = call i64 @one()
  ret i64 %rc
d:
  ret i64 -5
e:
  %re = call i64 @two()
  ret i64 %re
other:
  ret i64 0
}
"""


def function(library: elf.Library, name: str, result=ctypes.c_int64, *arguments):
    return ctypes.CFUNCTYPE(result, *arguments)(library.address(name))


@pytest.fixture(scope="module")
def mixed() -> elf.Library:
    return elf.load(compile_ir(MIXED))


def test_code_data_tables_and_the_maths_library(mixed):
    assert [function(mixed, "count")() for _ in range(3)] == [42, 44, 46]
    call_table = function(mixed, "call_table", ctypes.c_int64, ctypes.c_int64)
    assert [call_table(0), call_table(1)] == [1, 2]
    exp_plus_pi = function(mixed, "exp_plus_pi", ctypes.c_double, ctypes.c_double)
    assert exp_plus_pi(1.25) == math.exp(1.25) + math.pi
    zero_at = function(mixed, "zero_at", ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    assert [zero_at(999, 7), zero_at(999, 8), zero_at(0, 1)] == [0, 7, 0]
    choose = function(mixed, "choose", ctypes.c_int64, ctypes.c_int64)
    assert [choose(i) for i in (1, 2, 3, 4, 5)] == [77, 1, -5, 2, 0]
    assert ctypes.c_int64.from_address(mixed.address("counter")).value == 46


def test_each_load_has_its_own_data():
    first_library, second_library = elf.load(compile_ir(MIXED)), elf.load(compile_ir(MIXED))
    first, second = function(first_library, "count"), function(second_library, "count")
    assert [first(), first(), second()] == [42, 44, 42]


def page_permissions(address: int) -> str:
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if begin <= address < end:
                return line.split()[1][:3]
    return "---"


def test_no_page_is_both_writable_and_executable(mixed):
    assert page_permissions(mixed.address("count")) == "r-x"
    assert page_permissions(mixed.address("fixed")) == "r--"
    assert page_permissions(mixed.address("counter")) == "rw-"


def test_a_library_is_unmapped_with_its_last_reference_unless_it_is_kept():
    library = elf.load(compile_ir(MIXED))
    address = library.address("count")
    del library
    assert page_permissions(address) == "---"
    kept = elf.load(compile_ir(MIXED))
    kept.keep()
    address = kept.address("count")
    del kept
    assert page_permissions(address) == "r-x"


def test_a_small_object_loads_in_a_millisecond():
    content = compile_ir(MIXED)
    assert is_within(2e-3, lambda: elf.load(content), attempts=100)


def test_x86_calls_to_far_functions_go_through_a_stub_that_reads_their_address():
    ir = "declare i64 @far()\ndefine i64 @f() {\n  %x = call i64 @far()\n  %y = add i64 %x, 1\n  ret i64 %y\n}"
    linked = elf.Object(compile_ir(ir, X86_TRIPLE)).link(BASE, {"far": 0x1234_5678}.get)
    at = linked.content.index(b"\xe8") + 1
    stub = at + 4 + struct.unpack_from("<i", linked.content, at)[0]
    assert stub < linked.code_bytes
    slot = run_x86_stub(linked.content[stub:], stub)
    assert slot < linked.code_bytes + linked.read_only_bytes
    assert struct.unpack_from("<Q", linked.content, slot)[0] == 0x1234_5678


class ArmWalk:
    """Follows the few AArch64 instructions of a leaf function from its entry to `ret` or a branch out of the image."""

    def __init__(self, linked: elf.LinkedImage, base: int) -> None:
        self.content, self.base, self.registers = linked.content, base, {}

    def word(self, address: int, form: str = "<I") -> int:
        return struct.unpack_from(form, self.content, address - self.base)[0]

    def run(self, address: int) -> int:
        """x0 at `ret`, or the address that a `br` leaves to."""
        for _ in range(50):
            instruction = self.word(address)
            target, source = instruction & 31, instruction >> 5 & 31
            immediate = instruction >> 10 & 0xFFF
            if instruction & 0x9F000000 == 0x90000000:
                self.registers[target] = arm_page(instruction, address)
            elif instruction & 0xFFC00000 == 0x91000000:
                self.registers[target] = self.registers[source] + immediate
            elif instruction & 0xFFC00000 == 0xF9400000:
                self.registers[target] = self.word(self.registers[source] + 8 * immediate, "<Q")
            elif instruction & 0xFC000000 == 0x14000000:
                address += 4 * signed(instruction & 0x3FFFFFF, 26)
                continue
            elif instruction & 0xFFFFFC1F == 0xD61F0000:
                return self.registers[source]
            elif instruction == 0xD65F03C0:
                return self.registers[0]
            else:
                raise AssertionError(f"unexpected instruction {instruction:#x}")
            address += 4
        raise AssertionError("no end")


ARM_IR = """
@hidden = internal global i64 5
@seen = global i64 6
@words = internal constant [3 x i64] [i64 11, i64 22, i64 33]
define ptr @address_of_hidden() { ret ptr @hidden }
define ptr @address_of_seen() { ret ptr @seen }
define i64 @second_word(i64 %i) {
  %at = getelementptr i64, ptr @words, i64 1
  %x = load volatile i64, ptr %at
  ret i64 %x
}
declare void @far()
define void @leave() { tail call void @far()
  ret void }
define void @store(i64 %x) { store i64 %x, ptr @hidden
  ret void }
"""


def test_aarch64_objects_are_linked():
    linked = elf.Object(compile_ir(ARM_IR, ARM_TRIPLE)).link(BASE, {"far": 0x5555_0000_1230}.get)
    addresses = linked.addresses
    assert ArmWalk(linked, BASE).run(addresses["address_of_hidden"]) == addresses["hidden"]
    assert ArmWalk(linked, BASE).run(addresses["address_of_seen"]) == addresses["seen"]
    assert ArmWalk(linked, BASE).run(addresses["second_word"]) == 22
    assert ArmWalk(linked, BASE).run(addresses["leave"]) == 0x5555_0000_1230
    assert struct.unpack_from("<Q", linked.content, addresses["hidden"] - BASE)[0] == 5


def test_objects_that_call_each_other_are_linked() -> None:
    parts = [
        f"""
        @counter = internal global i64 {start}
        define i64 @next() {{
          %old = load i64, ptr @counter
          %new = add i64 %old, 1
          store i64 %new, ptr @counter
          ret i64 %new
        }}"""
        for start in (10, 20)
    ]
    main = """
    declare i64 @next.0()
    declare i64 @next.1()
    declare double @cos(double)
    define i64 @next() {
      %a = call i64 @next.0()
      %b = call i64 @next.1()
      %c = mul i64 %a, 1000
      %d = add i64 %c, %b
      ret i64 %d
    }
    define double @cosine(double %x) {
      %y = call double @cos(double %x)
      ret double %y
    }"""
    library = elf.load(*(compile_ir(ir) for ir in (*parts, main)))
    call = function(library, "next")
    assert [call(), call()] == [11021, 12022]
    assert function(library, "cosine", ctypes.c_double, ctypes.c_double)(1.0) == math.cos(1.0)
    with pytest.raises(ProgramFileError, match=re.escape("next.2")):
        elf.load(compile_ir(parts[0]), compile_ir(main.replace("next.1", "next.2")))


def test_objects_for_different_machines_are_refused() -> None:
    ir = "define i64 @one() { ret i64 1 }"
    with pytest.raises(ProgramFileError, match="different machines"):
        elf.load(compile_ir(ir, ARM_TRIPLE), compile_ir(ir, X86_TRIPLE))


def test_a_name_that_nobody_has_is_refused():
    ir = "declare void @no_such_function()\ndefine void @f() { call void @no_such_function()\nret void }"
    with pytest.raises(ProgramFileError, match="no_such_function"):
        elf.load(compile_ir(ir))


def test_a_weak_name_that_nobody_has_is_null():
    ir = "@nobody_has_it = extern_weak global i8\ndefine ptr @f() { ret ptr @nobody_has_it }"
    library = elf.load(compile_ir(ir))
    assert function(library, "f", ctypes.c_void_p)() is None


@pytest.mark.parametrize(
    "ir",
    [
        "@t = thread_local global i64 3\ndefine i64 @f() { %x = load i64, ptr @t\nret i64 %x }",
        "define void @f() { ret void }\n@llvm.global_ctors = appending global [1 x {i32, ptr, ptr}]"
        " [{i32, ptr, ptr} {i32 65535, ptr @f, ptr null}]",
        "@c = common global i64 0\ndefine i64 @f() { %x = load i64, ptr @c\nret i64 %x }",
        "define ptr @r() { ret ptr null }\n@f = ifunc void (), ptr @r",
    ],
    ids=["thread-local", "constructor", "common", "ifunc"],
)
def test_what_the_loader_does_not_support_is_refused(ir):
    with pytest.raises(ProgramFileError, match=r"support|loader"):
        elf.load(compile_ir(ir))


def test_an_unknown_relocation_is_refused_by_number():
    ir = "declare i64 @far()\ndefine i64 @f() { %x = call i64 @far()\nret i64 %x }"
    content = bytearray(compile_ir(ir, X86_TRIPLE))
    # An entry is offset, type, symbol, addend; the call is of type 4 with addend -4.
    entry = content.index(struct.pack("<q", -4)) - 16
    assert struct.unpack_from("<I", content, entry + 8) == (4,)
    struct.pack_into("<I", content, entry + 8, 199)
    with pytest.raises(ProgramFileError, match="relocation 199 of `far`"):
        elf.Object(content).link(BASE, {"far": BASE}.get)


def test_damaged_headers_are_refused():
    content = compile_ir(MIXED)
    for damaged in (b"", b"\x7fELF", b"MZ" + content[2:], content[:16] + b"\3" + content[17:]):
        with pytest.raises(ProgramFileError):
            elf.load(damaged)


@pytest.mark.parametrize("triple", [X86_TRIPLE, ARM_TRIPLE])
def test_objects_with_hostile_tables_link_or_are_refused(triple):
    """Words of the headers, the section table and the relocations are replaced; nothing is run."""
    content = compile_ir(MIXED, triple)
    random = np.random.default_rng(7)
    section_table = struct.unpack_from("<Q", content, 40)[0]
    places = [*range(16, 64, 2), *range(section_table, len(content) - 8, 4)]
    outcomes = {"linked": 0, "refused": 0}
    values = [0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1, len(content), 7]
    for _ in range(600):
        damaged = bytearray(content)
        for at in random.choice(places, 1 + int(random.integers(3))):
            format = random.choice(["<Q", "<I"])
            value = values[random.integers(len(values))] & (2**64 - 1 if format == "<Q" else 2**32 - 1)
            struct.pack_into(format, damaged, min(int(at), len(damaged) - 8), value)
        try:
            elf.Object(damaged).link(BASE, lambda _: BASE)
            outcomes["linked"] += 1
        except ProgramFileError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 50


def test_truncated_objects_are_refused_at_every_length():
    content = compile_ir("define i64 @f() { ret i64 3 }")
    for length in range(len(content)):
        with pytest.raises(ProgramFileError):
            elf.load(content[:length])


def test_an_unknown_symbol_of_a_library_is_refused(mixed):
    with pytest.raises(ProgramFileError, match="no_such_symbol"):
        mixed.address("no_such_symbol")
