"""Demanding annotations."""

from __future__ import annotations

from .._base.refuse import refuse, shown
from .._signature import annotations_required, require_annotations
from ..errors import ArgumentError


def enable_typing_check(val: bool = True) -> None:
    """Jobs declared from now on must annotate every parameter and their result; otherwise they raise AnnotationError.

    Args:
      val: False lifts the demand.
    Example: >>> flow.experimental.enable_typing_check(False)
    """
    if type(val) is not bool:
        refuse(ArgumentError, f"flow.experimental.enable_typing_check takes a bool, got {shown(val)}")
    require_annotations(val)


def typing_check_enabled() -> bool:
    """Whether annotations are demanded."""
    return annotations_required()
