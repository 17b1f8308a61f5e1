"""Fields of operations: declared once, read as plain Python values, and the arguments of a typed constructor.

    @operation
    class LoadOp(PlainOp):
        name = "tile.load"
        source: SSAValue = operand()
        symbols: Sequence[SSAValue] = operands(default=())
        map: AffineMap = attribute()
        fill: float | int | None = attribute(default=None)
        result: Result = result()

    load = LoadOp(source=array, symbols=[row], map=map, result=tensor(type))
    load.map.results

The annotation of an attribute is its type in Python and decides how it is stored in the IR (`_CODECS`). An attribute
with a default is not stored where it has that value. The constructor is synthesized from the declarations, for type
checkers too (PEP 681).
"""

from __future__ import annotations

import struct
from abc import ABCMeta
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from types import UnionType
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar, cast

import msgspec
from xdsl.dialects.builtin import (
    UNKNOWN_LOC,
    AffineMapAttr,
    ArrayAttr,
    BoolAttr,
    DenseArrayBase,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    LocationAttr,
    StringAttr,
    f64,
    i1,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, OpResult, Region, SSAValue, SSAValues, Use
from xdsl.ir.affine import AffineMap
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    OpDef,
    VarOperandDef,
    VarResultDef,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    var_operand_def,
    var_result_def,
)
from xdsl.irdl.operations import BeforeVariadicSingleAccessor, UniqueVariadicAccessor
from xdsl.traits import OpTrait

# What attributes of operations are in Python; `Attribute` where an operation keeps one as it is.
Plain = bool | int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | AffineMap | Attribute
_REQUIRED = object()


class Codec(msgspec.Struct, frozen=True):
    """How values of a Python type are stored in attributes: the constraint of the IR, and both directions."""

    constraint: Any
    encode: Callable[[Any], Attribute]
    decode: Callable[[Any], Any]


def _number(value: bool | int | float) -> Attribute:
    if isinstance(value, bool):
        return BoolAttr.from_bool(value)
    return _index(value) if isinstance(value, int) else _float(value, struct.pack("<d", value))


# Attributes never change; xDSL verifies each that is built, which takes longer than building it.
@lru_cache(maxsize=4096)
def _index(value: int) -> Attribute:
    return IntegerAttr(value, IndexType())


@lru_cache(maxsize=4096)
def _float(value: float, bits: bytes) -> Attribute:
    """`bits` distinguish zeros of both signs, which compare equal."""
    return FloatAttr(value, f64)


def _plain_number(attribute: IntegerAttr | FloatAttr) -> bool | int | float:
    if isinstance(attribute, FloatAttr):
        return float(attribute.value.data)
    return bool(attribute.value.data) if attribute.type == i1 else int(attribute.value.data)


def _integers(values: Sequence[int]) -> Attribute:
    return _array_of(*values)


@lru_cache(maxsize=4096, typed=True)
def _array_of(*values: int) -> Attribute:
    return DenseArrayBase.from_list(i64, values)


_string = lru_cache(maxsize=4096)(StringAttr)
_VALUES = "tilewright.values"


def _values_of(attribute: Attribute) -> tuple[int, ...]:
    """The integers of an array, which it keeps: they are asked for very often."""
    kept = vars(attribute)
    values: tuple[int, ...] | None = kept.get(_VALUES)
    if values is None:
        values = kept[_VALUES] = cast("DenseArrayBase[IntegerType]", attribute).get_values()
    return values


_CODECS: dict[str, Codec] = {
    "bool": Codec(BoolAttr, BoolAttr.from_bool, lambda attribute: bool(attribute.value.data)),
    "int": Codec(IntegerAttr, _number, lambda attribute: attribute.value.data),
    "float": Codec(FloatAttr, lambda value: FloatAttr(value, f64), lambda attribute: attribute.value.data),
    "float | int": Codec(FloatAttr | IntegerAttr, _number, _plain_number),
    "str": Codec(StringAttr, _string, lambda attribute: attribute.data),
    "tuple[int, ...]": Codec(DenseArrayBase, _integers, _values_of),
    "tuple[float, ...]": Codec(
        ArrayAttr[FloatAttr],
        lambda values: ArrayAttr([FloatAttr(value, f64) for value in values]),
        lambda attribute: tuple(float(element.value.data) for element in attribute),
    ),
    "tuple[str, ...]": Codec(
        ArrayAttr[StringAttr],
        lambda values: ArrayAttr([StringAttr(value) for value in values]),
        lambda attribute: tuple(element.data for element in attribute),
    ),
    "AffineMap": Codec(AffineMapAttr, AffineMapAttr, lambda attribute: attribute.data),
    "Attribute": Codec(Attribute, lambda value: value, lambda attribute: attribute),
}


def encode(value: Plain | Sequence[int]) -> Attribute:
    """The attribute of a plain value of any type: an `index` for an int, f64 for a float, `array<i64>` for integers.

    Raises:
        TypeError: a sequence holds something else than integers.
    """
    match value:
        case Attribute():
            return value
        case bool() | int() | float():
            return _number(value)
        case str():
            return _string(value)
        case AffineMap():
            return AffineMapAttr(value)
        case _:
            return _integers(cast("Sequence[int]", value))


def decode(attribute: Attribute) -> Any:
    """The plain value of an attribute that `encode` made; other attributes are returned as they are."""
    match attribute:
        case IntegerAttr() | FloatAttr():
            return _plain_number(attribute)
        case StringAttr() | AffineMapAttr():
            return attribute.data
        case DenseArrayBase():
            return _values_of(attribute)  # `encode` makes no other arrays
        case _:
            return attribute


# ---- declarations ---------------------------------------------------------------------------------------------------


class Result:
    """Annotates a result: an SSA value to those who read it, its type to the constructor."""

    def __get__(self, op: object, owner: object = None) -> OpResult:
        raise NotImplementedError  # `operation` puts accessors here

    def __set__(self, op: object, value: Attribute) -> None:
        raise NotImplementedError


class Results:
    """Annotates a variable number of results: SSA values to those who read them, their types to the constructor."""

    def __get__(self, op: object, owner: object = None) -> Sequence[OpResult]:
        raise NotImplementedError

    def __set__(self, op: object, value: Sequence[Attribute]) -> None:
        raise NotImplementedError


class _AttributeField(msgspec.Struct, frozen=True):
    """A declared attribute; the annotation of the class has its type."""

    default: object


def operand(constraint: type[Attribute] = Attribute) -> Any:
    """An operand, whose type meets the constraint."""
    return operand_def(constraint)


def operands(constraint: type[Attribute] = Attribute, *, default: tuple[()]) -> Any:
    """A variable number of operands, whose types meet the constraint; none unless the constructor is given some."""
    return var_operand_def(constraint)


def attribute(*, default: object = _REQUIRED) -> Any:
    """An attribute of the type that the annotation names; without a default the constructor requires it."""
    return _AttributeField(default)


def result(constraint: type[Attribute] = Attribute) -> Any:
    """The result, whose type meets the constraint."""
    return result_def(constraint)


def results(constraint: type[Attribute] = Attribute, *, default: tuple[()]) -> Any:
    """A variable number of results, whose types meet the constraint; none unless the constructor is given some."""
    return var_result_def(constraint)


def region() -> Any:
    """A region of one block."""
    return region_def("single_block")


SPECIFIERS = (operand, operands, attribute, result, results, region)


class Signature(msgspec.Struct, frozen=True):
    """The fields of an operation in order: operands and results (and whether each is variadic), regions, attributes."""

    operands: tuple[tuple[str, bool], ...] = ()
    results: tuple[tuple[str, bool], ...] = ()
    regions: tuple[str, ...] = ()
    attributes: Mapping[str, tuple[Codec, object]] = msgspec.field(default_factory=dict[str, tuple[Codec, object]])
    # Several variadic operands: the property `operandSegmentSizes` holds the length of each.
    has_segments: bool = False


class OperationType(ABCMeta):
    """The type of the classes of operations.

    They have no virtual subclasses, which `ABCMeta` would look for in each `isinstance`, at three times the time.
    """

    __instancecheck__ = type.__instancecheck__


_OBJECT: Any = object
_NO_ATTRIBUTES: Mapping[str, Attribute] = {}
_MOST_VERIFIED = 1024


class FieldsOp(IRDLOperation, metaclass=OperationType):
    """An operation that `operation` defines."""

    SIGNATURE: ClassVar[Signature] = Signature()
    VERIFIED_BY_TYPES: ClassVar[bool] = False
    """Whether `verify_` looks at the types of operands and results and at properties alone."""
    # Identity, as xDSL has it; these take no call of Python.
    __eq__ = _OBJECT.__eq__
    __hash__ = _OBJECT.__hash__

    @classmethod
    def create(
        cls,
        *,
        operands: Sequence[SSAValue] = (),
        result_types: Sequence[Attribute] = (),
        properties: Mapping[str, Attribute] = _NO_ATTRIBUTES,
        attributes: Mapping[str, Attribute] = _NO_ATTRIBUTES,
        location: LocationAttr | None = None,
        successors: Sequence[Block] = (),
        regions: Sequence[Region] = (),
    ) -> Self:
        if successors:
            raise TypeError(f"{cls.name} has no successors")
        op = cls.__new__(cls)
        initialise(op, operands, result_types, dict(properties), regions)
        op.attributes.update(attributes)
        op.location = op.location if location is None else location
        return op


def initialise(
    op: FieldsOp,
    operands: Iterable[SSAValue],
    result_types: Iterable[Attribute],
    properties: dict[str, Attribute],
    regions: Iterable[Region],
) -> None:
    """Fill in an operation as xDSL does, without looking for successors or defaults of properties, which no operation
    of ours has: there are very many operations."""
    _set_operands(op, operands)
    op.results = SSAValues([OpResult(type, op, index) for index, type in enumerate(result_types)])
    op.properties = properties
    op.attributes = {}
    op.location = UNKNOWN_LOC
    op.regions = ()
    for region in regions:
        op.add_region(region)


class Operands(SSAValues[SSAValue]):
    """The operands of an operation: a tuple, which is read faster than xDSL's view, and of which each may be set."""

    op: Operation

    def __setitem__(self, index: int, operand: SSAValue) -> None:
        op = self.op
        operands, uses = _operands(op), _uses_of(op)
        operands[index].remove_use(uses[index])
        operand.add_use(uses[index])
        _keep(op, (*operands[:index], operand, *operands[index + 1 :]))


def _keep(op: Operation, values: Iterable[SSAValue]) -> None:
    kept = Operands(values)
    kept.op = op
    cast("Any", op)._operands = kept


def _set_operands(op: Operation, new: Iterable[SSAValue]) -> None:
    values = tuple(new)
    uses = tuple([Use(op, index) for index in range(len(values))])
    for operand, use in zip(_operands(op), _uses_of(op), strict=True):
        operand.remove_use(use)
    for operand, use in zip(values, uses, strict=True):
        operand.add_use(use)
    _keep(op, values)
    cast("Any", op)._operand_uses = uses


_AllOf: TypeAlias = Callable[[Operation], tuple[SSAValue, ...]]
_operands: _AllOf = attrgetter("_operands")
_uses_of: Callable[[Operation], tuple[Use, ...]] = attrgetter("_operand_uses")
# Very many ask for them.
cast("Any", FieldsOp).operands = property(_operands, _set_operands)

Op = TypeVar("Op", bound=type[FieldsOp])


def operation(cls: Op) -> Op:
    """Define an operation by its declared fields: xDSL's `irdl_op_definition` with attributes as plain values."""
    attributes: dict[str, tuple[Codec, object]] = {}
    ours = [owner for owner in cls.mro() if issubclass(owner, FieldsOp)]
    for owner in reversed(ours):
        for name, declared in vars(owner).items():
            if isinstance(declared, _AttributeField):
                attributes[name] = _codec(owner.__annotations__[name]), declared.default
    for name, (codec, default) in attributes.items():
        define = prop_def if default is _REQUIRED else opt_prop_def
        setattr(cls, name, define(codec.constraint))
    custom = cast("_Verify", cls.verify_)
    made = irdl_op_definition(cls)
    for name, (codec, default) in attributes.items():
        setattr(made, name, _accessor(name, codec, default))
    definition = made.get_irdl_definition()
    if not (definition.regions or definition.successors or _looks_around(definition)):
        unions = (type, UnionType)
        by_value = {name for name, (codec, _) in attributes.items() if not isinstance(codec.constraint, unions)}
        by_value.add(AttrSizedOperandSegments.attribute_name)
        cast("Any", made).verify_ = _verifier(definition, custom, by_value, cls.VERIFIED_BY_TYPES)
    _read_directly(made, [name for name, _ in definition.operands], _operands)
    _read_directly(made, [name for name, _ in definition.results], attrgetter("results"))
    signature = Signature(
        tuple((name, isinstance(operand, VarOperandDef)) for name, operand in definition.operands),
        tuple((name, isinstance(result, VarResultDef)) for name, result in definition.results),
        tuple(name for name, _ in definition.regions),
        attributes,
        AttrSizedOperandSegments(as_property=True) in definition.options,
    )
    made.SIGNATURE = signature
    return made


_Verify: TypeAlias = Callable[[IRDLOperation], None]


def _looks_around(definition: OpDef) -> bool:
    """Whether a trait of an operation constrains where it is."""
    return any(type(trait).verify is not OpTrait.verify for trait in definition.traits)


def _verifier(definition: OpDef, custom: _Verify, by_value: Container[str], by_types: bool) -> _Verify:
    """Verify an operation against its definition, once for each combination of classes of types and properties, which
    is all that the definition constrains but of properties `by_value`; what a class checks besides each time, or, if it
    looks at types and properties alone, once for each combination of these."""
    as_defined: set[tuple[object, ...]] = set()
    as_custom: dict[tuple[object, ...], list[Attribute]] = {}

    def verify(op: IRDLOperation) -> None:
        types = [*[o.type for o in op.operands], *[r.type for r in op.results]]
        properties = [value if name in by_value else type(value) for name, value in op.properties.items()]
        key = (len(op.operands), *map(type, types), *op.properties, *properties)
        if key not in as_defined or op.attributes:
            definition.verify(op)
            if len(as_defined) >= _MOST_VERIFIED:
                as_defined.clear()
            as_defined.add(key)
        if not by_types:
            custom(op)
            return
        facts = [*types, *op.properties.values()]
        key = (len(op.operands), *op.properties, *map(id, facts))
        if key not in as_custom:
            custom(op)
            if len(as_custom) >= _MOST_VERIFIED:
                as_custom.clear()
            # The attributes that a key is of are kept, so that no other one gets the identity of any.
            as_custom[key] = facts

    return verify


def _read_directly(cls: type[FieldsOp], names: Sequence[str], all_of: _AllOf) -> None:
    """Accessors of operands or results whose positions are known: xDSL's look at the definition each time."""
    for index, name in enumerate(names):
        theirs = vars(cls).get(name)
        if isinstance(theirs, BeforeVariadicSingleAccessor):
            setattr(cls, name, property(_entry_reader(all_of, index)))
        elif isinstance(theirs, UniqueVariadicAccessor):
            setattr(cls, name, property(_entries_reader(all_of, index, len(names) - 1 - index)))


# Of xDSL's tuples of values, which have a slower one of Python.
_entry: Callable[[tuple[SSAValue, ...], int], SSAValue] = cast("Any", tuple).__getitem__


def _entry_reader(all_of: _AllOf, index: int) -> Callable[[Operation], SSAValue]:
    return lambda op: _entry(all_of(op), index)


def _entries_reader(all_of: _AllOf, first: int, after: int) -> Callable[[Operation], Sequence[SSAValue]]:
    return lambda op: (entries := all_of(op))[first : len(entries) - after]


def _codec(annotation: str) -> Codec:
    """The codec of an annotated type; a tuple of some number of integers is stored as any other."""
    name = annotation.removesuffix(" | None")
    return _CODECS["tuple[int, ...]" if name.startswith("tuple[int, ") else name]


def _accessor(name: str, codec: Codec, default: object) -> property:
    """Reads and writes a property of an operation as a plain value."""

    def read(op: IRDLOperation) -> object:
        stored = op.properties.get(name)
        return default if stored is None else codec.decode(stored)

    def write(op: IRDLOperation, value: object) -> None:
        if value is None or value == default:
            op.properties.pop(name, None)
        else:
            op.properties[name] = codec.encode(value)

    return property(read, write)


class Arguments(NamedTuple):
    """The operands, result types, regions and properties that xDSL builds an operation from."""

    operands: list[SSAValue]
    result_types: list[Attribute]
    regions: list[Region]
    properties: dict[str, Attribute]


def arguments(op: str, signature: Signature, fields: dict[str, Any]) -> Arguments:
    """The operands, result types, regions and properties that the fields of a constructor's call are.

    Raises:
        TypeError: a required field is missing, or the operation has no such field.
    """
    try:
        sizes, operand_values = _flattened(signature.operands, fields)
        _, types = _flattened(signature.results, fields)
        regions = [fields.pop(name) for name in signature.regions]
        properties: dict[str, Attribute] = {}
        for name, value in fields.items():
            codec, default = signature.attributes[name]
            if value is not None and value != default:
                properties[name] = codec.encode(value)
    except KeyError as error:
        raise TypeError(f"{op}: the field {error} is missing or unknown") from error
    if signature.has_segments:
        properties["operandSegmentSizes"] = DenseArrayBase.from_list(i32, sizes)
    return Arguments(operand_values, types, regions, properties)


def _flattened(declared: Sequence[tuple[str, bool]], fields: dict[str, Any]) -> tuple[list[int], list[Any]]:
    """The number of values of each field, and the values of all."""
    sizes: list[int] = []
    values: list[Any] = []
    for name, is_variadic in declared:
        own = list(fields.pop(name, ())) if is_variadic else [fields.pop(name)]
        sizes.append(len(own))
        values += own
    return sizes, values
