"""``flow.data.ArrayLoader``: arrays in memory as shuffled, transformed batches that a resumed run meets again."""

from __future__ import annotations

import pickle
import signal
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

import numpy as np

from .._base import check
from .._base.refuse import refuse, shown
from ..errors import ArgumentError, DataError, ShapeError
from .arrays import as_array, is_array, is_frame
from .epoch import EpochArray
from .transforms import Composed

SAMPLE_WEIGHT = "sample_weight"  # the key of what each row of a batch counts, and the parameter of jobs that take it
Transform = Callable[[Any, np.random.Generator], Any]


class ArrayLoader:
    """Batches of arrays whose first axes are rows: an iterable that begins a new pass with each ``for`` loop.

    The order of a pass depends on ``seed`` and the number of the pass alone, and so do the random numbers that
    ``transform`` is given for a batch: neither workers nor interruptions change a batch. ``flow.Trainer`` keeps the
    position in its checkpoints; ``state_dict`` and ``load_state_dict`` do so by hand.

    Without ``shuffle``, ``transform`` and ``"pad"``, batches are views of ``arrays`` that cannot be written to. To change one in
    place, do so in a ``transform``, or in a copy.

    Args:
      arrays: one array, a tuple or list, or a dictionary of arrays of equally many rows; also a pandas DataFrame (a
        dictionary of its columns) and a ``datasets.Dataset``. Tensors are not copied. Batches, as ``load_mnist`` returns
        them, are joined to rows.
      batch_size: rows of a batch, >= 1; of all shards together.
      shuffle: draws a new order for each pass.
      seed: int >= 0.
      last: what becomes of a last batch that is not full: ``"keep"`` gives it short, ``"drop"`` leaves it out, ``"pad"``
        repeats its last row and adds an array of weights, float32 (batch_size,), 1 for rows and 0 for padding: under the
        key ``"sample_weight"``, or as the last of a tuple. A dictionary's own weights under that key are 0 for padding.
      transform: ``transform(batch, rng)`` returns the batch to give in place of ``batch``. It may change the arrays in
        place. ``rng`` is a ``numpy.random.Generator`` of this batch's own. Or a list of such functions; ``RandomCrop``,
        ``RandomHorizontalFlip`` and ``Normalize`` are some.
      num_workers: threads or processes that prepare batches in advance; 0 prepares each when it is asked for.
      worker_type: ``"thread"`` for a transform that NumPy does, which runs beside other threads; ``"process"`` for one
        of plain Python, which must be picklable (a function at the top of a module), in a program that guards what it runs
        by ``if __name__ == "__main__":``.
      prefetch_factor: batches that each worker prepares in advance, >= 1.
      shard: ``(index, count)``: yields the ``index``-th of ``count`` equal pieces of each batch, for processes that feed a
        part each (``config.feed_own_part(True)``).
    Raises:
      ArgumentError: an argument outside its range.
      ShapeError: the arrays have different numbers of rows.
    Example:
      >>> images, labels = np.zeros((60, 28, 28), np.uint8), np.zeros(60, np.int32)
      >>> def mirrored(batch, rng):
      ...     images, labels = batch
      ...     return np.where(rng.random(len(images))[:, None, None] < 0.5, images, images[:, :, ::-1]), labels
      >>> for x, y in flow.data.ArrayLoader((images, labels), 20, shuffle=True, transform=mirrored):
      ...     assert x.shape == (20, 28, 28)
    """

    def __init__(
        self,
        arrays: Any,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        last: str = "keep",
        transform: Transform | Sequence[Transform] | None = None,
        num_workers: int = 0,
        worker_type: str = "thread",
        prefetch_factor: int = 2,
        shard: tuple[int, int] = (0, 1),
    ):
        self.batch_size = check.checked(self, "batch_size", check.integer(batch_size, low=1))
        self.shuffle = check.checked(self, "shuffle", check.flag(shuffle))
        self.seed = check.checked(self, "seed", check.integer(seed, low=0))
        self.last = check.checked(self, "last", check.choice(last, ("keep", "drop", "pad")))
        several: list[Any] = list(transform) if isinstance(transform, (tuple, list)) else [] if transform is None else [transform]
        if not all(map(callable, several)):
            refuse(ArgumentError, f"transform must be a function of a batch and a generator, or several, got {shown(transform)}")
        self.transform: Transform | None = Composed(several) if len(several) > 1 else several[0] if several else None
        self.num_workers = check.checked(self, "num_workers", check.integer(num_workers, low=0))
        self.worker_type = check.checked(self, "worker_type", check.choice(worker_type, ("thread", "process")))
        if self.worker_type == "process":
            _check_picklable(self.transform)
        self.prefetch_factor = check.checked(self, "prefetch_factor", check.integer(prefetch_factor, low=1))
        self._shard, self._shards = _checked_shard(shard, self.batch_size, self.last)
        self._rows = _Rows(arrays)
        self._epoch = 0
        self._batch = 0
        self._resumes = True  # the next pass begins where the position is
        self._processes: Executor | None = None

    def __len__(self) -> int:
        """The number of batches of a pass."""
        full, rest = divmod(len(self._rows), self.batch_size)
        return full + (rest > 0 and self.last != "drop")

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def __iter__(self) -> Iterator[Any]:
        if not self._resumes:
            self.set_epoch(self._epoch + 1)
        self._resumes = False
        return self._pass(self._epoch, self._batch)

    def __repr__(self) -> str:
        return f"<ArrayLoader of {self.rows} rows in {len(self)} batches of {self.batch_size}>"

    # --- the position

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``for`` loop begin epoch ``epoch``, counted from 0."""
        self._epoch = check.checked(self, "epoch", check.integer(epoch, low=0))
        self._batch, self._resumes = 0, True

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that was given, and what the order depends on; JSON-able."""
        return {"epoch": self._epoch, "batch": self._batch, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next ``for`` loop continue after the batch at which ``state_dict()`` was taken.

        Raises:
          ArgumentError: the state is that of a loader with other rows, batches or order.
        """
        own = self._identity()
        if not isinstance(state, Mapping):
            refuse(ArgumentError, f"load_state_dict takes what state_dict() returned, got {shown(state)}")
        other = {name: state.get(name) for name in own}
        if other != own:
            rows = ", ".join(f"{name}: {other[name]!r}, here {own[name]!r}" for name in own if other[name] != own[name])
            refuse(ArgumentError, f"the position is that of another ArrayLoader ({rows})",
                   hint="make the loader with the arguments it had, or begin without the saved position")  # fmt: skip
        epoch = check.checked(self, "state['epoch']", check.integer(state.get("epoch"), low=0))
        batch = check.checked(self, "state['batch']", check.integer(state.get("batch"), low=0, high=len(self)))
        self._epoch, self._batch, self._resumes = epoch, batch, True

    def _identity(self) -> dict[str, Any]:
        return {"rows": self.rows, "batch_size": self.batch_size, "shuffle": self.shuffle, "seed": self.seed, "last": self.last}

    # --- a pass

    def _pass(self, epoch: int, first: int) -> Iterator[Any]:
        count = len(self)
        order = np.random.default_rng((self.seed, epoch)).permutation(self.rows) if self.shuffle else None
        numbers = iter(range(first, count))
        batches = self._ahead(epoch, order, numbers) if self.num_workers else (self._made(epoch, order, i) for i in numbers)
        for i, batch in enumerate(batches, first + 1):
            self._epoch, self._batch = epoch, i
            yield batch
        self._epoch, self._batch, self._resumes = epoch + 1, 0, True

    def _ahead(self, epoch: int, order: np.ndarray | None, numbers: Iterator[int]) -> Iterator[Any]:
        """The batches in order, some of them being prepared by workers."""
        waiting: deque[Future[Any]] = deque()
        pool, submit = self._pool(epoch, order)
        try:
            for number in numbers:
                waiting.append(submit(number))
                if len(waiting) > self.num_workers * self.prefetch_factor:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenExecutor:  # of processes
            self._processes = None  # the next pass starts others
            rule = "a worker process of an ArrayLoader ended before it returned its batch: it was killed, or left by itself"
            refuse(DataError, rule, hint='worker_type="thread", or less memory for each worker')
        finally:
            for future in waiting:
                future.cancel()
            if pool is not self._processes:
                pool.shutdown(wait=True)

    def _pool(self, epoch: int, order: np.ndarray | None) -> tuple[Executor, Callable[[int], Future[Any]]]:
        if self.worker_type == "thread":
            from concurrent.futures import ThreadPoolExecutor  # an exit function cannot import it

            threads = ThreadPoolExecutor(self.num_workers, thread_name_prefix="oneflow-load")
            return threads, lambda number: threads.submit(self._made, epoch, order, number)
        if self._processes is None:
            import multiprocessing
            from concurrent.futures import ProcessPoolExecutor

            context = multiprocessing.get_context("spawn")  # a fork would not survive JAX's threads
            self._processes = ProcessPoolExecutor(self.num_workers, context, initializer=_ignore_interrupts)
            weakref.finalize(self, self._processes.shutdown, wait=False, cancel_futures=True)
        processes = self._processes

        def submit(number: int) -> Future[Any]:
            seed = (self.seed, epoch, number, self._shard)
            return processes.submit(_transformed_elsewhere, self.transform, self._taken(order, number), seed, number, epoch)

        return processes, submit

    def _made(self, epoch: int, order: np.ndarray | None, number: int) -> Any:
        seed = (self.seed, epoch, number, self._shard)
        return _transformed(self.transform, self._taken(order, number), seed, number, epoch)

    def _taken(self, order: np.ndarray | None, number: int) -> Any:
        """The rows of batch ``number``, before the transform."""
        size, begin = self.batch_size, number * self.batch_size
        end = min(begin + size, self.rows)
        if self.last == "pad":
            return self._padded(order, begin, end)
        piece = size // self._shards
        if self._shards > 1:
            begin, end = begin + self._shard * piece, begin + (self._shard + 1) * piece
        if order is not None:
            return self._rows.take(order[begin:end])
        return self._rows.between(begin, end, copies=self.transform is not None)

    def _padded(self, order: np.ndarray | None, begin: int, end: int) -> Any:
        chosen = np.minimum(np.arange(begin, begin + self.batch_size), end - 1)
        weights = (np.arange(begin, begin + self.batch_size) < end).astype(np.float32)
        piece = self.batch_size // self._shards
        mine = slice(self._shard * piece, (self._shard + 1) * piece)
        chosen = chosen[mine] if order is None else order[chosen[mine]]
        batch = self._rows.take(chosen)
        if isinstance(batch, dict):
            given = batch.get(SAMPLE_WEIGHT)
            if given is None:
                return {**batch, SAMPLE_WEIGHT: weights[mine]}
            mask = weights[mine].astype(given.dtype).reshape(-1, *(1,) * (given.ndim - 1))
            return {**batch, SAMPLE_WEIGHT: given * mask}
        return (*(batch if isinstance(batch, tuple) else (batch,)), weights[mine])


class _Rows:
    """Arrays of equally many rows, in the structure in which they were given."""

    def __init__(self, given: Any):
        self._table: Any = None
        if hasattr(given, "column_names") and hasattr(given, "with_format"):  # a datasets.Dataset
            self._table = given.with_format("numpy")
            self._count = len(given)
            return
        if is_frame(given):
            given = {str(name): given[name] for name in given.columns}
        self._keys = list(given) if isinstance(given, Mapping) else None
        if isinstance(given, Mapping):
            columns = list(given.values())
        elif isinstance(given, (tuple, list)) and not is_array(given):
            columns = list(given)
        else:
            columns = [given]
        self._is_single = self._keys is None and not isinstance(given, (tuple, list))
        names = self._keys or range(len(columns))
        self._columns = [as_array(c, f"arrays[{n!r}] of an ArrayLoader") for n, c in zip(names, columns, strict=True)]
        self._columns = [_joined(column) if isinstance(column, EpochArray) else column for column in self._columns]
        self._check(names)
        self._count = len(self._columns[0])

    def _check(self, names: Any) -> None:
        if not self._columns or any(c.ndim == 0 for c in self._columns):
            refuse(ArgumentError, "an ArrayLoader needs at least one array, each with an axis of rows")
        shapes = [(f"{n!r}", str(c.shape)) for n, c in zip(names, self._columns, strict=True)]
        if len({len(c) for c in self._columns}) > 1:
            refuse(ShapeError, "the arrays of an ArrayLoader must have equally many rows", found=shapes)
        if not len(self._columns[0]):
            refuse(ShapeError, "the arrays of an ArrayLoader have no rows", found=shapes)

    def __len__(self) -> int:
        return self._count

    def take(self, rows: np.ndarray) -> Any:
        if self._table is not None:
            return {name: as_array(column) for name, column in self._table[rows].items()}
        return self._structured([column.take(rows, axis=0) for column in self._columns])

    def between(self, begin: int, end: int, copies: bool) -> Any:
        if self._table is not None:
            return {name: as_array(column) for name, column in self._table[begin:end].items()}
        parts = [column[begin:end] for column in self._columns]
        if copies:
            return self._structured([part.copy() for part in parts])
        for part in parts:  # they are the user's arrays
            part.flags.writeable = False
        return self._structured(parts)

    def _structured(self, parts: list[np.ndarray]) -> Any:
        if self._keys is not None:
            return dict(zip(self._keys, parts, strict=True))
        return parts[0] if self._is_single else tuple(parts)


def _joined(batches: np.ndarray) -> np.ndarray:
    """The rows of an array of batches."""
    plain = batches.view(np.ndarray)
    return plain.reshape(-1, *plain.shape[2:]) if plain.ndim > 1 else plain


def _transformed(transform: Transform | None, batch: Any, seed: tuple[int, ...], number: int, epoch: int) -> Any:
    if transform is None:
        return batch
    try:
        return transform(batch, np.random.default_rng(seed))
    except Exception as error:
        error.add_note(f"in the transform of an ArrayLoader, batch {number} of pass {epoch}")
        raise


def _transformed_elsewhere(transform: Transform | None, batch: Any, seed: tuple[int, ...], number: int, epoch: int) -> Any:
    """In a worker process, whose exceptions must survive the way back."""
    try:
        return _transformed(transform, batch, seed, number, epoch)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError("".join(traceback.format_exception(error))) from None
        raise


def _check_picklable(transform: Transform | None) -> None:
    try:
        pickle.dumps(transform)
    except Exception as error:  # also those of the user's object
        refuse(ArgumentError, f"a transform for worker processes must be picklable: {error}",
               hint='define it at the top of a module, or worker_type="thread"')  # fmt: skip


def _ignore_interrupts() -> None:
    """Ctrl-C reaches all processes of a terminal; ending the workers is up to the program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _checked_shard(shard: Any, batch_size: int, last: str) -> tuple[int, int]:
    good = isinstance(shard, tuple) and len(shard) == 2 and all(type(n) is int for n in shard) and 0 <= shard[0] < shard[1]
    if not good:
        refuse(ArgumentError, f"shard must be (index, count) with 0 <= index < count, got {shown(shard)}",
               hint="shard=(flow.distributed.get_rank(), flow.distributed.get_world_size())")  # fmt: skip
    if batch_size % shard[1]:
        refuse(ArgumentError, f"batch_size={batch_size} cannot be cut into {shard[1]} equal shards")
    if shard[1] > 1 and last == "keep":
        refuse(ArgumentError, "a short last batch cannot be cut into equal shards", hint='last="drop" or last="pad"')
    return int(shard[0]), int(shard[1])
