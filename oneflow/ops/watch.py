"""flow.watch and flow.watch_diff: looking at values and gradients while a job runs."""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import typing as tp
from .._base.refuse import shown
from .._base.signatures import signature_of
from .._signature.local import LocalTensor, pieces, up_to
from ..errors import ArgumentError
from ..graph.graph import Graph, Watch, current
from ..graph.node import Blob
from ._emit import fail, want


def watch(blob_watched: Blob, handler_or_prompt: Callable[[Any], None] | Any = None) -> None:
    """Hands the value of ``blob_watched`` to a handler at each call of the job.

    Handlers run on the delivery thread, in the order of calls, before that call's own result is delivered. A watched
    variable shows its value before the call's update.

    Args:
      blob_watched: any Blob of this job.
      handler_or_prompt: a function of one argument, whose annotation (``tp.Numpy``, ``tp.ListNumpy`` or none for a local
        tensor) is the type of its argument; or a prompt that is printed before the value.
    Raises:
      ArgumentError: not a Blob, or a handler that does not take exactly one argument.
    Example: >>> flow.watch(x, "x is")   # prints it at each call
    """
    _watch("flow.watch", blob_watched, handler_or_prompt, diff=False)


def watch_diff(blob_watched: Blob, handler_or_prompt: Callable[[Any], None] | Any = None) -> None:
    """Hands the gradient of the sum of the losses with respect to ``blob_watched`` to a handler at each call of a train job.

    It is the raw gradient: not divided by the number of loss elements, before regularizers and clipping, multiplied by
    the loss scale. In predict jobs, and for Blobs that no loss depends on, the handler is not called.

    Args and errors: those of ``watch``.
    Example:
      >>> @flow.global_function("train")
      ... def train(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
      ...     hidden = flow.layers.dense(x, 2, kernel_initializer=flow.ones_initializer(), name="dense")
      ...     flow.watch_diff(hidden, lambda gradient: print(gradient.numpy()))
      ...     loss = flow.math.reduce_mean(hidden)
      ...     flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
      ...     return loss
    """
    _watch("flow.watch_diff", blob_watched, handler_or_prompt, diff=True)


def _watch(what: str, blob: Blob, handler: Any, *, diff: bool) -> None:
    graph = current(what)
    want.blob(what, "blob_watched", blob)
    if blob.node.graph is not graph:
        fail(ArgumentError, what, f"the Blob belongs to job {blob.job_name!r}", (blob,))
    deliver = _deliver(what, handler, blob) if callable(handler) else _printer(handler, blob)
    if blob.has_dynamic_size:
        deliver = _of_true_size(graph, deliver, blob)
    graph.watches.append(Watch(blob, deliver, diff))


def _of_true_size(graph: Graph, deliver: Callable[[Any], None], blob: Blob) -> Callable[[Any], None]:
    """``deliver`` for a Blob whose size depends on data: its count is watched just before."""
    assert blob.valid_length is not None
    counts: deque[Any] = deque(maxlen=1)
    graph.watches.append(Watch(blob.valid_length.count, counts.append, False))
    return lambda value: deliver(up_to(counts.pop(), value, blob))


def _printer(prompt: Any, blob: Blob) -> Callable[[Any], None]:
    def show(value: Any) -> None:
        if prompt is not None:
            print(str(prompt))
        for piece in pieces(value, blob):
            print(piece)
        sys.stdout.flush()

    return show


def _whole(value: Any, blob: Blob) -> np.ndarray:
    found = pieces(value, blob)
    return found[0] if len(found) == 1 else np.concatenate(found)


def _parts(value: Any, blob: Blob) -> list[np.ndarray]:
    """One array per device, or all in one where the job joins them."""
    return [_whole(value, blob)] if blob.node.graph.generation.joins_pieces else pieces(value, blob)


def _local(value: Any, blob: Blob) -> LocalTensor:
    return LocalTensor(_parts(value, blob), blob.is_dynamic and not blob.node.graph.generation.joins_pieces)


def _deliver(what: str, handler: Callable[[Any], None], blob: Blob) -> Callable[[Any], None]:
    try:
        parameters = [
            p for p in signature_of(handler).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL) and p.default is p.empty
        ]  # fmt: skip
        annotation: Any = parameters[0].annotation if parameters else None
    except (TypeError, ValueError):  # builtins without a signature, such as list.append
        return lambda value: handler(_local(value, blob))
    if len(parameters) != 1:
        fail(
            ArgumentError, what, f"the handler must take exactly one argument, {shown(handler)} takes {len(parameters)}", (blob,)
        )
    annotation = getattr(annotation, "__forward_arg__", annotation)  # of a name that is not there
    if isinstance(annotation, str):
        annotation = {"Numpy": tp.Numpy, "ListNumpy": tp.ListNumpy, "ListListNumpy": tp.ListListNumpy}.get(
            annotation.rsplit(".", 1)[-1], annotation
        )
    if annotation is tp.Numpy:
        if blob.is_dynamic:
            fail(ArgumentError, what, "the Blob's size varies: annotate the handler's argument with tp.ListNumpy", (blob,))
        return lambda value: handler(_whole(value, blob))
    if annotation is tp.ListNumpy:
        return lambda value: handler(_parts(value, blob))
    if annotation is tp.ListListNumpy:
        return lambda value: handler([[np.array(v) for v in (value if isinstance(value, tuple) else (value,))]])
    if annotation is inspect.Parameter.empty or annotation is Any or annotation is np.ndarray:
        if annotation is np.ndarray:
            return lambda value: handler(_whole(value, blob))
        return lambda value: handler(_local(value, blob))
    fail(
        ArgumentError,
        what,
        f"the handler's argument is annotated {shown(annotation)}",
        (blob,),
        "annotate it with tp.Numpy, tp.ListNumpy or nothing",
    )
