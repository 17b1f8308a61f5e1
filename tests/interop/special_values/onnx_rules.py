"""Elementwise, reduction and cast operators of ONNX against ONNX Runtime, and the reference evaluator of the package
`onnx`; where these differ, one of them is to be met."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.interop.special_values.compare import Case, Unusable
from tests.interop.special_values.values import is_float, pairs, rows, special

_OPSET = 21
TYPES: dict[str, int] = {
    **{"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16},
    **{"bfloat16": TensorProto.BFLOAT16, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8},
    **{"int16": TensorProto.INT16, "uint16": TensorProto.UINT16, "int32": TensorProto.INT32},
    **{"uint32": TensorProto.UINT32, "int64": TensorProto.INT64, "uint64": TensorProto.UINT64},
    "bool": TensorProto.BOOL,
}
NARROW: dict[str, int] = {
    **{"float8_e4m3fn": TensorProto.FLOAT8E4M3FN, "float8_e5m2": TensorProto.FLOAT8E5M2},
    **{"float8_e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ, "float8_e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ},
    **{"int4": TensorProto.INT4, "uint4": TensorProto.UINT4},
}
_PACKED = ("int4", "uint4")
_UNARY_EXACT = "Abs BitwiseNot Ceil Floor IsInf IsNaN Neg Not Reciprocal Relu Round Sign Sqrt"
_UNARY = """Acos Acosh Asin Asinh Atan Atanh Celu Cos Cosh Elu Erf Exp Gelu HardSigmoid HardSwish LeakyRelu Log Mish
Selu Shrink Sigmoid Sin Sinh Softplus Softsign Tan Tanh ThresholdedRelu"""
_BINARY = """Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min
Mod Mul Or Pow PRelu Sub Sum Mean Xor"""
_REDUCTIONS = """ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
ReduceSumSquare ArgMax ArgMin CumSum"""
_ULPS = 8.0
# Whose definitions in the reference evaluator use other formulas: -0 + 0, 0 * inf.
_NOISE = frozenset({"PRelu", "Sign", "Sum", "Shrink"})
# Which of two zeros is given depends on the type.
_ANY_ZERO = frozenset({"Relu", "Max", "Min", "ReduceMax", "ReduceMin"})
_OF_INTEGERS = frozenset(["ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd", "ArgMax", "ArgMin", "CumSum"])


# For results that ONNX Runtime does not give to NumPy: a type that has all their values.
_WIDER = {
    TensorProto.BFLOAT16: TensorProto.FLOAT,
    TensorProto.INT4: TensorProto.INT8,
    TensorProto.UINT4: TensorProto.UINT8,
}


def _model(op: str, types: Sequence[int], result: int, consts: Sequence[Any], attributes: dict[str, Any]) -> Any:
    names = [f"x{n}" for n in range(len(types))]
    held = [onnx.numpy_helper.from_array(c, f"c{n}") for n, c in enumerate(consts)]
    node = helper.make_node(op, [*names, *(h.name for h in held)], ["y"], **attributes)
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(names, types, strict=True)]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", result, None)], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)


def _by_runtime(model: Any, arrays: Sequence[Any]) -> Any:
    return _run(_session(model), arrays)


def _by_runtime_alone(model: Any, arrays: Sequence[Any]) -> Any:
    """Each element in a run of its own: what C++ leaves open has other results there than in vectors."""
    session = _session(model)
    return np.concatenate([_run(session, [a[n : n + 1] for a in arrays]) for n in range(len(arrays[0]))])


def _session(model: Any) -> Any:
    """A session for a model of one operator. A result that has no type in NumPy is read through a wider one."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    result = model.graph.output[0]
    wider = _WIDER.get(result.type.tensor_type.elem_type)
    if wider is not None:
        # Casts that follow each other would become one.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        model.graph.node.append(helper.make_node("Cast", [result.name], ["wider"], to=wider))
        result.name, result.type.tensor_type.elem_type = "wider", wider
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def _run(session: Any, arrays: Sequence[Any]) -> Any:
    if any(a.dtype.name in _PACKED for a in arrays):
        raise NotImplementedError("elements that share bytes")
    feeds = {}
    for n, array in enumerate(arrays):
        kind = {**TYPES, **NARROW}[array.dtype.name]
        native = array.dtype.kind in "fiub" and array.dtype.name in TYPES and array.dtype.name != "bfloat16"
        feeds[f"x{n}"] = (
            onnxruntime.OrtValue.ortvalue_from_numpy(array)
            if native
            else onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(f"u{array.dtype.itemsize}"), kind)
        )
    (found,) = session.run_with_ort_values(None, feeds)
    wanted = np.dtype(helper.tensor_dtype_to_np_dtype(found.element_type()))
    result = found.numpy()
    return result if result.dtype == wanted else result.view(wanted)


def _by_reference(model: Any, arrays: Sequence[Any]) -> Any:
    return np.asarray(ReferenceEvaluator(model).run(None, {f"x{n}": a for n, a in enumerate(arrays)})[0])


def _case(
    op: str,
    arrays: Sequence[Any],
    result: int,
    consts: Sequence[Any] = (),
    attributes: dict[str, Any] | None = None,
    *,
    exact: bool,
    dtype: str = "",
    scale: Any = None,
) -> Case:
    kinds = [{**TYPES, **NARROW}[a.dtype.name] for a in arrays]

    def model() -> Any:
        return _model(op, kinds, result, consts, attributes or {})

    def theirs() -> list[Any]:
        found: list[Any] = []
        last: Exception | None = None
        runners: list[Callable[[Any, Sequence[Any]], Any]] = [_by_runtime, _by_reference]
        if op == "Cast":
            runners.append(_by_runtime_alone)
        for run in runners:
            try:
                value = run(model(), arrays)
            except Exception as error:  # each refuses types that it does not have
                last = error
            else:
                wanted = np.dtype(helper.tensor_dtype_to_np_dtype(result))
                if result in _WIDER and value.dtype == helper.tensor_dtype_to_np_dtype(_WIDER[result]):
                    value = value.astype(wanted)
                if value.dtype == wanted:
                    found.append([value])
        if not found:
            raise last
        lacks = last is not None and last.__class__.__module__.startswith("onnxruntime")
        if lacks and len(found) < 2 and (not exact or op in _NOISE):
            raise Unusable("ONNX Runtime lacks the type, and the reference evaluator rounds otherwise")
        return found

    def ours() -> list[Any]:
        return [np.asarray(tw.from_onnx(model(), target="cpu")(*arrays))]

    text = " ".join(f"{k}={v}" for k, v in (attributes or {}).items())
    any_zero = op in _ANY_ZERO
    ulps = 0.0 if exact else _ULPS
    return Case(
        "onnx",
        op,
        f"{dtype or arrays[0].dtype.name} {text}",
        ours,
        theirs,
        arrays,
        ulps,
        any_zero=any_zero,
        scale=scale,
    )


def cases(match: str) -> Iterator[Case]:
    """All cases whose operator has `match` in its name."""
    for op in (*_UNARY_EXACT.split(), *_UNARY.split()):
        if match in op:
            yield from _unary(op)
    for op in _BINARY.split():
        if match in op:
            yield from _binary(op)
    for op in _REDUCTIONS.split():
        if match in op:
            yield from _reduction(op)
    if match in "Clip":
        yield from _clips()
    if match in "Cast":
        yield from _casts()


def _storage(name: str) -> np.dtype[Any]:
    return np.dtype(helper.tensor_dtype_to_np_dtype({**TYPES, **NARROW}[name]))


def _takes(op: str, name: str) -> bool:
    """Whether the specification has an operator for a type."""
    schema = onnx.defs.get_schema(op, _OPSET)
    wanted = {"float32": "float", "float64": "double"}.get(name, name)
    (allowed,) = [c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == schema.inputs[0].type_str]
    return f"tensor({wanted})" in allowed


def _unary(op: str) -> Iterator[Case]:
    for name, kind in TYPES.items():
        if _takes(op, name):
            result = TensorProto.BOOL if op in ("IsInf", "IsNaN", "Not") else kind
            values = special(_storage(name))
            scale = np.abs(values.astype(np.float64)) if op == "Gelu" else None
            yield _case(op, [values], result, exact=op in _UNARY_EXACT.split(), scale=scale)


def _binary(op: str) -> Iterator[Case]:
    for name, kind in TYPES.items():
        if not _takes(op, name):
            continue
        dtype = _storage(name)
        a, b = pairs(dtype)
        if op in ("Div", "Mod") and dtype.kind in "iu":
            # Division by 0 is left open, and the smallest integer by -1 traps in the runtime.
            kept = (b != 0) & ((b != -1) | (a != np.iinfo(dtype).min) if dtype.kind == "i" else True)
            a, b = a[kept], b[kept]
        if op == "Pow" and dtype.kind in "iu":
            a, b = a[b >= 0], b[b >= 0]
        if op == "BitShift":
            kept = b < 8 * dtype.itemsize
            a, b = a[kept], b[kept]
        truth = op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor")
        options: list[dict[str, Any]] = [{}]
        if op == "Mod":
            options = [{"fmod": 1}] if is_float(dtype) else [{"fmod": 0}, {"fmod": 1}]
        if op == "BitShift":
            options = [{"direction": "LEFT"}, {"direction": "RIGHT"}]
        for attributes in options:
            yield _case(
                op, [a, b], TensorProto.BOOL if truth else kind, (), attributes, exact=op not in ("Pow", "Mean")
            )


def _reduction(op: str) -> Iterator[Case]:
    for name, kind in TYPES.items():
        dtype = _storage(name)
        if not _takes(op, name) or not (is_float(dtype) or op in _OF_INTEGERS):
            continue
        for width in (3, 64):
            array = rows(dtype, width)
            if is_float(dtype):
                wide = np.abs(array.astype(np.float64))
                limit = 2.0**60 if name in ("float32", "bfloat16") else 2.0**7 if name == "float16" else 2.0**400
                if op not in ("ReduceMax", "ReduceMin", "ArgMax", "ArgMin"):
                    sizes = np.where(np.isfinite(wide) & (wide > 0), wide, 1.0)
                    few = limit ** (1 / 3) if op == "ReduceProd" else limit
                    array = array[((sizes < few) & (sizes > 1 / few)).all(-1)]
            wide = np.abs(np.where(np.isfinite(array.astype(np.float64)), array.astype(np.float64), 0))
            scale = wide.sum(-1, keepdims=True) if op in ("ReduceSum", "ReduceMean", "ReduceL1") else None
            scale = np.broadcast_to(wide.sum(-1, keepdims=True), array.shape) if op == "CumSum" else scale
            result = TensorProto.INT64 if op.startswith("Arg") else kind
            exact = op in ("ReduceMax", "ReduceMin", "ArgMax", "ArgMin") or not is_float(dtype)
            if op.startswith("Arg"):
                for last in (0, 1):
                    yield _case(op, [array], result, (), {"axis": 1, "select_last_index": last}, exact=True)
            else:
                consts = [np.array(1, np.int64) if op == "CumSum" else np.array([1], np.int64)]
                yield _case(op, [array], result, consts, exact=exact, scale=scale)


def _clips() -> Iterator[Case]:
    for name, kind in TYPES.items():
        if name == "bool":
            continue
        dtype = _storage(name)
        bounds = [(0, 1), (1, 100), (100, 1)]
        bounds += [(-0.0, 1), (-np.inf, np.inf), (np.nan, 1), (0, np.nan)] if is_float(dtype) else []
        for low, high in bounds:
            consts = [np.array(low).astype(dtype), np.array(high).astype(dtype)]
            yield _case("Clip", [special(dtype)], kind, consts, exact=True, dtype=f"{name} {low} {high}")


def _casts() -> Iterator[Case]:
    every = {**TYPES, **NARROW}
    for source in every:
        values = special(_storage(source))
        values = np.tile(values, max(1, 64 // len(values)))
        for name, kind in every.items():
            text = f"{source} to {name}"
            for saturate in (1, 0) if name.startswith("float8") else (1,):
                attributes = {"to": kind} | ({} if saturate else {"saturate": 0})
                yield _case("Cast", [values], kind, (), attributes, exact=True, dtype=text)
