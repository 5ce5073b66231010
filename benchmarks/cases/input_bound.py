"""A loop whose host work takes about as long as its step: asynchronous calls overlap the two."""

from __future__ import annotations

from pathlib import Path

from ..effort import Effort
from ..process import Contender, ContenderFailed, Process
from ..race import calibrated, race
from ..report import Check, Section, milliseconds
from .training import JAX, JAX_ASYNC, MODELS, OURS, OURS_ASYNC

TRIES = 10  # the best of so many shows how long something takes on a quiet machine


def measure(effort: Effort, data: Path) -> list[Section]:
    return [_model(model, effort, data) for model in MODELS]


def _passes(model: str, seconds: float, data: Path) -> tuple[int, float, float]:
    """How often to normalise a batch so that preparing it takes as long as a step; seconds of a step and of preparing."""
    with Process(Contender(OURS, f"benchmarks.ours.{model}"), data) as process:
        process.start()
        steps = calibrated(process, seconds)

        def preparing(passes: int, times: int) -> float:
            return min(process.ask("preprocess", passes=passes, times=times)["seconds"] for _ in range(TRIES))

        step = min(process.ask("run", steps=steps)["seconds"] / steps for _ in range(TRIES))
        base = preparing(0, 10)
        one = (preparing(10, 5) - base) / 10
        passes = max(0, round((step - base) / one))
        return passes, step, preparing(passes, 3)


def _model(model: str, effort: Effort, data: Path) -> Section:
    made = Section(f"Input-bound loop, {MODELS[model]}", "", ["", "median, ms per step", "quartiles", "best", "CPU time"])
    try:
        passes, step, prepare = _passes(model, effort.seconds, data)
    except ContenderFailed as error:
        made.failures[OURS] = str(error)
        return made
    made.note = (
        f"Each batch is shifted, normalised and made noisy by NumPy before its step: {prepare * 1e3:.2f} ms of host work, "
        f"the step alone {step * 1e3:.2f} ms."
    )
    options = {"passes": passes}
    contenders = [
        Contender(OURS, f"benchmarks.ours.{model}", options),
        Contender(OURS_ASYNC, f"benchmarks.ours.{model}", {**options, "asynchronous": True}),
        Contender(JAX, f"benchmarks.handwritten.{model}_jax", options),
        Contender(JAX_ASYNC, f"benchmarks.handwritten.{model}_jax", {**options, "asynchronous": True}),
    ]
    seconds = effort.seconds * (4 if model == "lenet" else 1)
    result = race(contenders, rounds=effort.rounds, seconds=seconds, data=data)
    made.failures.update(result.failures)
    made.quiet = result.quiet()
    made.raw = {"seconds": result.seconds, "cpu": result.cpu, "passes": passes, "step": step, "prepare": prepare}
    for label in result.seconds:
        made.rows.append([label, *milliseconds(result.spread(label)), f"{result.cpu_ms(label):.1f}"])
    # LeNet's step keeps both of two cores busy by itself: overlapping cannot gain as much there
    wanted = 1.25 if model == "mlp" else None
    for sync, later, bound in ((OURS, OURS_ASYNC, wanted), (JAX, JAX_ASYNC, None), (JAX_ASYNC, OURS_ASYNC, None)):
        ratio = result.ratio(sync, later)
        if ratio is not None:
            made.checks.append(Check(f"speed of {later} / {sync}", ratio, bound))
    return made
