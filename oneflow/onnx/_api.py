"""``flow.onnx.export``, with OneFlow's arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._base import check
from .._base.frames import shows_user_frames
from .._base.refuse import refuse, shown, warn
from ..errors import ArgumentError, JobWarning
from ..export._job import DynamicAxes
from ..job import JobFunction
from ._export import DEFAULT_OPSET, OPSETS, write


@shows_user_frames
def export(
    job_func: Callable[..., Any],
    model_save_dir: str | os.PathLike[str] | None,
    onnx_filename: str | os.PathLike[str],
    continue_on_error: bool = False,
    opset: int | None = None,
    extra_opset: int | None = None,
    shape_override: Mapping[str, Sequence[int]] | None = None,
    external_data: bool | None = False,
    *,
    dynamic_axes: DynamicAxes = None,
) -> None:
    """Writes a predict job with the weights of a checkpoint as an ONNX model, as ``flow.export.onnx`` does.

    Args:
      job_func: a predict job.
      model_save_dir: a checkpoint that has the job's variables; None takes their present values.
      onnx_filename: the file; an existing one is replaced.
      continue_on_error: write ops that ONNX does not have as nodes of the domain "oneflow", with a JobWarning for each,
        instead of raising an error. No runtime knows these.
      opset: version of the operator set, 17 to 23; None and 0 mean 17. Older ones, which OneFlow's programs name, are taken as
        17, with a JobWarning.
      extra_opset: version of the domain "oneflow"; None means 1.
      shape_override: input -> shape, where -1 leaves a size to the caller and any other one must be the job's own.
      external_data: write weights of 1024 bytes and more to one file beside the model; done in any case if they exceed 2 GB.
      dynamic_axes: input -> {axis: name}, see ``flow.export.onnx``. By default the batch axis is open.
    Returns: None.
    Raises:
      ExportError: a train job; ops that ONNX cannot express; an op that ties an open size to a number.
      CheckpointError: there is no such checkpoint, or it lacks variables of the job.
      ArgumentError: not a job, or a wrong value of another argument.
      MissingExtraError: the extra [onnx] is not installed.
    Example: >>> flow.onnx.export(job, "./models", "model.onnx")
    """
    what = "flow.onnx.export"
    version = 1 if extra_opset is None else check.checked(what, "extra_opset", check.integer(extra_opset, low=0))
    check.checked(what, "continue_on_error", check.flag(continue_on_error))
    if shape_override is not None:
        if dynamic_axes is not None:
            refuse(ArgumentError, f"{what}: shape_override and dynamic_axes say the same in two ways", hint="give one of them")
        dynamic_axes = _from_shapes(what, job_func, shape_override)
    in_a_file = None if external_data is False else external_data  # None: where the model is too large for one file
    asked = check.whole(opset)
    older = asked is not None and 0 < asked < OPSETS[0]
    write(
        what, job_func, onnx_filename, dynamic_axes=dynamic_axes, opset=DEFAULT_OPSET if older else opset,
        external_data=in_a_file, weights=model_save_dir, custom_ops=(version or 1) if continue_on_error else 0,
    )  # fmt: skip
    if older:
        warn(JobWarning, f"{what}: opset {asked} is not written; the model has opset {DEFAULT_OPSET}, which every present "
             "runtime reads")  # fmt: skip


def _from_shapes(what: str, job: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, dict[int, str]]:
    """Open axes from shapes with -1; all that have one declared size on the batch axis are one."""
    if not isinstance(job, JobFunction) or not isinstance(shapes, Mapping):
        refuse(ArgumentError, f"{what}: shape_override must be a dict of input -> shape, for a job")
    inputs = {spec.label: spec for spec in job.graph.inputs}
    axes: dict[str, dict[int, str]] = {}
    for label, shape in shapes.items():
        spec = inputs.get(label)
        if spec is None:
            refuse(ArgumentError, f"{what}: shape_override names {shown(label)}, which is not an input of job {job.name!r}",
                   hint=f"its inputs are {', '.join(map(repr, inputs)) or 'none'}")  # fmt: skip
        if not isinstance(shape, (list, tuple)):
            refuse(
                ArgumentError, f"{what}: shape_override gives {label!r} the shape {shown(shape)}, which is not a list or tuple"
            )
        if len(shape) != len(spec.shape) or any(new not in (-1, old) for new, old in zip(shape, spec.shape, strict=False)):
            refuse(ArgumentError, f"{what}: shape_override gives {label!r} the shape {tuple(shape)}, and it was declared as "
                   f"{spec.shape}", hint="-1 leaves a size to the caller; declare another job for other sizes")  # fmt: skip
        plain = "".join(c if c.isalnum() else "_" for c in label)
        axes[label] = {
            axis: "batch" if axis == spec.blob.batch_axis else f"{plain}_axis_{axis}"
            for axis, size in enumerate(shape)
            if size == -1
        }
    return axes
