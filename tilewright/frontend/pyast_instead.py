"""Replacements, in kernels, of functions and keywords that kernels do not have: the help of errors."""

from __future__ import annotations

# What to write in a kernel for the functions of arrays that have no handler.
_INSTEAD = {
    "cond": "use `tw.where`, or `if` on compile-time values",
    "einsum": "use `tw.dot`, or multiplications and `tw.sum`",
    "empty": "use `tw.zeros`",
    "fori_loop": "use `for t in range(n)`",
    "gelu": "write `0.5 * x * (1 + tw.erf(x * 0.7071067811865476))`",
    "iota": "use `tw.arange(n)`",
    "linspace": "write `start + step * tw.arange(n)`",
    "log_softmax": "write `z = x - tw.max(x, axis=-1, keepdims=True)`, then `z - tw.log(tw.sum(tw.exp(z), axis=-1, "
    "keepdims=True))`",
    "scan": "use `for t in range(n)`",
    "silu": "write `x * tw.sigmoid(x)`",
    "softmax": "write `e = tw.exp(x - tw.max(x, axis=-1, keepdims=True))`, then `e / tw.sum(e, axis=-1, "
    "keepdims=True)`",
    "stack": "use `tw.concat` of tiles with `tw.expand_dims`",
    "std": "write `tw.sqrt(tw.var(x))`",
    "take": "load the elements: `a[indices]`",
    **dict.fromkeys(
        ("bernoulli", "bits", "key", "normal", "randint", "uniform"),
        "draw the numbers in an array program and pass them, or hash the positions: `^`, `*` and `>>` of `tw.u32`",
    ),
    "while_loop": "use `for t in range(n)`, and `tw.where` for what depends on data",
}


def instead_of(name: str) -> str:
    """The replacement, in a kernel, of a function of arrays."""
    default = "write it with `tw.exp`, `tw.sum` and the like, or call it on arrays, outside the kernel"
    return _INSTEAD.get(name, default)


# What to write in a kernel for names that other languages of kernels have.
ELSEWHERE = {
    "atomic_add": "store one sum for each grid point, and add these by a second kernel or `tw.sum`",
    "constexpr": "put the parameter after `*`",
    "make_block_ptr": "index the array with grid indices or slices: `x[i, j]`, `x[a : a + 8]`",
    "num_programs": "use `tw.cdiv(n, block)`, or `tw.num_tiles(x, axis, block)`",
    "program_id": "take the index from the loop: `for i in tw.grid(y, block)`",
    "static_range": "use `range(n)`, which is unrolled up to 8 trips",
}


# What to write instead of keywords that functions of the same name have elsewhere.
KEYWORDS_ELSEWHERE = {
    ("load", "mask"): "choose among the loaded elements: `tw.where(mask, x[i], other)`",
    ("load", "other"): "write `tw.load(x, i, fill=0)`",
    ("store", "mask"): "declare the array as `tw.InOut` and write `y[i] = tw.where(mask, value, y[i])`",
}
