"""Operations of the `scheduled` phase on a grid of cores, each with threads that move data and one that computes.

    program     the cores of a rectangle run the threads in it at once, each with queues and semaphores of its own
    queue       a circular buffer of pages in the memory of each core: reserve, push, wait, pop
    semaphore   a number in the memory of each core: set, increment, wait, multicast
    thread      code of one thread of every core: data movement (`reader`, `writer`) or `compute`
    if          a branch on a core's coordinates and on trips

    fetch  pad  put     pages of an array to a queue, what they have beyond the array, and from a queue to an array
    fetch_rows put_rows rows of an array that is stored by rows, to a queue and from a queue
    gather scatter      elements of an array to a queue, and from a queue to an array
    rearrange          elements of a queue to other positions of another one
    multicast  send     pages of a queue to the same address of other cores, or of one
    barrier             reads, or writes, that the thread began are complete
    generate            pages of numbers that depend on their position alone

    configure                 sets the state of a unit, which stays
    registers                 ownership of the tile registers: acquire, commit, wait, release
    copy binary matmul reduce pages of queues to tile registers
    tilize untilize           rows in a queue to tile registers, and tile registers to rows in a queue
    map cast fold             tile registers to tile registers
    accumulate  pack          tile registers to pages of a queue

A page is one device tile of 32 x 32 elements, in faces of 16 x 16, in the format of its queue. An array of any rank is
stored in pages, too: its last two dims are padded to whole tiles and cut into them, the dims before count tiles; an
array of rank 1 is a row. The coordinates of a page are those of the dims before, then its row and its column of tiles.
An array may be stored by rows in DRAM, too: its pages are those of the last dim, and elements of it are named by the
pages of tiles that they would be in.

Reads of compute operations count pages from the front of a queue, among those that were waited for; writes of `pack`
and of data movement count from its back, among pages that were reserved. Maps take dims `d0...`, which an operation
repeats over its `extents` (or `count`), and symbols `s0...`, its index operands. `states_of` gives the state of each
unit that an operation needs; nothing sets it but `configure`.
"""

from __future__ import annotations

from xdsl.ir import Dialect

from tilewright.dialects.cores.compute import (
    AccumulateOp,
    BinaryOp,
    CastOp,
    ConfigureOp,
    CopyOp,
    FoldOp,
    MapOp,
    MatmulOp,
    PackingOp,
    PackOp,
    ReduceOp,
    RegisterOp,
    RegistersOp,
    TilizeOp,
    UntilizeOp,
    states_of,
)
from tilewright.dialects.cores.movers import (
    ARRAY_LOADS,
    ARRAY_STORES,
    BarrierOp,
    ElementsOp,
    FetchOp,
    FetchRowsOp,
    GatherOp,
    GenerateOp,
    LinesOp,
    MulticastOp,
    PadOp,
    PagesOp,
    PutOp,
    PutRowsOp,
    RearrangeOp,
    RowsOp,
    ScanOp,
    ScatterOp,
    SendOp,
    SortOp,
)
from tilewright.dialects.cores.structure import (
    ACQUIRE,
    BROADCASTS,
    COLUMN,
    COMMIT,
    COMPUTE,
    EDGES,
    FOLDS,
    MATRIX,
    NONE,
    PACK,
    READ,
    READER,
    RELEASE,
    ROLES,
    ROW,
    SCALAR,
    STEPS,
    UNITS,
    UNPACK_A,
    UNPACK_B,
    VECTOR,
    WAIT,
    WRITE,
    WRITER,
    ComputeOp,
    CoreOp,
    EndOp,
    IfOp,
    MoverOp,
    PopOp,
    ProgramOp,
    PushOp,
    QueueOp,
    QueueStepOp,
    QueueType,
    ReserveOp,
    SemaphoreIncrementOp,
    SemaphoreMulticastOp,
    SemaphoreOp,
    SemaphoreSetOp,
    SemaphoreType,
    SemaphoreWaitOp,
    ThreadOp,
    WaitOp,
    is_by_rows,
    page_grid,
    queue,
    queue_type,
    region_of,
    stored_pages,
    thread_of,
)

__all__ = [
    "ACQUIRE",
    "ARRAY_LOADS",
    "ARRAY_STORES",
    "BROADCASTS",
    "COLUMN",
    "COMMIT",
    "COMPUTE",
    "EDGES",
    "FOLDS",
    "MATRIX",
    "NONE",
    "PACK",
    "READ",
    "READER",
    "RELEASE",
    "ROLES",
    "ROW",
    "SCALAR",
    "STEPS",
    "UNITS",
    "UNPACK_A",
    "UNPACK_B",
    "VECTOR",
    "WAIT",
    "WRITE",
    "WRITER",
    "AccumulateOp",
    "BarrierOp",
    "BinaryOp",
    "CastOp",
    "ComputeOp",
    "ConfigureOp",
    "CopyOp",
    "CoreOp",
    "Cores",
    "ElementsOp",
    "EndOp",
    "FetchOp",
    "FetchRowsOp",
    "FoldOp",
    "GatherOp",
    "GenerateOp",
    "IfOp",
    "LinesOp",
    "MapOp",
    "MatmulOp",
    "MoverOp",
    "MulticastOp",
    "PackOp",
    "PackingOp",
    "PadOp",
    "PagesOp",
    "PopOp",
    "ProgramOp",
    "PushOp",
    "PutOp",
    "PutRowsOp",
    "QueueOp",
    "QueueStepOp",
    "QueueType",
    "RearrangeOp",
    "ReduceOp",
    "RegisterOp",
    "RegistersOp",
    "ReserveOp",
    "RowsOp",
    "ScanOp",
    "ScatterOp",
    "SemaphoreIncrementOp",
    "SemaphoreMulticastOp",
    "SemaphoreOp",
    "SemaphoreSetOp",
    "SemaphoreType",
    "SemaphoreWaitOp",
    "SendOp",
    "SortOp",
    "ThreadOp",
    "TilizeOp",
    "UntilizeOp",
    "WaitOp",
    "is_by_rows",
    "page_grid",
    "queue",
    "queue_type",
    "region_of",
    "states_of",
    "stored_pages",
    "thread_of",
]

Cores = Dialect(
    "cores",
    [
        *(ProgramOp, QueueOp, SemaphoreOp, ThreadOp, EndOp, IfOp),
        *(ReserveOp, PushOp, WaitOp, PopOp),
        *(SemaphoreSetOp, SemaphoreIncrementOp, SemaphoreWaitOp, SemaphoreMulticastOp),
        *(FetchOp, PadOp, PutOp, FetchRowsOp, PutRowsOp, GatherOp, ScatterOp, RearrangeOp, ScanOp, SortOp, GenerateOp),
        *(MulticastOp, SendOp, BarrierOp),
        *(ConfigureOp, RegistersOp, CopyOp, TilizeOp, BinaryOp, MatmulOp, ReduceOp, MapOp, CastOp, FoldOp),
        *(AccumulateOp, PackOp, UntilizeOp),
    ],
    [QueueType, SemaphoreType],
)
