# Written by scripts/write_stubs.py: the names of oneflow.placement, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.placement import current_scope as current_scope
