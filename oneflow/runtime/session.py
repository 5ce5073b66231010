"""Session: the jobs declared, their variables, and what is submitted."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np

from .._base.refuse import refuse
from ..compiler.layout import Storage
from ..config import Resource
from ..errors import ArgumentError, ModeError
from ..graph.graph import Graph, Variable, current_or_none
from . import devices, environment, processes
from .dispatch import dispatcher
from .executable import build_lock
from .reading import HostStage, check_state
from .store import Cell, Store
from .transfer import to_host

_log = logging.getLogger("oneflow")


class Buildable(Protocol):
    """What a session knows of a job."""

    name: str
    train: bool

    def build(self) -> Graph:
        """Traces the job, once; raises its error, each time, where its body is wrong."""
        ...

    @property
    def is_built(self) -> bool:
        """Whether it has been traced, successfully or not."""
        ...

    @property
    def unseen_error(self) -> Exception | None:
        """The error of a broken job that nobody has been told of yet."""
        ...

    @property
    def variable_names(self) -> Iterable[str]:
        """The variables that it declares, as far as it has been traced."""
        ...

    def release(self) -> None:
        """Forgets what was compiled."""
        ...


_manual_seed: int | None = None


class Session:
    """Jobs and variables that belong together. ``flow.clear_default_session()`` begins a new one."""

    def __init__(self) -> None:
        self.jobs: dict[str, Buildable] = {}
        self._declared: WeakSet[Buildable] = WeakSet()  # those that were replaced, too
        self.started = False
        self.closed = False
        self.seed = secrets.randbits(63) if _manual_seed is None else _manual_seed
        self.store = Store(self.seed)
        self._random: dict[str, Cell] = {}
        self._stages: dict[str, HostStage] = {}
        self._places: dict[str, Any] = {}  # where the readers of jobs that are not built yet go on

    def declare_variables(self, job: Buildable, variables: Iterable[Variable], storages: Mapping[str, Storage]) -> None:
        """Makes room for a job's variables, where ``storages`` says, or finds it.

        A variable of another shape or dtype that only replaced jobs declared makes room for the new one.

        Raises:
          VariableConflictError: a job that can still be called declares it otherwise; nothing is changed then.
        """
        variables = list(variables)
        others = [other for other in self.jobs.values() if other is not job]
        used = {name for other in others for name in other.variable_names}
        with self.store.lock:
            replaced, moved = self.store.declare(variables, storages, lambda name: name not in used, job.train)
        for name in replaced:
            _log.warning("oneflow: variable %r begins anew: job %r was redefined with another shape or dtype", name, job.name)
        for other in others:
            if not {*moved}.isdisjoint(other.variable_names):
                other.release()  # compiled for where the variable was

    def declare(self, job: Buildable) -> None:
        """Adds a job; one of the same name replaces it for new calls."""
        self.jobs[job.name] = job
        self._declared.add(job)

    def start(self) -> None:
        """Traces every declared job; a broken one raises at its own call, not here."""
        self._check_open()
        if self.started and all(job.is_built for job in self.jobs.values()):
            return
        with build_lock:
            if not self.started:
                environment.start()
                devices.prepare()
                self.seed = self.store.seed = processes.broadcast_from_rank_zero("the seed of the session", self.seed)
            self.started = True
            Resource.freeze()
            for job in list(self.jobs.values()):
                if not job.is_built:
                    with contextlib.suppress(Exception):  # the job keeps it
                        job.build()

    def build_all(self) -> None:
        """Traces every declared job. Raises the error of a broken one that was not raised before, once."""
        self.start()
        for job in list(self.jobs.values()):
            if job.unseen_error is not None:
                job.build()  # raises it

    def variables(self) -> dict[str, Variable]:
        """All variables of the declared jobs, optimizer state and step counters included. Starts the session."""
        self.start()
        return {name: cell.variable for name, cell in self.store.cells.items() if cell.variable is not None}

    def storage_of(self, name: str) -> Storage:
        """Where a variable lies."""
        storage = self.store.cells[name].storage
        assert storage is not None
        return storage

    def read(self, names: Any = None) -> dict[str, np.ndarray]:
        """Copies of the current values, all of one moment, after everything submitted."""
        self._check_open()
        dispatcher.drain()
        return self.store.read(self.store.cells if names is None else names)

    def snapshot(self, names: Any = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """``read`` and ``random_state`` of one moment, whatever other threads call."""
        self._check_open()
        dispatcher.drain()
        with contextlib.ExitStack() as locks:
            for stage in list(self._stages.values()):  # no call is between its batch and its step
                locks.enter_context(stage.lock)
            locks.enter_context(self.store.lock)
            return self.store.read(self.store.cells if names is None else names), self.random_state()

    def write(self, values: dict[str, np.ndarray]) -> None:
        """Replaces values, all or none. Shapes and dtypes must have been checked."""
        self._check_open()
        self.store.write(values)

    def sync(self) -> None:
        """Waits for everything submitted. Raises CallbackError for a callback that failed."""
        dispatcher.drain()
        if not dispatcher.on_delivery_thread():
            dispatcher.raise_error()

    # --- randomness

    def random_cell(self, job_name: str) -> Cell:
        """Seed and call counter of one job, as the device state its random ops draw from."""
        cell = self._random.get(job_name)
        if cell is None:
            cell = self._random[job_name] = Cell(None, self._random_value(0))
        return cell

    def _random_value(self, calls: int) -> Any:
        words = np.array([self.seed >> 32 & 0xFFFFFFFF, self.seed & 0xFFFFFFFF, calls], np.uint32)
        return Store.put(words)

    def add_host_stage(self, job_name: str, stage: HostStage) -> None:
        """A job's readers, which a checkpoint saves the position of; that of a job of this name before it is forgotten."""
        self._stages[job_name] = stage
        place = self._places.pop(job_name, None)
        if place is not None:
            stage.restore(place)

    def host_stages(self) -> list[HostStage]:
        """Of the jobs that were built so far."""
        return list(self._stages.values())

    def random_state(self) -> dict[str, Any]:
        """The seed, the number of calls each job with random ops has made, and where readers stand; JSON-able."""
        with self.store.lock:
            self.store.roll_forward()
            calls = {name: int(to_host(cell.value)[2]) for name, cell in self._random.items()}
        places = {**self._places, **{name: stage.state() for name, stage in self._stages.items()}}
        return {"seed": self.seed, "calls": calls, **({"readers": places} if places else {})}

    def set_random_state(self, state: dict[str, Any]) -> None:
        """Goes on where ``random_state`` was taken."""
        self.check_random_state(state)
        seed, calls = state["seed"], state.get("calls", {})
        with self.store.lock:
            self.store.roll_forward()
            self.seed = self.store.seed = seed
            for name in {*self._random, *calls}:
                self.random_cell(name).value = self._random_value(calls.get(name, 0))
        places = state.get("readers")
        for name, stage in self._stages.items():
            if places is not None and name in places:
                stage.restore(places[name])
            else:
                stage.begin_anew()
        if places is not None:
            self._places = {name: place for name, place in places.items() if name not in self._stages}

    @staticmethod
    def check_random_state(state: Any) -> None:
        """Raises ArgumentError for what ``set_random_state`` would not take."""
        seed, calls = (state.get("seed"), state.get("calls", {})) if isinstance(state, dict) else (None, None)
        good = type(seed) is int and 0 <= seed < 1 << 64 and isinstance(calls, dict)
        if not good or not all(type(n) is int and 0 <= n < 1 << 32 for n in calls.values()):  # type: ignore[union-attr]
            raise ArgumentError(f"not a random state: {state!r}"[:300])
        check_state(state.get("readers", {}))

    def reseed(self, seed: int) -> None:
        self.set_random_state({"seed": seed})

    # --- the end

    def close(self) -> None:
        """Waits for what was submitted; jobs of this session can no longer be called."""
        dispatcher.drain()
        self.closed = True
        for job in list(self._declared):
            job.release()
        self.jobs.clear()
        self.store.clear()
        self._random.clear()
        self._stages.clear()

    def _check_open(self) -> None:
        if self.closed:
            raise ModeError("this session was closed by flow.clear_default_session(); declare the job again")


_default = Session()


def default_session() -> Session:
    """The session that jobs are declared in."""
    return _default


def clear_default_session() -> None:
    """Waits for what was submitted, forgets all jobs and variables, and begins anew.

    Raises:
      ModeError: inside a job function.
    Example: >>> flow.clear_default_session()   # no jobs, no variables
    """
    global _default
    if current_or_none() is not None:
        refuse(ModeError, "flow.clear_default_session() cannot be called inside a job function")
    _default.close()
    Resource.reset()
    _default = Session()


def sync_default_session() -> None:
    """Waits until every submitted call, its callbacks included, has finished.

    Inside a callback it returns at once. Raises CallbackError where an earlier callback failed.

    Example: >>> flow.sync_default_session()   # all callbacks of earlier calls have run
    """
    _default.sync()


def skipped_images() -> int:
    """How many pictures the jobs of this session skipped so far (``flow.config.skip_corrupt_images(True)``)."""
    return sum(stage.skipped for stage in _default.host_stages())


def manual_seed(seed: int) -> None:
    """Makes initial values, dropout and ``flow.random`` reproducible, in this session and those that follow.

    Variables that have their first value already keep it; random ops begin their sequence anew.

    Args:
      seed: an int in [0, 2**63).
    Example: >>> flow.manual_seed(7)
    """
    global _manual_seed
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 1 << 63:
        refuse(ArgumentError, f"flow.manual_seed needs an int in [0, 2**63), got {seed!r}")
    _manual_seed = int(seed)
    _default.reseed(int(seed))
