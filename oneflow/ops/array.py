"""Shapes: reshape, transpose, concat and the like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

from .._base.jax import lax
from .._base.refuse import shown
from ..errors import ArgumentError, AxisError, DtypeError, ModeError, ShapeError
from ..graph.graph import OP_VARIABLE, current
from ..graph.node import Blob
from ..graph.op import AttentionStep
from ._arrays import Array, axis_after_removing, broadcast_to, common_shape, groups_of_axes, label, sum_to
from ._emit import emit, emit_bounded, fail, op, want, with_moved_axis

# --- reshape


@op("reshape", autocast="between", keeps_values=True, zeros="all")
def _reshape(x: Array, *, shape: tuple[int, ...]) -> Array:
    return lax.reshape(x, shape)


@op("dynamic_reshape", autocast="between")
def _dynamic_reshape(x: Array, *, shape: tuple[int, ...], bound: tuple[int, ...], free: int | None) -> Array:
    """x, which is at most of shape ``bound``, reshaped accordingly; ``free`` is the axis with the user's -1."""
    if x.shape == bound:
        return lax.reshape(x, shape)
    if free == 0:  # the other sizes are the user's
        return lax.reshape(x, (_filling(x.shape, shape, x.size, list(range(len(shape))), 0), *shape[1:]))
    sizes = list(shape)
    for before, after in groups_of_axes(bound, shape):
        if any(x.shape[a] != bound[a] for a in before):
            place = free if free in after else next((a for a in after if shape[a] != 1), after[0])
            sizes[place] = _filling(x.shape, shape, math.prod(x.shape[a] for a in before), after, place)
    return lax.reshape(x, tuple(sizes))


def _filling(found: tuple[int, ...], shape: tuple[int, ...], total: int, axes: Sequence[int], place: int) -> int:
    """The size of axis ``place`` with which ``axes`` hold ``total`` elements."""
    rest = math.prod(shape[a] for a in axes if a != place)
    if total % rest:
        shown = [-1 if a == place else size for a, size in enumerate(shape)]
        raise ValueError(f"an array of shape {found} cannot be reshaped to {shown}: {total} is not a multiple of {rest}")
    return total // rest


def reshape(x: Blob, shape: Sequence[int], name: str | None = None) -> Blob:
    """The same elements in another shape, in row-major order.

    Args:
      x: Blob of any dtype.
      shape: list or tuple of sizes > 0, one of which may be -1: it is computed.
      name: name of the op; made unique when omitted.
    Returns: Blob of that shape and x's dtype.
    Raises: ShapeError (the number of elements differs), ArgumentError.
    Example: >>> y = flow.reshape(x, [x.shape[0], -1])   # (2, 3, 4) -> (2, 12)
    """
    if not isinstance(x, Blob):
        want.blob(label("reshape", name), "x", x)
    if x.is_dynamic:
        return dynamic_reshape(x, shape, name)
    try:
        sizes = tuple([s.__index__() for s in shape])
    except Exception:  # AttributeError, TypeError, or whatever an object of the user's raises
        _want_one_shape("reshape", x, shape, name)
        _bad_shape(label("reshape", name), x, shape)
    count, total = math.prod(sizes), math.prod(x.shape)
    if count < 0:  # probably one -1
        rest = -count
        sizes = tuple([total // rest if s == -1 else s for s in sizes])
        count = math.prod(sizes)
    if count != total or min(sizes, default=0) <= 0 or type(shape) not in (list, tuple):
        _bad_shape(label("reshape", name), x, shape)
    return emit(_reshape, x, name=name, shape=sizes)


def _want_one_shape(op: str, x: Blob, shape: Any, name: Any) -> None:
    """Refuses sizes that are given one by one."""
    if isinstance(shape, int) and isinstance(name, int):
        rule = f"shape must be one list or tuple of ints, got {shape} and {name}"
        fail(ArgumentError, op, rule, (x,), f"flow.{op}(x, ({shape}, {name}))")


def _bad_shape(what: str, x: Blob, shape: Any) -> NoReturn:
    if not isinstance(shape, (list, tuple)):
        hint = "tuple(shape)" if hasattr(shape, "__array__") else ""
        fail(ArgumentError, what, f"shape must be a list or tuple of ints, got {shown(shape)}", (x,), hint)
    sizes = want.ints(what, "shape", shape)
    if not sizes:
        fail(ShapeError, what, "shape must not be empty: there are no Blobs of rank 0", (x,), "write [1] for a single element")
    if any(s != -1 and s <= 0 for s in sizes) or sizes.count(-1) > 1:
        fail(ShapeError, what, f"sizes must be > 0, except for one -1, got shape={list(sizes)}", (x,))
    rest = math.prod(s for s in sizes if s != -1)
    total = math.prod(x.shape)
    fits = f"{total} elements do not fill {list(sizes)}"
    if -1 in sizes:
        fail(ShapeError, what, f"{fits}: {total} is not a multiple of {rest}", (x,))
    fail(ShapeError, what, f"{fits}, which has {rest}", (x,), "write -1 for one size, to have it computed")


def dynamic_reshape(x: Blob, shape: Sequence[int], name: str | None = None) -> Blob:
    """``reshape`` for a Blob whose size varies from call to call.

    Args:
      x: Blob; its shape is the largest that it can have.
      shape: list or tuple of sizes > 0 for that largest shape, one of which may be -1. A size of the result varies with
        the size from which it is made; where axes are split or joined, the -1 varies, or the first of them. A -1 in front
        takes all variation.
      name: name of the op; made unique when omitted.
    Returns: Blob of that shape and x's dtype, dynamic where x is.
    Raises: ShapeError, ArgumentError.
    Example: >>> y = flow.dynamic_reshape(x, [-1, 12])   # (2, 3, 4) -> (2, 12)
    """
    want.blob("dynamic_reshape", "x", x)
    _want_one_shape("dynamic_reshape", x, shape, name)
    what = label("dynamic_reshape", name)
    if not isinstance(shape, (list, tuple)):
        _bad_shape(what, x, shape)
    sizes = want.ints(what, "shape", shape)
    rest, total = math.prod(s for s in sizes if s != -1), math.prod(x.shape)
    legal = bool(sizes) and sizes.count(-1) <= 1 and all(s == -1 or s > 0 for s in sizes)
    if not legal or (total % rest if -1 in sizes else total != rest):
        _bad_shape(what, x, shape)
    free = sizes.index(-1) if -1 in sizes else None
    full = tuple(total // rest if size == -1 else size for size in sizes)
    return emit(_dynamic_reshape, x, name=name, shape=full, bound=x.shape, free=free)


@op("reshape_like", nondifferentiable=(1,))
def _reshape_like(x: Array, like: Array) -> Array:
    return lax.reshape(x, like.shape)


def reshape_like(x: Blob, like: Blob, name: str | None = None) -> Blob:
    """The elements of x in the shape of ``like``.

    Args:
      x: Blob of any dtype.
      like: Blob with as many elements, of any dtype; its values are not used.
      name: name of the op; made unique when omitted.
    Returns: Blob of like's shape and x's dtype.
    Raises: ShapeError, ArgumentError.
    Example: >>> y = flow.reshape_like(x, like)   # (2, 3), (6,) -> (6,)
    """
    what = label("reshape_like", name)
    want.blob(what, "x", x)
    want.blob(what, "like", like)
    if math.prod(x.shape) != math.prod(like.shape):
        fail(ShapeError, what, f"{math.prod(x.shape)} elements do not fill {list(like.shape)}", (x, like))
    return emit(_reshape_like, x, like, name=name)


@op("flatten", autocast="between", keeps_values=True, zeros="all")
def _flatten(x: Array, *, first: int, last: int) -> Array:
    return lax.reshape(x, (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


def flatten(input: Blob, start_dim: int = 0, end_dim: int = -1, name: str | None = None) -> Blob:
    """Joins consecutive axes into one.

    Args:
      input: Blob of any dtype.
      start_dim: the first axis to join, in [0, rank).
      end_dim: the last one, in [-rank, rank), not before start_dim.
      name: name of the op; made unique when omitted.
    Returns: Blob of the same dtype; by default of rank 1.
    Raises: AxisError, ArgumentError.
    Example: >>> y = flow.flatten(x, start_dim=1)   # (2, 3, 4) -> (2, 12)
    """
    what = label("flatten", name)
    want.blob(what, "input", input)
    first = want.axis(what, start_dim, input.ndim, "start_dim", (input,))
    last = want.axis(what, end_dim, input.ndim, "end_dim", (input,))
    if start_dim < 0:
        fail(AxisError, what, f"start_dim={start_dim} must be >= 0", (input,))
    if last < first:
        fail(AxisError, what, f"end_dim={end_dim} comes before start_dim={start_dim}", (input,))
    return emit(_flatten, input, name=name, first=first, last=last)


# --- the order and number of axes


@op("transpose", autocast="between", zeros="all", attention=lambda attrs: AttentionStep("axes", perm=attrs["perm"]))
def _transpose(x: Array, *, perm: tuple[int, ...]) -> Array:
    return lax.transpose(x, perm)


def transpose(
    a: Blob,
    perm: Sequence[int] | None = None,
    conjugate: bool = False,
    batch_axis_non_change: bool = False,
    name: str | None = None,
) -> Blob:
    """Axis i of the result is axis perm[i] of the Blob.

    Args:
      a: Blob of any dtype.
      perm: list or tuple with every axis in [0, rank) once; required.
      conjugate: must be False: there are no complex dtypes.
      batch_axis_non_change: keep the number of the Blob's batch axis instead of following it.
      name: name of the op; made unique when omitted.
    Returns: Blob of the same dtype.
    Raises: AxisError, ArgumentError, ModeError (conjugate).
    Example: >>> y = flow.transpose(x, perm=[1, 0])   # (2, 3) -> (3, 2)
    """
    what = label("transpose", name)
    want.blob(what, "a", a)
    if not isinstance(perm, (list, tuple)):
        fail(ArgumentError, what, f"perm must be a list or tuple of ints, got {shown(perm)}", (a,),
             f"pass perm={list(range(a.ndim))[::-1]}")  # fmt: skip
    keep = want.flag(what, "batch_axis_non_change", batch_axis_non_change, (a,))
    if want.flag(what, "conjugate", conjugate, (a,)):
        fail(ModeError, what, "conjugate=True has no meaning: there are no complex dtypes", (a,), "leave it out")
    axes = want.ints(what, "perm", perm)
    if sorted(axes) != list(range(a.ndim)):
        fail(AxisError, what, f"perm={list(axes)} must hold each of 0, ..., {a.ndim - 1} once", (a,))
    y = emit(_transpose, a, name=name, perm=axes)
    y.batch_axis = a.batch_axis if keep or a.batch_axis not in axes else axes.index(a.batch_axis)
    return y


@op("expand_dims", autocast="between", keeps_values=True, zeros="all")
def _expand_dims(x: Array, *, axis: int) -> Array:
    return lax.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


def expand_dims(input: Blob, axis: int, name: str | None = None) -> Blob:
    """Adds an axis of size 1.

    Args:
      input: Blob of any dtype.
      axis: its number in the result, in [-(rank + 1), rank].
      name: name of the op; made unique when omitted.
    Returns: Blob of one rank more and the same dtype.
    Raises: AxisError, ArgumentError.
    Example: >>> y = flow.expand_dims(x, axis=1)   # (2, 3) -> (2, 1, 3)
    """
    what = label("expand_dims", name)
    want.blob(what, "input", input)
    at = want.axis(what, axis, input.ndim + 1, inputs=(input,))
    y = emit(_expand_dims, input, name=name, axis=at)
    y.batch_axis = input.batch_axis + (input.batch_axis >= at)
    return y


@op("squeeze", autocast="between", keeps_values=True, zeros="all")
def _squeeze(x: Array, *, axes: tuple[int, ...]) -> Array:
    return lax.reshape(x, tuple(size for i, size in enumerate(x.shape) if i not in axes) or (1,))


def squeeze(input: Blob, axis: Sequence[int] | None = None, name: str | None = None) -> Blob:
    """Removes axes of size 1.

    Args:
      input: Blob of any dtype.
      axis: list or tuple of axes of size 1 in [-rank, rank); None means all of them.
      name: name of the op; made unique when omitted.
    Returns: Blob of the same dtype; (1,) where every axis is removed.
    Raises: ShapeError (a size is not 1), AxisError, ArgumentError.
    Example: >>> y = flow.squeeze(x, axis=[1])   # (2, 1, 3) -> (2, 3)
    """
    what = label("squeeze", name)
    want.blob(what, "input", input)
    if axis is None:
        axes = tuple(i for i, size in enumerate(input.shape) if size == 1)
    elif isinstance(axis, (list, tuple)):
        axes = want.axes(what, axis, input.ndim, inputs=(input,))
    else:
        rule = f"axis must be None, a list or a tuple, got {shown(axis)}"
        fail(ArgumentError, what, rule, (input,), f"write axis=[{shown(axis)}]")
    wide = [a for a in axes if input.shape[a] != 1]
    if wide:
        fail(ShapeError, what, f"axis {wide[0]} has size {input.shape[wide[0]]}; only axes of size 1 can be removed", (input,))
    y = emit(_squeeze, input, name=name, axes=axes)
    y.batch_axis = axis_after_removing(axes, input.batch_axis)
    return y


# --- joining


@op("concat", autocast="between", lstm="joined", channels_last=with_moved_axis)
def _concat(*arrays: Array, axis: int, most: int | None = None) -> Array:
    y = lax.concatenate(arrays, axis)
    if most is not None and y.shape[axis] > most:
        raise ValueError(f"the result has size {y.shape[axis]} on axis {axis}, more than max_dim_size={most}")
    return y


def concat(
    inputs: Sequence[Blob] | None = None,
    axis: int = 0,
    max_dim_size: int | None = None,
    name: str | None = None,
    values: Sequence[Blob] | None = None,
) -> Blob:
    """Joins Blobs along one axis.

    Args:
      inputs: list or tuple of Blobs of one dtype and rank; sizes are equal except on ``axis``.
      axis: in [-rank, rank).
      max_dim_size: the largest size that the result can have on ``axis``. It may be less than the sum of the inputs' sizes
        where one of these varies; a call whose true sizes exceed it raises.
      name: name of the op; made unique when omitted.
      values: the older name of ``inputs``.
    Returns: Blob of that dtype and rank; a single input is returned itself.
    Raises: ShapeError, DtypeError, AxisError, ArgumentError.
    Example: >>> y = flow.concat([a, b], axis=1)   # (2, 3), (2, 4) -> (2, 7)
    """
    what = label("concat", name)
    blobs = want.blobs(what, "inputs", values if inputs is None else inputs)
    at = want.axis(what, axis, blobs[0].ndim, inputs=blobs)
    _same_but(what, blobs, at)
    size = sum(b.shape[at] for b in blobs)
    if inputs is not None and values is not None:
        fail(ArgumentError, what, "values is the older name of inputs: pass one of them", blobs)
    most = size if max_dim_size is None else want.integer(what, "max_dim_size", max_dim_size, 1, blobs)
    fixed = sum(b.shape[at] for b in blobs if not b.is_dynamic)
    if most < size and (most < fixed or fixed == size):
        fail(ShapeError, what, f"the result has size {fixed} on axis {at}, more than max_dim_size={max_dim_size}", blobs)
    if len(blobs) == 1 and most >= size:
        return blobs[0]
    if most >= size:
        return emit(_concat, *blobs, name=name, axis=at)
    bound = (*blobs[0].shape[:at], most, *blobs[0].shape[at + 1 :])
    return emit_bounded(_concat, *blobs, bounds=[(bound, blobs[0].dtype)], name=name, axis=at, most=most)[0]


def _same_but(what: str, blobs: Sequence[Blob], axis: int) -> None:
    want.same_dtype(what, blobs)
    first = blobs[0].shape
    for blob in blobs[1:]:
        shape = blob.shape
        if len(shape) != len(first):
            fail(ShapeError, what, f"inputs must have one rank, got {len(first)} and {len(shape)}", blobs,
                 "add axes with flow.expand_dims")  # fmt: skip
        differs = [i for i, (m, n) in enumerate(zip(first, shape, strict=True)) if m != n and i != axis]
        if differs:
            sizes = " and ".join(str(b.shape[differs[0]]) for b in blobs)
            fail(ShapeError, what, f"inputs must agree on every axis except axis={axis}", blobs,
                 f"make axis {differs[0]} equal ({sizes} now), or join along axis={differs[0]}")  # fmt: skip


@op("stack", autocast="between", stacks=True)
def _stack(*arrays: Array, axis: int) -> Array:
    return lax.concatenate([lax.reshape(a, (*a.shape[:axis], 1, *a.shape[axis:])) for a in arrays], axis)


def stack(inputs: Sequence[Blob], axis: int = 0, name: str | None = None) -> Blob:
    """Joins Blobs along a new axis.

    Args:
      inputs: list or tuple of Blobs of one shape and dtype.
      axis: the number of the new axis in the result, in [-(rank + 1), rank].
      name: name of the op; made unique when omitted.
    Returns: Blob of one rank more and the same dtype.
    Raises: ShapeError, DtypeError, AxisError, ArgumentError.
    Example: >>> y = flow.stack([a, b], axis=0)   # (2, 3), (2, 3) -> (2, 2, 3)
    """
    what = label("stack", name)
    blobs = want.blobs(what, "inputs", inputs)
    want.same_dtype(what, blobs)
    want.same_shape(what, blobs)
    return emit(_stack, *blobs, name=name, axis=want.axis(what, axis, blobs[0].ndim + 1, inputs=blobs))


# --- repeating


@op("broadcast_like", nondifferentiable=(1,))
def _broadcast_like(x: Array, like: Array, *, axes: tuple[int, ...]) -> Array:
    if x.ndim < like.ndim:  # the listed axes are missing in x, as many as it takes; the others are there
        added = _missing_axes(x.ndim, like.ndim, axes)
        sizes = iter(x.shape)
        x = lax.reshape(x, tuple(1 if i in added else next(sizes) for i in range(like.ndim)))
    return broadcast_to(x, like.shape)


def _missing_axes(rank: int, full_rank: int, axes: tuple[int, ...]) -> tuple[int, ...]:
    return axes if len(axes) == full_rank - rank else tuple(range(full_rank - rank))


def broadcast_like(x: Blob, like: Blob, broadcast_axes: Sequence[int] | None = None, name: str | None = None) -> Blob:
    """x repeated along axes until it has the shape of ``like``.

    Args:
      x: Blob.
      like: Blob of the same dtype; its values are not used.
      broadcast_axes: axes of ``like`` on which x has size 1 or which x lacks; None means all.
      name: name of the op; made unique when omitted.
    Returns: Blob of like's shape.
    Raises: ShapeError, DtypeError, AxisError, ArgumentError.
    Example: >>> y = flow.broadcast_like(x, like, [0])   # (3,) -> (2, 3)
    """
    what = label("broadcast_like", name)
    want.blob(what, "x", x)
    want.blob(what, "like", like)
    want.same_dtype(what, (x, like))
    axes = want.axes(what, broadcast_axes, like.ndim, "broadcast_axes", (x, like))
    sizes = list(x.shape)
    for a in _missing_axes(x.ndim, like.ndim, axes) if x.ndim < like.ndim else ():
        sizes.insert(a, 1)
    fits = len(sizes) == like.ndim and all(
        m == n or (m == 1 and (i in axes)) for i, (m, n) in enumerate(zip(sizes, like.shape, strict=True))
    )
    if not fits:
        fail(ShapeError, what, f"shape {x.shape} does not become {like.shape} by repeating it along axes {list(axes)}", (x, like))
    return emit(_broadcast_like, x, like, name=name, axes=axes)


def _compatible_grad(inputs: Any, outputs: Any, cotangents: Any) -> tuple[Array | None, ...]:
    return (sum_to(cotangents[0], inputs[0].shape), *(None for _ in inputs[1:]))


@op("broadcast_to_compatible_with", grad=_compatible_grad)
def _broadcast_to_compatible_with(x: Array, *others: Array) -> Array:
    return broadcast_to(x, common_shape(x.shape, *(o.shape for o in others)))


def broadcast_to_compatible_with(x: Blob, compatible: Sequence[Blob], name: str | None = None) -> Blob:
    """x repeated to the shape to which it and the other Blobs broadcast.

    Args:
      x: Blob of any dtype.
      compatible: list or tuple of Blobs; their values are not used.
      name: name of the op; made unique when omitted.
    Returns: Blob of the common shape and x's dtype.
    Raises: ShapeError, ArgumentError.
    Example: >>> y = flow.broadcast_to_compatible_with(x, [other])   # (3,) with (2, 1) -> (2, 3)
    """
    what = label("broadcast_to_compatible_with", name)
    want.blob(what, "x", x)
    return emit(_broadcast_to_compatible_with, x, *want.blobs(what, "compatible", compatible), name=name)


@op("expand")
def _expand(x: Array, *, sizes: tuple[int, ...]) -> Array:
    offset = len(sizes) - x.ndim
    return broadcast_to(x, tuple(x.shape[i - offset] if size == -1 else size for i, size in enumerate(sizes)))


def expand(x: Blob, expand_size: Sequence[int], name: str | None = None) -> Blob:
    """x repeated along its axes of size 1, and along new axes in front.

    Args:
      x: Blob of any dtype.
      expand_size: list or tuple with the sizes of the result, at least as many as x has; -1 keeps a size.
      name: name of the op; made unique when omitted.
    Returns: Blob of that shape and x's dtype.
    Raises: ShapeError, ArgumentError.
    Example: >>> y = flow.expand(x, [4, -1, 3])   # (2, 1) -> (4, 2, 3)
    """
    what = label("expand", name)
    want.blob(what, "x", x)
    sizes = want.ints(what, "expand_size", expand_size)
    offset = len(sizes) - x.ndim
    fits = offset >= 0 and all(
        size > 0 if i < offset else size in (-1, x.shape[i - offset]) or (x.shape[i - offset] == 1 and size > 0)
        for i, size in enumerate(sizes)
    )
    if not fits:
        fail(ShapeError, what,
             f"{x.shape} cannot be expanded to {list(sizes)}: only axes of size 1 and new ones in front grow", (x,))  # fmt: skip
    return emit(_expand, x, name=name, sizes=sizes)


# --- layout


@op("cast_to_static_shape", autocast="between")
def _cast_to_static_shape(x: Array, *, bound: tuple[int, ...]) -> Array:
    if x.shape != bound:
        raise ValueError(f"cast_to_static_shape promised shape {bound}, and it has {x.shape}")
    return x


def cast_to_static_shape(x: Blob, name: str | None = None) -> Blob:
    """Promises that a dynamic Blob always has its full shape.

    Args:
      x: Blob of any dtype.
      name: name of the op; made unique when omitted.
    Returns: a Blob that is not dynamic; x itself where it is static already. A call whose arrays break the promise raises.
      Where x's size depends on data, no promise is needed: the elements behind the true size become 0.
    Raises: ArgumentError.
    Example: >>> y = flow.cast_to_static_shape(x)
    """
    want.blob(label("cast_to_static_shape", name), "x", x)
    if not x.is_dynamic:
        return x
    y = emit(_cast_to_static_shape, x, name=name, bound=x.shape)
    y.is_dynamic = False
    return y


# --- variables


def assign(ref: Any, value: Any, dtype: Any = None, name: str | None = None) -> None:
    """Stores a value into a variable at the end of the call.

    Args:
      ref: a Blob that ``flow.get_variable`` returned.
      value: Blob of the variable's shape and dtype; it receives no gradient from this.
      dtype: not used.
      name: not used.
    Raises: ArgumentError (ref is not a variable), ShapeError, DtypeError; TrainError where the job also trains the variable.
    Example: >>> flow.assign(counter, counter + 1)
    """
    what = label("assign", name)
    want.blob(what, "ref", ref)
    want.blob(what, "value", value)
    if ref.node.op is not OP_VARIABLE:
        fail(ArgumentError, what, f"ref must be a variable, but {ref.op_name!r} is computed by {ref.node.op.name}", (ref, value),
             "pass the Blob that flow.get_variable returned")  # fmt: skip
    if ref.dtype != value.dtype:
        fail(DtypeError, what, f"the variable holds {ref.dtype.name}, not {value.dtype.name}", (ref, value),
             f"convert with flow.cast(value, flow.{ref.dtype.name})")  # fmt: skip
    want.same_shape(what, (ref, value))
    if value.has_dynamic_size:
        fail(ShapeError, what, "the size of value depends on data, that of a variable does not", (ref, value),
             "flow.cast_to_static_shape(value)")  # fmt: skip
    current(what).assign(ref, cast_to_static_shape(value))


def system_assign(ref: Any, value: Any, validate_shape: Any = None, use_locking: Any = None, name: str | None = None) -> Blob:
    """``assign`` that returns ``ref``: ``flow.system.assign``. The arguments after value are not used.

    Example: >>> flow.system.assign(counter, counter + 1)
    """
    assign(ref, value, name=name)
    return ref
