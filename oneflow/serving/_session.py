"""``InferenceSession``: runs saved models in this process."""

from __future__ import annotations

import asyncio
import enum
import logging
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._base import check
from .._base.frames import shows_user_frames
from .._base.refuse import refuse, shown
from ..checkpoint.format import Checkpoint
from ..errors import ArgumentError, FeedError, ModeError, OneFlowError, SavedModelError
from ..graph.graph import current_or_none
from ..runtime import devices
from ..saved_model._disk import META, SavedVersion, version_path
from ..saved_model._loading import Runner, SavedGraph
from ..saved_model._replay import Tensor

_logger = logging.getLogger("oneflow.serving")


class _Checked(enum.EnumMeta):
    """Enums whose lookup by value raises an error of the library."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        members: list[enum.Enum] = list(cls.__members__.values())
        value = args[0] if len(args) == 1 else args
        if kwargs or not (isinstance(value, cls) or (type(value) is int and value in {m.value for m in members})):
            refuse(ArgumentError, f"there is no {cls.__name__} {shown(value)}", hint=", ".join(map(str, members)))
        return super().__call__(value)


class ModelVersionPolicy(enum.Enum, metaclass=_Checked):
    """Which version of a saved model to load: ``LATEST`` is the largest number.

    Example: >>> session.load_saved_model("models", flow.serving.ModelVersionPolicy.LATEST)
    """

    LATEST = 1


class SessionOption:
    """Settings of an ``InferenceSession``.

    Attributes:
      device_tag: "gpu" or "cpu". Where there is no GPU, the CPU stands in for it.
      device_num: the number of devices, over which batches are split.
      is_mirrored_view: whether each device runs the model on its own; outputs are joined either way.
      reload_seconds: how often to look for newer versions of what was loaded as ``LATEST``; None for never.
    Example: >>> option = flow.serving.SessionOption()
    """

    __slots__ = ("device_num", "device_tag", "is_mirrored_view", "reload_seconds")  # a misspelt setting is an AttributeError

    def __init__(self) -> None:
        self.device_tag = "gpu"
        self.device_num = 1
        self.is_mirrored_view = False
        self.reload_seconds: float | None = None


class _State(enum.Enum):
    OPEN = "before launch()"
    RUNNING = "after launch()"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, eq=False)
class _Origin:
    """Where a job was loaded from: what finds a newer version of it."""

    directory: Any
    basename: str
    graph: str | None
    signature: str | None
    version: int
    checkpoint: str


class _Job:
    """A loaded job. ``runner`` is there after ``launch``; a newer version replaces it."""

    def __init__(self, graph: SavedGraph, origin: _Origin | None, op_list: Sequence[Any]):
        self.graph = graph
        self.origin = origin
        self.op_list = op_list
        self.runner: Runner | None = None


class InferenceSession:
    """Loads saved models, and runs them in this process.

    It is independent of the session in which jobs are declared and called. ``load_saved_model``, then ``launch``, then ``run``
    from any thread.

    Args:
      option: a ``SessionOption``; None for the default settings.
    Raises: ArgumentError (a wrong option), ModeError (another device_tag than "gpu" or "cpu"), DeviceError.
    Example:
      >>> session = flow.serving.InferenceSession()
      >>> session.load_saved_model("models")
      >>> session.launch()
      >>> (prob,) = session.run("infer", image=batch)
    """

    def __init__(self, option: SessionOption | None = None):
        option = SessionOption() if option is None else option
        if not isinstance(option, SessionOption):
            refuse(ArgumentError, f"InferenceSession: option must be a SessionOption or None, got {shown(option)}")
        tag = option.device_tag
        if not isinstance(tag, str) or tag not in ("gpu", "cpu"):
            refuse(ModeError, f'InferenceSession: device_tag must be "gpu" or "cpu", got {shown(tag)}')
        count, problem = check.integer(option.device_num, low=1)
        if problem:
            refuse(ArgumentError, f"InferenceSession: device_num {problem}")
        every = option.reload_seconds
        if every is not None:
            every, problem = check.number(every, low=0.01)
            if problem:
                refuse(ArgumentError, f"InferenceSession: reload_seconds {problem}")
        self._tag, self._count, self._reload_seconds = tag, count, every
        self._state = _State.OPEN
        self._begin_anew()
        self._condition = threading.Condition()
        self._reloading = threading.Lock()
        self._running = 0
        self._watch = _Watch()
        self._finalizer = weakref.finalize(self, self._watch.end)
        self.init()

    def init(self) -> None:
        """Prepares the devices. The constructor does it; a closed session is open again afterwards, without jobs."""
        if current_or_none() is not None:
            refuse(ArgumentError, "an InferenceSession cannot be used inside a job function")
        if self._state is _State.RUNNING:
            refuse(ArgumentError, "InferenceSession.init() was called after launch()", hint="close() it first")
        self._devices = devices.local_devices(self._tag, self._count)
        self._state = _State.OPEN

    def _begin_anew(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._signatures: dict[str, Any] = {}
        self._batch_sizes: dict[str, int] = {}
        self._opened: str | None = None
        self._checkpoint: str | None = None

    # --- loading

    def set_checkpoint_path(self, checkpoint_path: str) -> None:
        """Sets the checkpoint from which ``launch`` takes the variables of jobs that ``compile`` made."""
        self._want("set_checkpoint_path", _State.OPEN)
        path, problem = check.path(checkpoint_path)
        if problem:
            refuse(ArgumentError, f"set_checkpoint_path: checkpoint_path {problem}")
        self._checkpoint = path

    def set_job_signature(self, job_name: str, signature: Any) -> None:
        """Sets the ``JobSignatureDef`` that the job will be compiled with."""
        self._want("set_job_signature", _State.OPEN)
        self._signatures[_job_name(job_name)] = _signature(signature)

    def set_job_batch_size(self, job_name: str, batch_size: int) -> None:
        """Sets the size of axis 0 of all inputs of a job. Sizes in attributes of its ops, such as reshape's, stay."""
        self._want("set_job_batch_size", _State.OPEN)
        size, problem = check.integer(batch_size, low=1, high=2**31 - 1)
        if problem:
            refuse(ArgumentError, f"set_job_batch_size: batch_size {problem}")
        job = self._jobs.get(_job_name(job_name))
        if job is not None:
            job.graph = job.graph.of_batch(size)
        self._batch_sizes[job_name] = size

    @contextmanager
    def open(self, job_name: str, signature: Any = None, batch_size: int | None = None) -> Iterator[InferenceSession]:
        """A context in which ``compile`` makes a job.

        Args:
          job_name: of the job.
          signature: a ``JobSignatureDef``; None for the whole graph.
          batch_size: the size of axis 0 of all inputs; None for the saved one.
        Example:
          >>> with session.open("infer", signature, 8):
          ...     session.compile(graph_def.op_list)
        """
        self._want("open", _State.OPEN)
        name = _job_name(job_name)
        if self._opened is not None:
            refuse(ArgumentError, f"open: job {self._opened!r} is open already")
        if name in self._jobs:
            refuse(ArgumentError, f"open: the session has a job named {name!r} already")
        if signature is not None:
            self.set_job_signature(name, signature)
        if batch_size is not None:
            self.set_job_batch_size(name, batch_size)
        self._opened = name
        try:
            yield self
        finally:
            self._opened = None

    def compile(self, op_list: Sequence[Any]) -> None:
        """Makes the job that is open of its saved ops.

        Args:
          op_list: ``OperatorConf`` messages, as in ``GraphDef.op_list``.
        Raises: ArgumentError (no job is open), SavedModelError (ops that cannot be run).
        """
        self._want("compile", _State.OPEN)
        name = self._opened
        if name is None:
            refuse(ArgumentError, "compile was called while no job is open", hint="with session.open(name): ...")
        try:
            confs = list(op_list)
            fits = all(conf.DESCRIPTOR.full_name == "oneflow.OperatorConf" for conf in confs)
        except (TypeError, AttributeError):
            fits = False
        if not fits:
            refuse(ArgumentError, f"compile takes the op_list of a GraphDef, got {shown(op_list)}")
        self._add(name, confs, SavedGraph(f"job {name!r}", name, confs, self._signatures.get(name), tag=self._tag,
                                          batch_size=self._batch_sizes.get(name)), None)  # fmt: skip

    def load_saved_model(
        self,
        saved_model_dir: str,
        model_version: int | ModelVersionPolicy = ModelVersionPolicy.LATEST,
        saved_model_meta_file_basename: str = META,
        graph_name: str | None = None,
        signature_name: str | None = None,
    ) -> None:
        """Loads a graph of a saved model as a job of the graph's name. Each graph of a model is loaded by a call of its own.

        Args:
          saved_model_dir: what ``flow.saved_model.ModelBuilder`` was given.
          model_version: a version, or ``ModelVersionPolicy.LATEST``.
          saved_model_meta_file_basename: the name of the meta file without ``.pb`` or ``.prototxt``.
          graph_name: None for the model's default graph.
          signature_name: None for the graph's default signature; without one the job is as it was saved.
        Raises:
          SavedModelError: no such directory, version, meta file, graph or signature; a damaged file; ops that cannot be run.
          ArgumentError: an argument of the wrong type, or called after ``launch``.
        Example: >>> session.load_saved_model("models", 3, signature_name="classify")
        """
        self._want("load_saved_model", _State.OPEN)
        _want_text("saved_model_meta_file_basename", saved_model_meta_file_basename)
        for argument, value in (("graph_name", graph_name), ("signature_name", signature_name)):
            if value is not None:
                _want_text(argument, value)
        wanted: int | None = None
        if model_version is not ModelVersionPolicy.LATEST:
            wanted, problem = check.integer(model_version, low=0)
            if problem:
                refuse(ArgumentError, f"load_saved_model: model_version {problem}; or ModelVersionPolicy.LATEST")
        version, path = version_path(saved_model_dir, wanted)
        saved = SavedVersion(path, saved_model_meta_file_basename)
        graph = saved.graph(graph_name, signature_name, tag=self._tag)
        directory = saved_model_dir if wanted is None else None  # a version that was chosen is not replaced
        origin = _Origin(directory, saved_model_meta_file_basename, graph_name, signature_name, version, saved.checkpoint)
        size = self._batch_sizes.get(graph.name)
        self._add(
            graph.name, list(saved.proto.graphs[graph.name].op_list), graph if size is None else graph.of_batch(size), origin
        )

    def _add(self, name: str, op_list: Sequence[Any], graph: SavedGraph, origin: _Origin | None) -> None:
        if name in self._jobs:
            refuse(ArgumentError, f"the session has a job named {name!r} already", hint="another InferenceSession")
        if devices.gpus_are_real():
            other = [conf.name for conf in op_list if conf.device_tag and conf.device_tag != self._tag]
            if other:
                more = f" (and of {len(other) - 1} others)" if len(other) > 1 else ""
                print(f"WARNING: the device_tag of op {other[0]}{more} is not equal to the session's, {self._tag}")
        self._jobs[name] = _Job(graph, origin, op_list)

    # --- running

    def launch(self) -> None:
        """Loads the variables, and compiles every job for the sizes it was saved with.

        Raises:
          ArgumentError: no job was loaded; a job that ``compile`` made, and no checkpoint path.
          CheckpointError, SavedModelError: variables that do not fit, or a graph that cannot be run.
        Warns: CheckpointWarning: a variable is not in the checkpoint, and gets its first value.
        """
        self._want("launch", _State.OPEN)
        runners = {}
        for name, job in self._jobs.items():
            path = self._checkpoint if job.origin is None else job.origin.checkpoint
            if path is None:
                refuse(ArgumentError, f"launch: the variables of job {name!r} are nowhere", hint="set_checkpoint_path(path)")
            runners[name] = self._runner(job.graph, path)
        for name, runner in runners.items():
            self._jobs[name].runner = runner
        self._state = _State.RUNNING
        if self._reload_seconds is not None:
            self._watch.begin(self, self._reload_seconds)

    def _runner(self, graph: SavedGraph, path: str) -> Runner:
        needs = graph.has_variables
        runner = Runner(graph, graph.weights(Checkpoint(path, unfinished=True) if needs else {}, path), self._devices)
        runner.warm_up()
        return runner

    @shows_user_frames
    def run(self, job_name: str, **inputs: np.ndarray) -> list[np.ndarray]:
        """Runs a job. Several threads may do so at a time.

        A batch of another size than the saved one is compiled for at its first use, where the graph does not tie the size to a
        number.

        Args:
          job_name: of the job; see ``list_jobs``.
          inputs: an ndarray for each input.
        Returns: a list of fresh ndarrays, in the order of ``list_outputs``.
        Raises:
          ArgumentError: no such job, or the session is not running.
          FeedError, FeedShapeError, FeedDtypeError: an input that is absent, unknown, or does not fit.
          SavedModelError: the step failed on the device.
        Example: >>> (prob,) = session.run("infer", image=batch)
        """
        job = self._enter(job_name)
        try:
            runner = job.runner
            assert runner is not None
            for tensor in runner.graph.inputs:
                if tensor.name not in inputs:
                    refuse(FeedError, f'input "{tensor.name}" is absent',
                           found=[("the job", job_name), ("given", ", ".join(inputs) or "nothing")],
                           hint=f"run({job_name!r}, {', '.join(f'{t.name}=...' for t in runner.graph.inputs)})")  # fmt: skip
                if not isinstance(inputs[tensor.name], np.ndarray):
                    refuse(FeedError, f'input "{tensor.name}" must be a numpy.ndarray, got {shown(inputs[tensor.name])}')
            known = {t.name for other in self._jobs.values() for t in other.graph.inputs}
            unknown = next((name for name in inputs if name not in known), None)
            if unknown is not None:
                refuse(FeedError, f"job {job_name!r} has no input {shown(unknown)}; it takes "
                       f"{', '.join(t.name for t in runner.graph.inputs) or 'nothing'}")  # fmt: skip
            return runner.run(inputs)
        finally:
            with self._condition:
                self._running -= 1
                self._condition.notify_all()

    async def async_run(self, job_name: str, **inputs: np.ndarray) -> list[np.ndarray]:
        """``run`` as a coroutine.

        Example: >>> (prob,) = await session.async_run("infer", image=batch)
        """
        return await asyncio.to_thread(lambda: self.run(job_name, **inputs))

    def _enter(self, job_name: Any) -> _Job:
        """The job, with the session kept from closing."""
        with self._condition:
            self._want("run", _State.RUNNING)
            job = self._known("run", job_name)
            self._running += 1
            return job

    def reload(self) -> bool:
        """Replaces what was loaded as ``LATEST`` by newer versions, if there are any. Calls go on meanwhile.

        Returns: whether anything was replaced.
        Raises: SavedModelError, CheckpointError: a newer version that cannot be run, or takes or gives something else. The
          version that runs goes on running.
        Example: >>> session.reload()
        """
        self._want("reload", _State.RUNNING)
        replaced = False
        with self._reloading:
            for name, job in self._jobs.items():
                origin = job.origin
                if origin is None or origin.directory is None:
                    continue
                version, path = version_path(origin.directory, None)
                if version <= origin.version:
                    continue
                self._replace(name, job, origin, version, path)
                replaced = True
        return replaced

    def _replace(self, name: str, job: _Job, origin: _Origin, version: int, path: Path) -> None:
        saved = SavedVersion(path, origin.basename)
        graph = saved.graph(origin.graph, origin.signature, tag=self._tag, batch_size=self._batch_sizes.get(name))
        for kind, old, new in (("inputs", job.graph.inputs, graph.inputs), ("outputs", job.graph.outputs, graph.outputs)):
            if [_key(t) for t in old] != [_key(t) for t in new]:
                refuse(SavedModelError, f"version {version} of saved model {str(path.parent)!r} has other {kind} than version "
                       f"{origin.version}", hint="load it in another InferenceSession")  # fmt: skip
        runner = self._runner(graph, saved.checkpoint)
        job.graph, job.runner = graph, runner  # calls that have begun go on with the old one
        job.origin = _Origin(origin.directory, origin.basename, origin.graph, origin.signature, version, saved.checkpoint)

    def close(self) -> None:
        """Ends the session, when the calls that have begun are over. Closing it again does nothing."""
        with self._condition:
            self._state = _State.CLOSED
            while self._running:
                self._condition.wait()
        self._watch.end()
        self._begin_anew()

    # --- looking at it

    def list_jobs(self) -> list[str]:
        """The names of the jobs."""
        self._want("list_jobs", _State.RUNNING)
        return list(self._jobs)

    def list_inputs(self) -> tuple[str, ...]:
        """The names of the inputs of all jobs."""
        self._want("list_inputs", _State.RUNNING)
        return tuple(t.name for job in self._jobs.values() for t in job.graph.inputs)

    def list_outputs(self) -> tuple[str, ...]:
        """The names of the outputs of all jobs."""
        self._want("list_outputs", _State.RUNNING)
        return tuple(t.name for job in self._jobs.values() for t in job.graph.outputs)

    def input_info(self, input_name: str, job_name: str | None = None) -> dict[str, Any]:
        """Shape and dtype of an input.

        Args:
          input_name: of the input.
          job_name: of the job; may be left out inside ``open``.
        Returns: {"shape": a tuple, "dtype": a flow dtype}.
        Raises: ArgumentError: no such job or input, or no job was named.
        Example: >>> session.input_info("image", "infer")["shape"]
        """
        return self._info("input", input_name, job_name)

    def output_info(self, output_name: str, job_name: str | None = None) -> dict[str, Any]:
        """``input_info`` of an output."""
        return self._info("output", output_name, job_name)

    def _info(self, kind: str, name: Any, job_name: Any) -> dict[str, Any]:
        what = f"{kind}_info"
        self._want(what, _State.OPEN, _State.RUNNING)
        if job_name is None:
            if self._opened is None:
                refuse(ArgumentError, f"{what} needs job_name outside of open()", hint=f"the jobs are {', '.join(self._jobs)}")
            job_name = self._opened
        graph = self._known(what, job_name).graph
        tensors = graph.inputs if kind == "input" else graph.outputs
        found = next((t for t in tensors if t.name == name), None)
        if found is None:
            listed = ", ".join(t.name for t in tensors) or "none"
            refuse(ArgumentError, f"{what}: job {job_name!r} has no {kind} {shown(name)}; it has {listed}")
        return {"shape": found.shape, "dtype": found.dtype}

    def print_job_set(self) -> None:
        """Prints the names of the jobs and of their ops."""
        self._want("print_job_set", _State.OPEN, _State.RUNNING)
        for name, job in self._jobs.items():
            print("job_name:", name)
            for conf in job.op_list:
                print("\top_name:", conf.name)

    def _known(self, what: str, job_name: Any) -> _Job:
        if not isinstance(job_name, str) or job_name not in self._jobs:
            listed = ", ".join(map(repr, self._jobs)) or "none"
            refuse(ArgumentError, f"{what}: there is no job {shown(job_name)}; the session has {listed}")
        return self._jobs[job_name]

    def _want(self, what: str, *states: _State) -> None:
        if self._state not in states:
            now = {_State.OPEN: "not launched yet", _State.RUNNING: "launched already", _State.CLOSED: "closed"}[self._state]
            allowed = " or ".join(s.value for s in states)
            refuse(ArgumentError, f"InferenceSession.{what} is for a session {allowed}; this one is {now}")

    def __repr__(self) -> str:
        return f"<InferenceSession, {self._state.name.lower()}, {len(self._jobs)} jobs>"


class _Watch:
    """The thread that looks for newer versions. It holds no reference to the session."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, session: InferenceSession, seconds: float) -> None:
        reference = weakref.ref(session)
        self._stop = stop = threading.Event()

        def work() -> None:
            told = ""  # once, as long as it is the same
            while not stop.wait(seconds):
                alive = reference()
                if alive is None:
                    return
                try:
                    alive.reload()
                    told = ""
                except (OneFlowError, OSError) as error:
                    if not stop.is_set() and str(error) != told:
                        told = str(error)
                        _logger.error("a newer version is not loaded: %s", told)
                except Exception:  # the thread goes on, and looks again
                    _logger.exception("a newer version is not loaded")
                del alive

        self._thread = threading.Thread(target=work, name="oneflow-saved-models", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()


def _key(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.name, tensor.shape[1:], tensor.dtype.name


def _job_name(value: Any) -> str:
    _want_text("job_name", value)
    return str(value)


def _want_text(argument: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        refuse(ArgumentError, f"{argument} must be a non-empty str, got {shown(value)}")


def _signature(value: Any) -> Any:
    if getattr(getattr(value, "DESCRIPTOR", None), "full_name", None) != "oneflow.JobSignatureDef":
        refuse(ArgumentError, f"signature must be a JobSignatureDef, got {shown(value)}",
               hint="graph_def.signatures[name], or the proto of a SignatureBuilder")  # fmt: skip
    return value
