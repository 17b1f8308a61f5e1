"""The examples in the docstrings of the passes: each pass makes `After` of `Before`, and both mean the same."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.passes.pass_support import numbered, parse, random_inputs, run, unit_of
from tilewright import passes
from tilewright.machines.machine import Machine, Model, load, with_caches
from tilewright.passes import program_memory
from tilewright.passes.array.array_convolve_by_positions import ArrayConvolveByPositionsPass
from tilewright.passes.array.array_convolve_by_products import ArrayConvolveByProductsPass
from tilewright.passes.array.array_convolve_channels_last import ArrayConvolveChannelsLastPass
from tilewright.passes.array.array_split_k import ArraySplitKPass
from tilewright.passes.base import Pass, Unit
from tilewright.passes.cores.scheduled_configure_units import ScheduledConfigureUnitsPass
from tilewright.passes.cores.scheduled_finish_products import ScheduledFinishProductsPass
from tilewright.passes.cores.tile_store_arrays import TileStoreArraysPass
from tilewright.passes.warps.scheduled_order_accesses import ScheduledOrderAccessesPass
from tilewright.pipelines import SCHEDULING, array_to_tile, tile_to_cores, tile_to_vectors, tile_to_warps
from tilewright.semantics.hazards import CoreHazard, RaceError

# Those that several machines have stand for one.
FOR_CORES = [each for each in tile_to_cores() if type(each) not in {type(other) for other in tile_to_warps()}]
ARRAY_PASSES = {each.name: each for model in Model for each in array_to_tile(model)}
PASSES = [*ARRAY_PASSES.values(), *tile_to_vectors(), *tile_to_warps(), *FOR_CORES]
# They add up in another order: rounded results differ, those of whole numbers do not.
REORDERING = (
    ArrayConvolveByPositionsPass,
    ArrayConvolveByProductsPass,
    ArrayConvolveChannelsLastPass,
    ArraySplitKPass,
    ScheduledFinishProductsPass,
)
# Its example comes before the states of units are set, without which the executor runs no operation.
UNCONFIGURED = ScheduledFinishProductsPass
# The executor refuses their first example, which lacks the barrier or the state of a unit that they insert.
MENDING = (ScheduledOrderAccessesPass, ScheduledConfigureUnitsPass)


@dataclasses.dataclass(frozen=True)
class Example:
    """The end of a pass's docstring: what stands under `Before:` and under `After:`.

    `Before (sm_90a):` states the machine, `Before (sm_90a with cores = 4, l2 = 2048):` one that differs: in the number
    of cores, the extents of axes or the bytes of caches."""

    before: str
    after: str
    machine: Machine

    def units(self, each: Pass) -> tuple[Unit, Unit]:
        return self.unit(self.before, each), self.unit(self.after, each)

    def unit(self, text: str, each: Pass) -> Unit:
        unit = unit_of(parse(text), {})
        unit.machine = self.machine
        if isinstance(each, TileStoreArraysPass):
            unit.storage = {0: "bfp8"}
        return unit


def example(module: Any) -> Example:
    docstring = inspect.getdoc(module) or ""
    form = r"\S.*?\n\nBefore(?: \((\S+)(?: with (.*?))?\))?:\n(    .*?)\nAfter:\n(    .*)"
    found = re.fullmatch(form, docstring, re.DOTALL)
    assert found, f"{module.__name__}: the docstring needs prose, `Before:` and `After:` with an example each"
    name, changes, before, after = found.groups()
    machine = changed(load(name or "x86-64-v3"), changes or "")
    return Example(textwrap.dedent(before), textwrap.dedent(after), machine)


def changed(machine: Machine, changes: str) -> Machine:
    """A machine with other extents and caches, written `cores = 4, warp = 1, l2 = 2048`."""
    numbers = {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", changes)}
    axes = {name: size for name, size in numbers.items() if name in machine.axes}
    caches = {name: size for name, size in numbers.items() if name not in axes and name != "cores"}
    assert set(caches) <= {memory.name for memory in machine.memories}, changes
    smaller = with_caches(machine, caches)
    return msgspec.structs.replace(smaller, cores=numbers.get("cores", machine.cores), axes={**machine.axes, **axes})


def module_of(each: Pass) -> Any:
    return importlib.import_module(type(each).__module__)


@pytest.mark.parametrize("each", PASSES, ids=lambda p: p.name)
def test_the_pass_makes_the_second_example_of_the_first(each: Pass) -> None:
    unit, expected = example(module_of(each)).units(each)
    assert numbered(unit.module) != numbered(expected.module), "the example shows a change"
    each.apply(unit)
    unit.module.verify()
    assert numbered(unit.module) == numbered(expected.module)


@pytest.mark.parametrize("each", [each for each in PASSES if not isinstance(each, MENDING)], ids=lambda p: p.name)
def test_both_examples_mean_the_same(each: Pass) -> None:
    before, after = example(module_of(each)).units(each)
    if isinstance(each, UNCONFIGURED):
        for unit in (before, after):
            ScheduledConfigureUnitsPass().apply(unit)
    for seed in range(3):
        inputs = random_inputs(before, seed)
        if isinstance(each, REORDERING):
            inputs = [np.rint(x) for x in inputs]
        for got, expected in zip(run(after, inputs), run(before, inputs), strict=True):
            assert got.dtype == expected.dtype
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_the_example_whose_units_have_no_state_is_reported() -> None:
    each = ScheduledConfigureUnitsPass()
    before, after = example(module_of(each)).units(each)
    (x,) = inputs = random_inputs(before, 0)
    with pytest.raises(CoreHazard, match="unit-not-configured"):
        run(before, inputs)
    (got,) = run(after, inputs)
    np.testing.assert_allclose(got, np.exp(x), rtol=1e-6)


def test_the_example_whose_accesses_are_not_in_order_is_a_race() -> None:
    each = ScheduledOrderAccessesPass()
    before, after = example(module_of(each)).units(each)
    (x,) = inputs = random_inputs(before, 0)
    with pytest.raises(RaceError, match="in an array"):
        run(before, inputs)
    (got,) = run(after, inputs)
    np.testing.assert_array_equal(got, np.concatenate([x[:2], x]))


@pytest.mark.parametrize("each", PASSES, ids=lambda p: p.name)
def test_a_pass_is_a_frozen_struct_in_a_file_of_its_own(each: Pass) -> None:
    cls = type(each)
    assert issubclass(cls, msgspec.Struct)
    assert cls.__struct_config__.frozen
    assert each.name == Path(inspect.getfile(cls)).stem.replace("_", "-")
    assert cls.__name__ == "".join(word.capitalize() for word in each.name.split("-")) + "Pass"
    assert passes_in(module_of(each)) == [cls]


def test_every_pass_is_in_a_pipeline_once() -> None:
    names = [module.name for module in pkgutil.walk_packages(passes.__path__, f"{passes.__name__}.")]
    written = [cls for name in names for cls in passes_in(importlib.import_module(name)) if cls is not Pass]
    assert set(written) == set(map(type, PASSES))
    for model, scheduling in SCHEDULING.items():
        listed = [type(each) for each in (*array_to_tile(Model(model)), *scheduling())]
        assert len(listed) == len(set(listed))


def passes_in(module: Any) -> list[type]:
    """The passes that a module defines."""
    classes = [value for value in vars(module).values() if inspect.isclass(value)]
    return [cls for cls in classes if cls.__module__ == module.__name__ and cls.__name__.endswith("Pass")]


def test_the_memory_plan_is_the_one_in_the_docstring() -> None:
    shown = example(program_memory)
    unit = unit_of(parse(shown.before), {})
    plan = program_memory.plan_memory(unit)
    lines = []
    for value, place in plan.places.items():
        at = f"byte {place.index}" if place.kind == program_memory.ARENA else place.index
        lines.append(f"%{value.name_hint}: {place.kind} {at}")
    assert sorted(lines) == sorted(shown.after.splitlines())
    assert plan.arena_bytes == 128
