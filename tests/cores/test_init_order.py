"""The order of init calls in compute kernels is one that the vendor's asserts take and its units need."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.cores.compiling import compiled
from tests.cores.init_order import check_init_order
from tests.cores.printed import MACHINES, NAMED, source_of
from tests.programs import Program
from tilewright.machines import machine as machines
from tilewright.targets.grid.emit import emit_program

FUNCTIONS: dict[str, Any] = {
    "sums of rows": lambda x: tw.sum(x, axis=1),
    "largest of columns": lambda x: tw.max(x, axis=0),
    "total": lambda x: tw.sum(x) * 2,
    "softmax": lambda x: tw.nn.softmax(x, axis=-1),
    "layer norm": lambda x: (x - tw.mean(x, axis=-1, keepdims=True)) / (tw.std(x, axis=-1, keepdims=True) + 1),
    "two formats": lambda x: (tw.sum(x, axis=1), tw.sum(x.astype(tw.f32), axis=1), x.astype(tw.f32) + 1),
    "product and sums": lambda x: tw.sum(x @ x.T, axis=0) + tw.max(x, axis=1),
}


def texts_of(function: Any, array: Any, machine: str) -> list[str]:
    program: Any = tw.jit(function).lower(array).compile(target=f"grid:{machine}")
    sources = [emit_program(kernel, machines.load(machine)) for kernel in program.executable.unit.kernels()]
    return [source.compute for source in sources if source.compute is not None]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_reductions_and_what_follows(name):
    texts = texts_of(FUNCTIONS[name], np.zeros((70, 100), ml_dtypes.bfloat16), MACHINES[len(name) % 2])
    assert texts
    for text in texts:
        check_init_order(text)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("storage", [0, 1])
def test_rows_that_become_tiles_and_tiles_that_become_rows(machine, storage):
    program = Program("main")
    program.outputs = [program.array(2, 100, 200)]
    for kernel in compiled(program, machine, storage={storage: "row-major"}).kernels():
        check_init_order(emit_program(kernel, machines.load(machine)).compute or "")


# Those two say by themselves where units are set.
@pytest.mark.parametrize("name", sorted(NAMED.keys() - {"all computing", "rows and tiles"}))
def test_written_programs(name):
    text = source_of(name).compute
    if text is not None:
        check_init_order(text)


_ORDERS = {
    "pack_reconfig_data_format(a);": "reduce_init<b>(a);",
    "pack_untilize_dest_init<4, 4>(a);": "copy_tile(a, 0, 0);",
    "pack_untilize_uninit(a);": "tilize_init(a, 4, b);",
}


@pytest.mark.parametrize("line", _ORDERS)
def test_other_orders_are_found(line):
    text = "void kernel_main() {\n    for (uint32_t i = 0; i < 2; ++i) {\n        {}\n        {}\n    }\n}\n"
    with pytest.raises(AssertionError):
        check_init_order(text.replace("{}", line, 1).replace("{}", _ORDERS[line], 1))
    with pytest.raises(AssertionError):
        check_init_order(text.replace("{}", _ORDERS[line], 1).replace("{}", line, 1))
