"""Whole models, training and inference, side by side: ours, bare JAX (plain and best known), PyTorch, TensorFlow.

Same weights, same data; the first results of all must agree before anything is timed. TensorFlow has an environment of its own,
made by ``python -m benchmarks.environments FOLDER``; ``BENCHMARK_TENSORFLOW=FOLDER/bin/python`` then lets it take part.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..effort import Effort
from ..process import Contender, Process
from ..race import Race, race
from ..report import Check, Section, megabytes, milliseconds

SEPARATE = "ours, attention in separate ops"
OURS, WITHOUT, OURS_ASYNC = "ours", "ours, without the native part", "ours, asynchronous"
PLAIN, BEST = "JAX by hand, plain", "JAX by hand, best known"
FUSED_LSTM = "PyTorch nn.LSTM"
SPARSE = "PyTorch eager, sparse gradients"
EAGER, COMPILED, TENSORFLOW = "PyTorch eager", "PyTorch torch.compile", "TensorFlow"
TITLES = {"mlp": "MLP", "lenet": "LeNet", "resnet50": "ResNet-50, 64 x 64", "mobilenet_v2": "MobileNet-v2, 64 x 64",
          "bert_small": "BERT-small, 128 tokens", "gpt": "GPT of 4 layers of 256, 128 tokens",
          "gpt6": "GPT of 6 layers of 512, 128 tokens", "gpt_decode": "GPT of 4 layers of 256, cache of 256 tokens",
          "gpt6_decode": "GPT of 6 layers of 512, cache of 256 tokens", "lstm": "LSTM of 2 layers of 256, 32 steps",
          "gru": "GRU of 128, 128 steps that are unrolled", "recommender": "A table of 1,000,000 x 16, plain descent",
          "recommender_adam": "A table of 1,000,000 x 16, row-sparse Adam", "unet3d": "3-D U-Net, 32 x 32 x 32"}  # fmt: skip
MODES = {"train": "training", "predict": "inference", "decode": "one token per sample"}
# model, mode, batch, then what ours is held to: against the best peer, against PyTorch eager
CASES: list[tuple[str, str, int, float | None, float | None]] = [
    ("lenet", "train", 100, 1.05, 1.35),
    ("resnet50", "train", 8, 1.05, None),
    ("mobilenet_v2", "train", 8, None, None),
    ("bert_small", "train", 8, 1.0, None),
    ("gpt", "train", 8, None, None),
    ("gpt6", "train", 8, None, None),
    ("gpt6_decode", "decode", 1, None, 1.5),
    ("gpt6_decode", "decode", 8, None, 1.5),
    ("gpt_decode", "decode", 1, None, 1.5),
    ("gpt_decode", "decode", 8, None, 1.5),
    ("lstm", "train", 32, None, 1.0),
    ("gru", "train", 32, 1.0, None),
    ("recommender", "train", 512, 1.0, None),
    ("recommender_adam", "train", 512, 1.0, None),
    ("unet3d", "train", 2, None, 1.0),
    ("mlp", "train", 100, 1.0, None),
    ("lenet", "predict", 100, 1.1, None),
    ("lenet", "predict", 1, 1.0, None),
    ("resnet50", "predict", 8, None, 1.2),
]
WITH_CONVOLUTIONS = ("lenet", "resnet50", "mobilenet_v2", "unet3d")
IN_TENSORFLOW = ("mlp", "lenet", "resnet50", "mobilenet_v2", "bert_small")
# relative, of mean losses or mean absolute logits: of the first step, and of the next one, which shows the update. In networks
# whose batch normalization has 32 values to each channel, roundings alone make later steps differ without limit.
AGREE = (2e-3, 0.03)


def contenders(model: str, mode: str, batch: int, torch_compile: bool) -> list[Contender]:
    options = {"model": model, "mode": mode, "batch": batch}
    if model == "recommender_adam":  # JAX has no optimizer of rows alone
        return [Contender(OURS, "benchmarks.models.in_oneflow", options),
                Contender(SPARSE, "benchmarks.models.in_pytorch", {**options, "sparse": True})]  # fmt: skip
    found = [
        Contender(OURS, "benchmarks.models.in_oneflow", options),
        Contender(BEST, "benchmarks.models.in_jax", {**options, "best": True}),
        Contender(EAGER, "benchmarks.models.in_pytorch", options),
    ]
    if model == "recommender":
        found.append(Contender(SPARSE, "benchmarks.models.in_pytorch", {**options, "sparse": True}))
    if model == "lstm":
        found += [Contender(PLAIN, "benchmarks.models.in_jax", options),
                  Contender(FUSED_LSTM, "benchmarks.models.in_pytorch", {**options, "fused_lstm": True})]  # fmt: skip
    elif model in ("bert_small", "gpt6"):
        found.append(Contender(SEPARATE, "benchmarks.models.in_oneflow", {**options, "attention": False}))
    elif model in WITH_CONVOLUTIONS:
        found.insert(1, Contender(WITHOUT, "benchmarks.models.in_oneflow", {**options, "native": False}))
        found.append(Contender(PLAIN, "benchmarks.models.in_jax", options))
    if mode == "train":
        found.append(Contender(OURS_ASYNC, "benchmarks.models.in_oneflow", {**options, "asynchronous": True}))
    if torch_compile:
        found.append(Contender(COMPILED, "benchmarks.models.in_pytorch", {**options, "compiled": True}))
    python = os.environ.get("BENCHMARK_TENSORFLOW", "")
    if model not in IN_TENSORFLOW:
        return found
    return [*found, Contender(TENSORFLOW, "benchmarks.models.in_tensorflow", options, python=python)]


def agreed(running: dict[str, Process], limits: tuple[float, float] = AGREE) -> None:
    """Ends everything where somebody computes something else than the first one."""
    seen = {label: process.ask("firsts", steps=2)["firsts"] for label, process in running.items()}
    reference = next(iter(seen.values()), [])
    for label, values in seen.items():
        if any(abs(a - b) > limit * max(abs(b), 1e-3) for a, b, limit in zip(values, reference, limits, strict=False)):
            raise SystemExit(f"{label} computes something else than {next(iter(seen))}: {values} against {reference}")


def checks(result: Race, best_peer: float | None, eager: float | None) -> list[Check]:
    found = []
    peers = [p for p in (PLAIN, BEST, EAGER, FUSED_LSTM, SPARSE, COMPILED, TENSORFLOW) if p in result.seconds]
    fastest = min(peers, key=lambda p: result.spread(p).median, default=None)
    for label in peers:
        ratio = result.ratio(label, OURS)
        bound = best_peer if label == fastest else eager if label == EAGER else None
        if label == fastest == EAGER and best_peer is not None and eager is not None:
            bound = max(best_peer, eager)
        elif label == fastest and best_peer is None:
            bound = eager if label == EAGER else None
        if ratio is not None:
            found.append(Check(f"speed of ours / {label}{' (the best peer)' if label == fastest else ''}", ratio, bound))
    without = result.ratio(WITHOUT, OURS)
    separate = result.ratio(SEPARATE, OURS)
    found += [Check("speed of ours with / without the native part", without)] if without is not None else []
    return [
        *found,
        *([Check("speed of ours with attention in one call / in separate ops", separate)] if separate is not None else []),
    ]


def section(title: str, result: Race, best_peer: float | None, eager: float | None) -> Section:
    made = Section(
        title, "Milliseconds per step. CPU time counts all threads; the first step includes import and compilation.",
        ["", "median", "quartiles", "best", "p99", "per second", "CPU time", "first step, s", "peak memory, MB"],
        checks=checks(result, best_peer, eager), failures=result.failures, quiet=result.quiet(), page="performance",
        raw={"seconds": result.seconds, "cpu": result.cpu},
    )  # fmt: skip
    for label in result.seconds:
        p99, rate = result.memory[label].get("p99"), 1 / result.spread(label).median
        made.rows.append([
            label, *milliseconds(result.spread(label)), f"{p99 * 1e3:.2f}" if p99 else "", f"{rate:.1f}",
            f"{result.cpu_ms(label):.1f}", f"{result.started[label]['total']:.1f}", megabytes(result.memory[label]["peak"]),
        ])  # fmt: skip
    return made


def measure(effort: Effort, data: Path) -> list[Section]:
    sections = []
    for model, mode, batch, best_peer, eager in CASES:
        seconds = effort.seconds * {"lenet": 2, "mlp": 2, "bert_small": 6, "gpt": 6, "gpt6": 6}.get(model, 4)
        taking_part = contenders(model, mode, batch, effort.torch_compile)
        result = race(taking_part, rounds=max(7, effort.rounds // 2 + 1), seconds=seconds, data=None, before=agreed)
        sections.append(section(f"{TITLES[model]}, {MODES[mode]}, batch of {batch}", result, best_peer, eager))
    return sections
