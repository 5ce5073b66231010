# Written by scripts/write_stubs.py: the names of oneflow.summary, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.summary import Graph as Graph
from oneflow.summary import HParam as HParam
from oneflow.summary import Hparam as Hparam
from oneflow.summary import IntegerRange as IntegerRange
from oneflow.summary import Metric as Metric
from oneflow.summary import Projector as Projector
from oneflow.summary import RealRange as RealRange
from oneflow.summary import ValueSet as ValueSet
from oneflow.summary import create_summary_writer as create_summary_writer
from oneflow.summary import flush_summary_writer as flush_summary_writer
from oneflow.summary import histogram as histogram
from oneflow.summary import hparams as hparams
from oneflow.summary import image as image
from oneflow.summary import pb as pb
from oneflow.summary import scalar as scalar
from oneflow.summary import text as text
