"""``oneflow profile script.py:job``: a job's steps under XLA's profiler, fed as the script feeds its first call."""

from __future__ import annotations

from collections.abc import Sequence

from .._base.command import Parser
from .._base.refuse import shown
from ..errors import ArgumentError
from .scripts import add_target, load_first_call, parsed, shell_path


def parser() -> Parser:
    """The command line."""
    made = Parser(
        prog="oneflow profile", description="Runs steps of a job under XLA's profiler, and prints where their time goes, by op "
        "and by line of the script. The script runs as far as its first call of the job, whose arguments are fed to each step.",
        epilog="example: oneflow profile train.py:train_job --steps 50 --save trace.json.gz -- --batch 32",
    )  # fmt: skip
    made.add_argument("--steps", type=int, default=20, metavar="N", help="how many steps are measured (20)")
    made.add_argument(
        "--save",
        type=shell_path,
        metavar="FILE",
        help="write the trace: FILE.json.gz or FILE.json for https://ui.perfetto.dev, FILE.pb, or a directory for xprof",
    )
    add_target(made)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table. Returns 0."""
    options = parsed(parser(), arguments)
    job, args, kwargs = load_first_call(options.job, options.arguments)
    profile = job.profile(*args, steps=options.steps, **kwargs)
    print(profile)
    if options.save:
        try:
            profile.save(options.save)
        except OSError as error:
            raise ArgumentError(f"{shown(options.save)}: {error.strerror}") from error
    return 0
