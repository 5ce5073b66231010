"""Ops about where and how values lie: layouts on several devices, the way between the views, one device's pieces."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from .._base import dist
from .._base.dist import Distribute, Placement
from .._base.jax import lax
from .._base.refuse import shown
from ..errors import ArgumentError, ModeError, ShapeError
from ..graph.graph import current
from ..graph.node import Blob
from ..graph.scopes import graph_scope
from ..graph.views import in_current_view
from ._arrays import Array, label
from ._emit import emit, emit_many, fail, op, want
from .array import concat
from .binary import add_n
from .elementwise import identity


@op("parallel_cast")
def _parallel_cast(x: Array, *, distribute: Distribute | None, gradient_distribute: Distribute | None) -> Array:
    return x


def parallel_cast(
    input: Blob, name: str | None = None, distribute: Distribute | None = None, gradient_distribute: Distribute | None = None
) -> Blob:
    """The same values, laid out on the devices as asked for.

    Args:
      input: Blob of any dtype.
      name: name of the op; made unique when omitted.
      distribute: ``flow.distribute.split(axis)`` or ``broadcast()``; None leaves the layout open.
      gradient_distribute: the same for the gradient.
    Returns: Blob of the same shape and dtype.
    Raises: ArgumentError, AxisError, ModeError (``auto()``).
    Example: >>> y = flow.parallel_cast(x, distribute=flow.distribute.split(0))
    """
    what = label("parallel_cast", name)
    want.blob(what, "input", input)
    for argument, asked in (("distribute", distribute), ("gradient_distribute", gradient_distribute)):
        if asked is not None:
            want.distribution(what, argument, asked, (input,))
            if asked.kind == "auto":
                fail(ModeError, what, "needs split(axis) or broadcast(), got auto()", (input,))
            if asked.axis is not None:
                want.axis(what, asked.axis, input.ndim, "split's axis", (input,))
    y = emit(_parallel_cast, input, name=name, distribute=distribute, gradient_distribute=gradient_distribute)
    if distribute is not None:
        y.distribute = distribute
    return y


@op("hierarchical_parallel_cast")
def _hierarchical_parallel_cast(
    x: Array, *, distribute: tuple[Distribute, ...], gradient_distribute: tuple[Distribute, ...] | None
) -> Array:
    return x


def hierarchical_parallel_cast(
    input: Blob,
    parallel_distribution: Sequence[Any],
    grad_mode: str | None = None,
    grad_parallel_distribution: Sequence[Any] | None = None,
    name: str | None = None,
) -> Blob:
    """The same values, laid out on devices that are arranged in rows and columns.

    Args:
      input: Blob of any dtype; it moves to the placement of the scope.
      parallel_distribution: one entry for each axis of the placement's hierarchy: "B" or "S(axis)".
      grad_mode: "restore" (as None: the gradient lies as is best), "identity" (the same), or "manual".
      grad_parallel_distribution: with "manual", how the gradient lies.
      name: name of the op; made unique when omitted.
    Returns: Blob of the same shape and dtype.
    Raises: ArgumentError, AxisError.
    Example: >>> y = flow.hierarchical_parallel_cast(x, ["S(0)"])
    """
    what = label("hierarchical_parallel_cast", name)
    want.blob(what, "input", input)
    if grad_mode is not None:
        want.choice(what, "grad_mode", grad_mode, ("restore", "identity", "manual"))
    if (grad_mode == "manual") != (grad_parallel_distribution is not None):
        fail(ArgumentError, what, 'grad_parallel_distribution belongs to grad_mode="manual", and to it alone', (input,))
    forward = layout_entries(what, "parallel_distribution", parallel_distribution, input.ndim)
    backward = None
    if grad_parallel_distribution is not None:
        backward = layout_entries(what, "grad_parallel_distribution", grad_parallel_distribution, input.ndim)
    return emit(_hierarchical_parallel_cast, input, name=name, distribute=forward, gradient_distribute=backward)


def layout_entries(what: str, argument: str, entries: Any, rank: int) -> tuple[Distribute, ...]:
    """A layout with one entry for each axis of the hierarchy of the current placement: "B", "S(k)" or a Distribute."""
    placement = current(what).scope.placement
    if isinstance(entries, str):
        entries = entries.split(",")
    if not isinstance(entries, (list, tuple)) or len(entries) != len(placement.hierarchy):
        hint = f"placement {placement} is arranged as {placement.hierarchy}"
        fail(ArgumentError, what, f"{argument} needs {len(placement.hierarchy)} entries, one an axis of the placement's "
             f"hierarchy, got {shown(entries)}", (), hint)  # fmt: skip
    return tuple(_entry(what, argument, entry, rank) for entry in entries)


def _entry(what: str, argument: str, entry: Any, rank: int) -> Distribute:
    if isinstance(entry, Distribute) and entry.kind != "auto":
        found = entry
    else:
        text = entry.strip() if isinstance(entry, str) else ""
        if text == "B":
            return dist.broadcast()
        if not (text.startswith("S(") and text.endswith(")") and text[2:-1].isdigit()):
            fail(ArgumentError, what, f'{argument} has entries "B" and "S(axis)", got {shown(entry)}')
        found = dist.split(int(text[2:-1]))
    if found.axis is not None:
        want.axis(what, found.axis, rank, f"{argument}'s axis")
    return found


def cast_to_current_logical_view(x: Blob) -> Blob:
    """A logical tensor as one tensor a device, or the other way round, as the current view has it.

    Args:
      x: Blob of any dtype.
    Returns: Blob. In the mirrored view of n devices: a tensor that is split along axis 0 gives each device its piece, any
      other one is there whole on each. In the consistent view: the devices' tensors, joined along axis 0.
    Raises: ShapeError: pieces would differ in size.
    Example: >>> y = flow.cast_to_current_logical_view(x)
    """
    want.blob("cast_to_current_logical_view", "x", x)
    return in_current_view(current("flow.cast_to_current_logical_view"), x)


# --- one device's pieces: flow.advanced


@op("distribute_split", multiple=True)
def _distribute_split(x: Array, *, axis: int, pieces: int) -> tuple[Array, ...]:
    sizes = balanced(x.shape[axis], pieces)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(lax.slice_in_dim(x, end - size, end, axis=axis) for end, size in zip(ends, sizes, strict=True))


def distribute_split(x: Blob, axis: int = 0, name: str | None = None) -> tuple[Blob, ...]:
    """The pieces of a logical tensor, the i-th on the i-th device of the scope's placement.

    Args:
      x: Blob; the size of ``axis`` is at least the number of devices n.
      axis: what is cut; the first pieces are one larger where it does not divide.
      name: name of the op; made unique when omitted.
    Returns: n Blobs.
    Raises: ArgumentError, AxisError, ShapeError.
    Example: >>> pieces = flow.advanced.distribute_split(x)
    """
    what = label("distribute_split", name)
    want.blob(what, "x", x)
    axis = want.axis(what, axis, x.ndim, "axis", (x,))
    n = current(what).scope.placement.parallel_num
    sizes = balanced(x.shape[axis], n)
    if sizes[-1] == 0:
        fail(ShapeError, what, f"axis {axis} of size {x.shape[axis]} cannot be cut for {n} devices", (x,))
    pieces = emit_many(_distribute_split, x, name=name, axis=axis, pieces=n)
    return tuple(_on_device(what, i, partial(identity, piece)) for i, piece in enumerate(pieces))


def distribute_clone(x: Blob, name: str | None = None) -> tuple[Blob, ...]:
    """A copy of a logical tensor for each device of the scope's placement.

    Args:
      x: Blob of any dtype.
      name: name of the ops, with a number each; made unique when omitted.
    Returns: one Blob a device, each on that device. The gradient is the sum of theirs.
    Raises: ArgumentError.
    Example: >>> copies = flow.advanced.distribute_clone(x)
    """
    what = label("distribute_clone", name)
    want.blob(what, "x", x)
    n = current(what).scope.placement.parallel_num
    names = [None if name is None else f"{name}_{i}" for i in range(n)]
    return tuple(_on_device(what, i, partial(identity, x, names[i])) for i in range(n))


def distribute_concat(xs: Sequence[Blob], axis: int = 0, name: str | None = None) -> Blob:
    """The logical tensor that single devices' pieces make, split along ``axis`` over the scope's placement.

    Args:
      xs: one Blob for each device of the placement, each on a single device; sizes as ``distribute_split`` makes them.
      axis: along which they are joined.
      name: name of the op; made unique when omitted.
    Returns: Blob.
    Raises: ArgumentError, AxisError, ShapeError.
    Example: >>> y = flow.advanced.distribute_concat(flow.advanced.distribute_split(x))
    """
    what = label("distribute_concat", name)
    blobs = _one_a_device(what, xs)
    axis = want.axis(what, axis, blobs[0].ndim, "axis", blobs)
    total = sum(b.shape[axis] for b in blobs if b.ndim > axis)
    expected = balanced(total, len(blobs))
    if tuple(b.shape[axis] for b in blobs) != expected:
        fail(ShapeError, what, f"along axis {axis} the pieces must have the sizes {expected}", blobs)
    y = concat(blobs, axis, name=name)
    y.batch_axis = axis
    return y


def distribute_add(xs: Sequence[Blob], name: str | None = None) -> Blob:
    """The sum of single devices' tensors, as one logical tensor on the scope's placement.

    Args:
      xs: one Blob for each device of the placement, each on a single device, of one shape and dtype.
      name: name of the op; made unique when omitted.
    Returns: Blob of that shape.
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> y = flow.advanced.distribute_add(flow.advanced.distribute_clone(x))
    """
    blobs = _one_a_device(label("distribute_add", name), xs)
    return add_n(blobs, name=name)


def distribute_map(xs: Blob | Sequence[Blob], f: Callable[..., Any], axis: int = 0) -> tuple[Blob, ...]:
    """Applies a function to the pieces of logical tensors, each on its device, and joins what it gives.

    Args:
      xs: a Blob, or several that are cut alike.
      f: called once a device, with that device's piece of each; gives a Blob or a tuple of them.
      axis: what is cut, and along which results are joined.
    Returns: the joined results, as a tuple.
    Raises: ArgumentError, AxisError, ShapeError.
    Example: >>> (y,) = flow.advanced.distribute_map(x, flow.math.relu)
    """
    what = "distribute_map"
    blobs = [xs] if isinstance(xs, Blob) else want.blobs(what, "xs", xs)
    if not callable(f):
        fail(ArgumentError, what, f"f must be callable, got {shown(f)}")
    try:
        inspect.signature(f).bind(*blobs)
    except TypeError as error:
        fail(ArgumentError, what, f"f is called with {len(blobs)} pieces, which {shown(f)} does not take: {error}", blobs)
    except ValueError:  # a builtin without a signature
        pass
    cut = list(zip(*(distribute_split(b, axis) for b in blobs), strict=True))
    made = [_on_device(what, i, partial(f, *pieces)) for i, pieces in enumerate(cut)]
    each = [m if isinstance(m, (list, tuple)) else (m,) for m in made]
    return tuple(distribute_concat(list(pieces), axis) for pieces in zip(*each, strict=True))


def balanced(size: int, n: int) -> tuple[int, ...]:
    """The sizes of n pieces, the first ones one larger where it does not divide."""
    return tuple(size // n + (i < size % n) for i in range(n))


def _on_device(what: str, index: int, make: Callable[[], Any]) -> Any:
    scope = current(what).scope
    one = Placement(scope.placement.tag, scope.placement.devices[index : index + 1])
    with graph_scope(scope.replaced(placement=one)):
        return make()


def _one_a_device(what: str, xs: Any) -> list[Blob]:
    blobs = want.blobs(what, "xs", xs)
    n = current(what).scope.placement.parallel_num
    if len(blobs) != n:
        fail(ArgumentError, what, f"needs one Blob for each of the scope's {n} devices, got {len(blobs)}", blobs)
    for blob in blobs:
        if blob.parallel_size != 1:
            fail(ArgumentError, what, f"{blob.op_name!r} is on {blob.parallel_size} devices, not on a single one", blobs)
    return blobs


def eager_nccl_all_reduce(x: Blob, parallel_conf: str, name: str | None = None) -> NoReturn:
    """Not possible in jobs: OneFlow has it for eager mode alone. Sums over devices arise from layouts by themselves.

    Raises: ModeError, always.
    """
    fail(ModeError, label("eager_nccl_all_reduce", name), "it belongs to eager mode, which does not exist here", (),
         "flow.advanced.distribute_add sums over devices; gradients are summed by themselves")  # fmt: skip


__all__ = [
    "balanced", "cast_to_current_logical_view", "distribute_add", "distribute_clone", "distribute_concat", "distribute_map",
    "distribute_split", "eager_nccl_all_reduce", "hierarchical_parallel_cast", "layout_entries", "parallel_cast",
]  # fmt: skip
