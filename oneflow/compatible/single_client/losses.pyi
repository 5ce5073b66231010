# Written by scripts/write_stubs.py: the names of oneflow.losses, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.losses import add_loss as add_loss
