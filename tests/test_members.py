"""Members of the objects that a program meets: what they tell, and the dict forms of schedules, warm-ups and scales."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, ModeError

opt = flow.optimizer
WARMUP = opt.warmup.linear(5, 0.1)
SCHEDULES = [
    (opt.CosineScheduler(0.5, 10, 0.1, WARMUP), {"cosine_conf": {"decay_batches": 10, "alpha": 0.1}}),
    (opt.LinearCosineScheduler(0.5, 10, warmup=WARMUP),
     {"linear_cosine_conf": {"decay_batches": 10, "num_periods": 0.5, "alpha": 0.0, "beta": 0.001}}),
    (opt.ExponentialScheduler(0.5, 10, 0.9, True, WARMUP),
     {"exponential_conf": {"decay_batches": 10, "decay_rate": 0.9, "staircase": True}}),
    (opt.InverseTimeScheduler(0.5, 10, 0.9, warmup=WARMUP),
     {"inverse_time_conf": {"decay_batches": 10, "decay_rate": 0.9, "staircase": False}}),
    (opt.NaturalExpScheduler(0.5, 10, 0.9, warmup=WARMUP),
     {"natural_exp_conf": {"decay_batches": 10, "decay_rate": 0.9, "staircase": False}}),
    (opt.PolynomialScheduler(0.5, 10, warmup=WARMUP),
     {"polynomial_conf": {"decay_batches": 10, "end_learning_rate": 0.0001, "power": 1.0, "cycle": False}}),
    (opt.PolynomialSchduler(0.5, 10, power=2.0, warmup=WARMUP),
     {"polynomial_conf": {"decay_batches": 10, "end_learning_rate": 0.0001, "power": 2.0, "cycle": False}}),
    (opt.PiecewiseConstantScheduler([5], [0.5, 0.1], WARMUP),
     {"piecewise_constant_conf": {"boundaries": [5], "values": [0.5, 0.1]}}),
    (opt.PiecewiseScalingScheduler(0.5, [5], 0.1, WARMUP), {"piecewise_scaling_conf": {"boundaries": [5], "scales": [1.0, 0.1]}}),
]  # fmt: skip


def _lists(conf: Any) -> Any:
    return {k: _lists(v) for k, v in conf.items()} if isinstance(conf, dict) else list(conf) if isinstance(conf, tuple) else conf


@pytest.mark.parametrize(("schedule", "decay"), SCHEDULES, ids=lambda v: type(v).__name__ if not isinstance(v, dict) else "")
def test_schedules_as_dicts(schedule: Any, decay: dict[str, Any]) -> None:
    assert _lists(schedule.learning_rate_decay_conf) == decay
    assert schedule.warmup_conf == WARMUP.warmup_conf == {"linear_conf": {"warmup_batches": 5, "start_multiplier": 0.1}}
    conf: dict[str, Any] = {}
    schedule.SetLrFieldsInTrainConf(conf)
    assert conf["primary_lr"] == 0.5
    update = _lists(conf["model_update_conf"])
    assert update["learning_rate_decay"] == decay and update["warmup_conf"] == schedule.warmup_conf


def test_other_parts_of_an_optimizer_as_dicts() -> None:
    conf: dict[str, Any] = {}
    opt.CustomScheduler("rate/out").SetLrFieldsInTrainConf(conf)
    opt.loss_scale.static_loss_scale(8.0).SetLossScaleFieldsInTrainConf(conf)
    opt.loss_scale.dynamic_loss_scale(16.0, 3, 2.0).SetLossScaleFieldsInTrainConf(conf)
    assert opt.CustomScheduler("rate/out").learning_rate_decay_conf is None
    assert opt.CustomScheduler("rate/out").warmup_conf is None
    assert conf["primary_lr_lbn"] == "rate/out" and conf["loss_scale_factor"] == 8.0
    assert conf["dynamic_loss_scale_policy"] == {"initial_loss_scale": 16.0, "increment_period": 3, "multiplier": 2.0}
    assert opt.grad_clipping.by_global_norm(2.0).clip_conf == {"clip_by_global_norm": {"clip_norm": 2.0}}
    assert opt.warmup.constant(5, 0.5).warmup_conf == {"constant_conf": {"warmup_batches": 5, "multiplier": 0.5}}


def test_blobs() -> None:
    told: dict[str, Any] = {}

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        y = flow.math.relu(x, name="y")
        told.update(
            split=y.split_axis, batch=y.batch_axis, parallel=y.parallel_size, same=y.IdenticalTo(y), other=y.IdenticalTo(x)
        )
        told.update(old=(y.with_split_distribute(1).split_axis, y.with_broadcast_distribute().distribute), has=y.has_batch_axis())
        for twin in (y.with_boxing_disabled(), y.with_boxing_disabled(False), y.Clone()):
            assert twin is not y and twin.IdenticalTo(y)
        assert y.with_boxing_disabled().disable_boxing and not y.disable_boxing
        y.set_distribute(flow.distribute.split(1))
        told.update(after=y.split_axis, unique=y.unique_name, trainable=flow.current_global_function_desc().IsTrainable())
        with pytest.raises(ArgumentError):
            y.set_distribute("split")
        return flow.cast_to_current_logical_view(y.with_gradient_distribute(flow.distribute.broadcast()))

    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    assert np.array_equal(job(x), np.maximum(x, 0))
    assert (told["split"], told["batch"], told["parallel"], told["after"]) == (0, 0, 1, 1)
    assert told["old"] == (1, flow.distribute.broadcast()) and told["has"]
    assert told["same"] and not told["other"] and told["unique"] == "y/out_0:S1" and not told["trainable"]


def test_values() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))):
        return x * flow.get_variable("w", (1,), initializer=flow.ones_initializer())

    flow.experimental.enable_typing_check(False)
    result = job(np.ones((2, 3), np.float32)).get()
    assert [part.shape for part in result.ndarray_list()] == [(2, 3)]
    assert flow.get_all_variables()["w"].split_axis == flow.INVALID_SPLIT_AXIS


def test_small_functions() -> None:
    assert flow.convert_oneflow_dtype_to_numpy_dtype(flow.int8) == np.int8
    with pytest.raises(NotImplementedError, match="your line"):
        flow.convert_oneflow_dtype_to_numpy_dtype(flow.record)
    with pytest.raises(ArgumentError, match="your line"):
        flow.distribute.assert_is_valid_distribute("split(0)")
    with pytest.raises(ModeError):
        flow.eager_nccl_all_reduce(None, "")
    assert flow.sysconfig.has_rpc_backend_local() in (True, False)
    assert flow.__version__.count(".") == 2
    assert flow.oneflow_api.__name__ == "oneflow.oneflow_api" and flow.core.__name__ == "oneflow.core"
    with pytest.raises(ModeError, match="(?s)C\\+\\+ readers.*your line"):
        flow.data.RawCodec().to_proto()
    white_list = flow.FunctionConfig().static_mem_alloc_policy_white_list
    assert (white_list.policy_mem_size_first(), white_list.policy_mutual_exclusion_first()) == (
        "mem_size_first", "mutual_exclusion_first",
    )  # fmt: skip


def test_test_cases_start_without_jobs() -> None:
    class Test(flow.unittest.TestCase):
        def test(self) -> None:
            self.assertEqual(flow.get_all_variables(), {})

    outcome = unittest.TestResult()
    Test("test").run(outcome)
    assert outcome.wasSuccessful(), outcome.failures + outcome.errors
    Test("test").setUp()
