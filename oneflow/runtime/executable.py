"""A compiled job: takes feeds, runs the step, binds the new state."""

from __future__ import annotations

import functools
import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from .._base import memory as _memory
from .._base.dist import Placement
from .._base.jax import jax
from .._base.log import notice
from ..compiler.cudnn_attention import limits_of, with_cudnn_attention
from ..compiler.layout import Layout, Storage, layout_of
from ..compiler.lowering import Observer
from ..compiler.options import compiler_options, cpu_options, product_precision
from ..compiler.plan import LEARNING_RATES, RANDOM_STATE, Plan, on_one_place, with_fused_products, with_own_values
from ..compiler.program import Stateless, feed_shardings, is_stateless, place_of, single
from ..compiler.stages import Compile, staged
from ..compiler.stages.segments import homes_of
from ..config._settings import nonfinite as find_nonfinite
from ..errors import CompileError, CustomOpError, ExecutionError, ModeError, NonFiniteError, ProcessError
from ..graph import callback
from ..graph.graph import OP_INPUT, Graph
from ..graph.node import Blob, Node
from . import compilation_cache, kept_programs, nonfinite, processes, size_limit
from .delivery import MAX_WINDOW
from .gate import Gate, NoRoomError, Results, StaleExecutableError
from .mesh import DeviceMeshes
from .prepared import Prepared
from .process import process
from .result import Delivery
from .store import Cell, Store
from .transfer import Part, readable, to_global, to_host

_DEBUG_SETTINGS = "jax_debug_nans or jax_debug_infs"
_log = logging.getLogger("oneflow")

Merge = Callable[[Results], Results]


@dataclass(slots=True)
class Statistics:
    """The cost of building a job and the memory of its executable, in seconds and bytes."""

    trace_seconds: float = 0.0
    lower_seconds: float = 0.0
    compile_seconds: float = 0.0
    temporary_bytes: int | None = None
    code_bytes: int | None = None
    largest_temporary_bytes: int | None = None


class StatelessStep(NamedTuple):
    """``fetch(*feeds)`` gives the fetched arrays. Only with ``lock`` held, and where ``is_ready()``: else ``launch`` is asked."""

    fetch: Callable[..., Any]
    lock: AbstractContextManager[Any]
    is_ready: Callable[[], bool]


class Executable:
    """One job, compiled for one set of feed shapes."""

    def __init__(self, plan: Plan, store: Store, random_cell: Cell, rates: Cell, compile: Compile | None = None):
        """``compile`` compiles for devices that are not here; None for those of the session."""
        self._compile_elsewhere = compile
        self.statistics = Statistics()
        self.compiled: list[tuple[str, Any]] = []  # name and ``jax.stages.Compiled``
        self._store = store
        self._written = [random_cell if name == RANDOM_STATE else store.cells[name] for name in plan.written]
        self._x64 = plan.x64
        self._function: Any = None
        self._feeds_given: Any = ()  # shapes and dtypes it was compiled for
        self._warm = False
        self._is_stale = False
        cells = [*self._written, *(store.cells[name] for name in plan.variables if name in store.cells)]
        self._storages = {c.variable.name: c.storage for c in cells if c.variable is not None and c.storage is not None}
        self.debugging = debugging()
        plan = replace(plan, keeps_state=True) if any(self.debugging) else plan
        self.unfused = self.plan = plan = with_own_values(plan, self._storages)  # to look at, and to run op by op
        self._meshes: DeviceMeshes | None = store.meshes
        places = [node.scope.placement for node in plan.compute] or [plan.graph.scope.placement]
        places += [storage.layout.placement for storage in self._storages.values()]
        distinct = {store.meshes.place(p): store.meshes.devices(p) for p in places}
        # run after run: memory holds one run's values; only stages return tuples of the devices' values
        self.is_staged = len(distinct) > 1 or plan.repeats or bool(plan.devices)
        if not self.is_staged and store.meshes.is_default(places[0]):
            self._meshes = None  # JAX's default device: no layouts to say
            if compile is None and not any(self.debugging):  # what looks for NaNs tells which op made them
                self.plan = plan = with_fused_products(plan)
        elif self.is_staged and plan.prepared:
            raise ModeError(_several_places(plan, places[0]))
        if plan.cudnn_attention and plan.platform == "gpu" and not any(self.debugging):
            limits = limits_of([d for devices in distinct.values() for d in devices])
            self.plan = plan = with_cudnn_attention(plan, limits, homes_of(plan, store.meshes) if self.is_staged else None)
            for note in plan.notes if compile is None else ():  # a plan for a target says it itself
                notice(f"job {plan.graph.name!r}: {note}")
        if not self.is_staged:
            self.plan = on_one_place(plan, max(map(len, distinct.values())))
        self._prepared = Prepared(plan, store) if plan.prepared else None  # the last that the step reads
        self._sources = self._prepared.sources if self._prepared else []  # variables that only what is prepared depends on
        self._read = self._cells(plan, rates)
        self._rates = rates
        self._together = processes.count() > 1
        if self._together and self.debugging[2]:
            raise ModeError("flow.config.find_nonfinite works in runs of one process; this one has several")
        collective = any(len(d) > 1 and d[0].platform == "cpu" for d in distinct.values())
        self._on_cpu = any(d[0].platform == "cpu" for d in distinct.values())
        if not self._on_cpu:
            self._options = compiler_options(plan.platform, max(map(len, distinct.values())))
        else:
            self._options = {} if self.is_staged else cpu_options(plan)
        self._gate: Gate | None = process.collectives if collective and not self._together else None
        self.window = 1 if self._together else MAX_WINDOW  # calls that may be undelivered
        self._label = f"job {plan.graph.name!r}"

    def _cells(self, plan: Plan, rates: Cell) -> list[Cell]:
        """The state that a step of a plan only reads, without what is prepared."""
        read = plan.read[: len(plan.read) - len(plan.prepared)]
        return [rates if name == LEARNING_RATES else self._store.cells[name] for name in read]

    @property
    def graph(self) -> Graph:
        """The graph of the job."""
        return self.plan.graph

    @property
    def is_outdated(self) -> bool:
        """Whether a variable has moved since this was made. Asked with the dispatch lock held."""
        cells = [c for c in (*self._written, *self._read, *self._sources) if c.variable is not None]
        return any(c.storage != self._storages[c.variable.name] for c in cells if c.variable is not None)

    def invalidate(self) -> None:
        """Calls raise StaleExecutableError from now on. Called with the dispatch lock held."""
        self._is_stale = True

    def compile(self, feeds: Sequence[Any]) -> None:
        """Compiles for feeds of these shapes, and gives variables that have none their first values.

        Raises what an initializer, the trace or the compiler raises, and changes nothing then.
        """
        cells = [*self._written, *self._read, *self._sources]
        if any(cell.value is None for cell in cells):
            with self._store.lock:
                self._store.commit()
                self._store.materialize(cells)
        if self._function is None:
            if self._together:
                processes.check_same(self._label, self._lines(feeds))
                self._compare(feeds)
            with processes.busy(f"compiling {self._label}"):
                self.compile_only(feeds)

    def _compare(self, feeds: Sequence[Any]) -> None:
        """Warns where processes feed different values in the first call: each device takes its piece from its own process."""

        def is_whole(blob: Blob, value: Any) -> bool:  # the host stage has put its batches on the devices of all
            return not isinstance(value, Part) and (blob.node.op is OP_INPUT or not isinstance(value, jax.Array))

        found = [
            [zlib.crc32(a.tobytes()) for a in jax.tree.leaves(feed) if is_whole(blob, a)]
            for blob, feed in zip(self.plan.feeds, feeds, strict=True)
        ]
        parts = [zlib.crc32(feed.array.tobytes()) for feed in feeds if isinstance(feed, Part) and _varies(feed.array)]
        everyone = processes.gather(f"comparing what {self._label} is fed", (found, parts))
        if not processes.is_first():
            return
        for index, (theirs, its_parts) in enumerate(everyone):
            for blob, mine, its in zip(self.plan.feeds, found, theirs, strict=True):
                if mine != its:
                    _log.warning(
                        "oneflow: process %d feeds other values for %r of %s than process 0; every process must feed the same "
                        "batch: seed what draws or shuffles it, or let each feed its own part (config.feed_own_part)",
                        index, blob.node.name, self._label,
                    )  # fmt: skip
            if index and parts and parts == its_parts:
                _log.warning(
                    "oneflow: process %d feeds the same values as process 0 for its own part of the batches of %s: give each "
                    'process other data: flow.data.ArrayLoader(..., shard=(rank, count)), or a DistributedSampler',
                    index, self._label,
                )  # fmt: skip
        self._compare_lists(feeds)

    def _compare_lists(self, feeds: Sequence[Any]) -> None:
        """Warns where all devices of the mirrored view are fed the same arrays."""
        fed = [f for blob, f in zip(self.plan.feeds, feeds, strict=True) if blob.node.op is OP_INPUT and blob.is_mirrored]
        lists = [tuple(feed) for feed in fed if isinstance(feed, (tuple, np.ndarray)) and len(feed) > 1]
        arrays = [each for each in lists if all(isinstance(a, np.ndarray) for a in each) and _varies(each[0])]
        if arrays and all(np.array_equal(first, a) for first, *others in arrays for a in others):
            _log.warning(
                "oneflow: all devices are fed the same arrays in the first call of %s: in the mirrored view each takes its own "
                "piece of the batch: np.split(batch, %d)",
                self._label, len(arrays[0]),
            )  # fmt: skip

    def _lines(self, feeds: Sequence[Any]) -> list[str]:
        """The job as lines, for comparison with other processes."""
        fed = [f"fed {b.describe()}: {jax.tree.map(np.shape, feed)}" for b, feed in zip(self.plan.feeds, feeds, strict=True)]
        nodes = [
            f"{node.op.name} {node.name!r}: {', '.join(b.describe() for b in node.outputs)} on {node.scope.placement}"
            for node in self.plan.order
        ]
        return [f"{'train' if self.graph.train else 'predict'} job {self.graph.name!r}", *fed, *nodes]

    def compile_only(self, feeds: Sequence[Any]) -> None:
        """Compiles for feeds of these shapes (arrays or ShapeDtypeStructs); no variable needs a value."""
        if self._function is not None:
            return
        if self._on_cpu:
            size_limit.check(self.plan)
        self._feeds_given = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), self._flat(feeds))
        arguments = self._arguments(self._feeds_given)
        if self.is_staged:
            assert self._meshes is not None
            with jax.enable_x64(True), product_precision(self.plan):
                start = time.perf_counter()
                program = staged(self.plan, self._storages, self._meshes, arguments, self._compiled)
                seconds = time.perf_counter() - start - self.statistics.compile_seconds - self.statistics.lower_seconds
                self.statistics.trace_seconds = seconds
            self.compiled = [(f.name, f.made) for f in program.functions]
            self._function = program
            return
        key = self._key(arguments)
        if key is not None and self._has_kept(key):
            return
        function = single(self.plan, self._storages, self._meshes, options=self._options)
        start = time.perf_counter()
        with jax.enable_x64(True) if self._x64 else nullcontext():
            traced = function.trace(*arguments)
            self.statistics.trace_seconds = time.perf_counter() - start
            compiled = self._compiled(traced, self._input_shardings(arguments), is_kept=key is not None)
        if key is not None:
            kept_programs.save(key, compiled, self.statistics.temporary_bytes, self.statistics.code_bytes)
        self.compiled = [("step", compiled)]
        self._function = function

    def _key(self, arguments: Any) -> str | None:
        """The name of the job's program on disk; None where it is not kept there."""
        is_left_out = self._meshes is not None or self._together or any(self.debugging) or self._compile_elsewhere is not None
        return None if is_left_out else kept_programs.key_of(self.unfused, self._storages, arguments)

    def _has_kept(self, key: str) -> bool:
        """Takes the program that another process has compiled, where there is one."""
        start = time.perf_counter()
        with jax.enable_x64(True) if self._x64 else nullcontext():
            found = process.uninterrupted.run(lambda: kept_programs.load(key), compiles=True)
        if found is None:
            return False
        self.statistics.compile_seconds = time.perf_counter() - start
        self.statistics.temporary_bytes = self.statistics.largest_temporary_bytes = found.temporary_bytes
        self.statistics.code_bytes = found.code_bytes
        self.compiled = [("step", found.compiled)]
        self._function = Stateless(found.function) if is_stateless(self.plan) else found.function
        return True

    @property
    def function(self) -> Any:
        """The function that runs the step; None before it is compiled."""
        return self._function

    @property
    def storages(self) -> Mapping[str, Storage]:
        """Where the job's variables are kept, by name."""
        return self._storages

    def layouts(self) -> dict[tuple[Node, int], Layout]:
        """The layouts that XLA has chosen for the values of nodes, on several devices. Compiles the job once more."""
        if self._meshes is None or all(node.scope.placement.parallel_num == 1 for node in self.plan.compute):
            return {}
        found: dict[tuple[Node, int], Layout] = {}

        plan = replace(self.plan, arrangement=None)  # the nodes of the graph, not their rearranged copies

        class Layouts(Observer):
            def forward(self, node: Node, outputs: tuple[Any, ...]) -> None:
                if node.scope.placement.parallel_num > 1 and node not in plan.vmapped:
                    for i, array in enumerate(outputs):

                        def note(sharding: Any, key: tuple[Node, int] = (node, i)) -> None:
                            found[key] = layout_of(sharding, key[0].scope.placement)

                        jax.debug.inspect_array_sharding(array, callback=note)

        arguments = self._arguments(self._feeds_given)
        with jax.enable_x64(True):
            if self.is_staged:
                staged(self.plan, self._storages, self._meshes, arguments, lambda traced, _: traced.lower().compile(), Layouts())
            else:
                single(plan, self._storages, self._meshes, Layouts()).trace(*arguments).lower().compile()
        return found

    def arguments(self) -> list[Any]:
        """Shapes, dtypes and layouts of the step's arguments, in order."""
        found: list[Any] = jax.tree.leaves(self._arguments(self._feeds_given))
        return found

    def _arguments(self, feeds: Any) -> tuple[Any, Any, Any]:
        return tuple(map(self._struct, self._written)), self._read_structs(), feeds

    def _read_structs(self) -> tuple[Any, ...]:
        return (*map(self._struct, self._read), *(self._prepared.structs() if self._prepared else ()))

    def _compiled(self, traced: Any, shardings: Sequence[Any] = (), *, is_kept: bool = False) -> Any:
        """Lowers and compiles; what is kept on disk by itself is not put into XLA's cache, out of which it could not be kept."""
        if self._compile_elsewhere is not None:
            return self._compile_elsewhere(traced, shardings)
        options = (self._options or None) if self.is_staged else None  # of a single function, its ``jax.jit`` has them
        start = time.perf_counter()
        lowered = traced.lower()
        self.statistics.lower_seconds += time.perf_counter() - start
        start = time.perf_counter()
        with nullcontext() if is_kept else compilation_cache.enabled():
            compiled = process.uninterrupted.run(lambda: lowered.compile(options), compiles=True)
        self.statistics.compile_seconds += time.perf_counter() - start
        self._note_memory(compiled)
        return compiled

    def _struct(self, cell: Cell) -> Any:
        """Shape, dtype and layout of a piece of state."""
        if cell.variable is None:
            return jax.ShapeDtypeStruct(cell.value.shape, cell.value.dtype, sharding=self._outer_sharding())
        storage, dt = cell.storage, cell.variable.dtype.numpy_dtype
        assert storage is not None
        if self._meshes is None:
            return jax.ShapeDtypeStruct(storage.stored_shape, dt)
        sharding = self._meshes.sharding(storage.layout.placement, storage.spec)
        return jax.ShapeDtypeStruct(storage.stored_shape, dt, sharding=sharding)

    def _input_shardings(self, arguments: tuple[Any, Any, Any]) -> list[Any]:
        """The shardings of the step's inputs, in order, on one place; none on JAX's default device."""
        if self._meshes is None:
            return []
        return [*(a.sharding for a in (*arguments[0], *arguments[1])), *feed_shardings(self.plan, self._meshes)]

    def _outer_sharding(self) -> Any:
        return None if self._meshes is None else self._meshes.sharding(self.graph.scope.placement, ())

    def _note_memory(self, compiled: Any) -> None:
        try:
            memory = compiled.memory_analysis()
        except Exception:  # not every backend reports it
            return
        for name, found in (("temporary_bytes", "temp_size_in_bytes"), ("code_bytes", "generated_code_size_in_bytes")):
            size = getattr(memory, found, None)
            if size is not None:
                setattr(self.statistics, name, (getattr(self.statistics, name) or 0) + size)
        size = getattr(memory, "temp_size_in_bytes", None)
        if size is not None:
            self.statistics.largest_temporary_bytes = max(self.statistics.largest_temporary_bytes or 0, size)

    @staticmethod
    def _values(cells: list[Cell]) -> tuple[Any, ...]:
        return tuple([cell.value for cell in cells])

    def _read_values(self) -> tuple[Any, ...]:
        return (*self._values(self._read), *(self._prepared.values() if self._prepared else ()))

    # --- calls

    def launch(self, feeds: Sequence[Any], delivery: Delivery | None = None, merge: Merge | None = None) -> Any:
        """Runs one step. Returns its results, or with a ``delivery`` the Result that was queued for it.

        ``merge`` puts what the step did not compute into its results.

        Raises:
          NoRoomError: too many calls are undelivered or in flight; nothing was done.
          StaleExecutableError: it was invalidated, or compiled for another setting of jax_debug_nans; nothing was done.
        """
        if debugging() != self.debugging:
            raise StaleExecutableError
        if self.plan.devices:
            feeds = self._flat(feeds)
        if not self._warm:
            # JAX's first call of a function goes through Python code, where Ctrl-C could lose the new state
            return process.uninterrupted.run(lambda: self._first_launch(feeds, delivery, merge))
        if self.is_staged or self._together:  # Python code between the pieces
            return process.uninterrupted.run(lambda: self._launch(feeds, delivery, merge))
        return self._launch(feeds, delivery, merge)

    def stateless(self) -> StatelessStep | None:
        """A step that reads and changes nothing but its feeds, for those who launch it themselves; None for any other."""
        if not isinstance(self._function, Stateless) or self._x64 or self._gate is not None or self._together:
            return None
        settings, (nans, infs, _) = _settings(), self.debugging

        def is_ready() -> bool:
            return self._warm and not self._is_stale and settings.jax_debug_nans is nans and settings.jax_debug_infs is infs

        return StatelessStep(self._function.fetch, self._store.lock, is_ready)

    def launcher(self) -> Callable[[Any, Delivery | None], Any]:
        """``launch``, with all that need not be asked at each call found out once."""
        if self.is_staged or self._together or self.plan.devices:
            return self.launch
        lock, store, function = self._store.lock, self._store, self._function
        pending, bind, written, read = store.pending, self._bind, self._written, self._read
        submit, has_room, x64 = process.delivery.submit, process.delivery.has_room, self._x64
        prepared = self._prepared
        (nans, infs, _), settings = self.debugging, _settings()
        check_room = self._gate.check_room if self._gate is not None else None
        is_noted = bool(written) or check_room is not None

        def launch(feeds: Any, delivery: Delivery | None) -> Any:
            if not self._warm:
                return self.launch(feeds, delivery)
            with lock:
                if self._is_stale or settings.jax_debug_nans is not nans or settings.jax_debug_infs is not infs:
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
                    with jax.enable_x64(True):
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
        if debugging()[:2] == self.debugging[:2]:
            return nullcontext()
        nans, infs, _ = self.debugging
        settings = ExitStack()
        settings.enter_context(jax.debug_nans(nans))
        settings.enter_context(jax.debug_infs(infs))
        return settings

    def _admit(self, delivery: Delivery | None) -> None:
        """The one gate of all calls, synchronous and asynchronous. With the lock held, so that what it finds stays true."""
        if self._is_stale:
            raise StaleExecutableError
        if delivery is not None and not process.delivery.has_room(self.window):
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
        # the call that finds out whether there is memory enough; a step that fails has its donated state destroyed
        with self._store.lock, self._as_its_caller():
            self._admit(delivery)
            self._store.commit()
            self._place_rates()
            restore = [self._restoring(cell) for cell in self._written]
            callback.take()
            try:
                with processes.quiet(), processes.explained():
                    results = self._step(feeds)
                    jax.block_until_ready((results, self._values(self._written)))
                problem = callback.take()
                if problem is not None:
                    raise problem
                if self.debugging[2]:
                    self._look_for_nonfinite(results, [value() for value in restore], feeds)
                if delivery is None:
                    processes.returned()
            except Exception as error:
                processes.returned()
                for cell, value in zip(self._written, restore, strict=True):
                    cell.value = value()
                raise (error if isinstance(error, (CustomOpError, NonFiniteError, ProcessError)) else self._failed(error)) from (
                    error.__cause__ or error
                )
            self._warm = not self.plan.transactional
            if self._warm:
                del restore
                _memory.give_back()
            return self._submit(results, delivery, merge)

    def _restoring(self, cell: Cell) -> Callable[[], Any]:
        """The function that returns the present value of a piece of state when a step has failed.

        The step may have destroyed the array. What an initializer drew is drawn again then, so that no second copy of all new
        variables is in memory during the first step; of everything else there is a copy.
        """
        if self.plan.transactional:
            kept = cell.value
            return lambda: kept
        redrawing = self._store.redrawing(cell)
        if redrawing is not None:
            return redrawing
        value, sharding = to_host(cell.value), self._struct(cell).sharding
        return functools.partial(Store.put, value) if sharding is None else functools.partial(to_global, value, sharding)

    def _place_rates(self) -> None:
        """Puts learning rates where the step reads them, so that no call has to."""
        if self._meshes is None or self.is_staged or self._together:
            return
        for cell in self._read:
            if cell.variable is None:
                cell.value = jax.device_put(cell.value, self._meshes.sharding(place_of(self.plan), ()))

    def find_nonfinite(self, feeds: Sequence[Any]) -> nonfinite.NonFinite | None:
        """Runs the next step op by op, changes nothing, and reports the first value that is not finite; None for none."""
        with self._store.lock:
            self._store.commit()
            self._store.materialize([*self._written, *self._read, *self._sources])
            read = self._values(self._cells(self.unfused, self._rates))
            if self.unfused.prepared and self._prepared is not None:
                read += self._prepared.values()
            state, reads = ([to_host(a) for a in values] for values in (self._values(self._written), read))
        return nonfinite.find(self.unfused, self._storages, state, reads, self._flat(feeds))[0]

    def _look_for_nonfinite(self, results: Results, before: Sequence[Any], feeds: Sequence[Any]) -> None:
        if nonfinite.is_finite((self._values(self._written), results)):
            return
        found, is_finite = nonfinite.find(self.plan, self._storages, before, self._read_values(), feeds)
        if found is not None and found.reaches_results:
            raise NonFiniteError(f"{found}\n  its state  as it was before this call", found)
        if is_finite:
            graph = self.graph
            raise NonFiniteError(
                f"a step of job {graph.name!r} computed NaNs or infinities, which it does not when it is run op by op: numbers "
                f"near the limits of a dtype are rounded otherwise in the compiled step\n"
                f"  the job    {graph.source}   {graph.source.text if graph.source else ''}\n"
                f"  its state  as it was before this call\n"
                f"  try        scale the loss or the inputs down, or compute in float32 or float64"
            )

    def _failed(self, error: Exception) -> ExecutionError:
        graph = self.graph
        if (found := _nan(error)) is not None:
            return ExecutionError(self._nan_text(error, found))
        return ExecutionError(
            f"a step of job {graph.name!r} failed on the device: {str(error).splitlines()[0][:500]}\n"
            f"  the job    {graph.source}   {graph.source.text if graph.source else ''}\n"
            f"  its state  as it was before this call\n"
            f"  try        smaller shapes; job.summary() shows the working memory that the compiled job needs"
        )

    def _nan_text(self, error: Exception, found: BaseException) -> str:
        if isinstance(error, CompileError):  # JAX has run the step once more, op by op, and an op was found
            first, *rest = str(error).replace("cannot be compiled", f"has a result that {_DEBUG_SETTINGS} stops at").splitlines()
        else:
            graph = self.graph
            first = f"a step of job {graph.name!r} computed what {_DEBUG_SETTINGS} stops at: {' '.join(map(str, found.args))}"
            rest = [f"  the job    {graph.source}   {graph.source.text if graph.source else ''}"]
        return "\n".join([first, *rest, "  its state  as it was before this call"])

    def _step_together(self, feeds: Sequence[Any]) -> Results:
        """A step that other processes run, too: all feed the same, and each gets all that the call delivers."""
        assert self._meshes is not None
        processes.entered(self._label)
        try:
            with jax.enable_x64(True):
                state = self._meshes.move(self._values(self._written), [self._struct(c).sharding for c in self._written])
                reads = self._meshes.move(self._read_values(), [struct.sharding for struct in self._read_structs()])
                if not self.is_staged:
                    feeds = self._meshes.move(feeds, feed_shardings(self.plan, self._meshes))
                new, fetched, watched, token = self._function(tuple(state), tuple(reads), tuple(feeds))
                for cell, value in zip(self._written, new, strict=True):
                    cell.value = value
                return jax.tree.map(readable, fetched), jax.tree.map(readable, watched), token
        except BaseException:
            processes.returned()
            raise

    def _flat(self, feeds: Sequence[Any]) -> tuple[Any, ...]:
        """The feeds, one for each that the plan has: those of devices one by one where the shapes of any input differ."""
        devices = self.plan.devices
        if not devices:
            return tuple(feeds)
        copies = {node for each in devices.values() for node in each}
        blobs, found = iter(self.plan.feeds), []
        for feed in feeds:  # inputs of equal shapes are stacked
            blob = next(blobs)
            pieces = list(feed) if blob.node in copies else [feed]
            for _ in pieces[1:]:
                next(blobs)
            found += pieces
        return tuple(found)

    def _step(self, feeds: Sequence[Any]) -> Results:
        """Hands one step to XLA and binds its new state. Called with the lock held."""
        if self._together:
            return self._step_together(feeds)
        store = self._store
        if store.pending:
            store.commit()
        state, reads = self._values(self._written), self._read_values()
        store.bind_pending = self._bind
        pending = store.pending
        # from here to the end of the line no Python code runs after the step, so no interrupt can lose its outputs
        with jax.enable_x64(True) if self._x64 else nullcontext():
            deque(map(pending.append, map(self._function, (state,), (reads,), (feeds,))), maxlen=0)
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

    def hlo(self) -> str:
        """The compiled program as text, for the curious."""
        return "\n\n".join(compiled.as_text() for _, compiled in self.compiled)


def _varies(array: np.ndarray) -> bool:
    """Whether not all elements are equal: constants may be the same everywhere on purpose."""
    return bool(array.size) and bool((array != array.flat[0]).any())


def _settings() -> Any:
    return jax.config  # its settings are not typed


def debugging() -> tuple[bool, bool, bool]:
    """Whether JAX looks for NaNs and for infinities in all results, and whether we do. A step may be run again, which needs the
    old state."""
    settings = _settings()
    return settings.jax_debug_nans, settings.jax_debug_infs, find_nonfinite.is_on


def _nan(error: BaseException | None) -> BaseException | None:
    """JAX's own error of a NaN among the causes of an error."""
    while error is not None and not isinstance(error, FloatingPointError):
        if type(error).__name__ == "InternalFloatingPointError":  # of functions that were compiled ahead; not public
            return error
        error = error.__cause__
    return error


def _several_places(plan: Plan, first: Placement) -> str:
    """The error of an int8 job that lies on several places."""
    other = next((node for node in plan.compute if node.scope.placement != first), None)
    rows = [f"  the job    on {first}"]
    if other is not None:
        rows.append(f"  op         {other.name}   on {other.scope.placement}   {other.source}   {other.source.text}")
    return (
        f"job {plan.graph.name!r} is in int8 and lies on several places: int8 inference works on one\n" + "\n".join(rows) + "\n"
        "  try        one flow.scope.placement around all of the body, and around the jobs that share its variables"
    )
