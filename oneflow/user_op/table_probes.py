"""Op types that exercise the builder itself: outputs of given dtypes and shapes, several inputs and outputs, and sources.

OneFlow registers them for tests of ``flow.user_op_builder``; what they compute is as simple as can be.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.jax import jax, jnp
from ..errors import ArgumentError
from ..graph.graph import current
from ..graph.node import Blob
from ..graph.op import OpDef
from ..graph.scopes import mirrored_view_enabled
from ..ops import constant, masks
from ..ops._emit import emit, fail, want
from ..ops.distribution import balanced
from .registry import Attributes, Inputs, arrays, emit_arrays, row

_SIZE = 5  # of the sources
_TRUE_SIZE = 3  # of the dynamic one


def _of_type(i: Inputs, a: Attributes, n: str) -> Blob:
    return constant.constant(0, a["output_type"], i["in"].shape, name=n)


row("TestDataTypeAttr (in) -> (out) {output_type: dtype}", _of_type)


def _of_types_and_shapes(i: Inputs, a: Attributes, n: str) -> list[Blob]:
    shapes, types = a["out_shapes"], a["out_types"]
    if len(shapes) != len(types):
        fail(ArgumentError, f"user op {n!r}", f"there are {len(shapes)} out_shapes and {len(types)} out_types")
    return [constant.constant(0, t, s, name=f"{n}-{k}") for k, (s, t) in enumerate(zip(shapes, types, strict=True))]


row("""TestListDataTypeAndListShapeAndListStringAttr (in) -> (out(>=1))
    {out_shapes: list[Shape]; out_types: list[dtype]; string_list: list[str]}""", _of_types_and_shapes)  # fmt: skip


def _first(x1: Any, x2: Any) -> Any:
    """x1; the gradients are constants that tell the inputs apart: ones to x1, twos to x2."""
    first = jax.custom_vjp(lambda a, b: a)
    first.defvjp(lambda a, b: (a, (a, b)), lambda saved, _: tuple(jnp.full_like(x, k) for k, x in enumerate(saved, 1)))
    return first(x1, x2)


row("TestMultiInput (x1, x2) -> (y)", arrays(_first, "x1", "x2", differentiable=True))
row("TestMultiInputGrad (x1, x2, y_diff) -> (x1_diff, x2_diff)",
    arrays(lambda x1, x2, dy: (jnp.full_like(x1, 1), jnp.full_like(x2, 2)), "x1", "x2", "y_diff", outputs=2))  # fmt: skip


def _and_zeros(x: Any) -> tuple[Any, Any]:
    return x, jnp.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)


row("TestMultiOutputOrder (in) -> (out1, out2)", arrays(_and_zeros, "in", outputs=2))


def _counted(*, sizes: tuple[int, ...]) -> Any:
    return jnp.concatenate([jnp.arange(size, dtype=np.float32) for size in sizes])


def _of_samples(blob: Blob) -> Blob:
    blob.batch_axis = 0
    return blob


def _source(i: Inputs, a: Attributes, n: str) -> Blob:
    return _of_samples(emit_arrays(_counted, [], {"sizes": (_SIZE,)}, n)[0])


def _dynamic_source(i: Inputs, a: Attributes, n: str) -> Blob:
    (counted,) = emit_arrays(_counted, [], {"sizes": (_SIZE,)}, f"{n}-counted")
    return masks.sync_dynamic_resize(_of_samples(counted), constant.constant(_TRUE_SIZE, dtypes.int32, name=f"{n}-size"), name=n)


def _source_per_device(i: Inputs, a: Attributes, n: str) -> Blob:
    """Each device counts its own piece from 0."""
    what = f"user op {n!r}"
    placement = current(what).scope.placement
    devices = 1 if mirrored_view_enabled() else placement.parallel_num
    total = want.integer(what, "out_num", a["out_num"], devices)
    return _of_samples(emit_arrays(_counted, [], {"sizes": balanced(total, devices)}, n)[0])


row("TestSource () -> (out)", _source)
row("TestDynamicSource () -> (out)", _dynamic_source)
row("TestSourceMultiGpuFixedOutNum () -> (out) {out_num: int64}", _source_per_device)

_RANDOM = OpDef(
    "test_random_source", lambda *, seed, key: jax.random.uniform(key, (_SIZE,), np.float32), nondifferentiable=True, random=True
)
row("TestRandomSource () -> (out) {seed: int64}", lambda i, a, n: _of_samples(emit(_RANDOM, name=n, seed=a["seed"])))
row("test_user_op_attr_auto_type (in) -> (out) {int1: int32; int2: int32}", None,
    "it serves OneFlow's own tests, and its result is documented nowhere")  # fmt: skip
