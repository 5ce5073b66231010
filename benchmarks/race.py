"""Contenders side by side: in each round each of them works once, alone, in a new random order."""

from __future__ import annotations

import importlib.util
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .busy import TOO_BUSY, Busy, told
from .process import Contender, ContenderFailed, Process
from .stats import Ratio, Spread

PAUSE = 0.05  # seconds between turns: threads of the last one stop spinning
PATIENCE = 3  # times as many rounds as wanted are run, at most, where others use the machine


@dataclass
class Race:
    """Seconds a step of each contender, a round an entry; all lists are equally long."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    started: dict[str, dict[str, Any]] = field(default_factory=dict)
    memory: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    discarded: int = 0  # rounds
    others: float = 0.0  # part of the machine that others used in the worst round that was kept

    def quiet(self) -> str:
        """How quiet the machine was, in a sentence."""
        again = f", {self.discarded} busier rounds discarded" if self.discarded else ""
        return told(self.others, f"at most, in a turn{again}")

    def spread(self, label: str) -> Spread:
        return Spread.of(self.seconds[label])

    def cpu_ms(self, label: str) -> float:
        """CPU time of a step, of all threads, in milliseconds: the median of the rounds."""
        return Spread.of(self.cpu[label]).median * 1e3

    def ratio(self, above: str, below: str) -> Ratio | None:
        """Time of one by time of another, None where one of them did not run."""
        if above not in self.seconds or below not in self.seconds:
            return None
        return Ratio.paired(self.seconds[above], self.seconds[below])


@dataclass(frozen=True)
class Round:
    answers: dict[str, dict[str, Any]]
    others: float


def in_turns(running: dict[str, Process], steps: dict[str, int], number: int) -> Round:
    """Everybody once; and how busy others were while ours worked, at the worst of the turns."""
    answers, others = {}, 0.0
    order = list(running)
    random.Random(number).shuffle(order)  # nobody always comes after the same one
    for label in order:
        time.sleep(PAUSE)
        busy = Busy()
        answers[label] = running[label].ask("run", steps=steps[label])
        others = max(others, busy.share(answers[label]["cpu"]))
    return Round(answers, others)


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def race(
    contenders: Sequence[Contender],
    *,
    rounds: int,
    seconds: float,
    data: Path | None,
    before: Callable[[dict[str, Process]], None] | None = None,
) -> Race:
    """Lets them run for about ``seconds`` a turn. One that fails is named in ``failures`` and left out.

    Rounds in which others used the machine are repeated, within reason; the quietest ``rounds`` are kept.
    """
    result = Race()
    with ExitStack() as stack:
        running: dict[str, Process] = {}
        for contender in contenders:
            if contender.needs_torch and not has_torch():
                result.failures[contender.label] = "torch is not installed"
                continue
            if contender.python == "":
                result.failures[contender.label] = "its environment was not named (python -m benchmarks.environments makes it)"
                continue
            process = stack.enter_context(Process(contender, data))
            try:
                result.started[contender.label] = process.start()
                running[contender.label] = process
            except ContenderFailed as error:
                result.failures[contender.label] = str(error)
        if before is not None:
            before(running)
        steps = {label: calibrated(process, seconds) for label, process in running.items()}
        turns: list[Round] = []
        while running and len(turns) < rounds * PATIENCE and sum(t.others < TOO_BUSY for t in turns) < rounds:
            turns.append(in_turns(running, steps, len(turns)))
        kept = sorted(sorted(range(len(turns)), key=lambda i: turns[i].others)[:rounds])
        result.discarded, result.others = len(turns) - len(kept), max((turns[i].others for i in kept), default=0.0)
        for label in running:
            result.seconds[label] = [turns[i].answers[label]["seconds"] / steps[label] for i in kept]
            result.cpu[label] = [turns[i].answers[label]["cpu"] / steps[label] for i in kept]
        for label, process in running.items():
            result.memory[label] = process.ask("memory")
    return result


def calibrated(process: Process, seconds: float) -> int:
    """How many steps take about that long; warms the process up on the way."""
    steps = 1
    while True:
        took = process.ask("run", steps=steps)["seconds"]
        if took >= seconds / 4:
            return max(1, round(steps * seconds / took))
        steps = max(steps * 2, min(steps * 20, round(steps * seconds / 2 / max(took, 1e-6))))
