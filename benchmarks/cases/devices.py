"""Several virtual CPU devices: the same total work on one and on many, against the same sharded step by hand, and in stages."""

from __future__ import annotations

from pathlib import Path

from ..effort import Effort
from ..process import Contender
from ..race import Race, race
from ..report import Check, Section, milliseconds

ONE, FOUR, EIGHT = "ours, 1 device", "ours, 4 devices", "ours, 8 devices"
FOUR_JAX, ONE_JAX = "hand-written JAX, 4 devices", "hand-written JAX, 1 device"
STAGES, MICRO = "ours, layers on 2 devices", "ours, layers on 2 devices, 4 micro-batches"
APART, TOGETHER = "halves on a device each", "both halves on one device"
MODELS = {"mlp": ("MLP", 100), "lenet": ("LeNet", 100), "resnet50": ("ResNet-50, 64 x 64", 8)}
ONE_OF, TWO_OF, TWO_JAX = "ours, 1 device", "ours, 2 devices", "hand-written JAX, 2 devices"


def measure(effort: Effort, data: Path) -> list[Section]:
    training = race(
        [
            Contender(ONE, "benchmarks.ours.mlp_devices", {"devices": 1}),
            Contender(FOUR, "benchmarks.ours.mlp_devices", {"devices": 4}),
            Contender(EIGHT, "benchmarks.ours.mlp_devices", {"devices": 8}),
            Contender(ONE_JAX, "benchmarks.handwritten.mlp_sharded_jax", {"devices": 1}),
            Contender(FOUR_JAX, "benchmarks.handwritten.mlp_sharded_jax", {"devices": 4}),
            Contender(STAGES, "benchmarks.ours.mlp_devices", {"devices": 2, "stages": True}),
            Contender(MICRO, "benchmarks.ours.mlp_devices", {"devices": 2, "stages": True, "micro_batches": 4}),
        ],
        rounds=effort.rounds, seconds=effort.seconds, data=data,
    )  # fmt: skip
    halves = race(
        [
            Contender(TOGETHER, "benchmarks.ours.two_stages", {"places": ["0:0", "0:0"]}),
            Contender(APART, "benchmarks.ours.two_stages", {"places": ["0:0", "0:1"]}),
        ],
        rounds=effort.rounds, seconds=effort.seconds, data=None,
    )  # fmt: skip
    return [
        _section("MLP on virtual devices, batch 100", training, [(FOUR_JAX, FOUR, 0.95), (ONE, FOUR, None), (ONE, EIGHT, None)]),
        _section("Predict job in two stages, asynchronous calls", halves, [(TOGETHER, APART, None)]),
        *(_shared(model, effort) for model in MODELS),
    ]


def _shared(model: str, effort: Effort) -> Section:
    """Training steps of a model whose batch two devices share, beside one device, and beside the same by hand."""
    title, batch = MODELS[model]
    options = {"model": model, "mode": "train", "batch": batch}
    two = {**options, "devices": 2}
    result = race(
        [
            Contender(ONE_OF, "benchmarks.models.in_oneflow", {**options, "devices": 1}),
            Contender(TWO_OF, "benchmarks.models.in_oneflow", two),
            Contender(TWO_JAX, "benchmarks.models.in_jax", {**two, "best": True}, {"JAX_NUM_CPU_DEVICES": "2"}),
        ],
        rounds=effort.rounds, seconds=effort.seconds, data=None,
    )  # fmt: skip
    return _section(f"{title}, batch {batch} on two devices", result, [(ONE_OF, TWO_OF, 0.9), (TWO_JAX, TWO_OF, 1.0)])


def _section(title: str, result: Race, wanted: list[tuple[str, str, float | None]]) -> Section:
    made = Section(
        title, "Milliseconds per call.", ["", "median", "quartiles", "best"], failures=result.failures, quiet=result.quiet(),
        raw={"seconds": result.seconds},
    )  # fmt: skip
    made.rows = [[label, *milliseconds(result.spread(label))] for label in result.seconds]
    for theirs, ours, bound in wanted:
        ratio = result.ratio(theirs, ours)
        if ratio is not None:
            made.checks.append(Check(f"speed of {ours} / {theirs}", ratio, bound))
    return made
