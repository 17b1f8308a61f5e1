"""LLVM IR of `tw_poll`: whether the call on this thread is to end, since a signal handler of Python has raised.

Python runs signal handlers on its main thread, between instructions of the interpreter: during a native call there are
none. So native code asks here, in loops and between chunks. Every 50 ms the main thread takes the interpreter's lock
and lets pending handlers run; if one raises, as that of Ctrl-C does, the exception stays set and the call unwinds:
later chunks are skipped, loops end, and `tw_run` returns `STATUS_INTERRUPTED`. On other threads nothing is ever
pending.
"""

from __future__ import annotations

from string import Template

from tilewright.runtime import abi

# Linux's CLOCK_MONOTONIC_COARSE: some nanoseconds to read, a resolution of 1 to 4 ms.
_COARSE_CLOCK = 6
_PERIOD_NS = 50_000_000

_IR = Template("""
@tw_signals = global { i64, i64, i32, i32 } zeroinitializer, align 8

declare i64 @pthread_self()
declare i32 @PyGILState_Check()
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare i32 @PyErr_CheckSignals()

define internal i1 @is_main_thread() alwaysinline {
  %main_at = getelementptr i8, ptr @tw_signals, i64 $signals_main_thread
  %main = load i64, ptr %main_at, align 8
  %self = call i64 @pthread_self()
  %same = icmp eq i64 %main, %self
  ret i1 %same
}

; Let pending handlers of Python run; whether one raised.
define internal i1 @run_handlers() noinline {
entry:
  %held_32 = call i32 @PyGILState_Check()
  %held = icmp ne i32 %held_32, 0
  br i1 %held, label %with_lock, label %take_lock
take_lock:
  %lock = call i32 @PyGILState_Ensure()
  %taken_result = call i32 @PyErr_CheckSignals()
  call void @PyGILState_Release(i32 %lock)
  br label %end
with_lock:
  ; A program that was taken to be short runs on: other threads get a turn too.
  %thread = call ptr @PyEval_SaveThread()
  call void @PyEval_RestoreThread(ptr %thread)
  %held_result = call i32 @PyErr_CheckSignals()
  br label %end
end:
  %result = phi i32 [ %taken_result, %take_lock ], [ %held_result, %with_lock ]
  %raised = icmp ne i32 %result, 0
  ret i1 %raised
}

define internal i1 @tw_poll() {
entry:
  %time = alloca { i64, i64 }, align 8
  %is_main = call i1 @is_main_thread()
  br i1 %is_main, label %look, label %no
look:
  %interrupted_at = getelementptr i8, ptr @tw_signals, i64 $signals_interrupted
  %interrupted = load i32, ptr %interrupted_at, align 4
  %already = icmp ne i32 %interrupted, 0
  br i1 %already, label %yes, label %read_clock
read_clock:
  call i32 @clock_gettime(i32 $coarse_clock, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %rest_at = getelementptr i8, ptr %time, i64 8
  %rest = load i64, ptr %rest_at, align 8
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  %last_at = getelementptr i8, ptr @tw_signals, i64 $signals_last_ns
  %last = load i64, ptr %last_at, align 8
  %passed = sub i64 %now, %last
  %early = icmp ult i64 %passed, $period_ns
  br i1 %early, label %no, label %ask
ask:
  store i64 %now, ptr %last_at, align 8
  %raised = call i1 @run_handlers()
  br i1 %raised, label %mark, label %no
mark:
  store i32 1, ptr %interrupted_at, align 4
  br label %yes
yes:
  ret i1 true
no:
  ret i1 false
}

; The status of a call that is done: whether it was interrupted is forgotten then.
define internal i32 @status_of_call(i32 %status) {
entry:
  %is_main = call i1 @is_main_thread()
  br i1 %is_main, label %look, label %as_it_was
look:
  %interrupted_at = getelementptr i8, ptr @tw_signals, i64 $signals_interrupted
  %interrupted = load i32, ptr %interrupted_at, align 4
  %was_interrupted = icmp ne i32 %interrupted, 0
  br i1 %was_interrupted, label %forget, label %as_it_was
forget:
  store i32 0, ptr %interrupted_at, align 4
  ret i32 $status_interrupted
as_it_was:
  ret i32 %status
}
""")


def signals_ir() -> str:
    """The IR of `tw_poll` and what goes with it. It refers to `clock_gettime`, which the same module declares."""
    return _IR.substitute(
        abi.offsets(abi.SignalsAnchor, "signals"),
        coarse_clock=_COARSE_CLOCK,
        period_ns=_PERIOD_NS,
        status_interrupted=abi.STATUS_INTERRUPTED,
    )
