"""The learning rates of a train job, read and set between its calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base import check
from .._base.refuse import refuse, shown
from ..compiler.analysis import STEP_PREFIX
from ..errors import ArgumentError, ModeError
from ..graph.graph import OP_VARIABLE, Graph
from ..runtime.session import Session
from ..runtime.store import Cell, Store
from ..runtime.transfer import to_global, to_host


class LearningRates:
    """One rate per optimizer of a job."""

    def __init__(self, graph: Graph, session: Session):
        self._graph, self._session = graph, session
        optimizers = graph.objective.optimizers if graph.train else ()
        self._constant = [o.constant_rate is not None for o in optimizers]
        self._declared = np.array([o.constant_rate or 0.0 for o in optimizers], np.float32).tolist()
        self._cell = Cell(None)

    @property
    def cell(self) -> Cell:
        """The constant rates, float32 on the device: an input of the step. Entries of other optimizers are 0 and not read."""
        if self._cell.value is None and any(self._constant):  # not before the session knows how many devices it has
            self._put(self._declared)
        return self._cell

    def _put(self, rates: Sequence[float]) -> None:
        before, value = self._cell.value, np.array(rates, np.float32)
        is_placed = before is not None and before.committed
        self._cell.value = to_global(value, before.sharding) if is_placed else Store.put(value)

    def close(self) -> None:
        """Lets go of the array on the device: the session has ended."""
        self._cell.value = None

    def get(self) -> tuple[float, ...]:
        """The rates of the next call. Raises ModeError where the job computes one."""
        return tuple(self._scheduled(i) if rate is None else rate for i, rate in enumerate(self.constant()))

    def constant(self) -> tuple[float | None, ...]:
        """Those of the next call that ``set`` can change; None for others."""
        now = self._declared if self._cell.value is None else to_host(self._cell.value).tolist()
        return tuple(rate if constant else None for rate, constant in zip(now, self._constant, strict=True))

    def _scheduled(self, i: int) -> float:
        optimizer: Any = self._graph.objective.optimizers[i]
        if optimizer.learning_rate_blob is not None:
            return float(self._value_of(optimizer.learning_rate_blob, "learning rate"))
        counter = optimizer.train_step_blob
        if counter is None:
            name = STEP_PREFIX + self._graph.name
            step = self._session.read([name])[name].reshape(-1)[0]
        else:
            step = self._value_of(counter, "step")
        return float(np.float32(optimizer.lr_scheduler.value(int(step))))

    def _value_of(self, blob: Any, what: str) -> Any:
        node = blob.node
        if node.op is not OP_VARIABLE:
            refuse(ModeError, f"the {what} of job {self._graph.name!r} is computed inside the job, by {blob.op_name!r}",
                   hint="return it from the job, or watch it", source=self._graph.source)  # fmt: skip
        name = node.attrs["variable"]
        return self._session.read([name])[name].reshape(-1)[0]

    def set(self, value: Any) -> None:
        """Makes later calls use other rates.

        Args:
          value: a number >= 0 for all optimizers, or a sequence with a number, or None to leave it alone, for each. Rates that
            were declared negative may become any number.
        Raises:
          ArgumentError: something else.
          ModeError: a rate that is not constant.
        """
        count = len(self._constant)
        given = list(value) if isinstance(value, (list, tuple)) else [value] * count
        if len(given) != count:
            refuse(ArgumentError, f"job {self._graph.name!r} has {count} optimizer(s), got {len(given)} learning rates")
        with self._session.store.lock:
            rates = list(self._declared) if self._cell.value is None else to_host(self._cell.value).tolist()
            for i, each in enumerate(given):
                if each is None and isinstance(value, (list, tuple)):
                    continue
                rates[i], problem = check.number(each, low=0 if self._declared[i] >= 0 else None, finite=True)
                problem = problem or check.float32(rates[i])
                if problem:
                    refuse(ArgumentError, f"learning_rate of job {self._graph.name!r} {problem}")
                if not self._constant[i]:
                    self._refuse_schedule(i)
            self._put(rates)

    def _refuse_schedule(self, i: int) -> None:
        optimizer: Any = self._graph.objective.optimizers[i]
        refuse(ModeError, f"the learning rate of job {self._graph.name!r} follows a schedule and cannot be set",
               found=[("schedule", shown(optimizer.lr_scheduler))],
               hint="declare a constant rate, as in flow.optimizer.SGD(0.1), and set job.learning_rate",
               source=self._graph.objective.source)  # fmt: skip
