"""The execution of a staged job: a list of instructions over numbered buffers, which a call replays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

from ..._base.dist import Placement
from ..._base.jax import jax
from ...graph.node import Blob
from ..plan import Plan
from .segments import Segment


class Transfer(NamedTuple):
    """A value, or its gradient, on its way from one place to another."""

    blob: Blob
    source: Placement
    target: Placement
    is_gradient: bool


@dataclass(frozen=True, slots=True)
class Call:
    """Calls a compiled function; its outputs go to the buffers from ``first`` to before ``end``."""

    name: str
    function: Callable[..., tuple[Sequence[Any], Sequence[Any]]]
    inputs: tuple[int, ...]
    first: int
    end: int

    def run(self, buffers: list[Any]) -> None:
        laid_out, others = self.function(*[buffers[i] for i in self.inputs])
        buffers[self.first : self.end] = (*laid_out, *others)


@dataclass(frozen=True, slots=True)
class Move:
    """Brings arrays to other devices or into other layouts. ``transfers`` tells what goes from place to place."""

    name: str
    move: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    inputs: tuple[int, ...]
    shardings: tuple[Any, ...]
    first: int
    end: int
    transfers: tuple[Transfer, ...] = ()

    def run(self, buffers: list[Any]) -> None:
        buffers[self.first : self.end] = self.move([buffers[i] for i in self.inputs], self.shardings)


@dataclass(frozen=True, slots=True)
class Free:
    """Lets go of buffers that no later instruction reads."""

    buffers: tuple[int, ...]
    name: str = "free"

    def run(self, buffers: list[Any]) -> None:
        for i in self.buffers:
            buffers[i] = None


Instruction = Call | Move | Free
Observer = Callable[[Instruction, float], None]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled function under the name that XLA knows it by; ``segment`` is the last one that calls it, None for updates."""

    name: str
    made: Any
    segment: int | None


class StagedProgram:
    """The step of a job on several places, or of one that repeats a part.

    A call takes (state, reads, feeds) and returns (new state, fetched values, watched values, token), as the function of a
    job on one place does. It replays ``instructions`` and does nothing else.
    """

    def __init__(
        self,
        plan: Plan,
        segments: tuple[Segment, ...],
        functions: Sequence[Compiled],
        instructions: Sequence[Instruction],
        constants: Sequence[Any],
        size: int,
        outputs: tuple[Any, tuple[int, ...]],
    ):
        """
        Args:
          constants: what the buffers behind those of the arguments begin with.
          size: how many buffers there are.
          outputs: the structure of what a call returns, and the buffers it is made of.
        """
        self.plan = plan
        self.segments = segments
        self.functions = tuple(functions)
        self.instructions = tuple(instructions)
        self._constants = tuple(constants)
        self._size = size
        self._structure, self._returned = outputs
        self._observer: Observer | None = None

    def __call__(self, state: Sequence[Any], reads: Sequence[Any], feeds: Sequence[Any]) -> Any:
        buffers = [*state, *reads, *feeds, *self._constants]
        buffers += [None] * (self._size - len(buffers))
        if self._observer is not None:
            self._run_observed(buffers, self._observer)
        else:
            for instruction in self.instructions:
                instruction.run(buffers)
        return jax.tree.unflatten(self._structure, [buffers[i] for i in self._returned])

    @contextmanager
    def observed(self, observer: Observer) -> Iterator[None]:
        """Tells ``observer`` of each instruction of the calls inside, and of its seconds.

        A call waits for the outputs of each instruction before it goes on to the next, so that nothing overlaps.
        """
        self._observer = observer
        try:
            yield
        finally:
            self._observer = None

    def _run_observed(self, buffers: list[Any], observer: Observer) -> None:
        jax.block_until_ready([b for b in buffers if isinstance(b, jax.Array)])
        for instruction in self.instructions:
            start = perf_counter()
            instruction.run(buffers)
            if not isinstance(instruction, Free):
                jax.block_until_ready(buffers[instruction.first : instruction.end])
            observer(instruction, perf_counter() - start)

    @property
    def transfers(self) -> list[Transfer]:
        """What goes from place to place in a call."""
        return [t for i in self.instructions if isinstance(i, Move) for t in i.transfers]

    @property
    def segment_of_function(self) -> Mapping[str, int]:
        """The segments that functions were compiled for, by name."""
        return {f.name: f.segment for f in self.functions if f.segment is not None}
