"""Arrays that synchronise: the end of a loop over one waits for the results of all calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def _nothing_to_wait_for() -> None:
    pass


# ``oneflow/__init__.py`` replaces it by the session's, because this file knows no session
on_epoch_end: Callable[[], None] = _nothing_to_wait_for


class EpochArray(np.ndarray):
    """An ndarray of batches. Iterating over it to the end waits for every call that was submitted.

    It yields plain ndarrays (views of it), one per element of axis 0. Slices of axis 0 behave likewise; a single batch, and
    any result that NumPy computes from it, is a plain ndarray. A loop that is left early (``break``) does not wait:
    ``flow.sync_default_session()`` does. Callbacks that failed raise at the end of the loop.

    Args:
      values: anything that ``np.asarray`` takes; an ndarray is not copied.
    Example: >>> for batch in flow.data.EpochArray(my_batches): predict(batch).async_get(count)
    """

    def __new__(cls, values: Any) -> EpochArray:
        return np.asarray(values).view(cls)

    def __iter__(self) -> Iterator[Any]:
        yield from self.view(np.ndarray)
        on_epoch_end()

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        first = key[0] if isinstance(key, tuple) and key else key
        is_one_batch = isinstance(first, (int, np.integer)) and not isinstance(first, (bool, np.bool_))
        return found.view(np.ndarray) if is_one_batch and isinstance(found, EpochArray) else found

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is not None:
            kwargs["out"] = tuple(map(_plain, out))
        result = getattr(ufunc, method)(*map(_plain, inputs), **kwargs)
        return result if out is None else out[0] if len(out) == 1 else out


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, EpochArray) else value
