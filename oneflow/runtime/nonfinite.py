"""Finds the op that makes the first NaN or infinity: a step is run once more, op by op, outside of the compiled program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .._base.jax import jax, jnp
from .._base.log import announced
from .._base.refuse import refuse
from .._base.source import Source
from ..compiler.analysis import STEP_PREFIX
from ..compiler.layout import Storage
from ..compiler.lowering import Observer
from ..compiler.plan import RANDOM_STATE, Plan
from ..compiler.program import make_step
from ..errors import ModeError
from ..graph.graph import OP_VARIABLE
from ..graph.node import Blob, Node
from .transfer import to_host

NAN, INF = "nan", "inf"


@dataclass(frozen=True, slots=True)
class Range:
    """The values of one array: how many are not finite, and the smallest and largest of the others (None without any)."""

    shape: tuple[int, ...]
    dtype: str
    low: float | None
    high: float | None
    nans: int
    positive_infinities: int
    negative_infinities: int

    @staticmethod
    def of(array: Any) -> Range:
        """The range of an array of any dtype."""
        values = np.asarray(array)
        numbers = values.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        return Range(
            values.shape, values.dtype.name,
            float(finite.min()) if finite.size else None, float(finite.max()) if finite.size else None,
            int(np.isnan(numbers).sum()), int((numbers == np.inf).sum()), int((numbers == -np.inf).sum()),
        )  # fmt: skip

    def __str__(self) -> str:
        size = int(np.prod(self.shape))
        counts = ((self.nans, "nan"), (self.positive_infinities, "inf"), (self.negative_infinities, "-inf"))
        parts = [f"{count} of {size} {'is' if count == 1 else 'are'} {word}" for count, word in counts if count]
        if self.low is not None:
            finite = f"all {self.low:.6g}" if self.low == self.high else f"from {self.low:.6g} to {self.high:.6g}"
            parts.append(f"the others {finite}" if parts else finite)
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]   {', '.join(parts) or 'empty'}"


@dataclass(frozen=True, slots=True)
class NonFinite:
    """The first NaN or infinity of a step, as ``job.find_nonfinite`` returns it; print it.

    Attributes:
      job: the job's name.
      phase: "input" (the array that was fed), "variable" (its value before the step), "forward", "backward" or "update".
      op: the op's type; "" for an input, a variable or an update.
      name: the name of the op, the input or the variable.
      source: the user's line that added it.
      values: what it read and made, as (label, Range): ``inputs[0] x``, ``output``, ``gradient of ...``.
      variables: the names of the variables that it reads or updates.
      step: the number of the step, counted from 0; None where the job counts none.
      reaches_results: whether a value that the job returns or keeps is affected.
    """

    job: str
    phase: str
    op: str
    name: str
    source: Source
    values: tuple[tuple[str, Range], ...]
    variables: tuple[str, ...]
    step: int | None
    reaches_results: bool

    def __str__(self) -> str:
        when = "" if self.step is None else f", in step {self.step}"
        made = {
            "input": f"input {self.name!r} holds",
            "variable": f"before the step, variable {self.name!r} holds",
            "forward": f"{self.op} {self.name!r} makes, in the forward pass,",
            "backward": f"{self.op} {self.name!r} makes, in the backward pass,",
            "update": f"the update of variable {self.name!r} makes",
        }[self.phase]
        rows = [f"job {self.job!r}{when}: {made} the first value that is not finite"]
        width = max(9, *(len(label) for label, _ in self.values))
        rows += [f"  {label:<{width}}  {found}" for label, found in self.values]
        rows += [f"  {'variable':<{width}}  {name}" for name in self.variables if self.phase in ("forward", "backward")]
        rows.append(f"  {'your line':<{width}}  {self.source}   {self.source.text}".rstrip())
        if not self.reaches_results:
            rows.append(f"  {'harmless':<{width}}  nothing that the job returns or keeps depends on it")
        return "\n".join(rows)

    __repr__ = __str__


def is_finite(arrays: Any) -> bool:
    """Whether no array of a pytree holds a NaN or an infinity."""
    return not any(_kinds(array) for array in jax.tree.leaves(arrays))


def _kinds(array: Any) -> frozenset[str]:
    """Which of NAN and INF an array holds."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return frozenset()
    values = np.asarray(array)
    found = set()
    if not np.isfinite(values).all():
        found = {kind for kind, test in ((NAN, np.isnan), (INF, np.isinf)) if test(values).any()}
    return frozenset(found)


def _all_kinds(arrays: Sequence[Any]) -> frozenset[str]:
    return frozenset().union(*[_kinds(a) for a in arrays if a is not None])


def _new(before: frozenset[str], after: frozenset[str]) -> bool:
    """Whether an op with such inputs has made something that is not finite: a NaN of infinities counts, too."""
    return bool(after) and (not before or (NAN in after and NAN not in before))


Make = Callable[[bool], NonFinite]


@dataclass(slots=True, eq=False)
class _Finder(Observer):
    """Notes every value of a step that is not finite, and the places where one is made."""

    plan: Plan
    step: int | None
    values: dict[Node, tuple[Any, ...]] = field(default_factory=dict)
    bad: dict[Node, frozenset[str]] = field(default_factory=dict)
    made: list[tuple[Node, Make]] = field(default_factory=list)  # in the forward pass
    gradients: list[tuple[Node, Make]] = field(default_factory=list)
    updates: list[Make] = field(default_factory=list)
    _bad_gradients: bool = False

    def entered(self, blob: Blob, array: Any, phase: str, label: str) -> None:
        """A feed, or the value of a variable before the step."""
        self.values[blob.node] = tuple(array if b.index == blob.index else None for b in blob.node.outputs)
        kinds = _kinds(array)
        if kinds:
            self.bad[blob.node] = kinds
            self.made.append((blob.node, self._report(phase, blob.node, [("value", array)], name=label)))

    def forward(self, node: Node, outputs: tuple[Any, ...]) -> None:
        if node in self.values:  # of a part that the backward pass computes again
            return
        self.values[node] = outputs
        kinds = _all_kinds(outputs)
        if not kinds:
            return
        self.bad[node] = kinds
        before = self._kinds_of_inputs(node)
        if _new(before, kinds) and not (INF in kinds and NAN not in kinds and _asks_for_infinity(node)):
            self.made.append((node, self._report("forward", node, [*self._inputs(node), *_labelled("output", outputs)])))

    def backward(self, node: Node, wanted: tuple[int, ...], cotangents: tuple[Any, ...], gradients: tuple[Any, ...]) -> None:
        kinds = _all_kinds(gradients)
        if not kinds:
            return
        self._bad_gradients = True
        before = _all_kinds(cotangents) | self._kinds_of_inputs(node) | self.bad.get(node, frozenset())
        if _new(before, kinds):
            rows = [*self._inputs(node), *_labelled("gradient of output", cotangents)]
            rows += [(f"gradient of inputs[{i}]", g) for i, g in zip(wanted, gradients, strict=True) if g is not None]
            self.gradients.append((node, self._report("backward", node, rows)))

    def update(self, name: str, raw: Any, prepared: Any, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        read = _all_kinds([raw, *before.values()])
        written = _all_kinds([prepared, *after.values()])
        is_sum = bool(read) and raw is not None and _kinds(raw) and not (self._bad_gradients or self.bad)
        if not (_new(read, written) or is_sum):
            return
        variable = self.plan.graph.variables[name]
        rows = [("gradient", prepared if raw is None else raw)]
        rows += [(n if n == name else n.removeprefix(f"{name}-"), value) for n, value in before.items()]
        rows += [(f"new {n if n == name else n.removeprefix(name + '-')}", after[n]) for n in after if _kinds(after[n])]
        found = tuple((label, Range.of(value)) for label, value in rows)
        job = self.plan.graph.name
        self.updates.append(
            functools.partial(NonFinite, job, "update", "", name, variable.source, found, (name,), self.step)
        )  # fmt: skip

    def first(self) -> NonFinite | None:
        """The first place that affects what the job returns or keeps; where there is none, the first one at all."""
        live = self._live()
        for node, make in self.made:
            if node in live:
                return make(True)
        for _, make in self.gradients:
            return make(True)
        for make in self.updates:
            return make(True)
        return self.made[0][1](False) if self.made else None

    def _live(self) -> set[Node]:
        """The nodes whose values are not finite and reach a result, or a gradient, through values that are not finite."""
        read_again = {b.node for node, _ in self.gradients for b in node.inputs} | {node for node, _ in self.gradients}
        live = {b.node for b in self.plan.roots} | read_again
        found: set[Node] = set()
        for node in reversed(self.plan.order):
            if node in live and node in self.bad:
                found.add(node)
                live.update(b.node for b in node.inputs)
        return found

    def _kinds_of_inputs(self, node: Node) -> frozenset[str]:
        return frozenset().union(*[self.bad.get(b.node, frozenset()) for b in node.inputs])

    def _inputs(self, node: Node) -> list[tuple[str, Any]]:
        return [(f"inputs[{i}] {b.op_name}", self.values[b.node][b.index]) for i, b in enumerate(node.inputs)]

    def _report(self, phase: str, node: Node, rows: Sequence[tuple[str, Any]], name: str = "") -> Make:
        variables = tuple(b.node.attrs["variable"] for b in node.inputs if b.node.op is OP_VARIABLE)
        source = node.source
        if phase == "variable":
            variables, source = (name,), self.plan.graph.variables[name].source
        found = tuple((label, Range.of(value)) for label, value in rows)
        op = f"{node.op.name}" if phase in ("forward", "backward") else ""
        return functools.partial(
            NonFinite, self.plan.graph.name, phase, op, name or node.name, source, found, variables, self.step
        )


def _labelled(label: str, arrays: Sequence[Any]) -> list[tuple[str, Any]]:
    if len(arrays) == 1:
        return [(label, arrays[0])]
    return [(f"{label}s[{i}]", array) for i, array in enumerate(arrays)]


def _asks_for_infinity(node: Node) -> bool:
    """Whether the program itself asks for the infinity: a constant, or the value of a mask."""
    return any(isinstance(value, (float, np.floating)) and np.isinf(value) for value in node.attrs.values())


def find(plan: Plan, storages: Mapping[str, Storage], state: Any, reads: Any, feeds: Any) -> tuple[NonFinite | None, bool]:
    """Runs a step op by op, and changes nothing.

    Args:
      state, reads, feeds: what the step takes, as arrays on any device.
    Returns: (a NonFinite or None, whether all that the step returns is finite).
    Raises ModeError where devices are fed tensors of different shapes.
    """
    if plan.devices or any(isinstance(feed, tuple) for feed in feeds):
        refuse(ModeError, f"job {plan.graph.name!r} cannot be run op by op: its devices are fed tensors of different shapes",
               hint="tensors of one shape on all devices")  # fmt: skip
    plan = replace(plan, arrangement=None)
    doing = f"a step of job {plan.graph.name!r} op by op"
    with announced(lambda: f"running {doing}", lambda: f"ran {doing}"), jax.enable_x64(True):
        # copies: arrays of several devices do not meet in one op
        state, reads, feeds = ([jnp.asarray(to_host(a)) for a in arrays] for arrays in (state, reads, feeds))
        stored = dict(zip((*plan.written, *plan.read), (*state, *reads), strict=True))
        counter = stored.get(STEP_PREFIX + plan.graph.name)
        finder = _Finder(plan, None if counter is None else int(counter.reshape(-1)[0]))
        labels = {spec.blob.node: spec.label for spec in plan.graph.inputs}
        for blob, feed in zip(plan.feeds, feeds, strict=True):
            finder.entered(blob, feed, "input", labels.get(blob.node, blob.op_name))
        for node in plan.order:
            if node.op is OP_VARIABLE and (name := node.attrs["variable"]) != RANDOM_STATE:
                finder.entered(node.outputs[0], plan.load(name, stored[name], storages), "variable", name)
        results = make_step(plan, storages, None, finder)(state, reads, feeds)
        return finder.first(), is_finite(results)
