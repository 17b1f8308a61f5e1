"""Check a float32 function of the vector mathematics on every input, against float64 (not part of the test suite).

    python tests/numerics/exhaustive_math.py exp
    python tests/numerics/exhaustive_math.py --stride 17 tanh erf
    python tests/numerics/exhaustive_math.py --plain tanh erf
    python tests/numerics/exhaustive_math.py --narrow sigmoid

Prints the largest error in units in the last place and where it is, and fails when it is above the stated bound.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from math_references import DOUBLE
from native_elementwise import Compiled, ElementwiseModule, host_features, ulp_errors

from tilewright import ops
from tilewright.targets.llvm.values import FLOAT, declare_features
from tilewright.targets.llvm.vector_math import SUPPORTED, ULP, emit_math

CHUNK, LANES = 1 << 22, 16
TWO_ARGUMENTS = {"atan2", "hypot", "power"}


def compiled(name: str, plain: bool, narrow: bool) -> Compiled:
    built = ElementwiseModule()
    declare_features(built.module, [] if plain else host_features())
    built.add(name, [FLOAT], FLOAT, LANES, lambda builder, values: emit_math(builder, name, values, is_narrow=narrow))
    return built.compile()


def bound(name: str, narrow: bool) -> float:
    return ops.NARROW_ULP if narrow else ULP[name, "f32"]


def check(name: str, stride: int, plain: bool, narrow: bool) -> float:
    """The largest error over every `stride`-th bit pattern."""
    code, worst, worst_at = compiled(name, plain, narrow), 0.0, 0.0
    started = time.monotonic()
    for first in range(0, 2**32, CHUNK * stride):
        bits = np.arange(first, min(first + CHUNK * stride, 2**32), stride, dtype=np.uint64).astype(np.uint32)
        values = np.resize(bits, -(-len(bits) // LANES) * LANES).view(np.float32)
        got = code.call(name, [values], np.empty_like(values))
        with np.errstate(all="ignore"):
            errors = ulp_errors(got, DOUBLE[name](values.astype(np.float64)))
        at = int(errors.argmax())
        if errors[at] > worst:
            worst, worst_at = float(errors[at]), float(values[at])
    seconds = time.monotonic() - started
    print(f"{name:8} every {stride}th: {worst:.4f} ULP at {worst_at!r} (stated {bound(name, narrow)}), {seconds:.0f} s")
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=sorted(SUPPORTED - TWO_ARGUMENTS), metavar="FUNCTION")
    parser.add_argument("--stride", type=int, default=1, help="check every N-th bit pattern")
    parser.add_argument("--plain", action="store_true", help="without what not every processor has")
    parser.add_argument("--narrow", action="store_true", help="as for results that are rounded to narrow floats")
    arguments = parser.parse_args()
    stride, plain, narrow = arguments.stride, arguments.plain, arguments.narrow
    too_large = [n for n in arguments.names if check(n, stride, plain, narrow) > bound(n, narrow)]
    if too_large:
        raise SystemExit(f"above the stated bound: {', '.join(too_large)}")


if __name__ == "__main__":
    main()
