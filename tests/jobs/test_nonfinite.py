"""Where the first NaN or infinity of a step is made: job.find_nonfinite and flow.config.find_nonfinite."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ModeError, NonFiniteError

X = np.arange(1, 33, dtype=np.float32).reshape(8, 4) / 32


def line_of(text):
    """The number of the only line of the test that contains ``text``."""
    frame = inspect.currentframe().f_back
    lines, first = inspect.getsourcelines(frame.f_code)
    (found,) = [first + i for i, line in enumerate(lines) if text in line and "line_of(" not in line]
    return found


def variable(name, shape=(4, 3)):
    return flow.get_variable(name, shape, initializer=flow.ones_initializer())


def with_zeros():
    x = X.copy()
    x[2] = 0
    return x


def train_log(kind=tp.Numpy):
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((8, 4))) -> kind:
        kept = flow.nn.dropout(x, 0.0)
        loss = flow.math.reduce_mean(flow.math.log(flow.matmul(kept, variable("w")), name="logarithm"))
        flow.optimizer.Adam(0.01).minimize(loss)
        return loss

    return train


def test_the_forward_pass():
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        h = flow.matmul(x, variable("w"), name="product")
        y = flow.math.log(h, name="logarithm")
        return y * 0.0

    assert job.find_nonfinite(X) is None
    found = job.find_nonfinite(with_zeros())
    assert (found.phase, found.op, found.name, found.step) == ("forward", "log", "logarithm", None)
    assert found.source.line == line_of("flow.math.log")
    (label, read), (_, made) = found.values
    assert label == "inputs[0] product" and read.low == 0 and read.high == pytest.approx(X[-1].sum(), rel=1e-6)
    assert made.negative_infinities == 3 and made.nans == 0 and made.shape == (8, 3)
    assert "3 of 24 are -inf" in str(found) and "logarithm" in str(found)


def test_a_nan_of_infinities_that_the_program_asks_for():
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        masked = flow.masked_fill(x, flow.cast(flow.math.less(x, 0.5), flow.int8), float("-inf"))
        return masked * flow.math.relu(x - 0.25, name="factor")

    assert job.find_nonfinite(X + 0.5) is None
    found = job.find_nonfinite(X)
    assert found.phase == "forward" and found.source.line == line_of('"factor"')
    assert found.values[-1][1].nans == int((X <= 0.25).sum())


def test_masked_attention_is_as_it_should_be():
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        return flow.nn.softmax(flow.masked_fill(x, flow.cast(flow.math.less(x, 0.05), flow.int8), float("-inf")))

    assert job.find_nonfinite(X) is None


def test_what_reaches_no_result_is_reported_last():
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        inverse = flow.math.reciprocal(x)
        safe = flow.where(flow.math.greater(x, 0.0), inverse, flow.zeros_like(x))
        return flow.math.log(safe - 1.0, name="last")

    x = with_zeros()
    assert job.find_nonfinite(x).name == "last"
    assert job.find_nonfinite(x).reaches_results

    @flow.global_function("predict")
    def guarded(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        inverse = flow.math.reciprocal(x, name="inverse")
        return flow.where(flow.math.greater(x, 0.0), inverse, flow.zeros_like(x))

    found = guarded.find_nonfinite(x)
    assert found.name == "inverse" and not found.reaches_results and "harmless" in str(found)
    flow.config.find_nonfinite(True)
    assert np.isfinite(guarded(x)).all()


def test_the_backward_pass():
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        h = flow.math.sqrt(flow.matmul(x, variable("w")))
        loss = flow.math.reduce_mean(h)
        flow.optimizer.SGD(0.1).minimize(loss)
        return loss

    found = train.find_nonfinite(with_zeros())
    assert (found.phase, found.op, found.step) == ("backward", "sqrt", 0)
    assert found.source.line == line_of("flow.math.sqrt")
    assert dict(found.values)["gradient of inputs[0]"].positive_infinities == 3


def test_the_update():
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.matmul(x, variable("w"))) * 1e30
        flow.optimizer.SGD(3e38).minimize(loss)
        return loss

    found = train.find_nonfinite(X)
    assert (found.phase, found.name, found.variables) == ("update", "w", ("w",))
    assert found.source.line == inspect.getsourcelines(variable)[1] + 1
    assert dict(found.values)["new w"].negative_infinities == 12


def test_an_input_and_a_variable():
    train = train_log()
    x = X.copy()
    x[1, 1] = np.inf
    found = train.find_nonfinite(x)
    assert (found.phase, found.name) == ("input", "x") and dict(found.values)["value"].positive_infinities == 1
    flow.load_variables({"w": np.full((4, 3), np.nan, np.float32)})
    found = train.find_nonfinite(X)
    assert (found.phase, found.name, found.variables) == ("variable", "w", ("w",))


def everything():
    return {name: value.numpy().copy() for name, value in flow.get_all_variables().items()}


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one)


def test_looking_changes_nothing():
    flow.manual_seed(3)
    train = train_log()
    first = [train(X), train(X)]
    flow.clear_default_session()
    flow.manual_seed(3)
    train = train_log()
    assert train.find_nonfinite(with_zeros()) is not None
    second = [train(X)]
    assert train.find_nonfinite(with_zeros()).step == 1
    np.testing.assert_array_equal(first, [*second, train(X)])


@pytest.mark.parametrize("submits", [False, True])
def test_a_call_that_finds_one_changes_nothing(submits):
    flow.manual_seed(3)
    train = train_log()
    call = (lambda x: train.submit(x).result()) if submits else train
    expected = call(X)
    before = everything()
    flow.config.find_nonfinite(True)  # after calls, too
    with pytest.raises(NonFiniteError, match="logarithm") as caught:
        call(with_zeros())
    assert isinstance(caught.value, FloatingPointError) and caught.value.report.step == 1
    assert same(everything(), before)
    assert call(X) < expected + 1
    after = everything()
    flow.config.find_nonfinite(False)
    assert not np.isfinite(call(with_zeros())).all()
    assert not same(everything(), after)


def test_runs_within_a_call():
    config = flow.FunctionConfig()
    config.train.num_gradient_accumulation_steps(2)

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.math.log(flow.matmul(x, variable("w")), name="logarithm"))
        flow.optimizer.SGD(0.1).minimize(loss)
        return loss

    assert train.find_nonfinite(X) is None
    assert train.find_nonfinite(with_zeros()).name == "logarithm"
    flow.config.find_nonfinite(True)
    assert np.isfinite(train(X)).all()
    with pytest.raises(NonFiniteError, match="logarithm"):
        train(with_zeros())


def test_mixed_precision_overflows_where_it_says():
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(True)

    @flow.global_function("predict", config)
    def job(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        return flow.matmul(x, variable("w"), name="product")

    assert job.find_nonfinite(X) is None
    found = job.find_nonfinite(np.full((8, 4), 3e38, np.float32))
    assert found.name == "product"


def test_checkpointed_parts():
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        with flow.experimental.scope.config(checkpointing=True):
            h = flow.math.sqrt(flow.matmul(x, variable("w")), name="root")
            h = flow.math.sin(h)
        loss = flow.math.reduce_mean(h)
        flow.optimizer.SGD(0.1).minimize(loss)
        return loss

    assert train.find_nonfinite(X) is None
    found = train.find_nonfinite(with_zeros())
    assert (found.phase, found.name) == ("backward", "root")


def test_wrong_use():
    train = train_log()
    with pytest.raises(flow.errors.FeedShapeError):
        train.find_nonfinite(X[:2])
    for value in (1, "on", None):
        with pytest.raises(flow.errors.ArgumentError, match="takes a bool"):
            flow.config.find_nonfinite(value)

    @flow.global_function("predict")
    def inside(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        flow.config.find_nonfinite(True)
        return x

    with pytest.raises(ModeError, match="outside job functions"):
        inside(X)
