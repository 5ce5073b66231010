"""Attention by cuDNN's fused kernels (flash attention) on NVIDIA GPUs: ``flow.config.cudnn_attention``.

``attention.py`` finds the ops; JAX's public ``jax.nn.dot_product_attention`` makes the calls of both passes. On several devices
each computes its samples and heads under ``jax.shard_map``, so that XLA has nothing to partition.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from .._base.dist import Placement
from .._base.dtype import dtype
from .._base.jax import jax, jnp, lax
from ..errors import MissingExtraError
from ..graph.node import Node
from ..graph.op import OpDef
from .attention import FoundAttention, find_attention, of_calls
from .attention_kernels import HEADS_FIRST, Attention, in_four, sizes_of, unpacked
from .layout import mesh_of
from .native import declared
from .plan import PassRecord, Plan

Array = Any
Split = tuple[tuple[int, ...], tuple[int, ...]]  # the axes that split the batch, and the heads

IMPLEMENTATION = "cudnn"  # of jax.nn.dot_product_attention
_HEAD_SIZES = 8  # a head is a multiple of it
_HEAD_SIZE, _HEAD_SIZE_ON_HOPPER = 128, 256
_LEAST_CAPABILITY, _HOPPER = (8, 0), (9, 0)
_HIDDEN = -1e4  # a causal fill of at most this much leaves a weight of zero, as cuDNN's does
_LARGEST_BIAS = {"float16": 2.0**15, "bfloat16": 2.0**41}  # JAX's bounds: cuDNN makes NaN of larger ones


@dataclass(frozen=True, slots=True)
class Limits:
    """What some devices compute: heads of up to ``head_size`` elements, or nothing for the reason ``without``."""

    head_size: int = _HEAD_SIZE
    without: str = ""


def limits_of(devices: Collection[Any]) -> Limits:
    """The limits of JAX devices, or of a target's, whose generation JAX does not ask for while it traces."""
    if any(d.platform != "gpu" for d in devices):
        return Limits(without="some of the devices are not GPUs")
    known = [_capability(d) for d in devices]
    if not all(known):
        return Limits()
    least = min(known)
    if least < _LEAST_CAPABILITY:
        return Limits(without=f"a GPU of compute capability {'.'.join(map(str, least))} is older than 8.0")
    return Limits(_HEAD_SIZE_ON_HOPPER if least >= _HOPPER else _HEAD_SIZE)


def _capability(device: Any) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in device.compute_capability.split("."))
    except (AttributeError, ValueError):  # not an NVIDIA GPU, or one that is not here
        return ()


# --- the op


def _define(
    *arrays: Array, perms: Any, factor: float, mask_sign: int, causal: Any, packed: int, split: Split | None, mesh: Any
) -> Array:
    """softmax(factor Q K^T + mask) V; ``arrays`` and the other attributes are those of ``attention_kernels.define``."""
    q, k, v, *mask = unpacked(arrays, packed)
    rank = q.ndim
    if rank == 3:
        perms, (q, k, v) = (HEADS_FIRST,) * 4, (x.reshape(x.shape[0], 1, *x.shape[1:]) for x in (q, k, v))
    b, h, t, d = range(4)
    q, k, v = (lax.transpose(x, [perm[axis] for axis in (b, t, h, d)]) for x, perm in zip((q, k, v), perms[:3], strict=True))
    bias = [_bias(m.reshape(in_four(m.shape, rank)), mask_sign, q, k) for m in mask]
    attend = partial(jax.nn.dot_product_attention, scale=factor, is_causal=causal is not None, implementation=IMPLEMENTATION)
    if mesh is not None and split is not None:
        attend = _on_each_device(attend, mesh, split, [m.shape for m in bias])
    y = attend(q, k, v, *bias)
    if rank == 3:
        return y.reshape(y.shape[0], y.shape[1], y.shape[3])
    made = [perms[3].index(axis) for axis in range(4)]  # the axis of (batch, heads, positions, size) that each axis holds
    return lax.transpose(y, [(b, t, h, d).index(axis) for axis in made])


def _bias(mask: Array, sign: int, q: Array, k: Array) -> Array:
    """A mask of four axes as cuDNN takes it: of all queries and keys, in the dtype of the queries, and finite."""
    bound = _LARGEST_BIAS.get(q.dtype.name, np.inf)
    shape = (*mask.shape[:2], q.shape[1], k.shape[1])
    signed = jnp.clip(mask * np.asarray(sign, mask.dtype), -bound, bound).astype(q.dtype)
    return lax.stop_gradient(jnp.broadcast_to(signed, shape))


def _on_each_device(attend: Any, mesh: Any, split: Split, biases: Sequence[Sequence[int]]) -> Any:
    """``attend`` on each device's samples and heads."""
    batch, heads = (tuple(mesh.axis_names[i] for i in axes) or None for axes in split)
    spec = jax.sharding.PartitionSpec
    whole = spec(batch, None, heads, None)
    specs = [spec(None if s[0] == 1 else batch, None if s[1] == 1 else heads, None, None) for s in biases]
    return jax.shard_map(attend, mesh=mesh, in_specs=(whole, whole, whole, *specs), out_specs=whole, check_vma=False)


CUDNN_ATTENTION = OpDef("cudnn_attention", _define, takes_mesh=True)


# --- which attention it computes


def kernel(limits: Limits, node: Node, narrow: dtype | None) -> Node | str:
    """The kernel of cuDNN, as ``attention.find_attention`` asks for one."""
    if limits.without:
        return limits.without
    if node.is_mirrored:
        return "cuDNN is not called in the mirrored view"
    arrays = declared(node, narrow)
    sizes = sizes_of(arrays, node.attrs)
    reason = unsupported_reason(sizes, [np.dtype(a.dtype).name for a in arrays], limits.head_size)
    if reason:
        return reason
    placement = node.scope.placement
    first = node.inputs[0]
    batch_axis = 1 if node.attrs["packed"] else 0 if first.ndim == 3 else sizes.perms[0][0]
    split = split_of(placement, sizes, first.batch_axis == batch_axis)
    if split is None:
        how = "x".join(map(str, placement.hierarchy))
        return f"{sizes.batch} samples of {sizes.heads} heads cannot be divided evenly among {how} devices"
    number = itertools.count()
    axes = [[next(number) for _ in group] for group in mesh_of(placement.hierarchy)]
    of_mesh = tuple(tuple(n for i in found for n in axes[i]) for found in split)
    return node.copy(op=CUDNN_ATTENTION, attrs={**node.attrs, "split": of_mesh})


def unsupported_reason(a: Attention, dtypes: Sequence[str], largest_head: int) -> str:
    """Why cuDNN does not compute it, by the rules that JAX and NVIDIA document; "" where it does.

    Args:
      dtypes: of queries, keys, values and the mask; or of one array of all three, and the mask.
      largest_head: elements of a head.
    """
    given = dtypes[0]
    if given not in _LARGEST_BIAS:
        return f"cuDNN computes attention in float16 and bfloat16, not in {given}"
    if any(name not in (*_LARGEST_BIAS, "float32", "float64") for name in dtypes):
        return f"its arrays are of {', '.join(dtypes)}"
    if min(a.batch, a.heads, a.queries, a.keys, a.size) == 0:
        return "an array is empty"
    if a.size % _HEAD_SIZES or a.size > largest_head:
        return f"heads of {a.size} elements: cuDNN takes multiples of {_HEAD_SIZES} up to {largest_head}"
    if a.mask is not None and (a.queries % 2 or a.keys % 2):
        return f"with a mask, cuDNN takes even numbers of queries and keys, not {a.queries} and {a.keys}"
    if a.causal is not None:
        diagonal, fill = a.causal
        if diagonal != 0 or a.queries != a.keys:
            return f"a triangle of {a.queries} queries and {a.keys} keys with diagonal {diagonal} is not cuDNN's causal mask"
        if not fill <= _HIDDEN:
            return f"a triangle filled with {fill:g} instead of at most {_HIDDEN:g} does not hide keys"
    return ""


def split_of(placement: Placement, a: Attention, batch_is_split: bool) -> Split | None:
    """The axes of the placement's hierarchy along which devices divide samples and heads; None where they cannot evenly.

    The first axis of the hierarchy is that of the batch, the others, or all if the batch is not split, those of the heads.
    """
    batch, heads = a.batch, a.heads
    found: tuple[list[int], list[int]] = ([], [])
    for i, n in enumerate(placement.hierarchy):
        prefers_batch = i == 0 and (batch_is_split or len(placement.hierarchy) > 1)
        for of_batch in (prefers_batch, not prefers_batch):
            if (batch if of_batch else heads) % n == 0:
                break
        else:
            return None
        batch, heads = (batch // n, heads) if of_batch else (batch, heads // n)
        found[0 if of_batch else 1].append(i)
    return tuple(found[0]), tuple(found[1])


# --- the pass


def with_cudnn_attention(plan: Plan, limits: Limits, homes: Mapping[Node, int] | None = None) -> Plan:
    """The plan with cuDNN's attention where it computes that of the job; notes say where it does not.

    Args:
      plan: of a job whose devices are known.
      limits: of these devices.
      homes: the index of the segment of each node, where the job has several.
    Raises:
      MissingExtraError: JAX cannot use cuDNN in this process.
    """
    nodes = plan.compute
    keep = {w.blob.node for w in plan.watches if w.diff}
    present = {n for n in nodes if n not in plan.vmapped and n not in plan.devices}
    found = find_attention(nodes, present, keep, plan.roots, plan.path, plan.precision, partial(kernel, limits))
    if homes is not None:
        found = _inside_segments(found, homes)
    calls = found.calls.values()
    if calls:
        _check_installed(plan)
    made = {call.target.node: call.node for call in calls}
    computed = {call.product: "cuDNN's attention" for call in calls}
    kernels = {**computed, **{node: f"XLA: {reason}" for node, reason in found.refused.items()}}
    by_name = {node.name: text for node, text in kernels.items()}  # nodes may be copies of the graph's
    return replace(
        plan,
        attention=found,
        path=plan.path | {new for old, new in made.items() if old in plan.path},
        precision={**plan.precision, **of_calls(plan.precision, list(calls))},
        fused_kernels={**plan.fused_kernels, **{n: by_name[n.name] for n in plan.graph.nodes if n.name in by_name}},
        notes=(*plan.notes, *_notes(found)),
        passes=(*plan.passes, PassRecord("cuDNN attention", "; ".join(_notes(found)))),
    )


def _inside_segments(found: FoundAttention, homes: Mapping[Node, int]) -> FoundAttention:
    """The calls whose nodes are all in one segment; a segment is one function, or two, one per pass."""
    calls = {at: call for at, call in found.calls.items() if len({homes[node] for node in call.nodes}) == 1}
    apart = {call.product: "its mask waits for another stage" for at, call in found.calls.items() if at not in calls}
    return FoundAttention(calls, {**found.refused, **apart})


def _notes(found: FoundAttention) -> list[str]:
    """Sentences that say what cuDNN computes, and why it does not compute the rest."""
    names = {call.product.name for call in found.calls.values()}
    notes = [f"attention by cuDNN: {len(names)} layer{'' if len(names) == 1 else 's'}"] if names else []
    reasons: dict[str, list[str]] = {}
    for node, reason in found.refused.items():
        if node.name not in reasons.setdefault(reason, []):
            reasons[reason].append(node.name)
    for reason, by in reasons.items():
        more = f" and {len(by) - 1} more" if len(by) > 1 else ""
        notes.append(f"attention not by cuDNN: {by[0]}{more}: {reason}")
    return notes


def _check_installed(plan: Plan) -> None:
    """Raises MissingExtraError where JAX does not trace cuDNN's attention: it asks for the library's version."""
    x = jax.ShapeDtypeStruct((1, 8, 1, 8), jnp.bfloat16)
    try:
        jax.eval_shape(partial(jax.nn.dot_product_attention, implementation=IMPLEMENTATION), x, x, x)
    except Exception as error:  # a RuntimeError today, of a module that JAX does not document
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MissingExtraError(
            f"job {plan.graph.name!r} has attention for cuDNN (flow.config.cudnn_attention), which JAX cannot use here: {why}\n"
            "  try        pip install 'jax[cuda12]' on a machine with a GPU; where jobs are only planned,\n"
            "             pip install 'oneflow-jax[plan-gpu]' nvidia-cudnn-cu12 (about 0.7 GB)\n"
            "             flow.config.cudnn_attention(False)",
            name="nvidia-cudnn-cu12",
        ) from error


__all__ = ["CUDNN_ATTENTION", "Limits", "kernel", "limits_of", "split_of", "unsupported_reason", "with_cudnn_attention"]
