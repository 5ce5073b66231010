"""Max pooling by the native part: the calls against XLA's lowering, its gradient and PyTorch; jobs that use them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from programs import examples, result_and_gradients

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import native as _native
from oneflow.ops.pool import _MAX

pytestmark = pytest.mark.usefixtures("native_part")
CALL, GRADIENT = (f'custom_call_target="{_native.target(name)}"' for name in ("max_pool", "max_pool_grad"))


def attributes(n: int, ksize: Any, strides: Any, padding: Any, ceil_mode: bool = False) -> dict[str, Any]:
    return dict(ksize=(ksize,) * n, strides=(strides,) * n, padding=padding, channels_first=False, ceil_mode=ceil_mode)


APART = "its windows do not overlap: XLA computes it together with what is around it"
FEW = "it has fewer than 8 channels, which fill half a vector"
PROBE = jax.ShapeDtypeStruct((1, 4, 4, 8), np.float32)


@pytest.fixture(autouse=True)
def _takes_it(native_part: Any) -> None:
    reason = _MAX[2].native.unsupported_reason([PROBE], attributes(2, 3, 2, "VALID"))  # type: ignore[union-attr]
    if reason is not None:
        pytest.skip(reason)


def by_xla(x: Any, dy: Any, attrs: dict[str, Any]) -> tuple[Any, Any]:
    op = _MAX[x.ndim - 2]
    assert op.grad is not None

    def both(x: Any, dy: Any) -> tuple[Any, Any]:
        y = op.define(x, **attrs)
        return y, op.grad((x,), (y,), (dy,), **attrs)[0]

    return jax.jit(both)(x, dy)  # type: ignore[no-any-return]


def by_native(x: Any, dy: Any, attrs: dict[str, Any]) -> tuple[Any, Any]:
    native = _MAX[x.ndim - 2].native
    assert native is not None and native.unsupported_reason([x], attrs) in (None, APART, FEW)
    y, pulled = result_and_gradients(lambda v: native.lower(v, **attrs), (x,), dy)
    return y, pulled[0]


@settings(max_examples=examples(25), deadline=None)
@given(
    n=st.integers(1, 3),
    size=st.integers(1, 9),
    channels=st.sampled_from([1, 3, 15, 16, 17, 33, 64]),
    ksize=st.integers(1, 4),
    strides=st.integers(1, 5),
    padding=st.sampled_from(["VALID", "SAME_LOWER", "SAME_UPPER", "list"]),
    pads=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    ceil_mode=st.booleans(),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    values=st.sampled_from(["distinct", "ties", "constant", "nan", "infinite"]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_maxima_and_gradients_are_those_of_xla(
    n: int, size: int, channels: int, ksize: int, strides: int, padding: str, pads: tuple[int, int], ceil_mode: bool, dtype: str,
    values: str, threads: int, seed: int, parallel: Any, bfloat16_kernels: str,
) -> None:  # fmt: skip
    low, high = pads if padding == "list" else (0, 0)
    assume(padding.startswith("SAME") or size + low + high >= ksize)
    attrs = attributes(n, ksize, strides, (pads,) * n if padding == "list" else padding, ceil_mode and padding == "list")
    rng = np.random.default_rng(seed)
    shape = (2, *[size] * n, channels)
    made = {
        "distinct": rng.standard_normal(shape),
        "ties": rng.integers(-1, 2, shape).astype(float),
        "constant": np.full(shape, -2.5),
        "nan": np.where(rng.random(shape) < 0.2, np.nan, rng.standard_normal(shape)),
        "infinite": rng.choice([-np.inf, -np.inf, 0.0, np.inf], shape),
    }[values]
    x = jnp.asarray(made, dtype)
    y = jax.eval_shape(lambda v: _MAX[n].define(v, **attrs), x)
    dy = jnp.asarray(rng.integers(-8, 9, y.shape), dtype)  # sums of which are exact
    with parallel(threads):
        mine = by_native(x, dy, attrs)
    for got, want in zip(mine, by_xla(x, dy, attrs), strict=True):
        assert got.dtype == want.dtype == dtype
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(want, np.float32))


@pytest.mark.parametrize(("ksize", "strides", "pad"), [(3, 2, 1), (2, 2, 0), (3, 1, 1), (5, 3, 2)])
def test_maxima_and_gradients_are_those_of_pytorch(ksize: int, strides: int, pad: int, parallel: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 12, 14, 40), np.float32)
    given = torch.from_numpy(x.transpose(0, 3, 1, 2).copy()).requires_grad_()
    theirs = torch.nn.functional.max_pool2d(given, ksize, strides, pad)
    dy = rng.standard_normal(theirs.shape, np.float32)
    theirs.backward(torch.from_numpy(dy))
    with parallel(2):
        y, dx = by_native(jnp.asarray(x), jnp.asarray(dy.transpose(0, 2, 3, 1)), attributes(2, ksize, strides, ((pad, pad),) * 2))
    np.testing.assert_array_equal(np.asarray(y).transpose(0, 3, 1, 2), theirs.detach().numpy())
    assert given.grad is not None
    np.testing.assert_allclose(np.asarray(dx).transpose(0, 3, 1, 2), given.grad.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("ksize", "strides"), [(3, 2), (7, 1)])
def test_a_wide_array(ksize: int, strides: int, parallel: Any) -> None:
    rng = np.random.default_rng(0)
    x, attrs = jnp.asarray(rng.standard_normal((1, 100_000, 8), np.float32)), attributes(1, ksize, strides, "SAME_UPPER")
    dy = jnp.asarray(rng.integers(-8, 9, (1, 100_000 // strides, 8)), jnp.float32)
    with parallel(3):
        mine = by_native(x, dy, attrs)
    for got, want in zip(mine, by_xla(x, dy, attrs), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_vmapped_gradient() -> None:
    rng = np.random.default_rng(0)
    x, attrs = jnp.asarray(rng.standard_normal((4, 2, 6, 6, 5)), jnp.float32), attributes(2, 2, 2, "VALID")
    dy = jnp.asarray(rng.standard_normal((4, 2, 3, 3, 5)), jnp.float32)
    mine = jax.vmap(lambda a, b: by_native(a, b, attrs))(x, dy)
    theirs = jax.vmap(lambda a, b: by_xla(a, b, attrs))(x, dy)
    for got, want in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(got, want)


def test_what_xla_computes() -> None:
    native = _MAX[2].native
    assert native is not None
    first = {**attributes(2, 2, 2, "VALID"), "channels_first": True}
    assert native.unsupported_reason([PROBE], first) == "its channels are not on the last axis"
    assert native.unsupported_reason([PROBE], attributes(2, 2, 2, "VALID")) == APART
    halves = jax.ShapeDtypeStruct((1, 4, 4, 3), np.float16)
    assert native.unsupported_reason([halves], attributes(2, 3, 2, "VALID")) == "oneDNN has no float16"
    few = jax.ShapeDtypeStruct((1, 4, 4, 7), np.float32)
    assert native.unsupported_reason([few], attributes(2, 3, 2, "VALID")) == FEW
    large = jax.ShapeDtypeStruct((1, 20, 20, 3), np.float32)
    reason = native.unsupported_reason([large], attributes(2, 9, 1, "VALID"))
    assert reason == "the native part has no kernel: the window is too large"


def trained(native: bool) -> tuple[list[Any], dict[str, Any], str, str]:
    """Losses, variables, program and table of a small convolutional network."""
    flow.clear_default_session()
    flow.manual_seed(3)
    flow.config.enable_native_cpu(native)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4, 3, 12, 12)), y: tp.Numpy.Placeholder((4, 20))) -> tp.Numpy:
        start = flow.random_normal_initializer(stddev=0.2)
        h = flow.layers.conv2d(x, 20, 3, padding="SAME", activation=flow.nn.relu, kernel_initializer=start, name="a")
        h = flow.nn.max_pool2d(h, 3, 2, "SAME")
        h = flow.layers.conv2d(h, 20, 3, padding="SAME", kernel_initializer=start, name="b")
        h = flow.nn.max_pool2d(flow.nn.max_pool2d(h, 2, 1, "SAME"), 2, 2, "VALID")
        loss = flow.math.square(flow.math.reduce_mean(h, axis=[2, 3]) - y)
        flow.optimizer.SGD(0.1, momentum=0.9).minimize(loss)
        return loss

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 3, 12, 12), np.float32), rng.standard_normal((4, 20), np.float32)
    losses = [job(x, y) for _ in range(3)]
    values = {n: v.numpy() for n, v in flow.get_all_variables().items()}
    return losses, values, job.executables[-1][1].hlo(), str(job.summary())


def test_a_job_trains_as_with_xla(kernels: str) -> None:
    (losses, values, hlo, table), (plain, expected, without, _) = trained(True), trained(False)
    assert hlo.count(CALL) == hlo.count(GRADIENT) == 2 and CALL not in without
    assert table.count(f"rows:{kernels}") == 2 and table.count(f"XLA: {APART}") == 1
    np.testing.assert_allclose(losses, plain, rtol=1e-4, atol=1e-5)
    for name, value in values.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_a_predict_job_pools_as_with_xla() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 9, 8), np.float32)

    def pooled(native: bool) -> tuple[np.ndarray, str]:
        flow.clear_default_session()
        flow.manual_seed(3)
        flow.config.enable_native_cpu(native)

        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((2, 3, 9, 8))) -> tp.Numpy:
            return flow.nn.max_pool2d(flow.layers.conv2d(x, 16, 3, padding="SAME", name="a"), 3, 2, "SAME")

        return job(x), job.executables[-1][1].hlo()

    (got, hlo), (expected, without) = pooled(True), pooled(False)
    assert CALL in hlo and GRADIENT not in hlo and CALL not in without
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
