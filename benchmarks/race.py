"""Contenders side by side: in each round each of them works once, alone, in an order that rotates."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .process import Contender, ContenderFailed, Process
from .stats import Ratio, Spread

PAUSE = 0.02  # seconds between turns: threads of the last one stop spinning


@dataclass
class Race:
    """Seconds a step of each contender, a round an entry; all lists are equally long."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    started: dict[str, dict[str, Any]] = field(default_factory=dict)
    memory: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def spread(self, label: str) -> Spread:
        return Spread.of(self.seconds[label])

    def ratio(self, above: str, below: str) -> Ratio | None:
        """Time of one by time of another, None where one of them did not run."""
        if above not in self.seconds or below not in self.seconds:
            return None
        return Ratio.paired(self.seconds[above], self.seconds[below])


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
    """Lets them run for about ``seconds`` a turn. One that fails is named in ``failures`` and left out."""
    result = Race()
    with ExitStack() as stack:
        running: dict[str, Process] = {}
        for contender in contenders:
            if contender.needs_torch and not has_torch():
                result.failures[contender.label] = "torch is not installed"
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
        result.seconds = {label: [] for label in running}
        result.cpu = {label: [] for label in running}
        for turn in range(rounds):
            order = list(running)
            first = turn % max(len(order), 1)
            for label in order[first:] + order[:first]:
                time.sleep(PAUSE)
                answer = running[label].ask("run", steps=steps[label])
                result.seconds[label].append(answer["seconds"] / steps[label])
                result.cpu[label].append(answer["cpu"] / steps[label])
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
