"""Plans for hardware that is not here: ``flow.plan_sweep``, and ``python -m oneflow.plan script.py:job --target h100:8``."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ._base.command import FOUND, Parser, status_of
from ._base.refuse import refuse, shown
from ._reports.placement import size_text, text_table
from ._reports.target_plan import TargetPlan, seconds_text
from ._targets.target import Target, as_target
from .cli.scripts import add_target, load_job, parsed, shell_path
from .errors import ArgumentError, MissingExtraError, OneFlowError
from .job import JobFunction

__all__ = ["SweepRow", "PlanSweep", "plan_sweep"]


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One combination: ``plan`` is None where it cannot be compiled, and ``error`` says why."""

    target: Target
    options: dict[str, Any]
    plan: TargetPlan | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class PlanSweep:
    """What ``flow.plan_sweep`` returns: print it, or read ``rows``, those that fit first, by time per sample."""

    rows: tuple[SweepRow, ...]

    @property
    def best(self) -> SweepRow | None:
        """The fastest that fits, per sample; None where none does."""
        return next((row for row in self.rows if row.plan is not None and row.plan.fits), None)

    def __str__(self) -> str:
        names = list(dict.fromkeys(name for row in self.rows for name in row.options))
        header = ("target", *names, "time per sample", "time per call", "memory", "fits", "utilisation", "bubble")
        lines = []
        for row in self.rows:
            own = (str(row.target), *(str(row.options.get(name, "")) for name in names))
            p = row.plan
            if p is None:
                lines.append((*own, row.error.splitlines()[0][:80], "", "", "", "", ""))
                continue
            lines.append((*own, seconds_text(p.seconds_per_sample), seconds_text(p.seconds), size_text(p.fullest.total),
                          "yes" if p.fits else "no", f"{p.utilisation:.1%}", f"{p.bubble:.0%}"))  # fmt: skip
        return text_table("plans by estimated time per sample", header, lines)

    __repr__ = __str__


def plan_sweep(
    make_job: Callable[..., Any], targets: str | Target | Iterable[str | Target], **options: Iterable[Any]
) -> PlanSweep:
    """Plans a job for every combination of targets and options, such as batch sizes and splits; print the table.

    Args:
      make_job: called with one value of each option, by name; returns a job. Jobs of one name may replace each other.
      targets: one or more targets, as ``job.plan`` takes them.
      options: the values to try, by the name of ``make_job``'s argument.
    Returns: plans, those that fit first, sorted by estimated time per sample. Combinations that cannot be built or compiled
      come last, with the error.
    Raises:
      ArgumentError: ``make_job`` is not callable or returns something that is not a job; a target is unknown; an option has no
        values. MissingExtraError: a target's compiler is not installed.
    Example: >>> print(flow.plan_sweep(make_job, ["h100:1", "tpu-v5e:2x2"], batch=[32, 64, 128]))  # doctest: +SKIP
    """
    if not callable(make_job) or isinstance(make_job, JobFunction):
        refuse(ArgumentError, f"flow.plan_sweep calls a function that makes a job, got {shown(make_job)}")
    if not isinstance(targets, (str, Target, list, tuple)) or not targets:
        refuse(ArgumentError, f'targets must be like "h100:8", or a list of them, got {shown(targets)}')
    wanted = [as_target(t) for t in ([targets] if isinstance(targets, (str, Target)) else targets)]
    for name, values in options.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            refuse(ArgumentError, f"flow.plan_sweep: {name} must be a list of the values to try, got {shown(values)}")
    tried = {name: list(values) for name, values in options.items()}
    for name, listed in tried.items():
        if not listed:
            refuse(ArgumentError, f"flow.plan_sweep: {name} has no values to try")
    rows = []
    for values in itertools.product(*tried.values()):
        chosen = dict(zip(tried, values, strict=True))
        rows += [_row(make_job, target, chosen) for target in wanted]
    return PlanSweep(tuple(sorted(rows, key=_order)))


def _row(make_job: Callable[..., Any], target: Target, options: dict[str, Any]) -> SweepRow:
    try:
        job = make_job(**options)
        if not isinstance(job, JobFunction):
            refuse(ArgumentError, f"flow.plan_sweep: make_job must return a job function, it returned {shown(job)}")
        return SweepRow(target, options, job.plan(target))
    except (MissingExtraError, ArgumentError):
        raise
    except OneFlowError as error:
        return SweepRow(target, options, None, str(error))


def _order(row: SweepRow) -> tuple[bool, bool, float]:
    if row.plan is None:
        return True, True, 0.0
    return False, not row.plan.fits, row.plan.seconds_per_sample


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns 0, or 1 where the job does not fit."""
    parser = Parser(
        prog="oneflow plan", description="Compiles a job for hardware that is not here: whether it fits, how long a call takes, "
        "and why. The script runs as far as its first call of a job: nothing is trained. Its own arguments come after --.",
        epilog="example: oneflow plan train.py:train_job --target h100:8 -- --batch 32",
    )  # fmt: skip
    parser.add_argument(
        "--target", required=True, action="append", help="h100:8, a100:2x8, b200:8, tpu-v5e:4x4, ...; twice: compared"
    )
    parser.add_argument("--html", type=shell_path, help="write the picture to this file")
    parser.add_argument("--all", action="store_true", help="print all rows of the tables")
    add_target(parser)
    options = parsed(parser, arguments)
    targets = [as_target(text) for text in options.target]
    job = load_job(options.job, options.arguments)
    plans = [job.plan(target) for target in targets]
    for made in plans:
        print(made.table() if options.all else made)
    for other in plans[1:]:
        print(plans[0].compare(other))
    if options.html:
        plans[0].save_html(options.html)
    return 0 if all(made.fits for made in plans) else FOUND


if __name__ == "__main__":
    sys.exit(status_of(main))
