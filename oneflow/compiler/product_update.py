"""Updates that compute the gradient they use: a product of matrices, to the weights of a dense layer or a 1 x 1 convolution.

The product of few rows takes less time than its result, which is as large as the weights, takes to be written and read again.
The native part computes some rows of the gradient, updates these rows of the weights, and goes on (``native/src/update.cc``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .._base import native
from .._base.jax import jax, lax
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
        found = _product_behind(eqn.invars[-1], makers, readers)
        if found is not None:
            chain, product = found
            instead[id(eqn)] = _together(eqn, spec, product, calls)
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


class _Product(NamedTuple):
    """The product of a transposed matrix and another one, both of float32: A^T B is (m, n), A (k, m), and B (k, n)."""

    m: int
    n: int
    k: int
    a: Any
    b: Any


def _product_behind(var: Any, makers: Mapping[int, Any], readers: Mapping[int, int]) -> tuple[list[Any], _Product] | None:
    """The equations that make a value which only one reads, reshapes and a product that is worthwhile; and the product."""
    chain: list[Any] = []
    while readers.get(id(var)) == 1 and (eqn := makers.get(id(var))) is not None:
        chain.append(eqn)
        if eqn.primitive is not lax.reshape_p:
            product = _product_of(eqn)
            return (chain, product) if product is not None and is_worthwhile(product.m, product.n, product.k) else None
        var = eqn.invars[0]
    return None


def _product_of(eqn: Any) -> _Product | None:
    """The product that an equation computes: of a dense layer's gradients, or of a convolution's with windows of one element."""
    first = eqn
    if eqn.primitive.name == "custom_vmap_call":
        inner = eqn.params["call"].jaxpr
        if not inner.eqns or list(map(id, inner.invars)) != list(map(id, inner.eqns[0].invars)):
            return None
        first, *others = inner.eqns
        if any(other.primitive is not lax.reshape_p for other in others):
            return None
    if (spec := _spec_of(first, "matmul")) is not None:
        dtypes, pairs, m, n, k, *transposed = spec
        return _Product(m, n, k, *eqn.invars) if (dtypes, pairs, transposed) == (0, 1, [1, 0]) else None
    if (spec := _spec_of(first, "conv")) is not None:
        return _pointwise(spec, *eqn.invars)
    return None


def _pointwise(spec: list[int], x: Any, dy: Any) -> _Product | None:
    """The gradient to a convolution's weights as a product, by its spec (``native/src/conv_spec.h``); None for other calls."""
    if spec[0] != native.BACKWARD_WEIGHTS:  # or for several devices
        return None
    dtypes, axes, groups, *rest = spec[2:]
    sizes, windows = rest[: 3 * (axes + 2)], rest[3 * (axes + 2) :]
    samples, n, *image = sizes[: axes + 2]
    m, _, *kernel = sizes[axes + 2 : 2 * (axes + 2)]
    strides, pads = windows[:axes], windows[2 * axes :]
    if (dtypes, groups) != (0, 1) or {*kernel, *strides} != {1} or any(pads):
        return None
    return _Product(m, n, samples * math.prod(image), dy, x)


def _spec_of(eqn: Any, name: str) -> list[int] | None:
    """The spec of a call of the native part; None for other equations."""
    if eqn.primitive.name != "ffi_call" or eqn.params["target_name"] != native.target(name):
        return None
    return np.asarray(dict(eqn.params["attributes"])["spec"].val).tolist()


def _together(update: Any, spec: list[int], product: _Product, calls: dict[Any, Any]) -> Any:
    """The equation in place of an update and of the product that is its gradient. ``calls``: those that were traced before."""
    given = [product.m, product.n, product.k, True, False, *spec]
    operands = [*update.invars[:-1], product.a, product.b]
    aliases = dict(update.params["input_output_aliases"])
    key = (*given, *aliases.items(), *(var.aval for var in operands))
    if key not in calls:
        results = [(var.aval.shape, var.aval.dtype) for var in update.outvars]

        def call(*arrays: Any) -> tuple[Any, ...]:
            return native.call_several("product_update", given, results, *arrays, aliases=aliases)

        (calls[key],) = jax.make_jaxpr(call)(*(jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in operands)).eqns
    return calls[key].replace(invars=operands, outvars=update.outvars, source_info=update.source_info)
