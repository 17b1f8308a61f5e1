"""What can go wrong in a program for a grid of cores: the list of reference/tt-mlir-d2m.md, 10.4, with where each is
checked here and programs that are broken so.

`python -m tests.cores.behaviours` writes docs/reference/grid-checks.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cores import programs
from tests.cores import test_hazards as hazards
from tests.cores import test_static_checks as static
from tests.cores.breaking import change, change_queue, exchange, find
from tests.cores.broken_programs import (
    VERIFIER,
    Broken,
    all_trips,
    also,
    around,
    broken,
    broken_by,
    compiled_product,
    first_queue,
    halves,
    narrow,
    on_cores,
    on_padding,
    one_coordinate,
    rows_to_tiles,
    tiles_to_rows,
    wait_behind_copy,
    wide_matmul,
    with_first_queue_at,
    with_other_result,
    without_padding,
)
from tests.cores.metamorphic import with_depth, with_one_mover
from tests.cores.test_hazards import (
    COMPUTE,
    READER,
    WRITER,
    all_of,
    changes,
    drops,
    moves,
    moves_behind,
    repeats,
    trips,
)
from tilewright.dialects import cores, tile
from tilewright.semantics.cores.reports import KINDS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "grid-checks.md"


@dataclass(frozen=True)
class Behaviour:
    """`wrong`: what goes wrong; `where`: what looks for it, and what cannot be here."""

    number: int
    wrong: str
    where: str
    programs: Sequence[Broken]


BASE = hazards.BASE

BEHAVIOURS: Sequence[Behaviour] = (
    Behaviour(
        1,
        "The cores, times the blocks of each, are not the result.",
        "run: each element of a result is written, and once. A program names pages and cores, not shards: what core "
        "takes which block is in its maps, which the lowering makes from one division.",
        (
            broken("a row of tiles without a core", "element-never-written", hazards.of_rows, on_cores(1, 1)),
            broken("a block too few on each core", "element-never-written", hazards.elementwise, all_trips(3)),
        ),
    ),
    Behaviour(
        2,
        "There are more cores than the machine has.",
        "proof. Cores are a rectangle of the machine's own, counted from its first one, so that no two are the same.",
        (
            broken("nine rows", "too-many-cores", lambda: programs.elementwise(1, rows=9)),
            broken("nine columns", "too-many-cores", lambda: programs.multicast_matmul(1, 9, 1)),
        ),
    ),
    Behaviour(
        3,
        "A result's place depends on a loop that it is reduced over, or does not depend on one that it is not.",
        "run: elements that are written twice, by one core or by two.",
        (
            broken(
                "one element for all trips",
                "element-written-twice",
                hazards.elementwise,
                changes(WRITER, cores.PutOp, map="s1, d0"),
            ),
            broken(
                "one element for two cores",
                "array-race",
                hazards.of_rows,
                changes(WRITER, cores.PutOp, map="0, d0 + s0"),
            ),
        ),
    ),
    Behaviour(
        4,
        "An operation is in a thread that cannot do it.",
        "verifier: movers move, the thread that computes computes; all is in some thread. A region has no results, and "
        "takes nothing but queues, semaphores and indices.",
        (
            broken("a barrier in compute", VERIFIER, also("compute", lambda b: b.barrier("read"))),
            broken("a copy to registers in a mover", VERIFIER, also("writer", lambda b: b.copy(first_queue(b)))),
        ),
    ),
    Behaviour(
        5,
        "A queue has no room for what is pushed.",
        "verifier: no step is longer than the queue; proof: no step goes around its end; run: a reserve blocks, and "
        "who waits for whom is reported where that is for ever.",
        (
            broken(
                "a step of three pages, of two",
                VERIFIER,
                hazards.elementwise,
                changes(READER, cores.ReserveOp, pages=3),
            ),
            broken("steps of two pages, of three", "block-around-the-end", lambda: programs.elementwise(8, 2, 3)),
            broken(
                "pages that no thread pops",
                "queue-overflow",
                lambda: programs.elementwise(3),
                drops(COMPUTE, cores.PopOp, 1),
                proofs=False,
            ),
        ),
    ),
    Behaviour(
        6,
        "Pages are waited for that no thread pushes.",
        "proof, by numbers (see 7); run: who waits for whom, with thread, core, operation and trip.",
        (
            broken(
                "a page without a push", "queue-underflow", hazards.one_tile, drops(READER, cores.PushOp), proofs=False
            ),
            broken("a trip too few", "queue-underflow", hazards.elementwise, trips(READER, 3), proofs=False),
        ),
    ),
    Behaviour(
        7,
        "Steps of a queue do not belong together: a reserve without a push, a wait without a pop, two pushes.",
        "proof, for each core: what is pushed and popped was reserved and waited for, nothing is left in the end.",
        (
            broken("a reserve without a push", "reserve-without-push", hazards.one_tile, drops(READER, cores.PushOp)),
            broken("a wait without a pop", "wait-without-pop", hazards.elementwise, drops(WRITER, cores.PopOp)),
            broken(
                "two pushes of one page", "push-without-reserve", hazards.elementwise, repeats(READER, cores.PushOp)
            ),
            broken("two pops of one page", "pop-without-wait", hazards.elementwise, repeats(WRITER, cores.PopOp)),
            broken("a trip too many", "cadence-mismatch", hazards.elementwise, trips(READER, 5)),
        ),
    ),
    Behaviour(
        8,
        "Two threads fill a queue, or empty it.",
        "verifier.",
        (
            broken(
                "two that fill", VERIFIER, also("writer", lambda b: (b.reserve(first_queue(b)), b.push(first_queue(b))))
            ),
            broken(
                "two that empty", VERIFIER, also("reader", lambda b: (b.wait(first_queue(b)), b.pop(first_queue(b))))
            ),
        ),
    ),
    Behaviour(
        9,
        "The two threads of a queue are in step with different loops.",
        "proof, for each core: pages pushed are pages popped, over all trips and choices.",
        (
            broken(
                "an inner loop that is shorter",
                "cadence-mismatch",
                static.looped,
                lambda kernel: change(kernel, WRITER, tile.ForOp, 1, trips=3),
            ),
            broken("an inner loop that ends sooner", "cadence-mismatch", lambda: static.looped("s0 + 2")),
            broken(
                "a choice of other cores",
                "cadence-mismatch",
                hazards.sent,
                lambda kernel: change(kernel, READER, cores.IfOp, map="s0 - 1"),
            ),
        ),
    ),
    Behaviour(
        10,
        "A page is read after its pop, written after its push, or read without having been written.",
        "run.",
        (
            broken(
                "a read after the pop", "page-not-waited", hazards.elementwise, moves(WRITER, cores.PopOp, cores.PutOp)
            ),
            broken(
                "a write after the push",
                "page-not-reserved",
                hazards.elementwise,
                changes(COMPUTE, cores.PackOp, at="d0 - 1"),
            ),
            broken(
                "a page that is not fetched", "read-never-written", hazards.elementwise, drops(READER, cores.FetchOp)
            ),
        ),
    ),
    Behaviour(
        11,
        "Threads, or cores, wait for each other in a circle.",
        "run, in drawn orders and times: queues, semaphores, registers and source registers of all cores.",
        (
            broken(
                "two cores that both wait first",
                "deadlock",
                hazards.answers,
                moves(READER, cores.SemaphoreWaitOp, cores.SemaphoreIncrementOp),
            ),
            broken("a wait before the push", "deadlock", hazards.crossed, moves(READER, cores.WaitOp, cores.PushOp)),
        ),
    ),
    Behaviour(
        12,
        "A semaphore is set while it is incremented, or goes past the number that is waited for.",
        "run: by vector clocks in any order; a number beyond an exact one at once. Proof: the sum of what comes.",
        (
            broken(
                "an increment that may be lost",
                "semaphore-race",
                hazards.answers,
                all_of(
                    repeats(READER, cores.SemaphoreIncrementOp),
                    changes(READER, cores.SemaphoreWaitOp, 1, at_least=True),
                ),
            ),
            broken(
                "one of two that is waited for",
                "semaphore-race",
                hazards.many_answers,
                changes(READER, cores.SemaphoreWaitOp, value=1),
                proofs=False,
            ),
            broken(
                "an increment of two",
                "semaphore-overshoot",
                hazards.answers,
                changes(READER, cores.SemaphoreIncrementOp, value=2),
                proofs=False,
            ),
        ),
    ),
    Behaviour(
        13,
        "An increment of the core's own semaphore, a set of another one's, an increment of many.",
        "proof for the first; there is no operation for the other two. Verifier: none in the thread that computes.",
        (
            broken(
                "an increment by the network of the own one",
                "semaphore-of-own-core",
                hazards.answers,
                changes(READER, cores.SemaphoreIncrementOp, core="0, 0"),
            ),
            broken(
                "an answer to oneself",
                "semaphore-of-own-core",
                hazards.sent,
                changes(WRITER, cores.SemaphoreIncrementOp, core="0, 2"),
            ),
            broken("a semaphore set by compute", VERIFIER, also("compute", lambda b: b.set(b.semaphore(), 1))),
        ),
    ),
    Behaviour(
        14,
        "A multicast against its protocol: the sender does not wait for all others, receivers have no room, the sender "
        "is not in the group, the number changes while it is sent.",
        "proof: numbers that come are those that are waited for, the rectangle; run: room, and the number.",
        (
            broken(
                "a sender that waits for one of two",
                "semaphore-unbalanced",
                hazards.multicast,
                changes(READER, cores.SemaphoreWaitOp, value=1),
            ),
            broken(
                "a group without its sender",
                "sender-outside-rectangle",
                hazards.multicast,
                changes(READER, cores.MulticastOp, rectangle="s0, 1, s0, 2"),
            ),
            broken(
                "a receiver that signals room before it has any",
                "destination-not-reserved",
                hazards.sent,
                moves_behind(READER, cores.ReserveOp, cores.SemaphoreWaitOp, 1, 0),
            ),
            broken(
                "a number set back while it is sent",
                "semaphore-source-changed",
                hazards.multicast,
                drops(READER, cores.BarrierOp, 2),
            ),
        ),
    ),
    Behaviour(
        15,
        "Two multicasts of one thread are under way.",
        "proof, where nothing is between that could be an answer, else run. Coordinates of cores are those of the "
        "program; what they are on each network is left to what prints it.",
        (
            broken("two of pages", "multicasts-in-flight", hazards.multicast, repeats(READER, cores.MulticastOp)),
            broken(
                "two of numbers", "multicasts-in-flight", hazards.told_once, repeats(READER, cores.SemaphoreMulticastOp)
            ),
        ),
    ),
    Behaviour(
        16,
        "More tile registers are used than a half has: 8 of 16 bits, 4 of 32.",
        "proof.",
        (
            broken(
                "the ninth of 16 bits", "registers-overflow", hazards.blocks, changes(COMPUTE, cores.BinaryOp, slot=1)
            ),
            broken(
                "the fifth of 32 bits",
                "registers-overflow",
                hazards.wide_blocks,
                changes(COMPUTE, cores.PackOp, slot=1),
            ),
            broken(
                "an operand after the last",
                "registers-overflow",
                hazards.through_memory,
                changes(COMPUTE, cores.MapOp, arguments=(8,)),
            ),
        ),
    ),
    Behaviour(
        17,
        "Registers are not passed on by acquire, commit, wait and release.",
        "proof. The contents of a register are lost when it is acquired (18).",
        (
            broken(
                "without an acquire",
                "registers-not-acquired",
                hazards.elementwise,
                drops(COMPUTE, cores.RegistersOp, hazards.ACQUIRE),
            ),
            broken(
                "without a commit",
                "registers-acquired-twice",
                hazards.elementwise,
                drops(COMPUTE, cores.RegistersOp, hazards.COMMIT),
            ),
            broken(
                "packed without a wait",
                "registers-not-waited",
                hazards.elementwise,
                drops(COMPUTE, cores.RegistersOp, hazards.WAIT),
            ),
            broken(
                "without a release",
                "registers-not-released",
                hazards.one_tile,
                drops(COMPUTE, cores.RegistersOp, hazards.RELEASE),
            ),
        ),
    ),
    Behaviour(
        18,
        "A sum begins with what nothing was written to, or begins again at each step.",
        "run: registers and pages that were not written; results.",
        (
            broken(
                "a register that nothing was copied to",
                "register-never-written",
                hazards.through_memory,
                drops(COMPUTE, cores.CopyOp),
            ),
            broken(
                "pages that pack adds to first",
                "accumulate-onto-unwritten",
                hazards.accumulated,
                changes(COMPUTE, cores.AccumulateOp, 0, map="1"),
            ),
            with_other_result(
                "a sum that begins at each step",
                hazards.accumulated,
                broken_by(hazards.accumulated, changes(COMPUTE, cores.AccumulateOp, 0, map="0")),
                (64, 96),
                (96, 32),
            ),
        ),
    ),
    Behaviour(
        19,
        "A page is unpacked that the same thread packs, without waiting for it.",
        "run. Unpack and pack are threads of their own, ordered by queues only.",
        (
            broken("a wait after the copy", "unpack-before-pack", hazards.through_memory, wait_behind_copy),
            broken(
                "no wait", "unpack-before-pack", hazards.through_memory, drops(COMPUTE, cores.WaitOp, 1), proofs=False
            ),
        ),
    ),
    Behaviour(
        20,
        "Pack adds where it must not: in the next program, onto numbers that share exponents, onto nothing (18).",
        "proof. There is no other operation than addition.",
        (
            broken("left on", "accumulate-left-on", hazards.accumulated, drops(COMPUTE, cores.AccumulateOp, 1)),
            broken(
                "switched on in the end",
                "accumulate-left-on",
                hazards.accumulated,
                changes(COMPUTE, cores.AccumulateOp, 1, map="1"),
            ),
            broken(
                "onto block floats",
                "accumulate-onto-blocks",
                hazards.accumulated,
                lambda kernel: change_queue(kernel, 2, "bfp8"),
            ),
        ),
    ),
    Behaviour(
        21,
        "Queues overlap, or are not where a core's memory is, or not where transfers may begin.",
        "proof, with a table of all queues. A queue lives as long as its program, so none is used after its end.",
        (
            broken("two at one address", "memory-overlap", hazards.placed(BASE, BASE + 2048)),
            broken("beyond the memory", "out-of-memory", hazards.placed(BASE, 2**21)),
            broken("between two lines", "misaligned", hazards.placed(BASE + 2, BASE + 8192)),
        ),
    ),
    Behaviour(
        22,
        "Memory in which a thread leaves what it needs again is too small, or is used again too soon.",
        "such memory is a queue that one thread fills and empties: as 5, 10 and 21.",
        (
            broken(
                "given back before it is read",
                "unpack-before-pack",
                hazards.through_memory,
                moves(COMPUTE, cores.PopOp, cores.CopyOp, 1, 1),
            ),
            broken(
                "not given back",
                "queue-overflow",
                hazards.through_memory,
                drops(COMPUTE, cores.PopOp, 1),
                proofs=False,
            ),
        ),
    ),
    Behaviour(
        23,
        "A core has fewer queues or semaphores than a program.",
        "proof.",
        (
            broken("33 queues", "too-many-queues", hazards.with_queues(33)),
            broken("17 semaphores", "too-many-semaphores", hazards.with_semaphores(17)),
        ),
    ),
    Behaviour(
        24,
        "Pages in flight are used too soon: read before they arrive, overwritten before they are sent, or unordered.",
        "run, by vector clocks: found in any order, whether it was too soon or not.",
        (
            broken(
                "read without a barrier", "read-before-arrival", hazards.elementwise, drops(READER, cores.BarrierOp, 1)
            ),
            broken(
                "popped without a barrier", "overwritten-in-flight", hazards.elementwise, drops(WRITER, cores.BarrierOp)
            ),
            broken("ended without a barrier", "transfer-not-awaited", hazards.one_tile, drops(WRITER, cores.BarrierOp)),
            broken("signalled by a third core", "read-before-arrival", lambda: hazards.relayed(True)),
            broken(
                "read while another core writes it",
                "array-race",
                hazards.updated,
                changes(READER, cores.FetchOp, map="0, 0"),
            ),
        ),
    ),
    Behaviour(
        25,
        "A transfer begins where it may not, or is longer than what is there.",
        "whole pages move, from where queues begin (proof) to banks that take whole pages; pages beyond an array are "
        "left out. Of rows parts as wide as whole tiles move, to places that are aligned as those in DRAM (proof), and "
        "no more than the array has. Formats of both ends are the same (run), and so is what pages are (verifier).",
        (
            broken("a queue between two lines", "misaligned", hazards.placed(BASE, BASE + 4104)),
            broken("rows between two lines of DRAM", "misaligned", rows_to_tiles, with_first_queue_at(BASE + 16)),
            broken(
                "tiles of an array by rows",
                VERIFIER,
                rows_to_tiles,
                lambda kernel: exchange(kernel, READER, cores.FetchRowsOp, cores.FetchOp),
            ),
            broken("pages of another size", "other-format", hazards.with_other_format),
        ),
    ),
    Behaviour(
        26,
        "Elements beyond the edge of an array affect a result.",
        "run: arrays have NaN, or the number furthest from 0, there; `depends_on_padding` of the tests tries others.",
        (
            on_padding("a sum over the edge", lambda: programs.row_sums(2, padding=5), (32, 59)),
            on_padding(
                "a matmul without its padding",
                broken_by(compiled_product, without_padding),
                (40, 50),
                (50, 33),
                dtype="f32",
            ),
        ),
    ),
    Behaviour(
        27,
        "A view is left that nothing computes, or changes what it shows.",
        "there are no views: every operation names pages by a map of the array's own rank (verifier), and moves them "
        "in one format (verifier). The host refuses a reshape that is none.",
        (
            broken(
                "a page by one coordinate of two",
                VERIFIER,
                hazards.one_tile,
                lambda kernel: setattr(find(kernel, READER, cores.FetchOp), "map", one_coordinate()),
            ),
            broken("sent to another format", VERIFIER, hazards.sent, lambda kernel: change_queue(kernel, 2, "f16")),
        ),
    ),
    Behaviour(
        28,
        "Too much is computed at once: more queues than there are, more memory, what two threads take.",
        "the lowering counts before it joins; the program is checked as in 8, 21 and 23.",
        (
            broken("40 operands", "too-many-queues", hazards.with_queues(40)),
            broken("a queue for all of a row", "out-of-memory", hazards.placed(BASE, BASE + 2048 * 1000, 1000)),
            broken(
                "a result that two threads take",
                VERIFIER,
                also("compute", lambda b: (b.wait(first_queue(b)), b.pop(first_queue(b)))),
            ),
        ),
    ),
    Behaviour(
        29,
        "A unit is used in the state of another operation, or of another format.",
        "proof: each operation finds the states of `states_of`, on all ways to it.",
        (
            broken("not configured", "unit-not-configured", hazards.elementwise, drops(COMPUTE, cores.ConfigureOp, 2)),
            broken(
                "configured for another operation",
                "unit-configured-otherwise",
                hazards.through_memory,
                drops(COMPUTE, cores.ConfigureOp, 6),
            ),
            broken(
                "configured for another format",
                "unit-configured-otherwise",
                hazards.sums,
                changes(COMPUTE, cores.ConfigureOp, 1, state="f32"),
            ),
            broken(
                "rows unpacked as tiles",
                "unit-configured-otherwise",
                rows_to_tiles,
                changes(COMPUTE, cores.ConfigureOp, 1, state="copy none"),
            ),
            broken(
                "rows of another width",
                "unit-configured-otherwise",
                tiles_to_rows,
                changes(COMPUTE, cores.ConfigureOp, 2, state="f32 by rows of 2"),
            ),
        ),
    ),
    Behaviour(
        30,
        "Numbers are kept in other types than they are taken for.",
        "proof and run. The simulator cuts f32 to 11 bits where the matrix unit does, and rounds where registers have "
        "16: results differ as they would.",
        (
            broken(
                "integers in registers of 16 bits",
                "registers-too-narrow",
                hazards.through_memory,
                changes(COMPUTE, cores.MapOp, dtype="i32"),
            ),
            broken(
                "floats taken for integers",
                "register-of-other-type",
                lambda: programs.through_memory(2, "f32"),
                changes(COMPUTE, cores.MapOp, dtype="i32"),
            ),
            with_other_result(
                "a sum of f32 in registers of 16 bits",
                wide_matmul,
                broken_by(wide_matmul, narrow),
                (32, 96),
                (96, 32),
                dtype="f32",
            ),
        ),
    ),
    Behaviour(
        31,
        "A reduction is divided over cores, and its parts are not put together.",
        "run: two cores write one element; results.",
        (
            broken("two cores that write their part", "array-race", halves),
            with_other_result(
                "a part that is left out",
                hazards.sent,
                broken_by(hazards.sent, drops(COMPUTE, cores.MapOp, 1)),
                (32, 96),
            ),
        ),
    ),
    Behaviour(
        32,
        "Cores do not divide the work evenly: elements are left out, or written by two.",
        "run, as in 1. Cores beyond the edge move nothing, for pages beyond an array are left out.",
        (
            broken(
                "a core that begins again at the edge",
                "array-race",
                hazards.of_rows,
                all_of(on_cores(3, 1), lambda k: around(k)),
            ),
            broken(
                "a core that is idle too soon",
                "element-never-written",
                lambda: programs.elementwise(1, rows=3),
                on_cores(2, 1),
            ),
        ),
    ),
    Behaviour(
        33,
        "Cores of two programs that run at once are the same, or one's are beyond its rectangle.",
        "there is one program at a time, on one rectangle; proof: what is sent stays in it.",
        (
            broken(
                "a page to a core outside",
                "destination-outside",
                hazards.sent,
                changes(WRITER, cores.SendOp, core="1, 0"),
            ),
            broken(
                "a multicast beyond the edge",
                "destination-outside",
                hazards.multicast,
                changes(READER, cores.MulticastOp, rectangle="s0, 0, s0, 3"),
            ),
        ),
    ),
    Behaviour(
        34,
        "Something is not as it was in the beginning when a program ends.",
        "proof: queues, registers, pack; run: numbers of semaphores, transfers.",
        (
            broken(
                "a number that is not set back",
                "semaphore-not-initial",
                hazards.answers,
                drops(READER, cores.SemaphoreSetOp),
            ),
            broken("pages left", "queue-residual", hazards.elementwise, trips(READER, 5), proofs=False),
            broken(
                "pack that still adds", "accumulate-left-on", hazards.accumulated, drops(COMPUTE, cores.AccumulateOp, 1)
            ),
        ),
    ),
    Behaviour(
        35,
        "The result depends on the depth of queues, or on how many threads move data.",
        "tests: each program with queues 1 to 4 times as deep, with two movers and with one, gives the same bits.",
        (
            broken(
                "steps that fit every other depth alone",
                "block-around-the-end",
                lambda: with_depth(programs.elementwise(8, 2, 3), 1),
            ),
            broken("two movers that wait for each other", "deadlock", lambda: with_one_mover(hazards.crossed())),
        ),
    ),
)


# ---- the page -------------------------------------------------------------------------------------------------------

HEAD = """# Checks of programs for a grid of cores

A program of the `cores` dialect can be wrong in these ways. The list is that of tt-mlir's dialect of data movement,
from its issues and checks. *Verifier*: the dialect refuses the operation. *Proof*: `check_program` finds it before each
run, without one. *Run*: the simulator finds it, in any order of what happens at once. A hazard has a kind, which is in
the error's text and in its `kind`; the second table defines the kinds. Each program that is named is broken so,
and a test sees that it is caught: they are in `tests/cores/behaviours.py`, which this page is made from. In addition,
`python -m tests.cores.mutants` makes mutants of correct programs by rule.

| # | what goes wrong | where it is checked | kinds | programs that are caught |
|---|---|---|---|---|
"""


def page() -> str:
    """The text of the page."""
    lines = [HEAD]
    for each in BEHAVIOURS:
        kinds = ", ".join(
            f"`{kind}`" if kind in KINDS else kind for kind in dict.fromkeys(p.kind for p in each.programs)
        )
        names = "; ".join(program.name for program in each.programs)
        lines.append(f"| {each.number} | {each.wrong} | {each.where} | {kinds} | {names} |\n")
    lines.append("\n| kind | what it means |\n|---|---|\n")
    lines += [f"| `{kind}` | {meaning} |\n" for kind, meaning in KINDS.items()]
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
