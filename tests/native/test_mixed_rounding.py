"""Rounding to bfloat16 in mixed precision on a CPU: what the native part reads is rounded once, for all readers, and stored."""

# no `from __future__ import annotations`: a job's annotations are values

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oneflow as flow
import oneflow.typing as tp
from oneflow._base.jax import jax, jnp
from oneflow._base.rounding import to_bfloat16
from oneflow.compiler.precision import round_outputs, widen_native

RNG = np.random.default_rng(3)


def job_of(body: Any, kind: str = "predict") -> Any:
    flow.clear_default_session()
    flow.manual_seed(1)
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(True)
    return flow.global_function(kind, config)(body)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), shift=st.integers(0, 31))
def test_rounds_as_ml_dtypes_does(seed: int, shift: int) -> None:
    bits = np.random.default_rng(seed).integers(0, 2**32, 4096, dtype=np.uint64).astype(np.uint32)
    bits = bits >> np.uint32(shift) << np.uint32(shift)  # ties as well
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-40, 1 + 2**-8], np.float32)
    odd_nans = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    x = np.concatenate([bits.view(np.float32), special, odd_nans])
    found = np.asarray(jax.jit(to_bfloat16)(x)).astype(np.float32)
    with np.errstate(invalid="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    zero = expected == 0
    np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(expected[zero]))


def test_gradients_of_rounding(native_part: Any) -> None:
    factors = jnp.asarray([1.001, 2, 3, 4], np.float32)
    x = jnp.ones(4, np.float32)
    passed = jax.jit(jax.grad(lambda v: (round_outputs(v, {0}) * factors).sum()))(x)
    np.testing.assert_array_equal(passed, factors)
    rounded = jax.jit(jax.grad(lambda v: (widen_native(v, False) * factors).sum()))(x.astype(jnp.bfloat16))
    assert rounded.dtype == jnp.bfloat16
    np.testing.assert_array_equal(rounded, factors.astype(jnp.bfloat16))


def test_a_value_that_a_product_reads_is_the_same_for_its_other_readers(native_part: Any) -> None:
    def body(x: tp.Numpy.Placeholder((128, 256))) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        shared, apart = flow.math.tanh(x), flow.math.tanh(x * 0.5)
        w = flow.get_variable("w", (256, 128), initializer=flow.random_normal_initializer(stddev=0.05))
        product = flow.matmul(shared, w)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0])).minimize(flow.math.reduce_mean(product))
        return product, shared * 2.0, apart * 2.0

    job, x = job_of(body, "train"), RNG.standard_normal((128, 256), np.float32)
    product, shared, apart = job(x)
    exact = np.tanh(x.astype(np.float64))
    w = flow.get_all_variables()["w"].numpy().astype(np.float64)
    np.testing.assert_allclose(product, exact @ w, atol=0.05)
    np.testing.assert_allclose(apart, 2 * np.tanh(x.astype(np.float64) * 0.5), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(shared, 2 * exact, rtol=2**-8)
    np.testing.assert_array_equal(shared, shared.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("window, stride", [(2, 2), (3, 2)])
def test_max_pooling_between_convolutions_finds_its_largest_elements(window: int, stride: int, native_part: Any) -> None:
    """The second one reads the results in bfloat16, and the gradient looks for them among what was pooled."""
    shapes = {"a": (8, 8, 3, 3), "offset": (8,), "b": (8, 8, 3, 3)}
    values = {name: RNG.standard_normal(shape, np.float32) * np.float32(0.1) for name, shape in shapes.items()}

    def body(x: tp.Numpy.Placeholder((4, 8, 10, 8))) -> tp.Numpy:
        v = {n: flow.get_variable(n, shape, initializer=flow.zeros_initializer()) for n, shape in shapes.items()}
        y = flow.nn.relu(flow.nn.bias_add(flow.nn.conv2d(x, v["a"], 1, "SAME"), v["offset"], "NCHW"))
        loss = flow.math.reduce_sum(flow.nn.conv2d(flow.nn.max_pool2d(y, window, stride, "VALID"), v["b"], 1, "SAME"))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return loss

    job, x = job_of(body, "train"), RNG.standard_normal((4, 8, 10, 8), np.float32)
    flow.load_variables(values)
    job(x)
    tensors = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in values.items()}
    y = torch.relu(torch.conv2d(torch.tensor(x, dtype=torch.float64), tensors["a"], tensors["offset"], padding=1))
    torch.conv2d(torch.max_pool2d(y, window, stride), tensors["b"], padding=1).sum().backward()
    for name, now in flow.get_all_variables().items():
        if name in values:
            want = tensors[name].grad.numpy()  # where two are nearly as large, rounding may choose the other one
            assert np.linalg.norm(values[name] - now.numpy() - want) <= 0.05 * np.linalg.norm(want)


def in_pairs() -> Any:
    """The larger element of each pair, whose gradient looks for it."""

    def grad(inputs: Any, outputs: Any, cotangents: Any) -> tuple[Any]:
        largest, cotangent = (jnp.repeat(arrays[0], 2, 1) for arrays in (outputs, cotangents))
        return ((inputs[0] == largest) * cotangent,)

    @flow.experimental.register_op("larger_of_pairs", grad=grad)
    def larger_of_pairs(x: Any) -> Any:
        return jnp.max(x.reshape(x.shape[0], -1, 2), -1)

    return larger_of_pairs


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (lambda y: flow.nn.hardtanh(y, -0.7, 0.7), lambda y: torch.nn.functional.hardtanh(y, -0.7, 0.7)),
        (lambda y: in_pairs()(y), lambda y: y.reshape(512, -1, 2).max(2).values),
    ],
    ids=["hardtanh", "an op of the user's"],
)
def test_gradients_that_compare_results_get_those_that_were_computed(ours: Any, theirs: Any, native_part: Any) -> None:
    """A bound of 0.7 is less in bfloat16, and so may be the largest element of a pair."""
    w = RNG.standard_normal((256, 256), np.float32) * np.float32(0.05)
    v, x = RNG.standard_normal((256, 64), np.float32), RNG.standard_normal((512, 256), np.float32)

    def body(x: tp.Numpy.Placeholder((512, 256))) -> tp.Numpy:
        zeros = flow.zeros_initializer()
        y = flow.nn.bias_add(
            flow.matmul(x, flow.get_variable("w", w.shape, initializer=zeros)), flow.constant(0.1, flow.float32, (256,))
        )
        y = ours(y)
        loss = flow.math.reduce_sum(flow.matmul(y, flow.get_variable("v", v[: y.shape[1]].shape, initializer=zeros)))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        return loss

    job = job_of(body, "train")
    job.build()
    width = flow.get_all_variables()["v"].shape[0]
    flow.load_variables({"w": w, "v": v[:width]})
    job(x)
    weights = torch.tensor(w, dtype=torch.float64, requires_grad=True)
    (theirs(torch.tensor(x, dtype=torch.float64) @ weights + 0.1) @ torch.tensor(v[:width], dtype=torch.float64)).sum().backward()
    want = weights.grad.numpy()
    assert np.linalg.norm(w - flow.get_all_variables()["w"].numpy() - want) <= 0.08 * np.linalg.norm(want)


def residual_tower(blocks: int) -> str:
    """The compiled program of a training step."""

    def body(x: tp.Numpy.Placeholder((4, 16, 16, 16))) -> tp.Numpy:
        for i in range(blocks):
            y = flow.layers.conv2d(x, 16, 3, padding="SAME", name=f"conv{i}", use_bias=False)
            x = flow.nn.relu(flow.layers.batch_normalization(y, axis=1, training=True, name=f"norm{i}") + x)
        loss = flow.math.reduce_mean(flow.math.square(x - 1.0))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    job = job_of(body, "train")
    first = job(RNG.standard_normal((4, 16, 16, 16), np.float32))
    assert np.isfinite(first).all()
    return str(job.executables[-1][1].hlo())


def test_activations_are_not_computed_again_by_each_reader(native_part: Any) -> None:
    assert residual_tower(5).count(" maximum(") <= 2 * 5, "XLA computes a block again for each reader"


@pytest.mark.parametrize("masked", [False, True])
def test_the_mask_of_attention_stays_float32(native_part: Any, masked: bool) -> None:
    rng = np.random.default_rng(1)
    offset = rng.standard_normal((1, 1, 128, 128)).astype(np.float32) * 100

    def body(x: tp.Numpy.Placeholder((4, 2, 128, 32)), m: tp.Numpy.Placeholder((1, 1, 128, 128))) -> tuple[tp.Numpy, tp.Numpy]:
        mask = m * 1.5 + 0.25
        scores = flow.matmul(x, x, transpose_b=True) * 0.1
        y = flow.matmul(flow.nn.softmax(scores + mask if masked else scores), x)
        return y, mask * 2.0

    _, seen = job_of(body)(rng.standard_normal((4, 2, 128, 32)).astype(np.float32), offset)
    np.testing.assert_allclose(seen, (offset * 1.5 + 0.25) * 2, rtol=1e-5, atol=1e-5)
