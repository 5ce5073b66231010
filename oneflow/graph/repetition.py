"""How often a call runs a node: parts of a job between ``unpack`` (or ``repeat``) and ``pack`` (or ``acc``) run several times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .node import Blob

OPENS = {"unpack": "unpack_num", "repeat": "repeat_num"}
CLOSES = {"pack": "pack_num", "acc": "max_acc_num"}


def repetition_of(op_name: str, inputs: Sequence[Blob], attrs: Mapping[str, Any]) -> tuple[int, ...]:
    """The counts of the repetitions around a node, outermost first; () for a node that runs once a call.

    Raises:
      ValueError: inputs of repetitions that do not fit.
    """
    counts = max((b.node.repetition for b in inputs), key=len, default=())
    for blob in inputs:
        own = blob.node.repetition
        if counts[: len(own)] != own:
            raise ValueError(f"inputs that are made {_words(own)} and {_words(counts)}")
    if op_name in OPENS and attrs[OPENS[op_name]] > 1:
        return (*counts, attrs[OPENS[op_name]])
    if op_name in CLOSES and attrs[CLOSES[op_name]] > 1:
        left = counts[-1] // attrs[CLOSES[op_name]]
        return counts[:-1] if left == 1 else (*counts[:-1], left)
    return counts


def _words(counts: tuple[int, ...]) -> str:
    return f"{' x '.join(map(str, counts))} times a call" if counts else "once a call"
