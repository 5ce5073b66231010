"""``flow.export``: predict jobs as files that run without this library."""

import sys as _sys

from .._base.public import install as _install_public_modules
from ._onnx import onnx
from ._stablehlo import ExportedFunction, load, stablehlo

__all__ = ["ExportedFunction", "load", "onnx", "stablehlo"]

_install_public_modules([_sys.modules[__name__]])
