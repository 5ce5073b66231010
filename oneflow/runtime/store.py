"""The variables of a session and their values."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._base.jax import jax
from .._base.refuse import refuse, shown
from .._base.threads import on_threads
from ..errors import ArgumentError, ExecutionError
from ..graph.graph import Initializer, Variable
from . import devices, pieces, processes, transfer
from .concurrent_weak_set import ConcurrentWeakSet
from .mesh import DeviceMeshes
from .pieces import BlockRange, Blocks, Piece
from .process import process

if TYPE_CHECKING:
    from ..compiler.layout import Storage


_LEAST_FOR_THREADS = 1 << 18  # bytes of a first value; smaller ones keep Python's lock for most of the time
_MOST_AT_ONCE = 1 << 28  # bytes of first values that are placed on their devices together, unless one has more


class Cell:
    """One variable (or one piece of the library's own state) and its current value, a device array or None before first use.

    Attributes:
      storage: how the variable is stored on its devices; None for the library's own state.
      drawn: the value that its initializer drew, as long as there is that array, and the session's seed then.
    """

    __slots__ = ("variable", "value", "storage", "drawn")

    def __init__(self, variable: Variable | None, value: Any = None, storage: Storage | None = None):
        self.variable = variable
        self.value = value
        self.storage = storage
        self.drawn: tuple[weakref.ref[Any], int] | None = None

    @property
    def declared(self) -> Variable:
        """The variable of a cell that has one."""
        assert self.variable is not None
        return self.variable


class Placed(NamedTuple):
    """A new value of a variable, on its devices."""

    name: str
    storage: Storage | None
    value: np.ndarray | Blocks
    array: Any


class Store:
    """Cells by name.

    ``lock``, the process's dispatch lock, guards every dispatch and every look at values. A step donates its cells' arrays
    and returns new ones; between the two, an interrupt must lose nothing: the step's outputs are put into ``pending`` by C
    code alone, and whoever comes next binds them (``commit``).
    """

    def __init__(self, seed: int, lock: AbstractContextManager[Any]) -> None:
        self.lock = lock
        self.cells: dict[str, Cell] = {}
        self.pending: list[Any] = []  # the outputs of a step whose new state is not bound yet: none or one
        self.bind_pending: Callable[[Any], Any] = lambda outputs: None
        self.is_closed = False
        self.seed = seed
        self.meshes = DeviceMeshes()
        self.prepared: ConcurrentWeakSet[Any] = ConcurrentWeakSet()  # what jobs hold of values computed from variables

    def declare(self, variables: Sequence[Variable], storages: Mapping[str, Storage], trains: bool) -> list[str]:
        """Makes cells for new variables. Called with the lock held.

        The first job that declares a variable places it; before it has a value, a job that ``trains`` it may move it. An
        optimizer's slots are stored where their variable is.

        Returns: the names of those that are stored elsewhere from now on.
        Raises VariableConflictError before anything is changed.
        """
        for variable in variables:
            cell = self.cells.get(variable.name)
            if cell is not None and cell.variable is not None:
                variable.must_agree(cell.variable)
        moved = []
        for variable in variables:
            cell, storage = self.cells.get(variable.name), storages[variable.name]
            if cell is None:
                self.cells[variable.name] = Cell(variable, None, storage)
                continue
            if variable.owner is None and cell.storage != storage and self._gives_way(cell, storage, trains):
                self._move(cell, storage)
                moved.append(variable.name)
            if cell.value is None:  # the initializer of the last declaration counts
                cell.variable = variable
        return [*moved, *self._move_slots()]

    def forget(self, names: Iterable[str]) -> None:
        """Drops variables. Jobs that were compiled for them keep their cells."""
        for name in names:
            self.cells.pop(name, None)

    @staticmethod
    def _gives_way(cell: Cell, storage: Storage, trains: bool) -> bool:
        """Whether a variable moves to where another job wants it."""
        assert cell.storage is not None
        if cell.value is None:
            return trains and not (cell.storage.replicas and not storage.replicas)
        return bool(storage.replicas and not cell.storage.replicas)

    def _move_slots(self) -> list[str]:
        """Brings the optimizers' slots of all jobs to their variables. Returns the names of those that were elsewhere."""
        moved = []
        for name, cell in self.cells.items():
            owner = self.cells.get(cell.variable.owner) if cell.variable is not None and cell.variable.owner else None
            if owner is None or owner.storage is None or cell.variable is None:
                continue
            storage = owner.storage.of_slot(cell.variable.shape)
            if cell.storage != storage:
                self._move(cell, storage)
                moved.append(name)
        return moved

    def _move(self, cell: Cell, storage: Storage) -> None:
        if cell.value is not None:
            self.commit()
            value = self._placed(storage, self._logical(cell))
            cell.value = value
        cell.storage = storage

    def commit(self) -> None:
        """Binds the outputs of a step that was interrupted after it ran."""
        if self.pending:
            self.bind_pending(self.pending[0])
            self.pending.clear()

    def materialize(self, cells: Iterable[Cell]) -> None:
        """Initializes the cells that have no value."""
        for group in _groups([cell for cell in cells if cell.value is None]):
            drawn = self._first_values([cell.declared for cell in group])
            for cell, value in zip(group, self._placed_together(group, drawn), strict=True):
                cell.value = value
                cell.drawn = weakref.ref(cell.value), self.seed

    @staticmethod
    def is_as_drawn(cell: Cell) -> bool:
        """Whether nobody has changed a variable since its initializer drew it, or is to draw it."""
        return cell.value is None or (cell.drawn is not None and cell.drawn[0]() is cell.value)

    def redrawing(self, cell: Cell) -> Callable[[], Any] | None:
        """Where a cell still has the value that its initializer drew: the function that makes an equal array. Otherwise None."""
        variable, storage, drawn = cell.variable, cell.storage, cell.drawn
        if variable is None or drawn is None or drawn[0]() is not cell.value:
            return None
        seed = drawn[1]
        return lambda: self._placed(storage, self._first_value(variable, seed))

    def _first_values(self, variables: Sequence[Variable]) -> list[np.ndarray]:
        """Large ones are drawn on threads, by the library's initializers: those of users may have state of their own."""
        draw = partial(self._first_value, seed=self.seed)
        large = [v for v in variables if _first_bytes(v) >= _LEAST_FOR_THREADS and not _is_of_user(v.initializer)]
        drawn = dict(zip((variable.name for variable in large), on_threads(draw, large), strict=True))
        return [drawn[variable.name] if variable.name in drawn else draw(variable) for variable in variables]

    def _placed_together(self, cells: Sequence[Cell], values: Sequence[np.ndarray]) -> list[Any]:
        """Device arrays in memory of their own. Those on JAX's default device are made by one call, which takes half as long."""
        near = [processes.count() == 1 and self._is_at_default(cell.storage) for cell in cells]
        shaped = [_flat(cell.storage, value) for cell, value, is_near in zip(cells, values, near, strict=True) if is_near]
        with jax.enable_x64(True):
            made = iter(devices.put(shaped))
        return [
            transfer.donatable(next(made) if is_near else self._placed(cell.storage, value), value)
            for cell, value, is_near in zip(cells, values, near, strict=True)
        ]

    @staticmethod
    def _first_value(variable: Variable, seed: int) -> np.ndarray:
        name_word = zlib.crc32(variable.name.encode())
        given = variable.random_seed
        entropy: Any = [seed, name_word] if given is None else given if given >= 0 else given % (1 << 64)  # OneFlow's are int64
        what = f"the first value of variable {variable.name!r}, {variable.describe()},"
        failed: MemoryError | None = None
        guard: AbstractContextManager[Any] = np.errstate(over="raise")
        if _is_of_user(variable.initializer):
            guard = process.refusing_first_calls(f"the initializer of variable {variable.name!r}")
        try:
            with guard:
                drawn = variable.initializer.draw(variable.shape, variable.dtype.numpy_dtype, np.random.default_rng(entropy))
                value = np.asarray(drawn, variable.dtype.numpy_dtype)
        except MemoryError as error:
            failed = error
        except Exception as error:  # of an initializer of the user's, or a number outside the dtype's range
            told = f"{type(error).__name__}: {error}"
            refuse(ExecutionError, f"{what} could not be drawn by {shown(variable.initializer)}: {told}", source=variable.source)
        if failed is not None:  # here: users see nothing but this
            refuse(ExecutionError, f"{what} does not fit into memory: {failed}", source=variable.source, hint="a smaller shape")
        if value.shape != variable.shape:
            rule = f"{what} has shape {value.shape} as {shown(variable.initializer)} draws it"
            refuse(ArgumentError, rule, source=variable.source)
        return value

    @staticmethod
    def put(value: np.ndarray) -> Any:
        """A device array on JAX's default device, or on one device of each process."""
        if processes.count() > 1:
            return transfer.everywhere(value)
        with jax.enable_x64(True):
            return devices.put(value)

    def _placed(self, storage: Storage | None, value: np.ndarray | Blocks) -> Any:
        """A device array, stored as ``storage`` says."""
        if not isinstance(value, np.ndarray):
            assert storage is not None
            return pieces.from_blocks(value, storage, self.meshes.sharding(storage.layout.placement, storage.spec))
        value = _flat(storage, value)
        if storage is None or self._is_at_default(storage):
            return self.put(value)
        if storage.replicas:
            value = np.broadcast_to(value, storage.stored_shape)
        elif not storage.is_plain and not storage.is_flat:
            value = np.pad(value, [(0, more - size) for size, more in zip(value.shape, storage.stored_shape, strict=True)])
        return transfer.to_global(value, self.meshes.sharding(storage.layout.placement, storage.spec))

    def _is_at_default(self, storage: Storage | None) -> bool:
        return storage is None or self.meshes.is_default(storage.layout.placement)

    @staticmethod
    def _logical(cell: Cell) -> np.ndarray:
        """A copy of the value of the whole variable in this process's memory."""
        stored = transfer.to_host(cell.value)
        storage = cell.storage
        if storage is None or storage.is_plain:
            return stored
        if storage.is_flat:
            return stored.reshape(storage.shape)
        return stored[0].copy() if storage.replicas else stored[tuple(slice(size) for size in storage.shape)].copy()

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Copies of the values at one moment: the next step donates the originals."""
        with self.lock:
            self.commit()
            cells = {name: self.cells[name] for name in names}
            self.materialize(cells.values())
            return {name: self._logical(cell) for name, cell in cells.items()}

    def pieces(self, names: Iterable[str], whole: bool) -> dict[str, list[Piece]]:
        """The parts of variables that this process saves and no other does; if ``whole``, the first process saves everything.

        Called with the lock held. The next step donates these arrays.
        """
        self.commit()
        cells = {name: self.cells[name] for name in names}
        self.materialize(cells.values())
        if not whole:
            return {name: pieces.to_save(cell.value, cell.storage) for name, cell in cells.items()}
        values = {name: self._logical(cell) for name, cell in cells.items()}
        return {name: [Piece((0,) * v.ndim, v.shape, v)] if processes.is_first() else [] for name, v in values.items()}

    def blocks_by_process(self, name: str) -> dict[int, list[BlockRange]]:
        """Which blocks of a variable each process needs that has devices of it; the same in all processes."""
        storage = self.cells[name].storage
        assert storage is not None
        return pieces.by_process(storage, self.meshes.sharding(storage.layout.placement, storage.spec))

    def place(self, values: Mapping[str, np.ndarray | Blocks]) -> list[Placed]:
        """Moves new values to the devices of their variables, which may keep the arrays; nothing changes yet."""
        cells = self.cells
        return [Placed(name, cells[name].storage, v, self._placed(cells[name].storage, v)) for name, v in values.items()]

    def bind(self, placed: Sequence[Placed]) -> None:
        """Replaces values by what ``place`` has made, all or none. Called with the lock held."""
        arrays = []
        for new in placed:
            storage = self.cells[new.name].storage
            arrays.append(new.array if storage == new.storage else self._placed(storage, new.value))
        self.commit()
        for new, array in zip(placed, arrays, strict=True):
            self.cells[new.name].value = array

    def clear(self) -> None:
        """Releases every value: the session is closed. Called with the lock held."""
        self.pending.clear()
        for cell in self.cells.values():
            cell.value = None
        for prepared in self.prepared:
            prepared.forget()


def _flat(storage: Storage | None, value: np.ndarray) -> np.ndarray:
    """The value in the shape in which a variable that is stored flat is split."""
    return value.reshape(storage.stored_shape) if storage is not None and storage.is_flat else value


def _first_bytes(variable: Variable) -> int:
    return prod(variable.shape) * variable.dtype.bytes


def _is_of_user(initializer: Initializer) -> bool:
    return type(initializer).__module__.partition(".")[0] != __name__.partition(".")[0]


def _groups(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Cells in order, in groups of moderate size."""
    group: list[Cell] = []
    size = 0
    for cell in cells:
        size += _first_bytes(cell.declared)
        if group and size > _MOST_AT_ONCE:
            yield group
            group, size = [], _first_bytes(cell.declared)
        group.append(cell)
    if group:
        yield group
