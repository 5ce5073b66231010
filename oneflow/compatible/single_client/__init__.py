"""``oneflow.compatible.single_client``: job functions as OneFlow 0.6 means them. See docs/compatibility.md for the differences.

>>> import oneflow.compatible.single_client as flow
>>> import oneflow.compatible.single_client.typing as tp
"""

from __future__ import annotations

from .._imports import install_packages as _install_packages
from .._imports import sharing as _sharing
from . import nn as nn
from . import optimizer as optimizer
from . import sbp as sbp

__getattr__, __dir__, _public_names = _sharing(__name__, ())
_install_packages()
