"""Whole models on one accelerator: ours, bare JAX by hand, PyTorch eager and compiled, in float32, TF32 and bfloat16.

``scripts/on_gpu`` runs it. Batches are larger than those of the CPU's tables, so that a GPU has something to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..process import Contender
from ..race import Race, race
from ..report import Check, Section, milliseconds
from .models import BEST, COMPILED, EAGER, OURS, TITLES, agreed

PRECISIONS = ("float32", "tf32", "bfloat16")
CUDNN = "ours, attention by cuDNN"
WITH_ATTENTION = ("bert_small", "gpt")
BATCHES = {"mlp": 1024, "lenet": 1024, "resnet50": 256, "mobilenet_v2": 256, "bert_small": 64, "gpt": 64}
SHARED = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"}  # JAX takes three quarters of a GPU's memory by default
# see ``models.AGREE``: roundings to 8 or 11 bits differ from library to library
AGREE = {"float32": (2e-3, 0.03), "tf32": (1e-2, 0.1), "bfloat16": (5e-2, 0.3)}


def contenders(model: str, mode: str, batch: int, precision: str, device: str, torch_compile: bool) -> list[Contender]:
    """Who takes part; ``device`` is "gpu" or "cpu"."""
    options = {"model": model, "mode": mode, "batch": batch, "precision": precision, "device": device}
    found = [
        Contender(OURS, "benchmarks.models.in_oneflow", options, SHARED),
        Contender(BEST, "benchmarks.models.in_jax", {**options, "best": True}, SHARED),
        Contender(EAGER, "benchmarks.models.in_pytorch", options),
    ]
    if model in WITH_ATTENTION and precision == "bfloat16" and device == "gpu":
        found.insert(1, Contender(CUDNN, "benchmarks.models.in_oneflow", {**options, "cudnn_attention": True}, SHARED))
    return (
        [*found, Contender(COMPILED, "benchmarks.models.in_pytorch", {**options, "compiled": True})] if torch_compile else found
    )


def section(title: str, batch: int, result: Race) -> Section:
    """One table."""
    made = Section(
        title, "Milliseconds a step, with the batch fed from the host and the result fetched.",
        ["", "median", "quartiles", "best", "samples a second"], failures=result.failures, quiet=result.quiet(),
        page="performance", raw={"seconds": result.seconds},
    )  # fmt: skip
    for label in result.seconds:
        spread = result.spread(label)
        made.rows.append([label, *milliseconds(spread), f"{batch / spread.median:.0f}"])
    for peer in (BEST, EAGER, COMPILED):
        ratio = result.ratio(peer, OURS)
        if ratio is not None:
            made.checks.append(Check(f"speed of ours / {peer}", ratio))
    ratio = result.ratio(OURS, CUDNN)
    if ratio is not None:
        made.checks.append(Check(f"speed of {CUDNN} / ours", ratio))
    return made


def measure(
    device: str, models: Sequence[str], precisions: Sequence[str], rounds: int, seconds: float, batch: int = 0,
    torch_compile: bool = True,
) -> list[Section]:  # fmt: skip
    """The tables, one per model, mode and precision. ``batch`` 0 takes that of ``BATCHES``."""
    sections = []
    for model in models:
        for mode, what in (("train", "training"), ("predict", "inference")):
            for precision in precisions:
                size = batch or BATCHES[model]
                taking_part = contenders(model, mode, size, precision, device, torch_compile)
                before = partial(agreed, limits=AGREE[precision])
                result = race(taking_part, rounds=rounds, seconds=seconds, data=None, before=before)
                sections.append(section(f"{TITLES[model]}, {what}, batch of {size}, {precision}", size, result))
    return sections
