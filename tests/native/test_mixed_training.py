"""Training in mixed precision on a CPU whose native part multiplies bfloat16 numbers: the losses are those of float32."""

# no `from __future__ import annotations`: a job's annotations are values

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp

pytestmark = pytest.mark.usefixtures("native_part")
INT = flow.int32


def trained(net: Any, inputs: np.ndarray, labels: np.ndarray, steps: int, mixed: bool) -> tuple[np.ndarray, int]:
    """The mean loss of each step, and the number of ops in bfloat16. Each step has another sixteenth of the rows."""
    flow.clear_default_session()
    flow.manual_seed(1)
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(mixed)
    size, count = len(inputs) // 16, labels.size // 16
    kind = INT if inputs.dtype == np.int32 else flow.float32

    def body(x: tp.Numpy.Placeholder((size, *inputs.shape[1:]), kind), y: tp.Numpy.Placeholder((count,), INT)) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, net(x))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [1e-3])).minimize(loss)
        return loss

    job = flow.global_function("train", config)(body)
    narrow = sum(row[1].endswith(" in bfloat16") for row in job.summary().rows)
    parts = list(zip(np.split(inputs, 16), np.split(labels.reshape(-1), 16), strict=True))
    return np.array([job(*parts[i % 16]).mean() for i in range(steps)]), narrow


def compare(net: Any, inputs: np.ndarray, labels: np.ndarray, steps: int) -> None:
    exact, none = trained(net, inputs, labels, steps, False)
    mixed, some = trained(net, inputs, labels, steps, True)
    assert none == 0 < some
    assert not np.array_equal(exact, mixed), "16 bits were not used"
    assert exact[-16:].mean() < 0.8 * exact[:4].mean(), "nothing was learnt"
    for window in (slice(0, 16), slice(-16, None)):
        np.testing.assert_allclose(mixed[window].mean(), exact[window].mean(), rtol=0.02)


def lenet(x: Any) -> Any:
    he = flow.variance_scaling_initializer(2.0, "fan_in", "random_normal")
    for i, width in enumerate((16, 32)):
        x = flow.layers.conv2d(x, width, 5, padding="SAME", activation=flow.nn.relu, kernel_initializer=he, name=f"conv{i}")
        x = flow.nn.max_pool2d(x, 2, 2, "VALID")
    x = flow.layers.dense(flow.flatten(x, 1), 128, activation=flow.nn.relu, kernel_initializer=he, name="hidden")
    return flow.layers.dense(x, 10, kernel_initializer=he, name="output")


@pytest.mark.thorough
def test_lenet() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 512).astype(np.int32)
    patterns = rng.standard_normal((10, 1, 28, 28), np.float32)
    compare(lenet, patterns[labels] * 0.15 + rng.standard_normal((512, 1, 28, 28), np.float32), labels, 48)


WORDS, LENGTH, WIDTH, HEADS = 512, 32, 128, 4


def bert(tokens: Any) -> Any:
    normal = flow.random_normal_initializer(stddev=0.05)
    table = flow.get_variable("table", (WORDS, WIDTH), initializer=normal)
    x = flow.reshape(flow.gather(table, tokens), (-1, WIDTH))
    for i in range(2):
        heads = []
        for name in "qkv":
            y = flow.layers.dense(x, WIDTH, kernel_initializer=normal, name=f"{name}{i}")
            heads.append(flow.transpose(flow.reshape(y, (-1, LENGTH, HEADS, WIDTH // HEADS)), (0, 2, 1, 3)))
        q, k, v = heads
        scores = flow.nn.softmax(flow.matmul(q, k, transpose_b=True) * (WIDTH // HEADS) ** -0.5)
        y = flow.reshape(flow.transpose(flow.matmul(scores, v), (0, 2, 1, 3)), (-1, WIDTH))
        x = flow.layers.layer_norm(x + flow.layers.dense(y, WIDTH, kernel_initializer=normal, name=f"o{i}"), name=f"n{i}")
        y = flow.layers.dense(x, 4 * WIDTH, activation=flow.math.gelu, kernel_initializer=normal, name=f"f{i}")
        x = flow.layers.layer_norm(x + flow.layers.dense(y, WIDTH, kernel_initializer=normal, name=f"g{i}"), name=f"m{i}")
    return flow.matmul(x, table, transpose_b=True)


@pytest.mark.thorough
def test_a_small_bert() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, WORDS, (128, LENGTH)).astype(np.int32)
    compare(bert, tokens, (tokens * 7 + 3) % WORDS, 96)


def test_products_of_one_step_are_in_bfloat16() -> None:
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(True)

    @flow.global_function("predict", config)
    def job(tokens: tp.Numpy.Placeholder((8, LENGTH), INT)) -> tp.Numpy:
        return bert(tokens)

    kernels = [row[5] for row in job.summary().rows if row[1].startswith("matmul in bfloat16")]
    assert len(kernels) == 2 * 8 + 1
    assert not any(kernel.startswith("XLA") for kernel in kernels), kernels
