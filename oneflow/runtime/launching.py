"""The calls of a compiled step: dispatched one after another, with the new state bound to the store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, NamedTuple

from .._base import memory as _memory
from .._base.jax import jax
from .._base.jax_versions import Flag
from ..compiler.plan import Plan
from ..compiler.program import Stateless, feed_shardings
from . import first_run, processes
from .debugging import debugging, flags
from .delivery import MAX_WINDOW
from .gate import Gate, NoRoomError, Results, StaleExecutableError
from .prepared import Prepared
from .process import process
from .result import Delivery
from .step_state import StepState
from .store import Cell
from .transfer import readable

Merge = Callable[[Results], Results]


class FastStep(NamedTuple):
    """A step that few things can happen to, for those who launch it themselves.

    Only where ``launcher.is_ready`` and ``flags`` say ``debugged``: else the launcher is asked. One that keeps state is run with
    ``lock`` held, where ``outputs`` is empty; the others need it only to queue their results.

    Attributes:
      function: of the values of ``written``, those of ``read`` with the prepared ones, and the feeds: the new values of
        ``written``, what is fetched, and two empty tuples. Where there is no state: of the feeds one by one, what is fetched.
      is_single: there is no state, and the function gives one array in place of a tuple.
      written, read: the cells of the store that the step replaces, and only reads; None where there is no state.
      prepared: has ``values()``, which come behind those of ``read``; None for none.
      outputs: what a step has given whose new state is not bound yet.
    """

    function: Callable[..., Any]
    is_single: bool
    written: tuple[Cell, ...] | None
    read: tuple[Cell, ...]
    prepared: Prepared | None
    outputs: list[Any]
    lock: AbstractContextManager[Any]
    launcher: Launcher
    flags: tuple[Flag, Flag]
    debugged: tuple[bool, bool]


def flat_feeds(plan: Plan, feeds: Sequence[Any]) -> tuple[Any, ...]:
    """The feeds, one for each that the plan has: those of devices one by one where the shapes of any input differ."""
    devices = plan.devices
    if not devices:
        return tuple(feeds)
    copies = {node for each in devices.values() for node in each}
    blobs, found = iter(plan.feeds), []
    for feed in feeds:  # inputs of equal shapes are stacked
        blob = next(blobs)
        pieces = list(feed) if blob.node in copies else [feed]
        for _ in pieces[1:]:
            next(blobs)
        found += pieces
    return tuple(found)


class Launcher:
    """Runs the step of one executable.

    Attributes:
      function: the compiled step; None before there is one.
      x64: it is called in JAX's 64-bit mode, which takes JAX longer.
      is_ready: the first run is over, and nothing that it was compiled for has moved. Changed with the dispatch lock held.
    """

    def __init__(self, plan: Plan, state: StepState, gate: Gate | None, debugged: tuple[bool, bool, bool], *, is_staged: bool):
        """``gate``: of jobs whose devices meet in collectives; ``debugged``: the settings that the step is compiled for."""
        self.function: Any = None
        self.x64 = plan.x64
        self._is_stale = False
        self._plan, self._gate = plan, gate
        self._state, self._store, self._written = state, state.store, state.written
        self._debugging, self._is_staged = debugged, is_staged
        self._together = processes.count() > 1
        self._window = 1 if self._together else MAX_WINDOW  # calls that may be undelivered
        self._label = f"job {plan.graph.name!r}"
        self._is_warm = False  # the first run is over
        self.is_ready = False

    def invalidate(self) -> None:
        """Calls raise StaleExecutableError from now on. Called with the dispatch lock held."""
        self._is_stale, self.is_ready = True, False

    def launch(self, feeds: Sequence[Any], delivery: Delivery | None = None, merge: Merge | None = None) -> Any:
        """Runs one step. Returns its results, or with a ``delivery`` the Result that was queued for it.

        ``merge`` puts what the step did not compute into its results.

        Raises:
          NoRoomError: too many calls are undelivered or in flight; nothing was done.
          StaleExecutableError: it was invalidated, or compiled for another setting of jax_debug_nans; nothing was done.
        """
        if debugging() != self._debugging:
            raise StaleExecutableError
        if self._plan.devices:
            feeds = flat_feeds(self._plan, feeds)
        if not self._is_warm:
            # JAX's first call of a function goes through Python code, where Ctrl-C could lose the new state
            return process.uninterrupted.run(lambda: self._first_launch(feeds, delivery, merge))
        if self._is_staged or self._together:  # Python code between the pieces
            return process.uninterrupted.run(lambda: self._launch(feeds, delivery, merge))
        return self._launch(feeds, delivery, merge)

    def fast_step(self) -> FastStep | None:
        """The step, if it is one of those; None for any other."""
        plan, state = self._plan, self._state
        is_plain = not (self.x64 or self._is_staged or self._together or plan.devices or plan.watches or plan.token_is_needed())
        if not is_plain or self._gate is not None:
            return None
        function, is_stateless = self.function, isinstance(self.function, Stateless)
        return FastStep(
            function.fetch if is_stateless else function, is_stateless and function.is_single,
            None if is_stateless else tuple(self._written), tuple(state.read), state.prepared, self._store.pending,
            self._store.lock, self, flags(), self._debugging[:2],
        )  # fmt: skip

    def quick(self) -> Callable[[Any, Delivery | None], Any]:
        """``launch``, with all that need not be asked at each call found out once."""
        if self._is_staged or self._together or self._plan.devices:
            return self.launch
        lock, store, function = self._store.lock, self._store, self.function
        pending, bind, written, read = store.pending, self._bind, self._written, self._state.read
        submit, has_room, x64 = process.delivery.submit, process.delivery.has_room, self.x64
        prepared = self._state.prepared
        (nans, infs, _), (nans_now, infs_now) = self._debugging, flags()
        check_room = self._gate.check_room if self._gate is not None else None
        is_noted = bool(written) or check_room is not None

        def launch(feeds: Any, delivery: Delivery | None) -> Any:
            if not self.is_ready:
                return self.launch(feeds, delivery)
            with lock:
                if not self.is_ready or nans_now.value is not nans or infs_now.value is not infs:
                    raise StaleExecutableError
                if delivery is not None and not has_room():
                    raise NoRoomError
                if check_room is not None:
                    check_room()
                if pending:
                    store.commit()
                reads = tuple([cell.value for cell in read])
                if prepared is not None:
                    reads += prepared.values()
                if is_noted:
                    state = tuple([cell.value for cell in written])
                    store.bind_pending = bind
                    # from here to the end of the line no Python code runs after the step: no interrupt can lose its outputs
                    with jax.enable_x64(True) if x64 else nullcontext():
                        deque(map(pending.append, map(function, (state,), (reads,), (feeds,))), maxlen=0)
                    results = bind(pending[0])
                    pending.clear()
                elif x64:
                    with jax.enable_x64(True):
                        results = function((), reads, feeds)[1:]
                else:
                    results = function((), reads, feeds)[1:]
                return results if delivery is None else submit(delivery, results)

        return launch

    def _launch(self, feeds: Sequence[Any], delivery: Delivery | None, merge: Merge | None) -> Any:
        with self._store.lock, self._as_its_caller():
            self._admit(delivery)
            if self._together:
                with processes.explained():
                    results = self._step(feeds)
                    if delivery is None:
                        jax.block_until_ready((results[0], results[2]))  # the lock is held: no other call is in flight
                        processes.returned()
            else:
                results = self._step(feeds)
            return self._submit(results, delivery, merge)

    def _as_its_caller(self) -> AbstractContextManager[Any]:
        """On a thread of the library: the settings of the calling thread that the executable was compiled for."""
        if debugging()[:2] == self._debugging[:2]:
            return nullcontext()
        nans, infs, _ = self._debugging
        settings = ExitStack()
        settings.enter_context(jax.debug_nans(nans))
        settings.enter_context(jax.debug_infs(infs))
        return settings

    def _admit(self, delivery: Delivery | None) -> None:
        """The one gate of all calls, synchronous and asynchronous. With the lock held, so that what it finds stays true."""
        if self._is_stale:
            raise StaleExecutableError
        if delivery is not None and not process.delivery.has_room(self._window):
            raise NoRoomError
        if self._gate is not None:
            self._gate.check_room()

    def _submit(self, results: Results, delivery: Delivery | None, merge: Merge | None) -> Any:
        if merge is not None:
            merged = merge(results)
            if self._gate is not None:
                self._gate.replace(results, merged)
            results = merged
        return results if delivery is None else process.delivery.submit(delivery, results)

    def _first_launch(self, feeds: Sequence[Any], delivery: Delivery | None, merge: Merge | None) -> Any:
        with self._store.lock, self._as_its_caller():
            self._admit(delivery)
            self._store.commit()
            if not (self._is_staged or self._together):
                self._state.place_rates()
            results = first_run.run(
                self._step, self._state, self._plan, feeds,
                finds_nonfinite=self._debugging[2], is_delivered_later=delivery is not None,
            )  # fmt: skip
            self._is_warm = self.is_ready = not self._plan.transactional
            if self._is_warm:
                _memory.give_back()
            return self._submit(results, delivery, merge)

    def _step_together(self, feeds: Sequence[Any]) -> Results:
        """A step that other processes run, too: all feed the same, and each gets all that the call delivers."""
        state, meshes = self._state, self._state.meshes
        assert meshes is not None
        processes.entered(self._label)
        try:
            with jax.enable_x64(True):
                written = meshes.move(state.values(self._written), [state.struct(c).sharding for c in self._written])
                read = meshes.move(state.read_values(), [struct.sharding for struct in state.read_structs()])
                if not self._is_staged:
                    feeds = meshes.move(feeds, feed_shardings(self._plan, meshes))
                new, fetched, watched, token = self.function(tuple(written), tuple(read), tuple(feeds))
                for cell, value in zip(self._written, new, strict=True):
                    cell.value = value
                return jax.tree.map(readable, fetched), jax.tree.map(readable, watched), token
        except BaseException:
            processes.returned()
            raise

    def _step(self, feeds: Sequence[Any]) -> Results:
        """Hands one step to XLA and binds its new state. Called with the lock held."""
        if self._together:
            return self._step_together(feeds)
        store = self._store
        if store.pending:
            store.commit()
        state, reads = self._state.values(self._written), self._state.read_values()
        store.bind_pending = self._bind
        pending = store.pending
        # from here to the end of the line no Python code runs after the step, so no interrupt can lose its outputs
        with jax.enable_x64(True) if self.x64 else nullcontext():
            deque(map(pending.append, map(self.function, (state,), (reads,), (feeds,))), maxlen=0)
        results = self._bind(pending[0])
        pending.clear()
        return results

    def _bind(self, outputs: Any) -> Results:
        """Makes a step's new state that of the session, and counts the step among those that are being computed."""
        for cell, value in zip(self._written, outputs[0], strict=True):
            cell.value = value
        results: Results = outputs[1:]
        if self._gate is not None:
            self._gate.note(results)
        return results
