"""Lowering of nodes to functions of arrays: the op's definition, vmapped in the mirrored view, with the requested layouts.

In the mirrored view a value is an array with a leading axis of devices, and a node is its op vmapped over that axis. Values
that are the same on every device (variables, constants) do not have the axis.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .._base import native as _native
from .._base.dist import Placement
from .._base.dtype import dtype
from .._base.jax import jax, jnp, lax
from ..graph.graph import OP_INPUT, OP_TO_CONSISTENT, OP_TO_MIRRORED, OP_VARIABLE, Graph
from ..graph.node import Blob, Node
from .layout import Layout, Meshes, mesh_axes
from .native import choose, choose_narrowing
from .precision import narrowed, narrowed_grad, round_outputs, widen_native, widened

Axes = tuple[int | None, ...]
Draws = tuple[Any, Any, Any] | None  # what the keys of random ops are derived from, see ``node_key``


def vmapped_nodes(nodes: Iterable[Node], replicated: Iterable[str] = ()) -> frozenset[Node]:
    """The nodes whose values have a leading axis of devices.

    Args:
      nodes: in topological order.
      replicated: names of the variables that have a separate value on every device.
    """
    own = set(replicated)
    found: set[Node] = set()
    for node in nodes:
        if node.op is OP_VARIABLE:
            vmapped = node.attrs["variable"] in own
        elif node.op is OP_TO_CONSISTENT or not node.is_mirrored:
            vmapped = False
        elif node.op is OP_INPUT or node.op.random or node.op.on_host:
            vmapped = True
        elif node.op is OP_TO_MIRRORED:
            vmapped = node.attrs["pieces"] or node.inputs[0].node in found
        else:
            vmapped = any(b.node in found for b in node.inputs)
        if vmapped:
            found.add(node)
    return frozenset(found)


def replicated_variables(graph: Graph) -> frozenset[str]:
    """The variables that mirrored nodes assign to, so that each device has its own value."""
    vmapped = vmapped_nodes(graph.nodes)
    return frozenset(name for name, blob in graph.assigns.items() if blob.node in vmapped)


class Observer:
    """Is shown what a step computes, while it is traced or run op by op. Does nothing by default."""

    def forward(self, node: Node, outputs: tuple[Any, ...]) -> None:
        """Called with every node and its outputs."""

    def backward(self, node: Node, wanted: tuple[int, ...], cotangents: tuple[Any, ...], gradients: tuple[Any, ...]) -> None:
        """Called with every node on the gradient path: the cotangents of its outputs, the gradients of its inputs ``wanted``."""

    def update(self, name: str, raw: Any, prepared: Any, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Called with every trained variable.

        Args:
          raw: its gradient by the backward pass, None for zero; ``prepared`` is divided, unscaled and regularized.
          before: its value, and its optimizer's state, by name; ``after`` the new ones.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Lowering:
    """Lowers the nodes of a job.

    Attributes:
      meshes: the devices of placements; None if everything runs on JAX's default device.
      vmapped: the nodes whose values have a leading axis of devices.
      without_native: the reason why no op takes its native lowering; "" if some may.
      precision: the dtypes of nodes that compute in a narrower dtype.
      observer: is shown every node and its outputs.
      platform: of the devices: "cpu", "gpu" or "tpu".
      narrow_gathers: the variables whose pieces are gathered in a 16-bit dtype: that dtype, and the layout that is stored.
      traced: what ``compiler/shared.py`` keeps of nodes that are alike.
      rounded: the outputs that are rounded to bfloat16 for all their readers, by node.
      narrow_cotangents: nodes whose outputs have cotangents that were bfloat16 before.
      addends: nodes whose gradients to input 1 stay apart, as each device's addend; the mesh of the devices (``addends.py``).
      joint: nodes whose gradients to input 1 are computed together, by group (``joint_gradients.py``).
      in_rows: gathers whose tables get their gradients in rows, and the names of the tables (``indexed_slices.py``).
      program: the name of the step.
    """

    meshes: Meshes | None = None
    vmapped: Collection[Node] = frozenset()
    without_native: str = "not asked for"
    precision: Mapping[Node, dtype] = field(default_factory=dict)
    observer: Observer | None = None
    platform: str = "cpu"
    narrow_gathers: Mapping[Node, tuple[dtype, Layout]] = field(default_factory=dict)
    traced: dict[Any, Any] = field(default_factory=dict)
    rounded: Mapping[Node, frozenset[int]] = field(default_factory=dict)
    narrow_cotangents: Collection[Node] = ()
    addends: Mapping[Node, Any] = field(default_factory=dict)
    joint: Mapping[Node, int] = field(default_factory=dict)
    in_rows: Mapping[Node, str] = field(default_factory=dict)
    program: str = ""

    def read(self, array: Any, blob: Blob, reader: Node) -> Any:
        """An input as its reader gets it: in the layout that was requested with ``with_distribute``.

        A variable is read in its declared layout, whatever layout it is stored in.
        """
        if self.meshes is None or blob.node in self.vmapped:
            return array
        request: Any = blob.distribute
        if request.kind == "auto" and blob.node.op is OP_VARIABLE:
            request = blob.node.graph.variables[blob.node.attrs["variable"]].distribute
        placement = reader.scope.placement
        if isinstance(request, tuple):
            fits = len(request) == len(placement.hierarchy)
        else:
            fits = request is not None and request.kind != "auto"
        if not fits:
            return array
        layout = Layout.of(placement, request)
        narrow, stored = self.narrow_gathers.get(blob.node, (None, layout))
        with jax.named_scope(reader.name):
            if narrow is None or stored == layout or stored.placement != placement:
                return self._laid_out(array, layout)
            piece = self._laid_out(array.astype(narrow.numpy_dtype), stored)  # cast first: half the bytes are sent
            return self._laid_out(piece, layout).astype(array.dtype)

    def fed(self, blob: Blob, array: Any, placement: Placement) -> Any:
        """A feed as its readers on ``placement`` get it: split along the batch axis, even into uneven pieces.

        Not into uneven ones where devices form a grid: XLA would scatter what it pads such pieces with.
        """
        return array if blob.node in self.vmapped else self.along_batch(array, blob.batch_axis, placement)

    def along_batch(self, array: Any, axis: int, placement: Placement) -> Any:
        """An array split along ``axis``, the batch axis; as it is where that is negative. See ``fed``."""
        if self.meshes is None or axis < 0:
            return array
        split = Layout.of_batch(placement, axis)
        is_grid = sum(size > 1 for size in placement.hierarchy) > 1
        return self._laid_out(array, Layout.whole(placement) if is_grid and not split.is_even(array.shape) else split)

    def function(self, node: Node, draws: Any) -> Callable[..., Any]:
        """The function from the inputs of a node to its outputs."""
        if node.op.lays_out and self.meshes is not None and node not in self.vmapped:
            return self._laying_out(node)
        if node.op is OP_TO_MIRRORED:
            return lambda x: self._to_mirrored(node, x)
        if node.op is OP_TO_CONSISTENT:
            return lambda x: self._to_consistent(node, x)
        attrs = node.attrs
        if node.op.takes_mesh:
            attrs = {**attrs, "mesh": self.mesh(node.scope.placement)}
        narrow = self.precision.get(node)

        def compute(*arrays: Any, local: bool = False, **keywords: Any) -> Any:
            def define(*arrays: Any) -> Any:
                return choose(node, arrays, self.without_native, local)(*arrays, **keywords)

            narrowing = choose_narrowing(node, arrays, self.without_native, narrow, local)
            if narrowing is not None:
                return widened(node, widen_native(narrowing(*arrays, **keywords), node in self.narrow_cotangents))
            made = narrowed(node, narrow, define)(*arrays)
            return round_outputs(made, self.rounded[node]) if node in self.rounded else made

        if node not in self.vmapped:
            if node.op.random:
                attrs = {**attrs, "key": node_key(draws, node)}
            whole = partial(compute, **attrs)
            if gathered := self._gathering(node):
                return lambda *arrays: gathered(whole(*gathered(arrays)))
            return self._in_addends(node, whole, partial(whole, local=True)) if node in self.addends else whole
        axes = self._axes(node)
        if node.op.random:
            keys = jax.random.split(node_key(draws, node), node.scope.placement.parallel_num)
            one = lambda key, *arrays: compute(*arrays, key=key, **attrs)  # noqa: E731
            return partial(jax.vmap(one, in_axes=(0, *axes)), keys)
        return jax.vmap(partial(compute, **attrs), in_axes=axes)

    def has_own_gradient(self, node: Node, arrays: Sequence[Any]) -> bool:
        """Whether the gradient of a node is the one that its op defines, not the vjp of its function of these arrays."""
        if node.op.grad is None or node.op.native is None:
            return node.op.grad is not None
        if node in self.vmapped:
            arrays = [
                a if axis is None else jax.ShapeDtypeStruct(a.shape[1:], a.dtype)
                for a, axis in zip(arrays, self._axes(node), strict=True)
            ]
        narrow = self.precision.get(node)
        if choose_narrowing(node, arrays, self.without_native, narrow) is not None:
            return False
        if narrow is not None:
            arrays = [jax.ShapeDtypeStruct(a.shape, narrow.numpy_dtype) if a.dtype == "float32" else a for a in arrays]
        return choose(node, arrays, self.without_native) is node.op.define

    def gradient(self, node: Node, arrays: Any, outputs: Any, cotangents: Any) -> tuple[Any, ...]:
        """The gradient that an op defines itself: one cotangent (or None) per input."""
        assert node.op.grad is not None
        grad, attrs = narrowed_grad(node, self.precision.get(node), node.op.grad), node.attrs
        if node in self.addends:
            return self._gradient_in_addends(node, grad, arrays, outputs, cotangents)
        if node not in self.vmapped:
            if gathered := self._gathering(node):
                return gathered(grad(gathered(arrays), gathered(outputs), gathered(cotangents), **attrs))
            return grad(arrays, outputs, cotangents, **attrs)
        axes = self._axes(node)
        found = jax.vmap(lambda i, o, c: tuple(grad(i, o, c, **attrs)), in_axes=(axes, 0, 0))(arrays, outputs, cotangents)
        return tuple(g.sum(0) if g is not None and axis is None else g for g, axis in zip(found, axes, strict=True))

    def _gradient_in_addends(self, node: Node, grad: Any, arrays: Any, outputs: Any, cotangents: Any) -> tuple[Any, ...]:
        def to_second(x: Any, y: Any, c: Any, second: Any) -> Any:
            return grad((x, second), (y,), (c,), **node.attrs)[1]

        apart = _native.addends(self.addends[node], to_second, rows=3, whole=1)
        found = grad(arrays, outputs, cotangents, **node.attrs)
        return found[0], apart(arrays[0], outputs[0], cotangents[0], arrays[1])

    def _in_addends(self, node: Node, whole: Callable[..., Any], local: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a node whose gradient to input 1 is made by each device of its own rows, by the vjp of ``local``."""

        def to_second(x: Any, c: Any, second: Any) -> Any:
            return jax.vjp(lambda second: local(x, second), second)[1](c)[0]

        def forward(x: Any, second: Any) -> tuple[Any, Any]:
            y, to_first = jax.vjp(lambda x: whole(x, second), x)
            return y, (to_first, x, second)

        def backward(saved: Any, c: Any) -> tuple[Any, Any]:
            to_first, x, second = saved
            return *to_first(c), _native.addends(self.addends[node], to_second, rows=2, whole=1)(x, c, second)

        run = jax.custom_vjp(whole)
        run.defvjp(forward, backward)
        return run

    def _axes(self, node: Node) -> Axes:
        return tuple(0 if b.node in self.vmapped else None for b in node.inputs)

    # --- layouts

    def mesh(self, placement: Placement) -> Any:
        """The mesh of several devices; None for one."""
        if self.meshes is None or placement.parallel_num == 1:
            return None
        return self.meshes.sharding(placement, ()).mesh

    def whole(self, array: Any, placement: Placement) -> Any:
        """An array as each device of a placement has all of it."""
        return array if self.meshes is None else self._laid_out(array, Layout.whole(placement))

    def _laid_out(self, array: Any, layout: Layout) -> Any:
        assert self.meshes is not None
        if layout.placement.parallel_num == 1:
            return array
        return lax.with_sharding_constraint(array, self.meshes.sharding(layout.placement, layout.spec(array.ndim)))

    def _gathering(self, node: Node) -> Callable[[Any], Any] | None:
        """Lays out arrays of a node so that the axes that XLA must not divide are whole; None where there are none."""
        meshes, placement = self.meshes, node.scope.placement
        if node.op.undivided is None or meshes is None or placement.parallel_num == 1:
            return None
        whole = node.op.undivided(node.attrs, node.inputs, node.outputs, placement.parallel_num)
        if not whole:
            return None

        def lay_out(array: Any) -> Any:
            if array is None:
                return None
            spec = tuple(() if axis in whole else None for axis in range(array.ndim))
            return lax.with_sharding_constraint(array, meshes.sharding(placement, spec))

        return lambda arrays: tuple(map(lay_out, arrays)) if isinstance(arrays, (tuple, list)) else lay_out(arrays)

    def by_device(self, array: Any, node: Node) -> Any:
        """An array with a leading axis of devices, laid out so that each device has its own piece."""
        if self.meshes is None:
            return array
        placement = node.scope.placement
        spec = (tuple(mesh_axes(placement)), *((),) * (array.ndim - 1))
        return lax.with_sharding_constraint(array, self.meshes.sharding(placement, spec))

    def _to_mirrored(self, node: Node, x: Any) -> Any:
        if not node.attrs["pieces"]:
            return x
        n = node.scope.placement.parallel_num
        return self.by_device(jnp.reshape(x, (n, x.shape[0] // n, *x.shape[1:])), node)

    def _to_consistent(self, node: Node, x: Any) -> Any:
        n = node.inputs[0].parallel_size
        if node.inputs[0].node not in self.vmapped:
            x = jnp.broadcast_to(x, (n, *x.shape))
        return jnp.reshape(x, (n * x.shape[1], *x.shape[2:]))

    def _laying_out(self, node: Node) -> Callable[[Any], Any]:
        """The identity with the requested layouts of its value and of its gradient."""

        def asked(key: str) -> Layout | None:
            request = node.attrs.get(key)
            return None if request is None else Layout.of(node.scope.placement, request)

        forward, backward = asked("distribute"), asked("gradient_distribute")

        def lay_out(x: Any, layout: Layout | None) -> Any:
            return x if layout is None else self._laid_out(x, layout)

        cast = jax.custom_vjp(lambda x: lay_out(x, forward))
        cast.defvjp(lambda x: (lay_out(x, forward), None), lambda _, c: (lay_out(c, backward),))
        return cast


def node_key(draws: tuple[Any, Any, Any], node: Node) -> Any:
    """The random key of a node in one call, derived from the session's seed and the node's name, or from the op's own seed.

    ``draws`` holds the session's key, the number of calls of the job so far, and the index of the run of a repeated node (an
    array, or None to use ``node.run``).
    """
    key, calls, run = draws
    seed = node.attrs.get("seed")
    if seed is None:
        made = jax.random.fold_in(jax.random.fold_in(key, calls), zlib.crc32(node.name.encode()))
    else:
        made = jax.random.fold_in(jax.random.key(seed % 2**32, impl="threefry2x32"), calls)
    for i, number in enumerate(node.run):
        made = jax.random.fold_in(made, number if run is None else run[i])
    return made


class Values(dict[Node, tuple[Any, ...]]):
    """The traced values of nodes, and the lowering of their readers."""

    def __init__(self, lowering: Lowering):
        super().__init__()
        self.lowering = lowering

    def get_blob(self, blob: Blob) -> Any:
        return self[blob.node][blob.index]

    def set_blob(self, blob: Blob, array: Any) -> None:
        """Sets one output of a node; the others keep their values, or None."""
        present = self.get(blob.node, (None,) * len(blob.node.outputs))
        self[blob.node] = tuple(array if i == blob.index else p for i, p in enumerate(present))

    def inputs(self, node: Node) -> tuple[Any, ...]:
        """The inputs of a node, as its function takes them."""
        read = self.lowering.read
        return tuple([read(self[b.node][b.index], b, node) for b in node.inputs])


__all__ = ["Lowering", "Observer", "Values", "vmapped_nodes", "node_key", "replicated_variables"]
