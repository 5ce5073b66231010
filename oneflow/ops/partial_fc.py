"""A sample of the classes of a large classifier."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.jax import jax, jnp
from ..errors import DtypeError, ShapeError
from ..graph.graph import current
from ..graph.node import Blob
from ._arrays import Array
from ._arrays import label as label_of
from ._emit import emit_many, fail, op, want
from ._order import ascending_with_positions
from .indexing import gather


@op("distributed_partial_fc_sample", multiple_results=True, random=True, nondifferentiable=True)
def _partial_fc_sample(
    labels: Array, *, classes: int, num_sample: int, devices: int, seed: int | None, key: Any
) -> tuple[Array, Array]:
    """For each device's range of classes: the labels that occur, ascending, then others at random."""
    each, picked = classes // devices, num_sample // devices
    occurs = jnp.zeros((classes,), jnp.bool_).at[labels].set(True, mode="drop").reshape(devices, each)
    place = jnp.arange(each, dtype=jnp.float32)
    rank = jnp.where(
        occurs, place, each + jax.random.uniform(key, (devices, each), jnp.float32, minval=np.float32(0), maxval=np.float32(1))
    )
    chosen = ascending_with_positions(rank, 1)[1][:, :picked]
    sampled = (chosen + each * jnp.arange(devices, dtype=jnp.int32)[:, None]).reshape(num_sample)
    at = jnp.full((classes,), num_sample, jnp.int32).at[sampled].set(jnp.arange(num_sample, dtype=jnp.int32))
    mapped = jnp.take(at, labels, mode="fill", fill_value=num_sample)
    return mapped.astype(labels.dtype), sampled.astype(labels.dtype)


def distributed_partial_fc_sample(weight: Blob, label: Blob, num_sample: int, name: str | None = None) -> tuple[Blob, Blob, Blob]:
    """A part of the classes of a large classifier: those that occur in ``label``, and others at random.

    Device i of n has the classes [i * C/n, (i+1) * C/n), and samples num_sample/n of them: its labels that occur, ascending,
    then others of its classes, each once.

    Args:
      weight: (C, ...), floating; C is divisible by the number of devices.
      label: (N,), int32 or int64, in [0, C).
      num_sample: number of classes; divisible by the number of devices, at most C.
      name: name of the op; made unique when omitted.
    Returns: (mapped_label, sampled_label, sampled_weight): the position of each label among the sampled classes (num_sample
      for one that is not among them), the classes (num_sample,), and their rows of weight, whose gradient flows to weight
      as that of a ``gather`` does, so that ``FunctionConfig.indexed_slices_optimizer_conf`` leaves the other rows as they are.
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> mapped, classes, rows = flow.distributed_partial_fc_sample(weight, label, 1000)   # An et al. 2021, Partial FC
    """
    what = label_of("distributed_partial_fc_sample", name)
    want.floating(what, want.blob(what, "weight", weight))
    want.rank(what, want.blob(what, "label", label), 1, 1)
    if label.dtype.name not in ("int32", "int64"):
        fail(DtypeError, what, f"label must be int32 or int64, got {label.dtype.name}", (weight, label))
    devices, classes = current(what).scope.placement.parallel_num, weight.shape[0]
    num_sample = want.integer(what, "num_sample", num_sample, 1, (weight, label), high=classes)
    if num_sample % devices or classes % devices:
        fail(ShapeError, what, f"num_sample {num_sample} and {classes} classes must be divisible by {devices} devices",
             (weight, label))  # fmt: skip
    mapped, sampled = emit_many(
        _partial_fc_sample, label, name=name, classes=classes, num_sample=num_sample, devices=devices, seed=None
    )
    return mapped, sampled, gather(weight, sampled, name=f"{mapped.op_name}-rows")
