"""``oneflow plan script.py:job``: where a job's ops run, before it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .._base.command import Parser
from .scripts import add_target, load_job, parsed


def parser() -> Parser:
    """The command line."""
    made = Parser(
        prog="oneflow plan", description="Prints where each op of a job runs and each variable is stored, in which layout, the "
        "bytes on each device, and what is sent between devices. The job is compiled, not run: this works for models that are "
        "too large for this machine.",
        epilog="example: oneflow plan train.py:train_job -- --batch 32",
    )  # fmt: skip
    made.add_argument("--target", action="append", metavar="TARGET", help="plan for other hardware, such as h100:8; "
                      "`oneflow plan --target h100:8 --help` lists the options for that")  # fmt: skip
    add_target(made)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the report. Returns 0, or with ``--target`` the status of the planner."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    own = given[: given.index("--")] if "--" in given else given
    words = {word.partition("=")[0] for word in own}
    if "--target" in words:
        from .. import plan as planner

        return int(planner.main(given))
    if words & {"--html", "--all"}:
        parser().error("--html and --all are for plans with --target")
    options = parsed(parser(), given)
    print(load_job(options.job, options.arguments).plan())
    return 0
