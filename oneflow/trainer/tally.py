"""All that is computed of a job's results over a pass: a number for each batch, means, metrics."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from .._base.refuse import refuse, warn
from ..errors import ArgumentError, JobWarning
from ..job import JobFunction
from ..loggers.base import as_number
from ..metrics.base import Metric
from .arguments import Arguments, Bound
from .hooks import guarded
from .outputs import Means, Output, Outputs, weight_of

Fed = dict[str, np.ndarray]


class Tally:
    """Sums over the batches of one job.

    Args:
      prefix: of the names of results.
      metrics: by their names in ``logs``. Those whose inputs this job lacks are left out.

    Attributes:
      logged: the names of all its numbers.
    """

    def __init__(self, job: JobFunction[..., Any], arguments: Arguments, prefix: str, metrics: Mapping[str, Metric]):
        self.job, self._prefix, self._arguments = job, prefix, arguments
        outputs = Outputs(job, arguments).all
        named = {output.name: output for output in outputs}
        inputs = set(arguments.names)
        self.metrics = {
            name: copy.deepcopy(metric)
            for name, metric in metrics.items()
            if all(n in named or n in inputs for n in metric.inputs)
        }
        used = {n for metric in self.metrics.values() for n in metric.inputs}
        self.outputs = Outputs(job, arguments, prefix, frozenset(prefix + n for n in used if n in named))
        averaged = {output.name.removeprefix(prefix) for output in self.outputs.averaged}
        if clash := next((name for name in self.metrics if name in averaged or name in inputs), None):
            kind = "a result" if clash in averaged else "an input"
            refuse(ArgumentError, f"metric {clash!r} has the name of {kind} of job {job.name!r}",
                   hint='give it another name: metrics={"...": ...}, or name="..."', source=job.source)  # fmt: skip
        self.logged = [output.name for output in self.outputs.averaged] + [prefix + name for name in self.metrics]
        self.refuse_names(("epoch", "step"), "a column of the history")
        self._named: dict[str, Output] = {n: named[n] for n in used if n in named}
        self._fed = {n: arguments.names.index(n) for n in used if n not in named}
        if self._fed and arguments.parts > 1:
            metric, fed = next((m, f) for m, metric in self.metrics.items() for f in metric.inputs if f in self._fed)
            rule = f"metric {metric!r} is computed of {fed!r}, of which each process feeds its own part to job {job.name!r}"
            refuse(ArgumentError, rule, hint=f"return {fed!r} from the job, too: results are whole in every process",
                   source=job.source)  # fmt: skip
        self.known = sorted({*named, *inputs})  # what metrics may be computed of
        self._means = Means()
        self.reset()

    def refuse_names(self, others: Collection[str], what: str) -> None:
        """Refuses a result or a metric of this job that has one of the names of something else."""
        if taken := next((name for name in self.logged if name in others), None):
            kind = "metric" if taken.removeprefix(self._prefix) in self.metrics else "result"
            refuse(ArgumentError, f"{kind} {taken!r} of job {self.job.name!r} has the name of {what}",
                   hint=f'give it another name, e.g. {{"{self.job.name}_{taken}": ...}}', source=self.job.source)  # fmt: skip

    def reset(self) -> None:
        """Forgets everything counted so far."""
        self._means.clear()
        for metric in self.metrics.values():
            metric.reset()

    def keeps(self, bound: Bound) -> Fed:
        """Copies of what metrics need of a batch that was fed: its memory is the caller's."""
        return {name: self._arguments.copy_of(place, bound.arguments[place]) for name, place in self._fed.items()}

    def add(self, value: Any, bound: Bound, fed: Fed) -> dict[str, float]:
        """Counts the results of a batch, and returns its means."""
        logs = self.outputs.logs(value, bound)
        self._means.add(logs, weight_of(bound))
        if self.metrics:
            self._update_metrics(value, bound, fed)
        return logs

    def add_all(self, values: Sequence[Any], rows: int) -> dict[str, list[float]]:
        """Counts the results of several whole batches without weights, where there are no metrics, and returns their means."""
        numbers = self.outputs.many(values)
        self._means.add_all(numbers, float(rows))
        return numbers

    def _update_metrics(self, value: Any, bound: Bound, fed: Fed) -> None:
        arrays: dict[str, Any] = {name: output.rows(_taken(output, value), bound) for name, output in self._named.items()}
        for name, array in fed.items():
            arrays[name] = array[: bound.rows] if bound.padded else array
        weights = bound.weights
        if weights is not None and bound.padded:
            weights = weights[: bound.rows]
        for metric in self.metrics.values():
            each = _flat_rows([arrays[n] for n in metric.inputs])
            w = None if weights is None or not len(each[0]) else np.repeat(weights, len(each[0]) // len(weights))
            guarded(metric.update, *each, **({} if w is None else {"weights": w}))

    def result(self) -> dict[str, Any]:
        """The means and the metrics over everything that was counted."""
        found: dict[str, Any] = self._means.result()
        for name, metric in self.metrics.items():
            found[self._prefix + name] = as_number(guarded(metric.compute))
        return found

    def state_dict(self) -> dict[str, Any]:
        """The numbers counted so far."""
        return {"means": self._means.state_dict(), "metrics": {n: dict(m.state_dict()) for n, m in self.metrics.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where ``state_dict()`` was taken."""
        self._means.load_state_dict(state["means"])
        for name, metric in self.metrics.items():
            if name in state["metrics"]:
                metric.load_state_dict(state["metrics"][name])


def idle_metrics(metrics: Mapping[str, Metric], tallies: Sequence[Tally]) -> list[tuple[str, Metric]]:
    """The metrics that none of some jobs has the inputs of, by name."""
    return [(name, metric) for name, metric in metrics.items() if not any(name in tally.metrics for tally in tallies)]


def tell_of_idle_metrics(metrics: Mapping[str, Metric], tallies: Sequence[Tally]) -> None:
    """Warns of metrics that a job has not the inputs of, the first of some, nor one of the others: names may be misspelled."""
    for name, metric in idle_metrics(metrics, tallies):
        job, needed = tallies[0], " and ".join(map(repr, metric.inputs))
        warn(
            JobWarning, f"metric {name!r} is not computed: job {job.job.name!r} has {', '.join(job.known)}, and it takes {needed}"
        )


def _taken(output: Output, value: Any) -> np.ndarray:
    array = output.take(value)
    return np.empty(0) if array is None else array


def _flat_rows(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arrays with equally many rows: where one has (batch, time) flattened into its first axis, so have the others."""
    counts = [len(a) if a.ndim else 1 for a in arrays]
    most = max(counts)
    return [
        a if n == most or a.ndim < 2 or n * a.shape[1] != most else a.reshape(most, *a.shape[2:])
        for a, n in zip(arrays, counts, strict=True)
    ]
