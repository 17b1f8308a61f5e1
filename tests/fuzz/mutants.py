"""Planted miscompiles: does the fuzzer find them?

`python -m tests.fuzz.mutants --programs 2000` plants one mistake at a time in a process of its own, fuzzes until a
program shows it, and prints a table. A mutant changes the source of one function of the compiler; the original is
put back when its context ends.
"""

from __future__ import annotations
import __future__

import argparse
import importlib
import inspect
import multiprocessing
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from tests.fuzz.run import run_seed
from tilewright import pipelines
from tilewright.machines.machine import Model

PATIENCE_S = 120.0


class StaleMutant(Exception):
    """The text that a mutant replaces is no longer in its function."""


@dataclass(frozen=True)
class Mutant:
    """`old` becomes `new` in the source of `function`, which is `module:name` or `module:Class.name`, without
    `tilewright.` in front."""

    name: str
    function: str
    old: str
    new: str


def _simplify(name: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"passes.array.array_simplify:{function}", old, new)


def _pull(name: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"passes.kernels.tile_builder:{function}", old, new)


def _product(name: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"passes.kernels.lower_contract_group:{function}", old, new)


def _convolution(name: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"passes.kernels.lower_convolve_group:{function}", old, new)


def _attention(name: str, method: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"passes.kernels.lower_attention_group:_Kernel.{method}", old, new)


def _nest(name: str, method: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"targets.cpu.emit_nest:NestEmitter.{method}", old, new)


def _access(name: str, method: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"targets.cpu.nest_memory:NestMemory.{method}", old, new)


def _cpu(name: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"targets.{function}", old, new)


MUTANTS: tuple[Mutant, ...] = (
    # array_simplify
    _simplify(
        "transposes composed backwards", "_transpose", "inner[p] for p in permutation", "permutation[p] for p in inner"
    ),
    _simplify("minus one taken for neutral", "_is_neutral", "return value == 1", "return value in (1, -1)"),
    _simplify("inexact reciprocals", "_has_exact_reciprocal", "mantissa == 0.5", "mantissa >= 0.5"),
    _simplify(
        "operands swapped in any function", "_map", "ops.FUNCTIONS[fn].commutative and constants[0]", "constants[0]"
    ),
    _simplify(
        "constant choice inverted",
        "_select",
        "operands[1] if constants[0] else",
        "operands[1] if not constants[0] else",
    ),
    _simplify("shared without attributes", "_simplify_block", "tuple(sorted(op.properties.items()))", "()"),
    # fusion
    Mutant(
        "kernels shared without attributes",
        "passes.array.fusion:structural_key",
        "tuple(sorted(op.properties.items()))",
        "()",
    ),
    Mutant(
        "attention over any reduction",
        "passes.array.array_fuse_attention:_last_axis_reduce",
        "op.fn != fn",
        "False",
    ),
    Mutant("cycles not seen", "passes.array.fusion:_comes_back", "return True", "continue"),
    # lowering
    _pull("slice start forgotten", "_pull_slice", "c * stride + start", "c * stride"),
    _pull("reverse off by one", "_pull_reverse", "shape[d] - 1", "shape[d] - 2"),
    _pull("padding mask without upper end", "_pull_pad", "if low + n != total or interior:", "if False:"),
    _pull("concat off by one", "_pull_concat", "position, start + size)", "position, start + size - 1)"),
    _pull("negative indices not clipped", "clamp", 'b.map("maximum", limited, b.full(0, dtypes.i64))', "limited"),
    _pull(
        "update written before its start",
        "_pull_dynamic_update_slice",
        "b.position(offset), 0)",
        "b.position(offset), -1)",
    ),
    _pull(
        "window padding holds zero",
        "_pull_window_reduce",
        "b.full(_identity(op), type.dtype)",
        "b.full(0, type.dtype)",
    ),
    _pull(
        "last chunk of a long row dropped",
        "_reductions",
        "-(-sizes[d] // extents[d])",
        "sizes[d] // extents[d]",
    ),
    _pull(
        "gather of the wrong axis",
        "_pull_gather",
        "zip(indices, axes, strict=True)",
        "zip(indices, sorted(axes), strict=True)",
    ),
    _product("missing epilogue", "store_roots", "builder.pull(value, coordinates)", "builder.pull(anchor, at)"),
    _product(
        "tiles overlap by one", "tile_position", "Linear.of(counter, extent)", "Linear.of(counter, max(1, extent - 1))"
    ),
    _convolution("convolution reads past the image", "_inside", "builder.full(size,", "builder.full(size + 1,"),
    _convolution("convolution groups mixed up", "_group_start", "builder.full(channels,", "builder.full(1,"),
    _attention(
        "attention forgets to rescale", "_step", 'builder.map("multiply", carried[2], correction)', "carried[2]"
    ),
    _attention("attention sums unscaled", "_step", 'builder.map("multiply", carried[1], correction)', "carried[1]"),
    _attention("attention ends a key early", "_end", "(last.offset + 1)", "last.offset"),
    Mutant(
        "scan direction ignored",
        "passes.kernels.lower_ordered_group:_apply",
        "reverse=op.reverse",
        "reverse=False",
    ),
    Mutant(
        "scatter overwrites", "passes.kernels.lower_scatter_group:combine_updates", 'if op.fn != "set":', "if False:"
    ),
    # scheduling
    Mutant(
        "product starts from zero",
        "passes.vectors.tile_lower_to_vectors:_Lowering._accumulator",
        "return buffer, True",
        "return buffer, False",
    ),
    Mutant(
        "no room for whole register blocks",
        "passes.vectors.nest_segments:Places.padded",
        "max(round_up(type.shape[1], columns) for _, columns in blocks)",
        "type.shape[1]",
    ),
    # packing
    Mutant(
        "computed panels of one vector",
        "passes.vectors.vector_space:VectorSpace._micro_kernel",
        "packed_panels_b(right.shape, block.columns, group)",
        "packed_panels_b(right.shape, block.lanes, group)",
    ),
    Mutant(
        "constant panels in the wrong order",
        "passes.vectors.scheduled_pack_operands:pack_array",
        "np.swapaxes(steps, -1, -2)",
        "np.swapaxes(steps[..., ::-1, :, :], -1, -2)",
    ),
    Mutant(
        "last panel not packed",
        "passes.vectors.scheduled_pack_operands:_pack_at_run_time",
        "for d in others), panels)",
        "for d in others), max(1, panels - 1))",
    ),
    # memory plan
    Mutant(
        "buffer reused in the step that reads it",
        "passes.program_memory:_Planner._assign_offsets",
        "(starts[:placed] <= buffer.end) & (ends[:placed] >= buffer.start)",
        "(starts[:placed] < buffer.end) & (ends[:placed] > buffer.start)",
    ),
    Mutant(
        "views do not keep memory alive",
        "passes.array.lifetimes:all_users",
        "isinstance(use.operation, array.ReshapeOp)",
        "False",
    ),
    Mutant(
        "update of an array that is used again",
        "passes.array.lifetimes:ends_with",
        "top.is_before_in_block(op)",
        "True",
    ),
    Mutant(
        "donated array overwritten before it is read",
        "passes.program_memory:reads_where_it_writes",
        "load.is_before_in_block(s)",
        "True",
    ),
    Mutant(
        "carried arrays exchanged in place",
        "passes.program_memory:_Planner._spare_buffers",
        "root.index != position",
        "False",
    ),
    # nest emission
    _nest(
        "tail one lane short",
        "_vectors",
        "known % lanes if known is not None else None",
        "max(1, known % lanes - 1) if known is not None else None",
    ),
    _nest("masked lanes reduced", "_next", "if self.position.mask is not None and", "if False and"),
    _cpu(
        "half of the lanes dropped",
        "cpu.nest_accumulators:Accumulator.across_lanes",
        "while lanes > 1",
        "while lanes > 2",
    ),
    _nest(
        "unrolled sums dropped",
        "_joined_slots",
        "else accumulator.slots",
        "else accumulator.slots[:1]",
    ),
    _access("upper ends not guarded", "_unsure", "begins and (high < size or", "begins and (True or"),
    _cpu(
        "reductions start from zero",
        "cpu.nest_accumulators:identity_of",
        "function.identity(array_type(reduce.operands[0]).dtype)",
        "0",
    ),
    _cpu("other side of a branch", "cpu.index_sets:IndexSets.holds", "bool(parts[", "not bool(parts["),
    # dot emission
    _cpu(
        "depth tail dropped",
        "cpu.atoms.micro_kernel:MicroKernel._whole_depth",
        "whole, steps, 1, totals)",
        "whole, whole, 1, totals)",
    ),
    _cpu(
        "rows of blocks too close",
        "cpu.emit_dot:_Product._emit_block",
        "multiply(builder, row, pitch)",
        "multiply(builder, row, self.op.shape[1])",
    ),
    _cpu(
        "last rows one too few",
        "cpu.emit_dot:_Product._emit_blocks",
        "self._emit_block(panel, done, rest, None)",
        "self._emit_block(panel, done, max(1, rest - 1), None)",
    ),
    _cpu(
        "last panel one column short",
        "cpu.emit_dot:_Product.emit",
        "self._emit_panel(whole, tail)",
        "self._emit_panel(whole, tail - 1)",
    ),
    _cpu(
        "rows of a left operand as far apart as they are long",
        "cpu.emit_dot:_Product._emit_block",
        "Walk(a, left.depth_stride, left.row_stride)",
        "Walk(a, left.depth_stride, self.op.shape[2])",
    ),
    _cpu(
        "one vector of the columns kept for later rows",
        "cpu.atoms.micro_kernel:MicroKernel._keep",
        "enumerate(columns)",
        "enumerate(columns[:1])",
    ),
    # ordered emission
    _cpu("sort always ascending", "cpu.emit_sort:emit_sort", "op.descending", "False"),
    _cpu("negative numbers backwards", "cpu.ordered_keys:rank", "builder.xor(pattern, turned)", "pattern"),
    _cpu("lanes compared with themselves", "cpu.sorting_network:Network._lanes_in_order", "n < n ^ distance", "n >= 0"),
    _cpu("the k smallest", "cpu.emit_top_k:emit_top_k", "descending=True", "descending=False"),
    _cpu(
        "totals before a vector forgotten",
        "cpu.emit_scan:_Scan.line",
        "self.combine(carried, whole), before",
        "whole, before",
    ),
    _cpu("a lane too many in a scan", "cpu.emit_scan:_Scan.within", "distance *= 2", "distance += 1"),
    _cpu(
        "last of equal winners",
        "cpu.emit_arg_reduce:_ArgReduce.take",
        "precedes(builder, self.fn, self.dtype, value, kept)",
        "builder.not_(precedes(builder, self.fn, self.dtype, kept, value))",
    ),
    # functions
    _cpu(
        "quotients rounded to zero",
        "llvm.integer_division:_through_float",
        'intrinsic(b, "floor", [quotient])',
        "quotient",
    ),
    _cpu("unsigned quotients signed", "llvm.integer_division:_through_float", "b.fptoui", "b.fptosi"),
    _cpu("remainders of any sign", "llvm.integer_division:_needs_floor", "(inexact", "(b.not_(inexact)"),
    _cpu(
        "16-bit results not rounded",
        "llvm.functions:emit_function",
        "if exact or result.type",
        "if True or result.type",
    ),
    # conversions
    _cpu(
        "bf16 ties away from zero",
        "llvm.conversions:_rounded_to_bf16",
        "builder.add(last_kept, splat(bits.type, 0x7FFF))",
        "splat(bits.type, 0x8000)",
    ),
    _cpu(
        "signed integers widened with zeros",
        "llvm.conversions:_resize",
        "builder.sext(value, result) if source.is_signed else",
        "",
    ),
    _cpu(
        "unsigned integers taken for signed",
        "llvm.conversions:_integer_to_float",
        "if source.is_signed else builder.uitofp",
        "if True else builder.uitofp",
    ),
)
BY_NAME = {m.name: m for m in MUTANTS}


# ---- planting -------------------------------------------------------------------------------------------------------


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The compiler with one mistake.

    Raises:
        StaleMutant: the function no longer holds the text.
    """
    module_name, _, path = mutant.function.partition(":")
    module = importlib.import_module(f"tilewright.{module_name}")
    _import_compiler()
    *owners, name = path.split(".")
    owner: Any = getattr(module, owners[0]) if owners else module
    original = inspect.getattr_static(owner, name)
    changed = _rewritten(mutant, module, original, name)
    places = [(owner, name)] if owners else _places(original)
    for holder, key in places:
        _put(holder, key, changed)
    try:
        yield
    finally:
        for holder, key in places:
            _put(holder, key, original)


def _import_compiler() -> None:
    """Import what compiling imports on demand: a module imported while a mutant is planted would keep it."""
    importlib.import_module("tilewright.targets.cpu.target")
    pipelines.array_to_tile(Model.VECTORS)
    pipelines.tile_to_vectors()


def _rewritten(mutant: Mutant, module: ModuleType, original: Any, name: str) -> Any:
    source = textwrap.dedent(inspect.getsource(original))
    if mutant.old not in source:
        raise StaleMutant(f"`{mutant.function}` does not contain `{mutant.old}`: rewrite the mutant `{mutant.name}`")
    text = source.replace(mutant.old, mutant.new)
    scope: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    # The new function must see the module's own names.
    exec(compile(text, f"<mutant {mutant.name}>", "exec", flags, dont_inherit=True), vars(module), scope)
    return scope[name]


def _places(original: Any) -> list[tuple[Any, Any]]:
    """Every module name and table entry that holds a function."""
    found: list[tuple[Any, Any]] = []
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("tilewright") or module is None:
            continue
        for key, value in list(vars(module).items()):
            if value is original:
                found.append((module, key))
            elif isinstance(value, dict) and not key.startswith("__"):
                found.extend((value, inner) for inner, entry in value.items() if entry is original)
    return found


def _put(holder: Any, key: Any, value: Any) -> None:
    if isinstance(holder, dict):
        holder[key] = value
    else:
        setattr(holder, key, value)


# ---- hunting --------------------------------------------------------------------------------------------------------


def kind_of(seed: int) -> str:
    """How the array program of a seed fails; empty if it does not."""
    return run_seed(seed)[1].kind


def hunt(mutant: Mutant, seeds: range, kind_of: Callable[[int], str] = kind_of) -> tuple[int, str] | None:
    """How many programs it took to find a mutant, and how it showed; None when none of the seeds does."""
    for count, seed in enumerate(seeds, 1):
        with planted(mutant):
            kind = kind_of(seed)
        if kind and not kind_of(seed):
            return count, kind
    return None


def _hunt_and_tell(connection: Connection, name: str, seeds: range) -> None:
    for seed in seeds:
        connection.send(seed)
        found = hunt(BY_NAME[name], range(seed, seed + 1))
        if found is not None:
            connection.send((seed, found[1]))
            return
    connection.close()


def hunt_in_process(mutant: Mutant, seeds: range) -> tuple[int, str] | None:
    """`hunt` in a process of its own, so that a crash or an endless loop counts as found."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_hunt_and_tell, args=(sender, mutant.name, seeds), daemon=True)
    process.start()
    sender.close()
    current = seeds.start
    try:
        while True:
            if not receiver.poll(PATIENCE_S):
                return current - seeds.start + 1, "hang"
            message = receiver.recv()
            if isinstance(message, tuple):
                return message[0] - seeds.start + 1, message[1]
            current = message
    except EOFError:
        process.join()
        return None if process.exitcode == 0 else (current - seeds.start + 1, f"crash {process.exitcode}")
    finally:
        process.kill()
        process.join()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.mutants", description=__doc__)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="part of a mutant's name")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.programs)
    chosen = [m for m in MUTANTS if arguments.only in m.name]
    missed = 0
    for number, mutant in enumerate(chosen, 1):
        start = time.monotonic()
        found = hunt_in_process(mutant, seeds)
        missed += found is None
        result = "NOT FOUND" if found is None else f"after {found[0]:4} programs: {found[1]}"
        print(f"{number:2}  {mutant.name:42} {result}  ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found within {arguments.programs} programs each")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
