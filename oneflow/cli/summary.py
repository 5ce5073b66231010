"""``oneflow summary script.py:job``: a job's ops and variables, without running the script's training."""

from __future__ import annotations

from collections.abc import Sequence

from .._base.command import Parser
from .scripts import add_target, load_job, parsed


def parser() -> Parser:
    """The command line."""
    made = Parser(
        prog="oneflow summary", description="Prints the ops of a job with their shapes, its variables and its memory. The script "
        "runs as far as its first call of a job: nothing is trained.",
        epilog="example: oneflow summary train.py:train_job -- --batch 32",
    )  # fmt: skip
    add_target(made)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table. Returns 0."""
    options = parsed(parser(), arguments)
    print(load_job(options.job, options.arguments).summary())
    return 0
