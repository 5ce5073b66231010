"""Calls of steps without state, in as few frames as can be: a tiny call is made of such nanoseconds.

Where anything is to be waited for, or has changed, a call is made ``otherwise``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from . import transfer
from .feed import Feeds
from .launching import StatelessStep
from .process import process
from .result import Delivery
from .waiting import INTERRUPTIBLE_FROM_SECONDS

Call = Callable[[Sequence[Any]], Any]


def asynchronous(step: StatelessStep, feeds: Feeds, delivery: Delivery, otherwise: Call) -> Call:
    """A function that makes one call and returns its Result."""
    deliveries, take = process.delivery, feeds.taker()
    fetch, is_single, lock, launcher, (nans_now, infs_now), (nans, infs) = step
    dispatch, wait_for_room = deliveries.dispatcher(delivery, fetch, is_single), deliveries.wait_for_room

    def call(args: Sequence[Any]) -> Any:
        arrays = take(args)
        while True:
            with lock:
                if not launcher.is_ready or deliveries.attention or nans_now.value is not nans or infs_now.value is not infs:
                    break
                result = dispatch(arrays)
                if result is not None:
                    return result
            wait_for_room()
        return otherwise(args)

    return call


def synchronous(step: StatelessStep, feeds: Feeds, delivery: Delivery, otherwise: Call) -> Call:
    """A function that makes one call and returns its value.

    It takes no lock. What the lock is for (the order of steps that change state, and of deliveries) does not concern it, and the
    end of the program sets ``attention`` before it waits for ``process.calls`` to be empty.
    """
    deliveries, check = process.delivery, feeds.checker()
    fetch, is_single, _, launcher, (nans_now, infs_now), (nans, infs) = step
    enter, leave = process.calls.append, process.calls.pop
    convert, ended = delivery.convert, 0.0
    made: Callable[[Any], Any] = convert
    if is_single:
        made = np.array if convert is transfer.first_to_host else lambda fetched: convert((fetched,))

    def call(args: Sequence[Any]) -> Any:
        nonlocal ended
        arrays = check(args)
        enter(None)
        try:
            if (
                launcher.is_ready
                and not deliveries.attention
                and nans_now.value is nans
                and infs_now.value is infs
                and delivery.seconds < INTERRUPTIBLE_FROM_SECONDS
            ):
                value = made(fetch(*arrays))  # in one expression: freeing arrays is C++ code, too
                now = perf_counter()
                if now - ended > INTERRUPTIBLE_FROM_SECONDS:  # this call may have taken as long: the next one is timed
                    delivery.seconds = INTERRUPTIBLE_FROM_SECONDS
                ended = now
                return value
        finally:
            leave()
        return otherwise(args)

    return call
