"""PTX text to instructions: PTX ISA, chapters 4 (syntax), 5 (state spaces) and 6 (operands).

What LLVM's NVPTX back end prints: entries with parameters, variables with initialisers, register declarations,
nested scopes (of inline assembly), labels and instructions with guards. Names of registers become indices.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

BITS = {"pred": 1, "b8": 8, "u8": 8, "s8": 8} | {
    f"{kind}{bits}": bits for bits in (16, 32, 64) for kind in ("b", "u", "s", "f")
}


@dataclass(frozen=True)
class Register:
    index: int
    bits: int
    name: str


@dataclass(frozen=True)
class Negated:
    """`!%p`: a predicate read negated."""

    register: Register


@dataclass(frozen=True)
class Special:
    name: str


@dataclass(frozen=True)
class Integer:
    value: int


@dataclass(frozen=True)
class FloatBits:
    """`0f...` (32 bits) or `0d...` (64 bits)."""

    pattern: int
    bits: int


@dataclass(frozen=True)
class Symbol:
    """A variable, a parameter or a label."""

    name: str


@dataclass(frozen=True)
class Vector:
    items: tuple["Operand", ...]


@dataclass(frozen=True)
class Pair:
    """`d|p`: two results."""

    first: "Operand"
    second: "Operand"


@dataclass(frozen=True)
class Address:
    base: "Operand"
    offset: int


@dataclass(frozen=True)
class TensorAddress:
    """`[map, {coordinates}]`: a box of a tensor."""

    map: "Address"
    coordinates: tuple["Operand", ...]


@dataclass(frozen=True)
class Sink:
    """`_`: a result that nobody wants."""


Operand = Register | Negated | Special | Integer | FloatBits | Symbol | Vector | Pair | Address | TensorAddress | Sink


@dataclass(frozen=True)
class Instruction:
    line: int
    text: str
    guard: Register | None
    guard_negated: bool
    opcode: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True)
class Variable:
    """A variable of a state space: shared, global, const, local or param; `data` None means not initialised."""

    name: str
    space: str
    align: int
    size: int
    data: bytes | None
    extern: bool = False


@dataclass
class Entry:
    name: str
    parameters: list[Variable] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    register_bits: list[int] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    required_threads: tuple[int, ...] | None = None
    most_registers: int | None = None
    cluster: tuple[int, ...] | None = None
    most_of_cluster: int | None = None
    needs_cluster: bool = False


@dataclass
class Module:
    entries: dict[str, Entry] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)


@dataclass
class _Scope:
    """Names declared between braces: registers by full name, by the stem of `%r<8>`, and labels."""

    number: int
    registers: dict[str, Register] = field(default_factory=dict)


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_PIECE = re.compile(r"\s*(?:([A-Za-z_$%][\w$]*)\s*:(?!:)|([{}])|((?:[^;{}:]|::|\{[^{};]*\})*?;))", re.S)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?\s*((?:\.\w+[^{.]*)*)\{", re.S)
_VARIABLE = re.compile(
    r"(?P<linkage>(?:\.(?:visible|extern|weak|common)\s+)*)\.(?P<space>shared|global|const|local|param)\b\s*"
    r"(?:\.attribute\(\w+\)\s*)?(?:\.align\s+(?P<align1>\d+)\s*)?\.(?P<type>[a-z]\d+)\s*(?:\.ptr\s*(?:\.\w+\s*)?)?"
    r"(?:\.align\s+(?P<align2>\d+)\s*)?(?P<name>[\w$%]+)\s*(?P<dims>(?:\[\d*\])*)\s*(?:=\s*(?P<data>.*))?$",
    re.S,
)
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.*)$", re.S)
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_IGNORED = (".loc", ".file", ".pragma", ".section", ".version", ".target", ".address_size")


@lru_cache(maxsize=64)
def parse(text: str) -> Module:
    """The module that `text` describes; parsed once a text."""
    text = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    module = Module()
    position = 0
    for match in _ENTRY.finditer(text):
        _declarations(text[position : match.start()], module)
        entry = Entry(match[1])
        for declaration in filter(None, (part.strip() for part in (match[2] or "").split(","))):
            entry.parameters.append(_variable(declaration))
        _directives(match[3], entry)
        position = _body(text, match.end(), entry)
        module.entries[entry.name] = entry
    _declarations(text[position:], module)
    return module


def _directives(text: str, entry: Entry) -> None:
    """PTX ISA, "Performance-Tuning Directives" and "Cluster Dimension Directives"."""
    given = dict(re.findall(r"\.(\w+)[ \t]*([\d, \t]*)", text))
    sizes = {name: tuple(int(size) for size in values.split(",")) for name, values in given.items() if values.strip()}
    entry.required_threads, entry.cluster = sizes.get("reqntid"), sizes.get("reqnctapercluster")
    (entry.most_registers,) = sizes.get("maxnreg", (None,))
    (entry.most_of_cluster,) = sizes.get("maxclusterrank", (None,))
    entry.needs_cluster = "explicitcluster" in given


def _declarations(text: str, module: Module) -> None:
    for line in re.sub(r"^\s*\.(version|target|address_size).*$", "", text, flags=re.M).split(";"):
        statement = re.sub(r"\s*\.(visible|weak)\s*$", "", line).strip()
        if not statement or statement.split()[0] in _IGNORED:
            continue
        if ".func" in statement:
            raise NotImplementedError(f"functions: {statement.splitlines()[0]}")
        module.variables.append(_variable(statement))


def _variable(statement: str) -> Variable:
    match = _VARIABLE.match(statement)
    if match is None or match["type"] not in BITS:
        raise NotImplementedError(f"declaration: {statement}")
    element_bytes = BITS[match["type"]] // 8
    count = 1
    for extent in re.findall(r"\[(\d*)\]", match["dims"]):
        count *= int(extent or 0)
    pointer = ".ptr" in statement
    align = int(match["align1"] or (match["align2"] if not pointer else None) or element_bytes)
    data = _initial_data(match["data"], element_bytes, count) if match["data"] else None
    return Variable(match["name"], match["space"], align, count * element_bytes, data, ".extern" in match["linkage"])


def _initial_data(text: str, element_bytes: int, count: int) -> bytes:
    data = bytearray()
    for word in filter(None, (part.strip() for part in re.sub(r"[{}]", ",", text).split(","))):
        if _INTEGER.match(word):
            value = _integer(word)
        elif word[:2] in ("0f", "0F", "0d", "0D") and len(word) == 2 + 2 * element_bytes:
            value = int(word[2:], 16)
        else:
            raise NotImplementedError(f"initialiser: {word}")
        data += (value % (1 << 8 * element_bytes)).to_bytes(element_bytes, "little")
    return bytes(data.ljust(element_bytes * count, b"\0"))


def _integer(word: str) -> int:
    word = word.rstrip("U")
    digits = word.lstrip("-")
    octal = len(digits) > 1 and digits[0] == "0" and digits.isdigit()
    value = int(digits, 8) if octal else int(digits, 0)
    return -value if word.startswith("-") else value


def _body(text: str, position: int, entry: Entry) -> int:
    """Reads statements up to the brace that closes the entry; returns the position after it."""
    scopes = [_Scope(0)]
    scope_count = 1
    targets: list[tuple[int, tuple[int, ...]]] = []
    line, counted = text.count("\n", 0, position) + 1, position
    while scopes:
        match = _PIECE.match(text, position)
        if match is None:
            raise NotImplementedError(f"line {line}: {text[position : position + 60].strip()}")
        start = match.start(match.lastindex or 0)
        line, counted = line + text.count("\n", counted, start), start
        position = match.end()
        label, brace, statement = match.groups()
        chain = tuple(scope.number for scope in reversed(scopes))
        if label:
            entry.labels[f"{label}@{chain[0]}"] = len(entry.instructions)
        elif brace == "{":
            scopes.append(_Scope(scope_count))
            scope_count += 1
        elif brace == "}":
            scopes.pop()
        else:
            words = " ".join(statement[:-1].split())
            instructions = len(entry.instructions)
            _statement(words, line, entry, scopes)
            targets += [(number, chain) for number in range(instructions, len(entry.instructions))]
    for number, chain in targets:
        entry.instructions[number] = _resolved(entry.instructions[number], chain, entry)
    return position


def _resolved(instruction: Instruction, chain: tuple[int, ...], entry: Entry) -> Instruction:
    """A branch names the innermost label that its scope sees: its symbol becomes the position of an instruction."""
    if instruction.opcode.split(".")[0] != "bra":
        return instruction
    (target,) = instruction.operands
    if isinstance(target, Symbol):
        for number in chain:
            position = entry.labels.get(f"{target.name}@{number}")
            if position is not None:
                return Instruction(*_fields(instruction), (Integer(position),))
    raise NotImplementedError(f"line {instruction.line}: {instruction.text}: unknown label")


def _fields(instruction: Instruction) -> tuple[int, str, Register | None, bool, str]:
    return (
        instruction.line,
        instruction.text,
        instruction.guard,
        instruction.guard_negated,
        instruction.opcode,
    )


def _statement(words: str, line: int, entry: Entry, scopes: list[_Scope]) -> None:
    if not words or words.split()[0] in _IGNORED:
        return
    if words.startswith(".reg"):
        _declare_registers(words, entry, scopes[-1])
    elif words.startswith("."):
        entry.variables.append(_variable(words))
    else:
        entry.instructions.append(_instruction(words, line, scopes))


def _declare_registers(words: str, entry: Entry, scope: _Scope) -> None:
    match = _REGISTERS.match(words)
    if match is None or match[1] not in BITS:
        raise NotImplementedError(f"declaration: {words}")
    for name in (part.strip() for part in match[2].split(",")):
        several = re.match(r"([\w$%]+)<(\d+)>$", name)
        names = [f"{several[1]}{number}" for number in range(int(several[2]))] if several else [name]
        for each in names:
            scope.registers[each] = Register(len(entry.register_bits), BITS[match[1]], each)
            entry.register_bits.append(BITS[match[1]])


def _instruction(words: str, line: int, scopes: list[_Scope]) -> Instruction:
    guard, negated, rest = None, False, words
    if rest.startswith("@"):
        name, rest = rest[1:].split(None, 1)
        negated = name.startswith("!")
        guard = _operand(name.lstrip("!"), scopes)
        if not isinstance(guard, Register):
            raise NotImplementedError(f"line {line}: {words}")
    opcode, _, operands = rest.partition(" ")
    if opcode.split(".")[0] == "call":
        raise NotImplementedError(f"line {line}: {words}")
    return Instruction(
        line, words, guard, negated, opcode, tuple(_operand(part, scopes) for part in _split(operands, ","))
    )


def _split(text: str, separator: str) -> Iterator[str]:
    """The parts of `text` between separators that are not inside brackets."""
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += (character in "{[") - (character in "}]")
        if character == separator and depth == 0:
            yield text[start:position].strip()
            start = position + 1
    if text[start:].strip():
        yield text[start:].strip()


def _operand(word: str, scopes: list[_Scope]) -> Operand:
    if word.startswith("{"):
        return Vector(tuple(_operand(part, scopes) for part in _split(word[1:-1], ",")))
    if word.startswith("["):
        return _address(word[1:-1].strip(), scopes)
    if "|" in word:
        first, second = word.split("|")
        return Pair(_operand(first.strip(), scopes), _operand(second.strip(), scopes))
    return _simple_operand(word, scopes)


def _simple_operand(word: str, scopes: list[_Scope]) -> Operand:
    if word == "_":
        return Sink()
    if _INTEGER.match(word):
        return Integer(_integer(word))
    if re.match(r"0[fF][0-9a-fA-F]{8}$", word):
        return FloatBits(int(word[2:], 16), 32)
    if re.match(r"0[dD][0-9a-fA-F]{16}$", word):
        return FloatBits(int(word[2:], 16), 64)
    for scope in reversed(scopes):
        register = scope.registers.get(word.lstrip("!"))
        if register is not None:
            return Negated(register) if word.startswith("!") else register
    if word == "WARP_SZ":
        return Integer(32)
    if re.match(r"%[\w.]+$", word):
        return Special(word)
    if re.match(r"[\w$]+$", word):
        return Symbol(word)
    raise NotImplementedError(f"operand: {word}")


def _address(word: str, scopes: list[_Scope]) -> Address | TensorAddress:
    parts = list(_split(word, ","))
    if len(parts) == 2 and parts[1].startswith("{"):
        coordinates = tuple(_operand(part, scopes) for part in _split(parts[1][1:-1], ","))
        return TensorAddress(_address(parts[0], scopes), coordinates)
    match = re.match(r"([\w$%]+)\s*(?:\+\s*(-?\w+)|(-\w+))?$", word)
    if match is None:
        raise NotImplementedError(f"address: [{word}]")
    base = _operand(match[1], scopes)
    return Address(base, _integer(match[2] or match[3] or "0"))
