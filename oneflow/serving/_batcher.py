"""Dynamic batching: the requests of one model wait in a queue, are joined, and run while the next batch is joined.

All state belongs to the event loop's thread; other threads only run batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..runtime.process import COMPUTING_THREADS
from ._metrics import Metrics
from ._model import Key, Model
from ._protocol import InferRequest, RequestError
from ._workers import Workers

logger = logging.getLogger("oneflow.serving")


@dataclass(slots=True, eq=False)
class _Waiting:
    request: InferRequest
    rows: int
    since: float
    future: asyncio.Future[list[np.ndarray]]


@dataclass(slots=True, eq=False)
class _Queue:
    """The waiting requests of one key. ``expected``: how many there were lately, for which a batch waits by default."""

    key: Key
    waiting: deque[_Waiting]
    rows: int = 0
    expected: int = 1
    timer: asyncio.TimerHandle | None = None


class Batcher:
    """The queue of one version of a model, and its threads."""

    def __init__(self, model: Model, metrics: Metrics, in_flight: int):
        self.model = model
        self.counts = metrics.of(model.name, model.version)
        self._most_in_flight = in_flight
        self._in_flight = 0
        self._queues: dict[Key, _Queue] = {}
        self._waits = True
        self._leases = 0
        self._unused = asyncio.Event()
        self._unused.set()
        self._loop = asyncio.get_running_loop()
        self._workers = Workers(in_flight, COMPUTING_THREADS + model.name, self._loop)

    @contextlib.contextmanager
    def lease(self) -> Iterator[Batcher]:
        """While it lasts, the model stays loaded."""
        self._leases += 1
        self._unused.clear()
        try:
            yield self
        finally:
            self._leases -= 1
            if not self._leases:
                self._unused.set()

    def hurry(self) -> None:
        """From now on no request waits for others."""
        self._waits = False
        for queue in self._queues.values():
            self._start_batches(queue)

    async def close(self) -> None:
        """Ends the threads when the last lease is over. The caller has seen to it that there will be no new ones."""
        self.hurry()
        await self._unused.wait()
        self._workers.close()

    @property
    def queued(self) -> int:
        """How many requests wait."""
        return sum(len(queue.waiting) for queue in self._queues.values())

    async def submit(self, request: InferRequest, timeout: float, spent: float) -> list[np.ndarray]:
        """The results for a request.

        Args:
          timeout: in seconds, all that the request may take.
          spent: how much of it is over, since the body had to arrive.
        Raises: RequestError: the queue is full (429), time is over (504), the model failed (500).
        """
        if self.queued >= self.model.settings.max_queue:
            raise RequestError(429, f"model {self.model.name!r} has {self.queued} waiting requests, as many as it may have",
                               {"retry-after": "1"})  # fmt: skip
        key = self.model.key(request)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(key, deque())
        waiting = _Waiting(request, self.model.rows(request), time.perf_counter(), self._loop.create_future())
        queue.waiting.append(waiting)
        queue.rows += waiting.rows
        self._start_batches(queue)
        timer = self._loop.call_later(max(timeout - spent, 0.0), _expire, waiting.future, timeout)
        try:
            return await waiting.future
        except (RequestError, asyncio.CancelledError):
            self._forget(queue, waiting)
            raise
        finally:
            timer.cancel()

    @staticmethod
    def _forget(queue: _Queue, waiting: _Waiting) -> None:
        """A request whose time was over while it waited is not computed."""
        with contextlib.suppress(ValueError):  # it was taken before
            queue.waiting.remove(waiting)
            queue.rows -= waiting.rows

    def _start_batches(self, queue: _Queue, due: bool = False) -> None:
        """Starts what may start; sets a timer for what may start later. ``due``: the first one has waited long enough."""
        while self._in_flight < self._most_in_flight:
            if not queue.waiting:
                return
            full = queue.rows >= self.model.batch_sizes[-1] or not self.model.joins_requests or not self._waits
            enough = full or due or (self.model.settings.max_delay is None and len(queue.waiting) >= queue.expected)
            left = queue.waiting[0].since + self.model.settings.longest_delay - time.perf_counter()
            if left > 0 and not enough:
                if queue.timer is None:
                    queue.timer = self._loop.call_later(left, self._time_is_over, queue)
                return
            if queue.timer is not None:
                queue.timer.cancel()
                queue.timer = None
            due = False
            batch = self._take(queue)
            queue.expected = max(len(batch), queue.expected // 2)
            self._start(batch)

    def _time_is_over(self, queue: _Queue) -> None:
        queue.timer = None
        self._start_batches(queue, due=True)

    def _take(self, queue: _Queue) -> list[_Waiting]:
        """The next batch: the first request, and as many of the others as fit, in the order of their arrival."""
        batch: list[_Waiting] = []
        room = self.model.to_take(queue.rows)
        while queue.waiting and (queue.waiting[0].rows <= room or not batch):
            first = queue.waiting.popleft()
            queue.rows -= first.rows
            batch.append(first)
            room -= first.rows
            if not self.model.joins_requests:
                break
        return batch

    def _start(self, batch: list[_Waiting]) -> None:
        self._in_flight += 1
        now = time.perf_counter()
        for waiting in batch:
            self.counts.waited(now - waiting.since)
        requests = [waiting.request for waiting in batch]
        self._workers.start(lambda: self.model.run(requests), lambda done, error: self._finish(batch, now, done, error))

    def _finish(
        self, batch: list[_Waiting], started: float, done: tuple[list[list[np.ndarray]], int] | None, error: BaseException | None
    ) -> None:
        self._in_flight -= 1
        if done is None:
            logger.error("model %r failed: %s", self.model.name, error)
            for waiting in batch:
                if not waiting.future.done():
                    waiting.future.set_exception(
                        RequestError(500, f"model {self.model.name!r} failed; the server's log says why")
                    )
        else:
            results, padded = done
            for waiting, result in zip(batch, results, strict=True):
                if not waiting.future.done():
                    waiting.future.set_result(result)
            rows = sum(waiting.rows for waiting in batch)
            self.counts.ran(len(batch), rows, padded, time.perf_counter() - started)
        # the oldest first, so that no key waits for ever behind a busy one
        for queue in sorted(self._queues.values(), key=lambda q: q.waiting[0].since if q.waiting else 0.0):
            self._start_batches(queue)


def _expire(future: asyncio.Future[list[np.ndarray]], seconds: float) -> None:
    if not future.done():
        future.set_exception(RequestError(504, f"the request was not answered within its {seconds:g} s"))
