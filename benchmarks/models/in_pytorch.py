"""PyTorch, eager and compiled, channels last where there are convolutions, fused optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from .architectures import CONTEXT, MODELS, MOMENTUM, RATE, decode_loop, loop, recurrence, weight

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by rank


class Layers:
    def __init__(self, weights: dict[str, torch.Tensor], training: bool, fused_lstm: bool = False, sparse: bool = False):
        self.weights, self._training, self._fused_lstm, self._sparse = weights, training, fused_lstm, sparse
        self.position, self._caches = 0, {}

    def _weight(self, name: str, shape: tuple[int, ...], kind: str = "normal") -> Any:
        if name not in self.weights:
            made = torch.from_numpy(weight(name, shape, kind))
            made = made.to(memory_format=_CHANNELS_LAST[made.ndim]) if made.ndim in _CHANNELS_LAST else made
            self.weights[name] = made.requires_grad_(self._training)
        return self.weights[name]

    def image(self, x: Any) -> Any:
        return x.to(memory_format=_CHANNELS_LAST[x.ndim])

    def flatten(self, x: Any) -> Any:
        return x.flatten(1)

    relu = staticmethod(functional.relu)
    gelu = staticmethod(functional.gelu)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def conv(
        self, x: Any, name: str, out: int, k: int, stride: int = 1, pad: int = 0, groups: int = 1, bias: bool = False
    ) -> Any:
        w = self._weight(name, (out, x.shape[1] // groups, *(k,) * (x.ndim - 2)))
        b = self._weight(name + "-bias", (out,), "zeros") if bias else None
        return (functional.conv2d if x.ndim == 4 else functional.conv3d)(x, w, b, stride, pad, groups=groups)

    def conv_transpose(self, x: Any, name: str, out: int) -> Any:
        return functional.conv_transpose3d(x, self._weight(name, (x.shape[1], out, 2, 2, 2)), stride=2)

    def concat(self, x: Any, y: Any) -> Any:
        return torch.cat([x, y], 1)

    def voxels(self, x: Any) -> Any:
        return x.movedim(1, -1).flatten(0, -2)

    def batch_norm(self, x: Any, name: str) -> Any:
        size = x.shape[1]
        gamma, beta = self._weight(name + "-gamma", (size,), "ones"), self._weight(name + "-beta", (size,), "zeros")
        if name + "-mean" not in self.weights:
            for what, value in (("-mean", torch.zeros(size)), ("-variance", torch.ones(size))):
                self.weights[name + what] = value
        mean, variance = self.weights[name + "-mean"], self.weights[name + "-variance"]
        return functional.batch_norm(x, mean, variance, gamma, beta, self._training, 0.1, 1e-5)

    def max_pool(self, x: Any, k: int, stride: int, pad: int = 0) -> Any:
        return (functional.max_pool2d if x.ndim == 4 else functional.max_pool3d)(x, k, stride, pad)

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
        return functional.embedding(tokens.reshape(-1), table, sparse=self._sparse)

    def add_rows(self, x: Any, name: str, rows: int, width: int) -> Any:
        return (x.reshape(-1, rows, width) + self._weight(name, (rows, width), "embedding")).reshape(-1, width)

    def attention(self, x: Any, q: Any, k: Any, v: Any, heads: int, length: int, causal: bool = False) -> Any:
        size = q.shape[1] // heads
        q, k, v = (a.reshape(-1, length, heads, size).transpose(1, 2) for a in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(-1, heads * size)

    def times_transposed(self, x: Any, table: Any) -> Any:
        return functional.linear(x, table)

    def add_row(self, x: Any, name: str, rows: int, width: int) -> Any:
        return x + self._weight(name, (rows, width), "embedding")[self.position]

    def cached_attention(self, name: str, q: Any, k: Any, v: Any, heads: int) -> Any:
        batch, width = q.shape
        if name not in self._caches:
            self._caches[name] = [torch.zeros(batch, heads, CONTEXT, width // heads) for _ in "kv"]
        q, k, v = (a.reshape(batch, heads, 1, -1) for a in (q, k, v))
        for cache, new in zip(self._caches[name], (k, v), strict=True):
            cache[:, :, self.position] = new[:, :, 0]
        keys, values = (cache[:, :, : self.position + 1] for cache in self._caches[name])
        return functional.scaled_dot_product_attention(q, keys, values).reshape(batch, width)

    mul = staticmethod(torch.mul)
    sub = staticmethod(torch.sub)
    sigmoid = staticmethod(torch.sigmoid)
    tanh = staticmethod(torch.tanh)

    def times(self, x: Any, name: str, out: int) -> Any:
        return functional.linear(x, self._weight(name, (out, x.shape[1])))

    def steps(self, x: Any, length: int) -> Any:
        return x.reshape(-1, length, x.shape[1]).unbind(1)

    def split(self, x: Any, parts: int) -> Any:
        return x.chunk(parts, 1)

    def grouped(self, x: Any, rows: int) -> Any:
        return x.reshape(-1, rows * x.shape[1])

    def joined(self, outputs: Any) -> Any:
        return torch.stack(outputs, 1).flatten(0, 1)

    def lstm(self, x: Any, name: str, width: int, length: int) -> Any:
        if not self._fused_lstm:
            return recurrence(self, x, name, width, length)
        w = [self._weight(name + "-x", (4 * width, x.shape[1])), self._weight(name + "-h", (4 * width, width)),
             self._weight(name + "-x-bias", (4 * width,), "zeros"), torch.zeros(4 * width)]  # fmt: skip
        x = x.reshape(-1, length, x.shape[1])
        zeros = torch.zeros(1, x.shape[0], width)
        return torch.lstm(x, (zeros, zeros), w, True, 1, 0.0, self._training, False, True)[0].flatten(0, 1)  # what nn.LSTM calls


def decoder(model: str, batch: int, compiled: bool) -> Any:
    about = MODELS[model]
    nn = Layers({}, False)
    build = torch.compile(about.build) if compiled else about.build

    def step(tokens: np.ndarray, position: int) -> np.ndarray:
        nn.position = position
        with torch.inference_mode():
            return build(nn, torch.from_numpy(tokens)).numpy()

    return decode_loop(step, about.data(batch)[0])


def make(
    model: str, mode: str, batch: int = 0, compiled: bool = False, precision: str = "", device: str = "",
    fused_lstm: bool = False, sparse: bool = False,
) -> Any:  # fmt: skip
    """``precision`` as for ours; ``device`` is "cuda", "cpu", or "" for the CPU. ``fused_lstm``: as ``torch.nn.LSTM``.

    ``sparse``: gradients of tables have the rows that were read.
    """
    if mode == "decode":
        return decoder(model, batch, compiled)
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
            return about.build(Layers(weights, training, fused_lstm, sparse), x).float()

    forward = torch.compile(forward) if compiled else forward
    if not training:

        def predict(x: np.ndarray, _: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return forward(put(x)).cpu().numpy()

        return loop(predict, inputs, labels)
    trained = [w for w in weights.values() if w.requires_grad]
    tables = [w for name, w in weights.items() if sparse and name == "features"]
    others = [w for w in trained if not any(w is table for table in tables)]
    rules = {
        "sgd": lambda: [torch.optim.SGD(others, RATE, fused=True), *(torch.optim.SGD([table], RATE) for table in tables)],
        "momentum": lambda: [torch.optim.SGD(trained, RATE, MOMENTUM, fused=True)],
        "adam": lambda: [torch.optim.Adam(trained, 1e-4, fused=True)],
        "row-sparse adam": lambda: [torch.optim.Adam(others, 1e-4, fused=True), torch.optim.SparseAdam(tables, 1e-4)],
    }
    optimizers = rules[about.rule]()

    def step(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        each = functional.cross_entropy(forward(put(x)), put(y).long(), reduction="none")
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        each.mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        return each.detach().cpu().numpy()

    return loop(step, inputs, labels)
