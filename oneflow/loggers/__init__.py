"""``flow.loggers``: where the numbers of a training go."""

import sys as _sys

from .._base.public import install as _install_public_modules
from .base import FileLogger as FileLogger
from .base import Logger as Logger
from .csv import CSVLogger as CSVLogger
from .services import MLFlowLogger as MLFlowLogger
from .services import TrackioLogger as TrackioLogger
from .services import WandbLogger as WandbLogger
from .tensorboard import TensorBoardLogger as TensorBoardLogger

__all__ = ["CSVLogger", "FileLogger", "Logger", "MLFlowLogger", "TensorBoardLogger", "TrackioLogger", "WandbLogger"]

_install_public_modules([_sys.modules[__name__]])
