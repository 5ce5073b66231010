"""Tensors of PyTorch as arrays, without importing PyTorch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of PyTorch."""
    return callable(getattr(value, "detach", None)) and callable(getattr(value, "cpu", None))


def array_of(tensor: Any) -> np.ndarray:
    """The tensor's values, in its own memory where that is the host's."""
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":  # NumPy has no such type of its own
        import ml_dtypes

        return np.asarray(tensor.view(sys.modules["torch"].int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(tensor.numpy())
