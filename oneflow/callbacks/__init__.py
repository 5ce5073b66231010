"""``flow.callbacks``: hooks that follow a training's progress, and may change its course."""

import sys as _sys

from .._base.public import install as _install_public_modules
from .base import Callback as Callback
from .base import LambdaCallback as LambdaCallback
from .checkpoint import ModelCheckpoint as ModelCheckpoint
from .early_stopping import EarlyStopping as EarlyStopping
from .early_stopping import TerminateOnNaN as TerminateOnNaN
from .learning_rate import LearningRateMonitor as LearningRateMonitor
from .learning_rate import ReduceLROnPlateau as ReduceLROnPlateau
from .preemption import Preemption as Preemption
from .progress import TQDMProgressBar as TQDMProgressBar

__all__ = [
    "Callback", "EarlyStopping", "LambdaCallback", "LearningRateMonitor", "ModelCheckpoint", "Preemption",
    "ReduceLROnPlateau", "TQDMProgressBar", "TerminateOnNaN",
]  # fmt: skip

_install_public_modules([_sys.modules[__name__]])
