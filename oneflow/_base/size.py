"""``Size``: shapes of 0.4 to 0.6."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, SupportsIndex, overload

from ..errors import ArgumentError
from . import check
from .refuse import refuse, shown


class Size(tuple[int, ...]):
    """A shape: a tuple of ints whose slices are shapes, too.

    Args:
      sizes: ints.
    Raises: ArgumentError.
    Example: >>> flow.Size((2, 3)).numel()   # 6
    """

    __slots__ = ()

    def __new__(cls, sizes: Iterable[int] = ()) -> Size:
        try:
            found = [check.integer(size) for size in sizes]
        except Exception:  # not iterable, or whatever an object of the user's raises
            refuse(ArgumentError, f"flow.Size needs a sequence of ints, got {shown(sizes)}")
        problem = next((problem for _, problem in found if problem), "")
        if problem:
            refuse(ArgumentError, f"an entry of flow.Size {problem}")
        return super().__new__(cls, [size for size, _ in found])

    def numel(self) -> int:
        """The number of elements of such a shape."""
        return math.prod(self)

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> Size: ...
    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return Size(found) if isinstance(key, slice) else found

    def __add__(self, other: Any) -> Size:
        return Size((*self, *other))

    def __repr__(self) -> str:
        return f"oneflow.Size([{', '.join(map(str, self))}])"
