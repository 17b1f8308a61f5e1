"""The real headers of TT-Metalium take what is printed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.cores import headers
from tests.cores.printed import (
    MACHINES,
    NAMED,
    REFUSED,
    formats_of,
    functions_of,
    is_wide,
    program_of,
    source_of,
    texts,
)
from tests.sampling import alternating, sampled
from tilewright.dialects import tile
from tilewright.errors import UnsupportedOnTargetError
from tilewright.machines import machine as machines
from tilewright.targets.grid.emit import emit_program


@pytest.fixture(scope="module")
def real_headers():
    try:
        headers.headers()
    except headers.NoHeaders as error:
        pytest.skip(str(error))


def check(kernel: tile.KernelOp, machine: str) -> dict[str, list[str]]:
    source = emit_program(kernel, machines.load(machine))
    formats, wide = formats_of(kernel), is_wide(kernel)
    checked = {role: headers.check_source(text, role, machine, formats, wide) for role, text in texts(source).items()}
    return {role: errors for role, errors in checked.items() if errors}


@pytest.mark.headers
@pytest.mark.usefixtures("real_headers")
@pytest.mark.parametrize(
    ("name", "machine"),
    alternating(NAMED, ("wormhole", "blackhole")),
)
def test_the_headers_take_what_is_printed(name, machine):
    assert not check(NAMED[name](), machine)


def _zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


COMPILED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax of a product": (lambda x, y: tw.nn.softmax(x @ y, axis=-1), (_zeros(64, 64), _zeros(64, 64))),
    "choice": (lambda x, y: tw.where(x > y, tw.exp(x) * 2 + 1, tw.tanh(y) / 3), (_zeros(5, 33, 40), _zeros(5, 33, 40))),
    "integers": (
        lambda x, y: (x * 3 + y) % 7 - x // y,
        (_zeros(33, 40, dtype=np.int32), _zeros(33, 40, dtype=np.int32)),
    ),
    "product of integers": (lambda x, y: x @ y.T + 1, (_zeros(33, 40, dtype=np.int32), _zeros(20, 40, dtype=np.int32))),
    "products and bits": (
        lambda x, y: (tw.prod(x), tw.bitcast(tw.bitcast(x, tw.i32) & y, tw.f32), tw.prod(y, axis=1)),
        (_zeros(33, 40), _zeros(33, 40, dtype=np.int32)),
    ),
    "composed": (
        lambda x, y: (tw.hypot(x, x + 1), tw.copysign(x, 2 - x), tw.sign(y), y**3),
        (_zeros(33, 40), _zeros(33, 40, dtype=np.int32)),
    ),
    "rows by index": (lambda x, i: x[i], (_zeros(40, 50), _zeros(7, dtype=np.int32))),
    "in order": (
        lambda x, y: (tw.cumsum(x, axis=0), *tw.top_k(y, 3)),
        (_zeros(33, 40), _zeros(33, 40, dtype=ml_dtypes.bfloat16)),
    ),
    "parts of a sum": (lambda x, y: tw.sum(x) + tw.max(y), (_zeros(320, 400), _zeros(320, 400, dtype=np.int32))),
    "product in trips and parts": (
        lambda x, y: tw.nn.gelu(x @ y),
        (_zeros(256, 2048, dtype=ml_dtypes.bfloat16), _zeros(2048, 256, dtype=ml_dtypes.bfloat16)),
    ),
    "narrow product": (
        lambda x, y: x @ y,
        (_zeros(128, 96, dtype=ml_dtypes.bfloat16), _zeros(96, 64, dtype=ml_dtypes.bfloat16)),
    ),
}


@pytest.mark.headers
@pytest.mark.usefixtures("real_headers")
@pytest.mark.parametrize("name", sampled([*COMPILED], 2))
def test_the_headers_take_compiled_programs(name):
    function, arrays = COMPILED[name]
    compiled: Any = tw.jit(function).lower(*arrays).compile(target="grid:wormhole")
    kernels = list(compiled.executable.unit.kernels())
    assert kernels
    assert not any(check(kernel, "wormhole") for kernel in kernels)


@pytest.mark.headers
@pytest.mark.usefixtures("real_headers")
@pytest.mark.parametrize(
    ("dtype", "wormhole_rows", "blackhole_rows"),
    sampled(
        [
            (np.float32, "x", "return"),
            (ml_dtypes.bfloat16, "return", "x"),
            (np.int32, "x", "return"),
            (np.bool_, "return", "x"),
        ],
        3,
    ),
)
def test_the_headers_take_rows(dtype, wormhole_rows, blackhole_rows):
    """Each type on each machine, one as rows that come and the other as rows that go."""
    lowered = tw.jit(lambda x: x).lower(_zeros(3, 100, 700, dtype=dtype))
    for machine, name in (("wormhole", wormhole_rows), ("blackhole", blackhole_rows)):
        compiled: Any = lowered.compile(target=f"grid:{machine}", storage={name: "row-major"})
        (kernel,) = compiled.executable.unit.kernels()
        assert not check(kernel, machine)


@pytest.mark.headers
@pytest.mark.usefixtures("real_headers")
@pytest.mark.parametrize("dtype", REFUSED)
def test_the_headers_have_all_functions(dtype):
    """One kernel with all calls: they are checked on the part that sees their declarations alone."""
    printed: list[str] = []
    includes: set[str] = set()
    for fn in functions_of(dtype):
        for numbers in (False, True):
            try:
                text = emit_program(program_of(fn, dtype, numbers), machines.load("wormhole")).compute
            except UnsupportedOnTargetError:
                continue
            assert text is not None
            includes |= {*re.findall(r"#include .*", text)}
            body = text[text.index("copy_tile(") : text.index("tile_regs_commit")]
            printed.append("{\n" + body[body.index("\n") + 1 :] + "}\n")
    assert len(printed) > 25
    source = "\n".join(sorted(includes)) + "\nvoid kernel_main() {\n" + "".join(printed) + "}\n"
    assert not headers.check_source(source, "compute", "wormhole", [dtype], wide=True, parts=["unpack"])
    assert not headers.check_source(source, "compute", "blackhole", [dtype], wide=True, parts=["unpack"])


@pytest.mark.headers
@pytest.mark.usefixtures("real_headers")
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "role", "right", "wrong", "says"),
    [
        (
            "through memory",
            "compute",
            "copy_tile(cb_in0, 0, 0)",
            "copy_tile(cb_in0, 0)",
            "no matching function for call",
        ),
        ("matmul", "compute", "tile_regs_commit()", "tile_regs_committed()", "undeclared identifier"),
        ("matmul", "reader", "cb_push_back(cb_in0, 2)", "cb_push_back(cb_in0)", "no matching function for call"),
        ("multicast", "writer", "noc_semaphore_inc(", "noc_semaphore_inc(1, 2, 3, 4, 5, ", "no matching function"),
    ],
)
def test_the_headers_refuse_what_is_wrong(name, role, right, wrong, says, machine):
    text = texts(source_of(name, machine))[role]
    assert right in text
    errors = headers.check_source(text.replace(right, wrong, 1), role, machine, parts=["math"])
    assert errors
    assert all(error.startswith("kernel.cpp:") and says in error for error in errors)
