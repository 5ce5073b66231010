"""Imports go down the ranks only. The picture is in docs/architecture.md."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import oneflow

PACKAGE = Path(oneflow.__file__).resolve().parent
RANKS = [
    {"errors", "_base"},  # these may import each other
    {"graph"},
    {"scope", "core"},
    {"_signature", "config", "data"},
    {"initializers", "regularizers"},
    {"ops"},
    {"layers", "optimizer"},
    {"compiler"},
    {"runtime"},
    {"checkpoint", "_reports"},
    {"job"},
    # the top floor: imported when it is used
    {"loggers", "metrics", "interop"},
    {"callbacks"},
    {"trainer"},
]
PARTS = {"typing": "_signature"}  # files that are one room with another
RANK = {room: rank for rank, rooms in enumerate(RANKS) for room in rooms}
TOP = len(RANKS)  # __init__ and the modules that give names: nothing of the above imports them
FRONT_END = {"initializers", "regularizers", "ops", "layers", "optimizer"}
FORBIDDEN = {"compiler": FRONT_END, "runtime": FRONT_END}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    if path == PACKAGE / "data" / "__init__.py":
        return "names of data"  # it gives the ops' names, too, when they are asked for
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return PARTS.get(name, name)


def imported(tree: ast.AST, package: list[str]) -> Iterator[tuple[ast.stmt, str]]:
    """The dotted name of everything that is imported, at any depth of the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = [*base, *(node.module.split(".") if node.module else [])]
            yield from ((node, ".".join([*start, alias.name])) for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_go_down(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    room = room_of(path)
    rank = RANK.get(room, TOP)
    wrong: set[str] = set()
    for node, name in imported(tree, ["oneflow", *path.relative_to(PACKAGE).parts[:-1]]):
        top, _, rest = name.partition(".")
        target = PARTS.get(rest.split(".")[0], rest.split(".")[0])
        if room == "graph" and rest.startswith("_base.jax"):
            wrong.add(f"line {node.lineno}: graph/ is plain data and knows no JAX")
        if top in ("jax", "jaxlib") and node in tree.body:
            wrong.add(f"line {node.lineno}: imports {name} with the module; take jax from oneflow/_base/jax.py, which is lazy")
        elif top == "oneflow" and target and target != room:
            upwards = RANK.get(target, TOP) >= max(rank, 1) and rank < TOP
            if upwards or target in FORBIDDEN.get(room, ()):
                wrong.add(f"line {node.lineno}: {room} (rank {rank}) imports {target} (rank {RANK.get(target, TOP)})")
    assert not wrong, "\n".join([str(path), *sorted(wrong)])


def test_the_top_floor_is_imported_when_it_is_used() -> None:
    rooms = ("callbacks", "interop", "loggers", "metrics", "trainer")
    program = (
        "import sys, oneflow as flow\n"
        "loaded = [m for m in sys.modules if m.split('.')[0] in ('tensorboardX', 'tqdm', 'pandas', 'torch')]\n"
        f"loaded += [m for m in sys.modules if m.startswith('oneflow.') and m.split('.')[1] in {rooms}]\n"
        "assert not loaded and 'oneflow.data.loader' not in sys.modules, loaded\n"
        "assert {'Trainer', 'callbacks', 'interop', 'loggers', 'metrics', 'trainer'} <= set(dir(flow))\n"
        "flow.Trainer, flow.callbacks.Callback, flow.loggers.CSVLogger, flow.metrics.Accuracy, flow.data.ArrayLoader\n"
        "assert 'jax' not in sys.modules and 'tensorboardX' not in sys.modules and 'tqdm' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_ranks_name_what_exists() -> None:
    rooms = {room_of(path) for path in FILES}
    assert RANK.keys() <= rooms
