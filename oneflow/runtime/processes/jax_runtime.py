"""How JAX joins a run of several processes: its coordinator, its collectives between CPUs, and its end."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from ..._base import jax_versions
from ..._base.jax import jax
from ...config._environment import Environment
from ...errors import ProcessError
from .rendezvous import Place

_HEARTBEAT_SECONDS = 60  # after which JAX aborts a process: the second line, behind the watch
_SHUTDOWN_SECONDS = 30


def refuse_if_initialized() -> None:
    """Raises ProcessError where the program has made JAX join other processes by itself: nothing would watch them."""
    if "jax" in sys.modules and jax.distributed.is_initialized() and jax.process_count() > 1:
        raise ProcessError(
            f"jax.distributed.initialize has joined {jax.process_count()} processes already, which this library does not know\n"
            f"  try        leave that call out, and set ONEFLOW_COORDINATOR_ADDRESS=host:port, ONEFLOW_NUM_PROCESSES and "
            f"ONEFLOW_PROCESS_ID in the environment; flow.env.init() then does it"
        )


def initialize(place: Place, coordinator: str, bind_to: str | None, interface: str) -> None:
    """Makes JAX join the others.

    Args:
      place: which process this is.
      coordinator: where JAX's coordinator is, as this process reaches it.
      bind_to: what it listens at, in the first process.
      interface: the address of this process at which Gloo listens; where it is empty, Gloo chooses.
    Raises:
      ProcessError: JAX has been used before, or it cannot reach the coordinator.
    """
    config: Any = jax.config  # its settings are not typed
    config.update("jax_cpu_collectives_implementation", "gloo")
    config.update("jax_enable_preemption_service", False)  # it keeps SIGTERM from ending the process
    config.update("jax_enable_recoverability", True)  # a process whose program has ended may leave before the others
    first = place.rank == 0
    try:
        with _without_warnings() if first else contextlib.nullcontext():  # about recoverability
            jax.distributed.initialize(
                coordinator, place.count, place.rank, _own_gpus(place), cluster_detection_method="deactivate",
                initialization_timeout=int(Environment.start_timeout), heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
                shutdown_timeout_seconds=_SHUTDOWN_SECONDS, coordinator_bind_address=bind_to,
            )  # fmt: skip
    except RuntimeError as error:
        raise ProcessError(
            f"JAX cannot begin a run of {place.count} processes: {str(error).splitlines()[0]}\n"
            f"  try        call flow.env.init() before anything else uses JAX"
        ) from error
    if interface:
        jax_versions.bind_gloo(interface)


def _own_gpus(place: Place) -> list[int] | None:
    """Of a machine with several processes, each has its own."""
    from ...config import Resource

    each = Resource.gpu_device_num or 1
    found = any(os.path.exists(f"/dev/{name}") for name in ("nvidia0", "kfd"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = visible is not None and len(visible.split(",")) <= place.local_rank * each  # the cluster has chosen already
    if place.local_count == 1 or not found or chosen:
        return None
    return [place.local_rank * each + i for i in range(each)]


@contextlib.contextmanager
def redirected(descriptor: int, target: int) -> Iterator[None]:
    """Inside, what C++ code writes to one file descriptor goes to another."""
    sys.stdout.flush()
    kept = os.dup(descriptor)
    os.dup2(target, descriptor)
    try:
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Inside, C++ code writes no warnings (nor anything else) to standard error."""
    with open(os.devnull, "wb") as nowhere, redirected(2, nowhere.fileno()):
        yield
