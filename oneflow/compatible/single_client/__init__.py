"""``oneflow.compatible.single_client``: job functions as OneFlow 0.6 means them. See docs/compatibility.md for the differences.

>>> import oneflow.compatible.single_client as flow
>>> import oneflow.compatible.single_client.typing as tp
"""

from __future__ import annotations

from ..._base.dtype import NEWER as _NEWER
from ..._base.dtype import bool as bool
from ..._base.dtype import complex32 as complex32
from ..._base.dtype import complex64 as complex64
from ..._base.dtype import complex128 as complex128
from ..._base.dtype import dtypes as _dtypes
from ..._base.dtype import float16 as half
from ..._base.dtype import int16 as int16
from ..._base.dtype import int32 as int
from ..._base.dtype import int64 as long
from ..._base.dtype import int128 as int128
from ..._base.dtype import uint16 as uint16
from ..._base.dtype import uint32 as uint32
from ..._base.dtype import uint64 as uint64
from ..._base.dtype import uint128 as uint128
from ..._base.size import Size as Size
from .._imports import install_packages as _install_packages
from .._imports import sharing as _sharing
from . import data as data
from . import image as image
from . import layers as layers
from . import linalg as linalg
from . import math as math
from . import nn as nn
from . import optimizer as optimizer
from . import quantization as quantization
from . import sbp as sbp
from ._jobs import function as function
from ._jobs import global_function as global_function
from ._ops import batch_align as image_batch_align
from ._ops import gather as gather
from ._ops import get_variable as get_variable
from ._ops import hierarchical_parallel_cast as hierarchical_parallel_cast
from ._ops import matmul as matmul
from ._ops import range as range
from ._ops import reflection_pad2d as reflection_pad2d
from ._user_ops import consistent_user_op_builder as consistent_user_op_builder
from ._user_ops import consistent_user_op_module_builder as consistent_user_op_module_builder
from ._user_ops import user_op_builder as user_op_builder
from ._user_ops import user_op_module_builder as user_op_module_builder


def dtypes() -> list[object]:
    """Every dtype of 0.6, aliases included.

    Example: >>> flow.bool in flow.dtypes()   # True
    """
    return [*_dtypes(), *_NEWER, half, int, long]


__getattr__, __dir__, _public_names = _sharing(__name__)
_install_packages()
