"""How much is measured: enough for a look (``QUICK``), or for the table in the docs (``FULL``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    name: str
    rounds: int
    seconds: float  # a turn
    starts: int  # repetitions of the first-step case
    stacks: tuple[int, ...]  # dense layers of the building case
    memory_steps: int
    torch_compile: bool


QUICK = Effort("quick", rounds=7, seconds=0.1, starts=1, stacks=(10, 50, 200), memory_steps=20_000, torch_compile=False)
FULL = Effort("full", rounds=25, seconds=0.25, starts=5, stacks=(10, 50, 200, 1000), memory_steps=100_000, torch_compile=True)
