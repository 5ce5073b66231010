"""Jobs out of scripts: a script runs as far as its first call of a job, and no further."""

from __future__ import annotations

import os
import runpy
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from .._base.refuse import closest
from .._base.source import without_library
from ..errors import ArgumentError
from ..job import JobFunction
from ..job.function import StoppedAtFirstCallError
from ..runtime.process import process
from ..runtime.session import default_session

_End = StoppedAtFirstCallError | SystemExit | None
"""How a script ended: stopped at its first call, by ``sys.exit``, or behind its last line."""


def add_target(parser: ArgumentParser) -> None:
    """Adds the arguments ``script.py:job`` and, after ``--``, those of the script."""
    parser.add_argument("job", metavar="SCRIPT:JOB", help="script.py:job, or script.py where it declares one job")
    parser.add_argument("arguments", nargs="*", default=(), metavar="ARG", help="the script's own arguments, after --")


def shell_path(text: str) -> str:
    """An option's path as the shell means it, whatever directory the script changes to."""
    return os.path.abspath(text) if text else text


def parsed(parser: ArgumentParser, arguments: Sequence[str] | None) -> Namespace:
    """The options of a command with a target; what follows ``--`` is for the script, whatever it looks like."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:end])
    options.arguments = [*options.arguments, *given[end + 1 :]]
    return options


def load_job(target: str, arguments: Sequence[str] = ()) -> JobFunction[..., Any]:
    """The job that ``script.py:job`` names; of ``script.py`` alone its only job.

    The script runs as ``python script.py arguments`` would run it, ``if __name__ == "__main__"`` included, and is stopped where
    it calls a job for the first time: nothing is trained, and code after that call never runs. Code before it,
    reading data for example, does.

    Args:
      target: a file's path, a colon, and the name of a job's function.
      arguments: the script's own command line.
    Raises:
      ArgumentError: there is no such file, or the script declares no such job before its first call of one.
      Any exception that the script raises.
    """
    path, name = _split(target)
    return _declared(path, name, _run(path, arguments, stop=True))


def load_first_call(
    target: str, arguments: Sequence[str] = ()
) -> tuple[JobFunction[..., Any], tuple[Any, ...], Mapping[str, Any]]:
    """The job that ``script.py:job`` names, and the arguments of the script's first call of it.

    The script runs as far as that call: calls of other jobs before it are made.

    Args: as for ``load_job``.
    Raises: as ``load_job``; ArgumentError where the script never calls the job.
    """
    path, name = _split(target)
    end = _run(path, arguments, stop=name or True)
    job = _declared(path, name, end)
    if not isinstance(end, StoppedAtFirstCallError):
        raise ArgumentError(f"{path} {_how(end)} without calling job {job.name!r}, so there is nothing to feed to it\n"
                            "  try        a job that the script calls")  # fmt: skip
    return job, end.args_of_call, end.kwargs_of_call


def _split(target: str) -> tuple[str, str]:
    path, _, name = target.rpartition(":") if ":" in target and not os.path.exists(target) else (target, "", "")
    if not os.path.isfile(path):
        raise ArgumentError(f"there is no script {path!r}\n  try        script.py:job, with the path of the script")
    return path, name


def _declared(path: str, name: str, end: _End) -> JobFunction[..., Any]:
    jobs = {n: job for n, job in default_session().jobs.items() if isinstance(job, JobFunction)}
    if not jobs and isinstance(end, SystemExit) and end.code:
        raise ArgumentError(f"{path} {_how(end)} before it declared a job\n"
                            "  try        the arguments that the script needs, after --")  # fmt: skip
    if not jobs:
        raise ArgumentError(f"{path} declares no job before it calls one (or before its end)\n"
                            "  try        a script with a @flow.global_function")  # fmt: skip
    if not name and len(jobs) > 1:
        raise ArgumentError(f"{path} declares several jobs\n  try        {path}:NAME with one of {', '.join(sorted(jobs))}")
    if name and name not in jobs:
        near = closest(name, jobs, count=1)
        hint = f"{path}:{near[0]}" if near else f"one of {', '.join(sorted(jobs))}"
        raise ArgumentError(f"{path} declares no job {name!r} before its first call of a job\n  try        {hint}")
    return jobs[name] if name else next(iter(jobs.values()))


def _how(end: _End) -> str:
    if not isinstance(end, SystemExit):
        return "ended"
    return f"exited with status {int(end.code) if isinstance(end.code, int) else int(end.code is not None)}"


def _run(path: str, arguments: Sequence[str], stop: bool | str) -> _End:
    """Runs the script."""
    argv, search = sys.argv, list(sys.path)
    sys.argv = [path, *arguments]
    sys.path[0:0] = [os.path.dirname(os.path.abspath(path))]
    process.stops_at_first_call = stop
    try:
        runpy.run_path(path, run_name="__main__")
    except StoppedAtFirstCallError as stopped:
        return stopped
    except SystemExit as left:
        if left.code is not None and not isinstance(left.code, int):
            with suppress(Exception):  # of its __str__
                print(left.code, file=sys.stderr)  # as Python does at the end of a script
        return left
    except SyntaxError as error:
        # Python's own code was running, not yet the script
        raise error.with_traceback(without_library(error.__traceback__)) from error.__cause__
    finally:
        process.stops_at_first_call = False
        sys.argv, sys.path[:] = argv, search
    return None
