"""oneDNN's convolutions against XLA's own in float64: values, both gradients, NaN and infinity, vmap, threads."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from programs import examples, result_and_gradients

from oneflow._base import native as _native
from oneflow.ops import _native_conv as native

pytestmark = pytest.mark.usefixtures("native_part")


def reference(g: native.Geometry, x: Any, w: Any) -> Any:
    space = "DHW"[3 - len(g.strides) :]
    names = (f"N{space}C", f"O{space}I" if g.weights_channels_last else f"OI{space}", f"N{space}C")
    pads = list(zip(g.pad_low, g.pad_high, strict=True))
    return lax.conv_general_dilated(
        x, w, g.strides, pads, rhs_dilation=g.dilations, dimension_numbers=names, feature_group_count=g.groups
    )


def gradients(g: native.Geometry, x: Any, w: Any, dy: Any) -> tuple[Any, ...]:
    """XLA's result and both gradients."""
    y, pull = jax.vjp(lambda a, b: reference(g, a, b), x, w)
    return y, *pull(dy)


few_channels_by_xla = jax.jit(gradients, static_argnums=0)
many_channels_by_xla = jax.jit(gradients, static_argnums=0)  # loops that are not optimized take longer than compiling


def by_xla_in_float64(g: native.Geometry, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """The result and both gradients; those of the arrays that were asked for last are kept, for another number of threads."""
    key = g, *((v.shape, v.tobytes()) for v in arrays)
    if key not in _last:
        _last.clear()
        _last[key] = _computed(g, *arrays)
    return _last[key]


_last: dict[Any, tuple[np.ndarray, ...]] = {}


def _computed(g: native.Geometry, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    found = few_channels_by_xla if arrays[0].shape[-1] < 64 else many_channels_by_xla
    with jax.enable_x64(True):  # copies: arrays of JAX would be in the way of tests that change the number of devices
        return tuple(np.array(v) for v in found(g, *(v.astype(np.float64) for v in arrays)))


def compare(
    g: native.Geometry, x: np.ndarray, w: np.ndarray, dy: np.ndarray, tolerance: float = 1e-5, narrow: bool = False
) -> None:
    """Forward and both gradients, each relative to the size of what is summed."""
    y, pulled = result_and_gradients(native.differentiable(g, narrow=narrow), (x, w), dy)
    expected = by_xla_in_float64(g, x, w, dy)
    for i, (got, want) in enumerate(zip([y, *pulled], expected, strict=True)):
        assert got.shape == want.shape and got.dtype == (dy if i == 0 else x).dtype
        scale = max(1.0, float(np.abs(want).max())) if want.size else 1.0
        np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=tolerance * 10, atol=tolerance * 10 * scale)


@st.composite
def problems(draw: Any) -> tuple[native.Geometry, tuple[int, ...], tuple[int, ...]]:
    n = draw(st.integers(1, 3))
    several = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(n))  # noqa: E731
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 10]))
    inside, outside = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    if draw(st.booleans()) and groups > 1:
        inside = outside = draw(st.sampled_from([1, 2, 4]))  # depthwise, and narrow groups
    kernel, strides, dilations = several(1, 4), several(1, 3), several(1, 2)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    low, high = several(0, 3), several(0, 3)
    sizes = tuple(draw(st.integers(max(1, e - lo - hi), e + 6)) for e, lo, hi in zip(extents, low, high, strict=True))
    g = native.Geometry(strides, dilations, low, high, groups, draw(st.booleans()))
    fan, count = inside, groups * outside
    w = (count, *kernel, fan) if g.weights_channels_last else (count, fan, *kernel)
    return g, (draw(st.integers(1, 3)), *sizes, groups * inside), w


@settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(problems(), st.integers(0, 2**31))
def test_random_shapes_agree_with_xla_in_float64(problem: Any, seed: int) -> None:
    g, x_shape, w_shape = problem
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(x_shape, np.float32), rng.standard_normal(w_shape, np.float32)
    compare(g, x, w, rng.standard_normal(jax.eval_shape(lambda a, b: reference(g, a, b), x, w).shape, np.float32))


@pytest.mark.parametrize("shape", [(4, 28, 28, 1, 32, 5), (2, 16, 16, 64, 64, 3), (2, 16, 16, 64, 256, 1), (2, 9, 9, 3, 64, 7)])
def test_shapes_of_models(shape: tuple[int, ...]) -> None:
    n, height, width, fan, count, k = shape
    g = native.Geometry((1, 1), (1, 1), (k // 2,) * 2, (k // 2,) * 2, 1)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, height, width, fan), np.float32)
    w = rng.standard_normal((count, fan, k, k), np.float32)
    assert native.unsupported_reason(g, "float32", (n, fan, height, width), w.shape) is None
    compare(g, x, w, rng.standard_normal((n, height, width, count), np.float32))


LONG_WINDOWS = [  # input, weights, strides, dilations; windows of 3 blocks and a part
    ((2, 700, 1), (70, 80, 1), (2,), (1,)), ((1, 500, 4), (5, 9, 4), (1,), (3,)),
    ((3, 40, 31, 3), (32, 11, 11, 3), (2, 1), (1, 1)), ((2, 9, 60, 2), (36, 3, 41, 2), (1, 1), (2, 1)),
]  # fmt: skip


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(("x_shape", "w_shape", "strides", "dilations"), LONG_WINDOWS)
def test_long_windows_of_few_channels(
    x_shape: Any, w_shape: Any, strides: Any, dilations: Any, channels_last: bool, threads: int, parallel: Any, kernels: str
) -> None:
    rng = np.random.default_rng(6)
    pads = tuple((k - 1) * d // 2 for k, d in zip(w_shape[1:-1], dilations, strict=True))
    g = native.Geometry(strides, dilations, pads, pads, 1, channels_last)
    x, w = (rng.standard_normal(shape, np.float32) for shape in (x_shape, w_shape))
    w = np.ascontiguousarray(w if channels_last else np.moveaxis(w, -1, 1))
    dy = rng.standard_normal(jax.eval_shape(lambda a, b: reference(g, a, b), x, w).shape, np.float32)
    with parallel(threads):
        names = [native.kernel_name(g, "float32", *g.channels_second(x.shape, w.shape), kind) for kind in (0, 2)]
        compare(g, x, w, dy)
    if kernels == "avx2":
        blocked = "im2col, matmul packed:avx2"
        assert names == [blocked, "jit:avx2" if w_shape[1:3] == (11, 11) else blocked]


LINES = [  # input, weights, padding of the last axis, its dilation: windows that reach beyond the output's gradient
    ((3, 150, 10), (12, 3, 10), (0, 0), 1), ((2, 130, 7), (16, 2, 7), (5, 0), 5), ((2, 1, 200, 9), (8, 1, 4, 9), (0, 0), 3),
    ((1, 300, 33), (40, 5, 33), (8, 2), 4), ((5, 128, 16), (16, 3, 16), (100, 100), 100),
]  # fmt: skip


def line(x_shape: Any, w_shape: Any, pads: Any, dilation: int, channels_last: bool) -> tuple[native.Geometry, list[np.ndarray]]:
    """A convolution along the last axis, and what it reads."""
    rng, n = np.random.default_rng(7), len(x_shape) - 2
    before = (0,) * (n - 1)
    g = native.Geometry((1,) * n, (*(1,) * (n - 1), dilation), (*before, pads[0]), (*before, pads[1]), 1, channels_last)
    x, w = (rng.standard_normal(shape, np.float32) for shape in (x_shape, w_shape))
    w = np.ascontiguousarray(w if channels_last else np.moveaxis(w, -1, 1))
    dy = rng.standard_normal(jax.eval_shape(lambda a, b: reference(g, a, b), x, w).shape, np.float32)
    return g, [x, w, dy]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(("x_shape", "w_shape", "pads", "dilation"), LINES)
def test_gradients_along_one_axis(
    x_shape: Any, w_shape: Any, pads: Any, dilation: int, channels_last: bool, threads: int, parallel: Any, kernels: str
) -> None:
    g, (x, w, dy) = line(x_shape, w_shape, pads, dilation, channels_last)
    with parallel(threads):
        name = native.kernel_name(g, "float32", *g.channels_second(x.shape, w.shape), native.BACKWARD_DATA)
        compare(g, x, w, dy)
    assert kernels != "avx2" or "brg_fwd" not in name  # which oneDNN takes 0.1 ms to describe for each pixel


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("where", ["weights", "gradient"])
@pytest.mark.parametrize(("x_shape", "w_shape", "pads", "dilation"), [LINES[0], LINES[1]])
def test_along_one_axis_no_padding_is_multiplied(
    bad: float, where: str, x_shape: Any, w_shape: Any, pads: Any, dilation: int
) -> None:
    g, (x, w, dy) = line(x_shape, w_shape, pads, dilation, True)
    (w if where == "weights" else dy).reshape(-1)[3] = bad
    expected = np.zeros(x.shape)
    for position, tap in np.ndindex(dy.shape[1], w.shape[1]):
        at = position + tap * dilation - pads[0]
        if 0 <= at < x.shape[1]:
            expected[:, at] += (dy[:, position, :, None].astype(np.float64) * w[:, tap].astype(np.float64)).sum(1)
    _, pull = jax.vjp(native.differentiable(g), x, w)
    np.testing.assert_allclose(pull(dy)[0], expected, rtol=1e-4, atol=1e-4)


TILES = [  # input, output channels, padding: for Winograd's minimal filtering without AVX-512, the last one with it, too
    ((2, 9, 11, 40), 33, ((0, 2), (1, 1))), ((1, 13, 8, 32), 64, ((1, 1), (1, 1))), ((7, 5, 6, 49), 32, ((2, 2), (0, 1))),
    ((1, 36, 37, 72), 80, ((1, 1), (1, 1))),
]  # fmt: skip


def in_tiles(x_shape: Any, count: int, pads: Any, channels_last: bool) -> tuple[native.Geometry, list[np.ndarray]]:
    """A convolution with 3 x 3 windows, and what it reads; the gradient of one column is zero, as of a unit that is off."""
    rng = np.random.default_rng(9)
    g = native.Geometry((1, 1), (1, 1), *zip(*pads, strict=True), 1, channels_last)
    x, w = rng.standard_normal(x_shape, np.float32), rng.standard_normal((count, 3, 3, x_shape[-1]), np.float32)
    w = np.ascontiguousarray(w if channels_last else np.moveaxis(w, -1, 1)) / 20
    dy = rng.standard_normal(jax.eval_shape(lambda a, b: reference(g, a, b), x, w).shape, np.float32)
    dy[..., 5] = 0
    return g, [x, w, dy]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(("x_shape", "count", "pads"), TILES)
def test_windows_of_three_by_three_in_tiles(
    x_shape: Any, count: int, pads: Any, channels_last: bool, threads: int, parallel: Any, kernels: str
) -> None:
    g, (x, w, dy) = in_tiles(x_shape, count, pads, channels_last)
    with parallel(threads):
        names = [native.kernel_name(g, "float32", *g.channels_second(x.shape, w.shape), kind) for kind in range(3)]
        compare(g, x, w, dy, tolerance=2e-7)
    if kernels == "avx2":
        assert names == [_native.WINOGRAD] * 3
    elif x_shape[1:3] == (36, 37):  # forward, and the gradient to the data
        assert names[:2] == [_native.WINOGRAD] * 2


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 3e38])
@pytest.mark.parametrize("where", ["data", "weights", "gradient"])
@pytest.mark.parametrize("shape", [(1, 9, 11, 40), (4, 2, 13, 40)])
def test_in_tiles_what_is_not_finite_stays_where_it_is(value: float, where: str, shape: tuple[int, ...]) -> None:
    """A value reaches the pixels around it, as in direct sums, and no others of its tile; large ones do not overflow."""
    g, arrays = in_tiles(shape, 33, ((1, 1), (1, 1)), False)
    x, w, dy = arrays
    bad = dict(data=x, weights=w, gradient=dy)[where]
    bad.reshape(-1)[bad.size // 2] = value
    if value == 3e38:
        x, w, dy = (v if v is bad else v / 20 for v in arrays)
        bad.reshape(-1)[bad.size // 2 + bad.shape[-1]] = -value
    y, pull = jax.vjp(native.differentiable(g), x, w)
    with np.errstate(invalid="ignore"):  # infinity times zero
        wanted = without_padding(x, w, dy)
    for got, want in zip([y, *pull(dy)], wanted, strict=True):
        size = np.abs(want[np.isfinite(want)]).max()
        np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=1e-4, atol=1e-6 * size if value == 3e38 else 1e-4)


@pytest.mark.parametrize("channels", [(32, 96), (128, 64)])
def test_in_tiles_whole_numbers_are_exact(channels: tuple[int, int]) -> None:
    g, (x, w, dy) = in_tiles((3, 15, 9, channels[0]), channels[1], ((1, 1), (1, 1)), True)
    rng = np.random.default_rng(3)
    x, w, dy = ((rng.random(v.shape) < 0.1) * rng.integers(-2, 3, v.shape).astype(np.float32) for v in (x, w, dy))
    y, pull = jax.vjp(native.differentiable(g), x, w)
    for got, want in zip([y, *pull(dy)], by_xla_in_float64(g, x, w, dy), strict=True):
        np.testing.assert_array_equal(got, want)


GROUPED = [  # input, weights, groups, strides, dilations; and what has kernels of its own: forward, gradients to data, to weights
    ((1, 30, 15, 128), (128, 3, 3, 4), 32, (1, 1), (1, 1), (True, True, True)),  # two parts of the rows, four of the channels
    ((1, 9, 14, 36), (36, 3, 2, 2), 18, (2, 1), (1, 2), (True, False, True)),  # the last vector is not whole
    ((2, 7, 27, 24), (48, 3, 3, 8), 3, (1, 1), (2, 1), (True, False, False)),
    ((2, 11, 13, 12), (60, 3, 3, 1), 12, (1, 1), (1, 1), (True, False, False)),
    ((1, 5, 6, 9, 20), (20, 3, 3, 3, 1), 20, (1, 1, 1), (1, 2, 1), (True, True, True)),
    ((3, 4, 5, 26, 6), (12, 2, 1, 3, 3), 2, (2, 1, 1), (1, 1, 1), (True, False, False)),
]  # fmt: skip


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(("x_shape", "w_shape", "groups", "strides", "dilations", "is_own"), GROUPED)
def test_narrow_groups(
    x_shape: Any, w_shape: Any, groups: int, strides: Any, dilations: Any, is_own: Any, channels_last: bool, threads: int,
    parallel: Any, kernels: str,
) -> None:  # fmt: skip
    rng = np.random.default_rng(8)
    pads = tuple((k - 1) * d // 2 for k, d in zip(w_shape[1:-1], dilations, strict=True))
    g = native.Geometry(strides, dilations, pads, pads, groups, channels_last)
    x, w = (rng.standard_normal(shape, np.float32) for shape in (x_shape, w_shape))
    w = np.ascontiguousarray(w if channels_last else np.moveaxis(w, -1, 1))
    dy = rng.standard_normal(jax.eval_shape(lambda a, b: reference(g, a, b), x, w).shape, np.float32)
    with parallel(threads):
        names = [native.kernel_name(g, "float32", *g.channels_second(x.shape, w.shape), kind) for kind in range(3)]
        compare(g, x, w, dy)
    if kernels == "avx2":
        assert [name == "grouped:avx2" for name in names] == list(is_own)


def bfloat16(rng: np.random.Generator, shape: Any) -> np.ndarray:
    return rng.standard_normal(shape, np.float32).astype(jax.numpy.bfloat16)


def compare_bfloat16(g: native.Geometry, x_shape: Any, w_shape: Any, seed: int, tolerance: float = 1e-3) -> None:
    """Arrays of bfloat16, and float32 ones in mixed precision, where the gradient to weights is not rounded."""
    rng = np.random.default_rng(seed)
    x, w = bfloat16(rng, x_shape), bfloat16(rng, w_shape)
    dy = bfloat16(rng, jax.eval_shape(lambda a, b: reference(g, a, b), x, w).shape)
    compare(g, x, w, dy, tolerance)
    compare(g, x.astype(np.float32), w.astype(np.float32), dy, tolerance, narrow=True)
    _, pulled = result_and_gradients(native.differentiable(g, narrow=True), (x.astype(np.float32), w.astype(np.float32)), dy)
    dw = by_xla_in_float64(g, x, w, dy)[2]
    if native.unsupported_reason(g, "bfloat16", *g.channels_second(x_shape, w_shape)) is None:
        scale = max(1.0, float(np.abs(dw).max()))
        np.testing.assert_allclose(pulled[1], dw, rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.thorough
@settings(max_examples=examples(100), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(problems(), st.integers(0, 2**31))
def test_random_shapes_in_bfloat16_agree_with_xla_in_float64(problem: Any, seed: int) -> None:
    compare_bfloat16(*problem, seed)


@pytest.mark.parametrize(("size", "groups"), [(1, 1), (2, 1), (2, 2), (3, 16), (9, 2)])
def test_bfloat16_where_windows_are_larger_than_the_image(size: int, groups: int) -> None:
    g = native.Geometry((1, 1), (1, 1), (2, 2), (2, 2), groups)
    shape = (32, 16 // groups, 5, 5)
    assert "ref" not in (native.unsupported_reason(g, "bfloat16", (2, 16, size, size), shape) or "")
    compare_bfloat16(g, (2, size, size, 16), shape, seed=size)


def compare_in_both_dtypes(g: native.Geometry, x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, np.float32) for shape in (x_shape, w_shape)]
    dy = rng.standard_normal(jax.eval_shape(lambda a, b: reference(g, a, b), *arrays).shape, np.float32)
    compare(g, *arrays, dy)
    compare_bfloat16(g, x_shape, w_shape, seed=1)


@pytest.mark.parametrize(
    ("channels", "size", "kernel", "strides", "dilations", "batch"),
    [
        (240, (2, 2), (3, 3), (1, 1), (1, 1), 8), (8, (1, 5), (3, 2), (1, 2), (1, 1), 3), (17, (2, 2), (3, 3), (2, 2), (1, 1), 5),
        (40, (4, 3), (3, 3), (1, 1), (2, 2), 2), (33, (2,), (5,), (1,), (1,), 4),
        (16, (2, 1, 3), (3, 3, 3), (1, 1, 1), (1, 1, 1), 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("threads", [1, 3])
def test_depthwise_where_windows_are_larger_than_the_image(
    channels: int, size: Any, kernel: Any, strides: Any, dilations: Any, batch: int, threads: int, parallel: Any, kernels: str
) -> None:
    pads = tuple((k - 1) * d // 2 for k, d in zip(kernel, dilations, strict=True))
    more = tuple(p + (k % 2 == 0) for p, k in zip(pads, kernel, strict=True))
    g = native.Geometry(strides, dilations, pads, more, channels)
    x_shape, w_shape = (batch, *size, channels), (channels, 1, *kernel)
    name = native.kernel_name(g, "float32", *g.channels_second(x_shape, w_shape), native.BACKWARD_WEIGHTS)
    assert name == "depthwise"
    with parallel(threads):
        compare_in_both_dtypes(g, x_shape, w_shape)


FEW_PIXELS = [  # batch, channels, filters, size, window, strides, dilations, padding before and behind
    (8, 64, 96, (2, 2), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    (8, 96, 64, (4, 4), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    (4, 64, 32, (8, 7), (3, 3), (2, 2), (1, 1), (0, 1), (1, 1)),
    (11, 32, 32, (1, 1), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    (20, 32, 64, (3, 5), (3, 3), (1, 1), (1, 1), (0, 2), (1, 0)),
    (1, 32, 64, (5, 5), (3, 3), (3, 3), (2, 2), (2, 2), (1, 2)),
    (6, 32, 32, (7,), (9,), (1,), (1,), (4,), (4,)),
    (4, 64, 32, (2, 2, 3), (3, 1, 3), (1, 1, 1), (1, 1, 1), (1, 0, 1), (1, 0, 1)),
    (2, 32, 32, (5, 1), (3, 3), (3, 1), (1, 1), (0, 1), (0, 1)),
]


def few_pixels(case: Any) -> tuple[native.Geometry, tuple[int, ...], tuple[int, ...]]:
    batch, channels, filters, size, kernel, strides, dilations, low, high = case
    g = native.Geometry(strides, dilations, low, high, 1)
    x, w = (batch, *size, channels), (filters, channels, *kernel)
    large = native.Geometry((1, 1), (1, 1), (1, 1), (1, 1), 1)
    if "avx512" not in native.kernel_name(large, "float32", (8, 64, 32, 32), (64, 64, 3, 3)):
        pytest.skip("this CPU has no AVX-512")
    for kind in range(3):
        is_left = kind == native.BACKWARD_DATA and max(dilations) > 1
        assert (native.kernel_name(g, "float32", *g.channels_second(x, w), kind) == _native.FEW_PIXELS) != is_left
    return g, x, w


@pytest.mark.parametrize("case", FEW_PIXELS)
@pytest.mark.parametrize("threads", [1, 3])
def test_few_pixels(case: Any, threads: int, parallel: Any) -> None:
    g, x_shape, w_shape = few_pixels(case)
    with parallel(threads):
        compare_in_both_dtypes(g, x_shape, w_shape)


@pytest.mark.parametrize(
    "dtypes", [(a, b, c) for a in ("float32", "bfloat16") for b in ("float32", "bfloat16") for c in ("float32", "bfloat16")]
)
def test_few_pixels_of_all_dtypes(dtypes: tuple[str, str, str]) -> None:
    """What is multiplied is bfloat16 unless all three are float32; sums are float32, and are rounded once."""
    if "bfloat16" in dtypes and not _native.has_bfloat16():
        pytest.skip("no AVX-512 BF16")
    g, x_shape, w_shape = few_pixels(FEW_PIXELS[1])
    rng = np.random.default_rng(0)
    x, w = bfloat16(rng, x_shape), bfloat16(rng, w_shape)
    dy = bfloat16(rng, (*x_shape[:-1], w_shape[0]))
    with jax.enable_x64(True):
        y, pull = jax.vjp(lambda a, b: reference(g, a, b), x.astype(np.float64), w.astype(np.float64))
        dx, dw = pull(dy.astype(np.float64))
    for kind, (a, b, want) in enumerate(((x, w, y), (dy, w, dx), (x, dy, dw))):
        spec = g.spec(kind, dtypes, *g.channels_second(x_shape, w_shape))
        first, second = (np.ascontiguousarray(v.astype(t)) for v, t in zip((a, b), dtypes, strict=False))
        made = np.full(want.shape, np.nan).astype(dtypes[2])
        _native.part().library.execute("conv", spec, *(v.ctypes.data for v in (first, second, made)))
        rounded = 2.0**-8 if dtypes[2] == "bfloat16" else 0
        np.testing.assert_allclose(made.astype(np.float64), want, rtol=1e-5 + rounded, atol=1e-5 * float(np.abs(want).max()))


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("where", ["data", "weights", "gradient"])
def test_few_pixels_multiply_no_padding(bad: float, size: int, where: str) -> None:
    g, x_shape, w_shape = few_pixels((4, 32, 32, (size, size), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)))
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.standard_normal(s, np.float32) for name, s in (("data", x_shape), ("weights", w_shape), ("gradient", x_shape))
    }
    arrays[where].reshape(-1)[5] = bad
    x, w, dy = arrays.values()
    y, pull = jax.vjp(native.differentiable(g), x, w)
    for got, want in zip([y, *pull(dy)], without_padding(x, w, dy), strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_travel_as_in_xla(bad: float) -> None:
    g = native.Geometry((1, 1), (1, 1), (0, 0), (0, 0), 1)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, 9, 9, 5), np.float32), rng.standard_normal((7, 5, 3, 3), np.float32)]
    arrays.append(rng.standard_normal((1, 7, 7, 7), np.float32))
    for position in range(3):
        x, w, dy = (a.copy() for a in arrays)
        (x, w, dy)[position].reshape(-1)[11] = bad
        with jax.enable_x64(True):
            y64, pull64 = jax.vjp(lambda a, b: reference(g, a, b), x.astype(np.float64), w.astype(np.float64))
            expected = [y64, *pull64(dy.astype(np.float64))]
        y, pull = jax.vjp(lambda a, b: native.differentiable(g)(a, b), x, w)
        for got, want in zip([y, *pull(dy)], expected, strict=True):
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
            np.testing.assert_array_equal(np.isposinf(got), np.isposinf(want))
            np.testing.assert_array_equal(np.isneginf(got), np.isneginf(want))


def without_padding(x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> list[np.ndarray]:
    """A 3 x 3 convolution with one pixel of padding, which takes part in no product, in float64: y, dx and dw."""
    y, dx, dw = np.zeros(dy.shape), np.zeros(x.shape), np.zeros(w.shape)
    n, height, width, _ = x.shape
    for b, i, j, r, s in np.ndindex(n, height, width, 3, 3):
        k, m = i + r - 1, j + s - 1
        if 0 <= k < height and 0 <= m < width:
            y[b, i, j] += (w[:, :, r, s].astype(np.float64) * x[b, k, m]).sum(1)
            dx[b, k, m] += (w[:, :, r, s].astype(np.float64) * dy[b, i, j][:, None]).sum(0)
            dw[:, :, r, s] += np.outer(dy[b, i, j].astype(np.float64), x[b, k, m])
    return [y, dx, dw]


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("size", [1, 2, 9])
@pytest.mark.parametrize(("where", "narrow"), [("weights", False), ("weights", True), ("gradient", False)])
def test_what_meets_padding_alone_does_not_show(bad: float, size: int, where: str, narrow: bool) -> None:
    g = native.Geometry((1, 1), (1, 1), (1, 1), (1, 1), 1)
    rng = np.random.default_rng(0)
    shapes = (1, size, size, 16), (32, 16, 3, 3), (1, size, size, 32)
    x, w, dy = (bfloat16(rng, s).astype(np.float32) if narrow else rng.standard_normal(s, np.float32) for s in shapes)
    if where == "weights":
        w[3, 2, 0, 0] = bad
    else:
        dy[0, 0, 0, 5] = bad
    y, pull = jax.vjp(native.differentiable(g, narrow=narrow), x, w)
    found = [y, *pull(dy.astype(y.dtype))]
    rtol, atol = (1e-2, 0.1) if narrow else (1e-4, 1e-4)
    for got, want in zip(found, without_padding(x, w, dy), strict=True):
        np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("where", ["data", "weights", "gradient"])
@pytest.mark.parametrize(("groups", "channels"), [(8, 4), (12, 1), (3, 8)])
def test_what_meets_padding_alone_does_not_show_in_groups(bad: float, where: str, groups: int, channels: int) -> None:
    g = native.Geometry((1, 1), (1, 1), (1, 1), (1, 1), groups)
    rng = np.random.default_rng(0)
    image, weights = (2, 5, 14, groups * channels), (groups * channels, channels, 3, 3)
    arrays = {
        name: rng.standard_normal(s, np.float32) for name, s in (("data", image), ("weights", weights), ("gradient", image))
    }
    arrays[where].reshape(-1)[arrays[where].size // 2] = bad
    x, w, dy = arrays.values()
    y, pull = jax.vjp(native.differentiable(g), x, w)
    in_groups = zip(*(np.split(a, groups, axis) for a, axis in ((x, 3), (w, 0), (dy, 3))), strict=True)
    wanted = zip(*(without_padding(*of_group) for of_group in in_groups), strict=True)
    for got, want, axis in zip([y, *pull(dy)], wanted, (3, 3, 0), strict=True):
        np.testing.assert_allclose(np.asarray(got), np.concatenate(want, axis), rtol=1e-4, atol=1e-4)


def test_what_is_not_taken_says_why() -> None:
    g = native.Geometry((1, 1), (1, 1), (0, 0), (0, 0), 1)
    assert "float64" in (native.unsupported_reason(g, "float64", (1, 3, 8, 8), (4, 3, 3, 3)) or "")
    assert "empty" in (native.unsupported_reason(g, "float32", (0, 3, 8, 8), (4, 3, 3, 3)) or "")
    wide = native.Geometry((1, 1), (1, 1), (5, 0), (0, 0), 1)
    assert "padding" in (native.unsupported_reason(wide, "float32", (1, 3, 8, 8), (4, 3, 3, 3)) or "")


@pytest.mark.parametrize("batched", [(0, None), (None, 0), (0, 0)])
@pytest.mark.parametrize("groups", [1, 2])
def test_vmap_joins_the_batch_or_the_groups(batched: tuple[Any, Any], groups: int) -> None:
    g = native.Geometry((1, 2), (1, 1), (1, 0), (1, 1), groups)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((*((3,) if batched[0] == 0 else ()), 2, 6, 7, 4), np.float32)
    w = rng.standard_normal((*((3,) if batched[1] == 0 else ()), 6, 4 // groups, 3, 3), np.float32)
    ours = jax.vmap(native.differentiable(g), batched)
    xla = jax.vmap(lambda a, b: reference(g, a, b), batched)
    y, pull = jax.vjp(ours, x, w)
    want, pull_xla = jax.vjp(xla, x, w)
    dy = rng.standard_normal(y.shape, np.float32)
    for got, expected in zip([y, *pull(dy)], [want, *pull_xla(dy)], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_from_several_threads_at_once_and_again_the_same() -> None:
    g = native.Geometry((1, 1), (1, 1), (1, 1), (1, 1), 1)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((8, 24, 24, 32), np.float32), rng.standard_normal((32, 32, 3, 3), np.float32)
    step = jax.jit(jax.grad(lambda a, b: native.differentiable(g)(a, b).sum() * 2, argnums=(0, 1)))
    first = [np.asarray(v) for v in step(x, w)]

    def again(_: int) -> None:
        for got, expected in zip(step(x, w), first, strict=True):
            np.testing.assert_array_equal(got, expected)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(again, range(40)))


def test_in_a_loop() -> None:
    g = native.Geometry((1, 1), (1, 1), (1, 1), (1, 1), 1)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 8, 8, 4), np.float32), rng.standard_normal((4, 4, 3, 3), np.float32) / 6
    looped = jax.jit(lambda a, b: lax.fori_loop(0, 3, lambda _, v: native.differentiable(g)(v, b), a))
    want = x
    for _ in range(3):
        want = reference(g, want, w)
    np.testing.assert_allclose(looped(x, w), want, rtol=1e-4, atol=1e-4)
    assert looped.lower(x, w).compile().as_text().count(" transpose(") == 0


@pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("strides", "extra"), [(1, 0), (2, 0), (2, 1), (3, 2)])
def test_transposed_convolutions_agree_with_xla(data_format: str, strides: int, extra: int) -> None:
    from oneflow.ops.conv import _conv_transpose

    rng = np.random.default_rng(0)
    x_spec, w_spec = ("NCHW", "IOHW") if data_format == "NCHW" else ("NHWC", "IHWO")
    attrs = {"strides": (strides,) * 2, "dilations": (1, 1), "pad_low": (1, 1), "pad_high": (1 - extra,) * 2}
    x = rng.standard_normal((2, 6, 5, 5) if data_format == "NCHW" else (2, 5, 5, 6), np.float32)
    w = rng.standard_normal((6, 4, 3, 3) if data_format == "NCHW" else (6, 3, 3, 4), np.float32)
    attrs |= {"x_spec": x_spec, "w_spec": w_spec}
    assert native.NATIVE_TRANSPOSED.unsupported_reason((x, w), attrs) is None
    y, pull = jax.vjp(lambda a, b: native.conv_transpose(a, b, **attrs), x, w)
    want, pull_xla = jax.vjp(lambda a, b: _conv_transpose(a, b, **attrs), x, w)
    dy = rng.standard_normal(y.shape, np.float32)
    for got, expected in zip([y, *pull(dy)], [want, *pull_xla(dy)], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_transposed_convolutions_in_space_agree_with_xla() -> None:
    from oneflow.ops.conv import _conv_transpose

    rng = np.random.default_rng(0)
    attrs = {
        "strides": (2, 1, 2),
        "dilations": (1, 1, 1),
        "pad_low": (0, 1, 0),
        "pad_high": (0, 1, 0),
        "x_spec": "NCDHW",
        "w_spec": "IODHW",
    }
    x, w = rng.standard_normal((2, 6, 3, 5, 4), np.float32), rng.standard_normal((6, 4, 2, 3, 3), np.float32)
    assert native.NATIVE_TRANSPOSED.unsupported_reason((x, w), attrs) is None
    y, pull = jax.vjp(lambda a, b: native.conv_transpose(a, b, **attrs), x, w)
    want, pull_xla = jax.vjp(lambda a, b: _conv_transpose(a, b, **attrs), x, w)
    dy = rng.standard_normal(y.shape, np.float32)
    for got, expected in zip([y, *pull(dy)], [want, *pull_xla(dy)], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def run_way(spec: list[int], flag: int, first: np.ndarray, second: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """One call with the way of computing it said: 2 is oneDNN's convolution, 4 is im2col, 8 goes row by row."""
    made = np.full(shape, np.nan, first.dtype)
    given = [spec[0], spec[1] | flag, *spec[2:]]
    _native.part().library.execute("conv", given, first.ctypes.data, second.ctypes.data, made.ctypes.data)
    return made


@settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(problems(), st.integers(0, 2**31), st.sampled_from([1, 2]), st.sampled_from(["float32", "bfloat16"]))
def test_im2col_and_direct_agree(parallel: Any, problem: Any, seed: int, threads: int, dtype: str) -> None:
    g, x_shape, w_shape = problem
    xs, ws = g.channels_second(x_shape, w_shape)
    ys = g.output_shape(xs, ws)
    if g.groups > 1 or native.unsupported_reason(g, dtype, xs, ws) is not None:
        return
    if dtype == "bfloat16" and not _native.has_bfloat16():  # float32 takes its place there
        return
    rng = np.random.default_rng(seed)
    y_shape = (ys[0], *ys[2:], ys[1])
    x, w, y = (rng.standard_normal(shape, np.float32).astype(dtype) for shape in (x_shape, w_shape, y_shape))
    tolerance = 1e-4 if dtype == "float32" else 1e-2
    for kind, (first, second, made) in enumerate(((x, w, y), (y, w, x), (x, y, w))):
        spec = g.spec(kind, dtype, xs, ws)
        with parallel(threads):
            direct, im2col = (run_way(spec, flag, first, second, made.shape).astype(np.float32) for flag in (2, 4))
        scale = max(1.0, float(np.abs(direct).max()))
        np.testing.assert_allclose(im2col, direct, rtol=tolerance, atol=tolerance * scale)


@settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(problems(), st.sampled_from([1, 7, 16, 19, 40]), st.integers(0, 2**31), st.sampled_from([1, 2, 3]))
def test_gradients_to_weights_row_by_row(kernels: str, parallel: Any, problem: Any, more: int, seed: int, threads: int) -> None:
    g, x_shape, w_shape = problem
    fan = more * (w_shape[-1] if g.weights_channels_last else w_shape[1])
    x_shape, w_shape = (
        (*x_shape[:-1], g.groups * fan),
        (w_shape[0], *((*w_shape[1:-1], fan) if g.weights_channels_last else (fan, *w_shape[2:]))),
    )
    xs, ws = g.channels_second(x_shape, w_shape)
    ys = g.output_shape(xs, ws)
    rng = np.random.default_rng(seed)
    x, dy = (rng.standard_normal(shape, np.float32) for shape in (x_shape, (ys[0], *ys[2:], ys[1])))
    with parallel(threads):
        made = run_way(g.spec(native.BACKWARD_WEIGHTS, "float32", xs, ws), 8, x, dy, w_shape)
    with jax.enable_x64(True):
        w = np.zeros(w_shape)
        want = few_channels_by_xla(g, x.astype(np.float64), w, dy.astype(np.float64))[2]
    np.testing.assert_allclose(made, want, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(want).max())))


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("where", ["data", "gradient"])
def test_row_by_row_no_padding_is_multiplied(bad: float, size: int, where: str, kernels: str) -> None:
    rng = np.random.default_rng(0)
    x, w, dy = (rng.standard_normal(s, np.float32) for s in ((2, size, size, 20), (24, 20, 3, 3), (2, size, size, 24)))
    (x if where == "data" else dy).reshape(-1)[5] = bad
    g = native.Geometry((1, 1), (1, 1), (1, 1), (1, 1), 1)
    spec = g.spec(native.BACKWARD_WEIGHTS, "float32", *g.channels_second(x.shape, w.shape))
    np.testing.assert_allclose(run_way(spec, 8, x, dy, w.shape), without_padding(x, w, dy)[2], rtol=1e-4, atol=1e-4)


def test_gradients_of_strided_narrow_groups_in_bfloat16() -> None:
    """oneDNN's kernel in bfloat16 for the gradient to the data is a hundred times slower than that in float32, which is taken."""
    g = native.Geometry((2, 2), (1, 1), (1, 1), (1, 1), 32)
    name = native.kernel_name(g, "bfloat16", (2, 32, 16, 16), (32, 1, 3, 3), native.BACKWARD_DATA)
    assert "brgconv_strided" not in name
    compare_bfloat16(g, (2, 16, 16, 32), (32, 1, 3, 3), seed=0)
