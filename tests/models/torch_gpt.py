"""A GPT in PyTorch, from parts; no dropout."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.heads = heads
        self.layernorm_1, self.layernorm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(hidden, 3 * hidden), "c_proj": nn.Linear(hidden, hidden)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(hidden, 4 * hidden), "c_proj": nn.Linear(4 * hidden, hidden)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        y = self.attn["c_attn"](self.layernorm_1(x)).view(batch, length, self.heads, 3, hidden // self.heads)
        q, k, v = y.permute(3, 0, 2, 1, 4)
        scores = q @ k.transpose(2, 3) / math.sqrt(hidden // self.heads)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        y = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.mlp["c_proj"](nn.functional.gelu(self.mlp["c_fc"](self.layernorm_2(x))))


class Model(nn.Module):
    def __init__(self, c: Any):
        super().__init__()
        self.wte = nn.Parameter(0.05 * torch.randn(c.vocab_size, c.hidden_size))
        self.wpe = nn.Parameter(0.05 * torch.randn(c.seq_length, c.hidden_size))
        for i in range(c.layers):
            setattr(self, f"h{i}", Block(c.hidden_size, c.heads))
        self.layernorm_f = nn.LayerNorm(c.hidden_size)
        self.layers = c.layers

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte[tokens] + self.wpe[: tokens.shape[1]]
        for i in range(self.layers):
            x = getattr(self, f"h{i}")(x)
        return self.layernorm_f(x) @ self.wte.T


class GPT(nn.Module):
    def __init__(self, c: Any):
        super().__init__()
        self.model = Model(c)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
