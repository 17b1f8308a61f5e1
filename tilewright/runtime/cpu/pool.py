"""The support library of this process, loaded once per support object: the thread pool, the entry from Python and the
memory of outputs."""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading

import msgspec

from tilewright.locks import Lock
from tilewright.runtime.abi import POOL_BYTES, PoolAnchor, PoolState, SignalsAnchor
from tilewright.runtime.cpu import elf
from tilewright.runtime.cpu.features import cpu_order
from tilewright.runtime.memory import map_pages, map_wiped_on_fork


class Support(msgspec.Struct, frozen=True):
    """Addresses of `tw_parallel`, `tw_run`, `tw_run_unlocked` and `tw_call`, of the state of the pool after them, and
    of `tw_new_array`, `tw_blocks` and `tw_block_functions`."""

    parallel: int
    run: int
    run_unlocked: int
    call: int
    state: int
    new_array: int
    blocks: int
    block_functions: int


class Team(msgspec.Struct, frozen=True):
    """The addresses of `GOMP_parallel`, `omp_get_thread_num` and `omp_get_max_threads` of an OpenMP runtime."""

    run: int
    rank: int
    size: int

    @staticmethod
    def of(library: str) -> Team | None:
        """The runtime that a shared library which is loaded uses; None where it is not loaded or uses none."""
        try:
            loaded = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            # Symbols of a library are those of the libraries that it needs, too.
            names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_max_threads")
            addresses = [ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0 for name in names]
        except (OSError, AttributeError):
            return None
        return Team(*addresses)


# The team whose threads run the jobs of this process; none in a forked child, where OpenMP runtimes have lost theirs.
_team: Team | None = None
_loaded: dict[bytes, Support] = {}
# Addresses of the `tw_signals` of all support objects.
_signals: list[int] = []
_lock = Lock()


def load_support(support_object: bytes) -> Support:
    """Load a support object, or find it loaded. Its workers start with the first parallel job and never end.

    Raises:
        ProgramFileError: the object cannot be loaded.
        ResourceExhausted: no memory for it.
    """
    digest = hashlib.blake2b(support_object, digest_size=32).digest()
    with _lock:
        if digest not in _loaded:
            _loaded[digest] = _load(support_object)
        return _loaded[digest]


def run_in(team: Team | None) -> None:
    """Run all jobs of this process from now on in a team's threads, which spin anyway; None: in workers of the pool."""
    global _team
    with _lock:
        _team = team
        for support in _loaded.values():
            _lend(team, support.state)


def _lend(team: Team | None, state: int) -> None:
    pool = PoolState.from_address(state)
    if team is None:
        pool.team_run = None
        return
    # The function that starts a region comes last: a job of another thread may look at the state now.
    pool.team_rank, pool.team_size = team.rank, team.size
    pool.team_run = team.run


def _load(support_object: bytes) -> Support:
    library = elf.load(support_object)
    # Workers run inside it until the process ends.
    library.keep()
    state = map_wiped_on_fork(POOL_BYTES)
    cpus = cpu_order()
    cpu_table = (ctypes.c_int32 * len(cpus))(*cpus)
    kept_table = map_pages(ctypes.sizeof(cpu_table))
    ctypes.memmove(kept_table, cpu_table, ctypes.sizeof(cpu_table))
    anchor = PoolAnchor.from_address(library.address("tw_pool"))
    _lend(_team, state)
    anchor.state, anchor.cpus, anchor.cpu_count = state, kept_table, len(cpus)
    _signals.append(library.address("tw_signals"))
    _name_main_thread()
    return Support(
        parallel=library.address("tw_parallel"),
        run=library.address("tw_run"),
        run_unlocked=library.address("tw_run_unlocked"),
        call=library.address("tw_call"),
        state=state,
        new_array=library.address("tw_new_array"),
        blocks=library.address("tw_blocks"),
        block_functions=library.address("tw_block_functions"),
    )


def _name_main_thread() -> None:
    """Store in the support objects the id of the thread on which Python runs signal handlers; in a forked child it is
    the one that forked."""
    for address in _signals:
        SignalsAnchor.from_address(address).main_thread = threading.main_thread().ident or 0


def _forget_team() -> None:
    global _team
    _team = None


os.register_at_fork(after_in_child=_name_main_thread)
os.register_at_fork(after_in_child=_forget_team)
