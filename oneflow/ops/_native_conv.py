"""Convolutions by oneDNN inside XLA's programs, for CPUs: the native lowering of ``conv1d`` .. ``conv3d`` and their like.

Three calls: forward, gradient to the data, gradient to the weights, on data of (N, ..., C). The compiler arranges the nodes
between them in that order (``compiler/channels_last.py``), so that arrays are transposed at a program's borders only. (To ask
XLA for such a layout of operands that are (N, C, ...) by name was tried: it transposes at every call.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from .._base import native as _native
from .._base.jax import jax, jnp, lax
from .._base.native import BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD
from .._base.rounding import to_bfloat16
from ..graph.op import Native
from ._arrays import Array
from ._window import convolved, sides

Shape = tuple[int, ...]

_WEIGHTS_CHANNELS_LAST = 1  # a flag of the spec
# In mixed precision, by kind: weights are cast to bfloat16 as they are reordered, and their gradients stay float32
_NARROW = (("bfloat16", "float32", "bfloat16"), ("bfloat16", "float32", "bfloat16"), ("bfloat16", "bfloat16", "float32"))


@dataclass(frozen=True)
class Geometry:
    """A convolution without its sizes. ``weights_channels_last``: weights are (O, ..., I) in memory, as data is (N, ..., C)."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pad_low: tuple[int, ...]
    pad_high: tuple[int, ...]
    groups: int
    weights_channels_last: bool = False

    def spec(self, kind: int, dtype: Any, x: Shape, w: Shape) -> list[int]:
        """The vector that describes a call to the native part.

        Args:
          kind: of the call.
          dtype: of all operands, or one each of those that the kind reads and of the result.
          x, w: shapes with their channels second, as in ``output_shape``.
        """
        dtypes = dtype if isinstance(dtype, tuple) else (dtype,) * 3
        flags = _WEIGHTS_CHANNELS_LAST if self.weights_channels_last else 0
        shapes = [*x, *w, *self.output_shape(x, w)]
        head = [kind, flags, _native.dtypes_code(dtypes), len(x) - 2, self.groups]
        return [*head, *shapes, *self.strides, *self.dilations, *self.pad_low, *self.pad_high]

    def output_shape(self, x: Shape, w: Shape) -> Shape:
        """(N, O, ...), for x of (N, C, ...) and w of (O, C / groups, ...)."""
        sizes = zip(x[2:], w[2:], self.strides, self.dilations, self.pad_low, self.pad_high, strict=True)
        return (x[0], w[0], *((n + low + high - (k - 1) * d - 1) // s + 1 for n, k, s, d, low, high in sizes))

    def channels_second(self, x: Shape, w: Shape) -> tuple[Shape, Shape]:
        """The shapes of arrays as ``spec`` takes them."""
        return (x[0], x[-1], *x[1:-1]), (w[0], w[-1], *w[1:-1]) if self.weights_channels_last else w


@lru_cache(maxsize=4096)
def unsupported_reason(g: Geometry, dtype: str, x: Shape, w: Shape) -> str | None:
    """Why oneDNN does not take a convolution of these shapes, channels second; None where it does."""
    reason = _native.array_refusal(dtype, (*x, *w, *g.output_shape(x, w)))
    if reason is not None:
        return reason
    for k, d, low, high in zip(w[2:], g.dilations, g.pad_low, g.pad_high, strict=True):
        if max(low, high) > (k - 1) * d or min(low, high) < 0:
            return "more padding than the window covers"
    computed = _native.product_dtype(dtype)
    wanted: list[tuple[int, Any]] = [(kind, computed) for kind in (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS)]
    if computed == "bfloat16":
        wanted += enumerate(_NARROW)
    return _native.kernel_refusal("conv", *(g.spec(kind, dtypes, x, w) for kind, dtypes in wanted))


def kernel_name(g: Geometry, dtype: str, x: Shape, w: Shape, kind: int = FORWARD) -> str:
    """The name of the kernel for a convolution of these shapes, channels second."""
    return _native.product_kernel("conv", lambda computed: g.spec(kind, computed, x, w), dtype)


# --- the three calls, on data of (N, ..., C) and weights in either order


def call(kind: int, g: Geometry, x: Shape, w: Shape, sharded: bool = False, dtype: Any = None) -> Callable[[Array, Array], Array]:
    """One of the three, as a function of what the kind reads: x and w, dy and w, or x and dy.

    Args:
      kind: which.
      g: the convolution.
      x: the input's shape.
      w: the weights' shape.
      sharded: the arrays may be sharded over several devices.
      dtype: the result's, that of the first array if None.
    """
    compute = _sharded(kind, g, x, w, dtype) if sharded else lambda a, b: _on_one_device(kind, g, a, b, x, w, dtype)
    vmappable = jax.custom_batching.custom_vmap(compute)

    def rule(size: int, batched: Sequence[bool], a: Array, b: Array) -> tuple[Array, bool]:
        return _vmapped(kind, g, x, w, size, batched, a, b, sharded, dtype), True

    vmappable.def_vmap(rule)
    return vmappable


def _on_one_device(kind: int, g: Geometry, a: Array, b: Array, x: Shape, w: Shape, dtype: Any) -> Array:
    made_dtype = np.dtype(a.dtype if dtype is None else dtype)
    if (
        unsupported_reason(g, np.dtype(a.dtype).name, *g.channels_second(x, w)) is not None
    ):  # it may be, of a shard or of more groups
        return _by_xla(kind, g, a, b.astype(a.dtype), x, w).astype(made_dtype)
    xs, ws = g.channels_second(x, w)
    n, channels, *space = g.output_shape(xs, ws)
    # gradients to weights are made as vectors: an update rule over (O, I, 3, 3) would be a loop of three elements
    shape = ((n, *space, channels), x, (math.prod(w),))[kind]
    made = _native.product("conv", lambda *dtypes: g.spec(kind, dtypes, xs, ws), shape, a, b, made_dtype)
    return lax.reshape(made, w) if kind == BACKWARD_WEIGHTS else made


def _forward_by_xla(g: Geometry, x: Array, w: Array) -> Array:
    space = "DHW"[3 - len(g.strides) :]
    names = (f"N{space}C", f"O{space}I" if g.weights_channels_last else f"OI{space}", f"N{space}C")
    pads = list(zip(g.pad_low, g.pad_high, strict=True))
    return convolved(x, w, g.strides, pads, g.dilations, names, g.groups)


def _by_xla(kind: int, g: Geometry, a: Array, b: Array, x: Shape, w: Shape) -> Array:
    if kind == FORWARD:
        return _forward_by_xla(g, a, b)
    if kind == BACKWARD_DATA:
        return jax.linear_transpose(lambda v: _forward_by_xla(g, v, b), jax.ShapeDtypeStruct(x, a.dtype))(a)[0]
    return jax.linear_transpose(lambda v: _forward_by_xla(g, a, v), jax.ShapeDtypeStruct(w, a.dtype))(b)[0]


def _vmapped(
    kind: int, g: Geometry, x: Shape, w: Shape, size: int, batched: Sequence[bool], a: Array, b: Array, sharded: bool, dtype: Any
) -> Array:
    """A call with a further axis 0 on some of its operands: more samples, or more groups."""
    if kind != BACKWARD_WEIGHTS and list(batched) == [True, False]:
        return _unfold(call(kind, g, (size * x[0], *x[1:]), w, sharded, dtype)(_fold(a, 0), b), 0, size)
    a, b = (v if is_batched else jnp.broadcast_to(v, (size, *v.shape)) for v, is_batched in zip((a, b), batched, strict=True))
    many = replace(g, groups=g.groups * size)
    grouped = call(kind, many, (*x[:-1], size * x[-1]), (size * w[0], *w[1:]), sharded, dtype)
    channels = (-1, 0, -1) if kind != BACKWARD_WEIGHTS else (-1, -1, 0)  # the axes of a, b and the result that groups divide
    return _unfold(grouped(_fold(a, channels[0]), _fold(b, channels[1])), channels[2], size)


def _fold(a: Array, axis: int) -> Array:
    """The array's axis 0 joined with that axis of the rest, and varying slower."""
    shape = list(a.shape[1:])
    shape[axis] *= a.shape[0]
    return jnp.moveaxis(a, 0, axis if axis >= 0 else axis - 1).reshape(shape)


def _unfold(a: Array, axis: int, size: int) -> Array:
    axis %= a.ndim
    return jnp.moveaxis(a.reshape(*a.shape[:axis], size, a.shape[axis] // size, *a.shape[axis + 1 :]), axis, 0)


@lru_cache(maxsize=1024)
def _sharded(kind: int, g: Geometry, x: Shape, w: Shape, dtype: Any) -> Callable[[Array, Array], Array]:
    """A call of which each device computes the samples that it has. Inputs that are split along other axes are gathered first."""
    n, channels, *space = g.output_shape(*g.channels_second(x, w))
    axes = [_named("nsc", x), _named("nro", (n, *space, channels)), _named("vwu", w)]
    sizes = {name: size for each in axes for name, size in each.items()}
    data, output, weights = map(" ".join, axes)
    given, made = (([data, weights], output), ([output, weights], data), ([data, output], weights))[kind]

    def compute(pieces: Mapping[str, int]) -> Callable[[Array, Array], Array]:
        return lambda a, b: _on_one_device(kind, g, a, b, (pieces["n"], *x[1:]), w, dtype)

    return _native.split_over_devices(compute, sizes, given, [made], "n")


def _named(letters: str, shape: Shape) -> dict[str, int]:
    """The sizes of axes by name, of which the letter in the middle is for any number."""
    between = [f"{letters[1]}{i}" for i in range(len(shape) - 2)]
    return dict(zip([letters[0], *between, letters[2]], shape, strict=True))


# --- convolutions: the first call, whose gradients are the others


@lru_cache(maxsize=1024)
def differentiable(g: Geometry, sharded: bool = False, narrow: bool = False) -> Callable[[Array, Array], Array]:
    """A convolution of x and w. ``narrow``: in bfloat16, of float32 arrays, with gradients in float32."""

    @jax.custom_vjp
    def run(x: Array, w: Array) -> Array:
        return call(FORWARD, g, x.shape, w.shape, sharded)(_cast(x, narrow), w)

    def forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
        x = _cast(x, narrow)
        return call(FORWARD, g, x.shape, w.shape, sharded)(x, w), (x, w)

    def backward(saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
        x, w = saved
        dx = call(BACKWARD_DATA, g, x.shape, w.shape, sharded)(dy, w)
        return _cast_back(dx, narrow), call(BACKWARD_WEIGHTS, g, x.shape, w.shape, sharded, w.dtype)(x, dy)

    run.defvjp(forward, backward)
    return run


def _cast(v: Array, narrow: bool) -> Array:
    return to_bfloat16(v) if narrow else v


def _cast_back(gradient: Array, narrow: bool) -> Array:
    return gradient.astype(np.float32) if narrow else gradient


def _order(spec: str, first: str) -> tuple[int, ...]:
    """The permutation that brings axes called ``spec`` into the order of ``first`` and the spatial ones."""
    return tuple(spec.index(axis) for axis in (*first, *(a for a in spec if a not in first)))


def _conv_geometry(x: Shape, w: Shape, attrs: Mapping[str, Any]) -> tuple[Geometry, Shape, Shape]:
    """An op's attributes and the shapes of its operands as a Geometry and shapes with channels second."""
    x_spec, w_spec = attrs["x_spec"], attrs["w_spec"]
    x, w = tuple(x[i] for i in _order(x_spec, "NC")), tuple(w[i] for i in _order(w_spec, "OI"))
    pads = sides(attrs["padding"], x[2:], w[2:], attrs["strides"], attrs["dilations"])
    pad_low, pad_high = tuple(low for low, _ in pads), tuple(high for _, high in pads)
    return Geometry(attrs["strides"], attrs["dilations"], pad_low, pad_high, attrs["groups"], w_spec[-1] == "I"), x, w


def _on_channels_last(run: Callable[[Array, Array], Array], x: Array, w: Array, x_spec: str) -> Array:
    if x_spec[-1] == "C":
        return run(x, w)
    return jnp.moveaxis(run(jnp.moveaxis(x, 1, -1), w), -1, 1)


def conv(x: Array, w: Array, sharded: bool = False, narrow: bool = False, **attrs: Any) -> Array:
    """``conv1d`` .. ``conv3d`` by oneDNN."""
    g, _, _ = _conv_geometry(x.shape, w.shape, attrs)
    return _on_channels_last(differentiable(g, sharded, narrow), x, w, attrs["x_spec"])


def _conv_unsupported_reason(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    x, w = arrays
    g, x_shape, w_shape = _conv_geometry(x.shape, w.shape, attrs)
    return unsupported_reason(g, np.dtype(x.dtype).name, x_shape, w_shape)


def _conv_describe(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str:
    x, w = arrays
    g, x_shape, w_shape = _conv_geometry(x.shape, w.shape, attrs)
    dtype = np.dtype(x.dtype).name
    return _native.product_words(kernel_name(g, dtype, x_shape, w_shape), dtype)


NATIVE = Native(conv, _conv_unsupported_reason, _conv_describe)


# --- transposed convolutions: the gradient to the data is the value, and the other two are its gradients


@lru_cache(maxsize=1024)
def _transposed_differentiable(
    g: Geometry, sizes: tuple[int, ...], sharded: bool, narrow: bool
) -> Callable[[Array, Array], Array]:
    """``sizes``: the result's spatial ones. ``narrow``: see ``differentiable``."""

    def shapes(x: Array, w: Array) -> tuple[Shape, Shape]:
        channels = w.shape[-1] if g.weights_channels_last else w.shape[1]
        return (x.shape[0], *sizes, channels), w.shape

    @jax.custom_vjp
    def run(x: Array, w: Array) -> Array:
        return call(BACKWARD_DATA, g, *shapes(x, w), sharded)(_cast(x, narrow), w)

    def forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
        x = _cast(x, narrow)
        return call(BACKWARD_DATA, g, *shapes(x, w), sharded)(x, w), (x, w)

    def backward(saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
        x, w = saved
        dx = call(FORWARD, g, *shapes(x, w), sharded)(dy, w)
        return _cast_back(dx, narrow), call(BACKWARD_WEIGHTS, g, *shapes(x, w), sharded, w.dtype)(dy, x)

    run.defvjp(forward, backward)
    return run


def _transposed_geometry(x: Shape, w: Shape, attrs: Mapping[str, Any]) -> tuple[Geometry, Shape, Shape]:
    """The convolution that a transposed one is the gradient of: its Geometry, its input's shape and its weights'."""
    x_spec, w_spec, strides, dilations = attrs["x_spec"], attrs["w_spec"], attrs["strides"], attrs["dilations"]
    y, w = tuple(x[i] for i in _order(x_spec, "NC")), tuple(w[i] for i in _order(w_spec, "IO"))
    pad_low, pad_high = attrs["pad_low"], attrs["pad_high"]
    axes = zip(y[2:], w[2:], strides, dilations, pad_low, pad_high, strict=True)
    sizes = tuple((n - 1) * s + (k - 1) * d + 1 - low - high for n, k, s, d, low, high in axes)
    padded = tuple(max(0, high) for high in pad_high)
    return Geometry(strides, dilations, pad_low, padded, 1, w_spec[-1] == "O"), (y[0], w[1], *sizes), w


def conv_transpose(x: Array, w: Array, sharded: bool = False, narrow: bool = False, **attrs: Any) -> Array:
    """``conv1d_transpose`` .. ``conv3d_transpose`` by oneDNN."""
    g, made, _ = _transposed_geometry(x.shape, w.shape, attrs)
    return _on_channels_last(_transposed_differentiable(g, made[2:], sharded, narrow), x, w, attrs["x_spec"])


def _transposed_unsupported_reason(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    x, w = arrays
    g, x_shape, w_shape = _transposed_geometry(x.shape, w.shape, attrs)
    y = tuple(x.shape[i] for i in _order(attrs["x_spec"], "NC"))
    if g.output_shape(x_shape, w_shape) != y:
        return "no convolution has the gradient of these sizes"
    return unsupported_reason(g, np.dtype(x.dtype).name, x_shape, w_shape)


def _transposed_describe(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str:
    x, w = arrays
    g, x_shape, w_shape = _transposed_geometry(x.shape, w.shape, attrs)
    dtype = np.dtype(x.dtype).name
    return _native.product_words(kernel_name(g, dtype, x_shape, w_shape, BACKWARD_DATA), dtype)


NATIVE_TRANSPOSED = Native(conv_transpose, _transposed_unsupported_reason, _transposed_describe)
