"""Learning-rate schedules, against formulas written once more with the math module."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oneflow import optimizer as opt
from oneflow.errors import ArgumentError

B, D = 0.1, 37
constant, linear = opt.warmup.constant, opt.warmup.linear


def stairs(boundaries: list[int], values: list[float]) -> Callable[[int], float]:
    return lambda t: next((v for b, v in zip(boundaries, values, strict=False) if t <= b), values[-1])


def cosine(alpha: float) -> Callable[[int], float]:
    return lambda t: B * ((1 - alpha) * 0.5 * (1 + math.cos(math.pi * min(t, D) / D)) + alpha)


def linear_cosine(periods: float, alpha: float, beta: float) -> Callable[[int], float]:
    def rate(t: int) -> float:
        c = min(t, D)
        return B * ((alpha + (D - c) / D) * 0.5 * (1 + math.cos(2 * math.pi * periods * c / D)) + beta)

    return rate


def polynomial(end: float, power: float, cycle: bool) -> Callable[[int], float]:
    def rate(t: int) -> float:
        c, d = (max(t, 1), D * math.ceil(max(t, 1) / D)) if cycle else (min(t, D), D)
        return (B - end) * (1 - c / d) ** power + end

    return rate


def warmed(steps: int, warm: Callable[[int], float], then: Callable[[int], float]) -> Callable[[int], float]:
    return lambda t: warm(t) if t < steps else then(t)


@dataclass(frozen=True)
class Row:
    schedule: Any
    formula: Callable[[int], float]


ROWS = [
    Row(opt.PiecewiseConstantScheduler([], [0.1]), lambda t: 0.1),
    Row(opt.PiecewiseConstantScheduler([], [0]), lambda t: 0.0),
    Row(opt.PiecewiseConstantScheduler([10], [1, 0.5]), lambda t: 1.0 if t <= 10 else 0.5),
    Row(opt.PiecewiseConstantScheduler([3, 3, 40], [1, 2, 3, 4]), stairs([3, 3, 40], [1, 2, 3, 4])),
    Row(opt.PiecewiseScalingScheduler(B, [5, 50], [0.1, 0.01]), stairs([5, 50], [B, B * 0.1, B * 0.01])),
    Row(opt.PiecewiseScalingScheduler(B, [5, 50], 0.5), stairs([5, 50], [B, B * 0.5, B * 0.5])),
    Row(opt.PiecewiseConstantScheduler([10], [-10, 0.5]), lambda t: -10.0 if t <= 10 else 0.5),
    Row(opt.PiecewiseScalingScheduler(-B, [5], -2), stairs([5], [-B, 2 * B])),
    Row(opt.PolynomialScheduler(B, D, -0.01), polynomial(-0.01, 1.0, False)),
    Row(opt.CosineScheduler(B, D), cosine(0.0)),
    Row(opt.CosineScheduler(B, D, 0.2), cosine(0.2)),
    Row(opt.LinearCosineScheduler(B, D), linear_cosine(0.5, 0.0, 0.001)),
    Row(opt.LinearCosineScheduler(B, D, 3, 0.1, 0.02), linear_cosine(3, 0.1, 0.02)),
    Row(opt.PolynomialScheduler(B, D), polynomial(0.0001, 1.0, False)),
    Row(opt.PolynomialScheduler(B, D, 0.01, 2.5, True), polynomial(0.01, 2.5, True)),
    Row(opt.PolynomialSchduler(B, D, cycle=True), polynomial(0.0001, 1.0, True)),
    Row(opt.ExponentialScheduler(B, D, 0.9), lambda t: B * 0.9 ** (t / D)),
    Row(opt.ExponentialScheduler(B, D, 0.9, True), lambda t: B * 0.9 ** (t // D)),
    Row(opt.InverseTimeScheduler(B, D, 0.5), lambda t: B / (1 + 0.5 * t / D)),
    Row(opt.InverseTimeScheduler(B, D, 0.5, True), lambda t: B / (1 + 0.5 * (t // D))),
    Row(opt.NaturalExpScheduler(B, D, 0.5), lambda t: B * math.exp(-0.5 * t / D)),
    Row(opt.NaturalExpScheduler(B, D, 0.5, True), lambda t: B * math.exp(-0.5 * (t // D))),
    Row(opt.CosineScheduler(B, D, warmup=constant(8, 0.25)), warmed(8, lambda t: B * 0.25, cosine(0.0))),
    Row(opt.CosineScheduler(B, D, warmup=linear(8, 0)), warmed(8, lambda t: B * t / 8, cosine(0.0))),
    Row(opt.CosineScheduler(B, D, warmup=linear(0, 0)), cosine(0.0)),
    Row(opt.ExponentialScheduler(B, D, 0.9, warmup=constant(0, 0.5)), lambda t: B * 0.9 ** (t / D)),
    Row(
        opt.PiecewiseConstantScheduler([4, 20], [1.0, 0.5, 0.1], warmup=linear(10, 0.2)),
        warmed(10, lambda t: 0.2 + 0.8 * t / 10, stairs([4, 20], [1.0, 0.5, 0.1])),
    ),
    Row(
        opt.PiecewiseScalingScheduler(B, [4, 20], [0.5, 0.1], linear(10, 0.2)),
        warmed(10, lambda t: B * (0.2 + 0.8 * t / 10), stairs([4, 20], [B, B * 0.5, B * 0.1])),
    ),
]
STEPS = st.one_of(st.integers(0, 5 * D), st.integers(0, 2**53))


def traced(schedule: Any) -> Callable[[list[int]], np.ndarray]:
    """As a job evaluates it, for many steps at once."""
    with jax.enable_x64(True):
        rates = jax.jit(jax.vmap(schedule.learning_rate))

    def at(steps: list[int]) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(rates(np.array(steps, np.int64)))

    return at


@pytest.mark.parametrize("row", ROWS, ids=lambda row: repr(row.schedule))
def test_schedule_is_its_formula(row: Row) -> None:
    rates = traced(row.schedule)
    every = list(range(2 * D + 3))
    got = rates(every)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, [row.formula(t) for t in every], rtol=3e-7, atol=1e-15)

    @settings(max_examples=25, deadline=None)
    @given(st.lists(STEPS, min_size=8, max_size=8))
    def anywhere(steps: list[int]) -> None:
        # the value at once, the value in a job and the formula are the same number
        values = [row.schedule.value(t) for t in steps]
        np.testing.assert_allclose(values, [row.formula(t) for t in steps], rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(rates(steps), np.array(values, np.float32), rtol=2e-7, atol=1e-15)

    anywhere()


@pytest.mark.parametrize("steps", [5, 10, 91, 93, 99, 100, 1000])
@pytest.mark.parametrize("cycle", [False, True])
def test_a_polynomial_reaches_its_end_in_jobs(steps: int, cycle: bool) -> None:
    """XLA multiplies by the reciprocal of a constant: 1 - 100 * (1 / 100) was below 0, and its power NaN."""
    rates = traced(opt.PolynomialScheduler(B, steps, 0.01, power=0.9, cycle=cycle))
    ends = [steps, 2 * steps, 3 * steps]
    np.testing.assert_allclose(rates(ends), [0.01] * 3, rtol=1e-6)
    after = B * 1.0 if cycle else 0.01
    left = 1 - (steps + 1) / (2 * steps) if cycle else 0
    np.testing.assert_allclose(rates([steps + 1]), [(after - 0.01) * left**0.9 + 0.01], rtol=1e-6)


def test_one_step_is_a_float32_scalar() -> None:
    with jax.enable_x64(True):
        rate = opt.CosineScheduler(B, D).learning_rate(jax.numpy.asarray(3, "int64"))
    assert rate.shape == () and rate.dtype == np.float32


def test_a_boundary_belongs_to_the_earlier_piece() -> None:
    schedule = opt.PiecewiseConstantScheduler([10], [1.0, 2.0])
    assert [schedule.value(t) for t in (0, 9, 10, 11, 1000)] == [1.0, 1.0, 1.0, 2.0, 2.0]


def test_decay_goes_on_at_the_absolute_step_after_a_warmup() -> None:
    plain, warm = opt.CosineScheduler(B, D), opt.CosineScheduler(B, D, warmup=linear(10, 0))
    assert warm.value(10) == plain.value(10) < B
    assert warm.value(0) == 0.0


def test_ones_own_schedule() -> None:
    class Halves(opt.CosineScheduler.__mro__[1]):  # LrScheduler
        def decayed(self, step: Any, xp: Any) -> Any:
            return xp.power(0.5, step.astype(xp.float64))

    np.testing.assert_array_equal(traced(Halves())([0, 1, 2]), np.float32([1, 0.5, 0.25]))
    assert Halves().value(3) == 0.125
    opt.SGD(Halves())


def test_misspelt_name_is_the_same_schedule() -> None:
    assert issubclass(opt.PolynomialSchduler, opt.PolynomialScheduler)
    assert inspect.signature(opt.PolynomialSchduler) == inspect.signature(opt.PolynomialScheduler)


def test_custom_scheduler_has_no_formula() -> None:
    schedule = opt.CustomScheduler("Input_0/out")
    with pytest.raises(ArgumentError, match="Input_0/out"):
        schedule.value(0)
    assert repr(schedule) == "CustomScheduler(lbn='Input_0/out')"


def test_repr_leaves_out_defaults() -> None:
    assert repr(opt.CosineScheduler(0.1, 100)) == "CosineScheduler(base_lr=0.1, steps=100)"
    assert (
        repr(opt.PolynomialScheduler(0.1, 100, cycle=True, warmup=linear(10, 0.5)))
        == "PolynomialScheduler(base_lr=0.1, steps=100, cycle=True, warmup=linear(steps=10, start_multiplier=0.5))"
    )


def test_schedules_are_values() -> None:
    assert opt.CosineScheduler(1, 100) == opt.CosineScheduler(1.0, np.int64(100))
    assert opt.CosineScheduler(1, 100) != opt.CosineScheduler(1, 100, warmup=linear(5, 0))
    assert hash(opt.PiecewiseConstantScheduler([1], [1, 2])) == hash(opt.PiecewiseConstantScheduler((1,), np.array([1.0, 2.0])))
    with pytest.raises(AttributeError):
        opt.CosineScheduler(1, 100).steps = 5  # type: ignore[misc]


SIGNATURES = {
    "PiecewiseConstantScheduler": "boundaries, values, warmup=None",
    "PiecewiseScalingScheduler": "base_lr, boundaries, scale, warmup=None",
    "CosineScheduler": "base_lr, steps, alpha=0.0, warmup=None",
    "LinearCosineScheduler": "base_lr, steps, num_periods=0.5, alpha=0.0, beta=0.001, warmup=None",
    "PolynomialScheduler": "base_lr, steps, end_learning_rate=0.0001, power=1.0, cycle=False, warmup=None",
    "ExponentialScheduler": "base_lr, steps, decay_rate, staircase=False, warmup=None",
    "InverseTimeScheduler": "base_lr, steps, decay_rate, staircase=False, warmup=None",
    "NaturalExpScheduler": "base_lr, steps, decay_rate, staircase=False, warmup=None",
    "CustomScheduler": "lbn",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    parameters = inspect.signature(getattr(opt, name)).parameters.values()
    assert ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters) == SIGNATURES[name]


REFUSED = [
    (lambda: opt.PiecewiseConstantScheduler([10], [0.1]), "one value more than boundaries, got 1 values and 1 boundaries"),
    (lambda: opt.PiecewiseConstantScheduler([], []), "got 0 values"),
    (lambda: opt.PiecewiseConstantScheduler([20, 10], [1, 2, 3]), r"ascending order, got \[20, 10\]"),
    (lambda: opt.PiecewiseConstantScheduler([-1], [1, 2]), r"boundaries\[0\] must be an int >= 0, got -1"),
    (lambda: opt.PiecewiseConstantScheduler([1.0], [1, 2]), r"boundaries\[0\]=1"),
    (lambda: opt.PiecewiseConstantScheduler(0.1, [1, 2]), "boundaries must be a list of steps"),
    (lambda: opt.PiecewiseConstantScheduler([], 0.1), "values must be a list of numbers"),
    (lambda: opt.PiecewiseConstantScheduler([], ["0.1"]), r"values\[0\] must be a number, got str '0.1'"),
    (lambda: opt.PiecewiseScalingScheduler(0.1, [1, 2], [0.1]), "one scale per boundary, got 1 scales and 2 boundaries"),
    (lambda: opt.PiecewiseScalingScheduler(0.1, [1, 2], "a"), "scale must be a number"),
    (lambda: opt.CosineScheduler(0.1, 0), "steps must be an int > 0, got 0"),
    (lambda: opt.CosineScheduler(0.1, -5), "steps must be an int > 0, got -5"),
    (lambda: opt.CosineScheduler(0.1, 1e3), "try +steps=1000"),
    (lambda: opt.CosineScheduler(0.1, True), "steps must be an int"),
    (lambda: opt.CosineScheduler(math.nan, 10), "base_lr must be a finite number, got nan"),
    (lambda: opt.CosineScheduler(0.1, 10, warmup=5), "warmup must be one of flow.optimizer.warmup"),
    (lambda: opt.PolynomialScheduler(0.1, 10, power=-1), "power must be a number >= 0"),
    (lambda: opt.PolynomialScheduler(0.1, 10, cycle="yes"), "cycle must be True or False"),
    (lambda: opt.ExponentialScheduler(0.1, 10, -0.5), "decay_rate must be a number >= 0"),
    (lambda: opt.ExponentialScheduler(0.1, 10, 0.5, staircase=2), "staircase must be True or False"),
    (lambda: opt.CustomScheduler("rate"), "must be the name of a Blob"),
    (lambda: opt.CustomScheduler(0.1), "must be the name of a Blob"),
    (lambda: opt.CosineScheduler(0.1, 10).value(-1), "step must be an int >= 0, got -1"),
    (lambda: constant(10, 1.0), "multiplier must be a number in \\(0, 1\\), got 1.0"),
    (lambda: constant(10, 0), "multiplier must be a number in \\(0, 1\\)"),
    (lambda: constant(-1, 0.5), "steps must be an int >= 0"),
    (lambda: linear(10, 1), "start_multiplier must be a number in \\[0, 1\\)"),
    (lambda: linear(10, -0.1), "start_multiplier must be a number in \\[0, 1\\)"),
    (lambda: linear(1.5, 0), "steps must be an int >= 0"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused(number: int) -> None:
    make, text = REFUSED[number]
    with pytest.raises(ArgumentError, match=text) as error:
        make()
    assert "test_schedules.py" in str(error.value)
