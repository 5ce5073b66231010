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


def aware(kind, steps, name):
    """A recurrence in quantization-aware training, whose steps have observers of their own."""
    config = flow.FunctionConfig()
    config.enable_qat(True)

    def job(x: tp.Numpy.Placeholder((4, 5))) -> tp.Numpy:
        w, h = flow.get_variable("w", (5, 5), initializer=flow.random_normal_initializer(stddev=0.4)), x
        for _ in range(steps):
            h = flow.math.tanh(flow.matmul(h, w) + x)
        if kind == "train":
            flow.optimizer.SGD(0.1).minimize(flow.math.reduce_mean(h))
        return h

    job.__name__ = name
    return flow.global_function(kind, config)(job)


def test_observers_that_no_training_has_set():
    train, same, longer = aware("train", 2, "train"), aware("predict", 2, "same"), aware("predict", 3, "longer")
    with pytest.raises(flow.errors.ModeError, match="'same' cannot be converted: no training has measured a range for"):
        flow.quantization.convert(same)
    train(X)
    with warnings.catch_warnings(action="error"):
        exact = same(X)
        np.testing.assert_allclose(flow.quantization.convert(same)(X), exact, atol=1e-5)
    with pytest.warns(JobWarning, match="'longer' rounds values to 0: no train job has measured their range") as told:
        longer(X)
    assert "Tanh_1-fake-quant-observer-moving_max" in str(told[0].message)
    assert "h = flow.math.tanh(flow.matmul(h, w) + x)" in str(told[0].message)
    assert told[0].filename == __file__
    with pytest.raises(flow.errors.ModeError, match="Tanh_1-fake-quant-observer-moving_max") as refused:
        flow.quantization.convert(longer)
    assert "ops without a name are numbered" in str(refused.value)
    flow.load_variables({"Tanh_1-fake-quant-observer-moving_max": np.ones(1, np.float32)})
    assert np.abs(flow.quantization.convert(longer)(X)).max() <= 1


@pytest.mark.filterwarnings("error")
def test_observers_whose_averages_are_no_variables():
    training()(X)

    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder((4, 5)), largest: tp.Numpy.Placeholder((1,))) -> tp.Numpy:
        op = flow.user_op_builder("observer").Op("moving_average_min_max_observer").Input("in", [x])
        op = op.Input("current_train_step", [flow.constant(0, flow.int64, (1,))])
        op = op.Input("moving_max", [largest]).Input("moving_min", [largest]).Output("scale").Output("zero_point")
        op = op.Attr("training", False).Attr("stop_update_after_iters", 1).Attr("momentum", 0.9)
        op = op.Attr("quantization_bit", 8).Attr("quantization_scheme", "symmetric")
        return op.Build().InferAndTryRun().RemoteBlobList()[0]

    np.testing.assert_allclose(predict(X, np.ones(1, np.float32)), [1 / 127], rtol=1e-6)
