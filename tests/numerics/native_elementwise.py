"""Compile emitters of scalar functions into loops over arrays, for tests that run them or read their assembly."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

Body = Callable[[ir.IRBuilder, list[ir.Value]], ir.Value]

# (triple, cpu, features) of the machines on which code must not call a library.
INSPECTED_MACHINES = {
    "avx2": ("x86_64-unknown-linux-gnu", "x86-64", "+avx2,+fma,+f16c"),
    "avx512": ("x86_64-unknown-linux-gnu", "x86-64", "+avx512f,+avx512dq,+avx512vl,+avx512bw"),
    "neon": ("aarch64-unknown-linux-gnu", "generic", "+neon"),
}


def host_features() -> list[str]:
    """LLVM's names of what this processor has."""
    return [name for name, on in llvm.get_host_cpu_features().items() if on]


def inspected_features(machine: str) -> list[str]:
    """The features of one of the inspected machines."""
    return [name.removeprefix("+") for name in INSPECTED_MACHINES[machine][2].split(",")]


@dataclass
class ElementwiseModule:
    """Functions `name(result pointer, operand pointers..., element count)`, each a loop by `lanes` elements a step."""

    module: ir.Module = field(default_factory=ir.Module)
    names: list[str] = field(default_factory=list)

    def add(self, name: str, operands: Sequence[ir.Type], result: ir.Type, lanes: int, body: Body) -> None:
        """`operands` and `result` are element types in memory; `body` sees loaded values of `lanes` lanes."""
        pointer, word = ir.PointerType(), ir.IntType(64)
        signature = ir.FunctionType(ir.VoidType(), [pointer] * (1 + len(operands)) + [word])
        function = ir.Function(self.module, signature, name)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        loop, done = function.append_basic_block("loop"), function.append_basic_block("done")
        entry = builder.block
        builder.branch(loop)
        builder.position_at_end(loop)
        index = builder.phi(word)
        index.add_incoming(word(0), entry)
        values = []
        for element, base in zip(operands, function.args[1:-1], strict=True):
            address = builder.gep(base, [index], source_etype=element)
            loaded = builder.load(address, typ=element if lanes == 1 else ir.VectorType(element, lanes))
            loaded.align = 1
            values.append(loaded)
        stored = builder.store(body(builder, values), builder.gep(function.args[0], [index], source_etype=result))
        stored.align = 1
        following = builder.add(index, word(lanes))
        index.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_unsigned("<", following, function.args[-1]), loop, done)
        builder.position_at_end(done)
        builder.ret_void()
        self.names.append(name)

    def assembly(self, machine: str) -> str:
        triple, cpu, features = INSPECTED_MACHINES[machine]
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        self.module.triple = triple
        target = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=2)
        return target.emit_assembly(llvm.parse_assembly(str(self.module)))

    def compile(self) -> Compiled:
        """Native code for this machine."""
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
        )
        jit = llvm.create_lljit_compiler(machine)
        library = llvm.JITLibraryBuilder().add_ir(str(self.module))
        for name in self.names:
            library.export_symbol(name)
        tracker = library.link(jit, "elementwise")
        return Compiled((jit, tracker), {name: tracker[name] for name in self.names})


@dataclass(frozen=True)
class Compiled:
    """Native functions by name; `owner` keeps their code alive."""

    owner: Any
    addresses: dict[str, int]

    def call(self, name: str, operands: Sequence[np.ndarray], result: np.ndarray) -> np.ndarray:
        """Run over contiguous arrays whose length is a multiple of the function's lanes, into `result`."""
        count = len(operands[0])
        pointers = [array.ctypes.data for array in (result, *operands)]
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers), ctypes.c_uint64)(self.addresses[name])
        function(*pointers, count)
        return result


def ulp_errors(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The distance of float32 results from exact values given in float64, in units in the last place of the latter.

    An infinity counts as the first power of two beyond the largest number; NaN matches NaN only.
    """
    beyond = 2.0**128
    result, wanted = (np.clip(np.asarray(v, np.float64), -beyond, beyond) for v in (got, exact))
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log2(np.maximum(np.abs(wanted), 2.0**-126)))
    unit = 2.0 ** (np.minimum(exponent, 127) - 23)
    error = np.abs(result - wanted) / unit
    error = np.where(np.isnan(result) & np.isnan(wanted), 0.0, error)
    return np.where(np.isnan(error), np.inf, error)
