"""`from_torch`: an exported program as a function over arrays, compiled for the shapes that it is called with."""

from __future__ import annotations

import importlib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.api.array import Array, located
from tilewright.api.jit import JitFunction
from tilewright.api.lifting import constant, is_scalar
from tilewright.api.sizes import SizedProgram
from tilewright.api.stages import Lowered
from tilewright.dtypes import DType, as_dtype
from tilewright.errors import ArgumentError, DTypeError, ShapeError, UnsupportedOperatorError
from tilewright.frontend import tracing
from tilewright.interop.arguments import bound_dims, check_dims
from tilewright.interop.plain_calls import PlainCall
from tilewright.interop.torch.dynamo import BackendOptions, Compiled, build_plan, decompositions
from tilewright.interop.torch.packages import FxNode, GraphModule, fake_tensors, torch
from tilewright.interop.torch.specialise import MAX_SPECIALISATIONS, specialise
from tilewright.interop.torch.tensors import dtype_of, numpy_reader, tensor_maker, torch_dtype
from tilewright.interop.torch.walk import (
    Support,
    is_tensor,
    parts_of,
    status_of,
    strong,
    trace_nodes,
    unsupported_error,
    value_of,
    why_no_rule,
)
from tilewright.layout.dims import Dim
from tilewright.locks import Lock
from tilewright.primitives import ArrayType
from tilewright.runtime.cpu.native import MISMATCH
from tilewright.runtime.dlpack import to_numpy


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a program. Sizes are integers, or names of those that a call binds. `dtype` is None for a
    number that is part of the program."""

    name: str
    dtype: DType | None
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype or 'a number'}[{', '.join(map(str, self.shape))}]"


class TorchModel:
    """An exported program of PyTorch as a function.

    Arguments are those of the module that was exported, in its structure, with arrays of any kind for tensors. Results
    have the module's structure too, and are of the kind of the first array. Parameters and buffers are constants.
    Each combination of shapes is compiled once; the 64 latest are kept. With the fallback "torch", operators that are
    not supported run in torch, between compiled parts.
    """

    def __init__(
        self, program: Any, target: str | None, dims: Mapping[str, Dim] | None = None, fallback: str = "error"
    ) -> None:
        self._options = BackendOptions.of({"fallback": fallback, "target": target})
        if dims and fallback == "torch":
            message = '`dims` and the fallback "torch" do not go together'
            raise located(ArgumentError(message, help="leave one of them out"))
        self._plans: OrderedDict[Any, Compiled] = OrderedDict()
        self._program = _without_tokens(program.run_decompositions(decompositions()))
        self._target = target
        self._module: GraphModule = self._program.graph_module
        self._pytree = importlib.import_module("torch.utils._pytree")
        signature = self._program.graph_signature
        self._constants = _constants(self._program)
        _refuse_mutation(signature)
        arguments = [spec.arg for spec in signature.input_specs if spec.kind.name == "USER_INPUT"]
        given = {argument.name for argument in arguments}
        # Numbers, flags, strings and None that the module was exported with; no node reads them.
        self._fixed = {argument.name: argument.value for argument in arguments if hasattr(argument, "value")}
        placeholders = [n for n in self._module.graph.nodes if n.op == "placeholder"]
        self._order = [(n, n.name in given) for n in placeholders]
        self.inputs = tuple(_spec(n) for n, is_given in self._order if is_given)
        self._returned = _outputs(self._module)
        self.outputs = tuple(_spec(n) for n in self._returned if hasattr(n, "op"))
        # The program's own `call_spec` makes a class whenever it is read.
        self._arguments, self._results = self._program.call_spec
        self._names: list[str] = self._program.module_call_graph[0].signature.forward_arg_names or []
        self._dims = dict(dims or {})
        check_dims(self._dims, [spec.shape for spec in self.inputs])
        self._functions: OrderedDict[Any, JitFunction] = OrderedDict()
        self._lock = Lock()
        self._plain_names = self._names_of_arrays()
        self._gives_one, self._gives_tuple = self._plain_results()
        self._latest: PlainCall | None = None
        self._check_operators()

    def __call__(self, *args: Any, **kwargs: object) -> Any:
        """Run the program; inside a function that is traced, trace it into that.

        Raises:
            ArgumentError, ShapeError, DTypeError: the arguments are not those of the program.
            TilewrightError: an operator cannot be compiled; the message names it.
        """
        latest = self._latest
        if latest is not None:
            results = latest(args, kwargs)
            if results is not MISMATCH:
                return results if self._gives_one and type(results) is not tuple else self._structured(results)
        leaves = self._leaves(args, kwargs)
        if tracing.is_tracing():
            return self._rebuilt(self._trace([leaf if is_scalar(leaf) else strong(leaf) for leaf in leaves]))
        if self._options.fallback == "torch":
            return self._rebuilt(self._run_in_parts(leaves))
        function, arrays = self._function(leaves)
        results = function(*arrays)
        if self._plain_names is not None:
            self._latest = PlainCall(function, self._plain_names, len(self._plain_names))
        return self._structured(results)

    def lower(self, *args: object, **kwargs: object) -> Lowered:
        """The traced program for arguments, which may be `ShapeDtype`s.

        Raises:
            TilewrightError: as a call does.
        """
        function, arrays = self._function(self._leaves(args, kwargs))
        return function.lower(*arrays)

    @property
    def programs(self) -> list[SizedProgram]:
        """With `dims`, what the program was compiled to so far: see `JitFunction.programs`."""
        return [program for function in self._functions.values() for program in function.programs]

    def __repr__(self) -> str:
        return f"TorchModel({', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))})"

    # ---- arguments --------------------------------------------------------------------------------------------------

    def _leaves(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Any]:
        """The tensors and numbers of a call, in the order of the inputs, checked against what was exported."""
        sizes: dict[str, int] = {}
        pairs = zip(self.inputs, self._flat(args, kwargs), strict=True)
        return [
            _fixed(spec.name, leaf, self._fixed[spec.name]) if spec.name in self._fixed else _checked(spec, leaf, sizes)
            for spec, leaf in pairs
        ]

    def _flat(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Any]:
        """The arguments in the order of the inputs: keywords and keys of dicts by their names, in any order. As many
        arrays as there are inputs are taken as these.

        Raises:
            ArgumentError: the arguments have not the structure of those that were exported.
        """
        try:
            return self._arguments.flatten_up_to(self._by_position(args, kwargs))
        except ValueError as error:
            mismatch = str(error)
        leaves: list[Any] = self._pytree.tree_leaves((args, kwargs))
        if len(leaves) == len(self.inputs) == len(args):
            return leaves
        if len(leaves) != len(self.inputs):
            mismatch = f"the program takes {len(self.inputs)} inputs, got {len(leaves)}"
        raise located(ArgumentError(mismatch, help=f"the inputs are {', '.join(map(str, self.inputs))}"))

    def _by_position(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """The arguments, each by position or by keyword as in the export."""
        positional, by_keyword = self._arguments.children()
        if len(args) == positional.num_children:
            return args, dict(kwargs)
        names: list[str] = [*self._names[: positional.num_children], *by_keyword.context]
        given = dict(zip(names, args, strict=False))
        repeated = given.keys() & kwargs.keys()
        if repeated or len(given) != len(args) or {*given, *kwargs} != {*names}:
            raise ValueError(f"the parameters of the program are {', '.join(f'`{name}`' for name in names)}")
        given |= kwargs
        values = [given[name] for name in names]
        count = positional.num_children
        return tuple(values[:count]), dict(zip(names[count:], values[count:], strict=True))

    def _names_of_arrays(self) -> tuple[str, ...] | None:
        """The names of the arguments in the order of the inputs, if all are arrays in no container; else None."""
        positional, by_keyword = self._arguments.children()
        names: list[str] = [*self._names[: positional.num_children], *by_keyword.context]
        arguments: list[Any] = [*positional.children(), *by_keyword.children()]
        are_arrays = all(spec.dtype is not None for spec in self.inputs) and all(a.is_leaf() for a in arguments)
        is_plain = are_arrays and len(names) == len(arguments) == len(self.inputs)
        return tuple(names) if is_plain and self._options.fallback == "error" else None

    def _plain_results(self) -> tuple[bool, bool]:
        """Whether the program gives one array, and whether it gives a tuple of arrays, in no other container."""
        if not all(hasattr(node, "op") for node in self._returned):
            return False, False
        if self._results.is_leaf():
            return True, False
        return False, self._results.type is tuple and all(child.is_leaf() for child in self._results.children())

    def _structured(self, results: Any) -> Any:
        """The results of the compiled function in the structure of the module's."""
        if self._gives_one and not isinstance(results, tuple):
            return results
        parts = parts_of(results) if isinstance(results, tuple) else [results]
        return tuple(parts) if self._gives_tuple and len(parts) == len(self._returned) else self._rebuilt(parts)

    def _rebuilt(self, results: Sequence[object]) -> Any:
        given = iter(results)
        leaves = [next(given) if hasattr(node, "op") else node for node in self._returned]
        return self._pytree.tree_unflatten(leaves, self._results)

    def _function(self, leaves: Sequence[object]) -> tuple[JitFunction, list[Any]]:
        """The function for the numbers among the arguments, and the arrays for it."""
        numbers = tuple((type(leaf), leaf) if is_scalar(leaf) else None for leaf in leaves)
        with self._lock:
            found = self._functions.get(numbers)
            if found is None:
                found = self._functions[numbers] = self._jitted(leaves)
            self._functions.move_to_end(numbers)
            while len(self._functions) > MAX_SPECIALISATIONS:
                self._functions.popitem(last=False)
        return found, [leaf for leaf in leaves if not is_scalar(leaf)]

    def _jitted(self, leaves: Sequence[object]) -> JitFunction:
        numbers = [leaf if is_scalar(leaf) else None for leaf in leaves]

        def traced(*arrays: Array) -> Any:
            given = iter(arrays)
            results = self._trace([strong(next(given)) if n is None else n for n in numbers])
            return results[0] if len(results) == 1 else tuple(results)

        specs = [spec for spec, n in zip(self.inputs, numbers, strict=True) if n is None]
        parameters = [inspect.Parameter(spec.name, inspect.Parameter.POSITIONAL_ONLY) for spec in specs]
        traced.__dict__["__signature__"] = inspect.Signature(parameters)
        traced.__name__ = "model"
        dims = {spec.name: bound_dims(self._dims, spec.shape) for spec in specs}
        return JitFunction(traced, self._target, (), (), {name: spec for name, spec in dims.items() if spec})

    # ---- parts in torch ---------------------------------------------------------------------------------------------

    def _run_in_parts(self, leaves: Sequence[object]) -> list[Any]:
        """Run as `torch.compile` does: what cannot be compiled runs in torch, between compiled parts."""
        read: list[tuple[Any, Any]] = [(leaf, None) if is_scalar(leaf) else _read(leaf) for leaf in leaves]
        given = iter([a if back is None else tensor_maker(as_dtype(a.dtype))(a) for a, back in read])
        values: list[Any] = [next(given) if is_given else self._constants[node.name] for node, is_given in self._order]
        key = tuple([_key(value) for value in values])
        with self._lock:
            plan = self._plans.get(key)
            if plan is None:
                with fake_tensors.FakeTensorMode():
                    fakes = [_fake(value) for value in values]
                plan = self._plans[key] = build_plan(specialise(self._module, fakes), options=self._options)
            self._plans.move_to_end(key)
            while len(self._plans) > MAX_SPECIALISATIONS:
                self._plans.popitem(last=False)
        results = zip(_outputs(self._module), plan([v.detach() if is_tensor(v) else v for v in values]), strict=True)
        restore = next((back for _, back in read if back is not None), _same)
        return [restore(numpy_reader(r.dtype)(r)) if is_tensor(r) else r for node, r in results if hasattr(node, "op")]

    # ---- tracing ----------------------------------------------------------------------------------------------------

    def _trace(self, leaves: Sequence[Any]) -> list[Any]:
        """Trace the program for arrays and numbers, for their sizes."""
        given = iter(leaves)
        values = [next(given) if is_given else self._constants[node.name] for node, is_given in self._order]
        with fake_tensors.FakeTensorMode():
            fakes = [_fake(value) for value in values]
        module = specialise(self._module, fakes)
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        known = {n: constant(v.detach()) if is_tensor(v) else v for n, v in zip(placeholders, values, strict=True)}
        nodes = [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
        self._check(module, nodes)
        traced = trace_nodes(module, nodes, known)
        # Behind the results what is checked, so that it stays in the program where nothing else of it is used.
        checked = [traced[status] for n in nodes if (status := status_of(n)) is not None]
        return [*(traced[n] for n in _outputs(module) if hasattr(n, "op")), *checked]

    def _check_operators(self) -> None:
        """Refuse a program with operators that have no rule.

        Raises:
            UnsupportedOperatorError: there are some; the message lists all of them.
        """
        nodes = [n for n in self._module.graph.nodes if n.op == "call_function"]
        support = Support(self._module)
        without = {n: why_no_rule(n) for n in nodes if support.has_no_rule(n)}
        if without and self._options.fallback == "error":
            raise unsupported_error(without, _HELP)

    @staticmethod
    def _check(module: GraphModule, nodes: Sequence[FxNode]) -> None:
        support = Support(module)
        reasons = {n: reason for n in nodes if (reason := support.reason_against(n)) is not None}
        if reasons:
            raise unsupported_error(reasons, _HELP)


_HELP = 'rewrite these parts of the module, or pass `fallback="torch"`, which runs them in torch'


def _read(leaf: object) -> tuple[Any, Callable[[Any], Any]]:
    return (leaf, _same) if isinstance(leaf, np.ndarray) else to_numpy(leaf)


def _key(value: Any) -> tuple[Any, Any]:
    return (value.shape, value.dtype) if is_tensor(value) else (type(value).__name__, value)


def _same(array: object) -> Any:
    return array


def _outputs(module: GraphModule) -> Sequence[Any]:
    return next(n for n in module.graph.nodes if n.op == "output").args[0]


def _constants(program: Any) -> dict[str, Any]:
    """Parameters, buffers and constants by the names of their placeholders."""
    signature = program.graph_signature
    found: dict[str, Any] = {}
    for spec in signature.input_specs:
        if spec.kind.name in ("PARAMETER", "BUFFER"):
            held = program.state_dict if spec.target in program.state_dict else program.constants
            found[spec.arg.name] = held[spec.target]
        elif spec.kind.name == "CONSTANT_TENSOR":
            found[spec.arg.name] = program.constants[spec.target]
        elif spec.kind.name != "USER_INPUT":
            message = f"the program takes a {spec.kind.name.lower().replace('_', ' ')}, {spec.arg.name}"
            raise located(UnsupportedOperatorError(message, help="export a module that takes tensors and numbers"))
    return found


def _without_tokens(program: Any) -> Any:
    """The program with its checks as operators in their order: torch threads a token through them."""
    if all(spec.kind.name != "TOKEN" for spec in program.graph_signature.input_specs):
        return program
    return importlib.import_module("torch.export._remove_effect_tokens_pass")._remove_effect_tokens(program)


def _refuse_mutation(signature: Any) -> None:
    """Refuse a program that writes to its inputs or buffers: a function of arrays gives values.

    Raises:
        UnsupportedOperatorError: it does.
    """
    written = [spec.target or spec.arg.name for spec in signature.output_specs if spec.kind.name.endswith("MUTATION")]
    if written:
        message = f"the program writes to {', '.join(f'`{name}`' for name in written)}, which a function cannot"
        help = "export the module after `.eval()`, or return what is written and let the caller keep it"
        raise located(UnsupportedOperatorError(message, help=help))


def _spec(node: FxNode) -> TensorSpec:
    value = value_of(node)
    if not is_tensor(value):
        return TensorSpec(node.name, None, ())
    shape = tuple(n if isinstance(n, int) else str(n) for n in value.shape)
    return TensorSpec(node.name, dtype_of(value.dtype), shape)


def _fixed(name: str, value: object, exported: object) -> object:
    """A number that stands for an argument that is part of the program.

    Raises:
        ArgumentError: the argument is another one than the module was exported with.
    """
    is_plain = value is None or isinstance(value, bool | int | float | complex | str | np.generic)
    if not is_plain or value != exported:
        got = repr(value) if is_plain else f"a {type(value).__name__}"
        message = f"the input {name!r} is part of the program as {exported!r}, got {got}"
        raise located(ArgumentError(message, help="export the module with this value, or with a tensor instead"))
    return exported if is_scalar(exported) else 0


def _checked(spec: TensorSpec, value: Any, sizes: dict[str, int]) -> Any:
    """An argument that fits its input; `sizes` binds the names of sizes."""
    if spec.dtype is None:
        return value
    if is_scalar(value):
        value = np.asarray(value, spec.dtype.numpy)
    if not isinstance(value, Array | ArrayType | np.ndarray):
        to_numpy(value)
    shape: tuple[int, ...] = tuple(map(int, value.shape))
    names = (spec.dtype.name, spec.dtype.numpy.name)
    if str(value.dtype).removeprefix("torch.") not in names:
        raise located(DTypeError(f"the input {spec.name!r} is of {value.dtype}, not {spec.dtype}", help="cast it"))
    fits = len(shape) == len(spec.shape) and all(
        size == (wanted if isinstance(wanted, int) else sizes.setdefault(wanted, size))
        for wanted, size in zip(spec.shape, shape, strict=True)
    )
    if not fits:
        message = f"the input {spec.name!r} has shape {shape}, not that of {spec}"
        raise located(ShapeError(message, help="export the module with `dynamic_shapes`, or reshape the array"))
    return value


def _fake(value: Any) -> Any:
    """A tensor without contents for an array of the program or a tensor; numbers are themselves."""
    if isinstance(value, Array):
        return torch.empty(value.shape, dtype=torch_dtype(value.dtype))
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype) if is_tensor(value) else value


def from_torch(
    source: object,
    *example_args: object,
    target: str | None = None,
    dims: Mapping[str, Dim] | None = None,
    fallback: str = "error",
    **example_kwargs: object,
) -> TorchModel:
    """A function of a PyTorch program: see `TorchModel`.

    `source` is a `torch.export.ExportedProgram`, or a module and the arguments to export it with. `target` is as
    `tw.jit` has it. `dims` gives sizes of an exported program that a call binds, by the names that `.inputs` shows, a
    range: one program then serves many sizes, as `tw.jit(dims=...)` has it. With the fallback "torch", operators that
    are not supported run in torch, between compiled parts; such a function is not traced into others.

    Raises:
        ArgumentError: the source is neither, an example argument is an array that is no tensor, or `dims` names no size
            of its inputs.
        UnsupportedOperatorError: the program uses operators that are not supported, all of which the message lists, or
            writes to its inputs or buffers.
    """
    export = importlib.import_module("torch.export")
    if isinstance(source, torch.nn.Module):
        _check_examples(example_args, example_kwargs)
        source = export.export(source, example_args, example_kwargs)
    elif example_args or example_kwargs:
        raise located(ArgumentError("an exported program takes no example arguments", help="leave them out"))
    if not isinstance(source, export.ExportedProgram):
        message = f"`from_torch` of a {type(source).__name__}"
        raise located(ArgumentError(message, help="give an exported program, or a module and example arguments"))
    return TorchModel(source, target, dims, fallback)


def _check_examples(arguments: tuple[object, ...], named: dict[str, object]) -> None:
    """Refuse arrays of other libraries, which `torch.export` does not know."""
    pytree = importlib.import_module("torch.utils._pytree")
    for leaf in pytree.tree_leaves((arguments, named)):
        if hasattr(leaf, "__dlpack__") and not isinstance(leaf, torch.Tensor):
            message = f"an example argument of `from_torch` is of type {type(leaf).__name__}, not a tensor"
            raise located(ArgumentError(message, help="convert it with `torch.from_dlpack(x)`"))
