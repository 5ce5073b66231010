"""Optimizers in jobs, through the public API: small jobs whose training can be written down in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, DtypeError, TrainError
from oneflow.runtime.session import default_session

opt = flow.optimizer
DATA = np.random.default_rng(5).standard_normal((20, 2, 3)).astype(np.float32)


def constant(rate: float) -> Any:
    return opt.PiecewiseConstantScheduler([], [rate])


def get(name: str, trainable: bool = True, regularizer: Any = None) -> flow.Blob:
    initializer = flow.constant_initializer(1.0)
    return flow.get_variable(name, (2, 3), initializer=initializer, trainable=trainable, regularizer=regularizer)


def values() -> dict[str, np.ndarray]:
    return default_session().read()


def trained(make: Callable[[], Any], steps: int = 4, name: str = "w", regularizer: Any = None) -> Any:
    """A job that minimises the mean of ``w * x``: the gradient of ``w`` is ``x / 6``."""

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        loss = get(name, regularizer=regularizer) * x
        make().minimize(loss)
        return loss

    for i in range(steps):
        job(DATA[i])
    return job


def gradient(step: int) -> np.ndarray:
    return DATA[step] / 6


def close(name: str, want: np.ndarray) -> None:
    np.testing.assert_allclose(values()[name], want, rtol=1e-5, atol=1e-6)


def test_sgd() -> None:
    trained(lambda: opt.SGD(constant(0.1), momentum=0))
    close("w", 1 - 0.1 * sum(gradient(i) for i in range(4)))
    assert sorted(values()) == ["System-Train-TrainStep-job", "w"]
    assert values()["System-Train-TrainStep-job"].tolist() == [4]


def test_momentum_with_a_rate_that_changes() -> None:
    trained(lambda: opt.SGD(opt.PiecewiseConstantScheduler([1], [0.1, 0.5]), momentum=0.9))
    w, m = np.ones((2, 3)), np.zeros((2, 3))
    for i in range(4):
        m = 0.9 * m - (0.1 if i <= 1 else 0.5) * gradient(i)
        w = w + m
    close("w", w)
    close("w-momentum", m)


def test_adam_with_bias_correction_counts_steps() -> None:
    trained(lambda: opt.Adam(constant(0.1), do_bias_correction=True))
    w, m, v = np.ones((2, 3)), np.zeros((2, 3)), np.zeros((2, 3))
    for i in range(4):
        m, v = 0.9 * m + 0.1 * gradient(i), 0.999 * v + 0.001 * gradient(i) ** 2
        w = w - 0.1 * np.sqrt(1 - 0.999 ** (i + 1)) / (1 - 0.9 ** (i + 1)) * m / (np.sqrt(v) + 1e-8)
    close("w", w)
    close("w-m", m)
    close("w-v", v)


@pytest.mark.parametrize(
    ("make", "state"),
    [
        (lambda: opt.LAMB(constant(0.1)), ["w-beta1_t", "w-beta2_t", "w-m", "w-v"]),
        (lambda: opt.LARS(constant(0.1), weight_decay=0.1), ["w-momentum"]),
        (lambda: opt.RMSProp(constant(0.1), centered=True), ["w-mean_gradient", "w-mean_square"]),
        (lambda: opt.LazyAdam(constant(0.1)), ["w-m", "w-v"]),
        (lambda: opt.SGDW(constant(0.1), momentum=0, weight_decay=0.1), []),
        (lambda: opt.AdamW(constant(0.1), weight_decay=0.1), ["w-m", "w-v"]),
    ],
)
def test_state_that_checkpoints_hold(make: Callable[[], Any], state: list[str]) -> None:
    trained(make, steps=2)
    after = values()
    assert sorted(after) == ["System-Train-TrainStep-job", "w", *state]
    assert np.isfinite(after["w"]).all() and (after["w"] != 1).all()
    for name in state:
        assert after[name].shape == ((1,) if name.endswith("_t") else (2, 3))
    if "w-beta1_t" in state:
        np.testing.assert_allclose(after["w-beta1_t"], [0.9**3], rtol=1e-6)


def test_warmup_and_decay() -> None:
    schedule = opt.CosineScheduler(0.5, 4, warmup=opt.warmup.linear(2, 0.1))
    trained(lambda: opt.SGD(schedule, momentum=0), steps=5)
    close("w", 1 - sum(schedule.value(i) * gradient(i) for i in range(5)))


def test_rate_that_each_call_is_fed_with() -> None:
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((2, 3)), rate: tp.Numpy.Placeholder((1,))) -> tp.Numpy:
        loss = get("w") * x
        opt.SGD(opt.CustomScheduler(rate.logical_blob_name), momentum=0).minimize(loss)
        return loss

    rates = [0.1, 0.0, 2.0]
    for i, rate in enumerate(rates):
        job(DATA[i], np.array([rate], np.float32))
    close("w", 1 - sum(rate * gradient(i) for i, rate in enumerate(rates)))


def test_step_counter_of_ones_own() -> None:
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((2, 3)), step: tp.Numpy.Placeholder((1,), dtype=flow.int64)) -> tp.Numpy:
        loss = get("w") * x
        schedule = opt.PiecewiseConstantScheduler([10], [1.0, 0.5])
        opt.SGD(schedule, momentum=0, train_step_lbn=step.logical_blob_name).minimize(loss)
        return loss

    for i, step in enumerate([10, 11]):
        job(DATA[i], np.array([step], np.int64))
    close("w", 1 - gradient(0) - 0.5 * gradient(1))
    assert sorted(values()) == ["w"]


def test_clipping_sees_the_regularizer_but_no_weight_decay() -> None:
    l2 = flow.regularizers.l2(0.5)
    make = lambda: opt.SGDW(constant(0.1), momentum=0, weight_decay=0.2, grad_clipping=opt.grad_clipping.by_global_norm(0.3))  # noqa: E731
    trained(make, regularizer=l2)
    w = np.ones((2, 3))
    for i in range(4):
        g = gradient(i) + 0.5 * w
        g = g * 0.3 / max(np.linalg.norm(g), 0.3)
        w = w - 0.1 * (g + 0.2 * w)
    close("w", w)


def test_weight_decay_chooses_by_name() -> None:
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        with flow.scope.namespace("body"):
            loss = get("weight") * x + get("bias") * x
        opt.SGDW(constant(1.0), momentum=0, weight_decay=0.5, weight_decay_excludes=["body-b"]).minimize(loss)
        return loss

    job(np.zeros((2, 3), np.float32))
    close("body-weight", np.full((2, 3), 0.5))
    close("body-bias", np.ones((2, 3)))


def test_static_loss_scale_changes_nothing_but_rounding() -> None:
    job = trained(lambda: opt.SGD(constant(0.1), 1024.0, momentum=0))
    close("w", 1 - 0.1 * sum(gradient(i) for i in range(4)))
    np.testing.assert_allclose(job(DATA[4]), (1 - 0.1 * sum(gradient(i) for i in range(4))) * DATA[4], rtol=1e-5)


def test_dynamic_loss_scale_skips_and_grows() -> None:
    policy = opt.loss_scale.dynamic_loss_scale(initial_loss_scale=8.0, increment_period=2, multiplier=4.0)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        loss = get("w") * x
        opt.SGD(constant(0.1), loss_scale_policy=policy).minimize(loss)
        return loss

    def state() -> tuple[float, int, int]:
        now = values()
        prefix = "System-Train-DynamicLossScale-job"
        return tuple(  # type: ignore[return-value]
            now[name].item() for name in (f"{prefix}-LossScale", f"{prefix}-GoodStepCounter", "System-Train-TrainStep-job")
        )

    job(DATA[0])
    assert state() == (8.0, 1, 1)
    before = values()
    bad = DATA[1].copy()
    bad[0, 0] = np.inf
    job(bad)
    assert state() == (2.0, 0, 1)
    after = values()
    np.testing.assert_array_equal(after["w"], before["w"])
    np.testing.assert_array_equal(after["w-momentum"], before["w-momentum"])
    job(bad)
    assert state() == (1.0, 0, 1)
    for _ in range(2):
        job(DATA[1])
    assert state() == (4.0, 0, 3)
    m = -0.1 * gradient(0)
    w = 1 + m
    for _ in range(2):
        m = 0.9 * m - 0.1 * gradient(1)
        w = w + m
    close("w", w)


def test_only_the_named_variables_are_updated() -> None:
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        loss = get("a") * x + get("b") * x + get("c", trainable=False) * x
        opt.SGD(constant(0.1), variables=["b", "c"]).minimize(loss)
        return loss

    job(DATA[0])
    close("a", np.ones((2, 3)))
    close("b", 1 - 0.1 * gradient(0))
    close("c", np.ones((2, 3)))
    assert "b-momentum" in values() and "a-momentum" not in values() and "c-momentum" not in values()


def test_two_optimizers_in_one_job() -> None:
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        loss = get("a") * x + get("b") * x + get("c") * x
        slow = opt.SGD(constant(0.1), momentum=0, variables=["a"], grad_clipping=opt.grad_clipping.by_global_norm(0.01))
        fast = opt.SGD(opt.ExponentialScheduler(1.0, 1, 0.5), momentum=0, variables=["b"])
        opt.CombinedOptimizer([slow, fast], loss_scale_factor=16.0).minimize(loss)
        return loss

    for i in range(2):
        job(DATA[i])
    clipped = [gradient(i) * 0.01 / np.linalg.norm(gradient(i)) for i in range(2)]
    close("a", 1 - 0.1 * (clipped[0] + clipped[1]))
    close("b", 1 - gradient(0) - 0.5 * gradient(1))
    close("c", np.ones((2, 3)))
    assert values()["System-Train-TrainStep-job"].tolist() == [2]


def test_several_losses_add_their_means() -> None:
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        w = get("w")
        opt.SGD(constant(0.1), momentum=0).minimize([w * x, w * x * 3.0])
        return w

    job(DATA[0])
    close("w", 1 - 0.1 * 4 * gradient(0))


def test_the_last_minimize_counts() -> None:
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        w = get("w")
        opt.Adam(constant(100.0)).minimize(w * w)
        opt.SGD(constant(0.1), momentum=0).minimize(w * x)
        return w

    with pytest.warns(flow.errors.JobWarning, match="replaces the loss of an earlier line"):
        job(DATA[0])
    close("w", 1 - 0.1 * gradient(0))


DICTS = [
    ({"naive_conf": {}}, lambda: opt.SGD(constant(0.1), momentum=0)),
    (
        {
            "momentum_conf": {"beta": 0.8},
            "learning_rate_decay": {"polynomial_conf": {"decay_batches": 3, "end_learning_rate": 0.05}},
            "warmup_conf": {"constant_conf": {"warmup_batches": 1, "multiplier": 0.5}},
            "clip_conf": {"clip_by_global_norm": {"clip_norm": 0.2}},
            "weight_decay_conf": {"weight_decay_rate": 0.1, "includes": {"pattern": ["w"]}},
        },
        lambda: opt.SGDW(
            opt.PolynomialScheduler(0.1, 3, 0.05, warmup=opt.warmup.constant(1, 0.5)),
            momentum=0.8,
            weight_decay=0.1,
            weight_decay_includes="w",
            grad_clipping=opt.grad_clipping.by_global_norm(0.2),
        ),
    ),
    ({"adam_conf": {"do_bias_correction": True}}, lambda: opt.Adam(constant(0.1), do_bias_correction=True)),
]


@pytest.mark.parametrize(("conf", "make"), DICTS, ids=["naive", "everything", "adam"])
def test_dict_form_trains_as_the_class_does(conf: dict[str, Any], make: Callable[[], Any]) -> None:
    trained(make)
    by_class = values()
    flow.clear_default_session()
    config = flow.FunctionConfig()
    config.train.primary_lr(0.1)
    config.train.model_update_conf(conf)

    @flow.global_function(config)
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        loss = get("w") * x
        flow.losses.add_loss(loss)
        return loss

    for i in range(4):
        job(DATA[i])
    by_dict = values()
    assert by_dict.keys() == by_class.keys()
    for name, value in by_class.items():
        np.testing.assert_array_equal(by_dict[name], value, err_msg=name)


def test_float64_parameters() -> None:
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((2, 3), dtype=flow.float64)) -> tp.Numpy:
        loss = flow.get_variable("w", (2, 3), dtype=flow.float64, initializer=flow.constant_initializer(1.0)) * x
        opt.Adam(constant(0.25), grad_clipping=opt.grad_clipping.by_global_norm(1.0)).minimize(loss)
        return loss

    job(DATA[0].astype(np.float64))
    g = DATA[0].astype(np.float64) / 6
    g = g / max(np.linalg.norm(g), 1)
    want = 1 - 0.25 * 0.1 * g / (np.sqrt(0.001 * g * g) + 1e-8)
    assert values()["w"].dtype == np.float64
    np.testing.assert_allclose(values()["w"], want, rtol=1e-12)


# --- mistakes; after each the session goes on


def works_still() -> None:
    @flow.global_function(type="train")
    def fine(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        loss = get("still") * x
        opt.SGD(constant(0.1), momentum=0).minimize(loss)
        return loss

    fine(DATA[0])
    close("still", 1 - 0.1 * gradient(0))


def test_minimize_in_a_predict_job() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        loss = get("w") * x
        opt.SGD(constant(0.1)).minimize(loss)
        return loss

    with pytest.raises(TrainError, match="(?s)'job'.*test_training.py.*type=\"train\""):
        job(DATA[0])
    works_still()


def test_an_integer_variable_on_the_way() -> None:
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        count = flow.get_variable("count", (1,), dtype=flow.int32, initializer=flow.zeros_initializer(flow.int32))
        loss = get("w") * x + flow.cast(count, flow.float32)
        opt.SGD(constant(0.1)).minimize(loss)
        return loss

    with pytest.raises(DtypeError, match="(?s)'count'.*trainable=False"):
        job(DATA[0])
    works_still()


def test_a_dict_with_a_typing_error() -> None:
    config = flow.FunctionConfig()
    config.train.primary_lr(0.1)
    config.train.model_update_conf({"momentum_cnf": {"beta": 0.9}})

    with pytest.raises(AttributeError, match="momentum_conf"):

        @flow.global_function(config)
        def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
            loss = get("w") * x
            flow.losses.add_loss(loss)
            return loss

    works_still()


def test_an_argument_error_inside_a_job() -> None:
    with pytest.raises(ArgumentError, match="(?s)learning rate >= 0.*"):
        trained(lambda: opt.SGD(-0.1))
    works_still()
