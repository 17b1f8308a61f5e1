"""A tile kernel from a Python function: one specialisation for array types and compile-time values.

Looking at the function gives a digest without building IR; `build` compiles its syntax tree to `tile` IR.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.errors import KernelSignatureError
from tilewright.frontend.pyast_signature import IN, OUT, KernelSignature
from tilewright.frontend.pyast_source import source_digest, source_of, value_digest
from tilewright.primitives import ArrayType

if TYPE_CHECKING:
    from tilewright.dialects import tile


@dataclass(frozen=True, eq=False)
class Specialisation:
    """A kernel for given types of its arrays (in the order of its parameters) and compile-time values."""

    function: Any  # a FunctionType, which a type checker would take for a method here
    signature: KernelSignature
    types: tuple[ArrayType, ...]
    static: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Stands for the kernel's IR."""
        static = sorted((name, value_digest(value)) for name, value in self.static.items())
        text = f"{source_digest(self.function)}\n{self._effects()}\n{static}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def name(self) -> str:
        """A symbol that no other kernel of a program has."""
        return f"kernel_{re.sub(r'[^0-9A-Za-z_]+', '', self.function.__name__)}_{self.digest[:12]}"

    @property
    def results(self) -> tuple[ArrayType, ...]:
        """Types of what a call gives: the Out and InOut arrays in order."""
        pairs = zip(self.signature.arrays, self.types, strict=True)
        return tuple(type for parameter, type in pairs if parameter.effect != IN)

    def _effects(self) -> list[str]:
        pairs = zip(self.signature.arrays, self.types, strict=True)
        return [f"{parameter.name} {parameter.effect} {type}" for parameter, type in pairs]

    def build(self) -> tile.KernelOp:
        """The kernel's IR.

        Raises:
            TilewrightError: the kernel has a mistake; the error has its place.
        """
        from xdsl.ir import Block, Region

        from tilewright.dialects import tile
        from tilewright.frontend.pyast_cleanup import drop_unused
        from tilewright.frontend.pyast_expressions import Frame
        from tilewright.frontend.pyast_statements import compile_body
        from tilewright.frontend.pyast_values import Ref

        body = Block(arg_types=[tile.ref(t) for t in self.types])
        source = source_of(self.function)
        names: dict[str, Any] = dict(self.static)
        for parameter, argument, type in zip(self.signature.arrays, body.args, self.types, strict=True):
            names[parameter.name] = Ref(parameter.name, argument, type, parameter.effect)
        compiler = compile_body(body, Frame(source, names, source.free_names()))
        self._check_stores(compiler.stored)
        body.add_op(tile.YieldOp.make([], {}, []))
        effects = tile.ArrayAttr([tile.StringAttr(p.effect) for p in self.signature.arrays])
        properties = {"sym_name": self.name, "grid": compiler.grid, "effects": effects}
        kernel = tile.KernelOp.make([], properties, [], [Region(body)])
        drop_unused(kernel)
        kernel.verify()
        return kernel

    def _check_stores(self, stored: set[str]) -> None:
        for parameter in self.signature.arrays:
            if parameter.effect == OUT and parameter.name not in stored:
                message = f"`{parameter.name}` is Out, but `{self.signature.name}` never stores to it"
                raise KernelSignatureError(
                    message, location=parameter.location, help=f"store a tile: `{parameter.name}[...] = tile`"
                )
