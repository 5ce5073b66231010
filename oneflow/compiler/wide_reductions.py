"""Reductions of wide arrays along axes before their last, which XLA's library computes one number at a time.

On CPUs XLA hands the sum over the rows of an array, and the largest of them, to a library. From 2**14 columns on that takes 20 to
80 times as long as to read the array (jaxlib 0.10): 8 ms for the gradient of positions in 16 sequences of 128 by 768. A sum of
what is in memory is written as a product with ones, which the same library computes at the rate of memory. Other sums, and
extremes, are written in a way that the library does not know, so that XLA computes them; it stores large operands before.

In a program that mostly reduces wide arrays the library reduces nothing, and all is left as it is. On several devices XLA has to
know what is reduced, to divide it: there that is the only way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._base.jax import jax, lax
from .options import has_small_products, own_reductions
from .plan import Plan

_WIDE = 1 << 14  # columns, more of which are slow

# Primitives of JAX: those whose results are in memory, those that hold the same numbers, and elementwise ones
_IN_MEMORY = frozenset("conv_general_dilated dot_general ffi_call".split())
_VIEWS = frozenset("expand_dims reshape squeeze".split())
_ELEMENTWISE = frozenset("add add_any convert_element_type div max min mul neg select_n sub".split())
# What a number of a wide reduction takes longer by the library, and as it is written here, than by XLA itself; as a multiple of
# what one of another reduction takes longer by XLA
_BY_LIBRARY, _REWRITTEN = 8, 2
_DEPTH = 16  # equations that are looked through

Array = Any


# Each of these reduces axis 1 of three.


def _product_with_ones(x: Array) -> Array:
    ones = lax.full((x.shape[0], x.shape[1]), 1, x.dtype)
    return lax.dot_general(ones, x, (((1,), (1,)), ((0,), (0,))))


def _sum(x: Array) -> Array:
    def total(a: Array, b: Array) -> Array:
        return lax.select(lax.ne(a, a), a, lax.add(a, b))  # the same, but not to the library

    return lax.reduce(x, np.float32(0), total, (1,))


def _extreme(x: Array, start: float, comes_first: Callable[[Array, Array], Array]) -> Array:
    def better(a: Array, b: Array) -> Array:
        return lax.select(lax.bitwise_or(comes_first(a, b), lax.ne(a, a)), a, b)  # a NaN stays

    return lax.reduce(x, np.float32(start), better, (1,))


_REDUCTIONS: dict[str, Callable[[Array], Array]] = dict(
    zip(
        "reduce_sum reduce_max reduce_min".split(),
        (_sum, lambda x: _extreme(x, -math.inf, lax.ge), lambda x: _extreme(x, math.inf, lax.le)),
        strict=True,
    )
)


def without_wide_reductions(closed: Any, plan: Plan) -> Any | None:
    """A closed jaxpr of a plan for one device that has no slow reductions; None where it has none already."""
    if plan.platform != "cpu" or has_small_products(plan):  # which leave the library out
        return None
    return _rewritten(closed, {})


def options_for_reductions(closed: Any, plan: Plan, *, is_spread: bool) -> dict[str, Any]:
    """The compiler's options for a closed jaxpr that takes longer where the library reduces, else none.

    ``is_spread``: it is for several devices.
    """
    if plan.platform != "cpu" or has_small_products(plan):
        return {}
    wide, others = _reduced_numbers(closed.jaxpr)
    return own_reductions() if (_BY_LIBRARY if is_spread else _REWRITTEN) * wide > others else {}


def _reduced_numbers(jaxpr: Any) -> tuple[int, int]:
    """How many numbers a jaxpr's wide reductions reduce, and its others."""
    wide = others = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _REDUCTIONS:
            is_wide = _as_three_axes(eqn) is not None
            wide, others = wide + is_wide * eqn.invars[0].aval.size, others + (not is_wide) * eqn.invars[0].aval.size
        for inside in (part for value in eqn.params.values() for part in (value if isinstance(value, tuple) else (value,))):
            if hasattr(inside := getattr(inside, "jaxpr", inside), "eqns"):
                found = _reduced_numbers(inside)
                wide, others = wide + found[0], others + found[1]
    return wide, others


def _rewritten(closed: Any, seen: dict[int, Any | None]) -> Any | None:
    """``seen`` has what became of the jaxprs of functions that are called several times."""
    if id(closed) in seen:
        return seen[id(closed)]
    from jax.extend.core import ClosedJaxpr

    jaxpr, eqns, changes = closed.jaxpr, [], False
    makers = {id(var): eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    for eqn in jaxpr.eqns:
        made = [eqn]
        if eqn.primitive.name in ("jit", "pjit", "cond"):
            key = "branches" if "branches" in eqn.params else "jaxpr"
            inside = eqn.params[key] if key == "branches" else (eqn.params[key],)
            found = [_rewritten(each, seen) for each in inside]
            if any(each is not None for each in found):
                whole = tuple(new or old for new, old in zip(found, inside, strict=True))
                made = [eqn.replace(params={**eqn.params, key: whole if key == "branches" else whole[0]})]
        elif eqn.primitive.name in _REDUCTIONS:
            sizes = _as_three_axes(eqn)
            if sizes is not None and not _is_constant_along(eqn.invars[0], eqn.params["axes"], makers, _DEPTH):
                made = _equations(eqn, sizes, _is_in_memory(eqn.invars[0], makers))
        changes = changes or made[0] is not eqn
        eqns += made
    seen[id(closed)] = ClosedJaxpr(jaxpr.replace(eqns=eqns), closed.consts) if changes else None
    return seen[id(closed)]


def _is_in_memory(var: Any, makers: Mapping[int, Any]) -> bool:
    eqn = makers.get(id(var))
    while eqn is not None and eqn.primitive.name in _VIEWS:
        eqn = makers.get(id(eqn.invars[0]))
    return eqn is None or eqn.primitive.name in _IN_MEMORY


def _is_constant_along(var: Any, axes: Sequence[int], makers: Mapping[int, Any], depth: int) -> bool:
    """Whether a value repeats along axes, where XLA multiplies instead of adding."""
    axes = [axis for axis in axes if var.aval.shape and var.aval.shape[axis] != 1]
    eqn = makers.get(id(var))
    if not axes:
        return True
    if eqn is None or not depth:
        return False
    if eqn.primitive.name == "broadcast_in_dim":
        places = eqn.params["broadcast_dimensions"]
        return _is_constant_along(eqn.invars[0], [places.index(axis) for axis in axes if axis in places], makers, depth - 1)
    if eqn.primitive.name in _VIEWS:
        (source,) = eqn.invars
        return _is_constant_along(source, range(source.aval.ndim), makers, depth - 1)
    return eqn.primitive.name in _ELEMENTWISE and all(_is_constant_along(v, axes, makers, depth - 1) for v in eqn.invars)


def _as_three_axes(eqn: Any) -> tuple[int, int, int] | None:
    """The sizes before, of and behind the axes that a slow reduction reduces; None for others."""
    aval, axes = eqn.invars[0].aval, sorted(eqn.params["axes"])
    if aval.dtype != np.float32 or not axes or axes != list(range(axes[0], axes[-1] + 1)):
        return None
    first, end = axes[0], axes[-1] + 1
    before, within, behind = (math.prod(sizes) for sizes in (aval.shape[:first], aval.shape[first:end], aval.shape[end:]))
    return (before, within, behind) if behind > _WIDE and within > 1 and before else None


def _equations(eqn: Any, sizes: tuple[int, int, int], is_in_memory: bool) -> list[Any]:
    """What replaces a reduction: equations that end with its result."""
    aval, (result,) = eqn.invars[0].aval, eqn.outvars
    reduce = _REDUCTIONS[eqn.primitive.name]
    reduce = _product_with_ones if reduce is _sum and is_in_memory else reduce

    def reduced(x: Array) -> Array:
        return lax.reshape(reduce(lax.reshape(x, sizes)), result.aval.shape)

    made = jax.make_jaxpr(reduced)(jax.ShapeDtypeStruct(aval.shape, aval.dtype)).jaxpr
    known = {id(made.invars[0]): eqn.invars[0]}
    (last,) = made.outvars
    found = []
    for each in made.eqns:
        invars = [known.get(id(var), var) for var in each.invars]
        outvars = [result if var is last else var for var in each.outvars]
        found.append(each.replace(invars=invars, outvars=outvars, source_info=eqn.source_info))
    return found
