"""Reading and writing one variable by name."""

from __future__ import annotations

import numpy as np

from .._base.refuse import closest, refuse, shown
from ..errors import ArgumentError, ShapeError
from ..graph.graph import Variable
from ..runtime.session import Session, default_session


def _variable(session: Session, what: str, op_name: str) -> Variable:
    known = session.variables()
    if not isinstance(op_name, str) or op_name not in known:
        near = closest(op_name, known) if isinstance(op_name, str) else []
        refuse(ArgumentError, f"{what}: {shown(op_name)} is not a variable", found=[("close", ", ".join(near))] if near else [])
    return known[op_name]


def get_interface_blob_value(op_name: str) -> np.ndarray:
    """A copy of a variable's current value, after all calls that were submitted. Starts the session.

    Raises:
      ArgumentError: there is no variable of that name.
    Example: >>> flow.experimental.get_interface_blob_value("w")   # an array of shape (8, 4)
    """
    session = default_session()
    _variable(session, "get_interface_blob_value", op_name)
    return session.read([op_name])[op_name]


def set_interface_blob_value(op_name: str, ndarray: np.ndarray) -> None:
    """Replaces a variable's value. Starts the session.

    Args:
      op_name: the variable's name.
      ndarray: of the variable's shape and dtype.
    Raises:
      ArgumentError: there is no variable of that name, or the value is not an array of its dtype.
      ShapeError: the array has another shape.
    Example: >>> flow.experimental.set_interface_blob_value("w", np.zeros((8, 4), np.float32))
    """
    session = default_session()
    variable = _variable(session, "set_interface_blob_value", op_name)
    if not isinstance(ndarray, np.ndarray) or ndarray.dtype != variable.dtype.numpy_dtype:
        given = f"an array of {ndarray.dtype}" if isinstance(ndarray, np.ndarray) else type(ndarray).__name__
        refuse(ArgumentError, f"variable {shown(op_name)} takes an array of {variable.dtype.name}, got {given}")
    if ndarray.shape != variable.shape:
        refuse(ShapeError, f"variable {shown(op_name)} has shape {variable.shape}, got an array of shape {ndarray.shape}")
    session.exchange({op_name: np.array(ndarray, order="C")})
