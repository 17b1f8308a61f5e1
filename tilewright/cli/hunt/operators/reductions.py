"""Reductions, normalisations and running sums."""

# Arrays of several libraries, which have no common type, and functions of libraries without types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import random

from tilewright.cli.hunt.operators.base import Call, Form, Operator, axis_of, kind
from tilewright.cli.hunt.program import Type

_EPSILON = 1e-5
# The longest softmax of 16-bit floats.
_LONGEST_OF_NARROW = 2048


def _axes(generator: random.Random, value: int, type: Type) -> Call | None:
    """One axis, several, or all of a float array."""
    rank = len(type.shape)
    if not rank or not kind(type).is_float:
        return None
    choice = generator.random()
    if choice < 0.75:
        axes = [axis_of(generator, type)]
    elif choice < 0.9:
        axes = sorted(generator.sample(range(rank), generator.randint(1, rank)))
    else:
        axes = list(range(rank))
    return Call((value,), {"axes": axes, "keep": int(generator.random() < 0.4)})


def _axis(generator: random.Random, value: int, type: Type) -> Call | None:
    return Call((value,), {"axis": axis_of(generator, type)}) if type.shape and kind(type).is_float else None


def _axis_of_softmax(generator: random.Random, value: int, type: Type) -> Call | None:
    """An axis whose elements, among which 1 is divided, are normal numbers."""
    call = _axis(generator, value, type)
    if call is None or kind(type).itemsize >= 4:
        return call
    axis = int(str(call.parameters["axis"]))
    return call if type.shape[axis] <= _LONGEST_OF_NARROW else None


def _normalised(generator: random.Random, value: int, type: Type) -> Call | None:
    if not type.shape or not kind(type).is_float:
        return None
    weight = Type(type.shape[-1:], type.dtype)
    return Call((value, weight, weight))


def _reduction(name: str, weight: float, form: Form, torch: Form) -> Operator:
    return Operator(name, weight, _axes, {"array": form, "torch": torch})


def _softmax(np, x, axis):
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def _jax_softmax(jnp, x, axis):
    import jax

    return jax.nn.softmax(x, axis=axis)


def _layer_norm(np, x, weight, bias):
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + _EPSILON) * weight + bias


def _torch_layer_norm(torch, x, weight, bias):
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, _EPSILON)


OPERATORS = (
    _reduction(
        "sum",
        8,
        lambda xp, x, axes, keep: xp.sum(x, axis=tuple(axes), keepdims=bool(keep)),
        lambda t, x, axes, keep: t.sum(x, dim=axes, keepdim=bool(keep)),
    ),
    _reduction(
        "mean",
        6,
        lambda xp, x, axes, keep: xp.mean(x, axis=tuple(axes), keepdims=bool(keep)),
        lambda t, x, axes, keep: t.mean(x, dim=axes, keepdim=bool(keep)),
    ),
    _reduction(
        "max",
        3,
        lambda xp, x, axes, keep: xp.max(x, axis=tuple(axes), keepdims=bool(keep)),
        lambda t, x, axes, keep: t.amax(x, dim=axes, keepdim=bool(keep)),
    ),
    _reduction(
        "var",
        2,
        lambda xp, x, axes, keep: xp.var(x, axis=tuple(axes), keepdims=bool(keep)),
        lambda t, x, axes, keep: t.var(x, dim=axes, keepdim=bool(keep), correction=0),
    ),
    Operator(
        "argmax",
        1,
        _axis,
        {
            "array": lambda xp, x, axis: xp.argmax(x, axis=axis),
            "torch": lambda t, x, axis: t.argmax(x, dim=axis),
        },
        jumps=True,
    ),
    Operator(
        "cumsum",
        2,
        _axis,
        {
            "array": lambda xp, x, axis: xp.cumsum(x, axis=axis),
            "torch": lambda t, x, axis: t.cumsum(x, dim=axis),
        },
    ),
    Operator(
        "softmax",
        5,
        _axis_of_softmax,
        {
            "numpy": _softmax,
            "tilewright": lambda tw, x, axis: tw.nn.softmax(x, axis=axis),
            "torch": lambda t, x, axis: t.softmax(x, dim=axis),
            "jax": _jax_softmax,
        },
    ),
    Operator(
        "layer_norm",
        5,
        _normalised,
        {
            "array": _layer_norm,
            "tilewright": lambda tw, x, weight, bias: tw.nn.layer_norm(x, weight, bias, eps=_EPSILON),
            "torch": _torch_layer_norm,
        },
    ),
)
