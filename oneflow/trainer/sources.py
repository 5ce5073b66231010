"""The kinds of data that a trainer takes, and how a resumed run finds its place in them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .._base.refuse import refuse
from ..data.arrays import as_array, is_array, is_frame
from ..data.epoch import EpochArray
from ..data.loader import ArrayLoader
from ..errors import ArgumentError
from ..job import JobFunction
from .arguments import Arguments


class Source:
    """Batches, pass after pass.

    Attributes:
      length: the number of batches of a pass; None where nobody knows.
    """

    length: int | None = None

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """Pass number ``epoch`` from batch number ``start`` on; where it goes on, ``restore`` was called before."""
        raise NotImplementedError

    def state(self) -> Any:
        """The position behind the last batch that was taken; None where the number of the batch says all."""
        return None

    def restore(self, state: Any, start: int) -> None:
        """Makes the next pass continue where ``state()`` was taken, after ``start`` of its batches."""


class NoData(Source):
    """For jobs that read by themselves: every call is fed with nothing. A checkpoint has the positions of readers."""

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        return itertools.repeat(())


class WholeBatches(Source):
    """Arrays whose first axis is the number of the batch, as ``flow.data.load_mnist`` returns them."""

    def __init__(self, arrays: list[np.ndarray], keys: list[Any] | None):
        self._count = self.length = min(map(len, arrays))
        self._arrays, self._keys = [array.view(np.ndarray) for array in arrays], keys

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        for i in range(start, self._count):
            batch = tuple([array[i] for array in self._arrays])
            yield batch if self._keys is None else dict(zip(self._keys, batch, strict=True))


class Passes(Source):
    """Anything that can be iterated again and again.

    A position is kept by what has a method for it: ``state_dict`` and ``load_state_dict`` of the data, or ``get_state`` and
    ``set_state`` of their iterators. Else, also where the position is one of other data, a pass that goes on skips the batches
    that were taken before. ``set_epoch`` is called where there is one.
    """

    def __init__(self, data: Any):
        self._data = data
        self._iterator: Any = None
        self._restored: Any = None
        self._made_any = False
        try:
            self.length = len(data)
        except TypeError:  # no length, as of a generator, or of a DataLoader over a stream
            self.length = None

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        data, restored = self._data, self._restored
        self._restored = None
        if hasattr(data, "set_epoch"):
            data.set_epoch(epoch)
        if restored is not None and "data" in restored and hasattr(data, "load_state_dict"):
            data.load_state_dict(restored["data"])
            start = 0
        made = data() if callable(data) and not hasattr(data, "__iter__") else data
        self._iterator = iterator = iter(made)
        if iterator is data and self._made_any:
            refuse(ArgumentError, f"the data ({type(data).__name__}) can be read once, and epoch {epoch} was to begin",
                   hint="give something that can be iterated again, or a function that returns a new iterator")  # fmt: skip
        self._made_any = True
        if restored is not None and "iterator" in restored and hasattr(iterator, "set_state"):
            iterator.set_state(restored["iterator"])
            start = 0
        return itertools.islice(iterator, start, None)

    def state(self) -> Any:
        if hasattr(self._data, "state_dict") and hasattr(self._data, "load_state_dict"):
            return {"data": self._data.state_dict()}
        if hasattr(self._iterator, "get_state") and hasattr(self._iterator, "set_state"):
            return {"iterator": self._iterator.get_state()}
        return None

    def restore(self, state: Any, start: int) -> None:
        # at the beginning of a pass its number says all, or a new iterator begins it
        if start or ("data" in state and not hasattr(self._data, "set_epoch")):
            self._restored = state


def source_of(data: Any, job: JobFunction[..., Any], arguments: Arguments, *, shuffle: bool, seed: int, what: str) -> Source:
    """The batches that are meant.

    Args:
      data: as ``Trainer.fit`` takes it.
      arguments: of ``job``, whose placeholders say whether arrays hold rows or batches.
      shuffle: the rows of whole arrays; ``seed`` says how.
      what: what an error calls the data.
    Raises:
      ArgumentError: something that gives no batches.
    """
    if data is None:
        if arguments.names:
            refuse(ArgumentError, f"job {job.name!r} takes {', '.join(arguments.names)}, and no {what} was given",
                   source=job.source)  # fmt: skip
        return NoData()
    if hasattr(data, "column_names") and hasattr(data, "with_format"):
        return _of_dataset(data, arguments, shuffle, seed, what)
    found = _whole_arrays(data, arguments)
    if found is not None:
        keys, arrays = found
        if _hold_batches(arrays, arguments):
            return WholeBatches(arrays, keys)
        arrays = [array.view(np.ndarray) for array in arrays]  # of rows, also of an epoch that was cut or reshaped
        rows = tuple(arrays) if keys is None else dict(zip(keys, arrays, strict=True))
        return Passes(ArrayLoader(rows, arguments.batch_size or 1, shuffle=shuffle, seed=seed))
    if not hasattr(data, "__iter__") and not callable(data):
        hint = "give arrays, an iterable of batches, or a function that returns one"
        if hasattr(data, "__getitem__"):
            hint = f"it gives samples: flow.data.ArrayLoader of arrays, or DataLoader(dataset, batch_size={arguments.batch_size})"
        refuse(ArgumentError, f"{what} must give batches, and a {type(data).__name__} cannot be iterated", hint=hint)
    return Passes(data)


class Stream(Passes):
    """Of the library ``datasets``: a position lacks what is in a shuffle buffer, and such a stream is skipped to its place."""

    def state(self) -> Any:
        return None if _has_shuffle_buffer(getattr(self._data, "_ex_iterable", None)) else super().state()


def _has_shuffle_buffer(stage: Any) -> bool:
    """Whether a stage of a stream, or one before it, may draw from a buffer; True where nobody knows."""
    if stage is None or "Shuffled" in type(stage).__name__:
        return True
    before = [value for name, value in vars(stage).items() if name in ("ex_iterable", "ex_iterables")]
    return any(_has_shuffle_buffer(each) for value in before for each in (value if isinstance(value, list) else [value]))


def _of_dataset(data: Any, arguments: Arguments, shuffle: bool, seed: int, what: str) -> Source:
    """Of the library ``datasets``: those columns that the job takes."""
    if isinstance(data, Mapping):
        refuse(ArgumentError, f"{what} are splits of a data set ({', '.join(map(str, data))}), and one of them is needed",
               hint=f"data[{next(iter(data), 'train')!r}]")  # fmt: skip
    size, known, arrays = arguments.batch_size or 1, data.column_names or [], data.with_format("numpy")
    is_stream = not hasattr(data, "__len__")
    first: Mapping[str, Any] = next(iter(arrays), {})
    if _is_batch(first, arguments):
        return Stream(arrays) if is_stream else Passes(arrays)
    if is_stream:
        return Stream(arrays.batch(batch_size=size))
    columns = [name for name in known if name in arguments.names] or list(known)
    return Passes(ArrayLoader(data.select_columns(columns), size, shuffle=shuffle, seed=seed))


def _is_batch(row: Mapping[str, Any], arguments: Arguments) -> bool:
    """Whether a row of a data set is a batch that ``batch()`` of the library made, by its numbers of axes."""
    given = row.values() if not any(name in row for name in arguments.names) else map(row.get, arguments.names)
    ranks = [(np.ndim(value), len(shape)) for value, shape in zip(given, arguments.shapes, strict=False) if value is not None]
    return bool(ranks) and all(own == wanted for own, wanted in ranks)


def _whole_arrays(data: Any, arguments: Arguments) -> tuple[list[Any] | None, list[np.ndarray]] | None:
    """Keys and arrays, where the data are arrays rather than batches of them; the keys are None for tuples."""
    if not arguments.names:
        return None
    if is_frame(data):
        if len(arguments.names) == 1 and arguments.names[0] not in data.columns:
            return None, [as_array(data)]
        data = {str(name): data[name] for name in data.columns}
    if isinstance(data, Mapping):
        if not all(map(is_array, data.values())):
            return None
        wanted = [name for name in arguments.names if name in data] or list(data)
        return wanted, [as_array(data[name], f"data[{name!r}]") for name in wanted]
    if is_array(data):
        return None, [as_array(data)]
    if isinstance(data, (tuple, list)) and data and all(map(is_array, data)) and not _is_sequence_of_batches(data, arguments):
        return None, [as_array(a, f"data[{i}]") for i, a in enumerate(data)]
    return None


def _is_sequence_of_batches(data: Any, arguments: Arguments) -> bool:
    """Whether a list of arrays is a list of batches: of tables with the job's columns, or for a job of one input."""
    if all(is_frame(part) and all(name in part.columns for name in arguments.names) for part in data):
        return True
    shapes = arguments.shapes
    return len(shapes) == 1 and all(tuple(a.shape[1:]) == shapes[0][1:] and len(a) <= shapes[0][0] for a in data)


def _hold_batches(arrays: list[np.ndarray], arguments: Arguments) -> bool:
    """Whether the first axis of the arrays counts batches."""
    shapes = arguments.shapes
    if all(isinstance(array, EpochArray) for array in arrays):  # unless they have been cut or reshaped
        return all(array.ndim > len(shape) for array, shape in zip(arrays, shapes, strict=False))
    return bool(shapes) and len(arrays) >= len(shapes) and all(a.shape[1:] == s for a, s in zip(arrays, shapes, strict=False))
