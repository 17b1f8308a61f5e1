"""The operations of xDSL's `func` dialect that host programs use, with its names and text.

xDSL's own module imports its parser and printer, which a process that only compiles needs for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import FunctionType, StringAttr, SymbolNameConstraint
from xdsl.ir import Attribute, Dialect, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import HasParent, IsolatedFromAbove, IsTerminator, ReturnLike, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

if TYPE_CHECKING:
    from xdsl.parser import Parser
    from xdsl.printer import Printer


@irdl_op_definition
class FuncOp(IRDLOperation):
    """A function of the module: its name, its type and its body."""

    name = "func.func"
    body = region_def()
    sym_name = prop_def(SymbolNameConstraint())
    function_type = prop_def(FunctionType)
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface())

    def __init__(self, name: str, type: tuple[Sequence[Attribute], Sequence[Attribute]], body: Region) -> None:
        properties = {"sym_name": StringAttr(name), "function_type": FunctionType.from_lists(*type)}
        super().__init__(properties=properties, regions=[body])

    def verify_(self) -> None:
        if self.function_type.inputs.data != tuple(self.body.block.arg_types):
            raise VerifyException("func.func: the arguments of the body have other types than the inputs")

    def print(self, printer: Printer) -> None:
        from xdsl.dialects.utils import print_func_op_like  # imports the printer

        print_func_op_like(
            printer,
            self.sym_name,
            self.function_type,
            self.body,
            self.attributes,
            reserved_attr_names=("sym_name", "function_type"),
        )

    @classmethod
    def parse(cls, parser: Parser) -> FuncOp:
        from xdsl.dialects.utils import parse_func_op_like  # imports the parser

        name, inputs, outputs, body, extra, *_ = parse_func_op_like(
            parser, reserved_attr_names=("sym_name", "function_type")
        )
        func = cls(name, (inputs, outputs), body)
        if extra is not None:
            func.attributes |= extra.data
        return func


@irdl_op_definition
class ReturnOp(IRDLOperation):
    """The end of a function, with its results."""

    name = "func.return"
    arguments = var_operand_def()
    traits = traits_def(HasParent(FuncOp), IsTerminator(), ReturnLike())

    def __init__(self, *results: SSAValue) -> None:
        super().__init__(operands=[results])

    def verify_(self) -> None:
        func = self.parent_op()
        if isinstance(func, FuncOp) and func.function_type.outputs.data != tuple(self.arguments.types):
            raise VerifyException("func.return: the results have other types than the outputs of the function")

    def print(self, printer: Printer) -> None:
        printer.print_op_attributes(self.attributes)
        if self.arguments:
            printer.print_string(" ")
            printer.print_list(self.arguments, printer.print_ssa_value)
            printer.print_string(" : ")
            printer.print_list(self.arguments.types, printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> ReturnOp:
        attributes = parser.parse_optional_attr_dict()
        operands = parser.parse_optional_undelimited_comma_separated_list(
            parser.parse_optional_unresolved_operand, parser.parse_unresolved_operand
        )
        types: list[Attribute] = []
        if operands:
            parser.parse_punctuation(":")
            types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        returned = cls(*parser.resolve_operands(operands or (), types, parser.pos))
        returned.attributes |= attributes
        return returned


Func = Dialect("func", [FuncOp, ReturnOp])
