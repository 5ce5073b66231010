"""Compiled programs as text: their instructions, and what each computes, reads, writes and sends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

SIZES = {
    "pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "f8e4m3fn": 8, "f8e5m2": 8, "f8e4m3": 8, "s16": 16, "u16": 16, "f16": 16,
    "bf16": 16, "s32": 32, "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128, "token": 0,
}  # fmt: skip
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast",
               "ragged-all-to-all")  # fmt: skip
# they move no data, or their data is that of other instructions
FREE = frozenset(
    {
        "parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all", "partition-id", "replica-id", "iota",
        "opt-barrier", "copy-done", "async-done", "async-update", "domain", "rng-get-and-update-state", "add-dependency",
    }
)  # fmt: skip
INSTRUCTION = re.compile(r"^\s*(?P<root>ROOT )?%?(?P<name>[\w.\-~]+) = (?P<type>.+?) (?P<opcode>[\w\-]+)\((?P<rest>.*)$")
COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-~]+) .*\{$")
_ARRAY = re.compile(r"(\w+)\[([\d,<=]*)\](\{[^}]*\})?")
OPERAND = re.compile(r"%([\w.\-~]+)")
_CALLS = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-~]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclass(frozen=True, slots=True)
class Array:
    """An array's dtype and shape, and whether it is in the device's main memory (a TPU has others, on the chip)."""

    dtype: str
    shape: tuple[int, ...]
    in_memory: bool = True

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return -(-self.elements * SIZES.get(self.dtype, 32) // 8)

    @property
    def memory_bytes(self) -> int:
        """Its bytes in the device's main memory."""
        return self.bytes if self.in_memory else 0


@dataclass(slots=True)
class Instruction:
    """One instruction; ``rest`` is the text behind its operands."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    rest: str
    is_root: bool

    @property
    def bytes(self) -> int:
        """The bytes of what it makes."""
        return sum(a.bytes for a in self.arrays)

    @property
    def memory_bytes(self) -> int:
        """Those in the device's main memory."""
        return sum(a.memory_bytes for a in self.arrays)

    @property
    def op_name(self) -> str:
        """The scopes in which it was traced."""
        found = re.search(r'op_name="([^"]*)"', self.rest)
        return found[1] if found else ""

    @property
    def calls(self) -> tuple[str, ...]:
        """The computations that it runs."""
        found = _BRANCHES.search(self.rest)
        return (*_CALLS.findall(self.rest), *(OPERAND.findall(found[1]) if found else ()))

    @property
    def target(self) -> str:
        """The kernel of a custom call."""
        found = re.search(r'custom_call_target="([^"]*)"', self.rest)
        return found[1] if found else ""

    @property
    def collective(self) -> str:
        """The kind of collective that it is or begins; "" for none."""
        kind = self.opcode.removesuffix("-start")
        return kind if kind in COLLECTIVES else ""


@dataclass(slots=True)
class Module:
    """A compiled program: its computations by name, each a list of instructions in the order in which they run."""

    computations: dict[str, list[Instruction]] = field(default_factory=dict)
    entry: str = ""
    _by_name: dict[str, Instruction] = field(default_factory=dict)
    _users: dict[str, list[Instruction]] = field(default_factory=dict)

    @staticmethod
    def parse(text: str) -> Module:
        """Reads the text of an optimised program."""
        module = Module()
        current: list[Instruction] = []
        for line in text.splitlines():
            found = INSTRUCTION.match(line)
            if found is None:
                header = COMPUTATION.match(line)
                if header is not None and not line.startswith("HloModule"):
                    current = module.computations[header["name"]] = []
                    module.entry = header["name"] if header["entry"] else module.entry
                continue
            inside, rest = _split(_COMMENT.sub("", found["rest"]))
            instruction = Instruction(
                found["name"], found["opcode"], _arrays(_COMMENT.sub("", found["type"])), tuple(OPERAND.findall(inside)), rest,
                bool(found["root"]),
            )  # fmt: skip
            if instruction.opcode in ("parameter", "constant"):
                instruction.rest = f"{inside}){rest}"
            current.append(instruction)
            module._by_name[instruction.name] = instruction
        return module

    def find(self, name: str) -> Instruction | None:
        """The instruction of a name."""
        return self._by_name.get(name)

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """What an instruction reads."""
        return [self._by_name[name] for name in instruction.operands if name in self._by_name]

    def users(self, instruction: Instruction) -> list[Instruction]:
        """What reads an instruction."""
        if not self._users:
            for each in self._by_name.values():
                for name in each.operands:
                    self._users.setdefault(name, []).append(each)
        return self._users.get(instruction.name, [])

    def trips(self, loop: Instruction) -> int:
        """How often a loop runs, 1 where the compiler does not know."""
        found = re.search(r'known_trip_count[\\":{]+n[\\":]+(\d+)', loop.rest)
        return int(found[1]) if found else 1


def _split(rest: str) -> tuple[str, str]:
    """The operands of an instruction, and the text behind them."""
    depth = 1
    for i, letter in enumerate(rest):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return rest[:i], rest[i + 1 :]
    return rest, ""


def _arrays(text: str) -> tuple[Array, ...]:
    return tuple(
        Array(kind, tuple(int(n.lstrip("<=")) for n in sizes.split(",") if n), "S(" not in layout)
        for kind, sizes, layout in _ARRAY.findall(text)
        if kind in SIZES
    )


@dataclass(frozen=True, slots=True)
class Group:
    """The devices that take part in a collective together, by their number in the program."""

    members: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.members)


def group_of(instruction: Instruction) -> Group:
    """The first group of devices of a collective."""
    text = instruction.rest
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", text)
    if mesh:
        sizes = [(name, int(n)) for name, n in re.findall(r"'(\w+)'=(\d+)", mesh[1])]
        wanted = set(re.findall(r"'(\w+)'", mesh[2]))
        members, stride = [0], 1
        for name, size in reversed(sizes):
            if name in wanted:
                members = [m + i * stride for i in range(size) for m in members]
            stride *= size
        return Group(tuple(sorted(members)))
    tiled = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if tiled:
        return Group(tuple(_iota(*(tuple(int(n) for n in (g or "").split(",") if n) for g in tiled.groups()))))
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]*)\}", text)
    if listed and "source_target_pairs" in text:
        pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", text)
        return Group(tuple(sorted({int(n) for n in re.findall(r"\d+", pairs[1] if pairs else "")})))
    return Group(tuple(int(n) for n in listed[1].split(",") if n) if listed else (0,))


def _iota(groups: tuple[int, ...], sizes: tuple[int, ...], order: tuple[int, ...]) -> list[int]:
    """The first group of XLA's short form: numbers from 0 shaped as ``sizes``, transposed, and cut into ``groups`` rows."""
    import numpy as np

    numbers = np.arange(prod(sizes)).reshape(sizes)
    return [int(n) for n in numbers.transpose(order or tuple(range(len(sizes)))).reshape(groups)[0]]


def contracted(sizes: Sequence[int], axes: Sequence[int]) -> int:
    """The product of the sizes of these axes."""
    return prod(sizes[a] for a in axes)
