"""Every family of ops in every dtype, inside jobs: values, the dtypes of results, and the user's own JAX beside them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTS = ("int8", "uint8", "int32", "int64")
NUMPY = {name: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in FLOATS + INTS}
ROUNDING = {"float32": 2e-6, "float64": 1e-12, "float16": 4e-3, "bfloat16": 4e-2}


def arrays(name):
    if name in FLOATS:
        x, y = np.array([[-3.5, 2.0, 0.5], [7.25, -1.0, 4.0]]), np.array([[2.0, 3.0, 0.25], [-2.0, 2.0, 1.5]])
    elif name == "uint8":
        x, y = np.array([[250, 2, 7], [7, 10, 4]]), np.array([[20, 3, 2], [2, 4, 5]])
    else:
        x, y = np.array([[-7, 2, 7], [7, -10, 4]]), np.array([[2, 3, -2], [-2, 4, 5]])
    return x.astype(NUMPY[name]), y.astype(NUMPY[name])


def floor_mod(x, y):
    return np.mod(x, y)


def truncated(x, y):
    """C's division of whole numbers."""
    return np.trunc(x / y)


ANY = {  # what every dtype takes: name -> (op on Blobs, the same in NumPy on float64 or int64, dtype of the result)
    "add": (lambda x, y: x + y, np.add, None),
    "subtract": (lambda x, y: x - y, np.subtract, None),
    "multiply": (lambda x, y: x * y, np.multiply, None),
    "add a number": (lambda x, y: x + 3, lambda x, y: x + 3, None),
    "number first": (lambda x, y: 2 * x, lambda x, y: 2 * x, None),
    "mod": (lambda x, y: x % y, floor_mod, None),
    "maximum": (flow.math.maximum, np.maximum, None),
    "minimum": (flow.math.minimum, np.minimum, None),
    "equal": (lambda x, y: x == y, np.equal, "int8"),
    "not_equal": (lambda x, y: x != y, np.not_equal, "int8"),
    "less": (lambda x, y: x < y, np.less, "int8"),
    "greater_equal": (lambda x, y: x >= y, np.greater_equal, "int8"),
    "logical_and": (flow.math.logical_and, np.logical_and, "int8"),
    "reduce_sum": (lambda x, y: flow.math.reduce_sum(x, 1), lambda x, y: x.sum(1), None),
    "reduce_max": (lambda x, y: flow.math.reduce_max(x), lambda x, y: x.max().reshape(1), None),
    "reduce_prod": (lambda x, y: flow.math.reduce_prod(y, 1), lambda x, y: y.prod(1), None),
    "argmax": (lambda x, y: flow.math.argmax(x), lambda x, y: x.argmax(-1), "int32"),
    "top_k": (lambda x, y: flow.math.top_k(x, k=2), lambda x, y: np.argsort(-x, -1, kind="stable")[:, :2], "int32"),
    "argsort": (lambda x, y: flow.argsort(x), lambda x, y: np.argsort(x, -1, kind="stable"), "int32"),
    "sort": (lambda x, y: flow.sort(x, direction="DESCENDING"), lambda x, y: -np.sort(-x), None),
    "concat": (lambda x, y: flow.concat([x, y], 0), lambda x, y: np.concatenate([x, y]), None),
    "transpose": (lambda x, y: flow.transpose(x, [1, 0]), lambda x, y: x.T, None),
    "slice": (lambda x, y: flow.slice_v2(x, [(None, None, None), (0, 3, 2)]), lambda x, y: x[:, ::2], None),
    "gather": (lambda x, y: flow.gather(x, flow.constant(1, flow.int32, (1,)), axis=1), lambda x, y: x[:, [1]], None),
    "where": (lambda x, y: flow.where(x > y, x, y), np.maximum, None),
    "clip": (lambda x, y: flow.clip(x, 1, 5), lambda x, y: np.clip(x, 1, 5), None),
    "pad": (lambda x, y: flow.pad(x, [(1, 0), (0, 0)]), lambda x, y: np.pad(x, [(1, 0), (0, 0)]), None),
    "zeros_like": (lambda x, y: flow.zeros_like(x), lambda x, y: 0 * x, None),
    "to float32": (lambda x, y: flow.cast(x, flow.float32), lambda x, y: x, "float32"),
    "to int64": (lambda x, y: flow.cast(y, flow.int64), lambda x, y: np.trunc(y), "int64"),
}  # fmt: skip
FLOATING = {
    "divide": (lambda x, y: x / y, np.divide, None),
    "by a number": (lambda x, y: x / 2, lambda x, y: x / 2, None),
    "number by it": (lambda x, y: 2 / x, lambda x, y: 2 / x, None),
    "floordiv": (flow.math.floordiv, np.floor_divide, None),
    "exp": (lambda x, y: flow.math.exp(y), lambda x, y: np.exp(y), None),
    "matmul": (lambda x, y: flow.matmul(x, y, transpose_b=True), lambda x, y: x @ y.T, None),
    "softmax": (lambda x, y: flow.nn.softmax(x), lambda x, y: np.exp(x) / np.exp(x).sum(-1, keepdims=True), None),
    "reduce_mean": (lambda x, y: flow.math.reduce_mean(x, 1), lambda x, y: x.mean(1), None),
    "count_not_finite": (lambda x, y: flow.count_not_finite(x), lambda x, y: np.zeros(1), "int64"),
    "layer_norm": (lambda x, y: flow.nn.layer_norm(y),
                   lambda x, y: (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5), None),
}  # fmt: skip
WHOLE = {
    "divide": (lambda x, y: x / y, truncated, None),
    "by a number": (lambda x, y: x / 2, lambda x, y: truncated(x, 2), None),
    "one_hot": (lambda x, y: flow.one_hot(x, 8, dtype=flow.float32), lambda x, y: np.arange(8) == x[..., None], "float32"),
}  # fmt: skip


@pytest.mark.parametrize("name", FLOATS + INTS)
def test_values_and_dtypes(name):
    table = {**ANY, **(FLOATING if name in FLOATS else WHOLE)}
    if name not in ("int32", "int64"):
        table.pop("one_hot", None)
    x, y = arrays(name)
    dtype = getattr(flow, name)

    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder(x.shape, dtype), y: tp.Numpy.Placeholder(y.shape, dtype)) -> tp.Bundle[tp.Numpy]:
        made = {key: op(x, y) for key, (op, _, _) in table.items()}
        assert all(b.dtype == getattr(flow, table[key][2] or name) for key, b in made.items())
        return made

    found = job(x, y)
    exact = [a.astype(np.float64 if name in FLOATS else np.int64) for a in (x, y)]
    for key, (_, reference, out) in table.items():
        expected = np.asarray(reference(*exact))
        kind = NUMPY[out or name]
        assert found[key].dtype == kind, key
        assert found[key].shape == expected.shape, key
        if name in FLOATS and out is None:
            np.testing.assert_allclose(
                found[key].astype(np.float64), expected, rtol=ROUNDING[name], atol=2 * ROUNDING[name], err_msg=key
            )
        else:  # whole numbers wrap around
            np.testing.assert_array_equal(found[key], expected.astype(kind), err_msg=key)


def test_the_mean_of_whole_numbers_is_one():
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((4,), flow.int32)) -> tp.Numpy:
        return flow.math.reduce_mean(x)

    mean = job(np.array([1, 2, 3, 6], np.int32))
    assert mean.dtype == np.int32 and mean.tolist() == [3]


def test_bfloat16_arrays_go_in_and_out():
    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((2, 3), flow.bfloat16)) -> tuple[tp.Numpy, tp.Numpy]:
        w = flow.get_variable("w", (2, 3), flow.bfloat16, flow.ones_initializer())
        loss = flow.math.square(x * w)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return loss, w

    x = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    loss, w = job(x)
    assert loss.dtype == w.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(loss.astype(np.float32), np.arange(6).reshape(2, 3) ** 2)
    kept = flow.get_all_variables()["w"].numpy()
    assert kept.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(kept.astype(np.float32), 1 - 2 * np.arange(6).reshape(2, 3) ** 2 / 6, rtol=0.02)


def test_the_users_own_jax_keeps_its_dtypes():
    def own():
        wide = [jnp.arange(3).dtype, jnp.zeros(2).dtype, jnp.asarray(np.zeros(2)).dtype, jax.jit(lambda x: x * 2.5)(1).dtype]
        return [str(d) for d in wide], bool(jax.config.jax_enable_x64)

    before = own()
    assert before == (["int32", "float32", "float32", "float32"], False)

    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((3,), flow.int64)) -> tp.Callback[tp.Numpy]:
        assert own() == before  # in the job's body
        return x * x

    seen = []
    big = 2**40
    for _ in range(3):
        job(np.full(3, 2**20))(lambda value: seen.append((value.dtype, int(value[0]), own())))
        assert own() == before
    flow.sync_default_session()
    assert seen == [(np.dtype(np.int64), big, before)] * 3
    assert own() == before


@pytest.mark.parametrize("name", ["int64", "float64", "int32"])
def test_an_input_that_nothing_reads(name):
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((3,)), unread: tp.Numpy.Placeholder((2,), getattr(flow, name))) -> tp.Numpy:
        return flow.math.relu(x)

    @flow.global_function("predict")
    def late(x: tp.Numpy.Placeholder((3,)), unread: tp.Numpy.Placeholder((2,), getattr(flow, name))) -> tp.Callback[tp.Numpy]:
        return flow.math.relu(x)

    seen = []
    x, unread = np.array([-1, 0, 2], np.float32), np.zeros(2, name)
    for _ in range(3):
        np.testing.assert_array_equal(job(x, unread), [0, 0, 2])
        late(x, unread)(seen.append)
    flow.sync_default_session()
    np.testing.assert_array_equal(seen, [[0, 0, 2]] * 3)
