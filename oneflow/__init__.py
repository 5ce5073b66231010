"""Job functions: an ordinary Python function describes a network, XLA runs it.

>>> import oneflow as flow
>>> import oneflow.typing as tp
"""

import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import advanced as advanced
from . import checkpoint as checkpoint
from . import compatible as compatible
from . import config as config
from . import core as core
from . import data as data
from . import deprecated as deprecated
from . import detection as detection
from . import distribute as distribute
from . import distributed as distributed
from . import env as env
from . import errors as errors
from . import experimental as experimental
from . import image as image
from . import keras as keras
from . import layers as layers
from . import linalg as linalg
from . import losses as losses
from . import math as math
from . import model as model
from . import nn as nn
from . import oneflow_api as oneflow_api
from . import optimizer as optimizer
from . import placement as placement
from . import profiler as profiler
from . import quantization as quantization
from . import random as random
from . import regularizers as regularizers
from . import scope as scope
from . import sysconfig as sysconfig
from . import system as system
from . import tensorrt as tensorrt
from . import train as train
from . import typing as typing
from . import util as util
from ._base.dtype import bfloat16 as bfloat16
from ._base.dtype import char as char
from ._base.dtype import convert_oneflow_dtype_to_numpy_dtype as convert_oneflow_dtype_to_numpy_dtype
from ._base.dtype import double as double
from ._base.dtype import dtype as dtype
from ._base.dtype import dtypes as dtypes
from ._base.dtype import float as float
from ._base.dtype import float16 as float16
from ._base.dtype import float32 as float32
from ._base.dtype import float64 as float64
from ._base.dtype import int8 as int8
from ._base.dtype import int32 as int32
from ._base.dtype import int64 as int64
from ._base.dtype import record as record
from ._base.dtype import tensor_buffer as tensor_buffer
from ._base.dtype import uint8 as uint8
from ._base.public import install as _install_public_modules
from ._base.version import __version__ as __version__
from ._variables.initializers import constant_initializer as constant_initializer
from ._variables.initializers import empty_initializer as empty_initializer
from ._variables.initializers import glorot_normal_initializer as glorot_normal_initializer
from ._variables.initializers import glorot_uniform_initializer as glorot_uniform_initializer
from ._variables.initializers import kaiming_initializer as kaiming_initializer
from ._variables.initializers import ones_initializer as ones_initializer
from ._variables.initializers import random_normal_initializer as random_normal_initializer
from ._variables.initializers import random_uniform_initializer as random_uniform_initializer
from ._variables.initializers import truncated_normal as truncated_normal
from ._variables.initializers import truncated_normal_initializer as truncated_normal_initializer
from ._variables.initializers import variance_scaling_initializer as variance_scaling_initializer
from ._variables.initializers import xavier_normal_initializer as xavier_normal_initializer
from ._variables.initializers import xavier_uniform_initializer as xavier_uniform_initializer
from ._variables.initializers import zeros_initializer as zeros_initializer
from .config import FunctionConfig as FunctionConfig
from .config import InitEagerGlobalSession as InitEagerGlobalSession
from .config import eager_execution_enabled as eager_execution_enabled
from .config import enable_eager_execution as enable_eager_execution
from .config import function_config as function_config
from .config import inter_job_reuse_mem_strategy as inter_job_reuse_mem_strategy
from .config._messages import ConfigProto as ConfigProto
from .config._messages import JobConfigProto as JobConfigProto
from .data import epoch as _epoch
from .data._pillow import restore_antialias as _restore_antialias
from .env import current_resource as current_resource
from .graph.node import INVALID_AXIS as _INVALID_AXIS
from .graph.node import Blob as Blob
from .graph.scopes import current_scope as current_scope
from .graph.scopes import device as device
from .graph.scopes import namespace as _namespace
from .graph.scopes import placement as _placement
from .job import current_global_function_desc as current_global_function_desc
from .job import function as function
from .job import global_function as global_function
from .job import job_summary as job_summary
from .job import plot_model as plot_model
from .ops import operators as _operators  # noqa: F401 - arithmetic on Blobs
from .ops.array import assign as assign
from .ops.array import broadcast_like as broadcast_like
from .ops.array import broadcast_to_compatible_with as broadcast_to_compatible_with
from .ops.array import cast_to_static_shape as cast_to_static_shape
from .ops.array import concat as concat
from .ops.array import dynamic_reshape as dynamic_reshape
from .ops.array import expand as expand
from .ops.array import expand_dims as expand_dims
from .ops.array import flatten as flatten
from .ops.array import reshape as reshape
from .ops.array import reshape_like as reshape_like
from .ops.array import squeeze as squeeze
from .ops.array import stack as stack
from .ops.array import transpose as transpose
from .ops.constant import constant as constant
from .ops.constant import constant_like as constant_like
from .ops.constant import constant_scalar as constant_scalar
from .ops.constant import ones as ones
from .ops.constant import ones_like as ones_like
from .ops.constant import range as range
from .ops.constant import zeros as zeros
from .ops.constant import zeros_like as zeros_like
from .ops.ctc import ctc_loss as ctc_loss
from .ops.distribution import cast_to_current_logical_view as cast_to_current_logical_view
from .ops.distribution import eager_nccl_all_reduce as eager_nccl_all_reduce
from .ops.distribution import hierarchical_parallel_cast as hierarchical_parallel_cast
from .ops.distribution import parallel_cast as parallel_cast
from .ops.elementwise import amp_white_identity as amp_white_identity
from .ops.elementwise import cast as cast
from .ops.elementwise import clip_by_value as clip_by_value
from .ops.elementwise import identity as identity
from .ops.elementwise import identity_n as identity_n
from .ops.elementwise import stop_gradient as stop_gradient
from .ops.indexing import dim_gather as dim_gather
from .ops.indexing import gather as gather
from .ops.indexing import gather_nd as gather_nd
from .ops.indexing import one_hot as one_hot
from .ops.loss import combined_margin_loss as combined_margin_loss
from .ops.loss import smooth_l1_loss as smooth_l1_loss
from .ops.masks import argwhere as argwhere
from .ops.masks import masked_fill as masked_fill
from .ops.masks import nonzero as nonzero
from .ops.masks import sync_dynamic_resize as sync_dynamic_resize
from .ops.masks import where as where
from .ops.matrix import diag as diag
from .ops.matrix import einsum as einsum
from .ops.matrix import matmul as matmul
from .ops.module import find_or_create_module as find_or_create_module
from .ops.ordinal import categorical_ordinal_encode as categorical_ordinal_encode
from .ops.padding import constant_pad2d as constant_pad2d
from .ops.padding import pad as pad
from .ops.padding import pad_grad as pad_grad
from .ops.padding import reflection_pad2d as reflection_pad2d
from .ops.padding import replication_pad2d as replication_pad2d
from .ops.padding import same_padding as same_padding
from .ops.padding import zero_pad2d as zero_pad2d
from .ops.partial_fc import distributed_partial_fc_sample as distributed_partial_fc_sample
from .ops.printing import print as print
from .ops.profiling import sleep_identity as sleep_identity
from .ops.reduce import count_not_finite as count_not_finite
from .ops.reduce import elem_cnt as elem_cnt
from .ops.reduce import multi_count_not_finite as multi_count_not_finite
from .ops.scatter import scatter_nd as scatter_nd
from .ops.scatter import tensor_scatter_nd_add as tensor_scatter_nd_add
from .ops.scatter import tensor_scatter_nd_update as tensor_scatter_nd_update
from .ops.scatter import unsorted_batch_segment_sum as unsorted_batch_segment_sum
from .ops.scatter import unsorted_segment_sum as unsorted_segment_sum
from .ops.scatter import unsorted_segment_sum_like as unsorted_segment_sum_like
from .ops.slicing import reverse as reverse
from .ops.slicing import slice as slice
from .ops.slicing import slice_update as slice_update
from .ops.slicing import slice_v2 as slice_v2
from .ops.sorting import argsort as argsort
from .ops.sorting import in_top_k as in_top_k
from .ops.sorting import sort as sort
from .ops.tensor_buffer import gen_tensor_buffer as gen_tensor_buffer
from .ops.tensor_buffer import tensor_buffer_to_list_of_tensors as tensor_buffer_to_list_of_tensors
from .ops.tensor_buffer import tensor_buffer_to_tensor as tensor_buffer_to_tensor
from .ops.tensor_buffer import tensor_buffer_to_tensor_list as tensor_buffer_to_tensor_list
from .ops.tensor_buffer import tensor_list_split as tensor_list_split
from .ops.tensor_buffer import tensor_list_to_tensor_buffer as tensor_list_to_tensor_buffer
from .ops.tensor_buffer import tensor_to_tensor_buffer as tensor_to_tensor_buffer
from .ops.time_axis import acc as acc
from .ops.time_axis import pack as pack
from .ops.time_axis import repeat as repeat
from .ops.time_axis import unpack as unpack
from .ops.variable import get_variable as get_variable
from .ops.watch import watch as watch
from .ops.watch import watch_diff as watch_diff
from .runtime.environment import current_machine_id as current_machine_id
from .runtime.session import clear_default_session as clear_default_session
from .runtime.session import manual_seed as manual_seed
from .runtime.session import session as session
from .runtime.session import sync_default_session as sync_default_session
from .typing import FixedTensorDef as FixedTensorDef
from .typing import MirroredTensorDef as MirroredTensorDef
from .typing import MirroredTensorListDef as MirroredTensorListDef
from .util import is_deprecated as is_deprecated

# second names; type checkers do not take "import ... as" for them
name_scope = _namespace
fixed_placement = _placement
device_prior_placement = _placement
eager_fixed_placement = _placement
clamp = clip_by_value
clip = clip_by_value
clip_by_scalar = clip_by_value
INVALID_BATCH_AXIS = _INVALID_AXIS
INVALID_SPLIT_AXIS = _INVALID_AXIS
ExecutionConfig = FunctionConfig
DeprecatedFixedTensorDef = FixedTensorDef
DeprecatedMirroredTensorDef = MirroredTensorDef
DeprecatedTensorListDef = MirroredTensorListDef

_epoch.on_epoch_end = sync_default_session  # the end of an iteration over MNIST's arrays is a synchronisation point
_restore_antialias()


# the rooms of the top floor are imported when they are first used: who does not enter pays nothing
_apart = {  # without the rest, which belongs to ``from oneflow import *``
    "Target": "._targets.target:Target",
    "Trainer": ".trainer:Trainer",
    "callbacks": ".callbacks",
    "consistent_user_op_builder": ".user_op:consistent_user_op_builder",
    "consistent_user_op_module_builder": ".user_op:consistent_user_op_module_builder",
    "export": ".export",
    "interop": ".interop",
    "loggers": ".loggers",
    "metrics": ".metrics",
    "onnx": ".onnx",
    "plan_sweep": ".plan:plan_sweep",
    "saved_model": ".saved_model",
    "serving": ".serving",
    "summary": ".summary",
    "trainer": ".trainer",
    "unittest": ".unittest",
    "user_op_builder": ".user_op:user_op_builder",
    "user_op_module_builder": ".user_op:user_op_module_builder",
    "user_op_names": ".user_op:user_op_names",
}
_on_demand = {
    **_apart,
    "Model": ".model._model:Model",
    "get_all_variables": ".checkpoint.api:get_all_variables",
    "image_batch_align": ".ops.image:batch_align",
    "image_decode": ".ops.image:decode",
    "image_flip": ".ops.image:flip",
    "image_normalize": ".ops.image:normalize",
    "image_random_crop": ".ops.image:random_crop",
    "image_resize": ".ops.image:Resize",
    "image_target_resize": ".ops.image:target_resize",
    "load": ".checkpoint.api:get",
    "load_variables": ".checkpoint.api:load_variables",
    "object_bbox_flip": ".ops.detection:object_bbox_flip",
    "object_bbox_scale": ".ops.detection:object_bbox_scale",
    "object_segmentation_polygon_flip": ".ops.detection:object_segmentation_polygon_flip",
    "object_segmentation_polygon_scale": ".ops.detection:object_segmentation_polygon_scale",
    "object_segmentation_polygon_to_mask": ".ops.detection:object_segmentation_polygon_to_mask",
    "save": ".checkpoint.api:save_dict",
}
if _TYPE_CHECKING:
    from . import callbacks as callbacks
    from . import export as export
    from . import interop as interop
    from . import loggers as loggers
    from . import metrics as metrics
    from . import onnx as onnx
    from . import saved_model as saved_model
    from . import serving as serving
    from . import summary as summary
    from . import trainer as trainer
    from . import unittest as unittest
    from ._targets.target import Target as Target
    from .checkpoint.api import get as _get
    from .checkpoint.api import get_all_variables as get_all_variables
    from .checkpoint.api import load_variables as load_variables
    from .checkpoint.api import save_dict as _save_dict
    from .model._model import Model as Model
    from .ops.detection import object_bbox_flip as object_bbox_flip
    from .ops.detection import object_bbox_scale as object_bbox_scale
    from .ops.detection import object_segmentation_polygon_flip as object_segmentation_polygon_flip
    from .ops.detection import object_segmentation_polygon_scale as object_segmentation_polygon_scale
    from .ops.detection import object_segmentation_polygon_to_mask as object_segmentation_polygon_to_mask
    from .ops.image import image_batch_align as image_batch_align
    from .ops.image import image_decode as image_decode
    from .ops.image import image_flip as image_flip
    from .ops.image import image_normalize as image_normalize
    from .ops.image import image_random_crop as image_random_crop
    from .ops.image import image_resize as image_resize
    from .ops.image import image_target_resize as image_target_resize
    from .plan import plan_sweep as plan_sweep
    from .trainer import Trainer as Trainer
    from .user_op import consistent_user_op_builder as consistent_user_op_builder
    from .user_op import consistent_user_op_module_builder as consistent_user_op_module_builder
    from .user_op import user_op_builder as user_op_builder
    from .user_op import user_op_module_builder as user_op_module_builder
    from .user_op import user_op_names as user_op_names

    load = _get
    save = _save_dict

_install_public_modules([
    _sys.modules[__name__], advanced, checkpoint, compatible, config, config.collective_boxing, core, data, deprecated,
    deprecated.nn, detection, distribute, distributed, env, errors, experimental, experimental.scope,
    image, keras, keras.activations, keras.maths, layers, linalg, losses, math, model, nn, oneflow_api, oneflow_api.exception,
    oneflow_api.flags, optimizer, optimizer.grad_clipping, optimizer.loss_scale, optimizer.warmup, placement, profiler,
    quantization, random, regularizers, scope, sysconfig, system, tensorrt, train, typing, util,
])  # fmt: skip
