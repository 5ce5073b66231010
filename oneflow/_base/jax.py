"""JAX, imported when it is first used, so that ``import oneflow`` stays fast."""

from __future__ import annotations

import gc
import importlib
import math
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import jax_versions
from . import memory as _memory

_memory.keep_freed()  # here, because somebody else may start JAX before we use it


def _module(name: str) -> ModuleType:
    if name in sys.modules:
        return importlib.import_module(name)
    with _uninterrupted(), _collector_at_rest():
        return importlib.import_module(name)


def prepare_lowering() -> None:
    """Imports what JAX imports when it first lowers a program: it can register a dialect of MLIR but once in a process, so that
    no program could be lowered any more after a Ctrl-C in the midst of it."""
    for dialect in ("builtin", "mhlo"):
        with suppress(ImportError):  # as JAX names them today
            _module(f"jaxlib.mlir.dialects.{dialect}")


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Without the garbage collector, which would look through all that JAX makes in its import, again and again."""
    if not gc.isenabled() or gc.get_freeze_count():  # what the program has arranged stays
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # all of it counts as old now, and is looked through when that is due
        gc.enable()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Without a KeyboardInterrupt, which comes afterwards: Ctrl-C in an import of JAX would leave half of it for ever.

    Signals that the program has a handler of its own for get there at once. An import on a thread of its own would settle how
    many arenas glibc makes, which the first jobs decide.
    """
    if threading.current_thread() is not threading.main_thread():  # where no handler runs
        yield
        return
    came: list[int] = []
    interrupting = [n for n in signal.valid_signals() if signal.getsignal(n) is signal.default_int_handler]
    try:
        for number in interrupting:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number in interrupting:
            signal.signal(number, signal.default_int_handler)
        if came:
            signal.default_int_handler(came[0], None)


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

__all__ = ["jax", "jax_export", "jnp", "lax", "prepare_lowering"]
