"""Layer, group and instance normalization by the native part: against NumPy, PyTorch and XLA's lowering; jobs that use it."""

from __future__ import annotations

import math
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
from oneflow.ops import norm as ops_norm
from oneflow.ops._native_norm import GROUPS, LAYER, lower_groups, lower_layer

pytestmark = pytest.mark.usefixtures("native_part")
CALL, GRADIENT = ('custom_call_target="' + _native.target(name) + '"' for name in ("layer_norm", "layer_norm_grad"))
WIDTHS = [1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 100, 1000, 4099]


def by_numpy(x: Any, gamma: Any, beta: Any, dy: Any, epsilon: float) -> list[np.ndarray]:
    """Of the last axis of x, in float64: the result, and the gradients to x, gamma and beta, element by element."""
    x, gamma, beta, dy = (np.asarray(v).astype(np.float64) for v in (x, gamma, beta, dy))
    inverse = 1 / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    normal = (x - x.mean(-1, keepdims=True)) * inverse
    g = dy * gamma
    dx = (g - g.mean(-1, keepdims=True) - normal * (g * normal).mean(-1, keepdims=True)) * inverse
    return [normal * gamma + beta, dx, dy * normal, dy]


def compare(found: Any, expected: np.ndarray, dtype: str, scale: float) -> None:
    tolerance = 2**-8 if dtype == "bfloat16" else 2e-5
    np.testing.assert_allclose(np.asarray(found).astype(np.float64), expected, rtol=tolerance, atol=tolerance * scale)


@settings(max_examples=examples(30), deadline=None)
@given(
    rows=st.sampled_from([1, 2, 3, 4, 5, 7, 63, 64, 65, 130]),
    width=st.sampled_from(WIDTHS),
    scale=st.booleans(),
    center=st.booleans(),
    shift=st.sampled_from([0.0, 1.0, 100.0]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_rows_are_normalized_as_by_numpy(
    rows: int, width: int, scale: bool, center: bool, shift: float, dtype: str, threads: int, seed: int,
    parallel: Any, bfloat16_kernels: str,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    x, dy = (jnp.asarray(rng.normal(at, 1, (rows, width)), dtype) for at in (shift, 0))
    gamma = rng.normal(1, 1, width).astype(np.float32) if scale else np.ones(width, np.float32)
    beta = rng.normal(0, 1, width).astype(np.float32) if center else np.zeros(width, np.float32)
    given_ = [*([gamma] if scale else []), *([beta] if center else [])]
    attrs = {"begin": 1, "epsilon": 1e-3, "scale": scale, "center": center}
    with parallel(threads):
        y, pullback = jax.vjp(lambda *v: lower_layer(*v, **attrs), x, *given_)
        gradients = pullback(dy)
    expected = by_numpy(x, gamma, beta, dy, 1e-3)
    large = 1 + shift  # what is lost where the mean is taken off
    compare(y, expected[0], dtype, 4 * large)
    compare(gradients[0], expected[1], dtype, 8 * large)
    sums = [*([expected[2]] if scale else []), *([expected[3]] if center else [])]
    assert y.dtype == gradients[0].dtype == x.dtype and len(gradients) == 1 + len(sums)
    for found, each in zip(gradients[1:], sums, strict=True):
        assert found.dtype == np.float32
        compare(found, each.sum(0), "float32", 10 * large * math.sqrt(rows))


@settings(max_examples=examples(30), deadline=None)
@given(
    images=st.integers(1, 4),
    groups=st.sampled_from([None, 1, 2, 3]),
    channels=st.sampled_from([6, 12]),
    pixels=st.sampled_from([(2,), (7,), (3, 3), (8, 4), (5, 13), (2, 3, 4), (40, 30)]),
    affine=st.booleans(),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_channels_are_normalized_as_by_numpy(
    images: int, groups: int | None, channels: int, pixels: tuple[int, ...], affine: bool, dtype: str, threads: int, seed: int,
    parallel: Any, bfloat16_kernels: str,
) -> None:  # fmt: skip
    check_groups(images, groups, channels, pixels, affine, dtype, threads, seed, parallel)


@settings(max_examples=examples(40), deadline=None)
@given(
    images=st.integers(1, 9),
    groups=st.sampled_from([None, 1, 2, 3]),
    channels=st.sampled_from([6, 12, 18, 48, 66, 132]),
    pixels=st.sampled_from([(1,), (2,), (7,), (3, 3), (8, 4), (5, 13), (2, 3, 4), (40, 30)]),
    affine=st.booleans(),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_channels_on_the_last_axis_are_normalized_as_by_numpy(
    images: int, groups: int | None, channels: int, pixels: tuple[int, ...], affine: bool, dtype: str, threads: int, seed: int,
    parallel: Any, bfloat16_kernels: str,
) -> None:  # fmt: skip
    check_groups(images, groups, channels, pixels, affine, dtype, threads, seed, parallel, channels_last=True)


def check_groups(
    images: int, groups: int | None, channels: int, pixels: tuple[int, ...], affine: bool, dtype: str, threads: int, seed: int,
    parallel: Any, **layout: bool,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    x, dy = (jnp.asarray(rng.normal(1, 1, (images, channels, *pixels)), dtype) for _ in range(2))
    gamma, beta = (rng.normal(1, 1, (1, channels, 1)).astype(np.float32) for _ in range(2))

    def run(x: Any, *parameters: Any) -> Any:
        if not layout:
            return lower_groups(x, *parameters, epsilon=1e-3, groups=groups)
        return jnp.moveaxis(lower_groups(jnp.moveaxis(x, 1, -1), *parameters, epsilon=1e-3, groups=groups, **layout), -1, 1)

    with parallel(threads):
        y, pullback = jax.vjp(run, x, *([gamma, beta] if affine else []))
        gradients = pullback(dy)
    size = math.prod(pixels)
    in_rows = (images, groups or channels, channels // (groups or channels) * size)
    by_channel = (images, channels, size)
    whole = [np.broadcast_to(p if affine else default, by_channel).reshape(in_rows) for p, default in ((gamma, 1.0), (beta, 0.0))]
    expected = by_numpy(x.reshape(in_rows), *whole, dy.reshape(in_rows), 1e-3)
    compare(y, expected[0].reshape(x.shape), dtype, 8)
    compare(gradients[0], expected[1].reshape(x.shape), dtype, 16)
    for found, each in zip(gradients[1:], expected[2:] if affine else [], strict=True):
        compare(found, each.reshape(by_channel).sum((0, 2)).reshape(1, channels, 1), "float32", 20 * math.sqrt(images * size))


@pytest.mark.parametrize("width", [9, 64, 100])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 3e38, 1e-40])
def test_a_row_that_is_not_finite_does_not_reach_others(special: float, width: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (8, width)).astype(np.float32)
    x[3, width - 1] = special
    parameters = [jnp.ones(width, np.float32), jnp.zeros(width, np.float32)]
    attrs = {"begin": 1, "epsilon": 1e-5, "scale": True, "center": True}
    results = []
    for run in (lower_layer, ops_norm._layer_norm.define):
        y, pullback = jax.vjp(lambda x, run=run: run(x, *parameters, **attrs), jnp.asarray(x))
        results.append((np.asarray(y), np.asarray(pullback(jnp.ones_like(y))[0])))
    others = np.arange(8) != 3
    for mine, theirs in zip(*results, strict=True):
        assert np.isfinite(mine[others]).all()
        np.testing.assert_allclose(mine[others], theirs[others], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(np.isnan(mine[3]), np.isnan(theirs[3]))


def test_sums_of_long_rows_do_not_drift() -> None:
    rng = np.random.default_rng(1)
    x = np.maximum(rng.standard_normal((2, 1 << 21), np.float32), 0)
    dy = (1 + rng.uniform(0, 1, x.shape)).astype(np.float32)
    ones, zeros = np.ones(1, np.float32), np.zeros(1, np.float32)
    expected = by_numpy(x, ones, zeros, dy, 1e-5)
    plain = {"epsilon": 1e-5, "groups": None}
    columns = jnp.ones((1, 2, 1), np.float32), jnp.zeros((1, 2, 1), np.float32)
    for run in (
        lambda x: lower_layer(x, begin=1, scale=False, center=False, epsilon=1e-5),
        lambda x: lower_groups(x.reshape(1, 2, -1), *columns, **plain).reshape(x.shape),
    ):
        y, pullback = jax.vjp(run, jnp.asarray(x))
        np.testing.assert_allclose(y, expected[0], atol=5e-6)
        np.testing.assert_allclose(pullback(jnp.asarray(dy))[0], expected[1], atol=5e-6)


@pytest.mark.parametrize("lower", [lower_groups, ops_norm._instance_norm.define], ids=["native", "XLA"])
@pytest.mark.parametrize("special", [np.nan, np.inf, 3e38])
def test_a_group_that_is_not_finite_does_not_reach_others(special: float, lower: Any) -> None:
    x = np.random.default_rng(0).normal(0, 1, (4, 10, 10, 24)).astype(np.float32)
    attrs = {"epsilon": 1e-5, "groups": 3, "channels_last": True}
    expected, pull = jax.vjp(lambda x: lower(x, **attrs), jnp.asarray(x))
    gradient = pull(jnp.ones_like(expected) * x)[0]
    x[2, 3, 4, 9] = special  # of the second group
    y, pullback = jax.vjp(lambda x: lower(x, **attrs), jnp.asarray(x))
    others = np.ones(x.shape, bool)
    others[2, :, :, 8:16] = False
    np.testing.assert_array_equal(np.asarray(y)[others], np.asarray(expected)[others])
    np.testing.assert_array_equal(np.asarray(pullback(jnp.ones_like(y) * x)[0])[others], np.asarray(gradient)[others])
    assert np.isfinite(special) or np.isnan(np.asarray(y)[2, 3, 4, 9])


def test_sums_over_many_pixels_do_not_drift() -> None:
    rng = np.random.default_rng(1)
    x = np.maximum(rng.standard_normal((1, 1 << 19, 8), np.float32), 0)
    dy = (1 + rng.uniform(0, 1, x.shape)).astype(np.float32)
    rows = [v.reshape(1, -1, 2, 4).transpose(0, 2, 1, 3).reshape(2, -1) for v in (x, dy)]
    expected = by_numpy(rows[0], np.ones(1), np.zeros(1), rows[1], 1e-5)
    y, pullback = jax.vjp(lambda x: lower_groups(x, epsilon=1e-5, groups=2, channels_last=True), jnp.asarray(x))
    for found, wanted in ((y, expected[0]), (pullback(jnp.asarray(dy))[0], expected[1])):
        by_group = np.asarray(found).reshape(1, -1, 2, 4).transpose(0, 2, 1, 3).reshape(2, -1)
        np.testing.assert_allclose(by_group, wanted, atol=5e-6)


@pytest.mark.parametrize("constant", [1.0, 100.0, 12345.678, 1e6, -3e-3])
@pytest.mark.parametrize("width", [9, 100, 1000, 4099])
def test_constant_rows_become_zeros(width: int, constant: float) -> None:
    x = jnp.full((512, width), constant, np.float32)
    assert not np.asarray(lower_layer(x, begin=1, epsilon=1e-12, scale=False, center=False)).any()
    images = x.reshape(2, -1, 16)
    assert not np.asarray(lower_groups(images, epsilon=1e-12, groups=4, channels_last=True)).any()


@pytest.mark.parametrize("kind", ["layer", "group", "instance"])
def test_gradients_are_those_of_pytorch(kind: str) -> None:
    rng = np.random.default_rng(2)
    shape = (6, 40, 48) if kind == "layer" else (6, 8, 5, 7)
    x, dy = (rng.normal(1, 2, shape).astype(np.float32) for _ in range(2))
    size = shape[-1] if kind == "layer" else shape[1]
    gamma, beta = (rng.normal(1, 1, size).astype(np.float32) for _ in range(2))
    tensors = [torch.tensor(v, requires_grad=True) for v in (x, gamma, beta)]
    if kind == "layer":
        theirs = torch.nn.functional.layer_norm(tensors[0], (48,), *tensors[1:])
        mine, pullback = jax.vjp(lambda *v: lower_layer(*v, begin=2, epsilon=1e-5, scale=True, center=True), x, gamma, beta)
    else:
        theirs = torch.nn.functional.group_norm(tensors[0], 4 if kind == "group" else 8, *tensors[1:])
        columns = (v.reshape(1, 8, 1) for v in (gamma, beta))
        groups = 4 if kind == "group" else None
        mine, pullback = jax.vjp(lambda *v: lower_groups(*v, epsilon=1e-5, groups=groups), x, *columns)
    theirs.backward(torch.tensor(dy))
    np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)
    for found, tensor in zip(pullback(jnp.asarray(dy)), tensors, strict=True):
        assert tensor.grad is not None
        np.testing.assert_allclose(np.asarray(found).reshape(tensor.shape), tensor.grad.numpy(), rtol=1e-4, atol=1e-4)


def test_vmap() -> None:
    x = jnp.asarray(np.random.default_rng(3).normal(0, 2, (3, 20, 50)), jnp.float32)
    attrs = {"begin": 1, "epsilon": 1e-5, "scale": False, "center": False}
    np.testing.assert_allclose(
        jax.vmap(lambda x: lower_layer(x, **attrs))(x),
        ops_norm._layer_norm.define(x, **{**attrs, "begin": 2}),
        rtol=1e-4,
        atol=1e-5,
    )


def test_refusals(native_part: Any) -> None:
    def layer(*shapes: tuple[int, ...], dtype: str = "float32", begin: int = 1) -> str | None:
        arrays = [jax.ShapeDtypeStruct(shapes[0], dtype), *(jax.ShapeDtypeStruct(s, "float32") for s in shapes[1:])]
        attrs = {"begin": begin, "epsilon": 1e-5, "scale": len(shapes) > 1, "center": len(shapes) > 2}
        return LAYER.unsupported_reason(arrays, attrs)

    def groups(shape: tuple[int, ...], groups: int | None, affine: bool, dtype: str = "float32", **layout: bool) -> str | None:
        column = [jax.ShapeDtypeStruct((1, shape[-1 if layout else 1], 1), "float32")] * (2 * affine)
        attrs = {"epsilon": 1e-5, "groups": groups, **layout}
        return GROUPS.unsupported_reason([jax.ShapeDtypeStruct(shape, dtype), *column], attrs)

    assert layer((1000, 100)) is layer((1000, 100), (100,)) is layer((1000, 100), (100,), (100,)) is None
    assert layer((10, 10)) == layer((4000, 2)) == "too small to gain by it"
    assert layer((0, 1000)) == "an empty array"
    assert layer((1000, 100), dtype="float64") is not None
    assert layer((100, 10, 100), (100,), begin=1) == "gamma and beta do not have the axes that are normalized"
    assert layer((100, 10, 100), (10, 100), begin=1) is None
    if _native.part().library.threads > 1:
        assert layer((1, 10_000)) == "there are more threads than rows"
    assert groups((8, 16, 10, 10), None, True) is groups((8, 16, 10, 10), 4, True) is groups((8, 64, 1, 64), 4, False) is None
    assert groups((80, 64, 1, 1), 4, False) is None
    assert groups((80, 64, 1, 1), 4, True) == "the native part has no kernel: gamma and beta do not fit the rows"
    last = {"channels_last": True}
    assert groups((8, 10, 10, 16), None, True, **last) is groups((8, 10, 10, 16), 4, False, **last) is None
    assert groups((1, 80, 64), 4, True, **last) is groups((80, 1, 1, 64), 4, True, **last) is None
    assert groups((8, 10, 10, 4), 2, True, **last) == groups((2, 3, 3, 64), 2, True, **last) == "too small to gain by it"
    assert groups((0, 10, 10, 16), 2, True, **last) == "an empty array"
    assert groups((8, 10, 10, 16), 2, True, "float64", **last) is not None
    good = [0, 4, 8, 16, 2, 1, _native.float_bits(1e-5)]
    wrong = {0: 2, 1: 0, 2: 0, 3: 0, 4: 3, 5: 2}
    for bad in (good[:-1], [*good, 0], *([*good[:i], v, *good[i + 1 :]] for i, v in wrong.items())):
        for call in ("group_norm", "group_norm_grad"):
            assert not native_part.describe(call, good).startswith("!") and native_part.describe(call, bad).startswith("!"), bad
    good = [0, 4, 8, 1, 1, _native.float_bits(1e-5), 8, 1]
    wrong = {0: 2, 1: 0, 2: 0, 3: 2, 6: 4, 7: 3}
    for bad in (good[:-1], [*good, 0], *([*good[:i], v, *good[i + 1 :]] for i, v in wrong.items())):
        for call in ("layer_norm", "layer_norm_grad"):
            assert native_part.describe(call, bad).startswith("!"), bad


# --- jobs


def trained(native: bool, mixed: bool, kind: str, steps: int = 3) -> tuple[list[Any], dict[str, np.ndarray], str]:
    """The losses of some steps, the variables behind them, and the program."""
    flow.clear_default_session()
    flow.manual_seed(1)
    flow.config.enable_native_cpu(native)
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(mixed)

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((16, 8, 64))) -> tp.Numpy:
        y = flow.layers.dense(x, 64, name="in", kernel_initializer=flow.random_normal_initializer(stddev=0.1))
        if kind == "layer":
            y = flow.layers.layer_norm(y, begin_norm_axis=2, begin_params_axis=2, name="norm")
        else:
            y = flow.nn.GroupNorm(y, num_groups=2, name="norm")
        y = flow.layers.dense(y, 32, name="out", kernel_initializer=flow.random_normal_initializer(stddev=0.1))
        loss = flow.math.reduce_mean(flow.math.square(y - 1.0))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5])).minimize(loss)
        return loss

    x = np.random.default_rng(5).normal(0, 1, (16, 8, 64)).astype(np.float32)
    losses = [job(x) for _ in range(steps)]
    variables = {name: value.numpy() for name, value in flow.get_all_variables().items()}
    hlo = job.executables[-1][1].hlo()
    flow.clear_default_session()
    return losses, variables, hlo


@pytest.mark.parametrize("kind", ["layer", "group"])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_job_trains_as_with_xla_alone(mixed: bool, kind: str) -> None:
    losses, variables, hlo = trained(True, mixed, kind)
    expected, theirs, without = trained(False, mixed, kind)
    assert hlo.count(CALL) == hlo.count(GRADIENT) == 1 and CALL not in without
    tolerance = 0.05 if mixed else 1e-4
    np.testing.assert_allclose(losses, expected, rtol=tolerance)
    assert variables.keys() == theirs.keys()
    for name, value in variables.items():
        np.testing.assert_allclose(value, theirs[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", ["group", "instance"])
def test_between_convolutions_it_is_computed_channels_last(kind: str, devices: int, native_part: Any) -> None:
    """The losses and variables are those of XLA's lowering, and only the job's input is transposed."""

    def run(native: bool, devices: int) -> tuple[list[Any], dict[str, np.ndarray], Any]:
        flow.clear_default_session()
        flow.config.gpu_device_num(devices)
        flow.manual_seed(1)
        flow.config.enable_native_cpu(native)
        config = flow.FunctionConfig()
        config.default_placement_scope(flow.scope.placement("gpu", f"0:0-{devices - 1}"))

        @flow.global_function("train", config)
        def job(x: tp.Numpy.Placeholder((6, 3, 12, 10))) -> tp.Numpy:
            y = flow.layers.conv2d(x, 16, 3, padding="SAME", name="a")
            y = flow.nn.GroupNorm(y, 4, name="n") if kind == "group" else flow.nn.InstanceNorm2d(y, name="n")
            y = flow.layers.conv2d(flow.nn.swish(y), 16, 3, padding="SAME", name="b")
            loss = flow.math.reduce_mean(flow.math.square(y - 1.0))
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.3])).minimize(loss)
            return loss

        x = np.random.default_rng(5).normal(0, 1, (6, 3, 12, 10)).astype(np.float32)
        losses = [job(x) for _ in range(3)]
        variables = {name: value.numpy() for name, value in flow.get_all_variables().items()}
        return losses, variables, job

    expected, theirs, _ = run(False, 1)
    losses, variables, job = run(True, devices)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for name, value in theirs.items():
        np.testing.assert_allclose(variables[name], value, rtol=1e-3, atol=1e-4, err_msg=name)
    changed = next(p.changed for p in job.executables[-1][1].plan.passes if "channels last" in p.changed)
    assert changed.endswith(", 1 transposes"), changed
    program = "".join(compiled.as_text() for _, compiled in job.executables[-1][1].compiled)
    assert all(program.count(f'"{_native.target(call)}"') == 1 for call in ("group_norm", "group_norm_grad"))
    assert f'"{_native.target("layer_norm")}"' not in program


def test_nothing_is_transposed_for_it_alone(native_part: Any) -> None:
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((6, 16, 12, 10))) -> tp.Numpy:
        return flow.nn.GroupNorm(flow.nn.relu(x), 4, name="n")

    job(np.ones((6, 16, 12, 10), np.float32))
    assert not any("channels last" in p.changed for p in job.executables[-1][1].plan.passes)
    assert CALL in job.executables[-1][1].hlo()


def test_a_predict_job_says_what_computes_it() -> None:
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((64, 128))) -> tp.Numpy:
        return flow.layers.layer_norm(x, name="norm")

    x = np.random.default_rng(1).normal(2, 3, (64, 128)).astype(np.float32)
    centred = x - x.mean(1, keepdims=True)
    np.testing.assert_allclose(job(x), centred / np.sqrt(x.var(1, keepdims=True) + 1e-5), rtol=1e-4, atol=1e-5)
    assert "normalization in one pass" in str(job.summary())
    assert job.executables[-1][1].hlo().count(CALL) == 1
