"""The settings of FunctionConfig as methods, for type checkers and editors. Written by scripts/write_settings.py."""

from typing import Any, Literal

from .._base.dtype import dtype
from ..graph.scopes import PlacementScope, View

class _Train:
    def primary_lr(self, value: float) -> None:
        """Learning rate of the dict style of training. Default: None."""
    def secondary_lr(self, value: float) -> None:
        """no effect: no update rule reads it (as in OneFlow v0.3). Default: None."""
    def model_update_conf(self, value: dict[str, Any]) -> None:
        """Update rule of the dict style, e.g. {"momentum_conf": {"beta": 0.9}}. Default: None."""
    def loss_scale_factor(self, value: float) -> None:
        """Static loss scale of the dict style. Default: None."""
    def num_gradient_accumulation_steps(self, value: int) -> None:
        """Splits the inputs of a train job into this many micro-batches with one update for all. Placeholders are declared for
        the whole batch, readers for one micro-batch; the body sees one, results are those of all. Default: 1.
        """
    def optimizer_placement_optimization_mode(self, mode: Literal["non_distributed", "distributed_split"]) -> None:
        """Where devices that share a batch store variables and optimizer states: "distributed_split" a piece of each per
        device, "non_distributed" each one whole on one device. Results do not change. Default: None.
        """
    def optimizer_placement_optimization_threshold(self, value: int) -> None:
        """The least number of elements per device of a variable that `optimizer_placement_optimization_mode` places. Default:
        1024.
        """

class _Qat:
    def per_channel_weight_quantization(self, value: bool = True) -> None:
        """A grid for each output channel of a weight. Default: False."""
    def symmetric(self, value: bool = True) -> None:
        """Grids around zero; otherwise from the smallest to the largest value. Default: True."""
    def moving_min_max_momentum(self, value: float) -> None:
        """Weight of the old extremes in their moving averages. Default: 0.95."""
    def moving_min_max_stop_update_after_iters(self, value: int | float) -> None:
        """The averages are fixed after this many steps. Default: None."""
    def target_backend(self, value: Literal["", "tensorrt", "tensorrt7", "cambricon"]) -> None:
        """How scales are computed: "cambricon" uses powers of two. Default: ''."""

class _Tensorrt:
    def use_fp16(self, value: bool = True) -> None:
        """no effect: the job runs through XLA in its own dtypes, which is at least as precise. Default: False."""
    def use_int8(self, value: bool = True) -> None:
        """no effect: the job runs through XLA in its own dtypes, which is at least as precise. Default: False."""
    def int8_calibration(self, value: str) -> None:
        """no effect: the job runs through XLA in its own dtypes, which is at least as precise. Default: None."""

class FunctionSettings:
    train: _Train
    qat: _Qat
    tensorrt: _Tensorrt
    static_mem_alloc_policy_white_list: Any
    static_mem_alloc_algo_white_list: Any
    def default_data_type(self, value: dtype) -> None:
        """Element type of variables and ops for which none is given. Default: oneflow.float32."""
    def default_initializer_conf(self, value: dict[str, Any]) -> None:
        """Initializer of variables for which none is given, e.g. {"random_normal_conf": {"mean": 0.0, "std": 0.1}}. Default:
        None.
        """
    def default_logical_view(self, value: View) -> None:
        """flow.scope.consistent_view() or mirrored_view(); by default consistent, but mirrored with inputs of a List kind.
        Default: None.
        """
    def default_distribute_strategy(self, value: View) -> None:
        """flow.scope.consistent_view() or mirrored_view(); by default consistent, but mirrored with inputs of a List kind.
        Default: None.
        """
    def default_placement_scope(self, value: PlacementScope) -> None:
        """flow.scope.placement(...): the job's outermost placement, by default all devices of flow.config. Default: None."""
    def feed_own_part(self, value: bool = True) -> None:
        """In a run of several processes, each feeds its own part of the batch, not the whole; parts are in the order of the
        processes. Default: False.
        """
    def concurrency_width(self, value: int) -> None:
        """no effect: the number of calls in flight adapts itself. Default: 128."""
    def indexed_slices_optimizer_conf(self, value: dict[str, Any]) -> None:
        """SGD and Adam update only the rows that a step gathered, of variables that gathers on axis 0 alone read; e.g.
        {"include_op_names": {"op_name": ["table"]}}. Default: None.
        """
    def optimizer_placement_optimization_mode(self, mode: Literal["non_distributed", "distributed_split"]) -> None:
        """Where devices that share a batch store variables and optimizer states: "distributed_split" a piece of each per
        device, "non_distributed" each one whole on one device. Results do not change. Default: None.
        """
    def optimizer_placement_optimization_threshold(self, value: int) -> None:
        """The least number of elements per device of a variable that `optimizer_placement_optimization_mode` places. Default:
        1024.
        """
    def enable_non_distributed_optimizer(self, value: bool = True) -> None:
        """The older spelling of `optimizer_placement_optimization_mode("non_distributed")`. Default: False."""
    def non_distributed_optimizer_group_size_mbyte(self, value: int) -> None:
        """no effect: results do not depend on the devices that optimizer states are on. Default: None."""
    def enable_fuse_model_update_ops(self, value: bool = True) -> None:
        """no effect: the compiled program is the same with and without this graph rewrite. Default: False."""
    def enable_gradients_stats_aggregation(self, value: bool = True) -> None:
        """no effect: the compiled program is the same with and without this graph rewrite. Default: True."""
    def enable_auto_mixed_precision(self, value: bool = True) -> None:
        """Matrix products and convolutions, and the ops between them, compute in bfloat16 (float16 on a GPU with a loss
        scale); variables, gradients and losses stay float32. Default: False.
        """
    def enable_quantization_aware_training(self, value: bool = True) -> None:
        """Rounds the inputs of convolutions and matrix products to 8 bits, as int8 inference will; gradients pass. Default:
        False.
        """
    def enable_qat(self, value: bool = True) -> None:
        """Rounds the inputs of convolutions and matrix products to 8 bits, as int8 inference will; gradients pass. Default:
        False.
        """
    def enable_float_compute_for_half_gemm(self, value: bool = True) -> None:
        """no effect: float16 products are accumulated in float32. Default: True."""
    def cudnn_conv_enable_pseudo_half(self, value: bool) -> None:
        """no effect: float16 products are accumulated in float32. Default: True."""
    def enable_cudnn_conv_pseudo_half(self, value: bool) -> None:
        """no effect: float16 products are accumulated in float32. Default: True."""
    def cudnn_conv_enable_true_half(self, value: bool = True) -> None:
        """no effect: float16 products are accumulated in float32. Default: False."""
    def enable_true_half_config_when_conv(self, value: bool = True) -> None:
        """no effect: float16 products are accumulated in float32. Default: False."""
    def enable_ssp(self, value: bool = True) -> None:
        """A trained variable is read with its value of ssp_num_stages - ssp_stage_id - 1 calls ago
        (flow.experimental.scope.config around their creation). Default: False.
        """
    def ssp_partition_strategy(self, value: str) -> None:
        """no effect: stages are where the program puts them. Default: 'naive_sequential'."""
    def ssp_partition_scope_ids(self, value: list[Any]) -> None:
        """no effect: stages are where the program puts them. Default: []."""
    def enable_cudnn(self, value: bool = True) -> None:
        """no effect: XLA chooses the convolution algorithm. Default: True."""
    def cudnn_buf_limit_mbyte(self, value: int) -> None:
        """no effect: XLA chooses the convolution algorithm. Default: 1024."""
    def cudnn_conv_force_fwd_algo(self, value: int) -> None:
        """no effect: XLA chooses the convolution algorithm. Default: None."""
    def cudnn_conv_force_bwd_data_algo(self, value: int) -> None:
        """no effect: XLA chooses the convolution algorithm. Default: None."""
    def cudnn_conv_force_bwd_filter_algo(self, value: int) -> None:
        """no effect: XLA chooses the convolution algorithm. Default: None."""
    def cudnn_conv_heuristic_search_algo(self, value: bool) -> None:
        """no effect: XLA chooses the convolution algorithm. Default: True."""
    def cudnn_conv_use_deterministic_algo_only(self, value: bool) -> None:
        """no effect: XLA chooses the convolution algorithm. Default: False."""
    def enable_cudnn_fused_normalization_add_relu(self, value: bool) -> None:
        """no effect: XLA chooses the convolution algorithm. Default: False."""
    def enable_inplace(self, value: bool = True) -> None:
        """no effect: XLA plans memory. Default: True."""
    def enable_inplace_in_reduce_struct(self, value: bool = True) -> None:
        """no effect: XLA plans memory. Default: True."""
    def enable_reused_mem(self, value: bool = True) -> None:
        """no effect: XLA plans memory. Default: True."""
    def enable_keep_header_only(self, value: bool = True) -> None:
        """no effect: XLA plans memory. Default: False."""
    def use_memory_allocation_algorithm_v2(self, value: bool) -> None:
        """no effect: XLA plans memory. Default: True."""
    def allow_cpu_return_op(self, value: bool) -> None:
        """no effect: results arrive in host memory from any device. Default: True."""
    def enable_fuse_add_to_output(self, value: bool) -> None:
        """no effect: the compiled program is the same with and without this graph rewrite. Default: False."""
    def enable_fuse_cast_scale(self, value: bool = True) -> None:
        """no effect: the compiled program is the same with and without this graph rewrite. Default: False."""
    def prune_parallel_cast_ops(self, value: bool = True) -> None:
        """no effect: the compiled program is the same with and without this graph rewrite. Default: True."""
    def prune_cast_to_static_shape_ops(self, value: bool = True) -> None:
        """no effect: the compiled program is the same with and without this graph rewrite. Default: True."""
    def prune_amp_white_identity_ops(self, value: bool = True) -> None:
        """no effect: the compiled program is the same with and without this graph rewrite. Default: True."""
    def do_parallel_cast_before_widening_type_cast(self, value: bool = True) -> None:
        """no effect: the compiled program is the same with and without this graph rewrite. Default: True."""
    def use_xla_jit(self, value: bool = True) -> None:
        """no effect: every job is compiled by XLA. Default: False."""
    def use_openvino(self, value: bool = True) -> None:
        """no effect: XLA compiles the job and chooses its own kernels, fusions and layouts. Default: False."""
    def use_tensorrt(self, value: bool = True) -> None:
        """no effect: the job runs through XLA in its own dtypes, which is at least as precise. Default: False."""
    def exp_run_conf(self, value: dict[str, Any]) -> None:
        """no effect: XLA compiles the job and chooses its own kernels, fusions and layouts. Default: None."""
    def enable_nccl(self, value: bool = True) -> None:
        """no effect: XLA inserts and fuses the collectives (OneFlow itself ignored it from v0.1.3 on). Default: True."""
    def use_nccl_inter_node_communication(self, value: bool = True) -> None:
        """no effect: XLA inserts and fuses the collectives (OneFlow itself ignored it from v0.1.3 on). Default: False."""
    def use_boxing_v2(self, value: bool = True) -> None:
        """no effect: XLA inserts and fuses the collectives (OneFlow itself ignored it from v0.1.3 on). Default: False."""
    def enable_all_reduce_group(self, value: bool = True) -> None:
        """no effect: XLA inserts and fuses the collectives (OneFlow itself ignored it from v0.1.3 on). Default: True."""
    def all_reduce_group_num(self, value: int) -> None:
        """no effect: XLA inserts and fuses the collectives (OneFlow itself ignored it from v0.1.3 on). Default: None."""
    def all_reduce_lazy_ratio(self, value: float) -> None:
        """no effect: XLA inserts and fuses the collectives (OneFlow itself ignored it from v0.1.3 on). Default: None."""
    def all_reduce_group_min_mbyte(self, value: int) -> None:
        """no effect: XLA inserts and fuses the collectives (OneFlow itself ignored it from v0.1.3 on). Default: None."""
    def all_reduce_group_size_warmup(self, value: float) -> None:
        """no effect: XLA inserts and fuses the collectives (OneFlow itself ignored it from v0.1.3 on). Default: None."""
    def all_reduce_fp16(self, value: bool = True) -> None:
        """no effect: gradients are summed in their own dtype. Default: False."""
    def disable_all_reduce_sequence(self, value: bool = True) -> None:
        """no effect: XLA inserts and fuses the collectives (OneFlow itself ignored it from v0.1.3 on). Default: False."""
    def __is_user_function__(self, value: bool = True) -> None:
        """no effect: OneFlow's own mark for jobs that a user wrote. Default: True."""
