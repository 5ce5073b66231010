"""The numbers of OneFlow's dtypes (``dtype.oneflow_proto_dtype``)."""

from __future__ import annotations

(
    kInvalidDataType, kChar, kFloat, kDouble, kInt8, kInt32, kInt64, kUInt8, kOFRecord, kFloat16, kTensorBuffer,
) = range(11)  # fmt: skip
