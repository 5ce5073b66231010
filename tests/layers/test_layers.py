"""Layers in jobs: the names and shapes of their variables, their values, their training."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, DuplicateNameError, JobWarning
from oneflow.ops.module import find_or_create_module

torch = pytest.importorskip("torch")
X = np.random.default_rng(0).standard_normal((4, 3, 6, 6)).astype(np.float32)


def shapes_of(
    body: Callable[[Any], Any], shape: tuple[int, ...] = X.shape, dtype: Any = flow.float32
) -> dict[str, tuple[int, ...]]:
    """The variables of a predict job with that body."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(shape, dtype=dtype)) -> tp.Numpy:
        return body(x)

    job(np.zeros(shape, dtype.numpy_dtype))
    return {name: value.numpy().shape for name, value in flow.get_all_variables().items()}


def train(body: Callable[[Any], Any], x: np.ndarray, steps: int = 1, rate: float = 1.0) -> list[np.ndarray]:
    """The results of a train job that minimises the sum over rows of body(x)."""

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:
        y = body(x)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [rate]), momentum=0).minimize(flow.math.reduce_sum(y))
        return y

    return [job(x) for _ in range(steps)]


def values() -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in flow.get_all_variables().items()}


# --- names


def test_unnamed_layers_are_numbered() -> None:
    def body(x: Any) -> Any:
        h = flow.layers.dense(flow.layers.dense(x, 4), 5, name=None)
        with flow.scope.namespace("tower"):
            h = flow.layers.dense(h, 6)
        return flow.layers.dense(h, 7)

    assert shapes_of(body, (2, 3)) == {
        "Dense-weight": (4, 3), "Dense-bias": (4,), "Dense_1-weight": (5, 4), "Dense_1-bias": (5,),
        "tower-Dense-weight": (6, 5), "tower-Dense-bias": (6,), "Dense_2-weight": (7, 6), "Dense_2-bias": (7,),
    }  # fmt: skip


def test_the_numbering_steps_over_names_given_by_hand() -> None:
    def body(x: Any) -> Any:
        h = flow.layers.conv2d(x, 2, name="Conv2d")
        return flow.layers.conv2d(flow.layers.batch_normalization(h, 1, name="BatchNorm"), 2)

    found = shapes_of(body)
    assert {"Conv2d-weight", "BatchNorm-gamma", "Conv2d_1-weight"} <= set(found)


def test_a_name_given_twice() -> None:
    with pytest.raises(DuplicateNameError, match="already"):
        shapes_of(lambda x: flow.layers.dense(flow.layers.dense(x, 3, name="Dense"), 3, name="Dense"), (2, 3))


def test_names_of_variables_and_ops() -> None:
    seen = {}

    def body(x: Any) -> Any:
        h = flow.layers.conv2d(x, 4, (3, 2), name="conv", activation=flow.nn.relu)
        seen["conv"] = [node.name for node in h.node.graph.nodes]
        h = flow.layers.conv2d(h, 2, name="second", weight_name="shared-weight", bias_name="shared-bias")
        return flow.layers.dense(flow.reshape(h, (4, -1)), 5, name="dense", activation=3)  # a number is not an activation

    found = shapes_of(body)
    assert found == {
        "conv-weight": (4, 3, 3, 2), "conv-bias": (4,), "shared-weight": (2, 4, 1, 1), "shared-bias": (2,),
        "dense-weight": (5, 40), "dense-bias": (5,),
    }  # fmt: skip
    assert [n for n in seen["conv"] if n.startswith("conv")] == [
        "conv-weight",
        "conv",
        "conv-bias",
        "conv-bias_add",
        "conv-activation",
    ]


@pytest.mark.parametrize(
    ("body", "shape", "expected"),
    [
        (lambda x: flow.layers.conv1d(x, 6, 3, name="c", groups=2), (2, 4, 9), {"c-weight": (6, 2, 3), "c-bias": (6,)}),
        (lambda x: flow.layers.conv1d(x, 6, 3, data_format="NWC", name="c", use_bias=False), (2, 9, 4), {"c-weight": (6, 3, 4)}),
        (
            lambda x: flow.layers.conv2d(x, 6, 3, data_format="NHWC", name="c"),
            (2, 5, 5, 4),
            {"c-weight": (6, 3, 3, 4), "c-bias": (6,)},
        ),
        (
            lambda x: flow.layers.conv3d(x, 6, 2, data_format="NDHWC", name="c"),
            (2, 5, 5, 5, 4),
            {"c-weight": (6, 4, 2, 2, 2), "c-bias": (6,)},
        ),
        (lambda x: flow.layers.layer_norm(x, name="n"), (2, 5, 4), {"n-beta": (4,), "n-gamma": (4,)}),
        (lambda x: flow.layers.layer_norm(x, center=False, begin_params_axis=1, name="n"), (2, 5, 4), {"n-gamma": (5, 4)}),
        (
            lambda x: flow.layers.batch_normalization(x, 1, name="n"),
            (2, 5, 4),
            {"n-beta": (5,), "n-gamma": (5,), "n-moving_mean": (5,), "n-moving_variance": (5,)},
        ),
        (
            lambda x: flow.layers.batch_normalization(x, center=False, scale=False, name="n"),
            (2, 5, 4),
            {"n-moving_mean": (4,), "n-moving_variance": (4,)},
        ),
        (lambda x: flow.layers.prelu(x, shared_axes=[2], name="p"), (2, 5, 4), {"p-alpha": (5, 1)}),
        (lambda x: flow.nn.InstanceNorm1d(x, name="i"), (2, 5, 4), {"i_gamma": (1, 5, 1), "i_beta": (1, 5, 1)}),
        (lambda x: flow.nn.GroupNorm(x, 3, name="g"), (2, 6, 4), {"g_gamma": (1, 6, 1), "g_beta": (1, 6, 1)}),
    ],
)
def test_variables(body: Callable[[Any], Any], shape: tuple[int, ...], expected: dict[str, tuple[int, ...]]) -> None:
    assert shapes_of(body, shape) == expected


def test_unnamed_instance_norms_have_variables_of_their_own() -> None:
    found = shapes_of(lambda x: flow.nn.InstanceNorm2d(flow.nn.InstanceNorm2d(x)))
    assert set(found) == {f"InstanceNorm2D_{i}_{kind}" for i in (0, 1) for kind in ("gamma", "beta")}


# --- values


def test_default_initial_values() -> None:
    shapes_of(lambda x: flow.layers.conv2d(flow.layers.dense(x, 5), 8, 3, padding="SAME"))
    found = values()
    assert not found["Dense-weight"].any() and not found["Dense-bias"].any() and not found["Conv2d-bias"].any()
    limit = np.sqrt(6 / (3 * 9 + 8 * 9))
    assert 0.9 * limit < np.abs(found["Conv2d-weight"]).max() <= limit


def test_dense_on_more_than_two_axes_and_conv3d_channels_last() -> None:
    ones = flow.ones_initializer()
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 5, 3)).astype(np.float32)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(x.shape)) -> tuple[tp.Numpy, tp.Numpy]:
        return flow.layers.dense(x, 2, kernel_initializer=ones), flow.layers.conv3d(
            x, 4, 2, padding="SAME", data_format="NDHWC", kernel_initializer=ones
        )

    dense, conv = job(x)
    np.testing.assert_allclose(dense, np.repeat(x.sum(-1, keepdims=True), 2, -1), rtol=1e-5, atol=1e-5)
    assert conv.shape == (2, 3, 4, 5, 4)
    padded = np.pad(x.sum(-1), [(0, 0), (1, 0), (1, 0), (1, 0)])
    expected = sum(padded[:, i : i + 3, j : j + 4, k : k + 5] for i in (0, 1) for j in (0, 1) for k in (0, 1))
    np.testing.assert_allclose(conv[..., 3], expected, rtol=1e-5, atol=1e-5)


def test_batch_normalization_follows_pytorch() -> None:
    """Except that our moving variance takes the biased variance: PyTorch's, scaled back, agrees."""

    def body(x: Any) -> Any:
        y = flow.layers.batch_normalization(x, axis=1, momentum=0.9, epsilon=1e-3, name="bn")
        return y * y * flow.constant_like(y, 0.01)

    theirs = torch.nn.BatchNorm2d(3, eps=1e-3, momentum=0.1)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=1.0)
    ours = train(body, X, steps=3)
    for y in ours:
        optimizer.zero_grad()
        expected = theirs(torch.tensor(X)) ** 2 * 0.01
        expected.sum().backward()
        np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
        optimizer.step()
    found = values()
    np.testing.assert_allclose(found["bn-gamma"], theirs.weight.detach().numpy(), rtol=1e-4)
    np.testing.assert_allclose(found["bn-beta"], theirs.bias.detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["bn-moving_mean"], theirs.running_mean.numpy(), rtol=1e-4, atol=1e-6)
    count = X.size // 3
    kept = 0.9**3
    unbiased = theirs.running_var.numpy()
    np.testing.assert_allclose(found["bn-moving_variance"], kept + (unbiased - kept) * (count - 1) / count, rtol=1e-4)

    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
        return flow.layers.batch_normalization(x, axis=1, epsilon=1e-3, name="bn")

    mean, variance, gamma, beta = (found[f"bn-{k}"][:, None, None] for k in ("moving_mean", "moving_variance", "gamma", "beta"))
    np.testing.assert_allclose(predict(X), (X - mean) / np.sqrt(variance + 1e-3) * gamma + beta, rtol=1e-4, atol=1e-5)
    after = values()
    assert all((after[name] == found[name]).all() for name in found), "a predict job moved the statistics"


@pytest.mark.parametrize("arguments", [{"training": False}, {"trainable": False}])
def test_batch_normalization_with_fixed_statistics(arguments: dict[str, Any]) -> None:
    shift = flow.constant_initializer(0.5)

    def body(x: Any) -> Any:
        w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
        return flow.layers.batch_normalization(x * w, -1, name="bn", moving_mean_initializer=shift, **arguments)

    (y,) = train(body, X)
    np.testing.assert_allclose(y, (X - 0.5) / np.sqrt(1.001), rtol=1e-5, atol=1e-5)
    found = values()
    assert (found["bn-moving_mean"] == 0.5).all()
    np.testing.assert_allclose(found["w"], 1 - X.sum() / np.sqrt(1.001), rtol=1e-3)
    moved = found["bn-beta"].any()
    assert moved == (arguments == {"training": False})


def test_batch_normalization_relu_and_addend() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(X.shape)) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        return (
            flow.layers.batch_normalization_relu(x, 1),
            flow.layers.batch_normalization_add_relu(x, x, 1),
            flow.layers.batch_normalization_add_relu(x, axis=1),
        )

    for y, factor in zip(job(X), (1, 2, 1), strict=True):
        scale = 1 / np.sqrt(1.001) + factor - 1
        np.testing.assert_allclose(y, np.maximum(X * scale, 0), rtol=1e-5)


def test_half_precision_has_float32_parameters() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 8), dtype=flow.float16)) -> tuple[tp.Numpy, tp.Numpy]:
        return flow.layers.batch_normalization(x), flow.layers.layer_norm(x)

    results = job(np.ones((4, 8), np.float16))
    assert [r.dtype for r in results] == [np.float16, np.float16]
    assert {v.dtype for v in values().values()} == {np.dtype(np.float32)}


def test_normalizations_of_many_numbers() -> None:
    """So many that the native part computes them, where it is installed."""
    x = np.random.default_rng(3).normal(2, 3, (16, 8, 9, 11)).astype(np.float32)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(x.shape)) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        rows = flow.reshape(x, (16 * 8, 99))
        return flow.layers.layer_norm(rows), flow.nn.GroupNorm(x, num_groups=2), flow.nn.InstanceNorm2d(x)

    given = torch.tensor(x)
    functional = torch.nn.functional
    expected = (
        functional.layer_norm(given.reshape(128, 99), (99,)), functional.group_norm(given, 2), functional.instance_norm(given)
    )  # fmt: skip
    for mine, theirs in zip(job(x), expected, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_prelu_learns_its_slope() -> None:
    (y,) = train(lambda x: flow.layers.prelu(x, flow.constant_initializer(0.25), shared_axes=[2, 3], name="p"), X, rate=0.1)
    np.testing.assert_allclose(y, np.where(X > 0, X, 0.25 * X), rtol=1e-6)
    expected = 0.25 - 0.1 * np.minimum(X, 0).sum((0, 2, 3))
    np.testing.assert_allclose(values()["p-alpha"][:, 0, 0], expected, rtol=1e-4)


def test_regularizers_change_the_gradient_only() -> None:
    kernel = flow.constant_initializer(2.0)

    def body(x: Any) -> Any:
        return flow.layers.dense(
            x,
            2,
            kernel_initializer=kernel,
            kernel_regularizer=flow.regularizers.l1_l2(0.5, 0.25),
            bias_regularizer=flow.regularizers.l1(0.125),
        )

    (y,) = train(body, np.zeros((3, 4), np.float32))
    assert not y.any()
    found = values()
    np.testing.assert_allclose(found["Dense-weight"], 2.0 - (0.5 + 0.25 * 2.0))
    np.testing.assert_allclose(found["Dense-bias"], -3.0 - 0.125)  # the sign at 0 is +1


def test_ordinal_encoder_keeps_its_numbers() -> None:
    @flow.global_function()
    def job(keys: tp.Numpy.Placeholder((5,), dtype=flow.int64)) -> tp.Numpy:
        return flow.layers.categorical_ordinal_encoder(keys, capacity=4, name="e")

    assert job(np.array([7, 3, 7, -1, 0])).tolist() == [1, 2, 1, 3, 0]
    assert job(np.array([3, 11, 7, -1, 15])).tolist() == [2, 4, 1, 3, 0]  # the fifth key finds no place
    assert job(np.array([15, 11, 3, 7, 7])).tolist() == [0, 4, 2, 1, 1]
    found = values()
    assert found["e-Size"].tolist() == [4]
    pairs = found["e-Table"].reshape(4, 2)
    assert sorted(map(tuple, pairs.tolist())) == [(-1, 3), (3, 2), (7, 1), (11, 4)]


def test_sizes_that_vary_are_padded_by_their_true_size() -> None:
    """SAME depends on the input's size, which may be smaller than the declared one."""

    @flow.global_function()
    def job(x: tp.ListNumpy.Placeholder((1, 1, 8, 8))) -> tp.ListNumpy:
        return flow.nn.max_pool2d(
            flow.layers.conv2d(x, 1, 3, 2, "SAME", kernel_initializer=flow.ones_initializer()), 2, 2, "SAME"
        )

    x = np.arange(49, dtype=np.float32).reshape(1, 1, 7, 7)
    conv = torch.nn.functional.conv2d(torch.tensor(x), torch.ones(1, 1, 3, 3), stride=2, padding=1)
    (y,) = job([x])
    np.testing.assert_allclose(y, torch.nn.functional.max_pool2d(conv, 2).numpy())


# --- modules


def test_modules_count_their_calls() -> None:
    class Twice(flow.nn.Module):
        def forward(self, x: Any) -> Any:
            return flow.math.add(x, x, name=f"{self.module_name}-{self.call_seq_no}")

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        for _ in range(2):
            twice = find_or_create_module("twice", lambda: Twice("twice"), reuse=True)
            x = twice(x)
        assert x.op_name == "twice-1" and twice.call_seq_no == 2
        with pytest.raises(DuplicateNameError, match="reuse=True"):
            find_or_create_module("twice", Twice)
        return x

    assert job(np.ones(2, np.float32)).tolist() == [4, 4]
    with pytest.raises(ArgumentError, match="forward instead"):
        type("Wrong", (flow.nn.Module,), {"__call__": lambda self: None})
    assert Twice().module_name != Twice().module_name


LAYERS = {
    "dense": lambda x, name: flow.layers.dense(x, 2, name=name),
    "conv1d": lambda x, name: flow.layers.conv1d(flow.reshape(x, (2, 3, 1)), 2, name=name),
    "batch_normalization": lambda x, name: flow.layers.batch_normalization(x, name=name),
    "batch_normalization_add_relu": lambda x, name: flow.layers.batch_normalization_add_relu(x, x, name=name),
    "layer_norm": lambda x, name: flow.layers.layer_norm(x, name=name),
    "prelu": lambda x, name: flow.layers.prelu(x, name=name),
    "observer": lambda x, name: flow.quantization.moving_average_min_max_observer(x, name=name)[0],
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_name_that_is_taken(layer: str) -> None:
    """The error names what layers have: ``name=``, and no ``reuse=``, which is an argument of get_variable alone."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        LAYERS[layer](x, "one")
        return LAYERS[layer](x, "one")

    with pytest.raises(
        DuplicateNameError, match=r"(?s)already exists in this job.*your line.*give this layer another name="
    ) as caught:
        job(np.zeros((2, 3), np.float32))
    assert "reuse" not in str(caught.value)


def test_a_variable_that_exists() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        for _ in range(2):
            w = flow.get_variable("w", (1,), initializer=flow.ones_initializer(), reuse=False)
        return x * w

    with pytest.raises(DuplicateNameError, match="give it another name, or leave out reuse=False to share the variable"):
        job(np.zeros((2, 3), np.float32))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(flow.int8, 300), (flow.int8, 10**25), (flow.int64, 2**63), (flow.int32, -(2**40)), (flow.float16, 1e6)],
)
def test_a_first_value_that_the_dtype_cannot_hold(dtype: flow.dtype, value: float) -> None:
    kind = flow.int64 if isinstance(value, int) else flow.float32

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        flow.get_variable("w", (1,), dtype, flow.constant_initializer(value, kind))
        return x

    with pytest.raises(ArgumentError, match=rf"(?s)its first value .* is outside {dtype.name}'s range.*your line"):
        job(np.zeros((2, 3), np.float32))


def test_embedding() -> None:
    torch = pytest.importorskip("torch")
    ids = np.array([[1, 0, 3], [3, 3, 2]], np.int32)

    @flow.global_function("train")
    def train(ids: tp.Numpy.Placeholder((2, 3), dtype=flow.int32)) -> tp.Numpy:
        rows = flow.layers.embedding(ids, 5, 4, name="tokens")
        flow.optimizer.SGD(1.0, momentum=0).minimize(flow.math.reduce_sum(flow.math.square(rows)))
        return rows

    module = torch.nn.Embedding(5, 4)
    flow.load_variables(flow.interop.from_torch({"tokens.weight": module.weight}, train))
    expected = module(torch.from_numpy(ids).long())
    (expected**2).sum().backward()
    np.testing.assert_array_equal(train(ids), expected.detach().numpy())
    wanted = (module.weight - module.weight.grad).detach().numpy()
    np.testing.assert_allclose(flow.get_all_variables()["tokens-weight"].numpy(), wanted, rtol=1e-6)


def test_embedding_begins_at_random_and_is_numbered() -> None:
    @flow.global_function()
    def job(ids: tp.Numpy.Placeholder((4,), dtype=flow.int64)) -> tp.Numpy:
        return flow.layers.embedding(ids, 100, 50) + flow.layers.embedding(ids, 100, 50)

    job(np.zeros(4, np.int64))
    found = flow.get_all_variables()
    assert set(found) == {"Embedding-weight", "Embedding_1-weight"}
    assert abs(found["Embedding-weight"].numpy().std() - 1) < 0.05
    with pytest.raises(flow.errors.DtypeError, match="ids must be int32 or int64, got float32"):

        @flow.global_function()
        def wrong(ids: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
            return flow.layers.embedding(ids, 100, 50)

        wrong(np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("data_format", "axis", "meant"), [("NCHW", -1, 1), ("NCHW", 1, None), ("NHWC", -1, None), ("NHWC", 1, 3)]
)  # fmt: skip
def test_batch_normalization_of_another_axis_than_the_convolutions_channels_is_told(
    data_format: str, axis: int, meant: int | None
) -> None:
    def body(x: Any) -> Any:
        h = flow.layers.conv2d(x, 4, 3, padding="SAME", data_format=data_format, activation=flow.nn.relu)
        return flow.layers.batch_normalization(h, axis)

    with warnings.catch_warnings(record=True, action="always") as told:
        shapes_of(body, (2, 5, 5, 5))
    hints = [str(w.message) for w in told if issubclass(w.category, JobWarning) and "batch_normalization" in str(w.message)]
    assert hints == [] if meant is None else len(hints) == 1 and hints[0].endswith(f"try        axis={meant}")


@pytest.mark.parametrize(("shape", "told"), [((2, 28, 28, 1), True), ((2, 1, 28, 28), False), ((2, 28, 28, 28), False)])
def test_a_convolution_of_images_that_look_channels_last_is_told(shape: tuple[int, ...], told: bool) -> None:
    with warnings.catch_warnings(record=True, action="always") as seen:
        shapes_of(lambda x: flow.layers.conv2d(x, 4, 3, padding="SAME"), shape)
    assert any("looks like images whose channels come last" in str(w.message) for w in seen) is told
