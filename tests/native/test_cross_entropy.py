"""Softmax cross-entropy by the native part: the call against NumPy, XLA's lowering and PyTorch; jobs that use it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import examples

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import native as _native
from oneflow.ops import loss as ops_loss
from oneflow.ops._native_loss import NATIVE, differentiable, lower

pytestmark = pytest.mark.usefixtures("native_part")
CALL, GRADIENT = ('custom_call_target="' + _native.target(name) + '"' for name in ("cross_entropy", "cross_entropy_grad"))
SIZES = [1, 2, 15, 16, 17, 64, 65, 100, 1000, 4095, 4096, 4097, 10_000]


def by_xla(labels: Any, logits: Any, dy: Any) -> tuple[np.ndarray, np.ndarray]:
    """Losses and gradients by the op's own definition."""
    op = ops_loss._sparse_softmax_cross_entropy
    assert op.grad is not None
    loss = op.define(labels, logits)
    return np.asarray(loss), np.asarray(op.grad((labels, logits), (loss,), (dy,))[1])


def by_native_part(labels: Any, logits: Any, dy: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    loss, pullback = jax.vjp(lambda x: lower(labels, x, **options), logits)
    return np.asarray(loss), np.asarray(pullback(dy)[0])


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.sampled_from([1, 2, 3, 7, 40]),
    classes=st.sampled_from(SIZES),
    scale=st.sampled_from([0.0, 1.0, 30.0, 1e4, 1e37]),
    offset=st.sampled_from([0.0, 0.0, 1e4, -1e7, 1e30]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_losses_and_gradients_are_those_of_numpy(
    rows: int,
    classes: int,
    scale: float,
    offset: float,
    dtype: str,
    threads: int,
    seed: int,
    parallel: Any,
    bfloat16_kernels: str,
) -> None:
    rng = np.random.default_rng(seed)
    logits = jnp.asarray(rng.normal(0, 1, (rows, classes)) * scale + offset, dtype)
    labels = rng.integers(-2, classes + 2, rows).astype(np.int32)
    dy = rng.normal(0, 1, rows).astype(np.float32)
    with parallel(threads):
        loss, pullback = jax.vjp(lambda x: differentiable(1, rows, classes)(x[None], jnp.asarray(labels)[None])[0], logits)
        (dx,) = pullback(jnp.asarray(dy))
    x = np.asarray(logits).astype(np.float64)
    x -= x.max(1, keepdims=True)
    total = np.log(np.exp(x).sum(1, keepdims=True))
    known = (labels >= 0) & (labels < classes)
    hit = np.arange(classes) == labels[:, None]
    expected = np.where(
        known, np.minimum((total - x)[np.arange(rows), np.where(known, labels, 0)], -np.log(1e-20)), -np.log(1e-20)
    )
    assert dx.dtype == logits.dtype and loss.dtype == np.float32
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)
    gradient = (np.exp(x - total) - hit) * np.where(known, dy, 0)[:, None]
    tolerance = 2**-8 if dtype == "bfloat16" else 2e-5
    np.testing.assert_allclose(np.asarray(dx).astype(np.float64), gradient, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize(
    "row",
    [
        [np.inf, 0, 1], [-np.inf, 0, 1], [0, -np.inf, 1], [np.nan, 0, 1], [1, 0, np.nan], [-np.inf] * 3, [np.inf] * 3,
        [np.nan] * 3, [np.inf, -np.inf, 0], [-np.inf, np.nan, -np.inf], [3e38, -3e38, 0], [1e-40, 0, 0], [0.0, -200.0, 0.0],
    ],
)  # fmt: skip
@pytest.mark.parametrize("width", [3, 16, 5000, 9000])
def test_infinities_and_nan_are_treated_as_by_xla(row: list[float], width: int) -> None:
    """The three numbers are the first, one in the middle and the last; the others are minus infinity, or zero."""
    for other in (-np.inf, 0.0):
        logits = np.full((4, width), other, np.float32)
        logits[:, [0, width // 2, -1]] = row
        labels = jnp.asarray([0, width // 2, width - 1, width], jnp.int32)
        dy = jnp.asarray([1.0, 2.0, -1.0, 1.0], jnp.float32)
        for mine, theirs in zip(
            by_native_part(labels, jnp.asarray(logits), dy), by_xla(labels, jnp.asarray(logits), dy), strict=True
        ):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint32", "uint64"])
def test_labels_of_all_dtypes_in_and_out_of_range(dtype: str) -> None:
    with jax.enable_x64(True):
        limits = np.iinfo(dtype)
        far = [int(limits.min), int(limits.max), min(2**32 + 1, int(limits.max)), max(-1, int(limits.min))]
        labels = jnp.asarray(np.array([0, 9, 99, 100, *far], dtype))
        logits = jnp.asarray(np.random.default_rng(1).normal(0, 3, (8, 100)), jnp.float32)
        dy = jnp.linspace(1, 2, 8, dtype=jnp.float32)
        for mine, theirs in zip(by_native_part(labels, logits, dy), by_xla(labels, logits, dy), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_pytorch() -> None:
    rng = np.random.default_rng(2)
    logits, labels = rng.normal(0, 2, (33, 777)).astype(np.float32), rng.integers(0, 777, 33).astype(np.int64)
    dy = rng.normal(0, 1, 33).astype(np.float32)
    x = torch.tensor(logits, requires_grad=True)
    theirs = torch.nn.functional.cross_entropy(x, torch.tensor(labels), reduction="none")
    theirs.backward(torch.tensor(dy))
    loss, dx = by_native_part(jnp.asarray(labels.astype(np.int32)), jnp.asarray(logits), jnp.asarray(dy))
    np.testing.assert_allclose(loss, theirs.detach().numpy(), rtol=1e-5)
    assert x.grad is not None
    np.testing.assert_allclose(dx, x.grad.numpy(), rtol=1e-4, atol=1e-7)


def test_other_ranks_and_vmap() -> None:
    rng = np.random.default_rng(3)
    logits = jnp.asarray(rng.normal(0, 2, (3, 4, 50)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 50, (3, 4)), jnp.int32)
    dy = jnp.ones((3, 4), jnp.float32)
    expected = by_xla(labels, logits, dy)
    for mine, theirs in zip(by_native_part(labels, logits, dy), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(lower)(labels, logits), expected[0], rtol=1e-5)
    with_column = by_native_part(labels[..., None], logits, dy)
    np.testing.assert_allclose(with_column[0], expected[0], rtol=1e-5)


def test_logits_that_are_read_in_bfloat16_have_float32_losses(bfloat16_kernels: str) -> None:
    logits = jnp.asarray(np.random.default_rng(4).normal(0, 2, (8, 300)), jnp.float32)
    labels, dy = jnp.arange(8, dtype=jnp.int32), jnp.ones(8, jnp.float32)
    narrow = logits.astype(jnp.bfloat16).astype(jnp.float32)
    loss, dx = by_native_part(labels, logits, dy, narrow=True)
    theirs, gradient = by_xla(labels, narrow, dy)
    assert loss.dtype == dx.dtype == np.float32
    np.testing.assert_allclose(loss, theirs, rtol=1e-5)
    np.testing.assert_array_equal(dx, dx.astype(jnp.bfloat16).astype(np.float32))
    np.testing.assert_allclose(dx, gradient, rtol=2**-8, atol=1e-7)


def test_refusals(native_part: Any) -> None:
    def reason(rows: int, classes: int, dtype: str = "float32") -> str | None:
        logits = jax.ShapeDtypeStruct((rows, classes), dtype)
        return NATIVE.unsupported_reason([jax.ShapeDtypeStruct((rows,), "int32"), logits], {})

    assert reason(1000, 1000) is None
    assert reason(10, 10) == "too small to gain by it"
    assert reason(0, 1000) == "an empty array"
    assert reason(1000, 1000, "float16") == "oneDNN has no float16"
    good = [0, 2, 3, _native.float_bits(46)]
    for bad in (good[:-1], [*good, 0], [2, *good[1:]], [0, 0, 3, 0], [0, 2, 0, 0], [0, 1 << 41, 3, 0], [0, 1 << 40, 1 << 30, 0]):
        for call in ("cross_entropy", "cross_entropy_grad"):
            assert native_part.describe(call, bad).startswith("!"), bad


# --- jobs


def trained(mixed: bool, native: bool, bias: bool, steps: int = 3, returns_logits: bool = False) -> tuple[list[Any], str]:
    """The results of some steps of a classifier with 2,000 classes, and its program."""
    flow.clear_default_session()
    flow.manual_seed(1)
    flow.config.enable_native_cpu(native)
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(mixed)

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((64, 128)), y: tp.Numpy.Placeholder((64,), flow.int32)) -> tuple[tp.Numpy, tp.Numpy]:
        w = flow.get_variable("w", (2000, 128), initializer=flow.random_normal_initializer(stddev=0.3))
        logits = flow.matmul(x, w, transpose_b=True)
        if bias:
            logits = flow.nn.bias_add(logits, flow.get_variable("b", (2000,), initializer=flow.zeros_initializer()))
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0])).minimize(loss)
        return loss, logits if returns_logits else loss

    rng = np.random.default_rng(5)
    x, y = rng.normal(0, 1, (64, 128)).astype(np.float32), rng.integers(0, 2001, 64).astype(np.int32)
    results = [job(x, y) for _ in range(steps)]
    hlo = job.executables[-1][1].hlo()
    flow.clear_default_session()
    return results, hlo


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_job_trains_as_with_xla_alone(mixed: bool, bias: bool) -> None:
    mine, hlo = trained(mixed, True, bias)
    theirs, without = trained(mixed, False, bias)
    assert hlo.count(CALL) == hlo.count(GRADIENT) == 1 and CALL not in without
    for (loss, _), (expected, _) in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(loss, expected, rtol=0.05 if mixed else 1e-4, atol=0.05 if mixed else 1e-4)


@pytest.mark.skipif(not _native.multiplies_bfloat16(), reason="float32 products are rounded on this CPU")
@pytest.mark.parametrize("bias", [False, True])
def test_in_mixed_precision_no_logits_nor_gradients_are_stored_in_float32(bias: bool) -> None:
    _, hlo = trained(True, True, bias)
    entry = hlo[hlo.index("ENTRY ") :]
    stored = [line for line in entry.splitlines() if "= f32[64,2000]" in line]
    assert not stored, stored
    assert "bf16[64,2000]" in entry


def test_logits_that_the_gradient_overwrites_are_returned_unchanged() -> None:
    mine, _ = trained(False, True, False, returns_logits=True)
    theirs, _ = trained(False, False, False, returns_logits=True)
    for (_, logits), (_, expected) in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)


def test_losses_of_batches_of_varying_size_stay_float32(bfloat16_kernels: str) -> None:
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((64, 32), np.float32), rng.integers(0, 1024, 64).astype(np.int32)
    losses = []
    for rows in (64, 12):
        flow.clear_default_session()
        config = flow.FunctionConfig()
        config.default_logical_view(flow.scope.mirrored_view())
        config.enable_auto_mixed_precision(True)

        @flow.global_function(type="predict", function_config=config)
        def job(x: tp.ListNumpy.Placeholder((64, 32)), labels: tp.ListNumpy.Placeholder((64,), flow.int32)) -> tp.ListNumpy:
            w = flow.get_variable("w", (32, 1024), initializer=flow.random_normal_initializer(), random_seed=1)
            return flow.nn.sparse_softmax_cross_entropy_with_logits(labels, flow.matmul(x, w))

        losses.append(job([x[:rows]], [labels[:rows]])[0])
        assert (losses[-1].astype(jnp.bfloat16).astype(np.float32) != losses[-1]).any()
    np.testing.assert_allclose(losses[1], losses[0][:12], rtol=1e-2)


@pytest.mark.parametrize("rows", [(256,), (8, 32)])
def test_the_gradient_of_a_product_s_logits_takes_their_memory(rows: tuple[int, ...]) -> None:
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((*rows, 64)), labels: tp.Numpy.Placeholder(rows, dtype=flow.int32)) -> tp.Numpy:
        hidden = flow.layers.dense(x, 64, name="hidden")
        words = flow.get_variable("words", (4000, 64), initializer=flow.random_normal_initializer())
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, flow.matmul(hidden, words, transpose_b=True))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss

    train(np.ones((*rows, 64), np.float32), np.zeros(rows, np.int32))
    text = train.executables[-1][1].hlo()
    assert text.count(CALL) == text.count(GRADIENT) == 1
    assert not [line for line in text.splitlines() if " copy(" in line and "4000]" in line]  # behind a reshape, XLA makes one
