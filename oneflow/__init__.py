"""Job functions: an ordinary Python function describes a network, XLA runs it.

>>> import oneflow as flow
>>> import oneflow.typing as tp
"""

from __future__ import annotations

from . import config as config
from . import scope as scope
from . import typing as typing
from .config import FunctionConfig as FunctionConfig
from .config import function_config as function_config
from .dtype import bfloat16 as bfloat16
from .dtype import char as char
from .dtype import convert_oneflow_dtype_to_numpy_dtype as convert_oneflow_dtype_to_numpy_dtype
from .dtype import double as double
from .dtype import dtypes as dtypes
from .dtype import float as float
from .dtype import float16 as float16
from .dtype import float32 as float32
from .dtype import float64 as float64
from .dtype import int8 as int8
from .dtype import int32 as int32
from .dtype import int64 as int64
from .dtype import record as record
from .dtype import tensor_buffer as tensor_buffer
from .dtype import uint8 as uint8
from .job import function as function
from .job import global_function as global_function
from .job import job_summary as job_summary
from .ops.variable import get_variable as get_variable
from .ops.watch import watch as watch
from .ops.watch import watch_diff as watch_diff
from .runtime.session import clear_default_session as clear_default_session
from .runtime.session import manual_seed as manual_seed
from .runtime.session import sync_default_session as sync_default_session
from .typing import FixedTensorDef as FixedTensorDef
from .typing import MirroredTensorDef as MirroredTensorDef
from .typing import MirroredTensorListDef as MirroredTensorListDef
