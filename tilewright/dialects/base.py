"""Shared code of the dialects: the type mapping, plain attribute values, and one readable text form for operations.

%3 = array.map(%1, %2) {fn = "add"} : tensor<8x4xf32>
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

from xdsl.dialects.builtin import (
    AffineMapAttr,
    BFloat16Type,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    FloatTF32Type,
    IntegerType,
    Signedness,
    StringAttr,
    TensorType,
    i1,
)
from xdsl.ir import Attribute, Operation, OpResult, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.utils.exceptions import VerifyException

from tilewright import dtypes
from tilewright.dialects.fields import SPECIFIERS, FieldsOp, arguments, decode, initialise
from tilewright.dialects.imports import ask_for_dialects_last
from tilewright.dtypes import DType
from tilewright.primitives import ArrayType

if TYPE_CHECKING:
    from xdsl.parser import Parser
    from xdsl.printer import Printer

ask_for_dialects_last()

Op = TypeVar("Op", bound=Operation)

_FLOAT_TYPES: dict[str, Attribute] = {
    "f8e4m3fn": Float8E4M3FNType(),
    "f8e5m2": Float8E5M2Type(),
    "f16": Float16Type(),
    "bf16": BFloat16Type(),
    "f32": Float32Type(),
    "f64": Float64Type(),
    "tf32": FloatTF32Type(),
}


def element_attribute(dtype: DType) -> Attribute:
    """The IR element type: signed integers are signless, bool is i1."""
    if dtype.is_float:
        return _FLOAT_TYPES[dtype.name]
    if dtype.is_bool:
        return i1
    return IntegerType(dtype.bits, Signedness.UNSIGNED if dtype.kind == "u" else Signedness.SIGNLESS)


_DTYPE_OF: dict[Attribute, DType] = {element_attribute(d): d for d in (*dtypes.ALL, dtypes.tf32)}


def dtype_of(attribute: Attribute) -> DType:
    """The `DType` of an IR element type; KeyError when it is none of ours."""
    return _DTYPE_OF[attribute]


@lru_cache(maxsize=4096)
def tensor(type: ArrayType, layout: str = "") -> TensorType[Any]:
    """The IR type; `layout` states where the elements are, once that is decided."""
    element = element_attribute(type.dtype)
    return TensorType(element, type.shape, StringAttr(layout)) if layout else TensorType(element, type.shape)


def layout_text(value: SSAValue | Attribute) -> str:
    """The layout in the type of a tensor; empty where it has none."""
    attribute = value.type if isinstance(value, SSAValue) else value
    encoding = attribute.encoding if isinstance(attribute, TensorType) else None
    return encoding.data if isinstance(encoding, StringAttr) else ""


def array_type(value: SSAValue | Attribute) -> ArrayType:
    """Shape and element type of a tensor value or type."""
    attribute: Any = value.type if type(value) is OpResult or isinstance(value, SSAValue) else value
    # Types never change, and this is asked very often: each keeps its answer.
    try:
        return attribute._tilewright_array_type
    except AttributeError:
        if not isinstance(attribute, TensorType):
            raise VerifyException(f"expected a tensor, got {attribute}") from None
    known = ArrayType(attribute.get_shape(), dtype_of(attribute.element_type))
    vars(attribute)["_tilewright_array_type"] = known
    return known


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=SPECIFIERS)
class PlainOp(FieldsOp):
    """Base of the project's operations: declared fields, a typed constructor and a common text form."""

    def __init__(self, **fields: Any) -> None:
        """Build from declared fields. Attributes are stored in the order in which they are passed.

        Raises:
            TypeError: a required field is missing, or there is no such field.
        """
        operands, result_types, regions, properties = arguments(self.name, self.SIGNATURE, fields)
        initialise(self, operands, result_types, properties, regions)

    def print(self, printer: Printer) -> None:
        with printer.in_parens():
            printer.print_list(self.operands, printer.print_ssa_value)
        if self.properties:
            printer.print_string(" ")
            printer.print_attr_dict(self.properties)
        for region in self.regions:
            printer.print_string(" do ")
            printer.print_region(region)
        if self.results:
            printer.print_string(" : ")
            printer.print_list([r.type for r in self.results], printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        operands = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_operand(parser))
        properties = parser.parse_optional_attr_dict()
        regions: list[Region] = []
        while parser.parse_optional_keyword("do"):
            regions.append(parser.parse_region())
        types: list[Attribute] = []
        if parser.parse_optional_punctuation(":"):
            types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        return cls.create(operands=operands, properties=properties, result_types=types, regions=regions)


def rebuilt(
    op: Op,
    operands: Sequence[SSAValue] | None = None,
    result_types: Sequence[Attribute] | None = None,
    regions: Sequence[Region] = (),
) -> Op:
    """A new operation with the attributes of another; operands and types of results are the same where they are not
    given."""
    return op.create(
        operands=op.operands if operands is None else operands,
        properties=dict(op.properties),
        result_types=[r.type for r in op.results] if result_types is None else result_types,
        regions=regions,
    )


def plain_attributes(op: Operation) -> dict[str, Any]:
    """All attributes of an operation as plain values, for code that does not know its class."""
    return {key: decode(value) for key, value in op.properties.items()}


def rewrite_maps(op: Operation, rewrite: Callable[[str, AffineMap], AffineMap]) -> None:
    """Replace each affine map among the attributes of an operation by `rewrite(name, map)`."""
    for name, attribute in list(op.properties.items()):
        if isinstance(attribute, AffineMapAttr):
            op.properties[name] = AffineMapAttr(rewrite(name, attribute.data))


def _parse_operand(parser: Parser) -> SSAValue:
    """A value that was defined before: operands carry no types in the text."""
    operand = parser.parse_unresolved_operand()
    values = parser.ssa_values.get(operand.operand_name)
    if values is None:
        parser.raise_error(f"%{operand.operand_name} is used before it is defined")
    return values[operand.index]
