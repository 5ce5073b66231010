"""What a job's placement costs: where each op runs and each variable is stored, in which layout, and what has to be sent."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import prod

from .._base import page
from .._base.printable import printable
from ..compiler.layout import Layout
from ..compiler.stages import StagedProgram
from ..graph.graph import OP_INPUT, OP_VARIABLE
from ..graph.node import Node
from ..runtime.executable import Executable

_SIZES = {"pred": 1, "s8": 1, "u8": 1, "f16": 2, "bf16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
_COLLECTIVE = re.compile(
    r" = (?P<shape>.*?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast)"
    r"(?:-start)?\("
)
# calls of the native part that all devices make together, in place of collectives
_MEETING = re.compile(r" = (?P<shape>.*?) custom-call\(.*?\bcustom_call_target=\"oneflow_(?P<call>exchange|summed_update)_\d+\"")
_MEETINGS = {"exchange": "native exchange", "summed_update": "native summed update"}
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")


@dataclass(frozen=True, slots=True)
class OpRow:
    """An op's output: ``layout`` as "B" or "S(axis)", one entry for each axis of the placement's arrangement."""

    name: str
    op: str
    output: str
    placement: str
    layout: str
    bytes_per_device: int
    stage: int


@dataclass(frozen=True, slots=True)
class VariableRow:
    """A variable (or optimizer state) and where it is kept between calls."""

    name: str
    output: str
    placement: str
    layout: str
    bytes_per_device: int


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """A collective that XLA inserted; ``bytes`` is the result on each device. ``op`` is the op that it serves, "" if unknown.

    Also the calls by which the devices of one process exchange numbers through its memory where the native part takes the place
    of a collective: "native exchange", and "native summed update", with the bytes of the gradients that it adds up as it updates
    the variable ``op`` and perhaps smaller ones.
    """

    kind: str
    devices: int
    bytes: int
    count: int
    op: str
    stage: int


@dataclass(frozen=True, slots=True)
class TransferRow:
    """A value that goes from one placement to another in each call; ``backward`` for its gradient."""

    name: str
    source: str
    target: str
    bytes: int
    backward: bool


@dataclass(frozen=True, slots=True)
class PlacementReport:
    """The placement report of ``job.plan()``: print it, or read its rows.

    Attributes:
      ops, variables, collectives, transfers: the rows.
      state_bytes: kept between calls, for each device as "machine:device"; ``working_bytes`` the most that one compiled
        function needs besides, on each of its devices, where the backend reports it.
      notes: sentences on what the compiler did with the job.
    """

    title: str
    ops: tuple[OpRow, ...]
    variables: tuple[VariableRow, ...]
    collectives: tuple[CollectiveRow, ...]
    transfers: tuple[TransferRow, ...]
    state_bytes: Mapping[str, int]
    working_bytes: int
    notes: tuple[str, ...] = ()

    def _tables(self) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
        """The title, header and rows of each table."""
        ops = [(r.name, r.op, r.output, r.placement, r.layout, size_text(r.bytes_per_device)) for r in self.ops]
        variables = [(r.name, r.output, r.placement, r.layout, size_text(r.bytes_per_device)) for r in self.variables]
        collectives = [(r.kind, str(r.devices), size_text(r.bytes), str(r.count), r.op) for r in self.collectives]
        transfers = [
            (r.name + (" (gradient)" if r.backward else ""), r.source, r.target, size_text(r.bytes)) for r in self.transfers
        ]
        return [
            ("ops", ("name", "op", "output", "placement", "layout", "bytes per device"), [*ops]),
            ("variables", ("name", "shape", "placement", "layout", "bytes per device"), [*variables]),
            ("collectives per call", ("kind", "devices", "bytes", "times", "for"), [*collectives]),
            ("transfers per call", ("value", "from", "to", "bytes"), [*transfers]),
        ]

    def _totals(self) -> list[str]:
        return [
            "state per device: " + (", ".join(f"{d} {size_text(b)}" for d, b in self.state_bytes.items()) or "none"),
            f"working memory: {size_text(self.working_bytes)} per device",
            f"sent per call: {size_text(self.sent_bytes)}",
        ]

    def __str__(self) -> str:
        parts = [self.title, *self.notes, *(text_table(*table) for table in self._tables()), *self._totals()]
        return "\n".join(part for part in parts if part)

    def _repr_html_(self) -> str:
        parts = [f"<p>{'<br>'.join(map(escape, (self.title, *self.notes)))}</p>"]
        for title, header, rows in self._tables():
            last_is_bytes = {len(header) - 1} if header[-1].startswith("bytes") else ()
            parts.append(f"<p>{title}{'' if rows else ': none'}</p>" + (page.table(header, rows, last_is_bytes) if rows else ""))
        return "".join(parts) + f"<p>{'<br>'.join(map(escape, self._totals()))}</p>"

    __repr__ = __str__

    @property
    def sent_bytes(self) -> int:
        """The bytes that collectives and transfers move per call, counting results once per device."""
        return sum(r.bytes * r.count * r.devices for r in self.collectives) + sum(r.bytes for r in self.transfers)

    def draw(self) -> str:
        """The stages as boxes with their ops, variables and what goes between them."""
        lines: list[str] = [self.title]
        stages = sorted({r.stage for r in self.ops})
        for stage in stages:
            rows = [r for r in self.ops if r.stage == stage]
            where = rows[0].placement
            inside = [f"{r.name}  {r.output} {r.layout}" for r in rows]
            inside += [f"~ {r.count} x {r.kind} of {size_text(r.bytes)}" for r in self.collectives if r.stage == stage]
            width = max(len(text) for text in [where, *inside]) + 2
            lines += [f"┌─ {where} " + "─" * (width - len(where) - 2) + "┐"]
            lines += [f"│ {text.ljust(width)}│" for text in inside]
            lines += ["└" + "─" * (width + 1) + "┘"]
            for r in self.transfers:
                if not r.backward and r.source == where and stage != stages[-1]:
                    lines.append(f"   │ {r.name}  {size_text(r.bytes)} → {r.target}")
            if stage != stages[-1]:
                lines.append("   ▼")
        return printable("\n".join(lines))


def report(executable: Executable) -> PlacementReport:
    """Describes a compiled job."""
    plan = executable.plan
    graph = plan.graph
    # all runs of a repeated part run one compiled function
    layouts = {(node.name, i): layout for (node, i), layout in executable.layouts().items()}
    staged = executable.function if isinstance(executable.function, StagedProgram) else None
    stage_of: dict[Node, int] = {}
    if staged is not None:
        for i, segment in enumerate(staged.segments):
            stage_of.update((node, i) for node in segment.nodes)
    ops = []
    for node in plan.order:
        if node.op in (OP_INPUT, OP_VARIABLE):
            continue
        for i, blob in enumerate(node.outputs):
            layout = layouts.get((node.name, i)) or Layout.whole(node.scope.placement)
            vmapped = node in plan.vmapped
            elements = prod(blob.shape) if vmapped else _elements(blob.shape, layout)
            word = "one per device" if vmapped else str(layout)
            name = node.name + "".join(f"@{n}" for n in node.run)
            ops.append(OpRow(name, node.op.name, blob.describe(), str(node.scope.placement), word,
                             elements * blob.dtype.bytes, stage_of.get(node, 0)))  # fmt: skip
    variables, state = [], Counter[str]()
    for name, storage in executable.storages.items():
        dt = graph.variables[name].dtype
        size = storage.elements_per_device * dt.bytes
        word = "one per device" if storage.replicas else str(storage.layout)
        variables.append(VariableRow(name, graph.variables[name].describe(), str(storage.layout.placement), word, size))
        for machine, device in storage.layout.placement.devices:
            state[f"{machine}:{device}"] += size
    names = {node.name for node in graph.nodes}
    stage_by_function = staged.segment_of_function if staged is not None else {}
    found: Counter[tuple[str, int, int, str, int]] = Counter()
    for function, compiled in executable.compiled:
        for kind, devices, size, op in collectives(compiled.as_text(), names):
            found[kind, devices, size, op, stage_by_function.get(function, 0)] += 1
    rows = tuple(CollectiveRow(k, d, b, n, op, s) for (k, d, b, op, s), n in found.items())
    places = {str(node.scope.placement) for node in plan.compute} or {str(graph.scope.placement)}
    kind = "train" if graph.train else "predict"
    return PlacementReport(
        f"{kind} job {graph.name!r} on {'; '.join(sorted(places))}", tuple(ops), tuple(variables), rows,
        tuple(transfers(staged)) if staged is not None else (), dict(sorted(state.items())),
        executable.statistics.largest_temporary_bytes or 0, executable.plan.notes,
    )  # fmt: skip


def _elements(shape: Sequence[int], layout: Layout) -> int:
    return prod(-(-size // layout.pieces(axis)) for axis, size in enumerate(shape))


def transfers(staged: StagedProgram) -> Iterable[TransferRow]:
    """The values that go from one place to another in each call."""
    for blob, source, target, backward in staged.transfers:
        size = prod(blob.shape) * blob.dtype.bytes * (blob.parallel_size if blob.node in staged.plan.vmapped else 1)
        yield TransferRow(blob.op_name, str(source), str(target), size, backward)


def collectives(text: str, names: set[str]) -> list[tuple[str, int, int, str]]:
    """What a compiled program's text lets devices do together: kind, devices that take part, bytes of the result, op."""
    found = []
    partitions = re.search(r"\bnum_partitions=(\d+)", text)
    for line in text.splitlines():
        meeting = _MEETING.search(line)
        match = _COLLECTIVE.search(line)
        if meeting is not None:
            kind, devices, size = _MEETINGS[meeting["call"]], int(partitions[1]) if partitions else 1, _bytes(meeting["shape"])
            if meeting["call"] == "summed_update":  # operands are what results replace, and the gradients
                operands = re.search(r"operand_layout_constraints=\{(.*?)\}, \w+=", line)
                size = _bytes(operands[1], scalars=False) - size if operands else 0
        elif match is not None:
            kind, devices, size = match["kind"], _group_size(line), _bytes(match["shape"])
        else:
            continue
        named = re.search(r'op_name="([^"]*)"', line)
        words = re.split(r"[/()]", named[1]) if named else []
        found.append((kind, devices, size, next((w for w in reversed(words) if w in names), "")))
    return found


def _bytes(arrays: str, *, scalars: bool = True) -> int:
    """The bytes of the arrays in a piece of a program's text; ``scalars``: of those without axes, too."""
    found = _ARRAY.findall(arrays)
    return sum(_SIZES.get(kind, 4) * prod(int(n) for n in sizes.split(",") if n) for kind, sizes in found if sizes or scalars)


def _group_size(line: str) -> int:
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", line)
    if mesh:
        sizes = {name: int(n) for name, n in re.findall(r"'(\w+)'=(\d+)", mesh[1])}
        return prod(sizes.get(name, 1) for name in re.findall(r"'(\w+)'", mesh[2]))
    tiled = re.search(r"replica_groups=\[(\d+),(\d+)\]", line)
    if tiled:
        return int(tiled[2])
    listed = re.search(r"replica_groups=\{\{([\d,]*)\}", line)
    if listed:
        return listed[1].count(",") + 1
    pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", line)
    return len({n for n in re.findall(r"\d+", pairs[1])}) if pairs else 1


def size_text(n: float) -> str:
    """A number of bytes as people read it."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return f"{n:.0f} B"


def text_table(title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table with a title; one line where it has no rows."""
    if not rows:
        return f"{title}: none"
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in [header, *rows]]
    rule = "─" * max(map(len, lines))
    return printable("\n".join([f"{title}", rule, lines[0], rule, *lines[1:], rule]))


__all__ = [
    "CollectiveRow", "OpRow", "PlacementReport", "TransferRow", "VariableRow", "collectives", "report", "size_text", "text_table",
    "transfers",
]  # fmt: skip
