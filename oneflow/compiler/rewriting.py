"""What is changed in traced functions before XLA compiles them for one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._base.jax import jax
from .plan import Plan
from .recomputed import stored_values
from .wide_reductions import without_wide_reductions


def rewritten(closed: Any, plan: Plan) -> Any | None:
    """A closed jaxpr of a plan for one device as XLA is to get it; None where it stays as it is."""
    changed = without_wide_reductions(closed, plan)
    return stored_values(changed or closed, plan) or changed


def rewritten_function(traced: Any, plan: Plan, name: str) -> Callable[..., Any] | None:
    """A traced function of a plan for one device as XLA is to get it; None where it stays as it is."""
    closed = rewritten(traced.jaxpr, plan)
    if closed is None:
        return None
    from jax.extend.core import jaxpr_as_fun

    run, results = jaxpr_as_fun(closed), jax.tree.structure(traced.out_info)

    def function(*arguments: Any) -> Any:
        return jax.tree.unflatten(results, run(*jax.tree.leaves(arguments)))

    function.__name__ = function.__qualname__ = name
    return function
