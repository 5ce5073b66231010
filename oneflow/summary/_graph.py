"""The ops of the session's jobs, as JSON and as TensorBoard's graph."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from .._base import check
from .._base.extras import need
from .._base.refuse import refuse
from ..errors import ArgumentError
from ..loggers.tensorboard import graph_def
from ..runtime.session import default_session
from ._writer import proto


class Graph:
    """The ops of all jobs of the session, for TensorBoard's page GRAPHS.

    Args:
      logdir: a directory, which is made where it does not exist. The graph goes into ``<logdir>/graph``.
    Raises: ArgumentError: ``logdir`` is not a path.
    Example:
      >>> graph = flow.summary.Graph("./runs")
      >>> graph.write_structure_graph()
    """

    def __init__(self, logdir: str | None = None):
        self._logdir = checked_directory("Graph", logdir)

    @property
    def logdir(self) -> str:
        """The directory it was made with."""
        return self._logdir

    @property
    def structure_graph_filename(self) -> str:
        """The JSON file."""
        return os.path.join(self._logdir, "graph", "structure_graph.json")

    def write_structure_graph(self) -> None:
        """Writes the jobs declared so far: ``structure_graph.json``, and an event file beside it, which TensorBoard reads.

        Jobs are traced where that has not happened. Broken jobs are left out; their calls raise.

        Raises: MissingExtraError: tensorboardX is not installed.
        """
        events_writer = need("tensorboardX.event_file_writer", "flow.summary").EventsWriter
        session = default_session()
        session.start()
        graphs = {name: job.build() for name, job in sorted(session.jobs.items()) if _is_sound(job)}
        os.makedirs(os.path.dirname(self.structure_graph_filename), exist_ok=True)
        with open(self.structure_graph_filename, "w", encoding="utf-8") as file:
            json.dump({"jobs": [{"name": name, "nodes": _nodes(graph)} for name, graph in graphs.items()]}, file, indent=1)
        events = events_writer(os.path.join(os.path.dirname(self.structure_graph_filename), "events"))
        event = proto("event").Event(graph_def=graph_def(list(graphs.values()), "flow.summary.Graph"), wall_time=time.time())
        events.write_event(event)
        events.close()


def _is_sound(job: Any) -> bool:
    try:
        job.build()
    except Exception:
        return False
    return True


def _nodes(graph: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": node.name,
            "op": node.op.name,
            "inputs": [b.logical_blob_name for b in node.inputs],
            "outputs": [{"name": b.logical_blob_name, "shape": list(b.shape), "dtype": b.dtype.name} for b in node.outputs],
            "placement": str(node.scope.placement),
        }
        for node in graph.nodes
    ]


def checked_directory(what: str, logdir: Any) -> str:
    """An absolute path."""
    path, problem = check.path(logdir)
    if problem:
        refuse(ArgumentError, f"flow.summary.{what}: logdir {problem}")
    return os.path.abspath(path)
