"""Updates of variables by the native part: the call against NumPy, and jobs that use it against XLA and PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from oneflow import optimizer as opt
from oneflow._base import native as _native
from oneflow.compatible import single_client
from oneflow.compiler.fused_update import Gradient
from oneflow.compiler.fused_update import run as run_update

pytestmark = pytest.mark.usefixtures("native_part")
newer = single_client.optimizer
CALL = 'custom_call_target="' + _native.target("update") + '"'
RATE, STEP = np.float32(0.05), np.int64(3)
State = dict[str, np.ndarray]


@pytest.fixture(scope="module", autouse=True)
def one_device_afterwards() -> Iterator[None]:
    yield
    flow.clear_default_session()


# --- the call


def expected(rule: Any, state: State, g: np.ndarray, wd: float) -> State:
    """The formulas in float64: x is "x", its slots "x-m" and so on."""
    x, rate = state["x"].astype(np.float64), float(RATE)
    if isinstance(rule, opt.SGDW):
        m = rule.momentum * state["x-momentum"] - rate * g
        return {"x": x + m - (rate * wd * x if wd else 0.0), "x-momentum": m}
    m = rule.beta1 * state["x-m"] + (1 - rule.beta1) * g
    v = rule.beta2 * state["x-v"] + (1 - rule.beta2) * np.square(g)
    c1, c2 = ((1 - b ** (int(STEP) + 1)) if rule.do_bias_correction else 1.0 for b in (rule.beta1, rule.beta2))
    if isinstance(rule, newer.AdamW):
        moved = x - rate / c1 * m / (np.sqrt(v) / np.sqrt(c2) + rule.epsilon) - (rate * wd * x if wd else 0.0)
    else:
        moved = x - rate * np.sqrt(c2) / c1 * (m / (np.sqrt(v) + rule.epsilon) + (wd * x if wd else 0.0))
    return {"x": moved, "x-m": m, "x-v": v}


def prepared(g: np.ndarray, x: np.ndarray, factors: tuple[float, float], l1: float, l2: float) -> np.ndarray:
    g = g * np.float32(factors[0])
    g = g + (np.where(x >= 0, l1, -l1) if l1 else 0.0) + (l2 * x if l2 else 0.0)
    return g * np.float32(factors[1])


RULES: list[Callable[[], Any]] = [
    lambda: opt.SGDW(0.1, momentum=0.9, weight_decay=0.1),
    lambda: opt.AdamW(0.1, weight_decay=0.1),
    lambda: opt.AdamW(0.1, do_bias_correction=True, weight_decay=0.1),
    lambda: newer.AdamW(0.1, do_bias_correction=True, weight_decay=0.1),
]


@settings(max_examples=examples(25), deadline=None)
@given(
    rule=st.sampled_from(RULES),
    sizes=st.lists(st.sampled_from([1, 2, 15, 16, 17, 100, 1000, (1 << 15) - 1, (1 << 15) + 3, 100_000]), min_size=1, max_size=4),
    wd=st.sampled_from([0.0, 0.1]),
    l1=st.sampled_from([0.0, 0.01]),
    l2=st.sampled_from([0.0, 0.02]),
    skip=st.sampled_from([None, False, True]),
    special=st.booleans(),
    in_place=st.booleans(),
    threads=st.integers(1, 3),
    seed=st.integers(0, 100),
)
def test_the_call_computes_the_rule(
    rule: Callable[[], Any], sizes: list[int], wd: float, l1: float, l2: float, skip: bool | None, special: bool, in_place: bool,
    threads: int, seed: int, parallel: Any,
) -> None:  # fmt: skip
    made, rng = rule(), np.random.default_rng(seed)
    state: State = {}
    gradients, plain = {}, {}
    for i, size in enumerate(sizes):
        x, g = (rng.standard_normal(size).astype(np.float32) for _ in range(2))
        if special:
            x[:: max(size // 3, 1)], g[:: max(size // 5, 1)] = np.inf, rng.choice([np.nan, np.inf, -np.inf])
        slots = {f"x{i}-{s}": np.abs(rng.standard_normal(size)).astype(np.float32) for s in made.fused().slots}
        state |= {f"x{i}": x, **slots}
        plain[f"x{i}"] = g
        gradients[f"x{i}"] = Gradient(jnp.asarray(g), (jnp.float32(0.125),), (l1, l2), (jnp.float32(0.7),), (jnp.float32(0),))
    asked = None if skip is None else jnp.asarray(skip)
    with parallel(threads), jax.enable_x64(True):
        new = run_update(
            made, gradients, dict.fromkeys(plain, wd), {k: jnp.asarray(v) for k, v in state.items()},
            (jnp.asarray(RATE), jnp.asarray(STEP)), asked, in_place,
        )  # fmt: skip
    assert new.keys() == state.keys()
    for i in range(len(sizes)):
        mine = {"x" + key.removeprefix(f"x{i}"): v for key, v in state.items() if key.split("-")[0] == f"x{i}"}
        with np.errstate(all="ignore"):
            g = prepared(plain[f"x{i}"], mine["x"], (0.125, 0.7), l1, l2)
            want = mine if skip else expected(made, mine, g, wd)
        for key, value in want.items():
            got = np.asarray(new[f"x{i}{key[1:]}"])
            np.testing.assert_allclose(got, value.astype(np.float32), rtol=3e-6, atol=3e-7, err_msg=key)


def test_a_call_that_does_not_fit_its_spec_is_refused() -> None:
    spec = [0, 0, 0, 0, 0, 0, 0, _native.float_bits(0.9), 1, 8]
    ones = jnp.ones(7, jnp.float32)
    with pytest.raises(Exception, match="an operand's size is not that of the spec"):
        jax.block_until_ready(_native.call_several("update", spec, [((7,), np.float32)] * 2, RATE, ones, ones, ones))
    with pytest.raises(Exception, match="the spec is too short"):
        jax.block_until_ready(_native.call_several("update", spec[:-1], [((7,), np.float32)] * 2, RATE, ones, ones, ones))


PRODUCT_CALL = 'custom_call_target="' + _native.target("product_update") + '"'


def descent(m: int, n: int, k: int, a_transposed: bool, b_transposed: bool, skips: bool) -> list[int]:
    return [m, n, k, a_transposed, b_transposed, 2, 0, skips, 0, 0, 0, 0, 1, m * n]


@settings(max_examples=examples(40), deadline=None)
@given(
    m=st.sampled_from([1, 5, 24, 25, 144, 300]), n=st.sampled_from([1, 16, 63, 64, 65, 129, 1000]),
    k=st.sampled_from([1, 3, 16, 100, 256, 300, 520]), a_transposed=st.booleans(), b_transposed=st.booleans(),
    skip=st.sampled_from([None, False, True]), in_place=st.booleans(), threads=st.integers(1, 3),
)  # fmt: skip
def test_a_call_computes_the_product_that_it_descends_by(
    m: int, n: int, k: int, a_transposed: bool, b_transposed: bool, skip: bool | None, in_place: bool, threads: int, parallel: Any
) -> None:
    rng = np.random.default_rng(m + n + k)
    x, a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, n), (m, k), (k, n)))
    operands = [a.T if a_transposed else a, b.T if b_transposed else b]
    scalars = [RATE] if skip is None else [RATE, np.bool_(skip)]
    spec, aliases = descent(m, n, k, a_transposed, b_transposed, skip is not None), {len(scalars): 0} if in_place else {}

    def run(*arrays: Any) -> Any:
        return _native.call_several("product_update", spec, [((m, n), np.float32)], *arrays, aliases=aliases)[0]

    with parallel(threads):
        got = np.asarray(jax.jit(run)(*scalars, x, *map(np.ascontiguousarray, operands)))
    if skip:
        np.testing.assert_array_equal(got, x)
    else:
        np.testing.assert_allclose(got, x - RATE * (a.astype(np.float64) @ b), rtol=1e-5, atol=1e-6 * k)


def test_infinities_and_nans_of_either_matrix_reach_the_rows_and_columns_that_read_them() -> None:
    m, n, k = 48, 130, 20
    x, a, b = np.zeros((m, n), np.float32), np.ones((k, m), np.float32), np.ones((k, n), np.float32)
    a[3, 7], b[5, 129] = np.nan, np.inf
    made = _native.call_several("product_update", descent(m, n, k, True, False, False), [((m, n), np.float32)], RATE, x, a, b)[0]
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.isfinite(made), np.isfinite(a.T @ b))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (descent(4, 8, 2, True, False, False)[:-1], "the spec is too short"),
        ([*descent(4, 8, 2, True, False, False)[:-1], 31], "the gradient has another size"),
        (descent(0, 8, 2, True, False, False), "out of range"),
        (descent(1 << 30, 1 << 30, 2, True, False, False), "out of range"),
        (descent(4, 9, 2, True, False, False), "an operand's size is not that of the spec"),
    ],
)
def test_a_product_that_does_not_fit_its_spec_is_refused(spec: list[int], reason: str) -> None:
    x, a, b = (jnp.ones(shape, jnp.float32) for shape in ((4, 8), (2, 4), (2, 8)))
    with pytest.raises(Exception, match=reason):
        jax.block_until_ready(_native.call_several("product_update", spec, [((4, 8), np.float32)], RATE, x, a, b))


# --- jobs

slow = pytest.mark.thorough


Found = tuple[list[np.ndarray], State, str]


def hlo_of(job: Any) -> str:
    return job.executables[-1][1].hlo()


def stepped(
    native: bool, declare: Callable[[], Any], *arrays: np.ndarray, steps: int = 3, look: Callable[[Any], str] = hlo_of
) -> Found:
    """Losses of some steps of a job in a new session, the variables after them, and what ``look`` finds in the job."""
    flow.clear_default_session()
    flow.manual_seed(3)
    flow.config.enable_native_cpu(native)
    job = declare()
    losses = [job(*arrays) for _ in range(steps)]
    return losses, {n: v.numpy() for n, v in flow.get_all_variables().items()}, look(job) if steps else ""


def layers(native: bool, make: Callable[[], Any], use: Callable[[Any], Any] = lambda loss: loss) -> Found:
    """``stepped``, for two layers whose gradients are products of 32 rows, ``a`` (256, 300) and ``b`` (128, 256)."""

    def declare() -> Any:
        @flow.global_function(type="train")
        def job(x: tp.Numpy.Placeholder((32, 300))) -> tp.Numpy:
            start = flow.random_normal_initializer(stddev=0.1)
            h = flow.nn.relu(flow.layers.dense(x, 256, kernel_initializer=start, name="a"))
            y = flow.layers.dense(h, 128, kernel_initializer=start, name="b")
            loss = use(flow.math.reduce_mean(flow.math.square(y), axis=[1]))
            make().minimize(loss)
            return loss

        return job

    return stepped(native, declare, np.random.default_rng(0).standard_normal((32, 300), np.float32))


def assert_same(found: Found, plain: Found) -> None:
    np.testing.assert_allclose(found[0], plain[0], rtol=1e-4, atol=1e-6)
    assert found[1].keys() == plain[1].keys()
    for name, value in found[1].items():
        np.testing.assert_allclose(value, plain[1][name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "make",
    [
        lambda: opt.SGD(0.05, momentum=0),
        lambda: opt.SGD(0.05, momentum=0.9, loss_scale_factor=64.0),
        pytest.param(lambda: opt.SGDW(0.05, momentum=0.9, weight_decay=0.1, weight_decay_excludes=["a"]), marks=slow),
        pytest.param(lambda: newer.Adam(0.01, do_bias_correction=True), marks=slow),
        lambda: opt.AdamW(opt.CosineScheduler(0.01, 10), weight_decay=0.1),
    ],
    ids=["descent", "momentum", "decay", "adam", "adamw"],
)
def test_updates_compute_the_products_that_are_their_gradients(make: Callable[[], Any]) -> None:
    found, plain = layers(True, make), layers(False, make)
    hlo = found[2]
    assert hlo.count(PRODUCT_CALL) == 2 and PRODUCT_CALL not in plain[2]
    for shape in ("256,300", "128,256"):
        assert f"f32[{shape}]{{1,0}} copy(" not in hlo
    assert_same(found, plain)


@pytest.mark.parametrize("axes", [1, 2, pytest.param(3, marks=slow)])
def test_updates_compute_the_gradients_of_convolutions_of_single_pixels(axes: int) -> None:
    """The second one only: the windows of the others have several pixels, or are further apart."""
    conv = (flow.layers.conv1d, flow.layers.conv2d, flow.layers.conv3d)[axes - 1]
    data = ("NCW", "NCHW", "NCDHW")[axes - 1]

    def declare() -> Any:
        @flow.global_function(type="train")
        def job(x: tp.Numpy.Placeholder((2, 128, *[4] * axes))) -> tp.Numpy:
            start, h = flow.random_normal_initializer(stddev=0.05), x
            for name, size, stride in (("a", 3, 1), ("b", 1, 1), ("c", 1, 2)):
                h = conv(h, 256, size, stride, "SAME", data, kernel_initializer=start, name=name, activation=flow.nn.relu)
            loss = flow.math.reduce_mean(flow.math.square(h), axis=list(range(1, axes + 2)))
            opt.SGD(0.05, momentum=0.9).minimize(loss)
            return loss

        return job

    x = np.random.default_rng(0).standard_normal((2, 128, *[4] * axes), np.float32)
    found, plain = (stepped(native, declare, x) for native in (True, False))
    assert found[2].count(PRODUCT_CALL) == 1
    assert_same(found, plain)


def test_weights_that_are_a_factor_of_their_own_gradient() -> None:
    """The gradient is a product with what is overwritten meanwhile, which XLA copies before."""

    def declare() -> Any:
        @flow.global_function(type="train")
        def job(target: tp.Numpy.Placeholder((128, 128))) -> tp.Numpy:
            w = flow.get_variable("w", (128, 512), initializer=flow.random_normal_initializer(stddev=0.1))
            loss = flow.math.square(flow.matmul(flow.stop_gradient(w), w, transpose_b=True) - target)
            opt.SGD(5.0, momentum=0.9).minimize(loss)
            return loss

        return job

    found, plain = (stepped(native, declare, np.eye(128, dtype=np.float32)) for native in (True, False))
    assert found[2].count(PRODUCT_CALL) == 1
    assert_same(found, plain)


def shared(loss: Any) -> Any:
    """The layers' weights have further readers."""
    for name, shape in (("a-weight", (256, 300)), ("b-weight", (128, 256))):
        weights = flow.get_variable(name, shape, initializer=flow.random_normal_initializer(stddev=0.1), reuse=True)
        loss = loss + 0.01 * flow.math.reduce_sum(flow.math.square(weights))
    return loss


def dynamic() -> Any:
    return opt.loss_scale.dynamic_loss_scale(initial_loss_scale=2.0**10, increment_period=2)


WATCHED: list[np.ndarray] = []


def watched(loss: Any) -> Any:
    for name, shape in (("a-weight", (256, 300)), ("b-weight", (128, 256))):
        weights = flow.get_variable(name, shape, initializer=flow.random_normal_initializer(stddev=0.1), reuse=True)
        flow.watch_diff(weights, lambda g: WATCHED.append(g.numpy()))
    return loss


@pytest.mark.parametrize(
    ("make", "use"),
    [
        pytest.param(lambda: opt.Adam(0.01, grad_clipping=opt.grad_clipping.by_global_norm(0.1)), None, id="clipped"),
        pytest.param(lambda: opt.SGD(0.05, momentum=0.9), watched, id="watched"),
        pytest.param(lambda: opt.SGD(0.05, momentum=0.9), shared, id="shared"),
        pytest.param(lambda: opt.Adam(0.01, loss_scale_policy=dynamic()), None, id="scaled", marks=slow),
    ],
)  # fmt: skip
def test_gradients_with_further_readers_are_computed_apart(make: Callable[[], Any], use: Any) -> None:
    keep = {} if use is None else {"use": use}
    found, plain = layers(True, make, **keep), layers(False, make, **keep)
    assert PRODUCT_CALL not in found[2]
    assert_same(found, plain)
    assert use is not watched or all(g.any() for g in WATCHED)


def trained(
    native: bool,
    make: Callable[[], Any],
    steps: int = 3,
    regularizer: Any = None,
    scale: float = 1.0,
) -> Found:
    """Losses of some steps, the variables after them, and the compiled program: two layers, one with more than 2^15 weights."""

    def declare() -> Any:
        @flow.global_function(type="train")
        def job(x: tp.Numpy.Placeholder((4, 200)), y: tp.Numpy.Placeholder((4, 10))) -> tp.Numpy:
            options = {"kernel_initializer": flow.random_normal_initializer(stddev=0.1), "kernel_regularizer": regularizer}
            h = flow.nn.relu(flow.layers.dense(x, 300, name="a", **options))
            loss = flow.math.square(flow.layers.dense(h, 10, name="b", **options) - y)
            make().minimize(loss * scale)
            return loss

        return job

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 200), np.float32), rng.standard_normal((4, 10), np.float32)
    return stepped(native, declare, x, y, steps=steps)


def clipped() -> Any:
    return opt.AdamW(0.01, weight_decay=0.1, grad_clipping=opt.grad_clipping.by_global_norm(0.01))


@pytest.mark.parametrize(
    ("make", "regularizer"),
    [
        pytest.param(clipped, flow.regularizers.l2(0.01), id="clipped"),
        pytest.param(lambda: newer.AdamW(0.01, do_bias_correction=True, weight_decay=0.1), None, id="newer", marks=slow),
        pytest.param(lambda: opt.SGD(0.01, momentum=0.9, loss_scale_factor=64.0), None, id="scaled"),
        pytest.param(
            lambda: opt.SGDW(0.01, momentum=0.9, weight_decay=0.1, weight_decay_excludes=["bias"]),
            flow.regularizers.l2(0.01), id="decay", marks=slow,
        ),
        pytest.param(
            lambda: opt.Adam(0.01, do_bias_correction=True), flow.regularizers.l1_l2(0.01, 0.02), id="adam", marks=slow
        ),
        pytest.param(lambda: opt.LazyAdam(opt.CosineScheduler(0.01, 10)), None, id="lazy", marks=slow),
        pytest.param(
            lambda: newer.SGD(0.01, momentum=0.9, grad_clipping=opt.grad_clipping.by_global_norm(0.1)),
            flow.regularizers.l2(0.1), id="clipped-first", marks=slow,
        ),
    ],
)  # fmt: skip
def test_a_job_trains_as_with_xla(make: Callable[[], Any], regularizer: Any) -> None:
    found, plain = (trained(native, make, regularizer=regularizer) for native in (True, False))
    hlo = found[2]
    assert CALL not in plain[2]
    assert hlo.count(CALL) >= 2  # the large weights, and all others
    assert "output_to_operand_aliasing" in hlo
    assert "f32[300,200]{1,0} copy(" not in hlo and "f32[200,300]{1,0} copy(" not in hlo
    assert_same(found, plain)


def test_many_small_variables_are_updated_by_several_calls() -> None:
    """XLA's time to compile one call grows with the square of its operands: 400 layers took 40 seconds."""

    def declare() -> Any:
        @flow.global_function(type="train")
        def job(x: tp.Numpy.Placeholder((4, 8))) -> tp.Numpy:
            for i in range(50):
                x = x + flow.layers.dense(x, 8, kernel_initializer=flow.random_normal_initializer(stddev=0.1), name=f"d{i}")
            opt.Adam(0.01).minimize(x)
            return x

        return job

    x = np.ones((4, 8), np.float32)
    (losses, values, hlo), (plain_losses, plain, plain_hlo) = (stepped(native, declare, x) for native in (True, False))
    assert hlo.count(CALL) == 2 and CALL not in plain_hlo  # of 64 and of 36 variables
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-4, atol=1e-5)
    for name, value in values.items():
        np.testing.assert_allclose(value, plain[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_adam_is_that_of_pytorch() -> None:
    _, before, _ = trained(True, lambda: newer.Adam(0.01, do_bias_correction=True), steps=0)
    _, after, _ = trained(True, lambda: newer.Adam(0.01, do_bias_correction=True), steps=4)
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.standard_normal(shape, np.float32)) for shape in ((4, 200), (4, 10)))
    w = {n: torch.tensor(v, requires_grad=True) for n, v in before.items() if n.split("-")[-1] in ("weight", "bias")}
    optimizer = torch.optim.Adam(w.values(), 0.01)
    for _ in range(4):
        optimizer.zero_grad()
        h = torch.relu(x @ w["a-weight"].T + w["a-bias"])
        torch.mean(torch.square(h @ w["b-weight"].T + w["b-bias"] - y)).backward()
        optimizer.step()
    for name, value in w.items():
        np.testing.assert_allclose(after[name], value.detach().numpy(), rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("native", [True, pytest.param(False, marks=slow)])
def test_a_step_with_an_infinite_gradient_is_skipped(native: bool) -> None:
    def make() -> Any:
        policy = opt.loss_scale.dynamic_loss_scale(initial_loss_scale=2.0**100, increment_period=100)
        return opt.Adam(0.01, loss_scale_policy=policy)

    _, before, _ = trained(native, make, steps=0)
    _, after, hlo = trained(native, make, steps=2, scale=1e20)
    assert (CALL in hlo) == native
    moved = {n for n, v in after.items() if not np.array_equal(v, before[n])}
    assert moved and all("LossScale" in n or "GoodStep" in n or "System" in n for n in moved), moved


def test_nan_and_infinity_reach_the_variables() -> None:
    _, values, _ = trained(True, lambda: opt.Adam(0.01), steps=1, scale=float("inf"))
    assert np.isnan(values["a-weight"]).any() and np.isnan(values["b-weight"]).any()


def test_the_table_and_the_profile_say_what_updates() -> None:
    _, _, job = trained_with(find_nonfinite=False)
    assert "2 variables updated in one pass" in str(job.summary())
    rows = job.profile(np.ones((4, 200), np.float32), steps=1).rows
    assert any("update in one pass" in row.computed_by for row in rows)


def test_other_variables_are_left_to_xla() -> None:
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4, 200), flow.float64)) -> tp.Numpy:
        w = flow.get_variable("wide", (200, 300), flow.float64, initializer=flow.ones_initializer())
        loss = flow.math.square(flow.matmul(x, w))
        opt.Adam(0.01).minimize(loss)
        return loss

    flow.config.enable_native_cpu(True)
    job(np.ones((4, 200)))
    assert CALL not in job.executables[-1][1].hlo()


def test_find_nonfinite_keeps_the_state_and_finds_the_update() -> None:
    flow.config.find_nonfinite(True)
    try:
        losses, values, _ = trained_with(find_nonfinite=True)
    finally:
        flow.clear_default_session()
    plain_losses, plain, _ = trained_with(find_nonfinite=False)
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-6)
    for name, value in values.items():
        np.testing.assert_allclose(value, plain[name], rtol=1e-5, atol=1e-6, err_msg=name)


def trained_with(*, find_nonfinite: bool) -> Any:
    flow.clear_default_session()
    flow.manual_seed(3)
    flow.config.find_nonfinite(find_nonfinite)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4, 200))) -> tp.Numpy:
        loss = flow.math.square(flow.layers.dense(x, 300, kernel_initializer=flow.glorot_uniform_initializer(), name="a"))
        opt.SGD(0.01, momentum=0.9).minimize(loss)
        return loss

    x = np.random.default_rng(0).standard_normal((4, 200), np.float32)
    losses = [job(x) for _ in range(3)]
    return losses, {n: v.numpy() for n, v in flow.get_all_variables().items()}, job


@pytest.mark.parametrize("clips", [pytest.param(False, marks=slow), True])
def test_stages_on_two_devices(clips: bool) -> None:
    def declare() -> Any:
        flow.config.gpu_device_num(2)

        @flow.global_function(type="train")
        def job(x: tp.Numpy.Placeholder((4, 200))) -> tp.Numpy:
            with flow.scope.placement("gpu", "0:0"):
                h = flow.nn.relu(flow.layers.dense(x, 300, kernel_initializer=flow.glorot_uniform_initializer(), name="a"))
            with flow.scope.placement("gpu", "0:1"):
                loss = flow.math.square(flow.layers.dense(h, 200, kernel_initializer=flow.glorot_uniform_initializer(), name="b"))
                clipping = opt.grad_clipping.by_global_norm(0.5) if clips else None
                newer.Adam(0.01, do_bias_correction=True, grad_clipping=clipping).minimize(loss)
            return loss

        return job

    x = np.random.default_rng(0).standard_normal((4, 200), np.float32)
    found, plain = (stepped(native, declare, x, look=lambda job: str(job.summary())) for native in (True, False))
    assert "4 variables updated in one pass" in found[2] and "4 variables updated in one pass" not in plain[2]
    assert_same(found, plain)
