"""``oneflow.python.ops``."""

from . import transpose_util as transpose_util
