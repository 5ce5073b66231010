"""``oneflow plan script.py:job``: where a job's ops run, before it runs."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from .._base.command import Parser
from .scripts import add_target, load_job, parsed

_PLANNER = "oneflow.plan"  # a module with a command line of its own takes over where the library has one


def parser() -> Any:
    """The command line."""
    planner = _planner()
    if planner is not None:
        return planner.parser()
    made = Parser(
        prog="oneflow plan", description="Prints where each op of a job runs and each variable is stored, in which layout, the "
        "bytes on each device, and what is sent between devices. The job is compiled, not run: this works for models that are "
        "too large for this machine.",
        epilog="example: oneflow plan train.py:train_job -- --batch 32",
    )  # fmt: skip
    add_target(made)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the report. Returns 0."""
    planner = _planner()
    if planner is not None:
        return int(planner.main(arguments))
    options = parsed(parser(), arguments)
    print(load_job(options.target, options.arguments).plan())
    return 0


def _planner() -> ModuleType | None:
    if importlib.util.find_spec(_PLANNER) is None:
        return None
    found = importlib.import_module(_PLANNER)
    return found if hasattr(found, "main") and hasattr(found, "parser") else None
