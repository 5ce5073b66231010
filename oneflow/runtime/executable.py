"""A compiled job: its plan for the devices at hand, lowered and compiled; ``launching.py`` runs it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .._base import jax_versions
from .._base.dist import Placement
from .._base.jax import jax, prepare_lowering
from .._base.log import notice
from .._base.refuse import refuse
from ..compiler.layout import Layout, Storage, layout_of
from ..compiler.lowering import Observer
from ..compiler.options import NAMED_KERNELS, compiler_options, cpu_options, product_precision
from ..compiler.plan import RANDOM_STATE, Plan, on_one_place, with_fused_products, with_own_values
from ..compiler.program import Stateless, is_stateless, rewritten_step, single
from ..compiler.wide_reductions import options_for_reductions
from ..errors import CompileError, ModeError
from ..graph.graph import Graph
from ..graph.node import Node
from . import compilation_cache, kept_programs, processes, size_limit
from .agreement import check_agreement
from .debugging import debugging
from .first_run import row_of
from .launching import Launcher, flat_feeds
from .mesh import DeviceMeshes
from .process import process
from .step_state import StepState
from .store import Cell, Store
from .transfer import to_host

if TYPE_CHECKING:
    from ..compiler.stages import Compile
    from .nonfinite import NonFinite

_EMITTERS = "xla_cpu_use_fusion_emitters"  # which fail for some programs (jaxlib 0.10)


@dataclass(slots=True)
class Statistics:
    """The cost of building a job and the memory of its executable, in seconds and bytes."""

    trace_seconds: float = 0.0
    lower_seconds: float = 0.0
    compile_seconds: float = 0.0
    temporary_bytes: int | None = None
    code_bytes: int | None = None
    largest_temporary_bytes: int | None = None


class Executable:
    """One job, compiled for one set of feed shapes.

    Attributes:
      launcher: runs the step.
      plan: what is compiled; ``unfused``: the same as the graph has it, to look at and to run op by op.
      debugging: the settings that look for NaNs, which it is compiled for.
      compiled: the programs by name, each a ``jax.stages.Compiled``.
    """

    def __init__(self, plan: Plan, store: Store, random_cell: Cell, rates: Cell, compile: Compile | None = None):
        """``compile`` compiles for devices that are not here; None for those of the session."""
        self._compile_elsewhere = compile
        self.statistics = Statistics()
        self.compiled: list[tuple[str, Any]] = []
        self._store = store
        written = [random_cell if name == RANDOM_STATE else store.cells[name] for name in plan.written]
        self._feeds_given: Any = ()  # shapes and dtypes it was compiled for
        cells = [*written, *(store.cells[name] for name in plan.variables if name in store.cells)]
        self._storages = {c.variable.name: c.storage for c in cells if c.variable is not None and c.storage is not None}
        self.debugging = debugging()
        plan = replace(plan, keeps_state=True) if any(self.debugging) else plan
        self.unfused = self.plan = plan = with_own_values(plan, self._storages)
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
            from ..compiler.cudnn_attention import limits_of, with_cudnn_attention
            from ..compiler.stages.segments import homes_of

            limits = limits_of([d for devices in distinct.values() for d in devices])
            self.plan = plan = with_cudnn_attention(plan, limits, homes_of(plan, store.meshes) if self.is_staged else None)
            for note in plan.notes if compile is None else ():  # a plan for a target says it itself
                notice(f"job {plan.graph.name!r}: {note}")
        if not self.is_staged:
            self.plan = on_one_place(plan, max(map(len, distinct.values())))
        self._together = processes.count() > 1
        if self._together and self.debugging[2]:
            refuse(ModeError, "flow.config.find_nonfinite works in runs of one process; this one has several",
                   hint="flow.config.find_nonfinite(False), and the job in one process")  # fmt: skip
        collective = any(len(d) > 1 and d[0].platform == "cpu" for d in distinct.values())
        self._on_cpu = any(d[0].platform == "cpu" for d in distinct.values())
        if not self._on_cpu:
            self._options = compiler_options(plan.platform, max(map(len, distinct.values())))
        else:
            self._options = {} if self.is_staged else cpu_options(plan)
        if plan.names_kernels:  # also on a GPU beside a CPU
            self._options = {**self._options, **NAMED_KERNELS}
        gate = process.collectives if collective and not self._together else None
        self._state = StepState(plan, store, written, rates, self._storages, self._meshes)
        self.launcher = Launcher(self.plan, self._state, gate, self.debugging, is_staged=self.is_staged)

    @property
    def graph(self) -> Graph:
        """The graph of the job."""
        return self.plan.graph

    @property
    def is_outdated(self) -> bool:
        """Whether a variable has moved since this was made. Asked with the dispatch lock held."""
        return self._state.is_outdated

    def invalidate(self) -> None:
        """Calls raise StaleExecutableError from now on. Called with the dispatch lock held."""
        self.launcher.invalidate()

    def compile(self, feeds: Sequence[Any]) -> None:
        """Compiles for feeds of these shapes, and gives variables that have none their first values.

        Raises what an initializer, the trace or the compiler raises, and changes nothing then.
        """
        cells = self._state.cells
        if any(cell.value is None for cell in cells):
            with self._store.lock:
                self._store.commit()
                self._store.materialize(cells)
        if self.function is None:
            label = f"job {self.graph.name!r}"
            if self._together:
                check_agreement(label, self.plan, feeds)
            with processes.busy(f"compiling {label}"):
                self.compile_only(feeds)

    def compile_only(self, feeds: Sequence[Any]) -> None:
        """Compiles for feeds of these shapes (arrays or ShapeDtypeStructs); no variable needs a value."""
        if self.function is not None:
            return
        if self._on_cpu:
            size_limit.check(self.plan)
        self._feeds_given = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), flat_feeds(self.plan, feeds))
        arguments = self._state.arguments(self._feeds_given)
        if self.is_staged:
            from ..compiler.stages import staged  # most jobs have no stages

            prepare_lowering()
            assert self._meshes is not None
            with jax.enable_x64(True), product_precision(self.plan):
                start = time.perf_counter()
                program = staged(self.plan, self._storages, self._meshes, arguments, self._compiled)
                seconds = time.perf_counter() - start - self.statistics.compile_seconds - self.statistics.lower_seconds
                self.statistics.trace_seconds = seconds
            self.compiled = [(f.name, f.made) for f in program.functions]
            self.launcher.function = program
            return
        key = self._key(arguments)
        if key is not None and self._has_kept(key):
            return
        prepare_lowering()
        function = single(self.plan, self._storages, self._meshes, options=self._options)
        start = time.perf_counter()
        with jax.enable_x64(True) if self.plan.x64 else nullcontext():
            traced = function.trace(*arguments)
            rewritten = rewritten_step(traced, self.plan, self._storages, self._meshes, self._options)
            if rewritten is not None:
                function, traced = rewritten, rewritten.trace(*arguments)
            self.statistics.trace_seconds = time.perf_counter() - start
            compiled = self._compiled(traced, self._state.shardings(arguments), is_kept=key is not None)
        if key is not None:
            kept_programs.save(key, compiled, self.statistics.temporary_bytes, self.statistics.code_bytes)
        self._use(compiled, function)

    def _key(self, arguments: Any) -> str | None:
        """The name of the job's program on disk; None where it is not kept there."""
        is_left_out = self._meshes is not None or self._together or any(self.debugging) or self._compile_elsewhere is not None
        return None if is_left_out else kept_programs.key_of(self.unfused, self._storages, arguments)

    def _has_kept(self, key: str) -> bool:
        """Takes the program that another process has compiled, where there is one."""
        start = time.perf_counter()
        with jax.enable_x64(True) if self.plan.x64 else nullcontext():
            found = process.uninterrupted.run(lambda: kept_programs.load(key), compiles=True)
        if found is None:
            return False
        self.statistics.compile_seconds = time.perf_counter() - start
        self.statistics.temporary_bytes = self.statistics.largest_temporary_bytes = found.temporary_bytes
        self.statistics.code_bytes = found.code_bytes
        self._use(found.compiled, None)
        return True

    def _use(self, compiled: Any, jitted: Any) -> None:
        """Has calls run a compiled step: by itself where that can be, and its arguments are what it was compiled for; else by
        the ``jitted`` function that it was made of, if there is one."""
        self.compiled = [("step", compiled)]
        is_special = any(self.debugging) or self._together or self._compile_elsewhere is not None
        direct = None if is_special else jax_versions.fast_call(compiled)
        if direct is None and jitted is not None:
            self.launcher.function = jitted
            return
        function = direct or compiled
        self.launcher.function = Stateless(function, self.plan) if self._meshes is None and is_stateless(self.plan) else function
        self.launcher.x64 = any(blob.dtype.is_64_bit for blob in self.plan.feeds)

    @property
    def function(self) -> Any:
        """The function that runs the step; None before it is compiled."""
        return self.launcher.function

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

        arguments = self._state.arguments(self._feeds_given)
        with jax.enable_x64(True):
            if self.is_staged:
                from ..compiler.stages import staged

                staged(self.plan, self._storages, self._meshes, arguments, lambda traced, _: traced.lower().compile(), Layouts())
            else:
                single(plan, self._storages, self._meshes, Layouts()).trace(*arguments).lower().compile()
        return found

    def arguments(self) -> list[Any]:
        """Shapes, dtypes and layouts of the step's arguments, in order."""
        found: list[Any] = jax.tree.leaves(self._state.arguments(self._feeds_given))
        return found

    def _compiled(self, traced: Any, shardings: Sequence[Any] = (), *, is_kept: bool = False) -> Any:
        """Lowers and compiles; what is kept on disk by itself is not put into XLA's cache, out of which it could not be kept."""
        if self._compile_elsewhere is not None:
            return self._compile_elsewhere(traced, shardings)
        options: dict[str, Any] | None = None  # of a single function, its ``jax.jit`` has them
        if self.is_staged:
            options = {**self._options, **options_for_reductions(traced.jaxpr, self.plan, is_spread=True)} or None
        start = time.perf_counter()
        lowered = traced.lower()
        self.statistics.lower_seconds += time.perf_counter() - start
        start = time.perf_counter()
        with nullcontext() if is_kept else compilation_cache.enabled():
            compiled = process.uninterrupted.run(lambda: self._by_xla(lowered, options), compiles=True)
        self.statistics.compile_seconds += time.perf_counter() - start
        self._note_memory(compiled)
        return compiled

    def _by_xla(self, lowered: Any, options: Any) -> Any:
        try:
            return lowered.compile(options)
        except jax.errors.JaxRuntimeError as error:
            said = " ".join(str(error).split())[:500]
            if self._on_cpu and "MLIR failure" in said and _EMITTERS not in (options or {}):
                notice(f"XLA could not compile job {self.graph.name!r} ({said}): compiling it without fusion emitters")
                return self._by_xla(lowered, {**(options or {}), _EMITTERS: False})
            rows = [f"job {self.graph.name!r} cannot be compiled for its devices: {said}", row_of(self.graph)]
            if "RESOURCE_EXHAUSTED" in said:
                rows.append("  try        smaller shapes; the compiler tries kernels out, for which the device lacks memory")
            raise CompileError("\n".join(rows)) from error

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

    def find_nonfinite(self, feeds: Sequence[Any]) -> NonFinite | None:
        """Runs the next step op by op, changes nothing, and reports the first value that is not finite; None for none."""
        state = self._state
        with self._store.lock:
            self._store.commit()
            self._store.materialize(state.cells)
            read = state.values(state.cells_of(self.unfused))
            if self.unfused.prepared and state.prepared is not None:
                read += state.prepared.values()
            before, reads = ([to_host(a) for a in values] for values in (state.values(state.written), read))
        from . import nonfinite  # few programs ask for it

        return nonfinite.find(self.unfused, self._storages, before, reads, flat_feeds(self.plan, feeds))[0]

    def hlo(self) -> str:
        """The compiled program as text, for the curious."""
        return "\n\n".join(compiled.as_text() for _, compiled in self.compiled)


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
