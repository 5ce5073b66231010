# Written by scripts/write_stubs.py: the names of oneflow.advanced, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.advanced import distribute_add as distribute_add
from oneflow.advanced import distribute_clone as distribute_clone
from oneflow.advanced import distribute_concat as distribute_concat
from oneflow.advanced import distribute_map as distribute_map
from oneflow.advanced import distribute_split as distribute_split
