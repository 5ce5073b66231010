"""Where OneFlow 0.3.4 contradicts its documentation or plain sense: each entry of its list of defects, and what is done here.

docs/compatibility.md has the same list in words.
"""

from __future__ import annotations

import numpy as np
import pytest
from table import Row, run, trace

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, JobWarning

X = np.array([[-2.0, 0.5, 3.0], [1.0, -1.5, 2.0]], np.float32)
ONE = np.array([3.0], np.float32)
INT = np.array([[7, -7, 2]], np.int32)


def value(build, *inputs):
    found = run(Row("", build, None, inputs), inputs)
    return found[0] if len(found) == 1 else found


def body(build, *shapes):
    return trace(build, [(s, np.float32) for s in shapes])


@pytest.fixture(autouse=True)
def _x64():
    import jax

    with jax.enable_x64(True):
        yield


def test_operands_of_shape_1():
    np.testing.assert_allclose(value(lambda a, x: a - x, ONE, X), 3 - X)
    np.testing.assert_allclose(value(lambda a, x: a / x, ONE, X), 3 / X, rtol=1e-6)


def test_fan_out_of_channels_first_weights():
    initializer = flow.variance_scaling_initializer(1.0, "fan_out", "random_normal", "NCHW")
    drawn = initializer.draw((64, 3, 7, 7), np.dtype(np.float32), np.random.default_rng(0))
    assert drawn.std() == pytest.approx((1 / (64 * 49)) ** 0.5, rel=0.05)


def test_layer_norm_applies_gamma():
    def build(x):
        gamma = flow.constant(3.0, flow.float32, (3,))
        return flow.nn.layer_norm(x, gamma), flow.nn.layer_norm(x), flow.layers.layer_norm(x)

    scaled, plain, layer = value(build, X)
    np.testing.assert_allclose(scaled, 3 * plain, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(layer, plain, rtol=1e-6, atol=1e-6)


def test_dense_kernels_start_at_zero():
    np.testing.assert_array_equal(value(lambda x: flow.layers.dense(x, 4, use_bias=False), X), np.zeros((2, 4)))


def test_unnamed_layers_and_ops_do_not_collide():
    def build(x):
        x = flow.layers.dense(flow.layers.dense(x, 4), 4)
        for _ in range(2):
            flow.random.bernoulli(flow.math.sigmoid(x))
            flow.random.coin_flip(4)
            flow.range(3, dtype=flow.int32)
        return x

    graph, _ = body(build, (2, 3))
    assert {"Dense-weight", "Dense_1-weight"} <= graph.variables.keys()


def test_bce_with_logits_without_pos_weight():
    target = (X > 0).astype(np.float32)
    found = value(lambda x, t: flow.nn.BCEWithLogitsLoss(x, t, reduction="none"), X, target)
    np.testing.assert_allclose(found, np.log1p(np.exp(-X)) + (1 - target) * X, rtol=1e-5, atol=1e-6)


def test_shuffle_takes_a_seed():
    shuffled = value(lambda x: flow.random.shuffle(x, seed=3), np.arange(8, dtype=np.float32).reshape(8, 1))
    assert sorted(shuffled[:, 0].tolist()) == list(range(8))


def test_group_norm_scales_channels():
    graph, _ = body(lambda x: flow.nn.GroupNorm(x, num_groups=2, name="g"), (2, 6, 4))
    assert {v.shape for v in graph.variables.values()} == {(1, 6, 1)}


def test_reflection_pad2d_with_a_list():
    image = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    found = value(lambda x: flow.reflection_pad2d(x, [0, 0, 1, 2]), image)
    np.testing.assert_array_equal(found, np.pad(image, [(0, 0), (0, 0), (1, 1), (2, 2)], mode="reflect"))
    with pytest.warns(JobWarning, match="single_client.reflection_pad2d takes"):
        found = value(lambda x: flow.reflection_pad2d(x, [1, 2, 0, 1]), image)
    np.testing.assert_array_equal(found, np.pad(image, [(0, 0), (0, 0), (0, 0), (1, 1)], mode="reflect"))


def test_whole_numbers():
    assert value(lambda x: flow.math.reduce_mean(x, 1), INT).tolist() == [0]  # 2 / 3
    assert value(lambda x: flow.math.reduce_mean(x + 3, 1), INT).tolist() == [3]
    np.testing.assert_array_equal(value(lambda x: flow.math.reduce_mean(x, []), X), X)
    assert value(lambda x: x / 2, INT).tolist() == [[3, -3, 1]]


def test_defaults_that_raised():
    np.testing.assert_array_equal(value(lambda x: flow.one_hot(x, 3), np.array([2, 0], np.int32)), [[0, 0, 1], [1, 0, 0]])
    np.testing.assert_allclose(value(lambda x: flow.math.l2_normalize(x), X), X / np.linalg.norm(X), rtol=1e-6)


def test_infinite_bounds_of_clip():
    np.testing.assert_array_equal(value(lambda x: flow.clip(x, 0.0, float("inf")), X), np.maximum(X, 0))
    np.testing.assert_array_equal(value(lambda x: flow.clip(x, float("-inf"), 1.0), X), np.minimum(X, 1))


def test_kept_duplicates_of_an_update_sum():
    at, updates = np.array([[1], [1]], np.int32), np.array([2.0, 3.0], np.float32)
    found = value(lambda x, i, u: flow.tensor_scatter_nd_update(x, i, u), np.ones(3, np.float32), at, updates)
    assert found.tolist() == [1, 5, 1]


@pytest.mark.parametrize(("at", "wanted"), [((1, 2), 7), ((0, 0), 7), ((-1, 2), None), ((2, 0), None), ((0, 3), None)])
def test_one_update_replaces_one_place_or_none(at, wanted):
    table = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    expected = table.copy()
    if wanted is not None:
        expected[at] = wanted
    places, updates = np.array([at], np.int32), np.full((1, 2), 7, np.float32)
    found = value(lambda x, i, u: flow.tensor_scatter_nd_update(x, i, u), table, places, updates)
    np.testing.assert_array_equal(found, expected)


def test_kept_an_index_too_large_gives_zeros():
    assert value(lambda x, i: flow.gather(x, i), np.ones(3, np.float32), np.array([0, 5], np.int32)).tolist() == [1, 0]


@pytest.mark.parametrize("data_format", ["nchw", "Nchw"])
def test_formats_are_never_guessed(data_format):
    weight = np.ones((2, 3, 1, 1), np.float32)
    build = lambda x, w: flow.nn.conv2d(x, w, 1, "VALID", data_format)  # noqa: E731
    image = np.ones((1, 3, 4, 5), np.float32)
    try:
        found = value(build, image, weight)
    except ArgumentError as error:
        assert "NCHW" in str(error)
    else:
        np.testing.assert_allclose(found, np.full((1, 2, 4, 5), 3.0))


def test_losses_and_norms_neither_overflow_nor_vanish():
    big = np.array([[1000.0, 0.0, -1000.0]], np.float32)
    np.testing.assert_allclose(value(lambda x: flow.nn.logsoftmax(x), big), [[0, -1000, -2000]])
    np.testing.assert_allclose(value(lambda x: flow.math.reduce_logsumexp(x), big), [1000])
    np.testing.assert_allclose(value(lambda x: flow.math.softplus(x), big), [[1000, np.log(2), 0]], rtol=1e-6)
    np.testing.assert_allclose(value(lambda x: flow.math.log_sigmoid(x), big), [[0, -np.log(2), -1000]], rtol=1e-6)
    sure = np.array([[0.0, 1.0]], np.float32)
    assert np.isfinite(value(lambda x, t: flow.nn.BCELoss(x, t, reduction="none"), sure, sure[:, ::-1].copy())).all()


def test_settings_that_always_failed():
    config = flow.FunctionConfig()
    config.exp_run_conf({})
    assert config.get("exp_run_conf") == {}


def test_small_dtypes_of_indices_reach_all_rows():
    @flow.global_function("train")
    def step(ids: tp.Numpy.Placeholder((1,), dtype=flow.uint8)) -> tp.Numpy:
        rows = flow.layers.embedding(ids, 300, 2, name="e", initializer=flow.ones_initializer())
        flow.optimizer.SGD(1.0, momentum=0).minimize(flow.math.reduce_sum(rows))
        return rows

    assert [float(step(np.array([200], np.uint8))[0, 0]) for _ in range(3)] == [1.0, 0.0, -1.0]
    hot = value(lambda i: flow.one_hot(i, 300, dtype=flow.float32), np.array([5, 100], np.int8))
    assert np.argwhere(hot).tolist() == [[0, 5], [1, 100]]
