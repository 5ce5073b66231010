# Written by scripts/write_stubs.py: the names of oneflow.train, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.train import CheckPoint as CheckPoint
from oneflow.train import SimpleCheckPointManager as SimpleCheckPointManager
