"""flow.print: values from inside a job, in order."""

from __future__ import annotations

import functools
import sys
from collections import deque
from typing import Any

import numpy as np

from .._base.refuse import shown
from .._signature.local import pieces, up_to
from ..errors import ArgumentError
from ..graph.graph import Graph, Watch, current
from ..graph.node import Blob
from ._emit import fail, want

_EDGE_ITEMS = 3


def print(*values: Any, sep: str = " ", end: str = "\n", every: int = 1, summarize: int = 1000) -> None:
    """Prints values of Blobs at each call of the job, as Python's ``print`` does for arrays.

    The values are results of the step that are delivered with the others: lines appear in the order of calls, and within a call
    in the order of the body, before the call's own result is delivered; also of asynchronous calls. Nothing else of the job
    waits or is computed otherwise. A synchronous call returns after its lines were printed. A variable shows its value before the
    update. Blobs of several devices in the mirrored view are printed device by device.

    Args:
      values: Blobs of this job of any dtype; anything else is printed by its ``str``.
      sep: what is between two values.
      end: what follows the last one.
      every: prints at every ``every``-th call only, beginning with the first one; >= 1.
      summarize: arrays of more elements are shown by their first and last ones; >= 0.
    Raises:
      ArgumentError: no Blob among the values, a Blob of another job, Blobs of which only some are in a repeated part, or another
        argument that is not as above.
      ModeError: outside of a job function.
    Example: >>> flow.print("the norm of x is", flow.math.sqrt(flow.math.reduce_sum(x * x)))
    """
    what = "flow.print"
    graph = current(what)
    blobs = tuple(value for value in values if isinstance(value, Blob))
    for name, text in (("sep", sep), ("end", end)):
        if not isinstance(text, str):
            fail(ArgumentError, what, f"{name} must be a str, got {shown(text)}", blobs)
    if not blobs:
        fail(ArgumentError, what, f"needs at least one Blob, got {shown(values)}", (), "use Python's print for other values")
    for i, blob in enumerate(blobs):
        want.blob(what, f"values[{i}]", blob)
        if blob.node.graph is not graph:
            fail(ArgumentError, what, f"the Blob {blob.op_name!r} belongs to job {blob.job_name!r}", (blob,))
    if len({blob.node.repetition for blob in blobs}) > 1:
        fail(ArgumentError, what, "some of the Blobs are computed several times per call, and others are not", blobs,
             "print them by calls of their own")  # fmt: skip
    line = _Line(
        tuple(value if isinstance(value, Blob) else _word(value, blobs) for value in values), sep, end,
        want.integer(what, "every", every, 1, blobs), want.integer(what, "summarize", summarize, 0, blobs),
    )  # fmt: skip
    line.watch(graph)


def _word(value: Any, blobs: tuple[Blob, ...]) -> str:
    try:
        return str(value)
    except Exception as error:
        fail(ArgumentError, "flow.print", f"{shown(value)} cannot be printed: {type(error).__name__}", blobs)


class _Line:
    """What one ``flow.print`` prints. The values of a call come one by one, those of a repeated part several times."""

    def __init__(self, values: tuple[Blob | str, ...], sep: str, end: str, every: int, summarize: int):
        self._values = values
        self._sep, self._end = sep, end
        self._every, self._summarize = every, summarize
        self._printed = 0
        self._arrived: list[deque[Any]] = []

    def watch(self, graph: Graph) -> None:
        """Makes the job hand the values over."""
        for value in self._values:
            if isinstance(value, Blob):
                if value.has_dynamic_size:
                    assert value.valid_length is not None
                    self._expect(graph, value.valid_length.count)
                self._expect(graph, value)

    def _expect(self, graph: Graph, blob: Blob) -> None:
        queue: deque[Any] = deque()
        self._arrived.append(queue)
        graph.watches.append(Watch(blob, functools.partial(self._arrive, queue), False))

    def _arrive(self, queue: deque[Any], value: Any) -> None:
        queue.append(value)
        while all(self._arrived):
            arrived = iter([each.popleft() for each in self._arrived])
            self._printed += 1
            if (self._printed - 1) % self._every == 0:
                sys.stdout.write(self._text(arrived))
                sys.stdout.flush()

    def _text(self, arrived: Any) -> str:
        words = []
        for value in self._values:
            if isinstance(value, str):
                words.append(value)
                continue
            count = next(arrived) if value.has_dynamic_size else None
            array = next(arrived)
            if count is not None:
                array = up_to(count, array, value)
            words += [self._of_array(piece) for piece in pieces(array, value)]
        return self._sep.join(words) + self._end

    def _of_array(self, array: np.ndarray) -> str:
        return np.array2string(array, threshold=self._summarize, edgeitems=_EDGE_ITEMS) if array.ndim else str(array)
