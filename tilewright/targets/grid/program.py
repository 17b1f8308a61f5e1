"""The program file of a grid of cores, with the simulator that runs it.

The file holds kernels as IR text, which is parsed when it is loaded: the simulator interprets operations. The device
source is in the file, too, for the kernels that have one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np

from tilewright.cached import cached_property
from tilewright.dialects import tile
from tilewright.dtypes import by_name, from_numpy
from tilewright.errors import (
    CompilerBug,
    LayoutError,
    ProgramFileError,
    TargetError,
    TilewrightError,
    UnsupportedOnTargetError,
    VerificationError,
    user_location,
)
from tilewright.layout.catalogue.placements import parse_storage
from tilewright.machines.machine import Machine
from tilewright.passes.base import Unit
from tilewright.passes.legality import check_phase
from tilewright.passes.program_memory import plan_memory
from tilewright.runtime.arguments import check_host_output, listed_outputs
from tilewright.runtime.array_spec import ArraySpec
from tilewright.runtime.grid.code import GridCode
from tilewright.runtime.grid.program import GridFile
from tilewright.runtime.host_program import Launch, Step, all_steps, check_steps
from tilewright.runtime.manifest import Alias, Manifest, place_constants
from tilewright.runtime.shared_constants import Keep
from tilewright.semantics.cores import ProgramRun
from tilewright.targets.base import Tensor
from tilewright.targets.grid import device, machine_named
from tilewright.targets.grid.core_program import CoreProgram, core_program, has_program, ref_bytes
from tilewright.targets.grid.emit import ProgramSource
from tilewright.targets.grid.kernel_text import parsed, printed
from tilewright.targets.grid.runtime import simulated

_HELP = "compile and save the program again with this version of Tilewright"


class SavedGridProgram(GridFile):
    """A program that was saved, or can be: it runs on the simulator, or by ttnn where the environment names a simulator
    of the vendor's. The kernels of the last run on the simulator, with their cycles, are in `runs`."""

    runs: Sequence[tuple[str, ProgramRun]] = ()

    def __call__(self, *arrays: object, out: object = None) -> Tensor | tuple[Tensor, ...]:
        """Run on the inputs in the manifest's order; return the output, or a tuple unless there is exactly one.

        `out` is an array to write to, or a sequence of them for several outputs; it is returned.

        Raises:
            ArgumentError: a wrong number of arrays, or an `out` that cannot be written.
            DTypeError, ShapeError: an array is not what the manifest states.
            ProgramFileError: the file's constants are damaged; they are checked at the first call.
        """
        try:
            results = self._checked_call(arrays, out)
        except TilewrightError as error:
            error.location = error.location or user_location()
            raise
        return results[0] if len(results) == 1 else tuple(results)

    def simulate(self, *arrays: Tensor, seed: int = 0) -> list[Tensor]:
        """The results of a call whose times and orders are drawn from a seed, other than 0; those of the machine, with
        seed 0.

        Raises:
            ArgumentError, DTypeError, ShapeError: the arrays are not those that the program takes.
            HazardError: accesses of a kernel are not ordered, or a wait is never signalled.
        """
        results, self.runs = simulated(self.core, arrays, seed)
        return results

    @property
    def source(self) -> str:
        """Device source and host description of the kernels that have them."""
        return "\n".join(f"// ---- {name}\n{source}" for name, source in self.core.sources.items())

    @cached_property
    def core(self) -> CoreProgram:
        """The program with its kernels parsed.

        Raises:
            ProgramFileError: the file is damaged, or of another version.
        """
        return _read(self.manifest, self.code, self._object_bytes, self._support_bytes, self._constants)

    def _checked_call(self, arrays: Sequence[object], out: object) -> list[Tensor]:
        manifest = self.manifest
        targets = [] if out is None else listed_outputs(manifest, out)
        for spec, target in zip(manifest.outputs, targets, strict=bool(targets)):
            check_host_output(manifest, spec, target)
        self.verify()
        inputs = [np.asarray(array) for array in arrays]
        results = device.DeviceRun(self.core).run(inputs) if device.is_asked_for() else self.simulate(*inputs)
        for target, result in zip(targets, results, strict=bool(targets)):
            np.copyto(target, result)
        return targets or results


# ---- writing --------------------------------------------------------------------------------------------------------


def linked(unit: Unit, keep: Keep) -> SavedGridProgram:
    """The program of a scheduled unit as it is saved, with its constants as `keep` has them.

    Raises:
        UnsupportedOnTargetError: something in `main` does not run on a grid of cores.
    """
    plan = plan_memory(unit)
    core = core_program(unit, plan)
    host = core.host
    kept = keep({name: np.ascontiguousarray(a) for name, a in zip(host.constants, core.constants, strict=True)})
    code = GridCode(
        machine=unit.machine.name,
        machine_digest=_digest_of(unit.machine),
        host=host,
        constants=tuple(_constant_spec(n, a) for n, a in zip(host.constants, core.constants, strict=True)),
        storage=dict(core.storage),
    )
    manifest = Manifest(
        name=unit.name,
        triple=f"{unit.machine.target}:{unit.machine.name}",
        cpu=unit.machine.name,
        features=(),
        inputs=core.inputs,
        outputs=core.outputs,
        aliases=tuple(Alias(output=o, input=i) for i, o in unit.donated.items()),
        constants=place_constants([each.content.nbytes for each in kept]),
        arena_bytes=plan.arena_bytes,
        metadata={"memory_report": plan.report(), "machine": unit.machine.name},
        grid=code,
    )
    sources = msgspec.msgpack.encode(dict(_sources(core)))
    elsewhere = [(each.key, each.offset) for each in kept]
    constants = [each.content for each in kept]
    text = printed(core.kernels.values()).encode()
    return SavedGridProgram(manifest, text, sources, constants, elsewhere=elsewhere)


def _sources(core: CoreProgram) -> Iterator[tuple[str, ProgramSource]]:
    """The device source of each kernel that has one."""
    for name, kernel in core.kernels.items():
        if not has_program(kernel):
            continue
        try:
            yield name, core.source_of(kernel)
        except UnsupportedOnTargetError:
            continue  # the simulator alone runs it


def _constant_spec(name: str, array: Tensor) -> ArraySpec:
    return ArraySpec(name, array.shape, from_numpy(array.dtype).name)


def _digest_of(machine: Machine) -> str:
    """A digest of a machine's numbers, on which the cycles depend."""
    return hashlib.blake2b(repr(machine).encode(), digest_size=16).hexdigest()


# ---- reading --------------------------------------------------------------------------------------------------------


def opened(file: GridFile) -> SavedGridProgram:
    """A file that the runtime loaded, as a program that runs.

    Raises:
        ProgramFileError: it is damaged, or of another version.
    """
    program = SavedGridProgram(*file.parts)
    _ = program.core
    return program


def _read(
    manifest: Manifest, code: GridCode, content: bytes, support: bytes, constants: Sequence[Tensor]
) -> CoreProgram:
    with _refusing():
        machine = _machine(code)
        core = CoreProgram(
            name=manifest.name,
            machine=machine,
            kernels=_kernels(Unit(parsed(content.decode()), {}, machine, 1, name=manifest.name), code),
            host=code.host,
            inputs=manifest.inputs,
            outputs=manifest.outputs,
            constants=tuple(_constant(s, c) for s, c in zip(code.constants, constants, strict=True)),
            donated={alias.input: alias.output for alias in manifest.aliases},
            storage=code.storage,
            sources=msgspec.msgpack.decode(support, type=dict[str, ProgramSource]),
        )
        _check(manifest, core)
    return core


@contextmanager
def _refusing() -> Generator[None]:
    """Report contents that cannot be what `linked` wrote."""
    try:
        yield
    except (
        VerificationError,
        CompilerBug,
        LayoutError,
        msgspec.MsgspecError,
        KeyError,
        ValueError,
        RecursionError,
    ) as error:
        reason = error.message if isinstance(error, TilewrightError) else str(error)
        raise ProgramFileError(f"the program file does not hold a program for cores: {reason}", help=_HELP) from error


def _machine(code: GridCode) -> Machine:
    """The machine, whose numbers must be those that the program was compiled for."""
    try:
        machine = machine_named(code.machine)
    except TargetError as error:
        raise ProgramFileError(
            f"the program is for the machine `{code.machine}`, which is not known", help=_HELP
        ) from error
    if _digest_of(machine) != code.machine_digest:
        message = f"the program is compiled for a machine `{code.machine}` with other numbers than this one's"
        raise ProgramFileError(message, help=_HELP)
    return machine


def _kernels(unit: Unit, code: GridCode) -> dict[str, tile.KernelOp]:
    """The kernels, which must hold what is legal in scheduled programs of the machine."""
    check_phase(unit, "scheduled")
    kernels = {kernel.sym_name: kernel for kernel in unit.kernels()}
    if tuple(kernels) != code.host.kernels:
        raise ValueError("the kernels are not those of the host program")
    return kernels


def _constant(spec: ArraySpec, content: Tensor) -> Tensor:
    return content.view(by_name(spec.dtype).numpy).reshape(spec.shape)


def _check_whole_arrays(
    steps: Sequence[Step], kernels: Sequence[tuple[str, Sequence[int]]], sizes: Sequence[int]
) -> None:
    """Check that kernels take arrays and constants whole; slots of the arena may be larger than what is in them."""
    for step in all_steps(steps):
        if isinstance(step, Launch):
            name, parameters = kernels[step.kernel]
            for number, nbytes in zip(step.buffers, parameters, strict=True):
                if number < len(sizes) and nbytes != sizes[number]:
                    raise ValueError(f"kernel `{name}` takes {nbytes} bytes of an array of {sizes[number]}")


def _check(manifest: Manifest, core: CoreProgram) -> None:
    """Check that kernels, steps, arrays and storage fit together."""
    host = core.host
    arrays = [spec.nbytes for spec in (*manifest.inputs, *manifest.outputs)]
    sizes = [*arrays, *(constant.nbytes for constant in core.constants), *(slot.nbytes for slot in host.arena)]
    if (host.inputs, host.outputs) != (len(manifest.inputs), len(manifest.outputs)):
        raise ValueError("the host program has other arrays than the manifest")
    if len(host.constants) != len(core.constants):
        raise ValueError("the host program has other constants than the manifest")
    parameters = [(name, [ref_bytes(ref) for ref in core.kernels[name].refs]) for name in host.kernels]
    check_steps(manifest.name, host.steps, parameters, sizes)
    _check_whole_arrays(host.steps, parameters, sizes[: len(arrays) + len(core.constants)])
    for text in core.storage.values():
        parse_storage(text)
