"""Execution of a staged job: every call replays a list of instructions over numbered buffers."""

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
    """The transfer of a value, or of its gradient, from one place to another."""

    blob: Blob
    source: Placement
    target: Placement
    is_gradient: bool


@dataclass(frozen=True, slots=True)
class Call:
    """Calls a compiled function and stores its outputs in the buffers ``first`` to ``end`` (exclusive)."""

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
    """Copies arrays to other devices or into other layouts. ``transfers`` lists those between places."""

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
    """Releases buffers that no later instruction reads."""

    buffers: tuple[int, ...]
    name: str = "free"

    def run(self, buffers: list[Any]) -> None:
        for i in self.buffers:
            buffers[i] = None


Instruction = Call | Move | Free
Observer = Callable[[Instruction, float], None]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled function and its name in XLA. ``segment`` is the last segment that it computes, None for updates."""

    name: str
    made: Any
    segment: int | None


class StagedProgram:
    """The step of a staged job.

    Like the step of a job on one place, it takes (state, reads, feeds) and returns (new state, fetched values, watched values,
    token). A call replays ``instructions`` and does nothing else.
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
          constants: arrays for the buffers that follow those of the arguments.
          size: the number of buffers.
          outputs: the pytree structure of the results, and the buffers that hold its leaves.
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
        """Calls within the context report each instruction and its seconds to ``observer``.

        They wait for the outputs of each instruction before they run the next one, so that nothing overlaps.
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
        """The transfers between places in each call."""
        return [t for i in self.instructions if isinstance(i, Move) for t in i.transfers]

    @property
    def segment_of_function(self) -> Mapping[str, int]:
        """The index of the segment that a function computes, by the function's name."""
        return {f.name: f.segment for f in self.functions if f.segment is not None}
