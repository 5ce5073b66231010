"""Gradients through whole numbers: floats behind a cast to integers are trained, integer Blobs have integer gradients."""

from __future__ import annotations

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp

W = np.array([[3.7, -2.2, 5.0], [1.0, 4.9, -6.3]], np.float32)
CUT = np.trunc(W).astype(np.int64)
OTHER = np.array([[2, -1, 3], [1, 2, -2]])


def const(value, dtype):
    return flow.cast(flow.constant(value, flow.int32, (1,)), dtype)


# an op on integer Blobs x of that dtype, and its gradient to x when ones arrive
OPS = {
    "add": (lambda x, d: x + x, 2 * np.ones_like(OTHER)),
    "times a number": (lambda x, d: x * 3, 3 * np.ones_like(OTHER)),
    "square": (lambda x, d: x * x, 2 * CUT),
    "negative": (lambda x, d: -x, -np.ones_like(OTHER)),
    "minus a Blob": (lambda x, d: const(5, d) - x, -np.ones_like(OTHER)),
    "reshape": (lambda x, d: flow.reshape(x, (3, 2)) * 2, 2 * np.ones_like(OTHER)),
    "transpose": (lambda x, d: flow.transpose(x, [1, 0]), np.ones_like(OTHER)),
    "concat": (lambda x, d: flow.concat([x, x * 2], 0), 3 * np.ones_like(OTHER)),
    "slice": (lambda x, d: flow.slice_v2(x, [(None, None, None), (1, 3, 1)]), np.array([[0, 1, 1], [0, 1, 1]])),
    "gather": (lambda x, d: flow.gather(x, flow.constant(1, flow.int32, (4,)), axis=1), np.array([[0, 4, 0], [0, 4, 0]])),
    "reduce_sum": (lambda x, d: flow.math.reduce_sum(x, 1), np.ones_like(OTHER)),
    "reduce_max": (lambda x, d: flow.math.reduce_max(x, 1), np.array([[0, 0, 1], [0, 1, 0]])),
    "maximum": (lambda x, d: flow.math.maximum(x, const(1, d)), np.array([[1, 0, 1], [0, 1, 0]])),
    "where": (lambda x, d: flow.where(x > const(0, d), x, flow.zeros_like(x)), (CUT > 0).astype(np.int64)),
    "clip": (lambda x, d: flow.clip(x, -3, 3), (np.abs(CUT) <= 3).astype(np.int64)),
    "pad": (lambda x, d: flow.pad(x, [(1, 0), (0, 1)]), np.ones_like(OTHER)),
    "broadcast": (lambda x, d: x + flow.slice_v2(x, [(0, 1, 1), (None, None, None)]), np.array([[3, 3, 3], [1, 1, 1]])),
    "expand_dims": (lambda x, d: flow.squeeze(flow.expand_dims(x, 0), [0]), np.ones_like(OTHER)),
    "relu": (lambda x, d: flow.math.relu(x), (CUT > 0).astype(np.int64)),
    "tril": (lambda x, d: flow.math.tril(x), np.tri(2, 3, dtype=np.int64)),
    "unsorted_segment_sum": (lambda x, d: flow.math.unsorted_segment_sum(x, flow.constant(0, flow.int32, (2,)), 2),
                             np.ones_like(OTHER)),
    "another integer": (lambda x, d: flow.cast(flow.cast(x, flow.int32) * 2, d), 2 * np.ones_like(OTHER)),
    "stack": (lambda x, d: flow.stack([x, x]), 2 * np.ones_like(OTHER)),
    "identity": (lambda x, d: flow.identity(x), np.ones_like(OTHER)),
}  # fmt: skip


@pytest.mark.parametrize("name", ["int32", "int64", "int8"])
def test_every_op_on_whole_numbers(name):
    """One job: the losses are integer Blobs of one element, each a sum; the gradients are watched."""
    dtype = getattr(flow, name)
    watched = {}

    @flow.global_function("train")
    def job() -> tp.Numpy:
        total = None
        for i, (key, (op, _)) in enumerate(OPS.items()):
            w = flow.get_variable(f"w{i}", W.shape, initializer=flow.zeros_initializer())
            x = flow.cast(w, dtype)
            flow.watch_diff(x, lambda value, key=key: watched.__setitem__(key, np.array(value)))
            loss = flow.math.reduce_sum(op(x, dtype))
            total = loss if total is None else total + loss
        assert total.dtype == dtype
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0).minimize(total)
        return total

    assert job.graph is not None
    flow.load_variables({f"w{i}": W for i in range(len(OPS))})
    assert job().dtype == np.dtype(name)
    kept = flow.get_all_variables()
    for i, (key, (_, gradient)) in enumerate(OPS.items()):
        assert watched[key].dtype == np.dtype(name), key
        np.testing.assert_array_equal(watched[key], gradient, err_msg=key)
        np.testing.assert_allclose(kept[f"w{i}"].numpy(), W - 0.5 * gradient, rtol=1e-6, err_msg=key)


def test_the_gradient_is_cut_at_the_cast():
    @flow.global_function("train")
    def job() -> tp.Numpy:
        w = flow.get_variable("w", (2,), initializer=flow.constant_initializer(3.0))
        whole = flow.cast(w, flow.int32)
        loss = flow.cast(whole, flow.float32) * flow.constant(0.75, flow.float32, (2,)) + w * 0.25
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return loss

    job()  # 0.75 becomes 0 on its way through int32; 0.25 arrives
    np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), np.full(2, 3 - 0.25 / 2))
