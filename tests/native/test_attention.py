"""Attention in one call against NumPy and PyTorch in float64: values, gradients, masks, what is fused, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import examples

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import native as _native
from oneflow.compiler import attention_kernels as native

pytestmark = pytest.mark.usefixtures("native_part")

NO_MASK = np.zeros((1,), np.float32)
INFINITY = float("inf")


@pytest.fixture(autouse=True)
def cpu_that_has_it(native_part: Any) -> None:
    reason = native.unsupported_reason(native.Attention(2, 2, 128, 128, 64), "float32")
    if reason is not None:
        pytest.skip(reason)


def operands(a: native.Attention, seed: int, dtype: Any = np.float32) -> list[Any]:
    """Queries, keys, values, a mask and the gradient to the result."""
    rng = np.random.default_rng(seed)
    positions = (a.queries, a.keys, a.keys, a.queries)
    arrays = [rng.standard_normal(a.shape(p, n), np.float32).astype(dtype) for p, n in zip(a.perms, positions, strict=True)]
    mask = NO_MASK
    if a.mask is not None:
        sizes = (a.batch, a.heads, a.queries, a.keys)
        shape = tuple(n if varies else 1 for n, varies in zip(sizes, a.mask, strict=True))
        mask = rng.choice(np.array([0, 0, 0.5, -30], np.float32), shape)  # where -1e9 is all there is, float32 ends
    return [*arrays[:3], mask, arrays[3]]


def by_torch(a: native.Attention, q: Any, k: Any, v: Any, mask: Any, dy: Any) -> list[np.ndarray]:
    """The result and the gradients to q, k and v, in float64."""
    given_arrays = [torch.tensor(np.asarray(x, np.float64), requires_grad=True) for x in (q, k, v)]
    heads_first = [x.permute(p) for x, p in zip(given_arrays, a.perms[:3], strict=True)]
    scores = heads_first[0] @ heads_first[1].transpose(2, 3) * a.factor
    if a.mask is not None:
        scores = scores + torch.tensor(mask, dtype=torch.float64)
    if a.causal is not None:
        diagonal, fill = a.causal
        kept = torch.ones(a.queries, a.keys, dtype=torch.bool).tril(diagonal)
        scores = torch.where(kept, scores, torch.tensor(fill, dtype=torch.float64))
    y = (torch.softmax(scores, -1) @ heads_first[2]).permute([a.perms[3].index(axis) for axis in range(4)])
    y.backward(torch.tensor(np.asarray(dy, np.float64)))
    return [x.numpy() for x in (y.detach(), *(x.grad for x in given_arrays))]


def by_native(a: native.Attention, q: Any, k: Any, v: Any, mask: Any, dy: Any) -> list[Any]:
    y, pull = jax.vjp(lambda *qkv: native.differentiable(a)(*qkv, mask), q, k, v)
    return [y, *pull(jnp.asarray(dy))]


def outside_xla(a: native.Attention, q: Any, k: Any, v: Any, mask: Any, dy: Any) -> list[Any]:
    """The same without a program, which would be compiled for each case."""
    library, spec = _native.part().library, a.spec(q.dtype)
    y, statistics = np.empty(a.result_shape, q.dtype), np.empty((a.batch, a.heads, a.queries, 2), np.float32)
    gradients = [np.empty_like(x) for x in (q, k, v)]
    library.execute("attention", spec, *(x.ctypes.data for x in (q, k, v, mask, y, statistics)))
    library.execute("attention_grad", spec, *(x.ctypes.data for x in (q, k, v, mask, y, statistics, dy, *gradients)))
    return [y, *gradients]


def check(
    a: native.Attention, seed: int, dtype: Any = np.float32, tolerance: float = 2e-5, run: Callable[..., Any] = outside_xla
) -> None:
    arrays = operands(a, seed, dtype)
    for got, want in zip(run(a, *arrays), by_torch(a, *arrays), strict=True):
        assert got.shape == want.shape and got.dtype == dtype
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=tolerance, atol=tolerance * scale)


lengths = st.one_of(st.integers(1, 40), st.sampled_from([95, 96, 97, 127, 128, 129, 191, 193, 257]))
perms = st.sampled_from([(0, 1, 2, 3), (0, 2, 1, 3), (1, 2, 0, 3)])
attentions = st.builds(
    native.Attention,
    st.integers(1, 2), st.integers(1, 3), lengths, lengths, st.sampled_from([16, 32, 48, 64, 80, 128]),
    perms=st.tuples(perms, perms, perms, perms),
    factor=st.sampled_from([1.0, 0.125, 0.3]),
    mask=st.one_of(st.none(), st.tuples(*[st.booleans()] * 4)),
    causal=st.one_of(st.none(), st.tuples(st.integers(-5, 150), st.sampled_from([-INFINITY, -1e4, 0.0, -1.0]))),
)  # fmt: skip


def sees_something(a: native.Attention) -> native.Attention:
    """Without rows that softmax makes NaN: those have their own test."""
    if a.causal is not None and a.causal[0] < 0 and a.causal[1] == -INFINITY:
        return replace(a, causal=(-a.causal[0], a.causal[1]))
    return a


@settings(max_examples=examples(25), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(attentions.map(sees_something), st.integers(0, 2**31))
def test_random_attention_agrees_with_float64(a: native.Attention, seed: int) -> None:
    check(a, seed)


@settings(max_examples=examples(10), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(attentions.map(sees_something), st.integers(0, 2**31))
def test_random_attention_in_bfloat16_agrees_with_float64(a: native.Attention, seed: int) -> None:
    if native.unsupported_reason(a, "bfloat16") is not None:
        return  # the machine has none
    check(a, seed, jnp.bfloat16, tolerance=3e-2)


@pytest.mark.parametrize("length", [1, 127, 128, 129, 600])
@pytest.mark.parametrize("causal", [None, (0, -INFINITY), (0, -1e4)])
def test_lengths_around_those_of_blocks(length: int, causal: tuple[int, float] | None, parallel: Callable[[int], Any]) -> None:
    with parallel(3):
        check(native.Attention(1, 2, length, length, 64, factor=0.125, causal=causal), 0)


def test_in_a_program_with_a_mask_and_other_layouts() -> None:
    turned = (0, 2, 1, 3)
    a = native.Attention(2, 3, 130, 140, 32, (turned, turned, (1, 2, 0, 3), turned), 0.2, (True, False, True, True), (3, -1e4))
    check(a, 0, run=by_native)


def test_queries_that_see_nothing_and_infinite_scores_are_what_softmax_makes_of_them() -> None:
    a = native.Attention(1, 1, 200, 130, 32, mask=(False, False, True, False))
    q, k, v, _, dy = operands(a, 0)
    mask = np.zeros((1, 1, 200, 1), np.float32)
    mask[0, 0, 3], mask[0, 0, 150] = -INFINITY, INFINITY  # softmax makes NaN of both rows
    q[0, 0, 60, 0], k[0, 0, 7, 0] = INFINITY, 0.0  # infinity times zero
    arrays = (q, k, v, mask, dy)
    for got, want in zip(by_native(a, *arrays), by_torch(a, *arrays), strict=True):
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(by_native(a, *arrays)[0], by_torch(a, *arrays)[0], rtol=1e-4, atol=1e-5)


def test_masks_that_hide_all_keys_alike_leave_even_weights() -> None:
    """The sum of 300 exponentials is lost in the logarithm of a sum near -1e9: what is kept must be more than that."""
    a = native.Attention(2, 1, 300, 300, 32, mask=(True, False, False, False))
    q, k, v, _, dy = operands(a, 0)
    mask = np.full((2, 1, 1, 1), -1e9, np.float32)
    y, *_, dv = by_native(a, q, k, v, mask, dy)
    np.testing.assert_allclose(y, np.broadcast_to(v.mean(2, keepdims=True), v.shape), atol=1e-4)
    np.testing.assert_allclose(dv, np.broadcast_to(dy.mean(2, keepdims=True), v.shape), atol=1e-4)


few = st.builds(
    native.Attention,
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 70), st.sampled_from([16, 48, 64, 80, 128]),
    perms=st.tuples(perms, perms, perms, perms),
    factor=st.sampled_from([1.0, 0.125]),
    mask=st.one_of(st.none(), st.tuples(*[st.booleans()] * 4)),
    causal=st.one_of(st.none(), st.tuples(st.integers(-5, 70), st.sampled_from([-INFINITY, -1e4, 0.0]))),
)  # fmt: skip


@settings(max_examples=examples(25), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(few.map(sees_something), st.integers(0, 2**31), st.sampled_from([np.float32, jnp.bfloat16]))
def test_few_queries_agree_with_float64(a: native.Attention, seed: int, dtype: Any) -> None:
    if native.unsupported_reason(a, np.dtype(dtype).name) is None:
        arrays, tolerance = operands(a, seed, dtype), 2e-5 if dtype is np.float32 else 2e-2
        found, wanted = outside_xla(a, *arrays)[0], by_torch(a, *arrays)[0]
        np.testing.assert_allclose(np.asarray(found, np.float64), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seen", [0, 1, 15, 16, 17, 40, 90])
def test_hidden_keys_have_no_effect_on_one_query(seen: int) -> None:
    a = native.Attention(
        2, 3, 1, 90, 32, (native.HEADS_FIRST, (1, 2, 0, 3), (1, 2, 0, 3), native.HEADS_FIRST), 0.2, (False, False, False, True)
    )
    q, k, v, _, dy = operands(a, 0)
    mask = np.where(np.arange(90) < seen, 0, -INFINITY).astype(np.float32).reshape(1, 1, 1, 90)
    k[-(-seen // 16) * 16 :], v[-(-seen // 16) * 16 :] = np.nan, np.nan  # not read at all
    found = outside_xla(a, q, k, v, mask, dy)[0]
    wanted = by_torch(a, q, np.nan_to_num(k), np.nan_to_num(v), mask, dy)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(attentions.map(sees_something), st.integers(0, 2**31), st.sampled_from([np.float32, jnp.bfloat16]))
def test_much_random_attention_agrees_with_float64(a: native.Attention, seed: int, dtype: Any) -> None:
    if native.unsupported_reason(a, np.dtype(dtype).name) is None:
        check(a, seed, dtype, 2e-5 if dtype is np.float32 else 3e-2)


def test_vmap() -> None:
    a = native.Attention(1, 2, 40, 50, 16)
    q, k, v, mask, _ = operands(a, 0)
    several = [np.stack([x, 2 * x]) for x in (q, k, v)]
    found = jax.vmap(lambda *qkv: native.differentiable(a)(*qkv, mask))(*several)
    for i in range(2):
        np.testing.assert_allclose(found[i], native.differentiable(a)(*(x[i] for x in several), mask), rtol=1e-6)


def test_results_are_the_same_from_run_to_run(parallel: Callable[[int], Any]) -> None:
    a = native.Attention(2, 3, 200, 200, 32, causal=(0, -INFINITY))
    arrays = operands(a, 0)
    first = by_native(a, *arrays)
    with parallel(4):
        for _ in range(3):
            for got, want in zip(by_native(a, *arrays), first, strict=True):
                np.testing.assert_array_equal(got, want)


# --- jobs

BATCH, LENGTH, HEADS, SIZE = 2, 128, 2, 32
Scores = Callable[[Any, Any, Any], Any]


def heads_first(x: Any) -> Any:
    return flow.transpose(flow.reshape(x, (BATCH, LENGTH, HEADS, SIZE)), (0, 2, 1, 3))


def attended(weigh: Scores, x: Any, mask: Any) -> Any:
    """Self-attention of x (batch, length, heads * size), with weights by ``weigh(q, k, mask)``."""
    width = HEADS * SIZE

    def dense(name: str) -> Any:
        w = flow.get_variable(name, (width, width), initializer=flow.random_normal_initializer(stddev=0.2), random_seed=3)
        return heads_first(flow.matmul(x, w))

    q, k, v = dense("q"), dense("k"), dense("v")
    return flow.transpose(flow.matmul(weigh(q, k, mask), v), (0, 2, 1, 3))


def softmax(x: Any) -> Any:
    return flow.nn.softmax(x)


def kept_triangle(x: Any, **more: Any) -> Any:
    return flow.math.fused_scale_tril(x, fill_value=-INFINITY, **more)


FUSED: dict[str, Scores] = {
    "plain": lambda q, k, m: softmax(flow.matmul(q, k, transpose_b=True)),
    "bert": lambda q, k, m: softmax(flow.matmul(q, k, transpose_b=True, alpha=0.2) + m),
    "mask on the left": lambda q, k, m: softmax(m + 0.2 * flow.matmul(q, k, transpose_b=True)),
    "mask taken away": lambda q, k, m: softmax(flow.matmul(q, k, transpose_b=True) / 5.0 - m),
    "gpt": lambda q, k, m: flow.nn.fused_scale_tril_softmax_dropout(
        flow.matmul(q, k, transpose_b=True, alpha=0.2), fill_value=-INFINITY
    ),
    "a finite fill": lambda q, k, m: flow.nn.fused_scale_tril_softmax_dropout(
        flow.matmul(q, k, transpose_b=True), fill_value=-3.0, scale=0.2, diagonal=1
    ),
    "mask and triangle": lambda q, k, m: softmax(kept_triangle(flow.matmul(q, k, transpose_b=True) * 0.2 + m)),
    "keys transposed by hand": lambda q, k, m: softmax(flow.matmul(q, flow.transpose(k, (0, 1, 3, 2)), alpha=0.2)),
}


def build(weigh: Scores, **options: Any) -> Any:
    flow.clear_default_session()
    flow.config.enable_native_cpu(options.pop("native", True))
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(options.pop("mixed", False))
    extra = options.pop("extra", None)

    @flow.global_function("train", config)
    def job(
        x: tp.Numpy.Placeholder((BATCH, LENGTH, HEADS * SIZE)), m: tp.Numpy.Placeholder((BATCH, 1, 1, LENGTH))
    ) -> tuple[tp.Numpy, tp.Numpy]:
        y = attended(weigh, x, m)
        if extra is not None:
            extra(y)
        loss = flow.math.reduce_mean(flow.math.square(y))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [5.0])).minimize(loss)
        return loss, y

    return job


def calls(job: Any) -> int:
    text = job.executables[-1][1].hlo()
    return text.count(_native.target("attention") + '"') + text.count(_native.target("attention_grad") + '"')


def run(job: Any, steps: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH, LENGTH, HEADS * SIZE), np.float32)
    mask = rng.choice(np.array([0, -1e9], np.float32), (BATCH, 1, 1, LENGTH))
    mask[..., 0] = 0
    return [value for _ in range(steps) for value in job(x, mask)]


OFTEN = ("bert", "gpt", "mask taken away")


@pytest.mark.parametrize("name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.thorough) for n in FUSED])
def test_jobs_compute_the_same_in_one_call_as_op_by_op(name: str) -> None:
    job = build(FUSED[name])
    found = run(job)
    assert calls(job) == 2
    assert dict(job.executables[-1][1].plan.passes)["attention"] == "1 layer computed by one call each"
    assert "attention in one call" in str(job.summary())
    wanted = run(build(FUSED[name], native=False))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def other_scale(q: Any, k: Any, m: Any) -> Any:
    return softmax((flow.matmul(q, k, transpose_b=True) + m) * 0.2)


def returned(q: Any, k: Any, m: Any) -> Any:
    scores = flow.matmul(q, k, transpose_b=True)
    flow.watch(scores, lambda value: None)
    return softmax(scores)


def dropped(q: Any, k: Any, m: Any) -> Any:
    return flow.nn.dropout(softmax(flow.matmul(q, k, transpose_b=True)), 0.1)


def trained_mask(q: Any, k: Any, m: Any) -> Any:
    bias = flow.get_variable("bias", (1, HEADS, LENGTH, LENGTH), initializer=flow.zeros_initializer())
    return softmax(flow.matmul(q, k, transpose_b=True) + bias)


def read_twice(q: Any, k: Any, m: Any) -> Any:
    weights = softmax(flow.matmul(q, k, transpose_b=True))
    flow.watch(flow.math.reduce_mean(weights), lambda value: None)
    return weights


def across_queries(q: Any, k: Any, m: Any) -> Any:
    return flow.nn.softmax(flow.matmul(q, k, transpose_b=True), axis=2)


def checkpointed(q: Any, k: Any, m: Any) -> Any:
    with flow.experimental.scope.config(checkpointing=True):
        return softmax(flow.matmul(q, k, transpose_b=True))


@pytest.mark.parametrize(
    "weigh", [other_scale, returned, dropped, trained_mask, read_twice, across_queries, checkpointed]
)  # fmt: skip
def test_what_is_not_that_alone_stays_as_it_was(weigh: Scores) -> None:
    job = build(weigh)
    run(job, 1)
    assert calls(job) == 0


def test_gradients_can_be_watched_before_and_behind_it() -> None:
    seen: dict[str, list[np.ndarray]] = {}

    def weigh(q: Any, k: Any, m: Any) -> Any:
        flow.watch_diff(q, lambda value: seen.setdefault("q", []).append(value.numpy()))
        return softmax(flow.matmul(q, k, transpose_b=True, alpha=0.2) + m)

    def behind(y: Any) -> None:
        flow.watch_diff(y, lambda value: seen.setdefault("y", []).append(value.numpy()))

    job = build(weigh, extra=behind)
    run(job, 1)
    assert calls(job) == 2
    run(build(weigh, extra=behind, native=False), 1)
    for first, second in seen.values():
        np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-7)


def test_mixed_precision_computes_it_in_bfloat16(bfloat16_kernels: str) -> None:
    job = build(FUSED["bert"], mixed=True)
    found = run(job)
    assert calls(job) == 2 and f"blocked:{bfloat16_kernels}" in str(job.summary())
    for got, want in zip(found, run(build(FUSED["bert"], native=False)), strict=True):
        np.testing.assert_allclose(got, want, rtol=0.2, atol=0.2)


def test_the_fused_product_of_queries_and_keys_is_part_of_it() -> None:
    def made(native: bool) -> tuple[Any, list[np.ndarray]]:
        flow.clear_default_session()
        flow.config.enable_native_cpu(native)

        @flow.global_function("train")
        def job(x: tp.Numpy.Placeholder((LENGTH, BATCH, HEADS * 3 * SIZE))) -> tuple[tp.Numpy, tp.Numpy]:
            w = flow.get_variable("w", (HEADS * 3 * SIZE,), initializer=flow.ones_initializer())
            scores, values = flow.nn.fused_self_attention_query_mul_key_and_value(x * w, head_size=SIZE, alpha=0.1)
            weights = flow.nn.fused_scale_tril_softmax_dropout(scores, fill_value=-INFINITY)
            y = flow.transpose(flow.matmul(weights, values), (2, 0, 1, 3))
            loss = flow.math.reduce_mean(flow.math.square(y))
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [5.0])).minimize(loss)
            return loss, y

        x = np.random.default_rng(0).standard_normal((LENGTH, BATCH, HEADS * 3 * SIZE), np.float32)
        return job, [value for _ in range(3) for value in job(x)]

    job, found = made(True)
    assert calls(job) == 2
    for got, want in zip(found, made(False)[1], strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def test_a_few_words_and_odd_heads_are_left_to_xla() -> None:
    """One rule, by measurement: docs/performance-kernels.md."""

    def job_of(length: int, size: int) -> Any:
        flow.clear_default_session()

        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((4, 2, length, size))) -> tp.Numpy:
            return flow.matmul(softmax(flow.matmul(x, x, transpose_b=True)), x)

        job(np.ones((4, 2, length, size), np.float32))
        return job

    assert [calls(job_of(*sizes)) for sizes in ((7, 32), (8, 32), (128, 40), (128, 256))] == [0, 1, 0, 0]


def test_values_may_have_heads_of_another_size_than_queries() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 2, LENGTH, 32)), v: tp.Numpy.Placeholder((4, 2, LENGTH, 64))) -> tp.Numpy:
        return flow.matmul(softmax(flow.matmul(x, x, transpose_b=True)), v)

    rng = np.random.default_rng(0)
    x, v = rng.standard_normal((4, 2, LENGTH, 32), np.float32), rng.standard_normal((4, 2, LENGTH, 64), np.float32)
    scores = x @ x.swapaxes(2, 3)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(job(x, v), weights / weights.sum(-1, keepdims=True) @ v, rtol=1e-4, atol=1e-4)
    assert calls(job) == 0


def test_exports_see_the_ops_that_the_program_wrote(tmp_path: Any) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 2, LENGTH, SIZE))) -> tp.Numpy:
        return flow.matmul(softmax(flow.matmul(x, x, transpose_b=True)), x)

    job(np.ones((4, 2, LENGTH, SIZE), np.float32))
    assert calls(job) == 1
    flow.export.stablehlo(job, tmp_path / "job")
    assert b"oneflow_attention" not in (tmp_path / "job").read_bytes()


# --- decoding with a cache


def decoded(batch: int, native_part: bool, mixed: bool = False) -> tuple[Any, list[np.ndarray]]:
    """A predict job that keeps keys and values of 48 positions, and what it returns for each of them."""
    flow.clear_default_session()
    flow.config.enable_native_cpu(native_part)
    config, length = flow.FunctionConfig(), 48
    config.enable_auto_mixed_precision(mixed)

    @flow.global_function("predict", config)
    def step(x: tp.Numpy.Placeholder((batch, HEADS * SIZE)), at: tp.Numpy.Placeholder((1,), flow.int32)) -> tp.Numpy:
        caches = []
        for name in "kv":
            cache = flow.get_variable(f"{name}-cache", (length, batch, HEADS, SIZE), initializer=flow.zeros_initializer())
            w = flow.get_variable(
                name, (HEADS * SIZE,) * 2, initializer=flow.random_normal_initializer(stddev=0.2), random_seed=3
            )
            row = flow.reshape(flow.matmul(x, w), (1, batch, HEADS, SIZE))
            filled = flow.tensor_scatter_nd_update(cache, flow.reshape(at, (1, 1)), row)
            flow.assign(cache, filled)
            caches.append(flow.transpose(filled, (1, 2, 0, 3)))
        scores = flow.matmul(flow.reshape(x, (batch, HEADS, 1, SIZE)), caches[0], transpose_b=True) * 0.2
        hidden = flow.math.greater(flow.range(length, dtype=flow.int32), at)
        scores = flow.masked_fill(flow.zeros((length,)), hidden, -INFINITY) + scores
        return flow.reshape(flow.matmul(flow.nn.softmax(scores), caches[1]), (batch, HEADS * SIZE))

    tokens = np.random.default_rng(0).standard_normal((length, batch, HEADS * SIZE)).astype(np.float32)
    return step, [step(tokens[i], np.array([i], np.int32)) for i in range(length)]


@pytest.mark.parametrize("batch", [1, 3])
def test_decoding_with_a_cache(batch: int) -> None:
    job, found = decoded(batch, True)
    assert calls(job) == 1
    _, wanted = decoded(batch, False)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
