"""Numbering categories in the order in which they first appear."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._base.jax import jnp, lax
from ..errors import ArgumentError, DtypeError, ShapeError
from ..graph.graph import OP_VARIABLE, current
from ..graph.node import Blob
from ._arrays import Array, label
from ._emit import emit_many, fail, op, want
from ._host_call import call_on_host
from ._ordinal_index import OrdinalIndex


class _HostCall:
    """A call of Python from a step: the tables, sizes and keys of one device or of several, with an index for each."""

    def __init__(self, capacity: int):
        self._capacity = capacity
        self._indexes: dict[int, OrdinalIndex] = {}

    def __call__(self, table: Any, size: Any, keys: Any) -> tuple[np.ndarray, ...]:
        """(..., 2 * capacity), (..., 1), (..., n) -> numbers, positions and rows of new keys (..., n), their count (..., 1)."""
        table, size, keys = np.asarray(table), np.asarray(size), np.asarray(keys)
        lead, n = keys.shape[:-1], keys.shape[-1]
        devices = math.prod(lead)
        numbers, rows = np.empty((devices, n), np.int32), np.full((devices, n), table.shape[-1], np.int32)
        first, count = np.zeros((devices, n), np.int32), np.empty((devices, 1), np.int32)
        tables = table.reshape(devices, -1, 2), size.reshape(devices), keys.reshape(devices, n)
        for i, (pairs, used, some) in enumerate(zip(*tables, strict=True)):
            index = self._indexes.setdefault(i, OrdinalIndex(self._capacity))
            numbers[i], new, places = index.encode(pairs, int(used), some)
            first[i, : new.size], rows[i, : new.size], count[i] = new, places, new.size
        return tuple(a.reshape(*lead, -1) for a in (numbers, first, rows, count))


@op("categorical_ordinal_encode", multiple_results=True, nondifferentiable=True)
def _encode(table: Array, size: Array, keys: Array) -> tuple[Array, Array, Array]:
    """The keys' numbers, and the table and its size with the new keys entered.

    The table holds pairs (key, number), in the order of the numbers; key 0 marks a free place. Keys are looked up on the
    host, in an index of the table (``_ordinal_index.py``); the table itself stays on the device, where new pairs are written.
    """
    if keys.size == 0:
        return keys, table, size
    capacity = table.shape[0] // 2
    flat = lax.reshape(jnp.asarray(keys), (keys.size,))
    call = _HostCall(min(capacity, int(np.iinfo(flat.dtype).max)))
    specs = [(flat.shape, np.int32)] * 3 + [(size.shape, np.int32)]
    numbers, first, rows, count = call_on_host(call, specs, table, size, flat, stacked=True)
    fresh = size + lax.iota(size.dtype, keys.size) + jnp.asarray(1, size.dtype)
    pairs = lax.reshape(jnp.asarray(table), (capacity, 2)).at[rows].set(jnp.stack([flat[first], fresh], axis=1), mode="drop")
    new_size = size + lax.convert_element_type(count, size.dtype)
    return lax.reshape(lax.convert_element_type(numbers, keys.dtype), keys.shape), lax.reshape(pairs, table.shape), new_size


def categorical_ordinal_encode(
    table: Blob, size: Blob, input_tensor: Blob, hash_precomputed: bool = True, name: str | None = None
) -> Blob:
    """Numbers 1, 2, 3, ... for keys, in the order in which they first appear; kept in variables from call to call.

    Args:
      table: a variable (2 * capacity,), at first 0: the keys and their numbers.
      size: a variable (1,), at first 0: the number of keys.
      input_tensor: the keys, integers, of any shape and the variables' dtype; key 0 has the number 0.
      hash_precomputed: must be True: the keys are their own hashes.
      name: name of the op.
    Returns: Blob of input_tensor's shape and dtype. New keys have the number 0 once the table is full.
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> numbers = flow.layers.categorical_ordinal_encoder(keys, capacity=1000)
    """
    what = label("categorical_ordinal_encode", name)
    if hash_precomputed is not True:
        fail(ArgumentError, what, "hash_precomputed must be True")
    for argument, blob in (("table", table), ("size", size)):
        if want.blob(what, argument, blob).node.op is not OP_VARIABLE:
            fail(ArgumentError, what, f"{argument} must be a variable", (blob,), "make it with flow.get_variable")
    if not want.blob(what, "input_tensor", input_tensor).dtype.is_integer:
        fail(DtypeError, what, f"keys must be integers, got {input_tensor.dtype.name}", (input_tensor,))
    want.same_dtype(what, (table, size, input_tensor))
    if table.ndim != 1 or table.shape[0] % 2 or size.shape != (1,):
        fail(
            ShapeError,
            what,
            f"table must have shape (2 * capacity,) and size (1,), got {table.shape} and {size.shape}",
            (table, size),
        )
    numbers, new_table, new_size = emit_many(_encode, table, size, input_tensor, name=name)
    graph = current()
    graph.assign(table, new_table)
    graph.assign(size, new_size)
    return numbers
