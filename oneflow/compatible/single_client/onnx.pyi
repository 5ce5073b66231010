# Written by scripts/write_stubs.py: the names of oneflow.onnx, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.onnx import OnnxModel as OnnxModel
from oneflow.onnx import export as export
from oneflow.onnx import load as load
