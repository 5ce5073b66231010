"""The dtypes of ``flow`` under their old path."""

from __future__ import annotations

from ..._base.dtype import bfloat16 as bfloat16
from ..._base.dtype import char as char
from ..._base.dtype import convert_oneflow_dtype_to_numpy_dtype as convert_oneflow_dtype_to_numpy_dtype
from ..._base.dtype import double as double
from ..._base.dtype import dtype as dtype
from ..._base.dtype import dtypes as dtypes
from ..._base.dtype import float as float
from ..._base.dtype import float16 as float16
from ..._base.dtype import float32 as float32
from ..._base.dtype import float64 as float64
from ..._base.dtype import int8 as int8
from ..._base.dtype import int32 as int32
from ..._base.dtype import int64 as int64
from ..._base.dtype import record as record
from ..._base.dtype import tensor_buffer as tensor_buffer
from ..._base.dtype import uint8 as uint8
