"""job.learning_rate, and rates given as numbers: read and set between calls, as data and not as code."""

import jax
import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, ModeError

ONE = np.ones((2, 1), np.float32)


def train_job(*optimizers, name="train", places=("0:0", "0:0")):
    """w and v, both 0 at first; each call adds -rate to w and -10 rate to v."""

    def train(x: tp.Numpy.Placeholder((2, 1))) -> tp.Numpy:
        zeros = flow.zeros_initializer()
        device = "gpu" if places[0] != places[1] else "cpu"
        with flow.scope.placement(device, places[0]):
            loss = x * flow.get_variable("w", (1,), initializer=zeros)
        with flow.scope.placement(device, places[1]):
            loss = loss + 10.0 * x * flow.get_variable("v", (1,), initializer=zeros)
        used = [o(flow) if callable(o) else o for o in optimizers]
        (used[0] if len(used) == 1 else flow.optimizer.CombinedOptimizer(used)).minimize(loss)
        return loss

    train.__name__ = name
    return flow.global_function("train")(train)


def values():
    return [float(flow.get_all_variables()[n].numpy()[0]) for n in ("w", "v")]


def sgd(rate, **options):
    return flow.optimizer.SGD(rate, momentum=0, **options)


@pytest.mark.parametrize("rate", [0.1, 1, np.float32(0.25)])
def test_a_number_is_a_constant_schedule(rate):
    job = train_job(sgd(rate))
    assert job.learning_rate == np.float32(rate)
    job(ONE)
    assert values() == pytest.approx([-float(rate), -10 * float(rate)])
    assert repr(sgd(0.1)) == repr(sgd(flow.optimizer.PiecewiseConstantScheduler([], [0.1])))


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf"), "0.1", None, True])
def test_numbers_that_are_no_rates(wrong):
    with pytest.raises(ArgumentError, match="must be a learning rate >= 0 or a learning-rate schedule"):
        flow.optimizer.Adam(wrong)
    job = train_job(sgd(0.1))
    with pytest.raises(ArgumentError, match="learning_rate of job 'train' must be a number >= 0|must be a finite number"):
        job.learning_rate = wrong
    assert job.learning_rate == np.float32(0.1)


@pytest.mark.parametrize("name", ["learning_rat", "learningRate", "lr", "rate"])
def test_a_misspelt_name_is_not_set(name):
    job = train_job(sgd(0.1))
    with pytest.raises(ArgumentError, match=rf"(?s)job 'train' has no attribute '{name}' to set.*try +learning_rate = "):
        setattr(job, name, 1.0)
    job.note = "a note"  # as on a function
    assert job.note == "a note" and not hasattr(job, name)


def test_setting_it_compiles_nothing(monkeypatch):
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if "backend_compile" in event else None
    )
    job = train_job(sgd(0.5))
    job(ONE)
    assert compiled
    compiled.clear()
    for rate in (0.25, 2, 0.0):
        job.learning_rate = rate
        assert job.learning_rate == rate
        before = values()
        job(ONE)
        assert [a - b for a, b in zip(before, values())] == pytest.approx([rate, 10 * rate])  # noqa: B905
    assert not compiled


def test_another_literal_is_the_same_program():
    found = []
    for rate in (0.1, 0.05):
        with flow.session():
            job = train_job(sgd(rate))
            job(ONE)
            found.append(job.executables[-1][1].hlo())
    assert found[0] == found[1]


def test_calls_that_were_submitted_before_keep_their_rate():
    job = train_job(sgd(1.0))
    for _ in range(10):
        job.submit(ONE)
    job.learning_rate = 0.0
    for _ in range(10):
        job.submit(ONE)
    flow.sync_default_session()
    assert values() == pytest.approx([-10.0, -100.0])


def test_several_optimizers():
    job = train_job(sgd(1.0, variables=["w"]), sgd(flow.optimizer.ExponentialScheduler(1.0, 1, 0.5), variables=["v"]))
    job(ONE)
    assert job.learning_rate == (1.0, 0.5) and values() == pytest.approx([-1.0, -10.0])
    job.learning_rate = [0.0, None]
    job(ONE)
    assert job.learning_rate == (0.0, 0.25) and values() == pytest.approx([-1.0, -15.0])
    with pytest.raises(ModeError, match="(?s)follows a schedule.*Exponential"):
        job.learning_rate = 0.5
    with pytest.raises(ArgumentError, match=r"has 2 optimizer\(s\), got 3"):
        job.learning_rate = [0.5, 0.5, 0.5]
    assert job.learning_rate == (0.0, 0.25)


def test_on_several_places():
    flow.config.gpu_device_num(2)
    job = train_job(sgd(1.0), places=("0:0", "0:1"))
    job(ONE)
    job.learning_rate = 0.5
    job(ONE)
    assert values() == pytest.approx([-1.5, -15.0])


def test_data_parallel():
    flow.config.gpu_device_num(2)

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((4, 1))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0-1"):
            loss = x * flow.get_variable("w", (1,), initializer=flow.zeros_initializer())
            flow.optimizer.SGD(1.0, momentum=0).minimize(loss)
        return loss

    train(np.ones((4, 1), np.float32))
    train.learning_rate = 0.5
    train(np.ones((4, 1), np.float32))
    assert flow.get_all_variables()["w"].numpy() == pytest.approx(-1.5)


def test_schedules_variables_and_steps_of_ones_own():
    def variable_rate(flow):
        rate = flow.get_variable("rate", (1,), initializer=flow.constant_initializer(0.5), trainable=False)
        return sgd(flow.optimizer.CustomScheduler(rate.logical_blob_name))

    assert train_job(variable_rate, name="a").learning_rate == 0.5

    def computed_rate(flow):
        rate = flow.get_variable("rate", (1,), initializer=flow.constant_initializer(0.5), trainable=False)
        return sgd(flow.optimizer.CustomScheduler(flow.math.square(rate).logical_blob_name))

    job = train_job(computed_rate, name="b")
    with pytest.raises(ModeError, match="the learning rate of job 'b' is computed inside the job"):
        job.learning_rate  # noqa: B018

    warm = flow.optimizer.warmup.linear(4, 0.0)
    job = train_job(sgd(flow.optimizer.PiecewiseConstantScheduler([], [1.0], warmup=warm)), name="c")
    rates = []
    for _ in range(5):
        rates.append(job.learning_rate)
        job(ONE)
    assert rates == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_predict_jobs_have_none():
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((2, 1))) -> tp.Numpy:
        return x

    with pytest.raises(ModeError, match="predict job and has no learning rate"):
        predict.learning_rate  # noqa: B018
    with pytest.raises(ModeError, match="predict job and has no learning rate"):
        predict.learning_rate = 1.0


def test_it_is_no_variable(tmp_path):
    job = train_job(sgd(1.0))
    job(ONE)
    job.learning_rate = 0.5
    flow.checkpoint.save(str(tmp_path / "saved"))
    assert set(flow.get_all_variables()) == {"w", "v", "System-Train-TrainStep-train"}
    flow.load_variables(flow.checkpoint.get(str(tmp_path / "saved")))
    assert job.learning_rate == 0.5


def test_a_rate_that_float32_lacks():
    job = train_job(sgd(0.1))
    with pytest.raises(ArgumentError, match="must be a float32 number, got 1e\\+40"):
        job.learning_rate = 1e40
    assert job.learning_rate == np.float32(0.1)
    for rate in (1e40, -1e40):
        with pytest.raises(ArgumentError, match="SGD: the learning rate must be a float32 number, got -?1e\\+40"):
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [rate]))
    with pytest.raises(ArgumentError, match="Adam: the learning rate must be a float32 number, got 1e\\+40"):
        flow.optimizer.Adam(1e40)
    largest = float(np.finfo(np.float32).max)
    assert flow.optimizer.SGD(largest).lr_scheduler.constant == largest


def test_a_rate_that_maximizes_can_be_set_too():
    job = train_job(sgd(flow.optimizer.PiecewiseConstantScheduler([], [-0.5])))
    assert job.constant_learning_rates == (-0.5,)
    job.learning_rate = -0.25
    assert job.learning_rate == -0.25
