"""``flow.config``: settings of the next session, made outside jobs and before the first call.

Every name below without an underscore is one setting; the definitions are the table. Settings hold for one session:
``flow.clear_default_session()`` resets them to their defaults.
"""

from typing import NoReturn as _NoReturn

import numpy as _np

from .._base.log import LEVELS as _LEVELS
from .._base.log import level as _level
from .._base.refuse import closest as _closest
from .._base.refuse import refuse as _refuse
from .._base.refuse import shown as _shown
from ..errors import ArgumentError as _ArgumentError
from ..errors import ConfigError as _ConfigError
from ..errors import ModeError as _ModeError
from ..graph.graph import current_or_none as _current_or_none
from . import collective_boxing as collective_boxing
from ._function_config import FunctionConfig, FunctionDesc, function_config
from ._functions import InitEagerGlobalSession, eager_execution_enabled, enable_eager_execution, inter_job_reuse_mem_strategy
from ._settings import Resource
from ._settings import SettingsSetter as _SettingsSetter
from ._settings import nonfinite as _nonfinite
from ._settings import setting as _setting

_THREADS = "no effect: XLA and the dispatcher have their own threads"
_NETWORK = "no effect: JAX's own multi-process runtime carries the data"
_MEMORY = "no effect: JAX allocates memory (see its XLA_PYTHON_CLIENT_* environment variables)"
_SCHEDULE = "no effect: XLA schedules the collectives"
_MODEL_IO = "no effect: there is one way of reading and writing models; variables are initialised when the session starts"
_FILES = "no effect: checkpoints are written by one path, whatever their size"
_NATIVE = "libraries of OneFlow's native ops cannot be run"

# devices
gpu_device_num = _setting(
    "gpu_device_num", int, None, "GPUs per machine, 1 by default; where there are fewer, virtual CPU devices replace them all.",
    minimum=0,
)  # fmt: skip
cpu_device_num = _setting(
    "cpu_device_num", int, None,
    "CPU devices per machine, virtual ones; by default as many as jobs that are declared before the first call name, at least 1.",
    minimum=0,
)  # fmt: skip
machine_num = _setting("machine_num", int, 0, "no effect: a run has one machine", minimum=0)
strict_devices = _setting(
    "strict_devices", bool, False,
    'Makes a "gpu" placement on a machine with too few GPUs an error; otherwise the CPU stands in, with one notice.',
    implied=True,
)  # fmt: skip
enable_tensor_float_32_compute = _setting(
    "enable_tensor_float_32_compute", bool, True,
    "Products and convolutions of float32 on a GPU round their factors to TF32 (on a TPU to bfloat16), as JAX has it by default; "
    "off, they are computed with the precision of float32. CPUs never round.",
    implied=True,
)  # fmt: skip

cudnn_attention = _setting(
    "cudnn_attention", bool, False,
    "Attention on NVIDIA GPUs is computed by cuDNN's fused kernels, forward and backward, where they can compute it: in float16 "
    "or bfloat16, with heads of a multiple of 8 up to 128 elements (256 from Hopper on), and without dropout of the weights.",
    implied=True,
)  # fmt: skip

enable_native_cpu = _setting(
    "enable_native_cpu", bool, True,
    "Convolutions and matrix products on a CPU go through oneDNN where oneflow-jax-native is installed; otherwise, and when off, "
    "XLA computes them.",
    implied=True,
)  # fmt: skip

# inspection
enable_debug_mode = _setting("enable_debug_mode", bool, False, "no effect: nothing is dumped; print a job to see its graph")
collect_act_event = _setting("collect_act_event", (bool, int), False, "no effect: profile with jax.profiler", implied=True)

# models on disk
enable_legacy_model_io = _setting("enable_legacy_model_io", bool, False, _MODEL_IO, implied=True)
enable_model_io_v2 = _setting("enable_model_io_v2", bool, False, _MODEL_IO)
max_mdsave_worker_num = _setting("max_mdsave_worker_num", int, 64, _FILES)
persistence_buf_byte = _setting("persistence_buf_byte", int, None, _FILES)
save_downloaded_file_to_local_fs = _setting("save_downloaded_file_to_local_fs", bool, False, _FILES, implied=True)

# threads, memory, network
compute_thread_pool_size = _setting(
    "compute_thread_pool_size", int, None,
    "Threads that read, decode and prepare data for the jobs; by default as many as there are cores.", minimum=1,
)  # fmt: skip
read_ahead_batches = _setting(
    "read_ahead_batches", int, 4, "Batches that a job's readers prepare before they are asked for; 0 reads at the call.",
    minimum=0,
)  # fmt: skip
read_ahead_mbyte = _setting(
    "read_ahead_mbyte", int, 1024, "Bounds the prepared batches of a job, in MiB; one batch is always prepared.", minimum=1,
)  # fmt: skip
skip_corrupt_images = _setting(
    "skip_corrupt_images", bool, False,
    "Images that cannot be decoded are replaced by the next good sample of their batch, and counted, "
    "instead of being an error.", implied=True,
)  # fmt: skip
max_record_mbyte = _setting(
    "max_record_mbyte", int, 256, "The longest record, or encoded image in a file of its own, that readers take, in MiB.",
    minimum=1, verify=lambda value: "protobuf reads messages of less than 2048 MiB" if value > 2047 else "",
)  # fmt: skip
max_image_pixels = _setting(
    "max_image_pixels", int, 178_956_970,
    "The largest image that is decoded, in pixels. It also bounds the memory for decoding one, to 6 bytes for each of them.",
    minimum=1,
)  # fmt: skip
enable_scaled_jpeg_decoding = _setting(
    "enable_scaled_jpeg_decoding", bool, False,
    "image_decoder_random_crop_resize decodes a JPEG at 1/2, 1/4 or 1/8 of its size where its window stays at least as "
    "large as the result: faster for images of a megapixel and more, smoother, and not pixel for pixel what OneFlow computes.",
    implied=True,
)  # fmt: skip
thread_enable_local_message_queue = _setting("thread_enable_local_message_queue", bool, False, _THREADS)
reserved_host_mem_mbyte = _setting("reserved_host_mem_mbyte", int, 500, _MEMORY)
reserved_device_mem_mbyte = _setting("reserved_device_mem_mbyte", int, 500, _MEMORY)
enable_numa_aware_cuda_malloc_host = _setting("enable_numa_aware_cuda_malloc_host", bool, False, _MEMORY, implied=True)
enable_mem_chain_merge = _setting("enable_mem_chain_merge", bool, True, _MEMORY, implied=True)
comm_net_worker_num = _setting("comm_net_worker_num", int, 4, _NETWORK)
use_rdma = _setting("use_rdma", bool, False, _NETWORK, implied=True)
rdma_mem_block_mbyte = _setting("rdma_mem_block_mbyte", int, 8, _NETWORK)
rdma_recv_msg_buf_mbyte = _setting("rdma_recv_msg_buf_mbyte", int, 6, _NETWORK)
nccl_use_compute_stream = _setting("nccl_use_compute_stream", bool, False, _SCHEDULE, implied=False)
disable_group_boxing_by_dst_parallel = _setting("disable_group_boxing_by_dst_parallel", bool, False, _SCHEDULE, implied=False)

# op libraries
load_library = _setting("load_library", str, "", "Loads a library of ops when the session starts.", refused=bool, pending=_NATIVE)
load_library_now = _setting("load_library_now", str, "", "Loads a library of ops at once.", refused=bool, pending=_NATIVE)


def log_level(val: str) -> None:
    """Sets the lowest level of messages that are shown: "debug", "info", "notice" (the default), "warning", "error" or "silent".

    It holds at once. The environment variable ``ONEFLOW_LOG`` does the same for a whole program. Messages go through the
    logger "oneflow" of ``logging``; where the program has not set up logging, to standard error. "notice" has lines about
    work that takes longer than two seconds, compiling for example.

    Args:
      val: the name of a level.
    Raises:
      ArgumentError: another name.
    Example: >>> flow.config.log_level("warning")   # no lines about compiling
    """
    if not isinstance(val, str) or val.lower() not in _LEVELS:
        _refuse(_ArgumentError, f"flow.config.log_level takes one of {', '.join(map(repr, _LEVELS))}, got {_shown(val)}")
    _level.set(val.lower())


def find_nonfinite(val: bool = True) -> None:
    """Makes each call look for NaNs and infinities in what it returns and in the new values of variables.

    Where there are some, the step is run once more, op by op, and the call raises a NonFiniteError that names the op that made
    the first one, in the forward or the backward pass or in the update, with its line, the ranges of its inputs, its variables
    and the number of the step. The job's variables, random state and readers are as before that step. It holds at once, for all
    jobs of the process, until it is switched off or ``flow.clear_default_session()``. Calls then wait for their step, and need
    memory for a second copy of the variables; jobs are compiled once more when it changes. An infinity that the program itself
    asks for, as the value of a constant or a mask, is not an error.

    Args:
      val: whether to look.
    Raises:
      ArgumentError: not a bool.
      ModeError: inside a job function.
    Example: >>> flow.config.find_nonfinite(True)
    """
    if not isinstance(val, (bool, _np.bool_)):
        _refuse(_ArgumentError, f"flow.config.find_nonfinite takes a bool, got {_shown(val)}")
    if _current_or_none() is not None:
        _refuse(_ModeError, "flow.config.find_nonfinite can only be called outside job functions")
    _nonfinite.set(bool(val))


def legacy_model_io_enabled() -> bool:
    """The value of ``enable_legacy_model_io``."""
    return Resource.enable_legacy_model_io


def _setting_names() -> list[str]:
    return [name for name, value in globals().items() if isinstance(value, _SettingsSetter)]


def __getattr__(name: str) -> _NoReturn:
    if name.startswith("_"):
        raise AttributeError(name)
    near = _closest(name, [*_setting_names(), "legacy_model_io_enabled", "log_level", "find_nonfinite", "collective_boxing"])
    found = [("close", ", ".join(near))] if near else []
    hint = f"flow.config.{near[0]}(...)" if near else ""
    _refuse(_ConfigError, f"flow.config has no setting {name!r}", found=found, hint=hint)


def __dir__() -> list[str]:
    return sorted([*_setting_names(), "legacy_model_io_enabled", "log_level", "find_nonfinite", "collective_boxing"])


__all__ = [
    "FunctionConfig", "FunctionDesc", "InitEagerGlobalSession", "Resource", "collective_boxing", "eager_execution_enabled",
    "enable_eager_execution", "function_config", "inter_job_reuse_mem_strategy",
]  # fmt: skip
