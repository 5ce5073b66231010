"""CombinedOptimizer: several optimizers in one job, each for its own variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._base import dtype as dtypes
from .._base.refuse import shown
from ..errors import ArgumentError
from ..graph.graph import Graph
from ..ops._emit import fail
from . import _check
from ._loss_scale import LossScalePolicy
from .base import Optimizer
from .objective import named_blob


@dataclass(repr=False)
class CombinedOptimizer(Optimizer):
    """Several optimizers in one job, each with its own variables, schedule, clipping and weight decay.

    They share one step counter and one loss scale. Variables that no member names are not updated.

    Args:
      optimizers: at least one; each with its own ``variables=``, none with a loss scale or a step counter of its own.
      loss_scale_factor, train_step_lbn, loss_scale_policy: those of ``SGD``, for all members together.
    Raises:
      ArgumentError: a member is not an optimizer, is itself combined, or has a loss scale or a step counter.
    Example:
      >>> slow = flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.01]), variables=["body-weight"])
      >>> fast = flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), variables=["head-weight"])
      >>> flow.optimizer.CombinedOptimizer([slow, fast]).minimize(loss)
    """

    optimizers: Sequence[Optimizer]
    loss_scale_factor: float | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScalePolicy | None = None

    def __post_init__(self) -> None:
        owner = "CombinedOptimizer"
        members = self.optimizers
        if not isinstance(members, (list, tuple)) or not members or not all(isinstance(m, Optimizer) for m in members):
            _check.bad(owner, f"optimizers must be a list of at least one optimizer, got {shown(members)}")
        for member in members:
            if isinstance(member, CombinedOptimizer):
                _check.bad(owner, f"a member cannot be a CombinedOptimizer, got {shown(member)}", "put its members into this one")
            if member.loss_scale is not None or member.train_step_lbn is not None:
                _check.bad(
                    owner,
                    f"members share one loss scale and one step counter, got {shown(member)}",
                    "pass loss_scale_factor, loss_scale_policy and train_step_lbn to CombinedOptimizer",
                )
        self.optimizers = tuple(members)
        self._check_step_and_scale()

    def bound(self, graph: Graph) -> tuple[Optimizer, ...]:
        what = "CombinedOptimizer.minimize"
        made = tuple(copied for member in self.optimizers for copied in member.bound(graph))
        step = None
        if self.train_step_lbn is not None:
            step = named_blob(what, "train_step_lbn", graph, self.train_step_lbn, dtypes.int64)
        trainable = [v.name for v in graph.variables.values() if v.trainable]
        owner: dict[str, Optimizer] = {}
        for member in made:
            member.loss_scale, member.train_step_blob = self.loss_scale, step
            for name in trainable if member.variables is None else member.variables:
                if name in owner:
                    fail(ArgumentError, what, f"two members would update variable {name!r}: {owner[name]!r} and {member!r}", (),
                         "give each member its own variables=[...]")  # fmt: skip
                owner[name] = member
        return made

    def Variables(self) -> list[str]:
        """The names of the variables that the optimizers of this one update."""
        return [name for member in self.optimizers for name in member.Variables()]

    @property
    def train_conf(self) -> dict[str, Any]:
        """``{"optimizers": [the members' settings]}``, and the shared settings."""
        conf: dict[str, Any] = {"optimizers": [member.train_conf for member in self.optimizers]}
        if self.loss_scale is not None:
            self.loss_scale.SetLossScaleFieldsInTrainConf(conf)
        if self.train_step_lbn is not None:
            conf["train_step_lbn"] = self.train_step_lbn
        return conf
