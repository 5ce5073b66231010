"""What the server of child processes imports once. Nothing here may start a thread."""

import jax
import numpy

import oneflow
import oneflow.typing

from . import jobs

__all__ = ["jax", "jobs", "numpy", "oneflow"]
