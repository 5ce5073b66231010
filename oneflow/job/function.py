"""Job functions: declaring a job and calling it. The compiler is imported when the first job is built."""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, Self, TypeVar, overload

from .. import _signature as tp
from .._base.frames import show_users_frames, shows_user_frames
from .._base.generation import V0_3, Generation
from .._base.log import announced
from .._base.refuse import closest, refuse, shown
from .._base.source import Source, of_function
from .._signature.parameters import spell
from .._variables.initializers import from_conf as initializer_from_conf
from ..config import FunctionConfig
from ..errors import ArgumentError, CompileError, FeedError, ModeError, VariableConflictError
from ..graph.graph import Graph, current, current_or_none
from ..runtime import processes
from ..runtime.gate import StaleExecutableError
from ..runtime.process import process
from ..runtime.result import Result
from ..runtime.session import Session, default_session
from .dead_layers import warn_of_dead_layers
from .declaration import Declaration
from .describing import build_lines, contents, misfit
from .prepared import Prepared
from .untrained import warn_of_untrained_weights

if TYPE_CHECKING:
    from .._reports.placement import PlacementReport
    from .._reports.profile import JobProfile
    from .._reports.summary import JobSummary
    from .._reports.target_plan import TargetPlan
    from .._targets.target import Target
    from ..runtime.calling import Call
    from ..runtime.executable import Executable
    from ..runtime.nonfinite import NonFinite
    from ..runtime.throughput import Meter, Throughput
    from .building import BuiltJob
    from .rates import LearningRates


@dataclass(frozen=True, slots=True, eq=False)
class _Failure:
    """A body that could not be built."""

    error: BaseException
    traceback: TracebackType | None


class StoppedAtFirstCallError(BaseException):
    """A script is run only as far as the first call of a job (``process.stops_at_first_call``), which this describes."""

    def __init__(self, job: JobFunction[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]):
        super().__init__(job.name)
        self.job, self.args_of_call, self.kwargs_of_call = job, tuple(args), dict(kwargs)


_HELP = (
    "Call it with arrays. submit() does not wait; summary(), plan(), profile(), throughput() and find_nonfinite() look inside; "
    "learning_rate is that of the next step."
)
_OWN = frozenset({"name", "train", "config", "source"})  # attributes of each job
P = ParamSpec("P")
V = TypeVar("V")
R_co = TypeVar("R_co", covariant=True)


class JobFunction(Prepared, Generic[P, R_co]):
    """A declared job. Calling it feeds arrays and runs the compiled program; ``repr`` and ``summary()`` describe it."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        train: bool,
        config: FunctionConfig,
        declared: Source,
        generation: Generation = V0_3,
        declaration: Declaration | None = None,
    ):
        """``declaration``: of a job that is made of another one."""
        functools.update_wrapper(self, function)
        self.__annotations__ = getattr(function, "__annotations__", {})  # from Python 3.14 on, update_wrapper leaves them out
        self.name = function.__name__ if declaration is None else declaration.name
        self.train = train
        self.config = config
        self.config.job_type = "train" if train else "predict"
        self.source = of_function(function)
        self._declaration = declaration or Declaration(
            self.name, train, function, config, tuple(tp.parse_parameters(function)),
            tp.parse_return(inspect.signature(function).return_annotation, function), self.source, generation,
        )  # fmt: skip
        self._session = default_session()
        self._built: BuiltJob | _Failure | None = None
        self._error_is_told = False
        self._closed = ""  # why it cannot be called any more
        self._call: Call | None = None  # see ``Prepared``
        self._submit: Call | None = None  # the same for ``submit``
        self._meter: Meter | None = None  # that measures its calls
        self._check_settings()
        if not self.__doc__:
            self.__doc__ = f"A {'train' if train else 'predict'} job. {_HELP}"
        self._session.declare(self)

    @property
    def declaration(self) -> Declaration:
        """What the job was declared with."""
        return self._declaration

    @property
    def session(self) -> Session:
        """The session that it belongs to."""
        return self._session

    def derived(self, name: str, **changes: Any) -> JobFunction[..., Any]:
        """A job of another name with other fields of its declaration, in the same session."""
        self._check_open()
        made = replace(self._declaration, name=name, **changes)
        return JobFunction(
            made.function,
            train=made.train,
            config=made.config,
            declared=made.source,
            generation=made.generation,
            declaration=made,
        )

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        vars(made).update(vars(self))
        return made

    @shows_user_frames
    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse(ArgumentError, f"job {self.name!r} can be neither deep-copied nor pickled: it belongs to its session and process",
               hint="declare it there, by a function that returns it; flow.checkpoint.save keeps its variables")  # fmt: skip

    def __dir__(self) -> list[str]:
        return sorted(
            {*super().__dir__()} - {"close", "declaration", "derived", "failure", "invalidate", "session", "take_unseen_error"}
        )

    if not TYPE_CHECKING:  # checkers would take any name

        @shows_user_frames
        def __setattr__(self, name: str, value: Any) -> None:
            is_new = name[:1] != "_" and name not in _OWN and not hasattr(type(self), name)
            if is_new and (name == "lr" or closest(name, ("learning_rate",))):
                refuse(ArgumentError, f"job {self.name!r} has no attribute {name!r} to set", hint="learning_rate = ...")
            super().__setattr__(name, value)

    def _check_settings(self) -> None:
        """Settings that are nested dicts are checked now, so that a mistake is not met calls later."""
        conf = self.config.get("default_initializer_conf", None)
        if conf is not None:
            initializer_from_conf(conf)
        settings = self._declaration.train_settings
        if self.train and {"primary_lr", "model_update_conf"} <= settings.keys():
            from ..optimizer.dict_config import optimizer_from_config  # with the schedules and rules of that style

            optimizer_from_config(settings, self._declaration.generation)

    # --- building

    @property
    def is_built(self) -> bool:
        """Whether the body has been traced (successfully or not)."""
        return self._built is not None

    @property
    def failure(self) -> str:
        """The first line of a wrong body's error, once it has been traced; else ""."""
        built = self._built
        if not isinstance(built, _Failure):
            return ""
        return f"{type(built.error).__name__}: {(str(built.error).splitlines() or [''])[0]}"

    def take_unseen_error(self) -> BaseException | None:
        """The error of a wrong body if it has not been reported yet; from now on it counts as reported."""
        built = self._built
        if not isinstance(built, _Failure) or self._error_is_told:
            return None
        self._error_is_told = True
        return built.error

    @property
    def _done(self) -> BuiltJob | None:
        """What came of the body, if it has been traced successfully."""
        built = self._built
        return None if isinstance(built, _Failure) else built

    @property
    def parameters(self) -> tuple[tp.Parameter, ...]:
        """The parameters of the job's function, each with the structure of placeholders that it stands for."""
        return self._declaration.parameters

    @property
    def variable_names(self) -> Iterable[str]:
        """The variables that the job declares, as far as it has been traced."""
        done = self._done
        return done.graph.variables if done is not None else ()

    @shows_user_frames
    def build(self) -> Graph:
        """Runs the body once, on placeholders. Raises the same error each time where the body is wrong."""
        return self._build().graph

    def _build(self) -> BuiltJob:
        done = self._done
        if done is not None:
            return done
        from .building import build

        with self._session.build_lock:
            if self._built is None or self._built_too_early:
                try:
                    telling = announced(lambda: f"building job {self.name!r}", lambda: f"built job {self.name!r}")
                    with telling, self._session.running_a_body():
                        self._built = made = build(self._declaration, self, self._session)
                    self.train = made.graph.train  # of a predict job that trains: see Generation.trains_predict_jobs
                    if made.pipeline is not None:
                        weakref.finalize(self, made.pipeline.close).atexit = False
                except KeyboardInterrupt:  # the body may be as good as any
                    raise
                except BaseException as error:  # SystemExit, too: it is this job's
                    self._built = _Failure(error, error.__traceback__)
                    raise
            built = self._built
        if isinstance(built, _Failure):
            self._error_is_told = True
            raise built.error.with_traceback(built.traceback)
        return built

    @property
    def _built_too_early(self) -> bool:
        """Whether another job's variables were in the way, which may have been redefined since."""
        return isinstance(self._built, _Failure) and isinstance(self._built.error, VariableConflictError)

    def prepare_anew(self) -> None:
        """The next call looks where it is made, and whether anything has changed."""
        self._call = self._submit = None

    def invalidate(self) -> None:
        """Something that the job was compiled for has moved: the next call compiles it again. With the dispatch lock held."""
        self.prepare_anew()
        if self._done is not None:
            self._done.variants.invalidate()

    def close(self, why: str) -> None:
        """The job cannot be called any more; ``why`` is in the error of later calls. With the dispatch lock held."""
        self._closed = why
        self.prepare_anew()
        if self._done is not None:
            self._done.close()

    # --- calling

    if TYPE_CHECKING:

        def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def _failed(self, error: BaseException) -> bool:
        show_users_frames(error)
        return isinstance(error, StaleExecutableError)

    @overload
    def submit(self: JobFunction[P, Result[V]], /, *args: P.args, **kwargs: P.kwargs) -> Result[V]: ...
    @overload
    def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> Result[R_co]: ...
    def submit(self, /, *args: Any, **kwargs: Any) -> Result[Any]:
        """Makes a call without waiting for it, whatever the job's return annotation is.

        Args: as for a call; the arrays may be changed as soon as this returns.
        Returns: a future. ``result()`` waits for the value that a call would have returned; ``async_get(callback)`` has
          ``callback(value)`` run on the delivery thread, in the order of calls.
        Raises: what a call raises.
        Example: >>> job.submit(images, labels).async_get(print)
        """
        submit = self._submit
        if submit is not None and not kwargs:
            try:
                return submit(args)
            except BaseException as error:
                if not self._failed(error):
                    raise
        try:
            return self._call_checked(args, kwargs, submits=True)
        except BaseException as error:
            self._failed(error)
            raise

    def _call_checked(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, submits: bool = False) -> Any:
        """The first call, calls of inputs whose shapes vary, and calls at the wrong place."""
        if current_or_none() is not None:
            refuse(ModeError, f"job {self.name!r} was called inside the body of job {current_or_none().name!r}",  # type: ignore[union-attr]
                   hint="call an ordinary Python function there; jobs are called from outside")  # fmt: skip
        if process.stops_at_first_call in (True, self.name):
            raise StoppedAtFirstCallError(self, args, kwargs)
        if kwargs:
            args, kwargs = self._positional(args, kwargs), {}
            prepared = self._submit if submits else self._call
            if prepared is not None:
                with contextlib.suppress(StaleExecutableError):
                    return prepared(args)
        while True:
            self._check_open()
            try:
                with process.in_call():
                    if not self.executables:  # before variables get their first values, all jobs that share them are traced
                        self._session.start()
                    built = self._build()
                    arrays = built.feeds(args)
                    process.delivery.raise_error()
                    process.start()
                    call = self._prepared(built, arrays, submits)
                return call(args)
            except StaleExecutableError:
                continue
            except Exception:
                self._check_open()  # the session was closed meanwhile: whatever was met then, that is what to say
                raise

    @property
    @shows_user_frames
    def learning_rate(self) -> float | tuple[float, ...]:
        """The learning rate of the next call, for a job with several optimizers a tuple with the rate of each.

        It can be set between calls, without compiling anything, if it is constant, as in ``flow.optimizer.SGD(0.1)``: to a
        number, or to a sequence with a number (or None, for no change) per optimizer. Calls that were submitted before keep
        theirs. The new rate belongs to this job object; ``flow.checkpoint.save`` does not save it.

        Raises:
          ModeError: the job does not train; or, when it is set, its rate follows a schedule.
          ArgumentError: not a number >= 0; where the loss is maximized by a negative rate, not a number.
        Example:
          >>> train.learning_rate = 0.1 * train.learning_rate
        """
        rates = self._rates().get()
        return rates[0] if len(rates) == 1 else rates

    @learning_rate.setter
    @shows_user_frames
    def learning_rate(self, value: float | Sequence[float | None]) -> None:
        self._rates().set(value)

    @property
    @shows_user_frames
    def constant_learning_rates(self) -> tuple[float | None, ...]:
        """Of each optimizer the learning rate of the next call, if it can be set; None where a schedule or the body gives it."""
        return self._rates().constant()

    def _rates(self) -> LearningRates:
        if not self.train:
            refuse(ModeError, f"job {self.name!r} is a predict job and has no learning rate", source=self.source)
        self._check_open()
        return self._build().rates

    def _check_open(self) -> None:
        process.check_not_forked()
        if self._closed:
            refuse(ModeError, f"job {self.name!r} cannot be called any more: {self._closed}",
                   found=[("the job", f"{self.source}   {self.source.text}")], hint="declare it again")  # fmt: skip

    def _positional(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], method: str = "", own: Sequence[str] = ()
    ) -> tuple[Any, ...]:
        """The arguments by position. ``method``, ``own``: the method that takes them, and what it takes besides."""
        names = [p.name for p in self._declaration.parameters]
        signature = inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names])
        try:
            return signature.bind(*args, **kwargs).args
        except TypeError as error:
            unknown = [n for n in kwargs if n not in names]
            problem = f"there is no input {unknown[0]!r}" if unknown else str(error)
        name = self._declaration.users_name or self.name
        refuse(FeedError, f"job {name!r}: {problem}", hint=f"call it as {name}{method}({', '.join([*names, *own])})")

    def _prepared(self, built: BuiltJob, arrays: tuple[Any, ...], submits: bool) -> Call:
        """A function that makes a call, after everything that it needs has been compiled."""
        meter = self._meter if self.is_measured else None
        warn_of_untrained_weights(built.graph, self._session)
        if built.pipeline is not None:
            call = built.caller(submits=submits, meter=meter)
            self._keep(call, submits)
            return call
        try:
            executable = built.variants.get(arrays)
            warn_of_dead_layers(built.graph, self._session)
        except CompileError as error:
            if built.variants.is_single:
                raise
            raise misfit(built, arrays, error) from error
        call = built.caller(executable, submits=submits, meter=meter)
        if built.variants.is_single:
            self._keep(call, submits)
        return call

    def _keep(self, call: Call, submits: bool) -> None:
        """Makes later calls take the same path without a lookup."""
        if self._session.bodies_running:
            return
        if submits:
            self._submit = call
        else:
            self._call = call

    # --- looking at it

    @property
    @shows_user_frames
    def graph(self) -> Graph:
        """The graph that the body described. Builds the job if that has not happened."""
        self._session.check_open()
        return self.build()

    @property
    def executables(self) -> list[tuple[Any, Executable]]:
        """The programs compiled so far, each with the shapes of its feeds (None where one program serves all calls)."""
        return self._done.variants.items if self._done is not None else []

    @shows_user_frames
    def summary(self) -> JobSummary:
        """A table of the job's ops with shapes, its variables, memory and build times; print it.

        The job is traced where that has not happened; nothing is compiled.
        """
        from .._reports.summary import summarize

        self._session.check_open()
        plan = self._build().plan
        compiled = self.executables[-1][1].plan if self.executables else plan
        passes = [f"{name}: {changed}" for name, changed in compiled.passes if changed]
        return summarize(plan, compiled.fused_kernels, [*passes, *self.build_report()])

    @overload
    def plan(self) -> PlacementReport: ...

    @overload
    def plan(self, target: str | Target) -> TargetPlan: ...

    @shows_user_frames
    def plan(self, target: str | Target | None = None) -> PlacementReport | TargetPlan:
        """Where each op runs and each variable is stored, in which layout, its bytes on each device, and what is sent; print it.

        The job is compiled where that has not happened (and, on several devices, once more to look inside); no variable
        needs a value and nothing is run, so that this also works for models too large for the machine at hand. Inputs of
        varying size count with their largest.

        With a target, the job is compiled by the compiler for devices that need not be here: "gpu" placements mean the target's
        devices, and a job that names none runs on all of them. The body runs once more; the session has no part in it. Compiled
        programs are kept on disk. See docs/planning.md.

        Args:
          target: ``"h100:8"``, ``"a100:2x8"`` (machines x devices), ``"b200:8"``, ``"tpu-v5e:4x4"``, ``"tpu-v5p:2x2x2"``, or a
            ``flow.Target``; None for the session's own devices.
        Returns: a report to print; with a target, a plan that says whether the job fits, how long a call takes, and why.
        Raises:
          What building the job raises.
          ArgumentError: an unknown target; DeviceError: a placement on devices that the target does not have.
          MissingExtraError: the target's compiler is not installed.
          CompileError: the job cannot be compiled for the target.
        Example: >>> print(job.plan())
        """
        from .._reports.placement import report
        from . import planning  # with the compilers' part, which few programs need

        if target is not None:
            if self._declaration.grids is not None:
                refuse(ModeError, f"job {self.name!r} is of 8-bit integers, which cannot be planned for other hardware",
                       hint="plan the job that it was made of")  # fmt: skip
            return planning.plan_for(self._declaration, target)
        self._session.start()
        built = self._build()
        return report(built.variants.planned(tuple(map(planning.struct_of_feed, built.plan.feeds))))

    @shows_user_frames
    def find_nonfinite(self, /, *args: P.args, **kwargs: P.kwargs) -> NonFinite | None:
        """Runs the next step op by op and finds the op that makes its first NaN or infinity; nothing changes.

        Variables, optimizer state, random numbers and readers stay where they are, so that the next call is the step that was
        looked at. An infinity that the program itself asks for, as the value of a constant or a mask, does not count.
        ``flow.config.find_nonfinite(True)`` does the same at each call whose results are not finite.

        Args: as for a call.
        Returns: None where all values are finite; else a report to print: the op, forward or backward, or the variable that is
          updated, with the user's line, the ranges of what it read and made, the variables and the number of the step.
        Raises:
          FeedError: as for a call.
          ModeError: in a run of several processes, and where devices are fed arrays of different shapes.
        Example: >>> print(job.find_nonfinite(images, labels))
        """
        with self._looking_inside("find_nonfinite", args, kwargs) as (built, arrays), contextlib.ExitStack() as held:
            if built.plan.is_empty:
                return None
            feeds = built.feeds(arrays)
            if built.pipeline is not None:
                held.enter_context(built.pipeline.lock)
                feeds = built.pipeline.take(feeds).feeds
            return built.variants.uncompiled().find_nonfinite(feeds)

    @shows_user_frames
    def profile(self, /, *args: Any, steps: int = 20, **kwargs: Any) -> JobProfile:
        """Runs steps under XLA's profiler, and returns a table of where their time goes, by op and by your line; print it.

        Steps run one after another, each waited for, after two that are not measured. Nothing changes: variables, optimizer
        state, random numbers and readers are put back. ``watch`` handlers and callbacks are not called.

        Args: as for a call, and
          steps: how many are measured; >= 1.
        Returns: rows with milliseconds per step in the forward and the backward pass and in the update, shares, FLOP/s and
          bytes/s, and the time in which none of the job's ops ran: feeding, waiting for data, dispatch and gaps, delivering. They
          add up to the time of a step. ``save(path)`` writes the trace for Perfetto or xprof.
        Raises:
          ArgumentError: ``steps``; FeedError: as for a call.
          ModeError: another profile is running, or the run has several processes.
        Example: >>> print(job.profile(images, labels))
        """
        from .profiling import profile  # here, because few programs do this

        inside = self._looking_inside("profile", args, kwargs, "steps=20")
        with inside as (built, arrays), self._session.unchanged(self.name, self.variable_names):
            return profile(built, arrays, steps)

    @contextlib.contextmanager
    def throughput(self) -> Iterator[Callable[[], Throughput]]:
        """Measures the calls that are made in a ``with`` block: steps per second, and what the device waits for.

        The ``with`` statement gives a function that returns what has been measured so far, or, after the block, in all. Inside of
        the block a call takes some microseconds longer.

        Returns: a context manager.
        Raises:
          ModeError: the calls of this job are being measured already.
        Example:
          >>> with job.throughput() as measured:
          ...     results = [job.submit(images, labels) for _ in range(20)]
          ...     flow.sync_default_session()
          >>> print(measured())
        """
        meter = self.measure()
        try:
            yield meter.result
        finally:
            meter.stop()

    @property
    def is_measured(self) -> bool:
        """Whether its calls are being measured."""
        return self._meter is not None and not self._meter.is_over

    def measure(self, enough: Callable[[Throughput], bool] | None = None) -> Meter:
        """Begins to measure calls; ``enough(throughput)``, asked after each step, ends it. Else the meter's ``stop`` does.

        Raises ModeError where calls are being measured already.
        Example: >>> meter = job.measure()   # ... calls ...; print(meter.stop())
        """
        if self.is_measured:
            refuse(ModeError, f"the calls of job {self.name!r} are being measured already")
        from ..runtime.throughput import Meter

        self._meter = meter = Meter(self.name, enough)
        self.prepare_anew()  # with the meter
        return meter

    @contextlib.contextmanager
    def _looking_inside(
        self, what: str, args: Sequence[Any], kwargs: Mapping[str, Any], *own: str
    ) -> Iterator[tuple[BuiltJob, Sequence[Any]]]:
        """Around work that runs steps outside of calls: the job is built, and nothing is waiting to be raised.

        Args:
          what: the method that does it.
          args, kwargs: the arguments of a call.
          own: those that the method has besides, as they are written.
        Returns: the built job, and the arguments of the call by position.
        """
        if current_or_none() is not None:
            refuse(ModeError, f"{what} of job {self.name!r} was called inside the body of a job", hint="call it from outside")
        if process.stops_at_first_call in (True, self.name):
            raise StoppedAtFirstCallError(self, args, kwargs)
        if processes.count() > 1:
            refuse(ModeError, f"{what} works in runs of one process; this one has {processes.count()}")
        self._check_open()
        with process.in_call():
            self._session.start()
            built = self._build()
            if kwargs:
                args = self._positional(args, kwargs, f".{what}", own)
            built.feeds(args)
            process.delivery.raise_error()
            process.start()
            yield built, args

    def build_report(self) -> list[str]:
        """The build time and the memory of each executable, one per line."""
        done = self._done
        return ["not built yet"] if done is None else build_lines(done)

    def __repr__(self) -> str:
        kind, declared, built = "train" if self.train else "predict", self._declaration, self._built
        parameters = ", ".join(f"{label}: {definition}" for p in declared.parameters for label, definition in p.leaves())
        returns = f" -> {spell(declared.returns.annotation)}" if declared.returns.annotated else ""
        text = f"<{kind} job {self.name}({parameters}){returns}"
        if isinstance(built, _Failure):
            return f"{text}, failed to build: {self.failure}>"
        if built is None:
            return f"{text}, not built yet>"
        return f"{text}, {contents(built)}>"


def job_summary(job: JobFunction[..., Any]) -> JobSummary:
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


def common_session(what: str, jobs: Iterable[JobFunction[..., Any]]) -> Session:
    """The session of these jobs, of none the default one. Raises ModeError where they belong to several."""
    found = {job.session: job for job in jobs}
    if len(found) > 1:
        one, other = list(found.values())[:2]
        refuse(ModeError, f"{what}: jobs {one.name!r} and {other.name!r} belong to different sessions",
               found=[(job.name, f"{job.source}   {job.source.text}") for job in (one, other)],
               hint="declare them in one `with flow.session()` block, or both outside of it")  # fmt: skip
    return next(iter(found), default_session())
