"""From what a step fetches to what a call returns."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .._base.refuse import refuse
from .._signature.local import LocalTensor, LocalTensorList, pieces, up_to
from ..errors import ReturnError
from ..graph.node import Blob
from ..runtime.fast_path import looking
from ..runtime.result import ArraySpec
from ..runtime.transfer import first_to_host, to_host

Look = tuple[int, Callable[[Any], None]]  # the place of a result, and what is called with its values


class Conversion(NamedTuple):
    """How values of calls are made.

    Attributes:
      convert: from fetched device arrays to the value.
      look: to be called with each value; None for nothing.
    """

    convert: Callable[[Any], Any]
    look: Callable[[Any], None] | None


def converter(leaves: list[Blob], rebuild: Callable[[list[Any]], Any], kinds: list[str], look: Look | None = None) -> Conversion:
    """From fetched device arrays to the value of a call. Behind the leaves come the counts of those that have a valid length."""
    if not leaves:
        return Conversion(lambda arrays: rebuild([]), None)
    each = [_leaf_converter(kind, blob) for kind, blob in zip(kinds, leaves, strict=True)]
    probe = object()
    if len(each) == 1 and leaves[0].valid_length is None and rebuild([probe]) is probe:
        only = each[0]
        convert = first_to_host if only is to_host else lambda arrays: only(arrays[0])
        return Conversion(convert, None if look is None else look[1])
    if look is not None:
        each[look[0]] = looking(each[look[0]], look[1])
    if any(blob.valid_length is not None for blob in leaves):
        cut = _cutter(leaves, kinds)
        return Conversion(lambda arrays: rebuild([make(array) for make, array in zip(each, cut(arrays), strict=True)]), None)
    return Conversion(lambda arrays: rebuild([make(array) for make, array in zip(each, arrays, strict=True)]), None)


def array_spec(leaves: list[Blob], rebuild: Callable[[list[Any]], Any], kinds: list[str]) -> ArraySpec | None:
    """Shape and dtype of what a call returns; None unless that is one array of a fixed shape."""
    probe = object()
    if len(leaves) != 1 or rebuild([probe]) is not probe or kinds[0] not in ("Numpy", "local", "joined local"):
        return None
    blob = leaves[0]
    shape = delivered_shape(blob)
    is_cut = blob.valid_length is not None and kinds[0] != "Numpy"
    if shape is None or is_cut or blob.is_dynamic or blob.is_tensor_list:
        return None
    return ArraySpec(shape, blob.dtype.numpy_dtype)


def delivered_shape(blob: Blob) -> tuple[int, ...] | None:
    """The shape of a Blob's value in what a call returns; None where pieces of rank 0 would have to be joined.

    Joined along axis 0 are the pieces of micro-batches and of the devices of the mirrored view.
    """
    count = prod(blob.node.repetition) * (blob.parallel_size if blob.is_mirrored else 1)
    if count == 1:
        return tuple(blob.shape)
    return (count * blob.shape[0], *blob.shape[1:]) if blob.shape else None


def _on_host(value: Any) -> Any:
    """The value in this process's memory; a tuple of arrays has tensors of different shapes."""
    return tuple(map(to_host, value)) if isinstance(value, tuple) else to_host(value)


def _cutter(leaves: list[Blob], kinds: list[str]) -> Callable[[Any], list[Any]]:
    """From arrays and counts to arrays of their true sizes. A static Blob with a valid length keeps its shape as tp.Numpy."""
    is_cut = [b.valid_length is not None and kind != "Numpy" for b, kind in zip(leaves, kinds, strict=True)]
    places = list(accumulate((b.valid_length is not None for b in leaves), initial=len(leaves)))

    def cut(arrays: Any) -> list[Any]:
        return [
            up_to(arrays[places[i]], arrays[i], blob) if is_cut[i] else arrays[i] for i, blob in enumerate(leaves)
        ]  # fmt: skip

    return cut


def _leaf_converter(kind: str, blob: Blob) -> Callable[[Any], Any]:
    if kind == "Numpy":
        if blob.is_dynamic:
            refuse(ReturnError, f"Blob {blob.op_name!r} varies in size and cannot be returned as tp.Numpy",
                   hint="annotate it with tp.ListNumpy", source=blob.source)  # fmt: skip
        return to_host if not blob.is_mirrored else lambda value: _joined(value, blob)
    if kind == "joined ListNumpy":
        return lambda value: [_joined(value, blob)]
    if kind == "joined local" and not blob.is_tensor_list:
        return lambda value: LocalTensor([_joined(value, blob)])
    if kind == "ListNumpy":
        return lambda value: pieces(_on_host(value), blob)
    if kind == "ListListNumpy" or blob.is_tensor_list:
        if kind == "ListListNumpy":
            return lambda value: _lists(value, blob)
        return lambda value: LocalTensorList(_lists(value, blob))
    return lambda value: LocalTensor(pieces(_on_host(value), blob), blob.is_dynamic)


def _joined(value: Any, blob: Blob) -> np.ndarray:
    """The devices' pieces as one array."""
    found = pieces(_on_host(value), blob)
    return found[0] if len(found) == 1 else np.concatenate(found)


def _lists(value: Any, blob: Blob) -> list[list[np.ndarray]]:
    """The arrays of a tensor list, for each device of the mirrored view."""
    return [[to_host(array) for array in arrays] for arrays in (value if blob.is_mirrored else (value,))]
