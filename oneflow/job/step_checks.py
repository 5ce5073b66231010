"""Looks, now and then, at the labels and indices that a train job is fed and at its loss, and warns once of each kind of mistake.

On the host, at most fifty times per second: labels that are wrong once are mostly wrong from the start, and a loss that is not
finite stays so. Counting both on the device, at each step, would make small steps 5 % longer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from math import prod
from time import monotonic
from typing import Any

import numpy as np

from .._signature.local import LocalTensor
from ..compiler.analysis import ancestors
from ..compiler.host_plan import labels_of, source_of_integers
from ..graph.graph import Graph
from ..graph.node import Blob, Node

_PAUSE = 0.02  # seconds between two looks
_RECENT = 32  # losses that are kept to tell which one was the first
_MOST_ELEMENTS = 1 << 12  # of a loss that is looked at
_log = logging.getLogger("oneflow")

LOSS = "the loss"  # in ``Graph.warned``: a loss that is not finite has been reported, or somebody else looks at it


# --- labels and indices


def feed_check(graph: Graph) -> Callable[[Sequence[Any]], None] | None:
    """A function that looks at the feeds of each call; None where no input is the labels of a loss, or the rows of a table.

    Readers check labels themselves, see ``runtime/host.py``.
    """
    places = {spec.blob.node: i for i, spec in enumerate(graph.inputs) if spec.kind == "Numpy"}
    gathers = [node for node in graph.nodes if node.op.gathers_rows is not None and node.op.gathers_rows(node.attrs)]
    read = [*labels_of(graph.nodes), *((node, source_of_integers(node.inputs[1])) for node in gathers)]
    found = [(places[blob.node], node) for node, blob in read if blob.node in places]
    if not graph.train or not found:
        return None
    due, step = 0.0, -1

    def look(feeds: Sequence[Any]) -> None:
        nonlocal due, step
        step += 1
        if (now := monotonic()) >= due:
            due = now + _PAUSE
            for place, node in found:
                fed = getattr(feeds[place], "array", feeds[place])  # of a part of a batch
                if isinstance(fed, np.ndarray) and fed.size and node.name not in graph.warned:
                    _look_at_integers(graph, node, fed, step)

    return look


def _look_at_integers(graph: Graph, node: Node, fed: np.ndarray, step: int) -> None:
    if node.op.labels is not None:
        kind, place, count = "labels", "the loss", node.inputs[node.op.labels[1]].shape[-1]
        become, other = "they have no gradient", "more units in the last layer"
    else:
        kind, place, count = "indices", "the op", node.inputs[0].shape[0]
        become, other = "they read zeros", "a table of more rows"
    if fed.min() >= 0 and fed.max() < count:
        return
    graph.warned.add(node.name)
    _log.warning(
        "oneflow: %d of %d %s (%d to %d) that call %d of job %r was fed are not in [0, %d): %s\n"
        "  %-9s  %s   %s\n  try        %s from 0 to %d, or %s",
        int(((fed < 0) | (fed >= count)).sum()), fed.size, kind, fed.min(), fed.max(), step, graph.name, count, become,
        place, node.source, node.source.text, kind, count - 1, other,
    )  # fmt: skip


# --- the loss


def loss_check(graph: Graph, leaves: Sequence[Blob]) -> tuple[int, Callable[[Any], None]] | None:
    """The place of the loss among the results of a job, and a function that looks at its value of each call.

    None where the job returns no loss.

    Args:
      leaves: the Blobs that the job returns.
    """
    place = next((i for i, blob in enumerate(leaves) if _shows_loss(graph, blob)), None)
    if place is None:
        return None
    due, step, recent = 0.0, -1, deque[Any](maxlen=_RECENT)
    note = recent.append

    def look(value: Any) -> None:
        nonlocal due, step
        step += 1
        note(value)
        if (now := monotonic()) >= due:
            due = now + _PAUSE
            if LOSS not in graph.warned:
                _look_at_loss(graph, tuple(recent), step)

    return place, look


def _shows_loss(graph: Graph, blob: Blob) -> bool:
    """Whether a result is a loss, is computed of one, or is what one is the mean or the sum of."""
    if blob.is_dynamic or blob.is_tensor_list or not blob.dtype.is_floating_point or prod(blob.shape) > _MOST_ELEMENTS:
        return False
    above = ancestors([blob]) if graph.train else set()
    return any(
        loss.node in above or (len(loss.node.inputs) == 1 and loss.node.inputs[0].node is blob.node)
        for loss in graph.objective.losses
    )


def _look_at_loss(graph: Graph, recent: Sequence[Any], step: int) -> None:
    """Warns where the last of the ``recent`` losses, that of call number ``step``, is not finite."""
    if _is_finite(recent[-1]):
        return
    graph.warned.add(LOSS)
    back = next(i for i, array in enumerate(recent) if not _is_finite(array))
    loss = graph.objective.losses[0]
    _log.warning(
        "oneflow: the loss of job %r is not finite at call %d, for the first time%s\n  the loss   %s   %s",
        graph.name, step - len(recent) + 1 + back, "" if back or step < _RECENT else ", or shortly before",
        loss.source, loss.source.text,
    )  # fmt: skip


def _is_finite(value: Any) -> bool:
    """Whether all numbers are finite in a result: an array, or one per device."""
    arrays = value.numpy_list() if isinstance(value, LocalTensor) else value if isinstance(value, (list, tuple)) else [value]
    return all(np.isfinite(np.asarray(array, np.float64)).all() for array in arrays)
