"""Threads for reading and for digests: neither keeps Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_MOST = 8

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


def pool() -> ThreadPoolExecutor:
    """As many threads as there are cores, within reason."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ThreadPoolExecutor(min(_MOST, cores), "oneflow-checkpoint")


def on_threads(function: Callable[[_Item], _Found], items: Iterable[_Item]) -> Iterator[_Found]:
    """``map`` on several threads, in order; on this one where there is only one item."""
    listed = list(items)
    if len(listed) < 2:
        yield from map(function, listed)
        return
    threads = pool()
    try:
        yield from threads.map(function, listed)
    finally:
        threads.shutdown(cancel_futures=True)
