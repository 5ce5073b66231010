# Written by scripts/write_stubs.py: the names of oneflow.callbacks, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.callbacks import Callback as Callback
from oneflow.callbacks import EarlyStopping as EarlyStopping
from oneflow.callbacks import LambdaCallback as LambdaCallback
from oneflow.callbacks import LearningRateMonitor as LearningRateMonitor
from oneflow.callbacks import ModelCheckpoint as ModelCheckpoint
from oneflow.callbacks import Preemption as Preemption
from oneflow.callbacks import ReduceLROnPlateau as ReduceLROnPlateau
from oneflow.callbacks import TQDMProgressBar as TQDMProgressBar
from oneflow.callbacks import TerminateOnNaN as TerminateOnNaN
