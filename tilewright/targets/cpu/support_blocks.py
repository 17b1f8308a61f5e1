"""LLVM IR of the memory of outputs: blocks that begin where lines do, of which large ones are kept when an array dies,
for the next array of that size.

Fresh memory costs a page fault every few kilobytes, several times what a kernel takes to fill it. `tw_new_array` stands
in for NumPy's `PyArray_NewFromDescr`: it makes the array under a memory handler (NEP 49) whose `malloc` and `free` are
here. The array owns its data like any other, and frees it here whenever it dies.

The last blocks freed are in a ring of slots, up to a number of bytes. Who finds the slots busy does without them.
"""

from __future__ import annotations

from string import Template

from tilewright.runtime import abi

_MADV_HUGEPAGE = 14
_HUGE_PAGE_BYTES = 1 << 21

_IR = Template("""
@tw_blocks = global { ptr, ptr, ptr } zeroinitializer, align 8

declare i32 @posix_memalign(ptr, i64, i64)
declare ptr @calloc(i64, i64)
declare ptr @realloc(ptr, i64)
declare i32 @madvise(ptr, i64, i32)

define internal ptr @fresh_block(i64 %size) {
entry:
  %at = alloca ptr, align 8
  %is_huge = icmp uge i64 %size, $huge_bytes
  %alignment = select i1 %is_huge, i64 $huge_page_bytes, i64 $alignment
  %error = call i32 @posix_memalign(ptr %at, i64 %alignment, i64 %size)
  %failed = icmp ne i32 %error, 0
  br i1 %failed, label %none, label %allocated
none:
  ret ptr null
allocated:
  %block = load ptr, ptr %at, align 8
  br i1 %is_huge, label %advise, label %end
advise:
  ; A hint: where the system does not follow it, pages are small.
  call i32 @madvise(ptr %block, i64 %size, i32 $huge_page_advice)
  br label %end
end:
  ret ptr %block
}

define internal i1 @take_slots(ptr %state) {
  %taken = cmpxchg ptr %state, i32 0, i32 1 acquire monotonic, align 4
  %mine = extractvalue { i32, i1 } %taken, 1
  ret i1 %mine
}

define internal ptr @slot_of(ptr %state, i64 %number) {
  %wrapped = and i64 %number, $slot_mask
  %distance = mul i64 %wrapped, 16
  %slots = getelementptr i8, ptr %state, i64 $state_slots
  %slot = getelementptr i8, ptr %slots, i64 %distance
  ret ptr %slot
}

; Empty a slot and give what was in it, or null.
define internal ptr @empty_slot(ptr %state, ptr %slot) {
  %block = load ptr, ptr %slot, align 8
  %size_at = getelementptr i8, ptr %slot, i64 8
  %size = load i64, ptr %size_at, align 8
  %kept_at = getelementptr i8, ptr %state, i64 $state_kept_bytes
  %kept = load i64, ptr %kept_at, align 8
  %left = sub i64 %kept, %size
  store i64 %left, ptr %kept_at, align 8
  store ptr null, ptr %slot, align 8
  store i64 0, ptr %size_at, align 8
  ret ptr %block
}

define internal ptr @block_malloc(ptr %state, i64 %size) {
entry:
  %large = icmp uge i64 %size, $least_bytes
  br i1 %large, label %try, label %fresh
try:
  %mine = call i1 @take_slots(ptr %state)
  br i1 %mine, label %begin, label %fresh
begin:
  %next_at = getelementptr i8, ptr %state, i64 $state_next
  %next = load i64, ptr %next_at, align 8
  br label %look
look:
  ; From the last one freed on back: that one may still be in the caches.
  %back = phi i64 [ 1, %begin ], [ %further, %other ]
  %number = sub i64 %next, %back
  %slot = call ptr @slot_of(ptr %state, i64 %number)
  %size_at = getelementptr i8, ptr %slot, i64 8
  %there = load i64, ptr %size_at, align 8
  %fits = icmp eq i64 %there, %size
  br i1 %fits, label %found, label %other
other:
  %further = add i64 %back, 1
  %more = icmp ule i64 %further, $slots
  br i1 %more, label %look, label %not_found
found:
  %block = call ptr @empty_slot(ptr %state, ptr %slot)
  store atomic i32 0, ptr %state release, align 4
  ret ptr %block
not_found:
  store atomic i32 0, ptr %state release, align 4
  br label %fresh
fresh:
  %new = call ptr @fresh_block(i64 %size)
  ret ptr %new
}

define internal void @block_free(ptr %state, ptr %block, i64 %size) {
entry:
  %large = icmp uge i64 %size, $least_bytes
  %bounded = icmp ule i64 %size, $most_bytes
  %keep = and i1 %large, %bounded
  br i1 %keep, label %try, label %give_back
try:
  %mine = call i1 @take_slots(ptr %state)
  br i1 %mine, label %begin, label %give_back
give_back:
  call void @free(ptr %block)
  ret void
begin:
  %next_at = getelementptr i8, ptr %state, i64 $state_next
  %kept_at = getelementptr i8, ptr %state, i64 $state_kept_bytes
  %next = load i64, ptr %next_at, align 8
  %after = add i64 %next, 1
  store i64 %after, ptr %next_at, align 8
  br label %make_room
make_room:
  ; From the slot that is next, which has to be empty, to newer ones.
  %number = phi i64 [ %next, %begin ], [ %newer, %evict ]
  %victim = call ptr @slot_of(ptr %state, i64 %number)
  %old = call ptr @empty_slot(ptr %state, ptr %victim)
  br label %evict
evict:
  call void @free(ptr %old)
  %kept = load i64, ptr %kept_at, align 8
  %together = add i64 %kept, %size
  %over = icmp ugt i64 %together, $most_bytes
  %newer = add i64 %number, 1
  br i1 %over, label %make_room, label %place
place:
  %slot = call ptr @slot_of(ptr %state, i64 %next)
  %size_at = getelementptr i8, ptr %slot, i64 8
  store ptr %block, ptr %slot, align 8
  store i64 %size, ptr %size_at, align 8
  store i64 %together, ptr %kept_at, align 8
  store atomic i32 0, ptr %state release, align 4
  ret void
}

define internal ptr @block_calloc(ptr %state, i64 %count, i64 %size) {
  %block = call ptr @calloc(i64 %count, i64 %size)
  ret ptr %block
}

define internal ptr @block_realloc(ptr %state, ptr %block, i64 %size) {
  %moved = call ptr @realloc(ptr %block, i64 %size)
  ret ptr %moved
}

; The functions of NumPy's `PyDataMemAllocator`, in its order.
@tw_block_functions = constant [4 x ptr] [
  ptr @block_malloc, ptr @block_calloc, ptr @block_realloc, ptr @block_free], align 8

define ptr @tw_new_array(ptr %type, ptr %dtype, i32 %rank, ptr %shape, ptr %strides, ptr %data, i32 %flags, ptr %from) {
entry:
  %new_at = getelementptr i8, ptr @tw_blocks, i64 $anchor_new_array
  %set_at = getelementptr i8, ptr @tw_blocks, i64 $anchor_set_handler
  %handler_at = getelementptr i8, ptr @tw_blocks, i64 $anchor_handler
  %new = load ptr, ptr %new_at, align 8
  %set = load ptr, ptr %set_at, align 8
  %handler = load ptr, ptr %handler_at, align 8
  %before = call ptr %set(ptr %handler)
  %none = icmp eq ptr %before, null
  br i1 %none, label %failed, label %make
failed:
  call void @Py_DecRef(ptr %dtype)
  ret ptr null
make:
  %array = call ptr %new(ptr %type, ptr %dtype, i32 %rank, ptr %shape, ptr %strides, ptr %data, i32 %flags, ptr %from)
  %ours = call ptr %set(ptr %before)
  call void @Py_DecRef(ptr %before)
  %restored = icmp ne ptr %ours, null
  br i1 %restored, label %release, label %end
release:
  call void @Py_DecRef(ptr %ours)
  br label %end
end:
  ret ptr %array
}
""")


def blocks_ir() -> str:
    """The blocks' IR. It refers to functions that the IR of `tw_call` declares."""
    return _IR.substitute(
        abi.offsets(abi.BlocksState, "state"),
        **abi.offsets(abi.BlocksAnchor, "anchor"),
        alignment=abi.ALIGNMENT_BYTES,
        huge_bytes=2 * _HUGE_PAGE_BYTES,
        huge_page_bytes=_HUGE_PAGE_BYTES,
        huge_page_advice=_MADV_HUGEPAGE,
        slots=abi.BLOCK_SLOTS,
        slot_mask=abi.BLOCK_SLOTS - 1,
        least_bytes=abi.LEAST_BLOCK_BYTES,
        most_bytes=abi.MOST_KEPT_BYTES,
    )
