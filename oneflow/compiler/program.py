"""Program: what a job compiles to. One function of (state, reads, feeds) for XLA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .._jax import jax, jnp
from ..graph.graph import OP_INPUT, OP_VARIABLE, Graph
from ..graph.node import Blob, Node
from . import precision
from .analysis import ancestors, gradient_path, trained_variables
from .autodiff import Backward, Propagate, Values, run_nodes
from .batch_slices import Region, run_region, schedule
from .hosting import Hosting, hosting
from .update import apply, seed_scale

RANDOM_STATE = "random state"  # uint32[3]: two words of seed and the number of calls made


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What a job's executable takes and gives, decided once.

    Attributes:
      written: names of the state that a call replaces (donated); RANDOM_STATE last where ``random``.
      read: names of the variables that a call only reads.
      fetches: the Blobs whose values the step gives; ``watched`` those that its watch handlers get.
      feeds: the Blobs whose values the step takes: inputs of the job, then results of its host stage.
      host: what runs on the host before the step.
      x64: whether 64-bit values may occur, so that calls need JAX's 64-bit mode.
      step: ``step(state, reads, feeds)`` gives (new state, fetched values, watched values, token).
    """

    graph: Graph
    written: tuple[str, ...]
    read: tuple[str, ...]
    random: bool
    fetches: tuple[Blob, ...]
    watched: tuple[Any, ...]
    feeds: tuple[Blob, ...]
    host: Hosting
    x64: bool
    step: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]

    @property
    def is_empty(self) -> bool:
        """Whether the host stage gives all that a call delivers, so that nothing is left to be computed."""
        return bool(self.host) and not (self.fetches or self.watched or self.written)

    def jitted(self) -> Any:
        """The step under ``jax.jit``, its state donated."""
        return jax.jit(self.step, donate_argnums=(0,) if self.written else ())


def plan(graph: Graph, fetches: Sequence[Blob]) -> Plan:
    """Decides how the job runs; traces nothing yet."""
    objective = graph.objective
    trained = trained_variables(graph) if graph.train else []
    watched_diffs = [w.blob for w in graph.watches if w.diff] if graph.train else []
    sources = {v.blob.node for v in trained if v.blob is not None} | {b.node for b in watched_diffs}
    path = gradient_path(graph, objective.losses, sources) if graph.train else set()
    watches = tuple(w for w in graph.watches if not w.diff or w.blob.node in path)
    roots = [*fetches, *(w.blob for w in watches), *graph.assigns.values()]
    if graph.train:
        roots += objective.losses
        roots += [b for o in objective.optimizers for b in (o.learning_rate_blob, o.train_step_blob) if b is not None]
    needed = ancestors(roots)
    order = [node for node in graph.nodes if node in needed]
    host = hosting(graph, order, fetches, roots[len(fetches) :])
    on_host = set(host.nodes)
    order = [node for node in order if node not in on_host]
    fetches = [b for b in fetches if b.node not in on_host]
    roots = [b for b in roots if b.node not in on_host]
    precision.assign(graph, order)
    random = any(node.op.random for node in order)

    written = set(graph.assigns) | {v.name for v in trained}
    written |= {v.name for v in graph.variables.values() if v.role == "state"}
    read = {node.attrs["variable"] for node in order if node.op is OP_VARIABLE} - written
    written_order = tuple(n for n in graph.variables if n in written) + ((RANDOM_STATE,) if random else ())
    read_order = tuple(n for n in graph.variables if n in read)
    feeds = (*_step_inputs(graph, host, order, roots), *host.boundary)
    x64 = graph.train or any(_may_be_wide(b.node, b) for node in order for b in node.outputs)
    x64 |= any(b.dtype.name in ("int64", "float64") for b in host.boundary)
    step = _make_step(graph, order, path, trained, written_order, read_order, feeds, tuple(fetches), watches, roots)
    return Plan(graph, written_order, read_order, random, tuple(fetches), watches, feeds, host, x64, step)


def _step_inputs(graph: Graph, host: Hosting, order: list[Node], roots: Sequence[Blob]) -> list[Blob]:
    """The job's inputs, without those that the host stage alone reads."""
    read = {b.node for node in order for b in node.inputs} | {b.node for b in roots}
    return [spec.blob for i, spec in enumerate(graph.inputs) if i not in host.inputs or spec.blob.node in read]


def _may_be_wide(node: Node, blob: Blob) -> bool:
    """Whether 64-bit values may occur where ``blob`` is made; integer ops use them inside, for sums for example."""
    if blob.dtype.is_integer:
        return blob.dtype.name == "int64" or node.op is not OP_INPUT
    return blob.dtype.name == "float64"


def _make_step(
    graph: Graph,
    order: list[Node],
    path: set[Node],
    trained: list[Any],
    written: tuple[str, ...],
    read: tuple[str, ...],
    feed_blobs: tuple[Blob, ...],
    fetches: tuple[Blob, ...],
    watches: tuple[Any, ...],
    used_outside: Sequence[Blob],
) -> Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]:
    variable_nodes = [node for node in order if node.op is OP_VARIABLE]
    compute = [node for node in order if node.op not in (OP_INPUT, OP_VARIABLE)]
    watched_nodes = {w.blob.node for w in watches if w.diff}
    computed = any(b.node.op not in (OP_INPUT, OP_VARIABLE) for b in fetches)

    def step(state_arrays: Sequence[Any], read_arrays: Sequence[Any], feeds: Sequence[Any]) -> Any:
        state = dict(zip(written, state_arrays, strict=True))
        variables = {**state, **dict(zip(read, read_arrays, strict=True))}
        values = _fed(feed_blobs, feeds)
        draws: Any = None
        if RANDOM_STATE in state:
            words = state[RANDOM_STATE]
            draws = jax.random.wrap_key_data(words[:2], impl="threefry2x32"), words[2]
        for node in variable_nodes:
            values[node] = (variables[node.attrs["variable"]],)
        propagates: list[Propagate] = []
        for item in schedule(compute, watched_nodes, used_outside, path):
            if isinstance(item, Region):
                propagate = run_region(item, values, draws)
                propagates += [propagate] if propagate is not None else []
            else:
                propagates += run_nodes([item], values, draws, path)

        new = {name: values[blob.node][blob.index] for name, blob in graph.assigns.items()}
        backward = Backward()
        if graph.train:
            scale = seed_scale(graph, variables)
            for loss in graph.objective.losses:
                value = values[loss.node][loss.index]
                backward.add(loss, jnp.broadcast_to(jnp.asarray(scale, value.dtype), value.shape))
            backward.run(propagates)
            new.update(apply(graph, trained, backward, values, variables))
        if RANDOM_STATE in state:
            new[RANDOM_STATE] = state[RANDOM_STATE].at[2].add(jnp.uint32(1))
        new_state = tuple(new.get(name, state[name]) for name in written)
        fetched = tuple(values[b.node][b.index] for b in fetches)
        watched = tuple(_watched(w, values, backward) for w in watches)
        # something that is ready when the whole call is: state may be donated to the next call by then, and JAX gives
        # inputs that are returned as they are before the call has run
        token = () if computed else (jnp.zeros((1,), jnp.uint8),)
        return new_state, fetched, watched, token

    step.__name__ = step.__qualname__ = f"job_{graph.name}"
    return step


def _fed(blobs: Sequence[Blob], feeds: Sequence[Any]) -> Values:
    """Values of the nodes that something else than the step made; a host node's other outputs are None."""
    made: dict[Node, list[Any]] = {b.node: [None] * len(b.node.outputs) for b in blobs}
    for blob, feed in zip(blobs, feeds, strict=True):
        made[blob.node][blob.index] = feed
    return {node: tuple(outputs) for node, outputs in made.items()}


def _watched(watch: Any, values: Values, backward: Backward) -> Any:
    value = values[watch.blob.node][watch.blob.index]
    if not watch.diff:
        return value
    gradient = backward.get(watch.blob)
    return jnp.zeros_like(value) if gradient is None else gradient
