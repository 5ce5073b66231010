"""NumPy arrays of what other libraries hold their data in: PyTorch, JAX, pandas, DLPack. None of them is imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.arrays import array_of, is_tensor
from .._base.refuse import refuse, shown
from ..errors import ArgumentError


def is_array(value: Any) -> bool:
    """Whether a value is one array: an ndarray, a tensor, a pandas Series or DataFrame, anything with a shape and a dtype."""
    return isinstance(value, np.ndarray) or (hasattr(value, "shape") and (hasattr(value, "dtype") or is_frame(value)))


def is_frame(value: Any) -> bool:
    """Whether a value is a table with named columns, as pandas and polars have them."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy") and not isinstance(value, np.ndarray)


def holds_numbers(array: np.ndarray) -> bool:
    """Whether an array is of real numbers or bools: not of objects, texts, dates or complex numbers."""
    return array.dtype.kind not in "OSUMmc"


def as_array(value: Any, what: str = "a batch") -> np.ndarray:
    """The value as an ndarray, without copying where its memory can be shared.

    Args:
      value: an ndarray, a tensor of PyTorch (on any device) or JAX, a pandas Series or DataFrame, an object with
        ``__array__`` or ``__dlpack__``, a number, or nested lists of numbers.
      what: what an error calls it.
    Raises:
      ArgumentError: it is none of these.
    """
    if isinstance(value, np.ndarray):
        return value
    if value is None or isinstance(value, (str, bytes, dict, set)):
        _refuse_kind(value, what)
    try:
        array = _converted(value)
    except Exception as error:  # also those of the user's object
        refuse(ArgumentError, f"{what} holds a {type(value).__name__} of which NumPy makes no array: {error}",
               hint="give arrays of one shape")  # fmt: skip
    if array.dtype == object:
        _refuse_kind(value, what)
    return array


def _converted(value: Any) -> np.ndarray:
    if is_tensor(value):
        return array_of(value)
    if hasattr(value, "to_numpy"):
        return np.asarray(value.to_numpy())
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    return np.asarray(value)


def _refuse_kind(value: Any, what: str) -> None:
    hint = "give arrays: of NumPy, PyTorch, JAX or pandas, or lists of numbers of one shape"
    dtype = getattr(value, "dtype", None)
    held = f"{type(value).__name__} {shown(value)}" if dtype is None else f"a {type(value).__name__} of {shown(dtype)}"
    refuse(ArgumentError, f"{what} holds {held}, which is not an array of numbers", hint=hint)
