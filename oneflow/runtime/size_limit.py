"""Refuses jobs with arrays of so many elements that XLA's CPU compiler would end the process."""

from __future__ import annotations

import math

from .._base import jax_versions
from ..compiler.plan import Plan
from ..errors import CompileError
from ..graph.node import Blob


def check(plan: Plan) -> None:
    """Raises CompileError where a value of a plan for CPUs has too many elements for the compiler (``most_elements_on_cpu``)."""
    most = jax_versions.most_elements_on_cpu()
    if most is None:
        return
    for blob in (blob for node in plan.order for blob in node.outputs if _elements_per_device(blob) >= most):
        node = blob.node
        raise CompileError(
            f"{node.op.name} {node.name!r} in job {plan.graph.name!r} has a result of {math.prod(blob.shape):,} elements: "
            f"the CPU compiler of this jaxlib ends the process for {most:,} elements and more\n"
            f"  result     {blob.describe()}\n"
            f"  your line  {node.source}   {node.source.text}\n"
            f"  try        smaller shapes; jaxlib 0.10 has no such limit"
        )


def _elements_per_device(blob: Blob) -> int:
    """How many elements a device computes, with values of the consistent view taken as split over all devices."""
    devices = 1 if blob.is_mirrored else blob.node.scope.placement.parallel_num
    return math.prod(blob.shape) // devices
