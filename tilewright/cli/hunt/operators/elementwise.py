"""Functions of single elements, with broadcasting."""

# Arrays of several libraries, which have no common type, and functions of libraries without types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import random
from functools import partial

from tilewright.cli.hunt.operators.base import Call, Form, Operator, kind, unary
from tilewright.cli.hunt.program import Type

_SQRT_HALF = 0.7071067811865476
_CASTS = ("f32", "f64", "i32", "u8", "bf16", "f16")


def _same(generator: random.Random, value: int, type: Type) -> Call:
    """Another operand of the same shape, a row, a column, or one element; or the value itself."""
    choice = generator.random()
    shape = type.shape
    if choice < 0.15:
        return Call((value, value))
    if choice < 0.6 or not shape:
        return Call((value, Type(shape, type.dtype)))
    if choice < 0.8:
        return Call((value, Type(shape[-1:], type.dtype)))
    if choice < 0.95:
        return Call((value, Type((*shape[:-1], 1), type.dtype)))
    return Call((value, Type((), type.dtype)))


def _of_floats(generator: random.Random, value: int, type: Type) -> Call | None:
    return _same(generator, value, type) if kind(type).is_float else None


def _of_numbers(generator: random.Random, value: int, type: Type) -> Call | None:
    return None if kind(type).is_bool else _same(generator, value, type)


def _with_scalar(generator: random.Random, value: int, type: Type) -> Call | None:
    return Call((value,), {"by": round(generator.uniform(0.5, 1.5), 2)}) if kind(type).is_float else None


def _chosen(generator: random.Random, value: int, type: Type) -> Call | None:
    if kind(type).is_bool:
        return None
    mask = Type(type.shape if generator.random() < 0.7 else type.shape[-1:], "bool")
    return Call((value, mask, Type(type.shape if generator.random() < 0.5 else (), type.dtype)))


def _cast(generator: random.Random, value: int, type: Type) -> Call | None:
    return Call((value,), {"dtype": generator.choice([name for name in _CASTS if name != type.dtype])})


def _numpy_cast(np, x, dtype):
    from tilewright.dtypes import by_name

    return x.astype(by_name(dtype).numpy)


def _torch_cast(torch, x, dtype):
    types = {"f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "u8": torch.uint8}
    return x.to(types.get(dtype) or {"bf16": torch.bfloat16, "f16": torch.float16}[dtype])


def _erf(np, x):
    """Abramowitz and Stegun 7.1.26, to 1.5e-7: NumPy has no erf."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    terms = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
    total = t * (terms[0] + t * (terms[1] + t * (terms[2] + t * (terms[3] + t * terms[4]))))
    return np.sign(x) * (1 - total * np.exp(-x * x))


def _function(name: str, weight: float, form: Form, **others: Form) -> Operator:
    return Operator(name, weight, unary, {"array": form, **others})


def _numpy_silu(np, x):
    return x / (1 + np.exp(-x))


def _numpy_gelu(np, x):
    return 0.5 * x * (1 + _erf(np, x * _SQRT_HALF))


def _rsqrt(module, x):
    return module.rsqrt(x)


def _activation(name: str, weight: float, numpy: Form, ours: Form, torch: Form, jax: Form) -> Operator:
    return Operator(name, weight, unary, {"numpy": numpy, "tilewright": ours, "torch": torch, "jax": jax})


def _nn(jnp):
    """jax.nn, which comes with jax.numpy."""
    import jax

    return jax.nn


OPERATORS = (
    _function("exp", 4, lambda xp, x: xp.exp(x)),
    _function("log", 2, lambda xp, x: xp.log(x)),
    _function("sqrt", 3, lambda xp, x: xp.sqrt(x)),
    _function("rsqrt", 2, lambda xp, x: 1 / xp.sqrt(x), tilewright=_rsqrt, torch=_rsqrt),
    _function("tanh", 3, lambda xp, x: xp.tanh(x)),
    _function("sin", 1, lambda xp, x: xp.sin(x)),
    _function("cos", 1, lambda xp, x: xp.cos(x)),
    _function("abs", 1, lambda xp, x: xp.abs(x)),
    _function("square", 3, lambda xp, x: xp.square(x)),
    _function("reciprocal", 1, lambda xp, x: 1 / x),
    _function("exp2", 0.3, lambda xp, x: xp.exp2(x)),
    _function("log1p", 0.5, lambda xp, x: xp.log1p(x)),
    _function("expm1", 0.5, lambda xp, x: xp.expm1(x)),
    _function("log2", 0.3, lambda xp, x: xp.log2(x)),
    _function("sinh", 0.2, lambda xp, x: xp.sinh(x)),
    _function("atan", 0.2, lambda xp, x: xp.arctan(x), tilewright=lambda tw, x: tw.atan(x)),
    _function("relu", 5, lambda xp, x: xp.maximum(x, 0), torch=lambda t, x: t.relu(x)),
    _activation(
        "sigmoid",
        4,
        lambda np, x: 1 / (1 + np.exp(-x)),
        lambda tw, x: tw.sigmoid(x),
        lambda t, x: t.sigmoid(x),
        lambda jnp, x: _nn(jnp).sigmoid(x),
    ),
    _activation(
        "silu",
        3,
        _numpy_silu,
        lambda tw, x: tw.nn.silu(x),
        lambda t, x: t.nn.functional.silu(x),
        lambda jnp, x: _nn(jnp).silu(x),
    ),
    _activation(
        "gelu",
        4,
        _numpy_gelu,
        lambda tw, x: tw.nn.gelu(x),
        lambda t, x: t.nn.functional.gelu(x),
        lambda jnp, x: _nn(jnp).gelu(x, approximate=False),
    ),
    Operator("add", 14, _of_numbers, {"array": lambda xp, x, y: x + y}),
    Operator("subtract", 5, _of_numbers, {"array": lambda xp, x, y: x - y}),
    Operator("multiply", 14, _of_numbers, {"array": lambda xp, x, y: x * y}),
    Operator("divide", 5, _of_floats, {"array": lambda xp, x, y: x / y}),
    Operator("maximum", 2, _of_numbers, {"array": lambda xp, x, y: xp.maximum(x, y)}),
    Operator("minimum", 2, _of_numbers, {"array": lambda xp, x, y: xp.minimum(x, y)}),
    Operator("pow", 2, _of_floats, {"array": lambda xp, x, y: x**y}),
    Operator("scale", 6, _with_scalar, {"array": lambda xp, x, by: x * by}),
    Operator("shift", 3, _with_scalar, {"array": lambda xp, x, by: x + by}),
    Operator("power", 1, _with_scalar, {"array": lambda xp, x, by: x**by}),
    Operator("where", 4, _chosen, {"array": lambda xp, x, mask, y: xp.where(mask, x, y)}),
    Operator("less", 1, _of_numbers, {"array": lambda xp, x, y: x < y}, jumps=True),
    Operator("floor", 0.5, unary, {"array": lambda xp, x: xp.floor(x)}, jumps=True),
    Operator(
        "cast",
        6,
        _cast,
        {
            "numpy": _numpy_cast,
            "jax": _numpy_cast,
            "tilewright": partial(_numpy_cast),
            "torch": _torch_cast,
        },
        jumps=True,
    ),
)
