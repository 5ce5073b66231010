"""Convolutions by oneDNN inside XLA's programs, for CPUs: what ``conv1d`` .. ``conv3d`` become where they can.

Three calls: forward, gradient to the data, gradient to the weights, on data of (N, ..., C). What lies between them is brought
into that order by ``compiler/layout.py``, so that transposes appear at a program's borders only. (To ask XLA for such a
layout of operands that are (N, C, ...) by name was tried: it transposes at every call.)
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
from ..graph.op import Native
from ._arrays import Array
from ._window import sides

FORWARD, DATA, WEIGHTS = range(3)
_WEIGHTS_LAST = 1


@dataclass(frozen=True)
class Geometry:
    """A convolution, its sizes apart. ``weights_last``: their channels are last in memory, too."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    groups: int
    weights_last: bool = False

    def spec(self, kind: int, dtype: Any, x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> list[int]:
        """The vector that the native part reads."""
        flags, number = _WEIGHTS_LAST if self.weights_last else 0, _native.DTYPES[np.dtype(dtype).name]
        head = [kind, flags, number, len(x) - 2, self.groups]
        return [*head, *x, *w, *y, *self.strides, *self.dilations, *self.low, *self.high]

    def result(self, x: Sequence[int], w: Sequence[int]) -> tuple[int, ...]:
        """The output's shape."""
        sizes = zip(x[2:], w[2:], self.strides, self.dilations, self.low, self.high, strict=True)
        return (x[0], w[0], *((n + lo + hi - (k - 1) * d - 1) // s + 1 for n, k, s, d, lo, hi in sizes))


@lru_cache(maxsize=4096)
def objection(g: Geometry, dtype: str, x: tuple[int, ...], w: tuple[int, ...]) -> str | None:
    """Why oneDNN does not take a convolution; None where it does."""
    if dtype not in _native.DTYPES:
        return f"{dtype} is not among oneDNN's"
    y = g.result(x, w)
    if min((*x, *w, *y)) <= 0:
        return "an empty array"
    for k, d, lo, hi in zip(w[2:], g.dilations, g.low, g.high, strict=True):
        if max(lo, hi) > (k - 1) * d or min(lo, hi) < 0:
            return "more padding than the window covers"
    if dtype == "bfloat16" and any(n < (k - 1) * d + 1 for n, k, d in zip(x[2:], w[2:], g.dilations, strict=True)):
        return "an image smaller than the window: oneDNN's gradient to bfloat16 weights is wrong there"
    found = _native.part()
    if found.library is None:
        return found.reason
    for kind in (FORWARD, DATA, WEIGHTS):
        name = found.library.describe("conv", g.spec(kind, dtype, x, w, y))
        if name.startswith("!"):
            return f"oneDNN has no kernel: {name[2:]}"
        if "ref" in name or name.startswith("gemm:"):
            return f"oneDNN's kernel is a slow one ({name})"
    return None


def kernel_name(g: Geometry, dtype: str, x: tuple[int, ...], w: tuple[int, ...], kind: int = FORWARD) -> str:
    """oneDNN's name of the kernel."""
    return str(_native.part().library.describe("conv", g.spec(kind, dtype, x, w, g.result(x, w))))


# --- the three calls, on (N, ..., C) and weights as they are


def _sizes(x: Sequence[int], w: Sequence[int], g: Geometry) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The native part's order of axes: channels second."""
    x = tuple(x)
    w = tuple(w)
    return (x[0], x[-1], *x[1:-1]), (w[0], w[-1], *w[1:-1]) if g.weights_last else w


def _call(kind: int, g: Geometry, a: Array, b: Array, x: Sequence[int], w: Sequence[int]) -> Array:
    xs, ws = _sizes(x, w, g)
    ys = g.result(xs, ws)
    # gradients to weights are made as vectors: an update rule over (O, I, 3, 3) would be a loop of three elements
    shape = ((ys[0], *ys[2:], ys[1]), x, (math.prod(w),))[kind]
    call = jax.ffi.ffi_call(_native.target("conv"), jax.ShapeDtypeStruct(tuple(shape), a.dtype))
    made = call(a, b, spec=np.array(g.spec(kind, a.dtype, xs, ws, ys), np.int64))
    return lax.reshape(made, tuple(w)) if kind == WEIGHTS else made


def _fold(a: Array, axis: int) -> Array:
    """The array's axis 0 joined with that axis of the rest, and varying slower."""
    shape = list(a.shape[1:])
    shape[axis] *= a.shape[0]
    return jnp.moveaxis(a, 0, axis if axis >= 0 else axis - 1).reshape(shape)


def _unfold(a: Array, axis: int, size: int) -> Array:
    axis %= a.ndim
    return jnp.moveaxis(a.reshape(*a.shape[:axis], size, a.shape[axis] // size, *a.shape[axis + 1 :]), axis, 0)


def _mapped(
    kind: int, g: Geometry, sizes: Any, size: int, batched: Sequence[bool], a: Array, b: Array, spread: bool = False
) -> Array:
    """A call with a further axis 0 on some of its operands: more samples, or more groups."""
    x, w = sizes
    if kind != WEIGHTS and list(batched) == [True, False]:
        return _unfold(_primitive(kind, g, ((size * x[0], *x[1:]), w), spread)(_fold(a, 0), b), 0, size)
    a, b = (v if is_batched else jnp.broadcast_to(v, (size, *v.shape)) for v, is_batched in zip((a, b), batched, strict=True))
    more = replace(g, groups=g.groups * size)
    wide = ((*x[:-1], size * x[-1]), (size * w[0], *w[1:]))
    axes = ((-1, 0, -1), (-1, 0, -1), (-1, -1, 0))[kind]
    return _unfold(_primitive(kind, more, wide, spread)(_fold(a, axes[0]), _fold(b, axes[1])), axes[2], size)


def _local(kind: int, g: Geometry, a: Array, b: Array, x: tuple[int, ...], w: tuple[int, ...]) -> Array:
    if objection(g, np.dtype(a.dtype).name, *_sizes(x, w, g)) is None:
        return _call(kind, g, a, b, x, w)
    return _plain(kind, g, a, b, x, w)


@lru_cache(maxsize=1024)
def _spread(kind: int, g: Geometry, x: tuple[int, ...], w: tuple[int, ...]) -> Callable[[Array, Array], Array]:
    """A call of which each device computes the samples that it has. Whatever else was split is brought together first."""
    from jax.experimental.custom_partitioning import custom_partitioning

    def run(a: Array, b: Array) -> Array:
        return _local(kind, g, a, b, (a.shape[0], *x[1:]), w)

    made = custom_partitioning(run)

    def partition(mesh: Any, given: Any, result: Any) -> Any:
        spec = given[0].sharding.spec
        axes = spec[0] if spec else None
        whole, split = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*s)) for s in ((), (axes,)))
        if kind != WEIGHTS:
            return mesh, run, split, (split, whole)

        def summed(a: Array, b: Array) -> Array:
            return run(a, b) if axes is None else lax.psum(run(a, b), axes)

        return mesh, summed, whole, (split, split)

    space = " ".join(f"s{i}" for i in range(len(x) - 2))
    result = " ".join(f"r{i}" for i in range(len(x) - 2))
    weights = " ".join(f"w{i}" for i in range(len(x)))
    rule = {
        FORWARD: f"n {space} c, {weights} -> n {result} o",
        DATA: f"n {result} o, {weights} -> n {space} c",
        WEIGHTS: f"n {space} c, n {result} o -> {weights}",
    }[kind]
    made.def_partition(partition=partition, infer_sharding_from_operands=None, sharding_rule=rule)
    return made


def _primitive(kind: int, g: Geometry, sizes: Any, spread: bool = False) -> Callable[[Array, Array], Array]:
    """One of the three, where it is taken; XLA's own otherwise."""
    x, w = (tuple(s) for s in sizes)

    def run(a: Array, b: Array) -> Array:
        return _spread(kind, g, x, w)(a, b) if spread else _local(kind, g, a, b, x, w)

    made = jax.custom_batching.custom_vmap(run)

    def rule(size: int, batched: Any, a: Array, b: Array) -> tuple[Array, bool]:
        return _mapped(kind, g, (x, w), size, batched, a, b, spread), True

    made.def_vmap(rule)
    return made


def _xla(g: Geometry, x: Array, w: Array) -> Array:
    space = "DHW"[3 - len(g.strides) :]
    names = (f"N{space}C", f"O{space}I" if g.weights_last else f"OI{space}", f"N{space}C")
    pads = list(zip(g.low, g.high, strict=True))
    return lax.conv_general_dilated(
        x, w, g.strides, pads, rhs_dilation=g.dilations, dimension_numbers=names, feature_group_count=g.groups
    )


def _plain(kind: int, g: Geometry, a: Array, b: Array, x: Sequence[int], w: Sequence[int]) -> Array:
    if kind == FORWARD:
        return _xla(g, a, b)
    if kind == DATA:
        return jax.linear_transpose(lambda v: _xla(g, v, b), jax.ShapeDtypeStruct(tuple(x), a.dtype))(a)[0]
    return jax.linear_transpose(lambda v: _xla(g, a, v), jax.ShapeDtypeStruct(tuple(w), a.dtype))(b)[0]


@lru_cache(maxsize=1024)
def _differentiable(g: Geometry, spread: bool = False) -> Callable[[Array, Array], Array]:
    @jax.custom_vjp
    def run(x: Array, w: Array) -> Array:
        return _primitive(FORWARD, g, (x.shape, w.shape), spread)(x, w)

    def forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
        return run(x, w), (x, w)

    def backward(kept: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
        x, w = kept
        sizes = (x.shape, w.shape)
        return _primitive(DATA, g, sizes, spread)(dy, w), _primitive(WEIGHTS, g, sizes, spread)(x, dy)

    run.defvjp(forward, backward)
    return run


# --- as the op's other lowering


def _order(spec: str, first: str) -> tuple[int, ...]:
    """The permutation that brings axes called ``spec`` into the order of ``first`` and the spatial ones."""
    return tuple(spec.index(axis) for axis in (*first, *(a for a in spec if a not in first)))


def geometry(x: Sequence[int], w: Sequence[int], attrs: Mapping[str, Any]) -> tuple[Geometry, tuple[int, ...], tuple[int, ...]]:
    """An op's attributes and its operands' shapes as a Geometry and shapes with channels second."""
    x_spec, w_spec = attrs["x_spec"], attrs["w_spec"]
    x, w = tuple(x[i] for i in _order(x_spec, "NC")), tuple(w[i] for i in _order(w_spec, "OI"))
    pads = sides(attrs["padding"], x[2:], w[2:], attrs["strides"], attrs["dilations"])
    low, high = tuple(lo for lo, _ in pads), tuple(hi for _, hi in pads)
    return Geometry(attrs["strides"], attrs["dilations"], low, high, attrs["groups"], w_spec[-1] == "I"), x, w


def conv(x: Array, w: Array, spread: bool = False, **attrs: Any) -> Array:
    """``conv1d`` .. ``conv3d`` by oneDNN, to be called where ``reason`` has nothing to say; ``spread`` over several devices."""
    run = _differentiable(geometry(x.shape, w.shape, attrs)[0], spread)
    if attrs["x_spec"][-1] == "C":
        return run(x, w)
    return jnp.moveaxis(run(jnp.moveaxis(x, 1, -1), w), -1, 1)


def reason(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    """Why an op's convolution stays with XLA; None where it goes to oneDNN."""
    x, w = arrays
    g, x_shape, w_shape = geometry(x.shape, w.shape, attrs)
    return objection(g, np.dtype(x.dtype).name, x_shape, w_shape)


def word(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str:
    """What computes it, for the op table."""
    x, w = arrays
    g, x_shape, w_shape = geometry(x.shape, w.shape, attrs)
    return f"oneDNN {kernel_name(g, np.dtype(x.dtype).name, x_shape, w_shape)}"


NATIVE = Native(conv, reason, word)


# --- transposed: the gradient to the data is the value, and the other two are its gradients


@lru_cache(maxsize=1024)
def _transposed(g: Geometry, sizes: tuple[int, ...], spread: bool) -> Callable[[Array, Array], Array]:
    """``sizes``: the result's, channels apart."""

    def shapes(x: Array, w: Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
        channels = w.shape[-1] if g.weights_last else w.shape[1]
        return (x.shape[0], *sizes, channels), w.shape

    @jax.custom_vjp
    def run(x: Array, w: Array) -> Array:
        return _primitive(DATA, g, shapes(x, w), spread)(x, w)

    def forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
        return run(x, w), (x, w)

    def backward(kept: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
        x, w = kept
        both = shapes(x, w)
        return _primitive(FORWARD, g, both, spread)(dy, w), _primitive(WEIGHTS, g, both, spread)(dy, x)

    run.defvjp(forward, backward)
    return run


def _of_transposed(
    x: Sequence[int], w: Sequence[int], attrs: Mapping[str, Any]
) -> tuple[Geometry, tuple[int, ...], tuple[int, ...]]:
    """The convolution that a transposed one is the gradient of: its Geometry, its input's shape and its weights'."""
    x_spec, w_spec, strides, dilations = attrs["x_spec"], attrs["w_spec"], attrs["strides"], attrs["dilations"]
    y, w = tuple(x[i] for i in _order(x_spec, "NC")), tuple(w[i] for i in _order(w_spec, "IO"))
    low, sizes = attrs["before"], attrs["sizes"]
    every = zip(y[2:], w[2:], strides, dilations, low, sizes, strict=True)
    high = tuple(max(0, (n - 1) * s + (k - 1) * d + 1 - size - lo) for n, k, s, d, lo, size in every)
    return Geometry(strides, dilations, low, high, 1, w_spec[-1] == "O"), (y[0], w[1], *sizes), w


def conv_transpose(x: Array, w: Array, spread: bool = False, **attrs: Any) -> Array:
    """``conv2d_transpose`` by oneDNN."""
    run = _transposed(_of_transposed(x.shape, w.shape, attrs)[0], attrs["sizes"], spread)
    if attrs["x_spec"][-1] == "C":
        return run(x, w)
    return jnp.moveaxis(run(jnp.moveaxis(x, 1, -1), w), -1, 1)


def _reason_of_transposed(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
    x, w = arrays
    g, x_shape, w_shape = _of_transposed(x.shape, w.shape, attrs)
    y = tuple(x.shape[i] for i in _order(attrs["x_spec"], "NC"))
    if g.result(x_shape, w_shape) != y:
        return "its sizes are no convolution's"
    return objection(g, np.dtype(x.dtype).name, x_shape, w_shape)


def _word_of_transposed(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str:
    x, w = arrays
    g, x_shape, w_shape = _of_transposed(x.shape, w.shape, attrs)
    return f"oneDNN {kernel_name(g, np.dtype(x.dtype).name, x_shape, w_shape, DATA)}"


NATIVE_TRANSPOSED = Native(conv_transpose, _reason_of_transposed, _word_of_transposed)
