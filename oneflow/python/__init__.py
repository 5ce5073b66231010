"""Paths of OneFlow's implementation that programs import from: ``oneflow.python.ops.transpose_util`` and few others."""
