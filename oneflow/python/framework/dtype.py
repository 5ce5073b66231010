"""What ``flow`` has of dtypes, under its path of old."""

from __future__ import annotations

from ..._dtype import bfloat16 as bfloat16
from ..._dtype import char as char
from ..._dtype import convert_oneflow_dtype_to_numpy_dtype as convert_oneflow_dtype_to_numpy_dtype
from ..._dtype import double as double
from ..._dtype import dtype as dtype
from ..._dtype import dtypes as dtypes
from ..._dtype import float as float
from ..._dtype import float16 as float16
from ..._dtype import float32 as float32
from ..._dtype import float64 as float64
from ..._dtype import int8 as int8
from ..._dtype import int32 as int32
from ..._dtype import int64 as int64
from ..._dtype import record as record
from ..._dtype import tensor_buffer as tensor_buffer
from ..._dtype import uint8 as uint8
