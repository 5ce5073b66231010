"""Programs of tests of single native calls, and of their references."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax


def result_and_gradients(function: Callable[..., Any], arrays: Any, cotangent: Any) -> tuple[Any, tuple[Any, ...]]:
    """The function's result, and the gradients to the arrays, by one program: op by op, XLA compiles each one for each shape."""

    def both(arrays: Any, cotangent: Any) -> tuple[Any, tuple[Any, ...]]:
        made, pullback = jax.vjp(function, *arrays)
        return made, pullback(cotangent)

    return jax.jit(both)(tuple(arrays), cotangent)  # type: ignore[no-any-return]


def examples(count: int) -> int:
    """How many drawn cases a test takes: that many in the long tier, else half of them."""
    return count if "ONEFLOW_THOROUGH" in os.environ else count // 2
