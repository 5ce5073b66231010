"""A job planned for a target: traced anew, placed on the target's devices, and compiled by its compiler."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

from .._base.dist import Placement, parse_placement
from .._base.jax import jax
from .._base.refuse import refuse
from .._reports.target_plan import TargetPlan
from .._reports.target_rows import target_plan
from .._targets.compiling import Compiler
from .._targets.meshes import TargetMeshes
from .._targets.process import WorkerProcess, check_installed
from .._targets.target import Target, as_target
from ..compiler.plan import Plan, plan
from ..compiler.storing import storages
from ..config import Resource
from ..errors import DeviceError, ModeError
from ..graph.graph import OP_INPUT, Graph, current_or_none
from ..graph.node import Blob, Node
from ..runtime.executable import Executable
from ..runtime.store import Cell, Store
from .building import trace
from .declaration import Declaration


def plan_for(declared: Declaration, target: str | Target, worker: WorkerProcess | None = None) -> TargetPlan:
    """The plan of a job for a target. The session, its devices, variables and seed have no part in it.

    ``worker`` is a process with the target's compiler that goes on afterwards; without one, a process is started where needed.
    """
    target = as_target(target)
    running = current_or_none()
    if running is not None:
        refuse(ModeError, f"job {declared.name!r} cannot be planned while the body of job {running.name!r} is running",
               hint="plan it outside of jobs")  # fmt: skip
    check_installed(target.platform)
    made, notes = _plan_of(declared, target)
    graph = made.graph
    store = Store(0, threading.RLock())
    store.meshes = meshes = TargetMeshes(target.platform)
    store.declare(list(graph.variables.values()), storages(graph, made.replicated), graph.train)
    optimizers = graph.objective.optimizers if graph.train else ()
    random_state, rates = Cell(None, _struct((3,), "uint32")), Cell(None, _struct((len(optimizers),), "float32"))
    with nullcontext(worker) if worker is not None else WorkerProcess(target) as compiling:
        compiler = Compiler(target, meshes, graph, compiling)
        executable = Executable(made, store, random_state, rates, compiler.compile)
        executable.compile_only(tuple(map(struct_of_feed, made.feeds)))
    return target_plan(executable, meshes, target, compiler.from_cache, notes)


def _plan_of(declared: Declaration, target: Target) -> tuple[Plan, tuple[str, ...]]:
    """The plan of the step on the target's devices, and what the report should say about its placements.

    A job written for CPUs, whose placements name "cpu" and never "gpu", means the target's devices by it. One that names both
    is refused: the target's compiler knows nothing of the host.
    """
    default = _default_placement(target)
    made = _planned(declared, target, default)
    on_cpu = [node for node in _placed(made) if node.scope.placement.tag == "cpu"]
    if not on_cpu:
        return made, ()
    if any(node.scope.placement.tag == "gpu" and node.scope.placement is not default for node in _placed(made)):
        _refuse(made.graph, on_cpu[0], f"and other ops on \"gpu\": a plan for {target} has the ops of its devices only",
                'place all of it on "gpu": there it means the target')  # fmt: skip
    named = 1 + max(device for node in on_cpu for _, device in node.scope.placement.devices)
    count = named if Resource.cpu_device_num is None else max(named, Resource.cpu_device_num)
    machines = 1 + max(machine for node in on_cpu for machine, _ in node.scope.placement.devices)
    made = _planned(declared, target, parse_placement("cpu", [f"{machine}:0-{count - 1}" for machine in range(machines)]))
    return made, ('placements on "cpu" are planned as devices of the target: the job names no "gpu"',)


def _planned(declared: Declaration, target: Target, default: Placement) -> Plan:
    """The plan of the step, with ``default`` where the job names no placement."""
    graph, fetches = trace(declared, default)
    made = plan(
        graph,
        fetches,
        native_ops=False,
        tensor_float_32=Resource.enable_tensor_float_32_compute,
        cudnn_attention=Resource.cudnn_attention,
        platform=target.platform,
    )
    if made.is_empty:
        refuse(ModeError, f"job {graph.name!r} has no step: all of it runs on the host", source=declared.source)
    _check_placements(made, target)
    return made


def _placed(made: Plan) -> list[Node]:
    """The nodes of the step, with the variables that they read."""
    nodes = made.compute
    read = {b.node: None for node in nodes for b in node.inputs if b.node.op is not OP_INPUT and not b.node.op.on_host}
    return list(dict.fromkeys([*nodes, *read]))


def struct_of_feed(blob: Blob) -> Any:
    """Shape and dtype of what is fed for a Blob."""
    shape = (blob.parallel_size, *blob.shape) if blob.is_mirrored else blob.shape
    return _struct(shape, blob.dtype.numpy_dtype)


def _struct(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def _default_placement(target: Target) -> Placement:
    """Of a job that names no placement: all devices, or as many of each machine as ``flow.config.gpu_device_num`` says."""
    count = target.devices_per_machine if Resource.gpu_device_num is None else Resource.gpu_device_num
    if count > target.devices_per_machine:
        refuse(DeviceError, f"flow.config.gpu_device_num({count}) asks for more devices than a machine of {target} has",
               hint=f"a target with {count} devices per machine, or the setting left out")  # fmt: skip
    return parse_placement("gpu", [f"{machine}:0-{count - 1}" for machine in range(target.machines)])


def _check_placements(made: Plan, target: Target) -> None:
    for node in _placed(made):
        placement = node.scope.placement
        machine, device = placement.devices[-1][0], max(d for _, d in placement.devices)
        if machine >= target.machines or device >= target.devices_per_machine:
            there = f"{target.devices_per_machine} devices, counted from 0"
            machines = "one machine" if target.machines == 1 else f"{target.machines} machines"
            _refuse(made.graph, node, f"and {target} has {machines} with {there}", "a larger target")


def _refuse(graph: Graph, node: Node, rule: str, hint: str) -> None:
    raise DeviceError(
        f"job {graph.name!r} places {node.op.name} {node.name!r} on {node.scope.placement}, {rule}\n"
        f"  your line  {node.source}   {node.source.text}\n  try        {hint}"
    )
