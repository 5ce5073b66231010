"""Program: what a job compiles to. One function of (state, reads, feeds) for XLA, or one for each place it computes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from .._base.dist import Placement
from .._base.jax import jax, jnp
from ..graph.graph import OP_INPUT, OP_TO_MIRRORED, OP_VARIABLE, Graph, Variable, Watch
from ..graph.node import Blob, Node
from . import channels_last, native, precision
from .analysis import ancestors, gradient_path, trained_variables
from .autodiff import Backward, Propagate, run_nodes
from .batch_slices import Region, run_region, schedule
from .expansion import Expansion, expand
from .hosting import Hosting, hosting
from .indexed_slices import gather_of
from .layout import Layout, Meshes, Storage, mesh_axes
from .lowering import Lowering, Values, mapped_nodes, replicated_variables
from .update import finish, loss_count, measure, numbers, prepare, seed_scale

RANDOM_STATE = "random state"  # uint32[3]: two words of seed and the number of calls made

Step = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What a job's program takes and gives, decided once.

    Attributes:
      order: the nodes that are needed, inputs first.
      path: those that a gradient flows through.
      trained: the variables that the job updates.
      written: names of the state that a call replaces (donated); RANDOM_STATE last where ``random``.
      read: names of the variables that a call only reads.
      fetches: the Blobs whose values the step gives; ``watches`` those that its watch handlers get.
      roots: all Blobs whose values something else than a node reads.
      feeds: the Blobs whose values the step takes: inputs of the job, then results of its host stage.
      host: what runs on the host before the step.
      x64: whether 64-bit values may occur, so that calls need JAX's 64-bit mode.
      expansion: what the nodes of repeated parts were written out to.
      losses: what is minimised, of all runs; ``assigns`` what is stored into variables, by name.
      without_native: why no op takes its native lowering; "" where some may.
      replicated: the variables of which each device has a value of its own.
      mapped: the nodes whose values have a leading axis of devices.
      keeps_state: state is not donated, so that a step which is found to have failed leaves it.
      devices: where each device's tensors have shapes of their own, the copies of mirrored nodes, one a device.
    """

    graph: Graph
    order: tuple[Node, ...]
    path: frozenset[Node]
    trained: tuple[Variable, ...]
    written: tuple[str, ...]
    read: tuple[str, ...]
    random: bool
    fetches: tuple[Blob, ...]
    watches: tuple[Watch, ...]
    roots: tuple[Blob, ...]
    feeds: tuple[Blob, ...]
    host: Hosting
    x64: bool
    expansion: Expansion
    losses: tuple[Blob, ...]
    assigns: Mapping[str, Blob]
    without_native: str = ""
    replicated: frozenset[str] = frozenset()
    mapped: frozenset[Node] = field(default_factory=frozenset)
    devices: Mapping[Node, tuple[Node, ...]] = field(default_factory=dict)
    keeps_state: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the host stage gives all that a call delivers, so that nothing is left to be computed."""
        return bool(self.host) and not (self.fetches or self.watches or self.written)

    @property
    def careful(self) -> bool:
        """Whether a step may fail in the middle, as it runs the user's Python code: its state is not donated then, and becomes
        the session's only when the step is done."""
        return self.keeps_state or any(node.op.callback for node in self.order)

    @property
    def compute(self) -> list[Node]:
        """The nodes that compute something."""
        return [node for node in self.order if node.op not in (OP_INPUT, OP_VARIABLE)]

    def on_devices(self, blob: Blob) -> tuple[Blob, ...]:
        """The Blobs that stand for one: itself, or its copies on the devices."""
        copies = self.devices.get(blob.node)
        return (blob,) if copies is None else tuple(node.outputs[blob.index] for node in copies)

    @property
    def repeats(self) -> bool:
        """Whether parts of the job run several times a call."""
        return bool(self.expansion.copies)

    @property
    def runs_of_loss(self) -> int:
        """How often a call computes each loss, on each device."""
        if self.devices:
            return 1
        return len(self.losses) // max(len(self.graph.objective.losses), 1)

    def load(self, name: str, stored: Any, storages: Mapping[str, Storage]) -> Any:
        """The value of a variable (or of the random state) as the job's nodes get it."""
        return stored if name == RANDOM_STATE else storages[name].load(stored, each=name in self.replicated)

    def token_is_needed(self) -> bool:
        """Whether no fetched value tells when the call is over: state may be donated to the next call by then, and JAX gives
        inputs that are returned as they are before the call has run."""
        return not any(b.node.op not in (OP_INPUT, OP_VARIABLE) for b in self.fetches)


def plan(graph: Graph, fetches: Sequence[Blob], *, native_ops: bool = True) -> Plan:
    """Decides how the job runs; traces nothing yet. ``native_ops``: ops may take their native lowerings."""
    objective = graph.objective
    trained = trained_variables(graph) if graph.train else []
    read_by_rules = [b for o in objective.optimizers for b in (o.learning_rate_blob, o.train_step_blob) if b is not None]
    gathers = [gather_of(graph, v, o) for v in trained for o in objective.optimizers]
    read_by_rules += [gather.inputs[1] for gather in gathers if gather is not None]
    watched = [w.blob for w in graph.watches if graph.train or not w.diff]
    losses = objective.losses if graph.train else []
    used = [*watched, *graph.assigns.values(), *losses, *(read_by_rules if graph.train else [])]
    needed = ancestors([*fetches, *used])
    nodes = [node for node in graph.nodes if node in needed]
    host = hosting(graph, nodes, fetches, used)
    on_host = set(host.nodes)
    nodes = [node for node in nodes if node not in on_host]
    fetches = [b for b in fetches if b.node not in on_host and not (b.is_tensor_list and b.node.op is OP_INPUT)]

    expansion, fetches = expand(nodes, graph.assigns, fetches)
    order = expansion.order
    precision.assign(graph, order)
    for node, made in expansion.copies.items():  # what tables say of a node that stands for several
        node.compute = made[0].compute
    losses = [each for loss in losses for each in expansion.each(loss)]
    watches = [replace(w, blob=each) for w in graph.watches for each in expansion.each(w.blob) if graph.train or not w.diff]
    assigns = {name: expansion.last(blob) for name, blob in graph.assigns.items()}
    path: set[Node] = set()
    if graph.train:
        sources = {v.blob.node for v in trained if v.blob is not None} | {w.blob.node for w in watches if w.diff}
        path = gradient_path(order, losses, sources)
    watches = [w for w in watches if not w.diff or w.blob.node in path]
    roots = [*fetches, *(w.blob for w in watches), *assigns.values(), *losses]
    roots = [b for b in [*roots, *map(expansion.last, used[len(used) - len(read_by_rules) :] if graph.train else [])]
             if b.node not in on_host]  # fmt: skip
    random = any(node.op.random for node in order)

    written = set(assigns) | {v.name for v in trained}
    written |= {v.name for v in graph.variables.values() if v.role == "state"}
    read = {node.attrs["variable"] for node in order if node.op is OP_VARIABLE} - written
    written_order = tuple(n for n in graph.variables if n in written) + ((RANDOM_STATE,) if random else ())
    read_order = tuple(n for n in graph.variables if n in read)
    feeds = (*_step_inputs(graph, host, order, roots), *host.boundary)
    x64 = graph.train or any(_may_be_wide(b.node, b) for node in order for b in node.outputs)
    x64 |= any(b.dtype.name in ("int64", "float64") for b in host.boundary)
    replicated = replicated_variables(graph)
    without = "" if native_ops else native.SWITCHED_OFF
    without = without or ("" if jax.default_backend() == "cpu" else native.NO_CPU)
    return Plan(
        graph, order, frozenset(path), tuple(trained), written_order, read_order, random, tuple(fetches), tuple(watches),
        tuple(roots), feeds, host, x64, expansion, tuple(losses), assigns, without, replicated,
        mapped_nodes([*(n for n in graph.nodes if n.op is OP_INPUT or n in on_host), *order], replicated),
    )  # fmt: skip


def with_own_values(plan: Plan, storages: Mapping[str, Storage]) -> Plan:
    """The plan of a job whose mirrored parts read variables of which other jobs gave each device its own value."""
    readers: dict[str, list[Node]] = {name: [] for name, s in storages.items() if s.replicas and name not in plan.replicated}
    for node in plan.order if readers else ():
        for blob in node.inputs:
            name = blob.node.attrs.get("variable") if blob.node.op is OP_VARIABLE else None
            if name in readers:
                readers[name].append(node)
    own = {name for name, nodes in readers.items() if nodes and all(n.op is OP_TO_MIRRORED for n in nodes)}
    if not own:
        return plan
    replicated = plan.replicated | own
    return replace(plan, replicated=replicated, mapped=mapped_nodes(plan.order, replicated))


def _step_inputs(graph: Graph, host: Hosting, order: Sequence[Node], roots: Sequence[Blob]) -> list[Blob]:
    """The job's inputs, without those that the host stage alone reads."""
    read = {b.node for node in order for b in node.inputs} | {b.node for b in roots}
    return [spec.blob for i, spec in enumerate(graph.inputs) if i not in host.inputs or spec.blob.node in read]


def _may_be_wide(node: Node, blob: Blob) -> bool:
    """Whether 64-bit values may occur where ``blob`` is made; integer ops use them inside, for sums for example."""
    if blob.dtype.is_integer:
        return blob.dtype.name == "int64" or node.op is not OP_INPUT
    return blob.dtype.name == "float64"


def feed_layout(blob: Blob, placement: Placement, is_mapped: bool) -> Layout:
    """How a feed lies on the devices that read it: split along its batch axis where that gives even pieces."""
    if is_mapped:
        return Layout(placement, (0,) * len(placement.hierarchy))
    split = Layout(placement, (blob.batch_axis,) + (None,) * (len(placement.hierarchy) - 1))
    return split if blob.batch_axis >= 0 and split.is_even(blob.shape) else Layout.whole(placement)


def place_of(plan: Plan) -> Placement:
    """Where a job runs that has one place."""
    return plan.compute[0].scope.placement if plan.compute else plan.graph.scope.placement


def feed_shardings(plan: Plan, meshes: Meshes) -> tuple[Any, ...]:
    """How the feeds of a job that has one place lie there."""
    placement = place_of(plan)

    def of_feed(blob: Blob) -> Any:
        is_mapped = blob.node in plan.mapped
        layout = feed_layout(blob, placement, is_mapped)
        return meshes.sharding(placement, layout.spec(blob.ndim + is_mapped))

    return tuple(map(of_feed, plan.feeds))


def single(plan: Plan, storages: Mapping[str, Storage], meshes: Meshes | None, look: Any = None) -> Any:
    """The whole job as one function under ``jax.jit``, its state donated; ``meshes`` is None for JAX's default device."""
    step = _make_step(plan, storages, meshes, look)
    donated = (0,) if plan.written and not plan.careful else ()
    if meshes is None:
        return jax.jit(step, donate_argnums=donated)
    placement = place_of(plan)
    whole = meshes.sharding(placement, ())

    def of_state(name: str) -> Any:
        return whole if name == RANDOM_STATE else meshes.sharding(storages[name].layout.placement, storages[name].spec)

    def of_value(blob: Blob) -> Any:  # the call gives whole values; each device's own stay where they are
        return meshes.sharding(placement, (mesh_axes(placement),)) if blob.node in plan.mapped else whole

    written, read = tuple(map(of_state, plan.written)), tuple(map(of_state, plan.read))
    feeds = feed_shardings(plan, meshes)
    fetched, watched = tuple(map(of_value, plan.fetches)), tuple(of_value(w.blob) for w in plan.watches)
    token = (whole,) if plan.token_is_needed() else ()
    return jax.jit(
        step, donate_argnums=donated, in_shardings=(written, read, feeds), out_shardings=(written, fetched, watched, token)
    )


def _make_step(plan: Plan, storages: Mapping[str, Storage], meshes: Meshes | None, look: Any) -> Step:
    graph = plan.graph
    variable_nodes = [node for node in plan.order if node.op is OP_VARIABLE]
    watched_nodes = {w.blob.node for w in plan.watches if w.diff}
    lowering = Lowering(meshes, plan.mapped, plan.without_native)
    lowering.look = look

    def step(state_arrays: Sequence[Any], read_arrays: Sequence[Any], feeds: Sequence[Any]) -> Any:
        stored = {**dict(zip(plan.written, state_arrays, strict=True)), **dict(zip(plan.read, read_arrays, strict=True))}
        variables = {name: plan.load(name, array, storages) for name, array in stored.items()}
        values = Values(lowering)
        for blob, feed in zip(plan.feeds, feeds, strict=True):
            values.set_blob(blob, lowering.fed(blob, feed, place_of(plan)))
        draws = draws_of(variables.get(RANDOM_STATE))
        for node in variable_nodes:
            values[node] = (variables[node.attrs["variable"]],)
        propagates = (
            run_on_one_device(plan, plan.compute, plan.roots, values, draws, watched_nodes)
            if meshes is None
            else run_nodes(plan.compute, values, draws, plan.path, watched_nodes)
        )

        new = {name: values.get_blob(blob) for name, blob in plan.assigns.items()}
        backward = Backward()
        if graph.train:
            seed_losses(graph, [(b, values.get_blob(b)) for b in plan.losses], variables, backward)
            backward.run(propagates)
            raw = {v.name: backward.get(v.blob) for v in plan.trained if v.blob is not None}
            first = plan.losses[0]
            shape = values.get_blob(first).shape[first.node in plan.mapped :]
            known = numbers(graph, values, variables, loss_count(first, shape), plan.expansion)
            gradients = prepare(plan.trained, raw, variables, known)
            new.update(finish(graph, gradients, variables, known, measure(graph, gradients), counts=True))
        if RANDOM_STATE in variables:
            new[RANDOM_STATE] = advanced(variables[RANDOM_STATE])
        new_state = tuple(
            storages[name].store(new[name]) if name in new and name in storages else new.get(name, stored[name])
            for name in plan.written
        )
        fetched = tuple(values.get_blob(b) for b in plan.fetches)
        watched = tuple(watched_value(w, values, backward) for w in plan.watches)
        token = (jnp.zeros((1,), jnp.uint8),) if plan.token_is_needed() else ()
        return new_state, fetched, watched, token

    step.__name__ = step.__qualname__ = f"job_{graph.name}"
    return step


def run_on_one_device(
    plan: Plan, nodes: Sequence[Node], roots: Sequence[Blob], values: Values, draws: Any, keep: set[Node]
) -> list[Propagate]:
    """The forward pass over nodes, in the way that suits the device; gives what runs their backward pass, in order."""
    propagates: list[Propagate] = []
    arranged = None if plan.without_native else channels_last.arrange(nodes, keep, roots, plan.path)
    if arranged is not None:
        for piece in arranged[0]:
            propagates += channels_last.run(piece, values, draws, arranged[1])
        return propagates
    for is_region, group in groupby(schedule(nodes, keep, roots, plan.path), lambda item: isinstance(item, Region)):
        if is_region:
            made = [run_region(item, values, draws) for item in group if isinstance(item, Region)]
            propagates += [propagate for propagate in made if propagate is not None]
        else:
            propagates += run_nodes([item for item in group if isinstance(item, Node)], values, draws, plan.path, keep)
    return propagates


def draws_of(random_state: Any, run: Any = None) -> Any:
    """What random ops draw from in this call: the session's key, the number of calls made, and the run (see ``node_key``)."""
    if random_state is None:
        return None
    return jax.random.wrap_key_data(random_state[:2], impl="threefry2x32"), random_state[2], run


def advanced(random_state: Any) -> Any:
    """The random state of the next call."""
    return random_state.at[2].add(jnp.uint32(1))


def seed_losses(graph: Graph, losses: Iterable[tuple[Blob, Any]], variables: Mapping[str, Any], backward: Backward) -> None:
    """Begins the backward pass: ones, times the loss scale, at these losses, given with something of their shapes and dtypes."""
    scale = seed_scale(graph, variables)
    for loss, value in losses:
        backward.add(loss, jnp.broadcast_to(jnp.asarray(scale, value.dtype), value.shape))


def watched_value(watch: Watch, values: Values, backward: Backward) -> Any:
    """What a watch handler is given."""
    value = values.get_blob(watch.blob)
    if not watch.diff:
        return value
    gradient = backward.get(watch.blob)
    return jnp.zeros_like(value) if gradient is None else gradient
