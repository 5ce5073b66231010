"""Values that a step reads and that depend on variables alone: computed when a variable has changed, not per call."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from .._base.jax import jax
from ..compiler.layout import Storage
from ..compiler.plan import Plan
from ..compiler.program import preparation
from .store import Cell, Store


class Prepared:
    """The prepared values of one job."""

    def __init__(self, plan: Plan, store: Store):
        self._plan = plan
        names = {node.attrs["variable"] for node in plan.preparation if "variable" in node.attrs}
        self.sources: list[Cell] = [store.cells[name] for name in sorted(names)]
        self._order: list[Cell] = []
        self._function: Any = None
        self._read: Sequence[Any] = ()
        self._values: tuple[Any, ...] | None = None
        self._store = store
        store.prepared.add(self)

    def _compiled(self) -> Any:
        if self._function is None:
            storages: Mapping[str, Storage] = {
                c.variable.name: c.storage for c in self.sources if c.variable is not None and c.storage is not None
            }
            names, self._function = preparation(self._plan, storages)
            self._order = [self._store.cells[name] for name in names]
        return self._function

    def values(self) -> tuple[Any, ...]:
        """The values for the variables as they are now, which must have values. An array is never changed in place, so that
        identity tells whether a variable has changed."""
        function = self._compiled()
        arrays = [cell.value for cell in self._order]
        if self._values is None or not all(map(operator.is_, arrays, self._read)):
            self._values, self._read = function(arrays), arrays
        return self._values

    def forget(self) -> None:
        """Lets go of all values: the session is closed, and programs may hold its jobs."""
        self._values, self._read = None, ()

    def structs(self) -> tuple[Any, ...]:
        """The shapes and dtypes of the values, whether the variables have values or not."""
        function = self._compiled()
        stored = [
            jax.ShapeDtypeStruct(c.storage.stored_shape, c.variable.dtype.numpy_dtype)
            for c in self._order
            if c.storage is not None and c.variable is not None
        ]
        return tuple(jax.eval_shape(function, stored))
