"""Where the memory of a compiled program goes: which values are alive when most of it is in use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .hlo import Instruction, Module

# their memory is that of what they read
_ALIASES = frozenset(
    {"bitcast", "tuple", "get-tuple-element", "opt-barrier", "copy-done", "while", "add-dependency", "async-done"}
)


@dataclass(frozen=True, slots=True)
class Live:
    """A value that is alive at the peak. ``kept``: the forward pass made it and a later one reads it."""

    instruction: Instruction
    bytes: int
    kept: bool


def at_peak(module: Module, phase: Callable[[str], str]) -> list[Live]:
    """The values other than inputs and constants that are alive at the peak of a program, the largest first.

    They are counted in the order of the compiled program, before buffers are laid out, so that their sum is near the compiler's
    number and not equal to it. ``phase`` says of an instruction's name to which pass it belongs.
    """
    order = module.computations.get(module.entry, [])
    owners: dict[str, tuple[str, ...]] = {}  # the values whose memory a name stands for
    last: dict[str, int] = {}
    for position, instruction in enumerate(order):
        if instruction.opcode in _ALIASES or instruction.opcode.endswith("-done"):
            owners[instruction.name] = tuple(o for name in instruction.operands for o in owners.get(name, ()))
        elif instruction.opcode in ("parameter", "constant"):
            owners[instruction.name] = ()
        else:
            owners[instruction.name] = (instruction.name,)
        for name in (*instruction.operands, instruction.name):
            last.update(dict.fromkeys(owners.get(name, ()), position))
    root = next((i for i in order if i.is_root), None)
    returned = set(owners.get(root.name, ())) if root is not None else set()
    ends: dict[int, list[str]] = {}
    for name, position in last.items():
        ends.setdefault(position, []).append(name)
    sizes = {i.name: _made(i) for i in order if owners[i.name] == (i.name,) and i.name not in returned}
    live = most = 0
    peak = -1
    for position, instruction in enumerate(order):
        live += sizes.get(instruction.name, 0)
        if live > most:
            most, peak = live, position
        live -= sum(sizes.get(name, 0) for name in ends.get(position, ()))
    begun = {i.name: p for p, i in enumerate(order)}
    found = [
        Live(order[begun[name]], size, phase(name) == "forward" and _read_later(order, peak, owners, name, phase))
        for name, size in sizes.items()
        if size and begun[name] <= peak <= last[name]
    ]
    return sorted(found, key=lambda value: -value.bytes)


def _made(instruction: Instruction) -> int:
    """The memory of what an instruction makes; one that starts a copy names what it reads as well."""
    if instruction.opcode.endswith("-start") and len(instruction.arrays) > 1:
        return instruction.arrays[-1 if instruction.opcode != "copy-start" else 0].memory_bytes
    return instruction.memory_bytes


def _read_later(
    order: list[Instruction], peak: int, owners: dict[str, tuple[str, ...]], name: str, phase: Callable[[str], str]
) -> bool:
    """Whether a pass other than the forward one reads a value after the peak."""
    return any(
        name in owners.get(operand, ()) and phase(instruction.name) not in ("forward", "other")
        for instruction in order[peak:]
        for operand in instruction.operands
    )
