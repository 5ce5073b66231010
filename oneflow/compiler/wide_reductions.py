"""Reductions of wide arrays along axes before their last, which XLA's library computes one number at a time.

On CPUs XLA hands the sum over the rows of an array, and the largest of them, to a library. From 2**14 columns on that takes 20 to
80 times as long as to read the array (jaxlib 0.10): 8 ms for the gradient of positions in 16 sequences of 128 by 768. A sum is
written as a product with ones, which the same library computes at the rate of memory, and an extreme with a comparison that the
library does not know, so that XLA computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._base.jax import jax, lax
from .options import has_small_products
from .plan import Plan

_WIDE = 1 << 14  # columns, more of which are slow

Array = Any


def _sum(x: Array) -> Array:
    """Over axis 1 of three."""
    ones = lax.full((x.shape[0], x.shape[1]), 1, x.dtype)
    return lax.dot_general(ones, x, (((1,), (1,)), ((0,), (0,))))


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


def _rewritten(closed: Any, seen: dict[int, Any | None]) -> Any | None:
    """``seen`` has what became of the jaxprs of functions that are called several times."""
    if id(closed) in seen:
        return seen[id(closed)]
    from jax.extend.core import ClosedJaxpr

    jaxpr, eqns, changes = closed.jaxpr, [], False
    for eqn in jaxpr.eqns:
        made = [eqn]
        if eqn.primitive.name in ("jit", "pjit"):
            inner = _rewritten(eqn.params["jaxpr"], seen)
            made = [eqn] if inner is None else [eqn.replace(params={**eqn.params, "jaxpr": inner})]
        elif eqn.primitive.name in _REDUCTIONS:
            reduced = _as_three_axes(eqn)
            made = [eqn] if reduced is None else _equations(eqn, *reduced)
        changes = changes or made[0] is not eqn
        eqns += made
    found = ClosedJaxpr(jaxpr.replace(eqns=eqns), closed.consts) if changes else None
    seen[id(closed)] = found
    return found


def _as_three_axes(eqn: Any) -> tuple[int, int, int] | None:
    """The sizes before, of and behind the axes that a slow reduction reduces; None for others."""
    aval, axes = eqn.invars[0].aval, sorted(eqn.params["axes"])
    if aval.dtype != np.float32 or not axes or axes != list(range(axes[0], axes[-1] + 1)):
        return None
    first, end = axes[0], axes[-1] + 1
    before, within, behind = (math.prod(sizes) for sizes in (aval.shape[:first], aval.shape[first:end], aval.shape[end:]))
    return (before, within, behind) if behind > _WIDE and within > 1 and before else None


def _equations(eqn: Any, *sizes: int) -> list[Any]:
    """What replaces a reduction: equations that end with its result."""
    aval, (result,) = eqn.invars[0].aval, eqn.outvars

    def reduced(x: Array) -> Array:
        return lax.reshape(_REDUCTIONS[eqn.primitive.name](lax.reshape(x, sizes)), result.aval.shape)

    made = jax.make_jaxpr(reduced)(jax.ShapeDtypeStruct(aval.shape, aval.dtype)).jaxpr
    known = {id(made.invars[0]): eqn.invars[0]}
    (last,) = made.outvars
    found = []
    for each in made.eqns:
        invars = [known.get(id(var), var) for var in each.invars]
        outvars = [result if var is last else var for var in each.outvars]
        found.append(each.replace(invars=invars, outvars=outvars, source_info=eqn.source_info))
    return found
