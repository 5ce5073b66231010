"""One call of a built job: feed, dispatch, deliver. Decisions that need no arguments are made before, with the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from . import fast_path
from .feed import Feeds
from .gate import NoRoomError
from .host_pipeline import HostPipeline
from .launching import FastStep
from .process import process
from .result import Delivery, Result
from .variants import Variants
from .waiting import INTERRUPTIBLE_FROM_SECONDS, flat, wait_interruptibly

Arrays = tuple[Any, ...]
Launch = Callable[[Arrays, Delivery | None], Any]  # results, or the Result that was queued
Call = Callable[[Sequence[Any]], Any]


def launcher(variants: Variants | None, pipeline: HostPipeline | None) -> Launch:
    """A function that runs one step for feeds that have been checked.

    Args:
      variants: the compiled forms of the job; None where its host pipeline gives all that a call returns.
      pipeline: what the host does before the step; None where that is nothing.
    """
    if pipeline is not None:
        return _with_pipeline(variants, pipeline)
    assert variants is not None
    found = variants

    def launch(feeds: Arrays, delivery: Delivery | None) -> Any:
        return found.get(feeds).launcher.launch(feeds, delivery)

    return launch


def _with_pipeline(variants: Variants | None, pipeline: HostPipeline) -> Launch:
    def launch(inputs: Arrays, delivery: Delivery | None) -> Any:
        if delivery is not None and not process.delivery.has_room():
            raise NoRoomError  # checked now: later, the batch would have been made in vain
        taken = None
        while True:
            with pipeline.lock:
                if taken is None or taken.turn is not pipeline.turn:  # another call, or a load, came between
                    taken = pipeline.take(inputs)
                executable = variants.find(taken.feeds) if variants is not None else None
                if executable is not None or variants is None:
                    if executable is not None:
                        made = executable.launcher.launch(taken.feeds, delivery, taken.merge)
                    else:
                        made = _without_step(taken.merge(((), (), ())), delivery)
                    pipeline.advance(taken)  # not reached where nothing was launched: the batch is kept for the next try
                    return made
            variants.get(taken.feeds)  # compiles without the lock, which saving, loading and seeding take of all jobs

    return launch


def _without_step(results: Any, delivery: Delivery | None) -> Any:
    if delivery is None:
        return results
    with process.lock:
        if not process.delivery.has_room():
            raise NoRoomError
        return process.delivery.submit(delivery, results)


def caller(
    feeds: Feeds,
    launch: Launch,
    delivery: Delivery,
    window: int,
    *,
    asynchronous: bool,
    returns_nothing: bool,
    fast: FastStep | None = None,
) -> Call:
    """A function that makes one call with the arguments it is given.

    ``fast`` is the step that ``launch`` runs, if it is one of those.

    Raises: what checking the feeds and running the step raise; StaleExecutableError where the job must be compiled again.
    """
    if asynchronous:
        call = _asynchronous(feeds, launch, delivery, window, returns_nothing)
        return call if fast is None or returns_nothing else fast_path.asynchronous(fast, feeds, delivery, call)
    if any(not watch.deferred for watch in delivery.watches):
        return _watched(feeds, launch, delivery, window)
    call = _synchronous(feeds, launch, delivery)
    return call if fast is None else fast_path.synchronous(fast, feeds, delivery, call)


def _asynchronous(feeds: Feeds, launch: Launch, delivery: Delivery, window: int, returns_nothing: bool) -> Call:
    deliveries, take = process.delivery, feeds.taker()

    def call(args: Sequence[Any]) -> Any:
        arrays = take(args)
        if deliveries.attention:
            deliveries.before_call(delivery.job_name, submits=True)
        while True:
            try:
                result = launch(arrays, delivery)
                return None if returns_nothing else result
            except NoRoomError as found:
                full = found
            _wait(full, window)  # here: an interrupt's traceback does not show that there was no room

    return call


def _watched(feeds: Feeds, launch: Launch, delivery: Delivery, window: int) -> Call:
    deliveries, check = process.delivery, feeds.checker()

    def call(args: Sequence[Any]) -> Any:
        arrays = check(args)
        if deliveries.attention:
            deliveries.before_call(delivery.job_name, submits=True)
        while True:
            try:
                result: Result[Any] = launch(arrays, delivery)
                break
            except NoRoomError as found:
                full = found
            _wait(full, window)
        deliveries.wait_for(result)
        deliveries.raise_error()
        return result.result()

    return call


def _synchronous(feeds: Feeds, launch: Launch, delivery: Delivery) -> Call:
    deliveries, finished, convert = process.delivery, process.finished, delivery.convert
    check, watches = feeds.checker(), delivery.watches
    enter, leave = process.calls.append, process.calls.pop

    def call(args: Sequence[Any]) -> Any:
        arrays = check(args)
        if deliveries.attention:
            deliveries.before_call(delivery.job_name)
        start = perf_counter()
        results: Any = ()
        try:
            enter(None)  # here: an interruption is raised after it
            while True:
                try:
                    results = launch(arrays, None)
                    break
                except NoRoomError as found:
                    full = found
                _wait(full, 0)
            if delivery.seconds > INTERRUPTIBLE_FROM_SECONDS:
                wait_interruptibly(flat((results[0], results[2])))
            for array in results[2]:
                array.block_until_ready()
            value = convert(results[0])
            if not watches:
                finished(results)
                results = array = None  # freeing arrays is C++ code, too
        except BaseException:  # of Ctrl-C, or of another signal's handler
            process.abandoned.add(results)
            raise
        finally:
            leave()
        if watches:
            if deliveries.undelivered():
                deliveries.drain()  # handlers are called in the order of calls
            for watch, array in zip(watches, results[1], strict=True):
                watch.deliver(array)
            finished(results)
        delivery.seconds = perf_counter() - start
        return value

    return call


def _wait(full: NoRoomError, window: int) -> None:
    if full.arrays is None:
        process.delivery.wait_for_room(window)
    else:
        wait_interruptibly(full.arrays)
