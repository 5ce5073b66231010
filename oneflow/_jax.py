"""JAX, imported when it is first used, so that ``import oneflow`` stays fast."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import _memory


class _Lazy:
    def __init__(self, name: str):
        self.__dict__["_name"] = name

    def __getattr__(self, attribute: str) -> Any:
        _memory.keep_freed()
        value = getattr(importlib.import_module(self._name), attribute)
        self.__dict__[attribute] = value
        return value

    def __repr__(self) -> str:
        return f"<{self._name}, imported at first use>"


if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax import lax
else:
    jax = _Lazy("jax")
    jnp = _Lazy("jax.numpy")
    lax = _Lazy("jax.lax")

__all__ = ["jax", "jnp", "lax"]
