"""A model file as a message of the `onnx` package, and what its messages hold as Python values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import ModelFileError
from tilewright.interop.onnx.protobuf import Proto, onnx
from tilewright.interop.onnx.tensors import decode
from tilewright.records import dataclass

# The newest opset of the standard domain whose operators were read when the rules here were written.
NEWEST_OPSET = 28
STANDARD_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class LoadedModel:
    """A model, the folder of its external data, and the versions of the operator sets that it uses."""

    proto: Proto
    folder: Path | None
    versions: Mapping[str, int]


def load_model(source: Any) -> LoadedModel:
    """Read a model from a path, from bytes, or from a `ModelProto`.

    Raises:
        ModelFileError: it is no ONNX model, or one of a newer operator set.
    """
    folder: Path | None = None
    if isinstance(source, str | Path):
        path = Path(source)
        folder = path.parent
        source = _read(path)
    proto = _parsed(bytes(source)) if isinstance(source, bytes | bytearray) else source
    if not isinstance(proto, onnx().ModelProto):
        message = f"`from_onnx` of a {type(proto).__name__}"
        raise ModelFileError(message, help="give a path, the bytes of a model, or an `onnx.ModelProto`")
    if proto is source:
        # Programs are traced later, for the sizes of each call: the caller may change the model in the meantime.
        proto = onnx().ModelProto()
        proto.CopyFrom(source)
    if not proto.HasField("graph"):
        raise ModelFileError("the model has no graph", help="is it an ONNX file?")
    return LoadedModel(proto, folder, _versions(proto.opset_import))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"the model cannot be read: {error}", help="check the path") from None


def _parsed(data: bytes) -> Proto:
    model = onnx().ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # the class belongs to whichever parser of protobuf is installed
        raise ModelFileError(f"not an ONNX model: {error}", help="the file is damaged, or of another kind") from None
    return model


def _versions(imports: Sequence[Proto]) -> dict[str, int]:
    versions = {standard_domain(entry.domain): int(entry.version) for entry in imports}
    version = versions.setdefault("", 1)
    if version > NEWEST_OPSET:
        message = f"the model uses version {version} of the operators, newer than {NEWEST_OPSET}"
        raise ModelFileError(message, help="export it for an older version, or update tilewright")
    return versions


def text(value: str | bytes) -> str:
    """A name in a message, which the parser leaves as bytes where it is malformed.

    Raises:
        ModelFileError: it is.
    """
    if isinstance(value, bytes):
        raise ModelFileError(f"the name {value!r} is not UTF-8", help="the file is damaged: export the model again")
    return value


def standard_domain(domain: str | bytes) -> str:
    """The name of an operator domain, "" for the standard one.

    Raises:
        ModelFileError: it is no text.
    """
    return "" if domain in STANDARD_DOMAINS else text(domain)


def attributes_of(node: Proto, folder: Path | None, outer: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Attributes by name, as numbers, text, tuples, arrays and `GraphProto`s. Attributes in a function's body may refer
    to attributes of its caller, `outer`."""
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            found[attribute.name] = attribute_value(attribute, folder)
        elif outer is not None and attribute.ref_attr_name in outer:
            found[attribute.name] = outer[attribute.ref_attr_name]
    return found


def attribute_value(attribute: Proto, folder: Path | None) -> Any:
    """The contents of one `AttributeProto`; the message itself if it is of another kind."""
    kinds = attribute.AttributeType
    kind = attribute.type
    if kind == kinds.FLOAT:
        return float(attribute.f)
    if kind == kinds.INT:
        return int(attribute.i)
    if kind == kinds.STRING:
        return attribute.s.decode(errors="replace")
    if kind == kinds.TENSOR:
        return decode(attribute.t, folder)
    if kind == kinds.GRAPH:
        return attribute.g
    if kind == kinds.FLOATS:
        return tuple(map(float, attribute.floats))
    if kind == kinds.INTS:
        return tuple(map(int, attribute.ints))
    if kind == kinds.STRINGS:
        return tuple(text.decode(errors="replace") for text in attribute.strings)
    # Kept as it is: only an operator that reads it minds.
    return attribute
