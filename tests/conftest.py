"""Every test run has a compile cache of its own; `pytest -m quick` takes at most three minutes on two cores."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import pytest

from tests.sampling import left_out

os.environ.setdefault("TW_CACHE_DIR", tempfile.mkdtemp(prefix="tilewright-test-"))
# Thousands of programs are compiled in one process, beside modules of other frameworks whose objects never go away:
# looking for garbage among them after every 700 new objects is a tenth of the time.
gc.set_threshold(50_000, 20, 100)

_TESTS = Path(__file__).parent
# Of `quick`: folders that cover each part of the compiler in seconds, and what in them starts many processes, compiles
# hundreds of programs, emulates chips or enumerates large spaces.
_QUICK_FOLDERS = ("unit", "ir", "passes", "errors")
_SLOW = (
    "unit/cli/",
    "unit/api/test_api_complex.py",
    "unit/api/test_api_decompositions.py",
    "unit/runtime/test_runtime_signals.py",
    "test_every_function_refuses_unknown_keywords_and_too_many_arguments",
    "test_equal_elements_have_no_variance",
    "test_height_and_width_shards",
    "test_a_trip_through_shared_memory_meets_no_conflicts",
    "test_plans_of_random_pairs_do_what_they_say",
    "passes/layouts/test_layout_capacity.py",
    "passes/layouts/test_layout_random_kernels.py",
    "test_the_answer_is_the_cheapest_of_all_assignments",
    "test_attention_after_long_chains",
    "test_arrays_of_other_libraries",
    "unit/runtime/test_runtime_pool.py",
    "unit/test_compile_cache.py",
    "test_the_program_is_the_same_however_it_is_lowered",
    "passes/test_few_layers.py::test_random_layers",
    "passes/array/test_array_convolve_by_products.py",
    "passes/array/test_array_order_operands.py",
    "passes/array/test_array_split_k.py",
    "passes/cores/test_tile_share_pages.py",
    "passes/cores/test_tile_split_positions.py",
    "passes/kernels/test_warp_epilogues.py",
    "passes/vectors/test_scheduled_split_operands.py",
    "passes/warps/test_scheduled_drop_barriers.py",
    "passes/warps/test_scheduled_loop_over_tiles.py",
    "passes/warps/test_scheduled_multicast_copies.py",
    "passes/warps/test_scheduled_multiply_in_tensor_memory.py",
    "passes/warps/test_scheduled_order_accesses.py",
    "passes/warps/test_scheduled_order_tiles.py",
    "passes/warps/test_scheduled_pipeline_copies.py",
    "passes/warps/test_scheduled_share_registers.py",
    "passes/warps/test_scheduled_specialize_warps.py",
    "passes/warps/test_scheduled_store_tensors.py",
    "passes/warps/test_scheduled_sum_in_tensor_memory.py",
    "unit/test_toy_target.py::test_fuzzed_programs[1]",
    "unit/test_toy_target.py::test_fuzzed_programs[2]",
    "passes/test_host_program.py::test_mutants_are_found",
    "passes/test_host_program.py::test_random_programs_have_all_kinds_of_steps",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of `quick`, and draw from large tables."""
    for item in items:
        path = item.path.relative_to(_TESTS).as_posix()
        if path.startswith(_QUICK_FOLDERS) and not any(slow in f"{path}::{item.name}" for slow in _SLOW):
            item.add_marker(pytest.mark.quick)
    absent = set(left_out(items))
    if absent:
        config.hook.pytest_deselected(items=list(absent))
        items[:] = [item for item in items if item not in absent]
