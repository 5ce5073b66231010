"""The warning about layers that start at zeros and never learn."""

import warnings

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import JobWarning

XAVIER = flow.xavier_uniform_initializer()


def declared(hidden, output, activation=flow.nn.relu, skip=False):
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((8, 4)), y: tp.Numpy.Placeholder((8, 1))) -> tp.Numpy:
        h = flow.layers.dense(x, 4, activation=activation, kernel_initializer=hidden, name="hidden")
        out = flow.layers.dense(h, 1, kernel_initializer=output, name="output")
        if skip:
            out = out + flow.math.reduce_sum(h, axis=[1], keepdims=True)
        loss = flow.math.square(out - y)
        flow.optimizer.SGD(0.1).minimize(loss)
        return loss

    return train


def fed():
    rng = np.random.default_rng(0)
    return rng.standard_normal((8, 4)).astype(np.float32), rng.standard_normal((8, 1)).astype(np.float32)


def changed_by(job, steps=3):
    """The kernels that some steps change."""
    before = {k: v.numpy().copy() for k, v in flow.get_all_variables().items() if k.endswith("weight")}
    for _ in range(steps):
        job(*fed())
    after = flow.get_all_variables()
    return sorted(name for name, value in before.items() if not np.array_equal(value, after[name].numpy()))


@pytest.mark.parametrize(
    ("hidden", "output", "activation", "skip", "named"),
    [
        (None, None, flow.nn.relu, False, ["hidden-weight", "output-weight"]),
        (None, None, flow.math.tanh, False, ["hidden-weight", "output-weight"]),
        (None, XAVIER, flow.nn.relu, False, ["hidden-weight", "output-weight"]),  # relu has no gradient at 0
        (None, XAVIER, flow.math.tanh, False, []),
        (XAVIER, None, flow.nn.relu, False, []),
        (None, None, flow.math.sigmoid, False, []),
        (None, None, flow.math.tanh, True, []),
    ],
)
def test_exactly_the_kernels_that_never_change_are_named(hidden, output, activation, skip, named):
    job = declared(hidden, output, activation, skip)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        job(*fed())
        job(*fed())
    told = [str(w.message) for w in caught if issubclass(w.category, JobWarning)]
    first_zero = {"output-weight"} if output is XAVIER else set()
    zeros = [name for name in named if name not in first_zero]
    assert len(told) == bool(named)
    for text in told:
        assert all(name in text for name in zeros)
        assert "test_dead_layers.py" in text and 'name="hidden"' in text
    assert changed_by(job) == sorted({"hidden-weight", "output-weight"} - set(named))


def test_zeros_by_a_job_that_is_declared_later_are_told():
    train = declared(XAVIER, XAVIER)

    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        h = flow.layers.dense(x, 4, activation=flow.nn.relu, name="hidden")
        return flow.layers.dense(h, 1, name="output")

    with pytest.warns(JobWarning, match="never change") as caught:
        train(*fed())
    (told,) = (str(w.message) for w in caught if issubclass(w.category, JobWarning))
    assert "hidden-weight" in told and "the initializer of the job declared last counts" in told
    assert "kernel_initializer=hidden" in told and 'dense(x, 4, activation=flow.nn.relu, name="hidden")' in told
    assert not changed_by(train)


def test_one_layer_of_zeros_is_fine():
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((8, 4)), y: tp.Numpy.Placeholder((8, 1))) -> tp.Numpy:
        loss = flow.math.square(flow.layers.dense(x, 1, name="line") - y)
        flow.optimizer.SGD(0.1).minimize(loss)
        return loss

    train(*fed())


def test_values_that_were_loaded_count_and_not_the_initializers(tmp_path):
    first = declared(XAVIER, XAVIER)
    first(*fed())
    flow.checkpoint.save(str(tmp_path / "saved"))
    flow.clear_default_session()
    again = declared(None, None)
    flow.load_variables(flow.checkpoint.get(str(tmp_path / "saved")))
    again(*fed())
