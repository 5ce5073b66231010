"""Permutations for ``flow.transpose``."""

from __future__ import annotations

from collections.abc import Sequence

from ..._base.refuse import refuse, shown
from ...errors import ArgumentError, AxisError


def get_perm_when_transpose_axis_to_last_dim(num_axes: int, axis: int) -> tuple[int, ...]:
    """The permutation that moves one axis to the end and leaves the others in order.

    Args:
      num_axes: the rank.
      axis: in [-num_axes, num_axes).
    Raises:
      AxisError: axis is outside that range.
    Example:
      >>> get_perm_when_transpose_axis_to_last_dim(4, 1)
      (0, 2, 3, 1)
    """
    if not -num_axes <= axis < num_axes:
        refuse(AxisError, f"axis={axis} is outside [{-num_axes}, {num_axes})")
    last = axis % num_axes
    return (*(i for i in range(num_axes) if i != last), last)


def get_inversed_perm(perm: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes ``perm``.

    Raises:
      ArgumentError: ``perm`` does not hold each of 0 .. n-1 once.
    Example:
      >>> get_inversed_perm((0, 2, 3, 1))
      (0, 3, 1, 2)
    """
    if sorted(perm) != list(range(len(perm))):
        refuse(ArgumentError, f"not a permutation: {shown(tuple(perm))}")
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))
