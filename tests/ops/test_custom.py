"""Ops of the user's own: over JAX arrays, over NumPy arrays on the host; values, gradients, and what goes wrong."""

from __future__ import annotations

import asyncio

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, CustomOpError, GradientError
from oneflow.experimental import TensorSpec, register_host_op, register_op

X = np.array([[0.5, -1.0, 2.0]], np.float32)


@pytest.fixture(autouse=True)
def _registry(monkeypatch):
    monkeypatch.setattr("oneflow.ops.custom.REGISTERED", {})


def predict(body, dtype=flow.float32, array=X):
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder(array.shape, dtype=dtype)) -> tp.Numpy:
        return body(x)

    return job(array)


def training_job(body):
    """A job that returns body(w) and updates w by the negative gradient of its mean."""

    @flow.global_function("train")
    def job() -> tp.Numpy:
        w = flow.get_variable("w", X.shape, initializer=flow.zeros_initializer())
        y = body(w)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(y)
        return y

    return job


def train(body):
    """``training_job``, with X for w."""
    job = training_job(body)
    flow.load_variables({"w": X})
    return job


def variable():
    return flow.get_all_variables()["w"].numpy()


def test_lowering_and_its_gradient():
    @register_op("scaled_tanh", attrs={"scale": 1.0})
    def scaled_tanh(x, *, scale):
        return jnp.tanh(scale * x)

    np.testing.assert_allclose(predict(lambda x: scaled_tanh(x, scale=2)), np.tanh(2 * X), rtol=1e-6)
    job = train(lambda w: scaled_tanh(w, scale=2.0, name="t"))
    np.testing.assert_allclose(job(), np.tanh(2 * X), rtol=1e-6)
    np.testing.assert_allclose(X - variable(), 2 * (1 - np.tanh(2 * X) ** 2) / 3, rtol=1e-5, atol=1e-6)
    assert job.graph.node("t").op.name == "scaled_tanh"
    assert "registered at" in repr(scaled_tanh)


def test_several_inputs_and_outputs_gradient_and_shape_rule():
    def rule(x, y, **attrs):
        return [(x.shape, x.dtype), TensorSpec((1,), flow.float32)]

    def grad(inputs, outputs, cotangents, *, times):
        return times * 10 * cotangents[0], None

    @register_op("both", inputs=("x", "y"), outputs=("sum", "total"), attrs={"times": int}, grad=grad, shape=rule)
    def both(x, y, *, times):
        return times * (x + y), jnp.sum(x).reshape(1)

    def body(w):
        total, ones = both(w, flow.ones_like(w), times=3)
        assert ones.shape == (1,)
        return total

    np.testing.assert_allclose(train(body)(), 3 * (X + 1))
    np.testing.assert_allclose(X - variable(), np.full((1, 3), 10.0), rtol=1e-6)


def test_dtypes_are_those_of_the_users_own_jax():
    seen = []

    @register_op("made")
    def made(x):
        seen.append(jnp.zeros(3).dtype)
        return x + jnp.zeros(3) + 0.5

    assert predict(made).dtype == np.float32
    assert predict(made, flow.float64, X.astype(np.float64)).dtype == np.float64
    assert set(map(str, seen)) == {"float32", "float64"}
    assert jnp.zeros(3).dtype == jnp.float32 and not jax.config.jax_enable_x64


def test_host_op():
    calls = []

    def grad(inputs, outputs, cotangents, *, power):
        (x,), (dy,) = inputs, cotangents
        return power * x ** (power - 1) * dy

    @register_host_op("host_power", attrs={"power": 2}, grad=grad)
    def host_power(x, *, power):
        calls.append(type(x))
        assert not x.flags.writeable
        return x**power

    job = train(lambda w: host_power(w, power=3) * 2.0)
    np.testing.assert_allclose(job(), 2 * X**3, rtol=1e-6)
    np.testing.assert_allclose(X - variable(), 2 * 3 * X**2 / 3, rtol=1e-5)
    assert calls and set(calls) == {np.ndarray}
    np.testing.assert_allclose(predict(host_power), X**2, rtol=1e-6)


@pytest.mark.parametrize("view", ["consistent", "mirrored"])
@pytest.mark.parametrize("dtype", [flow.float32, flow.float64, flow.int64], ids=str)
def test_host_op_of_several_devices(dtype, view):
    flow.config.gpu_device_num(2)
    config = flow.FunctionConfig()
    config.default_logical_view(getattr(flow.scope, f"{view}_view")())
    config.default_placement_scope(flow.scope.placement("gpu", "0:0-1"))

    @register_host_op(
        "doubled", outputs=("doubled", "count"), shape=lambda x: [x, ((), flow.int64)], grad=lambda i, o, c: (2 * c[0],)
    )
    def doubled(x):
        return x * 2, np.int64(x.size)

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((6, 20_000), dtype=dtype)) -> tuple[tp.Numpy, tp.Numpy]:
        w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
        y, count = doubled(x)
        scaled, _ = doubled(flow.cast(y, flow.float32) * w)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0])).minimize(scaled)
        return scaled, flow.reshape(count, (1,))

    x = np.arange(120_000).reshape(6, 20_000).astype(dtype.numpy_dtype) % 7
    scaled, count = job(x)
    np.testing.assert_array_equal(scaled, 4 * x)
    np.testing.assert_array_equal(count, [120_000] if view == "consistent" else [60_000] * 2)
    means = 1 if view == "consistent" else 2  # one of each device, which are added up
    np.testing.assert_allclose(variable(), [1 - means * 4 * x.mean()], rtol=1e-5)


def test_host_op_of_another_shape_without_gradient():
    @register_host_op("count_by_sign", outputs=("counts",), shape=lambda x: ((2,), flow.int64))
    def count_by_sign(x):
        return np.array([(x < 0).sum(), (x >= 0).sum()])

    np.testing.assert_array_equal(predict(count_by_sign), [1, 2])
    with pytest.raises(GradientError):
        training_job(lambda w: flow.cast(count_by_sign(w), flow.float32))()


def test_host_ops_run_asynchronously_in_order():
    @register_host_op("noted")
    def noted(x):
        return x + 1

    @flow.global_function("train")
    def job() -> tp.Callback[tp.Numpy]:
        w = flow.get_variable("w", (1,), initializer=flow.zeros_initializer(), trainable=True)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(w)
        return noted(w)

    seen = []
    for _ in range(5):
        job()(lambda value: seen.append(float(value[0])))
    flow.sync_default_session()
    assert seen == [1, 0, -1, -2, -3]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (lambda x: 1 / 0, r"raised ZeroDivisionError \(at .*test_custom.py:\d+: .*\): division by zero"),
        (lambda x: np.zeros(5, np.float32), r"is float32\[5\], but it must be float32\[1, 3\]"),
        (lambda x: x.astype(np.float64), r"is float64\[1, 3\], but it must be float32\[1, 3\]"),
        (lambda x: None, r"output 'out' of its function must be float32\[1, 3\], but it returned None"),
        (lambda x: (x, x), "returned 2 arrays instead of 1"),
    ],
)
def test_a_failing_host_op_leaves_the_session_as_it_was(result, text):
    fails = [False]

    @register_host_op("fragile", grad=lambda inputs, outputs, cotangents: cotangents[0])
    def fragile(x):
        return result(x) if fails[0] else x * 2

    job = train(fragile)
    job()
    before = variable()
    fails[0] = True
    for _ in range(2):
        with pytest.raises(CustomOpError, match=rf"(?s){text}.*the job    'job'\n  the op     .*\n  your line  .*test_custom.py"):
            job()
    np.testing.assert_array_equal(variable(), before)
    assert flow.get_all_variables()["System-Train-TrainStep-job"].numpy() == 1
    fails[0] = False
    np.testing.assert_array_equal(job(), before * 2)


def test_a_failing_gradient_on_the_host():
    def grad(inputs, outputs, cotangents):
        raise KeyError("no")

    job = train(register_host_op("bad_gradient", grad=grad)(lambda x: x * 2))
    with pytest.raises(CustomOpError, match="(?s)its gradient raised KeyError.*your line  .*test_custom.py") as caught:
        job()
    assert isinstance(caught.value.__cause__, KeyError)
    np.testing.assert_array_equal(variable(), X)


def test_an_error_of_python_that_an_op_over_jax_arrays_calls_back():
    def fails(x):
        raise ValueError("my own text")

    calls_back = register_op("calls_back")(lambda x: jax.pure_callback(fails, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
    with pytest.raises(
        flow.errors.ExecutionError, match=r"raised ValueError: my own text \(File .*test_custom.py.* in fails\)"
    ) as caught:
        predict(calls_back)
    assert "smaller shapes" not in str(caught.value)


def test_a_mistake_names_the_line_of_the_function():
    @register_op("multiplies")
    def multiplies(x):
        both = jnp.concatenate([x, x], axis=1)
        return both @ both

    line = multiplies.source.line + 3
    with pytest.raises(CustomOpError, match=rf"raised TypeError \(at .*test_custom.py:{line}: return both @ both\): dot_general"):
        training_job(multiplies)()


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_a_host_function_that_ends_the_program(kind):
    error = kind(3)  # made here: it keeps its frames, with their arrays

    def ends(x):
        raise error

    job = train(register_host_op(f"ends_{type(error).__name__}", grad=lambda i, o, c: c)(ends))
    with pytest.raises(CustomOpError, match=rf"its function raised {type(error).__name__}") as caught:
        job()
    assert caught.value.__cause__ is error
    np.testing.assert_array_equal(variable(), X)


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        (lambda x: x.no_such_thing, {}, "its function raised AttributeError"),
        (lambda x: x.sum(), {}, "has rank 0, which no Blob has"),
        (lambda x: x > 0, {}, "is bool, which no Blob is"),
        (lambda x: "text", {}, "must be an array, got str 'text'"),
        (lambda x: (x, x), {}, "returned 2 arrays instead of 1"),
        (lambda x: None, {}, "output 'out' of its function must be an array, but it returned None"),
        (lambda x: None, {"outputs": ("a", "b")}, "its function returned None instead of 2 arrays"),
        (lambda x: x, {"shape": lambda x: ((2,), flow.float32)}, r"is float32\[1, 3\], but it must be float32\[2\]"),
        (lambda x: x, {"shape": lambda x: x.size}, "its shape rule raised AttributeError"),
        (lambda x: x, {"shape": lambda x: ((-1,), x.dtype)}, r"must return sizes of 1 or more, got \(\(-1,\)"),
        (lambda x: x, {"shape": lambda x: ((1.0, 3), x.dtype)}, "must return .shape, flow dtype. for each output"),
        (lambda x: x, {"shape": lambda x: (3,)}, "must return .shape, flow dtype. for each output"),
        (lambda x: x, {"grad": lambda i, o, c: c[0][0]}, r"the gradient with respect to input 'x' is float32\[3\]"),
        (lambda x: x, {"grad": lambda i, o, c: (c[0], c[0])}, "its gradient returned 2 arrays"),
    ],
)
def test_mistakes_are_found_when_the_job_is_built(function, options, text):
    made = register_op("mistaken", **options)(function)
    with pytest.raises(CustomOpError, match=text) as caught:
        training_job(made)()
    message = str(caught.value)
    assert "test_custom.py" in message and "your line  " in message and "w   float32[1, 3]" in message


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda op, x: op(x, x), r"takes 1 Blobs \(x\), got 2"),
        (lambda op, x: op(3.0), "x must be a Blob, got float"),
        (lambda op, x: op(x), "attribute 'k' is missing, int without a default"),
        (lambda op, x: op(x, k=1.0), "attribute 'k' must be int, got 1.0"),
        (lambda op, x: op(x, k=True), "attribute 'k' must be int, got True"),
        (lambda op, x: op(x, k=1, z=2), "there is no attribute 'z'; it has k"),
    ],
)
def test_wrong_calls(call, text):
    op = register_op("with_k", attrs={"k": int})(lambda x, *, k: k * x)
    with pytest.raises(ArgumentError, match=text):
        predict(lambda x: call(op, x))


@pytest.mark.parametrize(
    ("kind", "given"), [(int, np.int64(3)), (float, np.float32(3)), (float, np.int32(3)), (bool, np.bool_(True))]
)
def test_numbers_of_numpy_are_attributes(kind, given):
    op = register_op(f"scaled_by_{kind.__name__}", attrs={"k": kind})(lambda x, *, k: x * k if type(k) is kind else None)
    np.testing.assert_array_equal(predict(lambda x: op(x, k=given)), X * given)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": "not an identifier"}, "needs an identifier as its name"),
        ({"name": "relu"}, "the library has an op of that name"),
        ({"name": "a", "inputs": "x"}, "inputs must be a list of identifiers"),
        ({"name": "a", "inputs": ["x", "x"]}, "must differ"),
        ({"name": "a", "outputs": []}, "there must be an output"),
        ({"name": "a", "stops": ["y"]}, "stops names inputs"),
        ({"name": "a", "attrs": {"k": {}}}, "needs a default or a type"),
        ({"name": "a", "grad": 3}, "grad must be callable"),
    ],
)
def test_wrong_registrations(arguments, text):
    with pytest.raises(ArgumentError, match=text):
        register_op(**arguments)(lambda x: x)
