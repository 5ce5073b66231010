"""Gradients of values that ops cut blocks of: assembled side by side, or added, they are the sum of what each op asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
import oneflow.typing as tp

SHAPE = (3, 8, 5)
CUTS: dict[str, list[Any]] = {
    "all of an axis": [np.s_[:, t] for t in range(8)],
    "in another order": [np.s_[:, 4:6], np.s_[:, 6:8], np.s_[:, 0:4]],
    "with gaps": [np.s_[:, 1:3], np.s_[:, 5], np.s_[:, -1]],
    "overlapping": [np.s_[:, 0:5], np.s_[:, 3:8]],
    "of two axes": [np.s_[0:2, 0:4], np.s_[1:3, 4:8]],
    "twice the same": [np.s_[1], np.s_[1]],
    "with steps": [np.s_[:, ::2], np.s_[:, 1::2], np.s_[:, ::-1]],
    "one": [np.s_[..., 2:4]],
}


@pytest.mark.parametrize("uses_whole", [False, True])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS.keys())
def test_gradient_of_cuts(cuts: list[Any], uses_whole: bool) -> None:
    value = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)

    def loss_of(x: Any, total: Any) -> Any:
        losses = [total(x[cut] * x[cut]) * float(i + 1) for i, cut in enumerate(cuts)]
        losses += [total(x)] if uses_whole else []
        return sum(losses[1:], losses[0])

    @flow.global_function("train")
    def job() -> tp.Numpy:
        x = flow.get_variable("x", SHAPE, initializer=flow.zeros_initializer())
        loss = loss_of(x * 1.0, flow.math.reduce_sum)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0])).minimize(loss)
        return loss

    flow.train.CheckPoint().init()
    flow.load_variables({"x": value})
    loss = job()
    after = flow.get_all_variables()["x"].numpy()
    tensor = torch.tensor(value[:, ::1], requires_grad=True)

    def cut_torch(tensor: torch.Tensor, cut: Any) -> torch.Tensor:
        reverse = isinstance(cut, tuple) and any(isinstance(c, slice) and c.step == -1 for c in cut)
        return tensor.flip(1) if reverse else tensor[cut]

    losses = [(cut_torch(tensor, cut) ** 2).sum() * (i + 1) for i, cut in enumerate(cuts)]
    expected = sum(losses) + (tensor.sum() if uses_whole else 0)
    expected.backward()
    np.testing.assert_allclose(loss, [expected.item()], rtol=1e-4)
    np.testing.assert_allclose(value - after, tensor.grad.numpy(), rtol=1e-4, atol=1e-4)


def test_cuts_along_one_axis_are_concatenated() -> None:
    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((4, 16, 8))) -> tp.Numpy:
        w = flow.get_variable("w", (4, 16, 8), initializer=flow.ones_initializer())
        steps = x * w
        state = steps[:, 0]
        for t in range(1, 16):
            state = flow.math.tanh(state + steps[:, t])
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0])).minimize(state)
        return state

    job(np.ones((4, 16, 8), np.float32))
    text = job.lowered().as_text() if hasattr(job, "lowered") else job.executables[-1][1].hlo()
    assert "concatenate" in text
    assert text.count(" pad(") == 0
