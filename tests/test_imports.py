"""Imports go down the ranks only. The picture is in docs/architecture.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import oneflow

PACKAGE = Path(oneflow.__file__).resolve().parent
RANKS = [
    {"errors", "_source", "_refuse", "dtype", "_jax", "dist"},
    {"graph"},
    {"scope", "typing", "config", "env", "data"},
    {"initializers", "regularizers"},
    {"ops"},
    {"layers", "optimizer"},
    {"compiler"},
    {"runtime"},
    {"checkpoint", "summary", "export"},
    {"job"},
]
TOP = len(RANKS)  # __init__, legacy and the modules that only give names
RANK = {room: rank for rank, rooms in enumerate(RANKS) for room in rooms}
FORBIDDEN = {"graph": {"_jax"}, "compiler": {"ops", "initializers", "regularizers", "layers", "optimizer"}}
FORBIDDEN["runtime"] = FORBIDDEN["compiler"]
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name below the package, or the name of another package) of every import, at any depth of the file."""
    package = ["oneflow", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = [*base, *(node.module.split(".") if node.module else [])]
            yield from ((node.lineno, ".".join([*start, alias.name])) for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_go_down(path: Path) -> None:
    room = room_of(path)
    rank = RANK.get(room, TOP)
    wrong = []
    for line, name in imported(path):
        parts = name.split(".")
        if parts[0] != "oneflow" or len(parts) == 1:
            if parts[0] == "jax" and room != "_jax":
                wrong.append(f"line {line}: imports jax itself; take it from oneflow/_jax.py, which is lazy")
            continue
        target = parts[1]
        if target != room and (RANK.get(target, TOP) >= max(rank, 1) and rank < TOP or target in FORBIDDEN.get(room, ())):
            wrong.append(f"line {line}: {room} (rank {rank}) imports {target} (rank {RANK.get(target, TOP)})")
    assert not wrong, "\n".join([str(path), *wrong])


def test_every_room_is_known() -> None:
    """A file that only gives names defines nothing; anything else needs a rank."""
    for path in PACKAGE.glob("*.py"):
        if room_of(path) not in RANK and path.name != "legacy.py":
            tree = ast.parse(path.read_text(encoding="utf-8"))
            defined = [n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name != "__getattr__"]
            assert not defined, f"{path.name} has no rank but defines {defined}"
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert rooms <= RANK.keys()
