"""Programs in the style of published examples of JAX, with their arguments and how closely results must agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

PROGRAMS: dict[str, Program] = {}


@dataclass(frozen=True)
class Program:
    """A function of JAX and its arguments. Results differ from JAX's by at most `bound` of the largest element of each;
    `is_wide` has it run in 64 bits. A bound above that of single operations has its reason in `why`."""

    name: str
    function: Callable[..., Any]
    arguments: Callable[[np.random.Generator], tuple[Any, ...]]
    bound: float
    is_wide: bool
    why: str


def program(
    arguments: Callable[[np.random.Generator], tuple[Any, ...]],
    *,
    bound: float | None = None,
    wide: bool = False,
    why: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function under its name."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__.strip("_")
        limit = bound if bound is not None else 1e-11 if wide else 2e-5
        PROGRAMS[name] = Program(name, function, arguments, limit, wide, why)
        return function

    return register


def f32(array: Any) -> Any:
    """An array of f32."""
    return np.asarray(array, np.float32)
