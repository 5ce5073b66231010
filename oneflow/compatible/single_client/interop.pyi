# Written by scripts/write_stubs.py: the names of oneflow.interop, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.interop import from_torch as from_torch
from oneflow.interop import to_torch as to_torch
