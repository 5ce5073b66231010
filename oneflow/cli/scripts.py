"""Jobs out of scripts: a script runs as far as its first call of a job, and no further."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from typing import Any

from .._base.refuse import closest
from ..errors import ArgumentError
from ..job import JobFunction
from ..job.function import StoppedAtFirstCallError
from ..runtime.process import process
from ..runtime.session import default_session


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
    path, _, name = target.partition(":") if not os.path.exists(target) else (target, "", "")
    if not os.path.isfile(path):
        raise ArgumentError(f"there is no script {path!r}\n  try        script.py:job, with the path of the script")
    _run(path, arguments)
    jobs = {n: job for n, job in default_session().jobs.items() if isinstance(job, JobFunction)}
    if not jobs:
        raise ArgumentError(f"{path} declares no job before it calls one (or before its end)")
    if not name and len(jobs) > 1:
        raise ArgumentError(f"{path} declares several jobs\n  try        {path}:NAME with one of {', '.join(sorted(jobs))}")
    if name and name not in jobs:
        near = closest(name, jobs, count=1)
        hint = f"{path}:{near[0]}" if near else f"one of {', '.join(sorted(jobs))}"
        raise ArgumentError(f"{path} declares no job {name!r} before its first call of a job\n  try        {hint}")
    return jobs[name] if name else next(iter(jobs.values()))


def _run(path: str, arguments: Sequence[str]) -> None:
    argv, search = sys.argv, list(sys.path)
    sys.argv = [path, *arguments]
    sys.path[0:0] = [os.path.dirname(os.path.abspath(path))]
    process.stops_at_first_call = True
    try:
        runpy.run_path(path, run_name="__main__")
    except (StoppedAtFirstCallError, SystemExit):
        pass
    finally:
        process.stops_at_first_call = False
        sys.argv, sys.path[:] = argv, search
