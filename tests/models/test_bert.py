"""BERT against PyTorch: every layer's values, every variable's gradient, and some steps of Adam, for both kinds of heads."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import bert
import numpy as np
import train_bert
from compare import BACKWARD, FORWARD, array, close, gradients, load, recorded, scrambled, torch, torch_gradients
from torch_bert import Pretraining, Squad

import oneflow as flow
import oneflow.typing as tp

BATCH, LENGTH, MASKED, STEPS = 4, 24, 5, 6
CONFIG = dataclasses.replace(bert.TINY, hidden_dropout=0.0, attention_dropout=0.0)
OPTIONS = SimpleNamespace(size="tiny", batch=BATCH, length=LENGTH, masked=MASKED)
TEXT = tp.Numpy.Placeholder((BATCH, LENGTH), flow.int32)
HIDDEN = tp.Numpy.Placeholder((BATCH, MASKED), flow.int32)
WEIGHTS = tp.Numpy.Placeholder((BATCH, MASKED), flow.float)
ONE = tp.Numpy.Placeholder((BATCH,), flow.int32)
RATE = flow.optimizer.PiecewiseConstantScheduler([], [1e-3])
ADAM = flow.optimizer.Adam(RATE, do_bias_correction=True, epsilon=1e-8)


def module_of(kind: Any) -> Any:
    torch.manual_seed(0)
    module = scrambled(kind(CONFIG))
    for name, weight in module.named_parameters():
        if "embeddings.weight" in name or "_embeddings" in name:
            weight.data *= 0.05
    return module


def as_torch(batch: tuple[np.ndarray, ...]) -> list[Any]:
    return [torch.tensor(a if a.dtype == np.float32 else a.astype(np.int64)) for a in batch]


def trained_like(module: Any, job: Any, batch: tuple[np.ndarray, ...], layers: dict[str, np.ndarray]) -> None:
    """One batch again and again: losses, values of layers and gradients of the first step are PyTorch's."""
    optimizer = torch.optim.Adam(module.parameters(), 1e-3)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        outputs, values = recorded(module, lambda: module(*as_torch(batch)))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        outputs[0].mean().backward()
        ours, found = job(*batch)
        losses.append(float(ours[0].mean()))
        expected = {str(i): array(loss).reshape(-1) for i, loss in enumerate(outputs)}
        close(f"loss {step}", {str(i): loss for i, loss in enumerate(ours)}, expected, FORWARD if step == 0 else 1e-2)
        if step == 0:
            shared = {name: value for name, value in found.items() if name in values}
            close("values", shared, {name: values[name] for name in shared}, FORWARD)
            assert set(layers) <= set(shared)
            close("gradients", gradients("-m", 10.0), torch_gradients(module), BACKWARD, floor=1e-3)
        optimizer.step()
    assert losses[-1] < losses[0] - 0.3


def test_pretraining_is_that_of_pytorch() -> None:
    @flow.global_function(type="train")
    def job(
        ids: TEXT, types: TEXT, mask: TEXT, positions: HIDDEN, words: HIDDEN, weights: WEIGHTS, follows: ONE
    ) -> tp.Tuple[tp.Tuple[tp.Numpy, tp.Numpy, tp.Numpy], tp.Dict[str, tp.Numpy]]:
        model = bert.Bert(CONFIG)
        losses = bert.pretraining_loss(model, ids, types, mask, positions, words, weights, follows)
        ADAM.minimize(losses[0])
        return losses, model.outputs

    module = module_of(Pretraining)
    load(module)
    batch = next(train_bert.pretraining_batches(OPTIONS))
    wanted = ["bert-embeddings-LayerNorm", "cls-predictions-transform-LayerNorm", "bert-pooler-dense", "cls-seq_relationship"]
    for i in range(CONFIG.layers):
        wanted += [f"bert-encoder-layer-{i}-attention-self-{name}" for name in ("query", "key", "value")]
        for part in ("attention-output-dense", "attention-output-LayerNorm", "intermediate-dense", "output-dense"):
            wanted.append(f"bert-encoder-layer-{i}-{part}")
        wanted.append(f"bert-encoder-layer-{i}-output-LayerNorm")
    trained_like(module, job, batch, wanted)


def test_squad_is_that_of_pytorch() -> None:
    @flow.global_function(type="train")
    def job(ids: TEXT, types: TEXT, mask: TEXT, starts: ONE, ends: ONE) -> tp.Tuple[tp.Tuple[tp.Numpy], tp.Dict[str, tp.Numpy]]:
        model = bert.Bert(CONFIG)
        loss = bert.squad_loss(model, ids, types, mask, starts, ends)
        ADAM.minimize(loss)
        return (loss,), model.outputs

    module = module_of(Squad)
    load(module)
    batch = next(train_bert.squad_batches(OPTIONS))
    trained_like(module, job, batch, ["bert-encoder-layer-1-output-LayerNorm", "qa_outputs"])
