"""LLVM IR of the thread pool: `tw_parallel(function, context, chunks, threads)`.

Callers wait for chunks, not for workers. Each thread of a job has a range of chunks, the same one every time, so that
what it left in its caches is there when the next job, or the next call, touches it; when its own range is used up, it
takes from the others'. A word a thread holds (threads, end, next chunk); whoever moves it on by compare-and-swap owns
that chunk, and only then reads the function and its context, so a late or missing worker never blocks or corrupts a
job: until its chunk is reported the job cannot end, and without a chunk it touches nothing. The swap, unlike a
fetch-and-add, also leaves a worker that the current job did not invite without a chunk. A runner is known to words by
its number, members of a team by that plus `TEAM`, which the words of a team's jobs name as well: a worker that still
spins has no chunk of these.

A worker (`support_workers.py`) spins on its own word for a while, then sets its `sleeping` flag, looks once more and
sleeps on the flag. A caller publishes the words, then looks at the flags. Both sides are sequentially consistent, so
one of them sees the other.

Jobs run on the threads of an OpenMP runtime instead where one is lent (`support_team.py`).

All state is in memory that a fork wipes in the child (see `runtime/cpu/pool.py`): the child has a pool without workers.
"""

from __future__ import annotations

import ctypes
from string import Template

from tilewright.runtime import abi
from tilewright.targets.cpu.support_team import team_ir
from tilewright.targets.cpu.support_workers import workers_ir

# Linux numbers.
_FUTEX_WAIT_PRIVATE, _CLOCK_MONOTONIC = 128, 1
_SPINS_BETWEEN_CLOCK_READS = 64
_SPINS_BEFORE_YIELD = 4096
_CLAIMS_PER_RANGE = 4

_IR = Template("""
@tw_pool = global { ptr, ptr, i64 } zeroinitializer, align 8

declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
$declare_pause

define internal ptr @worker_line(ptr %state, i64 %worker) alwaysinline {
  %lines = getelementptr i8, ptr %state, i64 $state_size
  %distance = mul i64 %worker, $worker_size
  %line = getelementptr i8, ptr %lines, i64 %distance
  ret ptr %line
}

define internal i64 @now_ns() {
  %time = alloca { i64, i64 }, align 8
  call i32 @clock_gettime(i32 $clock, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %rest_at = getelementptr i8, ptr %time, i64 8
  %rest = load i64, ptr %rest_at, align 8
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  ret i64 %now
}

define internal ptr @claim_of(ptr %state, i64 %worker) alwaysinline {
  %line = call ptr @worker_line(ptr %state, i64 %worker)
  %claim = getelementptr i8, ptr %line, i64 $worker_claim
  ret ptr %claim
}

define internal i64 @threads_of(i64 %word) alwaysinline {
  %field = lshr i64 %word, $threads_shift
  %threads = and i64 %field, $threads_mask
  ret i64 %threads
}

; Whether the word has a chunk left for this runner: a worker of the pool, or $team_flag and more for members of a team.
define internal i1 @claimable(i64 %word, i64 %runner) alwaysinline {
  %index = and i64 %word, $chunk_mask
  %shifted = lshr i64 %word, $chunk_bits
  %end = and i64 %shifted, $chunk_mask
  %field = lshr i64 %word, $threads_shift
  %first_runner = and i64 %field, $team_flag
  %threads = and i64 %field, $threads_mask
  %left = icmp ult i64 %index, %end
  %worker = sub i64 %runner, %first_runner
  %invited = icmp ult i64 %worker, %threads
  %yes = and i1 %left, %invited
  ret i1 %yes
}

; By the caller of a job: have the rest of its chunks skipped if the call is to end.
define internal void @cancel_if_interrupted(ptr %state) {
entry:
  %interrupted = call i1 @tw_poll()
  br i1 %interrupted, label %cancel, label %end
cancel:
  %cancelled_at = getelementptr i8, ptr %state, i64 $state_cancelled
  store atomic i32 1, ptr %cancelled_at monotonic, align 4
  br label %end
end:
  ret void
}

; Run chunks of one range of the current job until none is left for this worker, then report how many were run. A claim
; takes a share of what is left, single chunks at the end, so that many small chunks do not mean as many claims.
define internal void @run_range(ptr %state, ptr %claim, i64 %runner) {
entry:
  %done = getelementptr i8, ptr %state, i64 $state_done
  %function_at = getelementptr i8, ptr %state, i64 $state_function
  %context_at = getelementptr i8, ptr %state, i64 $state_context
  %cancelled_at = getelementptr i8, ptr %state, i64 $state_cancelled
  %worker = and i64 %runner, $threads_mask
  %worker_32 = trunc i64 %worker to i32
  %is_caller = icmp eq i64 %worker, 0
  br label %look
look:
  %count = phi i64 [ 0, %entry ], [ %count, %try ], [ %count_after, %next_of_batch ]
  %word = load atomic i64, ptr %claim acquire, align 8
  %any = call i1 @claimable(i64 %word, i64 %runner)
  br i1 %any, label %try, label %finish
try:
  %index = and i64 %word, $chunk_mask
  %shifted = lshr i64 %word, $chunk_bits
  %end_of_range = and i64 %shifted, $chunk_mask
  %left = sub i64 %end_of_range, %index
  %share = udiv i64 %left, $claims_per_range
  %batch = call i64 @llvm.umax.i64(i64 %share, i64 1)
  %next = add i64 %word, %batch
  %swapped = cmpxchg ptr %claim, i64 %word, i64 %next acq_rel monotonic, align 8
  %won = extractvalue { i64, i1 } %swapped, 1
  br i1 %won, label %begin, label %look
begin:
  %function = load ptr, ptr %function_at, align 8
  %context = load ptr, ptr %context_at, align 8
  %end_index = add i64 %index, %batch
  %count_after = add i64 %count, %batch
  br label %run
run:
  %chunk = phi i64 [ %index, %begin ], [ %next_chunk, %next_of_batch ]
  br i1 %is_caller, label %poll, label %look_at_cancelled
poll:
  call void @cancel_if_interrupted(ptr %state)
  br label %look_at_cancelled
look_at_cancelled:
  %cancelled = load atomic i32, ptr %cancelled_at monotonic, align 4
  %is_cancelled = icmp ne i32 %cancelled, 0
  br i1 %is_cancelled, label %next_of_batch, label %call
call:
  call void %function(ptr %context, i64 %chunk, i32 %worker_32)
  br label %next_of_batch
next_of_batch:
  %next_chunk = add i64 %chunk, 1
  %more = icmp ult i64 %next_chunk, %end_index
  br i1 %more, label %run, label %look
finish:
  %none = icmp eq i64 %count, 0
  br i1 %none, label %end, label %report
report:
  %before = atomicrmw add ptr %done, i64 %count acq_rel, align 8
  br label %end
end:
  ret void
}

; The runner's own range, then what is left of the others'. Threads of an earlier job than the words looked at only mean
; that fewer of them are looked at.
define internal void @run_chunks(ptr %state, i64 %runner) {
entry:
  %worker = and i64 %runner, $threads_mask
  %own = call ptr @claim_of(ptr %state, i64 %worker)
  %own_word = load atomic i64, ptr %own acquire, align 8
  %threads = call i64 @threads_of(i64 %own_word)
  br label %look
look:
  %distance = phi i64 [ 0, %entry ], [ %further, %range ]
  %more = icmp ult i64 %distance, %threads
  br i1 %more, label %range, label %end
range:
  %sum = add i64 %worker, %distance
  %beyond = icmp uge i64 %sum, %threads
  %round = select i1 %beyond, i64 %threads, i64 0
  %owner = sub i64 %sum, %round
  %claim = call ptr @claim_of(ptr %state, i64 %owner)
  call void @run_range(ptr %state, ptr %claim, i64 %runner)
  %further = add i64 %distance, 1
  br label %look
end:
  ret void
}

; A range for each thread, equal but for one chunk, for runners from `first_runner` on.
define internal void @publish(ptr %state, i64 %chunks, i64 %threads, i64 %first_runner) {
entry:
  %runners = or i64 %threads, %first_runner
  %threads_field = shl i64 %runners, $threads_shift
  br label %one
one:
  %owner = phi i64 [ 0, %entry ], [ %next_owner, %one ]
  %start = phi i64 [ 0, %entry ], [ %end, %one ]
  %next_owner = add i64 %owner, 1
  %product = mul i64 %next_owner, %chunks
  %end = udiv i64 %product, %threads
  %end_field = shl i64 %end, $chunk_bits
  %upper = or i64 %threads_field, %end_field
  %word = or i64 %upper, %start
  %claim = call ptr @claim_of(ptr %state, i64 %owner)
  store atomic i64 %word, ptr %claim seq_cst, align 8
  %more = icmp ult i64 %next_owner, %threads
  br i1 %more, label %one, label %end_of_publication
end_of_publication:
  ret void
}

define internal void @wait_for_job(ptr %claim, i64 %worker, ptr %sleeping) {
entry:
  br label %spin
spin:
  %start = phi i64 [ 0, %entry ], [ %start, %pause ], [ %since, %clock ]
  %round = phi i64 [ 0, %entry ], [ %next_round, %pause ], [ %next_round, %clock ]
  %word = load atomic i64, ptr %claim acquire, align 8
  %any = call i1 @claimable(i64 %word, i64 %worker)
  br i1 %any, label %end, label %pause
pause:
  $pause
  %next_round = add i64 %round, 1
  %phase = urem i64 %next_round, $spins_between_clock_reads
  %look_at_clock = icmp eq i64 %phase, 0
  br i1 %look_at_clock, label %clock, label %spin
clock:
  %now = call i64 @now_ns()
  %first = icmp eq i64 %start, 0
  %since = select i1 %first, i64 %now, i64 %start
  %elapsed = sub i64 %now, %since
  %tired = icmp ugt i64 %elapsed, $spin_ns
  br i1 %tired, label %lie_down, label %spin
lie_down:
  %was = atomicrmw xchg ptr %sleeping, i32 1 seq_cst, align 4
  %last_word = load atomic i64, ptr %claim seq_cst, align 8
  %came = call i1 @claimable(i64 %last_word, i64 %worker)
  br i1 %came, label %get_up, label %sleep
get_up:
  store atomic i32 0, ptr %sleeping seq_cst, align 4
  br label %end
sleep:
  call i64 (i64, ...) @syscall(i64 $futex, ptr %sleeping, i32 $futex_wait, i32 1, ptr null)
  %still = load atomic i32, ptr %sleeping acquire, align 4
  %asleep = icmp ne i32 %still, 0
  br i1 %asleep, label %sleep, label %end
end:
  ret void
}

$workers
; Whether the workers up to `wanted` run and spin.
define internal i1 @all_awake(ptr %state, i64 %wanted) {
entry:
  %started_at = getelementptr i8, ptr %state, i64 $state_started
  %started_32 = load i32, ptr %started_at, align 4
  %started = zext i32 %started_32 to i64
  %enough = icmp uge i64 %started, %wanted
  br i1 %enough, label %look, label %no
look:
  %worker = phi i64 [ 1, %entry ], [ %next_worker, %inspect ]
  %more = icmp ule i64 %worker, %wanted
  br i1 %more, label %inspect, label %yes
inspect:
  %line = call ptr @worker_line(ptr %state, i64 %worker)
  %sleeping = getelementptr i8, ptr %line, i64 $worker_sleeping
  %flag = load atomic i32, ptr %sleeping monotonic, align 4
  %next_worker = add i64 %worker, 1
  %awake = icmp eq i32 %flag, 0
  br i1 %awake, label %look, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether a brief job is shared: with threads that are awake, or now and then to wake them.
define internal i1 @share_brief(ptr %state, i64 %wanted, i1 %has_team) {
entry:
  %misses_at = getelementptr i8, ptr %state, i64 $state_brief_misses
  br i1 %has_team, label %look_at_team, label %look_at_workers
look_at_team:
  %last_at = getelementptr i8, ptr %state, i64 $state_team_last_ns
  %last = load i64, ptr %last_at, align 8
  %now = call i64 @now_ns()
  %since = sub i64 %now, %last
  %team_awake = icmp ult i64 %since, $team_awake_ns
  br label %looked
look_at_workers:
  %workers_awake = call i1 @all_awake(ptr %state, i64 %wanted)
  br label %looked
looked:
  %awake = phi i1 [ %team_awake, %look_at_team ], [ %workers_awake, %look_at_workers ]
  br i1 %awake, label %yes, label %missed
missed:
  %misses = load i32, ptr %misses_at, align 4
  %count = add i32 %misses, 1
  %often = icmp uge i32 %count, $brief_jobs_a_wake
  br i1 %often, label %yes, label %no
yes:
  store i32 0, ptr %misses_at, align 4
  ret i1 true
no:
  store i32 %count, ptr %misses_at, align 4
  ret i1 false
}

define internal void @wait_for_chunks(ptr %state, ptr %done, i64 %chunks) {
entry:
  br label %look
look:
  %round = phi i64 [ 0, %entry ], [ %next_round, %pause ], [ %next_round, %yield ]
  %reported = load atomic i64, ptr %done acquire, align 8
  %complete = icmp eq i64 %reported, %chunks
  br i1 %complete, label %end, label %pause
pause:
  $pause
  %next_round = add i64 %round, 1
  %long = icmp ugt i64 %next_round, $spins_before_yield
  br i1 %long, label %yield, label %look
yield:
  call void @cancel_if_interrupted(ptr %state)
  call i32 @sched_yield()
  br label %look
end:
  ret void
}

$team
define i32 @tw_parallel(ptr %function, ptr %context, i64 %signed_chunks, i32 %threads_32) {
entry:
  %asks = icmp eq i64 %signed_chunks, 0
  %ends = call i1 @tw_poll()
  %leaves = or i1 %asks, %ends
  br i1 %leaves, label %tell, label %job
tell:
  %told = zext i1 %ends to i32
  ret i32 %told
job:
  %brief = icmp slt i64 %signed_chunks, 0
  %chunks = call i64 @llvm.abs.i64(i64 %signed_chunks, i1 false)
  %state = load ptr, ptr @tw_pool, align 8
  %threads_given = sext i32 %threads_32 to i64
  %below_limit = call i64 @llvm.smin.i64(i64 %threads_given, i64 $max_threads)
  %threads = call i64 @llvm.smin.i64(i64 %below_limit, i64 %chunks)
  %several = icmp sgt i64 %threads, 1
  %countable = icmp ule i64 %chunks, $chunk_mask
  %has_pool = icmp ne ptr %state, null
  %shareable = and i1 %several, %countable
  %try = and i1 %shareable, %has_pool
  br i1 %try, label %enter, label %serial
enter:
  %busy = getelementptr i8, ptr %state, i64 $state_busy
  %taken = cmpxchg ptr %busy, i32 0, i32 1 acquire monotonic, align 4
  %mine = extractvalue { i32, i1 } %taken, 1
  br i1 %mine, label %weigh, label %serial
weigh:
  %wanted = sub i64 %threads, 1
  %team = call ptr @team_of(ptr %state, i64 %threads)
  %has_team = icmp ne ptr %team, null
  br i1 %brief, label %weigh_brief, label %staff
weigh_brief:
  %shared = call i1 @share_brief(ptr %state, i64 %wanted, i1 %has_team)
  br i1 %shared, label %staff, label %leave
leave:
  store atomic i32 0, ptr %busy release, align 4
  br label %serial
staff:
  %started_at = getelementptr i8, ptr %state, i64 $state_started
  %started_32 = load i32, ptr %started_at, align 4
  %started = zext i32 %started_32 to i64
  %few = icmp ult i64 %started, %wanted
  %own = xor i1 %has_team, true
  %short = and i1 %few, %own
  br i1 %short, label %hire, label %publish
hire:
  %hired = call i64 @start_workers(ptr %state, i64 %wanted)
  br label %publish
publish:
  %there = phi i64 [ %started, %staff ], [ %hired, %hire ]
  %function_at = getelementptr i8, ptr %state, i64 $state_function
  %context_at = getelementptr i8, ptr %state, i64 $state_context
  %done = getelementptr i8, ptr %state, i64 $state_done
  store ptr %function, ptr %function_at, align 8
  store ptr %context, ptr %context_at, align 8
  %cancelled_at = getelementptr i8, ptr %state, i64 $state_cancelled
  store atomic i64 0, ptr %done monotonic, align 8
  store atomic i32 0, ptr %cancelled_at monotonic, align 4
  %first_runner = select i1 %has_team, i64 $team_flag, i64 0
  call void @publish(ptr %state, i64 %chunks, i64 %threads, i64 %first_runner)
  br i1 %has_team, label %lend, label %wake
lend:
  call void @run_in_team(ptr %state, ptr %team, i64 %chunks)
  br label %finished
wake:
  %invited = call i64 @llvm.smin.i64(i64 %wanted, i64 %there)
  call void @wake_workers(ptr %state, i64 %invited)
  call void @run_chunks(ptr %state, i64 0)
  call void @wait_for_chunks(ptr %state, ptr %done, i64 %chunks)
  br label %finished
finished:
  %cancelled = load atomic i32, ptr %cancelled_at monotonic, align 4
  store atomic i32 0, ptr %busy release, align 4
  ret i32 %cancelled
serial:
  %i = phi i64 [ 0, %job ], [ 0, %enter ], [ 0, %leave ], [ %next_i, %chunk ]
  %more = icmp slt i64 %i, %chunks
  br i1 %more, label %ask, label %end
ask:
  %stop = call i1 @tw_poll()
  br i1 %stop, label %stopped, label %chunk
chunk:
  call void %function(ptr %context, i64 %i, i32 0)
  %next_i = add i64 %i, 1
  br label %serial
stopped:
  ret i32 1
end:
  ret i32 0
}
declare i64 @llvm.abs.i64(i64, i1)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
""")


def pool_ir(pause_intrinsic: str, pause_call: str, futex_number: int, gettid_number: int) -> str:
    """The pool's IR for a machine's spin hint and Linux's numbers of two system calls."""
    return _IR.substitute(
        abi.offsets(abi.PoolState, "state"),
        **abi.offsets(abi.WorkerLine, "worker"),
        workers=workers_ir(futex_number, gettid_number),
        team=team_ir(),
        state_size=ctypes.sizeof(abi.PoolState),
        worker_size=ctypes.sizeof(abi.WorkerLine),
        clock=_CLOCK_MONOTONIC,
        futex=futex_number,
        futex_wait=_FUTEX_WAIT_PRIVATE,
        spins_between_clock_reads=_SPINS_BETWEEN_CLOCK_READS,
        spins_before_yield=_SPINS_BEFORE_YIELD,
        spin_ns=abi.SPIN_NS,
        team_awake_ns=abi.TEAM_AWAKE_NS,
        brief_jobs_a_wake=abi.BRIEF_JOBS_A_WAKE,
        claims_per_range=_CLAIMS_PER_RANGE,
        chunk_bits=abi.CHUNK_BITS,
        chunk_mask=(1 << abi.CHUNK_BITS) - 1,
        threads_shift=2 * abi.CHUNK_BITS,
        threads_mask=abi.TEAM - 1,
        team_flag=abi.TEAM,
        max_threads=abi.MAX_THREADS,
        declare_pause=f"declare void @{pause_intrinsic}",
        pause=f"call void @{pause_call}",
    )
