"""Stages: a job whose ops are placed on different devices, one compiled function for each place and direction.

Nodes are grouped into segments: what one place computes without waiting for another. Values, and on the way back their
cotangents, go from device to device between them; what the backward pass keeps of a segment stays where it was made.
Each place updates the variables that live there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from .._base.dist import Placement
from .._base.jax import jax, jnp
from ..errors import CompileError, ViewError
from ..graph.graph import OP_VARIABLE, Variable, Watch
from ..graph.node import Blob, Node
from .autodiff import Backward, Propagate, Recomputed, Step, forward, run_nodes
from .indexed_slices import gather_of
from .layout import Layout, Meshes, Storage, mesh_axes
from .lowering import Lowering, Values
from .program import RANDOM_STATE, Plan, advanced, draws_of, feed_layout, run_on_one_device, seed_losses
from .update import (
    Numbers,
    State,
    add_measures,
    counters,
    finish,
    is_dynamic_scale,
    loss_count,
    measure,
    measures_anything,
    numbers,
    prepare,
    updates,
)

Key = tuple[Node, int]  # a Blob, whatever handle
Place = tuple[Any, ...]  # devices, in order, and their arrangement


def key_of(blob: Blob) -> Key:
    return blob.node, blob.index


class Compiled:
    """A function for the arrays of one place: compiled once, for what the first call of it is given."""

    def __init__(self, function: Callable[..., Any], out_shardings: Any = None, donate: bool = False):
        keywords: dict[str, Any] = {} if out_shardings is None else {"out_shardings": out_shardings}
        if donate:
            keywords["donate_argnums"] = (0,)
        self._jitted = jax.jit(function, **keywords)
        self._made: Any = None
        self.name = function.__name__

    @property
    def made(self) -> Any:
        """The ``jax.stages.Compiled``; None before it is there."""
        return self._made

    def build(self, arguments: tuple[Any, ...], compile: Callable[[Any], Any]) -> Any:
        """Compiles for ``arguments`` (ShapeDtypeStructs with shardings); gives those of the outputs."""
        traced = self._jitted.trace(*arguments)
        self._made = compile(traced)
        return jax.tree.map(
            lambda info, sharding: jax.ShapeDtypeStruct(info.shape, info.dtype, sharding=sharding),
            traced.out_info,
            self._made.output_shardings,
        )

    def __call__(self, *arguments: Any) -> Any:
        return self._made(*arguments)


@dataclass(eq=False)
class Segment:
    """Nodes that one place computes in one go.

    Attributes:
      imports: Blobs from elsewhere, in order; ``exports`` those used elsewhere.
      steps: what tracing the forward pass left for the backward pass; ``loss_shapes`` those of ``losses``.
      is_end: no cotangents come from others: its backward pass follows at once, in the same function.
      like: what segments whose functions are the same have in common: those of other runs.
    """

    place: Place
    placement: Placement
    level: int
    run: tuple[int, ...]
    nodes: list[Node] = field(default_factory=list)
    imports: list[Blob] = field(default_factory=list)
    exports: list[Blob] = field(default_factory=list)
    losses: list[Blob] = field(default_factory=list)
    diffs: list[Blob] = field(default_factory=list)
    is_end: bool = False
    steps: list[Step | Recomputed] = field(default_factory=list)
    loss_shapes: list[Any] = field(default_factory=list)
    on_path: bool = False
    is_random: bool = False
    like: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The trained variables of one place. ``state`` has the names of all that their update replaces."""

    placement: Placement
    variables: list[Variable]
    state: list[str]


def segments_of(plan: Plan, meshes: Meshes) -> list[Segment]:
    """The job's nodes as segments, in an order of execution. Runs of a repeated part are segments of their own."""
    level: dict[Node, int] = {}
    groups: dict[tuple[int, Place, tuple[int, ...]], Segment] = {}
    home: dict[Node, Segment] = {}
    for node in plan.compute:
        place = meshes.place(node.scope.placement)
        sources = [home[b.node] for b in node.inputs if b.node in home]
        level[node] = max((s.level + (s.place != place or s.run != node.run) for s in sources), default=0)
        key = (level[node], place, node.run)
        segment = groups.setdefault(key, Segment(place, node.scope.placement, level[node], node.run))
        segment.nodes.append(node)
        home[node] = segment
    segments = sorted(groups.values(), key=lambda s: s.level)
    needed: set[Key] = {key_of(b) for b in plan.roots}
    passed_on: set[Segment] = set()  # whose cotangents come from others
    for node in plan.compute:
        segment, known = home[node], {key_of(b) for b in home[node].imports}
        for blob in node.inputs:
            if home.get(blob.node) is segment:
                continue
            needed.add(key_of(blob))
            if key_of(blob) not in known:
                known.add(key_of(blob))
                segment.imports.append(blob)
            if blob.node in home and node in plan.path and blob.node in plan.path:
                passed_on.add(home[blob.node])
    for loss in plan.losses:
        if loss.node not in home:
            raise CompileError(f"job {plan.graph.name!r}: its loss {loss.op_name!r} is no computed value")
    diffs = [b for w in plan.watches if w.diff for b in plan.on_devices(w.blob)]
    for segment in segments:
        inside = set(segment.nodes)
        segment.exports = [b for node in segment.nodes for b in node.outputs if key_of(b) in needed]
        segment.losses = [b for b in plan.losses if b.node in inside]
        segment.diffs = [b for b in diffs if b.node in inside]
        segment.on_path = bool(inside & plan.path)
        segment.is_random = any(node.op.random for node in segment.nodes)
        segment.is_end = segment.on_path and segment not in passed_on
    return segments


class Staged:
    """The program of a job on several places: ``build`` compiles it, a call runs one step.

    A call gives (new state, fetched values, watched values, token), as the function of a job on one place does.
    """

    def __init__(self, plan: Plan, storages: Mapping[str, Storage], meshes: Meshes, look: Any = None):
        self.plan = plan
        self.segments = segments_of(plan, meshes)
        self._storages = storages
        self._meshes = meshes
        self._lowering = Lowering(meshes, frozenset() if plan.devices else plan.mapped, plan.without_native)
        self._lowering.look = look
        self._homes = {name: meshes.place(s.layout.placement) for name, s in storages.items()}
        outer = plan.graph.scope.placement
        self._outer = meshes.sharding(outer, ())
        self._compiled: dict[Any, Compiled] = {}
        self._given: dict[Any, Any] = {}  # shapes of what functions give, while building
        self._compile: Callable[[Any], Any] | None = None  # while building
        self._summed: dict[tuple[Segment, Key], int] = {}  # in a step: where the sum over runs is among a Blob's terms
        self._groups = self._grouped() if plan.graph.train else []
        self._read_by_rules = self._blobs_of_rules() if plan.graph.train else []
        first: dict[Any, Segment] = {}
        for segment in self.segments:
            segment.like = first.setdefault(self._signature(segment), segment) if segment.run else segment

    def _signature(self, segment: Segment) -> Any:
        """Equal for segments that compute the same of arrays that lie alike."""

        def said(blob: Blob) -> Any:
            own = self._is_home(blob, segment.place)
            where = None if own else self._sharding(blob, segment.placement)
            name = blob.op_name if own or blob.node in segment.nodes else ""
            return name, blob.index, blob.shape, blob.dtype, str(blob.distribute), where

        position = {key_of(b): i for i, b in enumerate(segment.imports)}
        readers = tuple(tuple(position.get(key_of(b)) for b in node.inputs) for node in segment.nodes)
        attrs = [(node.name, node.op, node.run == ()) for node in segment.nodes]
        blobs = (segment.imports, segment.exports, segment.losses, segment.diffs)
        return segment.place, tuple(attrs), readers, tuple(tuple(map(said, b)) for b in blobs), segment.is_end

    def names_of(self, segment: Segment) -> list[str]:
        """The names of the functions that a segment was compiled to."""
        return [f.name for (what, f) in self._compiled.items() if isinstance(what, tuple) and what[0] is segment.like]

    def transfers(self) -> list[tuple[Blob, Placement, Placement, bool]]:
        """What goes from place to place in a call: the Blob, from where, to where, and whether it is its gradient."""
        made_in = {key_of(b): s for s in self.segments for b in s.exports}
        found: list[tuple[Blob, Placement, Placement, bool]] = []
        for segment in self.segments:
            for blob in segment.imports:
                source = made_in.get(key_of(blob))
                if source is not None:
                    where, place = source.placement, source.place
                elif blob.node.op is OP_VARIABLE:
                    where = self._storages[blob.node.attrs["variable"]].layout.placement
                    place = self._meshes.place(where)
                else:
                    continue
                if place != segment.place:
                    found.append((blob, where, segment.placement, False))
                    if blob.node in self.plan.path and segment.on_path:
                        found.append((blob, segment.placement, where, True))
        return found

    @property
    def functions(self) -> list[Compiled]:
        """Everything that was compiled."""
        return list(self._compiled.values())

    def build(self, state: Any, reads: Any, feeds: Any, compile: Callable[[Any], Any]) -> None:
        """Compiles every function of the step. Arguments are ShapeDtypeStructs, those of state with shardings."""
        self._compile = compile
        try:
            self._step(state, reads, feeds)
        finally:
            self._compile = None
            self._given.clear()

    def __call__(self, state: Sequence[Any], reads: Sequence[Any], feeds: Sequence[Any]) -> Any:
        return self._step(state, reads, feeds)

    # --- calling and moving, for arrays and, while building, for their shapes

    def _call(self, what: Any, make: Callable[[], Compiled], *arguments: Any) -> Any:
        if self._compile is None:
            return self._compiled[what](*arguments)
        if what not in self._compiled:
            self._compiled[what] = make()
            self._given[what] = self._compiled[what].build(arguments, self._compile)
        return self._given[what]

    def _move(self, arrays: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
        if self._compile is None:
            return self._meshes.move(arrays, shardings)
        return [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s) for a, s in zip(arrays, shardings, strict=True)]

    def _sharding(self, blob: Blob, placement: Placement) -> Any:
        """How a value lies on a place: split along its batch axis where that is even."""
        if blob.node in self.plan.mapped:
            same = placement.parallel_num == blob.parallel_size
            return self._meshes.sharding(placement, (mesh_axes(placement),) if same else ())
        is_variable = blob.node.op is OP_VARIABLE
        layout = Layout.of(placement, blob.distribute) if is_variable else feed_layout(blob, placement, False)
        good = all(a is None or 0 <= a < blob.ndim for a in layout.splits) and layout.is_even(blob.shape)
        return self._meshes.sharding(placement, layout.spec(blob.ndim) if good else ())

    # --- the step

    def _step(self, state: Sequence[Any], reads: Sequence[Any], feeds: Sequence[Any]) -> Any:
        plan = self.plan
        stored: State = {**dict(zip(plan.written, state, strict=True)), **dict(zip(plan.read, reads, strict=True))}
        sources: dict[Key, Any] = {key_of(blob): feed for blob, feed in zip(plan.feeds, feeds, strict=True)}
        values: dict[Key, Any] = {}
        kept: dict[Segment, Any] = {}
        arrived: dict[Key, list[Any]] = {}
        diffs: dict[Key, Any] = {}
        self._summed.clear()
        tokens: list[Any] = []
        scale = self._scale(stored)
        for segment in self.segments:
            imports = self._imports(segment, values, sources, stored)
            draws = self._draws(segment, stored)
            if segment.is_end:
                here = self._everywhere(scale, segment.placement)
                exports, token, gradients, found = self._call(
                    (segment.like, "both"), partial(self._both, segment), imports, draws, here
                )
                self._collect(segment, gradients, found, arrived, diffs)
            else:
                exports, token, kept[segment] = self._call(
                    (segment.like, "forward"), partial(self._forward, segment), imports, draws
                )
            tokens.append(token)
            values.update(zip(map(key_of, segment.exports), exports, strict=True))
        for segment in reversed(self.segments):
            if segment.on_path and not segment.is_end:
                coming = self._coming(segment, arrived)
                here = self._everywhere(scale, segment.placement)
                gradients, found = self._call(
                    (segment.like, "backward"), partial(self._backward, segment.like), kept.pop(segment), coming, here
                )
                self._collect(segment, gradients, found, arrived, diffs)
        new = self._assigned(values, sources, stored)
        if plan.graph.train:
            new.update(self._updated(stored, values, sources, arrived, tokens))
        if RANDOM_STATE in stored:
            moved = self._move([stored[RANDOM_STATE]], [self._outer])
            new[RANDOM_STATE] = self._call("random", lambda: Compiled(advanced), *moved)
        fetched = tuple(self._given_away(b, lambda c: self._fetched(c, values, sources, stored)) for b in plan.fetches)
        watched = tuple(
            self._given_away(w.blob, lambda c, w=w: self._watched(w, c, values, sources, stored, arrived, diffs))  # type: ignore[misc]
            for w in plan.watches
        )
        token = tuple(tokens) if plan.token_is_needed() else ()
        return tuple(new.get(name, stored[name]) for name in plan.written), fetched, watched, token

    def _collect(
        self, segment: Segment, gradients: Any, found: Any, arrived: dict[Key, list[Any]], diffs: dict[Key, Any]
    ) -> None:
        diffs.update(zip(map(key_of, segment.diffs), found, strict=True))
        pairs = [(key_of(b), g) for b, g in zip(segment.imports, gradients, strict=True) if g is not None]
        # what earlier runs gave for the same variables is added up at once: memory holds one sum and not a term a run
        again = [(key, g) for key, g in pairs if (segment.like, key) in self._summed]
        if again:
            before = [arrived[key].pop(self._summed[segment.like, key]) for key, _ in again]
            terms = [g for _, g in again]
            sums = self._call((segment.like, "add"), lambda: Compiled(add_each, donate=True), before, terms)
            for (key, _), total_so_far in zip(again, sums, strict=True):
                arrived[key].insert(self._summed[segment.like, key], total_so_far)
        for key, gradient in pairs:
            if (segment.like, key) not in self._summed:
                terms = arrived.setdefault(key, [])
                if segment.run:
                    self._summed[segment.like, key] = len(terms)
                terms.append(gradient)

    def _given_away(self, blob: Blob, value: Callable[[Blob], Any]) -> Any:
        """What a call gives of a Blob: its value, or those of its copies on the devices."""
        blobs = self.plan.on_devices(blob)
        return value(blob) if blob.node not in self.plan.devices else tuple(map(value, blobs))

    def _fetched(self, blob: Blob, values: Mapping[Key, Any], sources: Mapping[Key, Any], stored: State) -> Any:
        value = self._value(blob, values, sources, stored)
        return self._move([value], [self._sharding(blob, blob.node.scope.placement)])[0] if key_of(blob) in sources else value

    def _watched(
        self, watch: Watch, blob: Blob, values: Mapping[Key, Any], sources: Mapping[Key, Any], stored: State,
        arrived: Mapping[Key, list[Any]], diffs: Mapping[Key, Any],
    ) -> Any:  # fmt: skip
        """What a watch handler is given."""
        value = self._value(blob, values, sources, stored)
        if not watch.diff:
            return value
        target = self._meshes.sharding(blob.node.scope.placement, ())
        found = diffs.get(key_of(blob))
        computed = any(key_of(blob) == key_of(b) for s in self.segments for b in s.diffs)
        terms = ([] if found is None else [found]) if computed else arrived.get(key_of(blob), [])
        if not terms:
            return self._call((watch, key_of(blob), "none"), lambda: Compiled(jnp.zeros_like), *self._move([value], [target]))
        return self._call((watch, key_of(blob), "sum"), lambda: Compiled(total), self._move(terms, [target] * len(terms)))

    def _scale(self, stored: State) -> Any:
        graph = self.plan.graph
        if graph.train and is_dynamic_scale(graph.objective.optimizers[0].loss_scale):
            return stored[counters(graph)[-2]]
        return None

    def _everywhere(self, array: Any, placement: Placement) -> Any:
        return None if array is None else self._move([array], [self._meshes.sharding(placement, ())])[0]

    def _draws(self, segment: Segment, stored: State) -> Any:
        if not segment.is_random:
            return None
        run = np.array(segment.run, np.uint32)
        here = self._meshes.sharding(segment.placement, ())
        return tuple(self._move([stored[RANDOM_STATE], run], [here, here]))

    def _imports(self, segment: Segment, values: Mapping[Key, Any], sources: Mapping[Key, Any], stored: State) -> list[Any]:
        arrays = [self._stored_or_value(b, segment.place, values, sources, stored) for b in segment.imports]
        away = [i for i, b in enumerate(segment.imports) if not self._is_home(b, segment.place)]
        targets = [self._sharding(segment.imports[i], segment.placement) for i in away]
        for i, array in zip(away, self._move([arrays[i] for i in away], targets), strict=True):
            arrays[i] = array
        return arrays

    def _is_home(self, blob: Blob, place: Place) -> bool:
        return blob.node.op is OP_VARIABLE and self._homes[blob.node.attrs["variable"]] == place

    def _stored_or_value(
        self, blob: Blob, place: Place, values: Mapping[Key, Any], sources: Mapping[Key, Any], stored: State
    ) -> Any:
        if self._is_home(blob, place):
            return stored[blob.node.attrs["variable"]]
        return self._value(blob, values, sources, stored)

    def _value(self, blob: Blob, values: Mapping[Key, Any], sources: Mapping[Key, Any], stored: State) -> Any:
        if blob.node.op is OP_VARIABLE:
            name = blob.node.attrs["variable"]
            storage = self._storages[name]
            if storage.is_plain:
                return stored[name]
            return self._call(("load", name), lambda: Compiled(self._named(self._loader(name))), stored[name])
        key = key_of(blob)
        return sources[key] if key in sources else values[key]

    def _loader(self, name: str) -> Callable[..., Any]:
        def load(stored: Any) -> Any:
            return self.plan.load(name, stored, self._storages)

        return load

    # --- forward and backward

    def _enter(self, segment: Segment, imports: Sequence[Any]) -> Values:
        values = Values(self._lowering)
        for blob, array in zip(segment.imports, imports, strict=True):
            if self._is_home(blob, segment.place):
                array = self.plan.load(blob.node.attrs["variable"], array, self._storages)
            values.set_blob(blob, array)
        return values

    def _run(self, segment: Segment, imports: Sequence[Any], random_state: Any) -> tuple[list[Any], list[Any]]:
        values, draws = self._enter(segment, imports), self._drawn(random_state)
        watched = {b.node for b in segment.diffs}
        segment.steps, pullbacks = forward(segment.nodes, values, draws, self.plan.path, watched)
        return self._leave(segment, values), pullbacks

    def _drawn(self, random_state: Any) -> Any:
        return None if random_state is None else draws_of(*random_state)

    def _leave(self, segment: Segment, values: Values) -> list[Any]:
        loss_values = [values.get_blob(b) for b in segment.losses]
        segment.loss_shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in loss_values]
        return [values.get_blob(b) for b in segment.exports]

    def _pull(self, segment: Segment, propagates: Sequence[Propagate], coming: Any, scale: Any) -> tuple[list[Any], list[Any]]:
        graph = self.plan.graph
        backward = Backward()
        for blob, terms in zip(segment.exports, coming, strict=True):
            for term in terms:
                backward.add(blob, term)
        state = {} if scale is None else {counters(graph)[-2]: scale}
        seed_losses(graph, zip(segment.losses, segment.loss_shapes, strict=True), state, backward)
        backward.run(propagates)
        return [backward.get(b) for b in segment.imports], [backward.get(b) for b in segment.diffs]

    def _forward(self, segment: Segment) -> Compiled:
        def forward_pass(imports: Any, random_state: Any) -> Any:
            exports, pullbacks = self._run(segment, imports, random_state)
            return exports, done(), pullbacks

        return Compiled(self._named(forward_pass), (self._export_shardings(segment), None, None))

    def _backward(self, segment: Segment) -> Compiled:
        def backward(pullbacks: Any, coming: Any, scale: Any) -> Any:
            bound = [partial(s.propagate, p) for s, p in zip(segment.steps, pullbacks, strict=True)]
            return self._pull(segment, bound, coming, scale)

        return Compiled(self._named(backward))

    def _both(self, segment: Segment) -> Compiled:
        def forward_backward(imports: Any, random_state: Any, scale: Any) -> Any:
            values = self._enter(segment, imports)
            draws = self._drawn(random_state)
            if one_device:
                propagates = run_on_one_device(self.plan, segment.nodes, segment.exports, values, draws, watched)
            else:
                propagates = run_nodes(segment.nodes, values, draws, self.plan.path, watched)
            exports = self._leave(segment, values)
            return exports, done(), *self._pull(segment, propagates, [()] * len(exports), scale)

        one_device, watched = segment.placement.parallel_num == 1, {b.node for b in segment.diffs}

        return Compiled(self._named(forward_backward), (self._export_shardings(segment), None, None, None))

    def _export_shardings(self, segment: Segment) -> list[Any]:
        return [self._sharding(b, segment.placement) for b in segment.exports]

    def _named(self, function: Callable[..., Any]) -> Callable[..., Any]:
        number = len(self._compiled)
        function.__name__ = function.__qualname__ = f"job_{self.plan.graph.name}_{function.__name__}_{number}"
        return function

    def _coming(self, segment: Segment, arrived: Mapping[Key, list[Any]]) -> list[tuple[Any, ...]]:
        """The cotangents of what the segment gave away, back on its devices."""
        terms = [(i, term) for i, b in enumerate(segment.exports) for term in arrived.get(key_of(b), ())]
        targets = [self._sharding(segment.exports[i], segment.placement) for i, _ in terms]
        moved = self._move([term for _, term in terms], targets)
        found: list[tuple[Any, ...]] = [()] * len(segment.exports)
        for (i, _), term in zip(terms, moved, strict=True):
            found[i] += (term,)
        return found

    # --- variables

    def _assigned(self, values: Mapping[Key, Any], sources: Mapping[Key, Any], stored: State) -> State:
        """What ``flow.assign`` and moving statistics store, as it is stored."""
        new: State = {}
        for name, blob in self.plan.assigns.items():
            storage = self._storages[name]
            home = storage.layout.placement
            each = storage.replicas and blob.node in self.plan.mapped
            target = self._meshes.sharding(home, storage.spec if storage.is_plain or each else ())
            moved = self._move([self._value(blob, values, sources, stored)], [target])[0]
            as_it_is = storage.is_plain or each
            new[name] = moved if as_it_is else self._call(("store", name), partial(self._storer, storage), moved)
        return new

    def _storer(self, storage: Storage) -> Compiled:
        def store(value: Any) -> Any:
            return storage.store(value)

        return Compiled(self._named(store), self._meshes.sharding(storage.layout.placement, storage.spec))

    def _grouped(self) -> list[Group]:
        graph = self.plan.graph
        groups: dict[Place, Group] = {}
        for v in self.plan.trained:
            mine = [o for o in graph.objective.optimizers if updates(o, v.name)]
            if mine:
                placement = self._storages[v.name].layout.placement
                group = groups.setdefault(self._homes[v.name], Group(placement, [], []))
                group.variables.append(v)
                group.state.extend([v.name, *(f"{v.name}-{slot.suffix}" for slot in mine[0].slots(v))])
        return list(groups.values())

    def _updated(
        self, stored: State, values: Mapping[Key, Any], sources: Mapping[Key, Any], arrived: Mapping[Key, list[Any]],
        tokens: list[Any],
    ) -> State:  # fmt: skip
        """The new values of trained variables, optimizer slots and counters."""
        graph, groups = self.plan.graph, self._groups
        counting = {name: stored[name] for name in counters(graph)}
        read = [self._value(b, values, sources, stored) for b in self._read_by_rules]
        known = [self._numbers(g, counting, read) for g in groups]
        raw = [self._raw(g, arrived) for g in groups]
        own = [{name: stored[name] for name in g.state} for g in groups]
        new: State = {}
        measured: list[Any] = [()] * len(groups)
        if measures_anything(graph):
            parts = []
            for i, g in enumerate(groups):
                raw[i], part = self._call(("prepare", i), partial(self._prepare, g), own[i], raw[i], known[i])
                parts.append(part)
            leaves, structure = jax.tree.flatten(parts)
            for i, g in enumerate(groups):
                whole = self._meshes.sharding(g.placement, ())
                measured[i] = jax.tree.unflatten(structure, self._move(leaves, [whole] * len(leaves)))
        for i, g in enumerate(groups):
            updated, token = self._call(("finish", i), partial(self._finish, g), own[i], raw[i], known[i], measured[i])
            new.update(updated)
            tokens.append(token)
        if counting:
            bad = [m[-1] for m in measured[0] if m[-1] is not None]
            moved = self._move(bad, [self._outer] * len(bad))
            new.update(self._call("count", lambda: Compiled(self._named(self._count())), counting, moved))
        return new

    def _numbers(self, group: Group, counting: State, others: list[Any]) -> tuple[State, list[Any]]:
        """Counters, and the values that rules read (learning rates, rows), on the devices of a group."""
        names = list(counting)
        arrays = [*counting.values(), *others]
        moved = self._move(arrays, [self._meshes.sharding(group.placement, ())] * len(arrays))
        return dict(zip(names, moved, strict=False)), moved[len(names) :]

    def _blobs_of_rules(self) -> list[Blob]:
        graph, trained = self.plan.graph, self.plan.trained
        optimizers = graph.objective.optimizers
        of_rules = (b for o in optimizers for b in (o.learning_rate_blob, o.train_step_blob))
        blobs = [b for b in of_rules if b is not None]
        gathers = [gather_of(graph, v, o) for v in trained for o in optimizers if updates(o, v.name)]
        blobs += [gather.inputs[1] for gather in gathers if gather is not None]
        return [self.plan.expansion.last(b) for b in blobs]

    def _raw(self, group: Group, arrived: Mapping[Key, list[Any]]) -> dict[str, tuple[Any, ...]]:
        """The gradients' terms of a group's variables, on its devices."""
        found = {}
        for v in group.variables:
            assert v.blob is not None
            storage = self._storages[v.name]
            target = self._meshes.sharding(group.placement, storage.spec if storage.is_plain else ())
            terms = arrived.get(key_of(v.blob), [])
            found[v.name] = tuple(self._move(terms, [target] * len(terms)))
        return found

    def _known(self, known: tuple[State, list[Any]]) -> Numbers:
        counting, arrays = known
        values = Values(self._lowering)
        for blob, array in zip(self._read_by_rules, arrays, strict=True):
            values.set_blob(blob, array)
        return numbers(self.plan.graph, values, counting, self._loss_count(), self.plan.expansion)

    def _loss_count(self) -> int:
        loss = self.plan.losses[0]
        if self.plan.devices:
            self._check_alike()
        segment = next(s for s in self.segments if any(key_of(b) == key_of(loss) for b in s.losses))
        like = segment.like.loss_shapes
        shape = next(x.shape for b, x in zip(segment.losses, like, strict=True) if key_of(b) == key_of(loss))
        return loss_count(loss, shape[loss.node in self.plan.mapped :]) * self.plan.runs_of_loss

    def _check_alike(self) -> None:
        """Gradients of the devices are added, each of its own mean: the losses must have one size."""
        shapes = [(b, x.shape) for s in self.segments for b, x in zip(s.losses, s.like.loss_shapes, strict=True)]
        sizes = {shape for _, shape in shapes}
        if len(sizes) > 1:
            loss = shapes[0][0]
            raise ViewError(
                f"the devices' losses of job {self.plan.graph.name!r} differ in shape: {', '.join(map(str, sizes))}\n"
                f"  the loss   {loss.op_name}   made at {loss.source}   {loss.source.text}\n"
                f"  try        flow.math.reduce_mean(loss), or batches of one size on all devices"
            )

    def _prepared(self, group: Group, variables: State, raw: Any, known: Numbers) -> State:
        return prepare(group.variables, {name: total(terms) if terms else None for name, terms in raw.items()}, variables, known)

    def _load(self, stored: State) -> State:
        return {name: self.plan.load(name, array, self._storages) for name, array in stored.items()}

    def _prepare(self, group: Group) -> Compiled:
        def prepare_gradients(stored: Any, raw: Any, known: Any) -> Any:
            gradients = self._prepared(group, self._load(stored), raw, self._known(known))
            return gradients, measure(self.plan.graph, gradients)

        return Compiled(self._named(prepare_gradients))

    def _finish(self, group: Group) -> Compiled:
        graph = self.plan.graph

        def update(stored: Any, raw: Any, known: Any, parts: Any) -> Any:
            variables, scalars = self._load(stored), self._known(known)
            gradients = raw if parts else self._prepared(group, variables, raw, scalars)
            new = finish(graph, gradients, variables, scalars, add_measures(parts) if parts else self._nothing(), counts=False)
            return {name: self._storages[name].store(value) for name, value in new.items()}, done()

        shardings = {n: self._meshes.sharding(s.layout.placement, s.spec) for n, s in self._storages.items() if n in group.state}
        fetched = any(b.node.op is OP_VARIABLE for b in (*self.plan.fetches, *(w.blob for w in self.plan.watches)))
        return Compiled(self._named(update), (shardings, None), donate=not (fetched or self.plan.careful))

    def _nothing(self) -> tuple[Any, ...]:
        return (None,) * (len(self.plan.graph.objective.optimizers) + 1)

    def _count(self) -> Callable[..., Any]:
        graph = self.plan.graph

        def count(counting: Any, bad: Any) -> Any:
            measured = (*self._nothing()[1:], total(bad) if bad else None)
            return finish(graph, {}, counting, Numbers(None, None, 1, (), Values(self._lowering)), measured, counts=True)

        return count


def total(terms: Sequence[Any]) -> Any:
    """The sum."""
    return sum(terms[1:], start=terms[0])


def add_each(sums: Sequence[Any], terms: Sequence[Any]) -> list[Any]:
    """Sums, each with a further term."""
    return [a + b for a, b in zip(sums, terms, strict=True)]


def done() -> Any:
    """Something that is ready when the function that gives it is over."""
    return jnp.zeros((1,), jnp.uint8)
