"""Initializers: distributions, fans, refusals, default_initializer_conf."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy import stats

import oneflow as flow
import oneflow.typing as tp
from oneflow._variables.initializers import fan, from_conf
from oneflow.errors import ArgumentError

SHAPE = (200, 300)
F32 = np.dtype(np.float32)


def draw(initializer: Any, shape: tuple[int, ...] = SHAPE, dtype: Any = F32, seed: int = 0) -> np.ndarray:
    values = initializer.draw(shape, np.dtype(dtype), np.random.default_rng(seed))
    assert values.shape == shape and values.dtype == np.dtype(dtype)
    return values


def follows(values: np.ndarray, distribution: Any) -> bool:
    return stats.kstest(values.reshape(-1)[:20000].astype(np.float64), distribution.cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    ("initializer", "distribution"),
    [
        (flow.random_uniform_initializer(-2, 3), stats.uniform(-2, 5)),
        (flow.random_normal_initializer(1.0, 0.5), stats.norm(1.0, 0.5)),
        (flow.truncated_normal_initializer(1.0, 0.5), stats.truncnorm(-2, 2, 1.0, 0.5)),
        (flow.truncated_normal(0.1), stats.truncnorm(-2, 2, 0.0, 0.1)),
        (flow.variance_scaling_initializer(2.0), stats.truncnorm(-2, 2, 0, math.sqrt(2 / 300) / 0.87962566103423978)),
        (flow.variance_scaling_initializer(2.0, "FAN_OUT", "Random_Normal"), stats.norm(0, math.sqrt(2 / 200))),
        (flow.glorot_normal_initializer(), stats.norm(0, math.sqrt(2 / 500))),
        (flow.xavier_uniform_initializer(), stats.uniform(-math.sqrt(6 / 500), 2 * math.sqrt(6 / 500))),
        (flow.kaiming_initializer(SHAPE), stats.norm(0, math.sqrt(2 / 300))),
        (
            flow.kaiming_initializer(SHAPE, "random_uniform", "fan_out", "tanh"),
            stats.uniform(-5 / 3 * math.sqrt(3 / 200), 10 / 3 * math.sqrt(3 / 200)),
        ),
        (flow.kaiming_initializer(SHAPE, negative_slope=0.5), stats.norm(0, math.sqrt(2 / 1.25 / 300))),
        (flow.kaiming_initializer(SHAPE, mode="fan_avg"), stats.norm(0, math.sqrt(2 / 250))),
        (flow.kaiming_initializer(SHAPE, nonlinearity=None), stats.norm(0, math.sqrt(1 / 300))),
    ],
)
def test_distribution(initializer: Any, distribution: Any) -> None:
    assert follows(draw(initializer), distribution)


def test_truncated_values_lie_within_two_standard_deviations() -> None:
    assert np.abs(draw(flow.truncated_normal(0.1), (1000, 1000), np.float64)).max() < 0.2


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "float16", "float32", "float64"])
def test_dtype_is_the_variables(dtype: str) -> None:
    assert (draw(flow.ones_initializer(), (3, 2), dtype) == 1).all()
    assert not draw(flow.zeros_initializer(flow.int32), (3, 2), dtype).any()
    assert (draw(flow.constant_initializer(2.75, flow.int64), (3, 2), dtype) == 2).all()
    whole = draw(flow.random_uniform_initializer(-3, 4, flow.int32), (100, 100), dtype)
    assert set(whole.reshape(-1).tolist()) == set(range(-3, 4))


def test_the_same_stream_gives_the_same_values() -> None:
    for initializer in (flow.truncated_normal(0.1), flow.glorot_uniform_initializer(), flow.random_normal_initializer()):
        assert (draw(initializer) == draw(initializer)).all()
        assert (draw(initializer) != draw(initializer, seed=1)).any()


def test_values_are_those_of_one_draw_of_all() -> None:
    """A seed gives the same numbers, however many are drawn at a time."""
    shape = (3, 50_021)
    whole = np.random.default_rng(0)
    assert (draw(flow.random_normal_initializer(1.0, 0.5), shape, np.float64) == whole.standard_normal(shape) * 0.5 + 1.0).all()
    uniform = np.random.default_rng(0).uniform(-2, 3, shape)
    assert (draw(flow.random_uniform_initializer(-2, 3), shape) == uniform.astype(np.float32)).all()
    integers = np.random.default_rng(0).integers(-3, 4, shape)
    assert (draw(flow.random_uniform_initializer(-3, 4, flow.int32), shape, np.int32) == integers).all()
    again = np.random.default_rng(0)
    truncated = again.standard_normal(shape)
    while (outside := np.abs(truncated) >= 2).any():
        truncated[outside] = again.standard_normal(outside.sum())
    assert (draw(flow.truncated_normal(0.1), shape) == (truncated * 0.1).astype(np.float32)).all()


@pytest.mark.parametrize(
    ("initializer", "most"),
    [(flow.random_normal_initializer(), 1.3), (flow.glorot_uniform_initializer(), 1.3), (flow.truncated_normal(0.1), 1.6)],
)
def test_to_draw_takes_little_memory(initializer: Any, most: float) -> None:
    tracemalloc.start()
    try:
        values = draw(initializer, (2000, 2000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert values.nbytes <= peak < most * values.nbytes


@pytest.mark.parametrize(
    ("shape", "data_format", "fan_in", "fan_out"),
    [
        ((64, 3, 7, 7), "NCHW", 147, 64 * 49),
        ((64, 7, 7, 3), "NHWC", 147, 64 * 49),
        ((10, 20), "", 20, 10),
        ((10, 20), "NHWC", 20, 10),
        ((6, 4, 3), "NCW", 12, 18),
        ((5,), "", 1, 5),
    ],
)
def test_fans(shape: tuple[int, ...], data_format: str, fan_in: int, fan_out: int) -> None:
    assert [fan(shape, mode, data_format) for mode in ("fan_in", "fan_out", "fan_avg")] == [
        fan_in,
        fan_out,
        (fan_in + fan_out) / 2,
    ]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: flow.constant_initializer("1"), "value must be a number"),
        (lambda: flow.constant_initializer(1, flow.record), "dtype must be"),
        (lambda: flow.random_uniform_initializer(2, 1), "minval must be <= maxval"),
        (lambda: flow.random_normal_initializer(seed=3), "must stay None"),
        (lambda: flow.random_normal_initializer(stddev=-1.0), "stddev must be a number >= 0"),
        (lambda: flow.variance_scaling_initializer(mode="fan"), "'fan_in', 'fan_out', 'fan_avg'"),
        (lambda: flow.variance_scaling_initializer(distribution="normal"), "distribution must be one of"),
        (lambda: flow.kaiming_initializer([3, 4]), "shape must be a tuple"),
        (lambda: flow.kaiming_initializer((3, 4), negative_slope=10**400), "negative_slope is outside float64's range"),
        (lambda: flow.constant_initializer(10**400), "value is outside float64's range"),
        (lambda: flow.random_uniform_initializer(-1e308, 1e308), "maxval - minval must be within float64's range"),
        (lambda: flow.kaiming_initializer((3, 4), mode="FAN_IN"), "mode must be one of"),
        (lambda: flow.kaiming_initializer((3, 4), data_format="NCW"), "'NCHW', 'NHWC'"),
        (lambda: flow.regularizers.l2(-0.1), "must be a number >= 0"),
        (lambda: from_conf({"random_normal": {}}), "random_normal_conf"),
        (lambda: from_conf({"random_normal_conf": {"stddev": 1.0}}), "has no parameter 'stddev'"),
        (lambda: from_conf({}), "one key"),
    ],
)
def test_refusals(make: Any, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make()
    assert text in str(caught.value) and "test_initializers.py" in str(caught.value)


def test_a_dtype_that_has_no_numbers_is_not_implemented() -> None:
    with pytest.raises(NotImplementedError):
        flow.constant_initializer(1, flow.tensor_buffer)


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"constant_conf": {"value": 0.5}}, flow.constant_initializer(0.5)),
        ({"constant_int_conf": {"value": 3}}, flow.constant_initializer(3, flow.int32)),
        ({"random_normal_conf": {"mean": 0.0, "std": 0.1}}, flow.random_normal_initializer(0.0, 0.1)),
        ({"truncated_normal_conf": {"std": 0.1}}, flow.truncated_normal(0.1)),
        ({"random_uniform_conf": {"min": -1, "max": 1}}, flow.random_uniform_initializer(-1, 1)),
        ({"random_uniform_int_conf": {"min": -1, "max": 5}}, flow.random_uniform_initializer(-1, 5, flow.int64)),
        ({"xavier_conf": {"variance_norm": "kAverage", "data_format": "NCHW"}}, flow.xavier_uniform_initializer("NCHW")),
        ({"msra_conf": {}}, flow.variance_scaling_initializer(2.0, "fan_in", "random_normal")),
        (
            {"variance_scaling_conf": {"scale": 2.0, "variance_norm": 1, "distribution": 0}},
            flow.variance_scaling_initializer(2.0, "fan_out", "random_uniform"),
        ),
        ({"empty_conf": {}}, flow.empty_initializer()),
    ],
)
def test_from_conf(conf: dict[str, Any], expected: Any) -> None:
    assert from_conf(conf) == expected


def test_ranges() -> None:
    assert draw(from_conf({"range_conf": {"start": 1.0, "stride": 0.5}}), (2, 3)).tolist() == [[1.0, 1.5, 2.0]] * 2
    assert draw(from_conf({"int_range_conf": {"axis": 0}}), (2, 3), np.int32).tolist() == [[0, 0, 0], [1, 1, 1]]


def test_they_read_well_and_compare_by_value() -> None:
    assert repr(flow.truncated_normal(0.1)) == "TruncatedNormal(mean=0.0, stddev=0.1)"
    assert flow.glorot_uniform_initializer() == flow.xavier_uniform_initializer()
    assert repr(flow.regularizers.l2(0.5)) == "L1L2(l1=0.0, l2=0.5)"


def message(kind: str, **fields: Any) -> Any:
    from oneflow.core.job import initializer_conf_pb2

    made = initializer_conf_pb2.InitializerConf()
    getattr(made, kind).SetInParent()
    for name, value in fields.items():
        setattr(getattr(made, kind), name, value)
    return made


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (message("constant_conf", value=3.0), flow.constant_initializer(3.0)),
        (message("constant_int_conf", value=2), flow.constant_initializer(2, flow.int64)),
        (message("random_uniform_conf", min=-1.0), flow.random_uniform_initializer(-1.0, 1.0)),
        (message("random_normal_conf", std=0.5), flow.random_normal_initializer(0.0, 0.5)),
        (message("truncated_normal_conf", mean=1.0, std=0.5), flow.truncated_normal_initializer(1.0, 0.5)),
        (message("variance_scaling_conf", scale=2.0, variance_norm=1, distribution=1),
         flow.variance_scaling_initializer(2.0, "fan_out", "random_normal")),
        (message("empty_conf"), flow.empty_initializer()),
    ],
    ids=lambda value: getattr(value, "WhichOneof", lambda _: "")("type"),
)  # fmt: skip
def test_messages_that_programs_fill_by_hand(given: Any, same: Any) -> None:
    @flow.global_function("predict")
    def job() -> tp.Numpy:
        filled = flow.get_variable("filled", (8, 6), initializer=given, random_seed=1)
        return flow.stack([filled, flow.get_variable("made", (8, 6), initializer=same, random_seed=1)], 0)

    filled, made = job()
    np.testing.assert_array_equal(filled, made)


def test_a_message_of_a_regularizer_and_one_that_says_nothing() -> None:
    from oneflow.core.job import initializer_conf_pb2, regularizer_conf_pb2

    penalty = regularizer_conf_pb2.RegularizerConf()
    penalty.l1_l2_conf.l2 = 0.5

    @flow.global_function("train")
    def train() -> tp.Numpy:
        layer = flow.layers.dense(
            flow.constant(0.0, flow.float, (2, 3)),
            4,
            kernel_initializer=flow.ones_initializer(),
            kernel_regularizer=penalty,
            name="layer",
        )
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(layer)
        return layer

    train()
    np.testing.assert_allclose(flow.get_all_variables()["layer-weight"].numpy(), 1 - 0.1 * 0.5, rtol=1e-6)
    nothing = initializer_conf_pb2.InitializerConf()

    @flow.global_function("predict")
    def empty() -> tp.Numpy:
        return flow.get_variable("w", (2,), initializer=nothing)

    with pytest.raises(
        ArgumentError, match="get_variable 'w' in job 'empty': its InitializerConf has none(?s:.*)test_initializers.py"
    ):
        empty()
