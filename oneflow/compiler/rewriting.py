"""What is changed in traced functions before XLA compiles them for CPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._base.jax import jax
from .plan import Plan
from .product_update import with_product_updates
from .recomputed import stored_values
from .wide_reductions import without_wide_reductions


def rewritten(closed: Any, plan: Plan, devices: int = 1, *, keeps_reductions: bool = False) -> Any | None:
    """A closed jaxpr of a plan as XLA is to get it; None where it stays as it is.

    ``devices``: for how many it is; ``keeps_reductions``: where XLA's library reduces nothing. On several all are kept.
    """
    changed = with_product_updates(closed, plan, devices)
    if not (keeps_reductions or devices > 1):
        changed = without_wide_reductions(changed or closed, plan) or changed
    return stored_values(changed or closed, plan, devices) or changed


def rewritten_function(
    traced: Any, plan: Plan, name: str, devices: int, *, keeps_reductions: bool = False
) -> Callable[..., Any] | None:
    """A traced function of a plan as XLA is to get it; None where it stays as it is. For the others see ``rewritten``."""
    closed = rewritten(traced.jaxpr, plan, devices, keeps_reductions=keeps_reductions)
    return None if closed is None else function_of(closed, traced, name)


def function_of(closed: Any, traced: Any, name: str) -> Callable[..., Any]:
    """A closed jaxpr as a function, of the arguments and results of a traced one."""
    from jax.extend.core import jaxpr_as_fun

    run, results = jaxpr_as_fun(closed), jax.tree.structure(traced.out_info)

    def function(*arguments: Any) -> Any:
        return jax.tree.unflatten(results, run(*jax.tree.leaves(arguments)))

    function.__name__ = function.__qualname__ = name
    return function
