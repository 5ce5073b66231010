"""``flow.onnx``: jobs to ONNX models, and ONNX models into jobs."""

import sys as _sys

from .._base.public import install as _install_public_modules
from ._api import export
from ._load import OnnxModel, load

__all__ = ["OnnxModel", "export", "load"]

_install_public_modules([_sys.modules[__name__]])
