"""Reading ahead: while a step computes, the batches of the following calls are read, decoded and placed on the device."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from .._base.jax import jax
from ..config import Resource
from ..errors import ArgumentError, ModeError
from ..graph.graph import Graph
from ..graph.node import Blob, Node
from .host import Section, Values, check_labels, located
from .pool import Pool
from .process import process

_log = logging.getLogger("oneflow")

_MIB = 1 << 20
_NAP = 0.05

Places = Mapping[str, Callable[[], Any]]  # functions that return where each reader stood


class Batch:
    """The results of the host stage for one call.

    Attributes:
      call: its number, from 0. ``after`` is where the readers stand behind it.
      values: by Blob (node and index): arrays on the device for the boundary, NumPy's for the rest.
    """

    __slots__ = ("call", "values", "error", "after", "is_ready", "bytes", "skipped")

    def __init__(self, call: int):
        self.call = call
        self.values: dict[tuple[Node, int], Any] = {}
        self.error: BaseException | None = None
        self.after: Places = {}
        self.is_ready = False
        self.bytes = 0
        self.skipped = 0


def _bytes(value: Any) -> int:
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else getattr(value, "nbytes", 0)


class Prefetcher:
    """The part of a job's host stage that needs nothing from its callers: batch after batch, some of them in advance.

    One thread takes from the readers, in order; the pool's threads do the rest. A caller gets the batches in that order:
    ``head()`` waits for the next one, ``advance()`` marks it as used. ``state()`` is the position of the callers, not
    that of the thread.
    """

    def __init__(
        self,
        graph: Graph,
        section: Section,
        kept: Sequence[Blob],
        placed: Sequence[Blob],
        copies: int,
        labels: Sequence[tuple[Blob, Node]],
        place: Callable[[Blob, Any], Any],
        pool: Callable[[], Pool],
    ):
        """
        Args:
          kept: the Blobs whose values batches hold; ``placed`` those of them that go to the device, by ``place``.
          copies: the number of devices in the mirrored view.
          labels: of classes, and the losses that take them.
          pool: returns the threads that do the work.
        """
        self._graph = graph
        self._kept = kept
        self._placed = {(b.node, b.index) for b in placed}
        self._section = section
        self._copies = copies
        self._labels = labels
        self._place = place
        self._pool = pool
        self._changed = threading.Condition()
        self._queue: deque[Batch] = deque()
        self._largest = 0
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._readers: dict[tuple[str, int], Any] = {}  # by name: the runs of a repeated part share one
        self._asked = 0  # callers that wait
        self._closed = False
        self._calls = 0  # where the callers stand
        self._places: Places = {}

    # --- the caller's side

    def head(self) -> Batch:
        """The next batch, when it is ready. Raises its error, and then it is used up."""
        with self._changed:
            self._asked += 1
            try:
                self._changed.notify_all()
                while not (self._queue and self._queue[0].is_ready):
                    if self._closed:
                        raise ModeError(f"job {self._graph.name!r} belongs to a session that was closed while it waited for data")
                    if self._stopping and self._thread is not None and not self._thread.is_alive():
                        self._thread, self._stopping = None, False  # whoever stopped it was interrupted
                        self._queue.clear()
                    if self._thread is None:
                        self._begin()
                    self._changed.wait(_NAP if self._stopping else None)
            finally:
                self._asked -= 1
            batch = self._queue[0]
        if batch.error is not None:
            self.advance()
            raise batch.error
        return batch

    def advance(self) -> int:
        """The head was used: callers are past it. Returns the number of images that were skipped in it."""
        with self._changed:
            batch = self._queue.popleft()
            self._calls, self._places = batch.call + 1, batch.after
            self._changed.notify_all()
            return batch.skipped

    def state(self) -> dict[str, Any]:
        """Where the callers stand, JSON-able."""
        with self._changed:
            return {"calls": self._calls, "readers": {name: place() for name, place in self._places.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on where ``state()`` was taken; what was prepared is dropped."""
        self.stop()
        self._calls = int(state.get("calls", 0))
        self._warn_of_others(set(state.get("readers", {})))
        self._places = {name: partial(copy.deepcopy, place) for name, place in state.get("readers", {}).items()}

    def _warn_of_others(self, saved: set[str]) -> None:
        saved = {name.rpartition("@")[0] if name.rpartition("@")[2].isdigit() else name for name in saved} - {""}
        own = {node.name for node in self._section.readers}
        if saved and saved != own:
            _log.warning(
                "oneflow: job %r has readers %s, and a checkpoint the positions of %s; the others begin at the start",
                self._graph.name, ", ".join(sorted(own)), ", ".join(sorted(saved)),
            )  # fmt: skip

    def close(self) -> None:
        """Ends the thread, for good, without waiting for that; callers that wait raise."""
        self._closed = True
        self.stop(0.0)

    def stop(self, deadline: float | None = None) -> bool:
        """Ends the thread and drops what was prepared; a later ``head()`` begins again where the callers stand.

        Args:
          deadline: until when to wait for the thread (``time.monotonic``); None: as long as it takes.
        Returns: whether the thread has ended.
        """
        with self._changed:
            self._stopping = self._thread is not None
            self._changed.notify_all()
            thread = self._thread
        if thread is None:
            return True
        if thread is threading.current_thread():
            return False
        thread.join(None if deadline is None else max(deadline - time.monotonic(), 0))
        if thread.is_alive():
            return False
        with self._changed:
            self._thread = None
            self._queue.clear()
            self._stopping = False
            self._changed.notify_all()
        return True

    # --- the thread's side

    def _begin(self) -> None:
        jax.devices()  # before the first thread: JAX's own exit hook must run after ours
        process.start()
        self._pool()
        self._thread = threading.Thread(target=self._run, name=f"oneflow-read-{self._graph.name}", daemon=True)
        self._thread.start()

    def _has_room(self) -> bool:
        waiting = len(self._queue)
        most = Resource.read_ahead_batches
        if most == 0:
            return waiting == 0 and self._asked > 0
        if self._largest:
            most = min(most, max(Resource.read_ahead_mbyte * _MIB // self._largest, 1))
        return waiting < most

    def _run(self) -> None:
        try:
            self._read_on()
        finally:
            self._rewind()

    def _read_on(self) -> None:
        call, places = self._calls, self._places
        while True:
            with self._changed:
                while not self._stopping and not self._has_room():
                    self._changed.wait()
                if self._stopping:
                    return
                batch = Batch(call)
                self._queue.append(batch)
            work = _Copies(self._copies, lambda values, error, batch=batch: self._done(batch, values, error))  # type: ignore[misc]
            batch.after = places
            try:
                for values in work.values:
                    self._read(values, work.values[0], places)
                batch.after = places = {place_of_reader(*key): reader.mark() for key, reader in self._readers.items()}
            except BaseException as error:
                self._done(batch, work.values, error)
                if not self._wait_until_asked_again(batch):  # the next call tries again, from where this one did
                    return
            else:
                for values in work.values:
                    self._section.start(values, call, self._pool(), work.one_is_done)
            call += 1

    def _read(self, values: Values, first: Values, places: Places) -> None:
        for node in self._section.readers:
            rule = node.op.host
            assert rule is not None
            if values.device and not self._section.is_vmapped(node):
                values[node] = first[node]
                continue
            try:
                reader = self._readers.get((node.name, values.device))
                if reader is None:
                    attrs = {name: value for name, value in node.attrs.items() if name != "seed"}
                    reader = rule.run(self._section.seed(node, values.device), **attrs)
                    place = places.get(place_of_reader(node.name, values.device))
                    if place is not None:
                        reader.restore(place())
                    self._readers[node.name, values.device] = reader
                values[node] = list(reader.next())
            except Exception as error:
                self._rewind()
                raise located(node, error) from error

    def _rewind(self) -> None:
        """Closes all readers; they are opened again at one place: some may have given a batch that another one failed to."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _wait_until_asked_again(self, batch: Batch) -> bool:
        with self._changed:
            while not self._stopping and (batch in self._queue or not self._asked):
                self._changed.wait()
            return not self._stopping

    def _done(self, batch: Batch, values: Sequence[Values], error: BaseException | None) -> None:
        if error is None:
            try:
                for blob in self._kept:
                    key = blob.node, blob.index
                    value = self._section.result(blob, values)
                    for loss in (loss for b, loss in self._labels if (b.node, b.index) == key):
                        for each in values:
                            check_labels(blob, loss, each[blob.node][blob.index], each)
                    batch.bytes += _bytes(value)
                    batch.values[key] = self._place(blob, value) if key in self._placed else value
            except BaseException as late:
                error = late
        batch.error, batch.skipped = error, sum(each.skipped for each in values)
        with self._changed:
            self._largest = max(self._largest, batch.bytes)
            batch.is_ready = True
            self._changed.notify_all()


class _Copies:
    """The values of one batch for each device; ``then(values, error)`` is called when all of them are there."""

    def __init__(self, count: int, then: Callable[[list[Values], BaseException | None], Any]):
        self.values = [Values() for _ in range(count)]
        for number, values in enumerate(self.values):
            values.device = number
        self._then = then
        self._left = count
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def one_is_done(self, error: BaseException | None) -> None:
        with self._lock:
            self._left -= 1
            self._error = self._error or error
            last = self._left == 0
        if last:
            self._then(self.values, self._error)


def place_of_reader(reader: str, copy: int) -> str:
    """Under which name a checkpoint keeps a reader's position."""
    return f"{reader}@{copy}" if copy else reader


def check_state(states: Any) -> None:
    """Raises ArgumentError for what ``restore`` would not take: {job: {"calls": ..., "readers": {name: state}}}."""
    good = isinstance(states, dict) and all(
        isinstance(s, dict) and type(s.get("calls", 0)) is int and s.get("calls", 0) >= 0
        and isinstance(s.get("readers", {}), dict) for s in states.values()
    )  # fmt: skip
    if not good:
        raise ArgumentError(f"not a position of readers: {states!r}"[:300])
