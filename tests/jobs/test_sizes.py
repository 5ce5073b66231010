"""Jobs with sizes that vary: Blobs whose size depends on data, and inputs that calls are fed with in several sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import FeedShapeError, ResultError, ReturnError, ShapeError
from oneflow.runtime import variants

F32 = np.float32


def sgd(rate: float = 1.0) -> flow.optimizer.SGD:
    return flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [rate]), momentum=0)


def positive(x):
    return flow.gather_nd(x, flow.argwhere(x > 0))


# --- sizes that depend on data


def test_true_sizes_against_numpy():
    @flow.global_function()
    def job(
        x: tp.Numpy.Placeholder((3, 4)), ids: tp.Numpy.Placeholder((6,), dtype=flow.int32)
    ) -> tuple[tp.ListNumpy, tp.ListNumpy, tp.ListNumpy, tp.ListNumpy, list[tp.ListNumpy], list[tp.Numpy]]:
        unique = flow.experimental.unique_with_counts(ids, flow.int64)
        return (
            flow.argwhere(x), flow.nonzero(x), flow.where(x), positive(x) * 2, list(unique), list(unique),
        )  # fmt: skip

    small = st.sampled_from([0.0, 1.0, -2.0])

    @settings(max_examples=40, deadline=None)
    @given(arrays(F32, (3, 4), elements=small), arrays(np.int32, (6,), elements=st.integers(-2, 2)))
    def check(x, ids):
        (places,), (columns,), (same,), (chosen,), cut, whole = job(x, ids)
        np.testing.assert_array_equal(places, np.argwhere(x).reshape(-1, 2))
        np.testing.assert_array_equal(columns, np.array(np.nonzero(x)))
        np.testing.assert_array_equal(same, places)
        np.testing.assert_array_equal(chosen, x[x > 0] * 2)
        assert places.dtype == np.int32 and places.flags.writeable and columns.flags.c_contiguous
        values, firsts, inverse, counts = np.unique(ids, return_index=True, return_inverse=True, return_counts=True)
        order = np.argsort(firsts)
        np.testing.assert_array_equal(cut[0][0], values[order])
        np.testing.assert_array_equal(cut[1][0], np.argsort(order)[inverse])
        np.testing.assert_array_equal(cut[2][0], counts[order])
        assert cut[3][0].tolist() == [len(values)] and cut[2][0].dtype == np.int64
        assert whole[0].shape == whole[2].shape == (6,) and whole[2].sum() == 6
        np.testing.assert_array_equal(whole[0][whole[1]], ids)

    check()
    check.hypothesis.inner_test(np.zeros((3, 4), F32), np.zeros(6, np.int32))
    check.hypothesis.inner_test(np.ones((3, 4), F32), np.arange(6, dtype=np.int32))


def test_handles_callbacks_and_watches_have_the_true_size():
    seen: list[np.ndarray] = []
    local: list[object] = []

    def on_value(value: tp.ListNumpy) -> None:
        seen.append(value[0])

    def on_local(value) -> None:
        local.append(value)

    @flow.global_function()
    def handle(x: tp.Numpy.Placeholder((5,))):
        flow.watch(positive(x), on_value)
        flow.watch(positive(x), on_local)
        return {"chosen": positive(x), "x": x}

    @flow.global_function()
    def callback(x: tp.Numpy.Placeholder((5,))) -> tp.Callback[tp.Bundle[tp.ListNumpy]]:
        return [positive(x), positive(-x)]

    called: list[object] = []
    inputs = [np.array(row, F32) for row in ([1, -1, 2, -2, 3], [-1, -1, -1, -1, -1], [5, 4, 3, 2, 1])]
    for x in inputs:
        result = handle(x).get()["chosen"]
        assert result.is_dynamic and result.parallel_num() == 1
        np.testing.assert_array_equal(result.numpy_list()[0], x[x > 0])
        np.testing.assert_array_equal(result.numpy(0), x[x > 0])
        with pytest.raises(ResultError, match="numpy_list"):
            result.numpy()
        callback(x)(called.append)
    flow.sync_default_session()
    for x, value, on, (chosen, others) in zip(inputs, seen, local, called, strict=True):
        np.testing.assert_array_equal(value, x[x > 0])
        np.testing.assert_array_equal(on.numpy_list()[0], x[x > 0])
        np.testing.assert_array_equal(chosen[0], x[x > 0])
        np.testing.assert_array_equal(others[0], -x[x < 0])


def test_numpy_is_for_blobs_of_fixed_size():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((5,))) -> tp.Numpy:
        return flow.argwhere(x)

    with pytest.raises(ReturnError, match="varies from call to call(.|\n)*tp.ListNumpy"):
        job(np.ones(5, F32))

    @flow.global_function()
    def fixed(x: tp.Numpy.Placeholder((5,))) -> tuple[tp.Numpy, tp.Numpy]:
        return flow.math.reduce_sum(positive(x)), flow.cast_to_static_shape(positive(x))

    total, padded = fixed(np.array([1, -1, 2, -3, 4], F32))
    assert total.tolist() == [7] and padded.tolist() == [1, 2, 4, 0, 0]


@pytest.mark.parametrize("reduce_it", [False, True])
def test_a_loss_whose_size_depends_on_data_trains_on_its_mean(reduce_it):
    gradients: list[np.ndarray] = []

    def on_gradient(value: tp.ListNumpy) -> None:
        gradients.append(value[0])

    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((4, 3)), mask: tp.Numpy.Placeholder((4,), dtype=flow.int32)) -> tp.ListNumpy:
        w = flow.get_variable("w", (3, 1), initializer=flow.constant_initializer(0.5))
        rows = flow.gather_nd(x, flow.argwhere(mask))
        loss = flow.math.square(flow.squeeze(flow.matmul(rows, w), [1]))
        flow.watch_diff(rows, on_gradient)
        sgd(0.1).minimize(flow.math.reduce_mean(loss) if reduce_it else loss)
        return loss

    rng = np.random.default_rng(0)
    w = np.full((3, 1), 0.5)
    for mask in ([1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1]):
        x = rng.standard_normal((4, 3)).astype(F32)
        rows = x[np.array(mask) > 0].astype(np.float64)
        np.testing.assert_allclose(train(x, np.array(mask, np.int32))[0], (rows @ w)[:, 0] ** 2, rtol=1e-5)
        slope = 2 * rows @ w
        np.testing.assert_allclose(gradients[-1], slope @ w.T / len(rows), rtol=1e-4)
        w -= 0.1 * rows.T @ slope / len(rows)
        np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), w, rtol=1e-4)
    if not reduce_it:  # the mean of nothing has no gradient; reduce_mean of nothing is NaN, as in NumPy
        assert train(x, np.zeros(4, np.int32))[0].shape == (0,)
        np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), w, rtol=1e-4)


def test_synchronous_and_asynchronous_training_agree():
    def declare(name: str, annotation: object):
        def train(x: tp.Numpy.Placeholder((4, 3))):
            w = flow.get_variable(name, (1,), initializer=flow.ones_initializer())
            loss = flow.math.square(positive(x) * w)
            sgd(0.1).minimize(loss)
            return loss

        train.__annotations__["return"] = annotation
        train.__name__ = f"train_{name}"
        return flow.global_function(type="train")(train)

    sync, later = declare("a", tp.ListNumpy), declare("b", tp.Callback[tp.ListNumpy])
    batches = [np.random.default_rng(i).standard_normal((4, 3)).astype(F32) for i in range(6)]
    expected = [sync(x)[0] for x in batches]
    found: list[np.ndarray] = []
    for x in batches:
        later(x)(lambda loss: found.append(loss[0]))
    flow.sync_default_session()
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)
    variables = flow.get_all_variables()
    np.testing.assert_array_equal(variables["a"].numpy(), variables["b"].numpy())


def test_the_native_op_gives_a_full_table_and_its_size():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tuple[tp.Numpy, tp.Numpy, tp.ListNumpy]:
        op = flow.user_op_builder("found").Op("argwhere").Input("input", [x]).Output("output").Output("output_size")
        table, size = op.Attr("dtype", flow.int32).Build().InferAndTryRun().RemoteBlobList()
        return table, size, flow.sync_dynamic_resize(table, size)

    table, size, cut = job(np.array([0, 1, 0, 2], F32))
    assert table.tolist() == [[1], [3], [0], [0]] and size.tolist() == [2] and cut[0].tolist() == [[1], [3]]


# --- sizes that calls decide


def test_training_through_inputs_of_several_sizes():
    @flow.global_function(type="train")
    def train(
        x: tp.ListNumpy.Placeholder((8, 3)), labels: tp.ListNumpy.Placeholder((8,), dtype=flow.int32)
    ) -> tuple[tp.ListNumpy, tp.Numpy]:
        w = flow.get_variable("w", (3, 4), initializer=flow.constant_initializer(0.1))
        rows = flow.reshape(flow.math.relu(x), [x.shape[0], -1])
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, flow.matmul(rows, w))
        sgd(0.5).minimize(loss)
        return loss, flow.math.reduce_mean(loss)

    rng = np.random.default_rng(0)
    w = np.full((3, 4), 0.1)
    sizes = [3, 8, 1, 3, 8]
    for n in sizes:
        x, labels = rng.standard_normal((n, 3)).astype(F32), rng.integers(0, 4, n).astype(np.int32)
        loss, mean = train([x], [labels])
        rows = np.maximum(x, 0).astype(np.float64)
        odds = np.exp(rows @ w)
        p = odds / odds.sum(1, keepdims=True)
        expected = -np.log(p[np.arange(n), labels])
        np.testing.assert_allclose(loss[0], expected, rtol=1e-5)
        np.testing.assert_allclose(mean, [expected.mean()], rtol=1e-5)
        p[np.arange(n), labels] -= 1
        w -= 0.5 * rows.T @ p / n
        np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), w, rtol=1e-4, atol=1e-6)
    assert len(train.executables) == 3


def test_compiled_once_for_a_set_of_sizes_and_kept_up_to_a_bound(monkeypatch, caplog):
    monkeypatch.setattr(variants, "MAX_VARIANTS", 2)
    caplog.set_level("INFO")

    @flow.global_function()
    def job(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:
        return x + 1

    def kept() -> list[tuple[int, ...]]:
        return [key[0] for key, _ in job.executables]

    for shape in ((1, 3), (2, 3), (1, 3)):
        job([np.zeros(shape, F32)])
    assert kept() == [(2, 3), (1, 3)]
    first = dict(job.executables)[((1, 3),)]
    job([np.zeros((4, 3), F32)])
    assert kept() == [(1, 3), (4, 3)] and dict(job.executables)[((1, 3),)] is first
    assert "job 'job' has been called with more than 2 sets of shapes" in caplog.text
    caplog.clear()
    for shape in ((2, 3), (12, 1), (0, 3)):  # single axes may be longer than declared, or empty
        np.testing.assert_array_equal(job([np.zeros(shape, F32)])[0], np.ones(shape, F32))
    assert len(kept()) == 2 and "sets of shapes" not in caplog.text  # it is said once


def test_arrays_that_do_not_fit_together_damage_nothing():
    @flow.global_function(type="train")
    def train(x: tp.ListNumpy.Placeholder((4, 3)), y: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:
        w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        loss = flow.math.reduce_sum((x + y) * w, axis=1)
        sgd().minimize(loss)
        return loss

    one, two, three = (np.ones((n, 3), F32) for n in (1, 2, 3))
    before = train([two], [two])[0]
    w = flow.get_all_variables()["w"].numpy()
    with pytest.raises(
        FeedShapeError, match=r"x: \(2, 3\) +at most \(4, 3\)(.|\n)*y: \(3, 3\)(.|\n)*add (.|\n)*your line .*test_sizes"
    ):
        train([two], [three])
    with pytest.raises(FeedShapeError, match="at most the elements"):
        train([np.ones((5, 3), F32)], [three])
    np.testing.assert_array_equal(flow.get_all_variables()["w"].numpy(), w)
    np.testing.assert_allclose(before, [6, 6])
    assert train([two], [one])[0].shape == (2,)


def test_binary_pieces_of_a_varying_size():
    @flow.global_function()
    def job(x: tp.ListNumpy.Placeholder((64,), dtype=flow.int8)) -> tuple[list[tp.ListNumpy], tp.ListNumpy]:
        pieces = flow.experimental.dynamic_binary_split(x, base_shift=3, out_num=4)
        assert [p.shape for p in pieces] == [(32,), (16,), (8,), (8,)] and all(p.is_dynamic for p in pieces)
        return pieces, flow.experimental.dynamic_binary_concat(pieces, x)

    for size, expected in ((64, [32, 16, 8, 8]), (45, [32, 0, 8, 5]), (7, [0, 0, 0, 7]), (0, [0, 0, 0, 0])):
        x = np.arange(size, dtype=np.int8)
        pieces, joined = job([x])
        assert [len(p) for (p,) in pieces] == expected
        np.testing.assert_array_equal(np.concatenate([p for (p,) in pieces]), x)
        np.testing.assert_array_equal(joined[0], x)


def test_a_promise_of_a_fixed_size_is_checked():
    @flow.global_function()
    def job(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.Numpy:
        return flow.cast_to_static_shape(x)

    x = np.ones((4, 3), F32)
    np.testing.assert_array_equal(job([x]), x)
    with pytest.raises(FeedShapeError, match=r"cast_to_static_shape promised shape \(4, 3\), and it has \(3, 3\)"):
        job([x[:3]])


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 4), st.integers(0, 3), st.integers(0, 99))
def test_both_kinds_of_varying_sizes_together(rows, columns, seed):
    x = np.random.default_rng(seed).standard_normal((rows, columns)).astype(F32)

    @flow.global_function()
    def job(
        x: tp.ListNumpy.Placeholder((4, 3)),
    ) -> tuple[tp.ListNumpy, tp.ListNumpy, tp.ListNumpy, tp.Numpy, list[tp.ListNumpy]]:
        chosen = positive(x)
        joined = flow.concat([chosen, flow.flatten(x), chosen[1:]])
        unique = flow.experimental.unique_with_counts(flow.flatten(flow.cast(x, flow.int32)))
        return flow.argwhere(x > 0), chosen * 2, joined, flow.elem_cnt(chosen), list(unique)

    places, doubled, joined, count, unique = job([x])
    chosen = x[x > 0]
    np.testing.assert_array_equal(places[0], np.argwhere(x > 0).reshape(-1, 2))
    np.testing.assert_array_equal(doubled[0], chosen * 2)
    np.testing.assert_array_equal(joined[0], np.concatenate([chosen, x.reshape(-1), chosen[1:]]))
    assert count.tolist() == [len(chosen)]
    assert sorted(unique[0][0]) == sorted(set(x.astype(np.int32).reshape(-1).tolist())) and unique[2][0].sum() == x.size


# --- bounds that do not fit together


def mirrored() -> flow.FunctionConfig:
    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.mirrored_view())
    return config


def _joined(a, b, chosen):
    return flow.reshape(flow.gather_nd(a, chosen), (-1,)) + flow.reshape(flow.gather_nd(b, chosen), (-1,))


def _behind_feeds(a, b, chosen):
    found = flow.squeeze(flow.cast(chosen, flow.float), [1])
    return flow.concat([found, a[:, 0]], 0) + flow.concat([found, b[:, 0]], 0)


@pytest.mark.parametrize("body", [_joined, _behind_feeds])
def test_sizes_that_vary_with_feeds_in_different_ways_are_told_apart(body):
    """They are declared alike, and made alike of one size that data decide about."""

    floats, integers = tp.ListNumpy.Placeholder((4, 5)), tp.ListNumpy.Placeholder((4,), dtype=flow.int32)

    @flow.global_function(function_config=mirrored())
    def job(a: floats, b: floats, m: integers) -> tp.ListNumpy:
        return body(a, b, flow.argwhere(m))

    with pytest.raises(ShapeError, match="depend on data in different ways"):
        job([np.ones((4, 3), F32)], [np.ones((4, 5), F32)], [np.ones(4, np.int32)])


def test_a_head_of_boxes_trains_on_the_chosen_rows_of_feeds_of_several_sizes():
    """As detectors do: rows that data choose, a matrix product, reshaped to a box per class, of which the label's is taken."""
    classes = 3

    @flow.global_function(type="train", function_config=mirrored())
    def job(
        x: tp.ListNumpy.Placeholder((8, 6)), labels: tp.ListNumpy.Placeholder((8,), dtype=flow.int32)
    ) -> tuple[tp.ListNumpy, tp.ListNumpy]:
        w = flow.get_variable("w", (6, 4 * classes), initializer=flow.constant_initializer(0.0))
        chosen = flow.squeeze(flow.argwhere(labels > 0), [1])
        rows, classes_of_rows = flow.gather(x, chosen), flow.gather(labels, chosen)
        boxes = flow.reshape(flow.matmul(rows, w), (-1, classes, 4))
        mine = flow.squeeze(flow.gather(boxes, flow.expand_dims(classes_of_rows, 1), batch_dims=1), [1])
        loss = flow.math.reduce_sum(flow.math.square(mine - rows[:, :4]))
        sgd(0.01).minimize(loss)
        return mine, flow.identity(loss)

    rng, w = np.random.default_rng(0), np.zeros((6, classes, 4))
    for labels in ([0, 1, 2, 1], [0, 0], [2, 2, 1, 0, 0, 1, 2, 1], [1]):
        x, picks = rng.standard_normal((len(labels), 6)).astype(F32), np.array(labels)
        rows, numbers = x[picks > 0], picks[picks > 0]
        boxes = np.einsum("rf,fcb->rcb", rows, w)[np.arange(len(rows)), numbers]
        (mine,), (loss,) = job([x], [np.array(labels, np.int32)])
        np.testing.assert_allclose(mine, boxes, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(loss, [np.square(boxes - rows[:, :4]).sum()], rtol=1e-4, atol=1e-5)
        for row, number, difference in zip(rows, numbers, boxes - rows[:, :4], strict=True):
            w[:, number] -= 0.01 * 2 * np.outer(row, difference)


def test_concat_is_bounded_by_the_true_sizes():
    gradients = []

    @flow.global_function(type="train", function_config=mirrored())
    def job(a: tp.ListNumpy.Placeholder((15, 3)), b: tp.ListNumpy.Placeholder((20, 3))) -> tp.ListNumpy:
        shift = flow.get_variable("shift", (1,), initializer=flow.zeros_initializer())
        a = a + flow.cast_to_current_logical_view(shift)
        joined = flow.concat([a, b], axis=0, max_dim_size=20)
        assert joined.shape == (20, 3) and joined.is_dynamic
        flow.watch_diff(a, lambda g: gradients.append(g.numpy(0)))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(joined * joined)
        return joined

    rng = np.random.default_rng(0)
    for sizes in ((8, 12), (0, 20), (3, 1)):
        flow.load_variables({"shift": np.zeros(1, F32)})
        a, b = (rng.standard_normal((n, 3)).astype(F32) for n in sizes)
        np.testing.assert_array_equal(job([a], [b])[0], np.concatenate([a, b]))
        np.testing.assert_allclose(gradients.pop(), 2 * a)
        shift = flow.get_all_variables()["shift"].numpy()
        np.testing.assert_allclose(shift, [-2 * a.sum() / sum(sizes)], rtol=1e-5, atol=1e-6)
    with pytest.raises(FeedShapeError, match=r"size 21 on axis 0, more than max_dim_size=20"):
        job([np.ones((9, 3), F32)], [np.ones((12, 3), F32)])
    assert job([a], [b])[0].shape == (4, 3)


def test_concat_of_one_bounded_input_and_of_a_variable():
    @flow.global_function()
    def job(a: tp.ListNumpy.Placeholder((8, 2))) -> tuple[tp.ListNumpy, tp.ListNumpy]:
        rows = flow.get_variable("rows", (3, 2), initializer=flow.ones_initializer())
        return flow.concat([a], max_dim_size=4), flow.concat([rows, a, rows], max_dim_size=10)

    a = np.arange(8, dtype=F32).reshape(4, 2)
    ones = np.ones((3, 2), F32)
    (alone,), (joined,) = job([a])
    np.testing.assert_array_equal(alone, a)
    np.testing.assert_array_equal(joined, np.concatenate([ones, a, ones]))
    with pytest.raises(FeedShapeError, match="max_dim_size=4"):
        job([np.ones((5, 2), F32)])

    @flow.global_function()
    def fixed(a: tp.ListNumpy.Placeholder((8, 2))) -> tp.ListNumpy:
        rows = flow.get_variable("rows", (3, 2), initializer=flow.ones_initializer())
        return flow.concat([rows, a, rows], max_dim_size=5)  # less than the variables alone

    with pytest.raises(ShapeError, match="size 6 on axis 0, more than max_dim_size=5"):
        fixed([a])


def test_concat_of_sizes_that_depend_on_data_is_bounded_by_the_true_sizes():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((10,)), y: tp.Numpy.Placeholder((10,))) -> tuple[tp.ListNumpy, tp.Numpy]:
        rows = flow.get_variable("rows", (2,), initializer=flow.ones_initializer())
        joined = flow.concat([positive(x), rows, positive(y)], max_dim_size=14)
        assert joined.shape == (14,) and joined.is_dynamic
        return joined, flow.math.reduce_sum(joined)

    x, y = np.linspace(-1, 1, 10, dtype=F32), np.linspace(-1, 3, 10, dtype=F32)
    expected = np.concatenate([x[x > 0], np.ones(2, F32), y[y > 0]])
    for _ in range(2):
        (joined,), total = job(x, y)
        np.testing.assert_array_equal(joined, expected)
        np.testing.assert_allclose(total, [expected.sum()], rtol=1e-6)
        with pytest.raises(flow.errors.CallbackError, match=r"the result has size 15 on axis 0, more than max_dim_size=14"):
            job(np.linspace(-1, 1.5, 10, dtype=F32), y)


@pytest.mark.parametrize("dtype", [flow.float32, flow.float64, flow.int32])
def test_training_through_joined_parts_whose_size_depends_on_data(dtype):
    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((3, 4))) -> tp.Numpy:
        w = flow.get_variable("w", (3, 4), initializer=flow.constant_initializer(2))
        y = flow.flatten(flow.cast(x * w, dtype))
        for factor in (1, 2, 3, 4):
            y = flow.concat([positive(y), y[1:], positive(y * -factor)])[:10]
        loss = flow.math.reduce_sum(y * y)
        sgd().minimize(flow.cast(loss, flow.float32))
        return flow.cast(loss, flow.float32)

    def parts(y, places):  # of x, and where each element is from
        for factor in (1, 2, 3, 4):
            z = y * -factor
            y, places = (
                np.concatenate([y[y > 0], y[1:], z[z > 0]])[:10],
                np.concatenate([places[y > 0], places[1:], places[z > 0] * [1, -factor]])[:10],
            )
        return y, places

    x = np.random.default_rng(3).integers(-5, 6, (3, 4)).astype(F32)
    flat = x.reshape(-1).astype(np.float64)
    y, places = parts(flat * 2, np.stack([np.arange(12), np.ones(12)], 1))
    gradient = np.zeros(12)
    np.add.at(gradient, places[:, 0].astype(int), 2 * y * places[:, 1])
    np.testing.assert_allclose(job(x), (y**2).sum(), rtol=1e-6)
    w = flow.get_all_variables()["w"].numpy().reshape(-1)
    np.testing.assert_allclose(2 - w, gradient * flat, rtol=1e-6, atol=1e-6)


def test_in_top_k_checks_the_true_sizes():
    @flow.global_function(function_config=mirrored())
    def job(
        targets: tp.ListNumpy.Placeholder((20,), dtype=flow.int32), predictions: tp.ListNumpy.Placeholder((15, 10))
    ) -> tp.ListNumpy:
        hits = flow.math.in_top_k(targets, predictions, k=2)
        assert hits.is_dynamic
        return hits

    rng = np.random.default_rng(0)
    for n in (10, 15):
        targets, predictions = rng.integers(0, 5, n, dtype=np.int32), rng.random((n, 5)).astype(F32)
        higher = (predictions > predictions[np.arange(n), targets][:, None]).sum(1)
        np.testing.assert_array_equal(job([targets], [predictions])[0], higher < 2)
    with pytest.raises(FeedShapeError, match="10 targets for 9 rows of predictions"):
        job([targets[:10]], [predictions[:9]])


@pytest.mark.parametrize("native", [True, False])
def test_an_empty_batch_leaves_moving_statistics_as_they_are(native):
    flow.config.enable_native_cpu(native)

    @flow.global_function("train")
    def train(x: tp.ListNumpy.Placeholder((4, 3, 5, 5))) -> tp.ListNumpy:
        y = flow.layers.conv2d(x, 4, 3, name="c", kernel_initializer=flow.glorot_normal_initializer())
        y = flow.nn.relu(flow.layers.batch_normalization(y, axis=1, training=True, name="n"))
        loss = flow.math.reduce_mean(y, axis=[1, 2, 3])
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss

    x = np.random.default_rng(0).standard_normal((4, 3, 5, 5), np.float32)
    train([x])
    before = {name: value.numpy() for name, value in flow.get_all_variables().items()}
    (loss,) = train([x[:0]])
    after = {name: value.numpy() for name, value in flow.get_all_variables().items()}
    assert loss.shape == (0,)
    for name in before:
        if not name.startswith("System"):
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    assert np.isfinite(train([x[:2]])[0]).all()
    assert np.abs(flow.get_all_variables()["n-moving_mean"].numpy() - before["n-moving_mean"]).max() > 0


@pytest.mark.parametrize("loss", ["MSELoss", "L1Loss", "BCEWithLogitsLoss", "KLDivLoss"])
def test_the_mean_loss_of_no_rows_is_not_a_number(loss):
    @flow.global_function(type="train")
    def train(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:
        y = x * flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        value = getattr(flow.nn, loss)(y, x * 0.5)
        sgd(0.1).minimize(value)
        return value

    (found,) = train([np.zeros((0, 3), F32)])
    assert found.shape == (1,) and np.isnan(found).all()
    assert (flow.get_all_variables()["w"].numpy() == 1).all()
    assert np.isfinite(train([np.full((2, 3), 0.3, F32)])[0]).all()


def test_an_index_beyond_what_is_fed():
    @flow.global_function()
    def job(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:
        return x[3]

    np.testing.assert_array_equal(job([np.arange(12, dtype=F32).reshape(4, 3)])[0], [9, 10, 11])
    with pytest.raises(FeedShapeError, match=r"index 3 is outside axis 0, which has size 2"):
        job([np.zeros((2, 3), F32)])
