"""Protobuf messages from a table of their fields, as ``protoc`` would make them from a file of that name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .._base.extras import need

# ("float", "mean", 1): label and type, name, number. Labels: "?" optional (the default), "!" required, "*" repeated, "*p"
# repeated and packed, "|" member of the message's oneof; "{}T" is map<string, T>. Other types than scalars are messages or enums
# of the package; "@" marks an enum of another file. "A.B" in the table is message B inside of A.
Fields = Sequence[tuple[str, str, int]]


_SPELLING = re.compile(r"(?P<label>\?|!|\*p|\*|\|)?(?P<map>\{\})?(?P<enum>@)?(?P<type>[\w.]+)")


def messages(
    path: str,
    table: Mapping[str, Fields],
    *,
    oneof: str = "kind",
    enums: Mapping[str, Sequence[str]] | None = None,
    imports: Sequence[str] = (),
) -> Any:
    """The classes of one .proto file (proto2, package oneflow), by name, and its descriptor under ``DESCRIPTOR``.

    ``imports`` are the paths of files whose messages and enums it uses; their modules must have been made before.
    """
    module = f"oneflow.core.{path.removesuffix('.proto').replace('/', '.')}_pb2"
    descriptor_pb2 = need("google.protobuf.descriptor_pb2", module)
    pool = need("google.protobuf.descriptor_pool", module).Default()
    factory = need("google.protobuf.message_factory", module)
    enums = enums or {}
    file = descriptor_pb2.FileDescriptorProto(name=f"oneflow/core/{path}", package="oneflow", syntax="proto2")
    file.dependency.extend(f"oneflow/core/{other}" for other in imports)
    for name, values in enums.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    made: dict[str, Any] = {}
    for name, fields in table.items():
        outer, _, inner = name.rpartition(".")
        message = made[outer].nested_type.add(name=inner) if outer else file.message_type.add(name=name)
        made[name] = message
        _message(message, name, fields, oneof, enums, descriptor_pb2.FieldDescriptorProto)
    pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindFileByName(file.name)
    classes = {name: factory.GetMessageClass(pool.FindMessageTypeByName(f"oneflow.{name}")) for name in made}
    for made_class in classes.values():
        made_class.__module__ = module
    return {"DESCRIPTOR": descriptor, **classes}


def _message(message: Any, path: str, fields: Fields, oneof: str, enums: Mapping[str, Sequence[str]], kinds: Any) -> None:
    labels = {"!": kinds.LABEL_REQUIRED, "*": kinds.LABEL_REPEATED, "*p": kinds.LABEL_REPEATED}
    for spelled, name, number in fields:
        match = _SPELLING.fullmatch(spelled)
        assert match is not None, spelled
        label, kind = match["label"], match["type"]
        field = message.field.add(name=name, number=number, label=labels.get(label, kinds.LABEL_OPTIONAL))
        if match["map"]:
            entry = message.nested_type.add(name="".join(word.capitalize() for word in name.split("_")) + "Entry")
            entry.options.map_entry = True
            _message(entry, f"{path}.{entry.name}", [("string", "key", 1), (kind, "value", 2)], oneof, enums, kinds)
            field.label, field.type, field.type_name = kinds.LABEL_REPEATED, kinds.TYPE_MESSAGE, f".oneflow.{path}.{entry.name}"
            continue
        scalar = getattr(kinds, f"TYPE_{kind.upper()}", None) if kind.islower() else None
        if scalar is not None:
            field.type = scalar
        else:
            is_enum = bool(match["enum"]) or kind in enums
            field.type, field.type_name = (kinds.TYPE_ENUM if is_enum else kinds.TYPE_MESSAGE), f".oneflow.{kind}"
        if label == "*p":
            field.options.packed = True
        if label == "|":
            if not message.oneof_decl:
                message.oneof_decl.add(name=oneof)
            field.oneof_index = 0
