"""From raw gradients to new variables: averaging, loss scale, regularizers, clipping, update rules.

There are three steps, as variables may be on different devices: each place prepares its own gradients, quantities of all
gradients (a norm, the number of non-finite values) are measured and added up, and each place updates its own variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._base.jax import jax, jnp, lax
from ..graph.graph import Graph, Variable
from ..graph.node import Blob
from . import fused_update
from .analysis import LOSS_SCALE_PREFIX, STEP_PREFIX, updates
from .autodiff import UPDATE_SCOPE, GatheredRows
from .indexed_slices import keep_untouched_rows, updated_rows
from .layout import Layout, is_flat
from .lowering import Observer, Values
from .plan import LEARNING_RATES, Plan

State = dict[str, Any]


def is_dynamic_scale(policy: Any) -> bool:
    return policy is not None and hasattr(policy, "increment_period")


def counters(graph: Graph) -> list[str]:
    """The names of the step counter and of the state of a dynamic loss scale."""
    head = graph.objective.optimizers[0]
    names = [STEP_PREFIX + graph.name] if head.train_step_blob is None else []
    return names + (_scale_names(graph) if is_dynamic_scale(head.loss_scale) else [])


def _scale_names(graph: Graph) -> list[str]:
    return [f"{LOSS_SCALE_PREFIX}{graph.name}-{what}" for what in ("LossScale", "GoodStepCounter")]


def seed_scale(graph: Graph, state: Mapping[str, Any]) -> Any:
    """The loss scale: 1.0, the static factor, or the current dynamic scale."""
    policy = graph.objective.optimizers[0].loss_scale
    if policy is None:
        return 1.0
    if is_dynamic_scale(policy):
        return state[_scale_names(graph)[0]][0]
    return float(policy.factor)


def loss_count(loss: Blob, shape: Sequence[int]) -> int:
    """The number that OneFlow divides gradients by: the elements of one loss (per device in the mirrored view), or the size
    of its axis 0 if that varies; at least 1."""
    return max(int(shape[0]) if loss.is_dynamic else int(np.prod(shape)), 1)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Scalars of the whole job that updates need besides gradients.

    ``rates`` holds one learning rate per optimizer, None if its schedule computes it; ``values`` holds the Blobs that rules read;
    ``regularized_last`` names the variables whose gradients are clipped before their regularizers are added.
    """

    step: Any
    scale: Any
    count: int
    rates: tuple[Any, ...]
    values: Values
    regularized_last: frozenset[str] = frozenset()


def numbers(plan: Plan, values: Values, state: Mapping[str, Any], count: int) -> Numbers:
    """The scalars of one call. ``values`` holds the Blobs that rules read, ``count`` is the loss count."""
    graph, last = plan.graph, plan.expansion.last
    optimizers = graph.objective.optimizers
    blob = optimizers[0].train_step_blob
    step = state[STEP_PREFIX + graph.name][0] if blob is None else _scalar(values, last(blob))
    rates: list[Any] = []
    for i, optimizer in enumerate(optimizers):
        blob = optimizer.learning_rate_blob
        constant = optimizer.constant_rate is not None
        rates.append(state[LEARNING_RATES][i] if constant else None if blob is None else _scalar(values, last(blob)))
    last_of = [o for o in optimizers if o.clips_first and o.grad_clipping is not None]
    late = frozenset(v.name for v in plan.trained if v.regularizer is not None and any(updates(o, v.name) for o in last_of))
    return Numbers(step, seed_scale(graph, state), count, tuple(rates), values, late)


def prepare(variables: Sequence[Variable], raw: Mapping[str, Any], state: Mapping[str, Any], known: Numbers) -> State:
    """Gradients of the mean loss and the regularizers, by variable. None in ``raw`` stands for zero."""
    found: State = {}
    for variable in variables:
        with jax.named_scope(UPDATE_SCOPE), jax.named_scope(variable.name):
            found[variable.name] = _prepared(variable, state[variable.name], raw[variable.name], known)
    return found


def _prepared(variable: Variable, value: Any, g: Any, known: Numbers) -> Any:
    if g is None:
        g = jnp.zeros_like(value)
    for factor in _factors(known):
        g = g * jnp.asarray(factor, g.dtype)
    if variable.regularizer is not None and variable.name not in known.regularized_last:
        g = g + variable.regularizer.gradient(value).astype(g.dtype)
    return g


def _factors(known: Numbers) -> tuple[Any, ...]:
    """What gradients are multiplied by: the reciprocals of the loss count and of the loss scale, where they are not 1."""
    count = () if known.count == 1 else (1.0 / known.count,)
    is_scaled = not (isinstance(known.scale, float) and known.scale == 1.0)
    return (*count, jnp.asarray(1.0, jnp.float32) / known.scale) if is_scaled else count


def measure(graph: Graph, gradients: Mapping[str, Any]) -> tuple[Any, ...]:
    """Measures of all gradients: what each optimizer's clipping needs (or None), and the number of non-finite values (or None).

    Measures of several places are added.
    """
    optimizers = graph.objective.optimizers
    found: list[Any] = []
    for optimizer in optimizers:
        mine = [g for name, g in gradients.items() if updates(optimizer, name)]
        found.append(optimizer.grad_clipping.measure(mine) if optimizer.grad_clipping is not None and mine else None)
    dynamic = is_dynamic_scale(optimizers[0].loss_scale)
    bad = sum(jnp.sum(~jnp.isfinite(g), dtype=jnp.int64) for g in gradients.values()) if dynamic else None
    return (*found, bad)


def measures_anything(graph: Graph) -> bool:
    """Whether updates depend on measures of all gradients."""
    optimizers = graph.objective.optimizers
    return is_dynamic_scale(optimizers[0].loss_scale) or any(o.grad_clipping is not None for o in optimizers)


def add_measures(parts: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The sum of the measures of several places."""

    def total(terms: Sequence[Any]) -> Any:
        there = [t for t in terms if t is not None]
        return sum(there[1:], start=there[0]) if there else None

    return tuple(total(terms) for terms in zip(*parts, strict=True))


def finish(
    plan: Plan,
    gradients: Mapping[str, Any],
    state: Mapping[str, Any],
    known: Numbers,
    measured: tuple[Any, ...],
    counts: bool,
    raw: Mapping[str, tuple[Any, tuple[Any, ...]]] | None = None,
    devices: fused_update.Devices | None = None,
    rows: Mapping[str, Sequence[GatheredRows]] | None = None,
) -> State:
    """The new values of the variables in ``gradients`` and of their optimizer slots, and of the counters if ``counts``.

    ``raw`` holds gradients before ``prepare``, with scalars of zero that their use must wait for. Where it has one, a fused
    update prepares that itself, so that XLA need not write the prepared one. ``devices``: those of the variables, if several.
    ``rows`` holds raw gradients of tables in rows, in place of those in ``gradients``.
    """
    graph = plan.graph
    head = graph.objective.optimizers[0]
    addends = devices.addends if devices is not None else ()
    skip = measured[-1] > 0 if is_dynamic_scale(head.loss_scale) else None
    new: State = {}
    done: State = {}  # by fused updates, which skip by themselves
    for i, optimizer in enumerate(graph.objective.optimizers):
        mine = {name: g for name, g in gradients.items() if updates(optimizer, name)}
        if not mine:
            continue
        rate = known.rates[i] if known.rates[i] is not None else optimizer.learning_rate(known.step)
        fused = {
            name: g for name, g in mine.items()
            if (name in plan.fused_updates and (devices is None or devices.may_update(name))) or name in addends
        }  # fmt: skip
        if fused:
            factor = None if optimizer.grad_clipping is None else optimizer.grad_clipping.factor(measured[i])
            waiting = {name: _unprepared(graph.variables[name], g, known, factor, raw, devices) for name, g in fused.items()}
            decays = {name: optimizer.weight_decay_of(name) for name in fused}
            rates, in_place = (rate, known.step), not plan.transactional
            done.update(fused_update.run(optimizer, waiting, decays, state, rates, skip, in_place, devices))
            untouched = (f"{n}-{slot.suffix}" for n in fused for slot in optimizer.slots(graph.variables[n]))
            done.update((key, state[key]) for key in untouched if key not in done)
            mine = {name: g for name, g in mine.items() if name not in fused}
        if optimizer.grad_clipping is not None:
            mine = dict(zip(mine, optimizer.grad_clipping.scaled(list(mine.values()), measured[i]), strict=True))
            for name in known.regularized_last & mine.keys():
                penalty = graph.variables[name].regularizer.gradient(state[name])
                mine[name] = mine[name] + penalty.astype(mine[name].dtype)
        new.update(_update(plan, optimizer, mine, state, rate, known, rows or {}))
    if counts and head.train_step_blob is None:
        step_name = STEP_PREFIX + graph.name
        new[step_name] = state[step_name] + jnp.asarray(1, jnp.int64)
    if skip is not None:
        new = {name: lax.select(jnp.broadcast_to(skip, value.shape), state[name], value) for name, value in new.items()}
        if counts:
            new.update(_adjusted_scale(graph, head.loss_scale, skip, state))
    return {**new, **done}


def _unprepared(
    variable: Variable,
    prepared: Any,
    known: Numbers,
    clipping: Any,
    raw: Mapping[str, tuple[Any, tuple[Any, ...]]] | None,
    devices: fused_update.Devices | None,
) -> fused_update.Gradient:
    """A gradient for a fused update, which multiplies it and adds the penalty as ``prepare`` and clipping do."""
    array, waits = (raw or {}).get(variable.name, (None, ()))
    clips = () if clipping is None else (clipping,)
    late = variable.name in known.regularized_last
    has_penalty = variable.regularizer is not None and (late or array is not None)
    penalty = (variable.regularizer.l1, variable.regularizer.l2) if has_penalty else (0.0, 0.0)
    array, before = (prepared, ()) if array is None else (array, _factors(known))
    if late:
        before, clips = (*before, *clips), ()
    flat = _is_flat(variable) if devices is None else devices.storages[variable.name].is_flat
    return fused_update.Gradient(array, before, penalty, clips, waits, flat)


def show_updates(
    observer: Observer, plan: Plan, raw: Mapping[str, Any], gradients: Mapping[str, Any], before: State, after: State
) -> None:
    """Shows an observer how each trained variable was updated."""
    for variable in plan.trained:
        name = variable.name
        mine = [o for o in plan.graph.objective.optimizers if updates(o, name)]
        names = [name, *(f"{name}-{slot.suffix}" for o in mine[:1] for slot in o.slots(variable))]
        now = {n: after[n] for n in names if n in after}
        observer.update(name, raw[name], gradients[name], {n: before[n] for n in names}, now)


def _is_flat(variable: Variable) -> bool:
    layout = None if variable.placement is None else Layout.of(variable.placement, variable.distribute)
    return layout is not None and is_flat(layout, variable.shape)


def _flat(array: Any) -> Any:
    return lax.reshape(array, (array.size,))


def _update(
    plan: Plan, optimizer: Any, gradients: Mapping[str, Any], state: Mapping[str, Any], rate: Any, known: Numbers,
    rows: Mapping[str, Sequence[GatheredRows]],
) -> State:  # fmt: skip
    new: State = {}
    for name, g in gradients.items():
        with jax.named_scope(UPDATE_SCOPE), jax.named_scope(name):
            if name in rows:
                new.update(_update_rows(plan.graph.variables[name], optimizer, rows[name], state, rate, known))
            else:
                new.update(_update_one(plan, optimizer, name, g, state, rate, known))
    return new


def _update_rows(
    variable: Variable, optimizer: Any, rows: Sequence[GatheredRows], state: Mapping[str, Any], rate: Any, known: Numbers
) -> State:
    suffixes = [slot.suffix for slot in optimizer.slots(variable)]
    names = [variable.name, *(f"{variable.name}-{suffix}" for suffix in suffixes)]
    decay = optimizer.weight_decay_of(variable.name)

    def update(g: Any, arrays: Sequence[Any]) -> Sequence[Any]:
        slots = dict(zip(suffixes, arrays[1:], strict=True))
        x, new = optimizer.update(arrays[0], g, slots, lr=rate, step=known.step, weight_decay=decay)
        return [x, *(new[suffix] for suffix in suffixes)]

    made = updated_rows(rows, _factors(known), [state[name] for name in names], update)
    return dict(zip(names, made, strict=True))


def _update_one(plan: Plan, optimizer: Any, name: str, g: Any, state: Mapping[str, Any], rate: Any, known: Numbers) -> State:
    variable = plan.graph.variables[name]
    suffixes = [slot.suffix for slot in optimizer.slots(variable)]
    slots = {suffix: state[f"{name}-{suffix}"] for suffix in suffixes}
    decay = optimizer.weight_decay_of(name)
    gathers = plan.gathers.get(name)
    x = state[name]
    if gathers is None and _is_flat(variable):
        x, g, slots = _flat(x), _flat(g), {suffix: _flat(slot) for suffix, slot in slots.items()}
    x, updated = optimizer.update(x, g, slots, lr=rate, step=known.step, weight_decay=decay)
    mine = {name: x, **{f"{name}-{suffix}": updated[suffix] for suffix in suffixes}}
    mine = {key: lax.reshape(value, state[key].shape) for key, value in mine.items()}
    if gathers is None:
        return mine
    return keep_untouched_rows([gather for gather in gathers if gather in plan.path], variable, mine, state, known.values)


def _adjusted_scale(graph: Graph, policy: Any, skip: Any, state: Mapping[str, Any]) -> State:
    scale_name, counter_name = _scale_names(graph)
    scale, counter = state[scale_name], state[counter_name] + jnp.asarray(1, jnp.int64)
    multiplier = jnp.asarray(policy.multiplier, jnp.float32)
    grow = counter >= policy.increment_period
    grown = jnp.where(grow, jnp.minimum(scale * multiplier, jnp.asarray(policy.largest, jnp.float32)), scale)
    shrunk = jnp.maximum(scale / multiplier, jnp.asarray(1.0, jnp.float32))
    zero = jnp.zeros_like(counter)
    return {
        scale_name: jnp.where(skip, shrunk, grown),
        counter_name: jnp.where(skip, zero, jnp.where(grow, zero, counter)),
    }


def _scalar(values: Values, blob: Any) -> Any:
    return values.get_blob(blob).reshape(())
