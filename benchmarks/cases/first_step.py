"""From a fresh process to the first loss: import, build, compile, one step. Then again with the compiled program kept."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from ..effort import Effort
from ..process import Contender, ContenderFailed, Process
from ..report import Check, Section
from ..stats import Ratio, Spread
from .training import MODELS

COLD, WARM, JAX, JAX_WARM = "ours", "ours, second process", "hand-written JAX", "hand-written JAX, its cache on, second process"


def measure(effort: Effort, data: Path) -> list[Section]:
    return [_model(model, effort, data) for model in MODELS]


def _contender(label: str, model: str, cache: str) -> Contender:
    if label in (COLD, WARM):
        return Contender(label, f"benchmarks.ours.{model}", environment={"ONEFLOW_CACHE_DIR": cache})
    cached = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return Contender(label, f"benchmarks.handwritten.{model}_jax", environment=cached if label == JAX_WARM else {})


def _model(model: str, effort: Effort, data: Path) -> Section:
    made = Section(
        f"First step, {MODELS[model]}",
        "Seconds, medians of fresh processes; Python's and NumPy's own start not counted. "
        "The caches start empty, the second processes find what one before them left.",
        ["", "import", "start of XLA", "build, compile, one step", "of it XLA's compile", "together", "quartiles", "CPU time"],
    )
    answers: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for _ in range(effort.starts):
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = f"{folder}/ours", f"{folder}/jax"
            runs = [(COLD, ours), (JAX, ""), (WARM, ours), (JAX_WARM, theirs), (JAX_WARM, theirs)]
            for i, (label, cache) in enumerate(runs):
                try:
                    with Process(_contender(label, model, cache), data) as process:
                        answer = process.start()
                        answer["step"] = process.ask("run", steps=5)["seconds"] / 5
                except ContenderFailed as error:
                    made.failures[label] = str(error)
                    continue
                if i != 3:  # it only filled the cache
                    answers[label].append(answer)
    for label in (COLD, JAX, WARM, JAX_WARM):
        got = answers.get(label)
        if got:
            total = Spread.of([a["total"] for a in got])
            medians = [Spread.of([a[key] for a in got]).median for key in ("import", "backend", "build")]
            xla = Spread.of([a["phases"].get("backend_compile_duration", 0.0) for a in got]).median
            seconds = [f"{m:.2f}" for m in [*medians, xla, total.median]]
            cpu = Spread.of([a["cpu"] for a in got]).median
            made.rows.append([label, *seconds, f"{total.low:.2f} .. {total.high:.2f}", f"{cpu:.2f}"])
    made.raw = dict(answers)
    if answers[COLD] and answers[JAX] and len(answers[COLD]) == len(answers[JAX]):
        ratio = Ratio.paired([a["total"] for a in answers[COLD]], [a["total"] for a in answers[JAX]])
        made.checks.append(Check("time of ours / hand-written JAX, together", ratio, 1.3, at_least=False))
    if answers[COLD] and len(answers[COLD]) == len(answers[WARM]):
        warm, cold = ([a["build"] - a["step"] for a in answers[label]] for label in (WARM, COLD))
        text = "build and compile of a second process / of the first"
        made.checks.append(Check(text, Ratio.paired(warm, cold), 0.5, at_least=False))
    return made
