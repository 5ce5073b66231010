"""The places of the largest numbers of rows by the native part: the call against NumPy; jobs that use it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import examples

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import native as _native
from oneflow.ops._native_order import ARGMAX, MOST_PLACES, TOP_K, places_of_largest

pytestmark = pytest.mark.usefixtures("native_part")
CALL = 'custom_call_target="' + _native.target("largest") + '"'
WIDTHS = [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 100, 1000, 2047, 2048, 2049]


def expected(x: np.ndarray, count: int) -> np.ndarray:
    """NaNs first, then falling numbers, equal ones in their order."""
    falling = np.where(np.isnan(x), -np.inf, -x)
    return np.lexsort((falling, ~np.isnan(x)), axis=-1)[..., :count]


def rows_of(kind: str, rng: np.random.Generator, rows: int, width: int) -> np.ndarray:
    x = rng.standard_normal((rows, width))
    if kind == "rising":
        x = np.sort(x, -1)
    elif kind == "falling":
        x = -np.sort(-x, -1)
    elif kind == "equal":
        x[:] = rng.choice([0.0, -1.0, 2.5, -np.inf])
    elif kind == "ties":
        x = np.round(x)
    elif kind == "zeros":
        x = rng.choice([0.0, -0.0, 1e-40, -1e-40, 3e-39], x.shape)
    elif kind == "special":
        some = rng.random(x.shape) < 0.1
        x[some] = rng.choice([np.nan, -np.nan, np.inf, -np.inf, 3e38, 0.0], some.sum())
    elif kind == "one NaN":
        x[:, rng.integers(width)] = np.nan
    elif kind == "many NaNs":
        x[rng.random(x.shape) < 0.8] = np.nan
    return x


@settings(max_examples=examples(150), deadline=None)
@given(
    kind=st.sampled_from(["normal", "rising", "falling", "equal", "ties", "zeros", "special", "one NaN", "many NaNs"]),
    rows=st.sampled_from([1, 2, 3, 7]),
    width=st.sampled_from(WIDTHS),
    count=st.sampled_from([1, 1, 2, 3, 5, 17, 64, 128, 511, MOST_PLACES]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_places_are_those_of_numpy(
    kind: str, rows: int, width: int, count: int, dtype: str, threads: int, seed: int, parallel: Any, bfloat16_kernels: str
) -> None:
    x = rows_of(kind, np.random.default_rng(seed), rows, width).astype(jnp.dtype(dtype))
    with parallel(threads):
        found = np.asarray(jax.jit(lambda x: places_of_largest(x, count))(x))
    np.testing.assert_array_equal(found, expected(x.astype(np.float64), count))


def test_other_ranks_and_vmap() -> None:
    x = np.random.default_rng(3).standard_normal((3, 4, 50), np.float32)
    np.testing.assert_array_equal(places_of_largest(jnp.asarray(x), 3), expected(x, 3))
    np.testing.assert_array_equal(places_of_largest(jnp.asarray(x[0, 0]), 3), expected(x[0, 0], 3))
    np.testing.assert_array_equal(jax.vmap(lambda x: places_of_largest(x, 3))(jnp.asarray(x)), expected(x, 3))


def test_refusals(native_part: Any) -> None:
    def reason(shape: tuple[int, ...], axis: int, k: int = 1, dtype: str = "float32") -> str | None:
        x = [jax.ShapeDtypeStruct(shape, dtype)]
        found = TOP_K.unsupported_reason(x, {"axis": axis, "k": k})
        assert k > 1 or found == ARGMAX.unsupported_reason(x, {"axis": axis})
        return found

    assert (
        reason((100, 1000), 1) is reason((8000,), 0) is reason((2, 10, 1000), 2, MOST_PLACES) is reason((100, 64), 1, 100) is None
    )
    assert reason((100, 1000), 0) == "the axis is not the last one"
    assert reason((10, 10), 1) == reason((10_000, 3), 1) == "too small to gain by it"
    assert reason((100, 1000), 1, MOST_PLACES + 1) == f"more than {MOST_PLACES} of each row"
    assert reason((0, 1000), 1) == "an empty array"
    assert reason((100, 1000), 1, 1, "int32") == "oneDNN has no int32"
    good = [0, 2, 30, 3]
    assert not native_part.describe("largest", good).startswith("!")
    for bad in (
        good[:-1],
        [*good, 0],
        [2, *good[1:]],
        [0, 0, 3, 1],
        [0, 2, 0, 1],
        [0, 2, 30, 31],
        [0, 1 << 41, 3, 1],
        [0, 2, 3, 0],
    ):
        assert native_part.describe("largest", bad).startswith("!"), bad


# --- jobs


def found(native: bool, view: str = "consistent", devices: int = 1) -> tuple[list[np.ndarray], str]:
    """What a job that looks for the largest numbers of each row gives, and its program."""
    flow.clear_default_session()
    if devices > 1:
        flow.config.gpu_device_num(devices)
    flow.config.enable_native_cpu(native)
    config = flow.FunctionConfig()
    config.default_placement_scope(flow.scope.placement("gpu", f"0:0-{devices - 1}"))
    config.default_logical_view(getattr(flow.scope, f"{view}_view")())

    @flow.global_function("predict", config)
    def job(x: tp.Numpy.Placeholder((10, 3, 3000))) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy]:
        drawn = [flow.random.categorical(x, seed=7, **kind) for kind in ({}, {"top_k": 20}, {"top_p": 0.5})]
        return flow.math.argmax(x), flow.math.top_k(x, k=7), *drawn

    x = np.random.default_rng(5).standard_normal((10, 3, 3000), np.float32) * 4
    results = list(job(x))
    np.testing.assert_array_equal(results[0], x.argmax(-1))
    np.testing.assert_array_equal(results[1], expected(x, 7))
    program = "".join(compiled.as_text() for _, compiled in job.executables[-1][1].compiled)
    flow.clear_default_session()
    return results, program


def test_jobs_find_and_draw_what_xla_alone_does() -> None:
    mine, program = found(True)
    theirs, without = found(False)
    assert program.count(CALL) == 5 and CALL not in without
    for each, other in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(each, other)


@pytest.mark.parametrize("devices", [2, 4])
def test_devices_find_and_draw_what_one_does(devices: int) -> None:
    mine, program = found(True, devices=devices)
    assert CALL in program
    for each, other in zip(mine, found(False)[0], strict=True):
        np.testing.assert_array_equal(each, other)


def test_devices_of_the_mirrored_view_find_their_own() -> None:
    assert CALL in found(True, "mirrored", 2)[1]


@pytest.mark.parametrize("peak", [0.0, 12.0], ids=["all are sorted", "the most likely are enough"])
def test_the_smallest_set_of_classes_is_drawn_from(peak: float) -> None:
    rng = np.random.default_rng(2)
    logits = rng.standard_normal((2, 3000), np.float32)
    logits[:, 100:103] += peak

    @flow.global_function("predict")
    def draw(x: tp.Numpy.Placeholder((2, 3000))) -> tp.Numpy:
        return flow.random.categorical(flow.concat([x] * 500, axis=0), top_p=0.6, seed=1)

    drawn = draw(logits).reshape(500, 2)
    for row in range(2):
        shares = np.exp(logits[row].astype(np.float64))
        shares /= shares.sum()
        order = np.argsort(-shares, kind="stable")
        size = int((np.cumsum(shares[order]) - shares[order] < 0.6).sum())
        assert set(drawn[:, row]) <= set(order[:size])
        if peak:
            counts = np.array([(drawn[:, row] == each).sum() for each in order[:size]])
            kept = shares[order[:size]] / shares[order[:size]].sum()
            assert (abs(counts - 500 * kept) < 5 * np.sqrt(500 * kept * (1 - kept)) + 1).all()
        else:
            assert size > MOST_PLACES and len(set(drawn[:, row])) > 300
