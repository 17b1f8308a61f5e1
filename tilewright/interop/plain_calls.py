"""Calls of imported models that are like one before: the function that served it, without the checks of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewright.api.jit import JitFunction
from tilewright.runtime.cpu.native import MISMATCH


class BoundInput(NamedTuple):
    """An input that is bound by value: its position among the arguments, and the array that it must equal."""

    position: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    contents: bytes

    @staticmethod
    def of(position: int, array: np.ndarray) -> BoundInput:
        """The input at a position with the contents of an array."""
        return BoundInput(position, array.dtype, array.shape, array.tobytes())

    def equals(self, value: object) -> bool:
        """Whether an argument is a NumPy array with these contents."""
        return (
            type(value) is np.ndarray
            and value.dtype == self.dtype
            and value.shape == self.shape
            and value.tobytes() == self.contents
        )


class PlainCall(NamedTuple):
    """The function that served a call, for others whose arguments are arrays that it takes as they are.

    Attributes:
        function: it checks the types of its arguments itself, and the options.
        names: the inputs that were given, in the order of the model's inputs.
        most_positional: how many of these are the model's first inputs: those that a call may give by position.
        bound: the inputs that are bound by value.
        rest: the positions of the other inputs, where some are bound.
    """

    function: JitFunction
    names: tuple[str, ...]
    most_positional: int
    bound: tuple[BoundInput, ...] = ()
    rest: tuple[int, ...] = ()

    def __call__(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
        """The result of a call like that one, as the function gives it; `MISMATCH` for any other call.

        Raises:
            TilewrightError: the program failed.
        """
        function, names, most_positional, bound_inputs, rest = self
        given = len(args)
        if given + len(kwargs) != len(names) or given > most_positional:
            return MISMATCH
        if kwargs:
            try:
                args = (*args, *map(kwargs.__getitem__, names[given:]))
            except KeyError:
                return MISMATCH
        if bound_inputs:
            for bound in bound_inputs:
                if not bound.equals(args[bound.position]):
                    return MISMATCH
            args = [args[n] for n in rest]
        return function.again(args)


def leading(names: Sequence[str], order: Sequence[str]) -> int:
    """How many of the first `names` are the first of `order`."""
    for count, (name, expected) in enumerate(zip(names, order, strict=False)):
        if name != expected:
            return count
    return min(len(names), len(order))
