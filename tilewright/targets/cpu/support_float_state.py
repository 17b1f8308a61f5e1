"""LLVM IR of the floating-point state: programs run with IEEE's, whatever another library has set on the thread.

A library may have subnormal numbers flushed to zero, or the rounding changed, on the threads that it calls from; the
pool's workers would not know. `enter_float_state` sets rounding to nearest, subnormal numbers and no traps, and gives
the state before; `leave_float_state` puts that back.
"""

from __future__ import annotations

# MXCSR: all exceptions masked, round to nearest, no flushing. Its six low bits only record what has happened.
# Intel SDM volume 1, section 10.2.3.
_X86 = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

define internal i64 @enter_float_state() {
entry:
  %word = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %word)
  %before = load i32, ptr %word, align 4
  %control = and i32 %before, 65472
  %usual = icmp eq i32 %control, 8064
  br i1 %usual, label %end, label %set
set:
  store i32 8064, ptr %word, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %word)
  br label %end
end:
  %wide = zext i32 %before to i64
  ret i64 %wide
}

define internal void @leave_float_state(i64 %before) {
entry:
  %word = alloca i32, align 4
  %before_32 = trunc i64 %before to i32
  %control = and i32 %before_32, 65472
  %usual = icmp eq i32 %control, 8064
  br i1 %usual, label %end, label %set
set:
  store i32 %before_32, ptr %word, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %word)
  br label %end
end:
  ret void
}
"""

# FPCR: zero is round to nearest, no flushing, no traps. Arm Architecture Reference Manual, "FPCR".
_AARCH64 = """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)

define internal i64 @enter_float_state() {
entry:
  %before = call i64 @llvm.aarch64.get.fpcr()
  %usual = icmp eq i64 %before, 0
  br i1 %usual, label %end, label %set
set:
  call void @llvm.aarch64.set.fpcr(i64 0)
  br label %end
end:
  ret i64 %before
}

define internal void @leave_float_state(i64 %before) {
entry:
  %usual = icmp eq i64 %before, 0
  br i1 %usual, label %end, label %set
set:
  call void @llvm.aarch64.set.fpcr(i64 %before)
  br label %end
end:
  ret void
}
"""


def float_state_ir(architecture: str) -> str:
    """The IR for `x86_64` or `aarch64`."""
    return _X86 if architecture == "x86_64" else _AARCH64
