"""How a node becomes a function of arrays: as its op says; once a device in the mirrored view; with the layouts asked for.

In the mirrored view a value is one array with a leading axis of devices, and a node is its op mapped over that axis. What
is the same on every device (a variable's value, a constant) stays without it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._base.dist import Placement
from .._base.jax import jax, jnp, lax
from ..graph.graph import OP_INPUT, OP_TO_CONSISTENT, OP_TO_MIRRORED, OP_VARIABLE, Graph
from ..graph.node import Blob, Node
from .layout import Layout, Meshes, mesh_axes
from .native import choose
from .precision import narrowed, narrowed_grad

Axes = tuple[int | None, ...]


def mapped_nodes(nodes: Iterable[Node], replicated: Iterable[str] = ()) -> frozenset[Node]:
    """The nodes whose values have a leading axis of devices.

    Args:
      nodes: in order, inputs first.
      replicated: names of the variables of which every device has a value of its own.
    """
    own = set(replicated)
    found: set[Node] = set()
    for node in nodes:
        if node.op is OP_VARIABLE:
            mapped = node.attrs["variable"] in own
        elif node.op is OP_TO_CONSISTENT or not node.is_mirrored:
            mapped = False
        elif node.op is OP_INPUT or node.op.random or node.op.on_host:
            mapped = True
        elif node.op is OP_TO_MIRRORED:
            mapped = node.attrs["pieces"] or node.inputs[0].node in found
        else:
            mapped = any(b.node in found for b in node.inputs)
        if mapped:
            found.add(node)
    return frozenset(found)


def replicated_variables(graph: Graph) -> frozenset[str]:
    """The variables that mirrored nodes assign to: each device keeps its own value."""
    mapped = mapped_nodes(graph.nodes)
    return frozenset(name for name, blob in graph.assigns.items() if blob.node in mapped)


class Lowering:
    """The functions of a job's nodes. ``meshes`` is None where everything runs on JAX's default device.

    ``without_native`` says why no op takes its native lowering; "" where some may. ``threads`` compute one that does, 0 for as
    many as it is worth.
    """

    def __init__(
        self,
        meshes: Meshes | None = None,
        mapped: frozenset[Node] = frozenset(),
        without_native: str = "not asked for",
        threads: int = 0,
    ):
        self._meshes = meshes
        self._mapped = mapped
        self._without_native = without_native
        self._threads = threads
        self.look: Callable[[Node, tuple[Any, ...]], None] | None = None  # is shown every node's outputs as they are traced

    def on_one_thread(self) -> Lowering:
        """The same for nodes that run beside others of their kind."""
        alone = Lowering(self._meshes, self._mapped, self._without_native, 1)
        alone.look = self.look
        return alone

    def is_mapped(self, blob: Blob) -> bool:
        """Whether the value has a leading axis of devices."""
        return blob.node in self._mapped

    def read(self, array: Any, blob: Blob, reader: Node) -> Any:
        """The value of an input as a node gets it: in the layout that was asked for with ``with_distribute``.

        A variable is read in the layout it was declared with, however it is stored.
        """
        if self._meshes is None or blob.node in self._mapped:
            return array
        request: Any = blob.distribute
        if request.kind == "auto" and blob.node.op is OP_VARIABLE:
            request = blob.node.graph.variables[blob.node.attrs["variable"]].distribute
        placement = reader.scope.placement
        if isinstance(request, tuple):
            fits = len(request) == len(placement.hierarchy)
        else:
            fits = request is not None and request.kind != "auto"
        return self._laid_out(array, Layout.of(placement, request)) if fits else array

    def fed(self, blob: Blob, array: Any, placement: Placement) -> Any:
        """What a feed's readers, on ``placement``, get: split along the batch axis, also where the pieces are uneven."""
        if self._meshes is None or blob.node in self._mapped or blob.batch_axis < 0:
            return array
        return self._laid_out(array, Layout(placement, (blob.batch_axis,) + (None,) * (len(placement.hierarchy) - 1)))

    def function(self, node: Node, draws: Any) -> Callable[..., Any]:
        """From the values of a node's inputs to those of its outputs."""
        placed = _PLACED.get(node.op.name) if self._meshes is not None else None
        if placed is not None and node not in self._mapped:
            return placed(self, node)
        if node.op is OP_TO_MIRRORED:
            return lambda x: self._to_mirrored(node, x)
        if node.op is OP_TO_CONSISTENT:
            return lambda x: self._to_consistent(node, x)
        attrs = node.attrs

        def define(*arrays: Any, **keywords: Any) -> Any:
            return choose(node, arrays, self._without_native)(*arrays, **keywords)

        if node not in self._mapped:
            if node.op.random:
                attrs = {**attrs, "key": node_key(draws, node)}
            return narrowed(node, lambda *arrays: define(*arrays, **attrs))
        axes = self._axes(node)
        if node.op.random:
            keys = jax.random.split(node_key(draws, node), node.scope.placement.parallel_num)
            one = lambda key, *arrays: define(*arrays, key=key, **attrs)  # noqa: E731
            return narrowed(node, lambda *arrays: jax.vmap(one, in_axes=(0, *axes))(keys, *arrays))
        return narrowed(node, jax.vmap(lambda *arrays: define(*arrays, **attrs), in_axes=axes))

    def gradient(self, node: Node, arrays: Any, outputs: Any, cotangents: Any) -> tuple[Any, ...]:
        """The gradient that an op says itself: one cotangent (or None) an input."""
        assert node.op.grad is not None
        grad, attrs = narrowed_grad(node, node.op.grad), node.attrs
        if node not in self._mapped:
            return grad(arrays, outputs, cotangents, **attrs)
        axes = self._axes(node)
        found = jax.vmap(lambda i, o, c: tuple(grad(i, o, c, **attrs)), in_axes=(axes, 0, 0))(arrays, outputs, cotangents)
        return tuple(g.sum(0) if g is not None and axis is None else g for g, axis in zip(found, axes, strict=True))

    def _axes(self, node: Node) -> Axes:
        return tuple(0 if b.node in self._mapped else None for b in node.inputs)

    # --- layouts

    def _laid_out(self, array: Any, layout: Layout) -> Any:
        assert self._meshes is not None
        if layout.placement.parallel_num == 1:
            return array
        return lax.with_sharding_constraint(array, self._meshes.sharding(layout.placement, layout.spec(array.ndim)))

    def by_device(self, array: Any, node: Node) -> Any:
        """An array with a leading axis of devices, each device with its own piece."""
        if self._meshes is None:
            return array
        placement = node.scope.placement
        spec = (mesh_axes(placement), *((),) * (array.ndim - 1))
        return lax.with_sharding_constraint(array, self._meshes.sharding(placement, spec))

    def _to_mirrored(self, node: Node, x: Any) -> Any:
        if not node.attrs["pieces"]:
            return x
        n = node.scope.placement.parallel_num
        return self.by_device(jnp.reshape(x, (n, x.shape[0] // n, *x.shape[1:])), node)

    def _to_consistent(self, node: Node, x: Any) -> Any:
        n = node.inputs[0].parallel_size
        if node.inputs[0].node not in self._mapped:
            x = jnp.broadcast_to(x, (n, *x.shape))
        return jnp.reshape(x, (n * x.shape[1], *x.shape[2:]))

    def parallel_cast(self, node: Node) -> Callable[[Any], Any]:
        """Identity that lays out its value, and its gradient where that was asked for."""

        def asked(key: str) -> Layout | None:
            request = node.attrs.get(key)
            return None if request is None else Layout.of(node.scope.placement, request)

        forward, backward = asked("distribute"), asked("gradient_distribute")

        def lay_out(x: Any, layout: Layout | None) -> Any:
            return x if layout is None else self._laid_out(x, layout)

        cast = jax.custom_vjp(lambda x: lay_out(x, forward))
        cast.defvjp(lambda x: (lay_out(x, forward), None), lambda _, c: (lay_out(c, backward),))
        return cast


_PLACED: Mapping[str, Callable[[Lowering, Node], Callable[..., Any]]] = {
    "parallel_cast": Lowering.parallel_cast,
    "hierarchical_parallel_cast": Lowering.parallel_cast,
}


def node_key(draws: tuple[Any, Any, Any], node: Node) -> Any:
    """The random key of a node in this call: of the session's seed and the node's name, or of the seed the user gave it.

    ``draws`` are the session's key, the number of calls that the job has made, and which run of a repeated node it is (an
    array; None for what the node says).
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
    """The values of nodes while a step is traced, and how their readers lower."""

    def __init__(self, lowering: Lowering):
        super().__init__()
        self.lowering = lowering

    def get_blob(self, blob: Blob) -> Any:
        return self[blob.node][blob.index]

    def set_blob(self, blob: Blob, array: Any) -> None:
        """One output of a node that is made elsewhere; others stay None."""
        present = self.get(blob.node, (None,) * len(blob.node.outputs))
        self[blob.node] = tuple(array if i == blob.index else p for i, p in enumerate(present))

    def inputs(self, node: Node) -> tuple[Any, ...]:
        """The values a node computes from."""
        read = self.lowering.read
        return tuple([read(self[b.node][b.index], b, node) for b in node.inputs])


__all__ = ["Lowering", "Values", "mapped_nodes", "node_key", "replicated_variables"]
