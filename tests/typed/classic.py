"""The classic spelling of inputs, which type checkers take for calls in annotations: two lines make them pass."""

# mypy: disable-error-code="valid-type"
# pyright: basic, reportInvalidTypeForm=false

import numpy as np

import oneflow as flow
import oneflow.typing as tp


@flow.global_function("train")
def train(
    x: tp.Numpy.Placeholder((16, 4), dtype=flow.float),
    labels: tp.Numpy.Placeholder((16,), dtype=flow.int32),
) -> tp.Numpy:
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, flow.layers.dense(x, 3))
    flow.optimizer.SGD(0.1).minimize(loss)
    return loss


print(train(np.zeros((16, 4), np.float32), np.zeros(16, np.int32)).mean())
