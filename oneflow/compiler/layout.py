"""Layouts of logical tensors on the devices of a placement, and the storage of variables there."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Protocol

from .._base.dist import Distribute, Placement
from .._base.jax import jax, jnp, lax

_SHORT = 16
Spec = tuple[tuple[str, ...], ...]  # for each axis of an array: the mesh axes that split it
PartialSpec = tuple[tuple[str, ...] | None, ...]  # None: XLA chooses


def partition(spec: PartialSpec) -> Any:
    """JAX's PartitionSpec."""
    free = jax.sharding.PartitionSpec.UNCONSTRAINED
    return jax.sharding.PartitionSpec(*(free if names is None else names or None for names in spec))


class Meshes(Protocol):
    """The devices of placements, as the runtime provides them."""

    def sharding(self, placement: Placement, spec: PartialSpec) -> Any:
        """A ``jax.sharding.Sharding`` over the placement's devices."""
        ...

    def move(self, arrays: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
        """Copies of the arrays with these shardings."""
        ...

    def devices(self, placement: Placement) -> tuple[Any, ...]:
        """The JAX devices, in device order."""
        ...

    def devices_of(self, sharding: Any) -> Set[Any]:
        """The devices of a sharding."""
        ...

    def place(self, placement: Placement) -> tuple[Any, ...]:
        """The devices of a placement and their arrangement: one function can compute on placements that share them."""
        ...


@lru_cache(maxsize=256)
def mesh_of(hierarchy: tuple[int, ...]) -> tuple[dict[str, int], ...]:
    """The axes of the mesh of a placement, names and sizes, for each axis of its hierarchy.

    Sizes are prime: where an array that is split is reshaped, XLA may leave an axis of the result split over a part of the
    devices, which JAX can say only if the mesh has such an axis.
    """
    return tuple(
        {f"d{i}_{j}" if len(factors) > 1 else f"d{i}": p for j, p in enumerate(factors)}
        for i, factors in enumerate(map(_prime_factors, hierarchy))
    )


def _prime_factors(n: int) -> list[int]:
    """In ascending order; 1 of 1."""
    found, divisor = [], 2
    while n > 1 and divisor * divisor <= n:
        if n % divisor:
            divisor += 1
        else:
            found.append(divisor)
            n //= divisor
    return [*found, n] if n > 1 or not found else found


def mesh_axes(placement: Placement) -> dict[str, int]:
    """The names of the mesh's axes, and their sizes."""
    return {name: size for axes in mesh_of(placement.hierarchy) for name, size in axes.items()}


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout: ``splits`` has, for each axis of the placement's hierarchy, the axis of the tensor that it splits, or None."""

    placement: Placement
    splits: tuple[int | None, ...]

    @staticmethod
    def whole(placement: Placement) -> Layout:
        """The layout in which every device has the whole tensor."""
        return Layout(placement, (None,) * len(placement.hierarchy))

    @staticmethod
    def of_batch(placement: Placement, axis: int) -> Layout:
        """The layout of a batch, which the first axis of the hierarchy splits along ``axis``."""
        return Layout(placement, (axis,) + (None,) * (len(placement.hierarchy) - 1))

    @staticmethod
    def of(placement: Placement, request: Distribute | Sequence[Distribute] | None) -> Layout:
        """The layout for a request; a single Distribute applies to every axis of the hierarchy."""
        entries: tuple[Distribute | None, ...]
        alike = request is None or isinstance(request, Distribute)
        entries = (request,) * len(placement.hierarchy) if alike else tuple(request)  # type: ignore[assignment,arg-type]
        return Layout(placement, tuple(None if e is None else e.axis for e in entries))

    def spec(self, rank: int) -> Spec:
        """The layout as the mesh axes that split each axis of the tensor, as in JAX's PartitionSpec."""
        names = list(zip(mesh_of(self.placement.hierarchy), self.splits, strict=True))
        return tuple(tuple(name for axes, split in names if split == axis for name in axes) for axis in range(rank))

    def pieces(self, axis: int) -> int:
        """The number of pieces that an axis is split into."""
        return prod(n for n, split in zip(self.placement.hierarchy, self.splits, strict=True) if split == axis)

    def is_even(self, shape: Sequence[int]) -> bool:
        """Whether all pieces have the same size."""
        return all(size % self.pieces(axis) == 0 for axis, size in enumerate(shape))

    @property
    def is_split(self) -> bool:
        """Whether some axis is split over more than one device."""
        return any(axis is not None and n > 1 for axis, n in zip(self.splits, self.placement.hierarchy, strict=True))

    def __str__(self) -> str:
        names = ["B" if axis is None else f"S({axis})" for axis in self.splits]
        return names[0] if len(names) == 1 else f"[{', '.join(names)}]"


def is_flat(layout: Layout, shape: Sequence[int]) -> bool:
    """Whether a variable is stored and updated as a vector: where each of its devices has all of it.

    XLA's CPU backend runs one inner loop over the last axis of an array: an update rule takes ten times as long over shape
    (512, 512, 3, 3) as over a vector of as many elements.
    """
    return not layout.is_split and len(shape) > 2 and shape[-1] < _SHORT


def layout_of(sharding: Any, placement: Placement) -> Layout:
    """The layout that corresponds to a NamedSharding over the mesh of a placement."""
    splits: list[int | None] = [None] * len(placement.hierarchy)
    number = {name: i for i, axes in enumerate(mesh_of(placement.hierarchy)) for name in axes}
    for axis, names in enumerate(getattr(sharding, "spec", ())):
        for name in names if isinstance(names, tuple) else (names,):
            if name in number:
                splits[number[name]] = axis
    return Layout(placement, tuple(splits))


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of a variable. JAX supports pieces of equal size only, so that uneven ones are padded.

    Attributes:
      layout: of the logical tensor.
      shape: the logical shape.
      replicas: the number of devices if each has its own value (statistics in the mirrored view), else 0.
    """

    layout: Layout
    shape: tuple[int, ...]
    replicas: int = 0

    @property
    def is_flat(self) -> bool:
        """Whether it is stored as a vector."""
        return not self.replicas and is_flat(self.layout, self.shape)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the array on the devices: padded, flat, or with an axis for the replicas."""
        if self.replicas:
            return (self.replicas, *self.shape)
        if self.is_flat:
            return (prod(self.shape),)
        return tuple(-(-size // n) * n for size, n in ((s, self.layout.pieces(a)) for a, s in enumerate(self.shape)))

    @property
    def spec(self) -> Spec:
        """The mesh axes over which each axis of the stored array is split."""
        if self.is_flat:
            return ()
        if self.replicas:
            return (tuple(mesh_axes(self.layout.placement)), *((),) * len(self.shape))
        return self.layout.spec(len(self.shape))

    def is_whole_on(self, placement: Placement) -> bool:
        """Whether each device of a placement has the same whole tensor."""
        return self.layout.placement == placement and not self.layout.is_split and not self.replicas

    @property
    def is_plain(self) -> bool:
        """Whether the stored array is the logical tensor."""
        return not self.replicas and self.stored_shape == self.shape

    def of_slot(self, shape: tuple[int, ...]) -> Storage:
        """The storage of an optimizer's slot of this variable: the same devices, and of the same shape, the same layout."""
        if shape == self.shape and not self.replicas:
            return self
        return Storage(Layout.whole(self.layout.placement), shape)

    def load(self, stored: Any, each: bool = False) -> Any:
        """The logical tensor of a stored array; of replicas the first one, or all of them on a leading axis if ``each``."""
        if self.is_flat:
            return lax.reshape(stored, self.shape)
        if self.replicas:
            return stored if each else lax.index_in_dim(stored, 0, keepdims=False)
        return stored if self.is_plain else lax.slice(stored, (0,) * len(self.shape), self.shape)

    def store(self, value: Any) -> Any:
        """The array to store for a logical tensor."""
        if self.is_flat:
            return lax.reshape(value, self.stored_shape)
        if self.replicas:
            return jnp.broadcast_to(value, self.stored_shape)
        if self.is_plain:
            return value
        widths = [(0, more - size, 0) for size, more in zip(self.shape, self.stored_shape, strict=True)]
        return lax.pad(value, jnp.zeros((), value.dtype), widths)

    @property
    def elements_per_device(self) -> int:
        """The number of elements that each device stores."""
        if self.replicas:
            return prod(self.shape)
        return prod(self.stored_shape) // prod(self.layout.pieces(a) for a in range(len(self.shape)))
