"""Gradients to variables and to intermediate Blobs, in compiled train jobs, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from table import floats, ints

import oneflow as flow
import oneflow.typing as tp

torch = pytest.importorskip("torch")
IMAGE = floats(4, 6, 5, 5)
SOME = flow.random_uniform_initializer(0.5, 1.5)
IDS = ints(3, 4, low=0, high=7)


@dataclass(frozen=True)
class Case:
    """A layer, the shapes of its variables by name, and the same over PyTorch tensors: f(x, *variables)."""

    name: str
    build: Callable[[Any], Any]
    variables: dict[str, tuple[int, ...]]
    torch: Callable[..., Any]
    on_ids: bool = False


def _normalized(x: Any, axes: tuple[int, ...], eps: float) -> Any:
    mean = x.mean(axes, keepdim=True)
    return (x - mean) / (((x - mean) ** 2).mean(axes, keepdim=True) + eps).sqrt()


def _column(v: Any) -> Any:
    return v.reshape(1, -1, 1, 1)


def _groups(x: Any, gamma: Any, beta: Any) -> Any:
    normal = _normalized(x.reshape(4, 3, -1), (2,), 1e-5).reshape(x.shape)
    return normal * gamma[..., None] + beta[..., None]


def _instances(x: Any, gamma: Any, beta: Any) -> Any:
    return _normalized(x, (2, 3), 1e-5) * gamma[..., None] + beta[..., None]


def _batch(x: Any, gamma: Any, beta: Any) -> Any:
    return _normalized(x, (0, 2, 3), 1e-3) * _column(gamma) + _column(beta)


CASES = [
    Case("batch_normalization", lambda x: flow.layers.batch_normalization(x, axis=1, name="l"),
         {"l-gamma": (6,), "l-beta": (6,)}, _batch),
    Case("batch_normalization_relu", lambda x: flow.layers.batch_normalization_relu(x, axis=1, name="l"),
         {"l-gamma": (6,), "l-beta": (6,)}, lambda x, g, b: _batch(x, g, b).relu()),
    Case("batch_normalization of statistics", lambda x: flow.layers.batch_normalization(x, axis=1, training=False, name="l"),
         {"l-gamma": (6,), "l-beta": (6,)}, lambda x, g, b: x / 1.001**0.5 * _column(g) + _column(b)),
    Case("layer_norm", lambda x: flow.layers.layer_norm(x, begin_norm_axis=1, begin_params_axis=1, name="l"),
         {"l-gamma": (6, 5, 5), "l-beta": (6, 5, 5)}, lambda x, g, b: _normalized(x, (1, 2, 3), 1e-5) * g + b),
    Case("InstanceNorm2d", lambda x: flow.nn.InstanceNorm2d(x, name="l"),
         {"l_gamma": (1, 6, 1), "l_beta": (1, 6, 1)}, _instances),
    Case("GroupNorm", lambda x: flow.nn.GroupNorm(x, 3, name="l"), {"l_gamma": (1, 6, 1), "l_beta": (1, 6, 1)}, _groups),
    Case("prelu", lambda x: flow.layers.prelu(x, shared_axes=[2, 3], name="l"), {"l-alpha": (6, 1, 1)},
         lambda x, a: torch.where(x > 0, x, a * x)),
    Case("dense", lambda x: flow.layers.dense(flow.flatten(x, 1), 7, kernel_initializer=SOME, name="l"),
         {"l-weight": (7, 150), "l-bias": (7,)}, lambda x, w, b: x.reshape(4, -1) @ w.T + b),
    Case("conv2d", lambda x: flow.layers.conv2d(x, 3, 3, 2, "SAME", groups=3, name="l"),
         {"l-weight": (3, 2, 3, 3), "l-bias": (3,)}, lambda x, w, b: torch.nn.functional.conv2d(x, w, b, 2, 1, groups=3)),
    Case("gather of rows", lambda x: flow.gather(flow.get_variable("t", (7, 5), initializer=SOME), flow.cast(x, flow.int32)),
         {"t": (7, 5)}, lambda x, t: t[torch.as_tensor(IDS).long()] + 0 * x.sum(), on_ids=True),
    Case("ssp_variable_proxy", lambda x: x * flow.experimental.ssp_variable_proxy(
        flow.get_variable("v", (5,), initializer=SOME), buffer_size=2)[1], {"v": (5,)}, lambda x, v: x * v),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_gradients(case: Case) -> None:
    found: dict[str, np.ndarray] = {}
    x = (IDS if case.on_ids else IMAGE).astype(np.float32)

    def keep(name: str) -> Callable[[Any], None]:
        return lambda g: found.update({name: g.numpy()})

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:
        middle = flow.identity(x)
        y = case.build(middle)
        for name, shape in case.variables.items():
            flow.watch_diff(flow.get_variable(name, shape, initializer=SOME), keep(name))
        flow.watch_diff(middle, keep("middle"))
        flow.watch_diff(y, keep("y"))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0])).minimize(flow.math.reduce_sum(y * y) * 0.5)
        return y

    ours = job(x)
    values = {name: value.numpy() for name, value in flow.get_all_variables().items()}
    tensors = {name: torch.tensor(values[name].astype(np.float64), requires_grad=True) for name in case.variables}
    given = torch.tensor(x.astype(np.float64), requires_grad=True)
    theirs = case.torch(given, *tensors.values())
    (theirs**2).sum().mul(0.5).backward()
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["y"], ours, rtol=1e-6, atol=1e-6)
    for name, tensor in tensors.items():
        np.testing.assert_allclose(found[name], tensor.grad.numpy(), rtol=1e-3, atol=1e-3, err_msg=name)
    if not case.on_ids:
        np.testing.assert_allclose(found["middle"], given.grad.numpy(), rtol=1e-3, atol=1e-3)
