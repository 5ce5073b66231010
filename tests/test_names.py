"""Names that say the same as others, names of older and later releases, and those that only raise."""

from __future__ import annotations

import contextlib
import importlib
import time

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, ModeError

X = np.array([[-1.0, 2.0]], np.float32)


def run(body):
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((1, 2))) -> tp.Numpy:
        return body(x)

    return job(X)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("DeprecatedFixedTensorDef", "FixedTensorDef"), ("DeprecatedMirroredTensorDef", "MirroredTensorDef"),
        ("DeprecatedTensorListDef", "MirroredTensorListDef"), ("keras.activations.gelu", "math.gelu"),
        ("keras.activations.sigmoid", "math.sigmoid"), ("keras.activations.tanh", "math.tanh"), ("keras.maths.add", "math.add"),
        ("eager_fixed_placement", "scope.placement"), ("deprecated.nn.Module", "nn.Module"),
        ("experimental.eager_assign_121", "assign"), ("scope.DistributeConsistentStrategy", "scope.consistent_view"),
        ("scope.DistributeMirroredStrategy", "scope.mirrored_view"),
        ("optimizer.loss_scale.DynamicLossScalePolicy", "optimizer.loss_scale.dynamic_loss_scale"),
    ],
)  # fmt: skip
def test_aliases(one, other):
    def found(path):
        module = flow
        for part in path.split("."):
            module = getattr(module, part)
        return module

    assert found(one) is found(other)


@pytest.mark.parametrize("path", ["keras.activations", "keras.maths", "deprecated.nn", "profiler", "distributed"])
def test_modules(path):
    assert importlib.import_module(f"oneflow.{path}") is importlib.import_module(f"oneflow.compatible.single_client.{path}")


def test_keras_relu():
    np.testing.assert_array_equal(run(lambda x: flow.keras.activations.relu(x, name="r")), [[0, 2]])
    with pytest.raises(ArgumentError, match="must keep their defaults"):
        flow.keras.activations.relu(X, max_value=6.0)


def test_placements():
    def body(x):
        with flow.device("cpu:0"):
            scope = flow.placement.current_scope()
            assert scope.placement.tag == "cpu" and scope.placement.devices == ((0, 0),)
            with scope:
                return flow.identity(x)

    np.testing.assert_array_equal(run(body), X)
    for wrong in ("gpu", "cpu:x", 0):
        with pytest.raises(ArgumentError, match="flow.device needs a string such as"):
            flow.device(wrong)


def test_profiler():
    with contextlib.suppress(ModeError):  # ranges that examples of this process have begun
        while True:
            flow.profiler.range_pop()
    flow.profiler.range_push("outer")
    np.testing.assert_array_equal(run(lambda x: flow.profiler.nvtx_end(flow.profiler.nvtx_start(x, "a"), "a")), X)
    flow.profiler.range_pop()
    with pytest.raises(ModeError, match="no range is open"):
        flow.profiler.range_pop()
    with pytest.raises(ArgumentError, match="needs a str"):
        flow.profiler.range_push(3)


def test_sleep_identity():
    @flow.global_function("train")
    def job() -> tp.Numpy:
        w = flow.get_variable("w", (2,), initializer=flow.ones_initializer())
        y = flow.sleep_identity(w, 0.2) * 3.0
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(y)
        return y

    job()
    start = time.perf_counter()
    np.testing.assert_array_equal(job(), np.full(2, -1.5, np.float32))
    assert time.perf_counter() - start >= 0.2  # what the op is for; no upper bound


def test_processes():
    assert (flow.distributed.get_rank(), flow.distributed.get_world_size(), flow.distributed.is_multi_client()) == (0, 1, False)
    assert flow.distributed.get_local_rank() == 0
    flow.deprecated.delete_worker_by_bootstrap()
    flow.deprecated.delete_worker_of_multi_process("run_dir")


def test_views_are_classes():
    with pytest.raises(ModeError):
        flow.scope.mirrored_view().__enter__()

    def body(x):
        with flow.scope.mirrored_view():
            assert flow.scope.mirrored_view_enabled() and not flow.scope.consistent_view_enabled()
            with flow.scope.consistent_view():
                assert flow.scope.consistent_view_enabled()
        return x

    run(body)


def test_job_set():
    run(lambda x: flow.nn.relu(x, name="r"))
    (job,) = flow.experimental.get_job_set().job
    assert job.job_conf.job_name == "job"
    assert [(op.name, op.op_type_name) for op in job.net.op] == [("Input_0", "input"), ("r", "relu")]


def test_tensor_definitions():
    one = flow.FixedTensorDef((2, 3), name="images")
    split = one.with_distribute(flow.distribute.split(1))
    assert one.unique_name == "images/out" and split.unique_name == "images/out:S1" and one.distribute.kind == "auto"
    assert (one.lbi.op_name(), one.lbi.blob_name()) == ("images", "out")
    assert split.Clone("copy").op_name == "copy" and split.op_name == "images"
    for method, arguments in [
        ("AddAndInferOp", (None,)), ("EagerAddAndInferOp", (None,)), ("SetBatchAxisAndSplitAxis", (None,)),
        ("CheckAndAsyncPush", (None, X)), ("ToInterfaceBlobConf", ()),
    ]:  # fmt: skip
        with pytest.raises(ModeError, match=f"{method} drives OneFlow's native graph builder"):
            getattr(one, method)(*arguments)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (flow.InitEagerGlobalSession, "eager execution is not supported"),
        (flow.ConfigProto, "native session"),
        (flow.JobConfigProto, "native compiler"),
        (flow.tensorrt.cache_int8_calibration, "not by TensorRT"),
        (lambda: flow.tensorrt.write_int8_calibration("x"), "not by TensorRT"),
    ],
)
def test_what_only_oneflow_has(call, text):
    with pytest.raises(ModeError, match=text):
        call()


def test_distributed_partial_fc_sample():
    @flow.global_function("predict")
    def job(
        w: tp.Numpy.Placeholder((20, 2)), y: tp.Numpy.Placeholder((3,), dtype=flow.int64)
    ) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        return flow.distributed_partial_fc_sample(w, y, 8)

    w, y = np.random.default_rng(0).standard_normal((20, 2)).astype(np.float32), np.array([7, 3, 7])
    draws = set()
    for _ in range(4):
        mapped, classes, rows = job(w, y)
        assert classes[:2].tolist() == [3, 7] and len(set(classes.tolist())) == 8 and classes.dtype == np.int64
        np.testing.assert_array_equal(classes[mapped], y)
        np.testing.assert_array_equal(rows, w[classes])
        draws.add(tuple(classes.tolist()))
    assert len(draws) > 1
