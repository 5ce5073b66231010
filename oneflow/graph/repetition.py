"""Repeated parts of a job: nodes between ``unpack`` (or ``repeat``) and ``pack`` (or ``acc``) run several times per call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Repetition:
    """How an op begins or ends a part of a job that runs several times per call.

    Attributes:
      count: name of the attribute that holds the number of runs that it begins or combines.
      begins: whether it begins such a part; otherwise it ends one.
      cuts: each run gets a piece of the input; ``define`` takes a further keyword ``index``. For ops that begin a part.
    """

    count: str
    begins: bool
    cuts: bool = False

    def runs(self, attrs: Mapping[str, Any]) -> int:
        """How many runs the op begins or combines."""
        return int(attrs[self.count])


def repetition_of(
    rule: Repetition | None, inputs: Sequence[tuple[int, ...]], attrs: Mapping[str, Any]
) -> tuple[int, ...]:  # fmt: skip
    """The counts of the repetitions around a node, outermost first; () for a node that runs once per call.

    Args:
      rule: ``repeats`` of the node's op.
      inputs: the counts of the nodes that it reads.
    Raises:
      ValueError: the inputs belong to repetitions that do not nest.
    """
    counts = max(inputs, key=len, default=())
    for own in inputs:
        if counts[: len(own)] != own:
            raise ValueError(f"inputs that are computed {_words(own)} and {_words(counts)}")
    runs = 1 if rule is None else rule.runs(attrs)
    if rule is None or runs == 1:
        return counts
    if rule.begins:
        return (*counts, runs)
    left = counts[-1] // runs
    return counts[:-1] if left == 1 else (*counts[:-1], left)


def _words(counts: tuple[int, ...]) -> str:
    return f"{' x '.join(map(str, counts))} times per call" if counts else "once per call"
