"""Nodes that are alike share the equations of one of them, and nothing else."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oneflow as flow
import oneflow.typing as tp

WIDTH, LAYERS = 6, 7
traced: list[float] = []


@flow.experimental.register_op("counted_tanh", attrs={"scale": 1.0})
def counted_tanh(x: Any, *, scale: float) -> Any:
    traced.append(scale)
    return jnp.tanh(scale * x)


def deep(scales: list[float]) -> Any:
    flow.clear_default_session()

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((3, WIDTH))) -> tp.Numpy:
        for i, scale in enumerate(scales):
            start = flow.random_normal_initializer(stddev=0.5)
            w = flow.get_variable(f"w{i}", (WIDTH, WIDTH), initializer=start)
            x = counted_tanh(flow.matmul(x, w, name=f"product{i}"), scale=scale, name=f"squashed{i}")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0).minimize(x)
        return x

    return job


@given(scales=st.lists(st.sampled_from([0.5, 1.0, 2.0, 0.0, -0.0]), min_size=1, max_size=LAYERS))
@settings(max_examples=8, deadline=None)
def test_training_is_that_of_torch(scales: list[float]) -> None:
    job = deep(scales)
    before = {name: v.numpy() for name, v in flow.get_all_variables().items()}
    x = np.random.default_rng(0).standard_normal((3, WIDTH), np.float32)
    found = job(x)
    weights = [torch.tensor(before[f"w{i}"], requires_grad=True) for i in range(len(scales))]
    y = torch.tensor(x)
    for w, scale in zip(weights, scales, strict=True):
        y = torch.tanh(scale * (y @ w))
    y.mean().backward()
    np.testing.assert_allclose(found, y.detach().numpy(), rtol=1e-5, atol=1e-6)
    for i, w in enumerate(weights):
        after = flow.get_all_variables()[f"w{i}"].numpy()
        np.testing.assert_allclose(after, (w - 0.5 * w.grad).detach().numpy(), rtol=1e-5, atol=1e-6, err_msg=f"w{i}")


def test_repeated_nodes_are_traced_once_and_keep_their_names() -> None:
    job = deep([0.75] * 40)
    flow.get_all_variables()  # builds the job, which asks for shapes
    traced.clear()
    job(np.ones((3, WIDTH), np.float32))
    assert len(traced) == 3  # twice directly, and once to be recorded
    program = job.executables[-1][1].hlo()
    for i in (0, 20, 39):
        assert f"/product{i}/" in program and f"oneflow.backward/product{i}/" in program
    assert "product39/product" not in program


def test_zeros_of_both_signs_and_numbers_of_other_types_are_different_attributes() -> None:
    traced.clear()
    deep([0.0, -0.0] * 4)(np.ones((3, WIDTH), np.float32))
    assert np.signbit(traced).any() and not np.signbit(traced).all()
