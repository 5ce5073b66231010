"""Eager execution and memory strategies: OneFlow has functions for them, which are accepted without effect, or refused."""

from __future__ import annotations

from typing import Any, NoReturn

from .._base.refuse import refuse, shown
from ..errors import ArgumentError, ModeError
from ..graph.graph import current_or_none


def _outside_jobs(what: str) -> None:
    if current_or_none() is not None:
        refuse(ModeError, f"{what} can only be called outside job functions")


def enable_eager_execution(val: bool = True) -> None:
    """``flow.enable_eager_execution``: eager mode does not exist here, so only False is accepted.

    Raises:
      ModeError: ``val`` is True.
    Example: >>> flow.enable_eager_execution(False)
    """
    _outside_jobs("flow.enable_eager_execution")
    if type(val) is not bool:
        refuse(ArgumentError, f"flow.enable_eager_execution takes a bool, got {shown(val)}")
    if val:
        refuse(ModeError, "eager execution is not supported: jobs are traced once and compiled",
               hint="leave the call out; a synchronous job (-> tp.Numpy) returns its values at once")  # fmt: skip


def InitEagerGlobalSession() -> NoReturn:
    """``flow.InitEagerGlobalSession``: raises ModeError, as eager mode does not exist here."""
    refuse(ModeError, "flow.InitEagerGlobalSession: eager execution is not supported: jobs are traced once and compiled",
           hint="leave the call out")  # fmt: skip


def eager_execution_enabled() -> bool:
    """Always False: jobs are traced once and compiled.

    Example: >>> flow.eager_execution_enabled()   # False
    """
    return False


def inter_job_reuse_mem_strategy(strategy_str: str, job_set: Any = None, **kwargs: Any) -> None:
    """``flow.inter_job_reuse_mem_strategy``: accepted for one of OneFlow's three strategies; no effect, XLA plans memory.

    Args:
      strategy_str: "reuse_mem_priority", "parallelism_priority" or "custom_parallelism".
    Raises:
      ArgumentError: another strategy.
    Example: >>> flow.inter_job_reuse_mem_strategy("reuse_mem_priority")
    """
    _outside_jobs("flow.inter_job_reuse_mem_strategy")
    strategies = ("reuse_mem_priority", "parallelism_priority", "custom_parallelism")
    if not isinstance(strategy_str, str) or strategy_str not in strategies:
        refuse(ArgumentError, f"inter_job_reuse_mem_strategy takes one of {', '.join(strategies)}, got {shown(strategy_str)}")
