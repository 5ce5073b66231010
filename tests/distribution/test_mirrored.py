"""The mirrored view: lists, one tensor per device."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from placed_jobs import begin, constant

import oneflow as flow
import oneflow.typing as tp


def mirrored() -> flow.FunctionConfig:
    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.mirrored_view())
    return config


def train(devices: int, rate: float):
    begin(devices)
    batch = 8 // devices

    @flow.global_function(type="train", function_config=mirrored())
    def step(x: tp.ListNumpy.Placeholder((batch, 5)), y: tp.ListNumpy.Placeholder((batch,), dtype=flow.int32)) -> tp.ListNumpy:
        start = flow.random_normal_initializer(stddev=0.4)
        h = flow.layers.dense(x, 6, activation=flow.math.tanh, kernel_initializer=start, name="first")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(
            y, flow.layers.dense(h, 3, kernel_initializer=start, name="second")
        )
        flow.optimizer.SGD(constant(rate), momentum=0).minimize(loss)
        return loss

    rng = np.random.default_rng(0)
    losses = []
    for _ in range(3):
        x, y = rng.standard_normal((8, 5)).astype("f"), rng.integers(0, 3, 8).astype("i")
        found = step(np.split(x, devices), np.split(y, devices))
        assert [piece.shape for piece in found] == [(batch,)] * devices
        losses.append(np.concatenate(found))
    return np.stack(losses), {n: v.numpy() for n, v in flow.get_all_variables().items()}


@pytest.mark.parametrize("devices", [2, 4])
def test_gradients_of_the_devices_are_added(devices):
    expected, variables = train(1, 0.2)
    losses, found = train(devices, 0.2 / devices)  # each device's gradient is of its own mean
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for name, value in variables.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "op",
    [
        lambda y, z, h: flow.nn.sparse_softmax_cross_entropy_with_logits(y, h),
        lambda y, z, h: flow.nn.softmax_cross_entropy_with_logits(z, h),
        lambda y, z, h: flow.nn.sigmoid_cross_entropy_with_logits(z, h),
        lambda y, z, h: flow.smooth_l1_loss(h, z),
        lambda y, z, h: flow.nn.MSELoss(h, z, reduction="none"),
        lambda y, z, h: flow.concat([z, h], axis=1),
        lambda y, z, h: flow.stack([z, h], axis=1),
        lambda y, z, h: flow.math.add_n([z, h]),
        lambda y, z, h: z * h,
    ],
)
def test_logical_tensors_are_split_for_ops_that_also_take_one_per_device(op):
    rng = np.random.default_rng(0)
    x, z, y = rng.standard_normal((4, 3)).astype("f"), rng.random((4, 3)).astype("f"), rng.integers(0, 3, 4).astype("i")

    def value(devices):
        begin(devices)

        @flow.global_function(function_config=mirrored() if devices > 1 else None)
        def job(
            x: tp.Numpy.Placeholder((4, 3)), z: tp.Numpy.Placeholder((4, 3)), y: tp.Numpy.Placeholder((4,), dtype=flow.int32)
        ) -> tp.Numpy:
            with flow.scope.placement("cpu", f"0:0-{devices - 1}"):
                return op(y, z, flow.layers.dense(x, 3, kernel_initializer=flow.ones_initializer(), name="dense"))

        return job(x, z, y)

    np.testing.assert_allclose(value(2), value(1), rtol=1e-5)


def test_statistics_of_batch_normalization_are_each_devices_own():
    begin(2)

    @flow.global_function(type="train", function_config=mirrored())
    def step(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:
        y = flow.layers.batch_normalization(x, axis=1, momentum=0.5, name="norm")
        loss = flow.math.reduce_mean(flow.math.square(y), axis=[1])
        flow.optimizer.SGD(constant(0.0), momentum=0).minimize(loss)
        return y

    @flow.global_function(type="predict", function_config=mirrored())
    def evaluate(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:
        return flow.layers.batch_normalization(x, axis=1, training=False, name="norm")

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((4, 3)).astype("f") * scale for scale in (1, 10))
    out = step([a, b])
    for x, y in zip((a, b), out, strict=True):
        np.testing.assert_allclose(y, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3), rtol=1e-3, atol=1e-4)
    moving = flow.get_all_variables()["norm-moving_mean"]
    np.testing.assert_allclose(moving.numpy(), 0.5 * a.mean(0), rtol=1e-5, atol=1e-6)  # a checkpoint has one device's
    zeros = np.zeros((4, 3), np.float32)
    first, second = evaluate([zeros, zeros])
    assert not np.allclose(first, second)


def test_tensors_of_different_shapes():
    def run(sizes: list[int]):
        begin(len(sizes))
        seen = []

        @flow.global_function(type="train", function_config=mirrored())
        def step(x: tp.ListNumpy.Placeholder((8, 3))) -> tuple[tp.ListNumpy, tp.ListNumpy]:
            w = flow.get_variable("w", (3, 2), initializer=flow.ones_initializer())
            h = flow.math.square(flow.matmul(x, w))
            flow.watch(h, lambda value: seen.append([p.shape for p in value.numpy_list()]))
            loss = flow.math.reduce_mean(h)
            flow.optimizer.SGD(constant(0.01), momentum=0).minimize(loss)
            return h, loss

        xs = [np.random.default_rng(i).standard_normal((n, 3)).astype("f") for i, n in enumerate(sizes)]
        h, loss = step(xs)
        flow.sync_default_session()
        assert seen == [[(n, 2) for n in sizes]]
        return xs, h, loss, flow.get_all_variables()["w"].numpy()

    xs, h, loss, w = run([8, 5, 2])
    start = np.ones((3, 2), np.float32)
    for x, y, value in zip(xs, h, loss, strict=True):
        np.testing.assert_allclose(y, (x @ start) ** 2, rtol=1e-5)
        np.testing.assert_allclose(value, [np.mean((x @ start) ** 2)], rtol=1e-5)
    gradient = sum(x.T @ (2 * (x @ start)) / (len(x) * 2) for x in xs)
    np.testing.assert_allclose(w, start - 0.01 * gradient, rtol=1e-4, atol=1e-6)


def test_only_some_inputs_differ_in_shape():
    begin(2)

    @flow.global_function(function_config=mirrored())
    def scaled(x: tp.ListNumpy.Placeholder((8, 3)), by: tp.ListNumpy.Placeholder((3,))) -> tp.ListNumpy:
        return x * by

    xs, by = [np.full((n, 3), n, np.float32) for n in (5, 2)], [np.arange(3, dtype=np.float32), np.ones(3, np.float32)]
    for _ in range(2):
        for y, x, b in zip(scaled(xs, by), xs, by, strict=True):
            np.testing.assert_array_equal(y, x * b)


def test_elements_of_lists_differ_in_shape():
    begin(2)
    seen = []

    @flow.global_function(function_config=mirrored())
    def scaled(x: tp.ListListNumpy.Placeholder((2, 6, 4))) -> tuple[tp.ListNumpy, tp.ListNumpy, tp.ListNumpy]:
        first, second = flow.tensor_list_split(x)
        flow.watch(first, lambda value: seen.append([piece.shape for piece in value.numpy_list()]))
        return first, first * 2.0, second + 1.0

    lists = [[np.full((1, 2 + i, 4), i, np.float32), np.full((1, 3, 4), 7 + i, np.float32)] for i in range(2)]
    for (a, b), same, doubled, more in zip(lists, *scaled(lists), strict=True):
        np.testing.assert_array_equal(same, a[0])
        np.testing.assert_array_equal(doubled, a[0] * 2)
        np.testing.assert_array_equal(more, b[0] + 1)
    flow.sync_default_session()
    assert seen == [[(2, 4), (3, 4)]]


def test_pieces_that_differ_in_shape_are_joined():
    begin(2)

    @flow.global_function(function_config=mirrored())
    def total(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:
        with flow.scope.consistent_view():
            return flow.math.reduce_sum(x, axis=[0])

    (found,) = total([np.ones((2, 3), np.float32), np.full((1, 3), 5, np.float32)])
    np.testing.assert_array_equal(found, [7, 7, 7])


def test_losses_of_different_sizes_are_refused():
    begin(2)

    @flow.global_function(type="train", function_config=mirrored())
    def step(x: tp.ListNumpy.Placeholder((8, 3))) -> tp.ListNumpy:
        loss = flow.matmul(x, flow.get_variable("w", (3, 1), initializer=flow.ones_initializer()))
        flow.optimizer.SGD(constant(0.1), momentum=0).minimize(loss)
        return loss

    with pytest.raises(flow.errors.OneFlowError, match="differ in shape"):
        step([np.ones((8, 3), np.float32), np.ones((5, 3), np.float32)])
    assert step([np.ones((8, 3), np.float32)] * 2)[1].shape == (8, 1)


def test_another_number_of_devices_is_refused():
    begin(2)

    @flow.global_function(function_config=mirrored())
    def joined(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:
        with flow.scope.placement("gpu", "0:0"):
            return flow.math.relu(x)

    with pytest.raises(flow.errors.ViewError, match=r"one tensor for each of 2 devices, and the scope has 1 device"):
        joined([np.ones((4, 3), np.float32)] * 2)


def test_a_list_of_another_length_is_refused():
    begin(2)

    @flow.global_function(type="predict", function_config=mirrored())
    def job(x: tp.ListNumpy.Placeholder((2, 3))) -> tp.ListNumpy:
        return flow.math.relu(x)

    with pytest.raises(flow.errors.FeedError, match="2 elements, one per device"):
        job([np.ones((2, 3), np.float32)])
    assert len(job([np.ones((2, 3), np.float32)] * 2)) == 2


def test_conversion_between_the_views():
    begin(2)

    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        with flow.scope.mirrored_view():
            own = flow.cast_to_current_logical_view(x)
            assert own.shape == (2, 3)
            largest = flow.math.reduce_max(own)  # one per device
            doubled = flow.math.add(own, own)
        with flow.scope.consistent_view():
            again = flow.math.negative(doubled)
            assert again.shape == (4, 3)
        return again, largest, doubled

    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    again, largest, doubled = job(x)
    np.testing.assert_array_equal(again, -2 * x)
    np.testing.assert_array_equal(largest, [5, 11])
    np.testing.assert_array_equal(doubled, 2 * x)


def test_pieces_that_would_differ_are_refused_when_the_job_is_built():
    begin(2)

    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((3, 3))) -> tp.Numpy:
        with flow.scope.mirrored_view():
            return flow.math.relu(x)

    with pytest.raises(flow.errors.ShapeError, match="does not divide over 2 devices"):
        job(np.ones((3, 3), np.float32))


def test_dropout_and_callbacks_in_the_mirrored_view():
    begin(2)

    @flow.global_function(type="predict", function_config=mirrored())
    def job(x: tp.ListNumpy.Placeholder((64, 8))) -> tp.Callback[tp.ListNumpy]:
        return flow.nn.dropout(x, 0.5)

    @flow.global_function(type="train", function_config=mirrored())
    def drop(x: tp.ListNumpy.Placeholder((64, 8))):
        w = flow.get_variable("w", (8,), initializer=flow.ones_initializer())
        y = flow.nn.dropout(flow.math.multiply(x, w), 0.5)
        flow.optimizer.SGD(constant(0.0), momentum=0).minimize(y)
        return y

    ones = [np.ones((64, 8), np.float32)] * 2
    seen = []
    job(ones)(seen.append)
    flow.sync_default_session()
    assert len(seen[0]) == 2
    pieces = drop(ones).get()
    assert pieces.parallel_num() == 2 and pieces.numpy(1).shape == (64, 8)
    assert not np.array_equal(*pieces.numpy_list())  # each device draws its own mask


def test_each_device_has_its_own_size_that_depends_on_data():
    begin(2)
    seen = []

    def on_value(value: tp.ListNumpy) -> None:
        seen.append(value)

    @flow.global_function(type="train", function_config=mirrored())
    def step(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:
        w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
        found = flow.gather_nd(x, flow.argwhere(x > 0))
        flow.watch(found, on_value)
        flow.optimizer.SGD(constant(0.1), momentum=0).minimize(found * w)
        return found

    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 3)).astype(np.float32)
    for first, second in ((x, x), (x, -x), (x, x[:2])):
        for pieces in (step([first, second]), seen[-1]):
            np.testing.assert_array_equal(pieces[0], first[first > 0])
            np.testing.assert_array_equal(pieces[1], second[second > 0])
        if first is second:  # the sum of both devices' means
            np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), [1 - 0.2 * x[x > 0].mean()], rtol=1e-5)


def test_sizes_that_depend_on_data_between_the_views():
    begin(2)

    @flow.global_function()
    def to_devices(x: tp.Numpy.Placeholder((4, 3))) -> tp.ListNumpy:
        places = flow.argwhere(x > 0)
        with flow.scope.mirrored_view():
            return places * 2

    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    for piece in to_devices(x):
        np.testing.assert_array_equal(piece, np.argwhere(x > 0) * 2)

    @flow.global_function()
    def together(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:
        places = flow.argwhere(x > 0)
        with flow.scope.consistent_view():
            return places * 2

    with pytest.raises(flow.errors.ShapeError, match="its size depends on data, and may differ from device to device"):
        together([x, x])


def test_each_device_has_a_list_of_its_own():
    begin(2)

    @flow.global_function(type="predict")
    def job(x: tp.ListListNumpy.Placeholder((2, 3))) -> tuple[tp.ListListNumpy, tp.ListListNumpy]:
        shorter = flow.tensor_buffer_to_tensor_list(flow.tensor_list_to_tensor_buffer(x), (3,), flow.int32)
        return x, shorter

    given = [[np.full((1, size), k, np.float32) for size in sizes] for k, sizes in enumerate(((1, 3), (2, 2)))]
    same, whole = job(given)
    for found in (same, whole):
        assert [[a.tolist() for a in arrays] for arrays in found] == [[a.tolist() for a in arrays] for arrays in given]
    assert whole[0][0].dtype == np.int32


def test_ops_that_compare_shapes_take_inputs_of_the_consistent_view():
    begin(2)
    residual = functools.partial(flow.layers.batch_normalization_add_relu, training=False, name="norm")

    @flow.global_function()
    def job(
        x: tp.Numpy.Placeholder((4, 3)), y: tp.Numpy.Placeholder((4, 3)), at: tp.Numpy.Placeholder((4, 1), dtype=flow.int32)
    ) -> list[tp.ListNumpy]:
        with flow.scope.mirrored_view():
            mine = x * 1  # two rows on each device
            first = flow.slice_update(x, flow.slice(y, [0, 0], [1, -1]), [(0, 1, 1)])
            places = flow.constant(1, dtype=flow.int32, shape=(1, 1))
            second = flow.tensor_scatter_nd_update(x, places, flow.slice_v2(y, [(1, 2, 1)]))
            rows = flow.scatter_nd(at, y, [3, 3])
            return [first, second, rows, flow.math.add_n([mine, y]), flow.math.tanh_grad(mine, y), residual(mine, y)]

    random = np.random.default_rng(0)
    x, y = random.standard_normal((2, 4, 3)).astype(np.float32)
    first, second, rows, total, slope, ends = job(x, y, np.array([[0], [2], [0], [2]], np.int32))
    for k in range(2):
        a, b = x[2 * k : 2 * k + 2], y[2 * k : 2 * k + 2]
        np.testing.assert_array_equal(first[k], [b[0], a[1]])
        np.testing.assert_array_equal(second[k], [a[0], b[1]])
        np.testing.assert_array_equal(rows[k], [b[0], [0, 0, 0], b[1]])
        np.testing.assert_allclose(total[k], a + b, rtol=1e-6)
        np.testing.assert_allclose(slope[k], b * (1 - a * a), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(ends[k], np.maximum(a / np.sqrt(1.001) + b, 0), rtol=1e-4, atol=1e-6)
