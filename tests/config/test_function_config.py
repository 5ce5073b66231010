"""FunctionConfig: the table, its setters, and what they refuse."""

from __future__ import annotations

import copy
import inspect
import logging
import operator
import pickle
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow._base.dtype import dtype
from oneflow._base.process_state import process_state
from oneflow.config import FunctionConfig
from oneflow.config._function_options import FUNCTION_OPTIONS
from oneflow.config._options import REQUIRED, Option, table
from oneflow.errors import ArgumentError, ConfigError, ModeError

SAMPLES: dict[type, Any] = {
    bool: True, int: 3, float: 0.5, str: "text", dict: {"naive_conf": {}}, list: [0], dtype: flow.float32,
    flow.scope.View: flow.scope.mirrored_view(), flow.scope.PlacementScope: flow.scope.placement("cpu", "0:0"),
}  # fmt: skip


def reach(config: FunctionConfig, dotted: str) -> Any:
    for part in dotted.split("."):
        config = getattr(config, part)
    return config


def sample(option: Option) -> Any:
    if option.name == "indexed_slices_optimizer_conf":
        return {"include_op_names": {"op_name": ["table"]}}
    return option.choices[-1] if option.choices else SAMPLES[option.types[0]]


@pytest.mark.parametrize("option", FUNCTION_OPTIONS, ids=lambda o: o.name)
def test_every_row(option: Option) -> None:
    """Each name and alias sets the one value, reads it back, refuses other types, and explains itself."""
    for spelling in (option.name, *option.aliases):
        config = flow.FunctionConfig()
        setter, value = reach(config, spelling), sample(option)
        assert config.get(option.name) == option.default
        assert option.effect in setter.__doc__ and spelling in repr(setter)
        with pytest.raises(ArgumentError, match="test_function_config.py"):
            setter(object())
        if option.refused is not None and option.refused(value):
            with pytest.raises(ModeError, match=spelling):
                setter(value)
            assert config.values == {}
            if option.types == (bool,):
                setter(False)
            continue
        if option.name == "tensorrt.int8_calibration":
            config.tensorrt.use_int8()
        assert setter(value) is None
        assert config.values[option.name] == value == config.get(spelling) == reach(config.function_desc, spelling)  # type: ignore
        assert inspect.signature(setter).parameters[option.argument].default == option.implied
        if option.implied is not REQUIRED:
            reach(flow.FunctionConfig(), spelling)()
    assert option.effect.startswith("no effect: ") or option.effect.endswith(".")
    assert f"`{option.name}`" in table(FUNCTION_OPTIONS)
    assert f"`{option.name}`" in (inspect.getdoc(FunctionConfig) or "")


def test_names_are_unique() -> None:
    names = [name for option in FUNCTION_OPTIONS for name in (option.name, *option.aliases)]
    assert len(names) == len(set(names))


# Every attribute of a FunctionConfig that a program of v0.1 to v0.6 can call.
DOCUMENTED = """all_reduce_fp16 all_reduce_group_min_mbyte all_reduce_group_num all_reduce_group_size_warmup all_reduce_lazy_ratio
allow_cpu_return_op concurrency_width cudnn_buf_limit_mbyte cudnn_conv_enable_pseudo_half cudnn_conv_enable_true_half
cudnn_conv_force_bwd_data_algo cudnn_conv_force_bwd_filter_algo cudnn_conv_force_fwd_algo cudnn_conv_heuristic_search_algo
cudnn_conv_use_deterministic_algo_only default_data_type default_distribute_strategy default_initializer_conf default_logical_view
default_placement_scope disable_all_reduce_sequence do_parallel_cast_before_widening_type_cast enable_all_reduce_group
enable_auto_mixed_precision enable_cudnn enable_cudnn_conv_pseudo_half enable_cudnn_fused_normalization_add_relu
enable_float_compute_for_half_gemm enable_fuse_add_to_output enable_fuse_cast_scale enable_fuse_model_update_ops
enable_gradients_stats_aggregation enable_inplace enable_inplace_in_reduce_struct enable_keep_header_only enable_nccl
enable_non_distributed_optimizer enable_qat enable_quantization_aware_training enable_reused_mem enable_true_half_config_when_conv
exp_run_conf indexed_slices_optimizer_conf non_distributed_optimizer_group_size_mbyte optimizer_placement_optimization_mode
optimizer_placement_optimization_threshold prune_cast_to_static_shape_ops prune_parallel_cast_ops qat.moving_min_max_momentum
qat.moving_min_max_stop_update_after_iters qat.per_channel_weight_quantization qat.symmetric static_mem_alloc_algo_white_list.show
static_mem_alloc_policy_white_list.add static_mem_alloc_policy_white_list.has static_mem_alloc_policy_white_list.remove
static_mem_alloc_policy_white_list.policy_mem_size_first static_mem_alloc_policy_white_list.policy_mutual_exclusion_first
static_mem_alloc_policy_white_list.policy_time_line tensorrt.int8_calibration tensorrt.use_fp16 tensorrt.use_int8
train.loss_scale_factor train.model_update_conf train.optimizer_placement_optimization_mode
train.optimizer_placement_optimization_threshold train.primary_lr train.secondary_lr use_boxing_v2
use_memory_allocation_algorithm_v2 use_nccl_inter_node_communication use_tensorrt use_xla_jit enable_ssp ssp_partition_strategy
ssp_partition_scope_ids __is_user_function__ prune_amp_white_identity_ops qat.target_backend
train.num_gradient_accumulation_steps use_openvino""".split()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_names_are_there(name: str) -> None:
    assert callable(reach(flow.FunctionConfig(), name))


def test_harmless_numpy_numbers_are_taken() -> None:
    config = flow.FunctionConfig()
    config.train.primary_lr(1)
    config.train.loss_scale_factor(np.float32(2.0))
    config.concurrency_width(np.int64(4))
    config.enable_cudnn(np.bool_(False))
    assert [type(v) for v in config.values.values()] == [float, float, int, bool]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.enable_cudnn(1), "FunctionConfig.enable_cudnn takes bool, got int 1"),
        (lambda c: c.concurrency_width(True), "takes int, got bool True"),
        (lambda c: c.concurrency_width(0), "must be at least 1, got 0"),
        (lambda c: c.cudnn_buf_limit_mbyte(1.5), "takes int, got float 1.5"),
        (lambda c: c.train.primary_lr("0.1"), "FunctionConfig.train.primary_lr takes float, got str '0.1'"),
        (lambda c: c.train.primary_lr(True), "takes float, got bool True"),
        (lambda c: c.train.model_update_conf("naive"), "takes dict"),
        (lambda c: c.default_data_type(np.float32), "takes a flow dtype"),
        (lambda c: c.default_logical_view("mirrored"), "takes View, got str 'mirrored'"),
        (lambda c: c.optimizer_placement_optimization_mode("x"), "must be one of 'non_distributed', 'distributed_split'"),
        (lambda c: c.enable_cudnn(True, True), "too many positional arguments"),
        (lambda c: c.train.primary_lr(), "missing a required argument: 'value'"),
        (lambda c: c.tensorrt.int8_calibration("path"), r"config.tensorrt.use_int8\(True\)"),
    ],
)
def test_wrong_values(call: Any, text: str) -> None:
    config = flow.FunctionConfig()
    with pytest.raises(ArgumentError, match=text) as error:
        call(config)
    assert "your line  " in str(error.value) and "test_function_config.py" in str(error.value)
    assert config.values == {}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("enable_cudn", "enable_cudnn"), ("primary_lr", "train.primary_lr"), ("train.primary_rl", "train.primary_lr"),
        ("qat.simetric", "qat.symmetric"), ("fuse_cast_scale", "enable_fuse_cast_scale"), ("xyz", "help"),
        ("static_mem_alloc_policy_white_list.hass", "close"), ("function_desc.enable_cudn", "enable_cudnn"),
    ],
)  # fmt: skip
def test_unknown_names_are_attribute_errors_with_suggestions(path: str, text: str) -> None:
    config = flow.FunctionConfig()
    with pytest.raises(ConfigError, match=f"(?s){path.rpartition('.')[2]}.*{text}"):
        reach(config, path)
    parent, _, name = path.rpartition(".")
    assert not hasattr(reach(config, parent) if parent else config, name)


def test_assigning_is_refused() -> None:
    config = flow.FunctionConfig()
    with pytest.raises(ConfigError, match=r"made by a call.*(?s:.*)enable_cudnn\(value\)"):
        config.enable_cudnn = True
    with pytest.raises(ConfigError, match=r"train.primary_lr\(value\)"):
        config.train.primary_lr = 0.1
    with pytest.raises(ConfigError, match="no setting 'enable_cudn'"):
        config.enable_cudn = True


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("enable_auto_mixed_precision", False), ("enable_qat", False), ("enable_ssp", False),
        ("train.num_gradient_accumulation_steps", 1), ("indexed_slices_optimizer_conf", {"enable": False}),
    ],
)  # fmt: skip
def test_what_is_not_on_can_be_switched_off(name: str, off: Any) -> None:
    config = flow.FunctionConfig()
    operator.attrgetter(name)(config)(off)
    assert config.get(name) == off


def test_dicts_are_taken_as_they_are_now() -> None:
    config, update = flow.FunctionConfig(), {"momentum_conf": {"beta": 0.9}}
    config.train.model_update_conf(update)
    update["momentum_conf"]["beta"] = 0.0
    assert config.get("train.model_update_conf") == {"momentum_conf": {"beta": 0.9}}


def test_reading_back() -> None:
    config = flow.FunctionConfig()
    assert config.get("concurrency_width") == 128 and config.get("concurrency_width", None) is None
    with pytest.raises(ConfigError, match="concurrency_width"):
        config.get("concurency_width")
    config.default_distribute_strategy(flow.scope.mirrored_view())
    assert config.get("default_logical_view").name == "mirrored"
    assert config.function_desc.job_config_proto.concurrency_width == 128
    assert not config.function_desc.IsTrainable()
    config.train.primary_lr(0.1)
    assert config.function_desc.IsTrainable() and config.function_desc.train.primary_lr == 0.1


@pytest.mark.parametrize("setting", ["primary_lr", "secondary_lr", "loss_scale_factor", "model_update_conf"])
def test_training_is_inferred_from_the_dict_style(setting: str) -> None:
    config = flow.FunctionConfig()
    config.train.optimizer_placement_optimization_mode("non_distributed")
    config.enable_cudnn()
    assert not config.is_train_configured()
    getattr(config.train, setting)({"naive_conf": {}} if setting == "model_update_conf" else 1.0)
    assert config.is_train_configured()


@pytest.mark.parametrize("duplicate", [FunctionConfig.copy, copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_copies_are_independent(duplicate: Any) -> None:
    config = flow.FunctionConfig()
    config.train.primary_lr(0.1)
    twin = duplicate(config)
    config.train.primary_lr(0.2)
    config.values["x"] = 1
    assert twin.get("train.primary_lr") == 0.1 and config.get("train.primary_lr") == 0.2
    assert "x" not in config.values


def test_what_a_user_prints() -> None:
    config = flow.function_config()
    assert repr(config) == "<FunctionConfig: all defaults>"
    config.default_data_type(flow.float)
    config.train.primary_lr(0.1)
    assert repr(config) == "<FunctionConfig: default_data_type=oneflow.float32, train.primary_lr=0.1>"
    assert "now False" in repr(config.enable_fuse_cast_scale) and "no effect" in repr(config.enable_fuse_cast_scale)
    assert "primary_lr" in repr(config.train)
    assert flow.function_config is flow.FunctionConfig


def test_completion_lists_settings() -> None:
    config = flow.FunctionConfig()
    assert {"train", "qat", "enable_cudnn", "copy", "static_mem_alloc_policy_white_list"} <= set(dir(config))
    assert {"primary_lr", "model_update_conf"} <= set(dir(config.train))
    for name in dir(config):
        if not name.startswith("__"):
            getattr(config, name)


def test_memory_policies_are_remembered() -> None:
    policies = flow.FunctionConfig().static_mem_alloc_policy_white_list
    policy = policies.policy_time_line()
    assert not policies.has(policy)
    policies.add(policy)
    policies.add(policy)
    assert policies.has(policy)
    policies.remove(policy)
    assert not policies.has(policy)
    assert len(flow.FunctionConfig().static_mem_alloc_algo_white_list.show()) == 3


def test_settings_without_effect_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    process_state.logged_settings.discard("enable_nccl")
    with caplog.at_level(logging.DEBUG, logger="oneflow"):
        for _ in range(3):
            flow.FunctionConfig().enable_nccl(True)
        flow.FunctionConfig().train.primary_lr(0.1)
    assert len(caplog.records) == 1 and caplog.records[0].levelno == logging.DEBUG
    assert "enable_nccl(True) has no effect" in caplog.text


def test_legacy_training_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    config = flow.FunctionConfig()
    config.train.primary_lr(0.1)
    config.train.model_update_conf({"naive_conf": {}})
    assert capfd.readouterr() == ("", "")


def test_one_object_serves_a_predict_job_and_then_a_train_job() -> None:
    config = flow.function_config()
    config.train.primary_lr(0.1)
    config.train.model_update_conf({"naive_conf": {}})

    @flow.global_function("predict", config)
    def predict(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.layers.dense(x, 1, name="line")

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        y = flow.layers.dense(x, 1, name="line")
        flow.losses.add_loss(y)
        return y

    @flow.global_function(config)  # a predict job, as in OneFlow: the object served one last
    def untyped(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.layers.dense(x, 1, name="line")

    x = np.ones((2, 3), np.float32)
    before = predict(x)
    train(x)
    assert (predict(x) < before).all() and config.get("train.primary_lr") == 0.1
    np.testing.assert_array_equal(untyped(x), predict(x))
    assert not config.is_train_configured()
    config.train.primary_lr(0.2)
    assert config.is_train_configured()
