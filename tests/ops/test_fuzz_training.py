"""Mistakes in what a train job is made of: optimizers, schedules, warm-ups, clipping, loss scales, variables, losses."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz import OURS, PLAIN
from table import trace
from test_fuzz import THOROUGH

import oneflow as flow
from oneflow.errors import OneFlowError

opt = flow.optimizer
VALUES = (PLAIN + OURS) if THOROUGH else (PLAIN + OURS)[::4]
REQUIRED: dict[str, Any] = {
    "lr_scheduler": opt.CosineScheduler(0.1, 100), "base_lr": 0.1, "steps": 100, "decay_rate": 0.5, "boundaries": [10, 20],
    "values": [0.1, 0.01, 0.001], "scale": 0.1, "lbn": "rate/out", "clip_norm": 1.0, "loss_scale_factor": 1024.0,
    "multiplier": 0.5, "start_multiplier": 0.1,
    "optimizers": [opt.SGD(opt.CosineScheduler(0.1, 100), variables=["dense-weight"])],
}  # fmt: skip
CLASSES = {name: value for name, value in vars(opt).items() if inspect.isclass(value)}
CLASSES |= {
    "warmup.constant": opt.warmup.constant, "warmup.linear": opt.warmup.linear,
    "by_global_norm": opt.grad_clipping.by_global_norm, "static_loss_scale": opt.loss_scale.static_loss_scale,
    "dynamic_loss_scale": opt.loss_scale.dynamic_loss_scale,
}  # fmt: skip


def _optimizer(name: str, made: Any) -> Any:
    """An optimizer that uses what was made."""
    schedule = opt.CosineScheduler(0.1, 100)
    if name.startswith("warmup"):
        return opt.SGD(opt.CosineScheduler(0.1, 100, warmup=made))
    if name.endswith(("Scheduler", "Schduler")):
        return opt.SGD(made)
    if name == "by_global_norm":
        return opt.SGD(schedule, grad_clipping=made)
    return opt.SGD(schedule, loss_scale_policy=made) if name.endswith("loss_scale") else made


def _trained(make: Callable[[], Any], loss: Callable[[Any], Any] = lambda x: x) -> None:
    def body(x: Any) -> Any:
        cost = flow.math.reduce_mean(flow.layers.dense(x, 1, name="dense"))
        make().minimize(loss(cost))
        return cost

    trace(body, [((8, 4), np.float32)])


def _builds_or_refuses(call: Callable[[], None], what: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except OneFlowError as error:
        text = str(error)
        assert "your line" in text and Path(__file__).name in text, f"{what}: no line of the user:\n{text}"
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error


def _given(value: Any) -> Any:
    return eval(value, {"flow": flow}) if isinstance(value, str) and value in OURS else value  # noqa: S307 - of our own table


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_classes(name: str) -> None:
    made = CLASSES[name]
    parameters = inspect.signature(made).parameters.values()
    base = {p.name: REQUIRED[p.name] for p in parameters if p.default is p.empty}
    for p in parameters:
        for value in VALUES:
            arguments = {**base, p.name: _given(value)}
            _builds_or_refuses(lambda a=arguments: _trained(lambda: _optimizer(name, made(**a))), f"{name}({p.name}={value!r})")


def test_losses() -> None:
    for value in VALUES:
        sgd = opt.SGD(opt.CosineScheduler(0.1, 100))
        _builds_or_refuses(lambda v=value, o=sgd: _trained(lambda: o, lambda cost: _given(v)), f"minimize({value!r})")


@pytest.mark.parametrize("parameter", list(inspect.signature(flow.get_variable).parameters))
def test_variables(parameter: str) -> None:
    base = {"name": "v", "shape": (2, 3), "initializer": flow.zeros_initializer()}
    for value in VALUES:
        arguments = {**base, parameter: _given(value)}
        _builds_or_refuses(lambda a=arguments: trace(lambda: flow.get_variable(**a), []), f"get_variable({parameter}={value!r})")


@pytest.mark.parametrize("parameter", ["type", "function_config"])
def test_declarations(parameter: str) -> None:
    for value in VALUES:
        _builds_or_refuses(lambda v=value: flow.global_function(**{parameter: _given(v)})(_body), f"{parameter}={value!r}")


def _body(x: flow.typing.Numpy.Placeholder((2, 3))) -> flow.typing.Numpy:
    return x
