"""The variables of a session and their values."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .._jax import jax
from ..errors import ArgumentError
from ..graph.graph import Variable
from . import devices


class Cell:
    """One variable (or one piece of the library's own state) and its current value, a device array or None before first use."""

    __slots__ = ("variable", "value")

    def __init__(self, variable: Variable | None, value: Any = None):
        self.variable = variable
        self.value = value


class Store:
    """Cells by name.

    ``lock`` guards every dispatch and every look at values. A step donates its cells' arrays and gives new ones; between
    the two, an interrupt must lose nothing: the step's outputs are kept in ``landing`` by C code alone, and whoever comes
    next finishes the re-binding (``roll_forward``).
    """

    def __init__(self, seed: int) -> None:
        self.lock = threading.RLock()
        self.cells: dict[str, Cell] = {}
        self.landing: list[Any] = []
        self.landing_cells: Sequence[Cell] = ()
        self.seed = seed

    def declare(self, variables: Sequence[Variable], replaceable: Callable[[str], bool]) -> list[str]:
        """Makes cells for new variables; gives the names of those that took the place of another.

        Raises VariableConflictError before anything is changed.
        """
        replaced = []
        for variable in variables:
            cell = self.cells.get(variable.name)
            if cell is not None and cell.variable is not None:
                if replaceable(variable.name) and not variable.agrees(cell.variable):
                    replaced.append(variable.name)
                else:
                    variable.must_agree(cell.variable)
        for name in replaced:
            del self.cells[name]
        for variable in variables:
            cell = self.cells.get(variable.name)
            if cell is None:
                self.cells[variable.name] = Cell(variable)
            elif cell.value is None:  # the initializer of the last declaration counts
                cell.variable = variable
        return replaced

    def clear(self) -> None:
        """Lets go of all values: the session is closed, and the next one may want other devices."""
        with self.lock:
            self.landing.clear()
            for cell in self.cells.values():
                cell.value = None

    def roll_forward(self) -> None:
        """Binds the outputs of a step that was interrupted after it ran."""
        if self.landing:
            for cell, value in zip(self.landing_cells, self.landing[0][0], strict=True):
                cell.value = value
            self.landing.clear()

    def materialize(self, cells: Iterable[Cell]) -> None:
        """Gives first values to cells that have none."""
        for cell in cells:
            if cell.value is None:
                variable = cell.variable
                assert variable is not None
                cell.value = self.put(self._first_value(variable))

    def _first_value(self, variable: Variable) -> np.ndarray:
        name_word = zlib.crc32(variable.name.encode())
        entropy: Any = [self.seed, name_word] if variable.random_seed is None else variable.random_seed
        drawn = variable.initializer.draw(variable.shape, variable.dtype.numpy_dtype, np.random.default_rng(entropy))
        value = np.asarray(drawn, variable.dtype.numpy_dtype)
        if value.shape != variable.shape:
            raise ArgumentError(f"the initializer of variable {variable.name!r} gave shape {value.shape}, not {variable.shape}")
        return value

    @staticmethod
    def put(value: np.ndarray) -> Any:
        with jax.enable_x64(True):
            return devices.put(value)

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Copies of the values at one moment: the next step donates the originals."""
        with self.lock:
            self.roll_forward()
            cells = {name: self.cells[name] for name in names}
            self.materialize(cells.values())
            return {name: np.array(cell.value) for name, cell in cells.items()}

    def write(self, values: dict[str, np.ndarray]) -> None:
        """Replaces values, all or none: everything is on the device before the first cell changes."""
        arrays = {name: self.put(np.array(value, order="C")) for name, value in values.items()}
        with self.lock:
            self.roll_forward()
            for name, array in arrays.items():
                self.cells[name].value = array
