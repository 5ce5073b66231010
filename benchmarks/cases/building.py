"""Train jobs of ever more dense layers: building should take time in proportion; XLA's compile is reported beside it.

Then the first calls of two processes, the second of which finds the program that the first one has left on disk.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from ..effort import Effort
from ..process import Contender, ContenderFailed, Process
from ..report import Check, Section
from ..stats import Ratio, Spread

FIRST, SECOND, JAX = "ours", "ours, second process", "hand-written JAX"
COMPILE = "backend_compile_duration"


def measure(effort: Effort, data: Path) -> list[Section]:
    made = Section(
        "Building jobs of many dense layers",
        "Train jobs of 16-wide dense layers with momentum, one process, one after the other; no compilation cache. "
        "Building is all of the first call but XLA's compile: the body, gradients, initial values, lowering, one step.",
        ["layers", *(f"{who}: {what}" for who in ("ours", "by hand") for what in ("building, s", "ms a layer", "XLA, s"))],
    )
    ours = _sizes(Contender("ours", "benchmarks.ours.dense_stack", environment={"ONEFLOW_CACHE_DIR": ""}), effort, made)
    theirs = _sizes(Contender("hand-written JAX", "benchmarks.handwritten.dense_stack_jax"), effort, made)
    for layers in effort.stacks:
        row = [str(layers)]
        for answers in (ours, theirs):
            if layers in answers:
                build, xla = _apart(answers[layers])
                row += [f"{build:.2f}", f"{build / layers * 1e3:.2f}", f"{xla:.2f}"]
            else:
                row += ["", "", ""]
        made.rows.append(row)
    made.raw = {"ours": ours, "hand-written": theirs}
    small, large = effort.stacks[1], effort.stacks[-1]
    if small in ours and large in ours:
        value = _apart(ours[large])[0] / large / (_apart(ours[small])[0] / small)
        text = f"building a layer of {large} / a layer of {small} (linear: 1)"
        made.checks.append(Check(text, Ratio(value, value, value), 1.3, at_least=False))
    return [made, *(_processes(layers, effort) for layers in effort.stacks[-2:])]


def _processes(layers: int, effort: Effort) -> Section:
    """CPU time, with that of XLA's threads: the machine may be busy."""
    made = Section(
        f"Building a job of {layers} dense layers in a second process",
        "Seconds of CPU time of the first call, in processes that have made a job of two layers; rounds in turns.",
        ["", "least", "median"],
    )
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(max(effort.starts, 3)):
        with tempfile.TemporaryDirectory() as folder:
            ours = Contender(FIRST, "benchmarks.ours.dense_stack", environment={"ONEFLOW_CACHE_DIR": folder})
            runs = {FIRST: ours, JAX: Contender(JAX, "benchmarks.handwritten.dense_stack_jax"), SECOND: ours}
            for label, contender in runs.items():
                try:
                    with Process(contender, None) as process:
                        process.ask("start", module=contender.module, options={"layers": 2})
                        answer = process.ask("start", module=contender.module, options={"layers": layers})
                except ContenderFailed as error:
                    made.failures[label] = str(error)
                    continue
                seconds[label].append(answer["cpu"])
    for label in (FIRST, SECOND, JAX):
        if seconds[label]:
            made.rows.append([label, f"{min(seconds[label]):.2f}", f"{Spread.of(seconds[label]).median:.2f}"])
    made.raw = dict(seconds)
    for label, other, bound in ((SECOND, FIRST, 0.35), (FIRST, JAX, 1.0)):
        if seconds[label] and len(seconds[label]) == len(seconds[other]):
            ratio = Ratio.paired(seconds[label], seconds[other])
            made.checks.append(Check(f"CPU time of {label} / {other}", ratio, bound, at_least=False))
    return made


def _apart(answer: dict[str, Any]) -> tuple[float, float]:
    xla = answer["phases"].get(COMPILE, 0.0)
    return answer["build"] - xla, xla


def _sizes(contender: Contender, effort: Effort, made: Section) -> dict[int, dict[str, Any]]:
    answers: dict[int, dict[str, Any]] = {}
    try:
        with Process(contender, None) as process:
            # the first job pays for imports and first uses
            for layers in (2, *effort.stacks):
                answers[layers] = process.ask("start", module=contender.module, options={"layers": layers})
    except ContenderFailed as error:
        made.failures[contender.label] = str(error)
    return answers
