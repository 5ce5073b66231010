"""The names of OneFlow's native extension that programs use: ``flow.oneflow_api``, and ``import oneflow_api``.

Later versions call it ``oneflow._oneflow_internal``. All three are this module.
"""

from __future__ import annotations

import sys as _sys

from .. import distribute as distribute
from .._base.dtype import dtype as dtype
from .._base.size import Size as Size
from ..graph.node import INVALID_AXIS as INVALID_BATCH_AXIS
from ..graph.node import INVALID_AXIS as INVALID_SPLIT_AXIS
from ..graph.node import Blob as BlobDesc
from ..graph.scopes import current_scope as GetCurrentScope
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


class _Eager(type):
    """``isinstance(blob, EagerConsistentBlob)``: never, because no Blob is eager."""

    def __instancecheck__(cls, instance: object) -> bool:
        return False


class EagerConsistentBlob(metaclass=_Eager):
    """No Blob: those of this library have no value while a job is described."""


class EagerMirroredBlob(metaclass=_Eager):
    """No Blob: those of this library have no value while a job is described."""


_package = __name__.rpartition(".")[0]
for _alias in ("oneflow_api", f"{_package}._oneflow_internal"):
    _sys.modules.setdefault(_alias, _sys.modules[__name__])
    for _part in (exception, flags):
        _sys.modules.setdefault(f"{_alias}.{_part.__name__.rpartition('.')[2]}", _part)
setattr(_sys.modules[_package], "_oneflow_internal", _sys.modules[__name__])  # noqa: B010 - not a name the package has

__all__ = [
    "BlobDesc", "ConsistentBlob", "EagerConsistentBlob", "EagerMirroredBlob", "GetCurrentScope", "INVALID_BATCH_AXIS",
    "INVALID_SPLIT_AXIS", "LazyConsistentBlob", "LazyMirroredBlob", "MirroredBlob", "Size", "distribute", "dtype", "exception",
    "flags",
]  # fmt: skip
