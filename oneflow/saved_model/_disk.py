"""The directory of a saved model: ``<path>/<version>/{saved_model.pb, saved_model.prototxt, variables/, compiled/}``.

``compiled/`` is this library's own: ``compiled.json`` lists a StableHLO file per graph and signature, each with the digest of the
ops that it was made from, so that a form that does not belong to the ops is never run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .. import checkpoint
from .._base import check
from .._base.extras import need
from .._base.jax import jax_export
from .._base.refuse import refuse, shown, warn
from ..checkpoint.format import Checkpoint
from ..errors import ArgumentError, JobWarning, MissingExtraError, OneFlowError, SavedModelError
from ..graph.graph import Graph
from ..graph.node import Blob
from ..runtime import processes
from ._loading import Compiled, SavedGraph, export
from ._replay import replay
from ._writing import op_list

META = "saved_model"
_COMPILED = "compiled"
_INDEX = "compiled.json"
_PLATFORMS = ("cpu", "cuda", "tpu")


class NoVersionError(SavedModelError, IndexError):
    """A saved model's directory has no version."""


# --- writing


def save(model: Any, jobs: Sequence[tuple[Graph, Sequence[Blob]]], target: str, *, as_traced: bool) -> None:
    """Writes one version: into a directory beside the target, which is then renamed.

    Args:
      model: the ``SavedModel``, complete but for the ops.
      jobs: for each graph the job's, and the Blobs that signatures name.
      target: the directory of the version.
      as_traced: see ``op_list``.
    """
    text_format: Any = need("google.protobuf.text_format", "a saved model")
    if processes.count() > 1:
        refuse(SavedModelError, "a saved model is written by one process, and this run has several",
               hint="save a checkpoint, and load it in a run of one process")  # fmt: skip
    for graph, blobs in jobs:
        proto = model.graphs[graph.name]
        del proto.op_list[:]
        proto.op_list.extend(op_list(graph, blobs, as_traced=as_traced))
    parent, version = os.path.split(target)
    staged = os.path.join(parent, f".{version}.{os.getpid()}.saving")
    problem: OSError | None = None
    try:
        os.makedirs(parent, exist_ok=True)
        os.mkdir(staged)
        checkpoint.save(os.path.join(staged, model.checkpoint_dir))
        Path(staged, f"{META}.pb").write_bytes(model.SerializeToString(deterministic=True))
        Path(staged, f"{META}.prototxt").write_text(text_format.MessageToString(_as_oneflow_reads(model)), encoding="utf-8")
        _write_compiled(Path(staged), model)
        os.rename(staged, target)
    except OSError as error:
        problem = error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    if problem is not None:
        refuse(SavedModelError, f"the saved model {target!r} cannot be written: {problem.strerror or problem}", cause=problem)


def _as_oneflow_reads(model: Any) -> Any:
    """The model without the fields that OneFlow's own reader of text would refuse."""
    made = type(model)()
    made.CopyFrom(model)
    for graph in made.graphs.values():
        for signature in graph.signatures.values():
            signature.ClearField("input_order")
            signature.ClearField("output_order")
    return made


def _write_compiled(folder: Path, model: Any) -> None:
    """Compiled forms of all signatures. A graph that cannot be loaded is saved all the same, with a warning."""
    index: dict[str, Any] = {}
    try:
        need("flatbuffers", "the compiled form of a saved model")
        forms = True
    except MissingExtraError as error:
        forms = False
        warn(JobWarning, f"{error}\n  the saved model is complete, but has no compiled form: loading it traces its ops")
    for name, graph in sorted(model.graphs.items()):
        for signature in sorted(graph.signatures) or [None]:
            what = f"graph {name!r}" + ("" if signature is None else f", signature {signature!r}")
            try:
                made = replay(what, name, graph.op_list, None if signature is None else graph.signatures[signature], tag="cpu")
                exported = export(what, made, platforms=_PLATFORMS if forms else None)
            except SavedModelError as error:
                warn(JobWarning, f"{error}\n  the saved model is complete, but flow.serving cannot run this part of it")
                continue
            if not forms:
                continue
            data = bytes(exported.serialize())
            file = f"{len(index)}.stablehlo"
            (folder / _COMPILED).mkdir(exist_ok=True)
            (folder / _COMPILED / file).write_bytes(data)
            index[_key(name, signature)] = {
                "file": file, "sha256": hashlib.sha256(data).hexdigest(), "ops": _digest(graph, signature),
                "inputs": [t.name for t in made.inputs], "outputs": [t.name for t in made.outputs],
            }  # fmt: skip
    if index:
        (folder / _COMPILED / _INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")


def _key(graph: str, signature: str | None) -> str:
    return json.dumps([graph, signature])


def _digest(graph: Any, signature: str | None) -> str:
    """Of everything that a compiled form depends on."""
    found = hashlib.sha256()
    for conf in graph.op_list:
        found.update(conf.SerializeToString(deterministic=True))
    if signature is not None:
        found.update(graph.signatures[signature].SerializeToString(deterministic=True))
    return found.hexdigest()


# --- reading


class SavedVersion:
    """One version of a saved model on disk.

    Args:
      path: the directory of the version.
      basename: of the meta file, without its suffix.
    Attributes:
      proto: its ``SavedModel``.
    Raises: SavedModelError: no meta file, or one that cannot be understood.
    """

    def __init__(self, path: str | os.PathLike[str], basename: str = META):
        self.path = Path(path)
        self.proto = _meta(self.path, basename)
        directory = self.proto.checkpoint_dir
        if os.path.isabs(directory) or ".." in Path(directory).parts:
            refuse(SavedModelError, f"saved model {str(path)!r}: its checkpoint_dir {shown(directory)} leads outside")
        self.checkpoint = str(self.path / directory)

    def graph(self, name: str | None, signature: str | None, *, tag: str, batch_size: int | None = None) -> SavedGraph:
        """A graph, ready to be given its weights.

        Args:
          name: of the graph; None for the default one.
          signature: None for the graph's default one, or for none where it has none.
          tag, batch_size: see ``SavedGraph``.
        Raises: SavedModelError: no such graph or signature; ops that cannot be run; a damaged compiled form.
        """
        chosen = self._chosen("graph", name, self.proto.default_graph_name, self.proto.graphs)
        if chosen is None:
            refuse(
                SavedModelError, f"saved model {str(self.path)!r} names no default graph", found=self._listed(self.proto.graphs)
            )
        graph = self.proto.graphs[chosen]
        picked = self._chosen("signature", signature, graph.default_signature_name, graph.signatures)
        what = f"graph {chosen!r} of saved model {str(self.path)!r}"
        compiled = self._compiled(chosen, picked) if batch_size is None else None
        proto = None if picked is None else graph.signatures[picked]
        return SavedGraph(what, chosen, list(graph.op_list), proto, tag=tag, batch_size=batch_size, compiled=compiled)

    def weights(self) -> Checkpoint:
        """The values of the variables. Raises CheckpointError."""
        return Checkpoint(self.checkpoint, unfinished=True)

    def _chosen(self, kind: str, name: Any, default: str, there: Any) -> str | None:
        if name is None:
            if not default:
                return None
            name = default
        if not isinstance(name, str) or name not in there:
            refuse(SavedModelError, f"saved model {str(self.path)!r} has no {kind} {shown(name)}", found=self._listed(there))
        return name

    def _listed(self, there: Any) -> list[tuple[str, str]]:
        return [("it has", ", ".join(map(repr, sorted(there))) or "none")]

    def _compiled(self, graph: str, signature: str | None) -> Compiled | None:
        """The compiled form of a signature, where there is one that belongs to the ops."""
        index = self.path / _COMPILED / _INDEX
        if not index.exists():
            return None
        what = f"saved model {str(self.path)!r}: its compiled form"
        hint = f"remove {str(self.path / _COMPILED)!r}; then it is made again"
        try:
            entry = json.loads(index.read_text(encoding="utf-8")).get(_key(graph, signature))
            if entry is None:
                return None
            file, digest, ops = (str(entry[key]) for key in ("file", "sha256", "ops"))
            names = [tuple(map(str, entry[key])) for key in ("inputs", "outputs")]
            data = (self.path / _COMPILED / os.path.basename(file)).read_bytes()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            refuse(SavedModelError, f"{what} cannot be read: {error}", hint=hint, cause=error)
        if ops != _digest(self.proto.graphs[graph], signature):
            warn(
                JobWarning,
                f"{what} was made from other ops than those of the model, or one of its files is damaged: the ops are traced",
            )
            return None
        if hashlib.sha256(data).hexdigest() != digest:
            refuse(SavedModelError, f"{what} is damaged", hint=hint)
        try:
            exported = jax_export.deserialize(bytearray(data))
        except Exception as error:  # of another JAX, say
            reason = (str(error) or type(error).__name__).splitlines()[0]
            warn(JobWarning, f"{what} cannot be used by this version of JAX ({reason}); the ops are traced")
            return None
        return Compiled(exported, *names)


def versions(path: Any) -> dict[int, Path]:
    """The versions of a saved model, by number. Raises SavedModelError where there is no such directory."""
    text, problem = check.path(path)
    if problem:
        refuse(ArgumentError, f"saved_model_dir {problem}")
    try:
        with os.scandir(text) as entries:
            names = [e.name for e in entries if e.is_dir() and e.name.isascii() and e.name.isdecimal() and len(e.name) < 20]
    except OSError as error:
        refuse(SavedModelError, f"there is no saved model at {text!r}: {error.strerror}", cause=error)
    return {int(name): Path(text, name) for name in names}


def version_path(path: Any, version: int | None) -> tuple[int, Path]:
    """A version's number and directory; the latest one for None. Raises SavedModelError, NoVersionError."""
    found = versions(path)
    if version is None:
        if not found:
            refuse(NoVersionError, f"saved model {os.fspath(path)!r} has no version: no directory of it is named by a number")
        version = max(found)
    if version not in found:
        listed = ", ".join(map(str, sorted(found))) or "none"
        refuse(SavedModelError, f"version {shown(version)} of saved model in dir {os.fspath(path)} do not exist",
               found=[("there is", listed)])  # fmt: skip
    return version, found[version]


def _meta(path: Path, basename: str) -> Any:
    from ..core.serving import saved_model_pb2

    text_format: Any = need("google.protobuf.text_format", "a saved model")
    model: Any = saved_model_pb2.SavedModel()
    for file, parse in _candidates(path, basename):
        problem: Exception | None = None
        try:
            parse(file, model, text_format)
        except FileNotFoundError:
            continue
        except (OneFlowError, MemoryError):
            raise
        except Exception as error:  # DecodeError, ParseError, OSError, UnicodeDecodeError, RecursionError
            problem = error
        if problem is None:
            lacking = [*model.FindInitializationErrors(), *_not_text(model)]
            if lacking:
                refuse(SavedModelError, f"{str(file)!r} is not a saved model: {lacking[0]} is missing or damaged")
            return model
        reason = (str(problem) or type(problem).__name__).splitlines()[0]
        refuse(SavedModelError, f"{str(file)!r} is not a saved model: {reason}", cause=problem)
    refuse(SavedModelError, f"{str(path)!r} is not a saved model: it has neither {basename}.pb nor {basename}.prototxt")


def _not_text(message: Any) -> Iterator[str]:
    """The fields whose strings are not UTF-8, which the protobuf library returns as bytes."""
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            keys = list(value)
            values: Any = [b""] if any(isinstance(key, bytes) for key in keys) else [value[key] for key in keys]
        else:
            values = value if field.is_repeated else [value]
        for item in values:
            if isinstance(item, bytes):
                yield field.name
            elif hasattr(item, "ListFields"):
                yield from _not_text(item)


def _candidates(path: Path, basename: str) -> Iterator[tuple[Path, Any]]:
    yield path / f"{basename}.pb", lambda file, model, _: model.ParseFromString(file.read_bytes())
    # fields of OneFlow's that are not described here have no bearing on what is computed
    yield (
        path / f"{basename}.prototxt",
        lambda file, model, text: text.Parse(file.read_text(encoding="utf-8"), model, allow_unknown_field=True),
    )
