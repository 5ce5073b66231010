# Written by scripts/write_stubs.py: the names of oneflow.export, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.export import ExportedFunction as ExportedFunction
from oneflow.export import load as load
from oneflow.export import onnx as onnx
from oneflow.export import stablehlo as stablehlo
