"""``flow.loggers``: where the numbers of a training go."""

from .base import FileLogger as FileLogger
from .base import Logger as Logger
from .csv import CSVLogger as CSVLogger
from .services import MLFlowLogger as MLFlowLogger
from .services import TrackioLogger as TrackioLogger
from .services import WandbLogger as WandbLogger
from .tensorboard import TensorBoardLogger as TensorBoardLogger

__all__ = ["CSVLogger", "FileLogger", "Logger", "MLFlowLogger", "TensorBoardLogger", "TrackioLogger", "WandbLogger"]


def __dir__() -> list[str]:
    return sorted(["__doc__", "__file__", "__name__", "__path__", *__all__])
