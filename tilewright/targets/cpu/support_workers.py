"""LLVM IR of the thread pool's workers: how they start, on which CPUs they run, and what wakes those that sleep.

A worker is pinned to a CPU of its own. The one that runs the caller is left to it, for as long as the kernel of the
system leaves the caller there: where the two meet, they swap.
"""

from __future__ import annotations

from string import Template

from tilewright.runtime import abi

# Linux numbers. Faults stay deliverable in workers, so that Python's faulthandler reports them.
_FUTEX_WAKE_PRIVATE, _SIG_SETMASK = 129, 2
_FAULT_SIGNALS = (4, 5, 6, 7, 8, 11, 31)
_AFFINITY_BYTES = 128

_IR = Template("""
@blocked_signals = private constant [16 x i64] [i64 $blocked_signals, $all_other_signals], align 8

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal void @pin(i32 %thread_id, i32 %cpu_plus_1) {
entry:
  %free = icmp eq i32 %cpu_plus_1, 0
  br i1 %free, label %end, label %set
set:
  %mask = alloca [$affinity_bytes x i8], align 8
  call void @llvm.memset.p0.i64(ptr %mask, i8 0, i64 $affinity_bytes, i1 false)
  %cpu = sub i32 %cpu_plus_1, 1
  %byte = lshr i32 %cpu, 3
  %bit = and i32 %cpu, 7
  %value = shl i32 1, %bit
  %value_8 = trunc i32 %value to i8
  %byte_at = getelementptr i8, ptr %mask, i32 %byte
  store i8 %value_8, ptr %byte_at, align 1
  call i32 @sched_setaffinity(i32 %thread_id, i64 $affinity_bytes, ptr %mask)
  br label %end
end:
  ret void
}

define internal ptr @worker_main(ptr %argument) {
entry:
  %worker = ptrtoint ptr %argument to i64
  %state = load ptr, ptr @tw_pool, align 8
  %line = call ptr @worker_line(ptr %state, i64 %worker)
  %sleeping = getelementptr i8, ptr %line, i64 $worker_sleeping
  %cpu_at = getelementptr i8, ptr %line, i64 $worker_cpu
  %claim = getelementptr i8, ptr %line, i64 $worker_claim
  %thread_id_at = getelementptr i8, ptr %line, i64 $worker_thread_id
  %cpu = load i32, ptr %cpu_at, align 4
  call void @pin(i32 0, i32 %cpu)
  %thread_id_64 = call i64 (i64, ...) @syscall(i64 $gettid)
  %thread_id = trunc i64 %thread_id_64 to i32
  store atomic i32 %thread_id, ptr %thread_id_at release, align 4
  ; A thread begins with the floating-point state of the one that made it.
  %float_state = call i64 @enter_float_state()
  br label %loop
loop:
  call void @run_chunks(ptr %state, i64 %worker)
  call void @wait_for_job(ptr %claim, i64 %worker, ptr %sleeping)
  br label %loop
}

; 1 + the CPU for a worker: the worker-th of the listed CPUs that the caller may use, its own left out; 0 for none.
define internal i32 @choose_cpu(i32 %home_plus_1, i64 %worker) {
entry:
  %mask = alloca [$affinity_bytes x i8], align 8
  %got = call i32 @sched_getaffinity(i32 0, i64 $affinity_bytes, ptr %mask)
  %failed = icmp slt i32 %got, 0
  %cpus_at = getelementptr i8, ptr @tw_pool, i64 $anchor_cpus
  %count_at = getelementptr i8, ptr @tw_pool, i64 $anchor_cpu_count
  %cpus = load ptr, ptr %cpus_at, align 8
  %count = load i64, ptr %count_at, align 8
  br i1 %failed, label %none, label %look
look:
  %i = phi i64 [ 0, %entry ], [ %next_i, %next ]
  %passed = phi i64 [ 0, %entry ], [ %passed_now, %next ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %inspect, label %none
inspect:
  %cpu_at = getelementptr i32, ptr %cpus, i64 %i
  %cpu = load i32, ptr %cpu_at, align 4
  %cpu_plus_1 = add i32 %cpu, 1
  %byte = lshr i32 %cpu, 3
  %in_mask = icmp ult i32 %byte, $affinity_bytes
  br i1 %in_mask, label %test, label %next
test:
  %byte_at = getelementptr i8, ptr %mask, i32 %byte
  %bits = load i8, ptr %byte_at, align 1
  %bit = and i32 %cpu, 7
  %bit_8 = trunc i32 %bit to i8
  %shifted = lshr i8 %bits, %bit_8
  %allowed = trunc i8 %shifted to i1
  %foreign = icmp ne i32 %cpu_plus_1, %home_plus_1
  %usable = and i1 %allowed, %foreign
  %step = zext i1 %usable to i64
  %passed_then = add i64 %passed, %step
  %enough = icmp eq i64 %passed_then, %worker
  %chosen = and i1 %enough, %usable
  br i1 %chosen, label %found, label %next
next:
  %passed_now = phi i64 [ %passed, %inspect ], [ %passed_then, %test ]
  %next_i = add i64 %i, 1
  br label %look
found:
  ret i32 %cpu_plus_1
none:
  ret i32 0
}

; Start the workers up to number `wanted` that do not run yet; return how many there are then.
define internal i64 @start_workers(ptr %state, i64 %wanted) noinline {
entry:
  %old_signals = alloca [16 x i64], align 8
  %thread = alloca i64, align 8
  %started_at = getelementptr i8, ptr %state, i64 $state_started
  %home_at = getelementptr i8, ptr %state, i64 $state_home_cpu
  %started_32 = load i32, ptr %started_at, align 4
  %started = zext i32 %started_32 to i64
  %first = icmp eq i64 %started, 0
  br i1 %first, label %settle, label %block
settle:
  %here = call i32 @sched_getcpu()
  %here_plus_1 = add i32 %here, 1
  store i32 %here_plus_1, ptr %home_at, align 4
  br label %block
block:
  call i32 @pthread_sigmask(i32 $sig_setmask, ptr @blocked_signals, ptr %old_signals)
  br label %look
look:
  %count = phi i64 [ %started, %block ], [ %worker, %running ]
  %more = icmp ult i64 %count, %wanted
  br i1 %more, label %start, label %end
start:
  %worker = add i64 %count, 1
  %home = load i32, ptr %home_at, align 4
  %cpu = call i32 @choose_cpu(i32 %home, i64 %worker)
  %line = call ptr @worker_line(ptr %state, i64 %worker)
  %cpu_at = getelementptr i8, ptr %line, i64 $worker_cpu
  store i32 %cpu, ptr %cpu_at, align 4
  %argument = inttoptr i64 %worker to ptr
  %error = call i32 @pthread_create(ptr %thread, ptr null, ptr @worker_main, ptr %argument)
  %refused = icmp ne i32 %error, 0
  br i1 %refused, label %end, label %running
running:
  %handle = load i64, ptr %thread, align 8
  call i32 @pthread_detach(i64 %handle)
  br label %look
end:
  call i32 @pthread_sigmask(i32 $sig_setmask, ptr %old_signals, ptr null)
  %count_32 = trunc i64 %count to i32
  store i32 %count_32, ptr %started_at, align 4
  ret i64 %count
}

; The kernel may have moved the caller to the CPU of a worker that it is about to wake: give that worker the CPU that
; was left to the caller.
define internal void @keep_apart(ptr %state, ptr %line) {
entry:
  %home_at = getelementptr i8, ptr %state, i64 $state_home_cpu
  %cpu_at = getelementptr i8, ptr %line, i64 $worker_cpu
  %thread_id_at = getelementptr i8, ptr %line, i64 $worker_thread_id
  %cpu = load i32, ptr %cpu_at, align 4
  %thread_id = load atomic i32, ptr %thread_id_at acquire, align 4
  %here = call i32 @sched_getcpu()
  %here_plus_1 = add i32 %here, 1
  %collides = icmp eq i32 %cpu, %here_plus_1
  %settled = icmp ne i32 %thread_id, 0
  %move = and i1 %collides, %settled
  br i1 %move, label %swap, label %end
swap:
  %home = load i32, ptr %home_at, align 4
  call void @pin(i32 %thread_id, i32 %home)
  store i32 %home, ptr %cpu_at, align 4
  store i32 %here_plus_1, ptr %home_at, align 4
  br label %end
end:
  ret void
}

define internal void @wake_workers(ptr %state, i64 %count) {
entry:
  br label %look
look:
  %worker = phi i64 [ 1, %entry ], [ %next_worker, %next ]
  %more = icmp ule i64 %worker, %count
  br i1 %more, label %inspect, label %end
inspect:
  %line = call ptr @worker_line(ptr %state, i64 %worker)
  %sleeping = getelementptr i8, ptr %line, i64 $worker_sleeping
  %flag = load atomic i32, ptr %sleeping seq_cst, align 4
  %awake = icmp eq i32 %flag, 0
  br i1 %awake, label %next, label %wake
wake:
  call void @keep_apart(ptr %state, ptr %line)
  store atomic i32 0, ptr %sleeping seq_cst, align 4
  call i64 (i64, ...) @syscall(i64 $futex, ptr %sleeping, i32 $futex_wake, i32 1)
  br label %next
next:
  %next_worker = add i64 %worker, 1
  br label %look
end:
  ret void
}
""")


def workers_ir(futex_number: int, gettid_number: int) -> str:
    """The functions `start_workers` and `wake_workers`, which the pool calls, for Linux's numbers of two system
    calls."""
    return _IR.substitute(
        abi.offsets(abi.PoolState, "state"),
        **abi.offsets(abi.WorkerLine, "worker"),
        **abi.offsets(abi.PoolAnchor, "anchor"),
        blocked_signals=-1 - sum(1 << (number - 1) for number in _FAULT_SIGNALS),
        all_other_signals=", ".join(["i64 -1"] * 15),
        sig_setmask=_SIG_SETMASK,
        futex=futex_number,
        gettid=gettid_number,
        futex_wake=_FUTEX_WAKE_PRIVATE,
        affinity_bytes=_AFFINITY_BYTES,
    )
