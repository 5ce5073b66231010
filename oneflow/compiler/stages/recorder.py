"""The recorder: compiles functions and records instructions over numbered buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._base.jax import jax
from ..layout import Meshes
from ..plan import Plan
from ..program import program_name
from ..rewriting import rewritten_function
from .execution import Call, Compiled, Free, Instruction, Move, StagedProgram, Transfer
from .functions import Function
from .segments import Segment

# compiles a ``jax.stages.Traced``, given the shardings of its inputs, in order (None where any will do)
Compile = Callable[[Any, Sequence[Any]], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """A buffer during recording; a leaf of pytrees.

    ``memory`` is the index of the buffer that it may share memory with: the one it was moved from, or itself.
    """

    index: int
    struct: Any  # shape, dtype, and the sharding if it is known
    memory: int


@dataclass(frozen=True, slots=True)
class _Made:
    """A compiled function and its outputs.

    ``outputs`` has one entry per leaf of ``structure``: a struct, or the position of the argument that is returned unchanged.
    """

    name: str
    compiled: Any
    structure: Any
    outputs: tuple[Any, ...]


class Recorder:
    """Records instructions, and compiles each function when it is first called."""

    def __init__(self, plan: Plan, meshes: Meshes, compile: Compile):
        self._plan = plan
        self._program = program_name(plan)
        self._meshes = meshes
        self._compile = compile
        self._instructions: list[Instruction] = []
        self._donated: dict[int, int] = {}  # the instruction that each memory is donated to
        self._memory: list[int] = []  # of each buffer, see Buffer
        self._constants: list[Any] = []
        self._made: dict[Any, _Made] = {}
        self._moved: dict[tuple[int, Any], Buffer] = {}
        self._segments: dict[Any, int | None] = {}
        self._arguments = 0

    def _buffer(self, struct: Any, memory: int | None = None) -> Buffer:
        index = len(self._memory)
        self._memory.append(index if memory is None else memory)
        return Buffer(index, struct, self._memory[index])

    @property
    def _size(self) -> int:
        return len(self._memory)

    def argument(self, struct: Any) -> Buffer:
        """Adds an argument of the step. Arguments come before everything else."""
        self._arguments += 1
        return self._buffer(struct)

    def constant(self, array: np.ndarray, sharding: Any) -> Buffer:
        """Adds a constant array. Constants come before the first instruction."""
        self._constants += self._meshes.move([array], [sharding])
        return self._buffer(jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding))

    def call(self, key: Any, function: Function, *arguments: Any, segment: Segment | None = None, name: str = "") -> Any:
        """Records a call of a function; returns its two pytrees of Buffers.

        It is compiled once per ``key`` and structure of the arguments (runs may differ in the number of terms of gradients).
        """
        given, structure = jax.tree.flatten(arguments)
        key = key, structure
        made = self._made.get(key)
        if made is None:
            its_name = f"{self._program}_{function.name}_{len(self._made)}"
            made = self._made[key] = _compiled(function, its_name, arguments, self._plan, self._compile)
        self._segments[key] = None if segment is None else segment.index
        first = self._size
        leaves = [given[o] if isinstance(o, int) else self._buffer(o) for o in made.outputs]
        if function.donates:
            self._donated.update((b.memory, len(self._instructions)) for b in jax.tree.leaves(arguments[0]))
        what = name or (function.name if segment is None else f"{function.name} {segment}")
        inputs = tuple(b.index for b in given)
        self._instructions.append(Call(what, made.compiled, inputs, first, self._size))
        return jax.tree.unflatten(made.structure, leaves)

    def move(
        self, name: str, buffers: Sequence[Buffer], shardings: Sequence[Any], transfers: Sequence[Transfer | None] = ()
    ) -> list[Buffer]:
        """Records the move of buffers to other shardings and returns the moved ones.

        Buffers that have the sharding already are returned, and none is moved to the same sharding twice. ``transfers``
        describes moves between places.
        """
        first = self._size
        inputs: list[int] = []
        targets: list[Any] = []
        sent: list[Transfer] = []
        for buffer, sharding, transfer in zip(buffers, shardings, transfers or [None] * len(buffers), strict=True):
            if (buffer.index, sharding) in self._moved:
                continue
            struct = jax.ShapeDtypeStruct(buffer.struct.shape, buffer.struct.dtype, sharding=sharding)
            moved = Buffer(buffer.index, struct, buffer.memory)  # with this mesh, where another one means the same
            if not self._has_sharding(buffer.struct, sharding):
                moved = self._buffer(struct, buffer.memory if self._overlap(buffer.struct, sharding) else None)
                inputs.append(buffer.index)
                targets.append(sharding)
                sent += [transfer] if transfer is not None else []
            self._moved[buffer.index, sharding] = moved
        if inputs:
            move = Move(name, self._meshes.move, tuple(inputs), tuple(targets), first, self._size, tuple(sent))
            self._instructions.append(move)
        return [self._moved[b.index, s] for b, s in zip(buffers, shardings, strict=True)]

    def _has_sharding(self, struct: Any, sharding: Any) -> bool:
        own = struct.sharding
        if own is None or self._meshes.devices_of(own) != self._meshes.devices_of(sharding):
            return False
        return bool(own.is_equivalent_to(sharding, len(struct.shape)))

    def _overlap(self, struct: Any, sharding: Any) -> bool:
        """Whether a move may share memory with its source, as they have devices in common."""
        return struct.sharding is None or bool(self._meshes.devices_of(struct.sharding) & self._meshes.devices_of(sharding))

    def finished(self, plan: Plan, segments: tuple[Segment, ...], outputs: Any) -> StagedProgram:
        """The recorded program, which returns ``outputs`` (a pytree of Buffers)."""
        leaves, structure = jax.tree.flatten(outputs)
        returned = tuple(b.index for b in leaves)
        last: dict[int, int] = {}
        for position, instruction in enumerate(self._instructions):
            if not isinstance(instruction, Free):
                last.update(dict.fromkeys([*instruction.inputs, *range(instruction.first, instruction.end)], position))
        for index, position in last.items():
            until = self._donated.get(self._memory[index], position)
            assert position <= until and not (self._memory[index] in self._donated and index in returned), (
                f"buffer {index} is read after instruction {until}, to which its memory was donated"
            )
        unused_at: dict[int, list[int]] = {}
        for index, position in last.items():
            if index >= self._arguments + len(self._constants) and index not in returned:
                unused_at.setdefault(position, []).append(index)
        instructions: list[Instruction] = []
        for position, instruction in enumerate(self._instructions):
            instructions.append(instruction)
            if position in unused_at:
                instructions.append(Free(tuple(sorted(unused_at[position]))))
        functions = [Compiled(made.name, made.compiled, self._segments[key]) for key, made in self._made.items()]
        return StagedProgram(plan, segments, functions, instructions, self._constants, self._size, (structure, returned))


def _compiled(function: Function, name: str, arguments: tuple[Any, ...], plan: Plan, compile: Compile) -> _Made:
    """Compiles ``function`` for arguments of these shapes (pytrees of Buffers), as a function of flat lists of arrays."""
    leaves, structure = jax.tree.flatten(arguments)
    told: list[Any] = []

    def flat(*arrays: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        laid_out, others = function.run(*jax.tree.unflatten(structure, arrays))
        outputs, made = jax.tree.flatten((laid_out, others))
        count = len(jax.tree.leaves(laid_out))
        given = {id(a): i for i, a in enumerate(arrays)} if function.returns_inputs else {}
        sources = [None if i < count else given.get(id(x)) for i, x in enumerate(outputs)]
        told[:] = [made, sources]
        return tuple(outputs[:count]), tuple(x for x, s in zip(outputs[count:], sources[count:], strict=True) if s is None)

    flat.__name__ = flat.__qualname__ = name
    keywords: dict[str, Any] = {}
    if function.donates:
        keywords["donate_argnums"] = tuple(range(len(jax.tree.leaves(arguments[0]))))
    shardings = tuple(jax.tree.leaves(function.shardings))
    structs = [b.struct for b in leaves]

    def trace(flat: Callable[..., Any]) -> Any:
        return jax.jit(flat, out_shardings=(shardings, None), **keywords).trace(*structs)

    traced = trace(flat)
    devices = max((len(struct.sharding.device_set) for struct in structs), default=1)
    rewritten = rewritten_function(traced, plan, name, devices)
    traced = traced if rewritten is None else trace(rewritten)
    made = compile(traced, [b.struct.sharding for b in leaves])
    given = zip(jax.tree.leaves(traced.out_info), jax.tree.leaves(made.output_shardings), strict=True)
    fresh = iter([jax.ShapeDtypeStruct(info.shape, info.dtype, sharding=sharding) for info, sharding in given])
    return _Made(name, made, told[0], tuple(next(fresh) if source is None else source for source in told[1]))
