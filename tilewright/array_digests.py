"""Content addresses of arrays."""

from __future__ import annotations

import hashlib

import numpy as np

_PART_BYTES = 4 << 20
_HASH_THREADS = 4


def digest_array(array: np.ndarray) -> str:
    """Content address of an array: type, shape, order of the axes in memory, and bytes, large ones hashed in parts by
    several threads."""
    dense, order = dense_view(array)
    content = dense.reshape(-1).view(np.uint8).data
    parts = [content[i : i + _PART_BYTES] for i in range(0, len(content), _PART_BYTES)]
    if len(parts) > 1:
        from concurrent.futures import ThreadPoolExecutor  # 10 ms to import, which small programs need not pay

        with ThreadPoolExecutor(_HASH_THREADS) as threads:
            digests = list(threads.map(_digest_part, parts))
    else:
        digests = [_digest_part(part) for part in parts]
    header = f"{array.dtype.name}{array.shape}{order}".encode()
    return hashlib.sha256(b"".join([header, *digests])).hexdigest()[:32]


def _digest_part(part: memoryview) -> bytes:
    return hashlib.sha256(part).digest()


def dense_view(array: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """The array with its axes in the order in which memory holds them, and that order; where elements do not follow
    each other without a gap, a copy that they do in."""
    # Strides of axes of one element mean nothing, and copies have others: such axes go before the next one.
    strides = list(array.strides)
    for axis in reversed(range(array.ndim)):
        if array.shape[axis] == 1:
            strides[axis] = strides[axis + 1] if axis + 1 < array.ndim else array.itemsize
    order = tuple(sorted(range(array.ndim), key=lambda axis: (-strides[axis], axis)))
    dense = array.transpose(order)
    if dense.flags.c_contiguous:
        return dense, order
    return np.ascontiguousarray(array), tuple(range(array.ndim))
