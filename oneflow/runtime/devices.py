"""The devices of this process: real GPUs or TPUs where there are as many as were asked for, else virtual CPU devices."""

from __future__ import annotations

import gc
import logging
from typing import Any

from .._base.dist import Placement
from .._base.jax import jax
from .._base.memory import has_plugin
from .._base.refuse import refuse
from ..config import Resource
from ..errors import DeviceError
from ..graph.graph import OP_INPUT, Graph
from ..graph.node import Node
from . import processes
from .process import process

_log = logging.getLogger("oneflow")
_MOST_SHOWN = 4


def prepare() -> None:
    """Makes as many CPU devices as the settings ask for. A session does it when it starts; does nothing the second time.

    JAX fixes their number when it is first used, so where it has been used, it is restarted.

    Raises:
      DeviceError: JAX has begun with fewer, and other code than ours holds arrays on them.
    """
    processes.start()
    needed = _asked_for()
    # the number counts from JAX's first use on, whether GPUs are found then or not
    if needed == 1 or needed <= _virtual_devices():
        return
    try:
        jax.config.update("jax_num_cpu_devices", needed)
    except RuntimeError:
        if len(jax.local_devices(backend="cpu")) < needed:
            _begin_anew(needed)


def meet() -> None:
    """Starts XLA where there are several processes: each waits in it for all others, deaf to what becomes of them.

    Called where every process of the run comes by, those whose jobs cannot be built included.
    """
    if processes.count() > 1:
        jax.devices()


def _asked_for() -> int:
    cpus = process.named_cpu_devices if Resource.cpu_device_num is None else Resource.cpu_device_num or 1
    return max(Resource.gpu_device_num or 1, cpus)


def _virtual_devices() -> int:
    config: Any = jax.config  # its settings are not typed
    return config.jax_num_cpu_devices


def _begin_anew(count: int) -> None:
    from jax.extend import backend

    if processes.count() > 1:
        refuse(DeviceError, f"{count} devices were asked for, JAX runs with {len(jax.local_devices(backend='cpu'))} "
               "in each process, and in a run of several processes the number cannot change",
               hint="set the largest number before anything uses JAX")  # fmt: skip

    held = _held()
    if held:
        shown, more = ", ".join(held[:_MOST_SHOWN]), f" and {len(held) - _MOST_SHOWN} more" if len(held) > _MOST_SHOWN else ""
        refuse(
            DeviceError,
            f"{count} devices were asked for, JAX runs with {len(jax.local_devices(backend='cpu'))} in this process, "
            f"and the number cannot change while arrays are on them",
            found=[("held", f"{shown}{more}")],
            hint="set the number of devices before anything uses JAX; or let go of jax arrays and of results that "
            "were not fetched, then flow.clear_default_session()",
        )
    backend.clear_backends()
    jax.config.update("jax_num_cpu_devices", count)


def _held() -> list[str]:
    jax.clear_caches()
    gc.collect()  # arrays that only cycles hold
    return [f"{array.dtype}{list(array.shape)}" for array in jax.live_arrays("cpu")]


def has_gpu() -> bool:
    """Whether JAX has a GPU. Initialises JAX's backends, unless there can be none."""
    prepare()
    return has_plugin() and jax.default_backend() in ("gpu", "cuda", "rocm")


def has_accelerator() -> bool:
    """Whether JAX has what "gpu" placements mean: GPUs or TPUs. Initialises JAX's backends, unless there can be none."""
    return has_gpu() or (has_plugin() and jax.default_backend() == "tpu")


def gpus_are_real() -> bool:
    """Whether "gpu" placements run on GPUs or TPUs: there are as many as ``flow.config.gpu_device_num`` asks for."""
    return has_accelerator() and len(jax.local_devices()) >= (Resource.gpu_device_num or 1)


def platform_of(graph: Graph) -> str:
    """The platform of the devices that a job computes on: "cpu", "gpu" or "tpu". The accelerator's, where it uses both."""
    computing = [node for node in graph.nodes if not (node.op is OP_INPUT or node.op.on_host)]
    tags = {node.scope.placement.tag for node in computing} or {graph.scope.placement.tag}
    return jax.default_backend() if "gpu" in tags and gpus_are_real() else "cpu"


def capacity(tag: str) -> int:
    """How many devices of each machine placements may name. Where CPU devices stand in, both tags mean the same ones."""
    if tag == "gpu" and gpus_are_real():
        return Resource.gpu_device_num or 1
    return _asked_for()


def local_devices(tag: str, count: int | None = None) -> list[Any]:
    """The first ``count`` JAX devices of this process that ``tag`` ("gpu" or "cpu") means; all there are without a count.

    Raises:
      DeviceError: the settings made fewer.
    """
    most = capacity(tag)
    count = most if count is None else count
    if count > most:
        raise DeviceError(f"{count} {tag} devices were asked for, and {_limit(tag, most)}; {_way_out(tag, count)}")
    return (jax.local_devices() if tag == "gpu" and gpus_are_real() else jax.local_devices(backend="cpu"))[:count]


def of(placement: Placement) -> list[Any]:
    """The JAX devices of a placement that ``check_placements`` let pass, in device order."""
    if processes.count() == 1:
        found = local_devices(placement.tag)
        return [found[device] for _, device in placement.devices]
    backend = None if placement.tag == "gpu" and gpus_are_real() else "cpu"
    of_process: dict[int, list[Any]] = {}
    for device in jax.devices(backend):
        of_process.setdefault(device.process_index, []).append(device)
    return [of_process[machine][device] for machine, device in placement.devices]


def _limit(tag: str, most: int) -> str:
    return f"the session has {most} on each machine" if most > 1 else f"the session has one {tag} device on each machine"


def _way_out(tag: str, count: int) -> str:
    return f"flow.config.{tag}_device_num({count}) before the first call"


def check_placements(graph: Graph, *, strict: bool, may_grow: bool = False) -> None:
    """Refuses placements on devices that are not there; notices, once per process, that the CPU stands in for GPUs.

    Args:
      strict: the CPU must not stand in.
      may_grow: where the user has set no number of CPU devices, make as many as the job names: programs for OneFlow, which had
        one per core, name them without asking.
    Raises:
      DeviceError: a placement names a device or machine beyond those of the session; or ``strict`` and too few GPUs.
    """
    if may_grow:
        _grow(graph)
    for node in graph.nodes:
        _check_range(graph, node)
        if node.scope.placement.tag == "gpu" and not gpus_are_real():
            _stand_in(graph, node, strict)


def _grow(graph: Graph) -> None:
    if Resource.cpu_device_num is not None or processes.count() > 1:
        return
    on_devices = [n.scope.placement for n in graph.nodes if n.scope.placement.tag == "cpu" and not n.op.on_host]
    named = max((device + 1 for placement in on_devices for machine, device in placement.devices if machine == 0), default=1)
    if named > _asked_for():
        before, process.named_cpu_devices = process.named_cpu_devices, named
        try:
            prepare()
        except DeviceError:
            process.named_cpu_devices = before
            raise


def _check_range(graph: Graph, node: Node) -> None:
    placement = node.scope.placement
    machine = placement.devices[-1][0]
    device = max(d for _, d in placement.devices)
    most = capacity(placement.tag)
    count = processes.count()
    if machine >= count:
        there = "one machine, 0" if count == 1 else f"{count} machines, 0 to {count - 1}"
        rule = f"and the run has {there}; it has no machine {machine}"
        hint = "flow.env.machine([...]) names more of them, python -m oneflow.launch starts several processes on one"
    elif device >= most and not (node.op.on_host and placement.tag == "cpu"):  # what runs on the host needs no device
        rule = f"and {_limit(placement.tag, most)}, counted from 0"
        hint = _way_out(placement.tag, device + 1)
    else:
        return
    raise DeviceError(
        f"job {graph.name!r} places {node.op.name} {node.name!r} on {placement}, {rule}\n"
        f"  your line  {node.source}   {node.source.text}\n"
        f"  try        {hint}"
    )


def _stand_in(graph: Graph, node: Node, strict: bool) -> None:
    asked, found = Resource.gpu_device_num or 1, len(jax.local_devices()) if has_accelerator() else 0
    if strict:
        raise DeviceError(
            f"job {graph.name!r} places {node.op.name} {node.name!r} on a GPU, and JAX has "
            f"{f'{found} of {asked}' if found else 'none'} here\n"
            f"  your line  {node.source}   {node.source.text}\n"
            f"  try        install JAX for your GPU, or leave the strict mode off to let the CPU stand in"
        )
    if not process.has_said_that_cpus_stand_in:
        process.has_said_that_cpus_stand_in = True
        if not processes.is_first():
            return
        there = f"{found} of {asked} GPUs" if found else "no GPU"
        stands_in = "run on the CPU" if asked == 1 else f"run on {asked} virtual CPU devices"
        _log.warning('oneflow: JAX has %s here; "gpu" placements %s', there, stands_in)


def put(array: Any) -> Any:
    """A device array, or a list of them for a list. It may keep the memory of ``array``, which nobody else may have."""
    return jax.device_put(array)
