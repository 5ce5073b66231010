"""Runs of two and four processes, one of which is lost, hangs, differs, or never comes: when do the survivors know?"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .children import PATIENCE, free_port
from .report import Budget, Report

PROGRAM = """
import os, signal, sys, time
import numpy as np
import oneflow as flow, oneflow.typing as tp

how, victim, rank = sys.argv[1], int(sys.argv[2]), int(os.environ["ONEFLOW_PROCESS_ID"])
is_victim, count = rank == victim, [0]
flow.env.start_timeout(6 if how in ("missing", "taken port") else 300)
flow.env.stall_timeout(5 if how == "hangs outside a step" else 40)
flow.env.step_timeout(8 if how == "hangs inside a step" else 300)
flow.env.end_on_step_timeout(True)
width = 12 if how == "other code" and is_victim else 11

def fault():
    print("fault", time.time(), file=sys.stderr, flush=True)

@flow.experimental.register_host_op("sleeper")
def sleeper(x):
    count[0] += 1
    if count[0] == 4:
        fault()
        time.sleep(1000)
    return x

@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((8, 6))) -> tp.Numpy:
    if how == "hangs inside a step":
        x = flow.user_op_builder("k").Op("sleeper").Input("x", [x]).Output("out").Build().InferAndTryRun().RemoteBlobList()[0]
    h = flow.layers.dense(x, width, name="a", kernel_initializer=flow.ones_initializer())
    loss = flow.math.reduce_mean(h)
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.01]), momentum=0).minimize(loss)
    return loss

@flow.global_function()
def other(x: tp.Numpy.Placeholder((8, 6))) -> tp.Numpy:
    return x + x

x = np.ones((8, 6), np.float32)
if how in ("other code", "taken port", "missing"):
    fault()
for _ in range(3):
    train(x)
other(x)
if is_victim and how not in ("hangs inside a step", "late", "strangers"):
    fault()
    if how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "is stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "hangs outside a step":
        time.sleep(1000)
    elif how == "raises":
        raise ValueError("no such file")
    elif how == "ends early":
        sys.exit(3)
    elif how == "wrong batch":
        train(x[:5])
    elif how == "calls another job":
        other(x)
for _ in range(4):
    loss = train(x)
print("result", loss.tobytes().hex(), file=sys.stderr, flush=True)
"""


GLOO = "terminate called after throwing an instance of 'gloo::"  # in its own thread, which nothing of ours can catch


@dataclass(frozen=True)
class Fault:
    """``goal`` is in seconds until each survivor has its error; ``rank`` the victim's, where it matters."""

    how: str
    text: str
    goal: float
    rank: int | None = None


_LOST = "cannot go on: "
FAULTS = [
    Fault("is killed", _LOST, 1.0),
    Fault("raises", _LOST, 1.0),
    Fault("wrong batch", _LOST, 1.0),
    Fault("ends early", _LOST, 1.0),
    Fault("calls another job", "the programs differ|gave up", 2.0),
    Fault("other code", "differ in job 'train'", 10.0),  # with tracing the job
    Fault("hangs outside a step", "has stood still|gave up", 8.0),  # stall_timeout is 5
    Fault("hangs inside a step", "all processes have been in call|gave up", 12.0, 0),  # step_timeout is 8; only rank 0 runs it
    Fault("is stopped", "has not been heard of|has stood still|gave up", 30.0),
    Fault("missing", "did not come within|does not answer|has just ended", 12.0),  # start_timeout is 6
    Fault("taken port", "in use|not a process of this run|does not answer", 12.0),
    Fault("late", "", 0.0),
    Fault("strangers", "", 0.0),
]  # fmt: skip


class _Run:
    """The processes of one run, each with files for what it prints."""

    def __init__(self, fault: Fault, count: int, victim: int, delay: float):
        self.fault, self.count, self.victim = fault, count, victim
        self.folder = Path(tempfile.mkdtemp(prefix="lost-"))
        (self.folder / "program.py").write_text(PROGRAM)
        self.port = free_port()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._delay = delay
        self.aborted = 0  # survivors that Gloo ended before they could say anything
        self.is_early = False  # a busy machine made a timeout strike before the fault

    def start(self, rank: int) -> None:
        environment = {
            **os.environ, "ONEFLOW_COORDINATOR_ADDRESS": f"127.0.0.1:{self.port}", "ONEFLOW_NUM_PROCESSES": str(self.count),
            "ONEFLOW_PROCESS_ID": str(rank), "ONEFLOW_SECRET": "a secret of the campaign", "ONEFLOW_ALL_OUTPUT": "1",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        with open(self.folder / f"{rank}.out", "wb") as out, open(self.folder / f"{rank}.err", "wb") as err:
            command = [sys.executable, str(self.folder / "program.py"), self.fault.how, str(self.victim)]
            self.processes[rank] = subprocess.Popen(command, stdout=out, stderr=err, env=environment, stdin=subprocess.DEVNULL)

    def start_all(self) -> None:
        for rank in range(self.count):
            if rank == self.victim and self.fault.how == "missing":
                continue
            if rank == self.victim and self.fault.how == "late":
                time.sleep(self._delay)
            self.start(rank)

    def text(self, rank: int, kind: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / f"{rank}.{kind}").read_text(errors="replace")
        return ""

    def began(self) -> float | None:
        """When the fault happened, by the clock of all."""
        found = [float(t) for rank in self.processes for t in re.findall(r"^fault (\S+)$", self.text(rank, "err"), re.M)]
        return max(found, default=None)

    def watch(self, timeout: float) -> tuple[dict[int, float], str]:
        """When each survivor had its error, in seconds after the fault; and what is wrong."""
        told: dict[int, float] = {}
        end = time.monotonic() + timeout
        survivors = [
            rank for rank in self.processes if rank != self.victim or self.fault.how in ("other code", "hangs inside a step")
        ]
        while time.monotonic() < end:
            for rank in survivors:
                if rank not in told and re.search(self.fault.text, self.text(rank, "err")):
                    told[rank] = time.time()
            if all(self.processes[rank].poll() is not None for rank in survivors):
                break
            time.sleep(0.02)
        else:
            return {}, f"process {[r for r in survivors if self.processes[r].poll() is None]} did not end within {timeout:.0f} s"
        for rank in survivors:
            if rank not in told and re.search(self.fault.text, self.text(rank, "err")):
                told[rank] = time.time()
        if (began := self.began()) is None:
            all_told = all(rank in told or GLOO in self.text(rank, "err") for rank in survivors)
            self.is_early = all_told and self.fault.how.startswith("hangs")
            if self.is_early:
                return {}, ""
            return {}, f"did not come to its fault: {self.text(0, 'err')[-1500:]}"
        aborted = [rank for rank in survivors if rank not in told and GLOO in self.text(rank, "err")]
        self.aborted, survivors = len(aborted), [rank for rank in survivors if rank not in aborted]
        if missing := [rank for rank in survivors if rank not in told]:
            return {}, f"process {missing[0]} ended without a clear error: {self.text(missing[0], 'err')[-1500:]}"
        good = [rank for rank in survivors if self.processes[rank].returncode == 0]
        return {rank: t - began for rank, t in told.items()}, f"process {good} ended with status 0" if good else ""

    def finish(self, timeout: float) -> str:
        """What is wrong with a run that must come to its end."""
        end = time.monotonic() + timeout
        for rank, process in self.processes.items():
            try:
                process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                return f"process {rank} did not end: {self.text(rank, 'err')[-1500:]}"
            if process.returncode != 0:
                return f"process {rank} ended with {process.returncode}: {self.text(rank, 'err')[-1500:]}"
        results = {tuple(re.findall(r"^result (\w+)$", self.text(rank, "err"), re.M)) for rank in self.processes}
        return "" if len(results) == 1 and results != {()} else f"the results differ: {results}"

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)  # also where it is stopped
            process.wait()


@contextlib.contextmanager
def _strangers(port: int, seed: int) -> Iterator[list[int]]:
    """People without the secret connect, send, stay, and go."""
    stop, rng, count, kept = threading.Event(), random.Random(seed), [0], []

    def work() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                connection = socket.create_connection(("127.0.0.1", port), timeout=0.5)
                count[0] += 1
                connection.sendall(rng.choice([b"null\n", b"[" * 100_000, rng.randbytes(300), b"GET / HTTP/1.1\r\n\r\n", b""]))
                if rng.random() < 0.2 and len(kept) < 300:
                    kept.append(connection)
                else:
                    connection.close()
            time.sleep(0.002)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield count
    finally:
        stop.set()
        thread.join()
        for connection in kept:
            connection.close()


def _one(fault: Fault, count: int, seed: int) -> tuple[dict[int, float], str, _Run]:
    rng = random.Random(seed)
    victim = fault.rank if fault.rank is not None else rng.randrange(count)
    if fault.how == "missing":
        victim = rng.randrange(1, count)  # without the first nobody is there to wait for
    run = _Run(fault, count, victim, rng.uniform(1, 4))
    try:
        if fault.how == "strangers":
            with _strangers(run.port, seed):
                run.start_all()
                return {}, run.finish(PATIENCE), run
        if fault.how == "taken port":
            with socket.create_server(("127.0.0.1", run.port)):
                run.victim = -1
                run.start_all()
                return *run.watch(PATIENCE), run
        run.start_all()
        found = ({}, run.finish(PATIENCE)) if not fault.text else run.watch(PATIENCE)
        return *found, run
    finally:
        run.close()


def run(budget: Budget) -> Report:
    """Every fault with two and with four processes, in an order that the seed decides; then again with other victims."""
    report, lock, rng = Report(), threading.Lock(), random.Random(budget.seed)
    plan: list[tuple[Fault, int]] = []
    worst: dict[str, float] = {}
    late: list[str] = []
    aborted = early = 0

    def work() -> None:
        nonlocal aborted, early
        while True:
            with lock:
                if not budget.allows(report.runs):
                    return
                if not plan:
                    plan.extend((fault, count) for fault in FAULTS for count in (2, 4))
                    rng.shuffle(plan)
                fault, count = plan.pop()
                report.runs += 1
                seed = budget.seed * 1000 + report.runs
            seconds, wrong, made = _one(fault, count, seed)
            with lock:
                aborted, early = aborted + made.aborted, early + made.is_early
                if wrong:
                    report.fail(f"one of {count} {fault.how}: {wrong}")
                if seconds:
                    longest = max(seconds.values())
                    worst[fault.how] = max(worst.get(fault.how, 0.0), longest)
                    report.took(longest)
                    if longest > fault.goal:
                        late.append(f"{fault.how} {longest:.1f} s")

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work) for _ in range(2)]:
            done.result()
    times = ", ".join(f"{how} {seconds:.1f}" for how, seconds in sorted(worst.items(), key=lambda item: item[1]))
    report.notes = f"longest seconds until a survivor had its error: {times}"
    report.notes += f"; beyond the goal: {', '.join(late)}" if late else ""
    if early:
        report.notes += f"; runs whose short timeout struck before the fault: {early}"
    if aborted:
        report.notes += f"; survivors that Gloo aborted without one: {aborted}"
    return report
