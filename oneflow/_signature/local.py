"""Local values: the results of jobs without a return annotation, and the arguments of handlers without one."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base import check
from .._base.refuse import refuse
from ..errors import ResultError
from ..graph.node import Blob


def pieces(value: Any, blob: Blob) -> list[np.ndarray]:
    """Copies of the tensors of which a Blob's value consists: one, or in the mirrored view one per device."""
    if isinstance(value, tuple):  # of different shapes
        return [np.array(array) for array in value]
    whole = np.array(value)
    if not blob.is_mirrored:
        return [whole]
    if whole.ndim > blob.ndim:
        return [piece.copy() for piece in whole]
    return [whole.copy() for _ in range(blob.parallel_size)]  # the same on every device


def up_to(count: Any, value: Any, blob: Blob) -> Any:
    """The valid part of a value whose size is ``count``; in the mirrored view a tuple, one part per device."""
    assert blob.valid_length is not None
    before = (slice(None),) * blob.valid_length.axis
    if not blob.is_mirrored:
        return np.asarray(value)[(*before, slice(int(np.asarray(count).reshape(-1)[0])))]
    sizes = [int(n.reshape(-1)[0]) for n in pieces(count, blob.valid_length.count)]
    return tuple(piece[(*before, slice(n))] for piece, n in zip(pieces(value, blob), sizes, strict=True))


def _device(parallel_id: Any, count: int) -> int:
    found, problem = check.integer(parallel_id, low=-count, high=count - 1)
    if problem:
        refuse(ResultError, f"parallel_id, the number of a device, {problem}")
    return found


class LocalTensor(np.lib.mixins.NDArrayOperatorsMixin):
    """A value that a job returned, in this process's memory. Used as an array it behaves like ``numpy()``.

    ``numpy()`` (``ndarray()``) is the array, ``numpy(i)`` and ``numpy_list()`` are the pieces, one per device.
    """

    __slots__ = ("_pieces", "is_dynamic")

    def __init__(self, pieces: list[np.ndarray], is_dynamic: bool = False):
        self._pieces = pieces
        self.is_dynamic = is_dynamic

    def numpy(self, parallel_id: int | None = None) -> np.ndarray:
        """The whole array, or the piece of one device.

        Raises:
          ResultError: the size of the value varies; ``numpy_list()`` and ``numpy(0)`` return it.
        """
        if parallel_id is not None:
            return self._pieces[_device(parallel_id, len(self._pieces))]
        if self.is_dynamic:
            refuse(ResultError, "the value's size varies from call to call", hint="numpy_list(), or numpy(0)")
        return self._pieces[0] if len(self._pieces) == 1 else np.concatenate(self._pieces)

    def numpy_list(self) -> list[np.ndarray]:
        """The pieces, one per device."""
        return list(self._pieces)

    ndarray = numpy
    ndarray_list = numpy_list

    def parallel_num(self) -> int:
        """The number of pieces."""
        return len(self._pieces)

    def _array(self) -> np.ndarray:
        return self._pieces[0] if self.is_dynamic and len(self._pieces) == 1 else self.numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self._array()
        return np.array(array, dtype, copy=copy) if copy is not None else np.asarray(array, dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = tuple(x._array() if isinstance(x, LocalTensor) else x for x in inputs)
        if "out" in kwargs:
            kwargs["out"] = tuple(x._array() if isinstance(x, LocalTensor) else x for x in kwargs["out"])
        return getattr(ufunc, method)(*plain, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._array(), name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(np.ndarray)})

    def __getitem__(self, key: Any) -> Any:
        return self._array()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._array()[key] = value

    def __len__(self) -> int:
        return len(self._array())

    def __iter__(self) -> Any:
        return iter(self._array())

    def __contains__(self, item: Any) -> bool:
        return item in self._array()

    def __bool__(self) -> bool:
        return bool(self._array())

    def __float__(self) -> float:
        return float(self._array().reshape(-1)[0]) if self._array().size == 1 else float(self._array())

    def __int__(self) -> int:
        return int(self._array().reshape(-1)[0]) if self._array().size == 1 else int(self._array())

    def __format__(self, spec: str) -> str:
        array = self._array()
        return format(array.reshape(-1)[0].item() if spec and array.size == 1 else array, spec)

    def __str__(self) -> str:
        return str(self._array())

    def __repr__(self) -> str:
        return repr(self._array())

    __hash__ = object.__hash__


class LocalTensorList:
    """Lists of tensors that a job returned, one list per device."""

    __slots__ = ("_lists",)

    def __init__(self, lists: list[list[np.ndarray]]):
        self._lists = lists

    def numpy_lists(self) -> list[list[np.ndarray]]:
        """One list of arrays per device."""
        return [list(arrays) for arrays in self._lists]

    ndarray_lists = numpy_lists

    def numpy_list(self, parallel_id: int = 0) -> list[np.ndarray]:
        """The arrays of one device."""
        return list(self._lists[_device(parallel_id, len(self._lists))])

    def parallel_num(self) -> int:
        """The number of devices."""
        return len(self._lists)

    def __repr__(self) -> str:
        return f"<LocalTensorList of {[[a.shape for a in arrays] for arrays in self._lists]}>"
