# Written by scripts/write_stubs.py: the names of oneflow.serving, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.serving import InferenceSession as InferenceSession
from oneflow.serving import ModelVersionPolicy as ModelVersionPolicy
from oneflow.serving import Server as Server
from oneflow.serving import SessionOption as SessionOption
