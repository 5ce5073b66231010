"""``flow.Trainer`` with a progress bar, CSV and TensorBoard against a bare asynchronous loop over the same job."""

from __future__ import annotations

from pathlib import Path

from ..effort import Effort
from ..process import Contender
from ..race import race
from ..report import Check, Section, milliseconds

MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "mlp": ("MLP 784-1024-10", {"hidden": 1024}),  # of about 1.5 ms per step
    "lenet": ("LeNet", {}),
}

BARE = "bare asynchronous loop"
TRAINER = "Trainer, nothing reported"
REPORTS = "Trainer, progress bar, CSV and TensorBoard"
EVERY_STEP = "the same, each step logged"
BOUND = 1.03


def measure(effort: Effort, data: Path) -> list[Section]:
    sections = []
    for model, (title, sizes) in MODELS.items():
        contenders = [
            Contender(BARE, f"benchmarks.ours.{model}", {"asynchronous": True, **sizes}),
            Contender(TRAINER, "benchmarks.ours.trained", {"model": model, "reports": False, **sizes}),
            Contender(REPORTS, "benchmarks.ours.trained", {"model": model, **sizes}),
            Contender(EVERY_STEP, "benchmarks.ours.trained", {"model": model, "log_every_n_steps": 1, **sizes}),
        ]
        # the bar is drawn ten times per second, files are written once per second: turns are longer than that
        result = race(contenders, rounds=effort.rounds, seconds=effort.seconds * 16, data=data)
        made = Section(
            f"What a trainer costs, {title}", "Milliseconds per step. Numbers are logged every 50 steps, except in the last row.",
            ["", "median", "quartiles", "best", "CPU time"],
            failures=result.failures, quiet=result.quiet(), raw={"seconds": result.seconds, "cpu": result.cpu},
        )  # fmt: skip
        for label in result.seconds:
            made.rows.append([label, *milliseconds(result.spread(label)), f"{result.cpu_ms(label):.2f}"])
        for label, bound in ((TRAINER, None), (REPORTS, BOUND), (EVERY_STEP, None)):
            ratio = result.ratio(label, BARE)
            if ratio is not None:
                made.checks.append(Check(f"time of {label} / {BARE}", ratio, bound, at_least=False))
        sections.append(made)
    return sections
