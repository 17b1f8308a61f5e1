"""`from_stablehlo`: a program as a function over arrays."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.api.array import Array, located
from tilewright.api.jit import JitFunction
from tilewright.api.lifting import reshape
from tilewright.api.stages import Lowered
from tilewright.errors import ArgumentError, ModelFileError
from tilewright.frontend import tracing
from tilewright.interop.arguments import TensorSpec, as_numpy, checked, strong
from tilewright.interop.stablehlo.ir import Function, Module, TensorType
from tilewright.interop.stablehlo.placements import annotated, moved, one_for_each
from tilewright.interop.stablehlo.pretty import FORMS
from tilewright.interop.stablehlo.reader import Reader
from tilewright.interop.stablehlo.registry import find
from tilewright.interop.stablehlo.walk import RETURNS, Walk, check_program, is_for_each_device
from tilewright.runtime.cpu.native import MISMATCH

_BYTECODE = b"ML\xefR"


class StableHloModel:
    """A StableHLO program as a function.

    Arguments are arrays in the order of `inputs`, the parameters of the function `main`; results are in the order of
    `outputs`, one alone as it is, several as a tuple.

    `devices` is how many devices the program is for. Arrays are whole, and the program states which parts devices take;
    or where it is written for each device (`is_for_each_device`), a first axis has the arrays of each.
    """

    def __init__(self, module: Module, main: Function, target: str | None) -> None:
        self._module = module
        self._walk = Walk(module)
        self._main = main
        self.devices = module.devices
        self.is_for_each_device = is_for_each_device(module, main)
        names = [name.removeprefix("%") for name in main.body.arguments]
        self.inputs = tuple(self._spec(name, type) for name, type in zip(names, main.body.types, strict=True))
        labels = [label or f"result{n}" for n, label in enumerate(main.labels)]
        self.outputs = tuple(self._spec(label, type) for label, type in zip(labels, main.results, strict=True))
        self._gives_patterns = any(type.is_narrow for type in main.results)
        self._program = JitFunction(self._function(module.name), target, (), ())

    def __call__(self, *args: Any) -> Any:
        """Run the program; inside a function that is traced, trace it into that.

        Raises:
            ArgumentError, ShapeError, DTypeError: the arguments are not those of the program.
            TilewrightError: an operation cannot be compiled; the message names it and its line.
        """
        result = self.again(args)
        if result is not MISMATCH:
            return result
        given = self._checked(args)
        if tracing.is_tracing():
            return self._trace(given)
        return as_numpy(self._program(*given))

    def again(self, args: Sequence[object]) -> Any:
        """The result of a call on arrays of the types of the latest call, which was checked; `MISMATCH` for any other.

        Raises:
            TilewrightError: the program failed.
        """
        result = self._program.again(args)
        return as_numpy(result) if self._gives_patterns and result is not MISMATCH else result

    def lower(self, *args: object) -> Lowered:
        """The traced program, for arguments that may be `ShapeDtype`s; without any for those that it declares.

        Raises:
            TilewrightError: as a call does.
        """
        return self._program.lower(*self._checked(args))

    def dynamic(self, *args: object) -> list[Any]:
        """The arguments of the program that `lower` gives for these: all."""
        return list(args)

    def __repr__(self) -> str:
        return f"StableHloModel({', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))})"

    def _checked(self, args: Sequence[object]) -> list[Any]:
        if len(args) != len(self.inputs):
            message = f"the program takes {len(self.inputs)} arrays, got {len(args)}"
            raise located(ArgumentError(message, help=f"the inputs are {', '.join(map(str, self.inputs)) or 'none'}"))
        return [checked(spec, value, {}) for spec, value in zip(self.inputs, args, strict=True)]

    def _function(self, name: str) -> Any:
        def traced(*arrays: object) -> Any:
            return self._trace(arrays)

        kind = inspect.Parameter.POSITIONAL_ONLY
        names = [f"x{n}" if not s.name.isidentifier() else s.name for n, s in enumerate(self.inputs)]
        parameters = [inspect.Parameter(name, kind) for name in names]
        traced.__dict__["__signature__"] = inspect.Signature(parameters)
        traced.__name__ = re.sub(r"\W", "_", name) or "module"
        return traced

    def _spec(self, name: str, type: TensorType) -> TensorSpec:
        shape = (self.devices, *type.shape) if self.is_for_each_device else type.shape
        return TensorSpec(name, type.storage if type.is_narrow else type.dtype, shape)

    def _trace(self, arguments: Sequence[object]) -> Any:
        strict = [strong(value) for value in arguments]
        main = self._main
        if self.is_for_each_device:
            own = self._walk.run(main, [moved(x, self._own) for x in strict])
            results = [moved(x, self._of_all) for x in own]
        else:
            placed = zip(strict, main.attributes, strict=True)
            found = self._walk.run(main, [annotated(self._module, x, _sharding(how)) for x, how in placed])
            pairs = zip(found, main.result_attributes, strict=True)
            results = [annotated(self._module, x, _sharding(how)) for x, how in pairs]
        return results[0] if len(results) == 1 else tuple(results)

    def _own(self, x: Array) -> Array:
        """The part of an argument on the device that runs the program."""
        return reshape(one_for_each(self.devices, x.ndim).part(x), x.shape[1:])

    def _of_all(self, x: Array) -> Array:
        """The results of all devices."""
        return one_for_each(self.devices, x.ndim + 1).whole(reshape(x, (1, *x.shape)))


def _sharding(attributes: Mapping[str, object]) -> object:
    """How an argument or a result is spread over devices."""
    return attributes.get("sdy.sharding", attributes.get("mhlo.sharding"))


def from_stablehlo(source: Any, *, target: str | None = None) -> StableHloModel:
    """A function of a StableHLO program: see `StableHloModel`.

    `source` is text of MLIR, in the generic form or in the one that StableHLO prints by default, or the path of such a
    file. `target` is as `tw.jit` has it.

    Raises:
        ModelFileError: the text is malformed; the message has the line.
        UnsupportedOperatorError: it uses operations or types that are not supported; the message lists all of them.
    """
    module = Reader(_text(source), FORMS, _is_known).module()
    main = _main(module)
    check_program(module, main)
    return StableHloModel(module, main, target)


def _is_known(name: str) -> bool:
    return find(name) is not None or name in RETURNS


def _main(module: Module) -> Function:
    public = [function for function in module.functions.values() if function.is_public]
    found = module.functions.get("main") or (public[0] if len(public) == 1 else None)
    if found is None:
        message = f"the module has no function `main` among {len(module.functions)}"
        raise located(ModelFileError(message, help="call the function to run `main`, or make it the only public one"))
    return found


def _text(source: object) -> str:
    if isinstance(source, Path) or (isinstance(source, str) and "\n" not in source and source.endswith(".mlir")):
        source = _contents(Path(source))
    if isinstance(source, bytes | bytearray):
        if source.startswith(_BYTECODE):
            message = "the file is MLIR bytecode, not text"
            raise located(ModelFileError(message, help="give `exported.mlir_module()`, or pass it to `tw.from_jax`"))
        return bytes(source).decode(errors="replace")
    if not isinstance(source, str):
        message = f"`from_stablehlo` of a {type(source).__name__}"
        raise located(ArgumentError(message, help="give text of MLIR, or the path of a file"))
    return source


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise located(ModelFileError(f"the program cannot be read: {error}", help="check the path")) from None
