"""A tile kernel from a Python function: one specialisation for array types and compile-time values.

Looking at the function gives a digest without building IR; `build` compiles its syntax tree to `tile` IR.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tilewright.cached import cached_property
from tilewright.errors import ArgumentError, KernelSignatureError
from tilewright.frontend.identity import content_digest
from tilewright.frontend.pyast_signature import IN, OUT, KernelSignature
from tilewright.frontend.pyast_source import source_of
from tilewright.primitives import ArrayType

if TYPE_CHECKING:
    from tilewright.dialects import tile


class Specialisation(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A kernel for given types of its arrays (in the order of its parameters) and compile-time values."""

    function: Any  # a FunctionType, which a type checker would take for a method here
    signature: KernelSignature
    types: tuple[ArrayType, ...]
    static: Mapping[str, Any]

    @cached_property
    def digest(self) -> str:
        """Stands for everything that the kernel's IR depends on, so that a cached program is found without building IR.

        Raises:
            ArgumentError: the kernel reads a value whose content cannot be identified.
        """
        return self._digest_now()

    def _digest_now(self) -> str:
        source_of(self.function)
        values = {"kernel": self.function, "arrays": self._effects(), "static": dict(sorted(self.static.items()))}
        return content_digest(values, self.function.__name__)

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
            TilewrightError: the kernel has a mistake; the error has its location.
            ArgumentError: a value that the kernel reads was changed since the kernel was lowered.
        """
        from xdsl.ir import Block, Region

        from tilewright.dialects import tile
        from tilewright.frontend.pyast_expressions import Frame
        from tilewright.frontend.pyast_statements import compile_body
        from tilewright.frontend.pyast_values import Ref
        from tilewright.passes.dead_code import drop_unused

        body = Block(arg_types=[tile.ref(t) for t in self.types])
        source = source_of(self.function)
        names: dict[str, Any] = dict(self.static)
        for parameter, argument, type in zip(self.signature.arrays, body.args, self.types, strict=True):
            names[parameter.name] = Ref(parameter.name, argument, type, parameter.effect)
        compiler = compile_body(body, Frame(source, names, source.free_names()))
        self._check_stores(compiler.stored)
        body.add_op(tile.YieldOp())
        effects = tuple(p.effect for p in self.signature.arrays)
        kernel = tile.KernelOp(sym_name=self.name, grid=compiler.grid or (), effects=effects, body=Region(body))
        drop_unused(kernel)
        kernel.verify()
        if self._digest_now() != self.digest:
            message = f"a value that `{self.function.__name__}` reads was changed since the kernel was lowered"
            raise ArgumentError(message, help="lower the kernel again, or pass the value as an argument")
        return kernel

    def _check_stores(self, stored: set[str]) -> None:
        for parameter in self.signature.arrays:
            if parameter.effect == OUT and parameter.name not in stored:
                message = f"`{parameter.name}` is Out, but `{self.signature.name}` never stores to it"
                raise KernelSignatureError(
                    message, location=parameter.location, help=f"store a tile: `{parameter.name}[...] = tile`"
                )
