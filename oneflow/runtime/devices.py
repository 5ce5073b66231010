"""Which device a session computes on."""

from __future__ import annotations

import logging
from typing import Any

from .._jax import jax
from ..errors import DeviceError, ModeError
from ..graph.graph import Graph

_log = logging.getLogger("oneflow")
_noticed = False


def has_gpu() -> bool:
    """Whether JAX has a GPU. Initialises JAX's backends."""
    return jax.default_backend() in ("gpu", "cuda", "rocm")


def check_placements(graph: Graph, *, strict: bool) -> None:
    """Notices, once a process, that the CPU stands in for GPUs.

    Raises:
      DeviceError: ``strict`` and there is no GPU.
      ModeError: a placement of several devices.
    """
    global _noticed
    for node in graph.nodes:
        placement = node.scope.placement
        if placement.devices != ((0, 0),):
            what = "several devices are" if placement.parallel_num > 1 else "other devices than 0:0 are"
            raise ModeError(
                f"job {graph.name!r} places {node.op.name} {node.name!r} on {placement}: {what} not supported yet\n"
                f"  your line  {node.source}   {node.source.text}\n"
                f'  try        one device: flow.scope.placement("{placement.tag}", "0:0")'
            )
        if placement.tag == "gpu" and not has_gpu():
            if strict:
                raise DeviceError(
                    f"job {graph.name!r} places {node.op.name} {node.name!r} on a GPU, and JAX has none here\n"
                    f"  your line  {node.source}   {node.source.text}\n"
                    f"  try        install JAX for your GPU, or leave the strict mode off to let the CPU stand in"
                )
            if not _noticed:
                _noticed = True
                _log.warning('oneflow: JAX has no GPU here; "gpu" placements run on the CPU')


def put(array: Any) -> Any:
    """A device array. It may keep the memory of ``array``, which nobody else may have."""
    return jax.device_put(array)
