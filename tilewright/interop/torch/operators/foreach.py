"""Operators over lists of arrays, which the steps of optimisers are made of: each is the operator of one array."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from tilewright import api as tw
from tilewright.api.array import Array
from tilewright.api.lifting import ArrayLike, is_nested
from tilewright.interop.torch.operators import elementwise, reduction
from tilewright.interop.torch.registry import operator
from tilewright.interop.torch.tensors import as_floats

_BINARY: dict[str, Callable[..., Array]] = {
    "add": elementwise.add,
    "clamp_max": elementwise.clamp_max,
    "clamp_min": elementwise.clamp_min,
    "div": elementwise.divide,
    "maximum": elementwise.clamp_min,
    "minimum": elementwise.clamp_max,
    "mul": elementwise.multiply,
    "pow": elementwise.power,
    "sub": elementwise.subtract,
}


def _of_floats(fn: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function of floats, of integers in torch's default float type."""
    return lambda x: fn(as_floats(x))


_UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": tw.abs,
    "exp": _of_floats(tw.exp),
    "neg": tw.negative,
    "reciprocal": _of_floats(tw.reciprocal),
    "rsqrt": _of_floats(tw.rsqrt),
    "sign": elementwise.sign,
    "sqrt": _of_floats(tw.sqrt),
    "zero": tw.zeros_like,
}


def _each(fn: Callable[..., Array], first: Sequence[Array], *others: object, **options: object) -> list[Array]:
    """The operator of each array and its elements of the lists among the others; what is no list goes to all."""
    spread = [other if is_nested(other) else itertools.repeat(other) for other in others]
    return [fn(x, *rest, **options) for x, *rest in zip(first, *spread, strict=False)]


def _register_binary(name: str, fn: Callable[..., Array]) -> None:
    @operator(*(f"_foreach_{name}.{overload}" for overload in ("List", "Scalar", "ScalarList", "Tensor")))
    def rule(first: Sequence[Array], other: object, **options: object) -> list[Array]:
        return _each(fn, first, other, **options)

    del rule


def _register_unary(name: str, fn: Callable[[Array], Array]) -> None:
    @operator(f"_foreach_{name}")
    def rule(first: Sequence[Array]) -> list[Array]:
        return _each(fn, first)

    del rule


for _name, _fn in _BINARY.items():
    _register_binary(_name, _fn)
for _name, _fn in _UNARY.items():
    _register_unary(_name, _fn)


def _plus_product(x: Array, a: Array, b: Array, factor: ArrayLike) -> Array:
    return x + a * b * factor


def _plus_quotient(x: Array, a: Array, b: Array, factor: ArrayLike) -> Array:
    return x + a / b * factor


def _towards(x: Array, y: Array, factor: ArrayLike) -> Array:
    return x + (y - x) * factor


@operator("_foreach_addcmul.Scalar", "_foreach_addcmul.ScalarList", "_foreach_addcmul.Tensor")
def addcmul(first: Sequence[Array], left: Sequence[Array], right: Sequence[Array], value: ArrayLike = 1) -> list[Array]:
    """`x + value * left * right`."""
    return _each(_plus_product, first, left, right, value)


@operator("_foreach_addcdiv.Scalar", "_foreach_addcdiv.ScalarList", "_foreach_addcdiv.Tensor")
def addcdiv(first: Sequence[Array], left: Sequence[Array], right: Sequence[Array], value: ArrayLike = 1) -> list[Array]:
    """`x + value * left / right`."""
    return _each(_plus_quotient, first, left, right, value)


@operator("_foreach_lerp.List", "_foreach_lerp.Scalar", "_foreach_lerp.ScalarList")
def lerp(first: Sequence[Array], other: Sequence[Array], weight: object) -> list[Array]:
    """`x + weight * (other - x)`."""
    return _each(_towards, first, other, weight)


@operator("_foreach_copy")
def copy(first: Sequence[Array], other: Sequence[Array], non_blocking: bool = False) -> list[Array]:
    """The other arrays, in the shapes and types of the first ones."""
    return _each(elementwise.copy, first, other)


@operator("_foreach_norm.Scalar")
def norm(first: Sequence[Array], ord: float = 2, dtype: object = None) -> list[Array]:
    """The norm of each array."""
    return _each(reduction.vector_norm, first, ord, dtype=dtype)
