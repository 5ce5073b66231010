"""The order in which records come: shards, shuffling, epochs; and a position that can be saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .records import Records


class RecordSource:
    """Endless records of one reader instance, in the order of OneFlow's readers. Not thread-safe: one thread takes from it.

    Args:
      paths: all parts of the data set, see ``part_paths``.
      shard: this instance's number, in [0, shards).
      shards: how many instances read the data set; each owns a contiguous range of parts (balanced split).
      random_shuffle: emit records at random from a buffer of ``buffer_size`` records.
      buffer_size: records.
      shuffle_after_epoch: shuffle the order of all parts when this instance's are exhausted.
      seed: of the buffer's draws; instances of one reader get the same seed.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        shard: int = 0,
        shards: int = 1,
        random_shuffle: bool = False,
        buffer_size: int = 1024,
        shuffle_after_epoch: bool = False,
        seed: int = 0,
    ): ...

    def take(self, count: int) -> Records:
        """The next ``count`` records (> 0). An error leaves the position where it was."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """The position before the next record, as JSON can hold it."""
        raise NotImplementedError

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on exactly where ``state()`` was taken. Raises DataError where the state belongs to another data set."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes its files."""


class OneRecSource:
    """As RecordSource, for OneRec files. ``take`` gives ``list[np.ndarray]`` (uint8 payloads)."""

    def __init__(
        self,
        files: Sequence[str],
        *,
        shard: int = 0,
        shards: int = 1,
        random_shuffle: bool = False,
        shuffle_mode: str = "instance",
        buffer_size: int = 1024,
        shuffle_after_epoch: bool = False,
        verify: bool = True,
        seed: int = 0,
    ): ...
