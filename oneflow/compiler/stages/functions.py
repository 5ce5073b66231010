"""The functions of a staged job: passes over a segment, and updates of the variables of one place.

Each takes pytrees of arrays and returns two: outputs with prescribed shardings, and other outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..._base.dist import Placement
from ..._base.dtype import dtype
from ..._base.jax import jax, jnp
from ...graph.graph import Variable
from ...graph.node import Node
from ..analysis import updates
from ..arrangement import Arrangement, arranged
from ..autodiff import Backward, Propagate
from ..fused_update import Devices
from ..lowering import Lowering, Values
from ..program import advanced, draws_of, seed_losses
from ..update import Numbers, State, add_measures, counters, finish, loss_count, measure, numbers, prepare
from .segments import Places, Segment

Outputs = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Function:
    """A function to be compiled.

    Attributes:
      run: takes pytrees of arrays; returns the outputs that have ``shardings``, and the others.
      donates: whether the arrays of the first argument are donated.
      returns_inputs: whether inputs that it returns unchanged are passed on without a copy.
    """

    name: str
    run: Callable[..., Outputs]
    shardings: Any = ()
    donates: bool = False
    returns_inputs: bool = False


@dataclass(frozen=True, slots=True)
class Static:
    """A value that is known when a function is traced. ``static`` makes a pytree of it."""

    value: Any

    def __call__(self) -> Any:
        return self.value


def static(value: Any) -> Any:
    """A pytree without leaves, so that functions can return and take it. Called, it returns ``value`` (hashable)."""
    return jax.tree_util.Partial(Static(value))


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The trained variables of one place. ``state`` holds the names of all state that their update replaces."""

    placement: Placement
    variables: tuple[Variable, ...]
    state: tuple[str, ...]


def groups_of(places: Places) -> list[Group]:
    """The trained variables of a job, grouped by the place that stores them."""
    plan = places.plan
    members: dict[Any, list[tuple[Variable, Any]]] = {}
    for v in plan.trained:
        mine = [o for o in plan.graph.objective.optimizers if updates(o, v.name)]
        if mine:
            members.setdefault(places.homes[v.name], []).append((v, mine[0]))
    return [
        Group(
            places.storages[found[0][0].name].layout.placement,
            tuple(v for v, _ in found),
            tuple(n for v, o in found for n in (v.name, *(f"{v.name}-{slot.suffix}" for slot in o.slots(v)))),
        )
        for found in members.values()
    ]


class SegmentFunctions:
    """The passes over segments."""

    def __init__(self, places: Places, lowering: Lowering):
        self._places = places
        self._plan = places.plan
        self._lowering = lowering

    def forward(self, segment: Segment) -> Function:
        """(imports, draws) -> (exports, (token, first argument of ``backward``))."""

        plan, watched = self._plan, {b.node for b in segment.diffs}
        way = self._with_attention(Arrangement(segment.nodes, plan.path, plan.precision, watched), segment)

        def forward_pass(imports: Any, draws: Any) -> Outputs:
            values = self._entered(segment, imports, way.precision)
            propagates = way.run(values, _drawn(draws))
            return self._exports(segment, values), (done(), (self._losses(segment, values), propagates))

        return Function("forward", forward_pass, self._shardings(segment), returns_inputs=True)

    def backward(self, segment: Segment) -> Function:
        """(result of ``forward``, cotangents of exports, loss scale) -> ((), (gradients of imports, of watched Blobs))."""

        def backward_pass(kept: Any, cotangents: Any, scale: Any) -> Outputs:
            losses, propagates = kept
            return (), self._gradients(segment, losses(), propagates, cotangents, scale)

        return Function("backward", backward_pass)

    def fused(self, segment: Segment) -> Function:
        """(imports, draws, loss scale) -> (exports, (token, structs of losses, gradients of imports, of watched Blobs))."""
        plan, watched = self._plan, {b.node for b in segment.diffs}
        way = arranged(
            segment.nodes, watched, segment.exports, plan.path, plan.precision, plan.without_native, plan.platform,
            plan.vmapped, segment.placement.parallel_num,
        )  # fmt: skip
        way = self._with_attention(way, segment)

        def forward_backward(imports: Any, draws: Any, scale: Any) -> Outputs:
            values = self._entered(segment, imports, way.precision)
            propagates = way.run(values, _drawn(draws))
            losses = self._losses(segment, values)
            gradients = self._gradients(segment, losses(), propagates, [()] * len(segment.exports), scale)
            return self._exports(segment, values), (done(), losses, *gradients)

        return Function("forward_backward", forward_backward, self._shardings(segment))

    def _with_attention(self, way: Arrangement, segment: Segment) -> Arrangement:
        plan = self._plan
        way = way.with_attention(plan.attention.inside(segment.nodes))
        if plan.without_native or plan.vmapped:
            return way
        return way.with_native_attention(segment.nodes, [*segment.exports, *segment.losses])

    def _entered(self, segment: Segment, imports: Sequence[Any], precision: Mapping[Node, dtype]) -> Values:
        values = Values(replace(self._lowering, precision=precision))
        for blob, array in zip(segment.imports, imports, strict=True):
            if self._places.is_home(blob, segment.place):
                array = self._plan.load(blob.node.attrs["variable"], array, self._places.storages)
            values.set_blob(blob, array)
        return values

    def _exports(self, segment: Segment, values: Values) -> list[Any]:
        return [values.get_blob(b) for b in segment.exports]

    def _shardings(self, segment: Segment) -> list[Any]:
        return [self._places.sharding(b, segment.placement) for b in segment.exports]

    def _losses(self, segment: Segment, values: Values) -> Any:
        """Shapes and dtypes of the segment's losses; a call may be fed smaller arrays than declared."""
        found = [values.get_blob(b) for b in segment.losses]
        return static(tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in found))

    def _gradients(
        self, segment: Segment, losses: Sequence[Any], propagates: Sequence[Propagate], cotangents: Any, scale: Any
    ) -> tuple[list[Any], list[Any]]:
        graph = self._plan.graph
        backward = Backward(platform=self._plan.platform)
        for blob, terms in zip(segment.exports, cotangents, strict=True):
            for term in terms:
                backward.add(blob, term)
        state = {} if scale is None else {counters(graph)[-2]: scale}
        seed_losses(graph, zip(segment.losses, losses, strict=True), state, backward)
        backward.run(propagates)
        return [backward.get(b) for b in segment.imports], [backward.get(b) for b in segment.diffs]


class UpdateFunctions:
    """Loads, stores and updates variables."""

    def __init__(self, places: Places, lowering: Lowering):
        self._places = places
        self._plan = places.plan
        self._graph = places.plan.graph
        self._lowering = lowering

    def load(self, name: str) -> Function:
        """(stored array,) -> ((), logical value)."""
        return Function("load", lambda stored: ((), self._plan.load(name, stored, self._places.storages)))

    def store(self, name: str) -> Function:
        """(logical value,) -> ((stored array,), ())."""
        storage = self._places.storages[name]
        sharding = self._places.meshes.sharding(storage.layout.placement, storage.spec)
        return Function("store", lambda value: ((storage.store(value),), ()), (sharding,))

    def prepare(self, group: Group, shape: Sequence[int]) -> Function:
        """(variables, terms of their gradients, values that rules read) -> ((), (gradients, measures)).

        ``shape`` is that of the first loss.
        """

        def prepare_gradients(stored: Any, terms: Any, read: Any) -> Outputs:
            gradients = self._prepared(group, self._loaded(stored), terms, self._numbers(read, shape))
            return (), (gradients, measure(self._graph, gradients))

        return Function("prepare_gradients", prepare_gradients)

    def update(self, group: Group, shape: Sequence[int], donates: bool) -> Function:
        """(variables, gradients or terms, values that rules read, measures of all places or ()) -> (new variables, token)."""

        def update(stored: Any, raw: Any, read: Any, measured: Any) -> Outputs:
            variables, known = self._loaded(stored), self._numbers(read, shape)
            if measured:
                gradients, total_measure, terms = raw, add_measures(measured), None
            else:
                gradients, total_measure = self._prepared(group, variables, raw, known), self._nothing_measured()
                terms = {name: (total(found), ()) for name, found in raw.items() if found}
            devices = Devices.of(self._places.meshes, group.placement, self._places.storages)
            new = finish(self._plan, gradients, variables, known, total_measure, counts=False, raw=terms, devices=devices)
            return {name: self._places.storages[name].store(value) for name, value in new.items()}, done()

        stored = {name: self._places.storages[name] for name in group.state}
        shardings = {n: self._places.meshes.sharding(s.layout.placement, s.spec) for n, s in stored.items()}
        return Function("update", update, shardings, donates)

    def count(self) -> Function:
        """(counters, numbers of non-finite gradient values) -> ((), new counters)."""

        def count(counting: Any, bad: Any) -> Outputs:
            measured = (*self._nothing_measured()[1:], total(bad) if bad else None)
            known = Numbers(None, None, 1, (), Values(self._lowering))
            return (), finish(self._plan, {}, counting, known, measured, counts=True)

        return Function("count", count)

    def _loaded(self, stored: State) -> State:
        return {name: self._plan.load(name, array, self._places.storages) for name, array in stored.items()}

    def _numbers(self, read: tuple[State, Sequence[Any]], shape: Sequence[int]) -> Numbers:
        """``read``: counters and rates, and the values of ``plan.read_by_rules``; ``shape`` is that of the first loss."""
        counting, arrays = read
        values = Values(self._lowering)
        for blob, array in zip(self._plan.read_by_rules, arrays, strict=True):
            values.set_blob(blob, array)
        loss = self._plan.losses[0]
        count = loss_count(loss, shape[loss.node in self._plan.vmapped :]) * self._plan.runs_of_loss
        return numbers(self._plan, values, counting, count)

    def _prepared(self, group: Group, variables: State, terms: Mapping[str, Sequence[Any]], known: Numbers) -> State:
        raw = {name: total(found) if found else None for name, found in terms.items()}
        return prepare(group.variables, raw, variables, known)

    def _nothing_measured(self) -> tuple[Any, ...]:
        return (None,) * (len(self._graph.objective.optimizers) + 1)


def _drawn(draws: Any) -> Any:
    return None if draws is None else draws_of(*draws)


def total(terms: Sequence[Any]) -> Any:
    """The sum."""
    return sum(terms[1:], start=terms[0])


def done() -> Any:
    """A token: an array that is ready when the function that returns it has run."""
    return jnp.zeros((1,), jnp.uint8)


ADD_EACH = Function("accumulate", lambda sums, terms: ((), [a + b for a, b in zip(sums, terms, strict=True)]), donates=True)
SUM = Function("sum", lambda terms: ((), total(terms)))
ZEROS = Function("zeros", lambda value: ((), jnp.zeros_like(value)))
ADVANCE = Function("advance", lambda random_state: ((), advanced(random_state)))
