"""SIGINT at a random instant of training, loading, saving and compiling, and ``clear_default_session`` meanwhile."""

from __future__ import annotations

import os
import random
import shutil
import signal
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

PER_CHILD = 60


class _Rounds:
    """Each round interrupts one thing, and then looks at the state."""

    def __init__(self, seed: int):
        import oneflow as flow

        self._flow, self._random, self._number = flow, random.Random(seed), 0
        self._folder = tempfile.mkdtemp(prefix="interrupts-")
        self._begin()

    def _begin(self) -> None:
        """A training whose state after each step is known."""
        flow = self._flow
        flow.clear_default_session()
        self._train = jobs.declare()
        self._states, self._paths = [], []
        for step in range(3):
            self._train(jobs.batch(step))
            self._paths.append(f"{self._folder}/{self._number}-{step}")
            flow.checkpoint.save(self._paths[-1])
            self._states.append(jobs.digest(jobs.state()))
        self._step = 2  # of the states, the one that the session is in

    def _interrupted(self, work: Callable[[], object], longest: float) -> bool:
        """Whether the signal came before the work was done; if not, it comes before this returns."""
        begun = done = False
        while not begun:  # a signal that comes before the work has begun interrupts nothing
            timer = threading.Timer(longest * self._random.random(), lambda: os.kill(os.getpid(), signal.SIGINT))
            try:
                timer.start()
                begun = True
                work()
                done = True
                timer.join()
                time.sleep(0.002)
            except KeyboardInterrupt:
                pass
            timer.join()
        return not done

    def next(self, kind: str) -> tuple[bool, str]:
        """Whether it was interrupted, and what is wrong."""
        self._number += 1
        return getattr(self, f"_{kind}")()

    def _which(self) -> int | None:
        found = jobs.digest(jobs.state())
        return self._states.index(found) if found in self._states else None

    def _load(self) -> tuple[bool, str]:
        target = self._random.randrange(3)
        if self._random.random() < 0.5:
            cut = self._interrupted(lambda: self._flow.train.CheckPoint().load(self._paths[target]), 0.01)
        else:
            cut = self._interrupted(lambda: self._flow.load_variables(self._flow.checkpoint.get(self._paths[target])), 0.01)
        found = self._which()
        wrong = "" if found in (self._step, target) else "after a load the state is neither the earlier nor the loaded one"
        self._step = self._step if found is None else found
        return cut, wrong

    def _save(self) -> tuple[bool, str]:
        path = f"{self._folder}/saved-{self._number}"
        cut = self._interrupted(lambda: self._flow.checkpoint.save(path), 0.05)
        there = os.path.isdir(path) and os.listdir(path)
        if there and jobs.digest(jobs.stored(path)) != self._states[self._step]:
            return cut, "a checkpoint is there and does not hold the state"
        if not there and not cut:
            return cut, "the save returned, and there is no checkpoint"
        shutil.rmtree(path, ignore_errors=True)
        return cut, "" if self._which() == self._step else "saving changed the state"

    def _steps(self) -> tuple[bool, str]:
        """Steps from a known state: afterwards the state is that of a step."""
        self._flow.train.CheckPoint().load(self._paths[0])
        self._step = 0
        cut = self._interrupted(lambda: [self._train(jobs.batch(step)) for step in (1, 2)], 0.006)
        found = self._which()
        if found is None:
            step = int(self._flow.get_all_variables()[jobs.STEP].numpy()[0])
            return cut, f"the state is not that of a step (its counter says {step})"
        self._step = found
        return cut, ""

    def _asynchronous(self) -> tuple[bool, str]:
        """Calls without waiting: w counts down as the step counter counts up."""
        flow, tp = self._flow, self._flow.typing

        @flow.global_function(type="train")
        def count_down(x: tp.Numpy.Placeholder((1,))) -> tp.Callback[tp.Numpy]:
            w = flow.get_variable("w", (1,), initializer=flow.zeros_initializer())
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(w * x)
            return w

        got: list[float] = []
        one = np.ones(1, np.float32)
        count_down(one)(lambda value: got.append(float(value[0])))
        cut = self._interrupted(lambda: [count_down(one)(lambda v: got.append(float(v[0]))) for _ in range(300)], 0.03)
        flow.sync_default_session()
        variables = flow.get_all_variables()
        w, steps = float(variables["w"].numpy()[0]), int(variables["System-Train-TrainStep-count_down"].numpy()[0])
        ordered = got == sorted(got, reverse=True) and len(set(got)) == len(got)
        self._begin()
        return cut, "" if -w == steps and ordered else f"w is {w} after {steps} steps; callbacks in order: {ordered}"

    def _compile(self) -> tuple[bool, str]:
        """A new job, interrupted while it is traced, compiled and run for the first time; then it works."""
        flow, tp, width = self._flow, self._flow.typing, self._random.randrange(2, 2000)

        def fresh(x: tp.Numpy.Placeholder((4, width))) -> tp.Numpy:
            for _ in range(6):
                x = flow.math.tanh(x) * 2.0
            return flow.math.reduce_sum(x, axis=1)

        job, x = flow.global_function()(fresh), np.ones((4, width), np.float32)
        cut = self._interrupted(lambda: job(x), 0.3)
        again = job(x)
        value = np.ones((4, width), np.float32)
        for _ in range(6):
            value = np.tanh(value) * 2
        right = np.allclose(again, value.sum(1), rtol=1e-4)
        same = self._which() == self._step
        return cut, "" if right and same else f"the job is right: {right}; the variables are as before: {same}"

    def _cleared(self) -> tuple[bool, str]:
        """Another thread clears the session while calls are interrupted; then a new one works."""
        cleared: list[Any] = []

        def clear() -> None:
            time.sleep(0.02 * self._random.random())
            try:
                self._flow.clear_default_session()
            except BaseException as error:
                cleared.append(error)

        def work() -> None:
            try:
                for step in range(3000):
                    self._train(jobs.batch(step))
            except self._flow.errors.ModeError:  # the session has ended
                pass

        thread, wrong = threading.Thread(target=clear), ""
        thread.start()
        try:
            cut = self._interrupted(work, 0.02)
        except self._flow.errors.OneFlowError as error:
            cut, wrong = False, f"{type(error).__name__}: {error}"
        thread.join()
        before = self._states
        self._begin()
        if cleared:
            wrong = f"clear_default_session raised {cleared[0]!r}"
        return cut, wrong or ("" if self._states == before else "a new session does not train as the first one did")


KINDS = ("steps", "load", "save", "compile", "asynchronous", "cleared")


def _session(seed: int, count: int, seconds: float) -> None:
    rounds, end = _Rounds(seed), time.monotonic() + seconds
    for number in range(count):
        if number and time.monotonic() > end:
            return
        kind, begun = KINDS[number % len(KINDS)], time.monotonic()
        cut, wrong = rounds.next(kind)
        print("round", kind, int(cut), f"{time.monotonic() - begun:.3f}", flush=True)
        if wrong:
            print("wrong", f"{kind}: {wrong}".replace("\n", " / "), flush=True)


def run(budget: Budget) -> Report:
    """Only interrupts that reached the work are counted, not those that came a moment too late."""
    report, counts, late, number = Report(), Counter[str](), 0, 0
    while budget.allows(report.runs):
        with running(_session, budget.seed * 1000 + number, PER_CHILD, budget.left) as child:
            status = child.wait(max(budget.left, 0.0) + PATIENCE)
            number += 1
            if status != 0:
                report.fail(f"session {number - 1} ended with {status}: {child.errors}")
            for row in (line.split(maxsplit=1) for line in child.output.splitlines()):
                if row[0] == "wrong":
                    report.fail(f"session {number - 1}: {row[1]}")
                elif row[0] == "round":
                    kind, cut, seconds = row[1].split()
                    report.runs, late = report.runs + int(cut), late + (cut == "0")
                    counts[kind] += int(cut)
                    report.took(float(seconds))
        if status != 0:
            break
    report.notes = f"{', '.join(f'{kind} {counts[kind]}' for kind in KINDS)}; {late} more came when the work was done"
    return report
