"""``oneflow_api.flags``: build flags."""

from __future__ import annotations

from ..sysconfig import with_cuda as with_cuda
from ..sysconfig import with_mlir as with_mlir
from ..sysconfig import with_xla as with_xla

__all__ = ["with_cuda", "with_mlir", "with_xla"]
