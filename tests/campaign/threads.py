"""Eight threads call three jobs of one process; callbacks call jobs, save and raise; now and then a thread clears the session.

No call and no callback is lost, and the counters agree. A call that meets the end of its session is refused and leaves nothing
behind; all that was submitted before is delivered.
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from . import jobs
from .children import PATIENCE, running
from .report import Budget, Report

THREADS = 8
_WAIT = 60.0  # seconds for a thread to leave a session that has ended


class MineError(Exception):
    """What callbacks raise."""


def _wrong(text: str) -> None:
    print("wrong", text.replace("\n", " / "), flush=True)


class _Stage:
    """The jobs of one session, and what was done with them."""

    def __init__(self) -> None:
        import oneflow as flow
        import oneflow.typing as tp

        @flow.global_function(type="train")
        def count_down(x: tp.Numpy.Placeholder((1,))) -> tp.Callback[tp.Numpy]:
            w = flow.get_variable("w", (1,), initializer=flow.zeros_initializer())
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(w * x)
            return w

        @flow.global_function()
        def double(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
            return x * 2

        self.train, self.count_down, self.double = jobs.declare(), count_down, double
        self.lock = threading.Lock()
        self.made, self.got = Counter[str](), Counter[str]()
        self.values: list[tuple[int, float]] = []  # thread, and what its callback was given
        self.threads = 0  # that are in a call of these jobs
        self.has_ended = False
        jobs.state()

    def counted(self, name: str) -> None:
        with self.lock:
            self.made[name] += 1

    def judge(self) -> None:
        """After all threads have left it and everything is delivered."""
        expectations = {
            "callbacks of count_down": (self.got["count"], self.made["count"]),
            "callbacks of double": (self.got["double"], self.made["double"]),
            "values of count_down": (sorted(-v for _, v in self.values), [float(i) for i in range(self.made["count"])]),
        }
        for thread in range(THREADS):  # another thread may come between a call and ``result(callback)``
            own = [v for number, v in self.values if number == thread]
            expectations[f"the order of thread {thread}'s callbacks"] = own, sorted(own, reverse=True)
        _compare(expectations)

    def judge_variables(self) -> None:
        """The variables of a session that goes on."""
        import oneflow as flow

        variables = {name: handle.numpy() for name, handle in flow.get_all_variables().items()}
        steps, w = int(variables["System-Train-TrainStep-count_down"][0]), float(variables["w"][0])
        _compare({
            "steps of count_down": (steps, self.made["count"]),
            "the variable of count_down": (-w, float(self.made["count"])),
            "steps of train": (int(variables[jobs.STEP][0]), self.made["train"]),
        })  # fmt: skip


def _compare(expectations: dict[str, tuple[Any, Any]]) -> None:
    for what, (found, wanted) in expectations.items():
        if found != wanted:
            _wrong(f"{what}: {str(found)[:200]}, not {str(wanted)[:200]}")


class _Storm:
    """One process with its threads."""

    def __init__(self, seed: int, count: int, seconds: float):
        import oneflow as flow

        self._flow, self._seed, self._count = flow, seed, count
        self._folder, self._lock = tempfile.mkdtemp(prefix="threads-"), threading.Lock()
        self._calls = self._paths = self.saves = self.raised = self.told = self.cleared = self.refused = 0
        self.longest = 0.0
        self._stage = _Stage()
        self._end = time.monotonic() + seconds
        self._between = (min(4.0, seconds / 6), min(20.0, seconds / 3))  # seconds from one clearing to the next

    def run(self) -> None:
        threads = [threading.Thread(target=self._work, args=(i,)) for i in range(THREADS)]
        threads.append(threading.Thread(target=self._clear_now_and_then))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._deliver()
        self._stage.judge()
        self._stage.judge_variables()
        _compare({
            "checkpoints": (len(os.listdir(self._folder)), self.saves),
            "errors of callbacks, if any were raised": (self.told > 0, self.raised > 0),
        })  # fmt: skip
        print("calls", self._calls, self.raised, self.saves, self.cleared, self.refused, f"{self.longest:.3f}", flush=True)

    def _goes_on(self) -> bool:
        return time.monotonic() < self._end and self._calls < self._count

    def _deliver(self) -> None:
        for _ in range(100):
            try:
                self._flow.sync_default_session()
                return
            except self._flow.errors.CallbackError:
                self.told += 1

    # --- eight threads

    def _work(self, number: int) -> None:
        rng = random.Random(self._seed * THREADS + number)
        while self._goes_on():
            with self._lock:
                stage = self._stage
                stage.threads += 1
            try:
                self._call(stage, number, rng)
            except BaseException as error:
                _wrong(f"a thread raised {type(error).__name__}: {error}")
                return
            finally:
                with self._lock:
                    stage.threads -= 1
            while stage.has_ended and self._stage is stage:  # until there are jobs again
                time.sleep(0.001)

    def _call(self, stage: _Stage, number: int, rng: random.Random) -> None:
        name, begun, n = rng.choice(["train", "count", "double", "double", "sync"]), time.monotonic(), rng.randrange(1000)
        errors = self._flow.errors
        try:
            if name == "train":
                stage.train(jobs.batch(n))
                stage.counted("train")
            elif name == "count":
                stage.count_down(np.ones(1, np.float32))(self._count_back(stage, number))
                stage.counted("count")
            elif name == "double":
                stage.double(np.full(4, n, np.float32))(self._doubled(stage, n, rng))
                stage.counted("double")
            elif rng.random() < 0.05:
                self._flow.sync_default_session()
        except errors.CallbackError as error:
            with self._lock:
                self.told += 1
            if not isinstance(error.__cause__, MineError):
                _wrong(f"{name} raised {error!r}")
            return
        except errors.ModeError as error:
            if not stage.has_ended:
                _wrong(f"{name} was refused although its session goes on: {error}")
            with self._lock:
                self.refused += 1
            return
        with self._lock:
            self._calls += name != "sync"
            self.longest = max(self.longest, time.monotonic() - begun)

    # --- callbacks, on the delivery thread

    def _count_back(self, stage: _Stage, number: int) -> Callable[[Any], None]:
        def callback(value: Any) -> None:
            stage.got["count"] += 1
            stage.values.append((number, float(value[0])))

        return callback

    def _doubled(self, stage: _Stage, n: int, rng: random.Random) -> Callable[[Any], None]:
        def callback(value: Any) -> None:
            stage.got["double"] += 1
            if not (value == 2 * n).all():
                _wrong(f"double({n}) was {value}")
            kind = rng.random()
            if kind < 0.01:
                self.raised += 1
                raise MineError
            try:
                if kind < 0.03:
                    stage.train(jobs.batch(n))
                    stage.counted("train")
                elif kind < 0.04:
                    self._paths += 1
                    self._flow.checkpoint.save(os.path.join(self._folder, str(self._paths)))
                    self.saves += 1
                elif kind < 0.05:
                    self._flow.get_all_variables()
            except self._flow.errors.ModeError:
                if not stage.has_ended:
                    raise

        return callback

    # --- the thread that clears

    def _clear_now_and_then(self) -> None:
        rng = random.Random(self._seed)
        due = time.monotonic() + rng.uniform(*self._between)
        while self._goes_on():
            if time.monotonic() < due:
                time.sleep(0.005)
                continue
            try:
                self._clear()
            except BaseException as error:
                _wrong(f"the thread that clears the session raised {type(error).__name__}: {error}")
                return
            due = time.monotonic() + rng.uniform(*self._between)

    def _clear(self) -> None:
        """Ends the session while the others call, and judges it; then there is a new one."""
        stage = self._stage
        stage.has_ended = True
        self._flow.clear_default_session()
        patience = time.monotonic() + _WAIT
        while stage.threads and time.monotonic() < patience:
            time.sleep(0.001)
        if stage.threads:
            _wrong(f"{stage.threads} threads are still in a call, {_WAIT:g} s after their session has ended")
        self._deliver()
        stage.judge()
        self.cleared += 1
        self._stage = _Stage()


def _storm(seed: int, count: int, seconds: float) -> None:
    _Storm(seed, count, seconds).run()


def run(budget: Budget) -> Report:
    """One process for all of the time."""
    report = Report()
    seconds = min(600.0, max(budget.left - 4, 3.0))
    with running(_storm, budget.seed, budget.count, seconds) as child:
        status = child.wait(seconds + PATIENCE)
        if status != 0:
            report.fail(f"the process ended with {status}: {child.errors}")
        for row in (line.split(maxsplit=1) for line in child.output.splitlines()):
            if row[0] == "wrong":
                report.fail(row[1])
            elif row[0] == "calls":
                calls, raised, saves, cleared, refused, longest = row[1].split()
                report.runs = int(calls)
                report.took(float(longest))
                report.notes = (
                    f"{THREADS} threads, 3 jobs, {seconds:.0f} s in one process; callbacks raised {raised} times, saved {saves} "
                    f"times; the session was cleared {cleared} times, which refused {refused} calls"
                )
    return report
