"""Meshes of a target: placements without JAX devices, as abstract meshes."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from .._base.dist import Placement
from .._base.jax import jax
from ..compiler.layout import PartialSpec, mesh_axes, partition
from ..runtime.mesh import DeviceMeshes

Device = tuple[int, int]  # machine, device


@dataclass(frozen=True, slots=True)
class TargetDevice:
    """A device of a target, with the attribute of a JAX device that the runtime reads."""

    machine: int
    index: int
    platform: str


class TargetMeshes(DeviceMeshes):
    """The meshes of one planned job.

    Equal abstract meshes are one object to JAX, so that the names of axes tell places apart: they end with the place's number.
    """

    def __init__(self, platform: str) -> None:
        super().__init__()
        self._platform = platform
        self._numbers: dict[Any, int] = {}
        self._placements: dict[Any, Placement] = {}  # by abstract mesh

    def devices(self, placement: Placement) -> tuple[Any, ...]:
        return tuple(TargetDevice(machine, device, self._platform) for machine, device in placement.devices)

    def is_default(self, placement: Placement) -> bool:
        return False

    def move(self, arrays: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
        """The arrays: nothing is moved, because nothing is run."""
        return list(arrays)

    def devices_of(self, sharding: Any) -> Set[Any]:
        return set(self.placement_of(sharding.mesh).devices)

    def placement_of(self, mesh: Any) -> Placement:
        """The placement that a mesh was made for."""
        return self._placements[mesh]

    def sharding(self, placement: Placement, spec: PartialSpec) -> Any:
        mesh = self._mesh(placement)
        names = dict(zip(mesh_axes(placement), mesh.axis_names, strict=True))
        renamed = tuple(axes if axes is None else tuple(names[n] for n in axes) for axes in spec)
        return jax.sharding.NamedSharding(mesh, partition(renamed))

    def _mesh(self, placement: Placement) -> Any:
        number = self._numbers.setdefault((placement.devices, placement.hierarchy), len(self._numbers))
        axes = mesh_axes(placement)
        auto = (jax.sharding.AxisType.Auto,) * len(axes)  # JAX 0.12 takes Explicit otherwise
        mesh = jax.sharding.AbstractMesh(tuple(axes.values()), tuple(f"{name}_p{number}" for name in axes), axis_types=auto)
        self._placements.setdefault(mesh, placement)
        return mesh
