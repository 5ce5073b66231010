"""Eight threads call three jobs; callbacks call jobs, save and raise. No call is lost, and the counters agree."""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections import Counter
from typing import Any

import numpy as np

from . import jobs
from .children import PATIENCE, running
from .report import Budget, Report

THREADS = 8


def _storm(seed: int, count: int, seconds: float) -> None:
    import oneflow as flow
    import oneflow.typing as tp

    train = jobs.declare()

    @flow.global_function(type="train")
    def count_down(x: tp.Numpy.Placeholder((1,))) -> tp.Callback[tp.Numpy]:
        w = flow.get_variable("w", (1,), initializer=flow.zeros_initializer())
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(w * x)
        return w

    @flow.global_function()
    def double(x: tp.Numpy.Placeholder((4,))) -> tp.Callback[tp.Numpy]:
        return x * 2

    folder, lock = tempfile.mkdtemp(prefix="threads-"), threading.Lock()
    made, got, raised, told, saves = Counter[str](), Counter[str](), [0], [0], [0]
    values: list[float] = []
    longest = 0.0

    class MineError(Exception):
        pass

    jobs.state()
    end = time.monotonic() + seconds

    def counted(value: Any) -> None:
        got["count"] += 1
        values.append(float(value[0]))

    def doubled(n: int, rng: random.Random) -> Any:
        def callback(value: Any) -> None:
            got["double"] += 1
            if not (value == 2 * n).all():
                print("wrong", f"double({n}) was {value}", flush=True)
            kind = rng.random()
            if kind < 0.01:
                raised[0] += 1
                raise MineError
            if kind < 0.03:
                with lock:
                    made["train"] += 1
                train(jobs.batch(n))
            elif kind < 0.04:
                saves[0] += 1
                flow.checkpoint.save(os.path.join(folder, str(saves[0])))
            elif kind < 0.05:
                flow.get_all_variables()

        return callback

    def work(number: int) -> None:
        nonlocal longest
        rng = random.Random(seed * THREADS + number)
        while time.monotonic() < end and sum(made.values()) < count:
            name, begun = rng.choice(["train", "count", "double", "double", "sync"]), time.monotonic()
            n = rng.randrange(1000)
            try:
                if name == "train":
                    train(jobs.batch(n))
                elif name == "count":
                    count_down(np.ones(1, np.float32))(counted)
                elif name == "double":
                    double(np.full(4, n, np.float32))(doubled(n, rng))
                elif rng.random() < 0.05:
                    flow.sync_default_session()
            except flow.errors.CallbackError as error:
                with lock:
                    told[0] += 1
                if not isinstance(error.__cause__, MineError):
                    print("wrong", f"{name} raised {error!r}", flush=True)
                continue
            except BaseException as error:
                print("wrong", f"{name} raised {type(error).__name__}: {error}".replace("\n", " / "), flush=True)
                return
            with lock:
                made[name] += name != "sync"
                longest = max(longest, time.monotonic() - begun)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(100):
        try:
            flow.sync_default_session()
            break
        except flow.errors.CallbackError:
            told[0] += 1
    variables = {name: handle.numpy() for name, handle in flow.get_all_variables().items()}
    steps, w = int(variables["System-Train-TrainStep-count_down"][0]), float(variables["w"][0])
    expectations = {
        "callbacks of count_down": (got["count"], made["count"]),
        "callbacks of double": (got["double"], made["double"]),
        "steps of count_down": (steps, made["count"]),
        "the variable of count_down": (-w, float(made["count"])),
        "the order of callbacks": (values, [-float(i) for i in range(made["count"])]),
        "steps of train": (int(variables[jobs.STEP][0]), made["train"]),
        "checkpoints": (len(os.listdir(folder)), saves[0]),
        "errors of callbacks, if any were raised": (told[0] > 0, raised[0] > 0),
    }
    for what, (found, wanted) in expectations.items():
        if found != wanted:
            print("wrong", f"{what}: {str(found)[:200]}, not {str(wanted)[:200]}", flush=True)
    print("calls", sum(made.values()), raised[0], saves[0], f"{longest:.3f}", flush=True)


def run(budget: Budget) -> Report:
    """One session per minute or so."""
    report, raised, saves, sessions = Report(), 0, 0, 0
    while budget.allows(report.runs) and (sessions == 0 or budget.left > 5):
        seconds = min(60.0, max(budget.left - 4, 3.0))
        with running(_storm, budget.seed * 1000 + sessions, budget.count - report.runs, seconds) as child:
            status = child.wait(seconds + PATIENCE)
            sessions += 1
            if status != 0:
                report.fail(f"the session ended with {status}: {child.errors}")
            for row in (line.split(maxsplit=1) for line in child.output.splitlines()):
                if row[0] == "wrong":
                    report.fail(row[1])
                elif row[0] == "calls":
                    calls, errors, saved, longest = row[1].split()
                    report.runs, raised, saves = report.runs + int(calls), raised + int(errors), saves + int(saved)
                    report.took(float(longest))
        if report.failures:
            break
    report.notes = f"{THREADS} threads, 3 jobs, {sessions} sessions; callbacks raised {raised} times and saved {saves} times"
    return report
