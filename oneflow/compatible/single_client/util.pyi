# Written by scripts/write_stubs.py: the names of oneflow.util, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.util import is_deprecated as is_deprecated
from oneflow.util import unique_str as unique_str
