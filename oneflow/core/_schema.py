"""Protobuf messages from a table of their fields, as ``protoc`` would make them from a file of that name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._base.extras import need

# "float? mean = 1" and the like: label and type, name, number. Labels: "?" optional, "*" repeated, "*p" repeated and packed,
# "|" member of the message's oneof. Other types than scalars are messages or enums of the same file; "{}T" is map<string, T>.
Fields = Sequence[tuple[str, str, int]]


def messages(
    path: str, table: Mapping[str, Fields], *, oneof: str = "kind", enums: Mapping[str, Sequence[str]] | None = None
) -> Any:
    """The classes of one .proto file (proto2, package oneflow), by name, and its descriptor under ``DESCRIPTOR``."""
    what = f"oneflow.core.{path.removesuffix('.proto').replace('/', '.')}_pb2"
    descriptor_pb2 = need("google.protobuf.descriptor_pb2", what)
    pool = need("google.protobuf.descriptor_pool", what).Default()
    factory = need("google.protobuf.message_factory", what)
    enums = enums or {}
    file = descriptor_pb2.FileDescriptorProto(name=f"oneflow/core/{path}", package="oneflow", syntax="proto2")
    for name, values in enums.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, fields in table.items():
        _message(file.message_type.add(name=name), fields, oneof, enums, descriptor_pb2.FieldDescriptorProto)
    pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindFileByName(file.name)
    made = {name: factory.GetMessageClass(descriptor.message_types_by_name[name]) for name in table}
    return {"DESCRIPTOR": descriptor, **made}


def _message(message: Any, fields: Fields, oneof: str, enums: Mapping[str, Sequence[str]], kinds: Any) -> None:
    for spelled, name, number in fields:
        mark = spelled.lstrip("?*p|{}") if spelled[0] in "?*|{" else spelled
        marks = spelled.removesuffix(mark)
        field = message.field.add(name=name, number=number, label=kinds.LABEL_REPEATED if "*" in marks else kinds.LABEL_OPTIONAL)
        if "{}" in marks:
            entry = message.nested_type.add(name="".join(word.capitalize() for word in name.split("_")) + "Entry")
            entry.options.map_entry = True
            _message(entry, [("string", "key", 1), (mark, "value", 2)], oneof, enums, kinds)
            field.label, field.type, field.type_name = (
                kinds.LABEL_REPEATED,
                kinds.TYPE_MESSAGE,
                f".oneflow.{message.name}.{entry.name}",
            )
            continue
        scalar = getattr(kinds, f"TYPE_{mark.upper()}", None) if mark.islower() or mark in ("int32", "int64") else None
        if scalar is not None:
            field.type = scalar
        else:
            field.type, field.type_name = (kinds.TYPE_ENUM if mark in enums else kinds.TYPE_MESSAGE), f".oneflow.{mark}"
        if "p" in marks:
            field.options.packed = True
        if "|" in marks:
            if not message.oneof_decl:
                message.oneof_decl.add(name=oneof)
            field.oneof_index = 0
