"""``DataType``: the numbers of OneFlow's dtypes (``dtype.oneflow_proto_dtype``)."""

from __future__ import annotations

from typing import Any

_NAMES = (
    "kInvalidDataType", "kChar", "kFloat", "kDouble", "kInt8", "kInt32", "kInt64", "kUInt8", "kOFRecord", "kFloat16",
    "kTensorBuffer", "kBFloat16", "kBool", "kUInt16", "kUInt32", "kUInt64", "kUInt128", "kInt16", "kInt128", "kComplex32",
    "kComplex64", "kComplex128",
)  # fmt: skip
(
    kInvalidDataType, kChar, kFloat, kDouble, kInt8, kInt32, kInt64, kUInt8, kOFRecord, kFloat16, kTensorBuffer,
    kBFloat16, kBool, kUInt16, kUInt32, kUInt64, kUInt128, kInt16, kInt128, kComplex32, kComplex64, kComplex128,
) = range(22)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "DESCRIPTOR":  # the numbers do not need the protobuf library
        from .._schema import messages

        globals().update(messages("common/data_type.proto", {}, enums={"DataType": _NAMES}))
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
