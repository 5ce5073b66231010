"""The settings of FunctionConfig: one table. A new setting is one row."""

from __future__ import annotations

from typing import Any

from .._base import dtype as dtypes
from .._base.dtype import dtype
from ..graph.scopes import PlacementScope, View
from ._options import REQUIRED, Option

# The reasons why a setting has no effect.
_XLA = "no effect: XLA compiles the job and chooses its own kernels, fusions and layouts"
_MEMORY = "no effect: XLA plans memory"
_CUDNN = "no effect: XLA chooses the convolution algorithm"
_NCCL = "no effect: XLA inserts and fuses the collectives (OneFlow itself ignored it from v0.1.3 on)"
_REWRITE = "no effect: the compiled program is the same with and without this graph rewrite"
_HALF = "no effect: float16 products are accumulated in float32"
_TENSORRT = "no effect: the job runs through XLA in its own dtypes, which is at least as precise"
_STATES = "no effect: results do not depend on the devices that optimizer states are on"


def _check_indexed_slices(conf: dict[str, Any]) -> str:
    names = conf.get("include_op_names")
    listed = names.get("op_name") if isinstance(names, dict) and set(names) == {"op_name"} else None
    if conf == {"enable": False}:
        return ""
    if not isinstance(listed, (list, tuple)) or not all(isinstance(name, str) for name in listed):
        return 'include_op_names must be {"op_name": [names of variables]}'
    if not set(conf) <= {"enable", "include_op_names"} or not isinstance(conf.get("enable", True), bool):
        return "its keys are include_op_names and enable, a bool"
    return ""


def _switch(name: str, default: bool, effect: str, *aliases: str, implied: Any = True, **more: Any) -> Option:
    return Option(name, (bool,), default, effect, implied=implied, aliases=aliases, **more)


FUNCTION_OPTIONS: list[Option] = [
    # the job
    Option("default_data_type", (dtype,), dtypes.float32, "Element type of variables and ops for which none is given."),
    Option("default_initializer_conf", (dict,), None,
           'Initializer of variables for which none is given, e.g. {"random_normal_conf": {"mean": 0.0, "std": 0.1}}.'),
    Option("default_logical_view", (View,), None,
           "flow.scope.consistent_view() or mirrored_view(); by default consistent, but mirrored with inputs of a List kind.",
           aliases=("default_distribute_strategy",)),
    Option("default_placement_scope", (PlacementScope,), None,
           "flow.scope.placement(...): the job's outermost placement, by default all devices of flow.config."),
    _switch("feed_own_part", False, "In a run of several processes, each feeds its own part of the batch, not the whole; "
            "parts are in the order of the processes."),
    Option("concurrency_width", (int,), 128, "no effect: the number of calls in flight adapts itself", minimum=1),
    # training, the older way
    Option("train.primary_lr", (float,), None, "Learning rate of the dict style of training."),
    Option("train.secondary_lr", (float,), None,
           "no effect: no update rule reads it (as in OneFlow v0.3)"),
    Option("train.model_update_conf", (dict,), None, 'Update rule of the dict style, e.g. {"momentum_conf": {"beta": 0.9}}.'),
    Option("train.loss_scale_factor", (float,), None, "Static loss scale of the dict style."),
    Option("train.num_gradient_accumulation_steps", (int,), 1, "Splits the inputs of a train job into this many micro-batches "
           "with one update for all. Placeholders are declared for the whole batch, readers for one micro-batch; the body sees "
           "one, results are those of all.", minimum=1),
    Option("indexed_slices_optimizer_conf", (dict,), None,
           "SGD and Adam update only the rows that a step gathered, of variables that gathers on axis 0 alone read; e.g. "
           '{"include_op_names": {"op_name": ["table"]}}.', verify=_check_indexed_slices),
    Option("optimizer_placement_optimization_mode", (str,), None,
           "Where devices that share a batch store variables and optimizer states: "
           '"distributed_split" a piece of each per device, "non_distributed" each one whole on one device. '
           "Results do not change.", argument="mode",
           choices=("non_distributed", "distributed_split"), aliases=("train.optimizer_placement_optimization_mode",)),
    Option("optimizer_placement_optimization_threshold", (int,), 1024,
           "The least number of elements per device of a variable that `optimizer_placement_optimization_mode` places.",
           aliases=("train.optimizer_placement_optimization_threshold",)),
    _switch("enable_non_distributed_optimizer", False,
            'The older spelling of `optimizer_placement_optimization_mode("non_distributed")`.'),
    Option("non_distributed_optimizer_group_size_mbyte", (int,), None, _STATES),
    _switch("enable_fuse_model_update_ops", False, _REWRITE),
    _switch("enable_gradients_stats_aggregation", True, _REWRITE),
    # precision
    _switch("enable_auto_mixed_precision", False,
            "Matrix products and convolutions, and the ops between them, compute in bfloat16 (float16 on a GPU with a loss "
            "scale); variables, gradients and losses stay float32."),
    _switch("enable_quantization_aware_training", False,
            "Rounds the inputs of convolutions and matrix products to 8 bits, as int8 inference will; gradients pass.",
            "enable_qat"),
    _switch("qat.per_channel_weight_quantization", False, "A grid for each output channel of a weight."),
    _switch("qat.symmetric", True, "Grids around zero; otherwise from the smallest to the largest value."),
    Option("qat.moving_min_max_momentum", (float,), 0.95, "Weight of the old extremes in their moving averages."),
    Option("qat.moving_min_max_stop_update_after_iters", (int, float), None, "The averages are fixed after this many steps.",
           minimum=0),
    Option("qat.target_backend", (str,), "", 'How scales are computed: "cambricon" uses powers of two.',
           choices=("", "tensorrt", "tensorrt7", "cambricon")),
    _switch("enable_float_compute_for_half_gemm", True, _HALF),
    _switch("cudnn_conv_enable_pseudo_half", True, _HALF, "enable_cudnn_conv_pseudo_half", implied=REQUIRED),
    _switch("cudnn_conv_enable_true_half", False, _HALF, "enable_true_half_config_when_conv"),
    # stages
    _switch("enable_ssp", False, "A trained variable is read with its value of ssp_num_stages - ssp_stage_id - 1 calls ago "
            "(flow.experimental.scope.config around their creation)."),
    Option("ssp_partition_strategy", (str,), "naive_sequential", "no effect: stages are where the program puts them"),
    Option("ssp_partition_scope_ids", (list,), [], "no effect: stages are where the program puts them"),
    # convolutions
    _switch("enable_cudnn", True, _CUDNN),
    Option("cudnn_buf_limit_mbyte", (int,), 1024, _CUDNN),
    Option("cudnn_conv_force_fwd_algo", (int,), None, _CUDNN),
    Option("cudnn_conv_force_bwd_data_algo", (int,), None, _CUDNN),
    Option("cudnn_conv_force_bwd_filter_algo", (int,), None, _CUDNN),
    _switch("cudnn_conv_heuristic_search_algo", True, _CUDNN, implied=REQUIRED),
    _switch("cudnn_conv_use_deterministic_algo_only", False, _CUDNN, implied=REQUIRED),
    _switch("enable_cudnn_fused_normalization_add_relu", False, _CUDNN, implied=REQUIRED),
    # memory
    _switch("enable_inplace", True, _MEMORY),
    _switch("enable_inplace_in_reduce_struct", True, _MEMORY),
    _switch("enable_reused_mem", True, _MEMORY),
    _switch("enable_keep_header_only", False, _MEMORY),
    _switch("use_memory_allocation_algorithm_v2", True, _MEMORY, implied=REQUIRED),
    _switch("allow_cpu_return_op", True, "no effect: results arrive in host memory from any device", implied=REQUIRED),
    # graph rewrites and other compilers
    _switch("enable_fuse_add_to_output", False, _REWRITE, implied=REQUIRED),
    _switch("enable_fuse_cast_scale", False, _REWRITE),
    _switch("prune_parallel_cast_ops", True, _REWRITE),
    _switch("prune_cast_to_static_shape_ops", True, _REWRITE),
    _switch("prune_amp_white_identity_ops", True, _REWRITE),
    _switch("do_parallel_cast_before_widening_type_cast", True, _REWRITE),
    _switch("use_xla_jit", False, "no effect: every job is compiled by XLA"),
    _switch("use_openvino", False, _XLA),
    _switch("use_tensorrt", False, _TENSORRT),
    _switch("tensorrt.use_fp16", False, _TENSORRT),
    _switch("tensorrt.use_int8", False, _TENSORRT),
    Option("tensorrt.int8_calibration", (str,), None, _TENSORRT),
    Option("exp_run_conf", (dict,), None, _XLA),
    # collectives
    _switch("enable_nccl", True, _NCCL),
    _switch("use_nccl_inter_node_communication", False, _NCCL),
    _switch("use_boxing_v2", False, _NCCL),
    _switch("enable_all_reduce_group", True, _NCCL),
    Option("all_reduce_group_num", (int,), None, _NCCL),
    Option("all_reduce_lazy_ratio", (float,), None, _NCCL),
    Option("all_reduce_group_min_mbyte", (int,), None, _NCCL),
    Option("all_reduce_group_size_warmup", (float,), None, _NCCL),
    _switch("all_reduce_fp16", False, "no effect: gradients are summed in their own dtype"),
    _switch("disable_all_reduce_sequence", False, _NCCL),
    _switch("__is_user_function__", True, "no effect: OneFlow's own mark for jobs that a user wrote"),
]  # fmt: skip
