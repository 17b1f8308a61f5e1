"""LLVM IR of jobs that the threads of an OpenMP runtime run, for the thread pool.

Threads of OpenMP spin before they sleep, several milliseconds with GCC's runtime. Between operators of a library that
has such threads, each of them takes a core from a worker of the pool, and a worker that spins takes one from them. So a
program that is called with arrays of such a library runs its jobs as parallel regions of that runtime: the same threads
are at work in both. They claim chunks as the pool's own workers do, which take no chunks of theirs.

A region has as many threads as those of the library itself, since the runtime ends and starts threads if that number
changes; members beyond the threads of a job find no chunk. Its end waits for all of them: if other work has a core,
until the thread has one again. The pool's own workers, which no thread waits for, run the next jobs then.
"""

from __future__ import annotations

from string import Template

from tilewright.runtime import abi

_IR = Template("""
; `GOMP_parallel` where a runtime with enough threads is lent to this process, or null. Its number of threads is that of
; the calling thread, and changes when the user sets it.
define internal ptr @team_of(ptr %state, i64 %threads) {
entry:
  %run_at = getelementptr i8, ptr %state, i64 $state_team_run
  %size_at = getelementptr i8, ptr %state, i64 $state_team_size
  %run = load ptr, ptr %run_at, align 8
  %none = icmp eq ptr %run, null
  br i1 %none, label %own, label %look
look:
  %after_at = getelementptr i8, ptr %state, i64 $state_team_after_ns
  %after = load i64, ptr %after_at, align 8
  %in_time = icmp eq i64 %after, 0
  br i1 %in_time, label %count, label %look_at_clock
look_at_clock:
  %now = call i64 @now_ns()
  %pauses = icmp ult i64 %now, %after
  br i1 %pauses, label %own, label %count
count:
  %size_of = load ptr, ptr %size_at, align 8
  %size_32 = call i32 %size_of()
  %size = sext i32 %size_32 to i64
  %enough = icmp sge i64 %size, %threads
  br i1 %enough, label %lent, label %own
lent:
  ret ptr %run
own:
  ret ptr null
}

; One thread of a region. The caller is the first one; it looks for signals until all chunks are run.
define internal void @team_member(ptr %job) {
entry:
  %state = load ptr, ptr %job, align 8
  %chunks_at = getelementptr i8, ptr %job, i64 8
  %chunks = load i64, ptr %chunks_at, align 8
  %rank_at = getelementptr i8, ptr %state, i64 $state_team_rank
  %rank_of = load ptr, ptr %rank_at, align 8
  %rank_32 = call i32 %rank_of()
  %rank = zext i32 %rank_32 to i64
  %has_range = icmp ult i64 %rank, $max_threads
  br i1 %has_range, label %run, label %end
run:
  %float_state = call i64 @enter_float_state()
  %runner = or i64 %rank, $team_flag
  call void @run_chunks(ptr %state, i64 %runner)
  call void @leave_float_state(i64 %float_state)
  %is_caller = icmp eq i64 %rank, 0
  br i1 %is_caller, label %wait, label %end
wait:
  %done = getelementptr i8, ptr %state, i64 $state_done
  call void @wait_for_chunks(ptr %state, ptr %done, i64 %chunks)
  %run_ns_at = getelementptr i8, ptr %job, i64 16
  %run_ns = call i64 @now_ns()
  store i64 %run_ns, ptr %run_ns_at, align 8
  br label %end
end:
  ret void
}

define internal void @run_in_team(ptr %state, ptr %team, i64 %chunks) {
entry:
  %job = alloca { ptr, i64, i64 }, align 8
  store ptr %state, ptr %job, align 8
  %chunks_at = getelementptr i8, ptr %job, i64 8
  store i64 %chunks, ptr %chunks_at, align 8
  call void %team(ptr @team_member, ptr %job, i32 0, i32 0)
  %last_at = getelementptr i8, ptr %state, i64 $state_team_last_ns
  %now = call i64 @now_ns()
  store i64 %now, ptr %last_at, align 8
  %run_ns_at = getelementptr i8, ptr %job, i64 16
  %run_ns = load i64, ptr %run_ns_at, align 8
  %waited = sub i64 %now, %run_ns
  %is_late = icmp ugt i64 %waited, $team_late_ns
  %pause = mul i64 %waited, $team_pauses
  %until = add i64 %now, %pause
  %after = select i1 %is_late, i64 %until, i64 0
  %after_at = getelementptr i8, ptr %state, i64 $state_team_after_ns
  store i64 %after, ptr %after_at, align 8
  ret void
}
""")


def team_ir() -> str:
    """The functions `team_of` and `run_in_team`, which the pool calls."""
    return _IR.substitute(
        abi.offsets(abi.PoolState, "state"),
        max_threads=abi.MAX_THREADS,
        team_flag=abi.TEAM,
        team_late_ns=abi.TEAM_LATE_NS,
        team_pauses=abi.TEAM_PAUSES,
    )
