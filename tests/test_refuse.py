"""How values of the user's are written into messages, and what "did you mean" suggests."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import oneflow as flow
from oneflow._base.refuse import closest, shown
from oneflow.errors import OneFlowError


class Mute:
    """An object that raises where it is printed."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"), ("a'b", '"a\'b"'), ((1, 2.5), "(1, 2.5)"), ({"a": 1}, "{'a': 1}"), (flow.float32, repr(flow.float32)),
        (np.zeros((2, 2)), "array([[0., 0.], [0., 0.]])"), (Mute(), "<Mute, whose __repr__ raises RuntimeError>"),
        ([1, Mute()], "[1, <Mute, whose __repr__ raises RuntimeError>]"), (10**5000, "an int of 16610 bits"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_shown(value, text):
    assert shown(value) == text


def test_what_is_shown_is_short():
    start = time.perf_counter()
    for value in (["a" * 1000] * 50, "a" * 10**6, list(range(10**6)), 10**100000, {i: i for i in range(10**5)}):
        assert len(shown(value)) <= 200
    assert time.perf_counter() - start < 2  # the whole of them would take far longer


@pytest.mark.parametrize("call", [
    lambda v: flow.scope.namespace(v), lambda v: flow.device(v), lambda v: flow.distribute.split(v),
    lambda v: flow.optimizer.CosineScheduler(0.1, v), lambda v: flow.typing.Numpy.Placeholder(v),
    lambda v: flow.regularizers.l2(v), lambda v: flow.zeros_initializer(v), lambda v: flow.experimental.register_op(v)(abs),
])  # fmt: skip
@pytest.mark.parametrize("value", [Mute(), [Mute()], -(10**5000)], ids=["object", "list", "int"])
def test_values_that_cannot_be_printed(call, value):
    with pytest.raises(OneFlowError, match="your line"):
        call(value)


class Hostile:
    """Raises for every attribute that it does not have."""

    def __getattr__(self, name):
        raise RuntimeError(name)


def test_an_initializer_whose_attributes_raise():
    @flow.global_function()
    def job() -> flow.typing.Numpy:
        return flow.get_variable("w", (2,), initializer=Hostile())

    with pytest.raises(OneFlowError, match=r"(?s)initializer must be one of flow's.*your line"):
        job()


def test_a_variable_name_that_cannot_be_printed():
    with pytest.warns(flow.errors.CheckpointWarning, match="<Mute, whose __repr__ raises RuntimeError>"):
        flow.load_variables({Mute(): 1})
    with pytest.raises(OneFlowError, match="<Mute, whose __repr__ raises RuntimeError> is not a variable name"):
        flow.load_variables({Mute(): 1}, strict=True)


@pytest.mark.parametrize("make", [
    lambda: flow.Blob(), lambda: flow.Blob(int, 3), lambda: flow.Blob(shape=(2,)), lambda: flow.data.Records(),
    lambda: flow.data.Records(3, int),
])  # fmt: skip
def test_what_is_not_made_by_hand(make):
    with pytest.raises(OneFlowError, match="your line"):
        make()


def test_an_argument_of_an_op_that_cannot_be_printed():
    @flow.global_function()
    def job(x: flow.typing.Numpy.Placeholder((2,))) -> flow.typing.Numpy:
        return flow.math.relu(x) + flow.math.reduce_sum(x, axis=Mute())

    with pytest.raises(OneFlowError, match=r"(?s)axis must be an int, got <Mute, whose __repr__ raises.*your line"):
        job(np.ones(2, np.float32))


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("LeakyReLU", ["celu", "leaky_relu"], ["leaky_relu"]), ("onnx", ["nn", "ones", "env"], []),
        ("cnov2d", ["conv2d", "conv3d", "dense"], ["conv2d", "conv3d"]), 
        ("norm", ["layer_norm", "normal"], ["layer_norm", "normal"]),
        ("summary", ["system", "sum", "math"], []), ("diagonal", ["diag", "dim"], ["diag"]), ("xyz", ["a", "b", "xlogy"], []),
        ("foo", ["floor"], []),
    ],
)  # fmt: skip
def test_closest(name, known, found):
    assert closest(name, known) == found


def test_no_line_of_the_standard_library_is_called_the_users():
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(flow.export.load, "/nowhere").exception()
    assert "cannot be read" in str(error) and "your line" not in str(error)
