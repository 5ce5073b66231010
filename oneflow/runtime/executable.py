"""A compiled job: takes feeds, runs the step, re-binds the state."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._jax import jax
from ..compiler.program import RANDOM_STATE, Plan
from ..errors import ExecutionError
from ..graph.graph import Graph
from . import compilation_cache
from .dispatch import dispatcher
from .result import Delivery
from .store import Cell, Store

build_lock = threading.RLock()


@dataclass(slots=True)
class Statistics:
    """What building a job cost and what its executable needs; seconds and bytes."""

    trace_seconds: float = 0.0
    lower_seconds: float = 0.0
    compile_seconds: float = 0.0
    temporary_bytes: int | None = None
    code_bytes: int | None = None


class Executable:
    """One job, compiled for one set of feed shapes."""

    def __init__(self, plan: Plan, store: Store, random_cell: Cell):
        self.plan = plan
        self.statistics = Statistics()
        self._store = store
        self._written = [random_cell if name == RANDOM_STATE else store.cells[name] for name in plan.written]
        self._read = [store.cells[name] for name in plan.read]
        self._x64 = plan.x64
        self._function: Any = None
        self._warm = False

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    def compile(self, feeds: Sequence[Any]) -> None:
        """Compiles for feeds of these shapes. Raises what the trace or the compiler raises, and changes nothing then."""
        with build_lock:
            if self._function is not None:
                return
            with self._store.lock:
                self._store.roll_forward()
                self._store.materialize([*self._written, *self._read])
                arguments = (self._values(self._written), self._values(self._read), tuple(feeds))
                shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arguments)
            function = self.plan.jitted()
            start = time.perf_counter()
            with jax.enable_x64(True) if self._x64 else nullcontext():
                traced = function.trace(*shapes)
                self.statistics.trace_seconds = time.perf_counter() - start
                start = time.perf_counter()
                lowered = traced.lower()
                self.statistics.lower_seconds = time.perf_counter() - start
                start = time.perf_counter()
                with compilation_cache.enabled():
                    compiled = dispatcher.apart(lowered.compile)
                self.statistics.compile_seconds = time.perf_counter() - start
            self._note_memory(compiled)
            self._function = function

    def _note_memory(self, compiled: Any) -> None:
        try:
            memory = compiled.memory_analysis()
        except Exception:  # not every backend can tell
            return
        self.statistics.temporary_bytes = getattr(memory, "temp_size_in_bytes", None)
        self.statistics.code_bytes = getattr(memory, "generated_code_size_in_bytes", None)

    @staticmethod
    def _values(cells: list[Cell]) -> tuple[Any, ...]:
        return tuple([cell.value for cell in cells])

    def launch(self, feeds: Sequence[Any], delivery: Delivery | None = None, merge: Callable[[Any], Any] | None = None) -> Any:
        """Runs one step. Gives its outputs, or with a ``delivery`` the Result that was queued for it.

        ``merge`` puts what the step did not compute into its outputs.
        """
        if not self._warm:
            return self._first_launch(feeds, delivery, merge)
        with self._store.lock:
            outputs = self.run(feeds)
            if merge is not None:
                outputs = merge(outputs)
            return outputs if delivery is None else dispatcher.submit(delivery, outputs)

    def _first_launch(self, feeds: Sequence[Any], delivery: Delivery | None, merge: Callable[[Any], Any] | None) -> Any:
        # JAX's first call of a function goes through Python code, where Ctrl-C could lose the new state. It is also the
        # one that finds out whether there is memory enough, and a step that fails has its donated state destroyed.
        def work() -> Any:
            with self._store.lock:
                self._store.roll_forward()
                kept = [np.array(cell.value) for cell in self._written]
                try:
                    outputs = self.run(feeds)
                    jax.block_until_ready(outputs)
                except Exception as error:
                    for cell, value in zip(self._written, kept, strict=True):
                        cell.value = Store.put(value)
                    raise self._failed(error) from error
                self._warm = True
                if merge is not None:
                    outputs = merge(outputs)
                return outputs if delivery is None else dispatcher.submit(delivery, outputs)

        return dispatcher.apart(work)

    def _failed(self, error: Exception) -> ExecutionError:
        graph = self.graph
        return ExecutionError(
            f"a step of job {graph.name!r} failed on the device: {str(error).splitlines()[0][:500]}\n"
            f"  the job    {graph.source}   {graph.source.text if graph.source else ''}\n"
            f"  its state  as it was before this call\n"
            f"  try        smaller shapes; job.summary() tells the working memory that the compiled job needs"
        )

    def run(self, feeds: Sequence[Any]) -> Any:
        """One step: (new state, fetched, watched, token). Called with the store's lock held."""
        store = self._store
        if store.landing:
            store.roll_forward()
        reads = tuple([cell.value for cell in self._read])
        if not self._written:
            if self._x64:
                with jax.enable_x64(True):
                    return self._function((), reads, feeds)
            return self._function((), reads, feeds)
        state = tuple([cell.value for cell in self._written])
        store.landing_cells = self._written
        landing = store.landing
        # from here to the end of the line no Python code runs after the step, so no interrupt can lose its outputs
        with jax.enable_x64(True):
            deque(map(landing.append, map(self._function, (state,), (reads,), (feeds,))), maxlen=0)
        outputs = landing[0]
        for cell, value in zip(self._written, outputs[0], strict=True):
            cell.value = value
        landing.clear()
        return outputs

    def hlo(self) -> str:
        """The compiled program as text, for the curious."""
        shapes = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (self._values(self._written), self._values(self._read))
        )
        feeds = tuple(jax.ShapeDtypeStruct(b.shape, b.dtype.numpy_dtype) for b in self.plan.feeds)
        with jax.enable_x64(True):
            return str(self.plan.jitted().lower(*shapes, feeds).compile().as_text())


def to_numpy(array: Any) -> np.ndarray:
    """A fresh writable copy in host memory."""
    return np.array(array)
