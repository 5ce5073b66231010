"""``oneflow summary script.py:job``: a job's ops and variables, without running the script's training."""

from __future__ import annotations

from collections.abc import Sequence

from .._base.command import Parser
from .scripts import load_job


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table. Returns 0."""
    parser = Parser(
        prog="oneflow summary", description="The ops of a job with their shapes, its variables and its memory. The script runs "
        "as far as its first call of a job: nothing is trained.",
        epilog="example: oneflow summary train.py:train_job -- --batch 32",
    )  # fmt: skip
    parser.add_argument("target", help="script.py:job, or script.py where it has one job")
    parser.add_argument("arguments", nargs="*", help="the script's own arguments, after --")
    options = parser.parse_args(arguments)
    print(load_job(options.target, options.arguments).summary())
    return 0
