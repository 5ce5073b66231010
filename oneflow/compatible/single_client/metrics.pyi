# Written by scripts/write_stubs.py: the names of oneflow.metrics, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.metrics import AUC as AUC
from oneflow.metrics import Accuracy as Accuracy
from oneflow.metrics import ConfusionMatrix as ConfusionMatrix
from oneflow.metrics import F1Score as F1Score
from oneflow.metrics import Function as Function
from oneflow.metrics import Mean as Mean
from oneflow.metrics import MeanAbsoluteError as MeanAbsoluteError
from oneflow.metrics import MeanSquaredError as MeanSquaredError
from oneflow.metrics import Metric as Metric
from oneflow.metrics import Perplexity as Perplexity
from oneflow.metrics import Precision as Precision
from oneflow.metrics import R2Score as R2Score
from oneflow.metrics import Recall as Recall
from oneflow.metrics import TopKAccuracy as TopKAccuracy
