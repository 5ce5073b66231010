"""Writing summaries in jobs. A step only returns the values; converting and writing them is the writer's work."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from .._base import check
from .._base.dtype import dtype, float32, float64, int8, int32, int64, uint8
from .._base.extras import need
from .._base.refuse import refuse, shown
from .._base.source import caller
from .._signature.local import pieces, up_to
from ..errors import ArgumentError, DtypeError, ShapeError
from ..graph.graph import Watch, current
from ..graph.node import Blob
from ..ops._arrays import label
from ..ops._emit import fail, want
from ..ops.constant import constant
from ..ops.elementwise import identity
from ..runtime import processes
from . import _values
from ._writer import open_writer, the_writer

Tag = Blob | str | None
Step = Blob | int | None
Read = Callable[[], list[np.ndarray]]  # waits for a value, and returns its pieces


def create_summary_writer(logdir: str, name: str | None = None) -> None:
    """Opens an event file in ``<logdir>/event`` when the job is called; summaries of all jobs go there.

    A process has one writer. Opening the same directory again goes on with its file.

    Args:
      logdir: a directory, which is made where it does not exist: ``tensorboard --logdir <logdir>`` shows what is in it.
      name: name of the op; made unique when omitted.
    Raises:
      ArgumentError: ``logdir`` is not a path.
      MissingExtraError: tensorboardX is not installed.
      ModeError: outside a job function.
    Example:
      >>> @flow.global_function()
      ... def open_writer():
      ...     flow.summary.create_summary_writer("./runs")
    """
    what = label("flow.summary.create_summary_writer", name)
    current(what)
    need("tensorboardX.proto.summary_pb2", "flow.summary")
    path, problem = check.path(logdir)
    if problem:
        fail(ArgumentError, what, f"logdir {problem}")
    directory = os.path.join(os.path.abspath(path), "event")
    _on_each_call(what, [_marker(name)], lambda values: open_writer(directory))


def flush_summary_writer(name: str | None = None) -> None:
    """Writes to disk, when the job is called, what was written before. It happens every few seconds by itself.

    Args:
      name: name of the op; made unique when omitted.
    Raises: ModeError: outside a job function; or, from the call, without a writer.
    Example:
      >>> @flow.global_function()
      ... def flush():
      ...     flow.summary.flush_summary_writer()
    """
    what = label("flow.summary.flush_summary_writer", name)
    current(what)
    _on_each_call(what, [_marker(name)], lambda values: the_writer(what).flush())


def scalar(value: Blob, step: Step, tag: Tag, name: str | None = None) -> None:
    """Writes a number at each call of the job.

    Args:
      value: Blob with one element, a float or an integer. In the mirrored view each device's is written.
      step: integer Blob with one element, or an int; None: the number of the call, from 0.
      tag: int8 Blob of the tag's ASCII bytes, or a str; None: the name of the op.
      name: name of the op; made unique when omitted.
    Raises:
      ShapeError, DtypeError, ArgumentError: an argument that does not fit.
      ModeError: outside a job function; or, from the call, where no job has opened a writer.
    Example: >>> flow.summary.scalar(flow.math.reduce_mean(x), step=1, tag="loss")
    """
    what = label("flow.summary.scalar", name)
    _checked(what, value, (float32, float64, int32, int64))
    if math.prod(value.shape) != 1:
        fail(ShapeError, what, f"value must have one element, got shape {value.shape}", (value,))
    _write(what, value, step, tag, name, _scalars)


def histogram(value: Blob, step: Step, tag: Tag, name: str | None = None) -> None:
    """Writes how the elements of a Blob are distributed, at each call of the job; NaNs and infinities are left out.

    Args:
      value: Blob of floats or integers, of any shape.
      step, tag, name: those of ``scalar``.
    Raises: what ``scalar`` raises.
    Example: >>> flow.summary.histogram(x, step=1, tag="weights")
    """
    what = label("flow.summary.histogram", name)
    _checked(what, value, (float32, float64, int8, int32, int64, uint8))
    _write(what, value, step, tag, name, lambda t, arrays: _values.histogram(t, np.concatenate([a.reshape(-1) for a in arrays])))


def image(value: Blob, step: Step = None, tag: Tag = None, name: str | None = None) -> None:
    """Writes images at each call of the job, as PNG.

    Args:
      value: uint8 Blob (N, H, W, C) of 1 (gray), 3 (RGB) or 4 (RGBA) channels. Several images get their number behind the tag.
      step, tag, name: those of ``scalar``.
    Raises: what ``scalar`` raises.
    Example: >>> flow.summary.image(flow.cast(flow.transpose(images, [0, 2, 3, 1]), flow.uint8), step=1, tag="inputs")
    """
    what = label("flow.summary.image", name)
    _checked(what, value, (uint8,))
    if value.ndim != 4 or value.shape[3] not in (1, 3, 4):
        fail(ShapeError, what, f"value must have shape (N, H, W, C) with 1, 3 or 4 channels, got {value.shape}", (value,))
    _write(what, value, step, tag, name, lambda t, arrays: _values.images(t, np.concatenate(arrays)))


def pb(value: Blob, step: Step = None, name: str | None = None) -> None:
    """Writes a Summary message at each call of the job: one of ``text`` or ``hparams``, or any other.

    Args:
      value: int8 Blob of the message's bytes, ``np.frombuffer(message.SerializeToString(), np.int8)``, or of those of its text:
        ``np.array(list(str(message).encode("ascii")), dtype=np.int8)``.
      step, name: those of ``scalar``.
    Raises: what ``scalar`` raises; and, from a later call, ArgumentError for other bytes.
    Example: >>> flow.summary.pb(flow.cast(x, flow.int8), step=1)
    """
    what = label("flow.summary.pb", name)
    _checked(what, value, (int8,))
    job, line = current(what).name, caller()

    def message(tag: str, arrays: list[np.ndarray]) -> Any:
        try:
            return _values.message(arrays[0].tobytes())
        except ValueError as error:
            rule = f"{what} in job {job!r}: the bytes are not those of a Summary message"
            hint = "np.frombuffer(flow.summary.text([...]).SerializeToString(), np.int8)"
            refuse(ArgumentError, rule, found=[("as text", shown(str(error)))], hint=hint, source=line)

    _write(what, value, step, "", name, message)


# --- from a call to an event


def _checked(what: str, value: Any, dtypes: Sequence[dtype]) -> None:
    current(what)
    if want.blob(what, "value", value).dtype not in dtypes:
        names = ", ".join(d.name for d in dtypes)
        fail(DtypeError, what, f"value must be one of {names}, got {value.dtype.name}", (value,), "convert it with flow.cast")


def _write(what: str, value: Blob, step: Step, tag: Tag, name: str | None, make: Callable[[str, list[np.ndarray]], Any]) -> None:
    value = identity(value, name=name)
    calls = count()
    inputs = []
    if isinstance(step, Blob):
        if not step.dtype.is_integer or math.prod(step.shape) != 1:
            fail(ArgumentError, what, f"step must be an integer Blob with one element, got {step.describe()}", (value, step))
        inputs.append(step)
    elif step is not None:
        step = want.integer(what, "step", step, 0, (value,))
    if isinstance(tag, Blob):
        if tag.dtype not in (int8, uint8) or tag.ndim != 1:
            fail(ArgumentError, what, f"tag must be an int8 Blob of ASCII bytes, got {tag.describe()}", (value, tag))
        inputs.append(tag)
    elif tag is not None and not isinstance(tag, str):
        fail(ArgumentError, what, f"tag must be an int8 Blob, or a str, got {shown(tag)}", (value,))
    if any(len(b.node.repetition) > len(value.node.repetition) for b in inputs):
        fail(ArgumentError, what, "step and tag vary in a repeated part of the job, and value does not", (value, *inputs))
    fixed_tag = value.op_name if tag is None else tag if isinstance(tag, str) else ""
    fixed_step = step if isinstance(step, int) else None

    size = math.prod(value.shape) * value.dtype.bytes * (value.parallel_size if value.is_mirrored else 1)

    def note(values: list[Read]) -> None:
        number = next(calls) if fixed_step is None else fixed_step

        def event() -> tuple[Any, int]:
            *given, read = values
            at = int(given.pop(0)()[0].reshape(-1)[0]) if isinstance(step, Blob) else number
            called = _text(given[0]()[0]) if isinstance(tag, Blob) else fixed_tag
            return make(called, read()), at

        the_writer(what).put(event, size)

    _on_each_call(what, [*inputs, value], note)


def _scalars(tag: str, arrays: list[np.ndarray]) -> Any:
    first, *others = [_values.scalar(tag, float(a.reshape(-1)[0])) for a in arrays]
    for other in others:
        first.MergeFrom(other)
    return first


def _text(characters: np.ndarray) -> str:
    return characters.reshape(-1).astype(np.uint8).tobytes().decode("utf-8", "replace")


def _marker(name: str | None) -> Blob:
    """A value that each call of the job returns to ``_on_each_call``, of an op that has nothing else to say."""
    return constant(0, int8, (1,), name=name)


def _on_each_call(what: str, blobs: Sequence[Blob], note: Callable[[list[Read]], None]) -> None:
    """Has ``note`` called at each call, in the order of calls, with functions that return the pieces of the Blobs' values.

    Nobody waits for the values: the functions do, on the writer's thread.
    """
    graph = current(what)
    state = threading.local()  # a call's values come one after the other, on one thread; several threads make calls

    def take(i: int, length: bool, value: Any) -> None:
        if not hasattr(state, "values"):
            state.values, state.lengths = [None] * len(blobs), [None] * len(blobs)
        if length:
            state.lengths[i] = value
            return
        state.values[i] = _reader(blobs[i], value, state.lengths[i])
        if i == len(blobs) - 1 and (processes.count() == 1 or processes.is_first()):
            note(list(state.values))

    for i, blob in enumerate(blobs):
        if blob.has_dynamic_size and blob.valid_length is not None:
            graph.watches.append(Watch(blob.valid_length.count, partial(take, i, True), False, deferred=True))
        graph.watches.append(Watch(blob, partial(take, i, False), False, deferred=True))


def _reader(blob: Blob, value: Any, length: Any) -> Read:
    def read() -> list[np.ndarray]:
        if length is None:
            return pieces(value, blob)
        cut = up_to(length, value, blob)
        return list(cut) if isinstance(cut, tuple) else [np.asarray(cut)]

    return read
