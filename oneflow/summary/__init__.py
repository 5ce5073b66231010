"""``flow.summary``: event files for TensorBoard, written while jobs run. Needs ``pip install 'oneflow-jax[tensorboard]'``."""

import sys as _sys

from .._base.public import install as _install_public_modules
from ._graph import Graph as Graph
from ._hparams import Hparam as Hparam
from ._hparams import IntegerRange as IntegerRange
from ._hparams import Metric as Metric
from ._hparams import RealRange as RealRange
from ._hparams import ValueSet as ValueSet
from ._hparams import hparams as hparams
from ._hparams import text as text
from ._ops import create_summary_writer as create_summary_writer
from ._ops import flush_summary_writer as flush_summary_writer
from ._ops import histogram as histogram
from ._ops import image as image
from ._ops import pb as pb
from ._ops import scalar as scalar
from ._projector import Projector as Projector

HParam = Hparam  # its own name; the shorter spelling was a slip of OneFlow's

__all__ = [
    "Graph", "HParam", "Hparam", "IntegerRange", "Metric", "Projector", "RealRange", "ValueSet", "create_summary_writer",
    "flush_summary_writer", "histogram", "hparams", "image", "pb", "scalar", "text",
]  # fmt: skip

_install_public_modules([_sys.modules[__name__]])
