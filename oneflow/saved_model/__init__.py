"""``flow.saved_model``: jobs and their variables in a directory that another process can run without their Python code."""

import sys as _sys

from .._base.public import install as _install_public_modules
from ._builder import GraphBuilder, ModelBuilder, SignatureBuilder

__all__ = ["GraphBuilder", "ModelBuilder", "SignatureBuilder"]

_install_public_modules([_sys.modules[__name__]])
