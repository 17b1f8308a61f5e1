"""Everything that runs on a grid of cores, on both machines, with each depth of queues, one mover and two, each in an
order of events of its own: `python -m tests.cores.sweep`.

Functions of the table with each type, programs of `tests/programs.py`, and random tile kernels. `--part` names one of
them, `--kernels` how many random ones there are.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.cores.comparing import bounds_of, check
from tests.cores.compiling import MACHINES, VARIANTS, Variant, check_function, function_cases, simulated
from tests.cores.test_lowering import PRODUCTS, SUPPORTED
from tests.fuzz.tiles import check as check_kernel
from tests.fuzz.tiles import generate
from tests.numerics.test_phases import expected_of
from tilewright import dtypes

SHAPES = ((45, 70), (64, 32), (3, 33, 40))
Case = tuple[str, Callable[[], object]]


def functions() -> Iterator[Case]:
    for name, dtype in function_cases():
        for machine in MACHINES:
            for number, variant in enumerate(VARIANTS):
                shape = SHAPES[number % len(SHAPES)]
                yield (
                    f"{name} {dtype} {shape} {machine} {variant}",
                    lambda n=name, d=dtype, m=machine, v=variant, s=shape: check_function(n, d, m, v, s),
                )


def programs() -> Iterator[Case]:
    for make in SUPPORTED:
        program, arrays, expected = expected_of(make)

        def run(
            machine: str, variant: Variant, case: Any = (program, arrays, expected), name: str = make.__name__
        ) -> None:
            program, arrays, expected = case
            for got, wanted in zip(simulated(program, arrays, machine, variant), expected, strict=True):
                dtype = dtypes.from_numpy(wanted.dtype)
                check(got, wanted, dtype, bounds_of(dtype, 8, PRODUCTS.get(name, 0)))

        for machine in MACHINES:
            for variant in VARIANTS:
                yield f"{make.__name__} {machine} {variant}", lambda m=machine, v=variant, r=run: r(m, v)


def kernels(count: int) -> Iterator[Case]:
    for seed in range(count):
        machine = MACHINES[seed % 2]

        def run(seed: int = seed, machine: str = machine) -> None:
            found = check_kernel(generate(seed), (f"grid:{machine}",))
            assert not found.kind or "Unsupported" in found.kind, found.message

        yield f"random kernel {seed} {machine}", run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cores.sweep", description=__doc__)
    parser.add_argument("--part", choices=("functions", "programs", "kernels"))
    parser.add_argument("--kernels", type=int, default=500)
    arguments = parser.parse_args()
    parts: dict[str, Iterator[Case]] = {
        "functions": functions(),
        "programs": programs(),
        "kernels": kernels(arguments.kernels),
    }
    counts: Counter[str] = Counter()
    for part, cases in parts.items():
        if arguments.part not in (None, part):
            continue
        for name, run in cases:
            try:
                with np.errstate(all="ignore"):
                    run()
                counts[part] += 1
            except Exception as error:  # whatever a case raises is what is reported
                counts[f"{part} wrong"] += 1
                print(f"{name}: {type(error).__name__}: {str(error)[:300]}")
        print(f"{part}: {counts[part]} right, {counts[f'{part} wrong']} wrong", flush=True)
    return int(any(count for name, count in counts.items() if name.endswith("wrong")))


if __name__ == "__main__":
    raise SystemExit(main())
