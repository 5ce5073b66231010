"""Meshes: the JAX devices behind placements, arranged."""

from __future__ import annotations

import functools
from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from .._base.dist import Placement
from .._base.jax import jax
from ..compiler.layout import PartialSpec, mesh_axes, partition
from . import devices, processes, transfer


class DeviceMeshes:
    """The devices of one session's placements. They must not outlive JAX's backends: a new session has new ones."""

    def __init__(self) -> None:
        self._meshes: dict[Placement, Any] = {}
        self._shardings: dict[tuple[Placement, PartialSpec], Any] = {}

    @property
    def are_used(self) -> bool:
        """Whether devices have been looked up, so that their number must not change any more."""
        return bool(self._meshes)

    def devices(self, placement: Placement) -> tuple[Any, ...]:
        """The JAX devices of a placement, in device order."""
        return tuple(self._mesh(placement).devices.flat)

    def devices_of(self, sharding: Any) -> Set[Any]:
        """The JAX devices of a sharding."""
        found: Set[Any] = sharding.device_set
        return found

    def place(self, placement: Placement) -> tuple[Any, ...]:
        """The key of placements that one function can compute on: their devices, in device order, and the arrangement."""
        return (*self.devices(placement), placement.hierarchy)

    def is_default(self, placement: Placement) -> bool:
        """Whether JAX computes there by default."""
        found = self.devices(placement)
        return processes.count() == 1 and len(found) == 1 and found[0] == jax.devices()[0]

    def move(self, arrays: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
        """The arrays, each on other devices or in another layout."""
        if processes.count() == 1:
            return jax.device_put(list(arrays), list(shardings))
        each = zip(arrays, shardings, strict=True)
        return [jax.tree.map(functools.partial(transfer.move, sharding=sharding), array) for array, sharding in each]

    def sharding(self, placement: Placement, spec: PartialSpec) -> Any:
        """A NamedSharding; axes of an array beyond ``spec`` are not split."""
        made = self._shardings.get((placement, spec))
        if made is None:
            made = self._shardings[placement, spec] = jax.sharding.NamedSharding(self._mesh(placement), partition(spec))
        return made

    def _mesh(self, placement: Placement) -> Any:
        mesh = self._meshes.get(placement)
        if mesh is None:
            found = devices.of(placement)
            axes = mesh_axes(placement)
            mesh = jax.sharding.Mesh(np.array(found).reshape(tuple(axes.values())), tuple(axes))
            self._meshes[placement] = mesh
        return mesh
