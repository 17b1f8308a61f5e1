"""From a traced program to an executable: through the compile cache where the target makes program files.

A hit loads the program file and imports neither the IR framework nor LLVM. Looking at the stages of a program that came
from the cache compiles it again, which gives the same code.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tilewright import events
from tilewright.errors import (
    CpuFeatureError,
    ProgramFileError,
    TilewrightError,
    ToolFailure,
    UnsupportedOnTargetError,
)
from tilewright.frontend.trace import Graph, digest
from tilewright.options import current, options
from tilewright.runtime.cache import CompileCache, unwatched_cache
from tilewright.runtime.cpu.features import default_threads
from tilewright.runtime.garbage import no_collections
from tilewright.runtime.program import AnyProgram, load
from tilewright.runtime.shared_constants import Keep, SharedConstants
from tilewright.runtime.sources import COMPILER
from tilewright.schedules import Request, to_json
from tilewright.targets.base import Executable, KernelTime, LinkedExecutable, Tensor, target_named

if TYPE_CHECKING:
    from tilewright.cost.program import ProgramCost
    from tilewright.passes.base import Unit

Donations = Sequence[tuple[int, int]]
Constants = Mapping[str, Tensor]
Built = TypeVar("Built")


def compile_graph(
    graph: Graph,
    target: str,
    donate: Donations = (),
    storage: Mapping[int, str] | None = None,
    schedule: Request | None = None,
) -> Executable:
    """Compile a traced program for `cpu`, `cpu:x86-64-v3`, `cuda:sm_90a`, `grid`, `interp` or `null`; `donate` pairs
    inputs with the outputs that take their memory. `storage`: formats by the index of an input, or of an output after
    all inputs. `schedule`: schedules of kernels by name, or one for every kernel of its kind, in place of those that
    the cost model chooses.

    Raises:
        TargetError: the string names no target or machine.
        ScheduleError: a kernel or the machine does not admit its schedule.
        UnsupportedOnTargetError: the target does not store arrays in such a format.
    """
    manifest, machine_name = target_named(target)
    for text in (storage or {}).values():
        if manifest.check_storage is None:
            what = f"the target {target} does not store `{text}`"
            raise UnsupportedOnTargetError(what, help="leave the storage out: arrays have NumPy's layout")
        manifest.check_storage(text)
    if manifest.program_files and (manifest.opens_anywhere or not machine_name):
        return CompiledGraph(graph, target, tuple(donate), schedule)
    return build_executable(graph, target, donate, storage=storage, schedule=schedule)


def build_executable(
    graph: Graph,
    target: str,
    donate: Donations,
    *,
    keep_stages: bool = True,
    constants: Constants | None = None,
    storage: Mapping[int, str] | None = None,
    schedule: Request | None = None,
) -> Executable:
    """Run the whole compiler. The texts of the stages cost time: only looking at them needs them. `constants` are the
    captured arrays, by default safe copies."""
    _start(target)
    # A process that finds its programs in the cache imports none of these.
    from tilewright import pipelines
    from tilewright.frontend.build import build_module

    captured = graph.snapshot() if constants is None else constants
    module = build_module(graph)
    return pipelines.compile_module(module, captured, target, donate, graph.name, keep_stages, storage, schedule)


def _start(target: str) -> None:
    """Start the work of the target that needs no program."""
    manifest, machine_name = target_named(target)
    if manifest.start is not None:
        manifest.start(machine_name)


class CompiledGraph(LinkedExecutable):
    """A program that the compile cache keeps: the runnable code at once, its stages when they are asked for.

    Without the cache, code that may be for another machine is linked when it is first run or saved.
    """

    def __init__(
        self, graph: Graph, target: str, donate: tuple[tuple[int, int], ...], schedule: Request | None = None
    ) -> None:
        self._graph = graph
        self._target = target
        self._donate = donate
        self._schedule = schedule
        self._threads = current().threads or default_threads()
        self._trace_file = current().trace_file
        self._built: Executable | None = None
        self._cache_state = "off"
        self._program: AnyProgram | None = self._obtain()

    @property
    def program(self) -> AnyProgram:
        """The runnable program."""
        if self._program is None:
            self._program = self.built.program
        return self._program

    @property
    def built(self) -> Executable:
        """The target's own executable, with its stages; compiled on first use."""
        if self._built is None:
            self._built = self._with_stages()
        return self._built

    @property
    def unit(self) -> Unit:
        return self.built.unit

    @property
    def cache_state(self) -> str:
        return self._cache_state

    def link(self, keep: Keep) -> AnyProgram:
        return self.built.link(keep)

    def ir(self, phase: str) -> str:
        return self.built.ir(phase)

    def asm(self) -> str:
        return self.built.asm()

    def cost(self) -> ProgramCost:
        return self.built.cost()

    def profile(self, arrays: Sequence[Any], repeat: int) -> list[KernelTime]:
        return self.built.profile(arrays, repeat)

    def explain(self) -> str:
        return self.built.explain()

    def save(self, path: str, inputs: Sequence[str] = ()) -> None:
        """Saved programs record no zones."""
        device = self.program.manifest.device
        if device is None or not device.records_zones:
            self.program.save(path, inputs)
            return
        with options(threads=self._threads, trace_file=None):
            self._compiled(keep_stages=False).save(path, inputs)

    def _with_stages(self) -> Executable:
        with options(threads=self._threads, trace_file=self._trace_file):
            return self._compiled()

    def _compiled(self, *, keep_stages: bool = True, constants: Constants | None = None) -> Executable:
        return build_executable(
            self._graph,
            self._target,
            self._donate,
            keep_stages=keep_stages,
            constants=constants,
            schedule=self._schedule,
        )

    def _obtain(self) -> AnyProgram | None:
        """The program; None where it is built and is linked when it is wanted, which may be never on this machine."""
        cache = unwatched_cache()
        if cache is None:
            return self._timed(self._build)
        compiler = COMPILER.digest(cache.home)
        if compiler is None:
            events.emit("cache.compiler_changed", directory=cache.home, help="start the process again")
            return self._timed(self._build)
        key = self._key(compiler)
        shared = SharedConstants(cache)
        found = self._from_cache(cache, key, shared)
        if found is not None:
            return found
        return self._build_once(cache, key, shared)

    @no_collections()
    def _build_once(self, cache: CompileCache, key: str, shared: SharedConstants) -> AnyProgram | None:
        """The program, built by one of the processes that want it at once."""
        _start(self._target)  # before the lock, whose library takes a while to import
        with cache.lock(key):
            found = self._from_cache(cache, key, shared)
            if found is not None:
                return found
            self._cache_state = "miss"
            program = self._timed(lambda: self._build_or_look(shared))
            if program is None:
                return None
            # An upgrade in the meantime may have given it modules of another version.
            if COMPILER.are_as_imported():
                cache.put(key, program.save_beside_constants, {"name": self._graph.name, "target": self._target})
            return program

    def _from_cache(self, cache: CompileCache, key: str, shared: SharedConstants) -> AnyProgram | None:
        path = cache.get(key)
        if path is None:
            return None
        program = _load_or_drop(cache, key, path, shared)
        if program is not None:
            self._cache_state = "hit"
        return program

    def _timed(self, build: Callable[[], Built]) -> Built:
        start = time.perf_counter()
        with no_collections():
            program = build()
        events.emit("compile", name=self._graph.name, target=self._target, seconds=time.perf_counter() - start)
        return program

    def _build(self) -> AnyProgram | None:
        if target_named(self._target)[0].opens_anywhere:
            self._built = self._with_stages()
            return None
        return self._compiled(keep_stages=False).program

    def _build_or_look(self, shared: SharedConstants) -> AnyProgram | None:
        """The program; None where the tools to link it are not there but it can be looked at."""
        try:
            return self._build_beside(shared)
        except ToolFailure:
            if not target_named(self._target)[0].opens_anywhere:
                raise
            shared.discard()
            return self._build()

    def _build_beside(self, shared: SharedConstants) -> AnyProgram:
        """Compile with the captured arrays as stored: whether they were written to is seen when all is read."""
        constants = self._graph.constants
        built = self._compiled(keep_stages=False, constants=constants)
        program = built.link(shared.keep)
        try:
            self._graph.check_unchanged(constants)
        except TilewrightError:
            shared.discard()
            raise
        return program

    def _key(self, compiler: str) -> str:
        manifest, machine_name = target_named(self._target)
        parts = (
            digest(self._graph),
            repr(self._donate),
            repr(manifest.machine_named(machine_name)),
            str(self._threads),
            "" if self._schedule is None else to_json(self._schedule),
            "with zones" if self._trace_file is not None else "without zones",
            compiler,
        )
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=20).hexdigest()


def _load_or_drop(cache: CompileCache, key: str, path: Path, shared: SharedConstants) -> AnyProgram | None:
    """A program that cannot be read counts as a miss and is removed."""
    try:
        program = load(path, shared.find)
        program.verify()
        return program
    except (ProgramFileError, CpuFeatureError, OSError) as error:
        events.emit("cache.damaged", key=key, reason=str(error))
        cache.remove(key)
        return None
