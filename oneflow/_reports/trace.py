"""XLA's trace of a run, by the ops of a job: which instruction ran when, and which op it was compiled from."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .._base import jax_versions
from .._targets.hlo import COMPUTATION, INSTRUCTION, OPERAND
from ..compiler.autodiff import BACKWARD_SCOPE, UPDATE_SCOPE

FORWARD, BACKWARD, UPDATE, OTHER = "forward", "backward", "update", "other"
_PHASES = {BACKWARD_SCOPE: BACKWARD, UPDATE_SCOPE: UPDATE}
_CONTAINERS = frozenset({"while", "call", "conditional"})  # their time is that of the instructions inside
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CALLS = re.compile(r"(?:calls|to_apply|body)=%?([\w.\-~]+)")
_WRAPPED = re.compile(r"^\w+\((.*)\)$")


class Origin(NamedTuple):
    """Where an instruction comes from: the phase of the step, and the name of the op (of the variable, for an update)."""

    phase: str
    name: str


_UNKNOWN = Origin(OTHER, "")


class Event(NamedTuple):
    """An instruction that ran, with its beginning and end in nanoseconds."""

    module: str
    instruction: str
    start: float
    end: float


@dataclass(slots=True)
class _Instruction:
    opcode: str
    origin: Origin | None
    calls: tuple[str, ...]
    operands: tuple[str, ...]
    computation: str
    is_part: bool  # a call of a part of a long program (``compiler/parts.py``), which stands for no op


class Program:
    """The instructions of a compiled module, from its text."""

    def __init__(self, text: str, names: Collection[str], variables: Collection[str]):
        """``names`` are those of the job's ops, ``variables`` those of its variables."""
        self.module = re.match(r"HloModule ([\w.\-~]+)", text)[1] if text.startswith("HloModule ") else ""  # type: ignore[index]
        self._instructions: dict[str, _Instruction] = {}
        self._members: dict[str, list[str]] = defaultdict(list)
        self._read(text, names, variables)
        self._users: dict[str, list[str]] = defaultdict(list)
        for name, instruction in self._instructions.items():
            for operand in instruction.operands:
                self._users[operand].append(name)

    def _read(self, text: str, names: Collection[str], variables: Collection[str]) -> None:
        computation = ""
        for line in text.splitlines():
            found = INSTRUCTION.match(line)
            if found is None:
                header = COMPUTATION.match(line)
                computation = header["name"] if header else computation
                continue
            rest = found["rest"]
            scope = _OP_NAME.search(rest)
            arguments = rest.split("metadata=")[0].split("), ")[0]
            self._instructions[found["name"]] = _Instruction(
                found["opcode"],
                origin_of(scope[1], names, variables) if scope else None,
                tuple(_CALLS.findall(rest)),
                tuple(OPERAND.findall(arguments)),
                computation,
                'inlineable="false"' in rest,
            )
            self._members[computation].append(found["name"])

    def __contains__(self, instruction: str) -> bool:
        return instruction in self._instructions

    def is_container(self, instruction: str) -> bool:
        """Whether its time is that of other instructions."""
        return self._instructions[instruction].opcode in _CONTAINERS

    def origin(self, instruction: str) -> Origin:
        """The op that an instruction was compiled from; where none is known, that of its readers or of what it reads."""
        if self._instructions[instruction].is_part:
            return _UNKNOWN
        own = self._known(instruction)
        if own is not None:
            return own
        for neighbours in (self._users[instruction], self._instructions[instruction].operands):
            for neighbour in neighbours:
                near = self._known(neighbour) if neighbour in self._instructions else None
                if near is not None:
                    return near
        return _UNKNOWN

    def _known(self, name: str) -> Origin | None:
        instruction = self._instructions[name]
        if instruction.is_part:
            return None
        if instruction.origin is not None and instruction.origin is not _UNKNOWN:
            return instruction.origin
        inner = [self._instructions[m].origin for c in instruction.calls for m in self._members.get(c, ())]
        counted = Counter(o for o in inner if o is not None and o is not _UNKNOWN)
        return counted.most_common(1)[0][0] if counted else None


def origin_of(scope: str, names: Collection[str], variables: Collection[str]) -> Origin:
    """Reads ``jit(job)/oneflow.backward/conv1/transpose(jvp())/dot_general``, the scopes in which an instruction was traced."""
    phase = FORWARD
    parts = scope.split(";")[0].split("/")
    for i, part in enumerate(parts):
        if part in _PHASES:
            phase = _PHASES[part]
            continue
        known = variables if phase == UPDATE else names
        for end in range(len(parts), i, -1):  # names may contain slashes
            name = "/".join(parts[i:end])
            if name in known:
                return Origin(phase, name)
        inner = _WRAPPED.match(part)
        if inner and inner[1] in known:
            return Origin(phase, inner[1])
    return Origin(phase, "") if phase != FORWARD else _UNKNOWN


def read_events(path: str, programs: Mapping[str, Program]) -> list[Event]:
    """The events of instructions of these programs, by module, in a file that ``jax.profiler`` has written."""
    from jax.profiler import ProfileData

    with jax_versions.reading_a_profile():
        return _events(ProfileData.from_file(path), programs)


def _events(profile: Any, programs: Mapping[str, Program]) -> list[Event]:
    found = []
    known = {name for program in programs.values() for name in program._instructions}
    for plane in profile.planes:
        is_device = plane.name.startswith("/device:")
        for line in plane.lines:
            if is_device and not line.name.startswith(("Stream", "XLA Ops")):
                continue  # lines that show the same time in other ways
            for event in line.events:
                if is_device or event.name in known:  # looking at an event's statistics takes long
                    instruction, module = _instruction_of(event)
                    if module in programs and instruction in programs[module]:
                        found.append(Event(module, instruction, event.start_ns, event.start_ns + event.duration_ns))
    return found


def _instruction_of(event: Any) -> tuple[str, str]:
    stats = {key: value for key, value in event.stats if key in ("hlo_op", "hlo_module")}
    return str(stats.get("hlo_op", "")), str(stats.get("hlo_module", "")).partition("(")[0]


def shares(events: Sequence[Event], programs: Mapping[str, Program]) -> dict[Event, float]:
    """The nanoseconds of each event, where those that run side by side share the time.

    The sum is the time in which at least one runs. An event that contains others (a loop) has the time when none of them runs.
    """
    edges = sorted(
        [(event.start, 1, i) for i, event in enumerate(events)] + [(event.end, 0, i) for i, event in enumerate(events)]
    )
    containers = [programs[event.module].is_container(event.instruction) for event in events]
    running: tuple[set[int], set[int]] = set(), set()  # those that contain nothing, and containers
    found = [0.0] * len(events)
    last = 0.0
    for when, begins, i in edges:
        active = running[0] or running[1]
        if active and when > last:
            for j in active:
                found[j] += (when - last) / len(active)
        last = when
        kind = running[containers[i]]
        if begins:
            kind.add(i)
        else:
            kind.discard(i)
    total: dict[Event, float] = defaultdict(float)
    for event, nanoseconds in zip(events, found, strict=True):
        total[event] += nanoseconds
    return total


def by_origin(events: Sequence[Event], programs: Mapping[str, Program]) -> tuple[dict[Origin, float], dict[Origin, int]]:
    """The seconds that each op took, and the number of its instructions that ran."""
    seconds: dict[Origin, float] = defaultdict(float)
    counts: dict[Origin, int] = defaultdict(int)
    origins: dict[tuple[str, str], Origin] = {}
    for event in events:
        key = event.module, event.instruction
        if key not in origins:
            origins[key] = programs[event.module].origin(event.instruction)
        counts[origins[key]] += 1
    for event, nanoseconds in shares(events, programs).items():
        seconds[origins[event.module, event.instruction]] += nanoseconds / 1e9
    return seconds, counts


def programs_of(texts: Iterable[str], names: Collection[str], variables: Collection[str]) -> dict[str, Program]:
    """The programs by module."""
    made = [Program(text, names, variables) for text in texts]
    return {program.module: program for program in made}
