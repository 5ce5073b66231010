"""kill -9 over all forms of saving: no checkpoint is lost, none is half there, and training goes on bit for bit."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import jobs
from .children import PATIENCE, Child, free_port
from .report import Budget, Report

STEPS = 240  # of one training; then another begins in an empty folder


@dataclass(frozen=True)
class Saver:
    """``save(step)`` returns the newest step that is now on the disk for certain, or -1; ``wait`` waits for what is written."""

    save: Callable[[int], int]
    wait: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Form:
    """One way of saving. ``begin(folder)`` restores the newest checkpoint in the child and returns how to save."""

    name: str
    begin: Callable[[str], Saver]
    processes: int = 1


def _newest(folder: str) -> str | None:
    names = sorted(n for n in os.listdir(folder) if not n.startswith("."))
    return os.path.join(folder, names[-1]) if names else None


def _plain(folder: str) -> Saver:
    import oneflow as flow

    if path := _newest(folder):
        flow.load_variables(flow.checkpoint.get(path))

    def save(step: int) -> int:
        flow.checkpoint.save(f"{folder}/{step:06}")
        return step

    return Saver(save)


def _object(folder: str) -> Saver:
    import oneflow as flow

    if path := _newest(folder):
        flow.train.CheckPoint().load(path)

    def save(step: int) -> int:
        flow.train.CheckPoint().save(f"{folder}/{step:06}")
        return step

    return Saver(save)


def _simple_manager(folder: str) -> Saver:
    import oneflow as flow

    manager = flow.train.SimpleCheckPointManager(folder)
    if manager.list_checkpoints():
        manager.initialize_or_restore()

    def save(step: int) -> int:
        manager.save()
        return step

    return Saver(save)


def _background(folder: str) -> Saver:
    import oneflow as flow

    if path := _newest(folder):
        flow.load_variables(flow.checkpoint.get(path))
    pending: list[Any] = []

    def save(step: int) -> int:
        """Another save waits for the one before, which is then on the disk."""
        pending.append((step, flow.checkpoint.save(f"{folder}/{step:06}", asynchronous=True)))
        return max((s for s, p in pending if p.done() and p.exception() is None), default=-1)

    return Saver(save, lambda: pending[-1][1].wait())


def _manager(asynchronous: bool) -> Callable[[str], Saver]:
    def begin(folder: str) -> Saver:
        import oneflow as flow

        manager = flow.checkpoint.CheckpointManager(folder, max_to_keep=3, monitor="loss", asynchronous=asynchronous)
        if manager.latest() is not None:
            manager.restore_or_init()

        def save(step: int) -> int:
            manager.save(step, metrics={"loss": abs(step - 7)}, metadata={"step": step})
            return max((int(name.rsplit("_", 1)[1]) for name in manager.all()), default=-1)

        return Saver(save, manager.wait)

    return begin


FORMS = [
    Form("flow.checkpoint.save", _plain),
    Form("CheckPoint().save", _object),
    Form("SimpleCheckPointManager", _simple_manager),
    Form("in the background", _background),
    Form("CheckpointManager", _manager(asynchronous=False)),
    Form("CheckpointManager in the background", _manager(asynchronous=True)),
    Form("two processes", _plain, processes=2),
    Form("two processes in the background", _background, processes=2),
]


# --- in the child


_CALLS = (
    "open", "close", "mkdir", "rename", "replace", "fsync", "chmod", "unlink", "rmdir", "write", "pwrite", "truncate",
    "stat", "scandir", "link",
)  # fmt: skip


def patch_calls(before: Callable[[str], None]) -> None:
    """Has ``before`` called with the name of each call of the operating system that saving makes."""
    package = os.path.dirname(sys.modules["oneflow"].__file__ or "") + os.sep
    places = tuple(os.path.join(package, room) for room in ("checkpoint", "_base"))

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if sys._getframe(1).f_code.co_filename.startswith(places):
                before(name)
            return original(*args, **kwargs)

        return call

    for name in _CALLS:
        setattr(os, name, watched(name, getattr(os, name)))


def _die_in_front_of(number: int) -> None:
    count, lock = 0, threading.Lock()

    def before(name: str) -> None:
        nonlocal count
        with lock:
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    patch_calls(before)


def _live(folder: str, form: int, die_at: int) -> None:
    """Trains and saves each step, for ever."""
    import oneflow as flow

    train = jobs.declare(split=FORMS[form].processes > 1)
    saver = FORMS[form].begin(folder)
    begin = int(flow.get_all_variables()[jobs.STEP].numpy()[0])
    print("begins", begin, flush=True)
    if die_at:
        _die_in_front_of(die_at)
    for step in range(begin, STEPS + 20):
        print("loss", step, train(jobs.batch(step)).tobytes().hex(), flush=True)
        print("saved", saver.save(step + 1), flush=True)


def reference(split: bool) -> None:
    """The same without saves: each step's loss, and the digest of the variables after it."""
    train = jobs.declare(split=split)
    for step in range(STEPS + 20):
        print(step, train(jobs.batch(step)).tobytes().hex(), jobs.digest(jobs.state()), flush=True)


# --- in the parent


Expected = dict[int, tuple[str, str]]  # step -> the loss of the step, and the variables after it


def _expected(budget: Budget, form: int) -> Expected:
    count = FORMS[form].processes
    children = _start(count, reference, count > 1)
    try:
        status = children[0].wait(PATIENCE)
        if status != 0:
            raise RuntimeError(f"the reference of {FORMS[form].name!r} ended with {status}: {children[0].errors}")
        rows = [line.split() for line in children[0].output.splitlines()]
        return {int(step): (loss, variables) for step, loss, variables in rows}
    finally:
        _end(children)


def _start(count: int, function: Callable[..., object], *args: Any) -> list[Child]:
    """Processes of one run, in the order of their ranks."""
    if count == 1:
        return [Child(function, *args)]
    address = f"127.0.0.1:{free_port()}"
    shared = {"ONEFLOW_COORDINATOR_ADDRESS": address, "ONEFLOW_NUM_PROCESSES": str(count), "ONEFLOW_SECRET": "s" * 32}
    return [Child(function, *args, environment={**shared, "ONEFLOW_PROCESS_ID": str(rank)}) for rank in range(count)]


def _end(children: list[Child]) -> None:
    for child in children:
        child.close()


class _Chain:
    """Lives of one training, each of which goes on where the one before was killed."""

    def __init__(self, form: int, seed: int, expected: Expected):
        self.form, self.expected = form, expected
        self._random = random.Random(seed * 1009 + form)
        self._folder, self._confirmed = "", -1
        self.placed = self.timed = 0

    def next(self) -> tuple[float, str]:
        """One kill. How long the life was, and what is wrong; "" where nothing is."""
        if not self._folder or self._confirmed > STEPS - 40:
            self._folder, self._confirmed = tempfile.mkdtemp(prefix="kills-"), -1
        before, begun = self._confirmed, time.monotonic()
        rng = self._random
        placed = rng.random() < 0.5
        die_at = rng.randint(1, 400) if placed else 0
        children = _start(FORMS[self.form].processes, _live, self._folder, self.form, die_at)
        victim = rng.randrange(len(children))
        try:
            if placed:
                died = self._wait_for_end(children)
                self.placed += 1
            else:
                died = children[0].wait_for("saved", PATIENCE)
                time.sleep(rng.uniform(0, 0.25))
                children[victim].kill()
                self.timed += 1
            if not died:
                return time.monotonic() - begun, f"did not come to its kill: {children[0].errors}"
            if len(children) > 1 and (self._wait_for_end(children) is False):
                return time.monotonic() - begun, f"a survivor did not end: {[c.errors for c in children]}"
            return time.monotonic() - begun, self._wrong(children[0].output, before, children[0].errors)
        finally:
            _end(children)

    def _wait_for_end(self, children: list[Child]) -> bool:
        end = time.monotonic() + PATIENCE
        while any(c.process.is_alive() for c in children) and time.monotonic() < end:
            time.sleep(0.01)
        return not any(c.process.is_alive() for c in children)

    def _wrong(self, output: str, before: int, errors: str) -> str:
        lines = output.splitlines(keepends=True)
        rows = [line.split() for line in lines if line.endswith("\n")]
        begins = [int(row[1]) for row in rows if row[0] == "begins"]
        if not begins:
            return f"the newest checkpoint could not be loaded: {errors}"
        if begins[0] < before:
            return f"began at step {begins[0]}, though step {before} had been saved"
        for row in rows:
            if row[0] == "loss" and self.expected[int(row[1])][0] != row[2]:
                return f"the loss of step {row[1]} differs from that of an uninterrupted run (begun at {begins[0]})"
        self._confirmed = max([before, *(int(row[1]) for row in rows if row[0] == "saved")])
        found = {}
        for path in sorted(p for p in Path(self._folder).iterdir() if not p.name.startswith(".")):
            values = jobs.stored(str(path))
            if jobs.STEP not in values or not (path / "snapshot_done").exists():
                return f"{path.name} is half a checkpoint: {sorted(values)}"
            step = int(np.frombuffer(values[jobs.STEP], np.int64)[0])
            if jobs.digest(values) != self.expected[step - 1][1]:
                return f"{path.name} does not hold the state of step {step}"
            found[step] = path
        if max(found, default=-1) < self._confirmed:
            return f"step {self._confirmed} was saved and is lost; there are {sorted(found)[-3:]}"
        for step in sorted(found)[:-2]:
            shutil.rmtree(found[step])
        return ""


def run(budget: Budget) -> Report:
    """Kills by turns of all forms, two at a time: half in front of a call of the operating system, half at a random moment."""
    report, lock = Report(), threading.Lock()
    chains: dict[int, _Chain] = {}
    references = {split: _expected(budget, form) for split, form in ((False, 0), (True, _first_of_several()))}
    for form, row in enumerate(FORMS):
        chains[form] = _Chain(form, budget.seed, references[row.processes > 1])
    counts = dict.fromkeys(chains, 0)

    def work(forms: list[int]) -> None:
        at = 0
        while True:
            form = forms[at % len(forms)]
            at += 1
            with lock:
                if not budget.allows(report.runs) and at > len(forms):
                    return
                report.runs += 1
            seconds, wrong = chains[form].next()
            with lock:
                counts[form] += 1
                report.took(seconds)
                if wrong:
                    report.fail(f"{FORMS[form].name}: {wrong}")
                    chains[form] = _Chain(form, budget.seed + report.runs, chains[form].expected)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, list(chains)[i::2]) for i in range(2)]:
            done.result()
    placed = sum(chain.placed for chain in chains.values())
    each = ", ".join(f"{FORMS[form].name} {count}" for form, count in counts.items())
    report.notes = f"{each}; {placed} in front of a system call"
    return report


def _first_of_several() -> int:
    return next(i for i, form in enumerate(FORMS) if form.processes > 1)
