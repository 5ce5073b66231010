"""A pass over data with a predict job: for validations, tests and predictions. Batches overlap; results come in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from .._base.refuse import refuse
from ..errors import ArgumentError, CallbackError, CheckpointError
from ..graph.node import Blob
from ..job import JobFunction
from ..metrics.base import Metric
from .arguments import Arguments, Bound
from .hooks import Hooks, run_in_order
from .outputs import Outputs
from .sources import Source, source_of
from .tally import Fed, Tally


class Stage:
    """Runs functions on the delivery thread and keeps the first error, which ends the run."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def guard(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls a function, on the delivery thread; after an error nothing more is called."""
        if self.error is None:
            try:
                function(*arguments)
            except BaseException as error:
                self.error = error

    def wait_for(self, function: Callable[[], None]) -> None:
        """Runs a function behind the callbacks of all calls so far, and waits for it. Raises the first error there was."""
        run_in_order(partial(self.guard, function))
        self.check()

    def check(self) -> None:
        """Raises the first error there was."""
        if self.error is not None:
            raise self.error


class Pass:
    """A pass over a data set, batch by batch, with one predict job."""

    def __init__(self, job: JobFunction[..., Any], data: Any, *, limit: int | float | None, what: str, extra: bool = False):
        self.job = job
        self.arguments = Arguments(job, pads=True, extra=extra)
        self.source: Source = source_of(data, job, self.arguments, shuffle=False, seed=0, what=what)
        self.count = limited(limit, self.source.length, what)
        if self.count is None and data is None:
            rule = f"job {job.name!r} reads its data by itself, and nothing says how many batches there are"
            refuse(ArgumentError, rule, hint="give the trainer a limit: limit_val_batches=, limit_test_batches= or the like")
        self._what = what

    def run(
        self,
        stage: Stage,
        arrived: Callable[[int, Any, Bound, Fed], None],
        keeps: Callable[[Bound], Fed],
        stop: Callable[[], bool],
    ) -> None:
        """Submits every batch that has rows; ``arrived`` runs for each on the delivery thread. Raises ArgumentError for none."""
        number = taken = 0
        for batch in self._batches():
            try:
                bound = self.arguments.bind(batch)
                assert bound is not None  # short ones are padded
                result = None if bound.is_empty else self.job.submit(*bound.arguments)
            except Exception as error:
                located(error, f"batch {taken} of the {self._what}")
                raise
            taken += 1
            if result is None:
                continue
            result.async_get(partial(self._arrived, stage, arrived, number, bound, keeps(bound)))
            number += 1
            if stage.error is not None or stop():
                break
        if not number:
            refuse(ArgumentError, f"the {self._what} gave no batch{' with rows' if taken else ''}")

    @staticmethod
    def _arrived(stage: Stage, arrived: Callable[..., None], number: int, bound: Bound, fed: Fed, value: Any) -> None:
        stage.guard(arrived, number, value, bound, fed)

    def _batches(self) -> Iterator[Any]:
        iterator = self.source.batches(0, 0)
        taken = 0
        while self.count is None or taken < self.count:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            taken += 1
            yield batch


class Evaluation(Pass):
    """A validation or a test: means and metrics over all rows of its data."""

    def __init__(
        self,
        job: JobFunction[..., Any],
        data: Any,
        *,
        limit: int | float | None,
        what: str,
        prefix: str,
        metrics: Mapping[str, Metric],
    ):
        super().__init__(job, data, limit=limit, what=what)
        self.tally = Tally(job, self.arguments, prefix, metrics)

    def evaluate(self, stage: Stage, hooks: Hooks, stop: Callable[[], bool], count: Callable[[int], None]) -> dict[str, Any]:
        """The results, by name. ``count`` is called with the number of batches so far."""
        self.tally.reset()
        stage.wait_for(lambda: hooks("on_test_begin", {}))

        def arrived(number: int, value: Any, bound: Bound, fed: Fed) -> None:
            logs = self.tally.add(value, bound, fed)
            count(number + 1)
            hooks("on_test_batch_outputs", number, value)
            hooks("on_test_batch_end", number, logs)

        found: dict[str, Any] = {}

        def end() -> None:
            found.update(self.tally.result())
            hooks("on_test_end", found)

        self.run(stage, arrived, self.tally.keeps, stop)
        stage.wait_for(end)
        return found


class Prediction(Pass):
    """All results of a job over a data set."""

    def __init__(self, job: JobFunction[..., Any], data: Any, *, limit: int | float | None):
        super().__init__(job, data, limit=limit, what="data to predict", extra=True)
        self._outputs = Outputs(job, self.arguments).all
        self._parts: list[list[np.ndarray]] = [[] for _ in self._outputs]

    def predict(self, stage: Stage, hooks: Hooks, stop: Callable[[], bool], count: Callable[[int], None]) -> Any:
        """The results in the structure that the job returns: rows joined, without padding; values of whole batches stacked."""
        stage.wait_for(lambda: hooks("on_predict_begin", {}))

        def arrived(number: int, value: Any, bound: Bound, fed: Fed) -> None:
            for parts, output in zip(self._parts, self._outputs, strict=True):
                array = output.take(value)
                if array is None:
                    rule = f"job {self.job.name!r} returns {output.name!r} as a list of tensors, which cannot be joined"
                    refuse(ArgumentError, rule, hint="call the job in a loop of your own", source=self.job.source)
                parts.append(output.rows(array, bound))
            count(number + 1)
            hooks("on_predict_batch_end", number, {})

        self.run(stage, arrived, lambda bound: {}, stop)
        stage.wait_for(lambda: hooks("on_predict_end", {}))
        joined = [np.concatenate(p) if o.per_row else np.stack(p) for p, o in zip(self._parts, self._outputs, strict=True)]
        return _like(self.job.graph.returns, iter(joined))


def _like(returned: Any, arrays: Iterator[np.ndarray]) -> Any:
    """The nesting that a body returned, with arrays in place of Blobs."""
    if isinstance(returned, Blob):
        return next(arrays)
    if isinstance(returned, Mapping):
        return {key: _like(item, arrays) for key, item in returned.items()}
    if isinstance(returned, (tuple, list)):
        items = [_like(item, arrays) for item in returned]
        if hasattr(returned, "_fields"):
            return type(returned)(*items)
        return tuple(items) if isinstance(returned, tuple) else items
    return None


def located(error: Exception, where: str) -> None:
    """Adds to an error of a call which batch it was; errors that only wait for the next call are not the batch's."""
    if not isinstance(error, (CallbackError, CheckpointError, OSError)):
        error.add_note(f"in {where}")


def limited(limit: int | float | None, length: int | None, what: str) -> int | None:
    """How many batches a pass has: an int limits their number, a float is a share of them. None where nobody knows."""
    if limit is None or (isinstance(limit, float) and limit == 1.0):
        return length
    if isinstance(limit, float):
        if length is None:
            refuse(ArgumentError, f"a share of the {what} was asked for ({limit}), and they have no length",
                   hint="give an int: a number of batches")  # fmt: skip
        return max(int(length * limit), 1) if limit else 0
    return limit if length is None else min(limit, length)
