"""Products of 8-bit integers against integers of NumPy: by the native part and by XLA, with all that is computed behind them."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oneflow._base import native as _native
from oneflow.compiler import int8_kernels as kernels
from oneflow.compiler import packed_products as packed
from oneflow.compiler.int8_kernels import Grid
from oneflow.compiler.packed_products import Epilogue
from oneflow.graph.op import IntegerProduct

FEW = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


def windows(x: np.ndarray, p: IntegerProduct, kernel: tuple[int, ...], zero: int) -> np.ndarray:
    """(rows, groups, taps * channels) of int64, padding holding the zero point."""
    x = np.pad(x.astype(np.int64), [(0, 0), *p.padding, (0, 0)], constant_values=zero)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel[1:-1], p.dilations, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(x, extents, axis=tuple(range(1, x.ndim - 1)))
    n = len(extents)
    view = view[
        (slice(None), *(slice(None, None, s) for s in p.strides), slice(None), *(slice(None, None, d) for d in p.dilations))
    ]
    shape = view.shape[: n + 1]
    groups = view.reshape(*shape, p.groups, x.shape[-1] // p.groups, -1)
    return np.moveaxis(groups, -2, -1).reshape(*shape, p.groups, -1)


def sums(x: np.ndarray, w: np.ndarray, p: IntegerProduct, zero: int) -> np.ndarray:
    """The exact sums."""
    if not p.strides:
        return x.astype(np.int64) @ w.astype(np.int64).T
    found = windows(x, p, w.shape, zero)
    weights = w.astype(np.int64).reshape(p.groups, w.shape[0] // p.groups, -1)
    y = np.einsum("...gk,gok->...go", found, weights)
    return y.reshape(*y.shape[:-2], -1)


def reference(x: Any, w: Any, scale: Any, offset: Any, residual: Any, p: IntegerProduct, e: Epilogue, zero: int) -> np.ndarray:
    y = sums(x, w, p, zero) * scale.astype(np.float64) + offset.astype(np.float64)
    if residual is not None:
        y = y + residual
    if e.activation == "rectify":
        y = np.maximum(y, 0)
    elif e.activation == "gate":
        y = 0.5 * y * (1 + np.vectorize(math.erf)(y / math.sqrt(2)))
    y = y * e.factor + e.shift
    return np.clip(np.rint(y), e.low, e.high) if e.to_integers else y


@st.composite
def problems(draw: Any) -> tuple[Any, ...]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.booleans()):
        product = IntegerProduct(None, (0, 1))
        k = draw(st.sampled_from([1, 3, 16, 64, 700]))
        x_shape, kernel = (draw(st.integers(1, 9)), k), (draw(st.sampled_from([1, 5, 16, 33])), k)
    else:
        n = draw(st.integers(1, 2))
        several = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(n))  # noqa: E731
        groups, inside, outside = (
            draw(st.sampled_from([1, 1, 1, 2])),
            draw(st.sampled_from([1, 3, 8, 70])),
            draw(st.sampled_from([1, 4, 16])),
        )
        if draw(st.integers(0, 3)) == 0:  # depthwise
            groups, inside, outside = draw(st.sampled_from([3, 16, 45])), 1, 1
        window, strides, dilations = several(1, 3), several(1, 2), several(1, 2)
        padding = tuple((draw(st.integers(0, k - 1)), draw(st.integers(0, k - 1))) for k in window)
        size = tuple(draw(st.integers((k - 1) * d + 1, 9)) for k, d in zip(window, dilations, strict=True))
        x_shape, kernel = (draw(st.integers(1, 2)), *size, groups * inside), (groups * outside, *window, inside)
        product = IntegerProduct(None, tuple(range(n + 2)), strides, dilations, padding, groups)
    zero = draw(st.sampled_from([0, 0, 128, 255]))
    to_integers = draw(st.booleans())
    activation = draw(st.sampled_from(["", "rectify", "gate"]))
    has_residual = to_integers and draw(st.booleans())
    low = draw(st.sampled_from([0, 7]))
    factor, shift = draw(st.sampled_from([(1.0, 0.0), (0.5, 3.0)]))
    epilogue = Epilogue(to_integers, has_residual, activation, factor, shift, low, 255)
    x = rng.integers(0, 256, x_shape, dtype=np.uint8)
    w = rng.integers(-127, 128, kernel, dtype=np.int8)
    spread = 1.0 / (127 * 127 * math.sqrt(math.prod(kernel[1:])))
    scale = (rng.uniform(0.5, 1, kernel[0]) * spread * (40 if to_integers else 1)).astype(np.float32)
    offset = rng.normal(size=kernel[0]).astype(np.float32)
    return x, w, scale, offset, rng, product, epilogue, zero


def compute(problem: tuple[Any, ...], is_native: bool) -> tuple[np.ndarray, np.ndarray]:
    x, w, scale, offset, rng, product, epilogue, zero = problem
    shape = packed.result_shape(x.shape, product, w.shape)
    residual = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8) if epilogue.has_residual else None
    more = [] if residual is None else [residual]
    weights: Any = w
    if is_native:
        inner = kernels.without_padding(product, zero)
        padded = x.shape
        if inner is not product and product.padding:
            sides = zip(x.shape[1:-1], product.padding, strict=True)
            padded = (x.shape[0], *(n + low + high for n, (low, high) in sides), x.shape[-1])
        size = packed.packed_size(padded, inner, epilogue, w.shape, "uint8")
        spec = tuple(packed.spec(padded, inner, epilogue, w.shape, "uint8"))
        weights = jax.jit(lambda v: packed.PACK.define(v, spec=spec, size=size))(w)
    y = jax.jit(
        lambda *a: kernels.PRODUCT.define(
            *a, product=product, epilogue=epilogue, zero=zero, kernel=w.shape, perm=None, is_native=is_native
        )
    )(x, weights, scale, offset, *more)
    return np.asarray(y), reference(x, w, scale, offset, residual, product, epilogue, zero)


def check(problem: tuple[Any, ...], is_native: bool) -> None:
    got, want = compute(problem, is_native)
    assert got.shape == want.shape and got.dtype == (np.uint8 if problem[6].to_integers else np.float32)
    if problem[6].to_integers:  # a value that lies between two integers may become either
        assert np.abs(got.astype(int) - want).max() <= 1
        assert (got != want).mean() <= 0.02 or got.size < 200
    else:
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@FEW
@given(problems())
def test_by_xla(problem: tuple[Any, ...]) -> None:
    check(problem, is_native=False)


@pytest.mark.usefixtures("kernels")
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(), threads=st.integers(1, 4))
def test_by_the_native_part(problem: tuple[Any, ...], threads: int, parallel: Any) -> None:
    with parallel(threads):
        check(problem, is_native=True)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("rows", [1, 40, 300])
def test_many_terms_rows_and_columns(rows: int, parallel: Any) -> None:
    """More than what is computed at a time, with the largest terms there are: their sums are exact."""
    rng = np.random.default_rng(rows)
    x, w = (
        rng.choice(np.array([0, 254, 255], np.uint8), (rows, 1801)),
        rng.choice(np.array([-127, 126, 127], np.int8), (75, 1801)),
    )
    scale, offset = np.full(75, 2.0**-20, np.float32), np.zeros(75, np.float32)
    problem = (x, w, scale, offset, rng, IntegerProduct(None, (0, 1)), Epilogue(), 0)
    for threads in (1, 3):
        with parallel(threads):
            got, _ = compute(problem, is_native=True)
        np.testing.assert_array_equal(got, (x.astype(np.int64) @ w.astype(np.int64).T).astype(np.float32) * scale[0])


@pytest.mark.parametrize("k", [518, 519, 4608])
def test_sums_are_exact(k: int) -> None:
    """The largest sums there are, odd ones, which float32 rounds beyond 2^24."""
    x, w = np.full((1, k), 255, np.uint8), np.full((2, k), 127, np.int8)
    w[1, 0] = 126
    found = kernels._sums(x, w, IntegerProduct(None, (0, 1)))
    np.testing.assert_array_equal(found, [[255 * 127 * k, 255 * 127 * k - 255]])


@pytest.mark.usefixtures("native_part")
def test_malformed_specs_are_refused() -> None:
    library = _native.part().library
    good = packed.spec((4, 8), IntegerProduct(None, (0, 1)), Epilogue(), (8, 8), "uint8")
    for spec in ([], good[:-1], [*good, 1], [3, *good[1:]], [*good[:9], 0, 8, 8, 1], [*good[:3], 1, *good[4:]]):
        assert library.describe("product", spec).startswith("!")


@given(st.floats(-1e6, 1e6, width=32), st.floats(0, 1e6, width=32))
def test_a_grid_holds_its_range_and_zero(least: float, width: float) -> None:
    grid = Grid.of_range(least, least + width)
    assert 0 <= grid.zero <= 255 and grid.scale > 0
    low, high = (grid.scale * (q - grid.zero) for q in (0, 255))
    slack = 0.51 * grid.scale + 1e-6
    assert low <= min(least, 0) + slack and high >= max(least + width, 0) - slack


def test_values_that_are_no_numbers_become_zero() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0, 1], np.float32)
    q = kernels.QUANTIZE.define(x, grid=Grid(0.5, 10), perm=None)
    np.testing.assert_array_equal(q, [10, 255, 0, 10, 12])
