# Written by scripts/write_stubs.py: the names of oneflow.system, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.system import assign as assign
