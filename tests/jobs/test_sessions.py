"""Sessions of their own: ``with flow.session()``."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ModeError

ONE = np.ones((4,), np.float32)


def declare(rate: float = 0.5):
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        loss = x * flow.get_variable("w", (4,), initializer=flow.random_normal_initializer())
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [rate]), momentum=0).minimize(loss)
        return loss

    return train


def value(name: str = "w") -> np.ndarray:
    return flow.get_all_variables()[name].numpy()


def test_variables_seed_and_jobs_of_a_block_are_its_own():
    flow.manual_seed(3)
    outer = declare()
    outer(ONE).get()
    before = value()
    found = []
    for rate in (0.0, 4.0):
        with flow.session(seed=1):
            job = declare(rate)
            seen = []
            job(ONE)(lambda v, seen=seen: seen.append((v, value())))  # a callback sees the variables of its job's session
            job(ONE).get()
            flow.sync_default_session()
            found.append((seen[0][0], value()))
            assert len(seen) == 1 and flow.get_all_variables().keys() == {"w", "System-Train-TrainStep-train"}
    np.testing.assert_array_equal(found[0][0], found[1][0])  # one seed
    np.testing.assert_allclose(found[0][1] - found[1][1], 2.0, rtol=1e-5)
    np.testing.assert_array_equal(value(), before)
    outer(ONE).get()
    with pytest.raises(flow.errors.ModeError, match="block has ended"):
        job(ONE)


def test_sessions_side_by_side_in_threads():
    results = {}

    def work(i):
        with flow.session(seed=i):
            job = declare(0.0)
            results[i] = [job(ONE).get() for _ in range(20)][-1], value()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len({tuple(v) for v, _ in results.values()}) == 4
    for loss, w in results.values():
        np.testing.assert_array_equal(loss, w)


def test_blocks_in_blocks_clearing_and_errors():
    with flow.session():
        declare()(ONE).get()
        with flow.session():
            assert not flow.get_all_variables()
        assert "w" in flow.get_all_variables()
        flow.clear_default_session()
        assert not flow.get_all_variables()
        declare()(ONE).get()
    assert not flow.get_all_variables()
    with pytest.raises(flow.errors.CallbackError, match="mine"), flow.session():
        declare()(ONE)(lambda v: {}["mine"])
    with pytest.raises(flow.errors.ArgumentError, match="seed"), flow.session(seed=-1):
        pass

    @flow.global_function()
    def inside(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        with flow.session():
            return x

    with pytest.raises(flow.errors.ModeError, match="inside a job function"):
        inside(ONE)


def test_the_seed_of_a_block_is_not_that_of_later_sessions():
    flow.manual_seed(5)
    with flow.session():
        flow.manual_seed(6)
    flow.clear_default_session()
    declare(0.0)(ONE).get()
    expected = value()
    flow.clear_default_session()
    flow.manual_seed(5)
    declare(0.0)(ONE).get()
    np.testing.assert_array_equal(value(), expected)


def declare_sync(kind="train"):
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        y = x * flow.get_variable("w", (4,), initializer=flow.ones_initializer())
        if kind == "train":
            flow.optimizer.SGD(0.5, momentum=0).minimize(y)
        return y

    job.__name__ = kind
    return flow.global_function(kind)(job)


def test_what_is_given_a_job_works_in_its_session(tmp_path):
    outer, outer_predict = declare_sync(), declare_sync("predict")
    outer(ONE)
    with flow.session():
        trainer = flow.Trainer(max_epochs=1, enable_progress_bar=False)
        trainer.fit(outer, [(ONE,)])
        trainer.save_checkpoint(tmp_path / "saved")
        assert flow.checkpoint.get(tmp_path / "saved").keys() >= {"w"}
        trainer.validate(outer_predict, [(ONE,)], ckpt_path=tmp_path / "saved")
        inner = declare_sync("predict")
        with pytest.raises(flow.errors.ModeError, match="(?s)'train' and 'predict' belong to different sessions.*declare them"):
            trainer.fit(outer, [(ONE,)], inner, [(ONE,)])
        assert "w" in flow.get_all_variables()
    np.testing.assert_array_equal(value(), 1 - 0.125 * 2)


def test_a_block_begins_once_and_a_decorated_function_has_one_for_each_call():
    block = flow.session(seed=1)
    assert repr(block) == "<flow.session(seed=1), for a with statement>" and "object at" not in repr(flow.session())
    with block:
        pass
    with (
        pytest.raises(ModeError, match=r"(?s)the block of this flow.session\(\) has begun before.*try +with flow.session\(\)"),
        block,
    ):
        pass

    @flow.session(seed=1)
    def first_value():
        declare()(ONE).get()
        return value()

    assert np.array_equal(first_value(), first_value())
