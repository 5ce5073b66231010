"""A GPT (Radford et al. 2019): embeddings, blocks of masked attention and a two-layer network, and the embedding once more.

Matrices are (in, out). Where the layers run and how their matrices are cut is left to a Layout.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import oneflow as flow

Blob = flow.Blob


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT. The defaults are those of the smallest GPT-2."""

    vocab_size: int = 50304
    hidden_size: int = 768
    layers: int = 12
    heads: int = 12
    seq_length: int = 1024
    dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02
    gelu: str = "erf"  # the exact one, or "tanh": an approximation, which GPT-2 was trained with
    checkpointing: bool = False  # compute a layer again in the backward pass instead of keeping its values


SMALL = GPTConfig()
TINY = GPTConfig(vocab_size=256, hidden_size=64, layers=2, heads=4, seq_length=32, dropout=0.0, attention_dropout=0.0)


class Layout:
    """Everything on the job's own placement, nothing cut. Subclasses say otherwise."""

    def placement(self, layer: int) -> AbstractContextManager:
        """The scope of layer 0, 1, ...; the embeddings belong to the first, what follows the layers to the last (-1)."""
        return nullcontext()

    def variable(self, axis: int | None) -> dict[str, Any]:
        """Arguments of get_variable for a variable that tensor parallelism cuts along ``axis``, or not at all (None)."""
        return {}

    def whole(self, x: Blob) -> Blob:
        """The sum of the partial products of a matrix split by rows, over all devices that share it."""
        return x


@dataclass(frozen=True)
class Devices(Layout):
    """``layers`` in ``stages`` of equal length, one after the other, on ``data`` x ``tensor`` devices each.

    Of the devices of a stage, arranged in rows and columns, rows share the batch, and columns share every matrix: each
    holds a part of its columns or rows.
    """

    layers: int
    stages: int = 1
    data: int = 1
    tensor: int = 1
    tag: str = "cpu"

    @property
    def arranged(self) -> bool:
        return self.data > 1 and self.tensor > 1

    def placement(self, layer: int) -> AbstractContextManager:
        count = self.data * self.tensor
        first = (layer % self.layers) * self.stages // self.layers * count
        hierarchy = (self.data, self.tensor) if self.arranged else None
        return flow.scope.placement(self.tag, f"0:{first}-{first + count - 1}", hierarchy)

    def variable(self, axis: int | None) -> dict[str, Any]:
        if self.arranged:
            return {"parallel_distribution": ["B", "B" if axis is None else f"S({axis})"]}
        return {"distribute": flow.distribute.split(axis)} if self.tensor > 1 and axis is not None else {}

    def whole(self, x: Blob) -> Blob:
        if self.arranged:
            return flow.hierarchical_parallel_cast(x, ["S(0)", "B"], "manual", ["S(0)", "B"])
        return flow.parallel_cast(x, distribute=flow.distribute.broadcast()) if self.tensor > 1 else x


def _gelu_by_tanh(x: Blob) -> Blob:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + flow.math.tanh(inner))


@dataclass
class GPT:
    """One GPT in one job: its sizes, its layout, whether dropout is on, and every layer's Blob by name."""

    config: GPTConfig
    layout: Layout = field(default_factory=Layout)
    training: bool = True
    outputs: dict[str, Blob] = field(default_factory=dict)

    def _kept(self, name: str, y: Blob) -> Blob:
        self.outputs[flow.current_scope().namespace + name] = y
        return y

    def _normal(self, name: str, shape: tuple[int, int], axis: int | None, scale: float = 1.0) -> Blob:
        """A matrix that tensor parallelism cuts along ``axis``, or not at all."""
        return flow.get_variable(
            name,
            shape=shape,
            dtype=flow.float,
            initializer=flow.random_normal_initializer(stddev=scale * self.config.initializer_range),
            **self.layout.variable(axis),
        )

    def _bias(self, size: int, cut: bool) -> Blob:
        layout = self.layout.variable(0 if cut else None)
        return flow.get_variable("bias", shape=(size,), dtype=flow.float, initializer=flow.zeros_initializer(), **layout)

    def _layer_norm(self, x: Blob, name: str) -> Blob:
        return self._kept(name, flow.layers.layer_norm(x, begin_norm_axis=2, begin_params_axis=2, name=name))

    def _rate(self, rate: float) -> float:
        return rate if self.training else 0.0

    def _columns(self, x: Blob, units: int, name: str) -> tuple[Blob, Blob]:
        """x times a matrix that may be cut into columns, and the bias to add."""
        with flow.scope.namespace(name):
            y = flow.matmul(x, self._normal("weight", (x.shape[-1], units), axis=1), name="matmul")
            return y, self._bias(units, cut=True)

    def _rows(self, x: Blob, units: int, name: str) -> Blob:
        """x times a matrix that may be cut into rows, plus a bias; the layers' number keeps the sum over them level."""
        scale = 1 / math.sqrt(2 * self.config.layers)
        with flow.scope.namespace(name):
            y = self.layout.whole(flow.matmul(x, self._normal("weight", (x.shape[-1], units), 0, scale), name="matmul"))
            y = flow.nn.fused_bias_add_dropout(y, self._bias(units, cut=False), "NWC", rate=self._rate(self.config.dropout))
        return self._kept(name, y)

    def _attention(self, x: Blob) -> Blob:
        """Each word looks at itself and those before it."""
        c = self.config
        batch, length, hidden = x.shape
        size = hidden // c.heads
        with flow.scope.namespace("attn"):
            y, bias = self._columns(x, 3 * hidden, "c_attn")
            y = self._kept("c_attn", flow.nn.bias_add(y, bias, "NWC"))
            y = flow.transpose(flow.reshape(y, (batch, length, c.heads, 3 * size)), perm=(0, 2, 1, 3))
            query, key, value = (
                flow.slice(y, begin=[0, 0, 0, i * size], size=[batch, c.heads, length, size]) for i in range(3)
            )  # each head has its own three side by side, so that heads can be shared out
            y = flow.transpose(self._attended(query, key, value), perm=(0, 2, 1, 3))
            return self._rows(flow.reshape(y, (batch, length, hidden)), hidden, "c_proj")

    def _attended(self, query: Blob, key: Blob, value: Blob) -> Blob:
        """The values that the queries find; all are (batch, heads, length, size)."""
        scores = flow.matmul(query, key, transpose_b=True, alpha=1 / math.sqrt(query.shape[-1]), name="scores")
        weights = flow.nn.fused_scale_tril_softmax_dropout(
            scores, fill_value=float("-inf"), rate=self._rate(self.config.attention_dropout), name="weights"
        )
        return flow.matmul(weights, value, name="context")

    def _mlp(self, x: Blob) -> Blob:
        hidden = x.shape[-1]
        with flow.scope.namespace("mlp"):
            y, bias = self._columns(x, 4 * hidden, "c_fc")
            if self.config.gelu == "tanh":
                y = _gelu_by_tanh(flow.nn.bias_add(y, bias, "NWC"))
            else:
                y = flow.nn.fused_bias_add_gelu(y, bias, "NWC")
            return self._rows(y, hidden, "c_proj")

    def _block(self, x: Blob) -> Blob:
        x = x + self._attention(self._layer_norm(x, "layernorm_1"))
        return x + self._mlp(self._layer_norm(x, "layernorm_2"))

    def _rows_of_positions(self, table: Blob, length: int) -> Blob:
        """The position embeddings of a text of this length."""
        return flow.slice(table, begin=[0, 0], size=[length, table.shape[1]])

    def logits(self, tokens: Blob) -> Blob:
        """(batch, length, vocabulary) of int tokens (batch, length)."""
        c = self.config
        if c.hidden_size % c.heads:
            raise ValueError(f"{c.heads} heads do not divide hidden_size={c.hidden_size}")
        if tokens.shape[1] > c.seq_length:
            raise ValueError(f"a text of {tokens.shape[1]} words, but seq_length={c.seq_length}")
        with flow.scope.namespace("model"):
            with self.layout.placement(0):
                table = self._normal("wte", (c.vocab_size, c.hidden_size), axis=0)
                places = self._normal("wpe", (c.seq_length, c.hidden_size), axis=None)
                x = self.layout.whole(flow.gather(table, tokens, name="embedded"))
                x = x + self._rows_of_positions(places, tokens.shape[1])
                x = flow.nn.dropout(x, c.dropout, name="dropout") if self._rate(c.dropout) else x
            for i in range(c.layers):
                option = flow.experimental.scope.config(checkpointing=True) if c.checkpointing else nullcontext()
                with self.layout.placement(i), flow.scope.namespace(f"h{i}"), option:
                    x = self._block(x)
                self.outputs[f"model-h{i}"] = x
            with self.layout.placement(-1):
                x = self._layer_norm(x, "layernorm_f")
                return self._kept("logits", flow.matmul(x, table, transpose_b=True, name="logits"))

    def loss(self, tokens: Blob) -> Blob:
        """(1,): the mean loss of predicting tokens[:, 1:] from tokens[:, :-1]."""
        batch, length = tokens.shape[0], tokens.shape[1] - 1
        inputs = flow.slice(tokens, begin=[0, 0], size=[batch, length])
        labels = flow.slice(tokens, begin=[0, 1], size=[batch, length])
        logits = self.logits(inputs)
        with self.layout.placement(-1):
            rows = flow.reshape(logits, (batch * length, self.config.vocab_size))
            each = flow.nn.sparse_softmax_cross_entropy_with_logits(flow.reshape(labels, (batch * length,)), rows, name="loss")
            return flow.math.reduce_mean(each)
