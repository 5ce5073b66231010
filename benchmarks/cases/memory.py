"""Very many asynchronous steps: memory should stay where it is after the first tenth."""

from __future__ import annotations

from pathlib import Path

from ..effort import Effort
from ..process import Contender, ContenderFailed, Process
from ..report import Check, Section, megabytes
from ..stats import Ratio

TENTHS = 10


def measure(effort: Effort, data: Path) -> list[Section]:
    made = Section(
        f"Memory over {effort.memory_steps:,} asynchronous steps",
        "A small train job, fed with a new array each step. MB of resident memory, sampled as it runs: the most in each tenth.",
        [*(f"{10 * (i + 1)} %" for i in range(TENTHS))],
    )
    highest: list[int] = []
    try:
        with Process(Contender("ours", "benchmarks.ours.small_train"), None) as process:
            process.start()
            seconds = 0.0
            for _ in range(TENTHS):
                answer = process.ask("run", steps=effort.memory_steps // TENTHS, memory_every=0.05)
                seconds += answer["seconds"]
                highest.append(max([*answer["samples"], process.ask("memory")["now"]]))
    except ContenderFailed as error:
        made.failures["ours"] = str(error)
        return [made]
    made.rows.append([megabytes(h) for h in highest])
    made.note += f" {seconds / effort.memory_steps * 1e6:.0f} µs a step."
    made.raw = {"bytes": highest, "seconds": seconds}
    growth = max(highest[1:]) / highest[0]
    made.checks.append(Check("most after the first tenth / most in it", Ratio(growth, growth, growth), 1.02, at_least=False))
    return [made]
