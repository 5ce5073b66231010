# Written by scripts/write_stubs.py: the names of oneflow.trainer, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.trainer import History as History
from oneflow.trainer import Trainer as Trainer
