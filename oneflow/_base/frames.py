"""Tracebacks of errors as users see them."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from ..errors import OneFlowError
from .log import logger
from .source import without_library

P = ParamSpec("P")
R = TypeVar("R")


def shown_frames(error: OneFlowError) -> TracebackType | None:
    """The frames of the user's program alone: the library's own say nothing about a wrong program. All, when debugging."""
    return error.__traceback__ if logger.isEnabledFor(logging.DEBUG) else without_library(error.__traceback__)


def shows_user_frames(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function of the public interface whose errors end in frames of the library.

    Nor do they show the library's own error that was being handled when they were raised, except as a cause.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        handled = sys.exc_info()[1]  # by the user's program
        try:
            return function(*args, **kwargs)
        except OneFlowError as error:
            error.__traceback__ = shown_frames(error)
            if not logger.isEnabledFor(logging.DEBUG):
                error.__context__ = handled
            raise

    return called
