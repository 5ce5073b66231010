"""The compiled forms of one job: one, or where its inputs vary in shape, one for each set of shapes that calls have had."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .._base import memory
from .._base.log import announced, notice
from ..compiler.plan import Plan
from ..compiler.replicas import per_device
from .debugging import debugging
from .executable import Executable
from .gate import StaleExecutableError
from .store import Cell, Store

MAX_VARIANTS = 32  # kept, the least recently used is dropped


class Variants:
    """Looks executables up without a lock, and compiles them under one of their own job.

    ``invalidate`` (something they were compiled for has moved) forgets them; the next call compiles again.
    """

    def __init__(self, plan: Plan, store: Store, random_cell: Callable[[], Cell], rates: Callable[[], Cell]):
        self._plan = plan
        self._store = store
        self._random_cell, self._rates = random_cell, rates
        self._varying = any(blob.is_dynamic for blob in plan.feeds)
        self._lock = threading.RLock()
        self._made: dict[tuple[Any, Any], Executable] = {}  # replaced, never changed, so that lookups need no lock
        self._used: dict[Executable, int] = {}
        self._planned: Executable | None = None  # compiled without values of variables
        self._clock = itertools.count()
        self._named: Variants | None = None
        self._has_dropped = False

    @property
    def is_single(self) -> bool:
        """Whether one executable serves all calls."""
        return not self._varying

    @property
    def items(self) -> list[tuple[Any, Executable]]:
        """Shapes (None where one executable serves all) and executables, the least recently used first."""
        found = [(shapes, executable) for (shapes, _), executable in self._made.items()]
        return sorted(found, key=lambda item: self._used.get(item[1], -1))

    def find(self, feeds: Sequence[Any]) -> Executable | None:
        """The executable for feeds of these shapes, where there is one."""
        found = self._made.get(self._key(feeds))
        if found is not None and len(self._made) > 1:
            self._used[found] = next(self._clock)
        return found

    def get(self, feeds: Sequence[Any]) -> Executable:
        """The executable for feeds of these shapes; compiles it where there is none.

        Raises what compiling raises, and StaleExecutableError where the session is closed.
        """
        found = self.find(feeds)
        if found is not None:
            return found
        with self._lock:
            found = self.find(feeds)
            graph = self._plan.graph
            what = f"job {graph.name!r}"
            memory.settle(lambda: graph.bytes)
            if not self._made and memory.gives_back(graph.bytes):
                notice(
                    f"oneflow: steps of {what} get their memory from the system anew each time, because the first jobs of this "
                    f"process were tiny. Declare all jobs before the first call, or set {memory.SWITCH}=1 in the environment."
                )
            with announced(lambda: f"compiling {what} ({len(self._plan.order)} ops)", lambda: f"compiled {what}"):
                while found is None:
                    if self._store.is_closed:
                        raise StaleExecutableError
                    found = self._compiled(feeds)
            return found

    def uncompiled(self) -> Executable:
        """The executable that was used last; where there is none, one that is not compiled, to look at."""
        with self._lock:
            return self.items[-1][1] if self._made else self._planned or self._new(self._plan)

    def planned(self, structs: Sequence[Any]) -> Executable:
        """The executable that was used last; where there is none, one compiled for these shapes, without values of variables."""
        with self._lock:
            if self._made:
                return self.items[-1][1]
            if self._planned is None:
                made = self._new(self._plan)
                made.compile_only(structs)
                self._planned = made
            return self._planned

    def with_named_kernels(self) -> Variants:
        """Those to profile: compiled anew for a GPU, whose traces do not say which instruction a kernel of a CUDA graph is."""
        if self._plan.platform != "gpu":
            return self
        with self._lock:
            if self._named is None:
                self._named = Variants(replace(self._plan, names_kernels=True), self._store, self._random_cell, self._rates)
            return self._named

    def invalidate(self) -> None:
        """Forgets all executables; one that is being called raises StaleExecutableError. Called with the dispatch lock held."""
        made, self._made, self._used, self._planned = self._made, {}, {}, None
        for executable in made.values():
            executable.invalidate()
        if self._named is not None:
            self._named.invalidate()

    def _key(self, feeds: Sequence[Any]) -> tuple[Any, Any]:
        if not self._varying:
            return None, debugging()
        return tuple([tuple([a.shape for a in f]) if isinstance(f, tuple) else f.shape for f in feeds]), debugging()

    def _new(self, plan: Plan) -> Executable:
        return Executable(plan, self._store, self._random_cell(), self._rates())

    def _compiled(self, feeds: Sequence[Any]) -> Executable | None:
        """A new executable among those that are kept; None where variables have moved meanwhile."""
        key = self._key(feeds)
        made = self._planned if self.is_single else None
        if made is None or made.debugging != key[1]:
            made = self._new(per_device(self._plan) if _differ(self._plan, feeds) else self._plan)
        made.compile(feeds)
        with self._store.lock:
            if made.is_outdated or self._store.is_closed:
                return None
            kept = {**self._made, key: made}
            self._used[made] = next(self._clock)
            if len(kept) > MAX_VARIANTS and not self._has_dropped:
                self._has_dropped = True
                notice(
                    f"oneflow: job {self._plan.graph.name!r} has been called with more than {MAX_VARIANTS} sets of shapes: "
                    "those that were not used for longest are compiled anew when they come back; pad arrays to fewer sizes"
                )
            while len(kept) > MAX_VARIANTS:
                oldest = min(kept, key=lambda k: self._used.get(kept[k], -1))
                self._used.pop(kept.pop(oldest), None)
            self._made, self._planned = kept, None
        return made


def _differ(plan: Plan, feeds: Sequence[Any]) -> bool:
    """Whether devices were fed with tensors of different shapes."""
    return any(isinstance(feed, tuple) and blob.is_mirrored for blob, feed in zip(plan.feeds, feeds, strict=True))
