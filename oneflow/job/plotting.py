"""``flow.plot_model``: a job as a picture."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from .._base import check
from .._base.refuse import refuse, shown
from ..errors import ArgumentError
from ..graph.node import Blob
from .function import JobFunction

_ENDINGS = (".svg", ".html", ".dot", ".mmd")


def plot_model(job: JobFunction[..., Any], path: str | os.PathLike[str], depth: int | None = None) -> None:
    """Draws a job: ops folded into modules by their names, shapes on the arrows, devices as colours.

    A module is what shares the beginning of its name up to a hyphen, as in namespaces and layers. The job is built where
    that has not happened; nothing is compiled.

    Args:
      job: a job function.
      path: the file that is written, by its ending: ``.svg``; ``.html``, a page with the picture and the table of
        ``job.summary()``; ``.dot`` for Graphviz; ``.mmd`` for Mermaid. All of them stand alone.
      depth: how many levels of modules are opened: 1 shows the outermost ones, 0 all ops. By default as many as fit into a
        readable picture.
    Raises:
      ArgumentError: not a job, another ending, or a depth that is not an int >= 0. What building the job raises.
      ExportError: the file cannot be written.
    Example: >>> flow.plot_model(job, "job.svg")
    """
    if not isinstance(job, JobFunction):
        refuse(ArgumentError, f"flow.plot_model needs a job function, got {shown(job)}")
    target, problem = check.path(path)
    if problem:
        refuse(ArgumentError, f"flow.plot_model needs a path, got {shown(path)}")
    ending = os.path.splitext(target)[1]
    if ending not in _ENDINGS:
        refuse(ArgumentError, f"flow.plot_model writes {', '.join(_ENDINGS)}, got {shown(str(path))}")
    if depth is not None:
        depth, problem = check.integer(depth, low=0)
        if problem:
            refuse(ArgumentError, f"depth of flow.plot_model {problem}")
    from pathlib import Path  # here, because few programs draw

    from .._base.whole_files import exporting
    from .._reports.diagram import diagram
    from .._reports.pictures import dot, html, mermaid, svg

    graph = job.graph
    made = diagram(graph, list(_blobs(graph.returns)), depth)
    if ending == ".html":
        text = html(made, job.summary()._repr_html_())
    else:
        text = {".svg": svg, ".dot": dot, ".mmd": mermaid}[ending](made)
    with exporting("flow.plot_model", Path(target)) as staged:
        staged.write_text(text, encoding="utf-8")


def _blobs(value: Any) -> Iterator[Blob]:
    """The Blobs in what a body returned."""
    if isinstance(value, Blob):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _blobs(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _blobs(inner)
