"""Whether the processes of a run build the same job, and feed what they should."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base.jax import jax
from ..compiler.plan import Plan
from ..graph.graph import OP_INPUT
from ..graph.node import Blob
from . import processes
from .transfer import Part

_log = logging.getLogger("oneflow")


def check_agreement(label: str, plan: Plan, feeds: Sequence[Any]) -> None:
    """All processes of the run call this before they compile a job, ``label``, for their first ``feeds``.

    Raises what ``processes.check_same`` raises where they have built different jobs, and warns where they feed different values:
    each device takes its piece from its own process.
    """
    processes.check_same(label, _lines(plan, feeds))

    def is_whole(blob: Blob, value: Any) -> bool:  # the host stage has put its batches on the devices of all
        return not isinstance(value, Part) and (blob.node.op is OP_INPUT or not isinstance(value, jax.Array))

    found = [
        [zlib.crc32(a.tobytes()) for a in jax.tree.leaves(feed) if is_whole(blob, a)]
        for blob, feed in zip(plan.feeds, feeds, strict=True)
    ]
    parts = [zlib.crc32(feed.array.tobytes()) for feed in feeds if isinstance(feed, Part) and _varies(feed.array)]
    everyone = processes.gather(f"comparing what {label} is fed", (found, parts))
    if not processes.is_first():
        return
    for index, (theirs, its_parts) in enumerate(everyone):
        for blob, mine, its in zip(plan.feeds, found, theirs, strict=True):
            if mine != its:
                _log.warning(
                    "oneflow: process %d feeds other values for %r of %s than process 0; every process must feed the same "
                    "batch: seed what draws or shuffles it, or let each feed its own part (config.feed_own_part)",
                    index, blob.node.name, label,
                )  # fmt: skip
        if index and parts and parts == its_parts:
            _log.warning(
                "oneflow: process %d feeds the same values as process 0 for its own part of the batches of %s: give each "
                'process other data: flow.data.ArrayLoader(..., shard=(rank, count)), or a DistributedSampler',
                index, label,
            )  # fmt: skip
    _compare_lists(label, plan, feeds)


def _compare_lists(label: str, plan: Plan, feeds: Sequence[Any]) -> None:
    """Warns where all devices of the mirrored view are fed the same arrays."""
    fed = [f for blob, f in zip(plan.feeds, feeds, strict=True) if blob.node.op is OP_INPUT and blob.is_mirrored]
    lists = [tuple(feed) for feed in fed if isinstance(feed, (tuple, np.ndarray)) and len(feed) > 1]
    arrays = [each for each in lists if all(isinstance(a, np.ndarray) for a in each) and _varies(each[0])]
    if arrays and all(np.array_equal(first, a) for first, *others in arrays for a in others):
        _log.warning(
            "oneflow: all devices are fed the same arrays in the first call of %s: in the mirrored view each takes its own "
            "piece of the batch: np.split(batch, %d)",
            label, len(arrays[0]),
        )  # fmt: skip


def _lines(plan: Plan, feeds: Sequence[Any]) -> list[str]:
    """The job as lines, for comparison with other processes."""
    fed = [f"fed {b.describe()}: {jax.tree.map(np.shape, feed)}" for b, feed in zip(plan.feeds, feeds, strict=True)]
    nodes = [
        f"{node.op.name} {node.name!r}: {', '.join(b.describe() for b in node.outputs)} on {node.scope.placement}"
        for node in plan.order
    ]
    return [f"{'train' if plan.graph.train else 'predict'} job {plan.graph.name!r}", *fed, *nodes]


def _varies(array: np.ndarray) -> bool:
    """Whether not all elements are equal: constants may be the same everywhere on purpose."""
    return bool(array.size) and bool((array != array.flat[0]).any())
