# Written by scripts/write_stubs.py: the names of oneflow.linalg, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.compatible.single_client._ops import matmul as matmul
