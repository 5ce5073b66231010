"""Weights in Hugging Face's layout: PyTorch programs of that layout give the values of our jobs."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import bert
import gpt
import numpy as np
import pytest
from compare import FORWARD, array, close, scrambled, torch
from hugging_face import bert_weights, gpt2_weights
from torch_bert import Pretraining

import oneflow as flow
import oneflow.typing as tp

safetensors = pytest.importorskip("safetensors.numpy", reason="needs the extra [export]")
BATCH, LENGTH = 2, 9
RANDOM = np.random.default_rng(0)
F = torch.nn.functional


def words(most: int) -> np.ndarray:
    return RANDOM.integers(0, most, (BATCH, LENGTH), dtype=np.int32)


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_bert(prefix: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = scrambled(Pretraining(bert.TINY)).eval()
    state = {name: array(value) for name, value in module.state_dict().items()}
    if not prefix:  # the bare model's file: no heads, no prefix, and older names of layer norms
        state = {n.removeprefix("bert."): v for n, v in state.items() if n.startswith("bert.") and "pooler" not in n}
        state = {n.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): v for n, v in state.items()}
    state["bert.embeddings.position_ids"] = np.arange(64)  # of some versions
    safetensors.save_file({n: np.ascontiguousarray(v) for n, v in state.items()}, tmp_path / "model.safetensors")
    text = tp.Numpy.Placeholder((BATCH, LENGTH), flow.int32)

    @flow.global_function()
    def job(ids: text, types: text, mask: text) -> tp.Dict[str, tp.Numpy]:
        model = bert.Bert(bert.TINY, training=False)
        x = model.encode(ids, types, mask)
        return {"x": x, "follows": model.next_sentence(x), "words": model.words_at(x, mask)} if prefix else {"x": x}

    flow.load_variables(bert_weights(tmp_path / "model.safetensors"), strict=True)
    ids, types, mask = words(bert.TINY.vocab_size), words(2), words(2)
    mask[:, 0] = 1
    with torch.no_grad():
        x = module.bert(*(torch.tensor(a).long() for a in (ids, types, mask)))
    found = job(ids, types, mask)
    close("encoded", {"x": found["x"]}, {"x": array(x)}, FORWARD)
    assert not prefix or np.ptp(found["words"]) > 0 and found["follows"].shape == (BATCH, 2)


def gpt2_of(state: dict[str, np.ndarray], tokens: np.ndarray, heads: int) -> np.ndarray:
    """GPT-2 as published, with weights by Hugging Face's names."""
    w = {name.removeprefix("transformer."): torch.tensor(value) for name, value in state.items()}

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["wte.weight"][torch.tensor(tokens).long()] + w["wpe.weight"][: tokens.shape[1]]
    for i in range(1 + max(int(n.split(".")[1]) for n in w if n.startswith("h."))):
        parts = linear(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").split(x.shape[-1], 2)
        q, k, v = (part.view(*x.shape[:2], heads, -1).transpose(1, 2) for part in parts)
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
        y = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
        x = x + linear(y.transpose(1, 2).reshape(x.shape), f"h.{i}.attn.c_proj")
        y = F.gelu(linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"), approximate="tanh")
        x = x + linear(y, f"h.{i}.mlp.c_proj")
    return array(norm(x, "ln_f") @ w["wte.weight"].T)


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_gpt2(prefix: str, tmp_path: Path) -> None:
    c = dataclasses.replace(gpt.TINY, gelu="tanh")
    size = c.hidden_size
    shapes = {"wte.weight": (c.vocab_size, size), "wpe.weight": (c.seq_length, size)}
    for name in ("ln_f", *(f"h.{i}.ln_{k}" for i in range(c.layers) for k in (1, 2))):
        shapes |= {f"{name}.weight": (size,), f"{name}.bias": (size,)}
    for i in range(c.layers):
        for name, rows, columns in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
            shapes |= {f"h.{i}.{name}.weight": (rows * size, columns * size), f"h.{i}.{name}.bias": (columns * size,)}
    state = {prefix + name: 0.2 * RANDOM.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    masks = {f"{prefix}h.{i}.attn.bias": np.ones((1, 1, 4, 4), np.float32) for i in range(c.layers)}
    safetensors.save_file({**state, **masks}, tmp_path / "model.safetensors")

    @flow.global_function()
    def job(tokens: tp.Numpy.Placeholder((BATCH, LENGTH), flow.int32)) -> tp.Numpy:
        return gpt.GPT(c, training=False).logits(tokens)

    flow.load_variables(gpt2_weights(tmp_path / "model.safetensors", c.heads), strict=True)
    tokens = words(c.vocab_size)
    close("logits", {"": job(tokens)}, {"": gpt2_of(state, tokens, c.heads)}, FORWARD)
