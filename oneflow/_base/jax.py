"""JAX, imported when it is first used, so that ``import oneflow`` stays fast."""

from __future__ import annotations

import gc
import importlib
import math
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import jax_versions
from . import memory as _memory

_memory.keep_freed()  # here, because somebody else may start JAX before we use it


def _module(name: str) -> ModuleType:
    """The module, imported on a thread of its own: Ctrl-C, which Python raises on the main thread alone, could leave half of it.

    The import goes on after Ctrl-C, and whoever needs the module next waits for it.
    """
    if name in sys.modules or threading.current_thread() is not threading.main_thread():
        return _imported(name)
    found: Future[ModuleType] = Future()

    def finish() -> None:
        try:
            found.set_result(_imported(name))
        except BaseException as error:
            found.set_exception(error)

    try:
        threading.Thread(target=finish, name="oneflow-import").start()
    except RuntimeError:  # the system starts none, or the program is about to end
        return _imported(name)
    return found.result()


def _imported(name: str) -> ModuleType:
    """The module, imported while the garbage collector rests: it would look through all that JAX makes, again and again."""
    if name in sys.modules or not gc.isenabled() or gc.get_freeze_count():  # what the program has arranged stays
        return importlib.import_module(name)
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.unfreeze()  # all of it counts as old now, and is looked through when that is due
        gc.enable()


class _Lazy:
    def __init__(self, name: str):
        self.__dict__["_name"] = name

    def __getattr__(self, attribute: str) -> Any:
        module = _module(self._name)
        jax_versions.collect_uninterrupted()
        value = getattr(module, attribute)
        self.__dict__[attribute] = value
        return value

    def __repr__(self) -> str:
        return f"<{self._name}, imported at first use>"


def _reshape(operand: Any, new_sizes: Sequence[int], *rest: Any, **keywords: Any) -> Any:
    """``jax.lax.reshape``, which leaves it to the compiler to find out that the numbers of elements differ."""
    if math.prod(operand.shape) != math.prod(new_sizes):
        raise ValueError(f"an array of shape {tuple(operand.shape)} cannot be reshaped to {tuple(new_sizes)}")
    return _module("jax.lax").reshape(operand, new_sizes, *rest, **keywords)


if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax import lax
else:
    jax = _Lazy("jax")
    jnp = _Lazy("jax.numpy")
    lax = _Lazy("jax.lax")
    lax.__dict__["reshape"] = _reshape

jax_export: Any = _Lazy("jax.export")

__all__ = ["jax", "jax_export", "jnp", "lax"]
