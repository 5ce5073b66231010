"""Wide & Deep (Cheng et al. 2016): will a user click? A linear model of crossed features beside a network on embeddings."""

from dataclasses import dataclass

import oneflow as flow

Blob = flow.Blob
WHOLE = flow.distribute.broadcast()


@dataclass(frozen=True)
class Features:
    """How many features of each kind a sample has, and how many values they take."""

    dense: int = 13
    wide: int = 2
    wide_values: int = 3200
    deep: int = 26
    deep_values: int = 3200
    embedding: int = 16
    hidden: tuple[int, ...] = (1024, 1024, 1024)


def _table(name: str, rows: int, columns: int, distribute) -> Blob:
    initializer = flow.random_uniform_initializer(minval=-0.05, maxval=0.05)
    return flow.get_variable(name, shape=(rows, columns), dtype=flow.float, initializer=initializer, distribute=distribute)


def wide_and_deep(dense: Blob, wide: Blob, deep: Blob, features: Features, rate: float = 0.5, distribute=WHOLE) -> Blob:
    """Logits (N, 1) of numbers (N, features.dense) and of ids (N, features.wide) and (N, features.deep).

    rate: of dropout behind hidden layers. distribute: how the tables are split over several devices, e.g.
    flow.distribute.split(0) for rows or split(1) for columns.
    """
    batch = dense.shape[0]
    weights = flow.gather(_table("wide_embedding", features.wide_values, 1, distribute), wide, name="wide_rows")
    linear = flow.math.reduce_sum(flow.reshape(weights, (batch, features.wide)), axis=[1], keepdims=True)

    rows = flow.gather(_table("deep_embedding", features.deep_values, features.embedding, distribute), deep, name="deep_rows")
    x = flow.concat([flow.reshape(rows, (batch, features.deep * features.embedding)), dense], axis=1)
    kernel = flow.glorot_uniform_initializer()
    for i, units in enumerate(features.hidden):
        x = flow.layers.dense(x, units, flow.nn.relu, kernel_initializer=kernel, name=f"fc{i}")
        x = flow.nn.dropout(x, rate, name=f"dropout{i}") if rate else x
    return linear + flow.layers.dense(x, 1, kernel_initializer=kernel, name="fc_out")
