"""LLVM IR of the way in from Python: `tw_call`, a METH_FASTCALL function over a program's descriptor, and `tw_run`.

`tw_call` checks each argument against its spec straight in NumPy's array structure, allocates or takes the outputs,
runs the program (without the interpreter's lock when that is worth it) and returns one array or a tuple. Other
arguments, from a wrong dtype to an array that must be copied first, make it return the descriptor's `mismatch` object
and are left to Python.
"""

from __future__ import annotations

import ctypes
from string import Template

from tilewright.runtime import abi

_IR = Template("""
declare void @free(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare ptr @PyCapsule_GetPointer(ptr, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare ptr @PyLong_FromLong(i64)
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare void @PyErr_Clear()
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)

; Take an arena from the program's slots, or allocate one; null when there is no memory.
define internal ptr @lease_arena(ptr %descriptor, i64 %size) {
entry:
  %slots = getelementptr i8, ptr %descriptor, i64 $program_arenas
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %next_i, %next ]
  %more = icmp ult i64 %i, $arena_slots
  br i1 %more, label %inspect, label %allocate
inspect:
  %slot = getelementptr ptr, ptr %slots, i64 %i
  %there = atomicrmw xchg ptr %slot, ptr null acquire, align 8
  %empty = icmp eq ptr %there, null
  br i1 %empty, label %next, label %found
next:
  %next_i = add i64 %i, 1
  br label %look
found:
  ret ptr %there
allocate:
  %arena = call ptr @fresh_block(i64 %size)
  ret ptr %arena
}

define internal void @return_arena(ptr %descriptor, ptr %arena) {
entry:
  %slots = getelementptr i8, ptr %descriptor, i64 $program_arenas
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %next_i, %inspect ]
  %more = icmp ult i64 %i, $arena_slots
  br i1 %more, label %inspect, label %surplus
inspect:
  %slot = getelementptr ptr, ptr %slots, i64 %i
  %swapped = cmpxchg ptr %slot, ptr null, ptr %arena release monotonic, align 8
  %kept = extractvalue { ptr, i1 } %swapped, 1
  %next_i = add i64 %i, 1
  br i1 %kept, label %end, label %look
surplus:
  call void @free(ptr %arena)
  br label %end
end:
  ret void
}

define i32 @tw_run(ptr %descriptor, ptr %buffers) {
  %float_state = call i64 @enter_float_state()
  %status_of_main = call i32 @run_main(ptr %descriptor, ptr %buffers)
  call void @leave_float_state(i64 %float_state)
  %status = call i32 @status_of_call(i32 %status_of_main)
  ret i32 %status
}

; For a caller that holds the interpreter's lock, which is released meanwhile.
define i32 @tw_run_unlocked(ptr %descriptor, ptr %buffers) {
  %thread = call ptr @PyEval_SaveThread()
  %status = call i32 @tw_run(ptr %descriptor, ptr %buffers)
  call void @PyEval_RestoreThread(ptr %thread)
  ret i32 %status
}

define internal i32 @run_main(ptr %descriptor, ptr %buffers) {
entry:
  %entry_at = getelementptr i8, ptr %descriptor, i64 $program_entry
  %threads_at = getelementptr i8, ptr %descriptor, i64 $program_threads
  %size_at = getelementptr i8, ptr %descriptor, i64 $program_arena_bytes
  %main = load ptr, ptr %entry_at, align 8
  %threads_64 = load i64, ptr %threads_at, align 8
  %threads = trunc i64 %threads_64 to i32
  %size = load i64, ptr %size_at, align 8
  %needs_none = icmp eq i64 %size, 0
  br i1 %needs_none, label %run_without, label %lease
run_without:
  %status_without = call i32 %main(ptr %buffers, ptr null, ptr @tw_parallel, i32 %threads)
  ret i32 %status_without
lease:
  %arena = call ptr @lease_arena(ptr %descriptor, i64 %size)
  %none = icmp eq ptr %arena, null
  br i1 %none, label %no_memory, label %run
no_memory:
  ret i32 $status_no_memory
run:
  %status = call i32 %main(ptr %buffers, ptr %arena, ptr @tw_parallel, i32 %threads)
  call void @return_arena(ptr %descriptor, ptr %arena)
  ret i32 %status
}

; The data of an array that is what the spec says, or null.
define internal ptr @array_data(ptr %object, ptr %spec, ptr %array_type) {
entry:
  %type_at = getelementptr i8, ptr %object, i64 $object_type
  %type = load ptr, ptr %type_at, align 8
  %is_array = icmp eq ptr %type, %array_type
  br i1 %is_array, label %check_flags, label %no
check_flags:
  %flags_at = getelementptr i8, ptr %object, i64 $array_flags
  %flags = load i32, ptr %flags_at, align 4
  %needed_at = getelementptr i8, ptr %spec, i64 $spec_array_flags
  %needed = load i32, ptr %needed_at, align 4
  %present = and i32 %flags, %needed
  %flags_fit = icmp eq i32 %present, %needed
  %rank_at = getelementptr i8, ptr %object, i64 $array_rank
  %rank = load i32, ptr %rank_at, align 4
  %expected_rank_at = getelementptr i8, ptr %spec, i64 $spec_rank
  %expected_rank = load i32, ptr %expected_rank_at, align 4
  %rank_fits = icmp eq i32 %rank, %expected_rank
  %form_fits = and i1 %flags_fit, %rank_fits
  br i1 %form_fits, label %check_dtype, label %no
check_dtype:
  %dtype_at = getelementptr i8, ptr %object, i64 $array_descriptor
  %dtype = load ptr, ptr %dtype_at, align 8
  %expected_dtype_at = getelementptr i8, ptr %spec, i64 $spec_descriptor
  %expected_dtype = load ptr, ptr %expected_dtype_at, align 8
  %same_dtype = icmp eq ptr %dtype, %expected_dtype
  br i1 %same_dtype, label %check_shape, label %check_number
check_number:
  %number_at = getelementptr i8, ptr %dtype, i64 $dtype_number
  %number = load i32, ptr %number_at, align 4
  %expected_number_at = getelementptr i8, ptr %spec, i64 $spec_type_number
  %expected_number = load i32, ptr %expected_number_at, align 4
  %number_fits = icmp eq i32 %number, %expected_number
  %order_at = getelementptr i8, ptr %dtype, i64 $dtype_byte_order
  %order = load i8, ptr %order_at, align 1
  %native_order = icmp ne i8 %order, $big_endian
  %dtype_fits = and i1 %number_fits, %native_order
  br i1 %dtype_fits, label %check_shape, label %no
check_shape:
  %shape_at = getelementptr i8, ptr %object, i64 $array_shape
  %shape = load ptr, ptr %shape_at, align 8
  %expected_shape_at = getelementptr i8, ptr %spec, i64 $spec_shape
  %expected_shape = load ptr, ptr %expected_shape_at, align 8
  %rank_64 = zext i32 %rank to i64
  br label %look
look:
  %i = phi i64 [ 0, %check_shape ], [ %next_i, %compare ]
  %more = icmp ult i64 %i, %rank_64
  br i1 %more, label %compare, label %yes
compare:
  %extent_at = getelementptr i64, ptr %shape, i64 %i
  %extent = load i64, ptr %extent_at, align 8
  %expected_extent_at = getelementptr i64, ptr %expected_shape, i64 %i
  %expected_extent = load i64, ptr %expected_extent_at, align 8
  %next_i = add i64 %i, 1
  %extent_fits = icmp eq i64 %extent, %expected_extent
  br i1 %extent_fits, label %look, label %no
yes:
  %data_at = getelementptr i8, ptr %object, i64 $array_data
  %data = load ptr, ptr %data_at, align 8
  ret ptr %data
no:
  ret ptr null
}

; Whether a buffer that is written overlaps another one.
define internal i1 @any_overlap(ptr %specs, ptr %table, i64 %count) {
entry:
  br label %outer
outer:
  %i = phi i64 [ 0, %entry ], [ %next_i, %outer_next ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %inspect, label %no
inspect:
  %distance = mul i64 %i, $spec_size
  %spec = getelementptr i8, ptr %specs, i64 %distance
  %written_at = getelementptr i8, ptr %spec, i64 $spec_written
  %written = load i32, ptr %written_at, align 4
  %is_written = icmp ne i32 %written, 0
  br i1 %is_written, label %bounds, label %outer_next
bounds:
  %begin_at = getelementptr i64, ptr %table, i64 %i
  %begin = load i64, ptr %begin_at, align 8
  %size_at = getelementptr i8, ptr %spec, i64 $spec_nbytes
  %size = load i64, ptr %size_at, align 8
  %end = add i64 %begin, %size
  br label %inner
inner:
  %j = phi i64 [ 0, %bounds ], [ %next_j, %compare ]
  %more_j = icmp ult i64 %j, %count
  br i1 %more_j, label %compare, label %outer_next
compare:
  %distance_j = mul i64 %j, $spec_size
  %spec_j = getelementptr i8, ptr %specs, i64 %distance_j
  %size_j_at = getelementptr i8, ptr %spec_j, i64 $spec_nbytes
  %size_j = load i64, ptr %size_j_at, align 8
  %begin_j_at = getelementptr i64, ptr %table, i64 %j
  %begin_j = load i64, ptr %begin_j_at, align 8
  %end_j = add i64 %begin_j, %size_j
  %other = icmp ne i64 %i, %j
  %before_end = icmp ult i64 %begin_j, %end
  %after_begin = icmp ult i64 %begin, %end_j
  %meet = and i1 %before_end, %after_begin
  %full = icmp ne i64 %size, 0
  %full_j = icmp ne i64 %size_j, 0
  %both_full = and i1 %full, %full_j
  %touch = and i1 %meet, %both_full
  %clash = and i1 %touch, %other
  %next_j = add i64 %j, 1
  br i1 %clash, label %yes, label %inner
outer_next:
  %next_i = add i64 %i, 1
  br label %outer
yes:
  ret i1 true
no:
  ret i1 false
}

define internal void @drop(ptr %objects, i64 %count) {
entry:
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %next_i, %release ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %release, label %end
release:
  %object_at = getelementptr ptr, ptr %objects, i64 %i
  %object = load ptr, ptr %object_at, align 8
  call void @Py_DecRef(ptr %object)
  %next_i = add i64 %i, 1
  br label %look
end:
  ret void
}

; Call the descriptor's `fail` with a status: it raises, so this returns null.
define internal ptr @fail(ptr %descriptor, i32 %status) noinline {
entry:
  %callable_at = getelementptr i8, ptr %descriptor, i64 $program_fail
  %callable = load ptr, ptr %callable_at, align 8
  %wide = sext i32 %status to i64
  %number = call ptr @PyLong_FromLong(i64 %wide)
  %none = icmp eq ptr %number, null
  br i1 %none, label %end, label %raise
raise:
  %result = call ptr @PyObject_CallOneArg(ptr %callable, ptr %number)
  call void @Py_DecRef(ptr %number)
  ret ptr %result
end:
  ret ptr null
}

; A tuple that takes over the references, or null with an exception.
define internal ptr @make_tuple(ptr %objects, i64 %count) {
entry:
  %tuple = call ptr @PyTuple_New(i64 %count)
  %none = icmp eq ptr %tuple, null
  br i1 %none, label %failed, label %look
failed:
  call void @drop(ptr %objects, i64 %count)
  ret ptr null
look:
  %i = phi i64 [ 0, %entry ], [ %next_i, %set ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %set, label %end
set:
  %object_at = getelementptr ptr, ptr %objects, i64 %i
  %object = load ptr, ptr %object_at, align 8
  call i32 @PyTuple_SetItem(ptr %tuple, i64 %i, ptr %object)
  %next_i = add i64 %i, 1
  br label %look
end:
  ret ptr %tuple
}

; A new array for a spec, or null with an exception.
define internal ptr @new_output(ptr %descriptor, ptr %spec, ptr %array_type) {
  %new_at = getelementptr i8, ptr %descriptor, i64 $program_new_array
  %new = load ptr, ptr %new_at, align 8
  %dtype_at = getelementptr i8, ptr %spec, i64 $spec_descriptor
  %dtype = load ptr, ptr %dtype_at, align 8
  %rank_at = getelementptr i8, ptr %spec, i64 $spec_rank
  %rank = load i32, ptr %rank_at, align 4
  %shape_at = getelementptr i8, ptr %spec, i64 $spec_shape
  %shape = load ptr, ptr %shape_at, align 8
  call void @Py_IncRef(ptr %dtype)
  %array = call ptr %new(ptr %array_type, ptr %dtype, i32 %rank, ptr %shape, ptr null, ptr null, i32 0, ptr null)
  ret ptr %array
}

define ptr @tw_call(ptr %self, ptr %arguments, i64 %given) {
entry:
  %descriptor = call ptr @PyCapsule_GetPointer(ptr %self, ptr null)
  %n_inputs_at = getelementptr i8, ptr %descriptor, i64 $program_n_inputs
  %n_outputs_at = getelementptr i8, ptr %descriptor, i64 $program_n_outputs
  %n_constants_at = getelementptr i8, ptr %descriptor, i64 $program_n_constants
  %accepts_out_at = getelementptr i8, ptr %descriptor, i64 $program_accepts_out
  %specs_at = getelementptr i8, ptr %descriptor, i64 $program_specs
  %constants_at = getelementptr i8, ptr %descriptor, i64 $program_constants
  %array_type_at = getelementptr i8, ptr %descriptor, i64 $program_array_type
  %releases_gil_at = getelementptr i8, ptr %descriptor, i64 $program_releases_gil
  %mismatch_at = getelementptr i8, ptr %descriptor, i64 $program_mismatch
  %n_inputs = load i64, ptr %n_inputs_at, align 8
  %n_outputs = load i64, ptr %n_outputs_at, align 8
  %n_constants = load i64, ptr %n_constants_at, align 8
  %accepts_out_64 = load i64, ptr %accepts_out_at, align 8
  %specs = load ptr, ptr %specs_at, align 8
  %constants = load ptr, ptr %constants_at, align 8
  %array_type = load ptr, ptr %array_type_at, align 8
  %releases_gil_64 = load i64, ptr %releases_gil_at, align 8
  %mismatch = load ptr, ptr %mismatch_at, align 8
  %n_arrays = add i64 %n_inputs, %n_outputs
  %accepts_out = icmp ne i64 %accepts_out_64, 0
  %releases_gil = icmp ne i64 %releases_gil_64, 0
  %without_out = icmp eq i64 %given, %n_inputs
  %all_given = icmp eq i64 %given, %n_arrays
  %with_out = and i1 %all_given, %accepts_out
  %count_fits = or i1 %without_out, %with_out
  br i1 %count_fits, label %begin, label %refuse
begin:
  %n_buffers = add i64 %n_arrays, %n_constants
  %table = alloca ptr, i64 %n_buffers, align 8
  %results = alloca ptr, i64 %n_outputs, align 8
  br label %next_argument
next_argument:
  %a = phi i64 [ 0, %begin ], [ %a_after, %accept ]
  %more_arguments = icmp ult i64 %a, %given
  br i1 %more_arguments, label %argument, label %check_overlap
argument:
  %argument_at = getelementptr ptr, ptr %arguments, i64 %a
  %object = load ptr, ptr %argument_at, align 8
  %spec_distance = mul i64 %a, $spec_size
  %spec = getelementptr i8, ptr %specs, i64 %spec_distance
  %data = call ptr @array_data(ptr %object, ptr %spec, ptr %array_type)
  %unfit = icmp eq ptr %data, null
  br i1 %unfit, label %refuse, label %accept
accept:
  %entry_at = getelementptr ptr, ptr %table, i64 %a
  store ptr %data, ptr %entry_at, align 8
  %a_after = add i64 %a, 1
  br label %next_argument
refuse:
  call void @Py_IncRef(ptr %mismatch)
  ret ptr %mismatch
check_overlap:
  %overlap = call i1 @any_overlap(ptr %specs, ptr %table, i64 %given)
  br i1 %overlap, label %refuse, label %place_constants
place_constants:
  %constants_to = getelementptr ptr, ptr %table, i64 %n_arrays
  %constants_size = mul i64 %n_constants, 8
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %constants_to, ptr align 8 %constants, i64 %constants_size, i1 false)
  br label %next_output
next_output:
  %k = phi i64 [ 0, %place_constants ], [ %k_after, %keep ]
  %more_outputs = icmp ult i64 %k, %n_outputs
  br i1 %more_outputs, label %output, label %run
output:
  %position = add i64 %n_inputs, %k
  %output_distance = mul i64 %position, $spec_size
  %output_spec = getelementptr i8, ptr %specs, i64 %output_distance
  %alias_at = getelementptr i8, ptr %output_spec, i64 $spec_alias
  %alias = load i64, ptr %alias_at, align 8
  %is_alias = icmp sge i64 %alias, 0
  %source = select i1 %is_alias, i64 %alias, i64 %position
  %is_given = icmp ult i64 %source, %given
  br i1 %is_given, label %reuse, label %create
reuse:
  %reused_at = getelementptr ptr, ptr %arguments, i64 %source
  %reused = load ptr, ptr %reused_at, align 8
  call void @Py_IncRef(ptr %reused)
  br label %keep
create:
  %created = call ptr @new_output(ptr %descriptor, ptr %output_spec, ptr %array_type)
  %no_array = icmp eq ptr %created, null
  br i1 %no_array, label %no_memory, label %keep
keep:
  %result = phi ptr [ %reused, %reuse ], [ %created, %create ]
  %result_at = getelementptr ptr, ptr %results, i64 %k
  store ptr %result, ptr %result_at, align 8
  %result_data_at = getelementptr i8, ptr %result, i64 $array_data
  %result_data = load ptr, ptr %result_data_at, align 8
  %output_entry_at = getelementptr ptr, ptr %table, i64 %position
  store ptr %result_data, ptr %output_entry_at, align 8
  %k_after = add i64 %k, 1
  br label %next_output
no_memory:
  call void @PyErr_Clear()
  call void @drop(ptr %results, i64 %k)
  %no_memory_raised = call ptr @fail(ptr %descriptor, i32 $status_no_memory)
  ret ptr %no_memory_raised
run:
  br i1 %releases_gil, label %run_released, label %run_held
run_released:
  %thread = call ptr @PyEval_SaveThread()
  %status_released = call i32 @tw_run(ptr %descriptor, ptr %table)
  call void @PyEval_RestoreThread(ptr %thread)
  br label %finish
run_held:
  %status_held = call i32 @tw_run(ptr %descriptor, ptr %table)
  br label %finish
finish:
  %status = phi i32 [ %status_released, %run_released ], [ %status_held, %run_held ]
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %raise, label %give_back
raise:
  call void @drop(ptr %results, i64 %n_outputs)
  %interrupted = icmp eq i32 %status, $status_interrupted
  br i1 %interrupted, label %raised_already, label %raise_now
raised_already:
  ret ptr null
raise_now:
  %raised = call ptr @fail(ptr %descriptor, i32 %status)
  ret ptr %raised
give_back:
  %single = icmp eq i64 %n_outputs, 1
  br i1 %single, label %give_one, label %give_tuple
give_one:
  %one = load ptr, ptr %results, align 8
  ret ptr %one
give_tuple:
  %tuple = call ptr @make_tuple(ptr %results, i64 %n_outputs)
  ret ptr %tuple
}
""")


def call_ir() -> str:
    """The IR of `tw_run` and `tw_call`. It refers to `tw_parallel` and `fresh_block`, which the same module defines."""
    return _IR.substitute(
        abi.offsets(abi.Descriptor, "program"),
        **abi.offsets(abi.BufferSpec, "spec"),
        spec_size=ctypes.sizeof(abi.BufferSpec),
        arena_slots=abi.ARENA_SLOTS,
        status_no_memory=abi.STATUS_NO_MEMORY,
        status_interrupted=abi.STATUS_INTERRUPTED,
        object_type=abi.OBJECT_TYPE,
        array_data=abi.ARRAY_DATA,
        array_rank=abi.ARRAY_RANK,
        array_shape=abi.ARRAY_SHAPE,
        array_descriptor=abi.ARRAY_DESCRIPTOR,
        array_flags=abi.ARRAY_FLAGS,
        dtype_number=abi.DTYPE_NUMBER,
        dtype_byte_order=abi.DTYPE_BYTE_ORDER,
        big_endian=ord(">"),
    )
