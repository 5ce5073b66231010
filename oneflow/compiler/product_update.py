"""Updates that compute the gradient they use: that of a dense layer's weights, a product of two matrices, never goes to memory.

The product of few rows takes less time than its result, which is as large as the weights, takes to be written and read again.
The native part computes some rows of the gradient, updates these rows of the weights, and goes on (``native/src/update.cc``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._base import native
from .._base.jax import jax
from .fused_update import is_worthwhile
from .plan import Plan


def with_product_updates(closed: Any, plan: Plan, devices: int = 1) -> Any | None:
    """A closed jaxpr of a plan whose updates compute the products that nothing else reads; None where it has none."""
    from jax.extend.core import ClosedJaxpr, Jaxpr

    if plan.platform != "cpu" or devices > 1 or not plan.fused_updates:
        return None
    jaxpr = closed.jaxpr
    readers = _readers(jaxpr)
    makers = {id(var): eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    calls: dict[Any, Any] = {}
    instead: dict[int, Any] = {}  # equations, by those that they replace
    computed: set[int] = set()  # equations that are not needed then
    for eqn in jaxpr.eqns:
        spec = _spec_of(eqn, "update")
        if spec is None or spec[0] < 0 or spec[-2] != 1:  # for several devices, or of several variables
            continue
        chain = _product_behind(eqn.invars[-1], makers, readers)
        if chain is not None:
            instead[id(eqn)] = _together(eqn, spec, chain[-1], calls)
            computed.update(map(id, chain))
    if not instead:
        return None
    needed = [eqn for eqn in jaxpr.eqns if eqn.effects or any(id(var) in readers for var in eqn.outvars)]
    eqns = [instead.get(id(eqn), eqn) for eqn in needed if id(eqn) not in computed]
    made = Jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, eqns, jaxpr.effects, debug_info=jaxpr.debug_info)
    return ClosedJaxpr(made, closed.consts)


def _readers(jaxpr: Any) -> dict[int, int]:
    """How many equations that are needed read a value, and results of the jaxpr are it."""
    found: dict[int, int] = {}

    def read(variables: Any) -> None:
        for var in variables:
            found[id(var)] = found.get(id(var), 0) + 1

    read(jaxpr.outvars)
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or any(id(var) in found for var in eqn.outvars):
            read(eqn.invars)
    return found


def _product_behind(var: Any, makers: Mapping[int, Any], readers: Mapping[int, int]) -> list[Any] | None:
    """The equations that make a value which only one reads: reshapes, and at last a product that is worthwhile."""
    chain: list[Any] = []
    while readers.get(id(var)) == 1 and (eqn := makers.get(id(var))) is not None:
        chain.append(eqn)
        if eqn.primitive.name != "reshape":
            spec = _product_spec(eqn)
            return chain if spec is not None and is_worthwhile(*spec[2:5]) else None
        var = eqn.invars[0]
    return None


def _product_spec(eqn: Any) -> list[int] | None:
    """What describes a product of float32 matrices, of which the first is transposed, to the native part; else None."""
    inner = eqn.params["call"].jaxpr if eqn.primitive.name == "custom_vmap_call" else None
    if inner is not None:
        if len(inner.eqns) != 1 or list(map(id, inner.invars)) != list(map(id, inner.eqns[0].invars)):
            return None
        eqn = inner.eqns[0]
    spec = _spec_of(eqn, "matmul")
    return spec if spec is not None and spec[:2] == [0, 1] and spec[5:] == [1, 0] else None


def _spec_of(eqn: Any, name: str) -> list[int] | None:
    """The spec of a call of the native part; None for other equations."""
    if eqn.primitive.name != "ffi_call" or eqn.params["target_name"] != native.target(name):
        return None
    return np.asarray(dict(eqn.params["attributes"])["spec"].val).tolist()


def _together(update: Any, spec: list[int], product: Any, calls: dict[Any, Any]) -> Any:
    """The equation in place of an update and of the product that is its gradient. ``calls``: those that were traced before."""
    found = _product_spec(product)
    assert found is not None
    given = [*found[2:], *spec]  # m, n, k, and which of the matrices are transposed
    operands = [*update.invars[:-1], *product.invars]
    aliases = dict(update.params["input_output_aliases"])
    key = (*given, *aliases.items(), *(var.aval for var in operands))
    if key not in calls:
        results = [(var.aval.shape, var.aval.dtype) for var in update.outvars]

        def call(*arrays: Any) -> tuple[Any, ...]:
            return native.call_several("product_update", given, results, *arrays, aliases=aliases)

        (calls[key],) = jax.make_jaxpr(call)(*(jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in operands)).eqns
    return calls[key].replace(invars=operands, outvars=update.outvars, source_info=update.source_info)
