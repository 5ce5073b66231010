"""One command, whose first word says what to do. Statuses: 0 good, 1 something was found, 2 an error, 130 interrupted."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .._base.command import ERROR, status_of
from .._base.refuse import closest


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: a module with ``main(arguments) -> status``."""

    module: str
    does: str


COMMANDS = {
    "checkpoint": Command("oneflow.checkpoint.__main__", "list, show, verify and compare checkpoints"),
    "data": Command("oneflow.data.__main__", "make, show and verify record files"),
    "doctor": Command("oneflow.doctor.__main__", "what was found on this machine, how fast it is, what to do"),
    "launch": Command("oneflow.launch", "start a script in several processes"),
    "plan": Command("oneflow.plan", "whether a job of a script fits hardware that is not here, and how fast it is there"),
    "serve": Command("oneflow.serving.__main__", "serve models over HTTP"),
    "summary": Command("oneflow.cli.summary", "the ops and variables of a job in a script"),
}

_EPILOG = """examples:
  oneflow doctor
  oneflow summary train.py:train_job
  oneflow plan train.py:train_job --target h100:8
  oneflow launch --nproc 2 train.py --steps 100

exit statuses: 0 good; 1 something was found (damage, trouble); 2 an error; 130 interrupted;
launch: that of the script"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(_help())
        return 0 if given else ERROR
    if given[0] == "--version":
        print(f"oneflow-jax {importlib.import_module('oneflow').__version__}")
        return 0
    command = COMMANDS.get(given[0])
    if command is None:
        return _unknown(given[0])
    run: Callable[[Sequence[str]], int] = importlib.import_module(command.module).main
    return status_of(lambda: run(given[1:]))


def _help() -> str:
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {command.does}" for name, command in sorted(COMMANDS.items()))
    return (
        "usage: oneflow COMMAND [-h] ...\n\nJob functions on JAX/XLA: look at them, run them, keep what they learn.\n\n"
        f"commands (each has --help):\n{listed}\n\n{_EPILOG}"
    )


def _unknown(word: str) -> int:
    near = closest(word, COMMANDS, count=1)
    hint = f"; did you mean `oneflow {near[0]}`?" if near else ""
    print(f"error: oneflow has no command {word!r}{hint} `oneflow --help` lists them", file=sys.stderr)
    return ERROR
