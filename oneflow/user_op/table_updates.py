"""Rows of registered ops that only have an effect: assignments, update rules, the dynamic loss scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .._base.jax import jnp
from ..errors import ArgumentError
from ..graph.graph import OP_VARIABLE, current
from ..graph.node import Blob
from ..ops import array
from ..ops._emit import fail
from ..optimizer.base import Optimizer
from ..optimizer.rules import LAMB, LARS, SGD, Adam, RMSProp
from ..optimizer.schedules import PiecewiseConstantScheduler
from .registry import Attributes, Build, Inputs, arrays, as_array, call, emit_arrays, row

_COMMON = "scale: double = 1.0; l1: float = 0.0; l2: float = 0.0; weight_decay: float = 0.0"
_STATE = "scale_by_tensor?, skip_if?"
_RATE = PiecewiseConstantScheduler([], [0.0])  # the rate is an input of these ops

# --- assignments


def _assign_where(flag_is_set: bool) -> Build:
    def build(i: Inputs, a: Attributes, n: str) -> None:
        yes, no = ("value", "ref") if flag_is_set else ("ref", "value")
        array.assign(i["ref"], call("where", "condition", yes, no)(i, a, n))

    return build


row("assign (ref, value) -> ()", lambda i, a, n: array.assign(i["ref"], i["value"]))
row("assign_if (ref, value, condition) -> ()", _assign_where(True))
row("assign_if_not (ref, value, condition) -> ()", _assign_where(False))


def _schedule(count: Any, scale: Any, counter: Any, *, increment_period: int, multiplier: float) -> Any:
    failed = count > 0
    steps = counter + 1
    grows = steps >= increment_period
    largest = jnp.asarray(np.finfo(np.float32).max, jnp.float32)
    grown = jnp.where(grows, jnp.minimum(scale * as_array(multiplier, scale), largest), scale)
    shrunk = jnp.maximum(scale / as_array(multiplier, scale), as_array(1.0, scale))
    zero = jnp.zeros_like(counter)
    return jnp.where(failed, shrunk, grown), jnp.where(failed | grows, zero, steps)


def _loss_scale(i: Inputs, a: Attributes, n: str) -> None:
    given = [i["count_not_finite"], i["loss_scale"], i["good_step_counter"]]
    scale, counter = emit_arrays(_schedule, given, a, n, 2)
    array.assign(i["loss_scale"], scale)
    array.assign(i["good_step_counter"], counter)


row("""dynamic_loss_scale_schedule (count_not_finite, loss_scale, good_step_counter) -> () {increment_period: int64 = 2000;
    multiplier: float = 2.0}""", _loss_scale)  # fmt: skip
row("l1_l2_regularize_gradient (model, model_diff) -> (out) {l1: float = 0.0; l2: float = 0.0}",
    arrays(lambda x, g, l1, l2: g + as_array(l1, x) * jnp.where(x >= 0, as_array(1, x), as_array(-1, x)) + as_array(l2, x) * x,
           "model", "model_diff"))  # fmt: skip


def _corrected(lr: Any, step: Any, *, beta1: float, beta2: float) -> Any:
    t = (step + 1).astype(jnp.float64)
    return (lr * jnp.sqrt(1 - jnp.power(beta2, t)) / (1 - jnp.power(beta1, t))).astype(lr.dtype)


row("adam_bias_correction_learning_rate (learning_rate, train_step) -> (out) {beta1: float = 0.9; beta2: float = 0.999}",
    arrays(_corrected, "learning_rate", "train_step"))  # fmt: skip

# --- update rules

Rule = Callable[[Attributes], Optimizer]


def _variables(n: str, blobs: Mapping[str, Blob]) -> None:
    for name, blob in blobs.items():
        if blob.node.op is not OP_VARIABLE:
            fail(ArgumentError, f"user op {n!r}", f"input {name!r} is written and must be a variable, but {blob.op_name!r} is "
                 f"computed by {blob.node.op.name}", (blob,), "pass the Blob that flow.get_variable returned")  # fmt: skip


def _updated(rule: Rule, slots: Mapping[str, str], *, sparse: bool = False) -> Build:
    """An update rule as an op. ``slots``: the inputs that hold the rule's state, each with its name in the optimizer."""

    def build(i: Inputs, a: Attributes, n: str) -> None:
        optimizer = rule(a)
        kept = {name: i[name] for name in slots if i[name] is not None}
        written = {"model": i["model"], **kept}
        _variables(n, written)
        gradient = ("model_diff_indices", "model_diff_values") if sparse else ("model_diff",)
        others = [k for k in (*gradient, "learning_rate", "train_step", "scale_by_tensor", "skip_if") if i.get(k) is not None]

        def update(*xs: Any) -> Any:
            known = dict(zip((*written, *others), xs, strict=True))
            x, lr = known["model"], known["learning_rate"].reshape(())
            g = _dense(x, known) if sparse else known["model_diff"].astype(x.dtype)
            if not sparse:
                g = g * as_array(a["scale"], g)
            if "scale_by_tensor" in known:
                g = g * known["scale_by_tensor"].reshape(()).astype(g.dtype)
            if a.get("l1"):
                g = g + as_array(a["l1"], x) * jnp.sign(x)
            if a.get("l2"):
                g = g + as_array(a["l2"], x) * x
            step = known["train_step"].reshape(()) if "train_step" in known else jnp.zeros((), jnp.int32)
            state = {slots[name]: known[name] for name in kept}
            new, new_state = optimizer.formula(x, g, state, lr.astype(x.dtype), step, a["weight_decay"])
            results = [new, *(new_state[slots[name]] for name in kept)]
            old = [known[name] for name in written]
            if "skip_if" in known:
                skip = known["skip_if"].reshape(()) != 0
                results = [jnp.where(skip, was, now) for was, now in zip(old, results, strict=True)]
            if sparse:
                touched = _touched(x, known)
                results = [
                    jnp.where(touched.reshape(-1, *(1,) * (now.ndim - 1)), now, was)
                    for was, now in zip(old, results, strict=True)
                ]
            return tuple(results) if len(results) > 1 else results[0]

        blobs = [*written.values(), *(i[k] for k in others)]
        results = emit_arrays(update, blobs, {}, n, len(written), op_name=type(optimizer).__name__.lower() + "_update")
        for ref, value in zip(written.values(), results, strict=True):
            current("user op").assign(ref, value)

    return build


def _touched(x: Any, known: Mapping[str, Any]) -> Any:
    return jnp.zeros((x.shape[0],), jnp.bool_).at[known["model_diff_indices"].reshape(-1)].set(True, mode="drop")


def _dense(x: Any, known: Mapping[str, Any]) -> Any:
    at = known["model_diff_indices"].reshape(-1)
    return jnp.zeros_like(x).at[at].add(known["model_diff_values"].reshape(at.size, *x.shape[1:]).astype(x.dtype), mode="drop")


def _sgd(a: Attributes) -> Optimizer:
    return SGD(_RATE, momentum=a.get("beta", 0.0))


def _adam(a: Attributes) -> Optimizer:
    return Adam(_RATE, a["beta1"], a["beta2"], a["epsilon"])


_MOMENTS = {"m": "m", "v": "v"}
_BETAS = "beta1: float = 0.9; beta2: float = 0.999; epsilon: float = 1e-8"
row(f"sgd_update (model, model_diff, learning_rate, {_STATE}) -> () {{{_COMMON}}}", _updated(_sgd, {}))
row(f"momentum_update (model, model_diff, learning_rate, momentum, {_STATE}) -> () {{{_COMMON}; beta: float = 0.9}}",
    _updated(_sgd, {"momentum": "momentum"}))  # fmt: skip
row(f"adam_update (model, model_diff, learning_rate, {_STATE}, m, v) -> () {{{_COMMON}; {_BETAS}}}", _updated(_adam, _MOMENTS))
row(f"""rmsprop_update (model, model_diff, learning_rate, {_STATE}, mean_square, mean_gradient?) -> () {{{_COMMON};
    centered: bool = False; epsilon: float = 1e-8; decay_rate: float = 0.99}}""",
    _updated(lambda a: RMSProp(_RATE, a["decay_rate"], a["epsilon"], a["centered"]),
             {"mean_square": "mean_square", "mean_gradient": "mean_gradient"}))  # fmt: skip
row(f"""lars_update (model, model_diff, learning_rate, train_step, momentum, {_STATE}) -> () {{{_COMMON};
    momentum_beta: float = 0.9; epsilon: float = 1e-9; lars_coefficient: float = 1e-4}}""",
    _updated(lambda a: LARS(_RATE, a["momentum_beta"], a["epsilon"], a["lars_coefficient"]),
             {"momentum": "momentum"}))  # fmt: skip
row(f"""lamb_update (m, v, beta1_t, beta2_t, model, model_diff, learning_rate, {_STATE}) -> () {{{_COMMON}; beta1: float;
    beta2: float; epsilon: float}}""",
    _updated(lambda a: LAMB(_RATE, a["beta1"], a["beta2"], a["epsilon"]),
             {**_MOMENTS, "beta1_t": "beta1_t", "beta2_t": "beta2_t"}))  # fmt: skip
_SLICES = "model, model_diff_indices, model_diff_values, learning_rate"
row(f"indexed_slices_sgd_update ({_SLICES}) -> () {{weight_decay: float = 0.0}}", _updated(_sgd, {}, sparse=True))
row(f"indexed_slices_momentum_update ({_SLICES}, momentum) -> () {{beta: float = 0.9; weight_decay: float = 0.0}}",
    _updated(_sgd, {"momentum": "momentum"}, sparse=True))  # fmt: skip
row(f"indexed_slices_adam_update ({_SLICES}, m, v) -> () {{{_BETAS}; weight_decay: float = 0.0}}",
    _updated(_adam, _MOMENTS, sparse=True))  # fmt: skip

# --- summaries

for _line, _names in {
    "create_summary_writer () -> () {logdir: str}": ("logdir",), "flush_summary_writer () -> ()": (),
    "summary_write_scalar (in, step, tag) -> ()": ("in", "step", "tag"),
    "summary_write_histogram (in, step, tag) -> ()": ("in", "step", "tag"),
    "summary_write_image (in, step, tag) -> ()": ("in", "step", "tag"), "summary_write_pb (in, step) -> ()": ("in", "step"),
}.items():  # fmt: skip
    _type = _line.partition(" ")[0]
    row(_line, call(f"summary.{_type.removeprefix('summary_write_')}", *_names))
