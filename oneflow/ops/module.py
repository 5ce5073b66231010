"""Module: a base of callable objects that may be called several times in a job and count their calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NoReturn, final

from .._base.refuse import refuse, shown
from ..errors import ArgumentError, DuplicateNameError, ModeError
from ..graph.graph import current
from ._emit import fail, want

_unnamed = itertools.count()


def not_defined(owner: object, method: str) -> NoReturn:
    """Raises ModeError, a NotImplementedError, for a method that the subclass has to define and does not."""
    refuse(ModeError, f"{type(owner).__name__} does not define {method}", hint=f"write def {method}(self, ...) in that class")


class Module:
    """Base of objects whose ``forward`` is called in jobs. It holds no variables: ``forward`` declares them with get_variable.

    Args:
      name: its name; None numbers it.
    Example:
      >>> class Twice(flow.nn.Module):
      ...     def forward(self, x):
      ...         return x + x
    """

    _name: str | None = None  # these two of a class whose own __init__ does not call this one
    _calls = 0

    def __init__(self, name: str | None = None):
        if name is not None and not isinstance(name, str):
            refuse(ArgumentError, f"{type(self).__name__}: name must be a str, got {shown(name)}")
        self._name = f"Module_{next(_unnamed)}" if name is None else name

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__call__ is not Module.__call__:
            refuse(ArgumentError, f"{cls.__name__} must not override __call__ of flow.nn.Module", hint="override forward instead")

    @property
    def module_name(self) -> str:
        """Its name."""
        if self._name is None:
            self._name = f"Module_{next(_unnamed)}"
        return self._name

    @property
    def call_seq_no(self) -> int:
        """The number of completed calls: 0 during the first one."""
        return self._calls

    def forward(self, *args: Any) -> Any:
        """The body of a call, for subclasses to override."""
        not_defined(self, "forward")

    @final
    def __call__(self, *args: Any) -> Any:
        result = self.forward(*args)
        self._calls += 1
        return result

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.module_name!r}, called {self._calls} times>"


def find_or_create_module(module_name: str, create: Callable[[], Module], reuse: bool = False) -> Module:
    """The current job's module of that name, made with ``create()`` at its first use.

    Args:
      module_name: its name in the job.
      create: a function without arguments that returns the new module.
      reuse: must be True to use the name again in the job.
    Raises: DuplicateNameError (the name is used already and ``reuse`` is False).
    Example: >>> twice = flow.find_or_create_module("twice", Twice, reuse=True)
    """
    what = "find_or_create_module"
    modules = current(f"flow.{what}").modules
    if not isinstance(module_name, str):
        fail(ArgumentError, what, f"module_name must be a str, got {shown(module_name)}")
    if not callable(create):
        fail(ArgumentError, what, f"create must be a function without arguments, got {shown(create)}")
    if module_name not in modules:
        made = create()
        if not isinstance(made, Module):
            fail(ArgumentError, what, f"create() must return a flow.nn.Module, got {shown(made)}")
        modules[module_name] = made
    elif not want.flag(what, "reuse", reuse):
        fail(DuplicateNameError, what, f"module {module_name!r} exists already", (), "pass reuse=True to share it")
    found: Module = modules[module_name]
    return found
