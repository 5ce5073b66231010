"""``flow.trainer``: training over plain jobs."""

import sys as _sys

from .._base.public import install as _install_public_modules
from .history import History as History
from .trainer import Trainer as Trainer

__all__ = ["History", "Trainer"]

_install_public_modules([_sys.modules[__name__]])
