"""Numbering categories in the order in which they first appear."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.jax import jnp, lax
from ..errors import ArgumentError, DtypeError, ShapeError
from ..graph.graph import OP_VARIABLE, current
from ..graph.node import Blob
from ._arrays import Array, label
from ._emit import emit_many, fail, op, want


def _homes(keys: Array, capacity: int) -> Array:
    """The keys, as unsigned 64-bit numbers, modulo the capacity; without 64-bit arithmetic, which is off in most jobs."""
    wide = keys if keys.dtype.itemsize == 8 else lax.convert_element_type(keys, np.int32)
    rest = lax.rem(wide, lax.full_like(wide, capacity))
    negative = lax.lt(wide, lax.full_like(wide, 0))
    rest = lax.select(negative, rest + (1 << 64) % capacity, rest)
    rest = lax.select(lax.lt(rest, lax.full_like(rest, 0)), rest + capacity, rest)
    return lax.convert_element_type(rest, np.int32)


@op("categorical_ordinal_encode", multiple_results=True, nondifferentiable=True)
def _encode(table: Array, size: Array, keys: Array) -> tuple[Array, Array, Array]:
    """The keys' numbers, and the table and its size with the new keys entered.

    The table holds pairs (key, number) at the key's hash (the key itself) modulo the capacity, or behind it where that
    slot is in use; key 0 marks a free slot. Known keys are looked up all at once, new ones entered one by one.
    """
    table, size, keys = jnp.asarray(table), jnp.asarray(size), jnp.asarray(keys)  # indexed by traced numbers below
    capacity = table.shape[0] // 2
    if keys.size == 0:
        return table, size, keys
    flat = lax.reshape(keys, (keys.size,))
    zero, one = np.int32(0), np.int32(1)
    homes = _homes(flat, capacity)

    def place(home: Array, distance: Array) -> Array:
        return lax.rem(home + distance, lax.full_like(home, capacity))

    def look(state: Any) -> Any:
        distance, numbers, searching = state
        at = place(homes, distance)
        found, number = table[2 * at], table[2 * at + 1]
        hit = lax.bitwise_and(searching, lax.eq(found, flat))
        free = lax.eq(found, lax.full_like(found, 0))
        return distance + one, lax.select(hit, number, numbers), searching & ~hit & ~free

    start = (zero, lax.full_like(flat, 0), lax.ne(flat, lax.full_like(flat, 0)))
    _, numbers, _ = lax.while_loop(lambda s: (s[0] < capacity) & jnp.any(s[2]), look, start)

    new = lax.eq(numbers, lax.full_like(numbers, 0)) & lax.ne(flat, lax.full_like(flat, 0))
    order = jnp.argsort(~new, stable=True).astype(np.int32)
    count = jnp.sum(new, dtype=np.int32)

    def enter(state: Any) -> Any:
        i, table, size, numbers = state
        key, home = flat[order[i]], homes[order[i]]

        def taken(distance: Array) -> Array:
            found = table[2 * place(home, distance)]
            return (distance < capacity) & (found != 0) & (found != key)

        distance = lax.while_loop(taken, lambda d: d + one, zero)
        at = 2 * place(home, distance)
        fits = distance < capacity
        fresh = fits & (table[at] == 0)
        size = size + fresh.astype(size.dtype)
        number = lax.select(fresh, size[0].astype(table.dtype), table[at + 1])
        table = table.at[at].set(lax.select(fits, key, table[at])).at[at + 1].set(number)
        return i + one, table, size, numbers.at[order[i]].set(lax.select(fits, number, lax.full_like(number, 0)))

    _, table, size, numbers = lax.while_loop(lambda s: s[0] < count, enter, (zero, table, size, numbers))
    return lax.reshape(numbers, keys.shape), table, size


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
