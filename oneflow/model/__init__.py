"""``flow.model``: a small training loop over job functions."""

from ._model import Model as Model
from ._parts import Callback as Callback
from ._parts import CheckpointConfig as CheckpointConfig
from ._parts import DataModule as DataModule
from ._parts import NumpyDataModule as NumpyDataModule
from ._parts import TrainingConfig as TrainingConfig
from ._parts import ValidationConfig as ValidationConfig
