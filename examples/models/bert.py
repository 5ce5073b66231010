"""BERT (Devlin et al. 2018): the encoder, the two pre-training tasks, and the head for SQuAD.

Variables are named as PyTorch programs name them, with "-" for "."; matrices are (in, out).
"""

import math
from dataclasses import dataclass, field

import oneflow as flow

Blob = flow.Blob


@dataclass(frozen=True)
class BertConfig:
    """The sizes of a BERT. The defaults are those of BERT-base, uncased."""

    vocab_size: int = 30522
    hidden_size: int = 768
    layers: int = 12
    heads: int = 12
    intermediate_size: int = 3072
    max_positions: int = 512
    token_types: int = 2
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02
    epsilon: float = 1e-12


BASE = BertConfig()
SMALL = BertConfig(hidden_size=512, layers=4, heads=8, intermediate_size=2048)
TINY = BertConfig(vocab_size=500, hidden_size=64, layers=2, heads=4, intermediate_size=128, max_positions=64)


@dataclass
class Bert:
    """One BERT in one job: its sizes, whether dropout is on, and every layer's Blob by name."""

    config: BertConfig
    training: bool = True
    outputs: dict[str, Blob] = field(default_factory=dict)

    def _kept(self, name: str, y: Blob) -> Blob:
        self.outputs[flow.current_scope().namespace + name] = y
        return y

    def _normal(self, name: str, shape: tuple[int, ...]) -> Blob:
        initializer = flow.truncated_normal(self.config.initializer_range)
        return flow.get_variable(name, shape=shape, dtype=flow.float, initializer=initializer)

    def _bias(self, name: str, size: int) -> Blob:
        return flow.get_variable(name, shape=(size,), dtype=flow.float, initializer=flow.zeros_initializer(), model_name="bias")

    def _dropout(self, x: Blob, rate: float, name: str) -> Blob:
        return flow.nn.dropout(x, rate, name=name) if self.training and rate > 0 else x

    def _dense(self, x: Blob, units: int, name: str) -> Blob:
        weight, bias = self._normal(f"{name}-weight", (x.shape[-1], units)), self._bias(f"{name}-bias", units)
        rows = flow.reshape(x, (-1, x.shape[-1]))
        y = flow.nn.bias_add(flow.matmul(rows, weight, name=f"{name}-matmul"), bias, name=f"{name}-bias_add")
        return self._kept(name, flow.reshape(y, (*x.shape[:-1], units), name=f"{name}-reshape"))

    def _layer_norm(self, x: Blob, name: str = "LayerNorm") -> Blob:
        last = len(x.shape) - 1
        y = flow.layers.layer_norm(x, begin_norm_axis=last, begin_params_axis=last, epsilon=self.config.epsilon, name=name)
        return self._kept(name, y)

    def _embedded(self, ids: Blob, types: Blob) -> Blob:
        """Words, their kind of sentence, and their position: the sum of three tables' rows, normalized."""
        c = self.config
        length = ids.shape[1]
        with flow.scope.namespace("embeddings"):
            words = flow.gather(self._normal("word_embeddings-weight", (c.vocab_size, c.hidden_size)), ids)
            kinds = self._normal("token_type_embeddings-weight", (c.token_types, c.hidden_size))
            positions = self._normal("position_embeddings-weight", (c.max_positions, c.hidden_size))
            x = words + flow.gather(kinds, types)
            x = x + flow.slice(positions, begin=[0, 0], size=[length, c.hidden_size])
            return self._dropout(self._layer_norm(x), c.hidden_dropout, "dropout")

    def _attention(self, x: Blob, bias: Blob) -> Blob:
        """Self-attention of several heads; `bias` is added to the scores."""
        c = self.config
        batch, length, hidden = x.shape
        size = hidden // c.heads

        def heads(name: str) -> Blob:  # (batch, heads, length, size)
            return flow.transpose(flow.reshape(self._dense(x, hidden, name), (batch, length, c.heads, size)), perm=(0, 2, 1, 3))

        with flow.scope.namespace("self"):
            query, key, value = heads("query"), heads("key"), heads("value")
            scores = flow.matmul(query, key, transpose_b=True, alpha=1 / math.sqrt(size), name="scores") + bias
            weights = self._dropout(flow.nn.softmax(scores, name="softmax"), c.attention_dropout, "dropout")
            context = flow.transpose(flow.matmul(weights, value, name="context"), perm=(0, 2, 1, 3))
        return flow.reshape(context, (batch, length, hidden))

    def _layer(self, x: Blob, bias: Blob) -> Blob:
        c = self.config
        with flow.scope.namespace("attention"):
            y = self._attention(x, bias)
            with flow.scope.namespace("output"):
                y = self._dropout(self._dense(y, c.hidden_size, "dense"), c.hidden_dropout, "dropout")
                x = self._layer_norm(y + x)
        with flow.scope.namespace("intermediate"):
            y = flow.math.gelu(self._dense(x, c.intermediate_size, "dense"))
        with flow.scope.namespace("output"):
            y = self._dropout(self._dense(y, c.hidden_size, "dense"), c.hidden_dropout, "dropout")
            return self._layer_norm(y + x)

    def encode(self, ids: Blob, types: Blob, mask: Blob) -> Blob:
        """(batch, length, hidden) of int Blobs (batch, length); words whose mask is 0 are not looked at."""
        if self.config.hidden_size % self.config.heads:
            raise ValueError(f"{self.config.heads} heads do not divide hidden_size={self.config.hidden_size}")
        if ids.shape[1] > self.config.max_positions:
            raise ValueError(f"a text of {ids.shape[1]} words, but max_positions={self.config.max_positions}")
        batch, length = ids.shape
        with flow.scope.namespace("bert"):
            x = self._embedded(ids, types)
            hidden = flow.reshape(1.0 - flow.cast(mask, flow.float), (batch, 1, 1, length))
            bias = hidden * -10000.0
            with flow.scope.namespace("encoder"):
                for i in range(self.config.layers):
                    with flow.scope.namespace(f"layer-{i}"):
                        x = self._layer(x, bias)
        return x

    def words_at(self, x: Blob, positions: Blob) -> Blob:
        """Logits (batch, count, vocabulary) for the words at positions (batch, count) of an encoded text."""
        c = self.config
        rows = flow.gather(x, positions, axis=1, batch_dims=1)
        table = self._normal("bert-embeddings-word_embeddings-weight", (c.vocab_size, c.hidden_size))  # the encoder's own
        with flow.scope.namespace("cls-predictions"):
            with flow.scope.namespace("transform"):
                y = self._layer_norm(flow.math.gelu(self._dense(rows, c.hidden_size, "dense")))
            y = flow.matmul(flow.reshape(y, (-1, c.hidden_size)), table, transpose_b=True, name="matmul")
            y = flow.nn.bias_add(y, self._bias("bias", c.vocab_size), name="bias_add")
            return self._kept("logits", flow.reshape(y, (*positions.shape, c.vocab_size)))

    def next_sentence(self, x: Blob) -> Blob:
        """Logits (batch, 2): does the second sentence follow the first (0) or not (1)?"""
        batch, _, hidden = x.shape
        first = flow.reshape(flow.slice(x, begin=[0, 0, 0], size=[batch, 1, hidden]), (batch, hidden))
        with flow.scope.namespace("bert-pooler"):
            pooled = flow.math.tanh(self._dense(first, hidden, "dense"))
        with flow.scope.namespace("cls"):
            return self._dense(pooled, 2, "seq_relationship")

    def span(self, x: Blob) -> tuple[Blob, Blob]:
        """Logits (batch, length) of where an answer starts, and of where it ends."""
        batch, length, _ = x.shape
        y = self._dense(x, 2, "qa_outputs")
        start, end = (flow.slice(y, begin=[0, 0, i], size=[batch, length, 1]) for i in (0, 1))
        return flow.reshape(start, (batch, length)), flow.reshape(end, (batch, length))


def pretraining_loss(
    bert: Bert, ids: Blob, types: Blob, mask: Blob, positions: Blob, words: Blob, weights: Blob, follows: Blob
) -> tuple[Blob, Blob, Blob]:
    """The sum of both tasks' losses, and each by itself; all (1,).

    positions, words, weights: (batch, count): which words were hidden, which they are, and 0 for places that only fill up.
    follows: (batch,), 0 where the second sentence follows the first, else 1.
    """
    x = bert.encode(ids, types, mask)
    logits = flow.reshape(bert.words_at(x, positions), (-1, bert.config.vocab_size))
    each = flow.nn.sparse_softmax_cross_entropy_with_logits(flow.reshape(words, (-1,)), logits, name="masked_words")
    weights = flow.reshape(weights, (-1,))
    masked = flow.math.reduce_sum(each * weights) / (flow.math.reduce_sum(weights) + 1e-5)
    sentence = flow.nn.sparse_softmax_cross_entropy_with_logits(follows, bert.next_sentence(x), name="next_sentence")
    sentence = flow.math.reduce_mean(sentence)
    return masked + sentence, masked, sentence


def squad_loss(bert: Bert, ids: Blob, types: Blob, mask: Blob, starts: Blob, ends: Blob) -> Blob:
    """The mean loss (batch,) over where each answer starts and ends."""
    start, end = bert.span(bert.encode(ids, types, mask))
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits
    return (loss(starts, start, name="starts") + loss(ends, end, name="ends")) * 0.5
