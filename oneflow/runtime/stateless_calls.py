"""Calls of steps without state, in as few frames as can be: a tiny call is made of such nanoseconds.

Where anything is to be waited for, or has changed, a call is made ``otherwise``. Where the native part has its extension module
(``native/src/python/stateless_calls.cc``), that does what the functions here describe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from .._base import native
from . import processes
from .feed import Feeds, Plain
from .launching import StatelessStep
from .process import process
from .result import ArraySpec, Delivery, Result
from .waiting import INTERRUPTIBLE_FROM_SECONDS

Call = Callable[[Sequence[Any]], Any]
Convert = Callable[[Any], Any]
MOST_INPUTS = 16  # of what the extension module calls


class Parts(NamedTuple):
    """What the extension module makes a call of. It reads them by their names, once.

    ``convert`` makes the value from what is fetched where a copy of its memory, an array as ``output`` says, is not to be had;
    ``inputs`` are the shapes and dtypes of the arguments.
    """

    fetch: Callable[..., Any]
    is_single: bool
    launcher: Any
    deliveries: Any
    nans_now: Any
    nans: bool
    infs_now: Any
    infs: bool
    delivery: Delivery
    convert: Convert
    otherwise: Call
    enter: Callable[[None], None]
    leave: Callable[[], None]
    acquire: Callable[[], Any]
    release: Callable[[], None]
    pending: Any
    append: Callable[[Any], None]
    numbers: Iterator[int]
    newest: dict[int, int]
    result: type[Result[Any]]
    wake: Callable[[], None]
    inputs: Plain
    output: ArraySpec | None
    interruptible_from: float


class _Conversion(NamedTuple):
    convert: Convert
    output: ArraySpec


def converter(convert: Convert, output: ArraySpec | None, copies_first: bool) -> Convert:
    """``convert`` of a Delivery, or one that does the same in less time."""
    extension = native.stateless_calls()
    if extension is None or output is None or not copies_first or processes.count() > 1:
        return convert
    made: Convert = extension.converter(_Conversion(convert, output))
    return made


def _made(delivery: Delivery, is_single: bool) -> Convert:
    """The value of what ``fetch`` gives."""
    convert = delivery.convert
    if not is_single:
        return convert
    return np.array if delivery.copies_first else lambda fetched: convert((fetched,))


def _parts(step: StatelessStep, inputs: Plain, delivery: Delivery, otherwise: Call) -> Parts:
    deliveries, calls = process.delivery, process.calls
    fetch, is_single, _, launcher, (nans_now, infs_now), (nans, infs) = step
    lock: Any = step.lock
    pending, append, numbers, newest = deliveries.queue_parts()
    output = delivery.array if is_single and delivery.copies_first else None
    return Parts(
        fetch, is_single, launcher, deliveries, nans_now, nans, infs_now, infs, delivery, _made(delivery, is_single), otherwise,
        calls.append, calls.pop, lock.acquire, lock.release, pending, append, numbers, newest, Result, deliveries.wake,
        inputs, output, INTERRUPTIBLE_FROM_SECONDS,
    )  # fmt: skip


def asynchronous(step: StatelessStep, feeds: Feeds, delivery: Delivery, otherwise: Call) -> Call:
    """A function that makes one call and returns its Result."""
    extension, plain = native.stateless_calls(), feeds.plain()
    if extension is not None and plain is not None and len(plain) <= MOST_INPUTS and feeds.are_small:
        made: Call = extension.asynchronous(_parts(step, plain, delivery, otherwise))
        return made
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
    extension, plain = native.stateless_calls(), feeds.plain()
    if extension is not None and plain is not None and len(plain) <= MOST_INPUTS:
        call_quickly: Call = extension.synchronous(_parts(step, plain, delivery, otherwise))
        return call_quickly
    deliveries, check = process.delivery, feeds.checker()
    fetch, is_single, _, launcher, (nans_now, infs_now), (nans, infs) = step
    enter, leave = process.calls.append, process.calls.pop
    made, ended = _made(delivery, is_single), 0.0

    def call(args: Sequence[Any]) -> Any:
        nonlocal ended
        arrays = check(args)
        try:
            enter(None)  # here: an interruption is raised after it
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
