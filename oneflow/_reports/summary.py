"""A job as a table: ops, shapes, variables, memory, build times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

import numpy as np

from .._base import page
from .._base.printable import printable
from ..compiler.native import describe
from ..compiler.plan import Plan
from ..graph.graph import OP_INPUT, OP_VARIABLE
from ..graph.node import Node

_HEADER = ("name", "op", "output", "parameters", "your line", "computed by")
_RIGHT = 3  # the column that is aligned to the right


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A printable description of one job; ``rows`` and the totals are there to be read by programs too."""

    title: str
    rows: tuple[tuple[str, str, str, str, str, str], ...]
    parameters: int
    parameter_bytes: int
    state_bytes: int
    footer: tuple[str, ...]

    def __str__(self) -> str:
        header = _HEADER
        table = [header, *self.rows]
        widths = [max(len(row[i]) for row in table) for i in range(len(header))]
        lines = [
            "  ".join(c.rjust(w) if i == _RIGHT else c.ljust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))).rstrip()
            for r in table
        ]
        rule = "─" * max(map(len, lines))
        return printable("\n".join([self.title, rule, lines[0], rule, *lines[1:], rule, *self.footer]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return (
            f"<p>{escape(self.title)}</p>{page.table(_HEADER, self.rows, {_RIGHT})}<p>{'<br>'.join(map(escape, self.footer))}</p>"
        )


def summarize(plan: Plan, kernels: Mapping[Node, str], report: list[str]) -> JobSummary:
    """The table of a traced job.

    Args:
      kernels: what computes nodes that are part of a larger call.
      report: lines about how it was built.
    """
    graph, on_host = plan.graph, set(plan.host.nodes)
    rows = []
    counted: set[str] = set()
    for node in graph.nodes:
        if node.op in (OP_INPUT, OP_VARIABLE):
            continue
        used = [b.node.name for b in node.inputs if b.node.op is OP_VARIABLE and b.node.name not in counted]
        counted.update(used)
        elements = sum(int(np.prod(graph.variables[name].shape)) for name in used)
        outputs = ", ".join(b.describe() for b in node.outputs)
        made = plan.standing_for(node)
        narrow = plan.precision.get(made)
        op = node.op.name if narrow is None else f"{node.op.name} in {narrow.name}"
        computed_by = "the host, before the step" if made in on_host else describe(made, plan.without_native, narrow)
        computed_by = kernels.get(node, computed_by)
        rows.append((node.name, op, outputs, f"{elements:,}" if used else "", str(node.source), computed_by))
    own = [v for v in graph.variables.values() if v.role == "parameter"]
    state = [v for v in graph.variables.values() if v.role == "state"]
    elements = sum(int(np.prod(v.shape)) for v in own)
    trainable = sum(int(np.prod(v.shape)) for v in own if v.trainable)
    own_bytes, state_bytes = (sum(int(np.prod(v.shape)) * v.dtype.bytes for v in vs) for vs in (own, state))
    footer = [
        f"inputs: {', '.join(f'{i.label} {i.blob.describe()}' for i in graph.inputs) or 'none'}",
        f"variables: {len(own)}, elements: {elements:,} ({trainable:,} trainable), {own_bytes / 1e6:.2f} MB",
        f"optimizer state: {state_bytes / 1e6:.2f} MB",
        *report,
    ]
    kind = "train" if graph.train else "predict"
    return JobSummary(
        f"{kind} job {graph.name!r}: {len(graph.nodes)} ops", tuple(rows), elements, own_bytes, state_bytes, tuple(footer)
    )
