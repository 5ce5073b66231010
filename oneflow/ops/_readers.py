"""Helpers for reader ops: several instances per reader, and checks of the arguments that readers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .._base import check
from .._base.refuse import refuse, shown
from ..config import Resource
from ..data._positions import WITHOUT_POSITIONS
from ..errors import ArgumentError, DataError
from ..graph.graph import current
from ._emit import fail
from ._host import want_int
from .distribution import balanced


class Instances:
    """A reader with one instance per device. Their batches are joined in the order of the devices."""

    def __init__(self, sources: Sequence[Any], take: Callable[[Any, int], Any], join: Callable[[list[Any]], tuple[Any, ...]]):
        """
        Args:
          sources: the instances.
          take: called with an instance and its number; returns its batch.
          join: makes the outputs of the op from the batches of all instances.
        """
        self._sources = sources
        self._take = take
        self._join = join

    def next(self) -> tuple[Any, ...]:
        """The outputs of the next call."""
        return self._join([self._take(source, i) for i, source in enumerate(self._sources)])

    def mark(self) -> Callable[[], list[Any]]:
        """The positions of all instances, spelled out when the result is called."""
        marks = [source.mark() for source in self._sources]
        return lambda: [mark() for mark in marks]

    def restore(self, states: Any) -> None:
        """Continues where ``mark`` was called. Raises DataError for positions of another number of instances."""
        if not isinstance(states, list) or len(states) != len(self._sources):
            found = len(states) if isinstance(states, list) else states
            refuse(
                DataError, f"a reader's saved position is of {found} devices, and it reads for {len(self._sources)}",
                hint=f"as many devices; {WITHOUT_POSITIONS}",
            )  # fmt: skip
        for source, state in zip(self._sources, states, strict=True):
            source.restore(state)

    def close(self) -> None:
        """Closes the files of all instances."""
        for source in self._sources:
            close = getattr(source, "close", None)
            if close is not None:
                close()


def instance_count() -> int:
    """How many instances a reader has here: one per device in the consistent view, one in the mirrored view."""
    scope = current("a reader").scope
    return scope.placement.parallel_num if scope.view == "consistent" else 1


@contextmanager
def in_consistent_view() -> Iterator[None]:
    """Inside, one reader makes the batch of all devices, whatever the view is."""
    graph = current("a reader")
    outer, graph.scope = graph.scope, graph.scope.replaced(view="consistent")
    try:
        yield
    finally:
        graph.scope = outer


def want_counts(what: str, batch_size: Any, *, divides: bool = True) -> tuple[int, ...]:
    """How many samples each instance reads per call. With ``divides`` it must be the same number for all."""
    size, count = want_int(what, "batch_size", batch_size), instance_count()
    if divides and size % count:
        fail(ArgumentError, what, f"batch_size must be a multiple of the number of devices, {count}, got {size}")
    if size < count:
        fail(ArgumentError, what, f"batch_size must be at least the number of devices, {count}, got {size}")
    return balanced(size, count)


def want_path(what: str, argument: str, value: Any) -> str:
    """A path that is not empty."""
    path, problem = check.path(value)
    if problem:
        fail(ArgumentError, what, f"{argument} {problem}")
    return path


def want_seed(what: str, value: Any) -> int | None:
    """``random_seed``: an int, or None for a seed of the session's and of the op's name."""
    seed = check.whole(value)
    if seed is None and value is not None:
        fail(ArgumentError, what, f"random_seed must be an int or None, got {shown(value)}")
    return seed


def max_record_bytes() -> int:
    """The setting ``max_record_mbyte``, in bytes."""
    return int(Resource.max_record_mbyte) << 20
