"""A step of a job in stages, in time: which function runs when on which devices, and what is in their memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from ..compiler.stages import Call, Free, Move, StagedProgram
from .compiling import TargetProgram
from .meshes import Device, TargetMeshes
from .roofline import Estimate
from .target import Target


@dataclass(frozen=True, slots=True)
class Span:
    """A function that runs from ``begin`` to ``end``, in seconds after the step began."""

    name: str
    devices: tuple[Device, ...]
    begin: float
    end: float
    calls: str = ""  # the compiled function


@dataclass(slots=True)
class Timeline:
    """A step: its functions, its length, and for each device the most bytes that were in use beside the state.

    ``between`` are those of values that functions hand to each other, ``temporary`` those inside the function that was running
    at the peak.
    """

    spans: list[Span] = field(default_factory=list)
    seconds: float = 0.0
    between: dict[Device, int] = field(default_factory=dict)
    temporary: dict[Device, int] = field(default_factory=dict)
    at_peak: dict[Device, str] = field(default_factory=dict)

    def busy(self, device: Device) -> float:
        """The seconds in which a device computes."""
        return sum(span.end - span.begin for span in self.spans if device in span.devices)

    @property
    def bubble(self) -> float:
        """The part of the step, from 0 to 1, in which devices wait for others, over all devices that compute."""
        devices = {device for span in self.spans for device in span.devices}
        if not devices or not self.seconds:
            return 0.0
        return 1 - sum(map(self.busy, devices)) / (self.seconds * len(devices))


def of_single(name: str, program: TargetProgram, estimate: Estimate) -> Timeline:
    """The timeline of a job on one place."""
    made = Timeline([Span("step", program.placement.devices, 0.0, estimate.seconds, name)], estimate.seconds)
    extra = max(program.memory["output"] - program.memory["alias"], 0)
    for device in program.placement.devices:
        made.between[device] = extra
        made.temporary[device], made.at_peak[device] = program.memory["temp"], name
    return made


class Replay:
    """Goes through the instructions of a staged step, with the estimated time of each and the size of each buffer."""

    def __init__(
        self,
        program: StagedProgram,
        estimates: Mapping[str, Estimate],
        meshes: TargetMeshes,
        target: Target,
        arguments: Sequence[Any],
    ):
        """``arguments``: shapes and shardings of the step's arguments, in order."""
        self._program, self._estimates, self._meshes, self._target = program, estimates, meshes, target
        self._names = {id(f.made): f.name for f in program.functions}
        self._ready: dict[int, float] = {}
        self._free: dict[Device, float] = {}
        self._sizes: dict[int, tuple[tuple[Device, ...], int]] = {}
        self._shapes: dict[int, tuple[Any, Any]] = {}
        self._live: dict[Device, int] = {}
        self._fixed = len(arguments)
        self.timeline = Timeline()
        for i, struct in enumerate(arguments):
            self._shapes[i] = (struct, struct.sharding)

    def run(self) -> Timeline:
        """The timeline."""
        for instruction in self._program.instructions:
            if isinstance(instruction, Call):
                self._call(instruction)
            elif isinstance(instruction, Move):
                self._move(instruction)
            elif isinstance(instruction, Free):
                for buffer in instruction.buffers:
                    self._release(buffer)
        self.timeline.seconds = max((span.end for span in self.timeline.spans), default=0.0)
        return self.timeline

    def _add(self, buffer: int, devices: tuple[Device, ...], size: int) -> None:
        self._sizes[buffer] = devices, size
        for device in devices:
            self._live[device] = self._live.get(device, 0) + size

    def _release(self, buffer: int) -> None:
        devices, size = self._sizes.pop(buffer, ((), 0))
        for device in devices:
            self._live[device] -= size

    def _call(self, call: Call) -> None:
        program: TargetProgram = call.function  # type: ignore[assignment]
        devices, name = program.placement.devices, self._names[id(program)]
        begin = max([self._ready.get(i, 0.0) for i in call.inputs] + [self._free.get(d, 0.0) for d in devices])
        end = begin + self._estimates[name].seconds
        self.timeline.spans.append(Span(call.name, devices, begin, end, name))
        self._free.update(dict.fromkeys(devices, end))
        for position in program.donated:
            self._release(call.inputs[position])
        kept = (
            min(program.memory["alias"], sum(program.outputs))
            if all(i < self._fixed for i in self._donated(call, program))
            else 0
        )
        for buffer, size, sharding in zip(range(call.first, call.end), program.outputs, program.output_shardings, strict=True):
            taken = min(size, kept)  # the state's own memory
            kept -= taken
            self._add(buffer, devices, size - taken)
            self._ready[buffer] = end
            self._shapes[buffer] = (size, sharding)
        for device in devices:
            self._note(device, program.memory["temp"], name)

    @staticmethod
    def _donated(call: Call, program: TargetProgram) -> list[int]:
        return [call.inputs[i] for i in program.donated]

    def _note(self, device: Device, temporary: int, name: str) -> None:
        made, live = self.timeline, self._live.get(device, 0)
        if live + temporary >= made.between.get(device, 0) + made.temporary.get(device, 0):
            made.between[device], made.temporary[device], made.at_peak[device] = live, temporary, name

    def _move(self, move: Move) -> None:
        chip = self._target.accelerator
        for source, buffer, sharding in zip(move.inputs, range(move.first, move.end), move.shardings, strict=True):
            known, before = self._shapes.get(source, (None, None))
            devices = self._meshes.placement_of(sharding.mesh).devices
            size = self._size(known, before, sharding)
            others = set() if before is None else {machine for machine, _ in self._meshes.placement_of(before.mesh).devices}
            crosses = bool(others) and others != {machine for machine, _ in devices}
            rate = min(chip.link_bandwidth, chip.network_bandwidth) if crosses else chip.link_bandwidth
            self._ready[buffer] = self._ready.get(source, 0.0) + size / rate
            self._shapes[buffer] = (size, sharding)
            self._add(buffer, devices, size)
            for device in devices:
                self._note(device, 0, "")

    @staticmethod
    def _size(known: Any, before: Any, after: Any) -> int:
        """The bytes on each device of a value in its new layout."""
        if hasattr(known, "shape"):
            return prod(after.shard_shape(known.shape)) * np.dtype(known.dtype).itemsize
        if known is None or before is None:
            return 0
        pieces = [prod(s.mesh.shape[n] for axes in s.spec if axes for n in _names(axes)) for s in (before, after)]
        return int(known) * pieces[0] // pieces[1]


def _names(axes: Any) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else tuple(axes)
