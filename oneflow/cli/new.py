"""``oneflow new DIRECTORY``: a small project to start from. Its files are those of the directory ``template``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from .._base import check
from .._base.command import Parser
from .._base.refuse import shown
from ..errors import ArgumentError

_TEMPLATE = Path(__file__).parent / "template"
_RENAMED = {"gitignore": ".gitignore"}  # a .gitignore inside of the package would apply to the package


def parser() -> Parser:
    """The command line."""
    made = Parser(
        prog="oneflow new", description="Creates a project that trains, tests and exports a small model: train.py, config.toml, "
        "tests, README.md.",
        epilog="example: oneflow new digits && cd digits && python train.py --steps 100",
    )  # fmt: skip
    made.add_argument("directory", metavar="DIRECTORY", help="the new project; it must not exist, or be empty")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Creates the project. Returns 0."""
    given, problem = check.path(parser().parse_args(arguments).directory)
    if problem:
        raise ArgumentError(f"DIRECTORY {problem}")
    target, created = Path(given), []
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ArgumentError(f"{str(target)!r} exists and is not an empty directory\n  try        another name")
        for source in sorted(_TEMPLATE.rglob("*")):
            if source.is_file() and "__pycache__" not in source.parts:
                path = target / source.relative_to(_TEMPLATE)
                path = path.with_name(_RENAMED.get(path.name, path.name))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(source.read_text(encoding="utf-8").replace("{name}", target.resolve().name), encoding="utf-8")
                created.append(path)
    except OSError as error:
        place = error.filename or given
        raise ArgumentError(f"{shown(place)}: {error.strerror}\n  try        a directory that you may write to") from error
    for path in created:
        print(f"created {path}")
    print(f"next: cd {shlex.quote(str(target))} && python train.py --steps 100")
    print("its tests: pip install pytest && python -m pytest")
    return 0
