"""Programs for a grid of cores that are measured, explained and compared with what is predicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilewright as tw
from tilewright.targets.grid.target import GridProgram


def matmul(a: Any, b: Any) -> Any:
    return a @ b


def chain(x: Any, y: Any) -> Any:
    a = x * 2.0 + y
    b = tw.exp(-a)
    return a * b + y


def softmax(x: Any) -> Any:
    return tw.nn.softmax(x, axis=-1)


def layer_norm(x: Any) -> Any:
    centred = x - tw.mean(x, axis=-1, keepdims=True)
    return centred / tw.sqrt(tw.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


def attention(q: Any, k: Any, v: Any) -> Any:
    return tw.nn.softmax(q @ k.mT * q.shape[-1] ** -0.5, axis=-1) @ v


def product_and_gelu(a: Any, b: Any, bias: Any) -> Any:
    return tw.nn.gelu(a @ b + bias)


def types(*shapes: tuple[int, ...], dtype: Any = tw.bf16) -> tuple[tw.ShapeDtype, ...]:
    return tuple(tw.ShapeDtype(shape, dtype) for shape in shapes)


# What is computed, of which arrays.
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tw.ShapeDtype, ...]]] = {
    "matmul 512": (matmul, types((512, 512), (512, 512))),
    "matmul 1024": (matmul, types((1024, 1024), (1024, 1024))),
    "matmul 2048": (matmul, types((2048, 2048), (2048, 2048))),
    "chain": (chain, types((2048, 2048), (2048, 2048))),
    "softmax": (softmax, types((1024, 1024))),
    "layer norm": (layer_norm, types((1024, 1024))),
    "matmul, bias, gelu": (product_and_gelu, types((512, 512), (512, 512), (512,))),
    "attention": (attention, types(*((1, 4, 512, 64),) * 3)),
}


def compiled(name: str, target: str = "grid:wormhole") -> GridProgram:
    function, arrays = PROGRAMS[name]
    return program_of(function, arrays, target)


def program_of(
    function: Callable[..., Any], arrays: tuple[tw.ShapeDtype, ...], target: str = "grid:wormhole"
) -> GridProgram:
    with tw.options(cache=False):
        program: Any = tw.jit(function).lower(*arrays).compile(target).executable
    return program
