"""``flow.serving``: saved models in this process, and models behind HTTP; ``python -m oneflow.serving DIR`` is the program."""

import sys as _sys

from .._base.public import install as _install_public_modules
from ._server import Server
from ._session import InferenceSession, ModelVersionPolicy, SessionOption

__all__ = ["InferenceSession", "ModelVersionPolicy", "Server", "SessionOption"]

_install_public_modules([_sys.modules[__name__]])
