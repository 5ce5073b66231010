# Written by scripts/write_stubs.py: the names of oneflow.keras, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.keras import activations as activations
from oneflow.keras import maths as maths
