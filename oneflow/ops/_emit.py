"""From a call in a job's body to a node: argument checks, abstract evaluation, errors at the user's line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, NoReturn, TypeGuard

import numpy as np

from .._base import check
from .._base import dtype as dtypes
from .._base.dist import Distribute
from .._base.dtype import dtype
from .._base.jax import jax
from .._base.refuse import shown
from .._base.registry import enter
from .._base.source import caller
from ..errors import ArgumentError, AxisError, DtypeError, OneFlowError, ShapeError
from ..graph.graph import current
from ..graph.node import Blob
from ..graph.op import OpDef
from ..graph.op import as_is as as_is
from ..graph.op import moved_axis as moved_axis
from ..graph.op import moved_entries as moved_entries
from ..graph.op import with_moved_axis as with_moved_axis
from ..graph.views import in_current_view

OPS: dict[str, OpDef] = {}
LARGEST = 2**31 - 1  # of sizes, strides, positions: XLA counts in int32 in many places
MOST_ELEMENTS = 2**40  # of one Blob: a terabyte is a mistake

# Emits ops on Blobs whose size depends on data. _dynamic_rules.py sets it; without that file there are none.
treat_dynamic_size: Callable[..., tuple[Blob, ...]] | None = None


def op(
    name: str | None = None, *, nondifferentiable: Iterable[int] | bool = (), **facts: Any
) -> Callable[[Callable[..., Any]], OpDef]:
    """Makes an op of a function over arrays. ``facts`` are fields of ``graph.op.OpDef``, which says what they mean."""

    def make(define: Callable[..., Any]) -> OpDef:
        op_name = name or define.__name__.lstrip("_")
        positions = nondifferentiable if isinstance(nondifferentiable, bool) else frozenset(nondifferentiable)
        made = OpDef(op_name, define, nondifferentiable=positions, **facts)
        enter(OPS, op_name, made, f"an op named {op_name!r}")
        return made

    return make


def fail(error: type[OneFlowError], what: str, rule: str, inputs: Sequence[Any] = (), hint: str = "") -> NoReturn:
    """Raises ``error`` in the common layout: the broken rule, the values and where they were made, the user's line, a way out."""
    graph, line = current(what), caller()
    rows = [f"{what} in job {graph.name!r}: {rule}"]
    for i, value in enumerate(inputs):
        if isinstance(value, Blob):
            rows.append(f"  inputs[{i}]  {value.op_name}   {value.describe()}   made at {value.source}")
        else:
            rows.append(f"  inputs[{i}]  {shown(value)}")
    rows.append(f"  your line  {line}   {line.text}")
    if hint:
        rows.append(f"  try        {hint}")
    raise error("\n".join(rows))


@lru_cache(maxsize=1)
def _key_aval() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))


@lru_cache(maxsize=4096)
def _infer(op: OpDef, avals: tuple[tuple[tuple[int, ...], Any], ...], attrs: tuple[tuple[str, Any], ...]) -> Any:
    arrays = [jax.ShapeDtypeStruct(shape, np_dtype) for shape, np_dtype in avals]
    keywords = dict(attrs)
    with jax.enable_x64(True):
        if op.random:
            outputs = jax.eval_shape(lambda key, *xs: op.define(*xs, key=key, **keywords), _key_aval(), *arrays)
        else:
            outputs = jax.eval_shape(partial(op.define, **keywords), *arrays)
    return [(tuple(o.shape), dtypes.of_values(o.dtype)) for o in (outputs if op.multiple_results else (outputs,))]


def infer(op: OpDef, inputs: Sequence[Blob], attrs: dict[str, Any]) -> list[tuple[tuple[int, ...], dtype]]:
    """Shapes and dtypes of the outputs, by abstract evaluation of the op's definition."""
    avals = tuple((b.shape, b.dtype.numpy_dtype) for b in inputs)
    try:
        return _infer(op, avals, tuple(sorted(attrs.items())))
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _infer.__wrapped__(op, avals, tuple(attrs.items()))


Outputs = Sequence[tuple[tuple[int, ...], dtype]]


def _emit(
    op: OpDef,
    inputs: tuple[Blob, ...],
    name: str | None,
    prefix: str | None,
    attrs: dict[str, Any],
    bounds: Outputs | None = None,
) -> tuple[Blob, ...]:
    what = f"{op.name} {shown(name)}" if name is not None else op.name
    graph = current(what)
    if name is not None and not isinstance(name, str):
        fail(ArgumentError, what, f"name must be a str, got {shown(name)}")
    for i, x in enumerate(inputs):
        if not isinstance(x, Blob):
            fail(ArgumentError, what, f"inputs[{i}] must be a Blob, got {type(x).__name__}", inputs,
                 "make a constant with flow.constant(value, dtype, shape), or feed arrays as inputs of the job")  # fmt: skip
        if x.dtype in dtypes.HOST_ONLY:
            fail(DtypeError, what, f"inputs[{i}] is of {x.dtype}, which this op does not take", inputs,
                 "make an array of it: flow.tensor_buffer_to_tensor(...), or a decoder of flow.data for records")  # fmt: skip
        if x.is_tensor_list:
            fail(ArgumentError, what, f"inputs[{i}] is a list of tensors (ListListNumpy), which this op does not take", inputs)
    inputs = in_view(what, *inputs)
    if graph.adapt_inputs is not None:
        inputs = graph.adapt_inputs(op, inputs)
    if any(x.has_dynamic_size for x in inputs):
        assert treat_dynamic_size is not None
        return treat_dynamic_size(what, op, inputs, name, prefix, attrs)
    return add_node(what, op, inputs, name, prefix, attrs, bounds)


def add_node(
    what: str,
    op: OpDef,
    inputs: tuple[Blob, ...],
    name: str | None,
    prefix: str | None,
    attrs: dict[str, Any],
    bounds: Outputs | None = None,
) -> tuple[Blob, ...]:
    """Adds the node itself. ``what`` is its name in errors; ``bounds`` see ``emit_bounded``."""
    problem: Exception | None = None
    try:
        outputs = infer(op, inputs, attrs) if bounds is None else list(bounds)
    except OneFlowError:
        raise
    except Exception as error:
        problem = error
    if problem is not None:  # outside the handler: JAX's own traceback would bury the message
        text = str(problem)
        kind = DtypeError if "dtype" in text and "shape" not in text else ShapeError
        fail(kind, what, text.splitlines()[0] if text else type(problem).__name__, inputs)
    for shape, _ in outputs:
        if math.prod(shape) > MOST_ELEMENTS:
            fail(ShapeError, what, f"the result would have shape {shape}: {math.prod(shape):.1e} elements", inputs)
    axes = [(b.batch_axis, b.shape[b.batch_axis]) for b in inputs if b.batch_axis >= 0]
    first = outputs[0][0] if outputs else ()
    batch_axis = next((axis for axis, size in axes if axis < len(first) and first[axis] == size), None)
    node = current(what).add(
        op, inputs, attrs, outputs, name=name, prefix=prefix or camel(op.name),
        batch_axis=batch_axis, is_dynamic=any(b.is_dynamic for b in inputs),
    )  # fmt: skip
    return node.outputs


def emit(op: OpDef, *inputs: Blob, name: str | None = None, prefix: str | None = None, **attrs: Any) -> Blob:
    """Adds a node with one output to the current job, and returns its Blob.

    ``prefix`` numbers unnamed nodes (``Conv2d_0``); it defaults to the op's name in camel case. Attributes should be
    hashable (tuples, not lists): the abstract evaluation is cached by them.
    """
    return _emit(op, inputs, name, prefix, attrs)[0]


def in_view(what: str, *blobs: Blob) -> tuple[Blob, ...]:
    """The Blobs in the current view, in which an op sees their shapes. What an op does not take stays as it is."""
    graph = current(what)
    if graph.scope.placement.parallel_num == 1 and not any(blob.is_mirrored for blob in blobs):
        return blobs
    kept = dtypes.HOST_ONLY
    return tuple(blob if blob.is_tensor_list or blob.dtype in kept else in_current_view(graph, blob) for blob in blobs)


def emit_bounded(op: OpDef, *inputs: Blob, bounds: Outputs, name: str | None = None, **attrs: Any) -> tuple[Blob, ...]:
    """``emit_many`` for inputs whose sizes vary: the largest shapes that the outputs can have, and their dtypes, are given.

    The largest sizes of the inputs need not fit together; the op itself checks the true ones, when a call's are known.
    """
    return _emit(op, inputs, name, None, attrs, bounds)


def emit_many(op: OpDef, *inputs: Blob, name: str | None = None, prefix: str | None = None, **attrs: Any) -> tuple[Blob, ...]:
    """``emit`` for an op with several outputs."""
    return _emit(op, inputs, name, prefix, attrs)


def camel(name: str) -> str:
    """An op's name as a prefix of node names: ``gather_nd`` becomes ``GatherNd``."""
    return "".join(part.capitalize() for part in name.split("_"))


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether it is a Python or NumPy number, bools included, and not an array."""
    return isinstance(value, (int, float, np.number, np.bool_))


class want:
    """Checks of arguments. Each returns the value in its normal form, or raises an error with the user's line."""

    @staticmethod
    def blob(what: str, argument: str, value: Any) -> Blob:
        if not isinstance(value, Blob):
            hint = "feed arrays as inputs of the job, or make a constant with flow.constant(value, dtype, shape)"
            # of an op with several results
            if isinstance(value, (tuple, list)) and any(isinstance(each, Blob) for each in value):
                hint = "give one of its elements, as in result[0]"
            fail(ArgumentError, what, f"{argument} must be a Blob, got {type(value).__name__} {shown(value)}", (), hint)
        return value

    @staticmethod
    def blobs(what: str, argument: str, values: Any) -> list[Blob]:
        if not isinstance(values, (list, tuple)) or not values:
            fail(ArgumentError, what, f"{argument} must be a list or tuple of at least one Blob, got {shown(values)}")
        return list(in_view(what, *(want.blob(what, f"{argument}[{i}]", value) for i, value in enumerate(values))))

    @staticmethod
    def same_dtype(what: str, blobs: Sequence[Blob]) -> None:
        if len({b.dtype for b in blobs}) > 1:
            found = " and ".join(dict.fromkeys(b.dtype.name for b in blobs))
            fail(DtypeError, what, f"inputs must have one dtype, got {found}; Blobs are never converted implicitly", blobs,
                 f"convert with flow.cast(blob, flow.{blobs[0].dtype.name})")  # fmt: skip

    @staticmethod
    def same_shape(what: str, blobs: Sequence[Blob]) -> None:
        blobs = in_view(what, *blobs)
        if len({b.shape for b in blobs}) > 1:
            fail(ShapeError, what, "inputs must have equal shapes, got " + " and ".join(str(b.shape) for b in blobs), blobs)

    @staticmethod
    def floating(what: str, blob: Blob) -> None:
        if not blob.dtype.is_floating_point:
            fail(DtypeError, what, f"needs a floating-point Blob, got {blob.dtype.name}", (blob,),
                 "convert with flow.cast(blob, flow.float32)")  # fmt: skip

    @staticmethod
    def rank(what: str, blob: Blob, low: int, high: int | None = None) -> None:
        if blob.ndim < low or (high is not None and blob.ndim > high):
            expected = f"{low}" if high == low else f"at least {low}" if high is None else f"{low} to {high}"
            fail(ShapeError, what, f"needs a Blob of rank {expected}, got rank {blob.ndim}", (blob,))

    @staticmethod
    def axis(what: str, axis: Any, rank: int, argument: str = "axis", inputs: Sequence[Any] = (), hint: str = "") -> int:
        """An axis in [-rank, rank), as a non-negative int; ``hint`` is the way out where it is outside."""
        found, problem = check.integer(axis)
        if problem:
            fail(ArgumentError, what, f"{argument} {problem}", inputs)
        if not -rank <= found < rank:
            fail(AxisError, what, f"{argument}={shown(axis)} is outside [{-rank}, {rank})", inputs, hint)
        return found % rank

    @staticmethod
    def axes(what: str, axis: Any, rank: int, argument: str = "axis", inputs: Sequence[Any] = ()) -> tuple[int, ...]:
        """Axes from None (all of them), an int, or a list or tuple of ints; sorted, without duplicates."""
        if axis is None:
            return tuple(range(rank))
        many = axis if isinstance(axis, (list, tuple)) else [axis]
        return tuple(sorted({want.axis(what, a, rank, argument, inputs) for a in many}))

    @staticmethod
    def ints(what: str, argument: str, value: Any, length: int | None = None) -> tuple[int, ...]:
        """An int (repeated ``length`` times) or a sequence of ``length`` ints."""
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and length is not None:
            return (want.integer(what, argument, value),) * length
        ok = isinstance(value, (list, tuple)) and all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in value)
        if not ok or (length is not None and len(value) not in (1, length)):
            size = "ints" if length is None else f"an int or {length} ints"
            fail(ArgumentError, what, f"{argument} must be {size}, got {shown(value)}")
        values = tuple(int(v) for v in value)
        if any(abs(v) > LARGEST for v in values):
            fail(ArgumentError, what, f"{argument} must hold ints up to {LARGEST}, got {shown(value)}")
        return values * length if length is not None and len(values) == 1 else values

    @staticmethod
    def integer(
        what: str, argument: str, value: Any, low: int | None = None, inputs: Sequence[Any] = (), *, high: int | None = None
    ) -> int:
        """One int, at least ``low`` and at most ``high`` where these are given."""
        found, problem = check.integer(value, low=low, high=high)
        if not problem and abs(found) > LARGEST:
            problem = f"must be an int of at most {LARGEST}, got {shown(value)}"
        if problem:
            fail(ArgumentError, what, f"{argument} {problem}", inputs)
        return found

    @staticmethod
    def number(what: str, argument: str, value: Any, inputs: Sequence[Any] = (), *, hint: str = "", **bounds: Any) -> float:
        """One number within the bounds, which ``_base/check.py`` describes."""
        found, problem = check.number(value, **bounds)
        if problem:
            fail(ArgumentError, what, f"{argument} {problem}", inputs, hint)
        return found

    @staticmethod
    def flag(what: str, argument: str, value: Any, inputs: Sequence[Any] = ()) -> bool:
        """True or False; 0 and 1 are accepted for them."""
        if not isinstance(value, (bool, np.bool_)) and not (isinstance(value, int) and value in (0, 1)):
            fail(ArgumentError, what, f"{argument} must be True or False, got {shown(value)}", inputs)
        return bool(value)

    @staticmethod
    def label(what: str, argument: str, value: Any) -> str | None:
        """An optional name: None or a non-empty str."""
        if value is not None and (not isinstance(value, str) or not value):
            fail(ArgumentError, what, f"{argument} must be None or a non-empty str, got {shown(value)}")
        return value

    @staticmethod
    def distribution(what: str, argument: str, value: Any, inputs: Sequence[Any] = ()) -> Distribute:
        if not isinstance(value, Distribute):
            fail(ArgumentError, what, f"{argument} must be a distribution, got {shown(value)}", inputs,
                 "write flow.distribute.split(axis), flow.distribute.broadcast() or flow.distribute.auto()")  # fmt: skip
        return value

    @staticmethod
    def choice(what: str, argument: str, value: Any, choices: Sequence[str]) -> str:
        if not isinstance(value, str) or value not in choices:
            fail(ArgumentError, what, f"{argument} must be one of {', '.join(map(repr, choices))}, got {shown(value)}")
        return value
