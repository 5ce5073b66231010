"""``flow.export.onnx``: the plain way to an ONNX file."""

from __future__ import annotations

import os
from typing import Any

from .._base.frames import shows_user_frames
from ._job import DynamicAxes


@shows_user_frames
def onnx(
    job: Any,
    path: str | os.PathLike[str],
    *,
    dynamic_axes: DynamicAxes = None,
    opset: int | None = None,
    external_data: bool | None = None,
    weights: Any = None,
) -> None:
    """Writes a predict job as an ONNX model.

    Inputs are named after the job's parameters, results after dictionary keys or ops; nodes and initializers keep the names of
    ops and variables, and each node's ``doc_string`` is the line of the program. The weights of jobs in channels-last formats
    are transposed in the file, so that at run time only the images are. Jobs with mixed precision are written in float32.

    Args:
      job: a predict job.
      path: the file; an existing one is replaced.
      dynamic_axes: the open sizes, which the caller chooses: input -> {axis: name}, or input -> list of axes; axes of the same
        name have the same size. By default the batch axis, named "batch", of all inputs that share the first one's batch size.
        ``{}`` fixes every size.
      opset: version of the operator set, 17 to 23; None means 17.
      external_data: write weights of 1024 bytes and more to one file beside the model, ``<path>.data``; None does so if the
        model is larger than the 2 GB that one file can hold.
      weights: the values to write: a checkpoint's path, or a dict of name -> array; None for the current ones.
    Returns: None.
    Raises:
      ExportError: a train job; ops that ONNX cannot express, all of them with their lines; an op that ties an open size to a
        number; the file cannot be written.
      CheckpointError: weights are missing, or have another shape or dtype.
      ArgumentError: not a job, or a wrong value of another argument.
      MissingExtraError: the extra [onnx] is not installed.
    Example: >>> flow.export.onnx(job, "model.onnx")
    """
    from ..onnx._export import write  # here, because both rooms need the other's

    write("flow.export.onnx", job, path, dynamic_axes=dynamic_axes, opset=opset, external_data=external_data, weights=weights)
