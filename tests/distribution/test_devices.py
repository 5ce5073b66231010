"""``flow.config.gpu_device_num`` and ``cpu_device_num``: how many devices there are, and how that changes."""

from __future__ import annotations

from typing import Any

import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import DeviceError


def test_counts_are_set_anew_in_one_process(program: Any) -> None:
    done = program(
        """
        import logging, numpy as np
        import oneflow as flow, oneflow.typing as tp
        from oneflow.errors import DeviceError
        from oneflow.runtime import devices
        logging.basicConfig(format="%(message)s")

        def train():
            config = flow.FunctionConfig()
            config.default_placement_scope(flow.scope.placement("gpu", "0:0"))
            @flow.global_function("train", config)
            def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
                w = flow.get_variable("w", (3, 2), initializer=flow.ones_initializer())
                loss = flow.math.reduce_mean(flow.nn.dropout(flow.matmul(x, w), rate=0.5))
                flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
                return loss
            return job(np.ones((4, 3), np.float32))

        def count(tag):
            return len(devices.local_devices(tag))

        for asked, expected in [((None, None), 1), ((4, None), 4), ((2, 1), 2), ((None, 8), 8), ((0, 3), 3)]:
            flow.clear_default_session()
            for setter, number in zip((flow.config.gpu_device_num, flow.config.cpu_device_num), asked):
                if number is not None:
                    setter(number)
            train()
            assert count("gpu") == count("cpu") == expected, (asked, count("gpu"), count("cpu"))
            assert len(set(devices.local_devices("cpu"))) == expected
        assert flow.config.gpu_device_num(2) is False

        flow.clear_default_session()
        import jax
        mine = jax.numpy.ones(3)
        flow.config.gpu_device_num(16)
        try:
            train()
        except DeviceError as error:
            print(error)
        del mine
        flow.clear_default_session()
        flow.config.gpu_device_num(16)
        train()
        print("devices", count("gpu"))
        """
    )
    assert done.returncode == 0, done.stderr
    assert "16 devices were asked for, JAX runs with 8" in done.stdout and "float32[3]" in done.stdout
    assert "program.py" in done.stdout and "devices 16" in done.stdout
    assert done.stderr.count("JAX has no GPU here") == 1


def _placed(*where: str, tag: str = "gpu"):
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        with flow.scope.placement(tag, *where):
            return flow.math.relu(x, name="far")

    return job


@pytest.mark.parametrize("tag", ["gpu", "cpu"])
def test_placement_beyond_the_devices(tag: str) -> None:
    flow.config.cpu_device_num(1)  # where nothing is said, a session has as many CPU devices as its jobs name
    for where in ("0:1", "0:0-3"):
        with pytest.raises(DeviceError, match=rf"(?s)relu 'far' on {tag} .*test_devices.py.*{tag}_device_num\(") as caught:
            _placed(where, tag=tag).summary()
        assert f"one {tag} device" in str(caught.value)
    with pytest.raises(DeviceError, match=r"(?s)relu 'far' on .*no machine 1.*test_devices.py"):
        _placed("1:0", tag=tag).summary()


def test_a_session_that_asks_for_devices_says_how_many_there_are() -> None:
    flow.config.cpu_device_num(1)
    flow.config.gpu_device_num(1)
    with pytest.raises(DeviceError, match="counted from 0"):
        _placed("0:7").summary()


def test_cpu_devices_that_jobs_name_need_not_be_asked_for(program: Any) -> None:
    done = program(
        """
        import numpy as np
        import oneflow as flow, oneflow.typing as tp
        from oneflow.errors import DeviceError

        def declare(where, name):
            def body(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
                with flow.scope.placement("cpu", where):
                    return flow.layers.dense(x, 2, name=name, kernel_initializer=flow.ones_initializer())
            body.__name__ = name
            return flow.global_function()(body)

        @flow.global_function("train")
        def train(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
            loss = flow.math.reduce_mean(flow.nn.dropout(flow.layers.dense(x, 2, name="small"), rate=0.5))
            flow.optimizer.Adam(0.1).minimize(loss)
            return loss

        x, rate = np.ones((8, 4), np.float32), train.learning_rate
        four, two = declare("0:0-3", "four"), declare("0:2-2", "two")
        train(x)  # the first call: the session has four devices from here on
        assert (four(x) == 4).all() and (two(x) == 4).all() and train.learning_rate == rate == np.float32(0.1)
        print([flow.get_all_variables()[n + "-weight"].devices for n in ("four", "two", "small")])
        late = declare("0:0-6", "late")
        try:
            late(x)
        except DeviceError as error:
            print(error)
        train(x)
        flow.clear_default_session()
        late = declare("0:0-6", "late")  # while the program still holds the jobs of the session before
        assert (late(x) == 4).all()
        print(flow.get_all_variables()["late-weight"].devices[-1])
        flow.clear_default_session()
        flow.config.cpu_device_num(2)
        try:
            declare("0:0-3", "more")(x)
        except DeviceError as error:
            print(error)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[['0:0', '0:1', '0:2', '0:3'], ['0:2'], ['0:0']]\n")
    assert "on cpu 0:0-6, and the session has 4 on each machine" in done.stdout and "\n0:6\n" in done.stdout
    assert "on cpu 0:0-3, and the session has 2 on each machine" in done.stdout


def test_many_calls_with_collectives_are_submitted(program: Any) -> None:
    """XLA's rendezvous of virtual CPU devices hangs or aborts where many calls are in flight."""
    done = program(
        """
        import threading
        import numpy as np
        import oneflow as flow, oneflow.typing as tp
        flow.config.gpu_device_num(8)

        @flow.global_function(type="train")
        def train(x: tp.Numpy.Placeholder((16, 8))) -> tp.Callback[tp.Numpy]:
            loss = flow.math.reduce_mean(flow.layers.dense(x, 8, name="dense"))
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
            return loss

        @flow.global_function()
        def total(x: tp.Numpy.Placeholder((16, 8))) -> tp.Callback[tp.Numpy]:
            return flow.math.reduce_sum(x)

        x, got = np.ones((16, 8), np.float32), []

        def again(value):  # calls made by callbacks do not wait for a slot
            got.append(value.item())
            if len(got) < 300:
                total(x)(lambda value: got.append(value.item()))

        def submit():
            for _ in range(60):
                train(x)(again)
                total(x)(lambda value: got.append(value.item()))

        threads = [threading.Thread(target=submit) for _ in range(2)]
        for thread in threads:
            thread.start()
        submit()
        for thread in threads:
            thread.join()
        flow.sync_default_session()
        print(len(got) > 360, got.count(128.0) > 180)
        """
    )
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr


def test_what_runs_on_the_host_may_name_more_cpus_than_there_are() -> None:
    flow.clear_default_session()

    @flow.global_function()
    def job() -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-3"):
            x = flow.data.decode_random((2,), flow.float, batch_size=8, initializer=flow.constant_initializer(2.0))
        return x * 3.0

    assert (job() == 6).all()


@pytest.mark.parametrize(("backend", "accelerator", "gpu"), [("tpu", True, False), ("gpu", True, True), ("cpu", False, False)])
def test_gpu_placements_mean_tpus_where_jax_has_those(
    monkeypatch: pytest.MonkeyPatch, backend: str, accelerator: bool, gpu: bool
) -> None:
    from oneflow.runtime import devices

    monkeypatch.setattr(devices, "has_plugin", lambda: True)
    monkeypatch.setattr(devices.jax, "default_backend", lambda: backend)
    assert (devices.has_accelerator(), devices.gpus_are_real(), devices.has_gpu()) == (accelerator, accelerator, gpu)
    assert flow.sysconfig.with_cuda() is gpu


def test_a_job_on_cpus_is_planned_for_cpus_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from oneflow.runtime import devices

    def placed(*tags: str) -> Any:
        @flow.global_function("predict")
        def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
            for tag in tags:
                with flow.scope.placement(tag, "0:0"):
                    x = flow.math.relu(x)
            return x

        return job.graph

    graphs = [placed("cpu"), placed("gpu"), placed("cpu", "gpu")]
    assert [devices.platform_of(graph) for graph in graphs] == ["cpu"] * 3
    monkeypatch.setattr(devices, "has_plugin", lambda: True)
    monkeypatch.setattr(devices.jax, "default_backend", lambda: "gpu")
    assert [devices.platform_of(graph) for graph in graphs] == ["cpu", "gpu", "gpu"]
