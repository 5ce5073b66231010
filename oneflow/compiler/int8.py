"""The pass that turns products and convolutions of a predict job into 8-bit integers.

A *unit* is a product with the ops behind it that its kernel computes as well: what is affine per channel (bias, batch
normalization), the addition of a residual, an activation. Where all that reads a unit's result reads integers (other products,
residuals, the largest of a window, reshapes of those), it writes integers, and no float32 array exists between them. Data of
convolutions is in channels-last order as integers. What depends on variables alone (quantized weights, folded scales and offsets)
is *prepared*: computed when a variable has changed, not per call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ModeError
from ..graph.node import Blob, Node
from ..graph.op import IntegerProduct, OpDef
from . import int8_kernels as kernels
from . import packed_products as packed
from .analysis import ancestors, in_topological_order
from .int8_analysis import (
    INSTEAD,
    Analysis,
    Key,
    affine,
    channel_of,
    details,
    geometry,
    grids_of,
    key_of,
    passes_integers,
    role,
)
from .int8_kernels import Grid
from .packed_products import Epilogue

Perm = tuple[int, ...] | None


@dataclass(slots=True, eq=False)
class Unit:
    """A product and what its kernel computes behind it.

    Attributes:
      product: the node; ``geometry``: what it computes.
      data: the activation that it reads, before any rounding to a grid; ``grid``: its grid.
      steps: ops that are affine per channel.
      residual: what is added to their result; ``activation``: the role of an op behind that.
      end: the Blob that it computes; ``to_integers``: in its grid.
      nodes: the nodes that it stands for.
    """

    product: Node
    geometry: IntegerProduct
    data: Blob
    grid: Grid
    steps: list[Node] = field(default_factory=list)
    residual: Blob | None = None
    activation: str = ""
    end: Blob = field(init=False)
    to_integers: bool = False
    nodes: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end = self.product.outputs[0]
        self.nodes = [self.product]

    @property
    def channel(self) -> int:
        """The axis of the result's channels."""
        return channel_of(self.product, self.geometry)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The nodes of a step in int8.

    Attributes:
      order: the step's nodes; ``read``: the Blob that stands for each one that is read from outside.
      preparation: the nodes that compute ``prepared``, the Blobs that depend on variables alone.
      kernels: what computes a node in int8, in words.
      changed: what was done, in words.
    """

    order: tuple[Node, ...]
    read: Callable[[Blob], Blob]
    preparation: tuple[Node, ...]
    prepared: tuple[Blob, ...]
    kernels: Mapping[Node, str]
    changed: str


class Pass:
    """Finds units from the last product to the first, then rebuilds the nodes in order."""

    def __init__(self, analysis: Analysis, grids: Mapping[str, Grid], without_native: str):
        self.analysis, self.without_native = analysis, without_native
        self.grids = grids_of(analysis, grids)
        self.units: dict[Node, Unit] = {}  # by the node of their end
        self.claimed: dict[Node, Unit] = {}
        self.reads_integers: set[tuple[Node, int]] = set()
        self.order: list[Node] = []
        self.floats: dict[Key, Blob] = {}  # what stands for a value
        self.integers: dict[Key, tuple[Blob, Grid, Perm]] = {}  # the same as uint8, and the permutation that was applied
        self.prepared: dict[Key, Blob] = {}
        self.count = {"native": 0, "xla": 0, "integers": 0}
        self.reasons: dict[str, int] = {}
        self.kernels: dict[Node, str] = {}

    # --- finding units

    def find(self) -> None:
        products: list[tuple[Node, IntegerProduct, Blob]] = []
        for node in self.analysis.products:
            data = self._gridded(node.inputs[0])
            if data is None:
                self.analysis.left[node] = "the range of its data is not known"
                continue
            grid, product = self.grids[key_of(data)], geometry(node)
            assert isinstance(product, IntegerProduct)
            if not grid.low <= grid.zero <= grid.high and any(map(any, product.padding)):
                self.analysis.left[node] = "the grid of its data does not hold 0, which it is padded with"
                continue
            products.append((node, product, data))
            self.reads_integers.add((node, 0))
        for node, product, data in reversed(products):
            unit = Unit(node, product, data, self.grids[key_of(data)])
            self._extend(unit)
            self.units[unit.end.node] = unit
            self.claimed.update(dict.fromkeys(unit.nodes, unit))

    def _gridded(self, blob: Blob) -> Blob | None:
        """The nearest Blob that holds these numbers and has a grid."""
        while key_of(blob) not in self.grids:
            if not (passes_integers(blob.node) or role(blob.node) == "grid"):
                return None
            blob = blob.node.inputs[0]
        return blob

    def _extend(self, unit: Unit) -> None:
        """Claims the ops behind a product, as far as its kernel computes them."""
        without_residual: tuple[Any, ...] = ()
        end = unit.end
        tail: list[Node] = []  # reshapes, which are a part where an activation follows
        while True:
            reader = self.analysis.only_reader(end if not tail else tail[-1].outputs[0])
            if reader is None or reader[0] in self.claimed or reader[0].scope.placement != unit.product.scope.placement:
                break
            node, position = reader
            kind = role(node)
            is_free = not tail and unit.residual is None and not unit.activation
            if kind == "channelwise" and position == 0 and is_free:
                if not self.analysis.is_per_channel(unit.end, unit.channel, node):
                    break
                unit.steps.append(node)
            elif kind == "residual" and is_free:
                other = node.inputs[1 - position]
                if other.shape != node.outputs[0].shape or end.shape != other.shape or self._gridded(other) is None:
                    break
                without_residual = (unit.end, list(unit.nodes), node, 1 - position)
                unit.residual = other
            elif kind in ("rectify", "gate") and not unit.activation and (kind == "rectify" or unit.residual is None):
                unit.activation = kind
            elif node.op.keeps_values and passes_integers(node):
                tail.append(node)
                continue
            else:
                break
            unit.nodes += [*tail, node]
            end, tail = node.outputs[0], []
            unit.end = end
            if unit.activation:
                break
        unit.to_integers = key_of(unit.end) in self.grids and self._all_read_integers(unit.end)
        if unit.residual is None:
            return
        if unit.to_integers:
            self.reads_integers.add(without_residual[2:])
        else:  # its kernel adds residuals to integers only
            unit.end, unit.nodes, unit.residual, unit.activation = without_residual[0], without_residual[1], None, ""

    def _all_read_integers(self, blob: Blob) -> bool:
        """Whether a value is read as integers of its own grid, by everything that reads it.

        A sum that no kernel computes may read numbers of the grid, too, where something else reads the integers.
        """
        if key_of(blob) in self.analysis.roots:
            return False
        readers = self.analysis.readers.get(key_of(blob), [])
        are_needed = any(reader in self.reads_integers for reader in readers)
        for node, position in readers:
            if (node, position) in self.reads_integers or (are_needed and role(node) == "residual"):
                continue
            passes = passes_integers(node) or (role(node) == "grid" and position == 0)
            if not passes or key_of(node.outputs[0]) in self.grids or not self._all_read_integers(node.outputs[0]):
                return False
        return True

    # --- rebuilding

    def rebuild(self) -> None:
        for node in self.analysis.order:
            unit = self.units.get(node)
            if unit is not None:
                self._add_unit(unit)
            elif node not in self.claimed:
                self._add_other(node)

    def _add_other(self, node: Node) -> None:
        passes = passes_integers(node) or role(node) == "grid"
        source = self.integers.get(key_of(node.inputs[0])) if passes else None
        if source is not None and key_of(node.inputs[0]) not in self.floats:
            self.integers[key_of(node.outputs[0])] = self._passed(node, *source)
            return
        inputs = tuple(map(self.float_of, node.inputs))
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        made = node if same else node.copy(self.float_of)
        self.order.append(made)
        for old, new in zip(node.outputs, made.outputs, strict=True):
            self.floats[key_of(old)] = new

    def _passed(self, node: Node, blob: Blob, grid: Grid, perm: Perm) -> tuple[Blob, Grid, Perm]:
        """The integers behind an op that passes integers."""
        if role(node) == "grid":
            return blob, grid, perm
        attrs = node.attrs
        if perm is not None:
            moves = role(node) == "largest" and node.op.channels_last is not None
            last = node.op.channels_last(attrs, blob.ndim) if moves and node.op.channels_last is not None else None
            if last is None:
                blob, perm = self._in_order(node, blob, perm, None), None
            else:
                attrs = last
        return self._add(node.op, node, (blob,), **attrs), grid, perm

    def float_of(self, blob: Blob) -> Blob:
        """What stands for a value in floating point, in the layout that is asked for with the Blob."""
        found = self.floats.get(key_of(blob))
        if found is None:
            q, grid, perm = self.integers[key_of(blob)]
            found = self.floats[key_of(blob)] = self._add(
                kernels.DEQUANTIZE, blob.node, (q,), like=blob, grid=grid, perm=None if perm is None else _inverse(perm)
            )
        if found.distribute == blob.distribute:
            return found
        return found.copy(distribute=blob.distribute)

    def _integers_of(self, blob: Blob, grid: Grid, perm: Perm, reader: Node) -> Blob:
        """A value as integers of a grid, in the layout ``perm``, where its reader is."""
        found = self.integers.get(key_of(blob))
        if found is None:
            if passes_integers(blob.node) or role(blob.node) == "grid":
                source = self.integers.get(key_of(blob.node.inputs[0]))
                if source is not None and source[1] == grid:
                    found = self._passed(blob.node, *source)
            if found is None:
                at = blob.node if blob.node.scope.placement == reader.scope.placement else reader
                q = self._add(kernels.QUANTIZE, at, (self.float_of(blob),), grid=grid, perm=perm)
                found = (q, grid, perm)
            self.integers[key_of(blob)] = found
        return self._in_order(blob.node, found[0], found[2], perm)

    def _in_order(self, node: Node, q: Blob, perm: Perm, wanted: Perm) -> Blob:
        if perm == wanted:
            return q
        back = tuple(range(q.ndim)) if perm is None else _inverse(perm)
        if wanted is not None:
            back = tuple(back[i] for i in wanted)
        return self._add(kernels.REORDER, node, (q,), perm=back)

    def _add_unit(self, unit: Unit) -> None:
        node, perm = unit.product, unit.geometry.data_perm
        data = self._integers_of(self._nearest(node.inputs[0]), unit.grid, perm, node)
        out = self.grids.get(key_of(unit.end), Grid(1.0)) if unit.to_integers else Grid(1.0)
        residual: tuple[Blob, ...] = ()
        unit_scale, shift, factor, after = 1.0, 0.0, 1.0, 0.0
        if unit.residual is not None:
            base = self._gridded(unit.residual)
            assert base is not None
            grid = self.grids[key_of(base)]
            residual = (self._integers_of(self._nearest(unit.residual), grid, perm, node),)
            unit_scale, shift, factor, after = grid.scale, -grid.zero, grid.scale / out.scale, out.zero
        elif unit.to_integers and unit.activation == "gate":
            factor, after = 1 / out.scale, out.zero
        elif unit.to_integers:
            unit_scale, shift = out.scale, out.zero
        rectifies = unit.activation == "rectify" and unit.to_integers  # integers below the zero point are negative
        epilogue = Epilogue(
            unit.to_integers, bool(residual), "" if rectifies else unit.activation, factor, after,
            min(max(out.low, out.zero), out.high) if rectifies else out.low, out.high,
        )  # fmt: skip
        weights, scale, offset, is_native = self._prepared(unit, data.shape, epilogue, unit_scale, shift)
        kernel = self._kernel(unit)
        back = None if perm is None else _inverse(perm)
        y = self._add(
            kernels.PRODUCT, unit.end.node, (data, weights, scale, offset, *residual), product=unit.geometry, epilogue=epilogue,
            zero=unit.grid.zero, kernel=kernel, perm=back, is_native=is_native,
        )  # fmt: skip
        inner = node.outputs[0].shape
        if unit.end.shape != inner:  # a reshape before the activation
            if perm is not None and unit.to_integers:
                y, perm = self._in_order(node, y, perm, None), None
            y = self._add(kernels.RESHAPE, unit.end.node, (y,), shape=unit.end.shape)
        if unit.to_integers:
            self.integers[key_of(unit.end)] = (y, out, perm)
            self.count["integers"] += 1
        else:
            self.floats[key_of(unit.end)] = y

    def _nearest(self, blob: Blob) -> Blob:
        """The nearest Blob of these numbers that exists as integers, or the one itself."""
        at = blob
        while key_of(at) not in self.integers:
            if key_of(at) in self.grids or not (passes_integers(at.node) or role(at.node) == "grid"):
                base = self._gridded(blob)
                return blob if base is None or role(blob.node) != "grid" else blob.node.inputs[0]
            at = at.node.inputs[0]
        return blob

    def _kernel(self, unit: Unit) -> tuple[int, ...]:
        shape = unit.product.inputs[1].shape
        return tuple(shape[i] for i in unit.geometry.weight_perm)

    def _prepared(
        self, unit: Unit, data: tuple[int, ...], epilogue: Epilogue, unit_scale: float, shift: float
    ) -> tuple[Blob, Blob, Blob, bool]:
        """Weights, scale and offset of a unit, which depend on variables alone, and whether the native part computes it."""
        node, w, geometry = unit.product, unit.product.inputs[1], unit.geometry
        bits, exponent = 8, False
        scales: tuple[Blob, ...] = ()
        if role(w.node) == "grid":
            grid = details(w.node)
            bits, exponent, scales = grid.bits, grid.exponent, (w.node.inputs[1],)
            w = w.node.inputs[0]
        weights, scale, sums = packed.node_like(
            kernels.WEIGHTS, node, (w, *scales), perm=geometry.weight_perm, bits=bits, exponent=exponent
        ).outputs
        steps, constants = affine(unit.steps)
        scale, offset = packed.node_like(
            kernels.VECTORS, node, (scale, sums, *constants), steps=steps, rank=node.outputs[0].ndim, channel=unit.channel,
            source=unit.grid, unit=unit_scale, shift=shift,
        ).outputs  # fmt: skip
        kernel = self._kernel(unit)
        inner = kernels.without_padding(geometry, unit.grid.zero)
        padded = data
        if inner is not geometry and geometry.padding:
            padded = (data[0], *(n + low + high for n, (low, high) in zip(data[1:-1], geometry.padding, strict=True)), data[-1])
        reason = self.without_native or packed.unsupported_reason(padded, inner, epilogue, kernel, "uint8")
        self.count["xla" if reason else "native"] += 1
        kernel_name = "XLA" if reason else packed.kernel_name(padded, inner, epilogue, kernel, "uint8")
        self.kernels.update({n: f"int8, with {node.name}" for n in unit.nodes})
        self.kernels[node] = f"int8, {kernel_name}"
        if reason:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
        else:
            packing = packed.packing(padded, inner, epilogue, kernel, "uint8")
            weights = packed.node_like(packed.PACK, node, (weights,), **packing).outputs[0]
        for blob in (weights, scale, offset):
            self.prepared[key_of(blob)] = blob
        return weights, scale, offset, not reason

    def _add(self, op: OpDef, at: Node, inputs: tuple[Blob, ...], like: Blob | None = None, **attrs: Any) -> Blob:
        node = packed.node_like(op, at, inputs, **attrs)
        self.order.append(node)
        return (
            node.outputs[0] if like is None else node.outputs[like.index] if len(node.outputs) > like.index else node.outputs[0]
        )

    # --- the same in floating point

    def simulate(self) -> None:
        """Rebuilds the nodes in floating point, with ops that round what integers would hold; for export."""
        ends = {key_of(unit.end): unit for unit in self.units.values() if unit.to_integers}
        products = {unit.product: unit for unit in self.units.values()}
        read_as_integers = {(unit.product, 0) for unit in self.units.values()}
        for unit in self.units.values():
            read_as_integers |= {
                (node, i) for node in unit.nodes if role(node) == "residual"
                for i, blob in enumerate(node.inputs) if unit.residual is not None and key_of(blob) == key_of(unit.residual)
            }  # fmt: skip
        found: dict[Key, Blob] = {}

        def as_integers(blob: Blob) -> Blob:
            """The numbers that integers hold of a value."""
            key, node = key_of(blob), blob.node
            if key in found:
                return found[key]
            if key in self.grids:
                value = self.float_of(blob)  # the ends are rounded for all that reads them
                made = value if key in ends else self._add(kernels.ROUND, node, (value,), like=blob, grid=self.grids[key])
            elif role(node) == "grid":
                made = as_integers(node.inputs[0])
            else:
                source = as_integers(node.inputs[0])
                copied = node.copy(self.float_of, inputs=(source,))
                self.order.append(copied)
                made = copied.outputs[0]
            found[key] = made
            return made

        for node in self.analysis.order:
            inputs = [as_integers(b) if (node, i) in read_as_integers else self.float_of(b) for i, b in enumerate(node.inputs)]
            if node in products and role(node.inputs[1].node) != "grid":
                perm = products[node].geometry.weight_perm
                inputs[1] = self._add(kernels.ROUND_WEIGHTS, inputs[1].node, (inputs[1],), perm=perm)
            same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            made = node if same else node.copy(self.float_of, inputs=tuple(inputs))
            self.order.append(made)
            for old, new in zip(node.outputs, made.outputs, strict=True):
                grid = self.grids[key_of(old)] if key_of(old) in ends else None
                self.floats[key_of(old)] = new if grid is None else self._add(kernels.ROUND, node, (new,), like=old, grid=grid)

    def changed(self) -> str:
        """What was done, in words."""
        total = self.count["native"] + self.count["xla"]
        parts = [f"{total} products, {self.count['native']} by the native part, {self.count['integers']} with integer results"]
        parts += [f"{n} by XLA ({reason})" for reason, n in self.reasons.items()]
        left: dict[str, int] = {}
        for reason in self.analysis.left.values():
            left[reason] = left.get(reason, 0) + 1
        return ", ".join([*parts, *(f"{n} left in floating point ({reason})" for reason, n in left.items())])


def _inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(perm.index(i) for i in range(len(perm)))


def rewritten(
    order: Sequence[Node], roots: Sequence[Blob], written: set[str], grids: Mapping[str, Grid], without_native: str, job: str
) -> Rewritten:
    """Rebuilds nodes so that products of data with a known grid are of 8-bit integers.

    Args:
      order: in topological order.
      roots: the Blobs that are read from outside.
      written: names of variables that the job changes.
      grids: by logical Blob name: of data, or of the output of an op that rounds to a grid.
      without_native: the reason why the native part is not used; "" if it may be.
      job: its name, for errors.
    Raises ModeError where nothing can be of integers.
    """
    work = Pass(Analysis(order, roots, written), grids, without_native)
    work.find()
    if not work.units:
        left = work.analysis.left
        only = set(left.values()) if len(set(left.values())) == 1 else {""}
        advice = INSTEAD.get(only.pop(), "a job with convolutions, or products with variables, of float32 on one device")
        lines = [f"  op         {node.name}: {reason}, {node.source}   {node.source.text}\n" for node, reason in left.items()]
        raise ModeError(
            f"no product or convolution of job {job!r} can be of 8-bit integers\n"
            + "".join(sorted(lines)[:8])
            + f"  try        {advice}"
        )
    work.rebuild()
    prepared = tuple(work.prepared.values())
    known = {key_of(b) for b in prepared}
    preparation = in_topological_order(list(prepared))
    ends = [work.float_of(b) for b in roots]
    needed = ancestors(ends, known)
    return Rewritten(
        tuple(node for node in work.order if node in needed), work.float_of, preparation, prepared, work.kernels, work.changed()
    )


def simulated(
    order: Sequence[Node], roots: Sequence[Blob], grids: Mapping[str, Grid]
) -> tuple[tuple[Node, ...], tuple[Blob, ...]]:
    """Nodes in floating point that compute what ``rewritten`` ones do, and what stands for the roots."""
    work = Pass(Analysis(order, roots, set()), grids, "")
    work.find()
    work.simulate()
    ends = [work.float_of(b) for b in roots]
    needed = ancestors(ends)
    return tuple(node for node in work.order if node in needed), tuple(ends)
