"""``flow.model``: a small training loop over job functions."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from ._model import Model as Model
    from ._parts import Callback as Callback
    from ._parts import CheckpointConfig as CheckpointConfig
    from ._parts import DataModule as DataModule
    from ._parts import NumpyDataModule as NumpyDataModule
    from ._parts import TrainingConfig as TrainingConfig
    from ._parts import ValidationConfig as ValidationConfig

_MODULES = {
    "._model": ("Model",),
    "._parts": ("Callback", "CheckpointConfig", "DataModule", "NumpyDataModule", "TrainingConfig", "ValidationConfig"),
}
_on_demand = {name: f"{module}:{name}" for module, names in _MODULES.items() for name in names}
