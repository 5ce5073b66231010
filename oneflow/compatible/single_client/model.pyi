# Written by scripts/write_stubs.py: the names of oneflow.model, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.model import Callback as Callback
from oneflow.model import CheckpointConfig as CheckpointConfig
from oneflow.model import DataModule as DataModule
from oneflow.model import Model as Model
from oneflow.model import NumpyDataModule as NumpyDataModule
from oneflow.model import TrainingConfig as TrainingConfig
from oneflow.model import ValidationConfig as ValidationConfig
