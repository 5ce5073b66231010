"""Optimizers, learning-rate schedules, warm-ups, clipping and loss scaling: ``flow.optimizer``."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import grad_clipping as grad_clipping
from . import loss_scale as loss_scale
from . import warmup as warmup

if _TYPE_CHECKING:
    from .combined import CombinedOptimizer as CombinedOptimizer
    from .rules import LAMB as LAMB
    from .rules import LARS as LARS
    from .rules import SGD as SGD
    from .rules import SGDW as SGDW
    from .rules import Adam as Adam
    from .rules import AdamW as AdamW
    from .rules import LazyAdam as LazyAdam
    from .rules import RMSProp as RMSProp
    from .schedules import CosineScheduler as CosineScheduler
    from .schedules import CustomScheduler as CustomScheduler
    from .schedules import ExponentialScheduler as ExponentialScheduler
    from .schedules import InverseTimeScheduler as InverseTimeScheduler
    from .schedules import LinearCosineScheduler as LinearCosineScheduler
    from .schedules import NaturalExpScheduler as NaturalExpScheduler
    from .schedules import PiecewiseConstantScheduler as PiecewiseConstantScheduler
    from .schedules import PiecewiseScalingScheduler as PiecewiseScalingScheduler
    from .schedules import PolynomialSchduler as PolynomialSchduler
    from .schedules import PolynomialScheduler as PolynomialScheduler

_MODULES = {
    ".combined": ("CombinedOptimizer",),
    ".rules": (
        "LAMB",
        "LARS",
        "SGD",
        "SGDW",
        "Adam",
        "AdamW",
        "LazyAdam",
        "RMSProp",
    ),
    ".schedules": (
        "CosineScheduler",
        "CustomScheduler",
        "ExponentialScheduler",
        "InverseTimeScheduler",
        "LinearCosineScheduler",
        "NaturalExpScheduler",
        "PiecewiseConstantScheduler",
        "PiecewiseScalingScheduler",
        "PolynomialSchduler",
        "PolynomialScheduler",
    ),
}
_on_demand = {name: f"{module}:{name}" for module, names in _MODULES.items() for name in names}
