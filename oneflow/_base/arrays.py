"""Arrays of what is given: tensors of PyTorch, without importing it, and values that are to fit a dtype."""

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


def fitted(array: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """The array in that dtype; None where finite values would become infinite, or integers others."""
    with np.errstate(over="ignore", invalid="ignore"):
        made = array.astype(dtype)
    if dtype.kind in "iu":
        return made if np.array_equal(made, array) else None
    is_float = dtype.kind == "f" or dtype.name == "bfloat16"
    return None if is_float and np.isinf(made).sum() != np.isinf(array).sum() else made
