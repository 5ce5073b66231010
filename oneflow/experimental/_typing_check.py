"""Demanding annotations."""

from __future__ import annotations

from .._base.refuse import refuse, shown
from .._signature import annotations_required, require_annotations
from ..errors import ArgumentError


def enable_typing_check(val: bool = True) -> None:
    """Requires jobs declared from now on to annotate every parameter and their result; otherwise they raise AnnotationError.

    Args:
      val: False no longer requires it.
    Example: >>> flow.experimental.enable_typing_check(False)
    """
    if type(val) is not bool:
        refuse(ArgumentError, f"flow.experimental.enable_typing_check takes a bool, got {shown(val)}")
    require_annotations(val)


def typing_check_enabled() -> bool:
    """Whether annotations are required."""
    return annotations_required()
