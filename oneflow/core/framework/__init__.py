"""Protobuf modules of OneFlow, imported when they are first used."""

from importlib import import_module as _import_module


def __getattr__(name: str) -> object:
    if name in (
        "user_op_attr_pb2",
        "user_op_conf_pb2",
    ):
        return _import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
