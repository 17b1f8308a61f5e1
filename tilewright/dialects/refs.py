"""Types of arrays in memory: a space and a layout, or on a grid of cores the storage of their pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import StringAttr, TensorType
from xdsl.ir import Attribute, Data, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import irdl_attr_definition, param_def
from xdsl.utils.exceptions import VerifyException

from tilewright.dialects.base import array_type, tensor
from tilewright.dtypes import DType
from tilewright.errors import LayoutError
from tilewright.layout.catalogue.placements import Pages
from tilewright.primitives import ArrayType

if TYPE_CHECKING:
    from xdsl.parser import AttrParser
    from xdsl.printer import Printer


@irdl_attr_definition
class PagesAttr(Data[Pages]):
    """The storage of an array's pages on a grid of cores: `#tile.pages<"bfp8", "l1 1x2 on 8x8">`. The format is empty
    where it is that of the element type; the placement, or `row-major`, is left out for device tiles in DRAM."""

    name = "tile.pages"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Pages:
        with parser.in_angle_brackets():
            format = parser.parse_str_literal()
            place = parser.parse_str_literal() if parser.parse_optional_punctuation(",") else ""
        try:
            return Pages.parse(format, place)
        except LayoutError as error:
            parser.raise_error(error.message)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string_literal(self.data.format)
            if self.data.place:
                printer.print_string(", ")
                printer.print_string_literal(self.data.place)


_DEFAULT_PAGES = PagesAttr(Pages())
_HASH = "tilewright.hash"


@irdl_attr_definition
class RefType(ParametrizedAttribute, TypeAttribute):
    """An array in memory: its type, the space it lives in and its layout (empty: row-major). An array on a grid of
    cores has neither: it is stored in `pages`, which are printed where they are not the default."""

    name = "tile.ref"
    array: TensorType[Attribute] = param_def()
    space: StringAttr = param_def()
    layout: StringAttr = param_def()
    pages: PagesAttr = param_def()

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(self.array)
            if self.space.data or self.layout.data:
                printer.print_string(", ")
                printer.print_attribute(self.space)
            if self.layout.data:
                printer.print_string(", ")
                printer.print_attribute(self.layout)
            if self.pages != _DEFAULT_PAGES:
                printer.print_string(", ")
                printer.print_attribute(self.pages)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            array = parser.parse_type()
            fields: list[Attribute] = []
            while parser.parse_optional_punctuation(","):
                fields.append(parser.parse_attribute())
        texts = [field for field in fields if isinstance(field, StringAttr)]
        pages = fields[len(texts) :] or [_DEFAULT_PAGES]
        if len(texts) > 2 or len(pages) > 1 or not isinstance(pages[0], PagesAttr):
            parser.raise_error("expected a space and a layout, or pages")
        return [array, *texts, *[StringAttr("")] * (2 - len(texts)), *pages]

    def verify(self) -> None:
        if self.pages != _DEFAULT_PAGES and (self.space.data or self.layout.data):
            raise VerifyException("tile.ref: an array in pages has no space and no layout")

    def __hash__(self) -> int:
        # Types never change, and much is looked up by them.
        kept = vars(self)
        known: int | None = kept.get(_HASH)
        if known is None:
            known = kept[_HASH] = hash((self.array, self.space, self.layout, self.pages))
        return known

    @property
    def shape(self) -> tuple[int, ...]:
        return array_type(self.array).shape

    @property
    def dtype(self) -> DType:
        return array_type(self.array).dtype


def ref(type: ArrayType, space: str = "", layout: str = "", pages: Pages | None = None) -> RefType:
    stored = _DEFAULT_PAGES if pages is None else PagesAttr(pages)
    return RefType(tensor(type), StringAttr(space), StringAttr(layout), stored)


def ref_type(value: SSAValue) -> RefType:
    if not isinstance(value.type, RefType):
        raise VerifyException(f"expected a ref, got {value.type}")
    return value.type
