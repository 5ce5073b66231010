"""Steps that repeat as one loop: what a call computes, and its gradients.

What the steps compute of each other's results is one ``lax.scan``. What does not depend on earlier steps is computed for all
steps at once before it, and what no later step depends on behind it. ``loops.py`` finds such steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

import numpy as np

from .._base import dtype as dtypes
from .._base import jax_versions
from .._base.jax import jax, jnp, lax
from ..graph.node import Blob, Node
from ..graph.op import IntegerProduct
from . import packed_products as packed
from .autodiff import BACKWARD_SCOPE, Backward, Propagate, located, run_nodes
from .int8_analysis import geometry, role
from .joint_gradients import SHARED
from .lowering import Draws, Lowering, Values
from .lstm_layer_kernels import STATE_OF_STEP
from .packed_products import Epilogue
from .shared import attributes

Array = Any
Place = int  # of a node among those of its step
Value = tuple[Place, int]  # a node's result, by its index
_Input = tuple[Place, int]  # what a node reads, by its index


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """What a step computes at one place.

    Attributes:
      step: a node, or the call of an LSTM's cell.
      node: computes it.
      outputs: the results, as others read them; ``nodes``: that it stands for.
    """

    step: Any
    node: Node
    outputs: tuple[Blob, ...]
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a node gets an input from.

    Attributes:
      kind: "inside": from a node of the same step; "carried": of the step before; "same": from outside, the same value in all
        steps; "each": from outside, a value for each step; "cut": a block for each step of one value from outside.
      value: what it is of that step, for the first two.
      blobs: what comes from outside: for "carried" what the first step gets, for "cut" the whole.
      cuts: the nodes that cut the blocks; ``shape``: of each as it is read; ``reshaping``: what gives it that shape.
    """

    kind: Literal["inside", "carried", "same", "each", "cut"]
    value: Value = (-1, 0)
    blobs: tuple[Blob, ...] = ()
    cuts: tuple[Node, ...] = ()
    shape: tuple[int, ...] = ()
    reshaping: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Join:
    """A node that joins a value of all steps along an axis, or a new one, in order or from the last step to the first."""

    node: Node
    value: Value
    axis: int
    is_reversed: bool


@dataclass(frozen=True, slots=True, eq=False)
class LoopCall:
    """Nodes that one loop computes. What is carried, and what gradients flow to, are floating-point numbers.

    Attributes:
      copies: of each step, what it computes, in this order.
      sources: of each node's inputs, by its place.
      cuts: the places of nodes that cut a block of a value that is the same in all steps: another one in each step.
      before, core, behind: the places of nodes that are computed before the loop, in it, and behind it. Without a core, steps
        that do not read each other's results are computed at once.
      read: results that are read from outside, and the steps of those that are.
      joins: nodes that are computed of the results of all steps.
    """

    copies: tuple[tuple[Unit, ...], ...]
    sources: tuple[tuple[Source, ...], ...]
    cuts: frozenset[Place]
    before: tuple[Place, ...]
    core: tuple[Place, ...]
    behind: tuple[Place, ...]
    read: Mapping[Value, tuple[int, ...]]
    joins: tuple[Join, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All of them, each behind those that it reads."""
        units = (unit for copy in self.copies for unit in copy)
        return (*(node for unit in units for node in unit.nodes), *(join.node for join in self.joins))

    @property
    def given(self) -> list[Blob]:
        """What comes from outside."""
        return [blob for sources in self.sources for source in sources for blob in source.blobs]

    def run(self, values: Values, draws: Draws, path: Collection[Node]) -> list[Propagate]:
        """Runs the forward pass and returns the backward pass. An observer sees the nodes one by one."""
        lowering = values.lowering
        if lowering.observer is not None:
            cutting = (node for each in self.sources for source in each for node in (*source.cuts, *source.reshaping))
            ahead = dict.fromkeys(node for node in cutting if node not in values and node.op is not STATE_OF_STEP)
            return run_nodes([*ahead, *self.nodes], values, draws, path)
        given: dict[Any, Blob] = {}
        arrays: dict[Any, Array] = {}
        for unit, sources in zip(self.copies[0], self.sources, strict=True):
            for blob in (b for source in sources for b in source.blobs if (b.node, b.index) not in given):
                given[blob.node, blob.index] = blob
                arrays[blob.node, blob.index] = lowering.read(values.get_blob(blob), blob, unit.node)
        wanted = [key for key, blob in given.items() if blob.node in path and blob.dtype.is_floating_point]

        results = [self._blob(0, value) for value in self.read] + [join.node.outputs[0] for join in self.joins]
        floating = [i for i, blob in enumerate(results) if blob.dtype.is_floating_point]

        def computed(*chosen: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
            made = _Run(self, lowering, {**arrays, **dict(zip(wanted, chosen, strict=True))}, wanted, path).outputs()
            return tuple(made[i] for i in floating), made

        chosen = [arrays[key] for key in wanted]
        if wanted:
            differentiated, pullback, outputs = jax.vjp(computed, *chosen, has_aux=True)
        else:
            (differentiated, outputs), pullback = computed(), None
        for (value, steps), array in zip(self.read.items(), outputs, strict=False):
            for i, step in enumerate(steps):
                values.set_blob(self._blob(step, value), lax.index_in_dim(array, i, 0, keepdims=False))
        for join, array in zip(self.joins, outputs[len(self.read) :], strict=True):
            values[join.node] = (array,)
        if pullback is None:
            return []
        structs = tuple(jax.ShapeDtypeStruct(o.shape, o.dtype) for o in differentiated)
        return [jax.tree_util.Partial(partial(self._propagate, tuple(given[key] for key in wanted), structs), pullback)]

    def _blob(self, step: int, value: Value) -> Blob:
        place, index = value
        return self.copies[step][place].outputs[index]

    def _propagate(self, wanted: Sequence[Blob], structs: Sequence[Any], pullback: Any, backward: Backward) -> None:
        cotangents: list[Array | None] = []
        for value, steps in self.read.items():
            if not self._blob(0, value).dtype.is_floating_point:
                continue
            found = [backward.get(self._blob(step, value)) for step in steps]
            like = next((c for c in found if c is not None), None)
            cotangents.append(None if like is None else jnp.stack([jnp.zeros_like(like) if c is None else c for c in found]))
        joined = (join.node.outputs[0] for join in self.joins)
        cotangents += [backward.get(blob) for blob in joined if blob.dtype.is_floating_point]
        if all(c is None for c in cotangents):
            return
        filled = tuple(jnp.zeros(s.shape, s.dtype) if c is None else c for c, s in zip(cotangents, structs, strict=True))
        with jax.named_scope(BACKWARD_SCOPE):
            gradients = pullback(filled)
        for blob, gradient in zip(wanted, gradients, strict=True):
            backward.add(blob, gradient)
            backward.wait(blob, [g for g in gradients if g is not gradient])


class _Run:
    """The computation of a call.

    Args:
      arrays: what comes from outside, by node and index.
      wanted: those of them whose gradients are asked for.
      path: the nodes on the gradient path.
    """

    def __init__(
        self, call: LoopCall, lowering: Lowering, arrays: Mapping[Any, Array], wanted: Collection[Any], path: Collection[Node]
    ):
        self.call, self.arrays, self.wanted = call, arrays, wanted
        self.lowering, self.by_xla = lowering, replace(lowering, without_native="it is computed for all steps at once")
        self.nodes, self.steps = [unit.node for unit in call.copies[0]], len(call.copies)
        self.made: dict[Value, Array] = {}  # of all steps, with an axis of steps before the others
        self.constant: dict[Value, Array] = {}  # what all steps compute alike
        self.stacks: dict[Any, Array] = {}
        self.last: dict[Value, Array] = {}  # what the loop carries, behind the last step
        self.with_gradients = {p for p, unit in enumerate(call.copies[0]) if any(n in path for n in (unit.node, *unit.nodes))}

    def _cut_off(self, place: Place, made: Sequence[Array]) -> Sequence[Array]:
        """Results that no gradient flows to: of zeros, an infinite derivative would make NaN."""
        return made if place in self.with_gradients else [lax.stop_gradient(array) for array in made]

    def outputs(self) -> tuple[Array, ...]:
        """The results of the steps that are read, with a leading axis of steps, then those of the joins."""
        call = self.call
        for place in call.before:
            self._compute_for_all(place)
        if call.core:
            self._loop()
        for place in call.behind:
            self._compute_for_all(place)
        read = [self._steps_of(value, steps) for value, steps in call.read.items()]
        return (*read, *(self._joined(join) for join in call.joins))

    def _steps_of(self, value: Value, steps: Sequence[int]) -> Array:
        if value in self.constant:
            return jnp.stack([self.constant[value]] * len(steps))
        if value not in self.made:
            return self.last[value][None]
        made = self.made[value]
        if len(steps) == self.steps:
            return made
        begin, end = steps[0], steps[-1] + 1
        if end - begin == len(steps):
            return lax.slice_in_dim(made, begin, end)
        return jnp.stack([lax.index_in_dim(made, step, 0, keepdims=False) for step in steps])

    def _joined(self, join: Join) -> Array:
        made = self._steps_of(join.value, range(self.steps))
        made = lax.rev(made, [0]) if join.is_reversed else made
        made = jnp.moveaxis(made, 0, join.axis)
        if join.node.op.stacks:
            return made
        shape = list(made.shape)
        shape[join.axis : join.axis + 2] = [shape[join.axis] * shape[join.axis + 1]]
        return lax.reshape(made, shape)

    def _array(self, source: Source) -> tuple[Array, bool]:
        """What comes from outside, or was computed for all steps; whether it has an axis of steps."""
        if source.kind == "inside":
            found = self.made.get(source.value)
            return (self.constant[source.value], False) if found is None else (found, True)
        first = source.blobs[0]
        if source.kind == "same":
            return self.arrays[first.node, first.index], False
        keys: Any = (source.cuts, source.shape) if source.cuts else tuple((b.node, b.index) for b in source.blobs)
        if keys not in self.stacks:
            if source.cuts:
                whole = self.arrays[first.node, first.index]
                made = located(source.cuts[0], lambda: self._cut(source.cuts, source.shape, whole))
            else:
                made = jnp.stack([self.arrays[key] for key in keys])
            self.stacks[keys] = made
        return self.stacks[keys], True

    def _compute_for_all(self, place: Place) -> None:
        node = self.nodes[place]
        arrays, stacked = zip(*map(self._array, self.call.sources[place]), strict=True) if node.inputs else ((), ())
        run = _function(node, self.lowering)
        made: tuple[Array, ...]
        if place in self.call.cuts:
            cuts = [copy[place].node for copy in self.call.copies]
            made = (located(node, lambda: self._cut(cuts, node.outputs[0].shape, arrays[0])),)
        elif (rows := row_inputs(node)) and all(is_stacked == (i in rows) for i, is_stacked in enumerate(stacked)):
            made = located(node, lambda: _of_rows(run, rows, node.scope.placement.parallel_num > 1, *arrays))
        elif any(stacked):
            axes = [0 if is_stacked else None for is_stacked in stacked]
            made = located(node, lambda: jax.vmap(_function(node, self.by_xla), in_axes=axes)(*arrays))
        else:
            made = located(node, lambda: run(*arrays))
        found = self.made if place in self.call.cuts or any(stacked) else self.constant
        found.update(((place, index), array) for index, array in enumerate(self._cut_off(place, made)))

    def _cut(self, nodes: Sequence[Node], shape: Sequence[int], whole: Array) -> Array:
        """The blocks that nodes cut of an array, each of this shape; in one piece where they lie side by side."""
        assert nodes[0].op.region is not None
        regions = [nodes[0].op.region(node.attrs, whole.shape) for node in nodes]
        first, second = regions[0], regions[1]
        assert first is not None and second is not None
        varying = [axis for axis, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
        if len(varying) == 1:
            (axis,) = varying
            begin, end = first[axis]
            width, moved = end - begin, second[axis][0] - begin
            expected = [(*first[:axis], (begin + moved * i, end + moved * i), *first[axis + 1 :]) for i in range(len(regions))]
            if abs(moved) == width and regions == expected:
                low, high = min(r[axis][0] for r in expected), max(r[axis][1] for r in expected)
                starts, stops = zip(*(*first[:axis], (low, high), *first[axis + 1 :]), strict=True)
                made = lax.slice(whole, starts, stops)
                made = lax.reshape(made, (*made.shape[:axis], self.steps, width, *made.shape[axis + 1 :]))
                made = jnp.moveaxis(made, axis, 0)
                made = lax.rev(made, [0]) if moved < 0 else made
                return lax.reshape(made, (self.steps, *shape))
        return jnp.stack([lax.reshape(_function(node, self.lowering)(whole)[0], shape) for node in nodes])

    def _loop(self) -> None:
        """Computes the nodes of the core."""
        call = self.call
        products = {product.places[0]: product for product in self._products()}
        carried = {s.value: s.blobs[0] for place in call.core for s in call.sources[place] if s.kind == "carried"}
        init = {value: self._spread(self.arrays[b.node, b.index], value) for value, b in carried.items()}
        multiplied = {p: s.value for p in products if (s := call.sources[p][0]).kind == "carried"}
        of_steps, constants = self._inputs({place for product in products.values() for place in product.places})
        weights = {place: product.weights for place, product in products.items()}
        step = self._step(products, multiplied, self._results(init) | set(multiplied.values()))
        results, self.last = _scanned(step, products, multiplied, self.steps)(weights, constants, init, of_steps)
        self.made.update(results)

    def _inputs(self, multiplying: Collection[Place]) -> tuple[dict[_Input, Array], dict[_Input, Array]]:
        """What the core reads that it does not compute: arrays of all steps, and those that are the same in each.

        ``multiplying``: the places of products, whose weights are not among them.
        """
        of_steps: dict[_Input, Array] = {}
        constants: dict[_Input, Array] = {}
        core = set(self.call.core)
        for place in self.call.core:
            node = self.nodes[place]
            for i, source in enumerate(self.call.sources[place]):
                is_inner = source.kind == "carried" or source.kind == "inside" and source.value[0] in core
                if is_inner or i == SHARED and place in multiplying:
                    continue
                array, is_stacked = self._array(source)
                if is_stacked:
                    axis = node.inputs[i].batch_axis
                    array = self.lowering.along_batch(array, axis + 1 if axis >= 0 else -1, node.scope.placement)
                (of_steps if is_stacked else constants)[place, i] = array
        return of_steps, constants

    def _results(self, carried: Collection[Value]) -> set[Value]:
        """What is read of the core's results behind the loop; not the last one of what is carried, which the loop returns."""
        call = self.call
        behind = {s.value for place in call.behind for s in call.sources[place]}
        read = {value for value, steps in call.read.items() if not (value in carried and steps == (self.steps - 1,))}
        return behind | read | {join.value for join in call.joins}

    def _step(
        self, products: Mapping[Place, Product], multiplied: Mapping[Place, Value], kept: Collection[Value]
    ) -> Callable[..., Any]:
        """What a step computes. ``products``, ``multiplied``: see ``_scanned``; ``kept``: values that are results of the loop."""
        call = self.call
        in_product = {place for product in products.values() for place in product.places}
        summed = {place for place in call.core if self.nodes[place].op.lstm == "sum"}
        stored = summed - {s.value[0] for place in summed for s in call.sources[place] if s.kind == "inside"}

        def step(held: Any, probes: Any, constants: Any, carry: Any, of_step: Any) -> tuple[Any, Any]:
            """Returns what the next step gets; the results; what is multiplied by shared weights, and the products."""
            values: dict[Value, Array] = {}
            factors: dict[Place, Array] = {}
            made: dict[Place, Array] = {}

            def value(place: Place, i: int) -> Array:
                source = call.sources[place][i]
                if source.kind == "carried":
                    return carry[source.value]
                if source.kind == "inside" and source.value in values:
                    return values[source.value]
                return of_step[place, i] if (place, i) in of_step else constants[place, i]

            for place in call.core:
                node = self.nodes[place]
                if place in products:
                    x = value(place, 0)
                    if place not in multiplied:
                        factors[place] = x
                    multiply = partial(products[place].compute, x, held[place], probes and probes[place])
                    made[place] = _kept(located(node, multiply))
                    parts = products[place].parts(made[place])
                    values.update(((each, 0), self._cut_off(each, [part])[0]) for each, part in parts.items())
                elif place not in in_product:
                    arrays = [value(place, i) for i in range(len(node.inputs))]
                    results = located(node, partial(_function(node, self.lowering), *arrays))
                    results = [y if is_cheap(node) else _kept(y) for y in results]
                    if place in stored:
                        results = [_with_stored_cotangent()(y) for y in results]
                    values.update(((place, i), y) for i, y in enumerate(self._cut_off(place, results)))
            results = {value: array for value, array in values.items() if value in kept}
            return {value: self._spread(values[value], value) for value in carry}, (results, factors, made)

        return step

    def _spread(self, array: Array, value: Value) -> Array:
        """What is carried, spread over the devices that have the rows of its batch."""
        place, index = value
        unit = self.call.copies[0][place]
        return self.lowering.along_batch(array, unit.outputs[index].batch_axis, unit.node.scope.placement)

    def _products(self) -> list[Product]:
        """The products of rows and weights that are the same in all steps; those of the same rows together."""
        groups: dict[Any, list[Place]] = {}
        for place in self.call.core:
            node, sources = self.nodes[place], self.call.sources[place]
            if not is_product_of_rows(node) or self._array_is_of_steps(sources[SHARED]):
                continue
            x = sources[0]
            key: Any = place
            if gates_axis(node) is not None and x.kind in ("carried", "inside"):
                key = x.kind, x.value, node.op, attributes(node), node.outputs[0].ndim, self.lowering.precision.get(node)
            groups.setdefault(key, []).append(place)
        return [self._product(places) for places in groups.values()]

    def _array_is_of_steps(self, source: Source) -> bool:
        """Whether it differs from step to step."""
        return source.kind in ("carried", "each", "cut") or source.kind == "inside" and source.value not in self.constant

    def _product(self, places: Sequence[Place]) -> Product:
        node = self.nodes[places[0]]
        arrays = [self._array(self.call.sources[place][SHARED])[0] for place in places]
        axis = gates_axis(node) if len(places) > 1 else None
        weights = arrays[0] if axis is None else lax.concatenate(arrays, axis)
        sizes = tuple(self.nodes[place].outputs[0].shape[-1] for place in places)
        function = _function(node, self.lowering)
        is_native = not self.lowering.without_native and node not in self.lowering.precision
        is_spread = node.scope.placement.parallel_num > 1
        packing = Packing.of(node, sum(sizes)) if is_native and not is_spread and node.inputs[0].ndim == 2 else None
        return Product(tuple(places), sizes, function, weights, packing, is_spread)


@dataclass(frozen=True, slots=True)
class Packing:
    """How the native part multiplies by weights that are packed once, before the loop.

    Attributes:
      product: what it computes of rows and weights; ``kernel``: the shape of the weights as (columns, what is summed).
      rows: the shape of what is multiplied.
    """

    product: IntegerProduct
    kernel: tuple[int, int]
    rows: tuple[int, ...]

    @staticmethod
    def of(node: Node, columns: int) -> Packing | None:
        """For a product of such rows and weights of so many columns; None where the native part does not take it."""
        product = geometry(node) if role(node) == "product" else ""
        if isinstance(product, str) or product.strides or node.inputs[0].dtype is not dtypes.float32:
            return None
        rows = node.inputs[0].shape
        made = Packing(product, (columns, rows[1]), rows)
        return made if all(each.is_taken for each in (made, made.backward())) else None

    @property
    def is_taken(self) -> bool:
        """Whether the native part takes it."""
        return not packed.unsupported_reason(self.rows, self.product, Epilogue(), self.kernel, "float32")

    def backward(self) -> Packing:
        """Of the products that are the gradients to the rows."""
        columns, depth = self.kernel
        return Packing(self.product, (depth, columns), (*self.rows[:-1], columns))

    def pack(self, weights: Array) -> Array:
        """Weights (columns, what is summed), packed."""
        attrs = packed.packing(self.rows, self.product, Epilogue(), self.kernel, "float32")
        made: Array = packed.PACK.define(weights, **attrs)
        return made

    def offset(self) -> Array:
        """Zeros, which the native part adds."""
        return jnp.zeros(self.kernel[:1], np.float32)

    def compute(self, x: Array, weights: Array, offset: Array) -> Array:
        """The products of rows and packed weights."""
        return packed.call(x, weights, (offset,), self.product, Epilogue(), self.kernel)


@dataclass(frozen=True, slots=True)
class Product:
    """Products of the same rows and several weights, as one.

    Attributes:
      places: of the nodes; ``sizes``: how many columns each of them has.
      function: from rows and weights to products; ``weights``: of all of them.
      packing: how the loop multiplies by them; None for ``function``.
      is_spread: whether several devices have the rows.
    """

    places: tuple[Place, ...]
    sizes: tuple[int, ...]
    function: Callable[..., tuple[Array]]
    weights: Array
    packing: Packing | None = None
    is_spread: bool = False

    def held(self, weights: Array, is_differentiated: bool) -> tuple[Array, ...]:
        """What the loop multiplies by: weights, or packed ones, also those for the backward pass."""
        if self.packing is None:
            return (weights,)
        turned = jnp.transpose(weights, self.packing.product.weight_perm)
        forward = self.packing.pack(turned), self.packing.offset()
        if not is_differentiated:
            return forward
        backward = self.packing.backward()
        return *forward, backward.pack(turned.T), backward.offset()

    def compute(self, x: Array, held: Sequence[Array], probe: Array | None) -> Array:
        """The products. ``probe``: an array that is not read, and whose cotangent is that of the products; or None."""

        def forward(x: Array, *held: Array) -> Array:
            return self.function(x, *held)[0] if self.packing is None else self.packing.compute(x, *held[:2])

        if probe is None:
            return forward(x, *held)

        @jax.custom_vjp
        def probed(probe: Array, x: Array, *held: Array) -> Array:
            return forward(x, *held)

        def run(probe: Array, x: Array, *held: Array) -> tuple[Array, Any]:
            return (forward(x, *held), held) if self.packing else jax.vjp(lambda x: forward(x, *held), x)

        def back(saved: Any, cotangent: Array) -> tuple[Any, ...]:
            to_x = self.packing.backward().compute(cotangent, *saved[2:]) if self.packing else saved(cotangent)[0]
            return cotangent, to_x, *[None] * len(held)

        probed.defvjp(run, back)
        return probed(probe, x, *held)

    def parts(self, made: Array) -> dict[Place, Array]:
        """Those of each node."""
        if len(self.places) == 1:
            return {self.places[0]: made}
        ends = [sum(self.sizes[: i + 1]) for i in range(len(self.sizes))]
        bounds = zip([0, *ends], ends, strict=False)
        return {
            place: lax.slice_in_dim(made, begin, end, axis=made.ndim - 1)
            for place, (begin, end) in zip(self.places, bounds, strict=True)
        }


_KEPT = "kept for the backward pass"


def _kept(array: Array) -> Array:
    from jax.ad_checkpoint import checkpoint_name

    return checkpoint_name(array, _KEPT)


@cache
def _with_stored_cotangent() -> Callable[[Array], Array]:
    """The identity, whose cotangent XLA computes once for all that reads it."""

    def stored(_: None, cotangent: Array) -> tuple[Array]:
        return tuple(jax_versions.storing(cotangent)(cotangent))

    run = jax.custom_vjp(lambda array: array)
    run.defvjp(lambda array: (array, None), stored)
    return run


def is_cheap(node: Node) -> bool:
    """Whether the backward pass computes its result again, which takes less time than to store it."""
    return node.op.elementwise or node.op.keeps_values or node.op.region is not None or node.op.lstm is not None


def gates_axis(node: Node) -> int | None:
    """The axis of the weights of a matrix product that is that of its columns; None where it is no such product."""
    times = node.op.attention(node.attrs) if node.op.attention is not None else None
    if times is None or times.kind != "product" or any(b.ndim != 2 for b in node.inputs):
        return None
    return 0 if times.transposed[1] else 1


def is_product_of_rows(node: Node) -> bool:
    """Whether the rows of a node's result are each computed of the same row of input 0, and of input 1."""
    op = node.op
    shapes = [b.shape for b in node.inputs]
    return len(shapes) == 2 and op.grad is None and op.adds_up is not None and op.adds_up(node.attrs, shapes)


def row_inputs(node: Node) -> tuple[int, ...]:
    """The inputs whose row i has an influence on row i of the results alone; () where that is not known, or inputs broadcast."""
    op = node.op
    if is_product_of_rows(node):
        return (0,)
    found = tuple(range(len(node.inputs))) if op.labels is not None else op.batch_inputs
    leading = {b.shape[:1] for b in (*(node.inputs[i] for i in found), *node.outputs)}
    return () if op.elementwise or len(leading) > 1 or () in leading else found


def _scanned(
    step: Callable[..., Any], products: Mapping[Place, Product], multiplied: Mapping[Place, Value], steps: int
) -> Callable[..., Any]:
    """The loop of so many steps, from (weights, constants, init, arrays of all steps) to the results of all steps, and what is
    carried behind the last one.

    ``products``: those of shared weights, by their first place; ``multiplied``: the values of the step before that some of them
    multiply.

    Gradients to the weights of products would be as large in each step. They are computed at once behind the backward loop, of
    what is multiplied and of the gradients to the products of all steps. What is cheap is not stored for the backward pass.
    """

    def run(shared: Any, constants: Any, init: Any, of_steps: Any, probes: Any = None) -> Any:
        held = {place: product.held(shared[place], probes is not None) for place, product in products.items()}
        one = jax.checkpoint(
            lambda carry, inputs: step(held, inputs[1], constants, carry, inputs[0]),
            policy=jax.checkpoint_policies.save_only_these_names(_KEPT),
            prevent_cse=False,
        )
        last, (results, factors, made) = lax.scan(one, init, (of_steps, probes), steps)
        return (results, last), (factors, made)

    @jax.custom_vjp
    def scanned(shared: Any, constants: Any, init: Any, of_steps: Any) -> Any:
        return run(shared, constants, init, of_steps)[0]

    def forward(shared: Any, constants: Any, init: Any, of_steps: Any) -> tuple[Any, Any]:
        _, (_, made) = jax.eval_shape(run, shared, constants, init, of_steps)
        probes = {place: jnp.zeros(product.shape, product.dtype) for place, product in made.items()}

        def differentiated(constants: Any, init: Any, of_steps: Any, probes: Any) -> Any:
            results, (factors, _) = run(shared, constants, init, of_steps, probes)
            return results, factors

        results, pullback, factors = jax.vjp(differentiated, constants, init, of_steps, probes, has_aux=True)
        made, _ = results
        before = {value: lax.concatenate([init[value][None], made[value][:-1]], 0) for value in set(multiplied.values())}
        return results, (pullback, {**factors, **{place: before[value] for place, value in multiplied.items()}}, shared)

    def backward(saved: Any, cotangents: Any) -> tuple[Any, ...]:
        pullback, factors, shared = saved
        to_constants, to_init, to_steps, to_products = pullback(cotangents)
        to_shared = {
            place: jax.vjp(partial(_of_rows, product.function, (0,), product.is_spread, factors[place]), shared[place])[1](
                (to_products[place],)
            )[0]
            for place, product in products.items()
        }
        return to_shared, to_constants, to_init, to_steps

    scanned.defvjp(forward, backward)
    return scanned


def _of_rows(run: Callable[..., tuple[Array, ...]], rows: Collection[int], is_spread: bool, *arrays: Array) -> tuple[Array, ...]:
    """The results of all steps at once: of ``rows``, which are (steps, rows, ...), as (steps * rows, ...), and the others.

    Where rows are spread over devices, first the first rows of all steps: a device's stay together.
    """
    arrays = tuple(jnp.swapaxes(a, 0, 1) if is_spread and i in rows else a for i, a in enumerate(arrays))
    lead = next(a.shape[:2] for i, a in enumerate(arrays) if i in rows)
    merged = (lax.reshape(a, (math.prod(lead), *a.shape[2:])) if i in rows else a for i, a in enumerate(arrays))
    made = [lax.reshape(y, (*lead, *y.shape[1:])) for y in run(*merged)]
    return tuple(jnp.swapaxes(y, 0, 1) if is_spread else y for y in made)


def _function(node: Node, lowering: Lowering) -> Callable[..., tuple[Array, ...]]:
    """From a node's inputs to its outputs, with the gradients that it has outside of a loop."""
    lowered = lowering.function(node, None)
    cut_off = [i for i in range(len(node.inputs)) if node.op.is_nondifferentiable(i)]

    def function(*arrays: Array) -> tuple[Array, ...]:
        made = lowered(*arrays)
        return tuple(made) if node.op.multiple_results else (made,)

    def run(*arrays: Array) -> tuple[Array, ...]:
        arrays = tuple(lax.stop_gradient(a) if i in cut_off else a for i, a in enumerate(arrays))
        return explicit(*arrays) if lowering.has_own_gradient(node, arrays) else function(*arrays)

    explicit = jax.custom_vjp(function)

    def forward(*arrays: Array) -> tuple[tuple[Array, ...], Any]:
        made = function(*arrays)
        return made, (arrays, made)

    def backward(saved: Any, cotangents: tuple[Array, ...]) -> tuple[Array, ...]:
        arrays, made = saved
        gradients = lowering.gradient(node, arrays, made, cotangents)
        return tuple(jnp.zeros_like(a) if g is None else g for g, a in zip(gradients, arrays, strict=True))

    explicit.defvjp(forward, backward)
    return run
