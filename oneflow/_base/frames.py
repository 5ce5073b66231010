"""Tracebacks of errors as users see them."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from types import FunctionType
from typing import ParamSpec, TypeVar

from ..errors import OneFlowError
from .arguments import explain_arguments, explain_call
from .log import logger
from .source import begins_in_library, is_accident, is_library_frame, is_library_module, without_library

P = ParamSpec("P")
R = TypeVar("R")


def show_users_frames(error: BaseException, *, is_miscalled: bool = False) -> None:
    """Leaves the frames of the user's program alone in a traceback: the library's own say nothing about a wrong program.

    All stay when debugging, and where the library itself has a defect. Nor does an error of the library show the one that it was
    handling then, except as a cause.

    Args:
      is_miscalled: the error is Python's, for the arguments of the user's own call.
    """
    explain_arguments(error)
    if logger.isEnabledFor(logging.DEBUG):
        return
    is_ours = is_miscalled or isinstance(error, OneFlowError) or not isinstance(error, Exception)  # or Ctrl-C, or an exit
    if is_ours or not is_accident(error):
        error.__traceback__ = without_library(error.__traceback__)
    if is_ours:
        error.__context__ = _not_the_librarys(error.__context__)
    cause = error.__cause__ if isinstance(error, OneFlowError) else None
    if cause is not None and (isinstance(cause, OSError) or not is_accident(cause)):  # the disk's refusals are no defects
        cause.__traceback__ = without_library(cause.__traceback__)
    if isinstance(error, KeyboardInterrupt) and error.__cause__ is not None:  # JAX says so where in our code it was
        error.__cause__ = _not_the_librarys(error.__cause__)


def _not_the_librarys(handled: BaseException | None) -> BaseException | None:
    while handled is not None and begins_in_library(handled.__traceback__):
        handled = handled.__context__
    return handled


def shows_user_frames(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function of the public interface, whose errors have frames of the library."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            entry = error.__traceback__
            is_miscalled = entry is not None and entry.tb_next is None and not is_library_frame(sys._getframe(1))
            if is_miscalled:
                explain_call(error, function, args[0] if function.__name__ == "__init__" else None)
            show_users_frames(error, is_miscalled=is_miscalled)
            raise

    return called


def constructor_shows_user_frames(constructed: type) -> None:
    """Decorates the constructor of one of the library's classes in place: the class stays the same object."""
    owner = next(c for c in constructed.__mro__ if "__init__" in vars(c))
    init = vars(owner)["__init__"]
    if isinstance(init, FunctionType) and is_library_module(init.__module__) and not hasattr(init, "__wrapped__"):
        owner.__init__ = shows_user_frames(init)  # type: ignore[misc]
