"""The kernels in which mistakes are planted, and what they are called with."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
from msgspec.structs import replace

import tilewright as tw
from tests.cuda.chips import built
from tests.cuda.mutant_edits import SYNCHRONISES
from tests.cuda.role_kernels import RoleProduct
from tests.emulators.cuda_driver import tensor_maps
from tests.emulators.ptx.emulator import run as execute
from tests.fuzz.tiles import inputs_of
from tests.numerics.test_phases import expected_of
from tests.passes.pass_support import parse
from tests.passes.warps.test_scheduled_order_accesses import KERNELS as ARRAY_KERNELS
from tests.passes.warps.test_scheduled_order_accesses import lowered
from tests.programs import causal_attention
from tilewright.cost.tiles import MatmulTile
from tilewright.cost.warps.products import WARPGROUP, WarpSchedule
from tilewright.dialects import scheduled, tile
from tilewright.frontend.build import build_module
from tilewright.machines import machine as machines
from tilewright.machines.machine import Machine, load, with_caches
from tilewright.passes.array import array_convolve_by_products
from tilewright.passes.kernels import warp_planner
from tilewright.passes.warps import scheduled_loop_over_tiles, scheduled_order_tiles, scheduled_share_registers
from tilewright.pipelines import compile_module
from tilewright.semantics.array import Interpreter
from tilewright.semantics.scheduled import run_call
from tilewright.targets.cuda.emit import emit_kernel
from tilewright.targets.cuda.target import CudaProgram
from tilewright.targets.cuda.toolchain import COMPILER

Tensor = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Subject:
    """A kernel and what it is called with; the machine, where code is made of it, too."""

    name: str
    kernel: tile.KernelOp
    arrays: Sequence[Tensor]
    machine: Machine | None = None

    def run(self, kernel: tile.KernelOp, seed: int) -> list[Tensor]:
        """The results by the executor of schedules."""
        return run_call(kernel, self.arrays, seed)

    def emulate(self, kernel: tile.KernelOp, machine: Machine) -> None:
        """Run the code, on the emulator of PTX.

        Raises:
            SharedRace: it sees one.
        """
        code = emit_kernel(kernel, machine)
        ptx = COMPILER.ptx(code.name, code.text, machine)
        pending = iter(self.arrays)
        given: list[Tensor] = []
        for ref, effect in zip(kernel.refs, kernel.effects, strict=True):
            type = tile.ref_type(ref)
            given.append(np.zeros(type.shape, type.dtype.numpy) if effect == tile.OUT else next(pending).copy())
        parameters = [*given, *tensor_maps(code.tensor_maps, given)]
        execute(ptx, code.name, code.blocks, code.threads, parameters, code.shared_bytes)


def few_blocks(kernel: tile.KernelOp) -> tile.KernelOp:
    """The same with at most four blocks, along the last dims of the grid."""
    clone = kernel.clone()
    for op in clone.walk():
        if isinstance(op, scheduled.ParallelOp):
            left, extents = 4, list(op.shape)
            for dim in reversed(range(len(extents))):
                extents[dim] = min(extents[dim], left)
                left //= extents[dim]
            op.extents = tuple(extents)
    return clone


def subjects_of(program: CudaProgram, arrays: Sequence[Tensor], name: str) -> list[Subject]:
    """The kernels of a program, a few blocks of each."""
    unit = program.unit
    found: list[Subject] = []

    def call(callee: str, given: list[Tensor]) -> list[Tensor]:
        kernel = unit.kernel(callee)
        found.append(Subject(f"{name}, {callee}", few_blocks(kernel), [np.array(a) for a in given], unit.machine))
        return run_call(kernel, given)

    Interpreter(unit.constants, call).run(unit.main.body.block, list(arrays))
    return [each for each in found if any(isinstance(op, SYNCHRONISES) for op in each.kernel.walk())]


def role_subjects() -> list[Subject]:
    """Products that a role feeds, or that fence what they copied."""
    product = RoleProduct(m=100, n=40, k=150)
    modules = {
        "copied by a role": product.copied_by_a_role(),
        "multiplied by two": product.multiplied_twice(),
        "copied by itself": product.copied_by_itself(),
    }
    return [
        Subject(name, op, product.arrays())
        for name, module in modules.items()
        for op in module.walk()
        if isinstance(op, tile.KernelOp)
    ]


def product(x: Any) -> Any:
    return x @ x.T


def softmax(x: Any) -> Any:
    return tw.nn.softmax(x, axis=0)


def layer_norm(x: Any) -> Any:
    centred = x - tw.mean(x, axis=-1, keepdims=True)
    return centred / tw.sqrt(tw.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


def transposed(x: Any) -> Any:
    return x.T.astype(tw.f32)


def attention(x: Any) -> Any:
    return tw.nn.softmax(x @ x.T, axis=-1) @ x


# With shapes for which loops have more trips than stages, and warps depend on each other.
PROGRAMS: dict[Callable[[Any], Any], tuple[int, int]] = {
    product: (64, 608),
    softmax: (64, 96),
    layer_norm: (64, 96),
    transposed: (128, 96),
    attention: (288, 288),
}


def program_subjects(function: Callable[[Any], Any], chip: str) -> list[Subject]:
    """The kernels of one of `PROGRAMS`."""
    # So small that attention depends on all rows.
    x = (0.1 * np.random.default_rng(0).standard_normal(PROGRAMS[function])).astype(np.float16)
    program = built(tw.jit(function).lower(x), f"cuda:{chip}")
    return subjects_of(program, [x], f"{function.__name__} on {chip}")


def fused_subjects(chip: str) -> list[Subject]:
    """Attention as one kernel."""
    program, arrays, _ = expected_of(causal_attention)
    compiled = compile_module(build_module(program), program.constants, f"cuda:{chip}")
    return subjects_of(compiled, arrays, f"causal attention on {chip}")


def tensor_memory_subjects(chip: str) -> list[Subject]:
    """A product that is so large that it is done in tensor memory, where there is some."""
    x = np.random.default_rng(0).integers(-4, 5, (512, 608)).astype(np.float16)
    program = built(tw.jit(product).lower(x), f"cuda:{chip}")
    return subjects_of(program, [x], f"a large product on {chip}")


def of_heads(q: Any, k: Any, v: Any) -> Any:
    return tw.nn.attention(q, k, v)


def causal_of_heads(q: Any, k: Any, v: Any) -> Any:
    return tw.nn.attention(q, k, v, causal=True)


def chain_subjects(function: Callable[..., Any] = of_heads, chip: str = "sm_90a") -> list[Subject]:
    """Attention whose products are a chain that a warp copies for, of more steps than stages."""
    shape = (1, 1, 320, 16)
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal(shape).astype(np.float16) for _ in range(3))
    q = q if function is causal_of_heads else q[:, :, :64]
    program = built(tw.jit(function).lower(q, k, v), f"cuda:{chip}")
    return subjects_of(program, [q, k, v], f"{function.__name__} on {chip}")


def convolution_subjects() -> list[Subject]:
    """A convolution by products, whose trips are points of a grid, and the kernels around it."""
    schedule = WarpSchedule(MatmulTile(64, 16, 32), WARPGROUP, (WARPGROUP, 1), 2, load("sm_90a").family_of("wgmma"))
    generator = np.random.default_rng(0)
    x, w = (generator.integers(-4, 5, shape).astype(np.float16) for shape in ((1, 40, 4, 6), (64, 40, 3, 2)))
    with (
        patch.object(array_convolve_by_products, "_WORTH", 0.0),
        patch.object(warp_planner, "warp_schedule", lambda *_: schedule),
    ):
        program = built(tw.jit(lambda x, w: tw.nn.conv(x, w, padding=1)).lower(x, w), "cuda:sm_90a")
    return subjects_of(program, [x, w], "convolution on sm_90a")


def cluster_subjects() -> list[Subject]:
    """Products whose blocks share what they copy, in registers and in tensor memory, several tiles a block and one."""
    found: list[Subject] = []
    generator = np.random.default_rng(0)
    for chip, family, rows, columns in (("sm_90a", "wgmma", 64, 88), ("sm_100a", "tcgen05", 128, 248)):
        schedule = WarpSchedule(MatmulTile(rows, 32, 64), WARPGROUP, (WARPGROUP, 1), 2, load(chip).family_of(family))
        a, b = (generator.integers(-4, 5, shape).astype(np.float16) for shape in ((128, 136), (columns, 136)))
        for cores in (2, 100):
            small = replace(with_caches(load(chip), {"l2": 2048}), cores=cores)
            with (
                patch.object(machines, "load", lambda _, small=small: small),
                patch.object(warp_planner, "warp_schedule", lambda *_, schedule=schedule: schedule),
                patch.object(scheduled_order_tiles, "blocks_together", lambda *_: 1),
                patch.object(scheduled_loop_over_tiles, "blocks_together", lambda *_: 1),
            ):
                program = built(tw.jit(lambda x, y: x @ y.T).lower(a, b), f"cuda:{chip}")
            found += subjects_of(program, [a, b], f"pairs of blocks on {chip} with {cores} multiprocessors")
    return found


def array_subjects() -> list[Subject]:
    """Kernels in which threads of a block touch what others wrote in an array."""
    found: list[Subject] = []
    for name, (body, count) in ARRAY_KERNELS.items():
        if count:
            unit = lowered(body)
            found.append(Subject(name, unit.kernel("k"), inputs_of(unit, 0), unit.machine))
    return found


def shared_registers_subjects() -> list[Subject]:
    """A product whose warps take registers that others gave back: the example of the pass."""
    text = (inspect.getdoc(scheduled_share_registers) or "").partition("After:\n")[2]
    (kernel,) = (op for op in parse(textwrap.dedent(text)).walk() if isinstance(op, tile.KernelOp))
    generator = np.random.default_rng(0)
    arrays = [generator.integers(-4, 5, shape).astype(np.float16) for shape in ((128, 16), (16, 256))]
    return [Subject("shared registers", kernel, arrays)]


def all_subjects(chips: Sequence[str]) -> Iterator[Subject]:
    """Those that `main` judges."""
    yield from role_subjects()
    yield from shared_registers_subjects()
    yield from array_subjects()
    yield from convolution_subjects()
    yield from cluster_subjects()
    yield from tensor_memory_subjects("sm_100a")
    yield from chain_subjects()
    yield from chain_subjects(causal_of_heads)
    yield from chain_subjects(chip="sm_100a")
    yield from chain_subjects(causal_of_heads, "sm_100a")
    for chip in chips:
        for function in PROGRAMS:
            yield from program_subjects(function, chip)
        yield from fused_subjects(chip)
