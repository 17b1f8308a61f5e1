"""The text of LLVM modules.

Kernels are tens of thousands of instructions, which llvmlite formats in several steps each. The kinds that they mostly
consist of are written in one step here; other kinds, and instructions with metadata or attributes, as llvmlite does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from llvmlite import ir

Object: TypeAlias = Any  # a module, an instruction or another value: llvmlite carries no annotations

_INSTRUCTIONS: Object = ir.instructions
_FUNCTION: type[Object] = ir.Function


def module_text(module: Object) -> str:
    """The text of a module, the same that `str` gives."""
    named = module.namedmetadata.items()
    return "\n".join(
        [
            f'; ModuleID = "{module.name}"',
            f'target triple = "{module.triple}"',
            f'target datalayout = "{module.data_layout}"',
            "",
            *(declared.get_declaration() for declared in module.get_identified_types().values()),
            *(_function(value) if isinstance(value, _FUNCTION) else str(value) for value in module.globals.values()),
            *(f"!{name} = !{{ {_references(metadata.operands)} }}" for name, metadata in named),
            *map(str, module.metadata),
        ]
    )


def _function(function: Object) -> str:
    if not function.blocks:
        return str(function)
    parts: list[str] = []
    function.descr_prototype(parts)
    parts.append("{\n")
    for block in function.blocks:
        parts.append(f"{block._format_name()}:\n")
        parts += [f"  {_instruction(instruction)}\n" for instruction in block.instructions]
    parts.append("}\n")
    return "".join(parts)


def _instruction(instruction: Object) -> str:
    write = _WRITERS.get(instruction.__class__)
    text = None if write is None or instruction.metadata else write(instruction)
    return str(instruction) if text is None else text


def _references(values: Iterable[Object]) -> str:
    return ", ".join([value.get_reference() for value in values])


def _typed(values: Iterable[Object]) -> str:
    return ", ".join([f"{value.type} {value.get_reference()}" for value in values])


def _flagged(name: str, flags: list[str]) -> str:
    return " ".join([name, *flags]) if flags else name


def _aligned(instruction: Object) -> str:
    return "" if instruction.align is None else f", align {instruction.align}"


def _operation(op: Object) -> str:
    name = _flagged(op.opname, op.flags)
    return f"{op.get_reference()} = {name} {op.type} {_references(op.operands)}"


def _on_elements(op: Object) -> str:
    return f"{op.get_reference()} = {op.opname} {_typed(op.operands)}"


def _compare(op: Object) -> str:
    first, second = op.operands
    name = _flagged(op.opname, op.flags)
    return f"{op.get_reference()} = {name} {op.op} {first.type} {first.get_reference()}, {second.get_reference()}"


def _select(op: Object) -> str:
    return f"{op.get_reference()} = select {' '.join(op.flags)} {_typed(op.operands)}"


def _cast(op: Object) -> str:
    (source,) = op.operands
    return f"{op.get_reference()} = {op.opname} {source.type} {source.get_reference()} to {op.type}"


def _load(op: Object) -> str:
    (pointer,) = op.operands
    return f"{op.get_reference()} = load {op.type}, {pointer.type} {pointer.get_reference()}{_aligned(op)}"


def _store(op: Object) -> str:
    return f"store {_typed(op.operands)}{_aligned(op)}"


def _address(op: Object) -> str:
    name = "getelementptr inbounds" if op.inbounds else "getelementptr"
    return f"{op.get_reference()} = {name} {op.source_etype}, {_typed(op.operands)}"


def _call(op: Object) -> str | None:
    callee, *arguments = op.operands
    type = callee.function_type
    if op.tail or op.cconv or op.fastmath or op.attributes or op.arg_attributes or type.var_arg:
        return None
    text = f"call {type.return_type} {callee.get_reference()}({_typed(arguments)})"
    return text if isinstance(op.type, ir.VoidType) else f"{op.get_reference()} = {text}"


def _phi(op: Object) -> str:
    incoming = ", ".join([f"[{value.get_reference()}, {block.get_reference()}]" for value, block in op.incomings])
    return f"{op.get_reference()} = phi {' '.join(op.flags)} {op.type} {incoming}"


def _branch(op: Object) -> str:
    return f"{op.opname} {_typed(op.operands)}"


_WRITERS: dict[Object, Callable[[Object], str | None]] = {
    _INSTRUCTIONS.Instruction: _operation,
    _INSTRUCTIONS.ExtractElement: _on_elements,
    _INSTRUCTIONS.InsertElement: _on_elements,
    _INSTRUCTIONS.ICMPInstr: _compare,
    _INSTRUCTIONS.FCMPInstr: _compare,
    _INSTRUCTIONS.SelectInstr: _select,
    _INSTRUCTIONS.CastInstr: _cast,
    _INSTRUCTIONS.LoadInstr: _load,
    _INSTRUCTIONS.StoreInstr: _store,
    _INSTRUCTIONS.GEPInstr: _address,
    _INSTRUCTIONS.CallInstr: _call,
    _INSTRUCTIONS.PhiInstr: _phi,
    _INSTRUCTIONS.Branch: _branch,
    _INSTRUCTIONS.ConditionalBranch: _branch,
}
