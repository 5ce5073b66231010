"""The pass that fuses what follows a product or convolution of a predict job into the native part's call.

What is affine per channel behind a product (bias, batch normalization) is folded into its weights and an offset. They depend on
variables alone and are *prepared*: computed and packed when a variable has changed, not per call (``runtime/prepared.py``). The
addition of a residual and an activation are computed by the same call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base import native
from .._base.dtype import dtype
from .._base.jax import jnp, lax
from .._base.rounding import rounded
from ..graph.node import Blob, Node
from ..graph.op import IntegerProduct, Native, OpDef
from . import packed_products as packed
from .analysis import ancestors, in_topological_order
from .int8_analysis import Analysis, Key, affine, channel_of, details, geometry, key_of, role
from .native import is_native
from .packed_products import Affine, Epilogue

_ACTIVATIONS = ("rectify", "gate", "bound")
_MIN_WEIGHTS = 1 << 15  # of a product of few rows; with fewer a call costs more than it gains


@dataclass(slots=True, eq=False)
class Unit:
    """A product and what its call computes behind it.

    Attributes:
      product: the node; ``geometry``: what it computes; ``narrow``: the dtype that it computes in, None for float32.
      steps: ops that are affine per channel.
      residual: what is added to their result; ``activation``: the role of an op behind that, ``low`` and ``high`` its range.
      end: the Blob that it computes; ``nodes``: the nodes that it stands for.
    """

    product: Node
    geometry: IntegerProduct
    narrow: dtype | None
    steps: list[Node] = field(default_factory=list)
    residual: Blob | None = None
    activation: str = ""
    low: float = 0.0
    high: float = 0.0
    end: Blob = field(init=False)
    nodes: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end = self.product.outputs[0]
        self.nodes = [self.product]

    @property
    def kernel(self) -> tuple[int, ...]:
        """The shape of the weights as (O, ..., I)."""
        shape = self.product.inputs[1].shape
        return tuple(shape[i] for i in self.geometry.weight_perm)

    @property
    def data(self) -> tuple[int, ...]:
        """The shape of the data, channels last."""
        shape, perm = self.product.inputs[0].shape, self.geometry.data_perm
        return shape if perm is None else tuple(shape[i] for i in perm)

    @property
    def dtype(self) -> str:
        """The dtype of what is multiplied."""
        return "float32" if self.narrow is None else native.product_dtype(self.narrow.name)

    @property
    def rounds(self) -> bool:
        """Whether that is float32 in the place of bfloat16: rounded numbers."""
        return self.narrow is not None and self.dtype == "float32"

    @property
    def epilogue(self) -> Epilogue:
        """What follows the sums."""
        return Epilogue(False, self.residual is not None, self.activation, low=self.low, high=self.high)

    def unsupported_reason(self) -> str:
        """Why the native part does not compute it; "" if it does."""
        return packed.unsupported_reason(self.data, self.geometry, self.epilogue, self.kernel, self.dtype)

    def has_few_rows(self) -> bool:
        """Whether it is a product of few rows with enough weights for a call to gain by their being packed."""
        is_worth_it = math.prod(self.kernel) >= _MIN_WEIGHTS
        return is_worth_it and packed.has_few_rows(self.data, self.geometry, self.kernel, self.dtype)


@dataclass(frozen=True, slots=True)
class Fused:
    """The nodes of a step with fused products.

    Attributes:
      order: the step's nodes; ``read``: the Blob that stands for each one that is read from outside.
      preparation: the nodes that compute ``prepared``, the Blobs that depend on variables alone.
      precision: the dtypes of nodes that compute in a narrower dtype, copies included.
      kernels: what computes a node that was fused, in words.
      changed: what was done, in words.
    """

    order: tuple[Node, ...]
    read: Callable[[Blob], Blob]
    preparation: tuple[Node, ...]
    prepared: tuple[Blob, ...]
    precision: Mapping[Node, dtype]
    kernels: Mapping[Node, str]
    changed: str


def _units(analysis: Analysis, precision: Mapping[Node, dtype], left: Collection[Node]) -> dict[Node, Unit]:
    """The units, by the nodes of their ends."""
    units: dict[Node, Unit] = {}
    claimed: set[Node] = set()
    for node in reversed(analysis.products):
        if node in left:
            continue
        narrow = precision.get(node)
        found = geometry(node)
        if isinstance(found, str) or node.op.native is None or narrow not in (None, dtypes.bfloat16):
            continue
        unit = Unit(node, found, narrow)
        if unit.unsupported_reason() or not (is_native(node, narrow) or unit.has_few_rows()):
            continue
        _extend(unit, analysis, claimed)
        if unit.unsupported_reason():  # with what is behind it
            unit = Unit(node, found, narrow)
        units[unit.end.node] = unit
        claimed.update(unit.nodes)
    return units


def _extend(unit: Unit, analysis: Analysis, claimed: set[Node]) -> None:
    """Claims the ops behind a product, as far as its call computes them."""
    channel = channel_of(unit.product, unit.geometry)
    while not unit.activation:
        reader = analysis.only_reader(unit.end)
        if reader is None or reader[0] in claimed:
            return
        node, position = reader
        kind = role(node)
        made = node.outputs[0]
        if made.shape != unit.end.shape or made.dtype is not dtypes.float32 or made.is_dynamic:
            return
        if kind == "channelwise" and position == 0 and unit.residual is None:
            if not analysis.is_per_channel(unit.end, channel, node):
                return
            unit.steps.append(node)
        elif kind == "residual" and unit.residual is None:
            other = node.inputs[1 - position]
            if other.shape != made.shape or other.dtype is not dtypes.float32:
                return
            unit.residual = other
        elif kind in _ACTIVATIONS:
            if kind == "bound":
                low, high = details(node)
                if low != 0 or high is None or not 0 < native.float_bits(high) < native.float_bits(np.inf):  # as float32
                    return
                unit.low, unit.high = float(low), float(high)
            unit.activation = kind
        else:
            return
        unit.nodes.append(node)
        unit.end = made


def fused(
    order: Sequence[Node],
    roots: Sequence[Blob],
    written: set[str],
    precision: Mapping[Node, dtype],
    left: Collection[Node] = (),
) -> Fused | None:
    """Fuses what the native part computes behind products into their calls, on one device.

    Args:
      order: in topological order.
      roots: the Blobs that are read from outside.
      written: names of variables that the job changes.
      precision: the dtypes of nodes that compute in a narrower dtype.
      left: products that another call computes.
    Returns: None where there is nothing to fuse.
    """
    units = _units(Analysis(order, roots, written), precision, left)
    if not units:
        return None
    claimed = {node for unit in units.values() for node in unit.nodes}
    made: dict[Key, Blob] = {}
    narrow = dict(precision)
    work: list[Node] = []
    prepared: list[Blob] = []

    def read(blob: Blob) -> Blob:
        found = made.get(key_of(blob))
        if found is None:
            return blob
        return found if found.distribute == blob.distribute else found.copy(distribute=blob.distribute)

    kernels: dict[Node, str] = {}
    for node in order:
        if node in units:
            unit = units[node]
            weights, offset = _prepared(unit)
            prepared += (weights, offset)
            copy = _call(unit, read, weights, offset)
            made[key_of(unit.end)] = copy.outputs[0]
            kernels.update((n, f"with {unit.product.name}") for n in unit.nodes)
            kernels[unit.product] = _describe((), copy.attrs)
        elif node in claimed:
            continue
        else:
            copy = node
            if any(read(b) is not b for b in node.inputs):
                copy = node.copy(read)
                made.update((key_of(old), new) for old, new in zip(node.outputs, copy.outputs, strict=True))
                if node in precision:
                    narrow[copy] = precision[node]
        work.append(copy)
    needed = ancestors(list(map(read, roots)), {key_of(b) for b in prepared})
    count = len(claimed) - len(units)
    changed = f"{len(units)} products with packed weights, {count} ops behind them in the same calls"
    return Fused(
        tuple(n for n in work if n in needed), read, in_topological_order(prepared), tuple(prepared), narrow, kernels, changed
    )


def _prepared(unit: Unit) -> tuple[Blob, Blob]:
    """Packed weights and offset of a unit, which depend on variables alone."""
    steps, constants = affine(unit.steps)
    channel = channel_of(unit.product, unit.geometry)
    node, w = unit.product, unit.product.inputs[1]
    fold = {"perm": unit.geometry.weight_perm, "steps": steps, "rank": node.outputs[0].ndim, "channel": channel}
    weights, offset = packed.node_like(FOLD, node, (w, *constants), **fold, rounds=unit.rounds).outputs
    pack = packed.packing(unit.data, unit.geometry, unit.epilogue, unit.kernel, unit.dtype)
    return packed.node_like(packed.PACK, node, (weights,), **pack).outputs[0], offset


def _call(unit: Unit, read: Callable[[Blob], Blob], weights: Blob, offset: Blob) -> Node:
    node = unit.product
    inputs = (read(node.inputs[0]), weights, offset, *(() if unit.residual is None else (read(unit.residual),)))
    attrs = {"product": unit.geometry, "epilogue": unit.epilogue, "kernel": unit.kernel, "dtype": unit.dtype, "data": unit.data,
             "rounds": unit.rounds}  # fmt: skip
    return node.copy(op=PRODUCT, inputs=inputs, attrs=attrs, outputs=[unit.end])


# --- what is computed


def _fold(
    w: Any, *constants: Any, perm: tuple[int, ...], steps: Affine, rank: int, channel: int, rounds: bool
) -> tuple[Any, Any]:
    """Weights as (O, ..., I) and an offset with which a product computes what ``steps`` make of its result.

    ``rounds``: the weights to the values that bfloat16 has, as the native part does where it packs weights in bfloat16.
    """
    w = jnp.transpose(w, perm).astype(np.float32)
    offset = jnp.zeros(w.shape[:1], np.float32)
    if steps:
        offset, slope = packed.offset_and_slope(steps, constants, rank, channel, w.shape[0])
        w = w * lax.expand_dims(slope, range(1, w.ndim))
    return rounded(w) if rounds else w, offset


def _product(
    x: Any, w: Any, offset: Any, *residual: Any, product: IntegerProduct, epilogue: Epilogue, kernel: tuple[int, ...], dtype: str,
    data: tuple[int, ...], rounds: bool,
) -> Any:  # fmt: skip
    """A product of float32 data and packed weights, computed in ``dtype``.

    ``data``: the shape of data, channels last. ``rounds``: data to the values that bfloat16 has.
    """
    perm = product.data_perm

    def entering(array: Any) -> Any:
        array = array if dtype == "float32" else array.astype(dtypes.bfloat16.numpy_dtype)
        return array if perm is None else jnp.transpose(array, perm)

    y = packed.call(entering(rounded(x) if rounds else x), w, (offset, *map(entering, residual)), product, epilogue, kernel)
    y = y.astype(np.float32)
    return y if perm is None else jnp.transpose(y, tuple(perm.index(i) for i in range(len(perm))))


def _channels_last(attrs: Mapping[str, Any], rank: int) -> Mapping[str, Any] | None:
    product = attrs["product"]
    return None if product.data_perm is None else {**attrs, "product": replace(product, data_perm=None)}


def _describe(arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str:
    name = packed.kernel_name(attrs["data"], attrs["product"], attrs["epilogue"], attrs["kernel"], attrs["dtype"])
    return f"{name}, packed weights{', of numbers rounded to bfloat16' if attrs['rounds'] else ''}"


FOLD = OpDef("fold_weights", _fold, multiple_results=True)
PRODUCT = OpDef(
    "packed_product", _product, channels_last=_channels_last, native=Native(_product, lambda arrays, attrs: None, _describe)
)
