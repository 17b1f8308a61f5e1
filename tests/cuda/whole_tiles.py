"""Products of the sizes of the instruction page, the first block of each on the emulator, or the first that share what
they copy: with the tiles, stages and layouts that a size of 4096 gets, its numbers are right and no access to shared
memory meets another in a bank.

    python -m tests.cuda.whole_tiles            all of them, many minutes: kernels that lay operands out run whole
    python -m tests.cuda.whole_tiles tf32       those whose names say so
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tilewright as tw
from tests.cuda.chips import built
from tests.emulators.cuda_driver import tensor_maps
from tests.emulators.ptx.emulator import run
from tilewright import dtypes
from tilewright.cli.bench_suites.cuda_static import CHIPS, programs
from tilewright.dialects import scheduled, tile
from tilewright.dialects.scheduled import tensor_memory
from tilewright.semantics.array import Interpreter
from tilewright.semantics.tile import poison

Tensor = np.ndarray[Any, Any]
# Of results that are rounded to 16 bits; sums of whole numbers in 32 bits are exact.
TOLERANCE = 1e-2


def products() -> list[tuple[str, Callable[..., Any], tuple[tw.ShapeDtype, ...]]]:
    """The products of the page: names, functions, and types of their arrays."""
    return [each for each in programs(quick=False) if each[0].startswith("gemm")]


def check(name: str, function: Callable[..., Any], types: Sequence[tw.ShapeDtype], chip: str) -> int:
    """Run the first block of a product's kernel; gives how many results it has stored, all of them right. The name says
    which operands lie transposed, and whether a bias and a GELU follow.

    Raises:
        AssertionError: a result is wrong, or accesses to shared memory have conflicts.
    """
    generator = np.random.default_rng(0)
    arrays = [generator.integers(-2, 3, type.shape).astype(type.dtype.numpy) for type in types]
    program = built(tw.jit(function).lower(*types), f"cuda:{chip}")
    conflicts: list[int] = []

    def first_block(callee: str, operands: Sequence[Tensor]) -> list[Tensor]:
        code, kernel, given = program.kernels[callee], program.unit.kernel(callee), iter(operands)
        refs = zip(map(tile.ref_type, kernel.refs), kernel.effects, strict=True)
        bound = [poison(type.shape, type.dtype) if effect == tile.OUT else next(given) for type, effect in refs]
        maps = tensor_maps(code.tensor_maps, bound)
        multiplies = any(
            isinstance(op, scheduled.MmaOp | tensor_memory.TensorMmaOp | tile.DotOp) for op in kernel.walk()
        )
        blocks = code.cluster if multiplies else code.blocks
        counts = run(program.ptx[callee], callee, blocks, code.threads, [*bound, *maps], code.shared_bytes)
        if multiplies:
            conflicts.append(counts.shared_conflicts)
        return [bound[-1]]

    (result,) = Interpreter(program.unit.constants, first_block).run(program.unit.main.body.block, arrays)
    untouched = poison(result.shape, dtypes.from_numpy(result.dtype))
    written = (result.view(np.uint8) != untouched.view(np.uint8)).reshape(*result.shape, -1).any(-1)
    rows, columns = (np.flatnonzero(written.any(axis)) for axis in (1, 0))
    exact = _exact(name, arrays, rows, columns)
    block = np.ix_(rows, columns)
    found, stored = result[block].astype(np.float64), written[block]
    tolerance = 0.0 if result.itemsize == 4 else TOLERANCE
    np.testing.assert_allclose(found[stored], exact[stored], rtol=tolerance, atol=tolerance)
    assert conflicts == [0]
    return int(stored.sum())


def _exact(name: str, arrays: Sequence[Tensor], rows: Tensor, columns: Tensor) -> Tensor:
    """Some rows and columns of the result, in float64."""
    left = arrays[0][:, rows].T if "a.T" in name else arrays[0][rows]
    right = arrays[1][columns].T if "b.T" in name else arrays[1][:, columns]
    product = left.astype(np.float64) @ right.astype(np.float64)
    if "gelu" not in name:
        return product
    shifted = product + arrays[2][columns].astype(np.float64)
    return shifted * 0.5 * (1 + np.vectorize(math.erf)(shifted / math.sqrt(2)))


def main() -> None:
    for chip in CHIPS:
        for name, function, types in products():
            if all(word in f"{name}, {chip}" for word in sys.argv[1:]):
                print(f"{name}, {chip}: {check(name, function, types, chip)} results", flush=True)


if __name__ == "__main__":
    main()
