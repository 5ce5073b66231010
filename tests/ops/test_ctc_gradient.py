"""The gradient of ``flow.ctc_loss`` to its log-probabilities is PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp

torch = pytest.importorskip("torch", reason="the reference")


@pytest.mark.parametrize(("zero_infinity", "blank"), [(False, 0), (True, 0), (True, 2)])
def test_gradient(zero_infinity: bool, blank: int) -> None:
    """Samples of other lengths, repeated labels, and with ``zero_infinity`` one whose labels do not fit into its length."""
    flow.clear_default_session()
    time, batch, classes = 7, 4, 5
    rng = np.random.default_rng(blank)
    start = torch.log_softmax(torch.tensor(rng.standard_normal((time, batch, classes)).astype(np.float32)), 2).numpy()
    targets = np.array([[1, 1, 3], [4, 3, 1], [3, 4, 0], [1, 1, 1]], np.int32)
    if blank == 0:
        targets[2, 2] = 1
    input_lengths = np.array([7, 5, 3, 4 if zero_infinity else 5], np.int32)  # 1, 1, 1 needs five steps
    target_lengths = np.array([3, 2, 2, 3], np.int32)

    @flow.global_function("train")
    def job(
        y: tp.Numpy.Placeholder((batch, 3), dtype=flow.int32), n: tp.Numpy.Placeholder((batch,), dtype=flow.int32),
        m: tp.Numpy.Placeholder((batch,), dtype=flow.int32),
    ) -> tp.Numpy:  # fmt: skip
        x = flow.get_variable("x", start.shape, initializer=flow.zeros_initializer())
        loss = flow.ctc_loss(x, y, n, m, blank=blank, reduction="sum", zero_infinity=zero_infinity)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0.0).minimize(loss)
        return loss

    flow.load_variables({"x": start})
    loss = job(targets, input_lengths, target_lengths)
    x = torch.tensor(start, requires_grad=True)
    wanted = torch.nn.functional.ctc_loss(
        x, torch.tensor(targets), torch.tensor(input_lengths), torch.tensor(target_lengths), blank, "sum", zero_infinity
    )
    wanted.backward()
    np.testing.assert_allclose(loss.sum(), wanted.item(), rtol=1e-5)
    found = start - flow.get_all_variables()["x"].numpy()
    np.testing.assert_allclose(found, x.grad.numpy(), rtol=1e-4, atol=1e-5)
    for sample, length in enumerate(input_lengths):
        assert not found[length:, sample].any()
    if zero_infinity:
        assert not found[:, 3].any()
