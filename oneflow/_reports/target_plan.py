"""What to expect of a job on a target: memory, collectives, arithmetic and time, as a report to print, compare and draw."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .._base.refuse import refuse, shown
from .._targets.target import Target
from .._targets.timeline import Timeline
from ..errors import ArgumentError
from .placement import TransferRow, size_text, text_table

_SHOWN_ROWS = 12


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """The memory of one device, in bytes.

    Attributes:
      device: "machine:device".
      parameters, optimizer_state, other_state: kept between calls.
      inputs: what a call is fed, where the step is one function.
      activations: made by the forward pass and kept for the backward pass at the peak, or handed from function to function.
      temporary: everything else that the compiled function needs at its peak, its code included.
      memory: of the device.
    """

    device: str
    parameters: int
    optimizer_state: int
    other_state: int
    inputs: int
    activations: int
    temporary: int
    memory: int

    @property
    def total(self) -> int:
        """All of it."""
        return (
            self.parameters + self.optimizer_state + self.other_state + self.inputs + self.activations + self.temporary
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ValueRow:
    """A value that is in memory at the peak: ``name`` is the op (or variable) that it was made for, ``source`` your line."""

    name: str
    op: str
    phase: str
    output: str
    bytes: int
    kept: bool
    source: str
    stage: int


@dataclass(frozen=True, slots=True)
class PlannedCollective:
    """A collective, or an op's part of one that serves several.

    Attributes:
      axis: the axes of the placement's arrangement that it goes along, as "0", or "0,1"; "" where it follows none.
      bytes: the result on each device; ``sent``: what each device sends. Both per time.
      times: per call.
      seconds: per call, at the links' rate, whether hidden behind arithmetic or not.
    """

    kind: str
    axis: str
    devices: int
    bytes: int
    sent: float
    times: int
    seconds: float
    name: str
    op: str
    phase: str
    source: str
    stage: int


@dataclass(frozen=True, slots=True)
class PartRow:
    """An op in one pass (forward, backward, update): its work per call on each of its devices, and what bounds it.

    ``seconds`` is the sum over its instructions of the time by what bounds each: "compute", "memory" or "links".
    """

    name: str
    op: str
    phase: str
    flops: float
    bytes: float
    seconds: float
    share: float
    bound: str
    source: str
    stage: int


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """What to expect of a job on a target, as ``job.plan(target=...)`` returns it: print it, or read its rows.

    Attributes:
      title: the job and the target.
      devices: the memory of each device; values: the largest values at the peak, parts: ops by time, both largest first.
      collectives, transfers: what is sent between devices, and between placements, per call.
      host_bytes: sent to the devices and back, per call.
      flops: floating-point operations, bytes: of memory, per call, all devices together.
      samples: the batch that a call is fed, 0 where the job has no batch.
      seconds: the estimate for a call, ``exposed_seconds`` of it waiting for links only.
      compute_seconds, memory_seconds, link_seconds: a call, were there no other bound, on the device that needs most.
      compiler_seconds: the TPU compiler's own estimate of its kernels; None of GPUs.
      bubble: the part of a call, from 0 to 1, in which devices wait for other stages.
      utilisation: of the peak FLOP/s, from 0 to 1, at best.
      peak: the arithmetic that the peak is of, and FLOP/s per device.
      not_counted: kernels whose operations are not known.
      from_cache, programs: how many compiled functions came from the cache on disk, and how many there are.
      notes: sentences on how the job was understood, such as what its placements were taken for.
    """

    title: str
    target: Target
    devices: tuple[DeviceRow, ...]
    values: tuple[ValueRow, ...]
    parts: tuple[PartRow, ...]
    collectives: tuple[PlannedCollective, ...]
    transfers: tuple[TransferRow, ...]
    host_bytes: tuple[int, int]
    flops: float
    bytes: float
    samples: int
    seconds: float
    exposed_seconds: float
    compute_seconds: float
    memory_seconds: float
    link_seconds: float
    compiler_seconds: float | None
    bubble: float
    utilisation: float
    peak: tuple[str, float]
    not_counted: tuple[str, ...]
    from_cache: int
    programs: int
    timeline: Timeline = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def fullest(self) -> DeviceRow:
        """The device that needs the most memory."""
        return max(self.devices, key=lambda row: row.total)

    @property
    def fits(self) -> bool:
        """Whether every device has the memory."""
        return all(row.total <= row.memory for row in self.devices)

    @property
    def seconds_per_sample(self) -> float:
        """The estimate for one sample; for a whole call where the job has no batch."""
        return self.seconds / (self.samples or 1)

    @property
    def verdict(self) -> str:
        """Whether it fits, and by how much."""
        row = self.fullest
        left = row.memory - row.total
        what = f"{size_text(row.total)} of {size_text(row.memory)} on device {row.device}"
        return f"fits: {what}" if left >= 0 else f"does not fit by {size_text(-left)}: {what}"

    @property
    def bounds(self) -> dict[str, float]:
        """The share of the estimated time of all parts that compute, memory and links bound."""
        whole = sum(row.seconds for row in self.parts) or 1.0
        return {b: sum(r.seconds for r in self.parts if r.bound == b) / whole for b in ("compute", "memory", "links")}

    def __str__(self) -> str:
        return "\n".join([*self._summary(), *self._tables(_SHOWN_ROWS)])

    __repr__ = __str__

    def table(self) -> str:
        """Everything, with all rows. ``print(plan)`` shows the largest."""
        return "\n".join([*self._summary(), *self._tables(None)])

    def _summary(self) -> list[str]:
        """The report without its tables, by line; the title is the first."""
        return [self.title, *self.notes, self.verdict, *self._time()]

    def _time(self) -> list[str]:
        chip, kind = self.target.accelerator, self.peak[0]
        per_sample = f", {seconds_text(self.seconds_per_sample)} per sample of {self.samples}" if self.samples else ""
        bounds = ", ".join(f"{share:.0%} {what}" for what, share in self.bounds.items())
        lines = [
            f"time per call: {seconds_text(self.seconds)} at best{per_sample}; bound by {bounds}",
            f"  compute {seconds_text(self.compute_seconds)}, memory {seconds_text(self.memory_seconds)}, links "
            f"{seconds_text(self.link_seconds)} ({seconds_text(self.exposed_seconds)} not hidden)",
            f"  {self.flops:.3g} FLOP and {size_text(self.bytes)} of memory on {len(self.devices)} devices, "
            f"{self.utilisation:.1%} of the peak",
            f"  peaks per device: {self.peak[1] / 1e12:.4g} TFLOP/s ({kind}), {chip.bandwidth / 1e9:.4g} GB/s memory, "
            f"{chip.link_bandwidth / 1e9:.4g} GB/s links, {chip.network_bandwidth / 1e9:.4g} GB/s network",
            f"host transfers per call: {size_text(self.host_bytes[0])} in, {size_text(self.host_bytes[1])} out",
        ]
        if self.compiler_seconds is not None:
            lines.insert(1, f"  the compiler's own estimate of its kernels: {seconds_text(self.compiler_seconds)}")
        if self.bubble:
            lines.append(f"bubble of the pipeline: {self.bubble:.0%} of the devices' time")
        if self.not_counted:
            lines.append(f"kernels whose FLOP are not counted: {', '.join(self.not_counted)}")
        return lines

    def _tables(self, most: int | None) -> list[str]:
        rows: dict[tuple[int, ...], list[DeviceRow]] = {}
        for d in self.devices:
            sizes = (d.parameters, d.optimizer_state, d.other_state, d.inputs, d.activations, d.temporary, d.total)
            rows.setdefault(sizes, []).append(d)
        memory = [(_joined([d.device for d in same]), *map(size_text, sizes)) for sizes, same in rows.items()]
        values = [(r.name, r.op, r.phase, r.output, size_text(r.bytes), r.source) for r in self.values[:most]]
        sent = [
            (
                r.kind,
                r.axis,
                str(r.devices),
                size_text(r.bytes),
                str(r.times),
                seconds_text(r.seconds),
                f"{r.name} {r.phase}",
                r.source,
            )
            for r in self.collectives[:most]
        ]
        parts = [
            (
                r.name,
                r.op,
                r.phase,
                f"{r.flops:.3g}",
                size_text(r.bytes),
                seconds_text(r.seconds),
                f"{r.share:.1%}",
                r.bound,
                r.source,
            )
            for r in self.parts[:most]
        ]
        moved = [(r.name + (" (gradient)" if r.backward else ""), r.source, r.target, size_text(r.bytes)) for r in self.transfers]
        tables = [
            text_table("memory per device", ("devices", "parameters", "optimizer", "other state", "inputs", "activations",
                                             "temporary", "total"), memory),
            text_table("largest values at the peak", ("for", "op", "pass", "value", "bytes", "your line"), values),
            text_table("collectives per call", ("kind", "axis", "devices", "bytes", "times", "time", "for", "your line"), sent),
            text_table("ops by time", ("name", "op", "pass", "FLOP", "bytes", "time", "share", "bound by", "your line"), parts),
        ]  # fmt: skip
        if moved:
            tables.append(text_table("transfers per call", ("value", "from", "to", "bytes"), moved[:most]))
        return tables

    def compare(self, other: TargetPlan) -> str:
        """This plan and another side by side: memory, time, work, what is sent.

        Args:
          other: a plan, of another target, batch or split.
        Returns: a table to print; the last column is the other in this one's.
        Raises: ArgumentError: not a plan for a target.
        Example: >>> print(job.plan(target="h100:8").compare(job.plan(target="tpu-v5e:2x4")))  # doctest: +SKIP
        """
        if not isinstance(other, TargetPlan):
            refuse(ArgumentError, f"compare takes another plan for a target, got {shown(other)}")

        def row(what: str, ours: float, theirs: float, text: object) -> tuple[str, ...]:
            return what, text(ours), text(theirs), f"{theirs / ours:.2f}" if ours else ""  # type: ignore[operator]

        def size(what: str, of: object) -> tuple[str, ...]:
            return row(what, of(self), of(other), size_text)  # type: ignore[operator]

        def seconds(what: str, of: object) -> tuple[str, ...]:
            return row(what, of(self), of(other), seconds_text)  # type: ignore[operator]

        rows = [
            ("fits", "yes" if self.fits else "no", "yes" if other.fits else "no", ""),
            size("memory of the fullest device", lambda p: p.fullest.total),
            size("  parameters", lambda p: p.fullest.parameters),
            size("  optimizer state", lambda p: p.fullest.optimizer_state),
            size("  activations", lambda p: p.fullest.activations),
            size("  temporary", lambda p: p.fullest.temporary),
            seconds("time per call", lambda p: p.seconds),
            seconds("time per sample", lambda p: p.seconds_per_sample),
            seconds("  compute", lambda p: p.compute_seconds),
            seconds("  memory", lambda p: p.memory_seconds),
            seconds("  links", lambda p: p.link_seconds),
            row("FLOP per call", self.flops, other.flops, lambda n: f"{n:.3g}"),
            row("utilisation at best", self.utilisation, other.utilisation, lambda n: f"{n:.1%}"),
            size("sent by collectives per device", lambda p: sum(r.sent * r.times for r in p.collectives)),
            row("bubble", self.bubble, other.bubble, lambda n: f"{n:.0%}"),
        ]
        return text_table(f"{self.title}\n{other.title}", ("", str(self.target), str(other.target), "ratio"), rows)

    def _repr_html_(self) -> str:
        from .target_picture import picture

        return picture(self)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Writes a page: the memory of each device, when it computes and waits, and the tables.

        Args: path: of the file, which is replaced.
        Raises: ArgumentError: not a path. OSError where it cannot be written.
        Example: >>> job.plan(target="h100:8").save_html("plan.html")  # doctest: +SKIP
        """
        if not isinstance(path, (str, os.PathLike)):
            refuse(ArgumentError, f"save_html takes a path, got {shown(path)}")
        head = '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>plan</title></head>'
        Path(path).write_text(f"{head}<body>{self._repr_html_()}</body></html>", encoding="utf-8")


def seconds_text(seconds: float) -> str:
    """A time as people read it."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _joined(devices: Sequence[str]) -> str:
    """``0:0-3`` for four devices of a machine, and so on."""
    by_machine: dict[str, list[int]] = {}
    for device in devices:
        machine, _, index = device.partition(":")
        by_machine.setdefault(machine, []).append(int(index))
    texts = []
    for machine, indices in by_machine.items():
        runs: list[list[int]] = []
        for i in indices:
            if runs and i == runs[-1][1] + 1:
                runs[-1][1] = i
            else:
                runs.append([i, i])
        texts += [f"{machine}:{first}" if first == last else f"{machine}:{first}-{last}" for first, last in runs]
    return ",".join(texts)
