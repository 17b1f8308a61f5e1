"""Small programs written by hand as LLVM IR, for the tests of the runtime."""

from __future__ import annotations

import functools
from string import Template
from typing import Any

import llvmlite.binding as llvm

from tilewright.runtime.manifest import Manifest
from tilewright.runtime.program import Program
from tilewright.targets.cpu.support import support_object

# Each chunk does CHUNK elements; the last one may be short.
_CHUNK = 256

_LOAD_BUFFER = Template("""
  %${name}_at = getelementptr ptr, ptr %buffers, i64 $index
  %$name = load ptr, ptr %${name}_at
""")

_ADD = Template("""
%job = type { ptr, i64 }

define internal void @body(ptr %context, i64 %chunk, i32 %worker) {
entry:
  %buffers = load ptr, ptr %context
  %size_at = getelementptr i8, ptr %context, i64 8
  %size = load i64, ptr %size_at
  $load_x
  $load_y
  $load_z
  %begin = mul i64 %chunk, $chunk
  %full_end = add i64 %begin, $chunk
  %end = call i64 @llvm.smin.i64(i64 %full_end, i64 %size)
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %element ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %element, label %done
element:
  %x_at_i = getelementptr float, ptr %x, i64 %i
  %y_at_i = getelementptr float, ptr %y, i64 %i
  %z_at_i = getelementptr float, ptr %z, i64 %i
  %a = load float, ptr %x_at_i
  %b = load float, ptr %y_at_i
  %c = fadd float %a, %b
  store float %c, ptr %z_at_i
  %next = add i64 %i, 1
  br label %loop
done:
  ret void
}
declare i64 @llvm.smin.i64(i64, i64)

define i32 @tw_main(ptr %buffers, ptr %arena, ptr %parallel, i32 %threads) {
  %job = alloca %job
  store ptr %buffers, ptr %job
  %size_at = getelementptr i8, ptr %job, i64 8
  store i64 $size, ptr %size_at
  call void %parallel(ptr @body, ptr %job, i64 $chunks, i32 %threads)
  ret i32 0
}
""")


def load_buffer(name: str, index: int) -> str:
    return _LOAD_BUFFER.substitute(name=name, index=index)


@functools.cache
def compile_ir(ir: str) -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        opt=1, reloc="pic", codemodel="small"
    )
    module = llvm.parse_assembly(ir)
    module.verify()
    return machine.emit_object(module)


def make_manifest(name: str = "test", **fields: Any) -> Manifest:
    return Manifest(name=name, triple=llvm.get_process_triple(), cpu="generic", features=(), **fields)


def make_program(ir: str, constants: tuple[Any, ...] = (), **fields: Any) -> Program:
    return Program(make_manifest(**fields), compile_ir(ir), support_object(), constants)


def add_ir(size: int) -> str:
    """z = x + y over `size` f32, in parallel chunks."""
    return _ADD.substitute(
        load_x=load_buffer("x", 0),
        load_y=load_buffer("y", 1),
        load_z=load_buffer("z", 2),
        chunk=_CHUNK,
        chunks=-(-size // _CHUNK),
        size=size,
    )
