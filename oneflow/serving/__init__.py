"""``flow.serving``: models behind HTTP; ``python -m oneflow.serving DIR`` is the program."""

import sys as _sys

from .._base.public import install as _install_public_modules
from ._server import Server

__all__ = ["Server"]

_install_public_modules([_sys.modules[__name__]])
