"""The names of OneFlow's native extension that programs use: ``flow.oneflow_api``, and ``import oneflow_api``.

Later versions call it ``oneflow._oneflow_internal``. All three are this module.
"""

from __future__ import annotations

import sys as _sys

from .. import distribute as distribute
from .._base.dtype import dtype as dtype
from ..graph.node import INVALID_AXIS as INVALID_BATCH_AXIS
from ..graph.node import INVALID_AXIS as INVALID_SPLIT_AXIS
from ..graph.node import Blob as BlobDesc
from . import exception, flags


class _OfView(type):
    """``isinstance(blob, MirroredBlob)``: by the view in which the Blob was made."""

    view: str

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, BlobDesc) and instance.node.scope.view == cls.view


class ConsistentBlob(metaclass=_OfView):
    """Any Blob made in the consistent view."""

    view = "consistent"


class MirroredBlob(metaclass=_OfView):
    """Any Blob made in the mirrored view."""

    view = "mirrored"


LazyConsistentBlob = ConsistentBlob
LazyMirroredBlob = MirroredBlob

_package = __name__.rpartition(".")[0]
for _alias in ("oneflow_api", f"{_package}._oneflow_internal"):
    _sys.modules.setdefault(_alias, _sys.modules[__name__])
    for _part in (exception, flags):
        _sys.modules.setdefault(f"{_alias}.{_part.__name__.rpartition('.')[2]}", _part)
setattr(_sys.modules[_package], "_oneflow_internal", _sys.modules[__name__])  # noqa: B010 - not a name the package has

__all__ = [
    "BlobDesc", "ConsistentBlob", "INVALID_BATCH_AXIS", "INVALID_SPLIT_AXIS", "LazyConsistentBlob", "LazyMirroredBlob",
    "MirroredBlob", "distribute", "dtype", "exception", "flags",
]  # fmt: skip
