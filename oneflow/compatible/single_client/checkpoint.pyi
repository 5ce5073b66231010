# Written by scripts/write_stubs.py: the names of oneflow.checkpoint, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.checkpoint import CheckpointManager as CheckpointManager
from oneflow.checkpoint import PendingSave as PendingSave
from oneflow.checkpoint import Preemption as Preemption
from oneflow.checkpoint import get as get
from oneflow.checkpoint import save as save
from oneflow.checkpoint import save_on_preemption as save_on_preemption
