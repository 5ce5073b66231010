"""The builders of a saved model: a model has graphs, a graph has signatures, a signature has inputs and outputs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from .._base import check
from .._base.refuse import refuse, shown, warn
from ..errors import ArgumentError, JobWarning, SavedModelError
from ..export._job import why_other_batches_differ
from ..graph.graph import current_or_none
from ..graph.node import Blob
from ..job import JobFunction, common_session
from ..runtime.session import as_default
from ._disk import save
from ._writing import blob_conf

_DEFAULT_DIRECTORY = "variables"


def _text(what: str, argument: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        refuse(ArgumentError, f"{what}: {argument} must be a non-empty str, got {shown(value)}")
    return value


class SignatureBuilder:
    """Names Blobs of a graph as inputs and outputs.

    Args:
      name: of the signature.
      graph_builder: the graph that it belongs to; None for one of its own.
    Example: >>> graph.AddSignature("classify").Input("image", lbn["x"]).Output("prob", lbn["y"])
    """

    def __init__(self, name: str, graph_builder: GraphBuilder | None = None):
        from ..core.job import job_conf_pb2

        self._name = _text("SignatureBuilder", "name", name)
        if graph_builder is not None and not isinstance(graph_builder, GraphBuilder):
            refuse(ArgumentError, f"SignatureBuilder: graph_builder must be a GraphBuilder or None, got {shown(graph_builder)}")
        self._owner = graph_builder
        self._proto: Any
        if graph_builder is None:
            self._proto = job_conf_pb2.JobSignatureDef()
        else:
            if name in graph_builder.proto.signatures:
                refuse(ArgumentError, f"graph {graph_builder.name!r} has a signature named {name!r} already")
            self._proto = graph_builder.proto.signatures[name]

    @property
    def name(self) -> str:
        """The signature's name."""
        return self._name

    @property
    def proto(self) -> Any:
        """The ``JobSignatureDef`` that is being filled."""
        return self._proto

    def Input(self, input_name: str, lbn: str) -> SignatureBuilder:
        """Names an input.

        Args:
          input_name: what a caller gives it by.
          lbn: ``blob.logical_blob_name`` of any Blob of the graph, usually a placeholder.
        Returns: this builder.
        Raises: ArgumentError: not a str, an ``lbn`` without "/", a name that the signature has already, or a finished graph.
        """
        self._bind("input", input_name, lbn, self._proto.inputs, self._proto.input_order)
        return self

    def Output(self, output_name: str, lbn: str) -> SignatureBuilder:
        """Names an output; arguments, result and errors as those of ``Input``."""
        self._bind("output", output_name, lbn, self._proto.outputs, self._proto.output_order)
        return self

    def _bind(self, kind: str, name: Any, lbn: Any, entries: Any, order: Any) -> None:
        what = f"signature {self._name!r}"
        if self._owner is not None and self._owner.finished:
            refuse(ArgumentError, f"{what} belongs to graph {self._owner.name!r}, which is finished")
        _text(what, f"{kind}_name", name)
        op_name, slash, blob_name = _text(what, "lbn", lbn).rpartition("/")
        if not (slash and op_name and blob_name):
            refuse(ArgumentError, f"{what}: {kind} {name!r} needs a logical Blob name such as 'op/out', got {shown(lbn)}",
                   hint="blob.logical_blob_name")  # fmt: skip
        if name in entries:
            refuse(ArgumentError, f"{what} has an {kind} named {name!r} already")
        entries[name].lbi.op_name, entries[name].lbi.blob_name = op_name, blob_name
        order.append(name)

    def OwnerGraphBuilder(self) -> GraphBuilder:
        """The graph's builder. Raises SavedModelError where there is none."""
        if self._owner is None:
            refuse(SavedModelError, f"signature {self._name!r} belongs to no graph")
        return self._owner

    def AsDefault(self) -> SignatureBuilder:
        """Makes it the signature that is taken where none is named; otherwise that is the graph's first one."""
        self.OwnerGraphBuilder().proto.default_signature_name = self._name
        return self


class GraphBuilder:
    """One job of a saved model, and its signatures.

    Args:
      name: of the graph.
      model_builder: the model that it belongs to; None for one of its own.
    Example: >>> flow.saved_model.ModelBuilder("models").AddFunction(infer).AddSignature("classify")
    """

    def __init__(self, name: str, model_builder: ModelBuilder | None = None):
        from ..core.serving import saved_model_pb2

        self._name = _text("GraphBuilder", "name", name)
        if model_builder is not None and not isinstance(model_builder, ModelBuilder):
            refuse(ArgumentError, f"GraphBuilder: model_builder must be a ModelBuilder or None, got {shown(model_builder)}")
        self._owner = model_builder
        self._job: JobFunction[..., Any] | None = None
        self._finished = False
        self._proto: Any
        if model_builder is None:
            self._proto = saved_model_pb2.GraphDef()
        else:
            if name in model_builder.proto.graphs:
                refuse(ArgumentError, f"the model has a graph named {name!r} already", hint="give the function another name")
            self._proto = model_builder.proto.graphs[name]

    @property
    def name(self) -> str:
        """The graph's name, that of the job."""
        return self._name

    @property
    def proto(self) -> Any:
        """The ``GraphDef`` that is being filled."""
        return self._proto

    @property
    def finished(self) -> bool:
        """Whether ``Finish`` has been called."""
        return self._finished

    def AddSignature(self, signature_name: str) -> SignatureBuilder:
        """Adds a signature; the first one is the default.

        Returns: its builder.
        Raises: ArgumentError: not a str, a name that the graph has already, or a finished graph.
        """
        if self._finished:
            refuse(ArgumentError, f"graph {self._name!r} is finished", hint="add signatures before Finish()")
        made = SignatureBuilder(signature_name, self)
        if not self._proto.default_signature_name:
            self._proto.default_signature_name = signature_name
        return made

    def Finish(self) -> GraphBuilder:
        """Checks that every Blob that a signature names is there, and fills in shapes, dtypes and layouts of inputs.

        Returns: this builder.
        Raises:
          ArgumentError: it has been called before.
          SavedModelError: a Blob that the job does not have, or a graph that was not made by ``ModelBuilder.AddFunction``.
        """
        if self._finished:
            refuse(ArgumentError, f"graph {self._name!r} is finished already")
        graph = self._known_job().graph
        found = []
        for signature, kind, name, entry in self._entries():
            blob = graph.blob(_lbn(entry))
            if blob is None:
                refuse(SavedModelError, f"signature {signature!r}: {kind} {name!r} is bound to {_lbn(entry)!r}, and job "
                       f"{graph.name!r} has no such Blob", hint="collect blob.logical_blob_name inside the body")  # fmt: skip
            if kind == "output" and blob.has_dynamic_size:
                rule = f"signature {signature!r}: output {name!r} is Blob {blob.op_name!r}, whose size depends on data"
                refuse(SavedModelError, rule, source=blob.source)
            found.append((entry, blob, kind))
        for entry, blob, kind in found:
            if kind == "input":
                blob_conf(entry.blob_conf, blob)
        self._finished = True
        return self

    def _known_job(self) -> JobFunction[..., Any]:
        """The job. Raises SavedModelError where there is none."""
        if self._job is None:
            made_by = "ModelBuilder(path).AddFunction(job) makes its builder"
            refuse(SavedModelError, f"graph {self._name!r} has no job", hint=made_by)
        return self._job

    def _blobs(self) -> list[Blob]:
        """The Blobs that its signatures name."""
        graph = self._known_job().graph
        found = [graph.blob(_lbn(entry)) for _, _, _, entry in self._entries()]
        return [blob for blob in found if blob is not None]

    def _entries(self) -> Iterator[tuple[str, str, str, Any]]:
        """Signature, kind, name and message of each input and output."""
        for signature, proto in self._proto.signatures.items():
            for kind, entries in (("input", proto.inputs), ("output", proto.outputs)):
                yield from ((signature, kind, name, entries[name]) for name in entries)

    def OwnerModelBuilder(self) -> ModelBuilder:
        """The model's builder. Raises SavedModelError where there is none."""
        if self._owner is None:
            refuse(SavedModelError, f"graph {self._name!r} belongs to no model")
        return self._owner

    def AsDefault(self) -> GraphBuilder:
        """Makes it the graph that is taken where none is named; otherwise that is the model's first one."""
        self.OwnerModelBuilder().proto.default_graph_name = self._name
        return self


class ModelBuilder:
    """Saves jobs with their variables, so that another process can run them without their Python code.

    Args:
      save_path: the model's directory; each version is a directory in it, ``<save_path>/<version>``.
    Raises: ArgumentError: not a non-empty str.
    Example:
      >>> model = flow.saved_model.ModelBuilder("models").ModelName("net").Version(1)
      >>> model.AddFunction(infer).AddSignature("classify").Input("image", lbn["x"]).Output("prob", lbn["y"])
      >>> model.Save()
    """

    def __init__(self, save_path: str):
        from ..core.serving import saved_model_pb2

        text, problem = check.path(save_path) if isinstance(save_path, str) else ("", f"must be a str, got {shown(save_path)}")
        if problem:
            refuse(ArgumentError, f"ModelBuilder: save_path {problem}")
        self._path = text
        self._proto: Any = saved_model_pb2.SavedModel(checkpoint_dir=_DEFAULT_DIRECTORY)
        self._graphs: list[GraphBuilder] = []

    def __repr__(self) -> str:
        version = f", version {self._proto.version}" if self._proto.HasField("version") else ""
        graphs = ", ".join(repr(graph.name) for graph in self._graphs) or "no graph"
        return f"<ModelBuilder of {self._proto.name!r}{version} below {self._path!r}: {graphs}>"

    @property
    def proto(self) -> Any:
        """The ``SavedModel`` that is being filled."""
        return self._proto

    def ModelName(self, model_name: str) -> ModelBuilder:
        """Sets the model's name. Returns this builder."""
        self._proto.name = _text("ModelName", "model_name", model_name)
        return self

    def Version(self, version: int) -> ModelBuilder:
        """Sets the version, an int >= 0. Returns this builder."""
        number, problem = check.integer(version, low=0, high=2**63 - 1)
        if problem:
            refuse(ArgumentError, f"Version: version {problem}")
        self._proto.version = number
        return self

    def AddFunction(self, func: JobFunction[..., Any]) -> GraphBuilder:
        """Adds a job; the first one is the default graph.

        Args:
          func: what ``@flow.global_function`` made. The graph's name is the function's.
        Returns: the graph's builder.
        Raises: ArgumentError: not a job, or one of a name that the model has already.
        """
        if not isinstance(func, JobFunction):
            refuse(ArgumentError, f"AddFunction needs a job function, got {shown(func)}", hint="what @flow.global_function made")
        if func.declaration.grids is not None:
            refuse(ArgumentError, f"job {func.name!r} is of 8-bit integers, for which OneFlow's saved models have no ops",
                   hint="save the job that it was made of, or export this one: flow.export.onnx")  # fmt: skip
        made = GraphBuilder(func.name, self)
        made._job = func
        self._graphs.append(made)
        if not self._proto.default_graph_name:
            self._proto.default_graph_name = made.name
        return made

    def Save(self, save_model_before_graph_complete: bool = True) -> None:
        """Writes ``<save_path>/<version>``: the graphs, the session's variables, and compiled forms of the signatures.

        Either the whole directory is there afterwards, or nothing.

        Args:
          save_model_before_graph_complete: write the ops as the bodies described them. With False the ops that a call runs:
            without those that nothing needs, and with the casts of mixed precision.
        Raises:
          ArgumentError: the version is there already, or a name or Blob is used by two inputs or two outputs of the model.
          SavedModelError: no name, version or graph; a Blob that its job does not have; the disk refuses.
          MissingExtraError: the protobuf library is not installed.
        """
        flag, problem = check.flag(save_model_before_graph_complete)
        if problem:
            refuse(ArgumentError, f"Save: save_model_before_graph_complete {problem}")
        if current_or_none() is not None:
            refuse(SavedModelError, "Save cannot be called inside a job function", hint="call it outside")
        for name in ("name", "version"):
            if not self._proto.HasField(name):
                call = {"name": 'ModelName("net")', "version": "Version(1)"}[name]
                refuse(SavedModelError, f"the model {self._path!r} has no {name}", hint=f".{call}")
        if not self._graphs:
            refuse(SavedModelError, f"the model {self._path!r} has no graph", hint=".AddFunction(job)")
        target = os.path.join(self._path, str(self._proto.version))
        if os.path.lexists(target):
            refuse(ArgumentError, f"version {self._proto.version} of saved model {self._path!r} exists already",
                   hint="another version, or another save_path")  # fmt: skip
        with as_default(common_session("Save", [builder._known_job() for builder in self._graphs])):
            for builder in self._graphs:
                builder._known_job().session.start()
                builder._known_job().graph  # noqa: B018 - builds it
            self._check_conflicts()
            for builder in self._graphs:
                if not builder.finished:
                    builder.Finish()
                if problem := why_other_batches_differ(builder._known_job()):
                    warn(
                        JobWarning, f"the saved model computes something else for other batch sizes than the job would: {problem}"
                    )
            save(self._proto, [(b._known_job().graph, b._blobs()) for b in self._graphs], target, as_traced=flag)

    def _check_conflicts(self) -> None:
        """A name or a Blob is one input at most of a model, and one output at most."""
        names: set[tuple[str, str]] = set()
        bound: set[tuple[str, str, str]] = set()
        for builder in self._graphs:
            for _, kind, name, entry in builder._entries():
                if (kind, name) in names:
                    refuse(ArgumentError, f"{kind} conflict, {name} already exist")
                if (kind, builder.name, _lbn(entry)) in bound:
                    refuse(ArgumentError, f"{kind} conflict, {_lbn(entry)} already bind to other {kind}")
                names.add((kind, name))
                bound.add((kind, builder.name, _lbn(entry)))


def _lbn(entry: Any) -> str:
    return f"{entry.lbi.op_name}/{entry.lbi.blob_name}"
