# Written by scripts/write_stubs.py: the names of oneflow.loggers, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.loggers import CSVLogger as CSVLogger
from oneflow.loggers import FileLogger as FileLogger
from oneflow.loggers import Logger as Logger
from oneflow.loggers import MLFlowLogger as MLFlowLogger
from oneflow.loggers import TensorBoardLogger as TensorBoardLogger
from oneflow.loggers import TrackioLogger as TrackioLogger
from oneflow.loggers import WandbLogger as WandbLogger
