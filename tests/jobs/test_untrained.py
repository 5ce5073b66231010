"""The warning about weights of a predict job that nobody has trained or loaded."""

import warnings

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import JobWarning

GLOROT = flow.glorot_uniform_initializer()
X = np.ones((4, 5), np.float32)


def net(x, output):
    hidden = flow.layers.dense(x, 8, activation=flow.nn.relu, kernel_initializer=GLOROT, name="hidden")
    return flow.layers.dense(hidden, 3, kernel_initializer=GLOROT, name=output)


def training(output="output", name="train"):
    def train(x: tp.Numpy.Placeholder((4, 5))) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.math.square(net(x, output)))
        flow.optimizer.SGD(0.1).minimize(loss)
        return loss

    train.__name__ = name
    return flow.global_function("train")(train)


def predicting(output):
    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder((4, 5))) -> tp.Numpy:
        return net(x, output)

    return predict


def test_a_misspelled_layer_is_named_with_the_one_that_was_meant():
    train, predict = training(), predicting("ouput")
    train(X)
    with pytest.warns(JobWarning, match="predict job 'predict' computes with new weights: no train job has ouput-weight") as told:
        predict(X)
    assert "did you mean 'output-weight'?" in str(told[0].message)
    assert "kernel_initializer=GLOROT, name=output)" in str(told[0].message)
    assert told[0].filename == __file__
    with warnings.catch_warnings(action="error"):  # once is enough
        predict(X)


def test_weights_that_were_neither_trained_nor_loaded():
    predict = predicting("other")
    flow.load_variables({"hidden-weight": np.ones((8, 5), np.float32)})
    with pytest.warns(JobWarning, match="no train job has other-weight, and nothing was loaded there"):
        predict(X)


@pytest.mark.filterwarnings("error")
def test_nothing_is_told_before_a_training():
    training()
    predicting("other")(X)


@pytest.mark.filterwarnings("error")
def test_nothing_is_told_of_weights_that_are_loaded():
    train, predict = training(), predicting("other")
    train(X)
    flow.load_variables({"other-weight": np.ones((3, 8), np.float32)})
    predict(X)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("output", ["output", "other"])
def test_nothing_is_told_of_weights_of_a_train_job(output):
    train, _, predict = training(), training("other", "later"), predicting(output)
    train(X)
    predict(X)


@pytest.mark.filterwarnings("error")
def test_what_a_predict_job_keeps_between_its_calls_was_not_trained():
    @flow.global_function("predict")
    def counting(x: tp.Numpy.Placeholder((4, 5))) -> tp.Numpy:
        seen = flow.get_variable("seen", (4, 5), initializer=flow.zeros_initializer(), trainable=False)
        flow.assign(seen, seen + x)
        return net(x, "output")

    predict = predicting("output")
    counting(X)
    predict(X)


@pytest.mark.filterwarnings("error")
def test_nothing_is_told_of_weights_that_nothing_reads():
    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder((4, 5))) -> tp.Numpy:
        flow.get_variable("unused", (5, 3), initializer=GLOROT)
        return net(x, "output")

    training()(X)
    predict(X)


@pytest.mark.filterwarnings("error")
def test_values_that_an_initializer_brings_may_have_been_learned_elsewhere():
    class Pretrained:
        def draw(self, shape, dtype, rng):
            return np.ones(shape, dtype)

    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder((4, 5))) -> tp.Numpy:
        return flow.layers.dense(x, 3, kernel_initializer=Pretrained(), name="pretrained")

    training()(X)
    predict(X)
