"""Small programs written by hand as LLVM IR, for the tests of the runtime."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable
from string import Template
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from tilewright.runtime.manifest import Alias, ArraySpec, Manifest, place_constants
from tilewright.runtime.program import Program
from tilewright.targets.cpu.support import support_object

X = np.array([1, 2, 3, 4], np.float32)
Y = np.array([0.5, -1, 7, 1e30], np.float32)

HOST_TRIPLE = llvm.get_process_triple()
ADD_CHUNK = 256


@functools.cache
def compile_ir(ir: str, triple: str = HOST_TRIPLE) -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=1, reloc="pic", codemodel="small")
    module = llvm.parse_assembly(f'target triple = "{triple}"\n{ir}')
    module.verify()
    return machine.emit_object(module)


def spec(name: str, *shape: int, dtype: str = "f32") -> ArraySpec:
    return ArraySpec(name, shape, dtype)


def make_manifest(name: str = "test", **fields: Any) -> Manifest:
    return Manifest(**({"name": name, "triple": HOST_TRIPLE, "cpu": "generic", "features": ()} | fields))


def make_program(ir: str, constants: tuple[Any, ...] = (), **fields: Any) -> Program:
    sizes = [constant.nbytes if hasattr(constant, "nbytes") else len(constant) for constant in constants]
    manifest = make_manifest(**fields, constants=place_constants(sizes))
    return Program(manifest, compile_ir(ir), support_object(), constants)


_BUFFER = Template("""
  %${name}_slot = getelementptr ptr, ptr %buffers, i64 $index
  %$name = load ptr, ptr %${name}_slot
""")


def _buffers(*names: str) -> str:
    return "".join(_BUFFER.substitute(name=name, index=index) for index, name in enumerate(names))


_ADD = Template("""
declare i64 @llvm.smin.i64(i64, i64)

define internal void @body(ptr %context, i64 %chunk, i32 %worker) {
entry:
  %buffers = load ptr, ptr %context
  $buffers
  %begin = mul i64 %chunk, $chunk
  %full_end = add i64 %begin, $chunk
  %end = call i64 @llvm.smin.i64(i64 %full_end, i64 $size)
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %element ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %element, label %done
element:
  %x_at = getelementptr float, ptr %x, i64 %i
  %y_at = getelementptr float, ptr %y, i64 %i
  %z_at = getelementptr float, ptr %z, i64 %i
  %a = load float, ptr %x_at
  %b = load float, ptr %y_at
  %c = fadd float %a, %b
  store float %c, ptr %z_at
  %next = add i64 %i, 1
  br label %loop
done:
  ret void
}

define i32 @tw_main(ptr %buffers, ptr %arena, ptr %parallel, i32 %threads) {
  %context = alloca ptr
  store ptr %buffers, ptr %context
  call void %parallel(ptr @body, ptr %context, i64 $chunks, i32 %threads)
  ret i32 0
}
""")


def add_ir(size: int) -> str:
    """Buffer 2 = buffer 0 + buffer 1 over `size` f32, in parallel chunks of 256."""
    return _ADD.substitute(buffers=_buffers("x", "y", "z"), chunk=ADD_CHUNK, chunks=-(-size // ADD_CHUNK), size=size)


def make_add(size: int, **fields: Any) -> Program:
    arrays = {"inputs": (spec("x", size), spec("y", size)), "outputs": (spec("z", size),)}
    return make_program(add_ir(size), **(arrays | fields))


def make_in_place_add() -> Program:
    """z = x + y where z takes over the memory of x."""
    return make_add(4, aliases=(Alias(output=0, input=0),))


_COPY = Template("""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define i32 @tw_main(ptr %buffers, ptr %arena, ptr %parallel, i32 %threads) {
  $buffers
  $copies
  ret i32 0
}
""")


def copy_ir(*sizes: int) -> str:
    """Copy each of the inputs, of these sizes in bytes, to the output of the same number."""
    names = [f"x{i}" for i in range(len(sizes))] + [f"y{i}" for i in range(len(sizes))]
    copies = "\n".join(
        f"call void @llvm.memcpy.p0.p0.i64(ptr %y{i}, ptr %x{i}, i64 {size}, i1 false)" for i, size in enumerate(sizes)
    )
    return _COPY.substitute(buffers=_buffers(*names), copies=copies)


def make_copy(*arrays: ArraySpec, **fields: Any) -> Program:
    outputs = tuple(ArraySpec(f"{array.name}_copy", array.shape, array.dtype) for array in arrays)
    return make_program(copy_ir(*(array.nbytes for array in arrays)), inputs=arrays, outputs=outputs, **fields)


STATUS_IR = """
define i32 @tw_main(ptr %buffers, ptr %arena, ptr %parallel, i32 %threads) {
  %x = load ptr, ptr %buffers
  %status = load i32, ptr %x
  ret i32 %status
}
"""
"""Returns the first element of the i32 input as the status."""

THREADS_IR = """
define i32 @tw_main(ptr %buffers, ptr %arena, ptr %parallel, i32 %threads) {
  %y = load ptr, ptr %buffers
  %arena_number = ptrtoint ptr %arena to i64
  %threads_64 = sext i32 %threads to i64
  store i64 %threads_64, ptr %y
  %second = getelementptr i64, ptr %y, i64 1
  store i64 %arena_number, ptr %second
  ret i32 0
}
"""
"""Writes the number of threads and the arena's address to the i64[2] output."""

_RECORD = Template("""
declare i32 @usleep(i32)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal void @body(ptr %context, i64 %chunk, i32 %worker) {
  %buffers = load ptr, ptr %context
  %arena_at = getelementptr ptr, ptr %context, i64 1
  %arena = load ptr, ptr %arena_at
  $buffers
  %worker_64 = zext i32 %worker to i64
  %scratch_offset = mul i64 %worker_64, 64
  %scratch = getelementptr i8, ptr %arena, i64 %scratch_offset
  %was_taken = atomicrmw xchg ptr %scratch, i32 1 seq_cst
  call i32 @usleep(i32 $sleep_us)
  %run_at = getelementptr i32, ptr %runs, i64 %chunk
  atomicrmw add ptr %run_at, i32 1 seq_cst
  %worker_at = getelementptr i32, ptr %workers, i64 %chunk
  store i32 %worker, ptr %worker_at
  %clash_at = getelementptr i32, ptr %clashes, i64 %chunk
  store i32 %was_taken, ptr %clash_at
  store atomic i32 0, ptr %scratch seq_cst, align 4
  ret void
}

define i32 @tw_main(ptr %buffers, ptr %arena, ptr %parallel, i32 %threads) {
  %context = alloca [2 x ptr]
  $buffers
  call void @llvm.memset.p0.i64(ptr %runs, i8 0, i64 $bytes, i1 false)
  %threads_64 = zext i32 %threads to i64
  %arena_size = mul i64 %threads_64, 64
  call void @llvm.memset.p0.i64(ptr %arena, i8 0, i64 %arena_size, i1 false)
  store ptr %buffers, ptr %context
  %second = getelementptr ptr, ptr %context, i64 1
  store ptr %arena, ptr %second
  call void %parallel(ptr @body, ptr %context, i64 $given, i32 %threads)
  ret i32 0
}
""")


def make_record(chunks: int, sleep_us: int = 0, brief: bool = False) -> Program:
    """Returns i32[chunks] each: how often each chunk ran, on which worker, and whether that worker was busy then."""
    ir = _RECORD.substitute(
        buffers=_buffers("runs", "workers", "clashes"),
        chunks=chunks,
        bytes=4 * chunks,
        sleep_us=sleep_us,
        given=-chunks if brief else chunks,
    )
    outputs = tuple(spec(name, chunks, dtype="i32") for name in ("runs", "workers", "clashes"))
    return make_program(ir, inputs=(), outputs=outputs, worker_scratch_bytes=64)


_MEET = Template("""
declare i32 @usleep(i32)

define internal void @body(ptr %context, i64 %chunk, i32 %worker) {
entry:
  %workers = load ptr, ptr %context
  %count_at = getelementptr ptr, ptr %context, i64 1
  atomicrmw add ptr %count_at, i64 1 seq_cst
  br label %look
look:
  %round = phi i64 [ 0, %entry ], [ %next, %wait ]
  %count = load atomic i64, ptr %count_at seq_cst, align 8
  %complete = icmp eq i64 %count, $chunks
  br i1 %complete, label %met, label %check
check:
  %late = icmp ugt i64 %round, 50000
  br i1 %late, label %end, label %wait
wait:
  call i32 @usleep(i32 200)
  %next = add i64 %round, 1
  br label %look
met:
  %worker_at = getelementptr i32, ptr %workers, i64 %chunk
  store i32 %worker, ptr %worker_at
  br label %end
end:
  ret void
}

define i32 @tw_main(ptr %buffers, ptr %arena, ptr %parallel, i32 %threads) {
  %context = alloca [2 x ptr]
  %workers = load ptr, ptr %buffers
  call void @llvm.memset.p0.i64(ptr %workers, i8 -1, i64 $bytes, i1 false)
  store ptr %workers, ptr %context
  %count_at = getelementptr ptr, ptr %context, i64 1
  store i64 0, ptr %count_at
  call void %parallel(ptr @body, ptr %context, i64 $chunks, i32 %threads)
  ret i32 0
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
""")


def make_meeting(chunks: int) -> Program:
    """Each chunk waits until all have begun. Returns i32[chunks]: who ran each; -1 where some never began."""
    ir = _MEET.substitute(chunks=chunks, bytes=4 * chunks)
    return make_program(ir, inputs=(), outputs=(spec("workers", chunks, dtype="i32"),))


_NESTED = Template("""
define internal void @inner(ptr %context, i64 %chunk, i32 %worker) {
  %slot = getelementptr i32, ptr %context, i64 %chunk
  %tag = add i32 %worker, 1
  atomicrmw add ptr %slot, i32 %tag seq_cst
  ret void
}

define internal void @outer(ptr %context, i64 %chunk, i32 %worker) {
  %y = load ptr, ptr %context
  %parallel_at = getelementptr ptr, ptr %context, i64 1
  %parallel = load ptr, ptr %parallel_at
  %threads_at = getelementptr ptr, ptr %context, i64 2
  %threads = load i32, ptr %threads_at
  %first = mul i64 %chunk, $inner
  %row = getelementptr i32, ptr %y, i64 %first
  call void %parallel(ptr @inner, ptr %row, i64 $inner, i32 %threads)
  ret void
}

define i32 @tw_main(ptr %buffers, ptr %arena, ptr %parallel, i32 %threads) {
  %context = alloca [3 x ptr]
  %third = getelementptr ptr, ptr %context, i64 2
  store i32 %threads, ptr %third
  %y = load ptr, ptr %buffers
  store ptr %y, ptr %context
  %second = getelementptr ptr, ptr %context, i64 1
  store ptr %parallel, ptr %second
  call void @llvm.memset.p0.i64(ptr %y, i8 0, i64 $bytes, i1 false)
  call void %parallel(ptr @outer, ptr %context, i64 $outer, i32 %threads)
  ret i32 0
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
""")


def make_nested(outer: int, inner: int) -> Program:
    """Returns i32[outer, inner]: 1 + the worker that ran each inner chunk, once."""
    ir = _NESTED.substitute(outer=outer, inner=inner, bytes=4 * outer * inner)
    return make_program(ir, inputs=(), outputs=(spec("y", outer, inner, dtype="i32"),))


def in_child(function: Callable[[], bool], timeout_s: float = 20.0) -> int:
    """The exit status of a forked child that ran `function`; a child that hangs is killed and gives -SIGKILL."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if function() else 2
        finally:
            os._exit(status)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
