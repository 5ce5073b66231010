# Written by scripts/write_stubs.py: the names of oneflow.optimizer, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.optimizer.rules_v06 import Adam as Adam
from oneflow.optimizer.rules_v06 import AdamW as AdamW
from oneflow.optimizer import CombinedOptimizer as CombinedOptimizer
from oneflow.optimizer import CosineScheduler as CosineScheduler
from oneflow.optimizer import CustomScheduler as CustomScheduler
from oneflow.optimizer import ExponentialScheduler as ExponentialScheduler
from oneflow.optimizer import InverseTimeScheduler as InverseTimeScheduler
from oneflow.optimizer.rules_v06 import LAMB as LAMB
from oneflow.optimizer.rules_v06 import LARS as LARS
from oneflow.optimizer.rules_v06 import LazyAdam as LazyAdam
from oneflow.optimizer import LinearCosineScheduler as LinearCosineScheduler
from oneflow.optimizer import NaturalExpScheduler as NaturalExpScheduler
from oneflow.optimizer import PiecewiseConstantScheduler as PiecewiseConstantScheduler
from oneflow.optimizer import PiecewiseScalingScheduler as PiecewiseScalingScheduler
from oneflow.optimizer import PolynomialSchduler as PolynomialSchduler
from oneflow.optimizer import PolynomialScheduler as PolynomialScheduler
from oneflow.optimizer.rules_v06 import RMSProp as RMSProp
from oneflow.optimizer.rules_v06 import SGD as SGD
from oneflow.optimizer.rules_v06 import SGDW as SGDW
from oneflow.optimizer import grad_clipping as grad_clipping
from oneflow.optimizer import loss_scale as loss_scale
from oneflow.optimizer import warmup as warmup
