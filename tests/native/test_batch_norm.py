"""Batch normalization of training steps by the native part: its two calls, and jobs that take them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
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
import oneflow.optimizer as opt
import oneflow.typing as tp
from oneflow._base import native as _native
from oneflow.compiler.batch_norm_kernels import Norm, Pieces, backward, describe, forward, unsupported_reason
from oneflow.graph.op import BatchNorm
from oneflow.ops.norm import _batch_normalization_training as OP

CALL, GRAD_CALL, EXCHANGE = (
    f'custom_call_target="{_native.target(name)}"' for name in ("batch_norm", "batch_norm_grad", "exchange")
)
PROBE = Norm(8, 16, BatchNorm(1, 1e-3, 0.9, True, True), "float32", "float32")

pytestmark = pytest.mark.usefixtures("native_part")


@pytest.fixture(autouse=True)
def _takes_it(native_part: Any) -> None:
    if unsupported_reason(PROBE) is not None:
        pytest.skip(str(unsupported_reason(PROBE)))


@partial(jax.jit, static_argnums=0)
def by_xla(norm: Norm, x: Any, vectors: Any, residual: Any, cotangent: Any, rounded: Any = None) -> tuple[Any, ...]:
    """The result, the moving statistics, the gradients to x, to the residual, to gamma and to beta, and the unbounded result.

    ``rounded``: a result whose rounding decides which elements are beyond the bounds.
    """
    attrs = dict(axis=1, epsilon=norm.op.epsilon, momentum=norm.op.momentum, scale=norm.op.scale, center=norm.op.center)
    outputs = OP.define(x, *vectors, **attrs)
    free = outputs[0] if residual is None else outputs[0] + residual
    y, g = free, cotangent
    if norm.is_rectified:
        g = jnp.where((free if rounded is None else rounded) > 0, g, 0)
        y = jnp.maximum(free, 0)
    gradients = OP.grad((x, *vectors), outputs, (g, None, None, None, None), **attrs)
    ones = jnp.ones(norm.channels, jnp.float32)
    gamma = gradients[1] if norm.op.scale else ones
    beta = gradients[1 + norm.op.scale] if norm.op.center else ones
    kept = cotangent if residual is None else g
    return y, outputs[1], outputs[2], gradients[0], kept, gamma, beta, free


@partial(jax.jit, static_argnums=(0, 5))
def by_native(norm: Norm, x: Any, vectors: Any, residual: Any, parts: Any, pieces: Pieces | None = None) -> tuple[Any, ...]:
    y, mean, variance, statistics = forward(norm, x, vectors, residual, pieces)
    found = backward(norm, x, vectors, statistics, y, parts, pieces)
    ones = jnp.ones(norm.channels, jnp.float32)
    kept = sum(p.astype(np.float32) for p in parts) if found.residual is None else found.residual
    gamma, beta = found.gamma if norm.op.scale else ones, found.beta if norm.op.center else ones
    return tuple(v.astype(np.float32) for v in (y, mean, variance, found.x, kept, gamma, beta))


CASES: dict[str, Any] = dict(
    is_rectified=st.booleans(),
    narrow=st.tuples(st.booleans(), st.booleans()),
    has_residual=st.booleans(),
    scale=st.booleans(),
    center=st.booleans(),
    parts=st.integers(1, 2),
    offset=st.sampled_from([0.0, 3.0, -1000.0]),
)


@settings(max_examples=examples(30), deadline=None)
@given(
    rows=st.sampled_from([1, 2, 3, 16, 31, 32, 33, 64, 100, 1000]),
    channels=st.sampled_from([1, 2, 15, 16, 17, 24, 48, 63, 64, 65, 100, 128, 200]),
    **CASES,
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_the_calls_compute_what_xla_computes(
    rows: int, channels: int, is_rectified: bool, narrow: tuple[bool, bool], has_residual: bool, scale: bool, center: bool,
    parts: int, offset: float, threads: int, seed: int, parallel: Any,
) -> None:  # fmt: skip
    with parallel(threads):
        compare(rows, channels, is_rectified, narrow, has_residual, scale, center, parts, offset, seed)


@pytest.fixture(scope="module")
def four_devices() -> Iterator[None]:
    flow.clear_default_session()
    flow.config.gpu_device_num(4)

    @flow.global_function("predict")
    def first(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        return x + 1

    first(np.zeros(4, np.float32))  # only now JAX has as many devices
    yield
    flow.clear_default_session()


@settings(max_examples=examples(15), deadline=None)
@given(
    rows=st.sampled_from([1, 2, 3, 31, 33, 64, 500]),
    channels=st.sampled_from([1, 15, 16, 24, 65, 128, 200]),
    **CASES,
    shape=st.sampled_from([(2, 1), (4, 1), (2, 2)]),
    seed=st.integers(0, 1000),
)
def test_several_devices_compute_what_one_computes(
    rows: int, channels: int, is_rectified: bool, narrow: tuple[bool, bool], has_residual: bool, scale: bool, center: bool,
    parts: int, offset: float, shape: tuple[int, int], seed: int, four_devices: None,
) -> None:  # fmt: skip
    mesh = jax.sharding.Mesh(np.array(jax.devices()[: math.prod(shape)]).reshape(shape), ("x", "y"))
    pieces = Pieces(mesh, ("x",), "test", "norm")
    compare(rows * shape[0], channels, is_rectified, narrow, has_residual, scale, center, parts, offset, seed, pieces)


def compare(
    rows: int, channels: int, is_rectified: bool, narrow: tuple[bool, bool], has_residual: bool, scale: bool, center: bool,
    parts: int, offset: float, seed: int, pieces: Pieces | None = None,
) -> None:  # fmt: skip
    """Both calls against XLA. ``rows``: of all devices."""
    x_dtype, y_dtype = ("bfloat16" if each else "float32" for each in narrow)
    op, devices = BatchNorm(1, 1e-3, 0.9, scale, center), 1 if pieces is None else pieces.mesh.shape["x"]
    whole = Norm(rows, channels, op, x_dtype, y_dtype, has_residual, is_rectified)
    norm = replace(whole, rows=rows // devices, devices=devices)
    if unsupported_reason(norm) is not None:
        pytest.skip(str(unsupported_reason(norm)))
    rng = np.random.default_rng(seed)

    def array(dtype: str, shape: tuple[int, ...] = (rows, channels), base: float = 0.0) -> Any:
        return jnp.asarray(rng.standard_normal(shape) + base, np.float32).astype(dtype)

    x = array(x_dtype, base=0.0 if narrow[0] else offset)
    vectors = [array("float32", (channels,), 1.0) for _ in range(scale + center + 2)]
    residual = array(y_dtype) if has_residual else None
    cotangents = [array(y_dtype) for _ in range(parts)]
    got = by_native(norm, x, vectors, residual, cotangents, pieces)
    wide = [v.astype(np.float32) for v in (x, *cotangents)]
    added = None if residual is None else residual.astype(np.float32)
    total = sum(wide[1:])
    if has_residual and (parts > 1 or is_rectified) and y_dtype == "bfloat16":  # the sum is rounded where it is kept
        total = total.astype(jnp.bfloat16).astype(np.float32)
    _compare(whole, got, by_xla(whole, wide[0], vectors, added, total, np.asarray(got[0])), wide[0])


def _compare(norm: Norm, got: Any, want: Any, x: Any) -> None:
    names = ("y", "moving mean", "moving variance", "dx", "dresidual", "dgamma", "dbeta")
    *want, free = map(np.asarray, want)
    values = dict(zip(names, zip(map(np.asarray, got), want, strict=True), strict=True))
    scale = np.abs(np.asarray(x)).max() * 1e-6 / math.sqrt(norm.op.epsilon) + 1e-5  # of x's own rounding, at worst
    y_step, x_step = (0.01 if d == "bfloat16" else 0.0 for d in (norm.y_dtype, norm.x_dtype))
    step = max(y_step, x_step)
    # what rounding may push below zero is not compared
    near = np.abs(free) < 20 * scale
    clear = ~near.any(0) if norm.is_rectified and norm.y_dtype == "bfloat16" else np.ones(norm.channels, bool)
    largest = np.abs(values["dx"][1]).max() + 1
    tolerances = {
        "y": (1e-4 + y_step, 20 * scale), "moving mean": (2e-5, scale), "moving variance": (2e-5, scale),
        "dx": (2e-3 + step, (1e-4 + 20 * scale + step) * largest), "dresidual": (1e-5 + y_step, 1e-5),
        "dgamma": (1e-3, (1e-4 + 20 * scale) * norm.rows), "dbeta": (1e-3, 1e-4 * norm.rows),
    }  # fmt: skip
    for name, (relative, absolute) in tolerances.items():
        mine, theirs = (v[..., clear] if name[0] == "d" else v for v in values[name])
        np.testing.assert_allclose(mine, theirs, rtol=relative, atol=absolute, err_msg=name)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e30])
@pytest.mark.parametrize("row", [0, 70])
@pytest.mark.parametrize("where", ["x", "residual", "gradient"])
def test_values_that_are_not_finite_spread_as_with_xla(value: float, row: int, where: str, parallel: Any) -> None:
    rng = np.random.default_rng(0)
    norm = Norm(100, 20, PROBE.op, "float32", "float32", True, True)
    arrays = {name: rng.standard_normal((100, 20)).astype(np.float32) for name in ("x", "residual", "gradient")}
    arrays[where][row, 3] = value
    vectors = [jnp.ones(20, jnp.float32)] * 4
    with parallel(2):
        got = by_native(norm, arrays["x"], vectors, arrays["residual"], [arrays["gradient"]])
    want = by_xla(norm, arrays["x"], vectors, arrays["residual"], arrays["gradient"])
    for mine, theirs in zip(map(np.asarray, got), map(np.asarray, want[:-1]), strict=True):
        assert (np.isnan(mine) == np.isnan(theirs)).all()
        assert (np.isinf(mine) == np.isinf(theirs)).all()


def test_a_constant_channel_has_no_variance(parallel: Any) -> None:
    x = np.broadcast_to(np.float32([3.1, -1e6, 0]), (1000, 3)).copy()
    norm = Norm(1000, 3, BatchNorm(1, 1e-5, 0.0, False, False), "float32", "float32")
    zeros = jnp.zeros(3, jnp.float32)
    with parallel(3):
        y, mean, variance, _ = forward(norm, x, [zeros, zeros], None)
    np.testing.assert_allclose(mean, x[0], rtol=1e-6)
    np.testing.assert_allclose(variance, 0, atol=1e-2)  # x's own rounding is 0.06
    assert np.abs(np.asarray(y)[:, [0, 2]]).max() < 1e-3


def test_a_mean_far_from_zero_costs_no_accuracy(parallel: Any) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((5000, 40)) * 0.01 + np.linspace(-300, 300, 40)).astype(np.float32)
    x[0] = 0  # so that the first row says nothing
    norm = Norm(5000, 40, BatchNorm(1, 1e-5, 0.0, False, False), "float32", "float32")
    zeros = jnp.zeros(40, jnp.float32)
    for threads in (1, 2):
        with parallel(threads):
            _, mean, variance, _ = forward(norm, x, [zeros, zeros], None)
        np.testing.assert_allclose(mean, x.astype(np.float64).mean(0), rtol=1e-5)
        np.testing.assert_allclose(variance, x.astype(np.float64).var(0), rtol=2e-3)


def test_a_call_that_does_not_fit_its_spec_is_refused(kernels: str) -> None:
    x, v = jnp.ones((8, 16), jnp.float32), jnp.ones(16, jnp.float32)
    with pytest.raises(Exception, match="an operand's size is not that of the spec"):
        jax.block_until_ready(forward(PROBE, x, [v, v, v, v[:3]], None))
    with pytest.raises(Exception, match="the spec is too short"):
        jax.block_until_ready(_native.call_several("batch_norm", PROBE.spec()[:-1], [((8, 16), np.float32)], x))
    assert unsupported_reason(replace(PROBE, rows=0)) == "an empty array"
    assert unsupported_reason(replace(PROBE, x_dtype="float16")) == "oneDNN has no float16"
    assert describe(PROBE) == f"batch normalization in one call, two passes:{kernels}"
    several = replace(PROBE, devices=2)
    assert describe(several) == f"batch normalization, each device its rows, two passes:{kernels}"
    with pytest.raises(Exception, match="the second pass keeps nothing"):
        jax.block_until_ready(_native.call_several("batch_norm_grad", several.grad_spec(1, True, 2), [((8, 16), np.float32)], x))


# --- jobs


@dataclass(frozen=True)
class Trained:
    """Losses of some steps, the variables after them, the compiled program, the table of the job, and it."""

    losses: list[Any]
    values: dict[str, Any]
    hlo: str
    table: str
    job: Any

    @staticmethod
    def of(job: Any, losses: list[Any]) -> Trained:
        values = {n: v.numpy() for n, v in flow.get_all_variables().items()}
        return Trained(losses, values, job.executables[-1][1].hlo() if losses else "", str(job.summary()), job)


def trained(native: bool, mixed: bool = False, steps: int = 3, axis: int = 1, branch: bool = True, **more: Any) -> Trained:
    """Two blocks of a residual network after some steps."""
    flow.clear_default_session()
    flow.manual_seed(3)
    flow.config.enable_native_cpu(native)
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(mixed)
    if "devices" in more:
        flow.config.gpu_device_num(more["devices"])
        config.default_placement_scope(flow.scope.placement("gpu", f"0:0-{more['devices'] - 1}", more.get("hierarchy")))
    for key, value in more.get("config", {}).items():
        getattr(config, key)(value)
    batch = more.get("batch", 4)
    start = flow.random_normal_initializer(stddev=0.2)
    activate = more.get("activate", flow.nn.relu)

    def unit(x: Any, filters: int, size: int, name: str) -> Any:
        form = "NCHW" if axis == 1 else "NHWC"
        x = flow.layers.conv2d(
            x, filters, size, padding="SAME", data_format=form, use_bias=False, kernel_initializer=start, name=name
        )
        return flow.layers.batch_normalization(x, axis, 0.9, 1e-5, name=name + "bn")

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((batch, 3, 8, 8)), y: tp.Numpy.Placeholder((batch, 20))) -> tp.Numpy:
        h = x if axis == 1 else flow.transpose(x, (0, 2, 3, 1))
        h = activate(unit(h, 20, 3, "a"))
        short = unit(h, 20, 1, "s") if branch else h
        h = activate(unit(activate(unit(h, 24, 1, "b")), 20, 3, "c") + short)
        more.get("look", lambda h: None)(h)
        h = activate(unit(h, 20, 3, "d") + h)
        means = flow.math.reduce_mean(h, axis=[2, 3] if axis == 1 else [1, 2])
        loss = flow.math.square(means - y)
        opt.SGD(more.get("rate", 0.1), momentum=0.9).minimize(loss)
        return loss

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((batch, 3, 8, 8), np.float32), rng.standard_normal((batch, 20), np.float32)
    x += more.get("apart", 0.0) * np.arange(batch, dtype=np.float32)[:, None, None, None]  # devices' means differ then
    return Trained.of(job, [job(x, y) for _ in range(steps)])


def assert_alike(mine: Trained, theirs: Trained, tolerance: float) -> None:
    """The losses differ by less than the tolerance, and each variable by less than that of its norm."""
    np.testing.assert_allclose(mine.losses, theirs.losses, rtol=tolerance, atol=tolerance)
    assert mine.values.keys() == theirs.values.keys()
    for name, value in mine.values.items():
        want = theirs.values[name]
        difference = np.linalg.norm((value - want).ravel()) / (np.linalg.norm(want.ravel()) + 1e-2)
        assert difference < tolerance, (name, difference)


@pytest.mark.parametrize(("axis", "branch"), [(1, True), (3, False)])
def test_a_job_trains_as_with_xla(axis: int, branch: bool) -> None:
    found, plain = trained(True, axis=axis, branch=branch), trained(False, axis=axis, branch=branch)
    layers = 4 + branch
    assert found.hlo.count(CALL) == found.hlo.count(GRAD_CALL) == layers and CALL not in plain.hlo
    assert f"{layers} layers computed by one call each" in found.table
    assert "batch normalization in one call, two passes" in found.table
    assert "maximum" not in found.hlo  # ReLUs and residuals are part of the calls
    assert [found.table.count(f"with {name}bn") for name in "abcds"] == [1, 1, 2, 2, 0]
    assert_alike(found, plain, 1e-3)


@pytest.mark.parametrize("branch", [True, False])
def test_a_job_trains_as_with_xla_in_mixed_precision(branch: bool, bfloat16_kernels: str) -> None:
    found, plain = trained(True, mixed=True, branch=branch, rate=0.02), trained(False, branch=branch, rate=0.02)
    assert found.hlo.count(CALL) == found.hlo.count(GRAD_CALL) == 4 + branch
    assert_alike(found, plain, 0.05)
    calls = [line for line in found.hlo.splitlines() if CALL in line or GRAD_CALL in line]
    assert all("f32[4,8,8,24]" not in line for line in calls), "an array between products is bfloat16"


@pytest.mark.parametrize(
    "options",
    [
        {"devices": 2},
        {"devices": 4, "axis": 3, "branch": False},
        {"devices": 2, "mixed": True},
        pytest.param({"devices": 4, "hierarchy": (2, 2)}, marks=pytest.mark.thorough),
        pytest.param({"devices": 4, "mixed": True, "branch": False}, marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_a_job_trains_on_several_devices_as_on_one(options: dict[str, Any], bfloat16_kernels: str) -> None:
    options = {**options, "apart": 1.0, "rate": 0.02}
    found = trained(True, **options)
    one = trained(True, **{key: value for key, value in options.items() if key not in ("devices", "hierarchy")})
    layers = 4 + options.get("branch", True)
    assert found.hlo.count(CALL) == found.hlo.count(GRAD_CALL) == 2 * layers, "two calls each"
    assert found.table.count("batch normalization, each device its rows") == layers
    exchanged = 0 if "hierarchy" in options else 2 * layers
    assert found.hlo.count(EXCHANGE) == exchanged
    assert found.hlo.count(" all-reduce(") + found.hlo.count(" all-gather(") <= 2 * layers - exchanged + 2
    assert_alike(found, one, 0.005 * options["devices"] if options.get("mixed") else 1e-3)
    flow.clear_default_session()


@pytest.mark.parametrize(
    ("options", "calls", "text"),
    [
        ({"batch": 6, "devices": 4}, 0, "XLA: its batch is not split evenly over the devices"),
        (
            {"devices": 2, "activate": lambda h: flow.nn.relu(h.with_distribute(flow.distribute.split(1)))}, 10,
            "batch normalization, each device its rows",
        ),
        ({"devices": 2, "config": {"default_logical_view": flow.scope.mirrored_view()}}, 0, "b "),
    ],
)  # fmt: skip
def test_what_several_devices_compute_natively(options: dict[str, Any], calls: int, text: str) -> None:
    found, plain = trained(True, **options), trained(False, **options)
    assert found.hlo.count(CALL) == calls
    assert text in found.table
    assert_alike(found, plain, 1e-3)
    flow.clear_default_session()


def test_the_gradients_are_those_of_pytorch() -> None:
    before, found = trained(True, steps=0).values, trained(True, steps=2)
    assert CALL in found.hlo
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.standard_normal(shape, np.float32)) for shape in ((4, 3, 8, 8), (4, 20)))
    w = {n: torch.tensor(v, requires_grad="moving" not in n) for n, v in before.items() if n[0] in "abcds" and "-" in n}
    w = {n: v for n, v in w.items() if not n.endswith("momentum") and v.ndim}
    optimizer = torch.optim.SGD([v for v in w.values() if v.requires_grad], 0.1, 0.9)

    def unit(x: Any, name: str) -> Any:
        weights = w[f"{name}-weight"]
        x = torch.nn.functional.conv2d(x, weights, padding=weights.shape[-1] // 2)
        bn = name + "bn"
        return torch.nn.functional.batch_norm(x, None, None, w[f"{bn}-gamma"], w[f"{bn}-beta"], True, 0.1, 1e-5)

    for step in range(2):
        optimizer.zero_grad()
        h = torch.relu(unit(x, "a"))
        h = torch.relu(unit(torch.relu(unit(h, "b")), "c") + unit(h, "s"))
        h = torch.relu(unit(h, "d") + h)
        loss = torch.square(h.mean((2, 3)) - y)
        np.testing.assert_allclose(found.losses[step], loss.detach().numpy(), rtol=2e-3, atol=2e-4)
        loss.mean().backward()
        optimizer.step()
    for name, value in w.items():
        if "moving" not in name:
            np.testing.assert_allclose(found.values[name], value.detach().numpy(), rtol=5e-3, atol=5e-4, err_msg=name)


@pytest.mark.parametrize("watch", ["value", "gradient"])
def test_watched_values_and_gradients(watch: str) -> None:
    found: dict[bool, list[Any]] = {True: [], False: []}
    for native in (True, False):
        seen = found[native]

        def look(h: Any, seen: list[Any] = seen) -> None:
            (flow.watch if watch == "value" else flow.watch_diff)(h, lambda v: seen.append(v.numpy()))

        trained(native, look=look, steps=2)
    for mine, theirs in zip(found[True], found[False], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)


def test_other_activations_stay_with_xla() -> None:
    found, plain = trained(True, activate=flow.math.sigmoid), trained(False, activate=flow.math.sigmoid)
    assert found.hlo.count(CALL) == 5
    assert_alike(found, plain, 1e-3)


def dense(native: bool, kind: Any = flow.float32, **layer: Any) -> Trained:
    """A dense network, whose batch normalization is fetched before it is rectified."""
    flow.clear_default_session()
    flow.manual_seed(3)
    flow.config.enable_native_cpu(native)
    shape = layer.pop("shape", (6, 12))

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder(shape, kind)) -> tuple[tp.Numpy, tp.Numpy]:
        w = flow.get_variable("w", shape[1:], kind, initializer=flow.random_normal_initializer())
        normal = flow.layers.batch_normalization(x * w, axis=1, name="bn", **layer)
        loss = flow.math.square(flow.nn.relu(normal) - 1)
        opt.SGD(0.1).minimize(loss)
        return loss, normal

    x = np.random.default_rng(0).standard_normal(shape).astype(kind.numpy_dtype)
    return Trained.of(job, [np.append(*job(x)) for _ in range(2)])


def test_a_residual_is_trained_where_the_normalized_branch_is_not() -> None:
    def losses(native: bool) -> list[Any]:
        flow.clear_default_session()
        flow.config.enable_native_cpu(native)

        @flow.global_function(type="train")
        def job(x: tp.Numpy.Placeholder((6, 12))) -> tp.Numpy:
            w = flow.get_variable("w", (12,), initializer=flow.ones_initializer())
            normal = flow.layers.batch_normalization(x, axis=1, center=False, scale=False, name="bn")
            loss = flow.math.square(flow.nn.relu(normal + x * w) - 1)
            opt.SGD(0.1).minimize(loss)
            return loss

        x = np.random.default_rng(0).standard_normal((6, 12), np.float32)
        found = [job(x) for _ in range(3)]
        assert (CALL in job.executables[-1][1].hlo()) == native
        return found

    found = losses(True)
    np.testing.assert_allclose(found, losses(False), rtol=1e-5, atol=1e-6)
    assert not np.allclose(found[0], found[2])


@pytest.mark.parametrize(
    "layer",
    [{}, {"scale": False}, {"center": False, "scale": False}, {"shape": (1, 5)}, {"shape": (7, 12, 1)}],
    ids=str,
)
def test_a_fetched_result_is_not_rectified(layer: dict[str, Any]) -> None:
    found, plain = dense(True, **layer), dense(False, **layer)
    assert found.hlo.count(CALL) == 1
    assert any((r < 0).any() for r in found.losses) or layer.get("shape") == (1, 5)
    assert_alike(found, plain, 1e-4)


@pytest.mark.parametrize(
    ("kind", "shape", "reason"),
    [
        (flow.float64, (6, 12), "XLA: its parameters or statistics are not float32"),
        (flow.float16, (6, 12), "XLA: oneDNN has no float16"),
        (flow.float32, (4, 6, 5), "XLA: its channels are not on the last axis"),
    ],
)
def test_what_is_left_to_xla_says_why(kind: Any, shape: Any, reason: str) -> None:
    found = dense(True, kind, shape=shape)
    assert CALL not in found.hlo and reason in found.table


def test_find_nonfinite_sees_the_ops_one_by_one() -> None:
    job = trained(True, steps=1).job
    found = job.find_nonfinite(np.full((4, 3, 8, 8), np.nan, np.float32), np.zeros((4, 20), np.float32))
    assert found is not None
    assert job.find_nonfinite(np.ones((4, 3, 8, 8), np.float32), np.zeros((4, 20), np.float32)) is None


def test_parts_that_are_recomputed_stay_with_xla() -> None:
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4, 8))) -> tp.Numpy:
        w = flow.get_variable("w", (8,), initializer=flow.ones_initializer())
        with flow.experimental.scope.config(checkpointing=True):
            y = flow.layers.batch_normalization(x * w, axis=1, name="bn")
            y = flow.nn.relu(y)
        loss = flow.math.square(y - 1)
        opt.SGD(0.1).minimize(loss)
        return loss

    flow.config.enable_native_cpu(True)
    found = Trained.of(job, [job(np.random.default_rng(0).standard_normal((4, 8), np.float32))])
    assert CALL not in found.hlo and "it is recomputed" in found.table
