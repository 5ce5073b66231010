"""``flow.metrics``: numbers over all rows of a data set, exact whatever the batches are."""

import sys as _sys

from .._base.public import install as _install_public_modules
from .base import Function as Function
from .base import Mean as Mean
from .base import Metric as Metric
from .base import Perplexity as Perplexity
from .classification import AUC as AUC
from .classification import Accuracy as Accuracy
from .classification import ConfusionMatrix as ConfusionMatrix
from .classification import F1Score as F1Score
from .classification import Precision as Precision
from .classification import Recall as Recall
from .classification import TopKAccuracy as TopKAccuracy
from .regression import MeanAbsoluteError as MeanAbsoluteError
from .regression import MeanSquaredError as MeanSquaredError
from .regression import R2Score as R2Score

__all__ = [
    "AUC", "Accuracy", "ConfusionMatrix", "F1Score", "Function", "Mean", "MeanAbsoluteError", "MeanSquaredError", "Metric",
    "Perplexity", "Precision", "R2Score", "Recall", "TopKAccuracy",
]  # fmt: skip

_install_public_modules([_sys.modules[__name__]])
