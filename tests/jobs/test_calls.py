"""Declaring jobs, calling them, and every form of result."""

from __future__ import annotations

import asyncio
import re

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_synchronous_call_gives_a_fresh_writable_array():
    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x

    first, second = job(X), job(X)
    first[...] = -1
    np.testing.assert_array_equal(second, X)
    assert type(first) is np.ndarray and first.flags.writeable and first.flags.c_contiguous


def test_nested_returns_and_parameters():
    @flow.global_function()
    def job(
        pair: tuple[
            tp.Numpy.Placeholder((2, 3)), tuple[tp.Numpy.Placeholder((1,)), tp.Numpy.Placeholder((2,), dtype=flow.int32)]
        ],
    ) -> dict[str, tuple[tp.Numpy, list[tp.Numpy]]]:
        x, (one, two) = pair
        return {"a": (x * 2, [one, x]), "b": (two, [])}

    got = job([X, (np.ones(1, np.float32), np.array([1, 2], np.int32))])
    assert list(got) == ["a", "b"] and isinstance(got["a"], tuple) and isinstance(got["a"][1], list)
    np.testing.assert_array_equal(got["a"][0], X * 2)
    np.testing.assert_array_equal(got["a"][1][0], [1])
    assert got["b"][0].dtype == np.int32 and got["b"][1] == []


def test_bundle_list_numpy_and_list_list_numpy():
    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(function_config=config)
    def bundle(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.Bundle[tp.ListNumpy]:
        return {"x": x, "twice": [x + x]}

    got = bundle([X])
    np.testing.assert_array_equal(got["x"][0], X)
    np.testing.assert_array_equal(got["twice"][0][0], X * 2)

    @flow.global_function(function_config=config)
    def lists(x: tp.ListListNumpy.Placeholder((4, 3))) -> tp.ListListNumpy:
        return x

    first, second = lists([[X[:1], X]])[0]
    np.testing.assert_array_equal(first, X[:1])
    np.testing.assert_array_equal(second, X)


def test_true_shapes_of_dynamic_inputs_compile_once_each():
    traces = []

    @flow.global_function()
    def job(x: tp.ListNumpy.Placeholder((8, 3))) -> tp.ListNumpy:
        traces.append(x.shape)
        return flow.math.reduce_sum(x, axis=0)

    for rows in (1, 5, 8, 5):
        x = np.random.rand(rows, 3).astype(np.float32)
        np.testing.assert_allclose(job([x])[0], x.sum(0), rtol=1e-6)
    assert traces == [(8, 3)]
    with pytest.raises(flow.errors.FeedShapeError, match=r"at most the elements of \(8, 3\), got \(9, 3\)"):
        job([np.zeros((9, 3), np.float32)])


def test_unannotated_job_gives_a_future():
    @flow.global_function()
    def job(x=flow.FixedTensorDef((2, 3))):
        return {"x": x, "sum": [flow.math.reduce_sum(x)]}

    result = job(X)
    got = result.get()
    assert result.done() and got is result.result(timeout=1)
    assert float(got["sum"][0]) == 15 and "Result of job 'job'" in repr(result)
    local = got["x"]
    assert local.mean() == X.mean() and local.shape == (2, 3) and local[0, 1] == 1 and len(local) == 2
    np.testing.assert_array_equal(local.ndarray(), X)
    np.testing.assert_array_equal(local.numpy(0), local.numpy_list()[0])
    np.testing.assert_array_equal(np.argmax(local, 1), [2, 2])
    assert (X == local).all() and (local == X).all() and type(local + 1) is np.ndarray and type(X - local) is np.ndarray
    np.testing.assert_array_equal(np.add(local, 1), X + 1)
    assert str(local) == str(X) and f"{got['sum'][0]:.1f}" == "15.0"
    with pytest.raises(AttributeError):
        local.no_such_thing  # noqa: B018


def test_single_local_tensor_and_none():
    @flow.global_function()
    def one(x: tp.Numpy.Placeholder((2, 3))):
        return x

    @flow.global_function()
    def nothing(x: tp.Numpy.Placeholder((2, 3))):
        pass

    @flow.global_function()
    def annotated(x: tp.Numpy.Placeholder((2, 3))) -> None:
        pass

    assert one(X).get().mean() == X.mean()
    assert nothing(X) is None and annotated(X) is None
    flow.sync_default_session()


def test_result_is_a_real_future():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Callback[tp.Numpy]:
        return x + 1

    async def waits():
        return await job(X)

    np.testing.assert_array_equal(asyncio.run(waits()), X + 1)
    seen = []
    result = job(X)
    result.add_done_callback(lambda r: seen.append(r.result()))
    flow.sync_default_session()
    np.testing.assert_array_equal(seen[0], X + 1)
    assert result.exception() is None
    result(seen.append)
    with pytest.raises(flow.errors.ResultError, match="has a callback already"):
        result(seen.append)
    flow.sync_default_session()
    assert len(seen) == 2


def test_jobs_can_be_declared_at_any_time_and_redefined():
    values = []
    for factor in (2.0, 3.0):

        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
            return x * factor  # noqa: B023 - the body runs at the call below

        values.append(job(X))
    np.testing.assert_array_equal(values[1], X * 3)


def test_lambdas_closures_and_renamed_functions():
    def body(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x

    body.__name__ = "renamed"
    assert flow.global_function()(body).name == "renamed"
    anonymous = flow.global_function()(lambda x=flow.FixedTensorDef((2, 3)): x)
    np.testing.assert_array_equal(anonymous(X).get().numpy(), X)


def test_body_runs_once():
    runs = []

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        runs.append(x)
        return x

    assert not runs
    for _ in range(3):
        job(X)
    assert len(runs) == 1


def test_all_generations_of_the_decorator():
    legacy = flow.function_config()
    legacy.default_data_type(flow.float)

    @flow.function(legacy)
    def a(x=flow.FixedTensorDef((2, 3), dtype=flow.float)):
        return x

    @flow.global_function(legacy)
    def b(x=flow.FixedTensorDef((2, 3), dtype=flow.float)):
        return x

    @flow.global_function("predict", legacy)
    def c(x: tp.Numpy.Placeholder((2, 3), dtype=flow.float)) -> tp.Numpy:
        return x

    np.testing.assert_array_equal(a(X).get().ndarray(), b(X).get().numpy())
    np.testing.assert_array_equal(c(X), X)
    train = flow.function_config()
    train.train.primary_lr(0.1)
    train.train.model_update_conf({"naive_conf": {}})
    assert flow.function(train)(lambda: None).train and not a.train


def test_repr_and_summary():
    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.layers.dense(x, 4, name="layer")

    assert "predict job job(x: Numpy.Placeholder((2, 3), float32))" in repr(job) and "not built yet" in repr(job)
    text = str(flow.job_summary(job))
    assert re.search(r"layer-matmul +matmul +float32\[2, 4\] +12", text) and "not compiled yet" in text
    job(X)
    assert "compiled>" in repr(job) and "ms to compile" in str(job.summary())
    assert "\ninterface: 2 variables only read\n" in str(job.summary())
    assert "<Blob 'layer-bias_add' float32[2, 4] of job 'job', made at " in repr(job.graph.returns)


def test_methods_of_a_cleared_session():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x

    job(X)
    flow.clear_default_session()
    with pytest.raises(flow.errors.ModeError, match="cleared|closed"):
        job(X)


def test_a_wrong_timeout_is_no_error_of_the_call() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2,))) -> tp.Callback[tp.Numpy]:
        return x + 1

    call = job(np.ones(2, np.float32))
    with pytest.raises(ArgumentError, match="timeout"):
        call.exception("soon")
    assert call.exception() is None
