"""The forms that operations are printed in by default, read into what the generic form states."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tilewright.interop.stablehlo.ir import Block, Operation, TensorType
from tilewright.interop.stablehlo.reader import Form, Parsed, Reader
from tilewright.interop.stablehlo.registry import as_integers

_WORD = re.compile(r"[A-Z_]\w*")
_FORMAT = re.compile(r"e(\d{1,3})m(\d{1,3})")
_SETTING = re.compile(r"\w+\s*=\s*\w+")
_BOOL = re.compile(r"true|false")
_DECIMAL = re.compile(r"-?\d{1,19}")
# Operands, and their types.
_PLAIN = """
    abs add and atan2 bitcast_convert cbrt ceil clamp convert cosine count_leading_zeros divide
    dynamic_reshape dynamic_update_slice erf exponential exponential_minus_one floor imag is_finite log log_plus_one
    logistic maximum minimum multiply negate not optimization_barrier or partition_id popcnt power real remainder
    replica_id reshape
    round_nearest_afz round_nearest_even rsqrt shift_left shift_right_arithmetic shift_right_logical sign sine sqrt
    subtract tan tanh xor
"""
_PLAIN_CHLO = """
    acos acosh asin asinh atan atanh cosh digamma erf erf_inv erfc is_inf is_neg_inf is_pos_inf lgamma next_after sinh
    square tan broadcast_add broadcast_and broadcast_atan2 broadcast_divide broadcast_maximum broadcast_minimum
    broadcast_multiply broadcast_or broadcast_power broadcast_remainder broadcast_shift_left
    broadcast_shift_right_arithmetic broadcast_shift_right_logical broadcast_subtract broadcast_xor
"""
# Those of Shardy that say how their result is to be held.
_SHARDED = """
    all_gather all_reduce all_slice all_to_all collective_permute reduce_scatter replicated_to_unreduced
    sharded_to_unreduced
"""


def _ints(reader: Reader) -> tuple[int, ...]:
    return as_integers(reader.attribute(), "a list")


def _typed(reader: Reader, operands: list[str], attributes: dict[str, Any], at: int) -> Parsed:
    """The end of an operation: more attributes, and its type."""
    if reader.sees("{"):
        attributes |= reader.dictionary()
    reader.expect(":")
    if reader.accept("("):
        arguments = reader.tensor_types(")")
        if reader.accept("->"):
            reader.check_types(operands, arguments, at)
            return Parsed(operands, reader.result_types(), attributes)
        raise reader.error("expected `->`")
    types = [reader.tensor_type()]
    while reader.accept(","):
        types.append(reader.tensor_type())
    if reader.accept("->"):  # as the CHLO dialect writes functions
        reader.check_types(operands, types, at)
        return Parsed(operands, reader.result_types(), attributes)
    if len(types) == 1:
        reader.check_types(operands, types * len(operands), at)
        return Parsed(operands, types, attributes)
    reader.check_types(operands, types, at)
    return Parsed(operands, types, attributes)


def _plain(reader: Reader, name: str) -> Parsed:
    at = reader.at
    operands = reader.values() if reader.sees("%") else []
    return _typed(reader, operands, {}, at)


def _complex(reader: Reader, name: str) -> Parsed:
    """`op %a, %b : type`, of the result; the operands are its parts."""
    at = reader.at
    operands = reader.values()
    reader.expect(":")
    if reader.sees("("):
        arguments, results = reader.function_type()
    else:
        type = reader.tensor_type()
        arguments, results = (TensorType(type.shape, type.dtype.part.numpy),) * 2, (type,)
    reader.check_types(operands, arguments, at)
    return Parsed(operands, results)


def _dimension(key: str, label: str, read: Callable[[Reader], object]) -> Form:
    """`op %a, %b, label = value : type`."""

    def form(reader: Reader, name: str) -> Parsed:
        at = reader.at
        operands = [reader.value()] if reader.sees("%") else []
        while reader.accept(",") if operands else False:
            if not reader.sees("%"):
                break
            operands.append(reader.value())
        reader.expect(label)
        reader.expect("=")
        return _typed(reader, operands, {key: read(reader)}, at)

    return form


def _compare(reader: Reader, name: str) -> Parsed:
    at = reader.at
    attributes: dict[str, Any] = {"comparison_direction": reader.take(_WORD, "a direction").group()}
    reader.expect(",")
    operands = [reader.value()]
    reader.expect(",")
    operands.append(reader.value())
    if reader.accept(","):
        attributes["compare_type"] = reader.take(_WORD, "a kind of comparison").group()
    return _typed(reader, operands, attributes, at)


def _select(reader: Reader, name: str) -> Parsed:
    at = reader.at
    operands = reader.values()
    reader.expect(":")
    if reader.sees("("):
        arguments, results = reader.function_type()
        reader.check_types(operands, arguments, at)
        return Parsed(operands, results)
    types = [reader.tensor_type()]
    reader.expect(",")
    types.append(reader.tensor_type())
    reader.check_types(operands, [*types, types[1]], at)
    return Parsed(operands, [types[1]])


def _constant(reader: Reader, name: str) -> Parsed:
    if reader.sees("{"):
        reader.dictionary()
    value = reader.attribute()
    type = getattr(value, "type", None)
    if not isinstance(type, TensorType):
        raise reader.error("expected `dense<...> : type`")
    return Parsed([], [type], {"value": value})


def _slice(reader: Reader, name: str) -> Parsed:
    at = reader.at
    operand = reader.value()
    bounds: list[tuple[int, int, int]] = []
    reader.expect("[")
    while not reader.accept("]"):
        if bounds:
            reader.expect(",")
        start = _decimal(reader)
        reader.expect(":")
        limit = _decimal(reader)
        bounds.append((start, limit, _decimal(reader) if reader.accept(":") else 1))
    keys = ("start_indices", "limit_indices", "strides")
    columns = zip(*bounds, strict=True) if bounds else ((), (), ())
    return _typed(reader, [operand], dict(zip(keys, columns, strict=True)), at)


def _decimal(reader: Reader) -> int:
    return int(reader.take(_DECIMAL, "an integer").group())


def _bool(reader: Reader) -> bool:
    return reader.take(_BOOL, "`true` or `false`").group() == "true"


def _pad(reader: Reader, name: str) -> Parsed:
    at = reader.at
    operands = [reader.value()]
    reader.expect(",")
    operands.append(reader.value())
    attributes: dict[str, Any] = {}
    for label, key in (("low", "edge_padding_low"), ("high", "edge_padding_high"), ("interior", "interior_padding")):
        reader.expect(",")
        reader.expect(label)
        reader.expect("=")
        attributes[key] = _ints(reader)
    return _typed(reader, operands, attributes, at)


def _words(reader: Reader) -> tuple[str, ...]:
    words: list[str] = []
    reader.expect("[")
    while not reader.accept("]"):
        if words:
            reader.expect(",")
        words.append(reader.take(_WORD, "a precision").group())
    return tuple(words)


def _dot_general(reader: Reader, name: str) -> Parsed:
    at = reader.at
    operands = [reader.value()]
    reader.expect(",")
    operands.append(reader.value())
    numbers: dict[str, Any] = {}
    attributes: dict[str, Any] = {"dot_dimension_numbers": numbers} if name.endswith("general") else {}
    while reader.accept(","):
        if reader.accept("precision"):
            reader.expect("=")
            attributes["precision_config"] = _words(reader)
        elif reader.accept("algorithm"):
            reader.expect("=")
            attributes["algorithm"] = reader.value_or_word()
        else:
            kind = "batching" if reader.accept("batching_dims") else "contracting"
            if kind == "contracting":
                reader.expect("contracting_dims")
            reader.expect("=")
            numbers[f"lhs_{kind}_dimensions"] = _ints(reader)
            reader.expect("x")
            numbers[f"rhs_{kind}_dimensions"] = _ints(reader)
    return _typed(reader, operands, attributes, at)


_WINDOW = {"stride": "window_strides", "pad": "padding", "lhs_dilate": "lhs_dilation", "rhs_dilate": "rhs_dilation"}


def _convolution(reader: Reader, name: str) -> Parsed:
    at = reader.at
    reader.expect("(")
    operands = reader.values(")")
    reader.expect("dim_numbers")
    reader.expect("=")
    attributes: dict[str, Any] = {"dimension_numbers": reader.convolution_numbers("")}
    reader.expect(",")
    reader.expect("window")
    reader.expect("=")
    reader.expect("{")
    first = True
    while not reader.accept("}"):
        if not first:
            reader.expect(",")
        first = False
        label = next((label for label in (*_WINDOW, "reverse") if reader.accept(label)), None)
        if label is None:
            raise reader.error("expected a part of the window")
        reader.expect("=")
        attributes[_WINDOW.get(label, "window_reversal")] = reader.attribute()
    return _typed(reader, operands, attributes, at)


def _reduce(reader: Reader, name: str) -> Parsed:
    at = reader.at
    inputs: list[str] = []
    starts: list[str] = []
    while True:
        reader.expect("(")
        inputs.append(reader.value())
        reader.expect("init")
        reader.expect(":")
        starts.append(reader.value())
        reader.expect(")")
        if not reader.accept(","):
            break
    applied = ""
    if reader.accept("applies"):
        applied = reader.take(re.compile(r"[\w.]+"), "an operation").group()
    reader.expect("across")
    reader.expect("dimensions")
    reader.expect("=")
    attributes = {"dimensions": _ints(reader)}
    parsed = _typed(reader, [*inputs, *starts], attributes, at)
    if applied:
        region = _applied(reader, applied, reader.type_of(starts[0]))
        return Parsed(parsed.operands, parsed.types, parsed.attributes, [region])
    reader.expect("reducer")
    names: list[str] = []
    types: list[TensorType] = []
    for _ in inputs:
        reader.expect("(")
        for n in range(2):
            if n:
                reader.expect(",")
            names.append(reader.new_name())
            reader.expect(":")
            types.append(reader.tensor_type())
            reader.skip_location()
        reader.expect(")")
    region = reader.region_of([*names[::2], *names[1::2]], [*types[::2], *types[1::2]])
    return Parsed(parsed.operands, parsed.types, parsed.attributes, [region])


def _applied(reader: Reader, name: str, type: TensorType) -> Block:
    """The region of two values and one operation on them."""
    line = reader.line()
    operation = Operation(name, ("%:a", "%:b"), ("%:c",), (type,), {}, (), line)
    return Block(
        ("%:a", "%:b"), (type, type), (operation, Operation("stablehlo.return", ("%:c",), (), (), {}, (), line))
    )


def _while(reader: Reader, name: str) -> Parsed:
    at = reader.at
    reader.expect("(")
    names: list[str] = []
    operands: list[str] = []
    while not reader.accept(")"):
        if names:
            reader.expect(",")
        names.append(reader.new_name())
        reader.expect("=")
        operands.append(reader.value())
    types: list[TensorType] = []
    if reader.accept(":"):
        types.append(reader.tensor_type())
        while reader.accept(","):
            types.append(reader.tensor_type())
    reader.skip_location()
    reader.check_types(operands, types, at)
    attributes = reader.dictionary() if reader.accept("attributes") else {}
    reader.expect("cond")
    condition = reader.region_of(names, types)
    reader.expect("do")
    return Parsed(operands, types, attributes, [condition, reader.region_of(names, types)])


def _call(reader: Reader, name: str) -> Parsed:
    at = reader.at
    callee = reader.symbol()
    reader.expect("(")
    key = "call_target_name" if name.endswith("custom_call") else "callee"
    target: Any = callee.name if name.endswith("custom_call") else callee
    return _typed_function(reader, reader.values(")"), {key: target}, at)


def _typed_function(reader: Reader, operands: list[str], attributes: dict[str, Any], at: int) -> Parsed:
    if reader.sees("{"):
        attributes |= reader.dictionary()
    reader.expect(":")
    arguments, results = reader.function_type()
    reader.check_types(operands, arguments, at)
    return Parsed(operands, results, attributes)


def _composite(reader: Reader, name: str) -> Parsed:
    at = reader.at
    attributes = {"name": reader.string()}
    return _typed_function(reader, reader.values() if reader.sees("%") else [], attributes, at)


def _return(reader: Reader, name: str) -> Parsed:
    at = reader.at
    operands = reader.values() if reader.sees("%") else []
    types: list[TensorType] = []
    if operands:
        reader.expect(":")
        types.append(reader.tensor_type())
        while reader.accept(","):
            types.append(reader.tensor_type())
    reader.check_types(operands, types, at)
    return Parsed(operands, [])


def _reduce_precision(reader: Reader, name: str) -> Parsed:
    at = reader.at
    operands = [reader.value()]
    reader.expect(",")
    reader.expect("format")
    reader.expect("=")
    exponent, mantissa = reader.take(_FORMAT, "a format such as `e5m10`").groups()
    return _typed(reader, operands, {"exponent_bits": int(exponent), "mantissa_bits": int(mantissa)}, at)


def _top_k(reader: Reader, name: str) -> Parsed:
    at = reader.at
    reader.expect("(")
    operands = [reader.value()]
    reader.expect(",")
    reader.expect("k")
    reader.expect("=")
    attributes = {"k": _decimal(reader)}
    reader.expect(")")
    return _typed(reader, operands, attributes, at)


def _sharding(reader: Reader, name: str) -> Parsed:
    at = reader.at
    operands = [reader.value()]
    return _typed(reader, operands, {"sharding": reader.sharding()}, at)


def _sharded(reader: Reader, name: str) -> Parsed:
    """`op axes %a out_sharding=<...> : type`."""
    at = reader.at
    if not reader.sees("%"):
        reader.skip_balanced()
    operands = [reader.value()]
    reader.expect("out_sharding")
    reader.expect("=")
    return _typed(reader, operands, {"out_sharding": reader.sharding()}, at)


def _grouped(reader: Reader, name: str) -> Parsed:
    """`op %a word=value : type`."""
    at = reader.at
    operands = [reader.value()]
    reader.take(_SETTING, "`name=value`")
    parsed = _typed(reader, operands, {}, at)
    return Parsed(operands, []) if name.endswith("group") else parsed


def _manual_computation(reader: Reader, name: str) -> Parsed:
    at = reader.at
    reader.expect("(")
    operands = reader.values(")")
    attributes: dict[str, Any] = {}
    for label, read in (
        ("in_shardings", reader.shardings),
        ("out_shardings", reader.shardings),
        ("manual_axes", reader.axes),
    ):
        reader.expect(label)
        reader.expect("=")
        attributes[label] = read()
    names: list[str] = []
    types: list[TensorType] = []
    reader.expect("(")
    while not reader.accept(")"):
        if names:
            reader.expect(",")
        names.append(reader.new_name())
        reader.expect(":")
        types.append(reader.tensor_type())
        reader.skip_location()
    region = reader.region_of(names, types)
    parsed = _typed_function(reader, operands, attributes, at)
    return Parsed(operands, parsed.types, attributes, [region])


def _fft(reader: Reader, name: str) -> Parsed:
    at = reader.at
    operands = [reader.value()]
    attributes: dict[str, Any] = {}
    for label, key, read in (("type", "fft_type", _word), ("length", "fft_length", _ints)):
        reader.expect(",")
        reader.expect(label)
        reader.expect("=")
        attributes[key] = read(reader)
    return _typed(reader, operands, attributes, at)


def _word(reader: Reader) -> str:
    return reader.take(_WORD, "a word").group()


FORMS: dict[str, Form] = {
    **{f"stablehlo.{op}": _plain for op in _PLAIN.split()},
    **{f"chlo.{op}": _plain for op in _PLAIN_CHLO.split()},
    "stablehlo.broadcast_in_dim": _dimension("broadcast_dimensions", "dims", _ints),
    "stablehlo.dynamic_broadcast_in_dim": _dimension("broadcast_dimensions", "dims", _ints),
    "stablehlo.transpose": _dimension("permutation", "dims", _ints),
    "stablehlo.reverse": _dimension("dimensions", "dims", _ints),
    "stablehlo.broadcast": _dimension("broadcast_sizes", "sizes", _ints),
    "stablehlo.iota": _dimension("iota_dimension", "dim", _decimal),
    "stablehlo.dynamic_iota": _dimension("iota_dimension", "dim", _decimal),
    "stablehlo.concatenate": _dimension("dimension", "dim", _decimal),
    "stablehlo.get_dimension_size": _dimension("dimension", "dim", _decimal),
    "stablehlo.dynamic_slice": _dimension("slice_sizes", "sizes", _ints),
    "stablehlo.cholesky": _dimension("lower", "lower", _bool),
    "stablehlo.rng_bit_generator": _dimension("rng_algorithm", "algorithm", _word),
    "stablehlo.compare": _compare,
    "stablehlo.complex": _complex,
    "stablehlo.select": _select,
    "stablehlo.constant": _constant,
    "stablehlo.slice": _slice,
    "stablehlo.pad": _pad,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.dot": _dot_general,
    "stablehlo.convolution": _convolution,
    "stablehlo.fft": _fft,
    "stablehlo.reduce": _reduce,
    "stablehlo.while": _while,
    "stablehlo.custom_call": _call,
    "stablehlo.composite": _composite,
    "stablehlo.return": _return,
    "stablehlo.reduce_precision": _reduce_precision,
    "chlo.top_k": _top_k,
    "sdy.manual_computation": _manual_computation,
    "sdy.return": _return,
    "sdy.sharding_constraint": _sharding,
    "sdy.reshard": _sharding,
    **{f"sdy.{op}": _sharded for op in _SHARDED.split()},
    "sdy.propagation_barrier": _grouped,
    "sdy.sharding_group": _grouped,
    "call": _call,
    "func.call": _call,
    "return": _return,
    "func.return": _return,
}
