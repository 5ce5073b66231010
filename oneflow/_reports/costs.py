"""What the ops of a job have to compute and to read and write, by XLA's own count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from .._base.jax import jax, jnp
from ..compiler.analysis import flows_to
from ..compiler.autodiff import linearize
from ..compiler.lowering import Lowering, Values
from ..compiler.plan import Plan
from ..compiler.program import draws_of
from ..graph.node import Blob, Node


@dataclass(frozen=True, slots=True)
class Cost:
    """One op per call, on all devices: floating-point operations (None where XLA does not say), and the bytes of its arrays.

    The bytes are those that it must read and write at least; XLA saves some of them by fusing ops.
    """

    forward_flops: float | None
    backward_flops: float | None
    forward_bytes: int
    backward_bytes: int


def costs(plan: Plan) -> Mapping[str, Cost]:
    """The costs of the ops of a plan, by name; those of all runs of a repeated part are added."""
    lowering = Lowering(None, plan.vmapped, "only counted", plan.precision)
    counted: dict[Any, tuple[float | None, float | None]] = {}
    found: dict[str, Cost] = {}
    for node in plan.compute:
        wanted = tuple(i for i, b in enumerate(node.inputs) if b.node in plan.path and flows_to(node, i))
        wanted = wanted if node in plan.path else ()
        structs = [_struct(b, plan) for b in node.inputs]
        key = _key(node, structs, wanted, plan)
        if key not in counted:
            counted[key] = _count(node, structs, wanted, lowering)
        forward, backward = counted[key]
        read = sum(map(_bytes, structs))
        written = sum(_bytes(_struct(b, plan)) for b in node.outputs)
        gradients = written + read + sum(_bytes(structs[i]) for i in wanted) if wanted else 0
        cost = Cost(forward, backward, read + written, gradients)
        found[node.name] = _sum(found[node.name], cost) if node.name in found else cost
    return found


def _sum(one: Cost, other: Cost) -> Cost:
    def add(x: float | None, y: float | None) -> float | None:
        return None if x is None or y is None else x + y

    return Cost(
        add(one.forward_flops, other.forward_flops), add(one.backward_flops, other.backward_flops),
        one.forward_bytes + other.forward_bytes, one.backward_bytes + other.backward_bytes,
    )  # fmt: skip


def _struct(blob: Blob, plan: Plan) -> Any:
    shape = (blob.parallel_size, *blob.shape) if blob.node in plan.vmapped else blob.shape
    return jax.ShapeDtypeStruct(shape, blob.dtype.numpy_dtype)


def _bytes(struct: Any) -> int:
    return prod(struct.shape) * np.dtype(struct.dtype).itemsize


def _key(node: Node, structs: Sequence[Any], wanted: tuple[int, ...], plan: Plan) -> Any:
    attrs = repr(sorted((name, repr(value)) for name, value in node.attrs.items()))
    shapes = tuple((s.shape, s.dtype) for s in structs)
    return node.op, shapes, attrs, wanted, node in plan.vmapped, plan.precision.get(node), node.scope.placement.parallel_num


def _count(node: Node, structs: Sequence[Any], wanted: tuple[int, ...], lowering: Lowering) -> tuple[float | None, float | None]:
    """Floating-point operations of the forward and of the backward pass."""

    def run(arrays: Sequence[Any], cotangents: Any) -> Any:
        values = Values(lowering)
        for blob, array in zip(node.inputs, arrays, strict=True):
            values.set_blob(blob, array)
        draws = draws_of(jnp.zeros((3,), jnp.uint32)) if node.op.random else None
        if not wanted:
            function = lowering.function(node, draws)
            return function(*values.inputs(node))
        outputs, pullback = linearize(node, values, draws, wanted)
        return outputs if cotangents is None else (outputs, pullback(cotangents))

    def flops(cotangents: Any) -> float | None:
        # lowered for a CPU: XLA's plugins for GPUs do not count
        with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
            found = jax.jit(run).lower(list(structs), cotangents).cost_analysis()
        return None if found is None else max(float(found.get("flops", 0.0)), 0.0)

    try:
        forward = flops(None)
        if not wanted:
            return forward, 0.0
        plain = replace(lowering, observer=None)
        with jax.enable_x64(True):
            outputs = jax.eval_shape(lambda *a: _as_tuple(plain.function(node, _no_draws(node))(*a)), *structs)
        both = flops(tuple(jax.ShapeDtypeStruct(o.shape, o.dtype) for o in outputs))
        return forward, None if both is None or forward is None else max(both - forward, 0.0)
    except Exception:  # an op that cannot be lowered by itself has no count
        return None, None


def _no_draws(node: Node) -> Any:
    return draws_of(jnp.zeros((3,), jnp.uint32)) if node.op.random else None


def _as_tuple(outputs: Any) -> tuple[Any, ...]:
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
