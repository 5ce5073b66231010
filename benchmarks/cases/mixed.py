"""Training steps in mixed precision beside the same in float32, and PyTorch's autocast: same weights, same data.

The goals are those of CPUs that multiply bfloat16 numbers (AVX-512 BF16, AMX). Others have none: results are the same there,
and steps take longer.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from oneflow._base.native import multiplies_bfloat16

from ..effort import Effort
from ..process import Contender
from ..race import Race, race
from ..report import Check, Section, milliseconds
from .models import EAGER, OURS, TITLES, agreed, contenders

MIXED, AUTOCAST = "ours, mixed precision", "PyTorch's autocast"
# Relative, of the first mean loss and of the next one, which bfloat16 moves by up to a tenth where there is batch normalization.
AGREE = (0.02, 0.1)
# model, batch, then how many times as fast as our float32, and as PyTorch's autocast, mixed precision should be
CASES: list[tuple[str, int, float | None, float | None]] = [
    ("resnet50", 8, 1.5, 1.3),
    ("bert_small", 8, 2.0, None),
    ("gpt6", 8, None, 1.3),
    ("lenet", 100, 1.0, None),
    ("mobilenet_v2", 8, 1.0, None),
]


def section(title: str, result: Race, bounds: dict[str, float | None]) -> Section:
    made = Section(
        title, "Milliseconds per step. CPU time counts all threads.", ["", "median", "quartiles", "best", "CPU time"],
        failures=result.failures, quiet=result.quiet(), page="performance", raw={"seconds": result.seconds, "cpu": result.cpu},
    )  # fmt: skip
    for label in result.seconds:
        made.rows.append([label, *milliseconds(result.spread(label)), f"{result.cpu_ms(label):.1f}"])
    for label, bound in bounds.items():
        ratio = result.ratio(label, MIXED)
        if ratio is not None:
            made.checks.append(Check(f"speed in mixed precision / {label}", ratio, bound))
    return made


def measure(effort: Effort, data: Path) -> list[Section]:
    sections, has_goals = [], multiplies_bfloat16()
    for model, batch, float32, autocast in CASES:
        plain = {c.label: c for c in contenders(model, "train", batch, False) if c.label in (OURS, EAGER)}
        mixed = [
            replace(plain[of], label=label, options={**plain[of].options, "precision": "bfloat16"})
            for of, label in ((OURS, MIXED), (EAGER, AUTOCAST))
        ]
        taking_part: list[Contender] = [*plain.values(), *mixed]
        seconds = effort.seconds * {"lenet": 2, "bert_small": 6, "gpt6": 6}.get(model, 4)
        result = race(
            taking_part, rounds=max(7, effort.rounds // 2 + 1), seconds=seconds, data=None,
            before=lambda running: agreed(running, AGREE),
        )  # fmt: skip
        bounds = {OURS: float32, AUTOCAST: autocast} if has_goals else {OURS: None, AUTOCAST: None}
        title = f"{TITLES[model]}, training in mixed precision, batch of {batch}"
        sections.append(section(title, result, {**bounds, EAGER: None}))
    return sections
