"""``flow.interop``: weights from and for PyTorch."""

import sys as _sys

from .._base.public import install as _install_public_modules
from .torch import from_torch as from_torch
from .torch import to_torch as to_torch

__all__ = ["from_torch", "to_torch"]

_install_public_modules([_sys.modules[__name__]])
