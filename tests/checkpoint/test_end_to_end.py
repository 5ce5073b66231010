"""Checkpoints of real jobs: what is saved, loaded, and gone on with."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.checkpoint.format import Checkpoint

STEP = "System-Train-TrainStep-train_job"
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def declare(units: int = 3):
    """A train and a predict job that share a weight."""

    def forward(x):
        initializer = flow.random_uniform_initializer(-1, 1)
        w = flow.get_variable("dense-weight", (4, units), initializer=initializer)
        return flow.matmul(x, w)

    @flow.global_function(type="train")
    def train_job(x: tp.Numpy.Placeholder((2, 4))) -> tp.Callback[tp.Numpy]:
        y = forward(x)
        loss = flow.math.reduce_sum(flow.math.square(y - 1.0), axis=1)
        schedule = flow.optimizer.CosineScheduler(0.1, 20)
        flow.optimizer.Adam(schedule).minimize(loss)
        return loss

    @flow.global_function(type="predict")
    def predict_job(x: tp.Numpy.Placeholder((2, 4))) -> tp.Numpy:
        return forward(x)

    return train_job, predict_job


def losses(train_job, steps: int) -> list[np.ndarray]:
    seen: list[np.ndarray] = []
    for i in range(steps):
        train_job(X * np.float32(i + 1))(seen.append)
    flow.sync_default_session()
    return seen


def values() -> dict[str, np.ndarray]:
    return {name: handle.numpy() for name, handle in flow.get_all_variables().items()}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)


def test_layout_holds_parameters_optimizer_state_and_the_step(tmp_path: Path) -> None:
    train_job, _ = declare()
    check_point = flow.train.CheckPoint()
    check_point.init()
    losses(train_job, 3)
    check_point.save(tmp_path / "m")
    stored = Checkpoint(tmp_path / "m")
    assert set(stored) == {"dense-weight", "dense-weight-m", "dense-weight-v", STEP}
    assert (tmp_path / "m" / STEP / "out").read_bytes() == b"\3" + bytes(7)
    assert (tmp_path / "m" / STEP / "meta").read_text() == "shape {\n  dim: 1\n}\ndata_type: kInt64\n"
    assert (tmp_path / "m/dense-weight/out").stat().st_size == 48 and (tmp_path / "m/snapshot_done").exists()
    assert set(stored.extra()) == {"format", "random"}


def test_a_save_waits_for_what_was_submitted(tmp_path: Path) -> None:
    train_job, _ = declare()
    slow = threading.Event()
    for _ in range(3):
        train_job(X)(lambda _: slow.wait(0.05))
    flow.checkpoint.save(tmp_path / "m")
    assert Checkpoint(tmp_path / "m")[STEP].numpy() == 3


def test_resuming_is_bit_exact_in_this_process(tmp_path: Path) -> None:
    train_job, _ = declare()
    losses(train_job, 5)
    flow.checkpoint.save(tmp_path / "m")
    expected = losses(train_job, 5)
    final = values()
    losses(train_job, 2)
    for load in (
        lambda: flow.train.CheckPoint().load(tmp_path / "m", strict=True),
        lambda: flow.load_variables(flow.checkpoint.get(tmp_path / "m"), ignore_mismatch=False),
        lambda: flow.load_variables(flow.load(tmp_path / "m")),
    ):
        load()
        assert [x.tobytes() for x in losses(train_job, 5)] == [x.tobytes() for x in expected]
        assert same(values(), final)
    flow.clear_default_session()
    train_job, _ = declare()
    flow.train.CheckPoint().load(tmp_path / "m")
    assert [x.tobytes() for x in losses(train_job, 5)] == [x.tobytes() for x in expected]


PROGRAM = """
import runpy, sys
import oneflow as flow
names = runpy.run_path(sys.argv[1])
train_job, predict_job = names["declare"]()
check_point = flow.train.CheckPoint()
check_point.load(sys.argv[2])
names["losses"](train_job, 5)
check_point.save(sys.argv[3])
"""


def test_resuming_is_bit_exact_in_another_process(tmp_path: Path) -> None:
    train_job, _ = declare()
    losses(train_job, 5)
    flow.checkpoint.save(tmp_path / "m")
    losses(train_job, 5)
    arguments = [sys.executable, "-c", PROGRAM, __file__, str(tmp_path / "m"), str(tmp_path / "m2")]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert same({name: Checkpoint(tmp_path / "m2")[name].numpy() for name in Checkpoint(tmp_path / "m2")}, values())


def test_the_random_state_is_part_of_it(tmp_path: Path) -> None:
    def declare_noise():
        @flow.global_function(type="train")
        def noise(x: tp.Numpy.Placeholder((64,))) -> tp.Numpy:
            w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
            y = flow.nn.dropout(x, rate=0.5) * w
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(y)
            return y

        return noise

    ones = np.ones(64, np.float32)
    noise = declare_noise()
    noise(ones)
    flow.checkpoint.save(tmp_path / "m")
    expected = [noise(ones).tobytes() for _ in range(3)]
    assert len(set(expected)) == 3
    for load in (flow.train.CheckPoint().load, lambda path: flow.load_variables(flow.checkpoint.get(path))):
        load(tmp_path / "m")
        assert [noise(ones).tobytes() for _ in range(3)] == expected
        flow.clear_default_session()
        noise = declare_noise()
        load(tmp_path / "m")
        assert [noise(ones).tobytes() for _ in range(3)] == expected


def test_a_predict_program_loads_what_a_train_program_saved(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    train_job, predict_job = declare()
    losses(train_job, 2)
    flow.checkpoint.save(tmp_path / "m")
    expected = predict_job(X)
    flow.clear_default_session()

    @flow.global_function(type="predict")
    def other(x: tp.Numpy.Placeholder((2, 4))) -> tp.Numpy:
        w = flow.get_variable("dense-weight", (4, 3), initializer=flow.zeros_initializer())
        return flow.matmul(x, w)

    flow.train.CheckPoint().load(str(tmp_path / "m"))
    np.testing.assert_array_equal(other(X), expected)
    assert not recwarn.list


def test_a_train_program_loads_weights_alone(tmp_path: Path) -> None:
    declare()
    handles = flow.get_all_variables()
    flow.save({"dense-weight": handles["dense-weight"]}, tmp_path / "m")
    weight = handles["dense-weight"].numpy()
    flow.clear_default_session()
    train_job, _ = declare()
    with pytest.warns(
        flow.errors.CheckpointWarning, match="optimizer state and counters.*dense-weight-m.*dense-weight-v"
    ) as caught:
        flow.train.CheckPoint().load(tmp_path / "m")
    assert len(caught) == 1 and caught[0].filename == __file__
    np.testing.assert_array_equal(values()["dense-weight"], weight)
    losses(train_job, 1)


def test_a_model_of_another_size_changes_nothing(tmp_path: Path) -> None:
    declare(units=5)
    flow.checkpoint.save(tmp_path / "m")
    flow.clear_default_session()
    train_job, _ = declare()
    losses(train_job, 1)
    before = values()
    with pytest.raises(flow.errors.CheckpointError, match="variable 'dense-weight' has another shape") as caught:
        flow.train.CheckPoint().load(tmp_path / "m")
    text = str(caught.value)
    assert "float32[4, 3], declared at" in text and "float32[4, 5], in" in text and f"{Path(__file__).name}:" in text
    assert "also wrong dense-weight-m, dense-weight-v" in text and same(values(), before)
    losses(train_job, 1)


def test_handles_give_current_values_and_their_parts() -> None:
    train_job, _ = declare()
    handle = flow.get_all_variables()["dense-weight"]
    first = handle.numpy()
    losses(train_job, 1)
    assert handle.shape == (4, 3) and handle.dtype == flow.float32 and not handle.is_dynamic
    assert not np.array_equal(first, handle.numpy()) and np.array_equal(handle.numpy(0), handle.numpy_list()[0])
    assert flow.get_all_variables()[STEP].numpy().tolist() == [1]


def test_callbacks_may_save_and_look_at_variables(tmp_path: Path) -> None:
    train_job, _ = declare()
    steps = []

    def callback(loss) -> None:
        if not steps:
            flow.checkpoint.save(tmp_path / "m")
        steps.append(int(flow.get_all_variables()[STEP].numpy()[0]))

    for _ in range(3):
        train_job(X)(callback)
    flow.sync_default_session()
    assert len(steps) == 3 and steps == sorted(steps) and steps[-1] == 3
    assert Checkpoint(tmp_path / "m")[STEP].numpy() >= 1


def test_load_variables_before_the_first_call() -> None:
    _, predict_job = declare()
    with pytest.warns(flow.errors.CheckpointWarning, match=r"1 name\(s\) .* 'denze-weight' \(did you mean 'dense-weight'"):
        flow.load_variables({"dense-weight": np.eye(4, 3, dtype=np.float32), "denze-weight": np.zeros(1)})
    np.testing.assert_array_equal(predict_job(X), X[:, :3])
    flow.experimental.set_interface_blob_value("dense-weight", np.zeros((4, 3), np.float32))
    assert not predict_job(X).any() and not flow.experimental.get_interface_blob_value("dense-weight").any()


def test_saving_under_the_feet_of_another_thread(tmp_path: Path) -> None:
    """A checkpoint is of one moment: weights, optimizer state and the step belong together."""
    train_job, _ = declare()
    losses(train_job, 1)
    stop = threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            train_job(X)(lambda _: None)

    thread = threading.Thread(target=go_on)
    thread.start()
    for i in range(3):
        flow.checkpoint.save(tmp_path / str(i))
    stop.set()
    thread.join()
    flow.sync_default_session()
    for i in range(3):
        stored = {n: Checkpoint(tmp_path / str(i))[n].numpy() for n in Checkpoint(tmp_path / str(i))}
        steps = int(stored[STEP][0])
        flow.clear_default_session()
        train_job, _ = declare()
        first = {n: Checkpoint(tmp_path / "0")[n].numpy() for n in stored}
        flow.load_variables(first)
        for _ in range(steps - int(first[STEP][0])):
            train_job(X)(lambda _: None)
        assert same(values(), stored)


def test_a_loop_over_mnist_waits_for_its_callbacks() -> None:
    _, (images, labels) = flow.data.load_mnist()
    total = 0

    @flow.global_function(type="predict")
    def count(
        images: tp.Numpy.Placeholder((100, 1, 28, 28)), labels: tp.Numpy.Placeholder((100,), dtype=flow.int32)
    ) -> tp.Callback[tp.Numpy]:
        return labels

    def add(labels) -> None:
        nonlocal total
        total += labels.size

    for batch in zip(images[:20], labels[:20]):  # noqa: B905
        count(*batch)(add)
    assert total == 2000
