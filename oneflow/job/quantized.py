"""int8 inference: the int8 form of a predict job, by calibration or of a job that was trained for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import typing as tp
from .._base.frames import shows_user_frames
from .._base.refuse import listed, refuse, shown
from .._signature import parse_return
from ..compiler.int8_analysis import INSTEAD, Analysis, details, key_of
from ..compiler.int8_kernels import Grid, grid_of_values
from ..errors import ArgumentError, ModeError
from ..graph.graph import Graph, current, current_or_none
from ..graph.node import Blob, Node
from ..ops.array import concat, reshape
from ..ops.reduce import reduce_max, reduce_min
from .function import JobFunction
from .untrained import OBSERVERS, unmeasured_observers

_NO_FLOATS = "it has no products or convolutions of float32 data with variables"


class _Watched:
    """What an observing job measures: a range of each value, and scale and zero point of each grid that is kept in variables."""

    def __init__(self, job: str) -> None:
        self._job = job
        self.ranges: list[Blob] = []
        self.grids: list[Node] = []

    def body(self, function: Callable[..., Any], measures: bool) -> Callable[..., Any]:
        """The body of a job that returns all of it as one vector."""

        def observing(*arguments: Any) -> Any:
            function(*arguments)
            graph: Graph = current()
            graph.adapt_inputs = None
            analysis = Analysis(graph.nodes, (), set(graph.assigns))
            graph.watches, graph.assigns = [], {}  # handlers, and what is stored, are for the calls of the job itself
            self.grids = analysis.kept_grids()
            rounded = {key_of(analysis.source(node.inputs[0])) for node in self.grids}
            self.ranges = [b for b in analysis.observed() if measures and key_of(b) not in rounded]
            found = [f(blob) for blob in self.ranges for f in (reduce_min, reduce_max)]
            found += [blob for node in self.grids for blob in node.inputs[1:]]
            if not found:
                reason, lines = "it has no fake quantization of data, whose grids are kept in variables", []
                hint = "flow.quantization.calibrate(job, batches)"
                if measures:
                    reason, hint = _NO_FLOATS, ""
                if measures and analysis.left:
                    node, why = next(iter(analysis.left.items()))
                    reason, hint = f"of {node.name!r}, {why}", INSTEAD.get(why, "")
                    lines = [("made at", f"{node.source}   {node.source.text}")]
                refuse(ModeError, f"job {self._job!r} cannot be of 8-bit integers: {reason}", found=lines, hint=hint)
            return concat([reshape(blob, (1,)) for blob in found], 0) if len(found) > 1 else reshape(found[0], (1,))

        return observing


@shows_user_frames
def calibrate(job: Any, batches: Iterable[Any], name: str | None = None) -> JobFunction[..., Any]:
    """The int8 form of a predict job: products and convolutions of 8-bit integers, with the ranges that data has in ``batches``.

    Each batch is run once in floating point. Data is uint8 with one scale and zero point per tensor, from the smallest and the
    largest value that was seen; weights are int8 with a scale per output channel, quantized again when variables change. Bias,
    batch normalization, residuals and ReLU or GELU are computed with the product. Values beyond the range saturate.

    Args:
      job: a predict job of float32 on one device, whose inputs have fixed shapes.
      batches: what the job is called with: for each batch an array, a tuple of arrays, or a dict by parameter.
      name: of the new job, which takes and returns what ``job`` does; by default ``<job>_int8``.
    Returns: a job.
    Raises: ArgumentError (not a predict job, no batches, a range that is not finite), ModeError (nothing can be of integers),
      FeedError (a batch that does not fit).
    Example: >>> fast = flow.quantization.calibrate(predict, [images[:100], images[100:200]])
    """
    job = _want_predict(job, "calibrate")
    name = _want_name(job, name)
    watched = _Watched(job.name)
    observer = _observer(job, watched, measures=True)
    low = high = None
    try:
        for batch in _want_batches(batches):
            positional, keywords = _arguments(batch)
            values = np.asarray(observer(*positional, **keywords))
            low = values if low is None else np.minimum(low, values)
            high = values if high is None else np.maximum(high, values)
    finally:
        _forget(observer)
    if low is None or high is None:
        refuse(ArgumentError, "flow.quantization.calibrate got no batches", hint="an array for each call, such as [images[:100]]")
    return _made(job, name, watched, low, high)


@shows_user_frames
def convert(job: Any, name: str | None = None) -> JobFunction[..., Any]:
    """The int8 form of a predict job whose model was trained with fake quantization (``config.enable_qat``, or observers).

    Its grids are those that training has left in the observers' variables. After more training convert again; only weights
    follow their variables by themselves. Values that training left in floating point stay so, except that the terms of residuals
    that a product reads, too, are its integers.

    Args:
      job: a predict job with ``fake_quantization`` of data by moving averages.
      name: of the new job; by default ``<job>_int8``.
    Returns: a job that takes and returns what ``job`` does.
    Raises: ArgumentError (not a predict job), ModeError (no fake quantization, a range that no training has measured, or nothing
      that can be of integers).
    Example: >>> fast = flow.quantization.convert(predict)
    """
    job = _want_predict(job, "convert")
    name = _want_name(job, name)
    watched = _Watched(job.name)
    observer = _observer(job, watched, measures=False)
    try:
        if unmeasured := unmeasured_observers(job.build(), job.session):
            node = next(iter(unmeasured.values()))
            refuse(
                ModeError,
                f"job {job.name!r} cannot be converted: no training has measured a range for {listed(list(unmeasured), 6)}",
                found=[("made at", f"{node.source}   {node.source.text}")],
                hint=f"train first, or load what was trained; {OBSERVERS}",
            )
        leaves = [d for p in job.declaration.parameters for _, d in p.leaves()]
        if any(d.kind != "Numpy" for d in leaves) or len(leaves) != len(job.declaration.parameters):
            refuse(ModeError, f"job {job.name!r} cannot be converted: its inputs are not plain arrays of fixed shapes",
                   found=_declared(job))  # fmt: skip
        values = np.asarray(observer(*(np.zeros(d.shape, d.dtype.numpy_dtype) for d in leaves)))
    finally:
        _forget(observer)
    return _made(job, name, watched, values, values)


def _made(job: JobFunction[..., Any], name: str, watched: _Watched, low: np.ndarray, high: np.ndarray) -> JobFunction[..., Any]:
    """The job with the grids that were measured."""
    grids: dict[str, Grid] = {}
    position = 0
    for blob in watched.ranges:
        least, most = float(low[position]), float(high[position + 1])
        position += 2
        if not (math.isfinite(least) and math.isfinite(most)):
            refuse(
                ArgumentError,
                f"calibration of job {job.name!r}: values of {blob.op_name!r} {_range(least, most)}",
                found=[("made at", f"{blob.source}   {blob.source.text}")],
                hint="batches without NaNs and infinities",
            )
        grids[blob.logical_blob_name] = Grid.of_range(least, most)
    for node in watched.grids:
        scale, zero = float(high[position]), float(high[position + 1])
        position += 2
        if not (math.isfinite(scale) and math.isfinite(zero)):
            refuse(
                ModeError,
                f"job {job.name!r} cannot be converted: the grid of {node.name!r} has scale {scale} and zero point {zero}",
                found=[("made at", f"{node.source}   {node.source.text}")],
                hint="a checkpoint from before training diverged",
            )
        grids[node.outputs[0].logical_blob_name] = grid_of_values(details(node), scale, zero)
    before = job.session.jobs.get(name)
    made = job.derived(name, grids=grids)
    try:
        made.build()
    except BaseException:
        made.session.forget_job(made, "it could not be built", before)
        raise
    return made


def _range(least: float, most: float) -> str:
    if least > most or math.isnan(least) or math.isnan(most):  # as minima and maxima pass over NaNs
        return "are not numbers"
    return f"range from {least} to {most}"


def _observer(job: JobFunction[..., Any], watched: _Watched, measures: bool) -> JobFunction[..., Any]:
    body = watched.body(job.declaration.function, measures)
    returns = parse_return(tp.Numpy, body)
    return job.derived(f"{job.name} (ranges)", function=body, returns=returns, grids=None, users_name=job.name)


def _forget(observer: JobFunction[..., Any]) -> None:
    observer.session.forget_job(observer, "it only measured ranges for int8 inference")


def _want_predict(job: Any, what: str) -> JobFunction[..., Any]:
    if not isinstance(job, JobFunction):
        refuse(ArgumentError, f"flow.quantization.{what} needs a job function, got {shown(job)}")
    if current_or_none() is not None:
        refuse(ModeError, f"flow.quantization.{what} was called inside the body of a job", hint="call it from outside")
    if job.train:
        refuse(ArgumentError, f"flow.quantization.{what} needs a predict job, and {job.name!r} trains", found=_declared(job),
               hint='a function under @flow.global_function("predict") that shares its variables')  # fmt: skip
    if job.declaration.grids is not None:
        refuse(ArgumentError, f"job {job.name!r} is of 8-bit integers already", found=_declared(job))
    return job


def _declared(job: JobFunction[..., Any]) -> list[tuple[str, str]]:
    return [("the job", f"{job.source}   {job.source.text}")]


def _want_name(job: JobFunction[..., Any], name: Any) -> str:
    if name is None:
        return f"{job.name}_int8"
    if not isinstance(name, str) or not name:
        refuse(ArgumentError, f"name must be a str, got {shown(name)}")
    return str(name)


def _want_batches(batches: Any) -> Iterable[Any]:
    if isinstance(batches, (np.ndarray, str, bytes, Mapping)) or not isinstance(batches, Iterable):
        refuse(ArgumentError, f"batches must be an iterable of batches, got {shown(batches)}",
               hint="a list with an array, or a tuple of arrays, for each call")  # fmt: skip
    return batches


def _arguments(batch: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(batch, Mapping):
        return (), batch
    return (batch if isinstance(batch, tuple) else (batch,)), {}
