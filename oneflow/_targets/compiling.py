"""Compiles the functions of a job for a target: exported here, compiled in a process of their own, kept on disk."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from .._base.dist import Placement
from .._base.jax import jax, jax_export
from ..errors import CompileError
from ..graph.graph import Graph
from . import cache, topology
from .meshes import TargetMeshes
from .process import WorkerProcess
from .target import Target

_CALLS_PYTHON = ("pure_callback", "io_callback", "call_on_host")  # primitives
_PLATFORMS = {"gpu": "cuda", "tpu": "tpu"}


@dataclass(frozen=True, slots=True)
class TargetProgram:
    """A function compiled for a target.

    Attributes:
      text: the optimised program.
      memory: bytes per device: "argument", "output", "alias" (of arguments that outputs take the place of), "temp",
        "generated_code"; cost: the compiler's own estimates, where it has any.
      placement: where it runs.
      output_shardings: of its outputs, in order; outputs: their bytes per device; inputs: those of its inputs.
      donated: the positions of donated inputs.
    """

    text: str
    memory: Mapping[str, int]
    cost: Mapping[str, float]
    placement: Placement
    output_shardings: tuple[Any, ...]
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    donated: tuple[int, ...]

    def as_text(self) -> str:
        """The optimised program, as ``jax.stages.Compiled`` has it."""
        return self.text


@dataclass
class Compiler:
    """Compiles for one target. ``compile`` has the form that ``runtime.executable.Executable`` asks for."""

    target: Target
    meshes: TargetMeshes
    graph: Graph
    worker: WorkerProcess
    from_cache: int = 0
    _known: dict[str, Any] = field(default_factory=dict)

    def compile(self, traced: Any, shardings: Sequence[Any]) -> TargetProgram:
        """Compiles a ``jax.stages.Traced`` that was traced with shardings over this target's meshes."""
        infos = jax.tree.leaves(traced.out_info)
        known = [s for s in (*shardings, *(info.sharding for info in infos)) if s is not None]
        mesh = known[0].mesh
        placement = self.meshes.placement_of(mesh)
        self._refuse_callbacks(traced)
        try:
            exported = self._exported(traced)
        except (NotImplementedError, ValueError) as error:  # JAX's: an op that has no lowering there
            what = f"job {self.graph.name!r} cannot be compiled for {self.target}"
            raise CompileError(f"{what}: {str(error).splitlines()[0]}") from error
        given = jax.tree.leaves(traced.args_info)
        inputs = [self.meshes.sharding(placement, ()) if s is None else s for s in shardings]
        request = {
            "topology": topology.describe(self.target, placement.devices),
            "options": topology.options(self.target, len(placement.devices)),
            "axes": list(mesh.axis_names),
            "sizes": list(mesh.axis_sizes),
            "inputs": [_axes(s) for s in inputs],
            "outputs": [None if info.sharding is None else _axes(info.sharding) for info in infos],
            "donated": [i for i, info in enumerate(given) if info.donated],
        }
        program = bytes(exported.serialize())
        key = cache.key_of(self.target.platform, request, program)
        found = self._known.get(key) or cache.load(key)
        if found is None:
            found = self.worker.ask(request, program, self.graph.name)
            cache.save(key, found)
        else:
            self.from_cache += 1
        self._known[key] = found
        out = tuple(self._sharding(mesh, spec) for spec in found["outputs"])
        return TargetProgram(
            found["text"], found["memory"], found["cost"], placement, out,
            tuple(_bytes(info, sharding.shard_shape(info.shape)) for info, sharding in zip(infos, out, strict=True)),
            tuple(_bytes(a, s.shard_shape(a.shape)) for a, s in zip(exported.in_avals, inputs, strict=True)),
            tuple(request["donated"]),
        )  # fmt: skip

    def _exported(self, traced: Any) -> Any:
        """The program without the layouts of its inputs and outputs, which are those of the function around it."""
        with jax.enable_x64(True), _without_frames():
            checks = [jax_export.DisabledSafetyCheck.custom_call(name) for name in _custom_calls()]
            step = importlib.import_module("jax.extend.core").jaxpr_as_fun(traced.jaxpr)
            step.__name__ = step.__qualname__ = traced.fun_name
            structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in traced.jaxpr.in_avals]
            platforms = (_PLATFORMS[self.target.platform],)
            return jax_export.export(jax.jit(step), platforms=platforms, disabled_checks=checks)(*structs)

    def _sharding(self, mesh: Any, spec: Any) -> Any:
        if spec is None:
            raise CompileError(
                f"the compiler for {self.target} chose a layout of a value that job {self.graph.name!r} cannot pass on"
            )
        parts = [tuple(axes) if axes else None for axes in spec]
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*parts))

    def _refuse_callbacks(self, traced: Any) -> None:
        """Python code in the middle of a step cannot be compiled for a device that is not here."""
        name = _callback_in(traced.jaxpr)
        if name is None:
            return
        nodes = {node.name: node for node in self.graph.nodes}
        node = next((nodes[word] for word in reversed(name.split("/")) if word in nodes), None)
        where = "" if node is None else f"{node.op.name} {node.name!r} "
        line = "" if node is None else f"\n  your line  {node.source}   {node.source.text}"
        raise CompileError(
            f"job {self.graph.name!r} cannot be planned for {self.target}: {where}calls Python code during a step{line}\n"
            "  try        an op of jax.numpy (flow.custom_op) in its place, or leave it out of the job that is planned"
        )


@contextmanager
def _without_frames() -> Iterator[None]:
    """Programs lowered inside do not say from which lines they were called, so that the same program is the same bytes."""
    config: Any = jax.config
    before = config.jax_traceback_in_locations_limit
    config.update("jax_traceback_in_locations_limit", 0)
    try:
        yield
    finally:
        config.update("jax_traceback_in_locations_limit", before)


def _custom_calls() -> Sequence[str]:
    """Kernels that JAX lowers to and does not promise to keep: the program is compiled at once, by the same version."""
    attention = [f"__cudnn$fmha{kind}{of}" for kind in ("Softmax", "ScaleBiasSoftmax") for of in ("", "Backward")]
    return ("cu_threefry2x32_ffi", "Sharding", "TopK", "ApproxTopK", *attention)


def _callback_in(jaxpr: Any, name: str = "") -> str | None:
    """The scopes of the first equation that calls Python; None where there is none."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        scope = f"{name}/{equation.source_info.name_stack}"
        if equation.primitive.name in _CALLS_PYTHON:
            return scope
        for value in equation.params.values():
            for inner in value if isinstance(value, (list, tuple)) else (value,):
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    found = _callback_in(inner, scope)
                    if found is not None:
                        return found
    return None


def _axes(sharding: Any) -> list[list[str]]:
    """The mesh axes that split each axis of an array."""
    return [[] if names is None else [names] if isinstance(names, str) else list(names) for names in sharding.spec]


def _bytes(aval: Any, shape: Sequence[int]) -> int:
    return prod(shape) * np.dtype(aval.dtype).itemsize
