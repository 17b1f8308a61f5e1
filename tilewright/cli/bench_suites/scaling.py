"""How much faster more threads are: the cases of `gemm`, `attention` and `models` that are bound by multiply-adds."""

from __future__ import annotations

from tilewright.cli.bench_suites import attention, gemm, models
from tilewright.cli.bench_suites.case import Case, ScalingCase

# Below so many operations a byte the memory, which threads share, may be what takes the time; below so many in all, the
# time that it takes to begin.
LEAST_FLOPS_PER_BYTE = 20.0
LEAST_FLOPS = 2e7


def cases(quick: bool) -> tuple[ScalingCase, ...]:
    """All of the quick ones, which show no more than that they work."""
    found = (*gemm.cases(quick), *attention.cases(quick), *models.cases(quick))
    return tuple(ScalingCase(case) for case in found if quick or _is_bound_by_arithmetic(case))


def _is_bound_by_arithmetic(case: Case) -> bool:
    return case.flops >= max(LEAST_FLOPS, LEAST_FLOPS_PER_BYTE * case.bytes)
