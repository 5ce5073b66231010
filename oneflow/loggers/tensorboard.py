"""Event files for TensorBoard, written by tensorboardX."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._base import check
from .._base.extras import need
from .._base.refuse import refuse
from ..data.arrays import as_array
from ..errors import ShapeError
from .base import FileLogger


class TensorBoardLogger(FileLogger):
    """Writes event files, which ``tensorboard --logdir <save_dir>`` shows. Needs ``pip install 'oneflow-jax[tensorboard]'``.

    Besides numbers it takes images, histograms, the graph of a job, and hyper-parameters.

    Args:
      save_dir: None: the trainer's ``default_root_dir``.
      name: a directory in it.
      version: of the run; None: the first number that is free.
      log_graph: writes the ops of the train job when a run begins.
      flush_seconds: how long events may wait, > 0.
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
        self._tensorboard = need("tensorboardX", "TensorBoardLogger")
        self._summary: Any = need("tensorboardX.proto.summary_pb2", "TensorBoardLogger").Summary
        self.is_graph_wanted: bool = check.checked(self, "log_graph", check.flag(log_graph))
        self._flush_seconds = check.checked(self, "flush_seconds", check.number(flush_seconds, low=0))
        self._writer: Any = None

    def begin(self, resumed: Mapping[str, Any] | None, step: int) -> None:
        """Begins an event file; of a run that goes on TensorBoard does not show events of steps that are done again."""
        super().begin(resumed, step)
        purge = {"purge_step": step} if resumed is not None else {}
        self._writer = self._tensorboard.SummaryWriter(
            self.log_dir, flush_secs=self._flush_seconds, max_queue=1000,
            filename_suffix=f".{time.time_ns()}",  # of two files of one second the later one would replace the other
            **purge,
        )  # fmt: skip

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Writes numbers as one event; of values that are not single numbers nothing is written."""
        value = self._summary.Value
        values = [value(tag=name, simple_value=v) for name, v in metrics.items() if isinstance(v, (int, float))]
        self._writer.file_writer.add_summary(self._summary(value=values), step)

    def log_hyperparams(self, params: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Writes a row of the page HPARAMS."""
        plain = {k: v if isinstance(v, (bool, int, float, str)) else repr(v) for k, v in params.items()}
        hparams = self._tensorboard.summary.hparams(plain, dict(metrics or {}))
        for summary in hparams:
            self._writer.file_writer.add_summary(summary)
        for name, number in (metrics or {}).items():
            self._writer.add_scalar(name, number, 0)

    def log_image(self, key: str, images: Any, step: int) -> None:
        """Writes one image, or a batch of them side by side."""
        pixels = as_array(images, "images")
        if pixels.dtype != np.uint8:
            pixels = (np.clip(pixels, 0.0, 1.0) * 255 + 0.5).astype(np.uint8)
        self._writer.add_image(key, _channels_last(pixels), step, dataformats="HWC")

    def log_histogram(self, key: str, values: Any, step: int) -> None:
        """Writes how the elements of an array are distributed."""
        self._writer.add_histogram(key, as_array(values, "values").astype(np.float64).reshape(-1), step)

    def log_graph(self, job: Any) -> None:
        """Writes the ops of a job, with their shapes; parts that a ``name_scope`` or a layer names fold together."""
        self._writer.file_writer.add_event(graph_event([job.graph], "TensorBoardLogger.log_graph"))

    def save(self) -> None:
        """Writes the events that wait."""
        if self._writer is not None:
            self._writer.flush()

    def finalize(self, status: str) -> None:
        """Ends the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def graph_event(graphs: Sequence[Any], what: str) -> Any:
    """The event of a graph. Of several graphs, the names of the ops begin with those of their jobs.

    ``what`` is what needs tensorboardX, in errors.
    """
    graph_pb2, node_pb2, attr_pb2, shape_pb2, event_pb2 = (
        need(f"tensorboardX.proto.{name}_pb2", what) for name in ("graph", "node_def", "attr_value", "tensor_shape", "event")
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
    return event_pb2.Event(graph_def=graph_pb2.GraphDef(node=nodes).SerializeToString(), wall_time=time.time())


def _tag(name: str) -> str:
    """The name of an op as TensorBoard folds it: by slashes."""
    return name.replace("-", "/")


def _channels_last(pixels: np.ndarray) -> np.ndarray:
    """One image (height, width, channels) of an image or a batch in any of the usual orders of axes."""
    if pixels.ndim == 4:
        return np.concatenate([_channels_last(image) for image in pixels], axis=1)
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4) and pixels.shape[2] not in (1, 3, 4):
        pixels = pixels.transpose(1, 2, 0)
    elif pixels.ndim == 3 and pixels.shape[2] not in (1, 3, 4):  # a batch of gray ones
        return np.concatenate([_channels_last(image) for image in pixels], axis=1)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3:
        refuse(ShapeError, f"images must have 2, 3 or 4 axes, got shape {pixels.shape}")
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
