"""The program of a job on one place: a single function of (state, reads, feeds) under ``jax.jit``."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from .._base.dist import Placement
from .._base.jax import jax, jnp
from ..graph.graph import OP_VARIABLE, Graph, Watch
from ..graph.node import Blob
from .addends import nodes_with_addends
from .arrangement import Arrangement
from .autodiff import Backward, run_nodes
from .fused_update import Devices
from .indexed_slices import in_rows
from .layout import Layout, Meshes, Storage, mesh_axes
from .lowering import Lowering, Observer, Values
from .options import with_product_precision
from .parts import in_parts, is_long
from .plan import PREPARED, RANDOM_STATE, Plan, is_variable
from .rewriting import function_of, rewritten, rewritten_function
from .storing import narrow_gathers
from .update import finish, loss_count, measure, numbers, prepare, seed_scale, show_updates
from .wide_reductions import options_for_reductions

Step = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]


def feed_layout(blob: Blob, placement: Placement, is_vmapped: bool) -> Layout:
    """The layout of a feed on the devices that read it: split along its batch axis if that yields even pieces."""
    if is_vmapped:
        return Layout(placement, (0,) * len(placement.hierarchy))
    split = Layout.of_batch(placement, blob.batch_axis)
    varies = blob.is_dynamic and not blob.has_dynamic_size  # from call to call: the declared shape is an upper bound
    return split if blob.batch_axis >= 0 and not varies and split.is_even(blob.shape) else Layout.whole(placement)


def program_name(plan: Plan) -> str:
    """The name of a job's program. It depends on the names of ops and variables, which a cached program carries with it."""
    names = "\n".join([*(node.name for node in plan.order), *(v.name for v in plan.trained)])
    return f"job_{plan.graph.name}_{zlib.crc32(names.encode()):08x}"


def place_of(plan: Plan) -> Placement:
    """The placement of a job that runs on one place."""
    return plan.compute[0].scope.placement if plan.compute else plan.graph.scope.placement


def feed_shardings(plan: Plan, meshes: Meshes) -> tuple[Any, ...]:
    """The shardings of the feeds of a job that runs on one place."""
    placement = place_of(plan)

    def of_feed(blob: Blob) -> Any:
        is_vmapped = blob.node in plan.vmapped
        layout = feed_layout(blob, placement, is_vmapped)
        return meshes.sharding(placement, layout.spec(blob.ndim + is_vmapped))

    return tuple(map(of_feed, plan.feeds))


def single(
    plan: Plan,
    storages: Mapping[str, Storage],
    meshes: Meshes | None,
    observer: Observer | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """The jitted step of a job on one place, with donated state.

    ``meshes`` is None for JAX's default device; ``options`` are those of the compiler.
    """
    step = with_product_precision(make_step(plan, storages, meshes, observer), plan)
    if meshes is None and observer is None and is_long(plan):
        step = in_parts(step, changed=partial(rewritten, plan=plan))
    if meshes is None:
        return _jitted(step, plan, options)
    return _jitted_on(step, plan, storages, meshes, options)


def _jitted_on(
    step: Callable[..., Any], plan: Plan, storages: Mapping[str, Storage], meshes: Meshes, options: Mapping[str, Any] | None
) -> Any:
    """The jitted step of a job on one place that ``meshes`` know."""
    placement = place_of(plan)
    whole = meshes.sharding(placement, ())

    def of_state(name: str) -> Any:
        return meshes.sharding(storages[name].layout.placement, storages[name].spec) if is_variable(name) else whole

    # a call returns whole values, which the host puts together from pieces where it has them: for XLA's gather devices wait for
    # each other. Values of mirrored nodes stay on their devices
    in_pieces = plan.platform == "cpu" and whole.is_fully_addressable

    def of_value(blob: Blob) -> Any:
        if blob.node in plan.vmapped:
            return meshes.sharding(placement, (tuple(mesh_axes(placement)),))
        if not in_pieces or blob.is_dynamic:  # devices have even pieces of what does not vary
            return whole
        return meshes.sharding(placement, feed_layout(blob, placement, False).spec(blob.ndim))

    written, read = tuple(map(of_state, plan.written)), tuple(map(of_state, plan.read))
    feeds = feed_shardings(plan, meshes)
    fetched, watched = tuple(map(of_value, plan.fetches)), tuple(of_value(w.blob) for w in plan.watches)
    token = (whole,) if plan.token_is_needed() else ()
    return jax.jit(
        step,
        donate_argnums=_donated(plan),
        in_shardings=(written, read, feeds),
        out_shardings=(written, fetched, watched, token),
        compiler_options=dict(options) if options else None,
    )


def rewritten_step(
    traced: Any, plan: Plan, storages: Mapping[str, Storage], meshes: Meshes | None, options: Mapping[str, Any] | None
) -> Any | None:
    """The jitted step of a job on one place as XLA is to get it; None where it stays as it was traced.

    ``traced`` is the step, traced; the others are those of ``single``.
    """
    name, devices = program_name(plan), 1 if meshes is None else place_of(plan).parallel_num
    own = options_for_reductions(traced.jaxpr, plan, is_spread=devices > 1)
    run = rewritten_function(traced, plan, name, devices, keeps_reductions=bool(own))
    if run is None and not own:
        return None
    run, options = run or function_of(traced.jaxpr, traced, name), {**(options or {}), **own}
    if meshes is not None:
        return _jitted_on(run, plan, storages, meshes, options)
    if not is_stateless(plan):
        return _jitted(run, plan, options)
    is_single = len(plan.fetches) == 1

    def step(state: Any, reads: Any, feeds: Any) -> Any:
        fetched = run(*feeds)
        return (), (fetched,) if is_single else fetched, (), ()

    step.__name__ = step.__qualname__ = run.__name__
    return _jitted(step, plan, options)


def _jitted(step: Callable[..., Any], plan: Plan, options: Mapping[str, Any] | None) -> Any:
    """The jitted step of a job on JAX's default device."""
    given = dict(options) if options else None
    if is_stateless(plan):
        return Stateless.jitted(step, given, plan)
    return jax.jit(step, donate_argnums=_donated(plan), compiler_options=given)


def _donated(plan: Plan) -> tuple[int, ...]:
    return (0,) if plan.written and not plan.transactional else ()


def is_stateless(plan: Plan) -> bool:
    """Whether the step of a job on JAX's default device is a ``Stateless``."""
    return not (plan.written or plan.read or plan.watches or plan.token_is_needed())


class Stateless:
    """The compiled step of a job that keeps no state and gives nothing but its fetched values.

    JAX takes longer over tuples, which a tiny call notices: ``fetch`` takes feeds and gives the fetched value, or several
    (``is_single`` is False then) as a flat tuple.
    """

    def __init__(self, fetch: Callable[..., Any], plan: Plan):
        self.fetch: Any = fetch
        self.is_single = len(plan.fetches) == 1

    @staticmethod
    def jitted(step: Step, options: dict[str, Any] | None, plan: Plan) -> Stateless:
        """Of the step of a plan."""
        is_single = len(plan.fetches) == 1

        def fetch(*feeds: Any) -> Any:
            fetched = step((), (), feeds)[1]
            return fetched[0] if is_single else fetched

        fetch.__name__ = fetch.__qualname__ = step.__name__
        return Stateless(jax.jit(fetch, compiler_options=options), plan)

    def __call__(self, state: Any, reads: Any, feeds: Any) -> Any:
        fetched = self.fetch(*feeds)
        return (), (fetched,) if self.is_single else fetched, (), ()

    def trace(self, state: Any, reads: Any, feeds: Any) -> Any:
        """The step traced for arguments of these shapes."""
        return self.fetch.trace(*feeds)


def make_step(plan: Plan, storages: Mapping[str, Storage], meshes: Meshes | None, observer: Observer | None = None) -> Step:
    """The step of a job as one function of arrays: to be traced, or to be run op by op."""
    graph = plan.graph
    variable_nodes = [node for node in plan.order if node.op is OP_VARIABLE]
    watched_nodes = {w.blob.node for w in plan.watches if w.diff}
    arrangement = plan.arrangement or Arrangement(tuple(plan.compute), plan.path, plan.precision, watched_nodes)
    addends = nodes_with_addends(plan, arrangement, place_of(plan), storages, meshes) if observer is None else {}
    summed = frozenset(node.inputs[1].node.attrs["variable"] for node in addends)
    gathers = narrow_gathers(plan.compute, arrangement.precision, storages)
    keeps_rows = graph.train and observer is None and not plan.vmapped
    whole = [v for v in plan.trained if keeps_rows and (meshes is None or storages[v.name].is_whole_on(place_of(plan)))]
    rows_of = in_rows(graph, whole, plan.path, plan.gathers, watched_nodes)
    lowering = Lowering(
        meshes, plan.vmapped, plan.without_native, arrangement.precision, observer, plan.platform, gathers, in_rows=rows_of,
        rounded=arrangement.rounded, narrow_cotangents=arrangement.narrow_cotangents, addends=addends,
        joint=arrangement.joint if observer is None else {}, program=program_name(plan),
    )  # fmt: skip

    def step(state_arrays: Sequence[Any], read_arrays: Sequence[Any], feeds: Sequence[Any]) -> Any:
        stored = {**dict(zip(plan.written, state_arrays, strict=True)), **dict(zip(plan.read, read_arrays, strict=True))}
        variables = {name: plan.load(name, array, storages) for name, array in stored.items()}
        values = Values(lowering)
        for blob, feed in zip(plan.feeds, feeds, strict=True):
            values.set_blob(blob, lowering.fed(blob, feed, place_of(plan)))
        for i, blob in enumerate(plan.prepared):
            values.set_blob(blob, variables[f"{PREPARED}{i}"])
        draws = draws_of(variables.get(RANDOM_STATE))
        for node in variable_nodes:
            values[node] = (variables[node.attrs["variable"]],)
        propagates = arrangement.run(values, draws)
        new = {name: values.get_blob(blob) for name, blob in plan.assigns.items()}
        backward = Backward(observer, plan.platform)
        if graph.train:
            seed_losses(graph, [(b, values.get_blob(b)) for b in plan.losses], variables, backward)
            backward.run(propagates)
            raw = {v.name: backward.get(v.blob) for v in plan.trained if v.blob is not None}
            first = plan.losses[0]
            shape = values.get_blob(first).shape[first.node in plan.vmapped :]
            known = numbers(plan, values, variables, loss_count(first, shape) * plan.runs_of_loss)
            before = _apart(plan, variables)
            gradients = prepare(plan.trained, raw, before, known)
            unordered = {v.name: backward.unordered(v.blob) for v in plan.trained if v.blob is not None}
            added_up = frozenset(name for name in summed if unordered[name][0] is not None)
            devices = Devices.of(meshes, place_of(plan), storages, added_up, program_name(plan))
            measured = measure(graph, gradients)
            rows = backward.gathered
            updated = finish(plan, gradients, before, known, measured, counts=True, raw=unordered, devices=devices, rows=rows)
            if observer is not None:
                show_updates(observer, plan, raw, gradients, variables, updated)
            new.update(updated)
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

    step.__name__ = step.__qualname__ = program_name(plan)
    return step


def preparation(plan: Plan, storages: Mapping[str, Storage]) -> tuple[tuple[str, ...], Any]:
    """The names of the variables that prepared values depend on, and the jitted function from these to the values."""
    read = [node for node in plan.preparation if node.op is OP_VARIABLE]
    names = tuple(node.attrs["variable"] for node in read)
    lowering = Lowering(None, plan.vmapped, plan.without_native, plan.precision, None, plan.platform)

    def prepare_values(arrays: Sequence[Any]) -> tuple[Any, ...]:
        values = Values(lowering)
        for node, name, array in zip(read, names, arrays, strict=True):
            values[node] = (plan.load(name, array, storages),)
        run_nodes([node for node in plan.preparation if node.op is not OP_VARIABLE], values, None, ())
        return tuple(values.get_blob(blob) for blob in plan.prepared)

    return names, jax.jit(prepare_values)


def _apart(plan: Plan, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables as the updates read them.

    XLA for GPUs computes an update together with a transposed copy of the same variable for the backward pass, and then has to
    copy the variable, since it cannot update in place what it reads in another order. Behind a barrier it does not.
    """
    if plan.platform != "gpu":
        return dict(variables)
    trained = {v.name for v in plan.trained}
    return {name: jax.lax.optimization_barrier(x) if name in trained else x for name, x in variables.items()}


def draws_of(random_state: Any, run: Any = None) -> Any:
    """The base of the keys of random ops: the session's key, the number of calls, the run (see ``node_key``)."""
    if random_state is None:
        return None
    return jax.random.wrap_key_data(random_state[:2], impl="threefry2x32"), random_state[2], run


def advanced(random_state: Any) -> Any:
    """The random state for the next call."""
    return random_state.at[2].add(jnp.uint32(1))


def seed_losses(graph: Graph, losses: Iterable[tuple[Blob, Any]], variables: Mapping[str, Any], backward: Backward) -> None:
    """Starts the backward pass: the cotangent of each loss is the loss scale. A loss comes with its shape and dtype."""
    scale = seed_scale(graph, variables)
    for loss, value in losses:
        backward.add(loss, jnp.broadcast_to(jnp.asarray(scale, value.dtype), value.shape))


def watched_value(watch: Watch, values: Values, backward: Backward) -> Any:
    """The value that a watch handler gets."""
    value = values.get_blob(watch.blob)
    if not watch.diff:
        return value
    gradient = backward.get(watch.blob)
    return jnp.zeros_like(value) if gradient is None else gradient
