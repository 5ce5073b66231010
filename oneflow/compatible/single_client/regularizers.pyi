# Written by scripts/write_stubs.py: the names of oneflow.regularizers, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.regularizers import L1L2 as L1L2
from oneflow.regularizers import l1 as l1
from oneflow.regularizers import l1_l2 as l1_l2
from oneflow.regularizers import l2 as l2
