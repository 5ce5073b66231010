"""``flow.export.onnx``: the plain way to an ONNX file."""

from __future__ import annotations

import os
from typing import Any

from ._job import DynamicAxes


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

    Inputs have the names of the job's parameters, results those of dictionary keys or of the ops that give them; nodes and
    initializers keep the names of ops and variables, and each node's ``doc_string`` tells the line of the program. Jobs in
    channels-last formats are written with their weights moved, so that only the images themselves are transposed.

    Args:
      job: a predict job.
      path: the file; an existing one is replaced.
      dynamic_axes: input -> {axis: name}, or -> list of axes: the sizes that are left to the caller; axes of one name have
        one size. By default the batch axis, called "batch", of all inputs that share the first one's batch size. ``{}``
        fixes every size.
      opset: version of the operator set, 17 to 23; None means 17.
      external_data: write weights of 1024 bytes and more to one file beside the model, ``<path>.data``; None does so where
        the model would be larger than the 2 GB that one file can hold.
      weights: whose values to write: a checkpoint's path, or a dict of name -> array; None for the present ones.
    Returns: None.
    Raises:
      ExportError: a train job; ops that ONNX has no form of, all of them with their lines; an op that ties an open size to a
        number.
      ArgumentError, CheckpointError (weights are missing or do not fit), MissingExtraError.
    Example: >>> flow.export.onnx(job, "model.onnx")
    """
    from ..onnx._export import write  # here, because both rooms need the other's

    write("flow.export.onnx", job, path, dynamic_axes=dynamic_axes, opset=opset, external_data=external_data, weights=weights)
