"""The process that measures programs: `python -m tilewright.cli.hunt.worker REQUEST`.

It reads a line with a program on standard input, measures it, and writes a line with its record, until the input ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np

from tilewright.cli import worker_process
from tilewright.cli.bench_suites.case import Case, widened
from tilewright.cli.bench_worker import Request, measure
from tilewright.cli.hunt.operators import MULTIPLYING
from tilewright.cli.hunt.program import Library, Program, Record, Tensor, Type, read_program, types_of
from tilewright.dtypes import by_name
from tilewright.errors import TilewrightError
from tilewright.options import current
from tilewright.targets.base import target_named

PEERS = ("numpy", "torch", "jax")
# Differences of results that libraries may have: steps round one after another, in another order each.
_TOLERANCES = {"f64": 1e-9, "f32": 2e-3, "f16": 5e-2, "bf16": 2e-1}
_SLOW_NUMPY = {"numpy": "converts 16-bit floats one by one"}
_F32_BYTES = 4
# How many times a peer's difference is of the same order.
_AS_FAR = 4
# The error of the reference's GELU, relative to the largest element.
_REFERENCE_GELU = 1e-6


def main() -> int:
    """Serve programs until standard input ends."""
    worker_process.take_interrupts()
    try:
        return _serve()
    except (KeyboardInterrupt, BrokenPipeError):
        return 1  # the process that asked was interrupted, too, or is gone


def _serve() -> int:
    request = msgspec.json.decode(sys.argv[1], type=Request)
    channel = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    from tilewright.runtime.cpu.features import cpu_order

    cpus = cpu_order()
    if request.threads <= len(cpus):
        os.sched_setaffinity(0, cpus[: request.threads])
    for line in sys.stdin:
        channel.write(msgspec.json.encode(record_of(read_program(line), request)) + b"\n")
    return 0


def record_of(program: Program, request: Request) -> Record:
    """The measurement of a program, or the error that ours has on it."""
    try:
        record = measure(case_of(program), request)
        return record | {"agrees": record["agrees"] or is_ill_conditioned(record), "kernels": _kernels(program)}
    except TilewrightError as error:
        return {"case": str(program), "error": str(error), "agrees": False}


def is_ill_conditioned(record: Record) -> bool:
    """Whether the result of a peer is as far from the reference as ours, as where sums overflow a 16-bit float or a
    function is steep: such a difference is of the program's types."""
    ours, peers = record["max_difference"], record["peer_differences"].values()
    if ours is None:
        return None in peers
    return any(peer is None or peer >= ours / _AS_FAR for peer in peers)


def case_of(program: Program, name: str = "") -> Case:
    """The benchmark of a program, which names it where no name is given.

    Raises:
        TilewrightError: an operator does not take its operands.
    """
    import tilewright as tw

    types = types_of(program)
    result = types[-1]
    read = sum(type.nbytes for type in types[: len(program.inputs)])
    return Case(
        name=name or str(program),
        make_inputs=program.arrays,
        ours=tw.jit(partial(_run, program, "tilewright", tw)),
        peers={peer: partial(_run_peer, program, peer) for peer in PEERS},
        flops=0.0,
        bytes=float(read + result.nbytes),
        tolerance=_tolerance(program, result.dtype),
        dtype=result.dtype,
        reference=partial(_reference, program),
        unsupported=_SLOW_NUMPY if _multiplies_narrow(program, types) else {},
    )


def _multiplies_narrow(program: Program, types: Sequence[Type]) -> bool:
    """Whether a matmul or a convolution has operands of 16-bit floats, which NumPy converts one by one."""
    return any(
        step.op in MULTIPLYING and by_name(types[step.operands[0]].dtype).itemsize < _F32_BYTES
        for step in program.steps
    )


def _run(program: Program, library: str, module: Library, *arrays: Tensor) -> Tensor:
    return program.run(library, module, arrays)


def _reference(program: Program, numpy: Library, *arrays: Tensor) -> Tensor:
    """The result in f64, rounded where the program casts: NumPy has no matmul of some 16-bit floats."""
    return program.run("numpy", numpy, arrays, after=widened)


def _run_peer(program: Program, library: str, module: Library, *arrays: Tensor) -> Tensor:
    if library == "jax":
        return program.run(library, module.numpy, arrays)
    return _STORED[library](program.run(library, module, arrays), arrays)


def _stored_by_numpy(result: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """The result in memory of its own, as ours is. A view of an input takes no time, but what reads it does."""
    if not isinstance(result, np.ndarray):
        return result
    is_view = not result.flags.c_contiguous or any(np.may_share_memory(result, each) for each in inputs)
    return np.array(result, order="C") if is_view else result


def _stored_by_torch(result: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    stored = result.contiguous()
    memory = stored.untyped_storage().data_ptr()
    return stored.clone() if any(memory == each.untyped_storage().data_ptr() for each in inputs) else stored


_STORED: Mapping[str, Callable[[Tensor, Sequence[Tensor]], Tensor]] = {
    "numpy": _stored_by_numpy,
    "torch": _stored_by_torch,
}


def _tolerance(program: Program, result: str) -> float:
    """That of the narrowest float among inputs, casts and the result, or of the reference, whose GELU is not exact."""
    names = {each.dtype for each in program.inputs} | {result}
    names |= {str(step.parameters["dtype"]) for step in program.steps if step.op == "cast"}
    found = [_TOLERANCES[name] for name in names if name in _TOLERANCES]
    return max([*found, *(_REFERENCE_GELU for step in program.steps if step.op == "gelu")], default=0.0)


def _kernels(program: Program) -> Mapping[str, float]:
    """The kernels that ours runs, with their shares of the time of all."""
    import tilewright as tw

    target = target_named(current().target)[0]
    arrays = program.arrays(np.random.default_rng(0))
    lowered = tw.jit(partial(_run, program, "tilewright", tw)).lower(*arrays)
    times = lowered.compile(target.name).profile(*arrays, repeat=2)
    total = sum(time.seconds for time in times) or 1.0
    return {time.name: time.seconds / total for time in times}


if __name__ == "__main__":
    sys.exit(main())
