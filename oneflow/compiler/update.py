"""From raw gradients to new parameters: averaging, loss scale, regularizers, clipping, update rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._jax import jnp, lax
from ..graph.graph import Graph, Variable
from .analysis import LOSS_SCALE_PREFIX, STEP_PREFIX
from .autodiff import Backward, Values
from .indexed_slices import gather_of, keep_untouched_rows

State = dict[str, Any]


def is_dynamic_scale(policy: Any) -> bool:
    return policy is not None and hasattr(policy, "increment_period")


def seed_scale(graph: Graph, state: State) -> Any:
    """What the gradients are multiplied by while they flow: 1.0, the static factor, or the current dynamic scale."""
    policy = graph.objective.optimizers[0].loss_scale
    if policy is None:
        return 1.0
    if is_dynamic_scale(policy):
        return state[f"{LOSS_SCALE_PREFIX}{graph.name}-LossScale"][0]
    return float(policy.factor)


def loss_count(graph: Graph, values: Values) -> int:
    """What OneFlow divides gradients by: the elements of one loss, or the size of its axis 0 where that varies."""
    loss = graph.objective.losses[0]
    shape = values[loss.node][loss.index].shape
    return int(shape[0]) if loss.is_dynamic else int(np.prod(shape))


def apply(graph: Graph, trained: list[Variable], backward: Backward, values: Values, state: State) -> State:
    """The new values of parameters, optimizer slots and counters, by name."""
    objective = graph.objective
    head = objective.optimizers[0]
    scale = seed_scale(graph, state)
    count = loss_count(graph, values)
    gradients: dict[str, Any] = {}
    for variable in trained:
        assert variable.blob is not None
        g = backward.get(variable.blob)
        value = state[variable.name]
        if g is None:
            g = jnp.zeros_like(value)
        if count != 1:
            g = g * jnp.asarray(1.0 / count, g.dtype)
        if not (isinstance(scale, float) and scale == 1.0):
            g = g * (jnp.asarray(1.0, jnp.float32) / scale).astype(g.dtype)
        gradients[variable.name] = g

    skip = None
    if is_dynamic_scale(head.loss_scale):
        bad = sum(jnp.sum(~jnp.isfinite(g), dtype=jnp.int64) for g in gradients.values())
        skip = bad > 0
    step_name = STEP_PREFIX + graph.name
    step = state[step_name][0] if head.train_step_blob is None else _scalar(values, head.train_step_blob)

    new: State = {}
    for optimizer in objective.optimizers:
        mine = [v for v in trained if optimizer.variables is None or v.name in optimizer.variables]
        new.update(_update(graph, optimizer, mine, gradients, values, state, step))
    if head.train_step_blob is None:
        new[step_name] = state[step_name] + jnp.asarray(1, jnp.int64)
    if skip is not None:
        new = {name: lax.select(jnp.broadcast_to(skip, value.shape), state[name], value) for name, value in new.items()}
        new.update(_adjusted_scale(graph, head.loss_scale, skip, state))
    return new


def _update(
    graph: Graph, optimizer: Any, variables: list[Variable], gradients: State, values: Values, state: State, step: Any
) -> State:
    if optimizer.learning_rate_blob is not None:
        lr = _scalar(values, optimizer.learning_rate_blob)
    else:
        lr = optimizer.learning_rate(step)
    processed = []
    for v in variables:
        g = gradients[v.name]
        processed.append(g if v.regularizer is None else g + v.regularizer.gradient(state[v.name]).astype(g.dtype))
    if optimizer.clip is not None and processed:
        processed = optimizer.clip(processed)
    new: State = {}
    for v, g in zip(variables, processed, strict=True):
        suffixes = [slot.suffix for slot in optimizer.slots(v)]
        slots = {suffix: state[f"{v.name}-{suffix}"] for suffix in suffixes}
        x, updated = optimizer.update(
            state[v.name], g, slots, lr=lr, step=step, weight_decay=optimizer.weight_decay_of(v.name)
        )  # fmt: skip
        mine = {v.name: x, **{f"{v.name}-{suffix}": updated[suffix] for suffix in suffixes}}
        gather = gather_of(graph, v, optimizer)
        new.update(mine if gather is None else keep_untouched_rows(gather, v, mine, state, values))
    return new


def _adjusted_scale(graph: Graph, policy: Any, skip: Any, state: State) -> State:
    scale_name = f"{LOSS_SCALE_PREFIX}{graph.name}-LossScale"
    counter_name = f"{LOSS_SCALE_PREFIX}{graph.name}-GoodStepCounter"
    scale, counter = state[scale_name], state[counter_name] + jnp.asarray(1, jnp.int64)
    multiplier = jnp.asarray(policy.multiplier, jnp.float32)
    grow = counter >= policy.increment_period
    largest = jnp.asarray(np.finfo(np.float32).max, jnp.float32)
    grown = jnp.where(grow, jnp.minimum(scale * multiplier, largest), scale)
    shrunk = jnp.maximum(scale / multiplier, jnp.asarray(1.0, jnp.float32))
    zero = jnp.zeros_like(counter)
    return {
        scale_name: jnp.where(skip, shrunk, grown),
        counter_name: jnp.where(skip, zero, jnp.where(grow, zero, counter)),
    }


def _scalar(values: Values, blob: Any) -> Any:
    return values[blob.node][blob.index].reshape(())
