"""BERT in PyTorch, from parts: the encoder, the pre-training heads, and the head for SQuAD. No dropout."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


class Embeddings(nn.Module):
    def __init__(self, c: Any):
        super().__init__()
        self.word_embeddings = nn.Embedding(c.vocab_size, c.hidden_size)
        self.position_embeddings = nn.Embedding(c.max_positions, c.hidden_size)
        self.token_type_embeddings = nn.Embedding(c.token_types, c.hidden_size)
        self.LayerNorm = nn.LayerNorm(c.hidden_size, c.epsilon)

    def forward(self, ids: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        places = self.position_embeddings(torch.arange(ids.shape[1]))
        return self.LayerNorm(self.word_embeddings(ids) + self.token_type_embeddings(types) + places)


class SelfAttention(nn.Module):
    def __init__(self, c: Any):
        super().__init__()
        self.heads = c.heads
        self.query, self.key, self.value = (nn.Linear(c.hidden_size, c.hidden_size) for _ in range(3))

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        q, k, v = (
            f(x).view(batch, length, self.heads, hidden // self.heads).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(hidden // self.heads) + bias
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, hidden)


class Output(nn.Module):
    def __init__(self, size: int, c: Any):
        super().__init__()
        self.dense = nn.Linear(size, c.hidden_size)
        self.LayerNorm = nn.LayerNorm(c.hidden_size, c.epsilon)

    def forward(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dense(y) + x)


class Layer(nn.Module):
    def __init__(self, c: Any):
        super().__init__()
        self.attention = nn.ModuleDict({"self": SelfAttention(c), "output": Output(c.hidden_size, c)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(c.hidden_size, c.intermediate_size)})
        self.output = Output(c.intermediate_size, c)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = self.attention["output"](self.attention["self"](x, bias), x)
        return self.output(nn.functional.gelu(self.intermediate["dense"](x)), x)


class Bert(nn.Module):
    def __init__(self, c: Any):
        super().__init__()
        self.embeddings = Embeddings(c)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer(c) for _ in range(c.layers))})

    def forward(self, ids: torch.Tensor, types: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embeddings(ids, types)
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.encoder["layer"]:
            x = layer(x, bias)
        return x


class Transform(nn.Module):
    def __init__(self, c: Any):
        super().__init__()
        self.dense = nn.Linear(c.hidden_size, c.hidden_size)
        self.LayerNorm = nn.LayerNorm(c.hidden_size, c.epsilon)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(nn.functional.gelu(self.dense(x)))


class Predictions(nn.Module):
    def __init__(self, c: Any):
        super().__init__()
        self.transform = Transform(c)
        self.bias = nn.Parameter(torch.zeros(c.vocab_size))


class Pretraining(nn.Module):
    def __init__(self, c: Any):
        super().__init__()
        self.bert = Bert(c)
        self.bert.pooler = nn.ModuleDict({"dense": nn.Linear(c.hidden_size, c.hidden_size)})
        self.cls = nn.ModuleDict({"predictions": Predictions(c), "seq_relationship": nn.Linear(c.hidden_size, 2)})

    def forward(self, ids, types, mask, positions, words, weights, follows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self.bert(ids, types, mask)
        rows = torch.gather(x, 1, positions[:, :, None].expand(-1, -1, x.shape[2]))
        predictions = self.cls["predictions"]
        logits = predictions.transform(rows) @ self.bert.embeddings.word_embeddings.weight.T + predictions.bias
        each = nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten(), reduction="none")
        masked = (each * weights.flatten()).sum() / (weights.sum() + 1e-5)
        pooled = torch.tanh(self.bert.pooler["dense"](x[:, 0]))
        sentence = nn.functional.cross_entropy(self.cls["seq_relationship"](pooled), follows)
        return masked + sentence, masked, sentence


class Squad(nn.Module):
    def __init__(self, c: Any):
        super().__init__()
        self.bert = Bert(c)
        self.qa_outputs = nn.Linear(c.hidden_size, 2)

    def forward(self, ids, types, mask, starts, ends) -> torch.Tensor:
        start, end = self.qa_outputs(self.bert(ids, types, mask)).unbind(-1)
        loss = nn.functional.cross_entropy
        return (loss(start, starts, reduction="none") + loss(end, ends, reduction="none")) / 2
