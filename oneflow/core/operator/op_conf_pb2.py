"""The activation markers that older model code passes for "none", "relu" and so on; and ``OperatorConf``."""

from __future__ import annotations

from typing import Any

kNone, kTanH, kSigmoid, kRelu = range(4)

_TABLE = {
    "VariableOpConf": [
        ("string", "tick", 1),
        ("string", "out", 2),
        ("ShapeProto", "shape", 3),
        ("@DataType", "data_type", 4),
        ("InitializerConf", "initializer", 5),
        ("string", "model_name", 7),
        ("int64", "random_seed", 9),
        ("RegularizerConf", "regularizer", 10),
        ("bool", "trainable", 11),
        ("*string", "nd_sbp", 12),
    ],
    "InputOpConf": [
        ("string", "tick", 1), ("string", "out", 2), ("InterfaceBlobConf", "blob_conf", 3), ("string", "job_name", 4),
    ],
    "ReturnOpConf": [("string", "in", 1), ("string", "out", 2), ("string", "job_name", 3)],
    "IdentityOpConf": [("string", "in", 1), ("string", "out", 2)],
    "ConstantLikeOpConf": [
        ("string", "like", 1), ("string", "out", 2), ("@DataType", "data_type", 3), ("|int64", "int_operand", 4),
        ("|double", "float_operand", 5),
    ],
    "BroadcastToCompatibleWithOpConf": [("string", "x", 1), ("*string", "compatible", 2), ("string", "y", 3)],
    "DynamicReshapeOpConf": [("string", "in", 1), ("string", "out", 2), ("ShapeProto", "shape", 3)],
    "OperatorConf": [
        ("string", "name", 1),
        ("string", "device_tag", 4),
        ("*string", "ctrl_in_op_name", 7),
        ("int64", "scope_symbol_id", 8),
        ("|VariableOpConf", "variable_conf", 122),
        ("|InputOpConf", "input_conf", 137),
        ("|ReturnOpConf", "return_conf", 146),
        ("|UserOpConf", "user_conf", 199),
        ("|DynamicReshapeOpConf", "dynamic_reshape_conf", 203),
        ("|IdentityOpConf", "identity_conf", 290),
        ("|ConstantLikeOpConf", "constant_like_conf", 339),
        ("|BroadcastToCompatibleWithOpConf", "broadcast_to_compatible_with_conf", 525),
    ],
}  # fmt: skip
_IMPORTS = (
    "common/shape", "common/data_type", "job/initializer_conf", "job/regularizer_conf", "operator/interface_blob_conf",
    "framework/user_op_conf",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "DESCRIPTOR" or name in _TABLE:
        from importlib import import_module

        from ..._base.extras import need
        from .._schema import messages

        need("google.protobuf.descriptor_pb2", __name__)
        for path in _IMPORTS:  # their files come first
            import_module(f"oneflow.core.{path.replace('/', '.')}_pb2").DESCRIPTOR  # noqa: B018
        imports = [f"{path}.proto" for path in _IMPORTS]
        globals().update(messages("operator/op_conf.proto", _TABLE, oneof="op_type", imports=imports))
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
