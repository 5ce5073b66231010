"""The dict form of training settings gives what the classes give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oneflow import optimizer as opt
from oneflow.errors import ArgumentError, ConfigError, TrainError
from oneflow.optimizer.dict_config import optimizer_from_config

RATE = opt.PiecewiseConstantScheduler([], [0.1])
clip = opt.grad_clipping.by_global_norm
constant, linear = opt.warmup.constant, opt.warmup.linear


def made(conf: Any, **more: Any) -> Any:
    return optimizer_from_config({"primary_lr": 0.1, "model_update_conf": conf, **more})


def naive(**more: Any) -> dict[str, Any]:
    return {"naive_conf": {}, **more}


RULES = [
    ({"naive_conf": {}}, opt.SGD(RATE, momentum=0)),
    ({"momentum_conf": {}}, opt.SGD(RATE)),
    ({"momentum_conf": {"beta": 0.5}}, opt.SGD(RATE, momentum=0.5)),
    ({"rmsprop_conf": {}}, opt.RMSProp(RATE)),
    ({"rmsprop_conf": {"decay_rate": 0.9, "epsilon": 1e-5, "centered": True}}, opt.RMSProp(RATE, 0.9, 1e-5, True)),
    ({"lars_conf": {}}, opt.LARS(RATE)),
    ({"lars_conf": {"momentum_beta": 0.8, "epsilon": 1e-8, "lars_coefficient": 1e-3}}, opt.LARS(RATE, 0.8, 1e-8, 1e-3)),
    ({"adam_conf": {}}, opt.Adam(RATE)),
    (
        {"adam_conf": {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6, "do_bias_correction": True}},
        opt.Adam(RATE, 0.8, 0.9, 1e-6, True),
    ),
    ({"lazy_adam_conf": {"beta1": 0.8}}, opt.LazyAdam(RATE, 0.8)),
    ({"lamb_conf": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6}}, opt.LAMB(RATE)),
    (naive(clip_conf={"clip_by_global_norm": {"clip_norm": 2}}), opt.SGD(RATE, momentum=0, grad_clipping=clip(2.0))),
    (
        naive(clip_conf={"clip_by_global_norm": {"clip_norm": 2, "global_norm": 1}}),
        opt.SGD(RATE, momentum=0, grad_clipping=clip(2.0)),
    ),
    (naive(weight_decay_conf={"weight_decay_rate": 0.01}), opt.SGDW(RATE, momentum=0, weight_decay=0.01)),
    (
        {"momentum_conf": {}, "weight_decay_conf": {"weight_decay_rate": 0.01, "excludes": {"pattern": ["bias", "bn"]}}},
        opt.SGDW(RATE, weight_decay=0.01, weight_decay_excludes=["bias", "bn"]),
    ),
    (
        {"adam_conf": {}, "weight_decay_conf": {"weight_decay_rate": 0.01, "includes": {"pattern": ["weight"]}}},
        opt.AdamW(RATE, weight_decay=0.01, weight_decay_includes="weight"),
    ),
    ({"lars_conf": {}, "weight_decay_conf": {"weight_decay_rate": 0.01}}, opt.LARS(RATE, weight_decay=0.01)),
    (
        {"lamb_conf": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6}, "weight_decay_conf": {"weight_decay_rate": 0.01}},
        opt.LAMB(RATE, weight_decay=0.01),
    ),
]


@pytest.mark.parametrize(("conf", "optimizer"), RULES, ids=[f"{i}-{'-'.join(row[0])}" for i, row in enumerate(RULES)])
def test_rule(conf: dict[str, Any], optimizer: Any) -> None:
    assert made(conf) == optimizer
    assert made(conf).suffixes == optimizer.suffixes
    # and back: what the class says of itself in the dict form means the class
    assert optimizer_from_config(optimizer.train_conf) == optimizer


def test_lazy_adam_with_weight_decay_has_no_class_but_a_rule() -> None:
    optimizer = made({"lazy_adam_conf": {}, "weight_decay_conf": {"weight_decay_rate": 0.01, "excludes": {"pattern": ["bias"]}}})
    assert isinstance(optimizer, opt.LazyAdam)
    assert (optimizer.weight_decay_of("dense-weight"), optimizer.weight_decay_of("dense-bias")) == (0.01, 0.0)
    assert opt.LazyAdam(RATE).weight_decay_of("dense-weight") == 0.0


def test_rmsprop_has_no_weight_decay() -> None:
    with pytest.warns(UserWarning, match="no effect") as warned:
        assert made({"rmsprop_conf": {}, "weight_decay_conf": {"weight_decay_rate": 0.01}}) == opt.RMSProp(RATE)
    assert warned[0].filename == __file__


def test_scale_of_the_loss_and_the_other_settings() -> None:
    assert made(naive(), loss_scale_factor=8).loss_scale == opt.loss_scale.static_loss_scale(8)
    assert made(naive(), loss_scale_factor=None, secondary_lr=0.2, num_gradient_accumulation_steps=1) == opt.SGD(RATE, momentum=0)
    assert made(naive()).variables is None and made(naive()).train_step_blob is None


def periods(**fields: Any) -> dict[str, Any]:
    return {"decay_batches": 10, "decay_rate": 0.5, **fields}


SCHEDULES = [
    ({"exponential_conf": periods()}, opt.ExponentialScheduler(0.1, 10, 0.5)),
    ({"exponential_conf": periods(staircase=True)}, opt.ExponentialScheduler(0.1, 10, 0.5, True)),
    ({"inverse_time_conf": periods()}, opt.InverseTimeScheduler(0.1, 10, 0.5)),
    ({"natural_exp_conf": periods(staircase=True)}, opt.NaturalExpScheduler(0.1, 10, 0.5, True)),
    ({"piecewise_constant_conf": {"boundaries": [5, 9], "values": [1, 2, 3]}}, opt.PiecewiseConstantScheduler([5, 9], [1, 2, 3])),
    (
        {"piecewise_scaling_conf": {"boundaries": [5, 9], "scales": [1, 0.5, 0.1]}},
        opt.PiecewiseScalingScheduler(0.1, [5, 9], [0.5, 0.1]),
    ),
    ({"polynomial_conf": {"decay_batches": 10}}, opt.PolynomialScheduler(0.1, 10)),
    (
        {"polynomial_conf": {"decay_batches": 10, "end_learning_rate": 0.01, "power": 2, "cycle": True}},
        opt.PolynomialScheduler(0.1, 10, 0.01, 2, True),
    ),
    ({"cosine_conf": {"decay_batches": 10, "alpha": 0.1}}, opt.CosineScheduler(0.1, 10, 0.1)),
    (
        {"linear_cosine_conf": {"decay_batches": 10, "num_periods": 2, "alpha": 0.1, "beta": 0.01}},
        opt.LinearCosineScheduler(0.1, 10, 2, 0.1, 0.01),
    ),
]


@pytest.mark.parametrize(("decay", "schedule"), SCHEDULES, ids=[next(iter(row[0])) for row in SCHEDULES])
def test_schedule(decay: dict[str, Any], schedule: Any) -> None:
    assert made(naive(learning_rate_decay=decay)).lr_scheduler == schedule
    again = optimizer_from_config(opt.SGD(schedule).train_conf).lr_scheduler
    assert again == schedule


@pytest.mark.parametrize(
    ("conf", "warmup"),
    [
        ({"constant_conf": {"warmup_batches": 5, "multiplier": 0.1}}, constant(5, 0.1)),
        ({"linear_conf": {"warmup_batches": 5, "start_multiplier": 0}}, linear(5, 0)),
    ],
)
def test_warmup(conf: dict[str, Any], warmup: Any) -> None:
    assert made(naive(warmup_conf=conf)).lr_scheduler == opt.PiecewiseConstantScheduler([], [0.1], warmup)
    both = naive(warmup_conf=conf, learning_rate_decay={"cosine_conf": {"decay_batches": 10}})
    assert made(both).lr_scheduler == opt.CosineScheduler(0.1, 10, warmup=warmup)
    assert optimizer_from_config(opt.SGD(opt.CosineScheduler(0.1, 10, warmup=warmup)).train_conf).lr_scheduler.warmup == warmup


def test_warmup_of_pieces_leads_to_the_primary_rate() -> None:
    """Which the first piece need not have: no class says that."""
    warm = {"linear_conf": {"warmup_batches": 4, "start_multiplier": 0.5}}
    for decay in (
        {"piecewise_constant_conf": {"boundaries": [8], "values": [0.02, 0.01]}},
        {"piecewise_scaling_conf": {"boundaries": [8], "scales": [0.2, 0.1]}},
    ):
        schedule = made(naive(learning_rate_decay=decay, warmup_conf=warm)).lr_scheduler
        np.testing.assert_allclose([schedule.value(t) for t in (0, 2, 4, 8, 9)], [0.05, 0.075, 0.02, 0.02, 0.01])
    without = made(naive(learning_rate_decay={"piecewise_scaling_conf": {"boundaries": [8], "scales": [0.2, 0.1]}})).lr_scheduler
    np.testing.assert_allclose([without.value(t) for t in (0, 8, 9)], [0.02, 0.02, 0.01])


def test_what_the_dict_form_cannot_say_is_said_in_further_keys() -> None:
    policy = opt.loss_scale.dynamic_loss_scale(4, 10, 2)
    conf = opt.SGD(opt.CustomScheduler("rate/out"), loss_scale_policy=policy).train_conf
    assert conf["primary_lr_lbn"] == "rate/out"
    assert conf["dynamic_loss_scale_policy"] == {"initial_loss_scale": 4.0, "increment_period": 10, "multiplier": 2.0}
    assert opt.SGD(RATE, train_step_lbn="step/out").train_conf["train_step_lbn"] == "step/out"


REFUSED = [
    ({}, TrainError, "no update rule"),
    ({"momentm_conf": {}}, ConfigError, "no key 'momentm_conf'(.|\n)*momentum_conf"),
    ({"sgd_conf": {}}, ConfigError, "no key 'sgd_conf'(.|\n)*try +\"momentum_conf\""),
    ({"momentum_conf": {"momentum": 0.9}}, ConfigError, "momentum_conf has no key 'momentum'(.|\n)*known +beta"),
    ({"naive_conf": {"beta": 1}}, ConfigError, "naive_conf has no key 'beta'"),
    ({"naive_conf": None}, ArgumentError, "naive_conf: this must be a dict"),
    ("naive_conf", ArgumentError, "must be a dict, got str 'naive_conf'"),
    ({"naive_conf": {}, "adam_conf": {}}, ArgumentError, "exactly one update rule, got naive_conf and adam_conf"),
    ({"lamb_conf": {"beta1": 0.9}}, ArgumentError, "beta2 and epsilon must be given"),
    ({"adam_conf": {"beta1": 2}}, ArgumentError, "beta1 must be a number in \\[0, 1\\)"),
    (naive(learning_rate_decay={}), ArgumentError, "exactly one of piecewise_constant_conf"),
    (naive(learning_rate_decay={"cosin_conf": {}}), ConfigError, "no key 'cosin_conf'(.|\n)*try +\"cosine_conf\""),
    (naive(learning_rate_decay={"cosine_conf": {}}), ArgumentError, "decay_batches must be given"),
    (naive(learning_rate_decay={"cosine_conf": {"decay_batches": 0}}), ArgumentError, "steps must be an int > 0"),
    (naive(learning_rate_decay={"cosine_conf": {"steps": 5}}), ConfigError, "cosine_conf has no key 'steps'"),
    (naive(learning_rate_decay={"piecewise_scaling_conf": {"boundaries": [1], "scales": [1]}}), ArgumentError, "one value more"),
    (naive(warmup_conf={"linear_conf": {"warmup_batches": 5}}), ArgumentError, "start_multiplier must be given"),
    (naive(warmup_conf={"linear": {}}), ConfigError, "linear_conf"),
    (naive(clip_conf={"clip_by_global_norm": {}}), ArgumentError, "clip_norm must be given"),
    (naive(clip_conf={"clip_by_norm": {}}), ConfigError, "clip_by_global_norm"),
    (naive(weight_decay_conf={}), ArgumentError, "weight_decay_rate must be given"),
    (
        naive(weight_decay_conf={"weight_decay_rate": 0.1, "includes": {"pattern": []}, "excludes": {"pattern": []}}),
        ArgumentError,
        "cannot both be given",
    ),
    (naive(weight_decay_conf={"weight_decay_rate": 0.1, "includes": ["a"]}), ArgumentError, "includes: this must be a dict"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused(number: int) -> None:
    conf, error_class, text = REFUSED[number]
    with pytest.raises(error_class, match=text) as error:
        made(conf)
    assert "test_dict_config.py" in str(error.value)


def test_what_is_missing_or_wrong_beside_it() -> None:
    with pytest.raises(TrainError, match="primary_lr"):
        optimizer_from_config({"model_update_conf": naive()})
    with pytest.raises(TrainError, match="model_update_conf"):
        optimizer_from_config({"primary_lr": 0.1})
    with pytest.raises(ArgumentError, match="train.primary_lr must be a number, got str"):
        optimizer_from_config({"primary_lr": "0.1", "model_update_conf": naive()})
    with pytest.raises(ArgumentError, match="train.secondary_lr"):
        made(naive(), secondary_lr=-1)
    with pytest.raises(ArgumentError, match=r"loss_scale_factor must be a number in \(0, "):
        made(naive(), loss_scale_factor=0)
