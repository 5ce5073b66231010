"""Parts of a job that run several times per call: micro-batches, accumulation, recomputation."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placed_jobs import assert_same, begin, constant, train

import oneflow as flow
import oneflow.typing as tp
from oneflow.core.record import record_pb2


@pytest.mark.parametrize(
    ("devices", "stages"),
    [
        (1, None),
        pytest.param(2, None, marks=pytest.mark.thorough),
        pytest.param(2, ("0:0", "0:1"), marks=pytest.mark.thorough),
        (4, ("0:0-1", "0:2-3")),
    ],
)
def test_micro_batches_give_the_gradient_of_the_batch(devices, stages):
    assert_same(train(devices, stages=stages, micro_batches=4), train(1))


def test_accumulation_in_one_line():
    def setting(config: flow.FunctionConfig) -> None:
        config.train.num_gradient_accumulation_steps(4)

    assert_same(train(1, config=setting), train(1))


def test_dropout_and_moving_statistics_in_a_pipeline():
    options = {"micro_batches": 4, "dropout": 0.3, "normalize": True}
    assert_same(train(2, stages=("0:0", "0:1"), **options), train(1, **options))


def test_recomputed_layers_train_the_same():
    assert_same(train(1, checkpointing=True, dropout=0.3, normalize=True), train(1, dropout=0.3, normalize=True))
    assert_same(train(2, checkpointing=True, stages=("0:0", "0:1")), train(1))


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_pack_undoes_unpack_and_acc_adds(count, size, groups):
    begin(1)
    rows = count * groups * size

    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((rows, 2))) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        each = flow.unpack(x, count * groups)
        assert each.shape == (size, 2)
        packed = flow.pack(flow.math.negative(each), count * groups)
        added = flow.acc(flow.acc(each, count), groups)
        return packed, added, flow.acc(flow.repeat(x, count), count)

    x = np.random.default_rng(0).standard_normal((rows, 2)).astype("f")
    packed, added, repeated = job(x)
    np.testing.assert_array_equal(packed, -x)
    np.testing.assert_allclose(added, x.reshape(-1, size, 2).sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(repeated, count * x, rtol=1e-6)


def test_the_recipe_of_repeated_variables():
    begin(1)

    def job_of(k: int):
        @flow.global_function(type="train")
        def job(x: tp.Numpy.Placeholder((8, 3))) -> tp.Numpy:
            w = flow.get_variable(f"w{k}", (3, 1), initializer=flow.ones_initializer())
            if k > 1:
                x, w = flow.unpack(x, k), flow.repeat(w, k)
            loss = flow.math.square(flow.matmul(x, w))
            if k == 4:
                loss = flow.pack(loss, k)
            flow.optimizer.SGD(constant(0.1), momentum=0).minimize(loss)
            return loss

        return job

    x = np.random.default_rng(0).standard_normal((8, 3)).astype("f")
    losses = [job_of(k)(x) for k in (1, 2, 4)]
    values = [flow.get_all_variables()[f"w{k}"].numpy() for k in (1, 2, 4)]
    for loss, value in zip(losses[1:], values[1:], strict=True):
        np.testing.assert_allclose(loss, losses[0], rtol=1e-5)
        np.testing.assert_allclose(value, values[0], rtol=1e-5)


def test_memory_is_that_of_one_micro_batch():
    def working_memory(k: int) -> int:
        begin(1)

        @flow.global_function(type="train")
        def job(x: tp.Numpy.Placeholder((2048, 64))) -> tp.Numpy:
            h = flow.unpack(x, k) if k > 1 else x
            for i in range(4):
                h = flow.math.tanh(flow.layers.dense(h, 64, kernel_initializer=flow.ones_initializer(), name=f"d{i}"))
            flow.optimizer.SGD(constant(0.1), momentum=0).minimize(flow.math.reduce_mean(h, axis=[1]))
            return flow.constant(1.0, flow.float32, (1,))

        return job.plan().working_bytes

    assert working_memory(8) < working_memory(1) / 4


def test_wrong_counts_are_refused():
    begin(1)

    def build(body):
        @flow.global_function(type="predict")
        def job(x: tp.Numpy.Placeholder((6, 2))) -> tp.Numpy:
            return body(x)

        job(np.zeros((6, 2), np.float32))

    with pytest.raises(flow.errors.ShapeError, match="does not divide into 4 pieces"):
        build(lambda x: flow.unpack(x, 4))
    with pytest.raises(flow.errors.ArgumentError, match="pack_num=2"):
        build(lambda x: flow.pack(flow.unpack(x, 3), 2))
    with pytest.raises(flow.errors.ArgumentError, match="once per call"):
        build(lambda x: flow.acc(x, 2))
    with pytest.raises(flow.errors.RepetitionError, match="2 times per call"):
        build(lambda x: flow.math.add(flow.repeat(x, 2), flow.repeat(x, 3)))


def accumulating(k: int) -> flow.FunctionConfig:
    config = flow.FunctionConfig()
    config.train.num_gradient_accumulation_steps(k)
    return config


def test_wrong_counts_of_accumulation_name_the_setting():
    begin(1)

    @flow.global_function(type="train", function_config=accumulating(3))
    def job(x: tp.Numpy.Placeholder((8, 2))) -> tp.Numpy:
        loss = flow.layers.dense(x, 1, name="a")
        flow.optimizer.SGD(constant(0.1), momentum=0).minimize(loss)
        return loss

    with pytest.raises(flow.errors.ShapeError, match=r"does not divide into 3 micro-batches(.|\n)*gradient_accumulation_steps"):
        job(np.zeros((8, 2), np.float32))
    with pytest.raises(flow.errors.ArgumentError, match=r"num_gradient_accumulation_steps must be at least 1, got 0"):
        accumulating(0)


def ofrecord(value: float) -> bytes:
    record = record_pb2.OFRecord()
    record.feature["x"].float_list.value.append(value)
    return struct.pack("<q", record.ByteSize()) + record.SerializeToString()


def test_accumulation_reads_a_batch_for_each_run(tmp_path):
    (tmp_path / "part-0").write_bytes(b"".join(ofrecord(float(i)) for i in range(12)))

    def values(k: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        begin(1)

        @flow.global_function("train", accumulating(k))
        def job() -> tuple[tp.Numpy, tp.Numpy]:
            records = flow.data.ofrecord_reader(str(tmp_path), batch_size=rows, random_shuffle=False)
            x = flow.data.ofrecord_raw_decoder(records, "x", (1,), flow.float)
            w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
            loss = flow.math.reduce_mean(x * w)
            flow.optimizer.SGD(constant(1.0), momentum=0).minimize(loss)
            return x, loss

        found = [job() for _ in range(2)]
        assert "the host, before the step" in str(job.summary())
        return np.stack([x for x, _ in found])[..., 0], np.stack([loss for _, loss in found])

    whole, _ = values(1, 6)
    pieces, losses = values(3, 2)
    np.testing.assert_array_equal(whole, np.arange(12).reshape(2, 6))
    np.testing.assert_array_equal(pieces, whole)
    means = pieces.reshape(2, 3, 2).mean(2)
    factor = [1, 1 - means[0].mean()]  # of w: the gradient is the mean over all micro-batches
    np.testing.assert_allclose(losses, means * np.array(factor)[:, None], rtol=1e-6)


def test_accumulation_cuts_what_host_ops_read_and_draws_anew():
    begin(1)

    def by_the_host(x: flow.Blob, dtype: flow.dtype) -> flow.Blob:
        return flow.tensor_buffer_to_tensor(flow.tensor_to_tensor_buffer(x, instance_dims=1), dtype, [x.shape[1]])

    @flow.global_function("train", accumulating(4))
    def job(x: tp.Numpy.Placeholder((8, 3))) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        same = by_the_host(x, flow.float)
        host_flips = by_the_host(flow.reshape(flow.random.coin_flip(64, name="a"), (1, 64)), flow.int8)
        w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        flow.optimizer.SGD(constant(1.0), momentum=0).minimize(flow.math.reduce_mean(same * w))
        return same, host_flips, flow.random.coin_flip(64, name="b")

    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    first, second = job(x), job(x)
    np.testing.assert_array_equal(first[0], x)
    for flips in (1, 2):
        runs = np.concatenate([first[flips].reshape(4, 64), second[flips].reshape(4, 64)])
        assert len(np.unique(runs, axis=0)) == 8  # no run's are another's
