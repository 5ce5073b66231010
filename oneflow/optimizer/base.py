"""The interface between optimizers and the compiler, and the base class of all optimizers."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

from .._base import check
from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.jax import jax, jnp
from .._base.refuse import refuse, shown
from .._base.source import caller
from .._base.terse_repr import terse_repr
from ..errors import DtypeError
from ..graph.graph import Graph, Objective, Variable, current
from ..graph.node import Blob
from ..graph.op import FusedRule
from . import _check
from ._grad_clipping import ClipGradientConf
from ._loss_scale import LossScalePolicy, policy_of
from .objective import checked_losses, named_blob, names_of_variables, tell_of_replaced
from .schedules import LrScheduler, PiecewiseConstantScheduler


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor of an optimizer's state for one variable, under the name ``<variable>-<suffix>``."""

    suffix: str
    shape: tuple[int, ...]
    dtype: dtype
    value: float = 0.0


def slot_dtype(variable: Variable) -> dtype:
    """float32 for variables of 16 bits: float16 does not hold squares of gradients, bfloat16 not the steps of their averages."""
    return variable.dtype if variable.dtype.numpy_dtype.itemsize >= 4 else dtypes.float32


class UpdateRule(Protocol):
    """The interface of the objects in ``graph.objective.optimizers``, for the compiler.

    All functions are traced in JAX's 64-bit mode, once per compilation. The compiler averages the gradients, divides them
    by the loss scale, adds the regularizers' gradients, clips them by ``grad_clipping`` (measure, then scale), and calls
    ``update``.

    Attributes:
      variables: names of the variables it updates; None for all trainable ones that a loss depends on.
      learning_rate_blob: float32 of shape (1,), used instead of ``learning_rate(step)`` where it is not None.
      constant_rate: the rate if it is the same at every step, else None. Such a rate is an input of the step, so that it can be
        changed without compiling.
      train_step_blob: int64 of shape (1,), used instead of the job's own counter where it is not None.
      loss_scale: None; or an object with ``factor``; or one with ``initial``, ``increment_period`` and ``multiplier``.
      row_sparse: whether single rows can be updated, where ``indexed_slices_optimizer_conf`` asks for that.
      grad_clipping: None, or a rule that scales gradients after it has measured all of them.
      clips_first: whether gradients are clipped before regularizers are added, as in 0.6; otherwise after that.
    """

    variables: frozenset[str] | None
    learning_rate_blob: Blob | None
    train_step_blob: Blob | None
    loss_scale: LossScalePolicy | None
    row_sparse: bool
    grad_clipping: ClipGradientConf | None
    clips_first: bool

    @property
    def constant_rate(self) -> float | None:
        """The rate if it is the same at every step."""

    def learning_rate(self, step: Any) -> Any:
        """The rate: int64 scalar, the number of earlier calls -> float32 scalar."""

    def weight_decay_of(self, variable_name: str) -> float:
        """The variable's rate of decoupled weight decay; 0.0 for none."""

    def slots(self, variable: Variable) -> list[Slot]:
        """The optimizer's state for the variable."""

    def update(
        self, x: Any, g: Any, slots: dict[str, Any], *, lr: Any, step: Any, weight_decay: float
    ) -> tuple[Any, dict[str, Any]]:
        """The new value, and the new slots by suffix. The rate is float32, the step int64."""

    def fused(self) -> FusedRule | None:
        """The rule as the native part computes it for float32 variables; None where it does not."""

    def fused_scalars(self, lr: Any, step: Any, weight_decay: float) -> tuple[Any, Any, Any]:
        """``rate``, ``root`` and ``decay`` of the fused rule, float32 scalars; ``decay`` is None if it is zero."""


class Optimizer:
    """Base of the optimizer classes, which add their arguments, ``formula`` and the names of their slots.

    An optimizer is a description that using it does not change, so one object may serve several jobs. Blobs and variables that
    it names by string are looked up by ``minimize``, in the copies that the compiler reads.
    """

    lr_scheduler: LrScheduler | float  # after construction a schedule
    loss_scale_factor: float | None
    grad_clipping: ClipGradientConf | None
    train_step_lbn: str | None
    loss_scale_policy: LossScalePolicy | None
    variables: Any = None  # the user's argument; in the compiler's copies None or a frozenset of names
    weight_decay: float | None = None
    weight_decay_includes: str | Sequence[str] | None = None
    weight_decay_excludes: str | Sequence[str] | None = None

    learning_rate_blob: Blob | None = None
    train_step_blob: Blob | None = None
    loss_scale: LossScalePolicy | None = None
    suffixes: tuple[str, ...] = ()
    row_sparse = False
    clips_first = False

    def __post_init__(self) -> None:
        owner = type(self).__name__
        if not isinstance(self.lr_scheduler, LrScheduler):
            rate, problem = check.number(self.lr_scheduler, low=0, finite=True)
            if problem:
                rule = f"lr_scheduler must be a learning rate >= 0 or a learning-rate schedule, got {shown(self.lr_scheduler)}"
                _check.bad(owner, rule, f"flow.optimizer.{owner}(0.1, ...)")
            self.lr_scheduler = PiecewiseConstantScheduler([], [rate])
        if self.lr_scheduler.constant is not None and (problem := check.float32(self.lr_scheduler.constant)):
            _check.bad(owner, f"the learning rate {problem}")
        if self.grad_clipping is not None and not isinstance(self.grad_clipping, ClipGradientConf):
            _check.bad(
                owner,
                f"grad_clipping must be one of flow.optimizer.grad_clipping, got {shown(self.grad_clipping)}",
                "grad_clipping=flow.optimizer.grad_clipping.by_global_norm(1.0)",
            )
        self._check_weight_decay()
        self._check_step_and_scale()
        if self.variables is not None and not callable(self.variables):
            self.variables = _check.names(owner, "variables", self.variables)

    @property
    def _schedule(self) -> LrScheduler:
        return cast(LrScheduler, self.lr_scheduler)

    def _check_step_and_scale(self) -> None:
        owner = type(self).__name__
        self.loss_scale = policy_of(owner, self.loss_scale_factor, self.loss_scale_policy)
        if self.train_step_lbn is not None:
            _check.lbn(owner, "train_step_lbn", self.train_step_lbn)
            if hasattr(self.loss_scale, "increment_period"):
                _check.bad(
                    owner,
                    "a dynamic loss scale skips steps, which a step counter of your own (train_step_lbn) would still count",
                    "leave train_step_lbn out",
                )

    def _check_weight_decay(self) -> None:
        owner = type(self).__name__
        for name in ("weight_decay_includes", "weight_decay_excludes"):
            if getattr(self, name) is not None:
                setattr(self, name, _check.patterns(owner, name, getattr(self, name)))
        if self.weight_decay is None:
            return
        self.weight_decay = _check.number(owner, "weight_decay", self.weight_decay, low=0.0)
        if self.weight_decay_includes is not None and self.weight_decay_excludes is not None:
            _check.bad(
                owner,
                "weight_decay_includes and weight_decay_excludes cannot both be given",
                "leave one of them out; includes decays only matching variables, excludes all others",
            )

    # --- for users

    def minimize(self, loss: Blob | Sequence[Blob]) -> None:
        """Makes the job train: each call updates the trainable variables on which ``loss`` depends.

        A gradient is that of the mean over all elements of a loss, summed over the losses. The losses and the optimizer of
        an earlier ``minimize`` of the job are replaced, with a JobWarning.

        Args:
          loss: a Blob of any shape, or a sequence of Blobs of one shape and dtype.
        Raises:
          ModeError: outside a job.
          TrainError: in a predict job; or the losses differ in shape or dtype.
          ArgumentError: ``loss`` is not a Blob, or the job lacks a Blob or variable that this optimizer names.
        Example:
          >>> flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        """
        what = f"{type(self).__name__}.minimize"
        graph = current(f"flow.optimizer.{what}")
        losses = checked_losses(what, graph, loss)
        optimizers: tuple[UpdateRule, ...] = self.bound(graph)
        tell_of_replaced(what, graph.objective, losses, optimizers)
        graph.objective = Objective(losses=losses, optimizers=optimizers, source=caller())

    def Variables(self) -> list[str]:
        """Names of the variables of the current job that this optimizer would update."""
        graph = current(f"{type(self).__name__}.Variables")
        chosen = names_of_variables(f"{type(self).__name__}.Variables", graph, self.variables)
        return [v.name for v in graph.variables.values() if v.trainable and (chosen is None or v.name in chosen)]

    @property
    def train_conf(self) -> dict[str, Any]:
        """The settings in the dict form (``FunctionConfig.train``), with further keys where that form has none."""
        conf: dict[str, Any] = {"model_update_conf": self._rule_conf()}
        self._schedule.SetLrFieldsInTrainConf(conf)
        update = conf["model_update_conf"]
        if self.grad_clipping is not None:
            update["clip_conf"] = self.grad_clipping.clip_conf
        if self.weight_decay is not None:
            update["weight_decay_conf"] = {"weight_decay_rate": self.weight_decay}
            for name in ("includes", "excludes"):
                chosen = getattr(self, f"weight_decay_{name}")
                if chosen is not None:
                    update["weight_decay_conf"][name] = {"pattern": list(chosen)}
        if self.loss_scale is not None:
            self.loss_scale.SetLossScaleFieldsInTrainConf(conf)
        if self.train_step_lbn is not None:
            conf["train_step_lbn"] = self.train_step_lbn
        return conf

    def _rule_conf(self) -> dict[str, Any]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return terse_repr(self)

    # --- for the compiler: see UpdateRule

    def bound(self, graph: Graph) -> tuple[Optimizer, ...]:
        """The copies that the compiler reads, in which all names are looked up."""
        what = f"{type(self).__name__}.minimize"
        made = copy.copy(self)
        made.__dict__.pop("_traced", None)
        made.variables = names_of_variables(what, graph, self.variables)
        lbn = getattr(self.lr_scheduler, "lbn", None)
        if lbn is not None:
            made.learning_rate_blob = named_blob(what, "lr_scheduler", graph, lbn, dtypes.float32)
        if self.train_step_lbn is not None:
            made.train_step_blob = named_blob(what, "train_step_lbn", graph, self.train_step_lbn, dtypes.int64)
        return (made,)

    @property
    def constant_rate(self) -> float | None:
        """The learning rate if it is the same at every step, else None."""
        return self._schedule.constant if self.learning_rate_blob is None else None

    def learning_rate(self, step: Any) -> Any:
        """The learning rate at ``step``, the number of earlier calls: a float32 scalar."""
        return self._schedule.learning_rate(step)

    def weight_decay_of(self, variable_name: str) -> float:
        """The variable's rate of decoupled weight decay; 0.0 for none."""
        if self.weight_decay is None:
            return 0.0
        if self.weight_decay_includes is not None:
            decays = any(re.search(pattern, variable_name) for pattern in self.weight_decay_includes)
        else:
            decays = not any(re.search(pattern, variable_name) for pattern in self.weight_decay_excludes or ())
        return self.weight_decay if decays else 0.0

    def slots(self, variable: Variable) -> list[Slot]:
        """The optimizer's state for the variable. Raises DtypeError for an integer variable."""
        if not variable.dtype.is_floating_point:
            refuse(
                DtypeError,
                f"{type(self).__name__} cannot update variable {variable.name!r}: it is of an integer dtype",
                found=[("variable", variable.describe())],
                hint="pass trainable=False to flow.get_variable",
                source=variable.source,
            )
        return [Slot(suffix, variable.shape, slot_dtype(variable)) for suffix in self.suffixes]

    def update(
        self, x: Any, g: Any, slots: dict[str, Any], *, lr: Any, step: Any, weight_decay: float
    ) -> tuple[Any, dict[str, Any]]:
        """The variable's new value, and the new state by suffix."""
        return self._traced(x, g, slots, lr, step, weight_decay)

    @cached_property
    def _traced(self) -> Any:
        # under jit, so that variables of one shape and dtype are traced once; XLA inlines the call
        return jax.jit(self._update, static_argnums=5)

    def _update(self, x: Any, g: Any, slots: dict[str, Any], lr: Any, step: Any, wd: float) -> tuple[Any, dict[str, Any]]:
        # squares and small epsilons are outside the range of 16-bit numbers
        dt = x.dtype if x.dtype.itemsize >= 4 else jnp.float32
        new_x, new_slots = self.formula(
            x.astype(dt), g.astype(dt), {suffix: slot.astype(dt) for suffix, slot in slots.items()},
            self.effective_rate(lr, step).astype(dt), step, wd,
        )  # fmt: skip
        return new_x.astype(x.dtype), {suffix: slot.astype(slots[suffix].dtype) for suffix, slot in new_slots.items()}

    def fused(self) -> FusedRule | None:
        """The rule as the native part computes it for float32 variables; None where it does not."""
        return None

    def fused_scalars(self, lr: Any, step: Any, weight_decay: float) -> tuple[Any, Any, Any]:
        """``rate``, ``root`` and ``decay`` of the fused rule, float32 scalars; ``decay`` is None if it is zero."""
        rate = self.effective_rate(lr, step).astype(jnp.float32)
        decay = rate * jnp.asarray(weight_decay, jnp.float32) if weight_decay else None
        return rate, jnp.asarray(1.0, jnp.float32), decay

    def effective_rate(self, lr: Any, step: Any) -> Any:
        """The rate for ``formula``: float32 scalar -> float32 scalar."""
        return lr

    def formula(self, x: Any, g: Any, slots: dict[str, Any], lr: Any, step: Any, wd: float) -> tuple[Any, dict[str, Any]]:
        """The update rule, on arrays and a rate of one floating dtype of at least 32 bits."""
        raise NotImplementedError
