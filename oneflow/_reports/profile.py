"""The profile of a job: where the time of its steps goes, by op and by the user's line."""

from __future__ import annotations

import gzip
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from .._base import page
from .._base.printable import printable
from .._base.refuse import refuse, shown
from ..compiler.native import describe
from ..compiler.plan import Plan
from ..errors import ArgumentError
from ..graph.graph import OP_TO_CONSISTENT, OP_TO_MIRRORED, OP_VARIABLE
from ..graph.node import Node
from .costs import Cost, costs
from .trace import BACKWARD, UPDATE, Origin

_HEADER = ("name", "op", "forward ms", "backward ms", "update ms", "share", "GFLOP/s", "GB/s", "your line", "computed by")
_LEFT = {0, 1, 8, 9}
_SHOWN_ROWS = 40


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One op, in milliseconds per step; ops that ran side by side share the time.

    Attributes:
      update_ms: updating the variables that it reads first. Small ones that one call updates count for the largest of them.
      share: of the time of a step, from 0 to 1.
      flops: floating-point operations per step, None where XLA does not count them, where ops compute a gradient together,
        whose time counts for the last of them, and in loops, whose time counts for the first step; ``bytes``: of the arrays that
        it reads and writes, 0 there. Both are of the passes without the update.
      computed_by: the kernel of its forward pass, and that of its update where the native part makes it.
      instructions: how many instructions of the compiled program ran for it, in all steps.
    """

    name: str
    op: str
    source: str
    forward_ms: float
    backward_ms: float
    update_ms: float
    share: float
    flops: float | None
    bytes: int
    computed_by: str
    instructions: int

    @property
    def milliseconds(self) -> float:
        """Forward, backward and update together."""
        return self.forward_ms + self.backward_ms + self.update_ms

    @property
    def flops_per_second(self) -> float | None:
        """Floating-point operations per second in the two passes; None where they are not counted or took no time."""
        seconds = (self.forward_ms + self.backward_ms) / 1e3
        return self.flops / seconds if self.flops is not None and seconds else None

    @property
    def bytes_per_second(self) -> float | None:
        """Bytes read and written per second in the two passes; None where they took no time."""
        seconds = (self.forward_ms + self.backward_ms) / 1e3
        return self.bytes / seconds if seconds else None


@dataclass(frozen=True, slots=True)
class JobProfile:
    """Where the time of a job's steps goes, as ``job.profile`` returns it: print it, or read its rows.

    Attributes:
      rows: the ops, the slowest first; what belongs to no op is in the last row, named "(other)".
      outside: milliseconds per step in which no instruction of the job ran, by what the time was spent on.
      step_ms: a whole step. ``rows`` and ``outside`` add up to it.
    """

    title: str
    steps: int
    rows: tuple[ProfileRow, ...]
    outside: Mapping[str, float]
    step_ms: float
    _trace: Mapping[str, bytes] = field(repr=False)  # by relative path

    @property
    def device_ms(self) -> float:
        """Milliseconds per step in which instructions of the job ran."""
        return sum(row.milliseconds for row in self.rows)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes XLA's trace of the profiled steps.

        Args:
          path: a file whose name ends in ".json.gz" or ".json" opens in Perfetto (https://ui.perfetto.dev) and chrome://tracing;
            one that ends in ".pb" is the XSpace protobuf; any other path is a directory for ``xprof --logdir`` and TensorBoard.
        Raises: ArgumentError: not a path. OSError where it cannot be written.
        Example: >>> job.profile(images, labels).save("trace.json.gz")
        """
        if not isinstance(path, (str, os.PathLike)):
            refuse(ArgumentError, f"save takes a path, got {shown(path)}")
        target = Path(path)
        for ending, own in ((".json.gz", ".trace.json.gz"), (".json", ".trace.json.gz"), (".pb", ".xplane.pb")):
            if target.name.endswith(ending):
                data = next(data for name, data in self._trace.items() if name.endswith(own))
                target.write_bytes(gzip.decompress(data) if ending == ".json" else data)
                return
        for name, data in self._trace.items():
            file = target / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    def _lines(self) -> list[tuple[str, ...]]:
        return [
            (
                row.name, row.op, _ms(row.forward_ms), _ms(row.backward_ms), _ms(row.update_ms), f"{row.share:.1%}",
                _giga(row.flops_per_second), _giga(row.bytes_per_second), row.source, row.computed_by,
            )
            for row in self.rows
        ]  # fmt: skip

    def _footer(self) -> list[tuple[str, str, str]]:
        rows = [("ops of the job", self.device_ms), *self.outside.items(), ("a step", self.step_ms)]
        return [(what, f"{ms:.3f} ms", f"{ms / self.step_ms:.1%}" if self.step_ms else "") for what, ms in rows]

    def __str__(self) -> str:
        lines = self._lines()
        more = len(lines) - _SHOWN_ROWS
        table = [_HEADER, *lines[:_SHOWN_ROWS]]
        widths = [max(len(row[i]) for row in table) for i in range(len(_HEADER))]
        text = [
            "  ".join(c.ljust(w) if i in _LEFT else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))).rstrip()
            for r in table
        ]
        rule = "─" * max(map(len, text))
        footer = self._footer()
        wide = [max(len(row[i]) for row in footer) for i in range(3)]
        under = [f"{a.ljust(wide[0])}  {b.rjust(wide[1])}  {c.rjust(wide[2])}" for a, b, c in footer]
        rest = [f"... and {more} more ops, in .rows"] if more > 0 else []
        return printable("\n".join([self.title, rule, text[0], rule, *text[1:], *rest, rule, *under]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        right = set(range(len(_HEADER))) - _LEFT
        return f"<p>{escape(self.title)}</p>{page.table(_HEADER, self._lines(), right)}{page.table((), self._footer(), {1, 2})}"


def _ms(value: float) -> str:
    return f"{value:.3f}" if value else ""


def _giga(value: float | None) -> str:
    return "" if not value else f"{value / 1e9:.3g}"


@dataclass(frozen=True, slots=True)
class Measured:
    """What the profiled steps took together.

    Attributes:
      seconds: of ops in which they ran; ``counts``: how many of their instructions did.
      outside: seconds spent on other things, by what they are.
    """

    steps: int
    total_seconds: float
    seconds: Mapping[Origin, float]
    counts: Mapping[Origin, int]
    outside: Mapping[str, float]
    trace: Mapping[str, bytes]


def profile_of(plan: Plan, kernels: Mapping[Node, str], measured: Measured, joint: Collection[Node] = ()) -> JobProfile:
    """The table of what was measured.

    Args:
      plan: of the job, with the nodes of its graph.
      kernels: what computes nodes that are part of a larger call.
      joint: nodes that are computed together with others; their rows have no rates.
    """
    per_step, total = 1e3 / measured.steps, measured.total_seconds
    readers = _first_readers(plan)
    times: dict[str, dict[str, float]] = {}
    counts: dict[str, int] = {}
    for (phase, name), seconds in measured.seconds.items():
        row = readers.get(name, name) if phase == UPDATE else name
        mine = times.setdefault(row, {})
        mine[phase] = mine.get(phase, 0.0) + seconds
        counts[row] = counts.get(row, 0) + measured.counts[Origin(phase, name)]
    nodes = {node.name: node for node in reversed(plan.compute)}
    fused = {node.name: kernel for node, kernel in kernels.items()}
    updates = {readers.get(name, name): f"update in {kernel}" for name, kernel in plan.fused_updates.items()}
    shared = {node.name for node in joint}
    known = {name: cost for name, cost in costs(plan).items() if name not in shared}
    rows = []
    for name, mine in times.items():
        node = nodes.get(name)
        cost = known.get(name)
        other = sum(seconds for phase, seconds in mine.items() if phase not in (BACKWARD, UPDATE))
        kernel = fused.get(name) or describe(node, plan.without_native, plan.precision.get(node)) if node else ""
        rows.append(ProfileRow(
            name or "(other)", node.op.name if node else "variable" if name else "", str(node.source) if node else "",
            other * per_step, mine.get(BACKWARD, 0.0) * per_step, mine.get(UPDATE, 0.0) * per_step,
            sum(mine.values()) / total if total else 0.0, _flops(cost), _bytes(cost),
            ", ".join(text for text in (kernel, updates.get(name, "")) if text), counts[name],
        ))  # fmt: skip
    rows.sort(key=lambda row: (row.name == "(other)", -row.milliseconds))
    graph = plan.graph
    kind, steps = "train" if graph.train else "predict", measured.steps
    title = f"{kind} job {graph.name!r}: {total * per_step:.3f} ms per step, over {steps} step{'' if steps == 1 else 's'}"
    outside = {what: seconds * per_step for what, seconds in measured.outside.items()}
    return JobProfile(title, steps, tuple(rows), outside, total * per_step, measured.trace)


def _flops(cost: Cost | None) -> float | None:
    if cost is None or cost.forward_flops is None or cost.backward_flops is None:
        return None
    return cost.forward_flops + cost.backward_flops


def _bytes(cost: Cost | None) -> int:
    return 0 if cost is None else cost.forward_bytes + cost.backward_bytes


def _first_readers(plan: Plan) -> dict[str, str]:
    """The op that reads a variable first, by the variable's name."""
    found: dict[str, str] = {}
    copies: dict[Node, str] = {}  # conversions to the other view, by the variable that they convert
    for node in plan.compute:
        for blob in node.inputs:
            name = blob.node.attrs["variable"] if blob.node.op is OP_VARIABLE else copies.get(blob.node)
            if name is None:
                continue
            if node.op in (OP_TO_MIRRORED, OP_TO_CONSISTENT):
                copies[node] = name
            else:
                found.setdefault(name, node.name)
    return found


__all__ = ["JobProfile", "Measured", "ProfileRow", "profile_of"]
