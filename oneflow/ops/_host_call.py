"""Python functions that a step calls in its middle.

``jax.pure_callback`` copies the arguments to a device first, and waits for a thread of the pool that the step itself occupies:
for ever, where the step has all of them. Here the function gets what XLA passes. Results of 64 bits are passed as pairs of words:
on threads of XLA JAX is not in its 64-bit mode, and would make 32 bits of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .._base import jax_versions
from .._base.jax import jax, jnp, lax

Spec = tuple[tuple[int, ...], Any]  # the shape and the dtype of an array


def call_on_host(
    function: Callable[..., Sequence[np.ndarray]], specs: Sequence[Spec], *arrays: Any, stacked: bool = False
) -> list[Any]:
    """What a function of NumPy arrays returns: arrays of these shapes and dtypes.

    It is called once by each call of the step, also where several devices share it. Vmapped, it is called for one element after
    the other; if ``stacked``, once, with all of them along a further first axis. It may not write to its arguments, nor raise.
    """

    def words(*arrays: Any) -> list[np.ndarray]:
        return [_in_words(np.asarray(made)) for made in function(*arrays)]

    carried = tuple(((*shape, 2), np.dtype(np.uint32)) if _is_wide(dtype) else (shape, dtype) for shape, dtype in specs)
    found = _primitive().bind(*arrays, function=words, specs=carried, stacked=stacked)
    return [lax.bitcast_convert_type(a, d) if _is_wide(d) else a for a, (_, d) in zip(found, specs, strict=True)]


def _is_wide(dtype: Any) -> bool:
    return np.dtype(dtype).itemsize == 8 and np.dtype(dtype).kind in "iuf"


def _in_words(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, order="C")[..., None].view(np.uint32) if _is_wide(array.dtype) else array


@lru_cache(maxsize=1)
def _primitive() -> Any:
    from jax.extend.core import Primitive
    from jax.interpreters import batching, mlir

    primitive = Primitive("call_on_host")
    primitive.multiple_results = True

    def run(*arrays: Any, function: Any, **_: Any) -> list[Any]:
        return [jnp.asarray(made) for made in function(*map(np.asarray, arrays))]

    def shapes(*_: Any, specs: Any, **__: Any) -> list[Any]:
        return [jax.core.ShapedArray(*spec) for spec in specs]

    def lower(context: Any, *operands: Any, function: Any, **_: Any) -> Any:
        results, _, _ = mlir.emit_python_callback(
            context, lambda *arrays: tuple(function(*arrays)), None, list(operands), context.avals_in, context.avals_out,
            has_side_effect=False, sharding=jax_versions.sharding_of_callback(context),
        )  # fmt: skip
        return results

    def batch(arrays: Any, axes: Any, *, specs: Any, stacked: bool, **params: Any) -> Any:
        first = [array if axis is None else jnp.moveaxis(array, axis, 0) for array, axis in zip(arrays, axes, strict=True)]
        varying = [array for array, axis in zip(first, axes, strict=True) if axis is not None]
        if stacked:
            count = varying[0].shape[0]
            whole = [jnp.broadcast_to(a, (count, *a.shape)) if axis is None else a for a, axis in zip(first, axes, strict=True)]
            specs = tuple(((count, *shape), dtype) for shape, dtype in specs)
            return primitive.bind(*whole, specs=specs, stacked=True, **params), [0] * len(specs)

        def one(elements: Any) -> Any:
            some = iter(elements)
            each = [array if axis is None else next(some) for array, axis in zip(first, axes, strict=True)]
            return primitive.bind(*each, specs=specs, stacked=False, **params)

        return lax.map(one, varying), [0] * len(specs)

    primitive.def_impl(run)
    primitive.def_abstract_eval(shapes)
    mlir.register_lowering(primitive, lower)
    batching.primitive_batchers[primitive] = batch
    return primitive
