"""Types and attributes of MLIR's text.

Attributes become Python values: numbers, strings, tuples (of lists and `array<...>`), dicts (of dictionaries and of
structs such as `#stablehlo.gather<...>`), `Dense`, `Symbol`, types; the word of an enumeration is a string.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError, UnsupportedOperatorError
from tilewright.interop.stablehlo import elements
from tilewright.interop.stablehlo.ir import Dense, FunctionType, Opaque, TensorType
from tilewright.interop.stablehlo.shardings import ShardingReader
from tilewright.primitives import ArrayType, check_limits

_TENSOR = re.compile(r"tensor<((?:\d+x)*)(complex<f(?:32|64)>|[a-zA-Z]\w*)>")
_DIMENSIONS = re.compile(r"tensor<[\d?x]*\?")
_NUMBER = re.compile(r"-?(?:0x[0-9a-fA-F]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)")
_KEY = re.compile(r'[\w.$-]+|"[^"\n]*"')
_ENUMERATION = re.compile(r"#(?:stablehlo|chlo|mhlo)<\w+ (\w+)>")
_WORD_OF_ENUMERATION = re.compile(r"#(?:stablehlo|chlo|mhlo)\.\w+<(\w+)>")
_STRUCT = re.compile(r"#(?:stablehlo|chlo|mhlo)\.(\w+)<")
_ALIAS = re.compile(r"#[\w.$-]+")
_BARE = re.compile(r"-?[\w.$-]+")
_ARRAY = re.compile(r"array<(\w+)(?:: ([^<>]*))?>")
_CONVOLUTION = re.compile(r"\[([^\]]*)\]\s*x\s*\[([^\]]*)\]\s*->\s*\[([^\]]*)\]")
_DENSE = re.compile(r"dense<")
_PLAIN_TYPE = re.compile(r"(?:[su]?i\d+|index|none|bf16|tf32|f\d+(?:E\d+M\d+\w*)?)\b")
_REFUSED = {
    "complex": "complex numbers other than of f32 and f64",
    "!quant": "quantised types",
    "tuple": "tuples",
    "!stablehlo": "tokens",
}
_MAX_DIGITS = 19


class AttributeReader(ShardingReader):
    """A cursor that reads types and attributes. `aliases` are attributes that the text has given names."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.aliases: dict[str, Any] = {}
        self._tensors: dict[str, TensorType] = {}

    # ---- types ------------------------------------------------------------------------------------------------------

    def tensor_type(self) -> TensorType:
        """The type of an array.

        Raises:
            ModelFileError: there is none.
            UnsupportedOperatorError: arrays here have no such elements, or a size is not known.
        """
        start = self.skip_blanks()
        found = self.match(_TENSOR)
        if found is None:
            raise self._no_tensor()
        known = self._tensors.get(found.group())
        if known is None:
            known = self._tensors[found.group()] = self._new_tensor(found, start)
        return known

    def _new_tensor(self, found: re.Match[str], start: int) -> TensorType:
        sizes = found.group(1).split("x")[:-1]
        if any(len(size) > _MAX_DIGITS for size in sizes):
            raise self.error("a size is too large", start)
        storage = elements.STORAGE.get(found.group(2))
        if storage is None:
            raise self._unsupported(f"elements of type `{found.group(2)}`", start)
        type = TensorType(tuple(map(int, sizes)), storage)
        try:
            check_limits(ArrayType(type.shape, type.dtype))
        except TilewrightError as error:
            raise self.error(error.message, start) from None
        return type

    def _no_tensor(self) -> TilewrightError:
        start = self.at
        if self.sees("tensor<"):
            if _DIMENSIONS.match(self.text, start):
                return self._unsupported(
                    "a size that is not known (`?`)", start, "export for arrays of known shapes: each gives a program"
                )
            inner = self.skip_balanced_after("tensor")
            for word, what in _REFUSED.items():
                if word in inner:
                    return self._unsupported(what, start)
            return self.error("this is no type of arrays", start)
        for word, what in _REFUSED.items():
            if self.sees(word):
                return self._unsupported(what, start)
        return self.error("expected the type of an array")

    def skip_balanced_after(self, word: str) -> str:
        """Step over a word and the brackets after it."""
        self.expect(word)
        return self.skip_balanced()

    def _unsupported(self, what: str, at: int, help: str = "") -> TilewrightError:
        error = UnsupportedOperatorError(f"{what} are not supported", help=help or "use arrays of numbers and bools")
        if what.startswith("a "):
            error.message = f"{what} is not supported"
        return self.placed(error, at)

    def tensor_types(self, closing: str) -> tuple[TensorType, ...]:
        """Types between commas, up to a bracket."""
        types: list[TensorType] = []
        while not self.accept(closing):
            if types:
                self.expect(",")
            types.append(self.tensor_type())
        return tuple(types)

    def result_types(self) -> tuple[TensorType, ...]:
        """One type, or several in parentheses."""
        return self.tensor_types(")") if self.accept("(") else (self.tensor_type(),)

    def _type(self) -> Any:
        """Any type that is an attribute; None where there is none here."""
        if self.sees("tensor<"):
            return self.tensor_type()
        if self.accept("("):
            arguments = self._inner_types()
            self.expect("->")
            if self.accept("("):
                return FunctionType(arguments, self._inner_types())
            return FunctionType(arguments, (self._type(),))
        found = self.match(_PLAIN_TYPE)
        if found is not None:
            return Opaque(found.group())
        if self.accept("!"):
            name = self.take(_BARE, "a type").group()
            return Opaque(f"!{name}<{self.skip_balanced()}>" if self.sees("<") else f"!{name}")
        return None

    def _inner_types(self) -> tuple[Any, ...]:
        types: list[Any] = []
        while not self.accept(")"):
            if types:
                self.expect(",")
            with self.nested():
                types.append(self._type())
            if types[-1] is None:
                raise self.error("expected a type")
        return tuple(types)

    # ---- attributes -------------------------------------------------------------------------------------------------

    def attribute(self) -> Any:
        """The value of an attribute.

        Raises:
            ModelFileError: there is none.
        """
        with self.nested():
            return self._attribute()

    def _attribute(self) -> Any:
        start = self.skip_blanks()
        first = self.text[start : start + 1]
        if first == '"':
            return self._typed(self.string())
        if first == "[":
            self.at += 1
            return self._list("]")
        if first == "{":
            return self.dictionary()
        if first == "@":
            return self.symbol()
        if first == "#":
            return self._dialect_attribute()
        if first in "-0123456789":
            return self._number()
        if first == "(":
            return self._type()
        return self._named(start)

    def _named(self, start: int) -> Any:
        if self.accept("array<"):
            self.at = start
            return self._array()
        if self.match(_DENSE):
            return self._dense(start)
        for word, value in (("true", True), ("false", False), ("unit", True)):
            if self.accept(word):
                return value
        if self.sees("dense_resource"):
            raise self.error("constants in resources are not read", help="print the text with its constants inside")
        if self.accept("loc"):
            return Opaque(self.skip_balanced())
        if self.accept("affine_map"):
            return Opaque(self.skip_balanced())
        type = self._type()
        if type is None:
            raise self.error("expected an attribute")
        return type

    def _typed(self, value: object) -> Any:
        """Step over the type after a string or number."""
        if self.accept(":") and self._type() is None:
            raise self.error("expected a type")
        return value

    def _number(self) -> Any:
        start = self.skip_blanks()
        token = self.take(_NUMBER, "a number").group()
        type = self._type() if self.accept(":") else None
        name = type.text if isinstance(type, Opaque) else ""
        is_float = name[:1] in ("f", "b") or (not name and ("." in token or "e" in token))
        default = "f64" if is_float else "i64"
        storage = elements.STORAGE.get(default if name in ("", "index") else name)
        try:
            return elements.scalar(token, storage or elements.STORAGE[default]).item()
        except elements.Malformed as error:
            raise self.error(str(error), start) from None

    def _list(self, closing: str) -> tuple[Any, ...]:
        items: list[Any] = []
        while not self.accept(closing):
            if items:
                self.expect(",")
            items.append(self.attribute())
        return tuple(items)

    def dictionary(self) -> dict[str, Any]:
        """Attributes by name, in braces. One without a value is True."""
        self.expect("{")
        found: dict[str, Any] = {}
        while not self.accept("}"):
            if found:
                self.expect(",")
            key = self.take(_KEY, "the name of an attribute").group().strip('"')
            found[key] = self.attribute() if self.accept("=") else True
        return found

    def _array(self) -> tuple[Any, ...]:
        found = self.take(_ARRAY, "`array<type: numbers>`")
        storage = elements.STORAGE.get(found.group(1))
        if storage is None:
            raise self.error("expected an array of numbers", found.start())
        tokens = [token.strip() for token in (found.group(2) or "").split(",")] if found.group(2) else []
        try:
            return tuple(elements.scalar(token, storage).item() for token in tokens)
        except elements.Malformed as error:
            raise self.error(str(error), found.start()) from None

    def _dense(self, start: int) -> Dense:
        if self.sees('"'):
            content, read = self.string(), elements.from_hex
        else:
            end = self.text.find(">", self.at)
            if end < 0:
                raise self.error("a constant is not closed", start)
            content, read = self.text[self.at : end], elements.from_list
            self.at = end
        self.expect(">")
        self.expect(":")
        type = self.tensor_type()
        try:
            with np.errstate(all="ignore"):
                return Dense(type, read(content, type.shape, type.storage))
        except elements.Malformed as error:
            raise self.error(str(error), start) from None

    # ---- attributes of dialects -------------------------------------------------------------------------------------

    def _dialect_attribute(self) -> Any:
        word = self.match(_ENUMERATION) or self.match(_WORD_OF_ENUMERATION)
        if word is not None:
            return word.group(1)
        struct = self.match(_STRUCT)
        if struct is not None:
            return self.convolution_numbers() if struct.group(1) == "conv" else self.fields(">")
        sharding = self.sharding_attribute()
        if sharding is not None:
            return sharding
        alias = self.take(_ALIAS, "an attribute").group()
        if self.sees("<"):
            return Opaque(f"{alias}<{self.skip_balanced()}>")
        if alias not in self.aliases:
            raise self.error(f"`{alias}` stands for nothing", self.at - len(alias))
        return self.aliases[alias]

    def fields(self, closing: str) -> dict[str, Any]:
        """`name = value` pairs up to a bracket; values are attributes or bare words."""
        found: dict[str, Any] = {}
        while not self.accept(closing):
            if found:
                self.expect(",")
            key = self.take(_KEY, "the name of a field").group()
            self.expect("=")
            found[key] = self.value_or_word()
        return found

    def value_or_word(self) -> Any:
        """An attribute, or a word that stands for itself."""
        if any(map(self.sees, ("[", "#", '"', "@"))):
            return self.attribute()
        if self.accept("<"):
            with self.nested():
                return self.fields(">")
        word = self.take(_BARE, "a value").group()
        return int(word) if re.fullmatch(r"-?\d{1,19}", word) else {"true": True, "false": False}.get(word, word)

    def convolution_numbers(self, closing: str = ">") -> dict[str, tuple[str, ...]]:
        """`[b, f, 0]x[o, i, 0]->[b, f, 0]`."""
        found = self.take(_CONVOLUTION, "the axes of a convolution")
        self.expect(closing)
        names = ("input", "kernel", "output")
        return {
            name: tuple(axis.strip() for axis in axes.split(","))
            for name, axes in zip(names, found.groups(), strict=True)
        }
