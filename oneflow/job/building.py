"""Building a job: its body runs once, on placeholders, and what it described becomes a plan."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, cast

from .. import _signature as tp
from .._base.dist import Placement, parse_placement
from .._base.refuse import refuse
from ..compiler.analysis import finish
from ..compiler.plan import Plan, plan
from ..compiler.storing import storages
from ..config import Resource
from ..errors import ArgumentError, ModeError, ReturnError, ShapeError
from ..graph.graph import Graph, current_or_none, tracing
from ..graph.node import Blob, Scope
from ..layers.quantization import AwareTraining
from ..ops.time_axis import unpack
from ..runtime import devices, fast_path, processes
from ..runtime.calling import Call, Launch, caller, launcher
from ..runtime.delivery import MAX_WINDOW
from ..runtime.executable import Executable
from ..runtime.feed import Feeds
from ..runtime.host_pipeline import HostPipeline
from ..runtime.process import process
from ..runtime.result import ArraySpec, Delivery
from ..runtime.session import Job, Session, scope_of
from ..runtime.throughput import Meter, MeteredPipeline
from ..runtime.transfer import first_to_host
from ..runtime.variants import Variants
from .declaration import Declaration
from .rates import LearningRates
from .results import Conversion, array_spec, converter
from .step_checks import feed_check, loss_check


@dataclass(frozen=True, slots=True, eq=False)
class BuiltJob:
    """The result of running a body. It never changes, apart from the time that ``delivery`` measures; compiled
    programs are in ``variants``.

    Attributes:
      feeds: the checks of what a call is given.
      delivery: what the results of all its calls have in common.
      rates: the learning rates, which can be changed between calls.
      pipeline: what the host does before the step; None where that is nothing.
      asynchronous: whether a call returns before its step is over; ``returns_nothing``: whether it returns None.
      seconds: what tracing took.
    """

    graph: Graph
    plan: Plan
    feeds: Feeds
    delivery: Delivery
    variants: Variants
    rates: LearningRates
    pipeline: HostPipeline | None
    asynchronous: bool
    returns_nothing: bool
    seconds: float

    def caller(self, executable: Executable | None = None, *, submits: bool = False, meter: Meter | None = None) -> Call:
        """A function that makes one call; where ``executable`` is given, with that one and without the host's part.

        With ``submits`` every call returns its Result at once, whatever the return annotation says. ``meter`` measures the calls.
        """
        delivery, pipeline = self.delivery, self.pipeline
        if meter is not None:
            delivery = replace(delivery, finished=meter.finished(delivery.finished))
            pipeline = None if pipeline is None else cast(HostPipeline, MeteredPipeline(pipeline, meter))
        launch: Launch = launcher(self.variants_of_step, pipeline) if executable is None else executable.launcher.quick()
        if meter is not None:
            launch = meter.metered(launch)
        window = 1 if processes.count() > 1 else MAX_WINDOW
        fast = executable.launcher.fast_step() if executable is not None and meter is None else None
        if submits:
            delivery = replace(delivery, gives_handles=True)
            return caller(self.feeds, launch, delivery, window, asynchronous=True, returns_nothing=False, fast=fast)
        return caller(
            self.feeds, launch, delivery, window,
            asynchronous=self.asynchronous, returns_nothing=self.returns_nothing, fast=fast,
        )  # fmt: skip

    @property
    def variants_of_step(self) -> Variants | None:
        """``variants``; None where the host pipeline gives all that a call returns, so that there is no step."""
        return None if self.plan.is_empty else self.variants

    def close(self) -> None:
        """The job cannot be called any more. Called with the dispatch lock held."""
        self.variants.invalidate()
        self.rates.close()
        if self.pipeline is not None:
            self.pipeline.close()


def build(declared: Declaration, job: Job, session: Session) -> BuiltJob:
    """Runs the body once, plans the step, and makes room for the variables in the session.

    Raises what the body raises, and errors about what it described.
    """
    running = current_or_none()
    if running is not None:
        refuse(ModeError, f"job {declared.name!r} cannot be built while the body of job {running.name!r} is running",
               hint="look at it, or call it, outside of jobs")  # fmt: skip
    start = perf_counter()
    graph, leaves, conversion, array, structure = _trace(declared, _default_placement)
    devices.check_placements(graph, strict=Resource.strict_devices, may_grow=not session.store.meshes.are_used)
    fetches = [*leaves, *(blob.valid_length.count for blob in leaves if blob.valid_length is not None)]
    made = plan(
        graph,
        fetches,
        native_ops=Resource.enable_native_cpu,
        tensor_float_32=Resource.enable_tensor_float_32_compute,
        cudnn_attention=Resource.cudnn_attention,
        platform=devices.platform_of(graph),
        grids=declared.grids,
    )
    own_part = _own_part(declared, made)
    session.declare_variables(job, graph.variables.values(), storages(graph, made.replicated))
    pipeline = None
    if made.host:
        pipeline = HostPipeline(made, fetches, lambda: session.seed, session.store.meshes, session.pool)
        session.add_pipeline(declared.name, pipeline)
    rates = LearningRates(graph, session)
    returns = declared.returns
    nothing = graph.returns is None and not returns.callback
    asynchronous = nothing or returns.callback or not returns.annotated
    copies_first = conversion.convert is first_to_host
    return BuiltJob(
        graph,
        made,
        Feeds(declared.users_name or declared.name, graph.inputs, structure, own_part, feed_check(graph)),
        Delivery(
            declared.name,
            process.delivery,
            fast_path.converter(*conversion, array, copies_first),
            made.watches,
            process.finished,
            asynchronous and not nothing,
            scope_of(session),
            array=array,
            copies_first=copies_first,
            look=conversion.look if copies_first else None,
        ),
        Variants(made, session.store, functools.partial(session.random_cell, declared.name), lambda: rates.cell),
        rates,
        pipeline,
        asynchronous=asynchronous,
        returns_nothing=nothing,
        seconds=perf_counter() - start,
    )


def trace(declared: Declaration, placement: Placement | None = None) -> tuple[Graph, list[Blob]]:
    """Runs the body once more: its graph, and what the step returns. ``placement``: of a job that names none."""
    graph, leaves, *_ = _trace(declared, _default_placement if placement is None else lambda: placement)
    return graph, [*leaves, *(blob.valid_length.count for blob in leaves if blob.valid_length is not None)]


def _trace(
    declared: Declaration, default_placement: Callable[[], Placement]
) -> tuple[Graph, list[Blob], Conversion, ArraySpec | None, list[Any]]:
    """The graph of the body, what it returns as Blobs and as a call's value, that one's shape, and the arguments' structure."""
    graph = Graph(
        declared.name, train=declared.train, scope=_outer_scope(declared, default_placement), config=declared.config,
        source=declared.source, generation=declared.generation,
    )  # fmt: skip
    if declared.config.get("enable_quantization_aware_training"):
        graph.adapt_inputs = AwareTraining(declared.config)
    with tracing(graph):
        arguments, structure = [], []
        for parameter in declared.parameters:
            blobs = tp.map_structure(functools.partial(_placeholder, graph), parameter.structure, parameter.name)
            arguments.append(tp.map_structure(lambda _, blob: _micro_batch(graph, blob), blobs))
            structure.append(tp.map_structure(lambda _, blob: _number(graph, blob), blobs))
        graph.returns = declared.function(*arguments)
        leaves, rebuild, kinds = tp.match_return(declared.returns, graph.returns, declared.name)
        if declared.generation.joins_pieces:
            kinds = [_JOINED.get(kind, kind) for kind in kinds]
        for leaf in leaves:
            if leaf.node.graph is not graph:
                rule = f"job {declared.name!r} returned {leaf!r}, which belongs to another job"
                refuse(ReturnError, rule, source=declared.source)
        _legacy_objective(graph, declared)
        finish(graph)
    conversion = converter(leaves, rebuild, kinds, loss_check(graph, leaves))
    return graph, leaves, conversion, array_spec(leaves, rebuild, kinds), structure


_JOINED = {"local": "joined local", "ListNumpy": "joined ListNumpy"}  # kinds of results, for ``results.py``


def _own_part(declared: Declaration, made: Plan) -> bool:
    own_part = bool(declared.config.get("feed_own_part", False))
    if own_part and made.host.inputs and processes.count() > 1:
        refuse(ModeError, f"job {declared.name!r} reads inputs on the host, which cannot be fed in parts",
               hint="leave config.feed_own_part out: every process feeds the whole", source=declared.source)  # fmt: skip
    return own_part


def _outer_scope(declared: Declaration, default_placement: Callable[[], Placement]) -> Scope:
    placement = declared.config.get("default_placement_scope", None)
    view = declared.config.get("default_logical_view", None)
    lists = any(d.kind != "Numpy" for p in declared.parameters for _, d in p.leaves())
    if view is None:
        name = "mirrored" if lists else "consistent"
    else:
        name = view.name
        if lists and name == "consistent":
            refuse(
                ArgumentError,
                f"job {declared.name!r} has ListNumpy inputs, which need the mirrored view",
                hint="config.default_logical_view(flow.scope.mirrored_view()), or leave the view out",
                source=declared.source,
            )
    return Scope(placement=default_placement() if placement is None else placement.placement, view=name)


def _legacy_objective(graph: Graph, declared: Declaration) -> None:
    settings = declared.train_settings
    if graph.train and graph.objective.losses and not graph.objective.optimizers and settings:
        from ..optimizer.dict_config import optimizer_from_config  # with the schedules and rules of that style

        graph.objective.optimizers = (optimizer_from_config(settings, declared.generation),)
        graph.objective.source = graph.objective.source or declared.source


def _placeholder(graph: Graph, label: str, definition: tp.InputDef) -> Blob:
    d = definition
    return graph.add_input(label, d.shape, d.dtype, d.kind, d.batch_axis, d.source)


def _micro_batch(graph: Graph, blob: Blob) -> Blob:
    """An input as the body sees it: where gradients are accumulated, a piece of the batch."""
    steps = graph.accumulation_steps
    if steps <= 1 or blob.batch_axis != 0:
        return blob
    if blob.shape[0] % steps:
        label = graph.inputs[_number(graph, blob)].label
        rule = f"job {graph.name!r}: input {label!r} of shape {blob.shape} does not divide into {steps} micro-batches"
        refuse(ShapeError, rule, source=graph.source,
               hint="train.num_gradient_accumulation_steps of the job's FunctionConfig has to divide the batch")  # fmt: skip
    return unpack(blob, steps)


def _number(graph: Graph, blob: Blob) -> int:
    return next(i for i, spec in enumerate(graph.inputs) if spec.blob is blob)


def _default_placement() -> Placement:
    """All devices of the session: the GPUs or TPUs where there are any (or were asked for), else the CPU devices."""
    devices.prepare()
    gpus, cpus = Resource.gpu_device_num, Resource.cpu_device_num
    tag = "gpu" if gpus or (gpus is None and cpus is None and devices.has_accelerator()) else "cpu"
    count = (gpus if tag == "gpu" else cpus) or 1
    return parse_placement(tag, [f"{machine}:0-{count - 1}" for machine in range(processes.count())])
