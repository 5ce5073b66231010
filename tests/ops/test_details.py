"""Details that the tables cannot express: names, batch axes, sizes that vary, variables, help()."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import numpy as np
import pytest
from scipy import special
from table import floats, forward, ints, trace

import oneflow as flow
import oneflow.typing as tp
from oneflow._base.dist import parse_placement
from oneflow.errors import ArgumentError, DtypeError, DuplicateNameError, JobWarning, ShapeError
from oneflow.graph.graph import Graph, tracing
from oneflow.graph.node import INVALID_AXIS, Scope
from oneflow.ops.array import system_assign
from oneflow.ops.slicing import logical_slice_assign

X = floats(2, 3).astype(np.float32)


@pytest.fixture
def graph():
    """The graph of a job whose body is running."""
    made = Graph("j", train=True, scope=Scope(parse_placement("cpu", "0:0")))
    with tracing(made):
        yield made


def variable(name: str = "v", shape: tuple[int, ...] = (2, 3)) -> flow.get_variable:
    return flow.get_variable(name, shape, initializer=flow.ones_initializer())


# --- names


def test_unnamed_ops_are_numbered_by_kind() -> None:
    graph, _ = trace(lambda x: (x * 2, x * 3, flow.math.reduce_sum(x), flow.math.relu(x)), [(X.shape, X.dtype)])
    assert [n.name for n in graph.nodes[1:]] == ["ScalarMul_0", "ScalarMul_1", "ReduceSum_0", "Relu_0"]


def test_given_names_are_kept_and_unique() -> None:
    graph, (y,) = trace(lambda x: flow.math.exp(x, name="e"), [(X.shape, X.dtype)])
    assert y.logical_blob_name == "e/out_0"
    with pytest.raises(DuplicateNameError):
        trace(lambda x: flow.math.exp(x, name="e") + flow.math.log(x, name="e"), [(X.shape, X.dtype)])


def test_errors_name_the_op() -> None:
    with pytest.raises(ShapeError, match=r"concat 'merge' in job 'table'"):
        trace(lambda x: flow.concat([x, flow.ones([3, 4])], 0, name="merge"), [(X.shape, X.dtype)])


def test_zeros_and_ones_are_named_as_oneflow_does(graph: Graph) -> None:
    assert flow.ones([1], name="a").op_name == "aconstant"


# --- the batch axis


@pytest.mark.parametrize(
    ("build", "axis"),
    [
        (lambda x: flow.transpose(x, [1, 2, 0]), 2),
        (lambda x: flow.transpose(x, [1, 2, 0], batch_axis_non_change=True), 0),
        (lambda x: flow.expand_dims(x, 0), 1),
        (lambda x: flow.squeeze(flow.expand_dims(x, 0), [0]), 0),
        (lambda x: flow.math.reduce_sum(x, 0), INVALID_AXIS),
        (lambda x: flow.math.reduce_sum(x), INVALID_AXIS),
        (lambda x: flow.math.reduce_sum(x, 1), 0),
        (lambda x: flow.math.argmax(flow.transpose(x, [1, 0, 2]), 0), 0),
        (lambda x: x[0], INVALID_AXIS),
        (lambda x: x[None], 1),
        (lambda x: flow.transpose(x, [1, 0, 2])[0], 0),
        (lambda x: x + 1, 0),
        (lambda x: flow.matmul(x, flow.ones((2, 4, 5))), 0),
        (lambda x: flow.matmul(flow.reshape(x, (2, 12)), flow.ones((12, 2))), 0),
        (lambda x: flow.matmul(flow.reshape(x, (2, 12)), flow.reshape(x, (2, 12)), transpose_a=True), INVALID_AXIS),
        (lambda x: flow.matmul(flow.transpose(flow.reshape(x, (2, 12)), [1, 0]), flow.ones((12, 2)), transpose_a=True), 0),
        (lambda x: flow.matmul(flow.ones((2, 12)), flow.reshape(x, (2, 12)), transpose_b=True), 1),
    ],
)
def test_batch_axis(build, axis: int) -> None:
    _, (y,) = trace(build, [((2, 3, 4), np.float32)])
    assert y.batch_axis == axis


# --- sizes that vary


def test_definitions_follow_smaller_arrays() -> None:
    """A graph of the bound (4, 3) is evaluated with 2 rows, as a call with a shorter batch does."""

    def build(x):
        x.is_dynamic = True
        return (
            flow.reshape(x, [x.shape[0], -1, 1]), flow.reshape(x, [-1, 3]), flow.reshape(x, [12]), flow.flatten(x),
            flow.math.reduce_mean(x), x[-1], x[1:], flow.slice(x, [1, 0], [2, -1]), flow.elem_cnt(x), flow.zeros_like(x),
            flow.math.reduce_sum(x, 1),
        )  # fmt: skip

    graph, blobs = trace(build, [((4, 3), np.float32)])
    values: dict = {}
    with jax.enable_x64(True):
        for node in graph.nodes:
            made = [X] if not node.inputs else [node.op.define(*[values[b.node.name] for b in node.inputs], **node.attrs)]
            values[node.name] = np.asarray(made[0])
    found = [values[b.node.name] for b in blobs]
    expected = [
        X[..., None], X, X.reshape(-1), X.reshape(-1), np.array([X.mean()]), X[-1], X[1:], X[1:], np.array([6]), X * 0, X.sum(1),
    ]  # fmt: skip
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-6)
    assert [b.is_dynamic for b in blobs] == [True, True, True, True, False, True, True, True, False, True, True]


# --- variables


def test_assign(graph: Graph) -> None:
    v = variable()
    assert flow.assign(v, v + 1) is None
    assert graph.assigns["v"].node.op.name == "scalar_add"
    assert system_assign(v, v * 2) is v
    assert graph.assigns["v"].node.op.name == "scalar_mul"


def test_assign_refuses_another_shape_or_dtype(graph: Graph) -> None:
    with pytest.raises(ShapeError, match="inputs must have equal shapes"):
        flow.assign(variable(), flow.ones([2]))
    with pytest.raises(DtypeError, match="the variable holds float32, not int32"):
        flow.assign(variable(), flow.ones([2, 3], flow.int32))


def test_regions_of_a_variable_are_written_one_after_the_other(graph: Graph) -> None:
    v = variable()
    node = logical_slice_assign(v, flow.zeros([1, 3]), [(0, 1, 1)])
    logical_slice_assign(v, flow.constant(7, flow.float32, [2, 1]), [(None, None, None), (2, 3, 1)])
    assert node.op.name == "slice_update"
    with jax.enable_x64(True):
        result = forward(graph, [])[graph.assigns["v"].node.name, 0]
    np.testing.assert_array_equal(result, [[0, 0, 7], [1, 1, 7]])


def test_parallel_cast_keeps_the_request(graph: Graph) -> None:
    split = flow.distribute.split(1)
    assert flow.parallel_cast(variable(), distribute=split).distribute is split
    y = flow.parallel_cast(variable(), gradient_distribute=split)
    assert y.node.attrs["gradient_distribute"] is split
    with pytest.raises(ArgumentError):
        flow.parallel_cast(variable(), distribute="split(0)")


# --- numbers


def test_number_kinds_beside_a_blob() -> None:
    def build(x):
        return x + True, x + np.bool_(True), x + np.float16(1), x + np.int8(1), x + np.array(1), 1 + x

    graph, blobs = trace(build, [(X.shape, X.dtype)])
    with jax.enable_x64(True):
        values = forward(graph, [X])
    for b in blobs:
        np.testing.assert_allclose(values[b.node.name, 0], X + 1)


def test_equal_integers_and_floats_share_one_evaluation_but_not_one_meaning() -> None:
    """1 == 1.0 == True, so caches by attributes must not mix them up."""
    for x, number, expected in ((ints(3), 1.0, "int32"), (X, 1, "float32"), (X, True, "float32"), (ints(3), True, "int32")):
        _, (y,) = trace(lambda b, n=number: b * n, [(x.shape, x.dtype)])
        assert y.dtype.name == expected


# --- documentation


@pytest.mark.parametrize("function", [flow.math.exp, flow.math.relu, flow.identity, flow.amp_white_identity])
def test_made_functions_have_signatures_and_help(function) -> None:
    assert list(inspect.signature(function).parameters) == ["x", "name"]
    assert "Args:" in inspect.getdoc(function) and ">>> y = flow." in inspect.getdoc(function)
    assert function.__name__ == function.__qualname__ != "function"


def train_once(body, x: np.ndarray, dtype: flow.dtype) -> tuple[np.ndarray, np.ndarray]:
    """body(x), and its gradient."""

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder(x.shape, dtype=dtype)) -> tp.Numpy:
        shift = flow.get_variable("shift", x.shape, initializer=flow.zeros_initializer())
        y = body(x + flow.cast(shift, dtype))
        loss = flow.math.reduce_sum(flow.cast(y, flow.float32))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [-1.0]), momentum=0).minimize(loss)  # x + dx
        return y

    return job(x), flow.get_all_variables()["shift"].numpy()


def test_hardswish_in_float16_is_rounded_once() -> None:
    x = np.linspace(-8, 8, 4001).astype(np.float16)
    wide = x.astype(np.float64)
    y, dx = train_once(flow.nn.hardswish, x, flow.float16)
    np.testing.assert_allclose(y, wide * np.clip(wide / 6 + 0.5, 0, 1), rtol=5e-4, atol=1e-6)
    inside = np.abs(wide) < 3
    np.testing.assert_allclose(dx, np.where(inside, wide / 3 + 0.5, wide >= 3), rtol=5e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [flow.float32, flow.float64, flow.float16])
def test_lgamma_keeps_its_precision_near_its_zeros(dtype: flow.dtype) -> None:
    numpy_dtype = dtype.numpy_dtype
    near = np.concatenate([one + np.array([0, 1, -1, 2, 50, -50, 1e4, -1e4]) * np.finfo(numpy_dtype).eps for one in (1, 2)])
    x = np.concatenate([near, np.linspace(0.05, 6, 200), [-0.5, -1.5, 20.0]]).astype(numpy_dtype)
    y, dx = train_once(flow.math.lgamma, x, dtype)
    assert y[0] == 0 and y[8] == 0
    wide = x.astype(np.longdouble)
    z = np.where(wide < 1.5, wide - 1, wide - 2)
    few = np.where(wide < 1.5, z * (-np.euler_gamma + z * np.pi**2 / 12), z * (1 - np.euler_gamma + z * (np.pi**2 / 12 - 0.5)))
    expected = np.where(np.abs(z) < 1e-6, few, special.gammaln(x.astype(np.float64)))
    eps = float(np.finfo(numpy_dtype).eps)
    np.testing.assert_allclose(y.astype(np.float64), expected.astype(np.float64), rtol=max(40 * eps, 1e-11), atol=0)
    np.testing.assert_allclose(
        dx, special.digamma(x.astype(np.float64)), rtol=max(50 * eps, 1e-5), atol=2e-3 if eps > 1e-4 else 2e-6
    )


@pytest.mark.parametrize("offset", [1e6, -1e7, 1e30])
@pytest.mark.parametrize("kind", ["labels", "probabilities"])
def test_cross_entropy_keeps_its_precision_where_logits_share_a_large_offset(kind: str, offset: float) -> None:
    logits, labels = (np.arange(10, dtype=np.float32).reshape(2, 5) % 5 + np.float32(offset)), np.array([1, 3], np.int32)
    seen = []

    @flow.global_function("train")
    def job(
        x: tp.Numpy.Placeholder((2, 5)), y: tp.Numpy.Placeholder((2,), flow.int32), z: tp.Numpy.Placeholder((2, 5))
    ) -> tp.Numpy:
        x = x + flow.get_variable("w", (2, 5), initializer=flow.zeros_initializer())
        sparse = kind == "labels"
        loss = (
            flow.nn.sparse_softmax_cross_entropy_with_logits(y, x) if sparse else flow.nn.softmax_cross_entropy_with_logits(z, x)
        )
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        flow.watch_diff(x, lambda gradient: seen.append(gradient.numpy()))
        return loss

    one_hot = np.eye(5, dtype=np.float32)[labels]
    losses = job(logits, labels, one_hot)
    wide = logits.astype(np.float64)
    expected = special.log_softmax(wide, -1)
    np.testing.assert_allclose(losses, -expected[[0, 1], labels], rtol=1e-6)
    np.testing.assert_allclose(seen[0], np.exp(expected) - one_hot, rtol=1e-5)


# --- NaNs


@pytest.mark.parametrize("shape", [(3, 17), (5, 1000), (64, 64), (2, 16, 9), (40, 1000)])
@pytest.mark.parametrize("axis", [0, -1, None])
def test_extremes_of_numbers_with_nans_are_nans(shape: tuple[int, ...], axis: int | None) -> None:
    @flow.global_function()
    def extremes(x: tp.Numpy.Placeholder(shape)) -> tuple[tp.Numpy, tp.Numpy]:
        return flow.math.reduce_max(x, axis), flow.math.reduce_min(x, axis)

    x = floats(*shape).astype(np.float32)
    huge = x * np.float32(1e38)  # whose sum overflows
    for given in (x, np.where(x > 1.9, np.nan, x), np.full_like(x, np.nan), np.where(x > 0, -np.inf, np.inf), huge):
        for found, expected in zip(extremes(given), (given.max(axis), given.min(axis)), strict=True):
            np.testing.assert_array_equal(found, np.reshape(expected, found.shape))


# --- sines of many numbers


@pytest.mark.parametrize("largest", [3.0, 8000.0, 1e6])
def test_sines_and_cosines_of_many_numbers(largest: float) -> None:
    special_ones = [0.0, 1e-30, largest, -largest, *(np.arange(-5, 6) * np.pi / 2)]
    x = np.append(np.linspace(-largest, largest, 40000), special_ones).astype(np.float32)
    seen = []

    @flow.global_function("train")
    def turned(up: tp.Numpy.Placeholder(x.shape)) -> tuple[tp.Numpy, tp.Numpy]:
        angles = flow.get_variable("angles", x.shape, initializer=flow.zeros_initializer())
        flow.watch_diff(angles, lambda gradient: seen.append(gradient.numpy()))
        sine, cosine = flow.math.sin(angles), flow.math.cos(angles)
        loss = flow.math.reduce_sum(sine * up + cosine * 2.0)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0]), momentum=0).minimize(loss)
        return sine, cosine

    wide = x.astype(np.float64)
    flow.load_variables({"angles": x})
    sine, cosine = turned(np.full_like(x, 3))
    np.testing.assert_allclose(sine, np.sin(wide), rtol=3e-7, atol=1e-9)
    np.testing.assert_allclose(cosine, np.cos(wide), rtol=3e-7, atol=1e-9)
    np.testing.assert_allclose(seen[0], 3 * np.cos(wide) - 2 * np.sin(wide), rtol=1e-5, atol=1e-6)


def test_sines_of_many_numbers_that_are_not_finite() -> None:
    x = np.linspace(-3, 3, 40_000).astype(np.float32)
    x[[0, 1, 2, 3]] = np.nan, np.inf, -np.inf, -0.0

    @flow.global_function()
    def sines(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:
        return flow.math.sin(x)

    for given in (x, np.nan_to_num(x, posinf=1, neginf=1)):
        found = sines(given)
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(found, np.sin(given), rtol=1e-6, atol=1e-9)
        assert np.signbit(found[3])


SPECIAL = np.float32([0, -0.0, 1, -1, 0.5, -0.5, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-30, 2, -2, 0.41421357])


@pytest.mark.parametrize(
    ("name", "reference", "slope"),
    [
        ("atan", np.arctan, lambda x: 1 / (1 + x * x)),
        ("asin", np.arcsin, lambda x: 1 / np.sqrt(1 - x * x)),
        ("acos", np.arccos, lambda x: -1 / np.sqrt(1 - x * x)),
        ("tan", np.tan, lambda x: 1 + np.tan(x) ** 2),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value|divide by zero|overflow:RuntimeWarning")
def test_inverse_functions_and_tangents_of_many_numbers(name: str, reference: Any, slope: Any) -> None:
    random = np.random.default_rng(0)
    far = np.clip(random.standard_normal(20_000) * 10.0 ** random.uniform(-6, 6, 20_000), -8000, 8000)
    near = np.concatenate([random.uniform(-0.999, 0.999, 20_000), far])
    seen = []

    @flow.global_function("train")
    def job() -> tp.Numpy:
        x = flow.get_variable("x", (40_000,), initializer=flow.zeros_initializer())
        flow.watch_diff(x, lambda gradient: seen.append(gradient.numpy()))
        y = getattr(flow.math, name)(x)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0]), momentum=0).minimize(flow.math.reduce_sum(y))
        return y

    for x in (near.astype(np.float32), np.resize(SPECIAL, 40_000)):
        flow.load_variables({"x": x})
        found, wide = job(), x.astype(np.float64)
        expected = reference(wide)
        np.testing.assert_allclose(found, expected, rtol=6e-7)
        np.testing.assert_array_equal(np.signbit(found[expected == 0]), np.signbit(expected[expected == 0]))
    inside = np.abs(near) < 0.999
    np.testing.assert_allclose(seen[0][inside], slope(near.astype(np.float32).astype(np.float64))[inside], rtol=1e-4)


def test_angles_of_many_points() -> None:
    random = np.random.default_rng(0)
    special = [each.ravel() for each in np.meshgrid(SPECIAL, SPECIAL)]
    size = len(special[0])
    y, x = (random.standard_normal(20_000).astype(np.float32) * 10.0 ** random.uniform(-9, 9, 20_000) for _ in range(2))
    y[:size], x[:size] = special

    @flow.global_function()
    def job(y: tp.Numpy.Placeholder((20_000,)), x: tp.Numpy.Placeholder((20_000,))) -> tp.Numpy:
        return flow.math.atan2(y, x)

    y, x = y.astype(np.float32), x.astype(np.float32)
    found, expected = job(y, x), np.arctan2(y.astype(np.float64), x.astype(np.float64))
    is_normal = ~(np.abs(expected) < 1.2e-38) | (expected == 0)
    np.testing.assert_allclose(found[is_normal], expected[is_normal], rtol=6e-7)
    np.testing.assert_array_equal(np.signbit(found[expected == 0]), np.signbit(expected[expected == 0]))


@pytest.mark.parametrize("largest", [3.0, 1e6, 1e12], ids=["small quotients", "large ones", "too large for vectors"])
@pytest.mark.filterwarnings("ignore:invalid value|divide by zero:RuntimeWarning")
def test_remainders_and_whole_quotients_of_many_numbers(largest: float) -> None:
    random = np.random.default_rng(0)
    y = 10.0 ** random.uniform(-3, 3, 40_000) * random.choice([-1, 1], 40_000)
    y = y.astype(np.float32)
    multiples = (y * random.integers(-largest, largest, 40_000)).astype(np.float32)
    multiples[::3] = np.where(multiples == 0, multiples, np.nextafter(multiples, np.float32(np.inf)))[::3]
    between = (y * random.uniform(-largest, largest, 40_000)).astype(np.float32)
    seen = []

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((40_000,))) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        y = flow.get_variable("y", (40_000,), initializer=flow.ones_initializer())
        flow.watch_diff(y, lambda gradient: seen.append(gradient.numpy()))
        rest = x % y
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0]), momentum=0).minimize(flow.math.reduce_sum(rest))
        return rest, x // y, x % 41.0

    flow.load_variables({"y": y})
    for x in (multiples, between, np.resize(SPECIAL[:-2], 40_000)):
        rest, whole, of_constant = job(x)
        np.testing.assert_array_equal(rest, np.where(np.isfinite(x), np.mod(x, y), np.nan))
        np.testing.assert_array_equal(of_constant, np.where(np.isfinite(x), np.mod(x, np.float32(41)), np.nan))
        exact = np.isfinite(x) & (abs(x) < abs(y) * 2.0**23)
        np.testing.assert_array_equal(whole[exact], np.floor_divide(x[exact], y[exact]))
        np.testing.assert_array_equal(whole[~np.isfinite(x)], (x / np.sign(y))[~np.isfinite(x)])
    np.testing.assert_allclose(seen[0], -np.floor(multiples.astype(np.float64) / y), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(("name", "numpy"), [("cumsum", np.cumsum), ("cumprod", np.cumprod)])
def test_sums_and_products_up_to_each_element_of_wide_arrays(
    name: str, numpy: Any, exclusive: bool, reverse: bool, axis: int
) -> None:
    torch = pytest.importorskip("torch")
    x = (1 + 0.1 * np.random.default_rng(0).standard_normal((600, 700) if axis else (20, 1000))).astype(np.float32)
    if axis:
        x = x[:, :30]
    seen = []

    @flow.global_function("train")
    def job(up: tp.Numpy.Placeholder(x.shape)) -> tuple[tp.Numpy, tp.Numpy]:
        v = flow.get_variable("v", x.shape, initializer=flow.zeros_initializer())
        flow.watch_diff(v, lambda gradient: seen.append(gradient.numpy()))
        y = getattr(flow.math, name)(v, axis, exclusive, reverse)
        whole = getattr(flow.math, name)(flow.cast(v * 2.0, flow.int32), axis, exclusive, reverse)
        loss = flow.math.reduce_sum(y * up)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0]), momentum=0).minimize(loss)
        return y, whole

    def reference(x: Any) -> Any:
        turned = np.flip(x, axis) if reverse else x
        if exclusive:
            turned = np.roll(turned, 1, axis)
            turned[(0,) if axis == 0 else (slice(None), 0)] = name == "cumprod"
        found = numpy(turned, axis)
        return np.flip(found, axis) if reverse else found

    flow.load_variables({"v": x})
    up = np.random.default_rng(1).standard_normal(x.shape).astype(np.float32)
    y, whole = job(up)
    np.testing.assert_allclose(y, reference(x.astype(np.float64)), rtol=1e-5)
    np.testing.assert_array_equal(whole, reference((x * 2).astype(np.int32)).astype(np.int32))
    tensor = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    turned = tensor.flip(axis) if reverse else tensor
    if exclusive:
        first = torch.full_like(turned.narrow(axis, 0, 1), name == "cumprod")
        turned = torch.cat([first, turned.narrow(axis, 0, x.shape[axis] - 1)], axis)
    found = getattr(torch, name)(turned, axis)
    ((found.flip(axis) if reverse else found) * torch.tensor(up)).sum().backward()
    np.testing.assert_allclose(seen[0], tensor.grad, rtol=1e-4, atol=1e-4)


# --- integers where a reader of the program expects fractions


@pytest.mark.parametrize(
    ("build", "told", "value"),
    [
        (lambda x: x * 0.5 + 2, "multiply of .* int32, where 0.5 counts as 0", 2),
        (lambda x: 1.9 - x, "subtract of .* int32, where 1.9 counts as 1", -5),
        (lambda x: x / 4.0, "divide of .* int32, where a quotient loses its fraction", 1),
        (lambda x: flow.math.reduce_sum(x == 6), "reduce_sum of a comparison is int8, where a sum of more than 127 wraps", 44),
        (lambda x: flow.math.reduce_mean(x > 7), "reduce_mean of a comparison is int8, where a mean is 0 or 1", 0),
    ],
)
def test_lost_fractions_and_counts_are_told(build, told: str, value: int) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((300,), flow.int32)) -> tp.Numpy:
        return build(x)

    with pytest.warns(JobWarning, match=f"(?s){told}.*try .*flow.cast") as caught:
        found = job(np.full(300, 6, np.int32))
    assert len(caught) == 1 and caught[0].filename == __file__ and (found == value).all()


def test_whole_numbers_and_few_ones_are_not_told() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((100,), flow.int32)) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        return x * 2.0 + 1, x / 2, flow.math.reduce_sum(x == 6)

    found = job(np.full(100, 6, np.int32))
    assert [int(np.max(y)) for y in found] == [13, 3, 100]
