"""The time that a compiled program should take: each instruction at the rate of what bounds it, in the compiler's order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from .._base.dist import Placement
from .flops import Arithmetic, arithmetic
from .hlo import FREE, Instruction, Module, group_of
from .target import Target

Origin = TypeVar("Origin")
COMPUTE, MEMORY, LINKS = "compute", "memory", "links"
_CYCLES = re.compile(r'estimated_cycles\\*":\\*"(\d+)')
_CHAIN = re.compile(r'chain_id="(\w+)"')
_CHAIN_START, _CHAIN_END = "AsyncCollectiveStart", "AsyncCollectiveDone"
_ALL_REDUCE_SCATTER = "all-reduce-scatter"  # TPU: an all-reduce of which each device takes a piece
_PARTLY_READ = ("dynamic-slice", "slice", "gather")


@dataclass(slots=True)
class Cost:
    """What an instruction does, with all that it calls: FLOP, bytes of memory, and the least time by each of the two."""

    flops: float = 0.0
    products: dict[str, float] = field(default_factory=dict)
    bytes: float = 0.0
    seconds: float = 0.0
    compute_seconds: float = 0.0
    memory_seconds: float = 0.0
    link_seconds: float = 0.0
    unknown: set[str] = field(default_factory=set)

    def add(self, other: Cost, times: int = 1) -> None:
        self.flops += other.flops * times
        self.bytes += other.bytes * times
        self.seconds += other.seconds * times
        self.compute_seconds += other.compute_seconds * times
        self.memory_seconds += other.memory_seconds * times
        self.link_seconds += other.link_seconds * times
        for kind, n in other.products.items():
            self.products[kind] = self.products.get(kind, 0.0) + n * times
        self.unknown |= other.unknown

    @property
    def bound(self) -> str:
        """What takes longest."""
        if self.link_seconds > max(self.compute_seconds, self.memory_seconds):
            return LINKS
        return COMPUTE if self.compute_seconds >= self.memory_seconds else MEMORY


@dataclass(frozen=True, slots=True)
class Sent:
    """A collective, once per call: bytes of the result on each device, and those that each device sends."""

    instruction: Instruction
    kind: str
    members: tuple[int, ...]
    bytes: int
    sent: float
    seconds: float
    times: int


@dataclass(slots=True)
class Estimate:
    """A program's time: ``seconds`` with collectives overlapped as the compiler has scheduled them.

    ``exposed_seconds`` are those in which nothing but the links works; ``compiler_seconds`` is the TPU compiler's own estimate
    of its kernels, None of others.
    """

    seconds: float = 0.0
    exposed_seconds: float = 0.0
    compiler_seconds: float | None = None
    total: Cost = field(default_factory=Cost)
    by_instruction: dict[str, tuple[Cost, int]] = field(default_factory=dict)
    collectives: list[Sent] = field(default_factory=list)


def sent_bytes(kind: str, operand: int, members: int) -> tuple[float, float]:
    """The bytes of the result on each device, and those that each sends, by the algorithms on rings."""
    n = max(members, 1)
    if kind == "all-gather":
        return operand * n, operand * (n - 1)
    if kind == "reduce-scatter":
        return operand / n, operand * (n - 1) / n
    if kind == "all-reduce":
        return operand, 2 * operand * (n - 1) / n
    if kind in ("all-to-all", "ragged-all-to-all"):
        return operand, operand * (n - 1) / n
    return operand, operand if n > 1 else 0


class Roofline:
    """Estimates one program on one placement of a target."""

    def __init__(self, module: Module, target: Target, placement: Placement):
        self._module = module
        self._accelerator = target.accelerator
        self._machines = [machine for machine, _ in placement.devices]
        self._costs: dict[str, Cost] = {}
        self.estimate = Estimate()

    def run(self) -> Estimate:
        """Goes through the program in its order."""
        if self._module.entry:
            self._walk(self._module.computations[self._module.entry], 1)
        made = self.estimate
        if self._accelerator.clock:
            made.compiler_seconds = self._cycles(self._module.entry) / self._accelerator.clock
        return made

    def _walk(self, instructions: list[Instruction], times: int) -> float:
        """Adds a computation that runs ``times`` times. Returns its seconds, once."""
        clock = link_free = copies_free = exposed = 0.0
        until: dict[str, float] = {}
        for instruction in instructions:
            inner, chain = (instruction, "") if instruction.collective else self._fused_collective(instruction)
            if inner is not None and chain and not self._calls_kernel(instruction, _CHAIN_START):  # one that has begun
                if self._calls_kernel(instruction, _CHAIN_END):
                    exposed += max(0.0, until.get(chain, clock) - clock)
                    clock = max(clock, until.get(chain, clock))
                    continue
            elif inner is not None:
                sent = self._sent(instruction, inner, times)
                begin = max(clock, link_free)
                link_free = until[chain or instruction.name] = begin + sent.seconds
                if not (chain or instruction.opcode.endswith("-start")):
                    exposed += link_free - clock
                    clock = link_free
                continue
            if instruction.opcode.endswith("-done") and instruction.operands and instruction.operands[0] in until:
                end, begun = until[instruction.operands[0]], self._module.find(instruction.operands[0])
                exposed += max(0.0, end - clock) if begun is not None and begun.collective else 0.0
                clock = max(clock, end)
                continue
            if instruction.opcode == "while":
                trips = self._module.trips(instruction)
                clock += trips * sum(self._walk(self._module.computations[c], times * trips) for c in instruction.calls)
                continue
            if instruction.opcode in ("call", "conditional") and instruction.calls:
                clock += max(self._walk(self._module.computations[c], times) for c in instruction.calls)
                continue
            cost = self.cost(instruction)
            if instruction.opcode.endswith("-start"):  # a copy beside the arithmetic, until its "done"
                copies_free = until[instruction.name] = max(clock, copies_free) + cost.seconds
            else:
                clock += cost.seconds
            self.estimate.total.add(cost, times)
            if cost.seconds or cost.flops:
                self.estimate.by_instruction[instruction.name] = (cost, times)
        self.estimate.exposed_seconds += exposed * times
        self.estimate.seconds = clock  # that of the last computation that ends: the entry
        return clock

    def _fused_collective(self, instruction: Instruction) -> tuple[Instruction | None, str]:
        """The collective inside a fusion, as the TPU compiler writes them, and its chain: "" where the fusion waits for it.

        A chain is a collective that runs beside other work: one fusion begins it, others do parts of it beside their own work,
        and a last one waits for it. Each of them repeats the collective.
        """
        if instruction.opcode == "fusion":
            for name in instruction.calls:
                for each in self._module.computations.get(name, ()):
                    if each.collective:
                        found = _CHAIN.search(each.rest)
                        return each, f"chain {found[1]}" if found else ""
        return None, ""

    def _calls_kernel(self, fusion: Instruction, kernel: str) -> bool:
        return any(i.target == kernel for name in fusion.calls for i in self._module.computations.get(name, ()))

    def _sent(self, instruction: Instruction, inner: Instruction, times: int) -> Sent:
        """A collective that is begun; ``inner`` is another instruction than ``instruction`` in a fusion."""
        kind = "reduce-scatter" if any(_ALL_REDUCE_SCATTER in name for name in instruction.calls) else inner.collective
        members = group_of(inner).members
        operand = sum(o.bytes for o in self._module.operands(inner))
        result, sent = sent_bytes(kind, operand, len(members))
        machines = {self._machines[m] for m in members if m < len(self._machines)}
        chip = self._accelerator
        rate = chip.link_bandwidth if len(machines) < 2 else min(chip.link_bandwidth, chip.network_bandwidth)
        found = Sent(instruction, kind, members, int(result), sent, sent / rate, times)
        self.estimate.collectives.append(found)
        moved = Cost(link_seconds=found.seconds)
        self.estimate.total.add(moved, times)
        return found

    def cost(self, instruction: Instruction) -> Cost:
        """An instruction that computes, with the computations that it calls."""
        if instruction.opcode in FREE or instruction.opcode.endswith("-done"):
            return Cost()
        made = self._arithmetic(instruction)
        made.bytes = float(self._bytes(instruction))
        flops = self._accelerator.flops
        done = sum(made.products.values())
        made.compute_seconds = sum(n / flops[kind] for kind, n in made.products.items()) + (made.flops - done) / flops["vector"]
        made.memory_seconds = made.bytes / self._accelerator.bandwidth
        made.seconds = max(made.compute_seconds, made.memory_seconds)
        return made

    def _arithmetic(self, instruction: Instruction) -> Cost:
        """FLOP only."""
        if instruction.opcode in ("fusion", "call", "map", "async-start") and instruction.calls:
            made = Cost()
            for name in instruction.calls:
                made.add(self._of_computation(name))
            return made
        own: Arithmetic = arithmetic(self._module, instruction)
        return Cost(own.total, dict(own.products), unknown={own.unknown} if own.unknown else set())

    def _of_computation(self, name: str) -> Cost:
        if name not in self._costs:
            made = self._costs[name] = Cost()
            for instruction in self._module.computations.get(name, ()):
                made.add(self._arithmetic(instruction))
        return self._costs[name]

    def _bytes(self, instruction: Instruction) -> float:
        """What it reads and writes; of an array that it only takes slices of, the slices."""
        operands = self._module.operands(instruction)
        if instruction.opcode in _PARTLY_READ:
            return 2 * instruction.memory_bytes
        if instruction.opcode == "dynamic-update-slice" and len(operands) > 1:
            return 2 * operands[1].memory_bytes
        if instruction.opcode.endswith("-start"):
            ends = [a for a in instruction.arrays if a.elements > 1]  # both sides of a copy, one of which may be on the chip
            return min((a.bytes for a in ends), default=0) * sum(a.in_memory for a in ends)
        if instruction.opcode == "fusion" and instruction.calls:
            return self._bytes_of_fusion(instruction, operands)
        return instruction.memory_bytes + sum(o.memory_bytes for o in operands)

    def _bytes_of_fusion(self, instruction: Instruction, operands: list[Instruction]) -> float:
        inside = self._module.computations.get(instruction.calls[0], [])
        users: dict[str, list[Instruction]] = {}
        for each in inside:
            for name in each.operands:
                users.setdefault(name, []).append(each)
        parameters = {int(i.rest.split(")")[0]): i.name for i in inside if i.opcode == "parameter" and i.rest[:1].isdigit()}
        total, updated = 0.0, 0.0
        for position, operand in enumerate(operands):
            readers = users.get(parameters.get(position, ""), [])
            if readers and all(r.opcode in _PARTLY_READ and r.operands[:1] == (parameters[position],) for r in readers):
                total += sum(r.memory_bytes for r in readers)
            elif readers and all(r.opcode == "dynamic-update-slice" and r.operands[0] == parameters[position] for r in readers):
                updated += operand.memory_bytes - sum(o.memory_bytes for r in readers for o in self._module.operands(r)[1:2])
            else:
                total += operand.memory_bytes
        return total + max(instruction.memory_bytes - updated, 0.0)

    def _cycles(self, name: str) -> float:
        """The TPU compiler's estimate of a computation."""
        total = 0.0
        for instruction in self._module.computations.get(name, ()):
            found = _CYCLES.search(instruction.rest)
            if found:
                total += int(found[1])
            elif instruction.opcode in ("while", "call", "conditional"):
                trips = self._module.trips(instruction) if instruction.opcode == "while" else 1
                total += trips * sum(map(self._cycles, instruction.calls))
        return total


def estimate(text: str, target: Target, placement: Placement) -> tuple[Module, Estimate]:
    """Reads and estimates a program."""
    module = Module.parse(text)
    return module, Roofline(module, target, placement).run()


def by_origin(
    made: Estimate, origin: Callable[[str], Origin], askers: Callable[[Sent], Iterable[tuple[Origin, float]]]
) -> Mapping[Origin, Cost]:
    """A program's costs by op: ``origin`` names that of an instruction, ``askers`` those of a collective with their shares."""
    found: dict[Origin, Cost] = {}
    for name, (cost, times) in made.by_instruction.items():
        found.setdefault(origin(name), Cost()).add(cost, times)
    for sent in made.collectives:
        for who, share in askers(sent):
            part = Cost(seconds=sent.seconds * share, link_seconds=sent.seconds * share)
            found.setdefault(who, Cost()).add(part, sent.times)
    return found
