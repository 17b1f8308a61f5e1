"""The Triton kernels that `tilewright bench` measures ours beside, in Triton's interpreter, against torch in f64.

The interpreter is chosen when Triton is imported, so a process of its own runs each group. It rounds to bf16 by cutting
off, and multiplies matrices of bf16 wrongly: products and attention are of f16 here.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

MISSING = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")

BEGIN = """
import torch
from torch.nn import functional
from tilewright.cli.bench_suites import triton_kernels as kernels

torch.manual_seed(0)
HALF, ROUNDED = 2.0**-10, 2.0**-7


def normal(*shape, dtype=torch.float16):
    return torch.randn(shape).to(dtype)


def check(found, expected, tolerance, dtype=None):
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert dtype is None or found.dtype == dtype, found.dtype
    difference = (found.double() - expected).abs().max() / expected.abs().max()
    assert difference <= tolerance, float(difference)
"""

PRODUCTS = """
for left in (False, True):
    for right in (False, True):
        for rows, columns, depth in ((256, 128, 128), (130, 70, 90)):
            a = normal(depth, rows).T if left else normal(rows, depth)
            b = normal(columns, depth).T if right else normal(depth, columns)
            check(kernels.matmul(a, b), a.double() @ b.double(), HALF, torch.float16)
"""

OTHER_PRODUCTS = """
a, b, bias = normal(130, 90), normal(90, 70), normal(70)
gelu = functional.gelu(a.double() @ b.double() + bias, approximate="tanh")
check(kernels.matmul_gelu(a, b, bias), gelu, HALF, torch.float16)
a, b = normal(3, 70, 64), normal(3, 64, 90)
check(kernels.matmul(a, b), a.double() @ b.double(), HALF, torch.float16)
a, b = normal(70, 90, dtype=torch.float32), normal(80, 90, dtype=torch.float32).T
check(kernels.matmul(a, b), a.double() @ b.double(), HALF, torch.float32)
a, b = normal(70, 96, dtype=torch.float8_e4m3fn), normal(80, 96, dtype=torch.float8_e4m3fn).T
check(kernels.matmul(a, b, torch.bfloat16), a.double() @ b.double(), ROUNDED, torch.bfloat16)
a, b = (torch.randint(-128, 128, (rows, 96), dtype=torch.int8) for rows in (70, 80))
check(kernels.matmul(a, b.T, torch.int32), a.double() @ b.T.double(), 0.0, torch.int32)
"""

ATTENTION = """
for causal in (False, True):
    for length, heads, shared, size in ((128, 2, 2, 64), (150, 4, 2, 32), (70, 2, 1, 128)):
        q = normal(2, heads, length, size)
        k, v = normal(2, shared, length, size), normal(2, shared, length, size)
        wide = (x.double() for x in (q, k, v))
        expected = functional.scaled_dot_product_attention(*wide, is_causal=causal, enable_gqa=True)
        check(kernels.attention(q, k, v, causal), expected, 2 * HALF, torch.float16)
"""

ROWS_AND_ELEMENTS = """
for dtype, tolerance in ((torch.float32, 2.0**-20), (torch.bfloat16, ROUNDED)):
    x, y = normal(37, 200, dtype=dtype), normal(37, 200, dtype=dtype)
    weight, bias = normal(200, dtype=dtype), normal(200, dtype=dtype)
    rows = torch.randint(0, 37, (50,))
    wide, other = x.double(), y.double()
    epsilon = kernels.EPSILON
    chain = (torch.tanh(wide * other + 0.5) * wide - other * 0.25).clamp(min=-1.0) + wide
    layer_norm = functional.layer_norm(wide, (200,), weight.double(), bias.double(), epsilon)
    for found, expected in (
        (kernels.softmax(x), wide.softmax(-1)),
        (kernels.layer_norm(x, weight, bias), layer_norm),
        (kernels.rms_norm(x, weight), functional.rms_norm(wide, (200,), weight.double(), epsilon)),
        (kernels.row_sum(x), wide.sum(1)),
        (kernels.column_sum(x), wide.sum(0)),
        (kernels.cumulative_sum(x), wide.cumsum(1)),
        (kernels.gelu(x), functional.gelu(wide)),
        (kernels.chain(x, y), chain),
    ):
        check(found, expected, tolerance, dtype)
    check(kernels.transpose(x), wide.T, 0.0, dtype)
    check(kernels.gather(x, rows), wide[rows], 0.0, dtype)
tall = normal(300, 70, dtype=torch.float32)
check(kernels.column_sum(tall), tall.double().sum(0), 2.0**-20)
"""


# The cases' own calls of both libraries. Torch has no cuDNN on the host, and need not have its other ways there.
PEERS = """
import numpy as np
from tilewright.cli.bench_peers import torch_to_numpy
from tilewright.cli.bench_suites import load_cases
from tilewright.cli.check import relative_difference


def tensor(array):
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"u{array.itemsize}")).view(getattr(torch, array.dtype.name))


called = set()
for suite in ("gemm", "attention", "ops"):
    for case in load_cases(suite, True, on_device=True):
        arrays = case.make_inputs(np.random.default_rng(0))
        expected = case.expected(arrays)
        for library, functions in (("torch", torch), ("triton", kernels)):
            if library == "triton" and case.multiplies == "bf16":
                continue
            ways = case.peers[library]
            for name, way in (ways if isinstance(ways, dict) else {"": ways}).items():
                try:
                    result = way(functions, *map(tensor, arrays))
                except RuntimeError as error:
                    if name not in ("with cuDNN", "with fast accumulation"):
                        raise AssertionError((case.name, library, name)) from error
                    continue
                found = case.compared(torch_to_numpy(torch, result)).astype(np.float64)
                difference = relative_difference(found, expected)
                assert difference <= 2 * case.tolerance, (case.name, library, name, difference)
                called.add((suite, library, name))
assert len(called) >= 8, called
"""


@pytest.mark.parametrize(
    "code",
    [PRODUCTS, OTHER_PRODUCTS, ATTENTION, ROWS_AND_ELEMENTS, PEERS],
    ids=["products", "other products", "attention", "rows and elements", "peers"],
)
def test_kernels_agree_with_torch(code: str) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", BEGIN + code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
