"""The state of a training as JSON: numbers, strings, bytes, arrays, and nestings of these. Nothing is unpickled."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._base.dtype import bfloat16
from .._base.refuse import refuse
from ..data.arrays import as_array, is_array
from ..errors import ArgumentError, CheckpointError

_KIND = "__kind__"


def encoded(value: Any, what: str) -> Any:
    """The value as JSON has it.

    Args:
      what: whose state it is, for errors.
    Raises:
      ArgumentError: something that has no such form.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else {_KIND: "float", "value": repr(float(value))}
    if isinstance(value, (bytes, bytearray)):
        return {_KIND: "bytes", "value": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [encoded(item, what) for item in value]
    if isinstance(value, tuple):
        return {_KIND: "tuple", "value": [encoded(item, what) for item in value]}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and _KIND not in value:
            return {key: encoded(item, what) for key, item in value.items()}
        return {_KIND: "dict", "value": [[encoded(k, what), encoded(v, what)] for k, v in value.items()]}
    if is_array(value):
        return _array(value, what)
    refuse(ArgumentError, f"the state of {what} holds a {type(value).__name__}, which a checkpoint cannot keep",
           hint="state_dict() may hold numbers, strings, bytes, arrays, and lists and dictionaries of these")  # fmt: skip


def _array(value: Any, what: str) -> dict[str, Any]:
    array = as_array(value, f"the state of {what}")
    if array.dtype.kind not in "biufc" and array.dtype != bfloat16.numpy_dtype:
        refuse(ArgumentError, f"the state of {what} holds an array of {array.dtype}, which a checkpoint cannot keep")
    bits = array.view(_stored(array.dtype))
    little = bits.astype(bits.dtype.newbyteorder("<"))
    library = "torch" if hasattr(value, "detach") else "numpy"
    return {
        _KIND: "array", "library": library, "dtype": array.dtype.name, "shape": list(array.shape),
        "value": base64.b64encode(little.tobytes()).decode(),
    }  # fmt: skip


def _stored(dtype: np.dtype) -> np.dtype:
    """The dtype in which the bits of an array are kept: NumPy has no byte orders of bfloat16."""
    return np.dtype(np.int16) if dtype == bfloat16.numpy_dtype else dtype


def decoded(value: Any) -> Any:
    """The argument of ``encoded``, from its result. Raises CheckpointError for anything else."""
    try:
        return _decoded(value)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the state of a training in a checkpoint is not understood: {error}") from error


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    if kind is None:
        return {key: _decoded(item) for key, item in value.items()}
    inner = value["value"]
    if kind == "float":
        return float(inner)
    if kind == "bytes":
        return base64.b64decode(inner, validate=True)
    if kind == "tuple":
        return tuple(_decoded(item) for item in inner)
    if kind == "dict":
        return {_decoded(k): _decoded(v) for k, v in inner}
    if kind != "array":
        raise ValueError(f"kind {kind!r}")
    dtype = bfloat16.numpy_dtype if value["dtype"] == bfloat16.name else np.dtype(value["dtype"])
    stored = _stored(dtype)
    raw = np.frombuffer(base64.b64decode(inner, validate=True), stored.newbyteorder("<"))
    bits = raw.astype(stored).reshape(value["shape"])
    if value["library"] == "torch":
        import torch

        tensor = torch.from_numpy(bits)
        return tensor.view(torch.bfloat16) if dtype == bfloat16.numpy_dtype else tensor
    return bits.view(dtype)
