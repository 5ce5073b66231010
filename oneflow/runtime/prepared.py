"""Values that a step reads and that depend on variables alone: computed when a variable has changed, not per call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._base.jax import jax
from ..compiler.layout import Storage
from ..compiler.plan import Plan
from ..compiler.program import preparation
from .store import Cell, Store


class PreparedCell:
    """One of these values, as a piece of state that a step reads; None before the variables have values."""

    __slots__ = ("_all", "_index")
    variable = storage = None

    def __init__(self, owner: Prepared, index: int):
        self._all, self._index = owner, index

    @property
    def value(self) -> Any:
        values = self._all.values()
        return None if values is None else values[self._index]

    @property
    def struct(self) -> Any:
        """Shape and dtype, whether the variables have values or not."""
        return self._all.structs()[self._index]


class Prepared:
    """The prepared values of one job."""

    def __init__(self, plan: Plan, store: Store):
        self._plan = plan
        names = {node.attrs["variable"] for node in plan.preparation if "variable" in node.attrs}
        self.sources: list[Cell] = [store.cells[name] for name in sorted(names)]
        self.cells = [PreparedCell(self, i) for i in range(len(plan.prepared))]
        self._order: list[Cell] = []
        self._function: Any = None
        self._read: Sequence[Any] = ()
        self._values: tuple[Any, ...] | None = None
        self._structs: Sequence[Any] | None = None
        self._store = store

    def _compiled(self) -> Any:
        if self._function is None:
            storages: Mapping[str, Storage] = {
                c.variable.name: c.storage for c in self.sources if c.variable is not None and c.storage is not None
            }
            names, self._function = preparation(self._plan, storages)
            self._order = [self._store.cells[name] for name in names]
        return self._function

    def values(self) -> tuple[Any, ...] | None:
        """The values for the variables as they are now. An array is never changed in place, so that identity tells."""
        function = self._compiled()
        arrays = [cell.value for cell in self._order]
        read = self._read
        if self._values is not None and all(map(_is, arrays, read)):
            return self._values
        if any(array is None for array in arrays):
            return None
        self._values, self._read = function(arrays), arrays
        return self._values

    def structs(self) -> Sequence[Any]:
        """The shapes and dtypes of the values."""
        if self._structs is None:
            function = self._compiled()
            stored = [
                jax.ShapeDtypeStruct(c.storage.stored_shape, c.variable.dtype.numpy_dtype)
                for c in self._order
                if c.storage is not None and c.variable is not None
            ]
            self._structs = jax.eval_shape(function, stored)
        return self._structs


def _is(a: Any, b: Any) -> bool:
    return a is b
