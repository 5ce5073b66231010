"""job.throughput: counts, and what a loop waits for that waits a hundred times longer than a step takes."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ModeError

X = np.ones((4, 4), np.float32)


def twice(kind=tp.Numpy):
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((4, 4))) -> kind:
        return x + x

    return job


@pytest.mark.parametrize("submits", [False, True])
def test_every_call_of_the_block_is_counted_and_no_other(submits):
    job = twice()
    call = (lambda x: job.submit(x).result()) if submits else job
    call(X)
    with job.throughput() as measured:
        for i in range(7):
            np.testing.assert_array_equal(call(X * i), 2 * i * X)
    call(X)
    found = measured()
    assert found.steps == 7 and found.job == "job" and found.seconds > 0
    assert found.steps_per_second == pytest.approx(7 / found.seconds)
    assert 0 <= found.waited_for_data <= 1 and 0 <= found.waited_for_delivery <= 1
    assert 0 <= found.window[0] <= found.window[1] <= 32 and 0 <= found.delivery_lag[0] <= found.delivery_lag[1]
    assert "7 steps" in str(found) and "device waited for data" in repr(found)


def test_the_first_call_may_be_in_the_block():
    job = twice()
    with job.throughput() as measured:
        assert measured().steps == 0
        job(X)
    assert measured().steps == 1


def test_waiting_for_data():
    job = twice()
    job(X)
    with job.throughput() as measured:
        for _ in range(8):
            time.sleep(0.03)
            job.submit(X)
    found = measured()
    assert found.verdict == "input-bound" and found.waited_for_data > found.waited_for_delivery == 0


def test_waiting_for_callbacks():
    job = twice()
    job(X)
    seen = []

    def slow(value):
        time.sleep(0.01)
        seen.append(value)

    with job.throughput() as measured:
        for _ in range(80):
            job.submit(X).async_get(slow)
        flow.sync_default_session()
    found = measured()
    assert len(seen) == found.steps == 80
    assert found.verdict == "delivery-bound" and found.window[1] >= 3


def test_readers_in_the_job():
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((4, 4))) -> tp.Numpy:
        buffers = flow.tensor_to_tensor_buffer(x, instance_dims=1)
        return flow.tensor_buffer_to_tensor(buffers, flow.float32, (4,)) * 2.0

    with job.throughput() as measured:
        for _ in range(3):
            np.testing.assert_array_equal(job(X), 2 * X)
    assert measured().steps == 3


def test_several_threads():
    job = twice()
    job(X)
    with job.throughput() as measured:
        threads = [threading.Thread(target=lambda: [job(X) for _ in range(10)]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert measured().steps == 30


def test_errors_and_what_ends():
    job = twice()
    with job.throughput() as measured:
        with pytest.raises(ModeError, match="measured already"), job.throughput():
            pass
        with pytest.raises(flow.errors.FeedShapeError):
            job(X[:1])
        job(X)
    assert measured().steps == 1
    with pytest.raises(KeyError), job.throughput():
        raise KeyError
    with job.throughput() as again:
        job(X)
    assert again().steps == 1
    before = threading.active_count()
    for _ in range(5):
        with job.throughput():
            job(X)
    assert threading.active_count() == before


def test_a_measurement_that_ends_by_itself():
    job = twice()
    seen = []

    def enough(found):
        seen.append(found.steps)
        return found.steps == 3

    meter = job.measure(enough)
    for _ in range(50):
        job(X)
        if meter.is_over:
            break
    assert meter.stop().steps >= 3 and not job.is_measured
    np.testing.assert_array_equal(job(X), 2 * X)
