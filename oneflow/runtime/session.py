"""Session: the jobs declared, their variables, and what is submitted."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .._base import check, memory
from .._base.refuse import refuse, warn
from ..config import Resource
from ..config._settings import nonfinite
from ..errors import ArgumentError, JobWarning, ModeError
from ..graph.graph import Graph, Variable, current_or_none
from . import devices, environment, processes
from .concurrent_weak_set import ConcurrentWeakSet
from .pieces import BlockRange, Blocks, Capture
from .pool import Pool, thread_count
from .process import process
from .store import Cell, Store
from .transfer import to_host

if TYPE_CHECKING:
    from ..compiler.layout import Storage
    from .host_pipeline import HostPipeline

_log = logging.getLogger("oneflow")


_CLOSED = "this session was closed by flow.clear_default_session()"


class Job(Protocol):
    """A job, as a session uses it."""

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
    def failure(self) -> str:
        """The first line of a broken job's error, once it has been traced; else ""."""
        ...

    def take_unseen_error(self) -> BaseException | None:
        """The error of a broken job if it has not been reported yet; from now on it counts as reported."""
        ...

    @property
    def variable_names(self) -> Iterable[str]:
        """The variables that it declares, as far as it has been traced."""
        ...

    def prepare_anew(self) -> None:
        """The next call looks where it is made, and whether anything has changed."""
        ...

    def invalidate(self) -> None:
        """Something that it was compiled for has moved: the next call compiles it again."""
        ...

    def close(self, why: str) -> None:
        """It cannot be called any more; ``why`` is in the error of later calls."""
        ...


class Session:
    """Jobs and variables that belong together. ``flow.clear_default_session()`` begins a new one."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.started = False
        self.closed = False
        self._why = ""  # it was closed
        self.seed = int.from_bytes(os.urandom(8), "little") >> 1 if process.seed is None else process.seed
        self.store = Store(self.seed, process.lock)
        self.build_lock = threading.RLock()  # held while jobs are traced, which shares out variables among them
        self.bodies_running = 0
        self._declared: ConcurrentWeakSet[Job] = ConcurrentWeakSet()  # those that were replaced, too
        self._names_of: dict[str, frozenset[str]] = {}  # by job: the variables of its last declaration that was traced
        self._random: dict[str, Cell] = {}
        self._pipelines: dict[str, HostPipeline] = {}
        self._all_pipelines: ConcurrentWeakSet[HostPipeline] = ConcurrentWeakSet()  # those of jobs that were replaced, too
        self._positions: dict[str, Any] = {}  # where the readers of jobs that are not built yet go on
        self._pool: Pool | None = None
        self._pool_lock = threading.Lock()
        process.sessions.add(self)

    # --- jobs

    def declare(self, job: Job) -> None:
        """Adds a job; one of the same name replaces it for new calls."""
        self.jobs[job.name] = job
        self._declared.add(job)

    def forget_job(self, job: Job, why: str, before: Job | None = None) -> None:
        """Takes a job out of the session: it cannot be called any more. Variables stay. ``before`` has its name again."""
        with self.store.lock:
            if self.jobs.get(job.name) is job:
                if before is not None:
                    self.jobs[job.name] = before
                    self._names_of[job.name] = frozenset(before.variable_names)
                else:
                    del self.jobs[job.name]
                    self._names_of.pop(job.name, None)
                    self._random.pop(job.name, None)
            self._declared.discard(job)
            job.close(why)

    @contextlib.contextmanager
    def running_a_body(self) -> Iterator[None]:
        """While a job's body runs, no call is prepared: a body must not call jobs, and a prepared call would not notice."""
        with self.build_lock:
            self.bodies_running += 1
            for job in self.jobs_declared():
                job.prepare_anew()
            try:
                yield
            finally:
                self.bodies_running -= 1

    def jobs_declared(self) -> list[Job]:
        """All jobs that can still be called, those that were replaced by others of their name included."""
        return list(self._declared)

    def declare_variables(self, job: Job, variables: Iterable[Variable], storages: Mapping[str, Storage]) -> None:
        """Makes room for a job's variables, where ``storages`` says, or finds it.

        Where a job was redefined and one of its variables has another shape or dtype now, all variables start again together
        that only this job uses, or jobs that were redefined, too: with optimizer state and steps, for a mixture of old and
        new would be of no use. Replaced jobs that used them cannot be called any more.

        Raises:
          VariableConflictError: a job that can still be called declares a variable otherwise; nothing is changed then.
        """
        variables = list(variables)
        others = [other for other in list(self.jobs.values()) if other is not job]
        used = {name for other in others for name in other.variable_names}
        cells, before = self.store.cells, self._names_of.get(job.name, frozenset())
        with self.store.lock:
            misfits = [v for v in variables if v.name in cells and v.name not in used and not self._agrees(v)]
            reset = self._abandoned(before | {v.name for v in misfits}, used) if misfits else []
            forgotten = {name: cells[name] for name in reset if name in cells}
            self.store.forget(reset)
            try:
                moved = self.store.declare(variables, storages, job.train)
            except Exception:
                cells.update(forgotten)
                raise
            if reset and job.name in self._random:
                self._random[job.name].value = self._random_value(0)
            for old in self._declared if reset else ():
                replaced = old is not job and self.jobs.get(old.name) is not old
                if replaced and (old.name == job.name or not forgotten.keys().isdisjoint(old.variable_names)):
                    old.close(f"job {old.name!r} was redefined, and its variables started again; call the new one")
            for other in others:
                if not {*moved}.isdisjoint(other.variable_names):
                    other.invalidate()
            self._names_of[job.name] = frozenset(v.name for v in variables)
        if reset:
            self._report_reset(job, misfits, reset)

    def _agrees(self, variable: Variable) -> bool:
        there = self.store.cells[variable.name].variable
        return there is None or variable.agrees(there)

    def _abandoned(self, names: Iterable[str], used: Collection[str]) -> list[str]:
        """The variables among ``names`` that no job uses, with all unused ones that jobs had together with them."""
        found = {*names}.difference(used)
        groups = [group.difference(used) for group in self._names_of.values()]
        while joined := [group for group in groups if not group <= found and not group.isdisjoint(found)]:
            found.update(*joined)
        return sorted(found)

    def _report_reset(self, job: Job, misfits: list[Variable], reset: list[str]) -> None:
        first = misfits[0]
        rest = [name for name in reset if name != first.name]
        _log.warning(
            "oneflow: job %r declares %s for variable %r (%s:%s), which had another form in a redefined job: it starts again%s",
            job.name, first.describe(), first.name, first.source.file, first.source.line,
            f", with all that went with it: {', '.join(rest)}" if rest else "",
        )  # fmt: skip

    def start(self) -> None:
        """Traces every declared job; a broken one raises at its own call, not here."""
        self.check_open()
        if self.started and all(job.is_built for job in list(self.jobs.values())):
            return
        with self.build_lock:
            if not self.started:
                environment.start()
                devices.prepare()
                self.seed = self.store.seed = processes.broadcast_from_rank_zero("the seed of the session", self.seed)
            self.started = True
            Resource.freeze()
            for job in list(self.jobs.values()):
                if not job.is_built:
                    try:
                        job.build()
                    except KeyboardInterrupt:
                        raise
                    except BaseException:  # noqa: S110 - the job keeps it, SystemExit of its body included
                        pass
            memory.settle(lambda: sum(job.build().bytes for job in list(self.jobs.values()) if not job.failure))
            devices.meet()

    def warn_of_broken_jobs(self) -> None:
        """Warns of jobs that cannot be built, unless that was reported: their own calls raise the error.

        Last of all, as a warning may be made an error: the work for other jobs is done then.
        """
        for job in list(self.jobs.values()):
            error = job.take_unseen_error()
            if error is not None:
                text = str(error) if isinstance(error, Exception) else repr(error)
                warn(JobWarning, f"job {job.name!r} cannot be built; the others go on, and its calls raise the error: {text}")

    def broken_jobs(self) -> dict[str, str]:
        """The jobs that cannot be built, by name, each with the first line of its error."""
        return {job.name: job.failure for job in list(self.jobs.values()) if job.failure}

    # --- variables

    def variables(self) -> dict[str, Variable]:
        """All variables of the declared jobs, optimizer state and step counters included. Starts the session."""
        self.start()
        cells = list(self.store.cells.items())  # one step of Python: no lock, which others hold while they dispatch
        return {name: cell.variable for name, cell in cells if cell.variable is not None}

    def storage_of(self, name: str) -> Storage:
        """Where and how a variable is stored."""
        storage = self.store.cells[name].storage
        assert storage is not None
        return storage

    def read(self, names: Any = None) -> dict[str, np.ndarray]:
        """Copies of the current values, all of one moment, after everything submitted."""
        names = None if names is None else list(names)
        self.check_open(names[0] if names is not None and len(names) == 1 else "")
        process.delivery.drain()
        with self.store.lock:
            self.check_open()
            return self.store.read(list(self.store.cells) if names is None else names)

    def capture(self, names: Any = None, *, whole: bool = False) -> Capture:
        """Values and random state of one moment, whatever other threads call, without waiting for what was submitted.

        Each process has its own pieces of the values; with ``whole``, which all processes must ask for, the first one has all.
        """
        self.check_open()
        with self._between_calls():
            self.check_open()
            pieces = self.store.pieces(list(self.store.cells) if names is None else names, whole)
            words = {name: cell.value for name, cell in self._random.items()}
            return Capture(pieces, words, self.seed, self._reader_positions())

    def blocks_by_process(self, name: str) -> dict[int, list[BlockRange]]:
        """Which blocks of a variable each process needs that has devices of it; the same in all processes."""
        with self.store.lock:
            return self.store.blocks_by_process(name)

    def exchange(self, values: Mapping[str, np.ndarray | Blocks], random_state: dict[str, Any] | None = None) -> None:
        """Replaces values, and the random state where one is given, all or none: Ctrl-C finds it done or not begun.

        Shapes, dtypes and the random state must have been checked. Devices may keep the memory of the arrays, which nobody else
        may have.
        """
        self.check_open()
        placed = self.store.place(values)

        def exchange() -> None:
            with self._between_calls():
                self.check_open()
                self.store.bind(placed)
                if random_state is not None:
                    self._set_random_state(random_state)
                for pipeline in list(self._pipelines.values()):
                    counted = [name for name in pipeline.counters if name in values]
                    pipeline.go_on_behind({name: int(n.item()) for name, n in self.store.read(counted).items()})

        process.uninterrupted.run(exchange, to_the_end=True)

    @contextlib.contextmanager
    def _between_calls(self) -> Any:
        """Inside, no call is between its batch and its step, and none is dispatched."""
        with contextlib.ExitStack() as locks:
            for pipeline in list(self._pipelines.values()):
                locks.enter_context(pipeline.lock)
            locks.enter_context(self.store.lock)
            yield

    def sync(self, *, and_calls_of_callbacks: bool = False) -> None:
        """Waits for everything submitted, and what its callbacks submit if asked to. Raises CallbackError for one that failed."""
        process.delivery.drain(and_calls_of_callbacks=and_calls_of_callbacks)
        process.delivery.raise_error()

    # --- randomness

    def random_cell(self, job_name: str) -> Cell:
        """Seed and call counter of one job, as the device state its random ops draw from."""
        with self.store.lock:  # others save, seed or clear them meanwhile
            cell = self._random.get(job_name)
            if cell is None:
                cell = self._random[job_name] = Cell(None, self._random_value(0))
            return cell

    def _random_value(self, calls: int) -> Any:
        words = np.array([self.seed >> 32 & 0xFFFFFFFF, self.seed & 0xFFFFFFFF, calls], np.uint32)
        return Store.put(words)

    def add_pipeline(self, job_name: str, pipeline: HostPipeline) -> None:
        """A job's readers, whose position a checkpoint saves; that of an earlier job of this name is saved no more."""
        self._pipelines[job_name] = pipeline
        self._all_pipelines.add(pipeline)
        if self.closed:  # meanwhile, by another thread
            pipeline.close()
        position = self._positions.pop(job_name, None)
        if position is not None:
            pipeline.restore(position)

    def pipelines(self) -> list[HostPipeline]:
        """Of the jobs that were built so far."""
        return list(self._pipelines.values())

    def pool(self) -> Pool:
        """The threads that the host pipelines of this session share."""
        with self._pool_lock:  # not the dispatch lock: a thread that reads ahead may be waited for with that one held
            if self._pool is None:
                process.start()
                self._pool = Pool(thread_count())
            return self._pool

    def random_state(self) -> dict[str, Any]:
        """The seed, the number of calls each job with random ops has made, and where readers stand; JSON-able."""
        with self.store.lock:
            self.store.commit()
            calls = {name: int(to_host(cell.value)[2]) for name, cell in self._random.items()}
        positions = self._reader_positions()
        return {"seed": self.seed, "calls": calls, **({"readers": positions} if positions else {})}

    def _reader_positions(self) -> dict[str, Any]:
        return {**self._positions, **{name: pipeline.state() for name, pipeline in list(self._pipelines.items())}}

    def set_random_state(self, state: dict[str, Any]) -> None:
        """Goes on where ``random_state`` was taken."""
        self.check_random_state(state)
        self.exchange({}, state)

    def _set_random_state(self, state: dict[str, Any]) -> None:
        seed, calls = state["seed"], state.get("calls", {})
        self.seed = self.store.seed = seed
        for name in {*self._random, *calls}:
            self.random_cell(name).value = self._random_value(calls.get(name, 0))
        positions = state.get("readers")
        for name, pipeline in list(self._pipelines.items()):
            if positions is not None and name in positions:
                pipeline.restore(positions[name])
            else:
                pipeline.begin_anew()
        if positions is not None:
            self._positions = {name: position for name, position in positions.items() if name not in self._pipelines}

    @staticmethod
    def check_random_state(state: Any) -> None:
        """Raises ArgumentError for what ``set_random_state`` would not take."""
        from .prefetcher import check_state  # it comes with the host stage, which not every program has

        seed, calls = (state.get("seed"), state.get("calls", {})) if isinstance(state, dict) else (None, None)
        good = type(seed) is int and 0 <= seed < 1 << 64 and isinstance(calls, dict)
        if not good or not all(type(n) is int and 0 <= n < 1 << 32 for n in calls.values()):  # type: ignore[union-attr]
            raise ArgumentError(f"not a random state: {state!r}"[:300])
        check_state(state.get("readers", {}))

    def reseed(self, seed: int) -> None:
        """Starts the random numbers again, from ``seed``."""
        self.set_random_state({"seed": seed})

    @contextlib.contextmanager
    def unchanged(self, job_name: str, variables: Iterable[str]) -> Iterator[None]:
        """At the end, the job's variables, random numbers and readers are what they were, whatever it has computed inside."""
        values = self.read(variables)
        pipeline, cell = self._pipelines.get(job_name), self._random.get(job_name)
        position = None if pipeline is None else pipeline.state()
        calls = 0 if cell is None else int(to_host(cell.value)[2])
        try:
            yield
        finally:
            self.exchange(values)
            with self._between_calls():
                if (cell := self._random.get(job_name)) is not None:
                    cell.value = self._random_value(calls)
                if pipeline is not None and position is not None:
                    pipeline.restore(position)

    # --- the end

    def close(self, why: str = _CLOSED) -> None:
        """Waits for what was submitted; jobs of this session can no longer be called, and say ``why``."""
        if self.closed:
            return
        self._why = why
        process.delivery.drain()
        for pipeline in self._all_pipelines:
            pipeline.close()  # a call that waits for data raises, and lets its lock go
        with self._between_calls():
            self.closed = self.store.is_closed = True
            for job in self._declared:
                job.close(why)
        process.delivery.drain()  # what other threads had submitted meanwhile
        self.stop_threads()
        with self.store.lock:
            self.jobs.clear()
            self.store.clear()
            for cell in self._random.values():  # jobs that the program still holds keep the cells
                cell.value = None
            self._random.clear()
            self._pipelines.clear()
        process.sessions.discard(self)

    def stop_threads(self, deadline: float | None = None) -> bool:
        """Ends the threads that read ahead, and then the pool's, to which they give work.

        Args:
          deadline: until when to wait for them (``time.monotonic``); None: as long as it takes.
        Returns: whether all have ended.
        """
        pipelines = list(self._all_pipelines)
        for pipeline in pipelines:
            pipeline.stop(0.0)  # all of them hear of it before one is waited for
        ended = [pipeline.stop(deadline) for pipeline in pipelines]
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop(drop=True)
            ended.append(pool.join(deadline))
        return all(ended)

    def after_fork(self) -> None:
        """In a forked child nothing can be called: JAX does not survive a fork. Each call says so."""
        self.store.lock = process.lock
        for job in self._declared:
            job.invalidate()

    def check_open(self, variable: str = "") -> None:
        """Raises ModeError where the session was closed, ForkError in a forked child.

        Args:
          variable: the one whose value is asked for; "" where a job is called, or something else done with the session.
        """
        process.check_not_forked()
        if not self.closed:
            return
        if variable:
            refuse(ModeError, f"variable {variable!r} has no value any more: {self._why}",
                   hint="read it before, or save it with flow.checkpoint.save")  # fmt: skip
        raise ModeError(f"{self._why}; declare the job again")


def _compile_again() -> None:
    """Makes the next call of every job compile it for the present settings."""
    for session in process.sessions:
        with session.store.lock:
            for job in session.jobs_declared():
                job.invalidate()


nonfinite.listeners.append(_compile_again)
process.default_session = Session()
_own: ContextVar[Session | None] = ContextVar("oneflow_session", default=None)  # of a ``with flow.session()`` block


def default_session() -> Session:
    """The session that jobs are declared in: that of the innermost ``with flow.session()`` block, else the process's."""
    return _own.get() or process.default_session


@contextlib.contextmanager
def as_default(session: Session) -> Iterator[None]:
    """Inside, in this thread, ``session`` is the default one."""
    if session is default_session():  # and stays the process's, which ``clear_default_session`` replaces for all
        yield
        return
    token = _own.set(session)
    try:
        yield
    finally:
        _own.reset(token)


def scope_of(session: Session) -> Callable[[], contextlib.AbstractContextManager[None]] | None:
    """What code of a session runs in on other threads; None for the process's own session."""
    return None if session is process.default_session else partial(as_default, session)


class SessionBlock(contextlib.ContextDecorator, contextlib.AbstractContextManager[Session]):
    """What ``flow.session()`` returns, for one ``with`` statement; a function that it decorates gets a session for each call."""

    def __init__(self, seed: int | None):
        self._seed = seed
        self._block: contextlib.AbstractContextManager[Session] | None = None

    def __enter__(self) -> Session:
        if self._block is not None:
            refuse(ModeError, "the block of this flow.session() has begun before, and each has a session of its own",
                   hint="with flow.session(): ..., which makes another one")  # fmt: skip
        block = _session_of_its_own(self._seed)
        session = block.__enter__()
        self._block = block
        return session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        assert self._block is not None
        return self._block.__exit__(kind, error, trace)

    def _recreate_cm(self) -> SessionBlock:
        return SessionBlock(self._seed)

    def __repr__(self) -> str:
        return f"<flow.session({'' if self._seed is None else f'seed={self._seed!r}'}), for a with statement>"


def session(seed: int | None = None) -> SessionBlock:
    """Begins a session of its own: variables, seed and jobs that are declared inside the ``with`` block belong to it alone.

    Sessions outside go on afterwards as if nothing had happened. The block belongs to the thread that entered it, and to the
    callbacks of its jobs; settings of ``flow.config`` remain those of the process.

    Args:
      seed: as for ``flow.manual_seed``, which inside the block sets the seed of this session alone.
    Raises:
      ModeError: inside a job function.
      CallbackError: at the end of the block, for a callback that failed.

    Example:
      >>> def final_loss(rate):
      ...     with flow.session(seed=1):   # the variables start again
      ...         @flow.global_function("train")
      ...         def train(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
      ...             loss = flow.math.square(flow.layers.dense(x, 1, name="line") - 1.0)
      ...             flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [rate])).minimize(loss)
      ...             return flow.math.reduce_mean(loss)
      ...         return [train(np.ones((8, 4), np.float32)) for _ in range(20)][-1]
      >>> losses = {rate: final_loss(rate) for rate in (0.1, 0.01)}
    """
    return SessionBlock(seed)


@contextlib.contextmanager
def _session_of_its_own(seed: int | None) -> Iterator[Session]:
    if current_or_none() is not None:
        refuse(ModeError, "flow.session() cannot be used inside a job function")
    made = Session()
    if seed is not None:
        made.reseed(_checked_seed(seed))
    with as_default(made):
        try:
            yield made
            default_session().sync()
        finally:
            default_session().close("the session of its `with flow.session()` block has ended")


def clear_default_session() -> None:
    """Waits for what was submitted, forgets all jobs and variables, and starts a new session.

    Raises:
      ModeError: inside a job function.
    Example: >>> flow.clear_default_session()   # no jobs, no variables
    """
    if current_or_none() is not None:
        refuse(ModeError, "flow.clear_default_session() cannot be called inside a job function")
    default_session().close()
    if _own.get() is not None:
        _own.set(Session())
        return
    Resource.reset()
    nonfinite.set(False)
    process.named_cpu_devices = 1
    process.default_session = Session()


def sync_default_session() -> None:
    """Waits until every submitted call, its callbacks and summaries included, has finished.

    Inside a callback it returns at once. Raises CallbackError where an earlier callback failed, the CheckpointError of a
    save in the background that has failed, and the error of a summary that could not be written.

    Example: >>> flow.sync_default_session()   # all callbacks of earlier calls have run
    """
    default_session().sync(and_calls_of_callbacks=True)
    if not process.delivery.is_current():
        process.saves.raise_error()
        if process.summary_writer is not None:
            process.summary_writer.wait()
            process.delivery.raise_kept()


def skipped_images() -> int:
    """How many images the jobs of this session skipped so far (``flow.config.skip_corrupt_images(True)``)."""
    return sum(pipeline.skipped for pipeline in default_session().pipelines())


def manual_seed(seed: int) -> None:
    """Makes initial values, dropout and ``flow.random`` reproducible, in this session and those that follow.

    Variables that have their first value already keep it; random ops restart their sequence. Inside a
    ``with flow.session()`` block only the session of that block is meant.

    Args:
      seed: an int in [0, 2**63).
    Example: >>> flow.manual_seed(7)
    """
    if _own.get() is None:
        process.seed = _checked_seed(seed)
    default_session().reseed(_checked_seed(seed))


def _checked_seed(seed: Any) -> int:
    found, problem = check.integer(seed, low=0, high=2**63 - 1)
    if problem:
        refuse(ArgumentError, f"a seed {problem}")
    return found
