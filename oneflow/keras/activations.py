"""``flow.keras.activations``."""

from __future__ import annotations

from .._base.refuse import refuse as _refuse
from ..errors import ArgumentError as _ArgumentError
from ..graph.node import Blob as _Blob
from ..ops.elementwise import gelu as gelu
from ..ops.elementwise import relu as _relu
from ..ops.elementwise import sigmoid as sigmoid
from ..ops.elementwise import tanh as tanh


def relu(x: _Blob, alpha: float = 0.0, max_value: float | None = None, threshold: float = 0.0, name: str | None = None) -> _Blob:
    """max(x, 0).

    Args:
      x: Blob of any shape.
      alpha, max_value, threshold: must keep their defaults.
      name: name of the op; made unique when omitted.
    Returns: Blob of x's shape and dtype.
    Raises: ArgumentError.
    Example: >>> y = flow.keras.activations.relu(x)
    """
    if max_value is not None or not all(isinstance(v, (int, float)) and v == 0 for v in (alpha, threshold)):
        _refuse(_ArgumentError, "keras.activations.relu: alpha, max_value and threshold must keep their defaults",
               hint="flow.nn.leaky_relu(x, alpha), or flow.clip(x, 0, max_value)")  # fmt: skip
    return _relu(x, name=name)
