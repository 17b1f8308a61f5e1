"""The binary contract between compiled programs, the support object and the Python runtime.

A program's object defines `i32 tw_main(ptr buffers, ptr arena, ptr parallel, i32 threads)`. `buffers` is a table of
pointers to the inputs, the outputs and the constants, all C-contiguous; `arena` is one 64-byte aligned block of
`arena_bytes + threads * worker_scratch_bytes`, both rounded up to 64; the scratch of worker `w` begins at
`arena + arena_bytes + w * worker_scratch_bytes`. It returns 0, or a positive status that the manifest explains.

`parallel` is `i32 parallel(ptr function, ptr context, i64 chunks, i32 threads)`. It runs `function(ptr context, i64
chunk, i32 worker)` for every chunk and returns 0 when all are done. It returns 1 when the call is to end, since a
signal handler of Python has raised: some chunks are not run then. With no chunks it only indicates whether the call is
to end; loops of a program ask so on each trip. `worker` is below `threads` and unique among the chunks of this call
that run at one time; the caller is worker 0. With one thread, inside another job or while another caller has the pool,
it runs all chunks in the caller as worker 0. A job of a few microseconds states it by a negative number of chunks:
waking a worker takes longer than that, so it is shared only with workers that are awake, and only one such job in
`BRIEF_JOBS_A_WAKE` that found one asleep wakes it, for those that may follow.

The support object defines the thread pool (`tw_parallel`), one run with a leased arena (`tw_run`, and `tw_run_unlocked`
for a caller that holds the interpreter's lock), the function that Python calls (`tw_call`) and the memory of outputs
(`tw_new_array`), over the structures below.
"""

from __future__ import annotations

import ctypes

ABI_VERSION = 3
ENTRY = "tw_main"
ALIGNMENT_BYTES = 64
STATUS_NO_MEMORY = -1
"""`tw_run` returns this when the arena cannot be allocated; programs return 0 or positive numbers."""

STATUS_INTERRUPTED = -2
"""`tw_run` returns this when a signal handler of Python has raised meanwhile; the exception is set."""

ARENA_SLOTS = 8
"""Arenas that a program keeps between calls: as many threads run it at one time without allocating."""

LEAST_ALIGNED_BYTES = 1 << 14
"""The size from which outputs begin where lines do: threads that write halves of the same rows share no line then."""

BLOCK_SLOTS = 8  # a power of two
LEAST_BLOCK_BYTES, MOST_KEPT_BYTES = 1 << 20, 1 << 28
"""The memory of outputs that die is kept for new ones: blocks from one size on, as many bytes together."""

MAX_THREADS = 256
CHUNK_BITS = 26
"""A claim word holds threads, the end of a range of chunks and the next chunk: 12 + 26 + 26 bits."""

TEAM = 1 << 11
"""The bit of the threads of a claim word that says that members of a team run the job, not workers of the pool."""

SPIN_NS = 1_000_000
"""A worker without work spins this long before it sleeps."""


BRIEF_JOBS_A_WAKE = 16
"""Of brief jobs that find a worker asleep, so many pass before one wakes it."""


class BufferSpec(ctypes.Structure):
    """The required form of one input or output array. `alias` is the input whose memory an output takes over, or -1."""

    _fields_ = (
        ("descriptor", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("nbytes", ctypes.c_int64),
        ("alias", ctypes.c_int64),
        ("type_number", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("array_flags", ctypes.c_int32),
        ("written", ctypes.c_int32),
    )


class Descriptor(ctypes.Structure):
    """One program bound to a number of threads: what `tw_call` finds in its capsule."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
        ("arena_bytes", ctypes.c_int64),
        ("releases_gil", ctypes.c_int64),
        ("accepts_out", ctypes.c_int64),
        ("n_inputs", ctypes.c_int64),
        ("n_outputs", ctypes.c_int64),
        ("n_constants", ctypes.c_int64),
        ("specs", ctypes.c_void_p),
        ("constants", ctypes.c_void_p),
        ("array_type", ctypes.c_void_p),
        ("new_array", ctypes.c_void_p),
        ("mismatch", ctypes.c_void_p),
        ("fail", ctypes.c_void_p),
        ("arenas", ctypes.c_void_p * ARENA_SLOTS),
    )


class PoolAnchor(ctypes.Structure):
    """The support object's `tw_pool`: where the pool's state is, and the CPUs in the order to pin workers to."""

    _fields_ = (("state", ctypes.c_void_p), ("cpus", ctypes.c_void_p), ("cpu_count", ctypes.c_int64))


class SignalsAnchor(ctypes.Structure):
    """The support object's `tw_signals`: Python's main thread, when it last looked for signals, and whether a handler
    has raised during its call."""

    _fields_ = (
        ("main_thread", ctypes.c_int64),
        ("last_ns", ctypes.c_int64),
        ("interrupted", ctypes.c_int32),
        ("_0", ctypes.c_int32),
    )


class BlocksAnchor(ctypes.Structure):
    """The support object's `tw_blocks`: NumPy's `PyArray_NewFromDescr` and `PyDataMem_SetHandler`, and the capsule of
    the memory handler."""

    _fields_ = (("new_array", ctypes.c_void_p), ("set_handler", ctypes.c_void_p), ("handler", ctypes.c_void_p))


class BlockSlot(ctypes.Structure):
    """A block that no array uses, or null and 0."""

    _fields_ = (("block", ctypes.c_void_p), ("nbytes", ctypes.c_int64))


class BlocksState(ctypes.Structure):
    """The blocks that are kept: a ring, `next` counts the blocks that were put into it. `busy` while one looks."""

    _fields_ = (
        ("busy", ctypes.c_int32),
        ("_0", ctypes.c_char * 4),
        ("next", ctypes.c_int64),
        ("kept_bytes", ctypes.c_int64),
        ("slots", BlockSlot * BLOCK_SLOTS),
    )


class MemoryHandler(ctypes.Structure):
    """NumPy's `PyDataMem_Handler`."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("functions", ctypes.c_void_p * 4),
    )


class BlocksMemory(ctypes.Structure):
    """The state of a memory handler, in one piece."""

    _fields_ = (("state", BlocksState), ("handler", MemoryHandler), ("capsule_name", ctypes.c_char * 16))


TEAM_AWAKE_NS = 300_000
"""Threads of a team are taken to be awake for so long after a job of ours: OpenMP runtimes spin longer, and how long is
not to be had from them."""

TEAM_LATE_NS = 200_000
TEAM_PAUSES = 16
"""A team that ends a job so much later than its last chunk has a thread that waits for a core, which other work has:
the pool's own workers run the jobs for so many times as long then."""


class PoolState(ctypes.Structure):
    """The pool's state, each word that threads fight over on a line of its own. All zero is a pool without workers.

    `home_cpu` is 1 + the CPU that is left to the caller, 0 before there are workers. `brief_misses` counts brief jobs
    that found a worker asleep. `cancelled`: the rest of the chunks of the current job is not to be run. `team_run`,
    `team_rank` and `team_size` are `GOMP_parallel`, `omp_get_thread_num` and `omp_get_max_threads` of the OpenMP
    runtime whose threads run the jobs, or null. `team_last_ns` is when they ended the latest one, `team_after_ns` when
    they are used again.
    """

    _fields_ = (
        ("busy", ctypes.c_int32),
        ("started", ctypes.c_int32),
        ("home_cpu", ctypes.c_int32),
        ("brief_misses", ctypes.c_int32),
        ("_0", ctypes.c_char * 48),
        ("done", ctypes.c_int64),
        ("_1", ctypes.c_char * 56),
        ("function", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("cancelled", ctypes.c_int32),
        ("_2", ctypes.c_char * 4),
        ("team_run", ctypes.c_void_p),
        ("team_rank", ctypes.c_void_p),
        ("team_size", ctypes.c_void_p),
        ("team_last_ns", ctypes.c_int64),
        ("team_after_ns", ctypes.c_int64),
    )


class WorkerLine(ctypes.Structure):
    """One worker's lines after the pool's state. `cpu` is 1 + the CPU it is pinned to, 0 for none. `claim` is the word
    of the range of chunks that is the worker's own."""

    _fields_ = (
        ("sleeping", ctypes.c_int32),
        ("cpu", ctypes.c_int32),
        ("thread_id", ctypes.c_int32),
        ("_0", ctypes.c_char * 52),
        ("claim", ctypes.c_int64),
        ("_1", ctypes.c_char * 56),
    )


POOL_BYTES = ctypes.sizeof(PoolState) + MAX_THREADS * ctypes.sizeof(WorkerLine)

# NumPy's array and dtype structures, checked against a live array before use.
ARRAY_DATA, ARRAY_RANK, ARRAY_SHAPE, ARRAY_DESCRIPTOR, ARRAY_FLAGS = 16, 24, 32, 56, 64
DTYPE_BYTE_ORDER, DTYPE_NUMBER = 26, 28
OBJECT_TYPE = 8
FLAG_C_CONTIGUOUS, FLAG_ALIGNED, FLAG_WRITEABLE = 0x1, 0x100, 0x400
NEW_ARRAY_SLOT, SET_HANDLER_SLOT = 94, 304
"""Where `PyArray_NewFromDescr` and `PyDataMem_SetHandler` are in the `_ARRAY_API` table."""


def round_up(nbytes: int, multiple: int = ALIGNMENT_BYTES) -> int:
    return -(-nbytes // multiple) * multiple


def offsets(structure: type[ctypes.Structure], prefix: str) -> dict[str, int]:
    """The byte offset of each field, named `prefix_field`."""
    return {f"{prefix}_{field[0]}": getattr(structure, field[0]).offset for field in structure._fields_}
