"""Textual MLIR into functions of operations, in the generic form and in the forms that StableHLO prints by default.

Names are resolved here: a value must be defined before it is used, with the type that its user states.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from tilewright.api.array import located
from tilewright.collectives import MAX_DEVICES
from tilewright.errors import UnsupportedOperatorError
from tilewright.interop.stablehlo.attributes import AttributeReader
from tilewright.interop.stablehlo.ir import Block, Function, FunctionType, Mesh, Module, Operation, TensorType
from tilewright.records import dataclass

_VALUE = re.compile(r"%[\w.$-]+(#\d+)?")
_RESULT = re.compile(r"(%[\w.$-]+)(?::(\d{1,6}))?")
_OPERATION = re.compile(r"[a-zA-Z_][\w$]*(?:\.[\w$]+)*")
_BLOCK = re.compile(r"\^[\w.$-]+")
_ALIAS = re.compile(r"#[\w.$-]+")
_ANY_NAME = re.compile(r'(?:^\s*|= |")((?:stablehlo|chlo|mhlo)\.[a-z_]\w*)(?=[\s("])', re.MULTILINE)
_MODULE = re.compile(r"module\b")
_FUNCTION = re.compile(r"func\.func\b")
_VISIBILITY = re.compile(r"(?:public|private|nested)\b")
_MAX_RESULTS = 100_000
_MESH = "sdy.mesh"

Form = Callable[["Reader", str], "Parsed"]


@dataclass(frozen=True, slots=True)
class Parsed:
    """The parts of an operation's text after its name."""

    operands: Sequence[str]
    types: Sequence[TensorType]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    regions: Sequence[Block] = ()


class Reader(AttributeReader):
    """Reads a module. `forms` are the ways of writing operations without quotation marks, `known` states which
    operations can be traced."""

    def __init__(self, text: str, forms: Mapping[str, Form], known: Callable[[str], bool]) -> None:
        super().__init__(text)
        self._forms = forms
        self._known = known
        self._scope: dict[str, TensorType] = {}
        self._defined: list[str] = []
        self._functions: dict[str, Function] = {}
        self._meshes: dict[str, Mesh] = {}

    # ---- modules and functions --------------------------------------------------------------------------------------

    def module(self) -> Module:
        """The whole text.

        Raises:
            ModelFileError: it is malformed; the message states where.
            UnsupportedOperatorError: it uses types, or ways of writing, that are not read.
        """
        name = "module"
        attributes: dict[str, Any] = {}
        self._read_aliases()
        if self.match(_MODULE):
            if self.sees("@"):
                name = self.symbol().name
            if self.accept("attributes"):
                attributes = self.dictionary()
            self._top_level("{", "}")
        elif self.accept('"builtin.module"'):
            attributes = self._generic_module()
            name = str(attributes.get("sym_name", "module"))
        else:
            self._top_level("", "")
        self.skip_location()
        self._read_aliases()
        if self.accept("{-#"):
            self.at = len(self.text)
        if self.skip_blanks() < len(self.text):
            raise self.error("the module ends here")
        replicas = self._count(attributes, "mhlo.num_replicas")
        # JAX leaves the number out where a program is lowered for a mesh without devices.
        partitions = max(
            self._count(attributes, "mhlo.num_partitions"), *(mesh.size for mesh in self._meshes.values()), 1
        )
        if replicas * partitions > MAX_DEVICES:
            raise self.error(f"a program for more than {MAX_DEVICES} devices", 0)
        return Module(name, self._functions, self._meshes, replicas, partitions)

    def _count(self, attributes: Mapping[str, object], key: str) -> int:
        """How many devices of a kind a module states that it is for."""
        found = attributes.get(key, 1)
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise self.error(f"`{key}` is no number of devices", 0)
        return found

    def _read_aliases(self) -> None:
        while self.sees("#") or self.sees("!"):
            alias = self.take(_ALIAS, "an alias").group()
            self.expect("=")
            self.aliases[alias] = self.attribute()

    def _top_level(self, opening: str, closing: str) -> None:
        self.expect(opening)
        while not self.accept(closing) if closing else self.skip_blanks() < len(self.text):
            if self.sees("#"):
                self._read_aliases()
                continue
            if self.match(_FUNCTION):
                self._function()
            elif self.sees('"'):
                self._generic_function()
            else:
                self._declaration()
            self.skip_location()

    def _generic_module(self) -> dict[str, Any]:
        self.expect("(")
        self.expect(")")
        attributes = self.dictionary_between("<", ">") if self.accept("<") else {}
        self.expect("(")
        self.expect("{")
        if self.match(_BLOCK):
            self.expect(":")
        self._top_level("", "}")
        self.expect(")")
        if self.sees("{"):
            attributes |= self.dictionary()
        self.expect(":")
        self.expect("(")
        self.expect(")")
        self.expect("->")
        self.expect("(")
        self.expect(")")
        return attributes

    def dictionary_between(self, opening: str, closing: str) -> dict[str, Any]:
        """A dictionary in further brackets, of which the first was read."""
        found = self.dictionary()
        self.expect(closing)
        return found

    def _declaration(self) -> None:
        start = self.at
        name = self.take(_OPERATION, "a function").group()
        if name != _MESH:
            raise self.error(f"`{name}` outside of functions", start)
        symbol = self.symbol().name
        self.expect("=")
        self._meshes[symbol] = self.mesh()
        if self.sees("{"):
            self.dictionary()

    def _generic_function(self) -> None:
        start = self.at
        name = self.string()
        self.expect("(")
        self.expect(")")
        attributes = self.dictionary_between("<", ">") if self.accept("<") else {}
        if name != "func.func":
            mesh = attributes.get("mesh")
            if name != _MESH or not isinstance(mesh, Mesh):
                raise self.error(f"`{name}` outside of functions", start)
            self._meshes[str(attributes.get("sym_name"))] = mesh
            if self.sees("{"):
                self.dictionary()
            self._signature()
            return
        self.expect("(")
        body = self._function_region() if not self.sees("{ }") and not self.sees("{}") else self._no_body()
        self.expect(")")
        if self.sees("{"):
            attributes |= self.dictionary()
        self._signature()
        type = attributes.get("function_type")
        if not isinstance(type, FunctionType) or not all(isinstance(t, TensorType) for t in type.results):
            raise self.error("a function without a type", start)
        function_name = attributes.get("sym_name")
        if not isinstance(function_name, str):
            raise self.error("a function without a name", start)
        is_public = attributes.get("sym_visibility", "public") == "public"
        own = _dictionaries(attributes.get("arg_attrs"), len(type.arguments))
        others = _dictionaries(attributes.get("res_attrs"), len(type.results))
        if body is not None:
            if body.types != type.arguments:
                raise self.error("the arguments of the function are not those of its type", start)
            self._add(Function(function_name, is_public, body, type.results, own, others, self.line(start)), start)

    def _no_body(self) -> None:
        self.skip_balanced()

    def _function(self) -> None:
        start = self.at
        visibility = self.match(_VISIBILITY)
        is_public = visibility is None or visibility.group() == "public"
        name = self.symbol().name
        self._scope, self._defined = {}, []
        self.expect("(")
        arguments, types, own = self._arguments(")")
        results, others = self._results() if self.accept("->") else ((), ())
        if self.accept("attributes"):
            self.dictionary()
        if not self.accept("{"):
            return
        body = Block(arguments, types, self.operations("}"))
        self._add(Function(name, is_public, body, results, own, others, self.line(start)), start)

    def _results(self) -> tuple[tuple[TensorType, ...], tuple[Mapping[str, Any], ...]]:
        if not self.accept("("):
            return (self.tensor_type(),), ({},)
        types: list[TensorType] = []
        attributes: list[Mapping[str, Any]] = []
        while not self.accept(")"):
            if types:
                self.expect(",")
            types.append(self.tensor_type())
            attributes.append(self.dictionary() if self.sees("{") else {})
            self.skip_location()
        return tuple(types), tuple(attributes)

    def _add(self, function: Function, at: int) -> None:
        if function.name in self._functions:
            raise self.error(f"there are two functions called `{function.name}`", at)
        self._functions[function.name] = function

    # ---- regions ----------------------------------------------------------------------------------------------------

    def _function_region(self) -> Block:
        self._scope, self._defined = {}, []
        return self.region()

    def region(self) -> Block:
        """A region of one block in braces, with its arguments in front of the operations, if it has some."""
        self.expect("{")
        mark = len(self._defined)
        arguments: tuple[str, ...] = ()
        types: tuple[TensorType, ...] = ()
        if self.match(_BLOCK):
            if self.accept("("):
                arguments, types, _ = self._arguments(")")
            self.expect(":")
        with self.nested():
            block = Block(arguments, types, self.operations("}"))
        self._forget(mark)
        return block

    def region_of(self, names: Sequence[str], types: Sequence[TensorType]) -> Block:
        """A region in braces whose arguments were named before it."""
        mark = len(self._defined)
        for name, type in zip(names, types, strict=True):
            self.define(name, type)
        self.expect("{")
        with self.nested():
            block = Block(tuple(names), tuple(types), self.operations("}"))
        self._forget(mark)
        return block

    def _arguments(self, closing: str) -> tuple[tuple[str, ...], tuple[TensorType, ...], tuple[Mapping[str, Any], ...]]:
        """Names, types and attributes of arguments up to a bracket."""
        names: list[str] = []
        types: list[TensorType] = []
        attributes: list[Mapping[str, Any]] = []
        while not self.accept(closing):
            if names:
                self.expect(",")
            names.append(self.new_name())
            self.expect(":")
            types.append(self.tensor_type())
            attributes.append(self.dictionary() if self.sees("{") else {})
            self.skip_location()
            self.define(names[-1], types[-1])
        return tuple(names), tuple(types), tuple(attributes)

    def operations(self, closing: str) -> tuple[Operation, ...]:
        """Operations up to a bracket."""
        found: list[Operation] = []
        while not self.accept(closing):
            if self.sees("^"):
                raise self._unsupported_here("a region of several blocks")
            found.append(self._operation())
        if not found or not found[-1].name.endswith("return"):
            raise self.error("a region does not end with a `return`")
        return tuple(found)

    # ---- names ------------------------------------------------------------------------------------------------------

    def new_name(self) -> str:
        """The name of a value that is defined here."""
        return self.take(_RESULT, "the name of a value").group(1)

    def define(self, name: str, type: TensorType) -> None:
        """From here to the end of the region the name stands for a value."""
        if name in self._scope:
            raise self.error(f"`{name}` is defined twice")
        self._scope[name] = type
        self._defined.append(name)

    def _forget(self, mark: int) -> None:
        for name in self._defined[mark:]:
            del self._scope[name]
        del self._defined[mark:]

    def value(self) -> str:
        """The use of a value.

        Raises:
            ModelFileError: nothing before it has that name.
        """
        start = self.skip_blanks()
        found = self.take(_VALUE, "a value such as `%0`")
        name = found.group() if found.group(1) != "#0" else found.group()[:-2]
        if name not in self._scope:
            raise self.error(f"nothing before this is called `{name}`", start)
        return name

    def values(self, closing: str = "") -> list[str]:
        """Values between commas; up to a bracket if one is given, else as many as there are."""
        names: list[str] = []
        if not closing:
            names.append(self.value())
            while self.accept(","):
                names.append(self.value())
            return names
        while not self.accept(closing):
            if names:
                self.expect(",")
            names.append(self.value())
        return names

    def type_of(self, name: str) -> TensorType:
        """The type of a value."""
        return self._scope[name]

    def check_types(self, names: Sequence[str], types: Sequence[TensorType], at: int) -> None:
        """Compare what an operation states of its operands with what they are.

        Raises:
            ModelFileError: it differs.
        """
        actual = tuple(self._scope[name] for name in names)
        if actual != tuple(types):
            shown = [", ".join(map(str, t)) for t in (types, actual)]
            raise self.error(f"operands of types {shown[0]} are expected, but they are {shown[1]}", at)

    # ---- operations -------------------------------------------------------------------------------------------------

    def _operation(self) -> Operation:
        names, start = self._result_names(), self.skip_blanks()
        if self.sees('"'):
            name = self.string()
            parsed = self._generic()
        else:
            name = self.take(_OPERATION, "an operation").group()
            form = self._forms.get(name)
            if form is None:
                raise self._unknown(name, start)
            parsed = form(self, name)
        self.skip_location()
        if len(names) != len(parsed.types) and names:
            raise self.error(f"`{name}` gives {len(parsed.types)} values, not {len(names)}", start)
        for result, type in zip(names, parsed.types, strict=False):
            self.define(result, type)
        full_name = name if "." in name else f"func.{name}"
        operands, types, regions = tuple(parsed.operands), tuple(parsed.types), tuple(parsed.regions)
        return Operation(full_name, operands, names, types, parsed.attributes, regions, self.line(start))

    def _result_names(self) -> tuple[str, ...]:
        if not self.sees("%"):
            return ()
        names: list[str] = []
        while True:
            found = self.take(_RESULT, "the name of a value")
            count = int(found.group(2) or 1)
            if len(names) + count > _MAX_RESULTS:
                raise self.error(f"more than {_MAX_RESULTS} results")
            names += [found.group(1), *(f"{found.group(1)}#{n}" for n in range(1, count))][:count]
            if not self.accept(","):
                self.expect("=")
                return tuple(names)

    def _generic(self) -> Parsed:
        start = self.at
        self.expect("(")
        operands = self.values(")")
        if self.sees("["):
            raise self._unsupported_here("a jump to another block")
        attributes = self.dictionary_between("<", ">") if self.accept("<") else {}
        regions: list[Block] = []
        if self.accept("("):
            regions.append(self.region())
            while self.accept(","):
                regions.append(self.region())
            self.expect(")")
        if self.sees("{"):
            attributes |= self.dictionary()
        arguments, results = self._signature()
        self.check_types(operands, arguments, start)
        return Parsed(operands, results, attributes, regions)

    def _signature(self) -> tuple[tuple[TensorType, ...], tuple[TensorType, ...]]:
        self.expect(":")
        return self.function_type()

    def function_type(self) -> tuple[tuple[TensorType, ...], tuple[TensorType, ...]]:
        """`(types) -> types`."""
        self.expect("(")
        arguments = self.tensor_types(")")
        self.expect("->")
        return arguments, self.result_types()

    def skip_location(self) -> None:
        if self.accept("loc("):
            self.at -= 1
            self.skip_balanced()

    def _unsupported_here(self, what: str) -> UnsupportedOperatorError:
        error = UnsupportedOperatorError(f"line {self.line()}: {what} is not supported", help="export it from JAX")
        located(error)
        return error

    def _unknown(self, name: str, start: int) -> Exception:
        """An operation that cannot be read, so that what follows cannot be either: all that are unknown, by their
        names in the text."""
        if not re.search(r"\.", name):
            return self.error(f"`{name}` is no operation", start)
        if self._known(name):
            message = f"the way in which `{name}` is written here is not read"
            return self.error(message, start, help="print the program in the generic form of MLIR")
        counts = Counter(word for word in _ANY_NAME.findall(self.text) if not self._known(word))
        counts.setdefault(name, 1)
        return unsupported_operations(counts)


def unsupported_operations(counts: Mapping[str, int]) -> UnsupportedOperatorError:
    """The error that lists operations with how often they occur."""
    listed = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
    help = "docs/reference/stablehlo.md lists those that are"
    if any("python" in name and "callback" in name for name in counts):
        help = "remove `jax.debug.print` and callbacks to Python from the function, or call them outside of it"
    error = UnsupportedOperatorError(f"the program needs operations that are not supported: {listed}", help=help)
    located(error)
    return error


def _dictionaries(attributes: object, count: int) -> tuple[Mapping[str, Any], ...]:
    """The attributes of each argument or result."""
    found: list[Mapping[str, Any]] = [*attributes] if isinstance(attributes, tuple) else []
    if len(found) != count or not all(isinstance(own, dict) for own in found):
        found = [{}] * count
    return tuple(found)
