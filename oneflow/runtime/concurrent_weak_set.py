"""Weak references to what any thread may add, while others look through them: iterating over Python's own WeakSet fails then."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class ConcurrentWeakSet(Generic[_Item]):
    """A set of objects, compared by identity, that forgets those that nothing else refers to.

    It has no lock, which a forked child might find taken: each method is one step of Python's on a dictionary.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[_Item]] = {}

    def add(self, item: _Item) -> None:
        """Adds an object, where it is not there."""
        key, references = id(item), self._references
        references[key] = weakref.ref(item, lambda _: references.pop(key, None))  # before its ``id`` can be another's

    def discard(self, item: _Item) -> None:
        """Removes an object, where it is there."""
        self._references.pop(id(item), None)

    def __iter__(self) -> Iterator[_Item]:
        """Over the objects of this moment, in the order in which they were added."""
        found = [reference() for reference in list(self._references.values())]
        return iter([item for item in found if item is not None])
