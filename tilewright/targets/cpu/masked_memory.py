"""LLVM's masked loads, stores, gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from tilewright.targets.cpu.loops import POINTER, broadcast
from tilewright.targets.llvm.values import Builder, Value, element_of, has_features, lanes_of, shuffle


def _suffix(shape: ir.Type) -> str:
    names = {"half": "f16", "float": "f32", "double": "f64"}
    element = str(element_of(shape))
    text = names.get(element, element)
    return f"v{lanes_of(shape)}{text}" if isinstance(shape, ir.VectorType) else text


def _declare(builder: Builder, name: str, result: ir.Type, arguments: Sequence[ir.Type]) -> ir.Function:
    found = builder.module.globals.get(name)
    return found if found is not None else ir.Function(builder.module, ir.FunctionType(result, arguments), name)


# Bytes of a register of a machine without masks in registers.
_REGISTER_BYTES = 32
# Bytes of the shortest register for a vector.
_LEAST_REGISTER_BYTES = 16
# What an element is stored as, by its bytes: one instruction, where integers take two.
_MOVED: dict[int, ir.Type] = {4: ir.FloatType(), 8: ir.DoubleType()}


def masked_load(builder: Builder, pointer: Value, mask: Value, shape: ir.Type, align: int) -> Value:
    """A vector of what the mask lets through, 0 in other lanes; an element takes `align` bytes.

    LLVM is kept from seeing a constant mask of a vector that is wider than a register: without AVX-512, LLVM 22 cuts
    it, and loads a register of which all lanes are off whole, beyond the end of an array.
    """
    if lanes_of(shape) * align > _REGISTER_BYTES and not has_features(builder, "avx512vl"):
        mask = builder.xor(mask, _all_off(builder, mask.type))
    name = f"llvm.masked.load.{_suffix(shape)}.p0"
    function = _declare(builder, name, shape, [POINTER, ir.IntType(32), mask.type, shape])
    return builder.call(function, [pointer, ir.Constant(ir.IntType(32), align), mask, ir.Constant(shape, None)])


def _all_off(builder: Builder, shape: ir.Type) -> Value:
    """A mask of no lanes that LLVM takes for any."""
    number = ir.IntType(32)
    code = ir.InlineAsm(ir.FunctionType(number, [number]), "", "=r,0")
    bit = builder.icmp_unsigned("!=", builder.call(code, [ir.Constant(number, 0)]), ir.Constant(number, 0))
    return broadcast(builder, bit, lanes_of(shape))


def masked_store(builder: Builder, value: Value, pointer: Value, mask: Value, align: int) -> None:
    name = f"llvm.masked.store.{_suffix(value.type)}.p0"
    function = _declare(builder, name, ir.VoidType(), [value.type, POINTER, ir.IntType(32), mask.type])
    builder.call(function, [value, pointer, ir.Constant(ir.IntType(32), align), mask])


def store_first_lane(builder: Builder, value: Value, pointer: Value, itemsize: int) -> None:
    """Store the first element of a vector, through an empty piece of assembly: LLVM does not see which operations it is
    the result of.

    LLVM 22 on AVX-512 turns a truncation and a masked store of one lane into a store of the wide type, and takes the
    first lane of a negated shuffle of doubles from before the shuffle.
    """
    number = _MOVED.get(itemsize, ir.IntType(8 * itemsize))
    lanes, most = lanes_of(value.type), _register_bytes(builder) // itemsize
    numbers = builder.bitcast(value, ir.VectorType(number, lanes))
    count = max(min(lanes, most), _LEAST_REGISTER_BYTES // itemsize)
    if count != lanes:
        numbers = shuffle(builder, numbers, None, [min(lane, lanes - 1) for lane in range(count)])
    constraint = "w" if _is_arm(builder) else "x"
    code = ir.InlineAsm(ir.FunctionType(numbers.type, [numbers.type]), "", f"={constraint},0")
    first = builder.extract_element(builder.call(code, [numbers]), ir.Constant(ir.IntType(32), 0))
    builder.store(first, pointer, align=itemsize)


def store_first_lane_where(builder: Builder, value: Value, pointer: Value, guard: Value, itemsize: int) -> None:
    """Store the first element of a vector if a condition holds for it, which is one of all lanes or of each."""
    if isinstance(guard.type, ir.VectorType):
        guard = builder.extract_element(guard, ir.Constant(ir.IntType(32), 0))
    with builder.if_then(guard):
        store_first_lane(builder, value, pointer, itemsize)


def _register_bytes(builder: Builder) -> int:
    if _is_arm(builder):
        return _LEAST_REGISTER_BYTES
    return 2 * _REGISTER_BYTES if has_features(builder, "avx512vl") else _REGISTER_BYTES


def _is_arm(builder: Builder) -> bool:
    return builder.module.triple.startswith("aarch64")


def gather(builder: Builder, pointers: Value, mask: Value, shape: ir.Type, align: int) -> Value:
    name = f"llvm.masked.gather.{_suffix(shape)}.v{lanes_of(shape)}p0"
    function = _declare(builder, name, shape, [pointers.type, ir.IntType(32), mask.type, shape])
    return builder.call(function, [pointers, ir.Constant(ir.IntType(32), align), mask, ir.Constant(shape, None)])


def scatter(builder: Builder, value: Value, pointers: Value, mask: Value, align: int) -> None:
    name = f"llvm.masked.scatter.{_suffix(value.type)}.v{lanes_of(value.type)}p0"
    function = _declare(builder, name, ir.VoidType(), [value.type, pointers.type, ir.IntType(32), mask.type])
    builder.call(function, [value, pointers, ir.Constant(ir.IntType(32), align), mask])
