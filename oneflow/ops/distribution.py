"""Ops that distribute values: layouts on several devices, conversion between the views, pieces on single devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from .._base import dist
from .._base.dist import Distribute, Placement
from .._base.jax import lax
from .._base.refuse import shown
from .._base.signatures import signature_of
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


@op("parallel_cast", autocast="between", lays_out=True)
def _parallel_cast(x: Array, *, distribute: Distribute | None, gradient_distribute: Distribute | None) -> Array:
    return x


def parallel_cast(
    input: Blob, name: str | None = None, distribute: Distribute | None = None, gradient_distribute: Distribute | None = None
) -> Blob:
    """The same values, in another layout on the devices.

    Args:
      input: Blob of any dtype.
      name: name of the op; made unique when omitted.
      distribute: ``flow.distribute.split(axis)`` or ``broadcast()``; None leaves the layout to the compiler.
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


@op("hierarchical_parallel_cast", lays_out=True, newer_autocast="between")
def _hierarchical_parallel_cast(
    x: Array, *, distribute: tuple[Distribute, ...] | None, gradient_distribute: tuple[Distribute, ...] | None
) -> Array:
    return x


def hierarchical_parallel_cast(
    input: Blob,
    parallel_distribution: Sequence[Any] | None = None,
    grad_mode: str | None = None,
    grad_parallel_distribution: Sequence[Any] | None = None,
    name: str | None = None,
    *,
    nd_sbp: Sequence[Any] | None = None,
    grad_nd_sbp: Sequence[Any] | None = None,
) -> Blob:
    """The same values, laid out on devices that are arranged in rows and columns.

    Args:
      input: Blob of any dtype; it moves to the placement of the scope.
      parallel_distribution, nd_sbp: one entry for each axis of the placement's hierarchy: "B", "S(axis)", or "P" for partial
        sums. A layout with a "P" leaves it to the compiler where the sum is computed.
      grad_mode: "restore" or "identity" (as None: the compiler chooses the gradient's layout), or "manual".
      grad_parallel_distribution, grad_nd_sbp: with "manual", the gradient's layout.
      name: name of the op; made unique when omitted.
    Returns: Blob of the same shape and dtype.
    Raises: ArgumentError, AxisError.
    Example: >>> y = flow.hierarchical_parallel_cast(x, ["S(0)"])
    """
    what = label("hierarchical_parallel_cast", name)
    want.blob(what, "input", input)
    if grad_mode is not None:
        want.choice(what, "grad_mode", grad_mode, ("restore", "identity", "manual"))
    parallel_distribution = one_layout(what, parallel_distribution, nd_sbp)
    grad_parallel_distribution = one_layout(what, grad_parallel_distribution, grad_nd_sbp, "grad_")
    if (grad_mode == "manual") != (grad_parallel_distribution is not None):
        fail(ArgumentError, what, 'grad_parallel_distribution belongs to grad_mode="manual", and to it alone', (input,))
    forward = _cast_entries(what, "parallel_distribution", parallel_distribution, input.ndim)
    backward = None
    if grad_parallel_distribution is not None:
        backward = _cast_entries(what, "grad_parallel_distribution", grad_parallel_distribution, input.ndim)
    return emit(_hierarchical_parallel_cast, input, name=name, distribute=forward, gradient_distribute=backward)


def one_layout(what: str, older: Any, newer: Any, prefix: str = "") -> Any:
    """A layout under its name in 0.4, or under that in 0.5."""
    if older is not None and newer is not None:
        fail(
            ArgumentError, what, f"{prefix}parallel_distribution and {prefix}nd_sbp are the same argument", (), "pass one of them"
        )
    return older if newer is None else newer


def layout_entries(what: str, argument: str, entries: Any, rank: int) -> tuple[Distribute, ...]:
    """A layout with one entry for each axis of the hierarchy of the current placement: "B", "S(k)" or a Distribute."""
    return tuple(_entry(what, argument, entry, rank) for entry in _one_per_axis(what, argument, entries))


def _cast_entries(what: str, argument: str, entries: Any, rank: int) -> tuple[Distribute, ...] | None:
    """``layout_entries`` where "P" is allowed, too; None for a layout with partial sums, which arrays here do not have.

    A value here is always the logical tensor, so that the sum is never missing, and only its place is open.
    """
    given = _one_per_axis(what, argument, entries)
    partial_sums = [isinstance(entry, str) and entry.strip() == "P" for entry in given]
    found = [_entry(what, argument, e, rank, '"B", "S(axis)" and "P"') for e, p in zip(given, partial_sums, strict=True) if not p]
    return None if any(partial_sums) else tuple(found)


def _one_per_axis(what: str, argument: str, entries: Any) -> list[Any]:
    placement = current(what).scope.placement
    if isinstance(entries, str):
        entries = entries.split(",")
    if isinstance(entries, (list, tuple)) and not entries:  # programs for one device
        entries = ["B"] * len(placement.hierarchy)
    if not isinstance(entries, (list, tuple)) or len(entries) != len(placement.hierarchy):
        hint = f"placement {placement} is arranged as {placement.hierarchy}"
        fail(ArgumentError, what, f"{argument} needs {len(placement.hierarchy)} entries, one per axis of the placement's "
             f"hierarchy, got {shown(entries)}", (), hint)  # fmt: skip
    return list(entries)


def _entry(what: str, argument: str, entry: Any, rank: int, allowed: str = '"B" and "S(axis)"') -> Distribute:
    if isinstance(entry, Distribute) and entry.kind != "auto":
        found = entry
    else:
        text = entry.strip() if isinstance(entry, str) else ""
        if text == "B":
            return dist.broadcast()
        if not (text.startswith("S(") and text.endswith(")") and text[2:-1].isdigit()):
            fail(ArgumentError, what, f"{argument} has entries {allowed}, got {shown(entry)}")
        found = dist.split(int(text[2:-1]))
    if found.axis is not None:
        want.axis(what, found.axis, rank, f"{argument}'s axis")
    return found


def cast_to_current_logical_view(x: Blob) -> Blob:
    """A logical tensor as one tensor per device, or one tensor per device as a logical tensor, whichever the current view has.

    Args:
      x: Blob of any dtype.
    Returns: Blob. In the mirrored view of n devices: of a tensor that is split along axis 0 each device has its piece, of any
      other one the whole. In the consistent view: the devices' tensors, joined along axis 0.
    Raises: ShapeError: pieces would differ in size.
    Example: >>> y = flow.cast_to_current_logical_view(x)
    """
    want.blob("cast_to_current_logical_view", "x", x)
    return in_current_view(current("flow.cast_to_current_logical_view"), x)


# --- pieces on single devices: flow.advanced


@op("distribute_split", multiple_results=True)
def _distribute_split(x: Array, *, axis: int, pieces: int) -> tuple[Array, ...]:
    sizes = balanced(x.shape[axis], pieces)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(lax.slice_in_dim(x, end - size, end, axis=axis) for end, size in zip(ends, sizes, strict=True))


def distribute_split(x: Blob, axis: int = 0, name: str | None = None) -> tuple[Blob, ...]:
    """The pieces of a logical tensor, the i-th on the i-th device of the scope's placement.

    Args:
      x: Blob; the size of ``axis`` is at least the number of devices n.
      axis: the axis that is split; the first pieces are one larger where it does not divide.
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
        fail(ShapeError, what, f"axis {axis} of size {x.shape[axis]} cannot be split for {n} devices", (x,))
    pieces = emit_many(_distribute_split, x, name=name, axis=axis, pieces=n)
    return tuple(_on_device(what, i, partial(identity, piece)) for i, piece in enumerate(pieces))


def distribute_clone(x: Blob, name: str | None = None) -> tuple[Blob, ...]:
    """A copy of a logical tensor for each device of the scope's placement.

    Args:
      x: Blob of any dtype.
      name: name of the ops, each with a number; made unique when omitted.
    Returns: one Blob per device, each on that device. The gradient is the sum of theirs.
    Raises: ArgumentError.
    Example: >>> copies = flow.advanced.distribute_clone(x)
    """
    what = label("distribute_clone", name)
    want.blob(what, "x", x)
    n = current(what).scope.placement.parallel_num
    names = [None if name is None else f"{name}_{i}" for i in range(n)]
    return tuple(_on_device(what, i, partial(identity, x, names[i])) for i in range(n))


def distribute_concat(xs: Sequence[Blob], axis: int = 0, name: str | None = None) -> Blob:
    """Joins pieces on single devices into a logical tensor, split along ``axis`` over the scope's placement.

    Args:
      xs: one Blob for each device of the placement, each on a single device; of the sizes that ``distribute_split`` makes.
      axis: the axis along which they are joined.
      name: name of the op; made unique when omitted.
    Returns: Blob.
    Raises: ArgumentError, AxisError, ShapeError.
    Example: >>> y = flow.advanced.distribute_concat(flow.advanced.distribute_split(x))
    """
    what = label("distribute_concat", name)
    blobs = _one_per_device(what, xs)
    axis = want.axis(what, axis, blobs[0].ndim, "axis", blobs)
    total = sum(b.shape[axis] for b in blobs if b.ndim > axis)
    expected = balanced(total, len(blobs))
    if tuple(b.shape[axis] for b in blobs) != expected:
        fail(ShapeError, what, f"along axis {axis} the pieces must have the sizes {expected}", blobs)
    y = concat(blobs, axis, name=name)
    y.batch_axis = axis
    return y


def distribute_add(xs: Sequence[Blob], name: str | None = None) -> Blob:
    """The sum of tensors on single devices, as one logical tensor on the scope's placement.

    Args:
      xs: one Blob for each device of the placement, each on a single device, of one shape and dtype.
      name: name of the op; made unique when omitted.
    Returns: Blob of that shape.
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> y = flow.advanced.distribute_add(flow.advanced.distribute_clone(x))
    """
    blobs = _one_per_device(label("distribute_add", name), xs)
    return add_n(blobs, name=name)


def distribute_map(xs: Blob | Sequence[Blob], f: Callable[..., Any], axis: int = 0) -> tuple[Blob, ...]:
    """Applies a function to the pieces of logical tensors, each on its device, and joins the results.

    Args:
      xs: a Blob, or several that are split alike.
      f: a function that is called once per device, with its piece of each Blob, and returns a Blob or a tuple of them.
      axis: the axis that is split, and along which results are joined.
    Returns: the joined results, as a tuple.
    Raises: ArgumentError, AxisError, ShapeError.
    Example: >>> (y,) = flow.advanced.distribute_map(x, flow.math.relu)
    """
    what = "distribute_map"
    blobs = [xs] if isinstance(xs, Blob) else want.blobs(what, "xs", xs)
    if not callable(f):
        fail(ArgumentError, what, f"f must be callable, got {shown(f)}")
    try:
        signature_of(f).bind(*blobs)
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


def _one_per_device(what: str, xs: Any) -> list[Blob]:
    blobs = want.blobs(what, "xs", xs)
    n = current(what).scope.placement.parallel_num
    if len(blobs) != n:
        fail(ArgumentError, what, f"needs one Blob for each of the scope's {n} devices, got {len(blobs)}", blobs)
    for blob in blobs:
        if blob.parallel_size != 1:
            fail(ArgumentError, what, f"{blob.op_name!r} is on {blob.parallel_size} devices, not on a single one", blobs)
    return blobs


def eager_nccl_all_reduce(x: Blob, parallel_conf: str, name: str | None = None) -> NoReturn:
    """Not possible in jobs: OneFlow has it for eager mode alone. Sums over devices follow from the layouts.

    Raises: ModeError, always.
    """
    fail(ModeError, label("eager_nccl_all_reduce", name), "it belongs to eager mode, which does not exist here", (),
         "flow.advanced.distribute_add sums over devices; gradients are summed without it")  # fmt: skip


__all__ = [
    "balanced", "cast_to_current_logical_view", "distribute_add", "distribute_clone", "distribute_concat", "distribute_map",
    "distribute_split", "eager_nccl_all_reduce", "hierarchical_parallel_cast", "layout_entries", "parallel_cast",
]  # fmt: skip
