"""Long programs in parts: XLA's CPU runtime orders the steps of one computation by comparing each with all before it.

It does so whenever a program is loaded. A part is a computation of its own, which XLA calls and does not inline, so that only its
own steps are compared with each other: loading takes time in proportion to the program's length, not to its square.

Values that cross from part to part are written to memory, and nothing is fused across, so parts are long, and the equations are
put into an order in which few values cross: each is computed just before it is needed, and the results, such as the variables'
updates, in the order in which they can be known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .._base import jax_versions
from .._base.jax import jax
from .options import has_small_products
from .plan import Plan

_LONG = 1500  # nodes: 500 dense layers. Shorter programs are loaded as fast whole
_PART = 1000  # equations: some 70 of these layers with their gradients


def is_long(plan: Plan) -> bool:
    """Whether the step of a plan for one device is computed in parts: it has very many nodes, and its arrays are small."""
    return plan.platform == "cpu" and len(plan.compute) >= _LONG and has_small_products(plan)


def in_parts(
    step: Callable[..., Any], part: int = _PART, changed: Callable[[Any], Any | None] | None = None
) -> Callable[..., Any]:
    """A function like ``step``, to be traced, which computes its equations part by part.

    Args:
      step: a function of trees of arrays.
      part: the number of equations of a part.
      changed: returns a closed jaxpr to compute in place of the traced one, or None for that one.
    """

    def divided(*arguments: Any) -> Any:
        from jax.extend.core import jaxpr_as_fun

        closed, shape = jax.make_jaxpr(step, return_shape=True)(*arguments)
        closed = (changed and changed(closed)) or closed
        given = jax.tree.leaves(arguments)
        # effects have an order
        made = jaxpr_as_fun(closed)(*given) if closed.effects else _run(closed, given, part)
        return jax.tree.unflatten(jax.tree.structure(shape), made)

    divided.__name__ = divided.__qualname__ = step.__name__
    return divided


def _run(closed: Any, arguments: Sequence[Any], size: int) -> list[Any]:
    """The results of a closed jaxpr without effects, computed by one call per part."""
    from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

    jaxpr = closed.jaxpr
    names = jaxpr.debug_info._replace(arg_names=None, result_paths=None)  # a part has others
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *arguments), strict=True))
    order = _in_order(jaxpr)
    parts = [order[start : start + size] for start in range(0, len(order), size)]
    # constants, which XLA computes in each loop that reads them: made anew in each part
    constants = {var: eqn for eqn in order if not _read(eqn) for var in eqn.outvars}
    last_reader = {var: i for i, part in enumerate(parts) for eqn in part for var in _read(eqn) if var not in constants}
    last_reader.update(dict.fromkeys((var for var in jaxpr.outvars if not isinstance(var, Literal)), len(parts)))
    for i, part in enumerate(parts):
        own = {var for eqn in part for var in eqn.outvars}
        needed = dict.fromkeys(var for eqn in part for var in _read(eqn) if var not in own)
        again = {id(constants[var]): constants[var] for var in needed if var in constants}
        eqns = [*again.values(), *part]
        anew = {var for eqn in again.values() for var in eqn.outvars}
        inputs = [var for var in needed if var not in anew]
        outputs = [var for eqn in part for var in eqn.outvars if last_reader.get(var, -1) > i]
        run = jax_versions.not_inlined(ClosedJaxpr(Jaxpr((), inputs, outputs, eqns, debug_info=names), ()))
        values.update(zip(outputs, run(*(values[var] for var in inputs)), strict=True))
    return [var.val if isinstance(var, Literal) else values[var] for var in jaxpr.outvars]


def _in_order(jaxpr: Any) -> list[Any]:
    """The equations that results need, each just before the first one that reads it; results that take fewer steps come first."""
    from jax.extend.core import Literal

    depths: dict[Any, int] = {}
    makers: dict[Any, Any] = {}
    for eqn in jaxpr.eqns:
        depth = 1 + max((depths.get(var, 0) for var in _read(eqn)), default=0)
        for var in eqn.outvars:
            depths[var], makers[var] = depth, eqn
    results = [var for var in jaxpr.outvars if not isinstance(var, Literal) and var in makers]
    results.sort(key=depths.__getitem__)
    order: dict[int, Any] = {}
    for result in results:
        waiting = [(makers[result], _makers_of(makers[result], makers))]
        while waiting:
            eqn, before = waiting[-1]
            following = next((other for other in before if id(other) not in order), None)
            if following is not None:
                waiting.append((following, _makers_of(following, makers)))
            else:
                order.setdefault(id(eqn), eqn)
                waiting.pop()
    return list(order.values())


def _makers_of(eqn: Any, makers: dict[Any, Any]) -> Iterator[Any]:
    """The equations of the values that one reads."""
    return (makers[var] for var in _read(eqn) if var in makers)


def _read(eqn: Any) -> list[Any]:
    """The variables that an equation reads."""
    from jax.extend.core import Literal

    return [var for var in eqn.invars if not isinstance(var, Literal)]
