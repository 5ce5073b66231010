"""``flow.interop``: weights from and for PyTorch."""

from .torch import from_torch as from_torch
from .torch import to_torch as to_torch

__all__ = ["from_torch", "to_torch"]


def __dir__() -> list[str]:
    return sorted(["__doc__", "__file__", "__name__", "__path__", *__all__])
