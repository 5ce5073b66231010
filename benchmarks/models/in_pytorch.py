"""PyTorch, eager and compiled, channels last where there are convolutions, fused optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from .architectures import MODELS, MOMENTUM, RATE, loop, weight


class Layers:
    def __init__(self, weights: dict[str, torch.Tensor], training: bool):
        self.weights, self._training = weights, training

    def _weight(self, name: str, shape: tuple[int, ...], kind: str = "normal") -> Any:
        if name not in self.weights:
            made = torch.from_numpy(weight(name, shape, kind))
            made = made.to(memory_format=torch.channels_last) if made.ndim == 4 else made
            self.weights[name] = made.requires_grad_(self._training)
        return self.weights[name]

    def image(self, x: Any) -> Any:
        return x.to(memory_format=torch.channels_last)

    def flatten(self, x: Any) -> Any:
        return x.flatten(1)

    relu = staticmethod(functional.relu)
    gelu = staticmethod(functional.gelu)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def conv(
        self, x: Any, name: str, out: int, k: int, stride: int = 1, pad: int = 0, groups: int = 1, bias: bool = False
    ) -> Any:
        w = self._weight(name, (out, x.shape[1] // groups, k, k))
        b = self._weight(name + "-bias", (out,), "zeros") if bias else None
        return functional.conv2d(x, w, b, stride, pad, groups=groups)

    def batch_norm(self, x: Any, name: str) -> Any:
        size = x.shape[1]
        gamma, beta = self._weight(name + "-gamma", (size,), "ones"), self._weight(name + "-beta", (size,), "zeros")
        if name + "-mean" not in self.weights:
            for what, value in (("-mean", torch.zeros(size)), ("-variance", torch.ones(size))):
                self.weights[name + what] = value
        mean, variance = self.weights[name + "-mean"], self.weights[name + "-variance"]
        return functional.batch_norm(x, mean, variance, gamma, beta, self._training, 0.1, 1e-5)

    def max_pool(self, x: Any, k: int, stride: int, pad: int = 0) -> Any:
        return functional.max_pool2d(x, k, stride, pad)

    def global_pool(self, x: Any) -> Any:
        return x.mean((2, 3))

    def dense(self, x: Any, name: str, out: int) -> Any:
        return functional.linear(x, self._weight(name, (out, x.shape[1])), self._weight(name + "-bias", (out,), "zeros"))

    def layer_norm(self, x: Any, name: str) -> Any:
        size = x.shape[-1]
        gamma, beta = self._weight(name + "-gamma", (size,), "ones"), self._weight(name + "-beta", (size,), "zeros")
        return functional.layer_norm(x, (size,), gamma, beta, 1e-5)

    def table(self, name: str, rows: int, width: int) -> Any:
        return self._weight(name, (rows, width), "embedding")

    def embedded(self, table: Any, tokens: Any) -> Any:
        return functional.embedding(tokens.reshape(-1), table)

    def add_rows(self, x: Any, name: str, rows: int, width: int) -> Any:
        return (x.reshape(-1, rows, width) + self._weight(name, (rows, width), "embedding")).reshape(-1, width)

    def attention(self, x: Any, q: Any, k: Any, v: Any, heads: int, length: int, causal: bool = False) -> Any:
        size = q.shape[1] // heads
        q, k, v = (a.reshape(-1, length, heads, size).transpose(1, 2) for a in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(-1, heads * size)

    def times_transposed(self, x: Any, table: Any) -> Any:
        return functional.linear(x, table)


def make(model: str, mode: str, batch: int = 0, compiled: bool = False, precision: str = "", device: str = "") -> Any:
    """``precision`` as for ours; ``device`` is "cuda", "cpu", or "" for the CPU."""
    about = MODELS[model]
    device = {"gpu": "cuda"}.get(device, device) or "cpu"
    if precision:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    inputs, labels = about.data(batch or about.batch)
    weights: dict[str, torch.Tensor] = {}
    training = mode == "train"
    with torch.no_grad():
        about.build(Layers(weights, training), torch.from_numpy(inputs))
    for name in [n for n in weights if n.endswith("-mean")]:  # the making above was a step of its own for the statistics
        weights[name].zero_()
        weights[name.removesuffix("-mean") + "-variance"].fill_(1)

    for name, value in weights.items():
        weights[name] = value.detach().to(device).requires_grad_(value.requires_grad)

    def put(a: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(a).to(device)

    def forward(x: Any) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            return about.build(Layers(weights, training), x).float()

    forward = torch.compile(forward) if compiled else forward
    if not training:

        def predict(x: np.ndarray, _: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return forward(put(x)).cpu().numpy()

        return loop(predict, inputs, labels)
    trained = [w for w in weights.values() if w.requires_grad]
    rules = {
        "sgd": lambda: torch.optim.SGD(trained, RATE, fused=True),
        "momentum": lambda: torch.optim.SGD(trained, RATE, MOMENTUM, fused=True),
        "adam": lambda: torch.optim.Adam(trained, 1e-4, fused=True),
    }
    optimizer = rules[about.rule]()

    def step(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        each = functional.cross_entropy(forward(put(x)), put(y).long(), reduction="none")
        optimizer.zero_grad(set_to_none=True)
        each.mean().backward()
        optimizer.step()
        return each.detach().cpu().numpy()

    return loop(step, inputs, labels)
