# Written by scripts/write_stubs.py: the names of oneflow.saved_model, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.saved_model import GraphBuilder as GraphBuilder
from oneflow.saved_model import ModelBuilder as ModelBuilder
from oneflow.saved_model import SignatureBuilder as SignatureBuilder
