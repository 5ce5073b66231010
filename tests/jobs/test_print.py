"""flow.print: lines in the order of calls and of the body, the same for every kind of job."""

from __future__ import annotations

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, ModeError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def predict(kind=tp.Numpy, **settings):
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> kind:
        y = x * 2.0
        flow.print("first", y, "of", x, 7, **settings)
        total = flow.math.reduce_sum(y)
        flow.print("second", total, sep="|", end=";\n")
        return total

    return job


def expected(x):
    return f"first {np.array2string(2 * x)} of {np.array2string(x)} 7\nsecond|{np.array2string((2 * x).sum(keepdims=True)[0])};\n"


def test_a_synchronous_call_returns_after_its_lines(capsys):
    job = predict()
    for i in range(3):
        job(X + i)
        assert capsys.readouterr().out == expected(X + i)


@pytest.mark.parametrize("submits", [False, True])
def test_asynchronous_calls_print_in_order_and_before_their_callbacks(capsys, submits):
    job = predict(tp.Callback[tp.Numpy])
    for i in range(40):
        result = job.submit(X + i) if submits else job(X + i)
        result.async_get(lambda value: print("delivered"))
    flow.sync_default_session()
    assert capsys.readouterr().out == "".join(expected(X + i) + "delivered\n" for i in range(40))


def test_training_prints_variables_before_the_update_and_changes_nothing(capsys):
    def run(prints):
        flow.clear_default_session()

        @flow.global_function("train")
        def train(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
            w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
            loss = flow.math.reduce_mean(x * w)
            if prints:
                flow.print(w)
            flow.optimizer.SGD(0.5).minimize(loss)
            return loss

        return [train(X) for _ in range(3)]

    np.testing.assert_array_equal(run(True), run(False))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[0] == "[1. 1. 1.]"
    w = np.ones(3) - 0.5 * X.mean(0) / 3
    np.testing.assert_allclose(np.fromstring(lines[1].strip("[]"), sep=" "), w, rtol=1e-6)


def test_every_and_summarize(capsys):
    job = predict(every=2, summarize=4)
    for i in range(4):
        job(X + i)
    lines = capsys.readouterr().out
    assert lines.count("first") == 2 and lines.count("second") == 4

    @flow.global_function("predict")
    def long(x: tp.Numpy.Placeholder((100,), dtype=flow.int32)) -> tp.Numpy:
        flow.print(x, summarize=50)
        return x

    long(np.arange(100, dtype=np.int32))
    assert capsys.readouterr().out == "[ 0  1  2 ... 97 98 99]\n"


def test_repeated_parts_print_each_run(capsys):
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        half = flow.unpack(x, 2)
        flow.print("run", half, half * 10.0)
        return flow.pack(half, 2)

    for _ in range(2):
        job(np.arange(4, dtype=np.float32))
        assert capsys.readouterr().out == "run [0. 1.] [ 0. 10.]\nrun [2. 3.] [20. 30.]\n"

    @flow.global_function("predict")
    def mixed(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        half = flow.unpack(x, 2)
        flow.print(x, half)
        return flow.pack(half, 2)

    with pytest.raises(ArgumentError, match="several times per call"):
        mixed(np.arange(4, dtype=np.float32))


def test_blobs_whose_size_depends_on_data(capsys):
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        flow.print(flow.argwhere(x), x)
        return x

    job(np.eye(2, 3, dtype=np.float32))
    assert capsys.readouterr().out == "[[0 0]\n [1 1]] [[1. 0. 0.]\n [0. 1. 0.]]\n"


def test_results_of_the_host(capsys):
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        buffers = flow.tensor_to_tensor_buffer(x, instance_dims=1)
        y = flow.tensor_buffer_to_tensor(buffers, flow.float32, (3,))
        flow.print(y)
        return y

    job(X)
    assert capsys.readouterr().out == f"{X}\n"


class Unprintable:
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda x: ((), {}), "at least one Blob"),
        (lambda x: (("only text",), {}), "at least one Blob"),
        (lambda x: ((x, Unprintable()), {}), "cannot be printed"),
        (lambda x: ((x,), {"sep": 3}), "sep must be a str"),
        (lambda x: ((x,), {"every": 0}), "every"),
        (lambda x: ((x,), {"summarize": -1}), "summarize"),
    ],
)
def test_wrong_use(arguments, message):
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        args, kwargs = arguments(x)
        flow.print(*args, **kwargs)
        return x

    with pytest.raises(ArgumentError, match=message):
        job(X)


def test_outside_of_a_job():
    with pytest.raises(ModeError):
        flow.print(1)
