"""Tracebacks of errors as users see them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ..errors import OneFlowError
from .arguments import explain_arguments
from .log import logger
from .source import begins_in_library, is_accident, without_library

P = ParamSpec("P")
R = TypeVar("R")


def show_users_frames(error: BaseException) -> None:
    """Leaves the frames of the user's program alone in a traceback: the library's own say nothing about a wrong program.

    All stay when debugging, and where the library itself has a defect. Nor does an error of the library show the one that it was
    handling then, except as a cause.
    """
    explain_arguments(error)
    if logger.isEnabledFor(logging.DEBUG):
        return
    is_ours = isinstance(error, OneFlowError) or not isinstance(error, Exception)  # or Ctrl-C, or an exit
    if is_ours or not is_accident(error):
        error.__traceback__ = without_library(error.__traceback__)
    if is_ours:
        error.__context__ = _not_the_librarys(error.__context__)
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
            show_users_frames(error)
            raise

    return called
