"""`from_onnx`: a model as a function over arrays, compiled for the shapes that it is called with."""

from __future__ import annotations

import inspect
import keyword
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.api.array import Array, located
from tilewright.api.jit import JitFunction
from tilewright.api.sizes import SizedProgram
from tilewright.api.stages import Lowered
from tilewright.errors import ArgumentError, DataDependentShapeError, UnsupportedOperatorError
from tilewright.frontend import tracing
from tilewright.frontend.trace import Value
from tilewright.interop.arguments import STRINGS, TensorSpec, as_numpy, bound_dims, check_dims, checked, strong
from tilewright.interop.narrow import STORAGES, is_sequence
from tilewright.interop.onnx.folding import Folder, HostNeeded, StaticInputsNeeded
from tilewright.interop.onnx.graph import Walk
from tilewright.interop.onnx.loading import LoadedModel, load_model, text
from tilewright.interop.onnx.needs import check_operators, host_nodes, may_be_split
from tilewright.interop.onnx.parts import Parts
from tilewright.interop.onnx.protobuf import Proto
from tilewright.interop.onnx.registry import lifted
from tilewright.interop.onnx.tensors import STRING, storage_of
from tilewright.interop.plain_calls import BoundInput, PlainCall, leading
from tilewright.layout.dims import Dim
from tilewright.locks import Lock
from tilewright.primitives import ArrayType
from tilewright.runtime.cpu.native import MISMATCH
from tilewright.runtime.dlpack import to_numpy

# How many bindings of inputs by value keep their programs.
_MAX_BINDINGS = 64


class OnnxModel:
    """An ONNX model as a function.

    Arguments are arrays in the order of `inputs`, or by name. Results are in the order of `outputs`, one alone as it
    is; sequences are lists. Each combination of shapes is compiled once. Inputs whose contents decide a shape, such as
    the target of a Reshape, are found when the model is first called and bound by value: other values compile again.

    Nodes that no program can hold run on the host, between programs: those with strings, those whose results have sizes
    that depend on data, long Fourier transforms, and what only the package `onnx` computes. `host_nodes` names them.
    All results of such a model are NumPy arrays, strings as objects.
    """

    def __init__(self, model: LoadedModel, target: str | None, dims: Mapping[str, Dim] | None = None) -> None:
        self._model = model
        self._target = target
        self._dims = dict(dims or {})
        graph = model.proto.graph
        defaults = {tensor.name for tensor in graph.initializer}
        specs = [_spec(info) for info in graph.input]
        self.inputs = tuple(spec for spec in specs if spec.name not in defaults)
        self.outputs = tuple(_spec(info) for info in graph.output)
        self._order = (*self.inputs, *(spec for spec in specs if spec.name in defaults))
        check_dims(self._dims, [spec.shape for spec in self.inputs])
        self._static: frozenset[str] = frozenset()
        self._programs: OrderedDict[tuple[Any, ...], JitFunction] = OrderedDict()
        self._lock = Lock()
        self._latest: PlainCall | None = None
        self._output_names = [spec.name for spec in self.outputs]
        # The nodes that run on the host for any shapes, and those that were found to for some.
        self._hosts = host_nodes(model)
        self._parts = Parts(model, self._hosts, self._part) if self._hosts else None
        self._may_be_split = may_be_split(model)

    @property
    def host_nodes(self) -> tuple[str, ...]:
        """The nodes that run on the host, as far as is known before the first call, and why."""
        return () if self._parts is None else self._parts.host_nodes

    def __call__(self, *args: Any, **kwargs: object) -> Any:
        """Run the model; inside a function that is traced, trace it into that.

        Raises:
            ArgumentError, ShapeError, DTypeError: the arguments are not those of the model.
            TilewrightError: a node cannot be compiled; the message names it.
        """
        latest = self._latest
        if latest is not None and self._parts is None:
            result = latest(args, kwargs)
            if result is not MISMATCH:
                return as_numpy(result)
        given = self._bound(args, kwargs)
        if tracing.is_tracing():
            self._check_whole("traced into another function")
            # What an outer program is called with cannot be bound by value here.
            return self._trace({name: strong(value) for name, value in given.items()}, {})
        while self._parts is None:
            program, static, rest = self._program(given, leaves=self._may_be_split)
            try:
                result = program(*rest)
            except StaticInputsNeeded as needed:
                self._static |= needed.names
            except HostNeeded as needed:
                self._split_at(needed)
            else:
                self._latest = self._plain_call(program, tuple(given), static)
                return as_numpy(result)
        return self._parts.run(given)

    @property
    def programs(self) -> list[SizedProgram]:
        """With `dims`, what the model was compiled to so far: see `JitFunction.programs`."""
        return [program for function in self._programs.values() for program in function.programs]

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, object]) -> list[Any]:
        """Run as ONNX Runtime's sessions do: outputs called `names`, or all, of inputs by name.

        Raises:
            ArgumentError: there is no such output; and what a call raises.
        """
        known = self._output_names
        for name in names or ():
            if name not in known:
                raise located(ArgumentError(f"there is no output {name!r}", help=f"there are {', '.join(known)}"))
        result = self(**feeds)
        results = [result] if len(known) == 1 else list(result)
        return results if names is None else [results[known.index(name)] for name in names]

    def lower(self, *args: object, **kwargs: object) -> Lowered:
        """The traced program for arguments, which may be `ShapeDtype`s where no shape depends on their contents.

        Raises:
            TilewrightError: as a call does.
        """
        self._check_whole("lowered to one program")
        given = self._bound(args, kwargs)
        while True:
            program, _, rest = self._program(given)
            try:
                return program.lower(*rest)
            except StaticInputsNeeded as needed:
                self._static |= needed.names

    def host_nodes_for(self, *args: object, **kwargs: object) -> tuple[str, ...]:
        """The nodes that run on the host for such arguments, which are traced but not run, and why. Parts after the
        first host node are not looked at.

        Raises:
            TilewrightError: as a call does.
        """
        given = self._bound(args, kwargs)
        while self._parts is None:
            program, _, rest = self._program(given, leaves=self._may_be_split)
            try:
                program.lower(*rest)
            except StaticInputsNeeded as needed:
                self._static |= needed.names
            except HostNeeded as needed:
                self._split_at(needed)
            else:
                return ()
        return self.host_nodes

    def dynamic(self, *args: object, **kwargs: object) -> list[Any]:
        """The arguments of the program that `lower` gives for these: those that are not bound by value."""
        return self._program(self._bound(args, kwargs))[2]

    def __repr__(self) -> str:
        return f"OnnxModel({', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))})"

    # ---- arguments --------------------------------------------------------------------------------------------------

    def _bound(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, Any]:
        """Arguments by name, in the order of the inputs, checked against what the model declares."""
        names = [spec.name for spec in self._order]
        if len(args) > len(names):
            message = f"the model takes {len(self.inputs)} inputs, got {len(args)}"
            raise located(ArgumentError(message, help=f"the inputs are {', '.join(map(str, self.inputs))}"))
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names or name in given:
                what = "is given twice" if name in given else "is no input of the model"
                raise located(
                    ArgumentError(f"{name!r} {what}", help=f"the inputs are {', '.join(map(str, self.inputs))}")
                )
            given[name] = value
        missing = [str(spec) for spec in self.inputs if spec.name not in given]
        if missing:
            raise located(ArgumentError(f"the input {missing[0]} is missing", help="give every input of the model"))
        sizes: dict[str, int] = {}
        return {s.name: checked(s, given[s.name], sizes) for s in self._order if s.name in given}

    def _plain_call(self, program: JitFunction, names: tuple[str, ...], static: Mapping[str, np.ndarray]) -> PlainCall:
        """The call of a program on the inputs `names`, for others like it. It checks types alone: arguments that the
        model has to convert are of other types than the program takes."""
        bound = tuple([BoundInput.of(names.index(name), array) for name, array in static.items()])
        rest = tuple([n for n, name in enumerate(names) if name not in static])
        return PlainCall(program, names, leading(names, [spec.name for spec in self._order]), bound, rest)

    def _split_at(self, needed: HostNeeded) -> None:
        place = list(self._model.proto.graph.node).index(needed.node)
        self._parts = Parts(self._model, {place: needed.reason}, self._part)

    def _part(self, model: LoadedModel) -> OnnxModel:
        return OnnxModel(model, self._target)

    def _check_whole(self, what: str) -> None:
        if self._hosts:
            listed = "; ".join(self.host_nodes)
            message = f"a model with nodes that run on the host cannot be {what}: {listed}"
            raise located(UnsupportedOperatorError(message, help="call it by itself, outside of `tw.jit`"))

    def _program(
        self, given: Mapping[str, object], *, leaves: bool = False
    ) -> tuple[JitFunction, dict[str, np.ndarray], list[Any]]:
        """The function for what is bound by value, that, and the arguments that are left for it. `leaves`: nodes may be
        left to the host."""
        static = {name: self._contents(name, given[name]) for name in given if name in self._static}
        dynamic = {name: value for name, value in given.items() if name not in static}
        key = (leaves, tuple(given), tuple((n, a.dtype.str, a.shape, a.tobytes()) for n, a in static.items()))
        with self._lock:
            found = self._programs.get(key)
            if found is None:
                found = self._programs[key] = self._function(tuple(dynamic), static, leaves=leaves)
            self._programs.move_to_end(key)
            while len(self._programs) > _MAX_BINDINGS:
                self._programs.popitem(last=False)
        return found, static, list(dynamic.values())

    @staticmethod
    def _contents(name: str, value: object) -> np.ndarray:
        if isinstance(value, ArrayType | list | tuple) or value is None:
            message = f"a shape depends on the contents of the input {name!r}, which is not an array here"
            raise located(DataDependentShapeError(message, help="give a NumPy array"))
        return np.asarray(to_numpy(value)[0] if not isinstance(value, bool | int | float) else value).copy()

    # ---- tracing ----------------------------------------------------------------------------------------------------

    def _function(self, names: tuple[str, ...], static: Mapping[str, np.ndarray], *, leaves: bool) -> JitFunction:
        def traced(*arrays: object) -> Any:
            values = {name: strong(array) for name, array in zip(names, arrays, strict=True)}
            roots: dict[Value, str] = {}
            for name, value in values.items():
                for leaf in value if is_sequence(value) else [value]:
                    if isinstance(leaf, Array):
                        roots[leaf.value] = name
            bound = {name: lifted(array) for name, array in static.items()}
            return self._trace(values | bound, roots, leaves=leaves)

        parameters = _parameter_names(names)
        kind = inspect.Parameter.POSITIONAL_ONLY
        traced.__dict__["__signature__"] = inspect.Signature([inspect.Parameter(name, kind) for name in parameters])
        traced.__name__ = text(self._model.proto.graph.name) or "model"
        shapes = {spec.name: spec.shape for spec in self._order}
        dims = {p: bound_dims(self._dims, shapes[n]) for p, n in zip(parameters, names, strict=True)}
        return JitFunction(traced, self._target, (), (), {name: spec for name, spec in dims.items() if spec})

    def _trace(self, values: Mapping[str, object], roots: Mapping[Value, str], *, leaves: bool = False) -> Any:
        walk = Walk(self._model, Folder(roots), self._model.versions, leaves=leaves)
        results = walk.run_main(self._model.proto.graph, values)
        return results[0] if len(results) == 1 else tuple(results)


def _parameter_names(names: Sequence[str]) -> list[str]:
    """Parameters that are called as the inputs are, as far as Python's names go."""
    taken: list[str] = []
    for n, name in enumerate(names):
        plain = re.sub(r"\W", "_", name)
        is_free = plain.isidentifier() and not keyword.iskeyword(plain) and plain not in taken
        taken.append(plain if is_free else f"input_{n}")
    return taken


def _spec(info: Proto) -> TensorSpec:
    name = text(info.name)
    if not info.type.HasField("tensor_type"):
        return TensorSpec(name, None, None)
    tensor = info.type.tensor_type
    dtype = _element_type(tensor.elem_type, f"{name!r}")
    if not tensor.HasField("shape"):
        return TensorSpec(name, dtype, None)
    return TensorSpec(name, dtype, tuple(_size(dim) for dim in tensor.shape.dim))


def _element_type(code: int, what: str) -> dtypes.DType | np.dtype | None:
    if code in (0, STRING):
        return STRINGS if code == STRING else None
    storage = storage_of(code, what)
    return storage if storage in STORAGES else dtypes.from_numpy(storage)


def _size(dim: Proto) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    # Exporters write "?" for sizes that have nothing to do with each other.
    return None if dim.dim_param in ("", "?") else text(dim.dim_param)


def from_onnx(source: object, *, target: str | None = None, dims: Mapping[str, Dim] | None = None) -> OnnxModel:
    """A function of an ONNX model: see `OnnxModel`.

    `source` is a path, the bytes of a model, or an `onnx.ModelProto`. External data are read from the model's folder
    alone. `target` is as `tw.jit` has it. `dims` gives sizes that the model has names for, such as `sequence`, a range:
    one program then serves many sizes, as `tw.jit(dims=...)` has it.

    Raises:
        ArgumentError: `dims` names no size of the model's inputs.
        ModelFileError: the model is malformed, or newer than what is read here.
        UnsupportedOperatorError: it uses operators that are not supported; the message lists all of them.
        ResourceUnavailable: the package `onnx` is not installed.
    """
    model = load_model(source)
    check_operators(model)
    return OnnxModel(model, target, dims)
