"""Peak rates of this host, measured with small native programs: multiply-adds, copying, fork-join, calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import median
from string import Template
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.dtypes import DType
    from tilewright.machines.machine import Machine
    from tilewright.runtime.program import Program

_CHAINS = 12  # more than latency times issue width (4 x 2), fewer than the 16 registers of AVX2
_FMA_ROUNDS = 40_000
_COPY_CHUNK_BYTES = 1 << 17
_BEST_OF = 9
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class Timing:
    """Seconds of single calls, from blocks of calls."""

    median_s: float
    best_s: float


def time_calls(function: Callable[[], object], seconds: float = 0.05, least: int = 5) -> Timing:
    """Call a function until `seconds` have passed, at least `least` times after two calls to warm up."""
    function()
    function()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return Timing(median(times), min(times))


_FMA = Template("""
declare $vector @llvm.fma.$suffix($vector, $vector, $vector)

define internal void @body(ptr %buffers, i64 %chunk, i32 %worker) {
entry:
  %out = load ptr, ptr %buffers
  %seed = load $element, ptr %out
  %one = insertelement $vector poison, $element %seed, i32 0
  %factor = shufflevector $vector %one, $vector poison, <$lanes x i32> zeroinitializer
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  $phis
  $multiply_adds
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, $rounds
  br i1 %more, label %loop, label %done
done:
  $sums
  %value = extractelement $vector %s$last, i32 0
  %slot = getelementptr $element, ptr %out, i64 %chunk
  store $element %value, ptr %slot
  ret void
}

define i32 @tw_main(ptr %buffers, ptr %arena, ptr %parallel, i32 %threads) {
  call void %parallel(ptr @body, ptr %buffers, i64 $chunks, i32 %threads)
  ret i32 0
}
""")

_COPY = Template("""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal void @body(ptr %buffers, i64 %chunk, i32 %worker) {
  %x = load ptr, ptr %buffers
  %y_slot = getelementptr ptr, ptr %buffers, i64 1
  %y = load ptr, ptr %y_slot
  %offset = mul i64 %chunk, $chunk_bytes
  %from = getelementptr i8, ptr %x, i64 %offset
  %to = getelementptr i8, ptr %y, i64 %offset
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 $chunk_bytes, i1 false)
  ret void
}

define i32 @tw_main(ptr %buffers, ptr %arena, ptr %parallel, i32 %threads) {
  call void %parallel(ptr @body, ptr %buffers, i64 $chunks, i32 %threads)
  ret i32 0
}
""")

_EMPTY = """
define internal void @body(ptr %buffers, i64 %chunk, i32 %worker) {
  ret void
}

define i32 @tw_main(ptr %buffers, ptr %arena, ptr %parallel, i32 %threads) {
  %chunks = zext i32 %threads to i64
  call void %parallel(ptr @body, ptr %buffers, i64 %chunks, i32 %threads)
  ret i32 0
}
"""


def _fma_text(machine: Machine, dtype: DType, chunks: int) -> str:
    lanes, element = machine.lanes(dtype), {32: "float", 64: "double"}[dtype.bits]
    vector = f"<{lanes} x {element}>"
    chains = range(_CHAINS)
    call = f"call {vector} @llvm.fma.v{lanes}f{dtype.bits}"
    phis = [f"%a{n} = phi {vector} [ %factor, %entry ], [ %b{n}, %loop ]" for n in chains]
    steps = [f"%b{n} = {call}({vector} %a{n}, {vector} %factor, {vector} %factor)" for n in chains]
    sums = [f"%s{n} = fadd {vector} %b{n}, {f'%s{n - 1}' if n else '%factor'}" for n in chains]
    return _FMA.substitute(
        vector=vector,
        suffix=f"v{lanes}f{dtype.bits}",
        element=element,
        lanes=lanes,
        phis="\n  ".join(phis),
        multiply_adds="\n  ".join(steps),
        sums="\n  ".join(sums),
        rounds=_FMA_ROUNDS,
        last=_CHAINS - 1,
        chunks=chunks,
    )


def _program(name: str, text: str, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> Program:
    from tilewright.runtime.manifest import Manifest
    from tilewright.runtime.program import Program
    from tilewright.targets.cpu.codegen import compile_object, triple_of
    from tilewright.targets.cpu.host import host_machine
    from tilewright.targets.cpu.support import support_object

    machine = host_machine()
    triple = triple_of(machine)
    object_bytes = compile_object(f'target triple = "{triple}"\n{text}', machine)
    manifest = Manifest(
        name=name, triple=triple, cpu=machine.llvm_cpu, features=machine.llvm_features, inputs=inputs, outputs=outputs
    )
    return Program(manifest, object_bytes, support_object(triple))


@dataclass(frozen=True)
class MultiplyAdds:
    """A call that multiplies and adds vectors held in registers, and how many operations those are."""

    call: Callable[[], Any]
    flops: float


@cache
def fma_peak(dtype_name: str, threads: int) -> float:
    """Multiply and add operations per second of `threads` threads on `f32` or `f64` vectors held in registers."""
    work = multiply_adds(dtype_name, threads)
    return work.flops / time_calls(work.call, 0.1, _BEST_OF).best_s


def multiply_adds(dtype_name: str, threads: int) -> MultiplyAdds:
    """Work on `f32` or `f64` vectors for `threads` threads."""
    import numpy as np

    from tilewright.dtypes import by_name
    from tilewright.runtime.manifest import ArraySpec
    from tilewright.targets.cpu.host import host_machine

    dtype, machine = by_name(dtype_name), host_machine()
    chunks = 4 * threads
    spec = ArraySpec("y", (chunks,), dtype.name)
    program = _program("fma_peak", _fma_text(machine, dtype, chunks), (), (spec,))
    y = np.zeros(chunks, dtype.numpy)
    flops = 2.0 * machine.lanes(dtype) * _CHAINS * _FMA_ROUNDS * chunks
    return MultiplyAdds(lambda: program(out=y, threads=threads), flops)


@dataclass(frozen=True)
class Copy:
    """A call that copies one array to another, and the bytes that it reads and writes."""

    call: Callable[[], Any]
    nbytes: float


def copy_bandwidth(footprint_bytes: int, threads: int) -> float:
    """Bytes read and written per second by a copy of `copy_of`, at its best."""
    copy = copy_of(footprint_bytes, threads)
    return copy.nbytes / time_calls(copy.call, 0.1, _BEST_OF).best_s


def copy_of(footprint_bytes: int, threads: int) -> Copy:
    """A copy of one array to another, both together about `footprint_bytes`."""
    import numpy as np

    from tilewright.runtime.manifest import ArraySpec

    # A small copy is split as finely as it takes to give every thread a part.
    chunk_bytes = max(4096, min(_COPY_CHUNK_BYTES, footprint_bytes // (2 * threads)) // 4096 * 4096)
    chunks = max(1, footprint_bytes // (2 * chunk_bytes))
    shape = (chunks * chunk_bytes,)
    text = _COPY.substitute(chunk_bytes=chunk_bytes, chunks=chunks)
    program = _program("copy", text, (ArraySpec("x", shape, "u8"),), (ArraySpec("y", shape, "u8"),))
    # From the start of a page each: the C library's copy is up to 20 times as long on Zen 3 for some distances.
    memory = [np.empty(shape[0] + _PAGE_BYTES, np.uint8) for _ in range(2)]
    x, y = (each[-each.ctypes.data % _PAGE_BYTES :][: shape[0]] for each in memory)
    x[:], y[:] = 1, 0
    return Copy(lambda: program(x, out=y, threads=threads), 2.0 * shape[0])


def fork_join_s(threads: int) -> float:
    """Seconds that a parallel region over hot threads adds to a call."""
    program = _program("empty", _EMPTY, (), ())
    alone, together = program.function(1), program.function(threads)
    if alone is None or together is None:
        return time_calls(lambda: program(threads=threads)).median_s - time_calls(lambda: program(threads=1)).median_s
    return max(0.0, time_calls(together).median_s - time_calls(alone).median_s)


def call_overhead_s() -> dict[str, float]:
    """Seconds of a call that adds two arrays of four: through `tw.jit`, the program, and NumPy for comparison."""
    import numpy as np

    from tilewright.api.jit import jit
    from tilewright.options import options

    def add(a: Any, b: Any) -> Any:
        return a + b

    x = np.ones(4, np.float32)
    with options(cache=False):
        added = jit(add)
        program = added.lower(x, x).compile("cpu").executable.program
        calls = {"jit": lambda: added(x, x), "program": lambda: program(x, x), "numpy": lambda: x + x}
        return {name: _per_call_s(call) for name, call in calls.items()}


def _per_call_s(call: Callable[[], object], batch: int = 200) -> float:
    """Of blocks of calls, since the clock itself costs as much as one."""

    def block() -> None:
        for _ in range(batch):
            call()

    return time_calls(block, 0.03).median_s / batch
