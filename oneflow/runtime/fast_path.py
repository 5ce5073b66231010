"""Calls of steps in as few frames as can be: a tiny call is made of such nanoseconds.

Where anything is to be waited for, or has changed, a call is made ``otherwise``. Where the native part has its extension module
(``native/src/python/fast_path.cc``), that does what the functions here describe, and the same for steps that keep state, whose
calls are made ``otherwise`` without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from .._base import native
from . import processes
from .feed import Feeds, Plain
from .launching import FastStep
from .prepared import Prepared
from .process import process
from .result import ArraySpec, Delivery, Result
from .store import Cell
from .transfer import first_to_host
from .waiting import INTERRUPTIBLE_FROM_SECONDS

Call = Callable[[Sequence[Any]], Any]
Convert = Callable[[Any], Any]
Look = Callable[[Any], None]
MOST_INPUTS = 16  # of what the extension module calls
_MOST_COPIED = 1 << 20  # bytes of an argument that it copies into memory of its own, of which it keeps a few


class Parts(NamedTuple):
    """What the extension module makes a call of. It reads them by their names, once.

    ``function`` to ``outputs`` are those of the step. ``convert`` makes the value from what is fetched where a copy of its
    memory, an array as ``output`` says, is not to be had. ``inputs`` are the shapes and dtypes of the arguments;
    ``look_at_feeds`` is called with them, ``look`` with the value, None for nothing.
    """

    function: Callable[..., Any]
    is_single: bool
    written: tuple[Cell, ...] | None
    read: tuple[Cell, ...]
    prepared: Prepared | None
    outputs: list[Any]
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
    look_at_feeds: Look | None
    look: Look | None
    interruptible_from: float


class _Conversion(NamedTuple):
    convert: Convert
    output: ArraySpec
    look: Look | None


def converter(convert: Convert, look: Look | None, output: ArraySpec | None, copies_first: bool) -> Convert:
    """``convert`` of a Delivery, which calls ``look``, or one that does the same in less time."""
    extension = native.fast_path()
    if extension is not None and output is not None and copies_first and processes.count() == 1:
        made: Convert = extension.converter(_Conversion(convert, output, look))
        return made
    return convert if look is None else looking(convert, look)


def looking(convert: Convert, look: Look) -> Convert:
    """``convert``, which calls ``look`` with what it has made."""

    def convert_and_look(fetched: Any) -> Any:
        value = convert(fetched)
        look(value)
        return value

    return convert_and_look


def _made(delivery: Delivery, is_single: bool) -> Convert:
    """The value of what is fetched, one array where that ``is_single``. What is a copy of an array is looked at by others."""
    convert = delivery.convert
    if delivery.copies_first:
        return np.array if is_single else first_to_host
    return (lambda fetched: convert((fetched,))) if is_single else convert


def _parts(step: FastStep, feeds: Feeds, inputs: Plain, delivery: Delivery, otherwise: Call) -> Parts:
    deliveries, calls = process.delivery, process.calls
    (nans_now, infs_now), (nans, infs) = step.flags, step.debugged
    lock: Any = step.lock
    pending, append, numbers, newest = deliveries.queue_parts()
    output = delivery.array if delivery.copies_first else None
    return Parts(
        step.function, step.is_single, step.written, step.read, step.prepared, step.outputs,
        step.launcher, deliveries, nans_now, nans, infs_now, infs, delivery, _made(delivery, step.is_single), otherwise,
        calls.append, calls.pop, lock.acquire, lock.release, pending, append, numbers, newest, Result, deliveries.wake,
        inputs, output, feeds.look, delivery.look, INTERRUPTIBLE_FROM_SECONDS,
    )  # fmt: skip


def asynchronous(step: FastStep, feeds: Feeds, delivery: Delivery, otherwise: Call) -> Call:
    """A function that makes one call and returns its Result."""
    extension, plain = native.fast_path(), feeds.plain()
    if extension is not None and plain is not None and len(plain) <= MOST_INPUTS and feeds.largest <= _MOST_COPIED:
        made: Call = extension.asynchronous(_parts(step, feeds, plain, delivery, otherwise))
        return made
    if step.written is not None:
        return otherwise
    deliveries, take, lock, launcher = process.delivery, feeds.taker(), step.lock, step.launcher
    (nans_now, infs_now), (nans, infs) = step.flags, step.debugged
    dispatch, wait_for_room = deliveries.dispatcher(delivery, step.function, step.is_single), deliveries.wait_for_room

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


def synchronous(step: FastStep, feeds: Feeds, delivery: Delivery, otherwise: Call) -> Call:
    """A function that makes one call and returns its value.

    Without state it takes no lock. What the lock is for (the order of steps that change state, and of deliveries) does not
    concern it, and the end of the program sets ``attention`` before it waits for ``process.calls`` to be empty.
    """
    extension, plain = native.fast_path(), feeds.plain()
    if extension is not None and plain is not None and len(plain) <= MOST_INPUTS:
        call_quickly: Call = extension.synchronous(_parts(step, feeds, plain, delivery, otherwise))
        return call_quickly
    if step.written is not None:
        return otherwise
    deliveries, check, fetch, launcher = process.delivery, feeds.checker(), step.function, step.launcher
    (nans_now, infs_now), (nans, infs) = step.flags, step.debugged
    enter, leave = process.calls.append, process.calls.pop
    made, ended = _made(delivery, step.is_single), 0.0

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
