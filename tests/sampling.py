"""Which part of a large table of cases a run of the tests takes; all of it where `TW_TEST_ALL` is set.

Tables whose cases differ in sizes, types and orders are drawn from: a test names its own draw with `sampled` and
`alternating`, or is listed in `TABLES`. Cases that are each a rule of their own (planted mistakes, instructions,
special values) are not."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

if TYPE_CHECKING:
    import pytest

T = TypeVar("T")

ALL = bool(os.environ.get("TW_TEST_ALL"))


def sampled(cases: Sequence[T], every: int, first: int = 0) -> Sequence[T]:
    """Each `every`-th case from the one at `first` on."""
    return cases if ALL else cases[first::every]


def alternating(*axes: Iterable[Any], every: int = 2) -> list[tuple[Any, ...]]:
    """One of `every` combinations: half of all of them, in which each value of one axis meets every other value of
    another; with an axis of `every` values, all combinations of the others."""
    places = product(*(tuple(enumerate(axis)) for axis in axes))
    return [tuple(value for _, value in case) for case in places if ALL or not sum(n for n, _ in case) % every]


def count(usual: int, full: int) -> int:
    """How many random cases: `full` where all are asked for."""
    return full if ALL else usual


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The cases of `TABLES` that are not in the sample: of each table one of so many is, in an order by their names'
    checksums, which is as good as drawn and the same in each run."""
    if ALL:
        return []
    tables: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tables[item.nodeid.partition("[")[0].removeprefix("tests/")].append(item)
    return [
        item
        for name, every in TABLES.items()
        for item in sorted(tables[name], key=lambda item: crc32(item.name.encode()))[-(-len(tables[name]) // every) :]
    ]


TABLES = {
    "conformance/layout/test_inference_views.py::test_a_reshape_regroups_the_same_elements": 5,
    "conformance/layout/test_inference_views.py::test_what_is_known_on_one_side_gives_the_other": 5,
    "cores/test_core_model.py::test_arrays_that_end_within_pages": 3,
    "cores/test_core_model.py::test_predictions_are_near": 3,
    "cores/test_device_source.py::test_the_headers_take_compiled_programs": 3,
    "cores/test_device_source.py::test_the_headers_take_what_is_printed": 3,
    "cores/test_explain.py::test_states_are_set_nearly_as_seldom_as_can_be": 2,
    "cores/test_fuzz.py::test_random_tile_kernels": 3,
    "cores/test_integers.py::test_products_wrap_around": 2,
    "cores/test_integers.py::test_reductions_without_a_unit_for_them": 3,
    "cores/test_lowering.py::test_programs_agree_with_numpy_in_every_variant": 3,
    "cores/test_lowering.py::test_reductions": 3,
    "cores/test_native_movers.py::test_corners_of_pages_by_place": 3,
    "cores/test_native_movers.py::test_elements_by_index": 2,
    "cores/test_native_movers.py::test_lines_are_scanned_and_sorted": 3,
    "cores/test_native_movers.py::test_rows": 3,
    "cores/test_ordered.py::test_scans": 3,
    "cores/test_ordered.py::test_sorts_and_largest_elements": 3,
    "cores/test_outer_reductions.py::test_what_is_beyond_the_array_does_not_count": 3,
    "cores/test_partials.py::test_several_cores_share_a_loop": 2,
    "cores/test_placements.py::test_arrays_are_moved_from_place_to_place": 5,
    "cores/test_placements.py::test_results_do_not_depend_on_places": 3,
    "cores/test_products.py::test_any_sides_are_multiplied": 5,
    "cores/test_products.py::test_what_follows_a_product_is_computed_in_registers": 3,
    "cores/test_queue_layouts.py::test_movers_find_elements_where_the_layout_has_them": 3,
    "cores/test_row_major.py::test_all_depths_and_orders": 3,
    "cores/test_row_major.py::test_arrays_come_through_bit_by_bit": 5,
    "cores/test_row_major.py::test_dram_is_what_limits_large_arrays": 2,
    "cores/test_saved_programs.py::test_loops_and_branches_are_the_same_after_they_are_saved": 3,
    "cores/test_saved_programs.py::test_programs_are_the_same_after_they_are_saved": 3,
    "cuda/test_arrays.py::test_products_of_any_shape": 3,
    "cuda/test_arrays.py::test_products_on_tensor_cores": 3,
    "cuda/test_attention.py::test_agrees_with_float64": 3,
    "cuda/test_attention.py::test_scores_of_any_form": 3,
    "cuda/test_attention_warpgroups.py::test_heads": 2,
    "cuda/test_attention_warpgroups.py::test_large_attention_is_clean": 2,
    "cuda/test_attention_warpgroups.py::test_steps_of_a_causal_mask_divide_the_rows_of_a_tile": 2,
    "cuda/test_attention_warpgroups.py::test_warpgroups_of_a_tile": 2,
    "cuda/test_bench_device.py::test_tiny_cases_agree_with_their_references": 3,
    "cuda/test_convolutions.py::test_emulated_code_agrees_with_numpy": 3,
    "cuda/test_convolutions.py::test_machine_code": 2,
    "cuda/test_eight_bits.py::test_products": 2,
    "cuda/test_gemm_kernels.py::test_descriptors_name_what_the_layout_says": 5,
    "cuda/test_gemm_kernels.py::test_products_agree_with_numpy": 2,
    "cuda/test_host_programs.py::test_loops_and_branches_by_definition": 3,
    "cuda/test_instruction_table.py::test_kernels_are_made_of_the_instructions_of_the_page": 5,
    "cuda/test_machine_code.py::test_products_take_the_instruction_of_their_type": 3,
    "cuda/test_machine_code.py::test_streaming_kernels_are_clean": 3,
    "cuda/test_matrix_stores.py::test_any_number_of_columns": 2,
    "cuda/test_matrix_stores.py::test_results_of_warpgroups": 2,
    "cuda/test_ordered.py::test_every_function_and_type": 5,
    "cuda/test_ordered.py::test_sums_along_lines": 3,
    "cuda/test_ordered.py::test_the_first_of_the_best": 3,
    "cuda/test_pipeline.py::test_products_of_any_order": 3,
    "cuda/test_pipeline.py::test_tiles_larger_than_their_arrays": 3,
    "cuda/test_pipeline.py::test_what_follows_a_product": 2,
    "cuda/test_pipeline.py::test_windows_beyond_the_arrays_are_zeros": 3,
    "cuda/test_programs.py::test_emulated_code_agrees_with_numpy": 3,
    "cuda/test_programs.py::test_schedules_are_in_order": 3,
    "cuda/test_roles.py::test_products_in_any_order": 3,
    "cuda/test_runtime.py::test_programs_agree_with_numpy_however_often_they_are_called": 3,
    "cuda/test_runtime.py::test_saved_programs_run_where_there_is_no_compiler": 3,
    "cuda/test_tf32.py::test_products_on_chips": 3,
    "cuda/test_whole_tiles.py::test_the_first_block_of_a_product_of_4096": 2,
    "emulators/ptx/test_conversions.py::test_floats_to_integers": 3,
    "emulators/ptx/test_conversions.py::test_integers_to_floats": 5,
    "emulators/ptx/test_conversions.py::test_narrower_floats": 3,
    "emulators/ptx/test_tcgen05.py::test_products": 3,
    "emulators/ptx/test_wgmma.py::test_products": 3,
    "examples/test_kernels.py::test_flash_attention": 3,
    "interop/stablehlo/test_from_jax.py::test_approximate_top_k_is_exact": 2,
    "interop/test_smallest.py::test_they_are_the_first_of_a_stable_sort": 5,
    "interop/torch/test_attention.py::test_rows_that_see_nothing": 2,
    "interop/torch/test_backend.py::test_autocast_trains_normalisations_of_narrow_floats_by_wide_weights": 3,
    "interop/torch/test_models.py::test_forward_and_training_step": 3,
    "interop/torch/test_plain_calls.py::test_errors_are_those_of_a_first_call": 3,
    "interop/torch/test_windows.py::test_gradients_of_convolutions": 3,
    "numerics/test_column_sums.py::test_exact_results_of_columns": 3,
    "numerics/test_column_sums.py::test_sums_and_maxima_of_columns": 3,
    "numerics/test_convolutions.py::test_layers_of_networks": 3,
    "numerics/test_convolutions.py::test_windows_that_are_read_in_place": 3,
    "numerics/test_copies.py::test_a_view_of_an_input_is_copied": 5,
    "numerics/test_edited_schedules.py::test_schedules_that_are_passed_back_give_the_same_code": 3,
    "numerics/test_first_lanes.py::test_rows_of_any_length": 3,
    "numerics/test_gathers.py::test_elements_of_each_row": 3,
    "numerics/test_gathers.py::test_reductions_along_the_gathered_axis": 3,
    "numerics/test_host_programs.py::test_each_kernel_is_counted": 3,
    "numerics/test_host_programs.py::test_loops_and_branches": 3,
    "numerics/test_index_sets.py::test_columns_that_are_reduced_on_either_side": 3,
    "numerics/test_index_sets.py::test_windows_of_padded_rows": 3,
    "numerics/test_integer_division.py::test_a_divisor_of_each_lane": 5,
    "numerics/test_integer_division.py::test_a_known_divisor": 2,
    "numerics/test_ordered.py::test_any_number_of_largest_elements": 3,
    "numerics/test_ordered.py::test_long_scans_in_parts_with_any_number_of_threads": 3,
    "numerics/test_ordered.py::test_long_scans_of_every_type": 3,
    "numerics/test_ordered.py::test_places_of_extremes_of_any_shape": 5,
    "numerics/test_ordered.py::test_places_of_extremes_of_every_type": 3,
    "numerics/test_ordered.py::test_places_of_extremes_of_long_lines": 3,
    "numerics/test_ordered.py::test_results_do_not_depend_on_the_number_of_threads": 3,
    "numerics/test_ordered.py::test_scans_of_every_type": 5,
    "numerics/test_ordered.py::test_scans_of_long_lines": 3,
    "numerics/test_ordered.py::test_sorts_of_any_size": 3,
    "numerics/test_ordered.py::test_sorts_of_every_type": 3,
    "numerics/test_ordered.py::test_sorts_of_short_lines_side_by_side": 3,
    "numerics/test_ordered.py::test_sums_and_maxima_of_any_shape": 5,
    "numerics/test_ordered.py::test_the_largest_of_every_type": 3,
    "numerics/test_phases.py::test_native_code_agrees": 3,
    "numerics/test_phases.py::test_scheduled_phase_agrees_in_any_order": 3,
    "numerics/test_product_operands.py::test_blocks_lie_beyond_their_arrays": 2,
    "numerics/test_product_operands.py::test_columns_that_an_array_lacks_are_zeros": 5,
    "numerics/test_product_operands.py::test_few_rows_meet_long_rows_of_a_right_operand": 3,
    "numerics/test_product_operands.py::test_panels_are_kept_where_more_follows_block_by_block": 2,
    "numerics/test_product_operands.py::test_panels_that_the_first_rows_keep_are_multiplied": 3,
    "numerics/test_product_operands.py::test_results_are_finished_block_by_block": 3,
    "numerics/test_product_operands.py::test_results_are_narrowed_block_by_block": 3,
    "numerics/test_product_operands.py::test_right_operands_of_many_rows_are_multiplied": 3,
    "numerics/test_radix_sorts.py::test_lines_that_are_nearly_sorted": 2,
    "numerics/test_radix_sorts.py::test_sorts_of_every_type": 2,
    "numerics/test_recurrences.py::test_lstm": 3,
    "numerics/test_reductions_in_parts.py::test_elements_are_not_stored": 3,
    "numerics/test_row_dots.py::test_few_columns": 3,
    "numerics/test_row_dots.py::test_few_rows": 3,
    "numerics/test_row_dots.py::test_few_rows_of_narrow_floats": 3,
    "numerics/test_scatter_rows.py::test_rows_are_updated_by_threads_that_share_columns": 3,
    "numerics/test_scatter_rows.py::test_updates_of_one_element_are_combined_in_order": 3,
    "numerics/test_split_products.py::test_products_of_every_size_are_as_near_as_in_f32": 3,
    "numerics/test_split_products.py::test_transposed_and_batched_whole_numbers_are_exact": 2,
    "numerics/test_streams.py::test_large_arrays": 3,
    "numerics/test_streams.py::test_large_arrays_of_other_types": 3,
    "numerics/test_threads.py::test_a_program_for_some_threads_runs_with_any_number": 3,
    "numerics/test_threads.py::test_products_of_random_shapes_have_the_same_bits": 3,
    "numerics/test_threads.py::test_results_have_the_same_bits_for_any_number_of_threads": 3,
    "numerics/test_threads.py::test_sums_of_random_shapes_have_the_same_bits": 3,
    "numerics/test_transposes.py::test_large_transposes": 3,
    "numerics/test_transposes.py::test_short_runs": 3,
    "numerics/test_transposes.py::test_transposes_with_arithmetic": 2,
    "numerics/test_word_matmuls.py::test_operands_of_all_orders": 3,
    "numerics/test_word_matmuls.py::test_sizes_at_random": 3,
    "numerics/test_word_matmuls.py::test_tiles_that_divide_nothing": 3,
    "passes/array/test_array_convolve_by_products.py::test_products_agree_with_numpy": 3,
    "passes/array/test_array_convolve_by_products.py::test_warpgroups_multiply": 3,
    "passes/array/test_array_order_operands.py::test_products_of_operands_that_are_laid_out": 2,
    "passes/array/test_array_split_joins.py::test_many_arrays_are_joined_in_parts": 3,
    "passes/array/test_array_split_k.py::test_parts_of_any_shape": 2,
    "passes/array/test_array_split_k.py::test_parts_of_operands_of_8_bits": 2,
    "passes/array/test_array_split_reductions.py::test_sums_of_columns": 3,
    "passes/array/test_array_split_sorts.py::test_merged_lines_in_native_code": 3,
    "passes/array/test_array_update_in_place.py::test_random_programs_of_updates": 3,
    "passes/cores/test_scheduled_multicast_fetches.py::test_what_a_group_needs_is_fetched_by_one": 3,
    "passes/cores/test_tile_share_pages.py::test_heads_of_whole_pages_are_not_copied": 2,
    "passes/kernels/test_warp_epilogues.py::test_light_epilogues_have_large_tiles_whose_registers_are_not_spilled": 3,
    "passes/layouts/test_layout_explanation.py::test_every_cost_is_somewhere_and_nowhere_twice": 3,
    "passes/layouts/test_scheduled_layouts.py::test_another_space_gives_other_blocks_and_the_same_numbers": 3,
    "passes/test_few_layers.py::test_the_program_computes_what_its_definition_says": 3,
    "passes/test_few_layers.py::test_the_program_is_the_same_however_it_is_lowered": 4,
    "passes/test_host_program.py::test_random_programs_on_bytes_agree_with_numpy": 5,
    "passes/vectors/test_scheduled_block_epilogues.py::test_columns_that_the_right_operand_lacks": 2,
    "passes/vectors/test_scheduled_block_epilogues.py::test_what_follows_a_product_is_done_block_by_block": 3,
    "passes/vectors/test_scheduled_pack_operands.py::test_packed_kernels_are_the_same_after_printing_and_parsing": 3,
    "passes/vectors/test_scheduled_split_operands.py::test_scheduled_products_in_parts_mean_products": 3,
    "passes/warps/test_scheduled_drop_barriers.py::test_random_blocks_have_no_race_and_no_barrier_too_many": 3,
    "passes/warps/test_scheduled_loop_over_tiles.py::test_any_number_of_trips_and_stages": 3,
    "passes/warps/test_scheduled_multicast_copies.py::test_any_number_of_trips_and_stages": 2,
    "passes/warps/test_scheduled_multicast_copies.py::test_every_order_of_operands": 3,
    "passes/warps/test_scheduled_multicast_copies.py::test_every_order_of_operands_in_tensor_memory": 2,
    "passes/warps/test_scheduled_multicast_copies.py::test_products_of_8_bits": 2,
    "passes/warps/test_scheduled_multiply_in_tensor_memory.py::test_any_number_of_trips_and_stages": 3,
    "passes/warps/test_scheduled_multiply_in_tensor_memory.py::test_large_products_are_clean": 2,
    "passes/warps/test_scheduled_multiply_in_tensor_memory.py::test_products_of_any_order": 2,
    "passes/warps/test_scheduled_order_tiles.py::test_products_of_every_kind_in_groups": 2,
    "passes/warps/test_scheduled_pipeline_copies.py::test_any_number_of_stages": 3,
    "passes/warps/test_scheduled_plan_block_memory.py::test_random_blocks_have_no_race": 5,
    "passes/warps/test_scheduled_specialize_warps.py::test_any_number_of_trips_and_stages": 3,
    "passes/warps/test_scheduled_specialize_warps.py::test_large_products_are_clean": 2,
    "passes/warps/test_scheduled_specialize_warps.py::test_products_of_any_order": 2,
    "passes/warps/test_scheduled_sum_in_tensor_memory.py::test_heads": 2,
    "passes/warps/test_tile_turn_copies.py::test_transposes": 3,
    "unit/api/test_api_einsum_order.py::test_the_order_takes_the_fewest_multiplications": 3,
    "unit/api/test_api_reductions.py::test_reductions_of_floats": 5,
    "unit/api/test_sizes.py::test_as_for_just_these_sizes": 3,
    "unit/cli/hunt/test_hunt_programs.py::test_libraries_agree_on_each_operator": 3,
    "unit/cost/test_products.py::test_twice_the_work_is_predicted_to_take_no_less_time": 2,
    "unit/layout/test_catalogue_grid.py::test_block_shards": 2,
    "unit/layout/test_catalogue_grid.py::test_height_and_width_shards": 3,
    "unit/layout/test_layout_access.py::test_counts_equal_the_simulators": 5,
    "unit/layout/test_layout_bounds.py::test_a_trip_through_shared_memory_meets_no_conflicts": 2,
    "unit/layout/test_layout_solver.py::test_the_cost_equals_brute_force": 2,
    "unit/layout/test_paging.py::test_indices_of_the_lowering_are_the_page_axis_of_the_layout": 5,
    "unit/layout/test_paging.py::test_the_executor_reads_elements_where_the_layout_has_them": 5,
    "unit/layout/test_paging.py::test_the_layout_of_a_paging_is_that_of_its_pages": 5,
    "unit/runtime/test_runtime_pool.py::test_every_chunk_runs_once_on_a_worker_that_nobody_else_uses": 5,
}
