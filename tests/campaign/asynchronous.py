"""Very many asynchronous steps: memory stays flat, callbacks come in order; sync = async = resumed, bit for bit."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from typing import Any

import oneflow.typing as tp

from . import jobs
from .children import PATIENCE, Child, running
from .report import Budget, Report

FLAT = 5_000_000  # bytes that memory may grow by after the warm-up
_BATCHES = 64
_PIECE = 1000
_LEAST = 4 * _PIECE  # steps, also where the time is up before


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _train(kind: str, count: int, seconds: float, path: str) -> None:
    """Trains ``count`` steps, or as many as the time allows, and prints a digest of all losses for each thousand."""
    import oneflow as flow

    batches = [jobs.batch(n) for n in range(_BATCHES)]
    resident, begun, checked = [], time.monotonic(), 0
    losses, order = hashlib.sha256(), True
    train = jobs.declare(tp.Numpy if kind == "sync" else tp.Callback[tp.Numpy])

    def take(value: Any, number: int) -> None:
        nonlocal checked, order
        order = order and number == checked
        checked += 1
        losses.update(value.tobytes())

    step = 0
    while step < count and (time.monotonic() - begun < seconds or step < _LEAST):
        for _ in range(_PIECE):
            if kind == "sync":
                take(train(batches[step % _BATCHES]), step)
            else:
                train(batches[step % _BATCHES])(lambda value, number=step: take(value, number))
            step += 1
        flow.sync_default_session()
        resident.append(_resident())
        print("losses", step, losses.hexdigest(), flush=True)
        if kind == "resumed" and step == max(count // (2 * _PIECE), 1) * _PIECE:
            flow.checkpoint.save(path)
            flow.clear_default_session()
            train = jobs.declare(tp.Callback[tp.Numpy])
            flow.load_variables(flow.checkpoint.get(path))
            resident.clear()
    warm = resident[len(resident) // 10]
    print(
        "end", step, int(order and checked == step), max(resident[len(resident) // 10 :]) - warm, resident[-1] - warm, flush=True
    )
    print("state", jobs.digest(jobs.state()), flush=True)


def _rows(child: Child) -> dict[str, list[str]]:
    return {" ".join(row[:2]): row[2:] for row in (line.split() for line in child.output.splitlines())}


def run(budget: Budget) -> Report:
    """The asynchronous run first, for a third of the time; the others then make as many steps."""
    report, found, count = Report(), {}, -(-budget.count // _PIECE) * _PIECE
    for kind in ("async", "sync", "resumed"):
        limit = budget.left / 3 if kind == "async" else float("inf")
        with running(_train, kind, count, limit, f"{tempfile.mkdtemp(prefix='steps-')}/half") as child:
            begun = time.monotonic()
            status = child.wait(4 * max(budget.left, 0.0) + PATIENCE)
            if status != 0:
                report.fail(f"{kind}: ended with {status}: {child.errors}")
                return report
            found[kind] = _rows(child)
        (end,) = (key for key in found[kind] if key.startswith("end"))
        count = int(end.split()[1])
        report.runs += count
        report.took(1000 * (time.monotonic() - begun) / count)
        ordered, most, last = map(int, found[kind][end])
        found[kind].pop(end)
        if not ordered:
            report.fail(f"{kind}: callbacks did not come once each, in order")
        if kind == "async":
            grew = f"at most {most / 1e6:+.2f} MB, at the end {last / 1e6:+.2f} MB"
            report.notes = f"{count:,} steps each way; memory after the warm-up: {grew}"
        if last > FLAT:
            report.fail(f"{kind}: memory grew by {last / 1e6:.1f} MB after the warm-up")
    for kind in ("sync", "resumed"):
        if found[kind] != found["async"]:
            at = next((key for key in found["async"] if found[kind].get(key) != found["async"][key]), "the end")
            report.fail(f"{kind} and asynchronous runs differ at {at}")
    report.notes += "; the worst time is milliseconds per step"
    return report
