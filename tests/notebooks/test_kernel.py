"""Notebooks in a real kernel: cells that are interrupted, jobs that are declared again, tables and progress bars."""

from __future__ import annotations

import contextlib
import queue
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

manager = pytest.importorskip("jupyter_client.manager", reason="the extra [notebooks] is not installed")
pytest.importorskip("ipykernel", reason="the extra [notebooks] is not installed")
pytestmark = pytest.mark.timeout(600)
WAIT, WAIT_FOR_INTERRUPT = 300, 60  # seconds

DECLARATION = """
@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
    loss = flow.math.square(flow.layers.dense(x, 1, name="line", kernel_initializer=flow.ones_initializer()) - 1.0)
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.01]), momentum=0).minimize(loss)
    return loss
"""


class Kernel:
    """A running kernel, asked cell by cell."""

    def __init__(self) -> None:
        self.is_closed = False
        self._folder = tempfile.TemporaryDirectory(prefix="k")  # of its sockets, whose names would else be those of all kernels
        self.unraisable = Path(self._folder.name) / "unraisable"
        self.manager = manager.KernelManager(kernel_name="python3", transport="ipc", ip=f"{self._folder.name}/ipc")
        self.manager.kernel_spec.argv[0] = sys.executable
        self.manager.start_kernel()
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=WAIT)
        self.text(f"""if True:
            import faulthandler, signal, sys, traceback
            def tell(lost):
                with open({str(self.unraisable)!r}, "a") as file:
                    traceback.print_exception(lost.exc_type, lost.exc_value, lost.exc_traceback, file=file)
            sys.unraisablehook = tell
            faulthandler.register(signal.SIGUSR1, open({str(self.unraisable)!r}, "a"))""")

    def run(self, source: str, interrupt_after: str = "") -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """What a cell shows, and how it ended. The cell is interrupted as soon as it has printed ``interrupt_after``."""
        asked = self.client.execute(source)
        shown: list[dict[str, Any]] = []
        text = ""
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
            shown.append(message["content"])
            text += message["content"].get("text", "") if message["msg_type"] == "stream" else ""
            if interrupt_after and interrupt_after in text:
                self.manager.interrupt_kernel()
                interrupt_after, deadline = "", time.monotonic() + WAIT_FOR_INTERRUPT
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                reply = self.client.get_shell_msg(timeout=1)
                if reply["parent_header"]["msg_id"] == asked:
                    return shown, reply["content"]
        self.manager.signal_kernel(signal.SIGUSR1)
        time.sleep(1)
        where = self.unraisable.read_text()
        self.close()  # it would go on and on
        pytest.fail(f"the cell has not ended, having printed {text!r}; exceptions that nobody got, and where it is:\n{where}")

    def text(self, source: str) -> str:
        """What a cell printed; it has to end well. Notices of what takes long, on standard error, are left out."""
        shown, reply = self.run(source)
        assert reply["status"] == "ok", reply
        return "".join(content.get("text", "") for content in shown if content.get("name") == "stdout")

    def html(self, source: str) -> str:
        """The HTML of a cell's value."""
        shown, reply = self.run(source)
        assert reply["status"] == "ok", reply
        return next(content["data"]["text/html"] for content in shown if "text/html" in content.get("data", {}))

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self._folder.cleanup()


@pytest.fixture(scope="module")
def kernels() -> Iterator[list[Kernel]]:
    """The one that runs, and those before it that a test had to end."""
    made: list[Kernel] = []
    yield made
    for kernel in made:
        kernel.close()


@pytest.fixture
def kernel(kernels: list[Kernel]) -> Kernel:
    if not kernels or kernels[-1].is_closed:
        kernels.append(Kernel())
        kernels[-1].text(
            "import numpy as np\nimport oneflow as flow\nimport oneflow.typing as tp\nx = np.ones((4, 3), np.float32)"
        )
        kernels[-1].text(DECLARATION)
    return kernels[-1]


def test_a_cell_that_declares_a_job_can_be_run_again(kernel: Kernel) -> None:
    first = float(kernel.text("print(train(x).mean())"))
    kernel.text(DECLARATION)
    second = float(kernel.text("print(train(x).mean())"))
    assert second < first  # the variables have kept what they had learned
    kernel.text(DECLARATION.replace("0.01", "0.0"))  # with a change
    kernel.text(DECLARATION.replace("0.01", "0.0"))
    third, fourth = kernel.text("print(train(x).mean(), train(x).mean())").split()
    assert third == fourth
    kernel.text(DECLARATION.replace("dense(x, 1", "dense(x, 2") + "print(train(x).shape)")  # other shapes: starts again
    kernel.text(DECLARATION + "print(train(x).shape)")


def test_a_loop_of_calls_can_be_interrupted(kernel: Kernel) -> None:
    kernel.text(DECLARATION)
    loop = "steps = 0\nwhile True:\n    train(x)\n    steps += 1\n    if steps == 10:\n        print('under way', flush=True)"
    _, reply = kernel.run(loop, interrupt_after="under way")
    assert reply["ename"] == "KeyboardInterrupt"
    before, after = kernel.text(
        "before = train(x).mean()\nfor _ in range(5): after = train(x).mean()\nprint(before, after)"
    ).split()
    assert float(after) <= float(before)


def test_asynchronous_calls_can_be_interrupted(kernel: Kernel) -> None:
    kernel.text(DECLARATION)
    loop = (
        "seen = []\nwhile True:\n    train.submit(x).async_get(seen.append)\n"
        "    if len(seen) > 10 and not globals().get('told'):\n        told = True\n        print('under way', flush=True)"
    )
    _, reply = kernel.run(loop, interrupt_after="under way")
    assert reply["ename"] == "KeyboardInterrupt"
    assert kernel.text("flow.sync_default_session()\nprint(train(x).shape, len(seen) > 10)").split() == ["(4,", "1)", "True"]


def test_a_fit_can_be_interrupted_and_goes_on(kernel: Kernel) -> None:
    kernel.text(
        DECLARATION + "class Told(flow.callbacks.Callback):\n    def on_train_batch_end(self, step, logs):\n"
        "        if step == 10: print('under way', flush=True)\n"
        "def data():\n    while True:\n        yield (x,)\n"
    )
    fit = "flow.Trainer(max_epochs=1, callbacks=[Told()], enable_progress_bar=False).fit(train, data)"
    shown, reply = kernel.run(fit, interrupt_after="under way")
    assert reply["ename"] == "KeyboardInterrupt"
    assert "interrupted after step" in "".join(content.get("text", "") for content in shown)
    again = fit.replace("max_epochs=1", "max_epochs=1, max_steps=20")
    assert "under way" in kernel.text(again + "\nprint(train(x).shape)")


def test_values_show_themselves_as_tables(kernel: Kernel) -> None:
    kernel.text(DECLARATION)
    assert "line-matmul" in kernel.html("train.summary()")
    assert "state per device" in kernel.html("train.plan()")
    assert "<table" in kernel.html("train.profile(x, steps=2)")
    assert "float32" in kernel.html("flow.get_all_variables()['line-weight']")


def test_the_progress_bar_shows_itself(kernel: Kernel) -> None:
    kernel.text(DECLARATION)
    shown, reply = kernel.run("flow.Trainer(max_epochs=1, max_steps=5).fit(train, [(x,)] * 5)['loss']")
    assert reply["status"] == "ok"
    everything = "".join(content.get("text", "") + str(content.get("data", "")) for content in shown)
    assert "Epoch 1/1" in everything or "FloatProgress" in everything or "HBox" in everything
