"""Job functions: declaring a job and calling it. The one file that knows both the front end and the back."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from time import perf_counter
from typing import Any

import numpy as np

from . import _signature as tp
from ._base.dist import Placement, parse_placement
from ._base.jax import jax
from ._base.refuse import refuse, shown
from ._base.source import Source, caller, of_function
from ._reports.placement import PlacementReport, report
from ._reports.summary import JobSummary, summarize
from ._signature.local import LocalTensor, LocalTensorList, pieces, up_to
from ._signature.parameters import spell
from ._variables.initializers import from_conf as initializer_from_conf
from .compiler.analysis import finish
from .compiler.native import describe
from .compiler.program import Plan, plan
from .compiler.replicas import per_device
from .compiler.storing import storages
from .config import FunctionConfig, Resource
from .errors import ArgumentError, CompileError, FeedError, FeedShapeError, ModeError, ReturnError
from .graph.graph import Graph, current, current_or_none, tracing
from .graph.node import Blob, Node, Scope
from .layers.quantization import AwareTraining
from .ops.time_axis import unpack
from .optimizer.dict_config import optimizer_from_config
from .runtime import devices, processes
from .runtime.dispatch import dispatcher
from .runtime.executable import Executable, build_lock, to_numpy
from .runtime.feed import Feeds, owned
from .runtime.reading import Hosted, HostStage
from .runtime.result import INTERRUPTIBLE_FROM_SECONDS, Delivery, flat, wait_interruptibly
from .runtime.session import default_session

_MAX_VARIANTS = 32  # executables kept for inputs of varying shape, least recently used dropped


class JobFunction:
    """A declared job. Calling it feeds arrays and runs the compiled program; ``repr`` and ``summary()`` describe it."""

    def __init__(self, function: Callable[..., Any], *, train: bool, config: FunctionConfig, declared: Source):
        functools.update_wrapper(self, function)
        self.name = function.__name__
        self.train = train
        self.config = config
        self.config.job_type = "train" if train else "predict"
        self.source = of_function(function)
        self._declared = declared
        self._function = function
        self._session = default_session()
        self._returns = tp.parse_return(inspect.signature(function).return_annotation, function)
        self._parameters = tp.parse_parameters(function)
        self._graph: Graph | None = None
        self._error: Exception | None = None
        self._error_traceback: Any = None
        self._error_seen = False
        self._plan: Plan | None = None
        self._feeds: Feeds | None = None
        self._hosted: Hosted | None = None
        self._delivery: Delivery | None = None
        self._asynchronous = False
        self._gives_nothing = False
        self._executables: OrderedDict[Any, Executable] = OrderedDict()
        self._executable: Executable | Hosted | None = None
        self._build_seconds = 0.0
        self._check_settings()
        self._session.declare(self)

    def _check_settings(self) -> None:
        """What settings hold as nested dicts is looked at now, so that a mistake is not met calls later."""
        conf = self.config.get("default_initializer_conf", None)
        if conf is not None:
            initializer_from_conf(conf)
        settings = self._train_settings()
        if self.train and {"primary_lr", "model_update_conf"} <= settings.keys():
            optimizer_from_config(settings)

    def _train_settings(self) -> dict[str, Any]:
        return {k.removeprefix("train."): v for k, v in self.config.values.items() if k.startswith("train.")}

    # --- building

    @property
    def is_built(self) -> bool:
        """Whether the body has been traced (successfully or not)."""
        return self._graph is not None or self._error is not None

    @property
    def unseen_error(self) -> Exception | None:
        """The error of a wrong body that nobody has been told of yet."""
        return None if self._error_seen else self._error

    @property
    def variable_names(self) -> Iterable[str]:
        """The variables that the job declares, as far as it has been traced."""
        return self._graph.variables if self._graph is not None else ()

    def build(self) -> Graph:
        """Runs the body once, on placeholders. Raises the same error each time where the body is wrong."""
        with build_lock:
            if self._graph is None:
                if self._error is not None:
                    self._error_seen = True
                    raise self._error.with_traceback(self._error_traceback)
                try:
                    start = perf_counter()
                    self._trace()
                    self._build_seconds = perf_counter() - start
                except Exception as error:
                    self._error, self._error_traceback = error, error.__traceback__
                    raise
            assert self._graph is not None
            return self._graph

    def _trace(self) -> None:
        if current_or_none() is not None:
            raise ModeError(f"job {self.name!r} cannot be built while the body of job {current_or_none()!r} is running")
        session = self._session
        graph = Graph(self.name, train=self.train, scope=self._outer_scope(), config=self.config, source=self.source)
        if self.config.get("enable_quantization_aware_training"):
            graph.adapt_inputs = AwareTraining(self.config)
        with tracing(graph):
            arguments, structure = [], []
            for parameter in self._parameters:
                blobs = tp.map_structure(functools.partial(_placeholder, graph), parameter.structure, parameter.name)
                arguments.append(tp.map_structure(lambda _, blob: _micro_batch(graph, blob), blobs))
                structure.append(tp.map_structure(lambda _, blob: _number(graph, blob), blobs))
            returned = self._function(*arguments)
            graph.returns = returned
            leaves, rebuild, kinds = tp.match_return(self._returns, returned, self.name)
            for leaf in leaves:
                if leaf.node.graph is not graph:
                    refuse(ReturnError, f"job {self.name!r} returned {leaf!r}, which belongs to another job", source=self.source)
            self._legacy_objective(graph)
            finish(graph)
        devices.check_placements(graph, strict=Resource.strict_devices)
        fetches = [*leaves, *(blob.extent.count for blob in leaves if blob.extent is not None)]
        made = plan(graph, fetches, native_ops=Resource.enable_native_cpu)
        session.declare_variables(self, graph.variables.values(), storages(graph, made.replicated))
        own_part = self.config.get("feed_own_part", False)
        if own_part and made.host.inputs and processes.count() > 1:
            refuse(ModeError, f"job {self.name!r} reads inputs on the host, which cannot be fed in parts",
                   hint="leave config.feed_own_part out: every process feeds the whole", source=self.source)  # fmt: skip
        self._feeds = Feeds(self.name, graph.inputs, structure, own_part)
        convert = _converter(leaves, rebuild, kinds)
        self._delivery = Delivery(self.name, dispatcher, convert, made.watches)
        self._gives_nothing = returned is None and not self._returns.callback
        self._asynchronous = self._gives_nothing or self._returns.callback or not self._returns.annotated
        if made.host:
            stage = HostStage(made, fetches, lambda: session.seed, session.store.meshes)
            session.add_host_stage(self.name, stage)
            weakref.finalize(self, stage.close, wait=False).atexit = False
            self._hosted = Hosted(stage, session.store, None if made.is_empty else self._executable_for)
        self._plan = made
        self._graph = graph

    def _outer_scope(self) -> Scope:
        placement = self.config.get("default_placement_scope", None)
        view = self.config.get("default_logical_view", None)
        lists = any(d.kind != "Numpy" for p in self._parameters for _, d in p.leaves())
        if view is None:
            name = "mirrored" if lists else "consistent"
        else:
            name = view.name
            if lists and name == "consistent":
                refuse(
                    ArgumentError,
                    f"job {self.name!r} has ListNumpy inputs, which need the mirrored view",
                    hint="config.default_logical_view(flow.scope.mirrored_view()), or leave the view out",
                    source=self.source,
                )
        return Scope(placement=_default_placement() if placement is None else placement.placement, view=name)

    def _legacy_objective(self, graph: Graph) -> None:
        settings = self._train_settings()
        if graph.train and graph.objective.losses and not graph.objective.optimizers and settings:
            graph.objective.optimizers = (optimizer_from_config(settings),)
            graph.objective.source = graph.objective.source or self.source

    def release(self) -> None:
        """Forgets what was compiled, so that a call of a job whose session is closed says so."""
        self._executable = None
        self._executables.clear()
        if self._hosted is not None:
            self._hosted.stage.close()

    # --- calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            refuse(FeedError, f"job {self.name!r} takes its arguments by position, got {', '.join(k + '=' for k in kwargs)}",
                   hint=f"call it as {self.name}({', '.join(p.name for p in self._parameters)})")  # fmt: skip
        if self._executable is None:
            return self._call_checked(args)
        feeds = self._feeds(args)  # type: ignore[misc]
        if dispatcher.error is not None:
            self._raise_error()
        return self._call(self._executable, feeds)

    def _call_checked(self, args: Sequence[Any]) -> Any:
        """The first call, calls of inputs whose shapes vary, and calls at the wrong place."""
        if current_or_none() is not None:
            refuse(ModeError, f"job {self.name!r} was called inside the body of job {current_or_none().name!r}",  # type: ignore[union-attr]
                   hint="call an ordinary Python function there; jobs are called from outside")  # fmt: skip
        if self._session.closed:
            refuse(ModeError, f"job {self.name!r} belongs to a session that flow.clear_default_session() closed",
                   found=[("the job", f"{self.source}   {self.source.text}")], hint="declare it again")  # fmt: skip
        self._session.start()
        self.build()
        assert self._feeds is not None
        feeds = self._feeds(args)
        self._raise_error()
        dispatcher.start()
        executable = self._hosted or self._executable_for(feeds)
        return self._call(executable, feeds)

    def _raise_error(self) -> None:
        if dispatcher.error is not None and not dispatcher.on_delivery_thread():
            dispatcher.raise_error()

    def _executable_for(self, feeds: tuple[Any, ...]) -> Executable:
        assert self._plan is not None
        varying = any(blob.is_dynamic for blob in self._plan.feeds)
        key = tuple(tuple(a.shape for a in f) if isinstance(f, tuple) else f.shape for f in feeds) if varying else None
        with build_lock:
            executable = self._executables.get(key) or Executable(
                per_device(self._plan) if _differ(self._plan, feeds) else self._plan,
                self._session.store,
                self._session.random_cell(self.name),
            )
            try:
                executable.compile(feeds)
            except CompileError as error:
                if not varying:
                    raise
                raise self._misfit(feeds, error) from error
            self._delivery.window = executable.window  # type: ignore[union-attr]
            self._executables[key] = executable
            if not varying or self._hosted is not None:
                self._executable = self._hosted or executable
            self._executables.move_to_end(key)
            while len(self._executables) > _MAX_VARIANTS:
                self._executables.popitem(last=False)
        return executable

    def _misfit(self, feeds: tuple[Any, ...], error: CompileError) -> FeedShapeError:
        """What a call is told whose arrays are each allowed, but do not fit together or to what was written for the largest."""
        assert self._plan is not None
        labels = {spec.blob.node: spec.label for spec in self.graph.inputs}
        found = [
            f"  given      {labels.get(blob.node, blob.op_name)}: {tuple(a.shape)}   at most {blob.shape}"
            for blob, feed in zip(self._plan.feeds, feeds, strict=True)
            for a in (feed if isinstance(feed, tuple) else (feed,))
            if blob.is_dynamic
        ]
        first, *rest = str(error).replace("cannot be compiled", "does not fit").splitlines()
        return FeedShapeError(
            "\n".join([f"job {self.name!r} cannot run on arrays of these shapes", *found, f"  because    {first}", *rest])
        )

    def _call(self, executable: Executable | Hosted, feeds: tuple[Any, ...]) -> Any:
        delivery = self._delivery
        assert delivery is not None
        if self._asynchronous:
            dispatcher.wait_for_slot(delivery.window)
            result = executable.launch(tuple([owned(feed) for feed in feeds]), delivery)
            return None if self._gives_nothing else result
        if delivery.watches:
            dispatcher.wait_for_slot(delivery.window)
            result = executable.launch(feeds, delivery)
            dispatcher.wait_for(result)
            self._raise_error()
            return result.result()
        start = perf_counter()
        _, fetched, _, token = executable.launch(feeds)
        if delivery.seconds > INTERRUPTIBLE_FROM_SECONDS:
            wait_interruptibly(flat([*fetched, *token]))
        for array in token:
            array.block_until_ready()
        value = delivery.convert(fetched)
        delivery.seconds = perf_counter() - start
        return value

    # --- looking at it

    @property
    def graph(self) -> Graph:
        """What the body described. Builds the job where that has not happened."""
        self._session._check_open()
        return self.build()

    def summary(self) -> JobSummary:
        """A table of the job's ops with shapes, its variables, memory and build times; print it.

        The job is traced where that has not happened; nothing is compiled.
        """
        graph = self.graph
        assert self._plan is not None
        without, on_host, copies = self._plan.without_native, set(self._plan.host.nodes), self._plan.expansion.copies

        def computed_by(node: Node) -> str:
            return "the host, before the step" if node in on_host else describe(copies.get(node, (node,))[0], without)

        return summarize(graph, self.build_report(), computed_by)

    def plan(self) -> PlacementReport:
        """Where each op and variable lies, in which layout, its bytes on each device, and what is sent; print it.

        The job is compiled where that has not happened (and, on several devices, once more to look inside); no variable
        needs a value and nothing is run, so that this also works for models too large for the machine at hand. Inputs of
        varying size count with their largest.

        Raises: what building the job raises.
        Example: >>> print(job.plan())
        """
        self._session.start()
        self.build()
        assert self._plan is not None
        with build_lock:
            executable = next(reversed(self._executables.values()), None)
            if executable is None:
                executable = Executable(self._plan, self._session.store, self._session.random_cell(self.name))
                executable.compile_only(tuple(map(_struct_of_feed, self._plan.feeds)))
                if not any(blob.is_dynamic for blob in self._plan.feeds):
                    self._executables[None] = executable
        return report(executable)

    def build_report(self) -> list[str]:
        """How long building took and what the executables need, a line each."""
        lines = [f"traced in {self._build_seconds * 1e3:.1f} ms"]
        for key, executable in self._executables.items():
            s = executable.statistics
            memory = "" if s.temporary_bytes is None else f", {s.temporary_bytes / 1e6:.2f} MB of working memory"
            shapes = "" if key is None else f" for {key}"
            lines.append(
                f"compiled{shapes}: {s.trace_seconds * 1e3:.1f} ms to trace for XLA, {s.lower_seconds * 1e3:.1f} ms to lower, "
                f"{s.compile_seconds * 1e3:.1f} ms to compile{memory}"
            )
        if self._plan is not None and self._plan.is_empty:
            return [*lines, "nothing to compile: all of it runs on the host"]
        return lines if self._executables else [*lines, "not compiled yet"]

    def __repr__(self) -> str:
        kind = "train" if self.train else "predict"
        parameters = ", ".join(f"{label}: {definition}" for p in self._parameters for label, definition in p.leaves())
        gives = f" -> {spell(self._returns.annotation)}" if self._returns.annotated else ""
        text = f"<{kind} job {self.name}({parameters}){gives}"
        if self._graph is None:
            return text + (", failed to build>" if self._error is not None else ", not built yet>")
        variables = [v for v in self._graph.variables.values() if v.role == "parameter"]
        elements = sum(int(np.prod(v.shape)) for v in variables)
        size = sum(int(np.prod(v.shape)) * v.dtype.bytes for v in self._graph.variables.values())
        text += (
            f", {len(self._graph.nodes)} ops, {len(variables)} variables of {elements:,} elements, {size / 1e6:.1f} MB of state"
        )
        return text + (", compiled>" if self._executables else ", not compiled yet>")


def _differ(plan: Plan, feeds: Sequence[Any]) -> bool:
    """Whether devices were fed with tensors of different shapes."""
    return any(isinstance(feed, tuple) and blob.is_mirrored for blob, feed in zip(plan.feeds, feeds, strict=True))


def _struct_of_feed(blob: Blob) -> Any:
    """Shape and dtype of what is fed for a Blob."""
    shape = (blob.parallel_size, *blob.shape) if blob.is_mirrored else blob.shape
    return jax.ShapeDtypeStruct(shape, blob.dtype.numpy_dtype)


def _placeholder(graph: Graph, label: str, definition: tp.InputDef) -> Blob:
    d = definition
    return graph.add_input(label, d.shape, d.dtype, d.kind, d.batch_axis, d.source)


def _micro_batch(graph: Graph, blob: Blob) -> Blob:
    """An input as the body sees it: where gradients are accumulated, a piece of the batch."""
    steps = graph.config.get("train.num_gradient_accumulation_steps", 1) if graph.train else 1
    return blob if steps <= 1 or blob.batch_axis != 0 else unpack(blob, steps)


def _number(graph: Graph, blob: Blob) -> int:
    return next(i for i, spec in enumerate(graph.inputs) if spec.blob is blob)


def _converter(leaves: list[Blob], rebuild: Callable[[list[Any]], Any], kinds: list[str]) -> Callable[[Any], Any]:
    """From fetched device arrays to what the call gives. Behind the leaves come the counts of those that have an extent."""
    if not leaves:
        return lambda arrays: rebuild([])
    each = [_leaf_converter(kind, blob) for kind, blob in zip(kinds, leaves, strict=True)]
    probe = object()
    if any(blob.extent is not None for blob in leaves):
        cut = _cutter(leaves, kinds)
        return lambda arrays: rebuild([convert(array) for convert, array in zip(each, cut(arrays), strict=True)])
    if len(each) == 1 and rebuild([probe]) is probe:
        only = each[0]
        return lambda arrays: only(arrays[0])
    return lambda arrays: rebuild([convert(array) for convert, array in zip(each, arrays, strict=True)])


def on_host(value: Any) -> Any:
    """The value in this process's memory; a tuple of arrays has tensors of different shapes."""
    return tuple(map(to_numpy, value)) if isinstance(value, tuple) else to_numpy(value)


def _cutter(leaves: list[Blob], kinds: list[str]) -> Callable[[Any], list[Any]]:
    """From arrays and counts to arrays of their true sizes. A static Blob with an extent keeps its shape as tp.Numpy."""
    is_cut = [b.extent is not None and kind != "Numpy" for b, kind in zip(leaves, kinds, strict=True)]
    places = list(accumulate((b.extent is not None for b in leaves), initial=len(leaves)))

    def cut(arrays: Any) -> list[Any]:
        return [
            up_to(arrays[places[i]], arrays[i], blob) if is_cut[i] else arrays[i] for i, blob in enumerate(leaves)
        ]  # fmt: skip

    return cut


def _leaf_converter(kind: str, blob: Blob) -> Callable[[Any], Any]:
    if kind == "Numpy":
        if blob.is_dynamic:
            refuse(ReturnError, f"Blob {blob.op_name!r} varies in size and cannot be returned as tp.Numpy",
                   hint="annotate it with tp.ListNumpy", source=blob.source)  # fmt: skip
        return to_numpy if not blob.is_mirrored else lambda value: np.concatenate(pieces(on_host(value), blob))
    if kind == "ListNumpy":
        return lambda value: pieces(on_host(value), blob)
    if kind == "ListListNumpy" or blob.is_tensor_list:
        if kind == "ListListNumpy":
            return lambda value: _lists(value, blob)
        return lambda value: LocalTensorList(_lists(value, blob))
    return lambda value: LocalTensor(pieces(on_host(value), blob), blob.is_dynamic)


def _lists(value: Any, blob: Blob) -> list[list[np.ndarray]]:
    """The arrays of a tensor list, for each device of the mirrored view."""
    return [[to_numpy(array) for array in arrays] for arrays in (value if blob.is_mirrored else (value,))]


def _default_placement() -> Placement:
    """All devices of the session: the GPUs where there are any (or were asked for), else the CPU devices."""
    devices.prepare()
    gpus, cpus = Resource.gpu_device_num, Resource.cpu_device_num
    tag = "gpu" if gpus or (gpus is None and cpus is None and devices.has_gpu()) else "cpu"
    count = (gpus if tag == "gpu" else cpus) or 1
    return parse_placement(tag, [f"{machine}:0-{count - 1}" for machine in range(processes.count())])


def global_function(
    type: str | FunctionConfig = "predict", function_config: FunctionConfig | None = None
) -> Callable[[Callable[..., Any]], JobFunction]:
    """Declares a job: ``@flow.global_function(type="train")`` above a function that describes a network.

    Args:
      type: "train" or "predict". The older form ``global_function(config)`` takes a FunctionConfig here, and is a train
        job if and only if ``config.train.*`` was set.
      function_config: settings of the job; copied, so that one object may serve several jobs.
    Returns: a decorator; what it makes is called with NumPy arrays.
    Raises:
      ArgumentError: another type, or no parentheses after the decorator.
      ModeError: inside a job function.
      AnnotationError: a parameter or the result is annotated with something else than ``oneflow.typing`` offers.

    Example:
      >>> @flow.global_function(type="predict")
      ... def twice(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
      ...     return x + x
    """
    declared = caller()
    if isinstance(type, FunctionConfig):
        if function_config is not None:
            refuse(ArgumentError, "flow.global_function was given two FunctionConfigs")
        config, train = type.copy(), type.is_train_configured()
    elif isinstance(type, str) and type in ("train", "predict"):
        if function_config is not None and not isinstance(function_config, FunctionConfig):
            refuse(ArgumentError, f"function_config must be a flow.FunctionConfig, got {shown(function_config)}")
        train = type == "train"
        if function_config is not None and not train:
            function_config.discard_train()  # as OneFlow does: the object may serve a job without a type next
        config = (function_config or FunctionConfig()).copy()
    elif callable(type):
        refuse(ArgumentError, "flow.global_function needs parentheses", hint='write @flow.global_function(type="predict")')
    else:
        refuse(ArgumentError, f'the type of a job must be "train" or "predict", got {shown(type)}')
    if current_or_none() is not None:
        refuse(ModeError, "a job cannot be declared inside the body of another job")

    def decorate(function: Callable[..., Any]) -> JobFunction:
        _want_function(function)
        return JobFunction(function, train=train, config=config, declared=declared)

    return decorate


def _want_function(function: Any) -> None:
    try:
        inspect.signature(function)
        named = isinstance(function.__name__, str) and not inspect.isclass(function)
    except Exception:  # a builtin without a signature, an object that is no function
        named = False
    if not named:
        refuse(ArgumentError, f"flow.global_function decorates a function, got {shown(function)}",
               hint="define the job with def, and put the decorator above it")  # fmt: skip


def function(function_config: FunctionConfig | None = None) -> Callable[[Callable[..., Any]], JobFunction]:
    """The oldest spelling: ``@flow.function(config)``; a train job if and only if ``config.train.*`` was set."""
    return global_function(function_config if function_config is not None else FunctionConfig())


def job_summary(job: JobFunction) -> JobSummary:
    """``job.summary()``: the ops of a job with their shapes, its variables, memory and build times.

    Raises ArgumentError for anything that is not a job; what building the job raises.
    Example: >>> print(flow.job_summary(job))
    """
    if not isinstance(job, JobFunction):
        refuse(ArgumentError, f"flow.job_summary needs a job function, got {shown(job)}")
    return job.summary()


def current_global_function_desc() -> Any:
    """The settings of the job whose body is running: ``IsTrainable()``, ``job_config_proto``. Raises ModeError outside jobs.

    Example:
      >>> @flow.global_function("predict")
      ... def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
      ...     return x * 0 if flow.current_global_function_desc().IsTrainable() else x
    """
    graph = current("flow.current_global_function_desc()")
    return (FunctionConfig() if graph.config is None else graph.config).function_desc
