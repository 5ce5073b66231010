"""The schedule of a staged job: the order of calls in a step, and the moves between places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..._base.dist import Placement
from ..._base.jax import jax
from ...errors import ViewError
from ...graph.graph import OP_VARIABLE, Watch
from ...graph.node import Blob
from ..layout import Meshes, Storage
from ..lowering import Lowering, Observer
from ..plan import LEARNING_RATES, RANDOM_STATE, Plan
from ..storing import narrow_gathers
from ..update import counters, is_dynamic_scale, measures_anything
from .execution import StagedProgram, Transfer
from .functions import ADD_EACH, ADVANCE, SUM, ZEROS, Group, SegmentFunctions, UpdateFunctions, groups_of
from .recorder import Buffer, Compile, Recorder
from .segments import Key, Place, Places, Segment, key_of, segments_of


class Term(NamedTuple):
    """One term of a gradient, and the place that computed it."""

    buffer: Buffer
    placement: Placement
    place: Place


@dataclass
class _Step:
    """The results of the instructions so far, as Buffers."""

    stored: dict[str, Buffer]
    feeds: dict[Key, Buffer]
    values: dict[Key, Buffer] = field(default_factory=dict)
    cotangents: dict[Key, list[Term]] = field(default_factory=dict)
    sums: dict[tuple[int, Key], int] = field(default_factory=dict)  # position of the sum over runs among a Blob's terms
    diffs: dict[Key, Buffer | None] = field(default_factory=dict)
    losses: dict[Key, tuple[int, ...]] = field(default_factory=dict)  # shapes
    tokens: list[Buffer] = field(default_factory=list)


class Scheduler:
    """Records the step of a plan."""

    def __init__(self, places: Places, segments: tuple[Segment, ...], lowering: Lowering, recorder: Recorder):
        self._places = places
        self._plan = places.plan
        self._segments = segments
        self._passes = SegmentFunctions(places, lowering)
        self._updates = UpdateFunctions(places, lowering)
        self._record = recorder

    def record(self, state: Sequence[Any], reads: Sequence[Any], feeds: Sequence[Any]) -> StagedProgram:
        """Records a step for arguments of these shapes (ShapeDtypeStructs, those of state with shardings)."""
        plan, record = self._plan, self._record
        stored = zip((*plan.written, *plan.read), map(record.argument, (*state, *reads)), strict=True)
        fed = zip(map(key_of, plan.feeds), map(record.argument, feeds), strict=True)
        self._at = _Step(dict(stored), dict(fed))
        self._runs = {
            s.index: record.constant(np.array(s.run, np.uint32), self._places.whole(s.placement))
            for s in self._segments if s.is_random
        }  # fmt: skip
        self._passes_over_segments()
        new = self._assigned()
        if RANDOM_STATE in self._at.stored:
            outer = self._places.whole(plan.graph.scope.placement)
            moved = record.move("move the random state", [self._at.stored[RANDOM_STATE]], [outer])
            new[RANDOM_STATE] = record.call("random", ADVANCE, *moved)[1]
        fetched = tuple(self._on_devices(blob, self._fetched) for blob in plan.fetches)
        watched = tuple(self._on_devices(w.blob, lambda blob, w=w: self._watched(w, blob)) for w in plan.watches)  # type: ignore[misc]
        if plan.graph.train:
            kept = {b.memory for b in jax.tree.leaves((new, fetched, watched))}
            new.update(self._updated(kept))
        token = tuple(self._at.tokens) if plan.token_is_needed() else ()
        written = tuple(new.get(name, self._at.stored[name]) for name in plan.written)
        return record.finished(plan, self._segments, (written, fetched, watched, token))

    # --- forward and backward

    def _passes_over_segments(self) -> None:
        record, scale = self._record, self._loss_scale()
        kept: dict[int, Any] = {}
        for segment in self._segments:
            imports, draws = self._imports(segment), self._draws(segment)
            if segment.is_fused:
                function = self._passes.fused(segment)
                exports, (token, losses, gradients, diffs) = record.call(
                    (segment.like, "fused"), function, imports, draws, self._scale_on(segment, scale), segment=segment
                )
                self._add_gradients(segment, gradients, diffs)
            else:
                function = self._passes.forward(segment)
                exports, (token, kept[segment.index]) = record.call(
                    (segment.like, "forward"), function, imports, draws, segment=segment
                )
                losses = kept[segment.index][0]
            self._at.tokens.append(token)
            self._at.values.update(zip(map(key_of, segment.exports), exports, strict=True))
            self._at.losses.update((key_of(b), s.shape) for b, s in zip(segment.losses, losses(), strict=True))
        # A device runs its instructions in this order. The last stage ends the first micro-batch first, so that the stages
        # before it go through the backward pass in the same order; in the opposite one they would wait for the last of all.
        for segment in sorted(self._segments, key=lambda s: -s.level):
            if segment.on_path and not segment.is_fused:
                function = self._passes.backward(self._segments[segment.like])  # the one whose nodes were traced
                arguments = kept.pop(segment.index), self._cotangents(segment), self._scale_on(segment, scale)
                _, (gradients, diffs) = record.call((segment.like, "backward"), function, *arguments, segment=segment)
                self._add_gradients(segment, gradients, diffs)

    def _loss_scale(self) -> Buffer | None:
        graph = self._plan.graph
        if graph.train and is_dynamic_scale(graph.objective.optimizers[0].loss_scale):
            return self._at.stored[counters(graph)[-2]]
        return None

    def _scale_on(self, segment: Segment, scale: Buffer | None) -> Buffer | None:
        if scale is None:
            return None
        return self._record.move("move the loss scale", [scale], [self._places.whole(segment.placement)])[0]

    def _draws(self, segment: Segment) -> tuple[Buffer, Buffer] | None:
        if not segment.is_random:
            return None
        here = self._places.whole(segment.placement)
        moved = self._record.move("move the random state", [self._at.stored[RANDOM_STATE]], [here])
        return moved[0], self._runs[segment.index]

    def _imports(self, segment: Segment) -> list[Buffer]:
        found: list[Buffer] = []
        away: dict[int, Any] = {}
        transfers = []
        for i, blob in enumerate(segment.imports):
            if self._places.is_home(blob, segment.place):
                found.append(self._at.stored[blob.node.attrs["variable"]])
                continue
            found.append(self._value(blob))
            away[i] = self._places.sharding(blob, segment.placement)
            source = self._source(blob)
            is_sent = source is not None and self._places.meshes.place(source) != segment.place
            transfers.append(Transfer(blob, source, segment.placement, False) if source is not None and is_sent else None)
        name = f"move to {segment}: {_names(segment.imports[i] for i in away)}"
        moved = self._record.move(name, [found[i] for i in away], list(away.values()), transfers)
        for i, buffer in zip(away, moved, strict=True):
            found[i] = buffer
        return found

    def _source(self, blob: Blob) -> Placement | None:
        """The placement that computes or stores a value; None for a feed."""
        if blob.node.op is OP_VARIABLE:
            return self._places.storages[blob.node.attrs["variable"]].layout.placement
        return None if key_of(blob) in self._at.feeds else blob.node.scope.placement

    def _cotangents(self, segment: Segment) -> list[tuple[Buffer, ...]]:
        """The terms of the cotangents of a segment's exports, moved to its devices."""
        terms = [(i, term) for i, b in enumerate(segment.exports) for term in self._at.cotangents.get(key_of(b), ())]
        targets = [self._places.sharding(segment.exports[i], segment.placement) for i, _ in terms]
        transfers = [
            None if t.place == segment.place else Transfer(segment.exports[i], t.placement, segment.placement, True)
            for i, t in terms
        ]
        name = f"move to {segment}: gradients of {_names(segment.exports[i] for i, _ in terms)}"
        moved = self._record.move(name, [t.buffer for _, t in terms], targets, transfers)
        found: list[tuple[Buffer, ...]] = [()] * len(segment.exports)
        for (i, _), buffer in zip(terms, moved, strict=True):
            found[i] += (buffer,)
        return found

    def _add_gradients(self, segment: Segment, gradients: Sequence[Buffer | None], diffs: Sequence[Buffer | None]) -> None:
        """Stores the cotangents of a segment's imports and the gradients of watched Blobs."""
        at = self._at
        at.diffs.update(zip(map(key_of, segment.diffs), diffs, strict=True))
        found = [(key_of(b), g) for b, g in zip(segment.imports, gradients, strict=True) if g is not None]
        # gradients of earlier runs for the same variables are added up at once, so that memory holds one sum and not all terms
        again = [(key, g) for key, g in found if (segment.like, key) in at.sums]
        if again:
            positions = [at.sums[segment.like, key] for key, _ in again]
            before = [at.cotangents[key][i].buffer for (key, _), i in zip(again, positions, strict=True)]
            name = f"add the gradients of {segment}"
            _, sums = self._record.call((segment.like, "accumulate"), ADD_EACH, before, [g for _, g in again], name=name)
            for (key, _), i, sum_so_far in zip(again, positions, sums, strict=True):
                at.cotangents[key][i] = at.cotangents[key][i]._replace(buffer=sum_so_far)
        for key, gradient in found:
            if (segment.like, key) not in at.sums:
                terms = at.cotangents.setdefault(key, [])
                if segment.run:
                    at.sums[segment.like, key] = len(terms)
                terms.append(Term(gradient, segment.placement, segment.place))

    # --- results of a call

    def _value(self, blob: Blob) -> Buffer:
        if blob.node.op is OP_VARIABLE:
            name = blob.node.attrs["variable"]
            stored = self._at.stored[name]
            if self._places.storages[name].is_plain:
                return stored
            if key_of(blob) not in self._at.values:
                self._at.values[key_of(blob)] = self._record.call(("load", name), self._updates.load(name), stored)[1]
        key = key_of(blob)
        return self._at.feeds[key] if key in self._at.feeds else self._at.values[key]

    def _on_devices(self, blob: Blob, value: Callable[[Blob], Buffer]) -> Any:
        """The value of a Blob as a call returns it; a tuple if the Blob has a copy on each device."""
        blobs = self._plan.on_devices(blob)
        return value(blob) if blob.node not in self._plan.devices else tuple(map(value, blobs))

    def _fetched(self, blob: Blob) -> Buffer:
        value = self._value(blob)
        if key_of(blob) not in self._at.feeds:
            return value
        return self._record.move(f"move {blob.op_name}", [value], [self._places.sharding(blob, blob.node.scope.placement)])[0]

    def _watched(self, watch: Watch, blob: Blob) -> Buffer:
        """The value that a watch handler gets."""
        key, value = key_of(blob), self._value(blob)
        if not watch.diff:
            return value
        if key in self._at.diffs:
            terms = [t for t in [self._at.diffs[key]] if t is not None]
        else:
            terms = [t.buffer for t in self._at.cotangents.get(key, ())]
        function, given = (SUM, terms) if terms else (ZEROS, [value])
        here = self._places.whole(blob.node.scope.placement)
        moved = self._record.move(f"move the gradient of {blob.op_name}", given, [here] * len(given))
        name = f"gradient of {blob.op_name}"
        return self._record.call((watch, key), function, moved if terms else moved[0], name=name)[1]

    # --- variables

    def _assigned(self) -> dict[str, Buffer]:
        """The new stored arrays of variables that ``flow.assign`` and moving statistics write."""
        new: dict[str, Buffer] = {}
        for name, blob in self._plan.assigns.items():
            storage = self._places.storages[name]
            is_ready = storage.is_plain or (storage.replicas and blob.node in self._plan.vmapped)
            target = self._places.meshes.sharding(storage.layout.placement, storage.spec if is_ready else ())
            moved = self._record.move(f"move to {name}", [self._value(blob)], [target])[0]
            if not is_ready:
                (moved,), _ = self._record.call(("store", name), self._updates.store(name), moved, name=f"store {name}")
            new[name] = moved
        return new

    def _updated(self, kept: set[int]) -> dict[str, Buffer]:
        """The new values of trained variables, optimizer slots and counters.

        Args:
          kept: the memory of other results of the call, which must not be donated.
        """
        graph, record, at, groups = self._plan.graph, self._record, self._at, groups_of(self._places)
        counting = {name: at.stored[name] for name in counters(graph)}
        values = [self._value(b) for b in self._plan.read_by_rules]
        scalars = {**counting, **{n: at.stored[n] for n in (LEARNING_RATES,) if n in at.stored}}
        read = [self._read_by_rules(g, scalars, values) for g in groups]
        raw: list[Any] = [self._terms(g) for g in groups]
        own = [{name: at.stored[name] for name in g.state} for g in groups]
        shape = self._loss_shape()
        measured: list[Any] = [()] * len(groups)
        if measures_anything(graph):
            parts = []
            for i, g in enumerate(groups):
                function = self._updates.prepare(g, shape)
                name = f"prepare gradients on {g.placement}"
                _, (raw[i], part) = record.call(("prepare", i), function, own[i], raw[i], read[i], name=name)
                parts.append(part)
            leaves, structure = jax.tree.flatten(parts)
            for i, g in enumerate(groups):
                moved = record.move("move the measures", leaves, [self._places.whole(g.placement)] * len(leaves))
                measured[i] = jax.tree.unflatten(structure, moved)
        new: dict[str, Buffer] = {}
        for i, g in enumerate(groups):
            donates = not self._plan.transactional and not any(b.memory in kept for b in own[i].values())
            function, name = self._updates.update(g, shape, donates), f"update variables on {g.placement}"
            updated, token = record.call(("update", i), function, own[i], raw[i], read[i], measured[i], name=name)
            new.update(updated)
            at.tokens.append(token)
        if counting:
            bad = [m[-1] for m in measured[0] if m[-1] is not None]
            outer = self._places.whole(graph.scope.placement)
            moved = record.move("move the measures", bad, [outer] * len(bad))
            new.update(record.call("count", self._updates.count(), counting, moved)[1])
        return new

    def _read_by_rules(self, group: Group, scalars: Mapping[str, Buffer], values: Sequence[Buffer]) -> tuple[Any, list[Buffer]]:
        """Counters, rates and the values that rules read (indices among them), moved to the devices of a group."""
        buffers = [*scalars.values(), *values]
        whole = self._places.whole(group.placement)
        moved = self._record.move(f"move counters to {group.placement}", buffers, [whole] * len(buffers))
        return dict(zip(scalars, moved, strict=False)), moved[len(scalars) :]

    def _terms(self, group: Group) -> dict[str, tuple[Buffer, ...]]:
        """The terms of the gradients of a group's variables, moved to its devices."""
        found, targets, transfers = [], [], []
        here = self._places.meshes.place(group.placement)
        for v in group.variables:
            assert v.blob is not None
            storage = self._places.storages[v.name]
            target = self._places.meshes.sharding(group.placement, storage.spec if storage.is_plain else ())
            for term in self._at.cotangents.get(key_of(v.blob), ()):
                found.append((v.name, term))
                targets.append(target)
                away = term.place != here
                transfers.append(Transfer(v.blob, term.placement, group.placement, True) if away else None)
        name = f"move gradients to {group.placement}"
        moved = self._record.move(name, [t.buffer for _, t in found], targets, transfers)
        by_name: dict[str, tuple[Buffer, ...]] = {v.name: () for v in group.variables}
        for (variable, _), buffer in zip(found, moved, strict=True):
            by_name[variable] += (buffer,)
        return by_name

    def _loss_shape(self) -> tuple[int, ...]:
        """The shape of the first loss. If each device has a copy of the loss, all copies must have that shape."""
        plan, shapes = self._plan, self._at.losses
        sizes = dict.fromkeys(shapes.values())
        if plan.devices and len(sizes) > 1:
            loss = plan.losses[0]
            raise ViewError(
                f"the devices' losses of job {plan.graph.name!r} differ in shape: {', '.join(map(str, sizes))}\n"
                f"  the loss   {loss.op_name}   made at {loss.source}   {loss.source.text}\n"
                f"  try        flow.math.reduce_mean(loss), or batches of one size on all devices"
            )
        return shapes[key_of(plan.losses[0])]


def _names(blobs: Iterable[Blob], most: int = 3) -> str:
    names = list(dict.fromkeys(b.op_name for b in blobs))
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def staged(
    plan: Plan,
    storages: Mapping[str, Storage],
    meshes: Meshes,
    arguments: tuple[Any, Any, Any],
    compile: Compile,
    observer: Observer | None = None,
) -> StagedProgram:
    """Compiles a job that runs on several places or has repeated parts.

    Args:
      arguments: (state, reads, feeds) as ShapeDtypeStructs, those of state and reads with shardings.
      compile: compiles a ``jax.stages.Traced``.
      observer: is shown every node and its traced outputs.
    """
    places = Places(plan, dict(storages), meshes)
    vmapped = frozenset() if plan.devices else plan.vmapped
    gathers = narrow_gathers(plan.compute, plan.precision, storages)
    lowering = Lowering(meshes, vmapped, plan.without_native, plan.precision, observer, plan.platform, gathers)
    recorder = Recorder(plan, meshes, compile)
    return Scheduler(places, segments_of(plan, places), lowering, recorder).record(*arguments)
