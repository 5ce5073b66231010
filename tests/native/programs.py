"""Programs of tests of single native calls, and of their references."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

# A function as one program, compiled without LLVM's costly passes: op by op, XLA would compile each one for each shape.
as_one_program: Callable[..., Any] = partial(jax.jit, compiler_options=QUICK)


def result_and_gradients(function: Callable[..., Any], arrays: Any, cotangent: Any) -> tuple[Any, tuple[Any, ...]]:
    """The function's result, and the gradients to the arrays."""

    def both(arrays: Any, cotangent: Any) -> tuple[Any, tuple[Any, ...]]:
        made, pullback = jax.vjp(function, *arrays)
        return made, pullback(cotangent)

    return as_one_program(both)(tuple(arrays), cotangent)  # type: ignore[no-any-return]
