"""``oneflow train EXAMPLE``: the example programs, which are installed beside the library."""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .._base.command import Parser, add_rest
from ..errors import ArgumentError

_INSTALLED = "share/oneflow-jax/examples/"  # below the prefix of the environment


def parser() -> Parser:
    """The command line."""
    found = examples()
    width = max(map(len, found), default=0)
    made = Parser(
        prog="oneflow train", description="Runs one of the example programs. Models and logs are written below the working "
        "directory.\n\nexamples:\n" + "\n".join(f"  {name:<{width}}  {_first_line(path)}" for name, path in found.items()),
        epilog="example: oneflow train lenet --epochs 2\n         oneflow train lenet --help   (the options of the example)",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("--path", action="store_true", help="print the path of the example, to copy it, and do not run it")
    made.add_argument("example", metavar="EXAMPLE", choices=tuple(found), help="its name")
    add_rest(made, metavar="ARG", help="options of the example")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Becomes the example's program, whose status is that of the command."""
    found = examples()
    if not found:
        raise ArgumentError("the examples are not installed\n  try        pip install --force-reinstall oneflow-jax")
    options = parser().parse_args(arguments)
    path = found[options.example]
    if options.path:
        print(path)
        return 0
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, str(path), *options.arguments])


def examples() -> dict[str, Path]:
    """The programs by name: ``train_lenet.py`` is ``lenet``."""
    return {path.stem.removeprefix("train_"): path for path in sorted(_files(), key=lambda path: path.stem)}


def _files() -> list[Path]:
    checkout = Path(__file__).resolve().parents[2] / "examples"
    if checkout.is_dir() and (checkout.parent / "pyproject.toml").is_file():
        return list(checkout.rglob("train_*.py"))
    try:
        files = importlib.metadata.files("oneflow-jax") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = [file for file in files if _INSTALLED in file.as_posix() and file.match("train_*.py")]
    return [Path(str(file.locate())).resolve() for file in found]


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return (docstring or "").partition("\n")[0]
