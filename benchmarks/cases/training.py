"""Train steps on batches of 100, fed with NumPy arrays: MLP and LeNet, synchronous and asynchronous."""

from __future__ import annotations

from pathlib import Path

from ..effort import Effort
from ..process import Contender
from ..race import Race, race
from ..report import Check, Section, megabytes, milliseconds

OURS, OURS_ASYNC = "ours, synchronous", "ours, asynchronous"
JAX, JAX_ASYNC = "hand-written JAX, synchronous", "hand-written JAX, asynchronous"
EAGER, COMPILED = "PyTorch eager", "PyTorch torch.compile"
MODELS = {"mlp": "MLP 784-512-10", "lenet": "LeNet"}


def contenders(model: str, torch_compile: bool) -> list[Contender]:
    found = [
        Contender(OURS, f"benchmarks.ours.{model}"),
        Contender(JAX, f"benchmarks.handwritten.{model}_jax"),
        Contender(OURS_ASYNC, f"benchmarks.ours.{model}", {"asynchronous": True}),
        Contender(JAX_ASYNC, f"benchmarks.handwritten.{model}_jax", {"asynchronous": True}),
        Contender(EAGER, f"benchmarks.pytorch.{model}"),
    ]
    return [*found, Contender(COMPILED, f"benchmarks.pytorch.{model}", {"compiled": True})] if torch_compile else found


def checks(model: str, result: Race) -> list[Check]:
    """Speed of ours relative to others: their time by ours."""
    wanted = [
        (JAX, OURS, 0.97),
        (JAX_ASYNC, OURS_ASYNC, 0.97),
        (EAGER, OURS, 1.0 if model == "mlp" else None),
        (COMPILED, OURS, None),
        (OURS, OURS_ASYNC, None),
    ]
    found = []
    for theirs, ours, bound in wanted:
        ratio = result.ratio(theirs, ours)
        if ratio is not None:
            found.append(Check(f"speed of {ours} / {theirs}", ratio, bound))
    return found


def section(model: str, result: Race) -> Section:
    made = Section(
        f"{MODELS[model]}, batch 100", "Milliseconds per step. CPU time counts all threads.",
        ["", "median", "quartiles", "best", "CPU time", "peak memory, MB", "last loss"],
        checks=checks(model, result),
        failures=result.failures, quiet=result.quiet(),
        raw={"seconds": result.seconds, "cpu": result.cpu},
    )  # fmt: skip
    for label in result.seconds:
        memory = result.memory[label]
        used = [f"{result.cpu_ms(label):.1f}", megabytes(memory["peak"]), f"{memory['loss']:.3f}"]
        made.rows.append([label, *milliseconds(result.spread(label)), *used])
    return made


def measure(effort: Effort, data: Path) -> list[Section]:
    sections = []
    for model in MODELS:
        seconds = effort.seconds * (2 if model == "lenet" else 1)
        result = race(contenders(model, effort.torch_compile), rounds=effort.rounds, seconds=seconds, data=data)
        sections.append(section(model, result))
    return sections
