"""Gradient clipping, loss scale, and the checks of arguments that all optimizers share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oneflow import optimizer as opt
from oneflow.errors import ArgumentError

SCHEDULE = opt.PiecewiseConstantScheduler([], [0.1])
by_global_norm = opt.grad_clipping.by_global_norm
dynamic_loss_scale = opt.loss_scale.dynamic_loss_scale
static_loss_scale = opt.loss_scale.static_loss_scale


@pytest.fixture(autouse=True)
def _x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def clip(rule: Any, grads: list[np.ndarray]) -> list[np.ndarray]:
    with jax.enable_x64(True):
        return [np.asarray(g) for g in jax.jit(rule.clip)(grads)]


@settings(max_examples=30, deadline=None)
@given(st.floats(-3, 3), st.sampled_from([0.5, 1.0, 5.0]))
def test_clipping_is_the_usual_formula(exponent: float, clip_norm: float) -> None:
    rng = np.random.default_rng(0)
    grads = [(rng.standard_normal(shape) * 10**exponent).astype(np.float32) for shape in [(3, 4), (7,), (1,)]]
    norm = math.sqrt(sum(float(np.sum(g.astype(np.float64) ** 2)) for g in grads))
    got = clip(by_global_norm(clip_norm), grads)
    for mine, g in zip(got, grads, strict=True):
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, g * (clip_norm / max(norm, clip_norm)), rtol=1e-5, atol=1e-12)


def test_clipping_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    grads = [rng.standard_normal((5, 5)).astype(np.float32), rng.standard_normal(3).astype(np.float32)]
    parameters = [torch.nn.Parameter(torch.zeros(g.shape)) for g in grads]
    for p, g in zip(parameters, grads, strict=True):
        p.grad = torch.tensor(g)
    torch.nn.utils.clip_grad_norm_(parameters, 2.0)
    for mine, p in zip(clip(by_global_norm(2.0), grads), parameters, strict=True):
        np.testing.assert_allclose(mine, p.grad.numpy(), rtol=1e-5)


def test_small_gradients_stay_bit_by_bit() -> None:
    grads = [np.random.default_rng(2).standard_normal(10).astype(np.float32) * 0.01]
    np.testing.assert_array_equal(clip(by_global_norm(5.0), grads)[0], grads[0])
    np.testing.assert_array_equal(clip(by_global_norm(5.0), [np.zeros(3, np.float32)])[0], np.zeros(3))


def test_clipping_keeps_each_gradients_dtype() -> None:
    grads = [np.full(2, 3.0, dt) for dt in (np.float16, np.float32, np.float64)]
    got = clip(by_global_norm(1.0), grads)
    assert [g.dtype for g in got] == [np.float16, np.float32, np.float64]
    for g in got:
        np.testing.assert_allclose(g, 3 / math.sqrt(54), rtol=1e-3)
    large = clip(by_global_norm(1.0), [np.full(100, 1000.0, np.float16)])  # its square is not a float16
    np.testing.assert_allclose(large[0], 0.1, rtol=1e-3)


def test_gradients_that_are_not_finite_stay_so() -> None:
    got = clip(by_global_norm(1.0), [np.array([1.0, np.nan], np.float32), np.ones(2, np.float32)])
    assert np.isnan(got[0]).all() and np.isnan(got[1]).all()


def test_loss_scale_of_an_optimizer() -> None:
    assert opt.SGD(SCHEDULE).loss_scale is None
    assert opt.SGD(SCHEDULE, loss_scale_factor=8).loss_scale == static_loss_scale(8.0)
    assert opt.SGD(SCHEDULE, loss_scale_policy=static_loss_scale(8)).loss_scale.factor == 8.0
    policy = opt.Adam(SCHEDULE, loss_scale_policy=dynamic_loss_scale(increment_period=5)).loss_scale
    assert (policy.initial, policy.increment_period, policy.multiplier) == (2.0**30, 5, 2.0)
    assert dynamic_loss_scale(4, 10, 3) == dynamic_loss_scale(4.0, 10, 3.0)
    assert opt.loss_scale.DynamicLossScalePolicy is dynamic_loss_scale
    assert opt.loss_scale.StaticLossScalePolicy is static_loss_scale


REFUSED = [
    (lambda: opt.SGD(-0.1), "SGD: lr_scheduler must be a learning rate >= 0"),
    (lambda: opt.Adam("cosine"), "Adam: lr_scheduler must be a learning rate >= 0 or a learning-rate schedule, got 'cosine'"),
    (
        lambda: opt.SGD(SCHEDULE, 2.0, loss_scale_policy=dynamic_loss_scale()),
        "loss_scale_policy cannot both be given",
    ),
    (lambda: opt.SGD(SCHEDULE, 0), r"loss_scale_factor must be a number in \(0, 1.26.*, got 0"),
    (lambda: opt.SGD(SCHEDULE, loss_scale_policy=1024), "dynamic_loss_scale"),
    (lambda: opt.SGD(SCHEDULE, momentum=-0.1), "SGD: momentum must be a number >= 0, got -0.1"),
    (lambda: opt.SGD(SCHEDULE, momentum="0.9"), "momentum must be a number >= 0, got str"),
    (lambda: opt.SGD(SCHEDULE, grad_clipping=1.0), r"by_global_norm\(1.0\)"),
    (lambda: opt.SGD(SCHEDULE, train_step_lbn=5), "train_step_lbn must be the name of a Blob"),
    (lambda: opt.SGD(SCHEDULE, train_step_lbn="a/b", loss_scale_policy=dynamic_loss_scale()), "leave train_step_lbn out"),
    (lambda: opt.SGD(SCHEDULE, variables="w"), r"variables=\['w'\]"),
    (lambda: opt.SGD(SCHEDULE, variables=[1]), "variables must be a list of names"),
    (lambda: opt.Adam(SCHEDULE, beta1=1.0), "beta1 must be a number in \\[0, 1\\), got 1.0"),
    (lambda: opt.Adam(SCHEDULE, beta2=-0.1), "beta2 must be a number in \\[0, 1\\)"),
    (lambda: opt.Adam(SCHEDULE, epsilon=math.inf), "epsilon must be a finite number >= 0, got inf"),
    (lambda: opt.Adam(SCHEDULE, do_bias_correction=None), "do_bias_correction must be True or False"),
    (lambda: opt.RMSProp(SCHEDULE, decay_rate=1.5), "decay_rate must be a number in \\[0, 1\\)"),
    (lambda: opt.RMSProp(SCHEDULE, centered="no"), "centered must be True or False"),
    (lambda: opt.LARS(SCHEDULE, lars_coefficient=-1), "LARS: lars_coefficient must be a number >= 0"),
    (lambda: opt.LAMB(SCHEDULE, beta1=1), "LAMB: beta1 must be"),
    (lambda: opt.AdamW(SCHEDULE, weight_decay=-1), "weight_decay must be a number >= 0"),
    (lambda: opt.AdamW(SCHEDULE, weight_decay=True), "weight_decay must be a number >= 0, got bool True"),
    (lambda: opt.SGDW(SCHEDULE, weight_decay=0.1, weight_decay_includes="a", weight_decay_excludes="b"), "cannot both be given"),
    (lambda: opt.SGDW(SCHEDULE, weight_decay=0.1, weight_decay_includes="(a"), r"'\(a', which is not a regular expression"),
    (lambda: opt.SGDW(SCHEDULE, weight_decay=0.1, weight_decay_excludes=[3]), "weight_decay_excludes must hold strings, got 3"),
    (lambda: by_global_norm(0), "clip_norm must be a number > 0, got 0"),
    (lambda: by_global_norm("1"), "clip_norm must be a number > 0, got str '1'"),
    (lambda: static_loss_scale(-1), r"loss_scale_factor must be a number in \(0, 1.26"),
    (lambda: dynamic_loss_scale(0), "initial_loss_scale must be a number in \\(0, 1.26.*, got 0"),
    (lambda: dynamic_loss_scale(1e39), "initial_loss_scale must be a number in \\(0, 1.26"),
    (lambda: dynamic_loss_scale(increment_period=0), "increment_period must be an int > 0, got 0"),
    (lambda: dynamic_loss_scale(multiplier=0.5), "multiplier must be a number >= 1"),
    (lambda: opt.CombinedOptimizer([]), "at least one optimizer"),
    (lambda: opt.CombinedOptimizer(opt.SGD(SCHEDULE)), "must be a list of at least one optimizer"),
    (lambda: opt.CombinedOptimizer([SCHEDULE]), "must be a list of at least one optimizer"),
    (lambda: opt.CombinedOptimizer([opt.CombinedOptimizer([opt.SGD(SCHEDULE)])]), "cannot be a CombinedOptimizer"),
    (lambda: opt.CombinedOptimizer([opt.SGD(SCHEDULE, 2.0)]), "pass loss_scale_factor"),
    (lambda: opt.CombinedOptimizer([opt.SGD(SCHEDULE, train_step_lbn="a/b")]), "pass loss_scale_factor"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused(number: int) -> None:
    make, text = REFUSED[number]
    with pytest.raises(ArgumentError, match=text) as error:
        make()
    assert "test_clipping_and_scale.py" in str(error.value)
