"""enable_auto_mixed_precision: what computes in 16 bits, against PyTorch's autocast and against float32; loss scaling."""

from __future__ import annotations

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.compiler.plan import plan

RNG = np.random.default_rng(5)
X = RNG.standard_normal((12, 3, 8, 8)).astype(np.float32)
Y = (np.arange(12) % 4).astype(np.int32)
WEIGHTS = {
    "conv-weight": RNG.normal(0, 0.3, (6, 3, 3, 3)).astype(np.float32),
    "conv-bias": RNG.normal(0, 0.3, 6).astype(np.float32),
    "out-weight": RNG.normal(0, 0.2, (4, 6 * 16)).astype(np.float32),
    "out-bias": RNG.normal(0, 0.2, 4).astype(np.float32),
}


def network(x, y):
    zeros = flow.zeros_initializer()
    x = flow.layers.conv2d(x, 6, 3, padding="SAME", activation=flow.nn.relu, kernel_initializer=zeros, name="conv")
    x = flow.reshape(flow.nn.avg_pool2d(x, 2, 2, "VALID"), (12, -1))
    logits = flow.layers.dense(x, 4, name="out")
    return logits, flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)


def train_job(amp, policy=None, name="train"):
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(amp)

    def body(x: tp.Numpy.Placeholder(X.shape), y: tp.Numpy.Placeholder((12,), dtype=flow.int32)) -> tp.Numpy:
        logits, loss = network(x, y)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [1.0])
        flow.optimizer.SGD(rate, momentum=0, loss_scale_policy=policy).minimize(loss)
        return logits

    body.__name__ = name
    return flow.global_function("train", config)(body)


def one_step(job):
    """The logits, and the gradient of every variable: at rate 1 it is what the update took away."""
    flow.load_variables(WEIGHTS)
    logits = job(X, Y)
    return logits, {name: value - flow.get_all_variables()[name].numpy() for name, value in WEIGHTS.items()}


def in_torch(dtype):
    torch = pytest.importorskip("torch")
    w = {name: torch.tensor(value, requires_grad=True) for name, value in WEIGHTS.items()}
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
        h = torch.relu(torch.nn.functional.conv2d(torch.tensor(X), w["conv-weight"], w["conv-bias"], padding=1))
        logits = torch.nn.functional.linear(torch.nn.functional.avg_pool2d(h, 2).flatten(1), w["out-weight"], w["out-bias"])
        loss = torch.nn.functional.cross_entropy(logits.float(), torch.tensor(Y).long())
    loss.backward()
    return logits.float().detach().numpy(), {name: v.grad.numpy() for name, v in w.items()}


def relative(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def test_as_torch_autocast_and_near_float32():
    logits, gradients = one_step(train_job(True))
    exact_logits, exact_gradients = in_torch("float32")
    their_logits, their_gradients = in_torch("bfloat16")
    assert logits.dtype == np.float32
    assert 1e-4 < relative(logits, exact_logits) < 0.01, "16 bits were not used, or too few were kept"
    np.testing.assert_allclose(logits, their_logits, rtol=0.03, atol=0.03)
    for name, gradient in gradients.items():
        assert gradient.dtype == np.float32
        assert relative(gradient, their_gradients[name]) < 0.02, name
        assert relative(gradient, exact_gradients[name]) < 1.2 * relative(their_gradients[name], exact_gradients[name]) + 0.01, (
            name
        )


def test_off_by_default():
    logits, gradients = one_step(train_job(False))
    exact_logits, exact_gradients = in_torch("float32")
    np.testing.assert_allclose(logits, exact_logits, rtol=1e-4, atol=1e-5)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, exact_gradients[name], rtol=1e-3, atol=1e-5)


def narrow(body, config=None, native_ops=False):
    """The nodes in 16 bits; without the native part by OneFlow's lists alone, whatever the machine can do."""
    config = config or flow.FunctionConfig()
    config.enable_auto_mixed_precision(True)
    flow.config.enable_native_cpu(native_ops)
    job = flow.global_function("predict", config)(body)
    returned = job.graph.returns
    returned = returned if isinstance(returned, tuple) else [returned]
    chosen = {node.name for node in plan(job.graph, returned, native_ops=native_ops).precision}
    assert {row[0] for row in job.summary().rows if row[1].endswith(" in bfloat16")} == chosen
    return chosen


def test_lists():
    def body(x: tp.Numpy.Placeholder((4, 4))) -> tuple[tp.Numpy, tp.Numpy]:
        w = flow.get_variable("w", (4, 4), initializer=flow.ones_initializer())
        before = flow.math.tanh(x, name="before")  # nothing white above it
        a = flow.matmul(before, w, name="a")
        between = flow.math.gelu(flow.reshape(a, (2, 8), name="clear"), name="between")
        exact = flow.math.exp(between, name="exact")  # on no list
        b = flow.matmul(flow.reshape(between, (4, 4), name="clear2"), w, name="b")
        after = flow.nn.softmax(b, name="after")  # nothing white below it
        return after, exact

    assert narrow(body) == {"a", "clear", "between", "clear2", "b"}


PAIRS = "XLA drops pairs of conversions on GPUs (xla_allow_excess_precision), which changes the rounding"


@pytest.mark.cpu(PAIRS)
def test_amp_white_identity_and_other_dtypes():
    def body(x: tp.Numpy.Placeholder((4, 4)), z: tp.Numpy.Placeholder((4, 4), dtype=flow.float64)) -> tuple[tp.Numpy, tp.Numpy]:
        return flow.amp_white_identity(x, name="white"), flow.matmul(z, z, name="double")

    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(True)
    job = flow.global_function("predict", config)(body)
    x, z = RNG.standard_normal((4, 4)).astype(np.float32), RNG.standard_normal((4, 4))
    white, double = job(x, z)
    np.testing.assert_array_equal(white, x.astype(flow.bfloat16.numpy_dtype).astype(np.float32))
    np.testing.assert_allclose(double, z @ z, rtol=1e-12)


@pytest.mark.cpu(PAIRS)
def test_normalization_keeps_its_statistics_in_float32():
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(True)

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
        ones = flow.ones_initializer()
        y = flow.amp_white_identity(flow.layers.batch_normalization(flow.amp_white_identity(x), axis=1, name="bn"))
        y = flow.math.square(y) * flow.get_variable("w", (1,), initializer=ones)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(y)
        return y

    job(X)
    rounded = X.astype(flow.bfloat16.numpy_dtype).astype(np.float32)
    moving = flow.get_all_variables()["bn-moving_mean"].numpy()
    np.testing.assert_allclose(moving, 0.01 * rounded.mean((0, 2, 3)), rtol=1e-4, atol=1e-6)


@pytest.mark.cpu("a job with a loss scale computes in float16 on GPUs")
def test_static_loss_scale_changes_nothing_but_rounding():
    logits, plain = one_step(train_job(True, name="plain"))
    _, scaled = one_step(train_job(True, flow.optimizer.loss_scale.static_loss_scale(1024.0), name="scaled"))
    for name, gradient in plain.items():
        np.testing.assert_allclose(scaled[name], gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.cpu("a job with a loss scale computes in float16 on GPUs, whose largest number is smaller than these scales")
def test_overflow_under_dynamic_loss_scale_skips_the_update():
    scale = flow.optimizer.loss_scale.dynamic_loss_scale(initial_loss_scale=2.0**96, increment_period=2, multiplier=2.0**60)
    job = train_job(True, scale)
    state = "System-Train-DynamicLossScale-train-LossScale"
    flow.load_variables(WEIGHTS)
    big = X * 1e12  # gradients of the weights are far beyond float32 / 2**96, the first scale
    job(big, Y)
    now = flow.get_all_variables()
    for name, value in WEIGHTS.items():
        np.testing.assert_array_equal(now[name].numpy(), value)
    assert now["System-Train-TrainStep-train"].numpy() == 0
    np.testing.assert_allclose(now[state].numpy(), 2.0**36)
    job(X, Y)
    now = flow.get_all_variables()
    assert now["System-Train-TrainStep-train"].numpy() == 1
    assert any(not np.array_equal(now[name].numpy(), value) for name, value in WEIGHTS.items())
    assert all(np.isfinite(now[name].numpy()).all() for name in WEIGHTS)


@pytest.mark.cpu("a job with a loss scale computes in float16 on GPUs")
def test_a_dynamic_loss_scale_that_only_grows_changes_nothing():
    def losses(policy):
        with flow.session(seed=1):

            @flow.global_function("train")
            def train(x: tp.Numpy.Placeholder((4, 2)), y: tp.Numpy.Placeholder((4, 1))) -> tp.Numpy:
                w = flow.get_variable("w", (2, 1), initializer=flow.zeros_initializer())
                loss = flow.math.square(flow.matmul(x, w) - y)
                flow.optimizer.SGD(1e-3, momentum=0, loss_scale_policy=policy).minimize(loss)
                return loss

            x = np.array([[0.1, 0.2], [0.3, -0.1], [-0.2, 0.1], [0.2, 0.2]], np.float32)
            return [float(train(x, x @ np.array([[0.5], [-0.25]], np.float32)).mean()) for _ in range(150)]

    plain = losses(None)
    assert losses(flow.optimizer.loss_scale.dynamic_loss_scale(increment_period=1)) == pytest.approx(plain, rel=1e-5)
    assert plain[-1] < plain[100]  # also behind the 70th step, from which on the scale is at its largest


def test_float16_with_a_dynamic_loss_scale_finds_its_scale(monkeypatch):
    """As on a GPU: the first scale overflows float16's range, so the first steps change nothing; then it trains."""
    monkeypatch.setattr("oneflow.compiler.precision.narrow_dtype", lambda graph, platform: flow.float16)
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(True)
    policy = flow.optimizer.loss_scale.dynamic_loss_scale(initial_loss_scale=2.0**30, increment_period=1000)

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((8, 16)), y: tp.Numpy.Placeholder((8,), flow.int32)) -> tp.Numpy:
        normal = flow.random_normal_initializer(0, 0.3)
        x = flow.layers.dense(x, 32, activation=flow.math.tanh, kernel_initializer=normal)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, flow.layers.dense(x, 4, kernel_initializer=normal))
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.5])
        flow.optimizer.SGD(rate, momentum=0, loss_scale_policy=policy).minimize(loss)
        return loss

    x, y = RNG.standard_normal((8, 16)).astype(np.float32), (np.arange(8) % 4).astype(np.int32)
    losses = [float(train(x, y).mean()) for _ in range(40)]
    state = {name: value.numpy() for name, value in flow.get_all_variables().items()}
    assert losses[1] == losses[0] and losses[-1] < 0.2 * losses[0]
    skipped = 40 - int(state["System-Train-TrainStep-train"][0])
    assert 5 < skipped < 25
    assert state["System-Train-DynamicLossScale-train-LossScale"][0] == 2.0 ** (30 - skipped)
    assert all(np.isfinite(value).all() for value in state.values())


def test_which_type_is_chosen():
    from oneflow.compiler import precision

    graph = train_job(True).graph
    scaled = train_job(True, flow.optimizer.loss_scale.static_loss_scale(8.0), name="scaled").graph
    assert precision.narrow_dtype(graph, "gpu") is flow.bfloat16 and precision.narrow_dtype(scaled, "gpu") is flow.float16
    assert precision.narrow_dtype(scaled, "cpu") is flow.bfloat16 and precision.narrow_dtype(scaled, "tpu") is flow.bfloat16
    assert precision.narrow_dtype(train_job(False, name="off").graph, "cpu") is None
