"""Memory-bound operations on a GPU: those of `ops` on matrices of 256 MiB, in f32 and some in bf16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from tilewright.cli.bench_suites import ops
from tilewright.cli.bench_suites.case import Array, Case, DeviceCase, picked
from tilewright.dtypes import by_name

# Functions of `triton_kernels` by the beginning of a case's name.
_TRITON = {
    "softmax": "softmax",
    "layer norm": "layer_norm",
    "rms norm": "rms_norm",
    "gelu": "gelu",
    "chain of 8": "chain",
    "row sum": "row_sum",
    "column sum": "column_sum",
    "transpose": "transpose",
    "cumulative sum": "cumulative_sum",
    "gather": "gather",
}
_IN_BF16 = ("softmax", "layer norm", "rms norm", "gelu")
# Whose results have a row for each column of the argument.
_BY_COLUMNS = ("column sum", "transpose")


def cases(quick: bool) -> tuple[DeviceCase, ...]:
    """Each in f32, and the commonest in bf16 too."""
    side = 32 if quick else 8192
    table, count = ((64, 32), 16) if quick else ((65536, 1024), 65536)
    # A matrix of bf16 has as many bytes.
    narrow = ops.on_matrix(2 * side, side)
    return (
        *(_on_device(case) for case in ops.on_matrix(side, side)),
        _on_device(ops.transposition((side, side), (1, 0), "")),
        _on_device(ops.running_sum((side, side), 1, " along rows")),
        _gathering(ops.gathering(table, count), count),
        *(_in_bf16(_on_device(case)) for case in narrow if case.name.startswith(_IN_BF16)),
    )


def _on_device(case: Case) -> DeviceCase:
    """A case whose result has a row, or an element, for each row or column of a matrix."""
    by_columns = case.name.startswith(_BY_COLUMNS)
    of_whole: Any = case.reference or case.peers["numpy"]

    def cut(result: Array) -> Array:
        return result[picked(result.shape[0])]

    def reference(numpy: ModuleType, x: Array, *others: Array) -> Array:
        # Others of its shape are operands as it is, and vectors go with its rows.
        rows = [each[picked(len(each))] if each.shape == x.shape else each for each in others]
        some = x[:, picked(x.shape[1])] if by_columns else x[picked(x.shape[0])]
        return of_whole(numpy, some, *rows)

    return _with_cut(case, cut, reference)


def _gathering(case: Case, count: int) -> DeviceCase:
    def reference(numpy: ModuleType, table: Array, rows: Array) -> Array:
        return table[rows[picked(count)]]

    def cut(result: Array) -> Array:
        return result[picked(count)]

    return _with_cut(case, cut, reference)


def _with_cut(case: Case, cut: Callable[[Array], Array], reference: Callable[..., object]) -> DeviceCase:
    kernel = next(kernel for name, kernel in _TRITON.items() if case.name.startswith(name))

    def triton(kernels: object, *arrays: object) -> Any:
        return getattr(kernels, kernel)(*arrays)

    return DeviceCase(
        name=f"f32 {case.name}",
        make_inputs=case.make_inputs,
        ours=case.ours,
        peers={"torch": case.peers["torch"], "triton": triton},
        flops=case.flops,
        bytes=case.bytes,
        tolerance=case.tolerance,
        reference=reference,
        cut=cut,
    )


def _in_bf16(case: DeviceCase) -> DeviceCase:
    kind = by_name("bf16")

    def inputs(generator: np.random.Generator) -> tuple[Array, ...]:
        return tuple(array.astype(kind.numpy) for array in case.make_inputs(generator))

    return replace(
        case,
        name=case.name.replace("f32", "bf16"),
        make_inputs=inputs,
        bytes=case.bytes / 2,
        tolerance=case.tolerance + kind.epsilon / 2,
        dtype="bf16",
    )
