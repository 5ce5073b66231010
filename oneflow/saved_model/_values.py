"""Attributes of ops as ``AttrValue`` messages, and back.

An op of OneFlow's registry has attributes of the registry's types. An op that only this library has keeps each attribute as a
string: JSON, in which values that JSON lacks are objects of one key, such as ``{"tuple": [...]}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.dist import Distribute
from .._base.dtype import PROTO_NAMES, dtype

_BY_PROTO_NAME = {proto: dtypes._BY_NAME[name] for name, proto in PROTO_NAMES.items()}
_BY_NUMBER = {d.oneflow_proto_dtype: d for d in dtypes._BY_NAME.values()}


UNWRITTEN = "!"  # in front of what describes a value that could not be written


class UnwritableError(Exception):
    """A value has no written form; the text says why."""


def dtype_of(number: int) -> dtype:
    """The dtype of a ``DataType``. Raises ValueError for an unknown one."""
    if number not in _BY_NUMBER:
        raise ValueError(f"there is no dtype of number {number}")
    return _BY_NUMBER[number]


def flow_dtype(element: Any) -> dtype:
    """The dtype of a NumPy dtype or its name; a dtype of this library is returned as it is."""
    return element if isinstance(element, dtype) else dtypes.of_values(np.dtype(element))


# --- attributes of the registry


def write(message: Any, kind: str, value: Any) -> None:
    """Sets an ``AttrValue`` to a value of one of the registry's types, such as ``list[int32]``."""
    if kind == "Shape":
        message.at_shape.SetInParent()
        message.at_shape.dim.extend(value)
    elif kind == "dtype":
        message.at_data_type = value.oneflow_proto_dtype
    elif not kind.startswith("list["):
        setattr(message, {"str": "at_string"}.get(kind, f"at_{kind}"), value)
    else:
        of = kind[5:-1]
        field = getattr(message, {"str": "at_list_string", "dtype": "at_list_data_type"}.get(of, f"at_list_{of.lower()}"))
        field.SetInParent()
        if of == "Shape":
            for shape in value:
                field.val.add().dim.extend(shape)
        else:
            field.val.extend(v.oneflow_proto_dtype if of == "dtype" else v for v in value)


def read(message: Any) -> Any:
    """The value of an ``AttrValue``. Raises ValueError for one without a value, or with an unknown dtype."""
    field = message.WhichOneof("value")
    if field is None:
        raise ValueError("it has no value")
    value = getattr(message, field)
    match field:
        case "at_shape":
            return tuple(value.dim)
        case "at_data_type":
            return dtype_of(value)
        case "at_list_shape":
            return tuple(tuple(shape.dim) for shape in value.val)
        case "at_list_data_type":
            return tuple(dtype_of(number) for number in value.val)
    return tuple(value.val) if field.startswith("at_list") else value


# --- attributes of this library's ops


def encode(value: Any) -> str:
    """An attribute as JSON. Raises UnwritableError."""
    return json.dumps(_encoded(value), separators=(",", ":"))


def decode(text: str) -> Any:
    """What ``encode`` has written. Raises ValueError."""
    if text.startswith(UNWRITTEN):
        raise ValueError(f"its value was not saved, because it has no written form: {text.removeprefix(UNWRITTEN)}")
    try:
        return _decoded(json.loads(text))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{text[:80]!r} is not an attribute") from error


def _encoded(value: Any) -> Any:
    match value:
        case None | bool() | str():
            return value
        case np.bool_() | np.number():
            return {"number": [value.dtype.name, value.item()]}
        case int() | float():
            return value
        case tuple():
            return {"tuple": [_encoded(v) for v in value]}
        case list():
            return [_encoded(v) for v in value]
        case slice():
            return {"slice": [_encoded(v) for v in (value.start, value.stop, value.step)]}
        case Distribute():
            return {"distribute": [value.kind, value.axis]}
        case dtype():
            return {"dtype": PROTO_NAMES[value.name]}
        case np.dtype():
            return {"element": value.name}
        case Mapping():
            return {"dict": [[_encoded(k), _encoded(v)] for k, v in value.items()]}
    if value is Ellipsis:
        return {"ellipsis": None}
    raise UnwritableError(f"a {type(value).__name__} cannot be written")


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(v) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    match kind:
        case "number":
            name, number = inside
            if not isinstance(number, (bool, int, float)):
                raise ValueError(f"{number!r} is not a number")
            return np.dtype(name).type(number)
        case "tuple":
            return tuple(_decoded(inside))
        case "slice":
            return slice(*_decoded(inside))
        case "distribute":
            name, axis = inside
            if name not in ("split", "broadcast", "auto") or not isinstance(axis, int | None):
                raise ValueError(f"{inside!r} is not a distribution")
            return Distribute(name, axis)
        case "dtype":
            return _BY_PROTO_NAME[inside]
        case "element":
            return flow_dtype({"bfloat16": dtypes.bfloat16.numpy_dtype}.get(inside, inside)).numpy_dtype
        case "dict":
            return {_decoded(k): _decoded(v) for k, v in inside}
        case "ellipsis":
            return ...
    raise ValueError(f"unknown kind {kind!r}")
