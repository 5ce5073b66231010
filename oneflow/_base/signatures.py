"""The parameters of functions whose annotations may name what is not there."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """``inspect.signature``, which evaluates annotations from Python 3.14 on: what it cannot evaluate is a ``ForwardRef``.

    Names of imports under ``if TYPE_CHECKING`` are an example.
    """
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)
