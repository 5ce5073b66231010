"""The state that a compiled step replaces and reads: its cells in the store, their values, their layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .._base.jax import jax
from ..compiler.layout import Storage
from ..compiler.plan import LEARNING_RATES, Plan
from ..compiler.program import feed_shardings, place_of
from .mesh import DeviceMeshes
from .prepared import Prepared
from .store import Cell, Store
from .transfer import to_global, view


class StepState:
    """The cells of one executable.

    Attributes:
      written: those that the step replaces; read: those that it only reads, without what is prepared.
      prepared: the values that come last among those that are read; None for none.
      storages: where variables were kept when it was made, by name.
      meshes: None on JAX's default device, where there are no layouts to say.
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        written: list[Cell],
        rates: Cell,
        storages: Mapping[str, Storage],
        meshes: DeviceMeshes | None,
    ):
        self.store, self.storages, self.meshes = store, storages, meshes
        self._rates, self._plan = rates, plan
        self.written = written
        self.read = self.cells_of(plan)
        self.prepared = Prepared(plan, store) if plan.prepared else None
        self._sources = self.prepared.sources if self.prepared else []  # variables that only what is prepared depends on

    def cells_of(self, plan: Plan) -> list[Cell]:
        """The state that a step of a plan only reads, without what is prepared."""
        read = plan.read[: len(plan.read) - len(plan.prepared)]
        return [self._rates if name == LEARNING_RATES else self.store.cells[name] for name in read]

    @property
    def cells(self) -> list[Cell]:
        """All cells that the step depends on."""
        return [*self.written, *self.read, *self._sources]

    @property
    def is_outdated(self) -> bool:
        """Whether a variable has moved since this was made. Asked with the dispatch lock held."""
        return any(c.storage != self.storages[c.variable.name] for c in self.cells if c.variable is not None)

    # --- values

    @staticmethod
    def values(cells: list[Cell]) -> tuple[Any, ...]:
        """The cells' arrays."""
        return tuple([cell.value for cell in cells])

    def read_values(self) -> tuple[Any, ...]:
        """All arrays that the step only reads."""
        return (*self.values(self.read), *(self.prepared.values() if self.prepared else ()))

    def place_rates(self) -> None:
        """Puts learning rates where the step of a job on one place reads them, so that no call has to."""
        if self.meshes is None:
            return
        for cell in self.read:
            if cell.variable is None:
                cell.value = jax.device_put(cell.value, self.meshes.sharding(place_of(self._plan), ()))

    def restoring(self, cell: Cell) -> Callable[[], Any]:
        """The function that returns the present value of a piece of state when a step has failed.

        The step may have destroyed the array. What an initializer drew is drawn again then, so that no second copy of all new
        variables is in memory during the first step. Of everything else the host's view is held: on a CPU it is the array's own
        memory, which XLA then leaves as it is and writes the new state elsewhere.
        """
        if self._plan.transactional:
            kept = cell.value
            return lambda: kept
        redrawing = self.store.redrawing(cell)
        if redrawing is not None:
            return redrawing
        value, sharding = view(cell.value), self.struct(cell).sharding
        return lambda: Store.put(value) if sharding is None else to_global(value, sharding)

    # --- shapes, dtypes and layouts

    def struct(self, cell: Cell) -> Any:
        """Shape, dtype and layout of a piece of state."""
        if cell.variable is None:
            return jax.ShapeDtypeStruct(cell.value.shape, cell.value.dtype, sharding=self._outer_sharding())
        storage, dt = cell.storage, cell.variable.dtype.numpy_dtype
        assert storage is not None
        if self.meshes is None:
            return jax.ShapeDtypeStruct(storage.stored_shape, dt)
        sharding = self.meshes.sharding(storage.layout.placement, storage.spec)
        return jax.ShapeDtypeStruct(storage.stored_shape, dt, sharding=sharding)

    def read_structs(self) -> tuple[Any, ...]:
        """As ``struct``, of all that the step only reads."""
        return (*map(self.struct, self.read), *(self.prepared.structs() if self.prepared else ()))

    def arguments(self, feeds: Any) -> tuple[Any, Any, Any]:
        """The step's arguments for feeds of these shapes."""
        return tuple(map(self.struct, self.written)), self.read_structs(), feeds

    def shardings(self, arguments: tuple[Any, Any, Any]) -> list[Any]:
        """The shardings of the step's inputs, in order, on one place; none on JAX's default device."""
        if self.meshes is None:
            return []
        return [*(a.sharding for a in (*arguments[0], *arguments[1])), *feed_shardings(self._plan, self.meshes)]

    def _outer_sharding(self) -> Any:
        return None if self.meshes is None else self.meshes.sharding(self._plan.graph.scope.placement, ())
