"""The table of subcommands, and what runs one. docs/command-line.md documents them and the exit statuses."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .._base.command import ERROR, Parser, status_of
from .._base.extras import need
from .._base.refuse import closest
from .._base.version import __version__


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: a module with ``parser()`` and ``main(arguments) -> status``, imported when the command is used."""

    module: str
    help: str

    def load(self) -> Any:
        return importlib.import_module(self.module)


COMMANDS = {
    "checkpoint": Command("oneflow.checkpoint.__main__", "list, show, verify and compare checkpoints"),
    "completion": Command("oneflow.cli.completion", "print the completion script for bash, zsh or fish"),
    "data": Command("oneflow.data.__main__", "pack, show and verify record files, and make samples to try things with"),
    "doctor": Command("oneflow.doctor.__main__", "check the installation and the machine, and say how to fix what is wrong"),
    "export": Command("oneflow.cli.export", "write a job as ONNX or StableHLO"),
    "launch": Command("oneflow.launch", "start a script in several processes"),
    "new": Command("oneflow.cli.new", "create a project: train.py, config.toml, tests"),
    "plan": Command("oneflow.cli.plan", "show where a job's ops run and where its memory goes"),
    "profile": Command("oneflow.cli.profile", "run a few steps of a job, and show where their time goes"),
    "serve": Command("oneflow.serving.__main__", "serve models over HTTP"),
    "summary": Command("oneflow.cli.summary", "show the ops and variables of a job"),
    "train": Command("oneflow.cli.train", "run one of the examples that come with the library"),
}

_EPILOG = """examples:
  oneflow doctor
  oneflow new digits && cd digits && python train.py
  oneflow summary train.py:train_job
  oneflow plan train.py:train_job --target h100:8
  oneflow launch --nproc 2 train.py --steps 100

exit statuses: 0 success; 1 something was found (damage, a difference, trouble) or a script raised an error;
2 wrong usage or an error of the library; 130 interrupted; launch, train: the status of the script"""


def parser() -> Parser:
    """The command line as far as the name of the subcommand, whose own parser reads the rest."""
    made = Parser(
        prog="oneflow", description="Job functions on JAX/XLA.", epilog=_EPILOG,
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=16, width=110),
    )  # fmt: skip
    made.add_argument("--version", action="version", version=f"oneflow-jax {__version__}")
    commands = made.add_subparsers(title="commands (each has --help)", metavar="COMMAND")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.help, add_help=False)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand. Returns the exit status."""
    if "_ARGCOMPLETE" in os.environ:
        return _complete()
    given = list(sys.argv[1:] if arguments is None else arguments)
    return status_of(lambda: _run(given))


def _run(given: list[str]) -> int:
    if not given:
        print(parser().format_help())
        return ERROR
    if given[0].startswith("-"):
        parser().parse_args(given[:1])
    command = COMMANDS.get(given[0])
    if command is None:
        return _unknown(given[0])
    return int(command.load().main(given[1:]))


def _complete() -> int:
    """Answers the shell's completion request, which argcomplete passes in the environment."""
    argcomplete = need("argcomplete", "completion")
    line, point = os.environ["COMP_LINE"], int(os.environ["COMP_POINT"])
    _, _, _, words, _ = argcomplete.split_line(line, point)
    command = COMMANDS.get(words[1]) if len(words) > 1 else None
    if command is not None:
        os.environ["_ARGCOMPLETE"] = "2"  # the number of words before the arguments of the parser
    argcomplete.autocomplete(parser() if command is None else command.load().parser(), always_complete_options="long")
    return ERROR  # argcomplete has ended the process


def _unknown(word: str) -> int:
    near = closest(word, COMMANDS, count=1)
    hint = f"; did you mean `oneflow {near[0]}`?" if near else ";"
    print(f"error: oneflow has no command {word!r}{hint} `oneflow --help` lists them", file=sys.stderr)
    return ERROR
