"""Event files for TensorBoard. Messages are tensorboardX's; its writer, which has each pass a queue and a pipe, is not used."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from .._base import check
from .._base.extras import need
from .._base.refuse import refuse, shown
from ..data.arrays import as_array
from ..errors import ArgumentError
from .base import FileLogger, numbers_of
from .event_file import EventFile
from .pixels import one_image


class TensorBoardLogger(FileLogger):
    """Writes event files, which ``tensorboard --logdir <save_dir>`` shows. Needs ``pip install 'oneflow-jax[tensorboard]'``.

    Besides numbers it takes images, histograms, the graph of a job, and hyper-parameters.

    Args:
      save_dir: None: the trainer's ``default_root_dir``.
      name: a directory in it.
      version: of the run; None: the first number that is free.
      log_graph: writes the ops of the train job when a run begins.
      flush_seconds: how long events may wait, >= 0.
    Raises:
      MissingExtraError: tensorboardX is not installed.
    Example:
      >>> logger = flow.loggers.TensorBoardLogger("./runs")
      >>> trainer = flow.Trainer(max_epochs=2, logger=logger)
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str] | None = None,
        name: str = "logs",
        version: int | str | None = None,
        log_graph: bool = False,
        flush_seconds: float = 5.0,
    ):
        super().__init__(save_dir, name, version)
        need("tensorboardX", "TensorBoardLogger")
        self._summaries: Any = need("tensorboardX.summary", "TensorBoardLogger")
        self._event: Any = need("tensorboardX.proto.event_pb2", "TensorBoardLogger")
        self.is_graph_wanted: bool = check.checked(self, "log_graph", check.flag(log_graph))
        self._flush_seconds = check.checked(self, "flush_seconds", check.number(flush_seconds, low=0))
        self._file: EventFile | None = None
        self._rows: list[tuple[float, int, Mapping[str, Any]]] = []  # of numbers that wait
        self._next = 0.0
        self._early: list[dict[str, Any]] = []  # events of before the first run

    def begin(self, resumed: Mapping[str, Any] | None, step: int) -> None:
        """Begins an event file; of a run that goes on TensorBoard does not show events of steps that are done again."""
        super().begin(resumed, step)
        self._open()
        if resumed is not None:
            self._add(step=step, session_log=self._event.SessionLog(status=self._event.SessionLog.START))
        early, self._early = self._early, []
        for fields in early:
            self._add(**fields)
        self.save()

    def _open(self) -> None:
        os.makedirs(self.log_dir, exist_ok=True)
        # of two files of one second the later one would replace the other without the nanoseconds
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{time.time_ns()}"
        self._file, self._rows = EventFile(os.path.join(self.log_dir, name)), []

    def _add(self, **fields: Any) -> None:
        """Writes an event behind the numbers that wait: between runs into a file of its own, before the first when it begins."""
        fields.setdefault("wall_time", time.time())
        if self._directory is None:
            self._early.append(fields)
            return
        is_between = self._file is None
        if is_between:
            self._open()
        self._write_rows().add(self._event.Event(**fields).SerializeToString())
        if is_between:
            self.finalize("")

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Writes numbers as one event; of values that are not single numbers nothing is written."""
        numbers = numbers_of(metrics)
        if not numbers:
            return
        if self._file is None:
            first, *others = [self._summaries.scalar(name, number) for name, number in numbers.items()]
            for summary in others:
                first.MergeFrom(summary)
            self._add(step=step, summary=first)
            return
        now = time.time()
        self._rows.append((now, step, numbers))
        if now >= self._next:
            self._next = now + self._flush_seconds
            self.save()
        elif len(self._rows) >= _MOST_ROWS:
            self._write_rows()

    def _write_rows(self) -> EventFile:
        assert self._file is not None
        rows, self._rows = self._rows, []
        for names, group in groupby(rows, key=lambda row: tuple(row[2])):
            times, steps, numbers = zip(*group, strict=True)
            values = np.array([list(each.values()) for each in numbers], np.float64)
            with np.errstate(over="ignore"):
                self._file.add_numbers(names, times, steps, values.astype(np.float32))
        return self._file

    def log_hyperparams(self, params: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Writes a row of the page HPARAMS."""
        for argument, given in (("params", params), ("metrics", metrics or {})):
            if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
                rule = f"log_hyperparams: {argument} must be a dictionary whose keys are names, got {shown(given)}"
                refuse(ArgumentError, rule)
        plain = {k: v if isinstance(v, (bool, int, float, str)) else repr(v) for k, v in params.items()}
        for summary in self._summaries.hparams(plain, dict(metrics or {})):
            self._add(summary=summary)
        if metrics:
            self.log_metrics(dict(metrics), 0)

    def log_image(self, key: str, images: Any, step: int) -> None:
        """Writes one image, or a batch of them side by side."""
        pixels = one_image(as_array(images, "images"))
        self._add(step=step, summary=self._summaries.image(key, pixels, dataformats="HWC"))

    def log_histogram(self, key: str, values: Any, step: int) -> None:
        """Writes how the elements of an array are distributed."""
        flat = as_array(values, "values").astype(np.float64).reshape(-1)
        finite = flat[np.isfinite(flat)]
        if not finite.size:
            rule = f"log_histogram: {key!r} has no finite value among its {flat.size} elements"
            refuse(ArgumentError, rule, hint="a histogram needs at least one")
        self._add(step=step, summary=self._summaries.histogram(key, finite, _BINS))

    def log_graph(self, job: Any) -> None:
        """Writes the ops of a job, with their shapes; parts that a ``name_scope`` or a layer names fold together."""
        if not hasattr(job, "graph"):
            refuse(ArgumentError, f"log_graph takes a job function, got {shown(job)}")
        self._add(graph_def=graph_def([job.graph], "TensorBoardLogger.log_graph"))

    def save(self) -> None:
        """Writes the events that wait."""
        if self._file is not None:
            self._write_rows().flush()

    def finalize(self, status: str) -> None:
        """Ends the event file."""
        if self._file is not None:
            self._write_rows().close()
            self._file = None


_MOST_ROWS = 256  # that wait: they are encoded together
_POSITIVE = np.geomspace(1e-12, 1e20, 774)  # each a tenth larger than the one before, as TensorFlow has them
_BINS = [*(-_POSITIVE[::-1]).tolist(), 0.0, *_POSITIVE.tolist()]


def graph_def(graphs: Sequence[Any], what: str) -> bytes:
    """The GraphDef message of graphs. Of several graphs, the names of the ops begin with those of their jobs.

    ``what`` is what needs tensorboardX, in errors.
    """
    graph_pb2, node_pb2, attr_pb2, shape_pb2 = (
        need(f"tensorboardX.proto.{name}_pb2", what) for name in ("graph", "node_def", "attr_value", "tensor_shape")
    )
    nodes = []
    for graph in graphs:
        prefix = f"{graph.name}/" if len(graphs) > 1 else ""
        for node in graph.nodes:
            shapes = [
                shape_pb2.TensorShapeProto(dim=[shape_pb2.TensorShapeProto.Dim(size=n) for n in b.shape]) for b in node.outputs
            ]
            attributes = {"_output_shapes": attr_pb2.AttrValue(list=attr_pb2.AttrValue.ListValue(shape=shapes))}
            inputs = [prefix + _tag(b.node.name) + (f":{b.index}" if b.index else "") for b in node.inputs]
            nodes.append(node_pb2.NodeDef(name=prefix + _tag(node.name), op=node.op.name, input=inputs, attr=attributes))
    made: bytes = graph_pb2.GraphDef(node=nodes).SerializeToString()
    return made


def _tag(name: str) -> str:
    """The name of an op as TensorBoard folds it: by slashes."""
    return name.replace("-", "/")
