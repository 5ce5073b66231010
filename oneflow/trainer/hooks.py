"""Calling the hooks of callbacks: on the delivery thread, in order, with errors that name the callback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._base.source import colon_and_text, raised_at
from ..callbacks.base import HOOKS, Callback
from ..errors import CallbackError
from ..runtime.process import process
from ..runtime.result import Delivery
from ..runtime.session import default_session, scope_of

_OF_STEPS = ("on_train_batch_end", "on_train_batch_outputs", "on_log")


class HookError(Exception):
    """Internal: a hook, or a logger, has raised; the cause is its error."""

    def __init__(self, who: str, when: str = ""):
        super().__init__(who)
        self.who, self.when = who, when


class Hooks:
    """The hooks that callbacks define; those that they inherit from ``Callback`` cost nothing."""

    def __init__(self, callbacks: Sequence[Callback]):
        self._methods: dict[str, list[tuple[Callable[..., Any], str]]] = {}
        for name in HOOKS:
            inherited = getattr(Callback, name)
            defining = [c for c in callbacks if getattr(type(c), name, None) is not inherited or name in vars(c)]
            self._methods[name] = [(getattr(callback, name), f"{type(callback).__name__}.{name}") for callback in defining]

    def defined(self, name: str) -> bool:
        """Whether any callback defines the hook."""
        return bool(self._methods[name])

    def __call__(self, name: str, *arguments: Any) -> None:
        """Calls the hook of that name of each callback, in their order."""
        for method, who in self._methods[name]:
            try:
                method(*arguments)
            except HookError:  # of a logger that a checkpoint flushes
                raise
            except Exception as error:
                raise HookError(who, f"at step {arguments[0]}" if name in _OF_STEPS else "") from error


def guarded(method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Calls a method of a callback, logger or metric, whose error is reported with its name."""
    try:
        return method(*arguments, **named)
    except Exception as error:
        owner = type(getattr(method, "__self__", method)).__name__
        raise HookError(f"{owner}.{getattr(method, '__name__', '__call__')}") from error


def failure(error: BaseException, when: str, way_on: str) -> BaseException:
    """The exception that ``fit`` raises for an error on the delivery thread."""
    if not isinstance(error, HookError) or error.__cause__ is None:
        return error
    cause = error.__cause__
    made = CallbackError(
        f"{error.who} raised {type(cause).__name__} {error.when or when}{colon_and_text(cause)}\n"
        f"{raised_at(cause)}"
        f"  the run was stopped{way_on}"
    )
    made.__cause__ = cause
    return made


def run_in_order(function: Callable[[], None]) -> None:
    """Runs ``function`` on the delivery thread, in the caller's session, after the callbacks of all calls so far.

    It waits for it. The function must not raise.
    """
    scope = scope_of(default_session())
    delivery = Delivery("", process.delivery, lambda arrays: None, (), process.finished, gives_handles=True, scope=scope)
    with process.lock:
        result = process.delivery.submit(delivery, ((), (), ()))
    result.async_get(lambda _: function())
    process.delivery.drain()
