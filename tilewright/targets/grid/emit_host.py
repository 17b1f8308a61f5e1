"""The host program as Python: a descriptor for `ttnn.generic_op` of ttnn 0.81.

The function that is printed takes the sources of the kernels by role, and the arrays in the order of the kernel, as
tensors in tiles whose pages are dealt over the banks of DRAM, or as it states at its beginning that they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tilewright.dialects import cores
from tilewright.errors import UnsupportedOnTargetError
from tilewright.layout.catalogue.device_tiles import FORMATS, TileFormat
from tilewright.targets.grid.emit_movers import scratch_bytes
from tilewright.targets.grid.emit_thread import Facts, ThreadSource

_FORMATS = {
    "f32": "ttnn.float32",
    "bf16": "ttnn.bfloat16",
    "bfp8": "ttnn.bfloat8_b",
    "i32": "ttnn.int32",
    "u32": "ttnn.uint32",
}


def host_text(facts: Facts, threads: Sequence[ThreadSource]) -> str:
    """A module of Python that describes the program."""
    rows, columns = facts.program.shape
    names = list(facts.array_names.values())
    arrays = ", ".join(names)
    needs_cores = any(thread.needs_cores for thread in threads)
    lines = [
        *_title(facts),
        "",
        "import ttnn",
        "",
        f"ROWS, COLUMNS = {rows}, {columns}",
        "CORES = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(COLUMNS - 1, ROWS - 1))])",
        "",
        "",
        "def queue(index, data_format, page_bytes, pages):",
        "    format = ttnn.CBFormatDescriptor(buffer_index=index, data_format=data_format, page_size=page_bytes)",
        "    return ttnn.CBDescriptor(total_size=pages * page_bytes, core_ranges=CORES, format_descriptors=[format])",
        "",
        "",
    ]
    if any(thread.arrays for thread in threads):
        lines += [
            "def accessors(*arrays):",
            "    described = [ttnn.TensorAccessorArgs(array).get_compile_time_args() for array in arrays]",
            "    return [argument for arguments in described for argument in arguments]",
            "",
            "",
        ]
    if any(thread.core_arguments for thread in threads):
        lines += [
            "def for_each_core(arguments):",
            "    arguments_of = ttnn.RuntimeArgs()",
            "    for row in range(ROWS):",
            "        for column in range(COLUMNS):",
            "            arguments_of[column][row] = arguments(row, column)",
            "    return arguments_of",
            "",
            "",
        ]
    if needs_cores:
        lines += [
            "def places_of_cores(device):",
            '    """NoC coordinates: x of each column of cores, then y of each row."""',
            "    along_row = [device.worker_core_from_logical_core(ttnn.CoreCoord(c, 0)) for c in range(COLUMNS)]",
            "    along_column = [device.worker_core_from_logical_core(ttnn.CoreCoord(0, r)) for r in range(ROWS)]",
            "    return [core.x for core in along_row] + [core.y for core in along_column]",
            "",
            "",
        ]
    device = "device, " if needs_cores else ""
    lines += [f"def describe({device}sources, {arrays}):", *(f"    {line}" for line in _body(facts, threads, names))]
    return "\n".join(lines) + "\n"


def _title(facts: Facts) -> list[str]:
    rows, columns = facts.program.shape
    title = f'"""`{facts.kernel.sym_name}` on {rows} x {columns} cores.'
    placed = [
        f"`{name}` is {'by rows' if pages.is_row_major else f'in {pages.place}, shards in tiles and their cores'}."
        for ref, name in facts.array_names.items()
        if (pages := cores.stored_pages(ref)).place
    ]
    return [f'{title}"""'] if not placed else [title, "", *placed, '"""']


def _body(facts: Facts, threads: Sequence[ThreadSource], names: Sequence[str]) -> list[str]:
    lines = ["cbs = ["]
    for number, op in enumerate(facts.program.queues):
        type = cores.queue_type(op.result)
        lines.append(
            f"    queue({number}, {_format(type.tile_format)}, {type.tile_format.page_bytes}, {type.pages}),"
            f"  # {facts.queue_names[op.result]}"
        )
    first = len(facts.program.queues)
    for thread in threads:
        if thread.has_scratch:
            number = first + cores.ROLES.index(thread.role)
            size = scratch_bytes(facts)
            lines.append(f"    queue({number}, ttnn.uint32, {size}, 1),  # cb_scratch of the {thread.role}")
    semaphores = [
        f"    ttnn.SemaphoreDescriptor(id={number}, core_ranges=CORES, initial_value={op.initial}),"
        f"  # {facts.semaphore_names[op.result]}"
        for number, op in enumerate(facts.program.semaphores)
    ]
    lines += ["]", *(["semaphores = [", *semaphores, "]"] if semaphores else []), *_modes(facts), "kernels = ["]
    for thread in threads:
        lines += [f"    {line}" for line in _kernel(thread, names, facts.wide)]
    given = "semaphores" if semaphores else "[]"
    return [*lines, "]", f"return ttnn.ProgramDescriptor(kernels=kernels, semaphores={given}, cbs=cbs)"]


def _format(format: TileFormat) -> str:
    if format.name not in _FORMATS:
        raise UnsupportedOnTargetError(f"ttnn has no tensors of {format.name}", help="use bf16 or f32")
    return _FORMATS[format.name]


def _kernel(thread: ThreadSource, names: Sequence[str], wide: bool) -> list[str]:
    used = [names[number] for number in thread.arrays]
    common = [f"{name}.buffer_address()" for name in used]
    common += ["*places_of_cores(device)"] if thread.needs_cores else []
    own = [{"core_row": "row", "core_column": "column"}[name] for name in thread.core_arguments]
    lines = [
        "ttnn.KernelDescriptor(",
        f'    kernel_source=sources["{thread.role}"],',
        "    source_type=ttnn.KernelDescriptor.SourceType.SOURCE_CODE,",
        "    core_ranges=CORES,",
    ]
    if used:
        lines.append(f"    compile_time_args=accessors({', '.join(used)}),")
    if common:
        lines.append(f"    common_runtime_args=[{', '.join(common)}],")
    if own:
        lines.append(f"    runtime_args=for_each_core(lambda row, column: [{', '.join(own)}]),")
    return [*lines, f"    config={_config(thread, wide)},", "),"]


def _config(thread: ThreadSource, wide: bool) -> str:
    """The reader runs on the second of the two processors that move data, the writer on the first."""
    if thread.role == cores.COMPUTE:
        return "compute"
    processor = 1 if thread.role == cores.READER else 0
    return (
        f"ttnn.DataMovementConfigDescriptor(processor=ttnn.DataMovementProcessor.RISCV_{processor}, "
        f"noc=ttnn.NOC.NOC_{thread.noc or 0})"
    )


def _modes(facts: Facts) -> list[str]:
    """How tiles are unpacked: those of 32 bits that the matrix unit does not need go to the registers as they are."""
    if not any(thread.computes for thread in facts.program.threads):
        return []
    lines = [
        "compute = ttnn.ComputeConfigDescriptor(",
        f"    math_fidelity=ttnn.MathFidelity.HiFi4, fp32_dest_acc_en={facts.wide}, math_approx_mode=False",
        ")",
    ]
    # Of those that the matrix unit reads, too, copies are cut to tf32.
    exact = [number for number, op in enumerate(facts.program.queues) if _is_only_copied(op.result)]
    if exact:
        lines += [
            "modes = [ttnn.UnpackToDestMode.Default] * 64  # as many as the host counts, on any chip",
            f"for index in {exact}:",
            "    modes[index] = ttnn.UnpackToDestMode.UnpackToDestFp32",
            "compute.unpack_to_dest_mode = modes",
        ]
    return lines


def _is_only_copied(queue: SSAValue) -> bool:
    """Whether f32 pages of a queue go to the registers, and nowhere else."""
    uses = [use.operation for use in queue.uses]
    others = (cores.BinaryOp, cores.MatmulOp, cores.ReduceOp)
    copied = any(isinstance(op, cores.CopyOp | cores.TilizeOp) for op in uses) and not any(
        isinstance(op, others) for op in uses
    )
    return copied and cores.queue_type(queue).tile_format is FORMATS["f32"]
