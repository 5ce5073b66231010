"""Waiting for devices, and work that Ctrl-C cannot cut in two."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

# Waiting for the device happens in C++, where Ctrl-C is not seen; calls that take longer are waited for in small naps
INTERRUPTIBLE_FROM_SECONDS = 0.3
_SHORTEST_NAP, _LONGEST_NAP = 0.00005, 0.002

_Value = TypeVar("_Value")


def flat(arrays: Any) -> list[Any]:
    """The arrays of nested tuples, in order."""
    return [x for a in arrays for x in (flat(a) if isinstance(a, (tuple, list)) else (a,))]


def wait_interruptibly(arrays: list[Any]) -> None:
    """Waits until the arrays are ready; Ctrl-C ends the wait."""
    nap = _SHORTEST_NAP
    while not all(array.is_ready() for array in arrays):
        time.sleep(nap)
        nap = min(nap * 2, _LONGEST_NAP)


class Abandoned:
    """What devices still compute for calls that Ctrl-C has left: when it is done, their threads need an interpreter."""

    def __init__(self) -> None:
        self._waiting: list[threading.Thread] = []

    def add(self, results: Any) -> None:
        """Keeps the results of such a call until they are computed: nested tuples of arrays, or of what is none."""
        arrays = [a for a in flat((results,)) if hasattr(a, "is_ready")]
        self._waiting = [thread for thread in self._waiting if thread.is_alive()]
        if arrays and not all(map(_is_ready, arrays)):
            thread = threading.Thread(target=_keep, args=(arrays,), name="oneflow-abandoned", daemon=True)
            with suppress(RuntimeError):  # Python starts no thread any more
                thread.start()
                self._waiting.append(thread)

    def is_over(self) -> bool:
        """Whether nothing is computed any more."""
        return not any(thread.is_alive() for thread in self._waiting)


def _keep(arrays: list[Any]) -> None:
    while not all(map(_is_ready, arrays)):
        time.sleep(_LONGEST_NAP)
    arrays.clear()


def _is_ready(array: Any) -> bool:
    try:
        return bool(array.is_ready())
    except RuntimeError:  # it was given to another call, or deleted
        return True


class Uninterrupted:
    """Runs work on threads of its own: Ctrl-C, which Python raises on the main thread alone, cannot cut it in two.

    ``abandoned``: gets the results of work that Ctrl-C has left.
    """

    def __init__(self, abandoned: Abandoned) -> None:
        self._abandoned = abandoned
        self.compiling: set[_Task] = set()  # what may be in C++ code without holding the dispatch lock
        self._idle: deque[SimpleQueue[_Task]] = deque()  # what threads that do nothing wait for
        self._has_stopped = False

    def stop(self) -> None:
        """From now on work runs on its callers' threads: the program ends."""
        self._has_stopped = True

    def run(self, work: Callable[[], _Value], *, to_the_end: bool = False, compiles: bool = False) -> _Value:
        """Runs ``work`` and returns what it returns, or raises what it raises. On other threads than the main one, it runs there.

        Ctrl-C leaves at once while the work goes on to its end by itself; with ``to_the_end`` it leaves when the work is
        done, so that whoever catches it finds all of it. ``compiles``: the work is XLA's compiler.
        """
        task = _Task(work)
        if compiles:
            self.compiling.add(task)
        if self._has_stopped or threading.current_thread() is not threading.main_thread():
            try:
                return work()
            finally:
                self.compiling.discard(task)
        try:
            tasks = self._idle.pop()
        except IndexError:
            tasks = SimpleQueue()
            threading.Thread(target=self._serve, args=(tasks,), name="oneflow-uninterrupted", daemon=True).start()
        tasks.put(task)
        interrupt: BaseException | None = None
        while True:
            try:
                task.done.wait()  # not a queue: an interrupt right after get() would have lost what it returned
                break
            except BaseException as found:
                if not to_the_end:
                    task.is_left = True
                    if task.done.is_set():
                        self._abandoned.add(task.value)
                    raise
                interrupt = found
        if interrupt is not None:
            raise interrupt
        if task.error is not None:
            raise task.error
        return task.value

    def _serve(self, tasks: SimpleQueue[_Task]) -> None:
        while True:
            task = tasks.get()
            try:
                task.value = task.work()
            except BaseException as error:
                task.error = error
            self.compiling.discard(task)
            self._idle.append(tasks)  # the next task may come as soon as this one is known to be done
            task.done.set()
            if task.is_left:
                self._abandoned.add(task.value)
            del task  # it holds the arrays of a call


class _Task:
    __slots__ = ("work", "done", "value", "error", "is_left")

    def __init__(self, work: Callable[[], Any]):
        self.work = work
        self.done = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None
        self.is_left = False  # by who waited for it
