"""The host's part of a job's calls: what is prepared ahead, what is done at the call, and how both meet the step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._base.jax import jax
from ..compiler.host_plan import distinct
from ..compiler.plan import Plan
from ..compiler.program import feed_shardings, place_of
from ..graph.node import Blob, Node
from . import devices
from .gate import Results, StaleExecutableError
from .host import Section, Values, deliverable
from .mesh import DeviceMeshes
from .pool import Pool
from .prefetcher import Prefetcher, place_of_reader
from .transfer import to_global

Place = Callable[[Blob, Any], Any]


def placing(plan: Plan, meshes: DeviceMeshes) -> Place:
    """A function that puts a feed on the devices, as the step wants it; it may keep the memory it is given."""
    found: Place | None = None

    def put(blob: Blob, value: Any) -> Any:  # the devices are looked up when the first value is there, not at building
        nonlocal found
        if found is None:
            found = _placing(plan, meshes)
        return found(blob, value)

    return put


def _placing(plan: Plan, meshes: DeviceMeshes) -> Place:
    placement = place_of(plan)
    if len({meshes.place(node.scope.placement) for node in plan.order}) > 1 or plan.repeats:
        return lambda blob, value: value  # each stage takes its own
    if meshes.is_default(placement):
        return lambda blob, value: tuple(map(_put, value)) if isinstance(value, tuple) else _put(value)

    shardings = {(b.node, b.index): s for b, s in zip(plan.feeds, feed_shardings(plan, meshes), strict=True)}

    def put(blob: Blob, value: Any) -> Any:
        if isinstance(value, tuple) or value.shape[blob.node in plan.vmapped :] != blob.shape:
            return value
        return to_global(value, shardings[blob.node, blob.index])

    return put


_SMALL = 1 << 16  # bytes


def _put(value: Any) -> Any:
    """A feed on JAX's default device. A small array on a CPU is left to the step's call, which takes less time than this does."""
    if isinstance(value, np.ndarray) and value.nbytes <= _SMALL and jax.default_backend() == "cpu":
        return value
    with jax.enable_x64(True):
        return devices.put(value)


class Taken(NamedTuple):
    """What the host gives one call.

    Attributes:
      feeds: of the step.
      merge: adds the host's results to the step's outputs.
      skipped: images that were skipped in the call itself.
      turn: the pipeline's, when it was taken.
    """

    feeds: tuple[Any, ...]
    merge: Callable[[Results], Results]
    skipped: int
    turn: object


class HostPipeline:
    """The host's part of one job: what its calls get before, and besides, what the step gives.

    ``lock`` is held by a call from ``take`` until its step is on its way, so that the order of batches is that of steps. A call
    that lets it go between keeps what it has taken as long as ``turn`` is the same object.
    """

    def __init__(
        self, plan: Plan, returns: Sequence[Blob], seed: Callable[[], int], meshes: DeviceMeshes, pool: Callable[[], Pool]
    ):
        """
        Args:
          returns: all that the job returns.
          seed: returns the seed of its session; ``pool`` the threads that its pipelines share.
        """
        graph, host_plan, feeds, vmapped = plan.graph, plan.host, plan.feeds, plan.vmapped
        self.lock = threading.RLock()
        self._pool = pool
        self._host_plan = host_plan
        self._feeds = feeds
        self._returns = [(b.node, b.index) for b in returns]
        self._inputs = {spec.blob.node: i for i, spec in enumerate(graph.inputs)}
        self._calls = 0
        self.turn = object()
        self.skipped = 0  # images, so far
        self._closed = False
        at_call = host_plan.at_call
        ahead = set(host_plan.ahead)
        handed_on = [b for node in at_call for b in node.inputs]
        self._copies = max((n.scope.placement.parallel_num for n in host_plan.nodes if n in vmapped), default=1)
        kept = distinct([b for b in (*host_plan.results, *handed_on) if b.node in ahead])
        handed_on_keys = {(b.node, b.index) for b in handed_on}
        placed = [b for b in host_plan.boundary if (b.node, b.index) not in handed_on_keys]
        delivered = {(b.node, b.index) for b in host_plan.delivered}
        placed = [b for b in placed if (b.node, b.index) not in delivered]
        self._ahead = None
        if host_plan.ahead:
            section = Section(host_plan.ahead, kept, seed, vmapped)
            place = placing(plan, meshes)
            self._ahead = Prefetcher(graph, section, kept, placed, self._copies, host_plan.labels, place, pool)
        readers = [n for n in host_plan.ahead if n.op.host is not None and n.op.host.reader]
        named = [(n.op.host.counter(n.attrs), n) for n in readers if n.op.host is not None]
        # by the variables that count their batches
        self.counters: dict[str, Node] = {variable: node for variable, node in named if variable is not None}
        self._at_call = Section(at_call, host_plan.results, seed, vmapped) if at_call else None
        self._vmapped = vmapped

    def take(self, inputs: Sequence[Any]) -> Taken:
        """What the next call gets. Called with the lock held; raises the batch's error."""
        if self._closed:
            raise StaleExecutableError
        batch = self._ahead.head() if self._ahead is not None else None
        found = dict(batch.values) if batch is not None else {}
        for node, i in self._inputs.items():
            found.setdefault((node, 0), inputs[i])
        skipped = 0
        if self._at_call is not None:
            call = batch.call if batch is not None else self._calls
            try:
                copies = [self._values(found, number) for number in range(self._copies)]
                for values in copies:
                    self._at_call.run(values, call, self._pool())
                    skipped += values.skipped
                for blob in self._host_plan.results:
                    if (blob.node, blob.index) not in found:
                        found[blob.node, blob.index] = self._at_call.result(blob, copies)
            except Exception:
                self.advance()  # the next call gets the next batch
                raise
        feeds = tuple(found[b.node, b.index] for b in self._feeds)
        given = {(b.node, b.index) for b in self._host_plan.delivered}

        def merge(results: Results) -> Results:
            fetched, watched, token = results
            computed = iter(fetched)
            after = jax.tree.leaves((fetched, token))  # the devices' own arrays where their shapes differ
            merged = tuple(deliverable(found[key], after) if key in given else next(computed) for key in self._returns)
            return merged, watched, token

        return Taken(feeds, merge, skipped, self.turn)

    def _values(self, found: Mapping[tuple[Node, int], Any], copy: int) -> Values:
        """The first values of a call's nodes: inputs and prepared values; each device gets its own."""
        values = Values()
        values.device = copy
        for (node, index), value in found.items():
            mine = value[copy] if self._copies > 1 and node in self._vmapped else value
            values.setdefault(node, [None] * len(node.outputs))[index] = mine
        return values

    def advance(self, taken: Taken | None = None) -> None:
        """Marks the batch of the last ``take`` as used; without what it gave, as lost by an error."""
        self._calls, self.turn = self._calls + 1, object()
        self.skipped += taken.skipped if taken is not None else 0
        if self._ahead is not None:
            self.skipped += self._ahead.advance()

    def state(self) -> dict[str, Any]:
        """Where its readers and random ops stand; JSON-able."""
        return self._ahead.state() if self._ahead is not None else {"calls": self._calls, "readers": {}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on where ``state()`` was taken."""
        with self.lock:
            self._calls, self.turn = int(state.get("calls", 0)), object()
            if self._ahead is not None:
                self._ahead.restore(state)

    def go_on_behind(self, batches: Mapping[str, int]) -> None:
        """Moves readers behind the numbers of batches that were loaded into the variables that count them."""
        if not batches:
            return
        state = self.state()
        for variable, count in batches.items():
            node = self.counters[variable]
            for copy in range(self._copies if node in self._vmapped else 1):
                state["readers"][place_of_reader(node.name, copy)] = {"batches": count}
        self.restore(state)

    def begin_anew(self) -> None:
        """After another seed was set: random ops begin their sequences, readers stay where they are."""
        self.restore({**self.state(), "calls": 0})

    def stop(self, deadline: float | None = None) -> bool:
        """Ends its thread and drops what was prepared; a later call begins again where the callers stand.

        Args:
          deadline: until when to wait for the thread (``time.monotonic``); None: as long as it takes.
        Returns: whether the thread has ended.
        """
        return self._ahead is None or self._ahead.stop(deadline)

    def close(self) -> None:
        """Ends its thread, without waiting for that; a call that waits for data raises."""
        self._closed = True
        if self._ahead is not None:
            self._ahead.close()
