"""oneDNN's matrix products against NumPy in float64: values, both gradients, vmap, jobs."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import examples, result_and_gradients

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import native as _native
from oneflow.ops import _native_matmul as native

pytestmark = pytest.mark.usefixtures("native_part")


def operands(p: native.Gemm, seed: int, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    batch = () if p.batch == 1 else (p.batch,)
    a = rng.standard_normal((*batch, *((p.k, p.m) if p.a_transposed else (p.m, p.k))), np.float32)
    b = rng.standard_normal((*batch, *((p.n, p.k) if p.b_transposed else (p.k, p.n))), np.float32)
    return a.astype(dtype), b.astype(dtype), rng.standard_normal(p.shape, np.float32).astype(dtype)


def expected(p: native.Gemm, a: np.ndarray, b: np.ndarray, dc: np.ndarray) -> list[np.ndarray]:
    a, b, dc = (v.astype(np.float64) for v in (a, b, dc))
    left = np.swapaxes(a, -1, -2) if p.a_transposed else a
    right = np.swapaxes(b, -1, -2) if p.b_transposed else b
    da, db = dc @ np.swapaxes(right, -1, -2), np.swapaxes(left, -1, -2) @ dc
    return [left @ right, np.swapaxes(da, -1, -2) if p.a_transposed else da, np.swapaxes(db, -1, -2) if p.b_transposed else db]


def results(p: native.Gemm, a: Any, b: Any, dc: Any, **options: Any) -> list[Any]:
    """The product and both gradients, compiled together."""
    y, pulled = result_and_gradients(native.differentiable(p, **options), (a, b), dc)
    return [y, *pulled]


def check(p: native.Gemm, seed: int, dtype: Any = np.float32, tolerance: float = 2e-5) -> None:
    a, b, dc = operands(p, seed, dtype)
    for got, want in zip(results(p, a, b, dc), expected(p, a, b, dc), strict=True):
        assert got.shape == want.shape and got.dtype == dtype
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=tolerance, atol=tolerance * scale)


sizes = st.integers(1, 70)


@settings(max_examples=examples(80), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.builds(native.Gemm, st.integers(1, 4), sizes, sizes, sizes, st.booleans(), st.booleans()), st.integers(0, 2**31)
)  # fmt: skip
def test_random_products_agree_with_float64(p: native.Gemm, seed: int) -> None:
    check(p, seed)


@pytest.mark.parametrize(("a_transposed", "b_transposed"), list(itertools.product([False, True], repeat=2)))
def test_each_way_computes_the_same(a_transposed: bool, b_transposed: bool, native_part: Any, kernels: str) -> None:
    p = native.Gemm(1, 33, 48, 65, a_transposed, b_transposed)
    a, b, dc = operands(p, 0)
    want = expected(p, a, b, dc)[0]
    names = set()
    for way in (0, 2, 4, 8):
        spec = p.spec(np.float32)
        spec[-1] += way
        got = np.full(p.shape, np.nan, np.float32)
        native_part.execute("matmul", spec, *(v.ctypes.data for v in (a, b, got)))
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-4)
        names.add(native_part.describe("matmul", spec))
    assert len(names) >= 3 and native_part.describe("matmul", [*spec[:-1], 16]).startswith("!")


@settings(max_examples=examples(80), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.integers(1, 3), st.sampled_from([1, 5, 6, 7, 23, 25, 150, 300]), st.sampled_from([1, 8, 15, 16, 17, 33, 64, 600, 1040]),
    st.sampled_from([1, 7, 8, 65, 256, 257, 600]), st.booleans(), st.booleans(), st.integers(1, 5), st.integers(0, 2**31),
)  # fmt: skip
def test_packed_products_agree_with_float64(
    native_part: Any, kernels: str, parallel: Any, batch: int, m: int, n: int, k: int, ta: bool, tb: bool, threads: int, seed: int
) -> None:
    p = native.Gemm(batch, m, n, k, ta, tb)
    a, b, dc = operands(p, seed)
    spec, got = p.spec(np.float32), np.full(p.shape, np.nan, np.float32)
    spec[-1] += 8
    with parallel(threads):
        native_part.execute("matmul", spec, *(v.ctypes.data for v in (a, b, got)))
    assert native_part.describe("matmul", spec).startswith("packed:")
    want = expected(p, a, b, dc)[0]
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * max(1.0, float(np.abs(want).max())))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_row_and_column(bad: float, native_part: Any, kernels: str) -> None:
    p = native.Gemm(1, 50, 70, 40, False, True)
    a, b, dc = operands(p, 0)
    a[7, 3] = b[9, 5] = bad
    spec, got = p.spec(np.float32), np.zeros(p.shape, np.float32)
    spec[-1] += 8
    native_part.execute("matmul", spec, *(v.ctypes.data for v in (a, b, got)))
    rest = np.delete(np.delete(got, 7, 0), 9, 1)
    assert np.isfinite(rest).all() and not np.isfinite(got[7]).any() and not np.isfinite(got[:, 9]).any()


@pytest.mark.parametrize("a_transposed", [False, True])
@pytest.mark.parametrize("b_transposed", [False, True])
@pytest.mark.parametrize("shape", [(100, 512, 784), (32, 9000, 64), (300, 1, 257), (1, 300, 257)])
def test_products_of_models(shape: tuple[int, int, int], a_transposed: bool, b_transposed: bool) -> None:
    check(native.Gemm(1, *shape, a_transposed, b_transposed), 0, tolerance=1e-4)


@settings(max_examples=examples(20), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.builds(native.Gemm, st.integers(1, 4), sizes, sizes, sizes, st.booleans(), st.booleans()), st.integers(0, 2**31)
)  # fmt: skip
def test_random_products_in_bfloat16_agree_with_float64(p: native.Gemm, seed: int) -> None:
    if native.unsupported_reason(replace(p, m=1000, n=1000), "bfloat16") is not None:
        return  # the machine has none
    check(p, seed, jnp.bfloat16, tolerance=1e-2)
    a, b, dc = operands(p, seed, jnp.bfloat16)
    made = results(p, a.astype(np.float32), b.astype(np.float32), dc, narrow=True)
    assert made[0].dtype == jnp.bfloat16
    for i, (got, want) in enumerate(zip(made, expected(p, a, b, dc), strict=True)):
        assert i == 0 or got.dtype == np.float32
        tolerance = 1e-5 if i == 2 and p.batch == 1 else 1e-2  # gradients to weights are not rounded
        np.testing.assert_allclose(
            np.asarray(got, np.float64), want, rtol=tolerance, atol=tolerance * max(1.0, np.abs(want).max())
        )


def test_a_whole_operand_may_be_float32(native_part: Any) -> None:
    if not native_part.has_bfloat16:
        pytest.skip("this CPU has neither AVX-512 BF16 nor AMX")
    p = native.Gemm(2, 33, 48, 65, False, True)
    a, b, dc = operands(p, 0, jnp.bfloat16)
    want = expected(p, a, b, dc)[0]
    for dtypes in itertools.product((np.float32, jnp.bfloat16), repeat=3):
        x, y, made = a.astype(dtypes[0]), b.astype(dtypes[1]), np.empty(p.shape, dtypes[2])
        native_part.execute("matmul", p.spec(*dtypes), *(v.ctypes.data for v in (x, y, made)))
        np.testing.assert_allclose(made.astype(np.float64), want, rtol=1e-2, atol=0.1)


@pytest.mark.parametrize("b_transposed", [False, True])
@pytest.mark.parametrize("shape", [(64, 512, 3073), (101, 325, 9001), (256, 129, 6144), (7, 9, 9001), (300, 300, 3072)])
def test_long_sums_in_bfloat16_are_rounded_once(shape: tuple[int, int, int], b_transposed: bool, native_part: Any) -> None:
    p = native.Gemm(1, *shape, False, b_transposed)
    if not native_part.has_bfloat16:
        pytest.skip("this CPU has neither AVX-512 BF16 nor AMX")
    a, b, dc = operands(p, 0, jnp.bfloat16)
    wide, rounded = np.full(p.shape, np.nan, np.float32), np.full(p.shape, np.nan, jnp.bfloat16)
    for made in (wide, rounded):  # as results are new memory, nothing may be read of them
        native_part.execute("matmul", p.spec(jnp.bfloat16, None, made.dtype), *(v.ctypes.data for v in (a, b, made)))
    want = expected(p, a, b, dc)[0]
    np.testing.assert_allclose(wide, want, rtol=2e-5, atol=2e-5 * np.abs(want).max())
    if np.prod(shape[:2]) >= 1 << 15:  # in parts; a kernel for other results may add up in another order for each dtype
        np.testing.assert_array_equal(rounded, wide.astype(jnp.bfloat16))
    np.testing.assert_allclose(rounded.astype(np.float64), want, rtol=2**-8, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
@pytest.mark.parametrize("batch", [1, 3])
def test_vmap(axes: tuple[int | None, int | None], batch: int) -> None:
    p = native.Gemm(batch, 30, 40, 50, False, True)
    a, b, _ = operands(p, 0)
    given = [v if axis is None else np.stack([v, 2 * v, -v]) for v, axis in zip((a, b), axes, strict=True)]

    def gradients(run: Any) -> Any:
        return jax.vmap(jax.grad(lambda a, b: jnp.sum(jnp.sin(run(a, b))), (0, 1)), axes)(*given)

    found = gradients(native.differentiable(p))
    for got, want in zip(found, gradients(lambda a, b: a @ jnp.swapaxes(b, -1, -2)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def test_a_job_uses_it_and_says_so() -> None:
    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((8, 4, 128)), z: tp.Numpy.Placeholder((8, 4, 64))) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        w = flow.get_variable("w", (256, 128), initializer=flow.random_normal_initializer())
        return flow.matmul(x, w, transpose_b=True, alpha=2.0), flow.matmul(z, z, transpose_b=True), w

    words = [row[5] for row in job.summary().rows if row[1] == "matmul"]
    assert not words[0].startswith("XLA") and words[1] == "XLA: too small to gain by it"
    x = np.random.default_rng(0).standard_normal((8, 4, 128), np.float32)
    y, _, w = job(x, np.zeros((8, 4, 64), np.float32))
    np.testing.assert_allclose(y, 2 * x @ w.T, rtol=1e-4, atol=1e-4)
    assert job.executables[-1][1].hlo().count(_native.target("matmul")) == 1


def test_results_are_the_same_from_run_to_run() -> None:
    p = native.Gemm(1, 200, 300, 400, True, False)
    a, b, _ = operands(p, 0)
    first = np.asarray(native.differentiable(p)(a, b))
    for _ in range(5):
        np.testing.assert_array_equal(np.asarray(native.differentiable(p)(a, b)), first)


@pytest.mark.parametrize("cores", [1, 2])
def test_the_code_of_sgemm_is_generated_once_and_beside_other_work(
    native_part: Any, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    made: list[tuple[str, int]] = []
    execute = native_part.execute

    def noted(call: str, *rest: Any) -> None:
        execute(call, *rest)  # raises where oneDNN refuses the product
        made.append((call, threading.get_ident()))

    monkeypatch.setattr(native_part, "execute", noted)
    monkeypatch.setattr(_native, "usable_cores", lambda: cores)
    monkeypatch.setattr(_native.process_state, "sgemm_generated", False)
    by_sgemm, other = [0, 1, 100, 16, 512, 0, 0], [0, 1, 100, 784, 512, 0, 1]
    assert native_part.describe("matmul", by_sgemm) == _native.SGEMM != native_part.describe("matmul", other)
    assert _native.kernel_refusal("matmul", other) is None and not _native.process_state.sgemm_generated
    for _ in range(2):
        assert _native.kernel_refusal("matmul", by_sgemm) is None
    for thread in threading.enumerate():
        if thread.name == "oneflow-sgemm":
            thread.join(30)
    assert [call for call, _ in made] == ["matmul"] * (cores - 1)
    assert all(ident != threading.get_ident() for _, ident in made)
